"""A symptom belongs to the stage that first shows it."""

from __future__ import annotations

import numpy as np
import pytest

from optvet.engine.convert.conversion_inputs import ConversionInput
from optvet.engine.convert.guilty_stage import StageResult, blame_stages
from optvet.engine.judge.sample import SampleVerdict
from optvet.spec.converters import ConversionStage
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Sample

_STATES = {
    "right": SampleVerdict("same"),
    **{
        str(symptom): SampleVerdict("fault", symptom)
        for symptom in (
            Symptom.WRONG_OUTPUT,
            Symptom.INTERFACE_CHANGE,
            Symptom.RUN_FAILURE,
            Symptom.LOAD_FAILURE,
            Symptom.INVALID_MODEL,
            Symptom.CRASH,
        )
    },
    "killed": SampleVerdict("undecided", Symptom.CRASH, unexplained=True),
}


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("right crash", [("crash", 1, 1)]),
        ("wrong-output crash", [("wrong-output", 0, 0), ("crash", 1, 1)]),
        ("wrong-output right crash", [("crash", 2, 2)]),
        ("invalid-model crash", [("invalid-model", 0, 0), ("crash", 1, 1)]),
        ("load-failure crash", [("crash", 1, 1)]),
        ("crash crash", [("crash", 0, 0)]),
        ("hidden crash", [("crash", 0, 1)]),
        ("right load-failure wrong-output", [("wrong-output", 1, 2)]),
        ("invalid-model wrong-output", [("wrong-output", 0, 1)]),
        ("wrong-output interface-change", [("wrong-output", 0, 0), ("interface-change", 1, 1)]),
        ("interface-change wrong-output", [("wrong-output", 0, 1)]),
        ("wrong-output run-failure wrong-output", [("wrong-output", 0, 0)]),
        ("wrong-output right", []),
        ("wrong-output killed wrong-output", [("wrong-output", 0, 0)]),
    ],
)
def test_each_symptom_is_blamed_on_the_stage_that_first_shows_it(
    shown: str, expected: list[tuple[str, int, int]]
) -> None:
    stations = [
        StageResult("c", ConversionStage(f"s{i}", "convert", "onnx"), seen)
        for i, name in enumerate(shown.split())
        for seen in ({"a": _STATES[name]} if name in _STATES else {},)
    ]
    drawn = ConversionInput(Sample("a", {"x": np.zeros(1)}), "example", "")
    found = [(b.symptom, b.first, b.last) for b in blame_stages(stations, [drawn])]
    assert found == expected
