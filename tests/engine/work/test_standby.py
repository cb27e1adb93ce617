from __future__ import annotations

import os
import subprocess
import sys

import pytest

from optvet.engine.work.sandbox.standby import MARK, MARK_CHARS

FORKED = """
import os, sys, time
from pathlib import Path
from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.sandbox.standby import MARK, fork_standby
from optvet.testing.faults import echo

secret, _ = os.pipe()
fork_standby(["onnxruntime"], [secret])
with Sandbox(jobs=1, preload=sys.argv[1:]) as sandbox:
    assert sandbox.call(echo, "works").value == "works"
    server = sandbox._servers.shared._process
    told = Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\\0")
    mark = next(v for v in told if v.startswith(MARK.encode()))
    assert mark.decode().startswith(f"{MARK}={sandbox._servers.shared._mark}")
    assert os.getsid(server.pid) != os.getsid(0)
    files = [os.path.realpath(f) for f in Path(f"/proc/{server.pid}/fd").iterdir()]
    assert os.path.realpath(f"/proc/self/fd/{secret}") not in files
    print(type(server).__name__)
assert server.poll() is not None
"""


@pytest.mark.parametrize(
    ("preload", "process"),
    [(["onnx", "onnxruntime"], "ForkedServer"), (["onnx"], "Popen")],
    ids=["asks for its libraries", "asks for fewer"],
)
def test_a_waiting_server_serves_who_would_import_its_libraries(
    preload: list[str], process: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, *preload],
        env=os.environ | {MARK: "-" * MARK_CHARS},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, f"{process}\n"), done.stderr
