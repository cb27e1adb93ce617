from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import pytest
from rich.console import Console

import optvet
from optvet import Finding, NothingTested, VetResult
from optvet.cli import vet_facts, vet_screen
from optvet.cli.errors import worst
from optvet.cli.render import first_clauses, node_line, text
from optvet.cli.terminal import plain
from optvet.engine import vetting
from optvet.spec.records import CrossCheck, DatasetRecord
from optvet.spec.records.structure import Inventory
from optvet.spec.records.verified import verified_of
from optvet.spec.request import VetRequest

Run = Callable[..., Any]
Write = Callable[[str, str], Path]
Spawn = Callable[..., subprocess.Popen[str]]

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
BLAMED = "fuse_transpose_into_gemm"
TWO_FAULTS = (
    HEAD
    + """g (float[1,2,6,6] a, float[1,3] b) => (float[1,2,7,7] y, float[3,4] z)
    <int64[8] pads = {0,0,1,0,0,0,0,1}, float[1,4] row = {1, 2, 3, 4},
     float[2,2,1,1] w = {1, 2, 3, 4}, int64[4] axes = {0,1,3,2}, float zero = {0}>
    { p = Pad(a, pads, zero, axes)  y = Conv(p, w)  t = Transpose(b)  z = Gemm(t, row) }"""
).replace('"" : 17', '"" : 18')


def words(text: str) -> str:
    """Without the line breaks and frames of a terminal."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


# --- the answer and its exit code ----------------------------------------------------------------


def test_a_budget_that_does_not_suffice_is_undecided_and_a_larger_one_is_proposed(
    run: Run, clean: Path
) -> None:
    ran = run("vet", clean, "--budget", "0.001")
    assert ran.code == 4
    said = words(ran.out)
    assert "because the 0.001 s of --budget were over while" in said
    assert "verified nothing: the time of --budget was over before that" in said
    assert f"next optvet vet {clean} --budget 0.004" in said
    refused = run("vet", clean, "--budget", "soon")
    assert refused.code == 2
    assert "--budget: 'soon' is no time above 0" in words(refused.err)


def test_clean_model_exits_0_and_says_what_to_type_next(run: Run, clean: Path) -> None:
    ran = run("vet", clean)
    assert ran.code == 0
    assert ran.out.splitlines()[0] == f"CLEAN     {clean}"
    assert f"next      optvet vet {clean} --strategy each" in ran.out
    assert ran.err == ""


def test_faulty_model_exits_1_and_blames_the_pass(run: Run, faulty: Path) -> None:
    ran = run("vet", faulty)
    assert ran.code == 1
    assert ran.out.startswith("FAULTY")
    assert "optimizer-error" in ran.out
    assert "confirmed on random-0-normal" in ran.out
    assert f"--pipeline default,-{BLAMED}" in words(ran.out)
    assert f"optvet vet {faulty} --pipeline {BLAMED}" in ran.out
    labels = [line.split()[0] for line in ran.out.splitlines()[:12] if line[:1].strip()]
    assert labels[:2] == ["FAULTY", "verified"]
    assert "next" in labels
    assert ran.out.splitlines()[-1].startswith("    return onnxoptimizer.optimize(model")


@pytest.mark.long
def test_the_next_command_is_never_the_one_that_was_run(
    run: Run, faulty: Path, clean: Path, tmp_path: Path
) -> None:
    def follow(*command: object) -> str:
        shown = run(*command).out
        (line,) = (x for x in shown.splitlines() if x.startswith("next "))
        assert line.split()[2:] != [str(word) for word in command]
        return str(line.removeprefix("next ").strip())

    out = tmp_path / "bundles"
    assert follow("vet", faulty, "--reduce", "--out", out) == f"optvet replay {out}"
    again = run("vet", faulty, "--reduce", "--out", out).out
    assert re.search(r"^reduced   1 bundle in \d+\.\d s$", again, re.MULTILINE)
    command, seen = shlex.split(follow("vet", clean)), []
    while command[1] == "vet" and "files:YOUR_INPUTS.npz" not in command:
        assert command not in seen
        seen.append(command)
        command = shlex.split(follow(*command[1:]))
    assert [c[-1] for c in seen] == ["each"]


def test_next_command_shows_the_same_finding(
    run: Run, faulty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(faulty.parent)  # it writes a bundle
    first = run("vet", faulty, "--seed", "3")
    command = re.search(r"^next +optvet (.*)$", first.out, re.MULTILINE)
    assert command is not None
    again = run(*command[1].split())
    assert again.code == 1
    assert BLAMED in again.out


def test_screen_fits_80_columns(run: Run, faulty: Path) -> None:
    lines = run("vet", faulty, "--strategy", "each").out.splitlines()
    # A name or a command that is meant to be copied is not broken.
    whole = "FAULTY", "next", "    return"
    broken = [x for x in lines if len(x) > 80 and not x.startswith(whole)]
    assert broken == []


def test_bad_data_is_refused_or_left_out_and_shown(
    run: Run, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "600")
    folder = clean.parent / "data"
    folder.mkdir()
    np.save(folder / "1.npy", np.ones((2, 3), np.float32))
    np.save(folder / "2.npy", np.ones((9, 9), np.float32))
    ran = run("vet", clean, "--dataset", f"files:{folder}")
    assert ran.code == 2
    assert "2.npy, input 'x': has shape [9,9]" in words(ran.err)
    assert "--on-bad skip" in words(ran.err)
    ran = run("vet", clean, "--dataset", f"files:{folder}", "--on-bad", "skip")
    assert ran.code == 0
    assert f"inputs files:{folder}, 1 sample" in words(ran.out)
    assert "1 sample left out, the first 2.npy: dataset 'files':" in words(ran.out)
    ran = run("vet", clean, "--dataset", f"files:{folder}", "--on-bad", "skip", "--json", "-")
    answer = json.loads(ran.out)
    assert [s["sample"] for s in answer["skipped"]] == ["2.npy"]
    assert "has shape [9,9]" in answer["skipped"][0]["reason"]
    assert (answer["samples"], answer["datasets"][0]["samples"]) == (1, 1)


def test_a_record_s_dataset_is_taken_unless_another_is_named(
    run: Run, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "600")
    np.save(clean.parent / "a.npy", np.ones((2, 3), np.float32))
    clean.with_suffix(".toml").write_text('dataset = "files:a.npy"\n')
    told = words(run("vet", clean).out)
    record = clean.with_suffix(".toml")
    assert f"inputs files:{clean.parent / 'a.npy'} (declared in {record}), 1 sample" in told
    assert "inputs files" not in words(run("vet", clean, "--dataset", "random").out)


def test_second_run_comes_from_the_cache(run: Run, clean: Path) -> None:
    # In the clean room, as shipped, and for what inputs did not reach.
    assert "3 applications," in run("vet", clean, "--explain").out
    assert "all from the cache" in run("vet", clean, "--explain").out
    assert "3 applications," in run("vet", clean, "--explain", "--no-cache").out


def test_what_a_verdict_rests_on_is_shown_with_explain(run: Run, faulty: Path) -> None:
    whole, brief = (run("vet", faulty, *more).out for more in (("--explain",), ()))
    labels = ("controls", "outputs", "cost")
    assert f"more      --explain shows {', '.join(labels)}" in brief
    assert [n for n in labels if re.search(f"^{n} ", brief, re.MULTILINE)] == []
    assert [n for n in labels if re.search(f"^{n} ", whole, re.MULTILINE)] == list(labels)
    assert "--explain" not in whole
    needed = r"search(es)? for culprits with \d+ answers?, at least \d+\.\d needed"
    assert re.search(needed, " ".join(whole.split()))


@pytest.mark.long
def test_two_findings_and_what_to_do_about_them_fit_twelve_lines(
    monkeypatch: pytest.MonkeyPatch, run: Run, write: Write
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = run("vet", write("two.onnx", TWO_FAULTS)).out.splitlines()
    assert len([line for line in lines if "confirmed on random" in line]) == 2
    assert next(i for i, line in enumerate(lines) if line.startswith("next ")) < 12


def test_quiet_prints_one_line(run: Run, faulty: Path) -> None:
    ran = run("vet", faulty, "--quiet")
    assert (ran.code, ran.out) == (1, f"FAULTY    {faulty}\n")


def test_markup_in_a_name_is_shown_as_it_is(run: Run, write: Write) -> None:
    path = write("[red]x[/red].onnx", HEAD + "g (float[2] x) => (float[2] y) { y = Relu(x) }")
    assert run("vet", path).out.startswith(f"CLEAN     {path}\n")


def test_escape_sequence_in_a_name_does_not_reach_the_terminal(run: Run, clean: Path) -> None:
    evil = clean.with_name("\x1b[2Jevil.onnx")
    clean.rename(evil)
    assert "\x1b" not in run("vet", evil, "-q").out


def test_options_reach_the_engine(run: Run, clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[VetRequest] = []

    def vet(request: VetRequest, *_: object, **__: object) -> VetResult:
        seen.append(request)
        raise NothingTested("nothing; --dataset")

    monkeypatch.setattr(vetting, "vetted", vet)
    options = """--optimizer o --pipeline a,b --exclude z --strategy subset --dataset random
        --dataset files:x --start 2 --shuffle --on-bad skip --fail-on bloat --out o
        --limit 3 --seed 4 --jobs 5 --timeout 1.5 --memory 1.5G --clean --no-pairs --reduce
        --runtime r --no-cache --cache-dir c --option k=true --option l=O2 --dataset-option m=3
        --runtime-option n=[1,2] --cross-check x,y --cross-check x --comparator c
        --comparator-options k=0.5"""
    assert run("vet", clean, *options.split()).code == 5
    assert seen == [
        VetRequest(
            model=str(clean),
            optimizer="o",
            pipeline="a,b",
            exclude=("z",),
            strategy="subset",
            dataset=("random", "files:x"),
            start=2,
            limit=3,
            shuffle=True,
            on_bad="skip",
            seed=4,
            jobs=5,
            timeout=1.5,
            memory=3 << 29,
            clean=True,
            pairs=False,
            runtime="r",
            cache=False,
            cache_dir=Path("c"),
            optimizer_options={"k": True, "l": "O2"},
            dataset_options={"m": 3},
            runtime_options={"n": [1, 2]},
            cross_check=("x", "y"),
            comparator="c",
            comparator_options={"k": 0.5},
            reduce=True,
            out=Path("o"),
            fail_on=("bloat",),
        )
    ]
    # What a request prints is what it is made of.
    assert run("vet", *seen[0].arguments()).code == 5
    assert seen[1] == seen[0]


def test_options_of_a_file_hold_unless_they_are_typed(
    run: Run, clean: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[VetRequest] = []

    def vet(request: VetRequest, *_: object, **__: object) -> VetResult:
        seen.append(request)
        raise NothingTested("nothing; --dataset")

    monkeypatch.setattr(vetting, "vetted", vet)
    file = tmp_path / "optvet.toml"
    file.write_text('timeout = "90s"\nlimit = 3\n[optimizer_options]\nk = 1\n')
    assert run("vet", clean, "--config", file, "--limit", "4").code == 5
    (asked,) = seen
    assert (asked.timeout, asked.limit, asked.optimizer_options) == (90.0, 4, {"k": 1})
    file.write_text("timeot = 3\n")
    ran = run("vet", clean, "--config", file)
    assert ran.code == 2
    assert "unknown option 'timeot'; did you mean 'timeout'" in words(ran.err)
    assert str(file) in ran.err.replace("\n", "")
    file.write_text('strategy = "eech"\n')
    assert "did you mean 'each'" in run("vet", clean, "--config", file).err
    file.write_text("x = " + "[" * 100_000)
    assert run("vet", clean, "--config", file).code == 2


def test_what_looks_like_an_option_is_no_value(run: Run, clean: Path) -> None:
    for arguments in (("--json", "--quiet"), ("--pipeline", "--reduce"), ("--out", "-q")):
        ran = run("vet", clean, *arguments)
        assert ran.code == 2
        assert f"{arguments[0]} needs a value" in words(ran.err)
    ran = run("doctor", "--json", "--debug")
    assert ran.code == 2
    assert "--json needs a value" in words(ran.err)
    assert run("vet", clean, "--pipeline", "-nop").code == 0  # a pass that is left out


def test_empty_name_in_a_list_is_refused(run: Run, clean: Path) -> None:
    ran = run("vet", clean, "--cross-check", "onnxruntime,,x")
    assert ran.code == 2
    assert "expected names separated by commas" in words(ran.err)


def test_unknown_comparator_exits_2_before_the_work(run: Run, clean: Path) -> None:
    ran = run("vet", clean, "--comparator", "tensr")
    assert ran.code == 2
    assert "did you mean 'tensor'" in ran.err


def test_impact_is_told_with_its_comparator_and_the_reason(run: Run, clean: Path) -> None:
    ran = run("vet", clean, "--comparator", "tensor")
    assert re.search(r"^impact    0 of 10 samples differ", ran.out, re.MULTILINE), ran.out
    assert re.search(r"^metrics   tensor \(--comparator\): ", ran.out, re.MULTILINE), ran.out


def test_answers_of_other_runtimes_stand_below_the_finding() -> None:
    finding = Finding(
        symptom=optvet.Symptom.WRONG_OUTPUT,
        severity="fault",
        stage="compare",
        culprit=["a"],
        confirmed=True,
        cross_check=[
            CrossCheck(runtime="two", outcome="no-fault", same_original=True),
            CrossCheck(runtime="three", outcome="not-judged", detail="cannot run onnx-session"),
            CrossCheck(runtime="four", outcome="no-fault", same_original=False),
        ],
    )
    lines = vet_screen._blame(finding).plain.splitlines()
    assert lines[-3:] == [
        "on two: no fault",
        "on three: cannot run onnx-session",
        "on four: no fault, but it computes the original differently",
    ]


def test_changed_answers_on_random_inputs_are_called_random_noise(run: Run, clean: Path) -> None:
    result = VetResult.model_validate_json(run("vet", clean, "--json", "-").out)
    assert result.impact is not None
    request = VetRequest(model=str(clean))

    def show(*datasets: DatasetRecord, changed: int, verdict: str = "clean") -> str:
        impact = result.impact and result.impact.model_copy(update={"changed": changed})
        update = {"impact": impact, "datasets": list(datasets), "verdict": verdict}
        other = result.model_copy(update=update)
        stream = io.StringIO()
        console = Console(file=stream, width=300)
        console.print(vet_screen.headline(other), *vet_screen.first_part(other, request))
        return stream.getvalue()

    (unasked,) = result.datasets
    given = unasked.model_copy(update={"chosen_by": "--dataset"})
    words = "random noise, no data of the task"
    assert words in show(unasked, changed=1)
    assert words not in show(unasked, changed=0)
    assert words not in show(given, changed=1)
    assert "no answer of 10 compared samples changed" in show(given, changed=0, verdict="faulty")
    assert "no answer" not in show(given, changed=1, verdict="faulty")


def test_the_log_of_the_optimizer_is_told(run: Run, clean: Path) -> None:
    result = VetResult.model_validate_json(run("vet", clean, "--json", "-").out)
    told = result.model_copy(update={"changing_passes": ["a", "b"]})
    assert vet_facts.changing_words(told) == "at most 2 passes, by the optimizer's log: a, b"
    none = result.model_copy(update={"changing_passes": []})
    assert vet_facts.changing_words(none) == "no pass, by the optimizer's log"
    many = result.model_copy(update={"changing_passes": [f"p{i}" for i in range(40)]})
    assert vet_facts.changing_words(many).endswith("p11, …")


def test_the_safe_pipeline_is_shown_as_code_to_paste(run: Run, clean: Path) -> None:
    result = VetResult.model_validate_json(run("vet", clean, "--json", "-").out)
    names = result.optimizer.pipeline
    passes = [f"a_pass_with_a_long_name_{i}" for i in range(9)]
    call = f"import acme\n\nreturn acme.optimize(model, disabled={passes})"
    short = result.model_copy(update={"safe_pipeline": names[1:], "safe_code": call})
    label, shown = plain(
        *vet_screen.code_lines(verified_of(short, "default").code), soft_wrap=True
    ).split("\n", 1)
    assert label.strip() == "as code"
    found: dict[str, Any] = {"acme": None}
    with patch.dict(sys.modules, {"acme": SimpleNamespace(optimize=lambda m, disabled: disabled)}):
        exec(shown, found)
        assert found["optimize"](None) == passes
    long = short.model_copy(update={"safe_code": "a = 1\n" * 99})
    assert "see safe_code in the output of --json FILE" in plain(
        *vet_screen.code_lines(verified_of(long, "default").code)
    )


def test_a_place_where_nothing_can_be_written_is_refused_before_the_work(
    run: Run, clean: Path
) -> None:
    done = run("vet", clean, "--out", "/proc/nowhere/bundles")
    assert done.code == 2
    assert "--out /proc/nowhere/bundles cannot be written (" in " ".join(done.err.split())
    assert done.out == ""


def test_help_and_version_do_not_import_the_engine() -> None:
    code = (
        "import sys, optvet.cli; optvet.cli.main(['--version']); optvet.cli.main(['vet', '-h']);"
        "sys.exit('optvet.engine.vet' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_fail_on_makes_a_finding_of_a_note(run: Run, write: Write) -> None:
    old = '<ir_version: 3, opset_import: ["" : 9]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    path = write("old.onnx", old)
    assert run("vet", path).code == 0
    assert run("vet", path, "--fail-on", "bloat").code == 0
    ran = run("vet", path, "--fail-on", "metadata-change")
    assert ran.code == 1
    assert "ir_version: 3 became 4" in ran.out
    assert ran.out.splitlines()[1].strip() == "fails by --fail-on: metadata-change"
    both = ("--optimizer", "onnxoptimizer", "--optimizer", "onnxruntime")
    lines = run("vet", path, *both, "--fail-on", "metadata-change").out.splitlines()
    assert lines[0].endswith("old.onnx, onnxoptimizer")


def test_undecided_exits_4(run: Run, write: Write) -> None:
    text = HEAD + "g (float[2] x) => (float[2] y) { a = Sub(x, x)  y = Div(a, a) }"
    ran = run("vet", write("nan.onnx", text))
    assert (ran.code, ran.out.split()[0]) == (4, "UNDECIDED")
    assert "NaN" in ran.out


def test_nothing_tested_exits_5(run: Run, write: Write, tmp_path: Path) -> None:
    text = HEAD + "g (float[2] x, int64[1] i) => (float[1] y) { y = Gather(x, i) }"
    model, inputs = write("gather.onnx", text), tmp_path / "out_of_range.npz"
    np.savez(inputs, x=np.zeros(2, np.float32), i=np.array([9]))
    ran = run("vet", model, "--dataset", f"files:{inputs}")
    assert ran.code == 5
    assert ran.err.startswith("error: ")
    assert "runs on none" in ran.err
    assert "--dataset files:PATH" in ran.err


# --- JSON ----------------------------------------------------------------------------------------


def test_json_to_stdout_is_all_there_is(spawn: Spawn, faulty: Path) -> None:
    process = spawn("vet", faulty, "--json", "-")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    result = VetResult.model_validate_json(out)
    assert json.loads(out)["schema"] == "optvet.vet/3"
    assert result.findings[0].culprit == [BLAMED]
    assert err == ""


OLD = '{"schema": "optvet.vet/3"}'
"""What is left of an answer, which may be replaced."""


def test_json_to_a_file_comes_beside_the_screen(run: Run, clean: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text(OLD)
    ran = run("vet", clean, "--json", report)
    assert ran.out.startswith("CLEAN")
    assert VetResult.model_validate_json(report.read_text()).verdict == "clean"
    assert [p.name for p in tmp_path.iterdir() if "report" in p.name] == ["report.json"]


def test_json_to_where_nothing_can_be_is_refused_before_the_work(run: Run, clean: Path) -> None:
    ran = run("vet", clean, "--json", clean.parent / "none" / "x.json")
    assert (ran.code, ran.out) == (2, "")
    assert "does not exist; make it first" in ran.err
    assert run("vet", clean, "--json", clean.parent).code == 2


def test_json_to_a_full_disk_exits_3(run: Run, clean: Path) -> None:
    ran = run("vet", clean, "--json", "/dev/full")
    assert ran.code == 3
    assert "error: cannot write /dev/full: No space left on device; make room" in ran.err
    assert Path("/dev/full").is_char_device()


def test_disk_that_fills_up_leaves_the_old_file(
    run: Run, clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "report.json"
    report.write_text(OLD)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("optvet.spec.files.os.replace", full)
    ran = run("vet", clean, "--json", report, "--no-cache")
    assert ran.code == 3
    assert report.read_text() == OLD
    assert [p.name for p in tmp_path.iterdir() if "report" in p.name] == ["report.json"]


@pytest.mark.long
def test_full_stdout_exits_3(spawn: Spawn, clean: Path) -> None:
    with open("/dev/full", "w") as full:
        process = spawn("vet", clean, stdout=full)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert (
        err == "error: cannot write to stdout: No space left on device; make room and run again\n"
    )


@pytest.mark.long
def test_reader_that_is_gone_is_no_error(spawn: Spawn, faulty: Path) -> None:
    process = spawn("vet", faulty)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 1
    assert err == ""


# --- folders -------------------------------------------------------------------------------------


def test_folder_is_vetted_model_by_model(run: Run, clean: Path, faulty: Path) -> None:
    (clean.parent / "broken.onnx").write_bytes(b"\x08\x08\x3a\xff\x7fcut")
    ran = run("vet", clean.parent)
    assert ran.code == 2
    assert "broken.onnx is cut short" in ran.err
    assert f"CLEAN     {clean}" in ran.out
    assert f"optimizer-error: {BLAMED}" in words(ran.out)
    assert f"verified  --pipeline default,-{BLAMED}\n" in ran.out
    answer = json.loads(run("vet", clean.parent, "--json", "-").out)
    assert answer["schema"] == "optvet.vets/1"
    as_json = answer["results"]
    assert [e["schema"] for e in as_json] == ["optvet.error/1", "optvet.vet/3", "optvet.vet/3"]
    assert as_json[0]["exit_code"] == 2


def test_folder_with_a_fault_exits_1(run: Run, clean: Path, faulty: Path) -> None:
    assert run("vet", clean.parent, "-q").out.count("\n") == 2
    assert run("vet", clean.parent, "-q").code == 1


def test_wrong_option_is_said_once_for_a_folder(run: Run, clean: Path, faulty: Path) -> None:
    ran = run("vet", clean.parent, "--pipeline", "fuse_bn")
    assert ran.code == 2
    assert ran.err.count("error:") == 1


def test_folder_of_one_model_is_that_model(run: Run, clean: Path) -> None:
    assert isinstance(json.loads(run("vet", clean.parent, "--json", "-").out), dict)


def test_worst_exit_code_stands_for_all() -> None:
    assert worst([0, 5, 4, 1, 2, 3]) == 3
    assert worst([0, 5, 4, 1, 2]) == 2
    assert worst([0, 5, 4, 1]) == 1
    assert worst([0, 5, 4]) == 4
    assert worst([0, 5]) == 5
    assert worst([]) == 0


# --- bad input -----------------------------------------------------------------------------------

BAD_OPTIONS = [
    (["--pipeline", "fuse_bn_into_con"], "unknown pipeline or pass of onnxoptimizer"
     " 'fuse_bn_into_con'; did you mean 'fuse_bn_into_conv'"),
    (["--pipeline", "defualt"], "did you mean 'default'"),
    (["--optimizer", "onnxoptimiser"], "unknown optimizer 'onnxoptimiser'; did you mean"
     " 'onnxoptimizer'"),
    (["--runtime", "onnxruntme"], "unknown runtime 'onnxruntme'; did you mean 'onnxruntime'"),
    (["--dataset", "randm"], "unknown dataset 'randm'; did you mean 'random'?"),
    (["--dataset", "files:nowhere.npz"], "'nowhere.npz' does not exist"),
    (["--dataset", "files"], "no path was given; say --dataset files:PATH"),
    (["--option", "fixed_pont=true"], "unknown option of onnxoptimizer 'fixed_pont'; did you mean"
     " 'fixed_point'?"),
    (["--option", "fixed_point=perhaps"], "option 'fixed_point' = 'perhaps'"),
    (["--optimizer-option", "a"], "--optimizer-option 'a': expected KEY=VALUE"),
    (["--dataset-option", "sampels=3"], "did you mean 'samples'?"),
    (["--runtime-option", "threds=1"], "did you mean 'threads'?"),
    (["--strategy", "eech"], "unknown choice for --strategy 'eech'; did you mean 'each'?"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS, ids=lambda v: str(v)[:40])
def test_wrong_value_exits_2_in_one_line(
    run: Run, clean: Path, options: list[str], message: str
) -> None:
    ran = run("vet", clean, *options)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    assert message in ran.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--optimzer", "x"], "--optimizer"),
        (["--memory", "lots"], "'lots' is not a size; write it as 512M or 4G"),
        (["--memory", "0"], "is not a size"),
        (["--timeout", "nan"], "'nan' is not a number of seconds"),
        (["--timeout", "-1"], "'-1' is not a number of seconds"),
        (["--limit", "0"], "--limit"),
        (["--seed", "x"], "--seed"),
        (["--fail-on", "bloatt"], "bloat"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_wrong_option_exits_2(run: Run, clean: Path, options: list[str], message: str) -> None:
    ran = run("vet", clean, *options)
    assert (ran.code, ran.out) == (2, "")
    assert message in words(ran.err)


def test_missing_file_exits_2_and_suggests(run: Run, clean: Path) -> None:
    ran = run("vet", clean.with_name("claen.onnx"))
    assert ran.code == 2
    assert "error: no such file" in ran.err
    assert "did you mean 'clean.onnx'?" in ran.err
    assert "Traceback" not in ran.err


def test_unknown_zoo_model_exits_2_and_suggests(run: Run) -> None:
    ran = run("vet", "zoo:digit-mlp")
    assert ran.code == 2
    assert "did you mean 'digits-mlp'" in ran.err


@pytest.mark.parametrize("cut", [0, 1, 40])
def test_truncated_file_exits_2(run: Run, clean: Path, cut: int) -> None:
    clean.write_bytes(clean.read_bytes()[:cut])
    ran = run("vet", clean)
    assert ran.code == 2
    assert "expected an ONNX" in ran.err
    assert ran.err.count("\n") == 1


def test_file_that_is_no_model_exits_2(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "page.onnx"
    path.write_text("<!doctype html><html>not found</html>")
    ran = run("vet", path)
    assert ran.code == 2
    assert "is an HTML page" in ran.err


def test_model_that_is_invalid_from_the_start_exits_2(run: Run, write: Write) -> None:
    text = HEAD + "g (float[2] x) => (float[2] y) { y = Nope(x) }"
    ran = run("vet", write("invalid.onnx", text))
    assert ran.code == 2
    assert "not a valid ONNX model" in ran.err
    assert "No Op registered for Nope" in ran.err
    assert ran.err.count("\n") == 1


def test_model_without_possible_input_exits_2_and_names_it(run: Run, write: Write) -> None:
    text = (
        HEAD
        + """g (float[N] x) => (float[A] y, float[B] z) <int64[1] p = {7}, int64[1] q = {5}>
    { y = Reshape(x, p)  z = Reshape(x, q) }"""
    )
    ran = run("vet", write("impossible.onnx", text))
    assert ran.code == 2
    assert "'x' float[N]" in ran.err
    assert "--dataset files:PATH" in ran.err


def test_input_that_is_no_tensor_exits_2_and_names_it(run: Run, write: Write) -> None:
    text = HEAD + "g (seq(float[2]) s, int64 i) => (float[2] y) { y = SequenceAt(s, i) }"
    ran = run("vet", write("sequence.onnx", text))
    assert ran.code == 2
    assert "input 's' is of type 'sequence', expected a tensor" in ran.err


def test_models_folder_without_models_exits_2(run: Run, tmp_path: Path) -> None:
    ran = run("vet", tmp_path)
    assert ran.code == 2
    assert "has no .onnx file" in ran.err


# --- what goes wrong in optvet -------------------------------------------------------------------


def test_unexpected_error_exits_3_without_traceback(
    run: Run, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vet(*_: object, **__: object) -> VetResult:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(vetting, "vetted", vet)
    ran = run("vet", clean)
    assert ran.code == 3
    assert ran.err == (
        "error: ZeroDivisionError: division by zero; this is a bug in optvet: run again with "
        "--debug and report what it prints\n"
    )
    ran = run("vet", clean, "--debug")
    assert ran.code == 3
    assert "Traceback (most recent call last)" in ran.err


def test_interrupt_exits_130_and_says_what_is_kept(
    run: Run, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vet(*_: object, **__: object) -> VetResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(vetting, "vetted", vet)
    ran = run("vet", clean)
    assert ran.code == 130
    assert ran.err == (
        "interrupted; what was computed is kept; run the same command again to continue\n"
    )
    assert "nothing is kept" in run("vet", clean, "--no-cache").err


def entries(run: Run) -> int:
    found = json.loads(run("cache", "info", "--json", "-").out)
    return int(found["entries"])


def processes_using(cache: Path) -> list[str]:
    mark, found = f"OPTVET_CACHE={cache}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found


@pytest.mark.long
def test_interrupted_work_is_kept_and_no_process_stays(
    run: Run, spawn: Spawn, tmp_path: Path
) -> None:
    cache, report = tmp_path / "cache", tmp_path / "report.json"
    process = spawn(
        "vet", "zoo:shufflenet", "--strategy", "each", "--pairs", "--json", report, "--jobs", "1"
    )
    deadline = time.monotonic() + 60
    while not (cache.is_dir() and entries(run) >= 15) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - asked < 5
    assert (process.returncode, out) == (130, "")
    assert err.startswith("interrupted; what was computed is kept")
    assert not report.exists()
    assert entries(run) >= 15
    assert processes_using(cache) == []


def test_cache_that_cannot_be_written_costs_no_answer(
    run: Run, clean: Path, tmp_path: Path
) -> None:
    place = tmp_path / "file"
    place.write_text("")
    assert run("vet", clean, "--cache-dir", place).code == 0


def test_empty_cache_variable_is_no_folder(
    run: Run, clean: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPTVET_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    found = json.loads(run("cache", "info", "--json", "-").out)
    assert found["path"] == str(tmp_path / "home" / "optvet")


def test_models_are_not_changed(run: Run, faulty: Path) -> None:
    before = faulty.read_bytes()
    copy = shutil.copy(faulty, faulty.with_suffix(".bak"))
    run("vet", faulty, "--strategy", "each")
    assert faulty.read_bytes() == before == Path(copy).read_bytes()
    onnx.checker.check_model(onnx.load(faulty))


def test_an_unmet_requirement_exits_1_and_stands_below_the_verdict(run: Run, clean: Path) -> None:
    met = run("vet", clean, "--rtol", "0", "--limit", "2", "-q")
    assert (met.code, met.out) == (0, f"CLEAN     {clean}\n")
    vetted = run("vet", "zoo:digits-cnn", "--rtol", "1e-9", "--limit", "3")
    assert vetted.code == 1
    verdict, line = vetted.out.splitlines()[:2]
    assert verdict == "DRIFT     zoo:digits-cnn"
    assert re.match(r" {10}not met: rtol=1e-09, atol=0 \(output 'probabilities': \d", line)
    assert re.search(r"; the smallest that holds: --atol \d\S*, in units of the output\)$", line)
    assert "requirement  fuse_bn_into_conv" in vetted.out
    assert "verified  --pipeline default,-fuse_bn_into_conv" in vetted.out


def test_requirements_come_from_a_configuration_and_from_python(
    run: Run, clean: Path, tmp_path: Path
) -> None:
    config = tmp_path / "vet.toml"
    config.write_text('require = ["max_abs<=-1"]\natol = 0.5\nlimit = 2\n')
    ran = run("vet", clean, "--config", config, "-q")
    # Not even the original comes to less than no difference from itself.
    assert ran.code == 4
    plain = run("vet", clean, "--config", config)
    assert "max_abs<=-1: cannot be measured" in plain.out
    assert "rtol=0, atol=0.5: met" in plain.out
    result = optvet.vet(clean, require="max_abs<=0", atol=0.5, limit=2)
    assert [r.met for r in result.requirements] == [True, True]


def test_several_models_and_optimizers_are_vetted_with_one_table(
    run: Run, clean: Path, faulty: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxslim", reason="needs optvet[onnxslim]")
    names = ["--optimizer", "onnxoptimizer", "--optimizer", "onnxslim"]
    ran = run("vet", clean, tmp_path / "f*.onnx", *names, "--json", tmp_path / "all.json")
    assert ran.code == 1
    results = json.loads((tmp_path / "all.json").read_text())["results"]
    made = [(Path(r["model"]["source"]).name, r["optimizer"]["name"]) for r in results]
    assert made == [
        ("clean.onnx", "onnxoptimizer"),
        ("faulty.onnx", "onnxoptimizer"),
        ("clean.onnx", "onnxslim"),
        ("faulty.onnx", "onnxslim"),
    ]
    table = [line.split()[:3] for line in ran.out.splitlines()]
    assert ["faulty", "faulty.onnx", "onnxoptimizer"] in table
    assert ["clean", "clean.onnx", "onnxslim"] in table
    nothing = run("vet", clean, tmp_path / "x*.onnx")
    assert nothing.code == 2
    assert "no file matches" in nothing.err


def test_structure_and_placement_are_told_on_demand(run: Run, clean: Path) -> None:
    plain = run("vet", clean, "--optimizer", "onnxruntime")
    assert "executed" not in plain.out
    ran = run("vet", clean, "--optimizer", "onnxruntime", "--structure", "--json", "-")
    result = VetResult.model_validate_json(ran.out)
    assert result.structures is not None
    assert isinstance(result.structures.optimized, Inventory)
    assert result.structures.optimized.operators == {"Relu": 1}
    assert result.placements is not None
    assert result.placements.unknown == ""
    reference, optimized = result.placements.reference, result.placements.optimized
    assert reference is not None
    assert optimized is not None
    assert (reference.nodes, optimized.nodes) == (2, 1)
    ran = run("vet", clean, "--optimizer", "onnxruntime", "--structure")
    assert "2 nodes became 1" in ran.out
    assert "after: 1 on CPUExecutionProvider; time: Relu 100%" in ran.out


def test_names_of_values_are_wrapped_and_never_cut() -> None:
    name = "StatefulPartitionedCall/model/layer_normalization_17/batchnorm/" + "x" * 30
    for width in (60, 80, 200):
        lines = node_line(f"y = Mul <epsilon = 1e-05> ({name}, {name}_scale)")
        stream = io.StringIO()
        grid = vet_facts.labelled_grid([("before", text(lines))])
        Console(file=stream, width=width).print(grid)
        shown = stream.getvalue()
        plain = "".join(shown.split()).removeprefix("before")
        assert plain == f"y=Mul<epsilon=1e-05>({name},{name}_scale)"
        assert max(map(len, shown.splitlines())) <= width


def test_without_passes_import_and_export_are_judged(run: Run, tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 24]>
    g (float[1] x) => (float[1] y) <float8e8m0[1] w = {127}> { y = Abs (x) }
    """
    path = tmp_path / "unread.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    # The default pipeline drops the weight, which the library cannot write.
    assert run("vet", path).code == 0
    alone = run("vet", path, "--pipeline", "none")
    assert alone.code == 1
    assert "import and export alone" in alone.out
    assert "No safe pipeline." in alone.out


def test_a_long_remark_of_ours_ends_after_a_clause() -> None:
    words = (
        "1.69 times the time of the original (99 %: 1.57 to 1.82), 0.0854 ms where it took 0.0491"
    )
    said = f"{words}; 8 weights became graph inputs that a caller may replace; 2 Add take longer"
    assert first_clauses(said, 100) == words
    assert first_clauses(words, 10) == words


@pytest.mark.long
def test_what_is_copied_is_on_one_line_at_any_width(
    run: Run, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    ran = run("vet", write("two.onnx", TWO_FAULTS))
    assert ran.code == 1
    option = "--pipeline default,-fuse_pad_into_conv,-fuse_transpose_into_gemm"
    assert f"verified  {option}" in ran.out.splitlines()
