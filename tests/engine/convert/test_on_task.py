"""What a conversion means for the task: requirements, changed labels, tolerances, as in a vet."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel
from tests.commands import quick_timing
from tests.engine.convert.test_convert import GOOD, Convert, convert, plugins

from optvet import UsageError
from optvet.engine.discovery import Plugins
from optvet.engine.options import NoOptions
from optvet.spec.records.convert import ConversionResult
from optvet.spec.types import Model, Sample

__all__ = ["convert", "plugins", "quick_timing"]

OPEN = 'dynamic_axes = {"input_0": {0: "n"}}'
NEAR = GOOD.replace(
    "y = Relu(x)", "e = Constant <value_float = 0.0001> () r = Relu(x) y = Add(r, e)"
)
SCORES = "lambda x: x"
SAME = GOOD.replace("Relu", "Identity")
FLIPPED = GOOD.replace("Relu", "Neg")


def clipped(most: float) -> str:
    """A model that is wrong above ``most``."""
    return GOOD.replace(
        "y = Relu(x)", f"c = Constant <value_float = {most}> () r = Relu(x) y = Min(r, c)"
    )


def unmet(result: ConversionResult) -> list[tuple[list[str], str | None]]:
    found = [f for f in result.findings if f.severity == "requirement"]
    return [([s.partition("/")[2] for s in f.stages], f.requirement) for f in found]


def test_a_requirement_that_is_met_is_recorded_and_no_finding(convert: Convert) -> None:
    result = convert(GOOD, require=["max_change<=1e-3"])
    (record,) = result.requirements
    assert (record.requirement, record.comparator) == ("max_change<=0.001", "tensor")
    assert record.met
    assert result.verdict == "right"
    assert result.findings == []


@pytest.mark.parametrize(
    ("stages", "blamed"),
    [
        ((GOOD, NEAR), ["rewrite"]),
        ((GOOD, GOOD, NEAR), ["simplify"]),
        ((GOOD, "hidden", NEAR), ["rewrite", "simplify"]),
        ((NEAR, GOOD, NEAR), ["simplify"]),
    ],
)
def test_the_first_stage_from_which_on_a_requirement_is_unmet_is_blamed(
    convert: Convert, stages: tuple[str, ...], blamed: list[str]
) -> None:
    result = convert(*stages, require=["max_change<=1e-6"])
    assert unmet(result) == [(blamed, "max_change<=1e-06")]
    (record,) = result.requirements
    assert record.met is False


def test_a_fault_within_the_requirement_is_a_fault_all_the_same(convert: Convert) -> None:
    result = convert(GOOD, NEAR, require=["max_change<=0.01"], atol=["0.01"])
    assert result.verdict == "faulty"
    assert [r.met for r in result.requirements] == [True, True]


def test_a_part_of_an_output_may_be_required(convert: Convert) -> None:
    last = NEAR.replace("value_float = 0.0001", "value_floats = [0.0, 0.0, 0.01]")
    wanted = ["output_0[:, :2]:max_change<=1e-6", "output_0[:, 2:]:max_change<=1e-6"]
    result = convert(GOOD, last, require=wanted)
    assert [r.met for r in result.requirements] == [True, False]


def test_tolerances_are_those_of_every_element(convert: Convert) -> None:
    result = convert(GOOD, NEAR, atol=["2e-4"], edges=False)
    assert [r.met for r in result.requirements] == [True]
    result = convert(GOOD, NEAR, atol=["output_0:5e-5"], edges=False)
    assert unmet(result) == [(["rewrite"], "output_0: rtol=0, atol=5e-05")]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"require": ["nonsense<=1"]}, "no metric 'nonsense'"),
        ({"require": ["nothing:max_change<=1"]}, "output"),
        ({"require": ["layer_error<=1"]}, "optvet compare"),
        ({"comparator": "nonsense"}, "nonsense"),
        ({"atol": ["nothing:1"]}, "output"),
    ],
)
def test_what_cannot_be_required_is_said_before_anything_is_converted(
    convert: Convert, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        convert("abort", **options)


def test_edge_values_count_for_no_requirement(convert: Convert) -> None:
    result = convert(GOOD, clipped(10.0), require=["max_change<=1e-6"])
    assert result.verdict == "faulty"
    assert [r.met for r in result.requirements] == [True]


def test_a_model_that_does_not_run_leaves_a_requirement_open(convert: Convert) -> None:
    result = convert(GOOD, GOOD.replace("n,3", "n,4"), require=["max_change<=1"])
    (record,) = result.requirements
    assert record.met is None
    assert unmet(result) == []


@dataclass(frozen=True)
class Labelled:
    """Forty samples whose largest score is the label."""

    name = "labelled"
    options: BaseModel = field(default_factory=NoOptions)

    def samples(self, model: Model, argument: str | None, options: BaseModel, **how: Any) -> Any:
        assert [i.name for i in model.inputs] == ["input_0"]
        scores = np.random.default_rng(0).normal(size=(40, 1, 3)).astype(np.float32)
        return [
            Sample(f"row {i}", {"input_0": row}, label=int(row.argmax()))
            for i, row in enumerate(scores)
        ]


def test_labels_of_a_dataset_give_the_accuracy_before_and_after(
    convert: Convert, plugins: Plugins
) -> None:
    plugins.register("dataset", Labelled())
    about: dict[str, Any] = {"dataset": ["labelled"], "comparator": "classification"}
    right = convert(SAME, function=SCORES, **about).impact
    assert right is not None
    assert (right.samples, right.changed) == (40, 0)
    assert right.metrics["accuracy_top1_reference"] == 1.0
    assert right.metrics["accuracy_top1_candidate"] == 1.0
    result = convert(SAME, FLIPPED, function=SCORES, require=["top1_agreement>=0.5"], **about)
    wrong = result.impact
    assert wrong is not None
    assert wrong.changed == 40
    assert wrong.metrics["accuracy_top1_candidate"] == 0.0
    assert unmet(result) == [(["rewrite"], "top1_agreement>=0.5")]
    (finding,) = (f for f in result.findings if f.symptom == "wrong-output")
    assert finding.consequence == wrong.headline


def test_a_fault_that_a_later_sample_of_the_dataset_shows_is_found(
    convert: Convert, tmp_path: Path
) -> None:
    values = np.ones((20, 1, 3), np.float32)
    values[17, 0, 1] = 77
    named: dict[str, Any] = {f"{i}|input_0": v for i, v in enumerate(values)}
    np.savez(tmp_path / "data.npz", **named)
    about: dict[str, Any] = {
        "dataset": [f"files:{tmp_path / 'data.npz'}"],
        "edges": False,
        "beside": OPEN,
    }
    result = convert(GOOD, clipped(50.0), **about)
    (finding,) = result.findings
    assert (result.verdict, finding.stages) == ("faulty", ["plain_to_onnx/rewrite"])
    assert finding.witness is not None
    assert finding.witness.origin == "given"
    assert "17" in finding.witness.about
    assert convert(GOOD, clipped(50.0), **about, limit=10).verdict == "right"


BUSY = "lambda x: np.maximum(x, 0) + 0 * np.outer(np.full(150, x.sum()), np.ones(150)).sum()"
SLOW = GOOD.replace(
    "y = Relu(x)",
    """s = ReduceSum <keepdims = 0> (x) n = Constant <value_ints = [700, 700]> ()
       c = Expand(s, n) p = MatMul(c, c) q = MatMul(p, p) t = ReduceMax <keepdims = 0> (q)
       z = Sub(t, t) r = Relu(x) y = Add(r, z)""",
)
"""Its products take a thousand times what the source does; what they give is taken away."""


def test_a_slower_model_is_a_finding_of_the_stage_that_makes_it_slower(
    convert: Convert, quick_timing: None
) -> None:
    how: dict[str, Any] = {"measure": True, "slower_than": 2.0, "edges": False, "sizes": False}
    result = convert(GOOD, GOOD, SLOW, function=BUSY, **how)
    assert result.timing is not None
    assert (result.timing.verdict, result.timing.baseline) == ("slower", "source")
    (finding,) = result.findings
    assert (finding.symptom, finding.severity) == ("slowdown", "requirement")
    assert finding.stages == ["plain_to_onnx/simplify"]
    assert [c.state for c in result.controls if c.name == "timing"] == ["failed"]
    fast = convert(GOOD, function=BUSY, **how)
    assert fast.timing is not None
    assert fast.timing.verdict != "slower"
    assert fast.findings == []


def test_a_wrong_model_is_not_timed(convert: Convert) -> None:
    result = convert(NEAR, measure=True)
    assert result.timing is None
    (control,) = (c for c in result.controls if c.name == "timing")
    assert (control.state, control.detail[:9]) == ("limited", "not timed")


def test_the_answer_has_outputs_and_tolerances_as_that_of_a_vet(convert: Convert) -> None:
    result = convert(GOOD)
    assert [o.verdict for o in result.outputs] == ["same"]
    assert {f.name for f in result.fixed_tolerances} >= {"1e-3", "Polygraphy"}
    assert ConversionResult.model_validate_json(result.to_json()) == result
