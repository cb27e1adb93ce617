"""Inputs on which the source itself has no defined answer are no witness of a fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import onnx
import pytest
from tests.engine.convert.plain import HEAD

from optvet.engine.convert.align import Tolerances, known_values
from optvet.engine.convert.compare_outputs import Judge, judge_pair
from optvet.engine.convert.match_interface import match_outputs
from optvet.engine.convert.run import convert_model
from optvet.engine.convert.source_noise import NoiseMeter, _terms
from optvet.engine.convert.undefined_inputs import undefined_in
from optvet.engine.convert.worker_steps import GraphFacts
from optvet.engine.discovery import Plugins
from optvet.engine.judge.known_noise import Noise
from optvet.spec.convert import ConvertRequest
from optvet.spec.converters import SourceInside, SourceOperand, SourceValue
from optvet.spec.records.convert import ConversionResult
from optvet.spec.types import Sample

INTEGERS = np.array([-7, 7, 5])
FLOATS = np.array([1.5, -2.0, 3e10], np.float32)


def inside(operator: str, result: np.ndarray, second: object = None) -> SourceInside:
    operands = (SourceOperand("0", input="x"), SourceOperand("1", input="y", constant=second))
    return SourceInside((SourceValue(operator, result, operands=operands),), (0,))


@pytest.mark.parametrize(
    ("operator", "x", "y", "result", "words"),
    [
        ("jax.div", INTEGERS, INTEGERS * 0, INTEGERS, "jax.div: integers divided by 0"),
        ("FloorMod", INTEGERS, np.array([1, 0, 2]), INTEGERS, "by 0"),
        ("aten.floor_divide", INTEGERS, INTEGERS, INTEGERS, ""),
        ("aten.div", INTEGERS, INTEGERS * 0, FLOATS, ""),
        ("aten.remove", INTEGERS, INTEGERS * 0, INTEGERS, ""),
        ("aten.__rshift__", INTEGERS, np.array([1, -1, 2]), INTEGERS, "from 0 to 63"),
        ("RightShift", INTEGERS, np.array([0, 63, 64]), INTEGERS, "from 0 to 63"),
        ("aten.bitwise_right_shift", INTEGERS, np.array([0, 63, 1]), INTEGERS, ""),
        ("aten._to_copy", FLOATS, None, INTEGERS.astype(np.int32), "a float that is no int32"),
        ("Cast", FLOATS, None, INTEGERS, ""),
        ("Cast", np.array([np.nan, 1, 2], np.float32), None, INTEGERS, "no int64"),
        ("Cast", FLOATS, None, FLOATS > 0, ""),
    ],
)
def test_operations_without_a_defined_answer_are_known(
    operator: str, x: np.ndarray, y: np.ndarray | None, result: np.ndarray, words: str
) -> None:
    feeds = {"x": x} if y is None else {"x": x, "y": y}
    found = undefined_in(inside(operator, result), feeds)
    assert words in found
    assert bool(words) == bool(found)


def test_a_shift_by_a_written_number_of_bits_is_read_too() -> None:
    assert undefined_in(inside("aten.__lshift__", INTEGERS, 64), {"x": INTEGERS})
    assert not undefined_in(inside("aten.__lshift__", INTEGERS, 3), {"x": INTEGERS})


SHIFT = """
import torch

example_inputs = (torch.tensor([8, 7, 5]), torch.tensor([1, 0, 2]))


class Shift(torch.nn.Module):
    def forward(self, x, y):
        return x >> y


def net():
    return Shift()
"""


def test_an_edge_value_without_a_defined_answer_is_left_out(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(SHIFT)
    request = ConvertRequest(model=f"{tmp_path / 'net.py'}:net", via=("torch_script",), sizes=False)
    result = convert_model(request, Plugins())
    assert {f.witness.about for f in result.findings if f.witness} == {"x: all negative"}
    left = {s.sample: s.reason for s in result.skipped}
    assert any("__rshift__: a shift that is not" in words for words in left.values())


AT_THE_PLACE = """
import torch

bits = torch.tensor([8, 7, 5]), torch.tensor([64, 64, 64])


class Shift(torch.nn.Module):
    def forward(self, x, y):
        return x << y


def net():
    return Shift()


class Shifted(torch.nn.Module):
    def forward(self, x, y):
        return torch.topk(x, 3).indices, x >> y


def shifted():
    return Shifted()


net.example_inputs = bits
shifted.example_inputs = torch.tensor([-7, -7, 5]), torch.tensor([1, 1, 1])
"""


@pytest.fixture
def at_the_place(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(AT_THE_PLACE)
    return tmp_path / "net.py"


def _convert(source: str) -> ConversionResult:
    request = ConvertRequest(
        model=source, via=("torch_script",), sizes=False, edges=False, random=0
    )
    return convert_model(request, Plugins())


def test_an_example_decides_nothing_if_what_goes_wrong_has_no_defined_answer(
    at_the_place: Path,
) -> None:
    result = _convert(f"{at_the_place}:net")
    assert (result.verdict, result.findings, result.samples) == ("undecided", [], 0)
    assert "__lshift__: a shift that is not" in result.reason
    assert [each.sample for each in result.skipped] == ["example"]


def test_what_the_source_leaves_open_elsewhere_hides_no_fault(at_the_place: Path) -> None:
    result = _convert(f"{at_the_place}:shifted")
    (finding,) = result.findings
    assert finding.place is not None
    assert finding.place.operator == "aten.__rshift__"
    assert not result.skipped


def test_a_plugin_says_what_its_framework_leaves_open() -> None:
    value = SourceValue("a.near", FLOATS, undefined="any element")
    assert undefined_in(SourceInside((value,)), {}) == (
        "a.near: any element, which has no defined answer"
    )
    assert not undefined_in(SourceInside((replace(value, undefined=""),)), {})


def test_zeros_that_a_model_is_written_with_are_no_value_of_the_source() -> None:
    text = (
        "g (float[3] x) => (float[3] y) <float[3] w = {0, 0, 0}> { z = Identity(w) y = Add(x, z) }"
    )
    model = onnx.parser.parse_model(HEAD + text)
    zeros = np.zeros(3, np.float32)
    values = {"x": FLOATS, "z": zeros, "y": FLOATS}
    varies = SourceInside((SourceValue("Mul", zeros),), (0,))
    known = known_values(model, values, varies, Tolerances([0.0]))
    assert (known.target, known.source) == ({}, frozenset())
    written = SourceInside((SourceValue("Mul", zeros, constant=True),), (0,))
    assert known_values(model, values, written, Tolerances([0.0])).source == {0}


@pytest.mark.parametrize(
    ("x", "terms"), [(FLOATS, 100), (FLOATS[:1].repeat(3), 10_000), (FLOATS * 0, 100)]
)
def test_sums_of_equal_terms_round_alike(x: np.ndarray, terms: int) -> None:
    assert _terms(GraphFacts(100, frozenset()), Sample("s", {"x": x})) == terms


@pytest.mark.parametrize(
    ("output", "given", "lost"),
    [(1e-6, 1.006e-6, True), (0.0, 1e-11, True), (1.0, 1.006, False), (1e-6, np.nan, False)],
)
def test_an_error_below_the_rounding_of_usual_outputs_is_told_apart(
    output: float, given: float, lost: bool
) -> None:
    usual, edge = np.array([0.5, -1.0], np.float32), np.full(2, output, np.float32)
    reference = {"example": {"y": usual}, "edge 1": {"y": edge}}
    meter = cast(NoiseMeter, None)
    judge = Judge(reference, frozenset(), meter, frozenset({"example"}))
    pair = match_outputs(reference["edge 1"], {"y": np.full(2, given, np.float32)})
    seen = judge_pair(pair, Noise(jitters=[reference["edge 1"]]))
    assert seen.symptom == "wrong-output"
    assert judge.is_lost_in_usual("edge 1", seen) is lost


def test_integers_are_not_rounded() -> None:
    usual, edge = np.array([2**40, 3]), np.array([2**30 + 1, 3])
    reference = {"example": {"y": usual}, "edge 1": {"y": edge}}
    judge = Judge(reference, frozenset(), cast(NoiseMeter, None), frozenset({"example"}))
    pair = match_outputs(edge_outputs := reference["edge 1"], {"y": np.array([2**30, 3])})
    seen = judge_pair(pair, Noise(jitters=[edge_outputs]))
    assert seen.symptom == "wrong-output"
    assert not judge.is_lost_in_usual("edge 1", seen)


MEDIAN = """
import torch


class Median(torch.nn.Module):
    def forward(self, x):
        return torch.median(x * 2.0, dim=1).values


def net():
    return Median()


net.example_inputs = (torch.arange(12.0).reshape(2, 6),)
"""


def test_a_refusal_names_the_operator_of_the_source(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(MEDIAN)
    request = ConvertRequest(model=f"{tmp_path / 'net.py'}:net", via=("torch_script",))
    (refusal,) = convert_model(request, Plugins()).findings
    assert refusal.place is not None
    assert (refusal.severity, refusal.place.operator) == ("refusal", "aten.median")


def test_the_order_of_equal_elements_is_undefined_where_a_framework_leaves_it_open() -> None:
    def ordered(x: np.ndarray, *, open_ties: bool = True, dim: int = 1) -> str:
        operands = (SourceOperand("self", input="x"), SourceOperand("dim", constant=dim))
        value = SourceValue("a.topk", INTEGERS, operands=operands, open_ties=open_ties)
        return undefined_in(SourceInside((value,), (0,)), {"x": x})

    ties = np.array([[1, 2, 1], [3, 4, 5]])
    assert "equal elements in any order" in ordered(ties)
    assert not ordered(ties, dim=0)
    assert not ordered(ties, open_ties=False)
    assert not ordered(np.arange(6).reshape(2, 3))


def test_elements_that_rounding_moves_past_each_other_are_tied_if_they_were_computed() -> None:
    near = np.array([[1, np.nextafter(np.float32(1), 2)], [1, 1.001]], np.float32)

    def ordered(read: SourceOperand) -> str:
        before = SourceValue("a.exp", near)
        value = SourceValue("a.topk", INTEGERS, (0,), operands=(read,), open_ties=True)
        return undefined_in(SourceInside((before, value), (1,)), {"x": near})

    assert "equal elements in any order" in ordered(SourceOperand("self", place=0))
    assert not ordered(SourceOperand("self", input="x"))


def test_an_order_that_a_framework_leaves_open_is_undefined() -> None:
    def found(size: int, *, open_order: bool) -> str:
        value = SourceValue("a.unique", np.arange(size, dtype=np.float32), open_order=open_order)
        return undefined_in(SourceInside((value,), (0,)), {})

    assert "elements in any order" in found(2, open_order=True)
    assert not found(2, open_order=False)
    assert not found(1, open_order=True)


def test_a_search_in_unsorted_numbers_is_undefined_where_a_framework_asks_for_sorted_ones() -> None:
    def found(numbers: Sequence[float], *, sorted_operand: str = "boundaries") -> str:
        operands = (SourceOperand("self", input="x"), SourceOperand("boundaries", input="b"))
        value = SourceValue("a.find", INTEGERS, operands=operands, sorted_operand=sorted_operand)
        feeds = {"x": np.array([5.0, 1.0]), "b": np.array(numbers)}
        return undefined_in(SourceInside((value,), (0,)), feeds)

    assert "unsorted boundaries" in found([3, 1, 2])
    assert not found([1, 2, 2])
    assert not found([3, 1, 2], sorted_operand="")


def test_pytorch_tells_what_it_leaves_open() -> None:
    torch = pytest.importorskip("torch")
    from optvet_torch.inside import recorded

    def found(call: Callable[..., object], *arrays: Sequence[float]) -> str:
        tensors = [torch.tensor(a) for a in arrays]
        names = [f"x{i}" for i in range(len(arrays))]
        run = recorded(
            torch.nn.Identity(), lambda _, *given: call(*given), tensors, {}, names=names
        )
        return undefined_in(run, dict(zip(names, map(np.asarray, arrays), strict=True)))

    low, unsorted = [1.0, 2.5], [3.0, 1.0, 2.0]
    assert "unsorted boundaries" in found(torch.bucketize, low, unsorted)
    assert not found(torch.bucketize, low, sorted(unsorted))
    assert "unsorted sorted_sequence" in found(torch.searchsorted, unsorted, low)
    sorter = torch.tensor([1, 2, 0])
    assert not found(lambda s, x: torch.searchsorted(s, x, sorter=sorter), unsorted, low)
    assert "any order" in found(lambda x: torch.unique(x, sorted=False), unsorted)
    assert not found(torch.unique, unsorted)


CALLED = """
import torch

example_inputs = (torch.tensor([[-1.0, 2.0]]),)


def model():
    return torch.nn.ReLU()


def run(module, x):
    return module(x) + 10


def doubled():
    return torch.nn.ReLU()


doubled.run = lambda module, x: module(x) * 2
"""


@pytest.mark.parametrize(("function", "wanted"), [("model", "Add"), ("doubled", "Mul")])
def test_what_a_file_says_of_its_calls_is_what_is_converted(
    tmp_path: Path, function: str, wanted: str
) -> None:
    pytest.importorskip("torch", reason="needs torch")
    (tmp_path / "net.py").write_text(CALLED)
    asked = ConvertRequest(
        model=f"{tmp_path / 'net.py'}:{function}", via=("torch_script",), out=tmp_path / "kept"
    )
    assert convert_model(asked, Plugins()).verdict == "right"
    made = onnx.load(next((tmp_path / "kept").glob("*fold.onnx")))
    assert wanted in {node.op_type for node in made.graph.node}
