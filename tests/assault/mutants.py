"""Damaged models: seeded mutants of small ones, and one for each thing that went wrong before."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
from google.protobuf.descriptor import (  # type: ignore[import-untyped]  # ships no types
    FieldDescriptor,
)
from onnx import TensorProto, helper, numpy_helper
from tests.assault.harness import NET, numbers

CONV = f"""
<ir_version: 8, opset_import: ["" : 17]>
conv (float[1,2,6,6] image) => (float[1,4] scores)
<float[3,2,3,3] w = {numbers(3, 2, 3, 3)}, float[3] b = {numbers(3)},
 float[12,4] v = {numbers(12, 4)}>
{{
    c = Conv<pads: ints = [1, 1, 1, 1]>(image, w, b)
    r = Relu(c)
    p = MaxPool<kernel_shape: ints = [3, 3], strides: ints = [3, 3]>(r)
    f = Flatten(p)
    scores = MatMul(f, v)
}}
"""
CONTROL = """
<ir_version: 8, opset_import: ["" : 17]>
control (float[N,3] x, bool flag) => (float[N,3] y)
{
    y = If (flag) <
        then_branch = positive () => (float[N,3] a) { a = Relu(x) },
        else_branch = negative () => (float[N,3] b) { b = Neg(x) }
    >
}
"""
TYPES = """
<ir_version: 8, opset_import: ["" : 17]>
types (int64[2,3] ids, float16[2,3] half) => (float[2,3] y, int64[3] shape)
{
    wide = Cast<to: int = 1>(half)
    count = Cast<to: int = 1>(ids)
    sum = Add(wide, count)
    y = Softmax<axis: int = -1>(sum)
    three = Constant<value: tensor = int64[1] {3}>()
    s = Shape(sum)
    shape = Concat<axis: int = 0>(s, three)
}
"""
SEEDS = {"net": NET, "conv": CONV, "control": CONTROL, "types": TYPES}

_INTEGERS: tuple[int, ...] = (
    0,
    1,
    -1,
    2,
    7,
    16,
    255,
    2**31 - 1,
    -(2**31),
    2**31,
    2**62,
    -(2**62),
    2**63 - 1,
)
_TEXTS = ("", "x", "ai.onnx", "\x1b[2J\x07", "a" * 3000, "../../x", "\0", "ü\u202e", "Conv", "If")


def seeds() -> list[bytes]:
    """The models that mutants are made of."""
    return [onnx.parser.parse_model(text).SerializeToString() for text in SEEDS.values()]


def mutant(seed: int) -> bytes:
    """Damaged model number ``seed``."""
    chance = random.Random(seed)
    data = chance.choice(seeds())
    if chance.random() < 0.4:
        return _with_damaged_bytes(chance, data)
    proto = onnx.load_from_string(data)
    for _ in range(chance.randint(1, 3)):
        _mutate(chance, proto)
    return bytes(proto.SerializeToString())


def _with_damaged_bytes(chance: random.Random, data: bytes) -> bytes:
    damaged = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        place = chance.randrange(len(damaged))
        match chance.randrange(4):
            case 0:
                damaged[place] ^= 1 << chance.randrange(8)
            case 1:
                damaged[place] = chance.randrange(256)
            case 2:
                del damaged[place : place + chance.randrange(1, 20)]
            case _:
                damaged[place:place] = chance.randbytes(chance.randrange(1, 20))
    return bytes(damaged)


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for child in value if _repeated(field) else (value,):
                yield from _messages(child)


def _repeated(field: Any) -> bool:
    repeated: bool = field.is_repeated
    return repeated


def _mutate(chance: random.Random, proto: onnx.ModelProto) -> None:
    """Change one field, set or not, of one message of the model."""
    message = chance.choice(list(_messages(proto)))
    fields = [field for field, _ in message.ListFields()] or list(message.DESCRIPTOR.fields)
    field = chance.choice(fields if chance.random() < 0.8 else list(message.DESCRIPTOR.fields))
    if _repeated(field):
        _mutate_list(chance, field, getattr(message, field.name))
    elif field.type == FieldDescriptor.TYPE_MESSAGE or chance.random() < 0.2:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _value(chance, field))


def _mutate_list(chance: random.Random, field: Any, items: Any) -> None:
    if items and chance.random() < 0.4:
        del items[chance.randrange(len(items))]
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        if items:
            items.add().CopyFrom(chance.choice(list(items)))
        else:
            items.add()
    elif items and chance.random() < 0.6:
        items[chance.randrange(len(items))] = _value(chance, field)
    else:
        items.append(_value(chance, field))


def _value(chance: random.Random, field: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return chance.choice(_TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return chance.randbytes(chance.choice((0, 1, 7, 64)))
    if field.type == FieldDescriptor.TYPE_ENUM:
        return chance.choice(field.enum_type.values).number
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return chance.choice((0.0, -1.0, 1e38, float("inf"), float("nan")))
    numbers = _INTEGERS
    if field.type == FieldDescriptor.TYPE_INT32:
        numbers = tuple(n for n in numbers if -(2**31) <= n < 2**31)
    elif field.type == FieldDescriptor.TYPE_UINT64:
        numbers = tuple(n for n in numbers if n >= 0)
    return chance.choice(numbers)


# --- one for each thing that went wrong ----------------------------------------------------------


def _net() -> onnx.ModelProto:
    return onnx.parser.parse_model(NET)


def _one_node(node: onnx.NodeProto, inputs: list[Any], outputs: list[Any]) -> onnx.ModelProto:
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def huge_dimensions() -> onnx.ModelProto:
    """An input of 2^62 times 2^62 elements."""
    kind = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2**62, 2**62]) for n in "xy"]
    return _one_node(helper.make_node("Relu", ["x"], ["y"]), kind[:1], kind[1:])


def rank_200() -> onnx.ModelProto:
    kind = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1] * 200) for n in "xy"]
    return _one_node(helper.make_node("Relu", ["x"], ["y"]), kind[:1], kind[1:])


def weight_of_the_wrong_size() -> onnx.ModelProto:
    proto = _net()
    proto.graph.initializer[0].dims[:] = [800, 500]
    return proto


def weight_of_negative_size() -> onnx.ModelProto:
    proto = _net()
    proto.graph.initializer[0].dims[:] = [-8, -5]
    return proto


def weight_of_overflowing_size() -> onnx.ModelProto:
    """Its number of elements is 40 if counted in 64 bits."""
    proto = _net()
    proto.graph.initializer[0].dims[:] = [2**33, 2**31, 40, 1]
    return proto


def attribute_of_the_wrong_type() -> onnx.ModelProto:
    proto = onnx.parser.parse_model(CONV)
    for node in proto.graph.node:
        for attribute in node.attribute:
            attribute.CopyFrom(helper.make_attribute(attribute.name, "a text"))
    return proto


def output_of_no_type() -> onnx.ModelProto:
    proto = _net()
    for output in proto.graph.output:
        output.type.tensor_type.elem_type = TensorProto.UNDEFINED
    return proto


def input_of_an_unknown_type() -> onnx.ModelProto:
    proto = _net()
    proto.graph.input[0].type.tensor_type.elem_type = 4711
    return proto


def _external(location: str, **more: str) -> onnx.ModelProto:
    proto = _net()
    weight = proto.graph.initializer[0]
    weight.ClearField("float_data")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **more}.items():
        weight.external_data.add(key=key, value=value)
    return proto


def external_location_of_5000_characters() -> onnx.ModelProto:
    return _external("x" * 5000)


def external_location_elsewhere() -> onnx.ModelProto:
    return _external("../../../../../../etc/passwd")


def external_location_without_end() -> onnx.ModelProto:
    return _external("/dev/zero", length=str(2**62))


def external_location_with_escapes() -> onnx.ModelProto:
    return _external("\x1b]0;pwned\x07\x1b[2J\n\n" * 20, offset="-1")


def operator_name_of_100_000_characters() -> onnx.ModelProto:
    proto = _net()
    proto.graph.node[0].op_type = "O" * 100_000
    return proto


def names_with_escapes() -> onnx.ModelProto:
    proto = _net()
    for node in proto.graph.node:
        node.name = "\x1b]0;pwned\x07\x1b[2J" * 50
        node.op_type = "\x1b[31mRelu\0"
        node.domain = "\u202ereversed"
    return proto


def deep_subgraphs() -> onnx.ModelProto:
    """An If in an If, thirty deep."""
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [], [output])
    for _ in range(30):
        branch = helper.make_node("If", ["flag"], ["y"], then_branch=graph, else_branch=graph)
        # Of the two branches one only goes on: else the model doubles with each.
        branch.attribute[1].g.ClearField("node")
        constant = helper.make_node("Constant", [], ["y"], value_floats=[1.0])
        branch.attribute[1].g.node.append(constant)
        graph = helper.make_graph([branch], "g", [], [output])
    graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]))
    graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def cycle() -> onnx.ModelProto:
    proto = _net()
    proto.graph.node[0].input[0] = "hidden"
    return proto


def values_made_twice() -> onnx.ModelProto:
    proto = _net()
    for node in proto.graph.node:
        node.output[0] = "y"
    return proto


def no_nodes() -> onnx.ModelProto:
    proto = _net()
    del proto.graph.node[:]
    return proto


def no_outputs() -> onnx.ModelProto:
    proto = _net()
    del proto.graph.output[:]
    return proto


def node_of_20_000_inputs() -> onnx.ModelProto:
    proto = _net()
    proto.graph.node[1].input.extend(["h"] * 20_000)
    return proto


def function_that_calls_itself() -> onnx.ModelProto:
    proto = _net()
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    call = helper.make_node("Again", ["a"], ["b"], domain="own")
    proto.functions.append(helper.make_function("own", "Again", ["a"], ["b"], [call], opsets))
    proto.opset_import.append(opsets[1])
    proto.graph.node[1].op_type, proto.graph.node[1].domain = "Again", "own"
    return proto


def expansion_to_10_000_gigabytes() -> onnx.ModelProto:
    proto = _net()
    shape = numpy_helper.from_array(np.array([10**7, 10**6, 4, 5]), "shape")
    proto.graph.initializer.append(shape)
    proto.graph.node[1].CopyFrom(helper.make_node("Expand", ["h", "shape"], ["hidden"]))
    return proto


def versions_out_of_this_world() -> onnx.ModelProto:
    proto = _net()
    proto.ir_version = 2**62
    proto.opset_import[0].version = 2**62
    return proto


def metadata_of_a_megabyte() -> onnx.ModelProto:
    proto = _net()
    proto.producer_name = proto.doc_string = "p" * (1 << 20)
    proto.metadata_props.add(key="k" * (1 << 20), value="\x1b[2J" * 100)
    return proto


Maker = Callable[[], onnx.ModelProto]
BAD: tuple[Maker, ...] = (
    huge_dimensions,
    rank_200,
    weight_of_the_wrong_size,
    weight_of_negative_size,
    weight_of_overflowing_size,
    attribute_of_the_wrong_type,
    output_of_no_type,
    input_of_an_unknown_type,
    external_location_of_5000_characters,
    external_location_elsewhere,
    external_location_without_end,
    external_location_with_escapes,
    operator_name_of_100_000_characters,
    names_with_escapes,
    cycle,
    values_made_twice,
    function_that_calls_itself,
    versions_out_of_this_world,
)
"""Models that nobody can run: there is nothing to vet."""
ODD: tuple[Maker, ...] = (
    deep_subgraphs,
    no_nodes,
    no_outputs,
    node_of_20_000_inputs,
    expansion_to_10_000_gigabytes,
    metadata_of_a_megabyte,
)
"""Models about which more than one answer is true."""


def write(folder: Path, name: str, proto: onnx.ModelProto) -> Path:
    """A model file, written without any check."""
    path = folder / f"{name}.onnx"
    path.write_bytes(proto.SerializeToString())
    return path
