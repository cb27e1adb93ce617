"""Campaigns whose jobs are searches for precision."""

from __future__ import annotations

import csv
import io
import json
import signal
import time
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from tests.commands import HEAD, Run, Spawn

import optvet
from optvet.engine.campaign import find_campaign, open_store, trials
from optvet.engine.campaign.job import run_job
from optvet.engine.campaign.payloads import pack_model
from optvet.spec.errors import OptvetError
from optvet.spec.precision import PrecisionRequest
from optvet.spec.records.precision import PrecisionResult

pytest.importorskip("onnxruntime", reason="needs optvet[onnxruntime]")

MODELS = {
    "overflow": """g (float[1,8] x) => (float[1,8] y)
<float big = {2000}>
{ a = Tanh(x)  b = Mul(a, big)  c = Mul(b, b)  d = Sqrt(c)  e = Div(d, big)  y = Add(e, a) }""",
    "plain": "g (float[1,8] x) => (float[1,8] y) { a = Tanh(x)  y = Add(a, x) }",
    "whole": "g (int64[2] x) => (int64[2] y) { y = Add(x, x) }",
}
FILE = """
models = ["overflow.onnx", "plain.onnx"]
precisions = ["fp16", "bf16"]
[precision]
limit = 2
"""


@pytest.fixture
def file(place: Path) -> Path:
    for name, text in MODELS.items():
        onnx.save(onnx.parser.parse_model(HEAD + text), place / f"{name}.onnx")
    (place / "p.toml").write_text(FILE)
    return place / "p.toml"


def summary_of(run: Run, store: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run("campaign", "show", store, "--json", "-").out)
    return told


def table_of(run: Run, store: str) -> list[dict[str, str]]:
    lines = run("campaign", "tables", store, "--format", "csv").out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("model,precision,"))
    return list(csv.DictReader(io.StringIO("\n".join(lines[start:]))))


def test_a_matrix_of_searches_is_stored_and_reported(file: Path, run: Run) -> None:
    asked = run("campaign", "run", "p.toml", "--dry-run").out
    assert "4 jobs on 2 models" in asked
    assert "2 x optvet precision --to bf16 --limit 2" in asked
    ended = run("campaign", "run", "p.toml")
    assert ended.code == 0, ended.err
    assert "keep 2 of 6" in ended.out
    assert "4 jobs: 1 found, 3 nothing-to-keep; 0 findings" in ended.out
    assert run("campaign", "run", "p.toml", "--quiet").code == 0
    summary = summary_of(run, "p.store")
    assert {(t["kind"], t["attempts"]) for t in summary["trials"]} == {("precision", 1)}
    assert "4/4" in run("campaign", "status", "p.store").out

    (found,) = [t for t in summary["trials"] if t["verdict"] == "found"]
    shown = run("campaign", "show", "p.store", found["key"][:12])
    assert (shown.code, "KEEP 2 OF 6" in shown.out) == (0, True)
    assert "op_block_list" in shown.out or "node_block_list" in shown.out
    rows = table_of(run, "p.store")
    assert [(r["model"], r["precision"], r["kept"], r["of"]) for r in rows] == [
        ("overflow.onnx", "bf16", "0", "6"),
        ("overflow.onnx", "fp16", "2", "6"),
        ("plain.onnx", "bf16", "0", "2"),
        ("plain.onnx", "fp16", "0", "2"),
    ]
    assert float(rows[1]["list kept"]) <= 0.01
    for format in ("html", "markdown", "junit", "sarif", "github", "json"):
        report = run("report", "p.store", "--format", format)
        assert report.code == 0, report.err
        if format in ("html", "markdown", "json"):
            assert "Models in each precision" in report.out, format
    assert run("campaign", "export", "p.store", "--out", "all.json").code == 0
    answers = [t["answer"] for t in json.loads(Path("all.json").read_text())["trials"]]
    assert {a["schema"] for a in answers} == {"optvet.precision/1"}
    assert run("campaign", "export", "p.store", "--format", "csv", "--out", "t").code == 0
    assert Path("t/trials.csv").read_text().count(",precision,p,") == 4
    assert "precision,parts,6.0" in Path("t/metrics.csv").read_text()
    kept = [a for a in optvet.Campaign("p.toml").results() if isinstance(a, PrecisionResult)]
    assert sorted(len(answer.kept) for answer in kept) == [0, 0, 0, 2]


@pytest.mark.release
def test_what_cannot_be_met_is_a_finding_and_what_cannot_be_converted_an_error(
    file: Path, run: Run
) -> None:
    impossible = '\nrequire = ["max_change<=0"]\n'
    (file.parent / "n.toml").write_text(FILE.replace('"bf16"', '"int8"') + impossible)
    ended = run("campaign", "run", "n.toml", "--models", "plain.onnx", "--models", "whole.onnx")
    assert ended.code == 2, ended.err
    assert "can convert no node of it to fp16" in ended.out
    told = {(t["model"], t["optimizer"]): t for t in summary_of(run, "n.store")["trials"]}
    by_name = {(Path(model).name, to): t["verdict"] for (model, to), t in told.items()}
    assert by_name["plain.onnx", "fp16"] == "unmet"
    assert (by_name["whole.onnx", "fp16"], by_name["whole.onnx", "int8"]) == ("error", "error")
    rows = {(r["model"], r["precision"]): r for r in table_of(run, "n.store")}
    assert rows["plain.onnx", "fp16"]["verdict"] == "unmet"
    assert rows["whole.onnx", "fp16"]["verdict"] == "error"

    only = ("n.toml", "--models", "plain.onnx", "--store", "one.store")
    assert run("campaign", "run", *only).code == 1
    finding, *_ = summary_of(run, "one.store")["findings"]
    assert (finding["symptom"], finding["severity"]) == ("requirement", "requirement")
    assert "max_change<=0 is required" in finding["message"]
    assert "not met" in run("campaign", "show", "one.store").out
    known = ("--format", "baseline", "--out", "known.json")
    assert run("campaign", "export", "one.store", *known).code == 0
    assert run("campaign", "run", *only, "--baseline", "known.json").code == 0


@pytest.mark.release
def test_diff_shows_lists_that_grew(file: Path, run: Run) -> None:
    run("campaign", "run", "p.toml", "--quiet", "--store", "a", "--models", "overflow.onnx")
    model = onnx.parser.parse_model(HEAD + MODELS["overflow"].replace("2000", "2"))
    onnx.save(model, "overflow.onnx")
    run("campaign", "run", "p.toml", "--quiet", "--store", "b", "--models", "overflow.onnx")
    changed = run("campaign", "diff", "b", "a")
    assert (changed.code, "keep nothing  keep 2 of 6" in changed.out) == (0, True)


def test_vets_and_searches_stand_in_one_file(file: Path, run: Run) -> None:
    Path("both.toml").write_text(
        'models = ["plain.onnx"]\n[precision]\nlimit = 2\n[[jobs]]\nprecisions = ["fp16"]\n'
        '[[jobs]]\noptimizers = ["onnxoptimizer"]\nvet = { limit = 2 }\n'
    )
    ended = run("campaign", "run", "both.toml")
    assert ended.code == 0, ended.err
    assert {t["kind"] for t in summary_of(run, "both.store")["trials"]} == {"vet", "precision"}
    titles = run("campaign", "tables", "both.store").out
    assert "Issues" in titles
    assert "Models in each precision" in titles


@pytest.mark.long
def test_a_killed_campaign_is_resumed_with_the_same_answers(
    file: Path, run: Run, spawn: Spawn
) -> None:
    process = spawn("campaign", "run", "p.toml", "--jobs", 1)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not answered(Path("p.store")):
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 1 <= answered(Path("p.store")) < 4
    assert run("campaign", "resume", "p.store", "--jobs", 1).code == 0
    assert run("campaign", "run", "p.toml", "--store", "whole", "--quiet").code == 0
    assert lists(Path("p.store")) == lists(Path("whole"))
    assert len(lists(Path("whole"))) == 4


def answered(store: Path) -> int:
    try:
        with open_store(store, to_read=True) as opened:
            return sum(t.answer is not None for t in trials(opened, find_campaign(opened)))
    except OptvetError:  # it is not made yet, or not wholly
        return 0


def lists(store: Path) -> dict[str, list[str]]:
    with open_store(store, to_read=True) as opened:
        found = [(t.key, t.precision) for t in trials(opened, find_campaign(opened))]
    return {key: [part.name for part in answer.kept] for key, answer in found if answer}


def test_a_model_travels_with_its_search(file: Path, place: Path) -> None:
    request = PrecisionRequest(model=str(place / "overflow.onnx"), limit=2, jobs=1)
    payload = pack_model(request)
    (place / "overflow.onnx").unlink()
    answer = run_job(request, None, payload, lambda text: None)
    result = PrecisionResult.model_validate_json(answer.document)
    assert (result.model.source, len(result.kept)) == (request.model, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('precisions = ["fp17"]', ":2: key 'precisions': unknown precision"),
        ("precision = { limit = 4 }", ":2: key 'precision': say to what, by 'precisions'"),
        (
            'precisions = ["fp16"]\nprecision = { recuire = ["max_change<=1"] }',
            ":3: key 'precision.recuire': unknown option of optvet precision; did you mean",
        ),
        (
            'precisions = ["fp16"]\nprecision = { require = ["max_change>>1"] }',
            ":3: key 'precision.require': 'max_change>>1' is no requirement",
        ),
        (
            'precisions = ["fp16"]\noptimizers = ["onnxruntime"]',
            ":3: key 'optimizers': these jobs are searches, by 'precisions'",
        ),
        (
            'precisions = ["fp16", "int8"]\nprecision = { accumulate = "fp16" }',
            ":3: key 'precision.accumulate': --accumulate fp16, where --to is int8",
        ),
        (
            'precisions = ["fp16"]\nprecision = { out = "x.onnx" }',
            ":3: key 'precision.out': say --out to `optvet precision`",
        ),
        (
            'precisions = ["fp16"]\nprecision = { optimizer_options = { bi = "layer" } }',
            ":3: key 'precision.optimizer_options': unknown option of ort_fp16 'bi'",
        ),
        (
            'precisions = ["fp16"]\nprecision = { user_model = "x.py:M" }',
            ":3: key 'precision.user_model': key 'user_model' is 'x.py:M', which runs the code",
        ),
    ],
)
def test_a_wrong_key_is_named_with_its_line(file: Path, run: Run, text: str, words: str) -> None:
    Path("bad.toml").write_text(f'models = ["plain.onnx"]\n{text}\n')
    refused = run("campaign", "run", "bad.toml", "--dry-run")
    assert (refused.code, words in refused.err) == (2, True), refused.err
