"""What others do to the processes of a vet is never held against the optimizer."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.engine.work.faults import nothing
from tests.preload import TRIALS

from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.spec.errors import InfrastructureError
from optvet.spec.records import VetResult
from optvet.spec.request import VetRequest
from optvet.testing.optimizers import Planted

NET = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[4,8] x) => (float[4,8] y)
{
    h = Relu(x)
    y = Add(h, x)
}
"""


def vet(folder: Path, sandbox: Sandbox, **settings: Any) -> VetResult:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    plugins = Plugins()
    if "planted" not in plugins.names("optimizer"):
        plugins.register("optimizer", Planted(default=("identity", "drop_relu", "heal")))
    chosen: dict[str, Any] = {"optimizer": "planted", "limit": 2, "cache": False} | settings
    model = open_model(path, str(path), folder / "cache")
    return vet_model(model, VetRequest(model="model", **chosen), plugins, sandbox=sandbox)


def workers(sandbox: Sandbox) -> list[int]:
    assert sandbox._servers is not None
    server = sandbox._servers.shared._process.pid
    try:
        return list(map(int, Path(f"/proc/{server}/task/{server}/children").read_text().split()))
    except OSError:
        return []


def server(sandbox: Sandbox) -> list[int]:
    assert sandbox._servers is not None
    return [sandbox._servers.shared._process.pid]


def disturbed(
    sandbox: Sandbox, folder: Path, whom: Callable[[Sandbox], list[int]], times: int
) -> VetResult:
    """A vet during which processes are killed, so many times."""
    sandbox.call(nothing)
    ended = threading.Event()

    def kill() -> None:
        for _ in range(times):
            if ended.wait(0.05):
                return
            for pid in whom(sandbox):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.25)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        return vet(folder, sandbox)
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize(("whom", "times"), [(workers, 3), (server, 1)])
def test_a_vet_whose_processes_are_killed_answers_as_an_undisturbed_one(
    tmp_path: Path, whom: Callable[[Sandbox], list[int]], times: int
) -> None:
    with Sandbox(jobs=2, limits=Limits(60, 1 << 30), preload=TRIALS) as sandbox:
        calm = vet(tmp_path, sandbox)
        result = disturbed(sandbox, tmp_path, whom, times)
    assert (result.verdict, result.reason) == (calm.verdict, calm.reason)
    assert [(f.symptom, f.culprit) for f in result.findings] == [
        (f.symptom, f.culprit) for f in calm.findings
    ]
    assert result.skipped == calm.skipped


def test_where_everything_is_killed_no_fault_is_claimed(tmp_path: Path) -> None:
    with Sandbox(jobs=2, limits=Limits(60, 1 << 30), preload=TRIALS) as sandbox:
        faults: list[str] = []
        # Without the original's answers nothing can be judged, and that is said.
        with contextlib.suppress(InfrastructureError):
            result = disturbed(sandbox, tmp_path, workers, 200)
            faults = [f.message for f in result.findings if f.severity == "fault"]
    assert not faults
