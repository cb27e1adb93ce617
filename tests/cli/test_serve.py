"""Commands that the resident process of ``optvet serve`` runs, as if it was not there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from tests.assault.harness import Place
from tests.commands import CLEAN, FAULTY

from optvet.cli.resident import is_confined

SERVED = (
    "import sys; sys.argv[0] = 'optvet'; from optvet_start import main; code = main(); "
    "sys.exit(code if 'optvet' not in sys.modules else 70)"
)
"""Runs a command; exit code 70 if it was not the resident process that ran it."""
PATIENCE_S = 120.0
pytestmark = pytest.mark.skipif(
    is_confined(os.getpid()),
    reason="processes here cannot gain privileges (no_new_privs): optvet serve does not start",
)


class Service:
    """A resident process, with what commands need to find it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "packages").mkdir()
        self.variables = {
            **{n: v for n, v in os.environ.items() if n != "PYTEST_CURRENT_TEST"},
            "XDG_RUNTIME_DIR": str(folder),
            "OPTVET_CACHE": str(folder / "cache"),
            "PYTHONPATH": os.pathsep.join([str(folder / "packages"), *filter(None, sys.path)]),
        }
        self.process = self.serve()
        self.await_line("ready")

    def serve(self, *words: str) -> subprocess.Popen[str]:
        """Start ``optvet serve``."""
        return self._start(
            "import sys; from optvet_start import main; sys.exit(main())", "serve", *words
        )

    def refused(self) -> str:
        """What another service says, which does not begin."""
        with self.serve() as process:
            _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 2
        return err

    def start(self, *words: object, **variables: str) -> subprocess.Popen[str]:
        """Start a command."""
        return self._start(SERVED, *map(str, words), **variables)

    def settle(self) -> None:
        """Wait until it has imported what the last command did: it answers again."""
        _until(lambda: self.run("--version")[0] == 0)

    def run(self, *words: object, **variables: str) -> tuple[int, str, str]:
        """Run a command; exit code, stdout, stderr."""
        process = self.start(*words, **variables)
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err

    def await_line(self, beginning: str) -> str:
        """The next line of the service that begins so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(beginning):
                return line
        raise AssertionError(f"the service has ended: {self.process.wait()}")

    def _start(self, code: str, *words: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code, *words],
            env=self.variables | variables,
            cwd=self.folder,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def commands(self) -> list[int]:
        """The processes of the commands that run."""
        (resident,) = _children(self.process.pid)
        return _children(resident)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        shutil.rmtree(self.folder)


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    """One service for tests that do not end it; the name of its socket must be short."""
    service = Service(Path(tempfile.mkdtemp(prefix="optvet-", dir="/tmp")))
    yield service
    service.close()


@pytest.fixture
def shared(running: Service) -> Service:
    """That service, ready for a command."""
    running.settle()
    return running


@pytest.fixture
def own() -> Iterator[Service]:
    """A service of the test's own."""
    service = Service(Path(tempfile.mkdtemp(prefix="optvet-", dir="/tmp")))
    yield service
    service.close()


def _children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def _until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _save(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    onnx.save(onnx.parser.parse_model(text), path)
    return path


@pytest.mark.parametrize(("text", "code"), [(CLEAN, 0), (FAULTY, 1)], ids=["clean", "faulty"])
def test_a_served_vet_says_what_it_would_say_by_itself(
    shared: Service, text: str, code: int
) -> None:
    model = _save(shared.folder, "m.onnx", text)
    words = ["vet", model.name, "--cache-dir"]
    served = shared.run(*words, shared.folder / f"served-{code}")
    alone = subprocess.run(
        [sys.executable, "-m", "optvet_start", *words, str(shared.folder / f"alone-{code}")],
        env=shared.variables | {"XDG_RUNTIME_DIR": "", "TMPDIR": str(shared.folder / "packages")},
        cwd=shared.folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert served[0] == alone.returncode == code
    assert served[1].replace("served-", "alone-") == alone.stdout


def test_a_served_command_has_its_own_folder_variables_and_words(shared: Service) -> None:
    folder = shared.folder / "below"
    folder.mkdir()
    code, out, err = shared.run("vet", "below/no.onnx", NO_COLOR="1", TERM="dumb")
    assert (code, out) == (2, "")
    assert "below/no.onnx" in err
    shared.settle()
    assert shared.run("nonsense")[0] == 2
    shared.settle()
    code, out, _ = shared.run("--version")
    assert code == 0
    assert out.startswith("optvet ")


def test_a_command_without_a_stream_runs_by_itself(shared: Service) -> None:
    """Its sockets would get the number of the stream."""
    with shared._start(f"import os; os.close(1); {SERVED}", "--version") as process:
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 70


def test_a_command_with_other_variables_runs_by_itself(shared: Service) -> None:
    assert shared.run("--version", OMP_NUM_THREADS="7")[0] == 70
    assert "another OMP_NUM_THREADS" in shared.await_line("a command ran by itself")
    shared.settle()


def test_a_confined_worker_cannot_have_commands_run(shared: Service) -> None:
    """They would not be confined; ``no_new_privs`` is what Landlock requires of a process."""
    confine = "import ctypes; ctypes.CDLL(None).prctl(38, 1, 0, 0, 0); "
    with shared._start(confine + SERVED, "--version") as process:
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 70
    shared.await_line("a confined process asked for a command")


def test_a_service_does_not_start_where_all_is_confined(shared: Service) -> None:
    confine = "import ctypes; ctypes.CDLL(None).prctl(38, 1, 0, 0, 0); "
    with shared._start(confine + SERVED, "serve") as process:
        _, err = process.communicate(timeout=PATIENCE_S)
    assert "no_new_privs" in err


def test_ctrl_c_ends_a_served_command_as_any(shared: Service) -> None:
    process = shared.start("vet", "zoo:resnet50", "--strategy", "each")
    _until(lambda: any(_children(pid) for pid in shared.commands()))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "interrupted" in err
    _until(lambda: not shared.commands())


def test_a_killed_command_ends_in_the_service_too(shared: Service) -> None:
    process = shared.start("vet", "zoo:resnet50", "--strategy", "each")
    _until(lambda: any(_children(pid) for pid in shared.commands()))
    (command,) = shared.commands()
    workers = _children(command)
    process.kill()
    process.communicate()
    _until(lambda: not shared.commands())
    _until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    shared.settle()


def test_a_killed_service_ends_its_commands_with_a_message(own: Service) -> None:
    process = own.start("vet", "zoo:resnet50", "--strategy", "each")
    _until(lambda: any(_children(pid) for pid in own.commands()))
    (command,), (resident,) = own.commands(), _children(own.process.pid)
    os.kill(resident, signal.SIGKILL)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3
    assert "optvet serve has ended" in err
    _until(lambda: not Path(f"/proc/{command}").exists())
    assert own.process.wait(PATIENCE_S) == 3
    assert own.run("--version")[0] == 70  # by itself


def test_a_service_that_is_ended_ends_its_commands_in_order(own: Service) -> None:
    process = own.start("vet", "zoo:resnet50", "--strategy", "each")
    _until(lambda: any(_children(pid) for pid in own.commands()))
    process.send_signal(signal.SIGTSTP)
    own.process.terminate()
    assert own.process.wait(PATIENCE_S) == 0
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM)


def test_an_installed_package_makes_the_service_start_again(own: Service) -> None:
    own.settle()
    (own.folder / "packages" / "new.py").touch()
    assert own.run("--version")[0] == 70
    own.await_line("installed code has changed")
    own.await_line("ready")
    own.settle()


def test_a_service_ends_by_ctrl_c_and_when_nobody_needs_it(own: Service) -> None:
    assert "serves at" in own.refused()
    own.process.send_signal(signal.SIGINT)
    assert own.process.wait(PATIENCE_S) == 0
    assert not list((own.folder / f"optvet-serve-{os.getuid()}").glob("*[0-9a-f]"))
    with own.serve("--idle", "0.5") as idle:
        assert idle.wait(PATIENCE_S) == 0


def test_a_folder_that_others_can_open_is_not_used(own: Service) -> None:
    (own.folder / f"optvet-serve-{os.getuid()}").chmod(0o755)
    assert own.run("--version")[0] == 70
    assert "others can open it" in own.refused()


def test_a_pass_that_kills_the_server_leaves_nothing_behind(tmp_path: Path) -> None:
    place = Place(tmp_path)
    runtime = Path(tempfile.mkdtemp(prefix="optvet-", dir="/tmp"))
    variables = place.environment | {"XDG_RUNTIME_DIR": str(runtime)}
    settings: dict[str, Any] = {"env": variables, "cwd": place.work, "text": True}
    line = [sys.executable, "-m", "optvet_start"]
    with subprocess.Popen([*line, "serve"], stdout=subprocess.PIPE, **settings) as service:
        assert service.stdout is not None
        assert service.stdout.readline().startswith("ready")
        vet = [*line, "vet", str(place.model), "--optimizer", "evil", "--timeout", "5"]
        done = subprocess.run(
            [*vet, "--pipeline", "kill_the_parent"], capture_output=True, **settings
        )
        service.terminate()
    shutil.rmtree(runtime)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "kill_the_parent" in done.stdout
    assert place.orphans() == {}
