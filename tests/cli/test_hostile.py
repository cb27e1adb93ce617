"""Foreign names, Ctrl-C at any time, and cache folders that are none."""

import errno
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper
from tests.cli.test_every_command import every_command

import optvet
from optvet.cli.app import load_command
from optvet.cli.errors import report
from optvet.cli.terminal import Terminal

Run = Callable[..., Any]
EVIL = "\x1b[2J\x9b31m\u202e\x07\U000e0001é"
HEAD = '<ir_version: 8, opset_import: ["" : 18]>'
# The axes of Pad are not in order, which fuse_pad_into_conv takes them to be.
WRONG = f"""{HEAD} g (float[1,1,4,4] x) => (float[1,1,6,6] z)
<float[1,1,1,1] w = {{1.5}}, int64[8] pads = {{0, 0, 0, 2, 0, 0, 2, 0}}, float zero = {{0}},
 int64[4] axes = {{0, 1, 3, 2}}> {{
q = Pad <mode = "constant"> (x, pads, zero, axes)  z = Conv(q, w) }}"""


def hostile(text: str) -> str:
    """The characters of ``text`` that a terminal or an editor obeys."""
    return "".join(c for c in text if not c.isprintable() and c not in "\n\t")


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A model with a fault, all of whose names a terminal would obey."""
    model = onnx.parser.parse_model(WRONG)
    graph = model.graph
    for node in graph.node:
        node.name, node.doc_string = node.op_type + EVIL, EVIL
        for names in (node.input, node.output):
            names[:] = [n + EVIL for n in names]
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name += EVIL
    graph.name = graph.doc_string = model.producer_name = model.domain = EVIL
    helper.set_model_props(model, {EVIL: EVIL})
    path = tmp_path / "models" / "evil.onnx"
    path.parent.mkdir()
    onnx.save(model, path)
    return path


@pytest.mark.long
def test_no_name_in_a_model_reaches_screen_json_or_bundle_as_it_is(
    run: Run, evil: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    ran = run("vet", evil, "--reduce", "--out", out)
    assert ran.code == 1, ran.err
    assert hostile(ran.out + ran.err) == ""
    (bundle,) = out.iterdir()
    names = {"model.txt", "optimized.txt", "ISSUE.md", "repro.py", "finding.json", "before.svg"}
    assert names <= {f.name for f in bundle.iterdir()}
    for file in bundle.iterdir():
        if file.suffix in (".txt", ".md", ".py", ".json", ".svg"):
            assert hostile(file.read_text("utf-8")) == "", file.name
    ran = run("replay", bundle)
    assert (ran.code, hostile(ran.out + ran.err)) == (1, "")
    script = subprocess.run([sys.executable, bundle / "repro.py"], capture_output=True, check=False)
    assert script.returncode == 1, script.stderr


def test_json_escapes_what_a_terminal_obeys_and_means_the_same(run: Run, evil: Path) -> None:
    ran = run("vet", evil, "--json", "-")
    assert hostile(ran.out) == ""
    assert json.loads(ran.out)["outputs"][0]["name"] == f"z{EVIL}"


def test_errors_about_long_names_are_short(run: Run, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(f"{HEAD} g (float[2] x) => (float[2] y) {{ y = Relu(x) }}")
    model.graph.node[0].op_type = EVIL + "a" * 100_000
    onnx.save(model, tmp_path / "long.onnx")
    ran = run("vet", tmp_path / "long.onnx")
    assert (ran.code, hostile(ran.err)) == (2, "")
    assert len(ran.err) < 2500


# Requests in files


def test_a_request_in_a_file_names_no_code_and_does_not_vouch_for_itself(
    run: Run, clean: Path, tmp_path: Path
) -> None:
    config = tmp_path / "optvet.toml"
    table = '[optimizer_options.config]\n"session.model_external_initializers_file" = "x"\n'
    for text, words in (
        ("trust = true\n", "give --trust"),
        (table, "key 'optimizer_options.config'"),
        ("a = " + "[" * 100_000, "nested too deeply"),
    ):
        config.write_text(text)
        ran = run("vet", clean, "--optimizer", "onnxruntime", "--config", config)
        assert (ran.code, words in " ".join(ran.err.split())) == (2, True), ran.err
    config.write_text('[optimizer_options.config]\n"session.disable_quant_qdq" = "1"\n')
    ran = run("vet", clean, "--optimizer", "onnxruntime", "--config", config, "--limit", 1)
    assert ran.code == 0, ran.err


# Ctrl-C


def test_ctrl_c_while_folders_are_set_up_leaves_no_traceback() -> None:
    code = """
import optvet.cli, optvet_start

def interrupt():
    raise KeyboardInterrupt

optvet.cli.main = interrupt
raise SystemExit(optvet_start.main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"interrupted\n")


@pytest.mark.parametrize("delay_s", [0.05, 0.1, 0.2, 0.35, 0.6, 1.0])
def test_ctrl_c_while_it_starts_leaves_no_traceback(delay_s: float) -> None:
    # From when our first line runs: before that, Python itself starts, and imports what it needs
    # to heed signals, which takes a tenth of a second on a busy machine.
    code = "import os, sys, optvet_start; os.write(1, b'x'); sys.exit(optvet_start.main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "plugins"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    process.stdout.read(1)
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    _, complained = process.communicate(timeout=60)
    assert b"Traceback" not in complained, complained.decode()
    # Where the command had ended before the signal came, it had ended well.
    assert process.returncode in (0, 130)
    if process.returncode == 130:
        assert complained.startswith(b"interrupted")


# Cache folders


def test_folders_of_the_cache_are_the_user_s_alone(run: Run, clean: Path, tmp_path: Path) -> None:
    root = tmp_path / "a" / "cache"
    before = os.umask(0o022)
    try:
        onnx.save_model(
            onnx.load(clean), tmp_path / "ext.onnx", save_as_external_data=True, size_threshold=0
        )
        assert run("vet", tmp_path / "ext.onnx", "--cache-dir", root).code == 0
        assert run("vet", "zoo:digits-cnn", "--limit", 1, "--cache-dir", root).code == 0
    finally:
        os.umask(before)
    for folder in (root, root / "blobs", root / "models"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_a_cache_path_that_is_a_file_is_said_once_and_the_work_goes_on(
    run: Run, clean: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    ran = run("vet", clean, "--cache-dir", file, "--json", "-")
    assert (ran.code, ran.out.count("is no longer written"), ran.err) == (0, 1, "")
    assert run("cache", "info", "--cache-dir", file).code in (0, 2)
    assert file.read_text() == "kept"


def test_a_model_that_must_be_kept_says_that_the_cache_is_no_folder(
    run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    ran = run("vet", "zoo:digits-cnn", "--cache-dir", file)
    assert ran.code == 3
    assert "cannot be made" in ran.err
    assert "--cache-dir" in ran.err
    assert "bug in optvet" not in ran.err


@pytest.mark.parametrize("columns", ["0", "1"])
def test_a_terminal_without_columns_loses_no_answer(
    run: Run, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    ran = run("known", "list", "--package", "onnxslim")
    assert ran.code == 0
    assert "onnxslim-dropout-mask" in "".join(line[:20].strip() for line in ran.out.splitlines())


def test_a_path_that_is_no_file_is_an_error_of_the_command(run: Run, clean: Path) -> None:
    for target in (clean.parent, clean / "page.md"):
        ran = run("known", "page", "--out", target)
        assert ran.code == 2
        assert str(target) in ran.err


@pytest.mark.parametrize("name", sorted(every_command()))
def test_no_option_takes_an_empty_text(
    run: Run, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = load_command(name.split()[0])
    for word in name.split()[1:]:
        command = command.commands[word]
    taking = [p.opts[0] for p in command.params if p.opts[0] != p.name and not p.is_flag]
    for option in taking:
        for words in ((option, ""), (f"{option}=",)):
            ran = run(*name.split(), *words)
            assert ran.code == 2
            assert f"{option} is empty; give a value, or leave it out" in ran.err
    ran = run(*name.split(), "")
    assert ran.code == 2
    assert f"an argument of optvet {name} is empty" in " ".join(ran.err.split())


def test_no_key_of_a_file_takes_an_empty_text(
    run: Run, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clean.parent)
    vet = ("vet", "clean.onnx")
    for key in ("optimizer", "runtime", "comparator", "dataset", "out", "cache_dir"):
        Path("c.toml").write_text(f"{key} = ''")
        assert f"c.toml: --{key.replace('_', '-')} is empty" in run(*vet, "--config", "c.toml").err
    Path("pyproject.toml").write_text("[tool.optvet]\ndataset = ['random', '']")
    ran = run(*vet)
    assert ran.code == 2
    assert "--dataset is empty" in " ".join(ran.err.split())
    # An option of a plugin may be empty: what it means is the plugin's.
    Path("pyproject.toml").write_text("[tool.optvet]\noptimizer_options = { nope = '' }")
    assert "unknown option" in run(*vet).err


@pytest.mark.parametrize("key", ["optimizer", "runtime", "comparator", "dataset", "pipeline"])
def test_no_keyword_takes_an_empty_text(clean: Path, key: str) -> None:
    empty: Any = {key: ""}
    with pytest.raises(optvet.UsageError, match=f"--{key} is empty; give a value"):
        optvet.vet(str(clean), **empty)


def test_a_file_may_begin_with_the_mark_of_its_encoding(
    run: Run, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clean.parent)
    Path("c.toml").write_text(f'models = ["{clean.name}"]', "utf-8-sig")
    assert run("campaign", "run", "c.toml", "--dry-run").code == 0


def test_a_folder_that_was_removed_is_told(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    ran = run("vet", "m.onnx")
    assert ran.code == 2
    assert "the current folder was removed; change to another one" in ran.err


def test_numbers_of_samples_have_no_largest(run: Run, clean: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((2, 3), np.float32))
    data = ["--dataset", f"files:{tmp_path / 'x.npz'}", "--no-cache"]
    assert run("vet", clean, *data, "--limit", 10**30).code == 0
    assert run("vet", clean, *data, "--start", 10**30).code in (2, 5)


def test_a_name_that_no_document_can_hold_is_refused(
    run: Run, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clean.parent)
    name = os.fsdecode(b"\xff.onnx")
    clean.rename(name)
    Path("c.toml").write_text('models = ["*.onnx"]')
    for words in (["vet", name], ["vet", "."], ["campaign", "run", "c.toml", "--dry-run"]):
        ran = run(*words)
        assert ran.code == 2
        assert "udcff.onnx': the name of the file is not in UTF-8; rename it" in ran.err


NAMES = [b"\xff", b"\x1b[2J", b"\n::error::x", "\u202e".encode(), b"<b>&\"'", b"-x", b" "]
"""Of files and folders of data: not in UTF-8, and what screens and reports obey."""


@pytest.mark.parametrize("content", ["samples", "nothing"])
@pytest.mark.parametrize("ending", [".npz", ".npy", ".pb", ".csv", "/test_data_set_0/input_0.pb"])
def test_no_name_of_data_breaks_an_answer(
    run: Run, clean: Path, monkeypatch: pytest.MonkeyPatch, ending: str, content: str
) -> None:
    monkeypatch.chdir(clean.parent)
    x = np.ones((2, 3), np.float32)
    for number, name in enumerate(NAMES):
        file = Path(f"{number}", os.fsdecode(name) + ending)
        file.parent.mkdir(parents=True)
        whole: dict[str, Callable[[Any], object]] = {
            ".npz": lambda to: np.savez(to, x=x),
            ".npy": lambda to: np.save(to, x),
            ".pb": lambda to: to.write(numpy_helper.from_array(x, "x").SerializeToString()),
            ".csv": lambda to: to.write(b"1,2,3\n"),
        }
        with file.open("wb") as opened:
            if content == "samples":
                whole[file.suffix](opened)
        answer = Path(f"{number}.json")
        data = ["--dataset", f"files:{number}"]
        ran = run("vet", clean, clean, *data, "--json", answer, "--no-cache")
        assert ran.code in (0, 2), ran.err
        assert hostile(ran.out + ran.err) == ""
        assert not re.search("^::", ran.out + ran.err, re.MULTILINE)
        assert "bug in optvet" not in " ".join(ran.err.split())
        if answer.exists():
            assert hostile(answer.read_text()) == ""
            json.loads(answer.read_text())


def test_a_folder_that_no_store_can_hold_is_refused(
    run: Run, clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "\udcff"
    folder.mkdir()
    clean.rename(folder / "clean.onnx")
    monkeypatch.chdir(folder)
    Path("c.toml").write_text('models = ["clean.onnx"]')
    ran = run("campaign", "run", "c.toml")
    assert ran.code == 2
    assert "is not in UTF-8" in ran.err
    assert "rename the file or the folder" in " ".join(ran.err.split())


def test_an_option_that_no_document_can_hold_is_refused(run: Run, clean: Path) -> None:
    for words in (("--dataset", "files:\udcff"), ("--out", "\udcff"), ("--option", "a=\udcff")):
        ran = run("vet", clean, *words)
        assert ran.code == 2
        assert "udcff': it is not in UTF-8; rename what it names" in " ".join(ran.err.split())


def test_a_model_may_be_named_by_a_descriptor(run: Run, clean: Path) -> None:
    with clean.open("rb") as file:
        ran = run("vet", f"/proc/self/fd/{file.fileno()}", "--limit", 1)
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/d"), "make room"),
        (OSError(errno.EMFILE, "Too many open files", "/d"), "ulimit -n"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "other processes"),
        (MemoryError(), "no memory is left; end other processes"),
        (PermissionError(errno.EACCES, "Permission denied", "/d"), "check that path"),
    ],
    ids=repr,
)
def test_what_the_machine_lacks_is_told_with_what_to_do(
    error: Exception, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(error, Terminal()) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert advice in line
    assert "bug in optvet" not in line


def test_what_ends_too_early_is_an_error_and_no_finding(
    run: Run, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*given: Any) -> None:
        raise EOFError("marshal data too short")

    monkeypatch.setattr("optvet.engine.models.sources.resolve_model", end)
    ran = run("models", "show", clean)
    assert ran.code == 3
    assert "ended too early: marshal data too short" in " ".join(ran.err.split())


@pytest.mark.parametrize("words", ["--help", "vet --help", "known list"])
def test_who_reads_a_part_of_an_answer_is_told_of_no_findings(words: str) -> None:
    line = f"{sys.executable} -m optvet_start {words}"
    # The reader has gone before anything is written.
    shell = f'{{ sleep 0.1; {line}; echo "$?" >&2; }} | true'
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=120)
    assert done.stderr.strip() == "0"
