"""Noise, as far as the graph tells it."""

import onnx.parser

from optvet.engine.work.trials.noise_floor import _inputs_of

TEXT = """<ir_version: 8, opset_import: ["" : 18]>
g (float[2] a, float[2] b, bool c) => (float[2] y, float[2] z, float[2] b) {
    t = Neg(a)  y = Abs(t)  u = Relu(b)
    z = If(c) <then_branch = yes () => (float[2] p) { p = Neg(t) },
               else_branch = no () => (float[2] q) { q = Identity(u) }>
}"""


def test_an_output_depends_on_inputs_through_nodes_and_branches() -> None:
    graph = onnx.parser.parse_model(TEXT).graph
    assert _inputs_of(graph, "y") == {"a"}
    assert _inputs_of(graph, "z") == {"a", "b", "c"}
    assert _inputs_of(graph, "b") == {"b"}
