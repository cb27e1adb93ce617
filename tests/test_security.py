"""What docs/security.md promises has tests; those of the container of ``optvet-container``."""

import ast
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
import onnx.parser
import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "container" / "optvet-container"
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x) => (float[2,3] y) { z = Relu(x)  y = Identity(z) }
"""


def can_contain() -> bool:
    if not (shutil.which("bwrap") and shutil.which("prlimit")):
        return False
    command = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


contained = pytest.mark.skipif(
    not can_contain(), reason="needs bubblewrap, prlimit and user namespaces"
)


def is_for_others(path: Path) -> bool:
    """Whether other users may enter all folders of a path."""
    return all(p.stat().st_mode & 0o001 for p in path.parents)


SYSTEM = Path("/usr/bin/python3")
NOBODY = 65534
STARTED_BY = [
    None,
    pytest.param(
        NOBODY,
        marks=pytest.mark.skipif(
            os.getuid() != 0 or not SYSTEM.exists() or not is_for_others(SCRIPT),
            reason="needs root, which becomes another user, and the system's own Python",
        ),
    ),
]
"""Users that start the container: this one, and from root another one."""


def recipe(
    folder: Path, *command: str, user: int | None = None, **given: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in the container, started by ``user``."""
    environment = os.environ | {"OPTVET_ENGINE": "bwrap"} | given
    if user is not None:
        folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
        os.chown(folder, user, user)
        (folder / "bin").mkdir()
        (folder / "bin" / "python").symlink_to(SYSTEM)
        environment |= {"PATH": f"{folder / 'bin'}:/usr/bin:/bin:/usr/sbin", "HOME": "/nonexistent"}
        environment.pop("TMPDIR", None)
    return subprocess.run(
        [SCRIPT, *command],
        cwd=folder,
        user=user,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def promises() -> dict[str, list[tuple[str, str]]]:
    """Rows of the table of promises: files and names of the tests of each."""
    page = (ROOT / "docs" / "security.md").read_text()
    table = page.partition("## Promises and their tests")[2]
    rows = re.findall(r"^\| (.+?) \| (`.+) \|$", table, re.MULTILINE)
    return {row: re.findall(r"`([\w/]+\.py)::(\w+)`", tests) for row, tests in rows}


def test_each_promise_names_tests_that_exist() -> None:
    named = promises()
    assert len(named) > 30
    for promise, tests in named.items():
        assert tests, promise
        for file, test in tests:
            tree = ast.parse((ROOT / "tests" / file).read_text())
            functions = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
            assert test in functions, f"{promise}: {file}::{test}"


@pytest.mark.long
def test_each_test_of_a_promise_is_collected() -> None:
    asked = {f"tests/{file}::{test}" for tests in promises().values() for file, test in tests}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-m", ""]
    done = subprocess.run(
        [*command, *sorted(asked)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
    found = {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
    assert asked <= found


@contained
def test_a_model_is_vetted_in_the_container(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    page = (ROOT / "docs" / "security.md").read_text()
    (shown,) = re.findall(r"^optvet-container (vet .*)", page, re.MULTILINE)
    done = recipe(tmp_path, *shlex.split(shown))
    assert done.returncode == 0, done.stderr
    answer = json.loads((tmp_path / "out" / "answer.json").read_text())
    assert answer["verdict"] == "clean"


@contained
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("touch here", "Read-only file system"),
        ("touch /usr/here", "Read-only file system"),
        (
            "python -c \"import socket; socket.create_connection(('192.0.2.1', 53), 2)\"",
            "Network is unreachable",
        ),
        ('python -c "bytearray(17 << 30)"', "MemoryError"),
        ("python -c \"import os; os.environ['SECRET']\"", "KeyError"),
        ("mount -o remount,rw /", "superuser|ermission denied|not permitted"),
        ("mount -o remount,rw,bind .", "superuser|ermission denied|not permitted"),
        ("unshare --user --map-root-user true", "No space left|not permitted|Invalid"),
        ("chown 0 out", "not permitted|Invalid argument"),
        ("chroot / true", "not permitted"),
    ],
)
@pytest.mark.parametrize("user", STARTED_BY)
def test_the_container_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: str, user: int | None
) -> None:
    monkeypatch.setenv("SECRET", "told to nobody")
    done = recipe(tmp_path, "--run", *shlex.split(command), user=user)
    assert done.returncode != 0
    assert re.search(words, done.stderr), done.stderr


@contained
@pytest.mark.parametrize("user", STARTED_BY)
def test_nothing_in_the_container_has_rights(tmp_path: Path, user: int | None) -> None:
    done = recipe(tmp_path, "--run", "cat", "/proc/self/status", user=user)
    assert done.returncode == 0, done.stderr
    told = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(told[kind], 16) == 0, kind
    assert told["NoNewPrivs"] == "1"
    assert "0" not in told["Uid"].split()


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_an_engine_gets_every_limit_and_the_arguments(tmp_path: Path, engine: str) -> None:
    fake = tmp_path / "bin" / engine
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    work = tmp_path / "a b"
    work.mkdir()
    done = subprocess.run(
        [SCRIPT, "vet", "my model.onnx"],
        cwd=work,
        env={"PATH": f"{fake.parent}:{os.environ['PATH']}", "OPTVET_ENGINE": engine},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    told = done.stdout.splitlines()
    assert told[0] == "run"
    assert told[-3:] == ["optvet", "vet", "my model.onnx"]
    options = dict(itertools.pairwise(told))
    assert {"--read-only", "--rm"} <= set(told)
    assert options["--network"] == "none"
    assert options["--cap-drop"] == "ALL"
    assert options["--security-opt"] == "no-new-privileges"
    assert options["--memory"] == options["--memory-swap"] == str(16 << 30)
    assert not options["--user"].startswith("0:")
    mounts = [v for o, v in itertools.pairwise(told) if o == "--volume"]
    assert mounts == [f"{work}:/work:ro", f"{work}/out:/work/out"]
    assert (work / "out").is_dir()


STRANGE = ["../out", "/etc", "a/../../b", ".", "-v", "a:/etc", "a,b", "a\nb", "a//b", "$(id)"]


@pytest.mark.parametrize("out", STRANGE)
def test_only_a_folder_below_the_current_one_is_writable(tmp_path: Path, out: str) -> None:
    command = [str(SCRIPT), "vet"]
    given = {"PATH": os.environ["PATH"], "OPTVET_OUT": out, "OPTVET_ENGINE": "docker"}
    done = subprocess.run(
        command, cwd=tmp_path, env=given, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "name a folder below the current one" in done.stderr


@pytest.mark.parametrize("engine", ["bwrap", "docker"])
def test_no_link_is_made_writable_or_given_away(tmp_path: Path, engine: str) -> None:
    mine, work = tmp_path / "mine", tmp_path / "work"
    mine.mkdir()
    work.mkdir()
    (work / "out").symlink_to(mine)
    for out in ("out", "out/deeper"):
        done = recipe(work, "vet", OPTVET_ENGINE=engine, OPTVET_OUT=out)
        assert done.returncode == 2
        assert "is a link, or lies behind one" in done.stderr
    assert mine.stat().st_uid == os.getuid()


@pytest.mark.parametrize("given", [{"OPTVET_MEMORY": "1 --privileged"}, {"OPTVET_IMAGE": "-v/:/x"}])
def test_settings_become_no_options_of_an_engine(tmp_path: Path, given: dict[str, str]) -> None:
    done = recipe(tmp_path, "vet", user=None, **{"OPTVET_ENGINE": "docker", **given})
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert next(iter(given)) in done.stderr
