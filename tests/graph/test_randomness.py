"""Seeds of random operators: where they are put, and what the runtime draws from them."""

from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import ModelProto

from optvet.graph.randomness import seed_operators
from optvet.graph.walk import attribute_of, nodes_of

TWO = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[8] x) => (float[8] a, float[8] b)
{ a = RandomNormalLike(x)
  b = RandomNormalLike(x) }
"""


def model(text: str) -> ModelProto:
    return onnx.parser.parse_model(text)


def run(proto: ModelProto | None) -> list[np.ndarray]:
    import onnxruntime as ort

    assert proto is not None
    session: Any = ort.InferenceSession(proto.SerializeToString())
    return list(session.run(None, {"x": np.ones(8, np.float32)}))


def seeds(proto: ModelProto | None) -> list[float]:
    assert proto is not None
    return [attribute_of(node, "seed") for node in nodes_of(proto.graph) if node.output]


def test_one_number_draws_the_same_and_another_something_else() -> None:
    first, again, other = (run(seed_operators(model(TWO), n, "place")) for n in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first[0], first[1])


def test_the_model_itself_keeps_what_it_had() -> None:
    given = model(TWO)
    before = given.SerializeToString()
    seed_operators(given, 1, "name")
    assert given.SerializeToString() == before


def test_seeds_by_name_outlast_another_order() -> None:
    given, turned = model(TWO), model(TWO)
    nodes = list(reversed(turned.graph.node))
    del turned.graph.node[:]
    turned.graph.node.extend(nodes)
    assert seeds(seed_operators(given, 3, "name")) == seeds(seed_operators(turned, 3, "name"))[::-1]
    assert seeds(seed_operators(given, 3, "place")) == seeds(seed_operators(turned, 3, "place"))


def test_nodes_that_share_a_seed_go_on_sharing_one() -> None:
    given = model(TWO.replace("Like(", "Like <seed=4.0> ("))
    one, other = seeds(seed_operators(given, 1, "place"))
    assert one == other != 4.0


def test_each_call_of_a_function_draws_for_itself() -> None:
    given = model("""
    <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[8] x) => (float[8] a, float[8] b)
    { a = own.noise(x)
      b = own.noise(x) }
    <domain: "own", opset_import: ["" : 17]>
    noise (x) => (y) { y = RandomUniformLike(x) }
    """)
    a, b = run(seed_operators(given, 1, "place"))
    assert not np.array_equal(a, b)


@pytest.mark.parametrize("operator", ["Bernoulli", "RandomUniformLike", "RandomNormalLike"])
def test_random_operators_in_subgraphs_are_seeded(operator: str) -> None:
    given = model(f"""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[8] x) => (float[8] y)
    <bool yes = {{1}}, float half = {{0.5}}>
    {{ y = If (yes) <then_branch = t () => (float[8] p) {{ q = Mul(x, half)
       p = {operator}(q) }}, else_branch = e () => (float[8] n) {{ n = Neg(x) }}> }}
    """)
    first, again = (run(seed_operators(given, 1, "place"))[0] for _ in range(2))
    assert np.array_equal(first, again)
    draws = [run(seed_operators(given, n, "place"))[0].tobytes() for n in range(20)]
    assert len(set(draws)) > 10


def test_dropout_takes_a_whole_number_and_no_seed_before_operator_set_12() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 13]>
    g (float[8] x) => (float[8] y) <float r = {0.5}, bool t = {1}> { y = Dropout(x, r, t) }
    """
    draws = [run(seed_operators(model(text), n, "place"))[0] for n in range(64)]
    # The first element of neighbouring seeds would be the same in all of them.
    assert 0.2 < np.mean([d[0] == 0 for d in draws]) < 0.8
    old = model("""
    <ir_version: 4, opset_import: ["" : 6]>
    g (float[8] x) => (float[8] y) { y = Dropout <seed=1> (x) }
    """)
    assert seed_operators(old, 1, "place") is not None
