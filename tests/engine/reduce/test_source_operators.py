"""Sources whose runtime lists their operators are reduced to the operators that show a fault."""

from __future__ import annotations

import itertools
import runpy
from pathlib import Path

import numpy as np
from tests.engine.reduce import chains

from optvet.engine.convert.run import convert_model
from optvet.engine.reduce.converted_source import reduced_or_why_not
from optvet.engine.reduce.source_operators import sets_around
from optvet.spec.convert import ConvertRequest
from optvet.spec.converters import SourceOperator
from optvet.spec.records.convert import ConversionFinding, ConversionPlace, ReducedSource
from optvet.spec.symptoms import Symptom

SOURCE = """
import numpy as np

example_inputs = (np.array([0.5, -0.25, 1.0], "float32"),)


def chain():
    return [{names}]
"""
NAMES = ["Tanh", "Abs", "Neg", "Tanh", "Exp", "Neg", "Tanh", "Exp"]


def reduced(tmp_path: Path, names: list[str]) -> ReducedSource:
    (tmp_path / "source.py").write_text(SOURCE.format(names=names))
    model = f"{tmp_path / 'source.py'}:chain"
    request = ConvertRequest(model=model, via=("chains_to_onnx",), random=0, edges=False)
    plugins = chains.plugins()
    result = convert_model(request, plugins)
    assert result.verdict == "faulty", result
    folder = tmp_path / "part"
    return reduced_or_why_not(request, result, plugins, folder, progress=lambda *about: None)


def test_the_fewest_operators_are_kept_that_show_the_fault(tmp_path: Path) -> None:
    found = reduced(tmp_path, NAMES)
    assert (found.part, found.size, found.size_before, found.note) == ("Exp, Neg", 2, 8, "")
    assert found.files == ["part.py"]
    part = runpy.run_path(str(tmp_path / "part" / "part.py"))
    assert part["part"]() == [["Exp", "Neg"]]
    before = np.array([0.5, -0.25, 1.0], np.float32)
    for function in (np.tanh, np.abs, np.negative, np.tanh):
        before = function(before)
    np.testing.assert_allclose(part["example_inputs"][0], before, rtol=1e-6)
    again = ConvertRequest(model=f"{tmp_path / 'part' / 'part.py'}:part", via=("chains_to_onnx",))
    assert convert_model(again, chains.plugins()).verdict == "faulty"


def test_operators_that_cannot_be_written_are_cut_off(tmp_path: Path) -> None:
    found = reduced(tmp_path, ["Tanh", "Exp", "Neg", "Tanh", "Sin"])
    assert (found.part, found.size) == ("Exp, Neg", 2)


def finding(place: ConversionPlace | None = None) -> ConversionFinding:
    return ConversionFinding(
        symptom=Symptom.WRONG_OUTPUT,
        severity="fault",
        stages=["c/convert"],
        kind="convert",
        culprit="c/convert",
        place=place,
    )


def operators(count: int) -> list[SourceOperator]:
    return [SourceOperator("Abs", f"f.py:{i}", (i - 1,) if i else ()) for i in range(count)]


def test_sets_grow_around_the_place_of_the_fault() -> None:
    at = finding(ConversionPlace(line="f.py:4", operator="Abs"))
    found = list(itertools.islice(sets_around(operators(9), at), 4))
    assert found == [[4], [3, 4, 5], [1, 2, 3, 4, 5, 6, 7], [*range(9)]]


def test_without_a_place_all_operators_are_tried_and_then_stretches() -> None:
    found = list(sets_around(operators(4), finding()))
    assert found == [[0, 1, 2, 3], [0, 1], [1, 2], [2, 3], [0], [1], [2], [3]]
