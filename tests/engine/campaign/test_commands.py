from __future__ import annotations

from pathlib import Path

import pytest
from tests.commands import Run

from optvet.engine.campaign import find_campaign, findings, metrics, open_store, trials
from optvet.engine.discovery import Plugins
from optvet.spec.records.campaign import CampaignStatus, CampaignSummary

FILE = """
name = "small"
models = ["models/"]
optimizers = ["onnxoptimizer"]
pipelines = ["default", "eliminate_identity"]
"""


def test_a_campaign_that_cannot_be_planned_makes_no_store(run: Run, place: Path) -> None:
    (place / "c.toml").write_text('models = ["nothing.onnx"]\noptimizers = ["onnxoptimizer"]\n')
    refused = run("campaign", "run", "c.toml")
    assert (refused.code, refused.out) == (2, "")
    assert "key 'models': nothing.onnx: no such file or folder" in refused.err
    assert [path.name for path in place.iterdir() if path.name != "cache"] == ["c.toml"]


def test_a_campaign_is_run_kept_and_answered_from_its_store(
    run: Run, models: Path, place: Path
) -> None:
    (place / "small.toml").write_text(FILE)
    first = run("campaign", "run", "small.toml", "--jobs", "2")
    assert first.code == 1, first.err
    assert "[4/4]" in first.err
    assert "optimizer-error: fuse_transpose_into_gemm" in first.out
    assert "4 jobs" in first.out
    again = run("campaign", "run", "small.toml", "--json", "out.json")
    assert (again.code, again.out, again.err) == (1, first.out, "")
    summary = CampaignSummary.model_validate_json((place / "out.json").read_text())
    verdicts = {(Path(t.model).stem, t.pipeline): t.verdict for t in summary.trials}
    assert verdicts[("faulty", "default")] == "faulty"
    assert verdicts[("faulty", "eliminate_identity")] == "clean"
    assert [t.attempts for t in summary.trials] == [1, 1, 1, 1]
    (group,) = [g for g in summary.findings if g.counts]
    assert group.culprit == ["fuse_transpose_into_gemm"]

    with open_store(place / "small.store") as store:
        campaign = find_campaign(store)
        stored = list(trials(store, campaign))
        assert all(t.result is not None for t in stored)
        rows = [row for row in findings(store, campaign) if row.finding.severity == "fault"]
        assert [row.fingerprint for row in rows] == [group.fingerprint]
        kinds = {m.kind for m in metrics(store, campaign)}
        assert {"cost", "model", "output"} <= kinds

    shown = run("campaign", "show", "small.store", rows[0].trial[:12])
    assert "FAULTY" in shown.out
    assert "controls" in shown.out
    assert run("campaign", "show", "small.store", rows[0].fingerprint[:8]).out == shown.out
    unknown = run("campaign", "show", "small.store", "xyz")
    assert unknown.code == 2
    assert "no trial and no finding has a key that begins with 'xyz'" in unknown.err
    status = run("campaign", "status", "small.store", "--json", "-")
    found = CampaignStatus.model_validate_json(status.out)
    assert (found.campaigns[0].done, found.running) == (4, [])

    # A model that changed is asked again, and it alone.
    (models / "clean.onnx").write_bytes((models / "faulty.onnx").read_bytes())
    changed = run("campaign", "run", "small.toml")
    assert "[4/4]" in changed.err
    assert "[2/4]" not in changed.err
    status = run("campaign", "status", "small.store", "--json", "-")
    assert len(CampaignStatus.model_validate_json(status.out).campaigns) == 2


def test_what_cannot_be_vetted_is_told_and_stops_nothing(
    run: Run, models: Path, place: Path
) -> None:
    (models / "broken.onnx").write_bytes(b"no model")
    (place / "small.toml").write_text('models = ["models/*.onnx"]\n')
    ran = run("campaign", "run", "small.toml", "--store", "elsewhere")
    assert ran.code == 2
    assert "broken.onnx" in ran.out
    assert "3 jobs: 1 clean, 1 error, 1 faulty" in ran.out


def test_init_writes_a_file_that_runs_and_replaces_none(run: Run, place: Path) -> None:
    assert run("campaign", "init", "mine.toml").code == 0
    again = run("campaign", "init", "mine.toml")
    assert again.code == 2
    assert "exists already" in again.err


def test_commands_on_a_folder_that_is_no_store_say_so(run: Run, place: Path) -> None:
    for command in ("status", "show", "resume"):
        ran = run("campaign", command, "nowhere")
        assert ran.code == 2
        assert "nowhere is no store" in ran.err
    assert not (place / "nowhere").exists()


@pytest.mark.long
def test_what_a_file_asks_can_be_listed_and_asked_of_other_models(
    run: Run, models: Path, place: Path
) -> None:
    (place / "files").mkdir()
    study = place / "files" / "study.toml"
    study.write_text('models = ["zoo:all"]\noptimizers = ["onnxoptimizer"]\n[vet]\nlimit = 1\n')
    listed = run("campaign", "run", study, "--dry-run")
    count = len(list(Plugins().model_source("zoo").models()))
    assert (listed.code, f"{count} x optvet vet" in listed.out) == (0, True)
    assert not study.with_suffix(".store").exists()
    # Paths of the command line begin here, not beside the file.
    other = ("--models", "models/clean.onnx", "--models", "zoo:wine-logreg")
    listed = run("campaign", "run", study, *other, "--dry-run")
    assert "2 jobs on 2 models" in listed.out
    assert run("campaign", "run", study, *other, "-q", "--json", "done.json").code == 0
    done = CampaignSummary.model_validate_json((place / "done.json").read_text())
    asked = {str(models / "clean.onnx"), "zoo:wine-logreg"}
    assert {trial.model for trial in done.trials} == asked
    refused = run("campaign", "run", study, "--models", "nowhere/")
    assert (refused.code, "nowhere: no such file" in refused.err) == (2, True)
