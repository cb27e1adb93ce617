"""``optvet bisect`` and the releases it keeps, with wheels of a toy optimizer in a folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.cli.conftest import Write
from tests.commands import CLEAN, Run, quick_timing
from tests.wheels import ALL, FAULTY_IN, library, wheels, write_wheel

import optvet
from optvet.spec.bench import LEAST_REPEATS

__all__ = ["quick_timing", "wheels"]

TRIED = ("1.0", "2.0", "3.0")
"""Enough for a change with a good release before it; each is installed and imported."""


@pytest.mark.long
def test_the_first_bad_release_and_its_pass_are_found(
    run: Run, write: Write, wheels: Path, tmp_path: Path
) -> None:
    model, out = write("relu.onnx", CLEAN), tmp_path / "bundles"
    options = ("--package", "acme-opt", "--index", wheels, "--limit", "1", "--out", out)
    ran = run("bisect", model, *options, "--versions", "<4", "--json", tmp_path / "answer.json")
    assert ran.code == 1, ran.err
    assert "first bad acme-opt 3.0 (the last good one is 2.0)" in ran.out
    assert "culprit   tidy: wrong-output, in 3.0" in ran.out
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["changes"] == [{"last": "2.0", "first": "3.0", "to": "bad", "between": []}]
    (name,) = answer["at_fault"]["bundles"]
    assert (out / name / "finding.json").is_file()
    shown = {r["version"]: r["bundles"] for r in answer["releases"]}
    assert shown == {v: ["shows" if v in FAULTY_IN else "gone"] for v in TRIED}
    found = optvet.BisectResult.model_validate(answer)
    assert repr(found).startswith("<BisectResult: acme-opt: bad since 3.0 (not yet in 2.0): tidy")
    listed = run("env", "list").out
    assert all(f"acme-opt {version}" in listed for version in TRIED)
    assert "removed 1 release" in run("env", "clear", "acme-opt==1.0").out
    assert "removed 2 releases" in run("env", "clear").out
    # Nobody installed anything where optvet is.
    assert not (Path(os.__file__).parent / "site-packages" / "acme_opt.py").exists()


@pytest.mark.release
def test_what_is_new_in_the_last_release_is_dated_where_all_are_bad(
    run: Run, write: Write, wheels: Path
) -> None:
    for version in ALL:
        code = library(version, faulty=version in FAULTY_IN)
        worse = "    model.graph.node[-1].op_type = 'Neg'\n    return model"
        head, tail = code.split("def sweep(model):\n")
        write_wheel(
            wheels, version, f"{head}def sweep(model):\n{tail.replace('    return model', worse)}"
        )
    options = ("--package", "acme-opt", "--index", wheels, "--limit", "1", "--no-reduce")
    ran = run("bisect", write("relu.onnx", CLEAN), *options, "--versions", "2.0,3.0")
    assert ran.code == 1, ran.err
    assert "first bad acme-opt 3.0 (the last good one is 2.0)" in ran.out
    assert "2.0 is bad too, by wrong-output: sweep" in " ".join(ran.out.split())
    assert "culprit   tidy: wrong-output, in 3.0" in ran.out


QUICK = f"""
from optvet.engine.vet.speed import verdict
from optvet.engine.work.timing import stopwatch
stopwatch._REPEAT_S, verdict.REPEATS = 0.0, {LEAST_REPEATS}
"""
"""``quick_timing`` for processes that import the plugin: a slow release is slow beyond doubt."""


@pytest.mark.release
@pytest.mark.usefixtures("quick_timing")
def test_a_release_that_makes_a_model_slow_is_found(
    run: Run, write: Write, wheels: Path, tmp_path: Path
) -> None:
    with (tmp_path / "plugin" / "optvet_acme.py").open("a") as plugin:
        plugin.write(QUICK)
    for version in ALL:
        code = library(version, faulty=False, slow=version in FAULTY_IN)
        write_wheel(wheels, version, code)
    model = write("relu.onnx", CLEAN)
    options = ("--optimizer", "acme", "--index", wheels, "--limit", "1", "--no-reduce")
    ends = ("--good", "2.0", "--bad", "3.0")
    ran = run("bisect", model, *options, *ends, "--require", "speedup >= 0.5")
    assert ran.code == 1, ran.err
    assert "first bad acme-opt 3.0 (the last good one is 2.0)" in ran.out
    assert "slowdown: tidy" in ran.out


def test_a_command_can_decide_and_skips_with_125(
    run: Run, write: Write, wheels: Path, tmp_path: Path
) -> None:
    model = write("relu.onnx", CLEAN)
    script = tmp_path / "check.py"
    script.write_text(
        "import sys, acme_opt\n"
        "assert sys.argv[1].endswith('relu.onnx')\n"
        "sys.exit({'2.0': 125, '3.0': 3, '4.0': 3}.get(acme_opt.__version__, 0))\n"
    )
    command = ("--check", f"python -P {script} {{model}}")
    ran = run("bisect", model, "--package", "acme-opt", "--index", wheels, *command)
    assert ran.code == 1, ran.err
    first = "first bad acme-opt 3.0 (the last good one is 1.0); or one that was skipped: 2.0"
    assert first in " ".join(ran.out.split())
    assert "the command exits with 125" in ran.out
    found = optvet.bisect(
        model, package="acme-opt", index=wheels, good="1.0", bad="3.0", check=command[1]
    )
    assert [(c.last, c.first) for c in found.changes] == [("1.0", "3.0")]
    assert found.to_dict()["installed"] == found.installed > 1
    assert "3.0" in found._repr_html_()


@pytest.mark.long
def test_a_command_decides_on_a_library_that_no_optimizer_has(
    run: Run, wheels: Path, tmp_path: Path
) -> None:
    for version in ALL:
        write_wheel(wheels, version, f"__version__ = '{version}'", name="onnx2torch")
    source = tmp_path / "net.py"
    source.write_text("class Net: ...")
    script = tmp_path / "check.py"
    script.write_text(
        "import sys, onnx2torch\n"
        "assert sys.argv[1].endswith('net.py:Net')\n"
        "if onnx2torch.__version__ in ('3.0', '4.0'):\n"
        "    sys.exit('bad in ' + onnx2torch.__version__)\n"
    )
    options = (
        "--package",
        "onnx2torch",
        "--index",
        wheels,
        "--check",
        f"python -P {script} {{model}}",
    )
    ran = run("bisect", f"{source}:Net", *options)
    assert ran.code == 1, ran.err
    assert "first bad onnx2torch 3.0 (the last good one is 2.0)" in ran.out
    assert "exit code 1: bad in 3.0" in ran.out
    assert "no pass is to blame" not in ran.out
    ran = run("bisect", f"{tmp_path / 'nothere.py'}:Net", *options)
    assert (ran.code, ran.out) == (2, "")
    assert "no such file" in ran.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--package", "acme-optt"), "unknown package 'acme-optt'; did you mean 'acme-opt'"),
        (
            ("--package", "torch"),
            "has no optimizer to vet; say what a bad release does with --check",
        ),
        (("--package", "acme-opt", "--optimizer", "onnxslim"), "is the package of acme"),
        (("--symptom", "wrong"), "unknown symptom 'wrong'; did you mean 'wrong-output'"),
        (("--good", "7.0"), "--good 7.0: there is no such release; there are 1.0 … 4.0"),
        (("--good", "2.0", "--bad", "2.0"), "--good and --bad are both 2.0"),
        (("--versions", "1.0"), "only release 1.0 is left to try"),
        (("--check", "no-such-program {model}"), "is no program on the path"),
        (("--check", "true"), "expected {model} where the model's path"),
        (("--check", "true {model}", "--symptom", "crash"), "--check decides alone"),
        (("--save", "safe.onnx"), "bisect saves no model"),
        (("--require", "speedup>=2"), "expected speedup>=N with N from 0.01 to below 1"),
        (("--dataset", "no-such-data"), "unknown dataset 'no-such-data'"),
        (("--index", "no-such-folder"), "expected a folder of wheels"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_installed(
    run: Run, write: Write, wheels: Path, tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    given = [] if "--package" in options else ["--optimizer", "acme"]
    given += [] if "--index" in options else ["--index", str(wheels)]
    ran = run("bisect", write("relu.onnx", CLEAN), *given, *options)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert not (tmp_path / "data").exists()


@pytest.mark.long
def test_an_end_that_is_not_as_the_user_says_is_an_error(
    run: Run, write: Write, wheels: Path
) -> None:
    command = ("--check", "true {model}", "--index", wheels, "--optimizer", "acme")
    ran = run("bisect", write("relu.onnx", CLEAN), *command, "--good", "1.0", "--bad", "2.0")
    assert ran.code == 2
    assert "--bad 2.0: it is good (" in ran.err


@pytest.mark.long
def test_releases_that_cannot_be_used_are_skipped_and_all_of_them_are_no_answer(
    run: Run, write: Write, wheels: Path
) -> None:
    for version in ALL:
        write_wheel(wheels, version, "raise ImportError('needs a library of old')")
    command = ("--check", "true {model}", "--index", wheels, "--optimizer", "acme")
    ran = run("bisect", write("relu.onnx", CLEAN), *command)
    assert ran.code == 5
    head, *reasons = ran.err.splitlines()
    assert head == "error: no release of 4 could be tried:"
    assert [line.split(":")[0] for line in reasons] == [f"  {version}" for version in ALL]
    assert all("needs a library of old" in line for line in reasons)
