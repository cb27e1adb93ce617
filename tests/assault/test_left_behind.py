"""What a run leaves behind that is killed, and that the next one removes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.commands import Spawn, spawn
from tests.spec.test_removal import nest

import optvet.cli
from optvet.spec import scratch

pytestmark = pytest.mark.long


__all__ = ["spawn"]

HOLDS = """
import os, sys, tempfile, time
from optvet.spec.scratch import temporary_files_in_one_folder
with temporary_files_in_one_folder(print):
    open(os.path.join(tempfile.mkdtemp(), "big"), "w").write("x")
    print(os.environ["TMPDIR"], flush=True)
    time.sleep(100 if sys.argv[1:] else 0)
"""
INSTALLS = """
import os, sys
from optvet.engine.environment.child_process import run_below
code = "import os,subprocess,time; p=subprocess.Popen(['sleep','99']); " \\
    "open('pids','w').write(f'{os.getpid()} {p.pid}'); time.sleep(99)"
run_below([sys.executable, "-c", code], os.environ)
"""


def until(condition: Callable[[], object], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(condition())


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


@pytest.fixture
def killed(temporary: Path) -> Path:
    """The folder of a run that was killed."""
    command = [sys.executable, "-c", HOLDS, "stay"]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    with process:
        folder = Path(process.stdout.readline().strip())
        assert list(folder.rglob("big"))
        process.kill()
    return folder


def test_the_next_run_removes_what_a_killed_one_left(temporary: Path, killed: Path) -> None:
    assert killed.is_dir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    subprocess.run([sys.executable, "-c", HOLDS], env=environment, check=True)
    assert list(temporary.iterdir()) == []


def test_a_run_that_lives_keeps_its_folder(temporary: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", HOLDS, "stay"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    with process:
        folder = Path(process.stdout.readline().strip())
        subprocess.run([sys.executable, "-c", HOLDS], env=environment, check=True)
        assert list(folder.rglob("big"))
        process.kill()


def test_a_folder_of_somebody_else_is_not_used(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    ours = temporary / f"optvet-{os.getuid()}"
    ours.symlink_to(tmp_path / "theirs")
    with scratch.temporary_files_in_one_folder(print):
        assert tempfile.gettempdir() == str(temporary)
    ours.unlink()
    ours.mkdir(mode=0o777)
    ours.chmod(0o777)
    with scratch.temporary_files_in_one_folder(print):
        assert tempfile.gettempdir() == str(temporary)
    assert list((tmp_path / "theirs").iterdir()) == list(ours.iterdir()) == []


def test_a_later_process_of_the_same_id_is_another_one() -> None:
    pid, ticks = scratch.mark().split("-")
    assert not scratch.is_left(f"{pid}-{ticks}")
    assert scratch.is_left(f"{pid}-{int(ticks) + 1}")
    assert not scratch.is_left("some-thing")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_command_leaves_nothing(
    how: signal.Signals, spawn: Spawn, temporary: Path, tmp_path: Path
) -> None:
    own = {"TMPDIR": str(temporary), "OPTVET_CACHE": str(tmp_path / "cache")}
    out = tmp_path / "hunt"
    process = spawn(
        "hunt", "--optimizer", "onnxoptimizer", "--jobs", "1", "--out", out, environment=own
    )
    assert until(lambda: list(temporary.rglob("optvet-hunt-*")), 60), process.communicate()
    process.send_signal(how)
    process.communicate(timeout=60)
    left = list(temporary.iterdir())
    assert bool(left) == (how == signal.SIGKILL)
    assert [p.name for p in left] == [f"optvet-{os.getuid()}"][: len(left)]
    assert spawn("cache", "info", environment=own).wait(60) == 0
    assert list(temporary.iterdir()) == []


def is_alive(pid: int) -> bool:
    return scratch.start_time(pid) != ""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_pip_ends_with_the_command_that_started_it(how: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INSTALLS],
        cwd=tmp_path,
        stderr=-3,
        # Whoever runs the tests in the background of a shell has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    pids = tmp_path / "pids"
    assert until(lambda: pids.is_file() and len(pids.read_text().split()) == 2)
    pip, below = map(int, pids.read_text().split())
    process.send_signal(how)
    process.wait(120)
    try:
        assert until(lambda: not is_alive(pip))
        assert until(lambda: not is_alive(below))
    finally:
        if is_alive(below):
            os.kill(below, signal.SIGKILL)


MAKES = """
import sys, time
from pathlib import Path
from optvet.spec.scratch import folder_beside
print(folder_beside(Path(sys.argv[1])), flush=True)
time.sleep(99)
"""


def test_what_is_half_made_beside_a_folder_is_removed(tmp_path: Path) -> None:
    target = tmp_path / "tf"
    command = [sys.executable, "-c", MAKES, str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        (elsewhere := left.with_name(left.name.replace(scratch._place(), "0" * 12))).mkdir()
        (other := tmp_path / ".tf-settings").mkdir()
        living = scratch.folder_beside(target)
        assert left.is_dir()
        process.kill()
    scratch.folder_beside(target)
    assert not left.exists()
    assert living.is_dir()
    assert elsewhere.is_dir()
    assert other.is_dir()


def test_what_a_killed_run_has_nested_deeply_locks_nobody_out(
    temporary: Path, killed: Path
) -> None:
    nest(killed)
    environment = {**os.environ, "TMPDIR": str(temporary)}
    command = [sys.executable, "-m", "optvet_start", "cache", "info"]
    assert subprocess.run(command, env=environment, capture_output=True).returncode == 0
    assert list(temporary.iterdir()) == []


def test_what_cannot_be_removed_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(scratch, "remove_folder", lambda folder: False)
    assert optvet.cli.main(["cache", "info"]) == 0
    assert "note: temporary files are left in" in capsys.readouterr().err.replace("\n", " ")


def test_no_place_for_temporary_files_is_no_finding(tmp_path: Path) -> None:
    code = "import tempfile, optvet_start, sys; tempfile._candidate_tempdir_list = list; "
    code += "sys.argv[1:] = ['cache', 'info']; sys.exit(optvet_start.main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
