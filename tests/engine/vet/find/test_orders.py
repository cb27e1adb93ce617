"""Orders of passes: wrong ones are found and reduced, and what was not tried is bounded."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.answers import detail
from tests.preload import TRIALS

from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.find.orders import bound_of, contains, draw_orders
from optvet.engine.vet.run import vet_model
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.spec.records import VetResult
from optvet.spec.request import VetRequest
from optvet.spec.types import Artifact, Pass, Traits
from optvet_tensor import TensorOptions

NET = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,8] x) => (float[1,8] y) {
    a = Identity(x)  b = Identity(a)  c = Identity(b)  d = Identity(c)  r = Relu(d)  y = Tanh(r)
}
"""


@dataclass
class Ordered:
    """Each pass removes the Identity of its name; ``d`` only after ``a``.

    ``a`` then ``b`` then ``c`` loses the Relu; each of them, and any two, are right.
    """

    name: str = "ordered"
    traits: Traits = field(default_factory=Traits)
    preload: Sequence[str] = ("onnx",)
    options = TensorOptions()

    def version(self) -> str:
        return "1"

    def passes(self) -> Sequence[Pass]:
        return [Pass(name) for name in ("c", "b", "a", "d", "keep")]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        return {"default": ("c", "b", "a", "d", "keep")}

    def apply(self, source: Artifact, passes: Sequence[str], options: Any) -> Artifact:
        model = onnx.load_from_string(source.data)
        marked = False
        for name in passes:
            left = {n.output[0] for n in model.graph.node if n.op_type == "Identity"}
            if name == "keep" or (name == "d" and "a" in left):
                continue
            marked |= name == "b" and "a" not in left
            _remove(model, "r" if name == "c" and marked else name)
        return Artifact("onnx", model.SerializeToString(deterministic=True))


def _remove(model: onnx.ModelProto, value: str) -> None:
    """Let readers of a value read what its node reads."""
    node = next(n for n in model.graph.node if n.output[0] == value)
    for other in model.graph.node:
        other.input[:] = [node.input[0] if name == value else name for name in other.input]
    model.graph.node.remove(node)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=2, limits=Limits(60, 1 << 30), preload=(*TRIALS, __name__)) as shared:
        yield shared


def vet(folder: Path, sandbox: Sandbox, orders: int, seed: int = 0, **more: Any) -> VetResult:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    plugins = Plugins()
    plugins.register("optimizer", Ordered(**more))
    request = VetRequest(
        model="model",
        optimizer="ordered",
        pairs=False,
        limit=2,
        orders=orders,
        seed=seed,
        cache=False,
    )
    return vet_model(open_model(path, "model", folder), request, plugins, sandbox=sandbox)


def test_a_wrong_order_is_found_and_reduced_to_the_shortest_sequence(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    result = vet(tmp_path, sandbox, orders=24)
    assert result.orders is not None
    # Those that change the model alone, then what does so only after these.
    assert result.orders.passes == ["c", "b", "a", "d"]
    assert (result.orders.tried, result.orders.total, result.orders.failing) == (24, 24, 4)
    assert result.orders.share == pytest.approx(1 / 6)
    assert (result.orders.pairs, result.orders.all_pairs) == (12, 12)
    assert result.orders.shortest == ["a", "b", "c"]
    (found,) = result.findings
    assert (found.symptom, found.culprit, found.confirmed) == (
        "wrong-output",
        ["a", "b", "c"],
        True,
    )
    assert (result.verdict, result.safe_pipeline) == ("faulty", ["c", "b", "a", "d", "keep"])


def test_the_bound_of_a_sample_covers_the_share_of_all_orders(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    # Of this seed none of the four wrong ones is among the five that are drawn.
    wrong = [contains(order, "abc") for order in draw_orders("cbad", 5, seed=4)]
    result = vet(tmp_path, sandbox, orders=5, seed=4)
    assert result.orders is not None
    assert (result.orders.tried, result.orders.total) == (5, 24)
    assert result.orders.failing == sum(wrong) == 0
    assert result.orders.share == pytest.approx(1 - 0.05 ** (1 / 5))
    assert result.orders.share > 4 / 24
    assert detail(result, "orders").startswith("5 of 24 orders of 4 passes tried, all right")


def test_switches_have_no_order(tmp_path: Path, sandbox: Sandbox) -> None:
    result = vet(tmp_path, sandbox, orders=5, traits=Traits(ordered=False))
    assert result.orders is None
    assert "an order of its own" in detail(result, "orders")


@given(st.integers(1, 6), st.integers(1, 150), st.integers(0, 5))
def test_orders_are_distinct_and_as_many_as_asked_for(count: int, most: int, seed: int) -> None:
    names = [f"p{i}" for i in range(count)]
    found = draw_orders(names, most, seed)
    every = [*itertools.permutations(names)]
    assert len({*found}) == len(found) == min(most, len(every))
    assert {*found} <= {*every}


def test_the_bound_holds_for_samples_of_a_known_share() -> None:
    # Of 720 orders of six, 360 have a before b: a sample's bound is below that in 5 % at most.
    names = "abcdef"
    missed = 0
    for seed in range(200):
        failing = sum(contains(o, "ab") for o in draw_orders(names, 20, seed))
        missed += bound_of(failing, 20, 720) < 0.5
    assert missed <= 20
