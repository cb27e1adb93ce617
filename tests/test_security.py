"""The container of ``optvet-container`` keeps what docs/security.md promises."""

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
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


def recipe(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the container."""
    return subprocess.run(
        [SCRIPT, *command],
        cwd=folder,
        env=os.environ | {"OPTVET_ENGINE": "bwrap"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


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
    ],
)
def test_the_container_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: str
) -> None:
    monkeypatch.setenv("SECRET", "told to nobody")
    done = recipe(tmp_path, "--run", *shlex.split(command))
    assert done.returncode != 0
    assert words in done.stderr


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


@pytest.mark.parametrize("out", ["../out", "/etc", "a/../../b", "."])
def test_only_a_folder_below_the_current_one_is_writable(tmp_path: Path, out: str) -> None:
    command = [str(SCRIPT), "vet"]
    given = {"PATH": os.environ["PATH"], "OPTVET_OUT": out, "OPTVET_ENGINE": "docker"}
    done = subprocess.run(
        command, cwd=tmp_path, env=given, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "name a folder below the current one" in done.stderr
