"""Bundles of requirements that are not met."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engine.bundle.test_bundle import (
    NORMALIZED,
    WRONG,
    alone,
    bundles,
    issue_script,
    run_script,
)

from optvet.engine.bundle import Bundle, replay_bundle
from optvet.engine.discovery import Plugins
from optvet.spec.records import VetResult
from optvet.spec.symptoms import Symptom


def of_requirements(result: VetResult) -> VetResult:
    """The answer without what is wrong whatever is required."""
    kept = [f for f in result.findings if f.symptom == Symptom.REQUIREMENT]
    return result.model_copy(update={"findings": kept})


def required(text: str, folder: Path, culprit: str, **settings: object) -> Bundle:
    """The only bundle of a requirement that a pass breaks."""
    given = {"pipeline": f"nop,{culprit}", "limit": 2, "kept": of_requirements} | settings
    (bundle,) = bundles(text, folder, **given)  # type: ignore[arg-type]
    return bundle


@pytest.mark.long
def test_a_metric_that_is_not_met_is_reduced_and_measured_again_by_the_script(
    tmp_path: Path,
) -> None:
    bundle = required(WRONG, tmp_path, "fuse_pad_into_conv", require="cosine>=0.999")
    record = bundle.record
    assert (bundle.note, record.nodes, record.script_exit) == ("", (4, 2), 1)
    assert (record.finding.culprit, record.comparator) == (["fuse_pad_into_conv"], "tensor")
    assert record.finding.measured is not None
    assert record.finding.measured < 0.999
    done = run_script(bundle.path)
    assert done.returncode == 1
    assert f"cosine>=0.999 is required; cosine is {record.finding.measured:.3g}" in done.stdout
    script = bundle.path / "repro.py"
    script.write_text(script.read_text().replace("['fuse_pad_into_conv']", "['nop']"))
    assert run_script(bundle.path).returncode == 0
    assert replay_bundle(bundle.path, Plugins()).outcome == "still there"


@pytest.mark.release
def test_rounding_that_exceeds_a_tolerance_is_reduced_and_stays_no_fault(tmp_path: Path) -> None:
    bundle = required(NORMALIZED, tmp_path, "fuse_bn_into_conv", atol="1e-12")
    record = bundle.record
    assert record.finding.culprit == ["fuse_bn_into_conv"]
    assert (bundle.note, record.nodes) == ("", (9, 2))
    assert record.finding.severity == "requirement"
    assert record.finding.requirement == "rtol=0, atol=1e-12"
    assert run_script(bundle.path).returncode == 1
    assert replay_bundle(bundle.path, Plugins()).outcome == "still there"


@pytest.mark.long
def test_the_issue_of_a_tolerance_needs_nothing_of_ours(tmp_path: Path) -> None:
    bundle = required(WRONG, tmp_path, "fuse_pad_into_conv", rtol="z:1e-3", reduce=False)
    assert bundle.record.finding.requirement == "z: rtol=0.001, atol=0"
    assert bundle.record.outputs == ["z"]
    code = issue_script(bundle)
    assert "optvet" not in code
    assert "rtol=0.001" in code
    assert alone(code, tmp_path / "empty").returncode == 1


@pytest.mark.release
def test_a_metric_over_several_samples_keeps_the_fewest_and_the_whole_model(
    tmp_path: Path,
) -> None:
    given = {"require": "samples_changed<=1", "limit": 4}
    bundle = required(WRONG, tmp_path, "fuse_pad_into_conv", **given)
    record = bundle.record
    assert bundle.note == "it takes 2 samples, so the model was kept whole"
    assert (record.samples, record.nodes, record.finding.measured) == (2, (4, 4), 2)
    done = run_script(bundle.path)
    assert done.returncode == 1
    assert "samples_changed<=1 is required; samples_changed is 2" in done.stdout
    script = bundle.path / "repro.py"
    script.write_text(script.read_text().replace("['fuse_pad_into_conv']", "['nop']"))
    assert run_script(bundle.path).returncode == 0
    assert replay_bundle(bundle.path, Plugins()).outcome == "still there"


@pytest.mark.release
def test_two_requirements_that_one_pass_breaks_have_bundles_of_their_own(tmp_path: Path) -> None:
    given = {"require": ["cosine>=0.999"], "rtol": "1e-3", "reduce": False, "limit": 1}
    made = bundles(WRONG, tmp_path, pipeline="fuse_pad_into_conv", **given)  # type: ignore[arg-type]
    told = {b.record.finding.requirement: b.path for b in made}
    assert set(told) == {None, "cosine>=0.999", "rtol=0.001, atol=0"}
    assert len(set(told.values())) == 3


@pytest.mark.long
def test_a_number_of_samples_is_shown_on_one(tmp_path: Path) -> None:
    given = {"require": "samples_changed<=0", "reduce": False}
    bundle = required(WRONG, tmp_path, "fuse_pad_into_conv", **given)
    assert bundle.record.finding.measured == 1
    assert run_script(bundle.path).returncode == 1
