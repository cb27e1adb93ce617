"""A symptom belongs to the stage that first shows it."""

from __future__ import annotations

import numpy as np
import pytest

from optvet.engine.convert.blame import Station, blamed
from optvet.engine.convert.inputs import Drawn
from optvet.engine.convert.judge import Seen
from optvet.spec.converters import ConversionStage
from optvet.spec.types import Sample

_STATES = {
    "right": Seen("same"),
    "wrong-output": Seen("fault", "wrong-output"),
    "interface-change": Seen("fault", "interface-change"),
    "run-failure": Seen("fails", "run-failure"),
    "load-failure": Seen("fails", "load-failure"),
    "invalid-model": Seen("fails", "invalid-model"),
    "crash": Seen("fails", "crash"),
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
    ],
)
def test_each_symptom_is_blamed_on_the_stage_that_first_shows_it(
    shown: str, expected: list[tuple[str, int, int]]
) -> None:
    stations = [
        Station("c", ConversionStage(f"s{i}", "convert", "onnx"), seen)
        for i, name in enumerate(shown.split())
        for seen in ({"a": _STATES[name]} if name in _STATES else {},)
    ]
    drawn = Drawn(Sample("a", {"x": np.zeros(1)}), "example", "")
    found = [(b.symptom, b.first, b.last) for b in blamed(stations, [drawn])]
    assert found == expected
