"""The container of docs/security.md keeps what it promises."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import onnx
import onnx.parser
import pytest

PAGE = Path(__file__).parent.parent / "docs" / "security.md"
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x) => (float[2,3] y) { z = Relu(x)  y = Identity(z) }
"""


def can_contain() -> bool:
    if not (shutil.which("bwrap") and shutil.which("prlimit")):
        return False
    command = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(
    not can_contain(), reason="needs bubblewrap, prlimit and user namespaces"
)


def recipe(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run the recipe with another command in its place."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (code,) = (block for block in blocks if "bwrap" in block)
    # The code under test may be found by a variable, which users need not set.
    path = f'--setenv PYTHONPATH "{os.environ.get("PYTHONPATH", "")}" --setenv HOME'
    code = code.replace("--setenv HOME", path)
    assert "optvet vet model.onnx --json out/answer.json" in code
    code = code.replace("optvet vet model.onnx --json out/answer.json", command)
    return subprocess.run(
        ["sh", "-c", code], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_model_is_vetted_in_the_container(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    done = recipe(tmp_path, "optvet vet model.onnx --json out/answer.json")
    assert done.returncode == 0, done.stderr
    answer = json.loads((tmp_path / "out" / "answer.json").read_text())
    assert answer["verdict"] == "clean"


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
    done = recipe(tmp_path, command)
    assert done.returncode != 0
    assert words in done.stderr
