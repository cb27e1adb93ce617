"""Code that makes bfloat16 of a model in float16, as ``optvet.graph.to_bfloat16`` does."""

from __future__ import annotations

BEFORE = """\
import ml_dtypes
import onnx

original = onnx.ModelProto.FromString(model.SerializeToString())
"""
AFTER = """\
def graphs_of(graph):
    inner = [g for n in graph.node for a in n.attribute for g in (a.g, *a.graphs)]
    return [graph, *(each for g in inner for each in graphs_of(g))]

exact = {}
for graph in graphs_of(original.graph):
    exact |= {t.name: t for t in graph.initializer if t.data_type == 1}
    held = [(n.output[0], a) for n in graph.node if n.op_type == "Constant" for a in n.attribute]
    exact |= {name: a.t for name, a in held if a.name == "value" and a.t.data_type == 1}

def shorten(tensor, name):
    if tensor.data_type == 10:
        value = onnx.numpy_helper.to_array(exact.get(name, tensor)).astype("float32")
        short = value.astype(ml_dtypes.bfloat16)
        tensor.CopyFrom(onnx.numpy_helper.from_array(short, tensor.name))

for graph in graphs_of(half.graph):
    for tensor in graph.initializer:
        shorten(tensor, tensor.name)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                shorten(attribute.t, node.output[0] if attribute.name == "value" else "")
            if attribute.name in ("to", "dtype") and attribute.i == 10:
                attribute.i = 16
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == 10:
            value.type.tensor_type.elem_type = 16
"""
