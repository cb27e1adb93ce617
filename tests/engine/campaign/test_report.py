from __future__ import annotations

import base64
import html
import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.commands import Run
from tests.engine.campaign.conftest import Finished

from optvet import CampaignReport
from optvet.spec.records import VetResult

FILE = 'models = ["models/"]\noptimizers = ["onnxoptimizer"]\nbundles = true\n[vet]\nlimit = 2\n'


@pytest.fixture
def store(finished: Finished) -> Path:
    """A campaign on a sound and a faulty model, with bundles."""
    return finished(FILE) / "c.store"


def test_a_campaign_is_reported_in_every_format(store: Path, run: Run, tmp_path: Path) -> None:
    summary = run("report", store)
    assert summary.code == 0, summary.err
    assert "**1 finding** on 1 of 2 models, in 2 jobs." in summary.out

    assert run("report", store, "--out", "r.json").out == "wrote r.json\n"
    report = CampaignReport.model_validate_json((tmp_path / "r.json").read_text())
    outcomes = {t.short_name: t.status for t in report.trials}
    assert outcomes == {"clean.onnx": "clean", "faulty.onnx": "faulty"}
    (finding,) = (f for f in report.findings if f.counts)

    assert run("report", store, "--out", "r.xml").code == 0
    root = ET.parse(tmp_path / "r.xml").getroot()
    assert {s.get("name"): s.get("failures") for s in root} == {
        "clean.onnx": "0",
        "faulty.onnx": "1",
    }

    sarif = json.loads(run("report", store, "--format", "sarif").out)
    marks = [r["partialFingerprints"]["optvet/v1"] for r in sarif["runs"][0]["results"]]
    assert finding.fingerprint in marks
    assert run("report", store, "--format", "sarif").out == json.dumps(sarif, indent=2) + "\n"

    assert run("report", store, "--format", "github").out.startswith(
        "::error file=models/faulty.onnx,title="
    )

    assert run("report", store, "--out", "r.html").code == 0
    page = html.unescape((tmp_path / "r.html").read_text())
    # The optimizer fails, so there is no graph after it.
    (picture,) = re.findall(r'<img alt="graph before [^"]+" src="([^"]+)"', page)
    assert b"Transpose" in base64.b64decode(picture.removeprefix("data:image/svg+xml;base64,"))
    assert {t.title for t in report.tables} <= set(
        re.findall(r'<h3 id="table-\d+">(.*)</h3>', page)
    )
    assert report.tables
    assert f'<a download="finding-{finding.fingerprint[:16]}.zip"' in page


@pytest.mark.long
def test_a_warning_that_optimization_brings_is_in_the_report(run: Run, tmp_path: Path) -> None:
    # ONNX Optimizer raises the IR version, whereby a listed weight becomes an input with a default.
    listed = """<ir_version: 3, opset_import: ["" : 9]>
g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { a = Abs(x)  y = Add(a, w) }"""
    onnx.save(onnx.parser.parse_model(listed), tmp_path / "listed.onnx")
    file = tmp_path / "c.toml"
    file.write_text('models = ["listed.onnx"]\noptimizers = ["onnxoptimizer"]\n')
    assert run("campaign", "run", file, "--quiet").code == 0
    assert "New warnings after optimization: 1</summary>" in run("report", "c.store").out
    report = CampaignReport.model_validate_json(run("report", "c.store", "--format", "json").out)
    (warning,) = report.trials[0].new_warnings
    assert (warning.stage, warning.reference, warning.candidate) == ("load", 0, 1)


def test_the_command_of_a_finding_shows_it_again(finished_here: Finished, run: Run) -> None:
    finished_here(FILE)
    report = CampaignReport.model_validate_json(run("report", "c.store", "--format", "json").out)
    (finding,) = (f for f in report.findings if f.counts)
    (_, *words) = finding.sightings[0].command.split()
    again = run(*words, "--json", "-")
    assert again.code == 1
    (same,) = VetResult.model_validate_json(again.out).findings
    assert (same.symptom, same.culprit) == (finding.symptom, finding.culprit)


def test_known_findings_are_told_as_known(finished_here: Finished, run: Run) -> None:
    finished_here(FILE)
    exported = run("campaign", "export", "c.store", "--format", "baseline", "--out", "known.json")
    assert exported.code == 0
    assert run("campaign", "run", "c.toml", "--baseline", "known.json", "--quiet").code == 0
    root = ET.fromstring(run("report", "c.store", "--format", "junit").out)
    assert root.get("failures") == "0"
    assert "### Known findings: 1" in run("report", "c.store", "--format", "markdown").out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--format", "pdf"], "unknown reporter 'pdf'"),
        (["--out", "nowhere/r.json"], "--out nowhere/r.json: folder nowhere does not exist"),
        (["--out", "."], "--out . is a folder"),
        (["--campaign", "other"], "unknown campaign 'other'"),
    ],
)
def test_what_cannot_be_reported_is_refused(
    store: Path, run: Run, options: list[str], words: str
) -> None:
    ran = run("report", store, *options)
    assert ran.code == 2
    assert words in " ".join(ran.err.split())
    assert ran.out == ""


def test_what_is_no_store_is_refused(run: Run, tmp_path: Path) -> None:
    ran = run("report", tmp_path)
    assert ran.code == 2
    assert "is no store" in ran.err


@pytest.mark.long
def test_jobs_that_differ_in_options_alone_are_told_apart(
    run: Run, models: Path, place: Path
) -> None:
    (place / "two.toml").write_text(
        'models = ["models/"]\noptimizers = ["onnxoptimizer"]\nvet = { limit = 1 }\n'
        "[[jobs]]\nvet = { optimizer_options = { fixed_point = false } }\n"
        "[[jobs]]\nvet = { optimizer_options = { fixed_point = true } }\n"
        '[[jobs]]\npipelines = ["eliminate_identity"]\n'
    )
    assert run("campaign", "run", "two.toml", "-q").code == 1
    shown = run("campaign", "show", "two.store").out
    assert shown.count("fixed_point: ") == 2
    row = next(line for line in shown.splitlines() if line.startswith("faulty.onnx"))
    assert row.split()[1:] == ["faulty", "faulty", "clean"]
    assert run("report", "two.store", "--format", "json", "--out", "two.json").code == 0
    report = json.loads((place / "two.json").read_text())
    questions = {trial["question"] for trial in report["trials"]}
    assert questions == {
        "onnxoptimizer, default, fixed_point: false",
        "onnxoptimizer, default, fixed_point: true",
        "onnxoptimizer, eliminate_identity",
    }


@pytest.mark.long
def test_what_goes_with_a_model_makes_no_columns_in_any_table(
    run: Run, models: Path, place: Path
) -> None:
    np.savez(place / "clean.npz", x=np.ones((2, 3), np.float32))
    np.savez(place / "faulty.npz", a=np.ones((3, 2), np.float32), b=np.ones((3, 4), np.float32))
    jobs = "\n".join(
        f'[[jobs]]\nmodels = ["models/{n}.onnx"]\nvet = {{ dataset = ["files:{n}.npz"] }}'
        for n in ("clean", "faulty")
    )
    (place / "own.toml").write_text(f'optimizers = ["onnxoptimizer"]\n{jobs}\n')
    assert run("campaign", "run", "own.toml", "-q").code == 1
    shown = run("campaign", "show", "own.store").out
    head = next(line for line in shown.splitlines() if line.startswith("model"))
    assert head.split() == ["model", "onnxoptimizer"]
    report = json.loads(run("report", "own.store", "--format", "json").out)
    assert len({trial["dataset"] for trial in report["trials"]}) == 2
    assert {trial["question"] for trial in report["trials"]} == {"onnxoptimizer, default"}
