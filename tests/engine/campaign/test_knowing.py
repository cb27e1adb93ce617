"""Baselines, differences and exports of stored campaigns."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from tests.commands import FAULTY, Run
from tests.engine.campaign.conftest import Finished, write_models

from optvet.engine.campaign import find_campaign, findings, metrics, open_store, trials
from optvet.engine.campaign.export import COLUMNS
from optvet.spec.records.campaign import Baseline, CampaignDiff, CampaignExport, CampaignSummary

FILE = 'models = ["models/"]\n'


@pytest.fixture
def campaign(finished_here: Finished) -> Path:
    """A file that was run; its store has one finding."""
    return finished_here(FILE) / "c.toml"


@pytest.fixture
def models(campaign: Path) -> Path:
    return campaign.parent / "models"


def test_known_findings_do_not_fail_and_fixed_ones_are_announced(
    campaign: Path, run: Run, place: Path, models: Path
) -> None:
    made = run("campaign", "export", "c.store", "--format", "baseline", "--out", "known.json")
    assert (made.code, made.out) == (0, "known.json\n")
    known = Baseline.model_validate_json((place / "known.json").read_text())
    assert [f.culprit for f in known.findings] == [["fuse_transpose_into_gemm"]]
    assert known.findings[0].models == ["faulty.onnx"]

    accepted = run("campaign", "run", campaign, "--baseline", "known.json")
    assert accepted.code == 0
    assert "(known)" in accepted.out
    assert "0 new findings, 1 known, 0 fixed" in accepted.out
    assert run("campaign", "show", "c.store").code == 0

    # A finding that is not in the file fails all the same.
    text = FAULTY.replace("faulty", "other").replace("Gemm(t, b)", "Gemm(t, b, b)")
    assert text != FAULTY
    (place / "known.json").write_text(
        known.model_copy(
            update={"findings": [known.findings[0].model_copy(update={"fingerprint": "0" * 16})]}
        ).to_json()
    )
    new = run("campaign", "show", "c.store", "--baseline", "known.json")
    assert new.code == 1
    # That fingerprint was not found in the model where it was, which was judged.
    assert "fixed  00000000" in new.out

    # What was not run is not said to be fixed.
    (models / "faulty.onnx").unlink()
    campaign.write_text(f"{FILE}baseline = 'known.json'\n")
    unseen = run("campaign", "run", campaign, "--json", "s.json")
    assert unseen.code == 0, unseen.err
    summary = CampaignSummary.model_validate_json((place / "s.json").read_text())
    assert (len(summary.fixed), len(summary.unseen)) == (0, 1)


def test_a_file_that_is_no_baseline_is_refused_before_the_work(run: Run, place: Path) -> None:
    write_models(place / "models")
    (place / "c.toml").write_text(FILE)
    (place / "bad.json").write_text('{"findings": [{"fingerprint": 1}]}')
    ran = run("campaign", "run", "c.toml", "--baseline", "bad.json")
    assert ran.code == 2
    assert "bad.json is no baseline: " in ran.err
    assert not (place / "c.store").exists()


@pytest.mark.long
def test_two_campaigns_are_told_apart_by_their_findings(
    campaign: Path, run: Run, place: Path, models: Path
) -> None:
    # The same questions of other models: the faulty one was mended, the sound one was not.
    elsewhere = place / "later" / "models"
    elsewhere.mkdir(parents=True)
    (elsewhere / "faulty.onnx").write_bytes((models / "clean.onnx").read_bytes())
    (elsewhere / "clean.onnx").write_bytes((models / "clean.onnx").read_bytes())
    (place / "later" / "c.toml").write_text(FILE)
    assert run("campaign", "run", "later/c.toml", "--store", "c.store", "-q").code == 0
    ran = run("campaign", "diff", "c.store#1", "c.store#2", "--json", "d.json")
    assert ran.code == 0, ran.err
    assert "2 shared jobs; 0 new; 1 fixed; 0 findings in both" in ran.out
    found = CampaignDiff.model_validate_json((place / "d.json").read_text())
    assert [(v.before, v.after) for v in found.verdicts] == [("faulty", "clean")]
    back = run("campaign", "diff", "c.store#2", "c.store#1")
    assert back.code == 1
    assert "fuse_transpose_into_gemm" in back.out
    assert run("campaign", "diff", "c.store", "c.store").code == 0
    assert "unknown campaign '7'" in run("campaign", "diff", "c.store#7", "c.store").err


def test_a_campaign_is_exported_whole(campaign: Path, run: Run, place: Path) -> None:
    assert run("campaign", "export", "c.store", "--out", "all.json").code == 0
    whole = CampaignExport.model_validate_json((place / "all.json").read_text())
    with open_store(place / "c.store") as store:
        stored = find_campaign(store)
        answers = {t.key: t.answer for t in trials(store, stored)}
        amounts = {
            "trials": len(answers),
            "findings": len(list(findings(store, stored))),
            "metrics": len(list(metrics(store, stored))),
        }
    assert {t.key: t.answer for t in whole.trials} == answers
    assert all(t.request.model.endswith(".onnx") for t in whole.trials)

    assert run("campaign", "export", "c.store", "--format", "csv", "--out", "tables").code == 0
    for table, columns in COLUMNS.items():
        with (place / "tables" / f"{table}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert list(rows[0]) == list(columns)
        assert len(rows) == amounts[table]
    with (place / "tables" / "findings.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["culprit"] == "fuse_transpose_into_gemm"

    pytest.importorskip("pyarrow.parquet", reason="needs optvet[parquet]")
    from pyarrow import parquet

    assert run("campaign", "export", "c.store", "--format", "parquet", "--out", "pq").code == 0
    for table, columns in COLUMNS.items():
        read = parquet.read_table(place / "pq" / f"{table}.parquet")
        assert (read.column_names, read.num_rows) == (list(columns), amounts[table])


def test_an_export_goes_where_it_can_be_written_or_nowhere(
    campaign: Path, run: Run, place: Path
) -> None:
    ran = run("campaign", "export", "c.store", "--out", "no/such/all.json")
    assert ran.code == 2
    assert "expected a file in a folder that exists" in ran.err
    assert run("campaign", "gc", "c.store", "--size", "many").code == 2
    assert json.loads(run("campaign", "status", "c.store", "--json", "-").out)["running"] == []
