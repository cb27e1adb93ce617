"""``optvet hunt`` as it is typed, in a real optimizer."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import onnx.parser
import pytest
from tests.commands import FAULTY, Ran, Run, Spawn, run, spawn

import optvet.cli
from optvet.plugin import markdown_text
from optvet.spec.records import HuntSummary
from optvet.spec.records.campaign import CampaignSummary

__all__ = ["run", "spawn"]


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with a model that ONNX Optimizer raises on, and a cache of its own."""
    onnx.save(onnx.parser.parse_model(FAULTY), tmp_path / "faulty.onnx")
    monkeypatch.setenv("OPTVET_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


HUNT = (
    *("hunt", "--optimizer", "onnxoptimizer", "--pass", "fuse_transpose_into_gemm"),
    *("--pool", "windows:faulty.onnx", "--out", "out"),
)


@pytest.fixture(scope="module")
def hunted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """A folder where a hunt of 40 models was, and what was said."""
    folder = tmp_path_factory.mktemp("hunted")
    onnx.save(onnx.parser.parse_model(FAULTY), folder / "faulty.onnx")
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        words = (*HUNT, "--budget", "40", "--json", "answer.json")
        code = optvet.cli.main([*words, "--cache-dir", "cache"])
    return folder, Ran(code, out.getvalue(), err.getvalue())


@pytest.fixture
def found(hunted: tuple[Path, Ran], place: Path) -> Ran:
    """That hunt in the folder of a test."""
    shutil.copytree(hunted[0], place, dirs_exist_ok=True)
    return hunted[1]


def summary_in(folder: str) -> HuntSummary:
    return HuntSummary.model_validate_json(Path(folder, "hunt.json").read_text())


@pytest.mark.long
def test_a_fault_of_a_real_optimizer_is_found_and_reported(found: Ran, run: Run) -> None:
    assert found.code == 1, found.err
    assert "findings in onnxoptimizer" in found.out or "finding in onnxoptimizer" in found.out
    assert "[100%] 40 models" in found.err
    summary = summary_in("out")
    assert json.loads(Path("answer.json").read_text()) == json.loads(summary.to_json())
    (finding, *_) = (f for f in summary.findings if f.culprit == ["fuse_transpose_into_gemm"])
    replayed = run("replay", Path("out", finding.bundle))
    assert replayed.code == 1
    assert "STILL THERE" in replayed.out
    report = run("hunt", "report", "out")
    assert report.code == 0
    assert f"### {markdown_text('fuse_transpose_into_gemm')}" in report.out
    assert finding.bundle in report.out
    table = run("hunt", "report", "out", "--python", sys.executable)
    assert f"| `{finding.bundle}` | shows | shows |" in table.out
    assert re.search(r"^1\. .*onnxoptimizer \d", table.out, re.MULTILINE)
    filed = run("hunt", "file", "out", "--python", sys.executable)
    assert filed.code == 0, filed.err
    assert "in out/issues" in filed.out
    folders = sorted(p for p in Path("out/issues").iterdir() if p.is_dir())
    issues = [(p / "ISSUE.md").read_text() for p in folders]
    assert folders[0].name.startswith("01-onnxoptimizer-")
    assert all("## Severity" in text and "plausible model" in text for text in issues)
    assert folders[0].name in Path("out/issues/README.md").read_text()
    again = run("hunt", "file", "out")
    assert (again.code, "give the name of a new folder" in again.err) == (2, True)
    none = run("hunt", "report", "out", "--python", "no-such-python")
    assert none.code == 2
    assert "it is no Python interpreter that runs" in none.err


@pytest.mark.release
def test_findings_are_asked_again_as_a_campaign(found: Ran, run: Run) -> None:
    faults = {f.bundle: f for f in summary_in("out").findings if f.severity == "fault"}
    assert run("campaign", "run", "out/campaign.toml", "--json", "again.json").code == 1
    answer = CampaignSummary.model_validate_json(Path("again.json").read_text())
    verdicts = {str(Path(t.model).parent.relative_to("out")): t.verdict for t in answer.trials}
    assert {bundle: verdicts[bundle] for bundle in faults} == dict.fromkeys(faults, "faulty")
    groups = {(g.symptom, *g.culprit) for g in answer.findings}
    assert {(f.symptom, *f.culprit) for f in faults.values()} <= groups
    assert run("report", "out/campaign.store", "--format", "html", "--out", "out.html").code == 0
    assert "fuse_transpose_into_gemm" in Path("out.html").read_text()


@pytest.mark.long
def test_a_killed_hunt_goes_on_and_loses_nothing(
    hunted: tuple[Path, Ran], run: Run, spawn: Spawn
) -> None:
    process = spawn(*HUNT, "--budget", "40", "--quiet")
    deadline = time.monotonic() + 120
    # As soon as the first round is stored, while suspects are vetted.
    while not Path("out", "hunt.sqlite-wal").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    again = run(*HUNT, "--budget", "40", "--resume")
    assert again.code == 1, again.err
    first, second = (
        summary_in(f).model_copy(update={"seconds": 0.0, "vetting_seconds": 0.0})
        for f in ("out", str(hunted[0] / "out"))
    )
    assert first == second


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--budget", "9"), "--optimizer is missing"),
        (("--optimizer", "onnxoptimizr"), "did you mean 'onnxoptimizer'"),
        (("--optimizer", "onnxoptimizer", "--budget", "soon"), "write CPU time as 90s, 10m or 2h"),
        (
            ("--optimizer", "onnxoptimizer", "--pool", "windows"),
            "needs models: say --pool windows:",
        ),
        (("--optimizer", "onnxoptimizer", "--pool", "windows:none"), "has no .onnx file"),
        (("--optimizer", "onnxoptimizer", "--pool", "windws:x"), "did you mean 'windows'"),
        (("--optimizer", "onnxoptimizer", "--pass", "fuse_pad"), "unknown pass of onnxoptimizer"),
        (("--optimizer", "onnxoptimizer", "--known", "none.json"), "none.json"),
        (("--optimizer", "onnxoptimizer", "--resume"), "holds no hunt"),
        (("--optimizer", "onnxoptimizer", "--out", "faulty.onnx"), "is a file; give a folder"),
        (("report", "."), "holds no hunt.json"),
    ],
)
def test_wrong_arguments_are_refused_with_what_to_do(
    run: Run, arguments: tuple[str, ...], words: str
) -> None:
    ran = run("hunt", *arguments)
    assert ran.code == 2, ran.err
    assert words in " ".join(ran.err.split())
    assert "Traceback" not in ran.err
