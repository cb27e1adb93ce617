"""What a trial leaves behind in its process accuses no pass; what happens once is no finding."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from pydantic import BaseModel
from tests.answers import detail

from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.spec.records import VetResult
from optvet.spec.request import VetRequest
from optvet.spec.types import Artifact
from optvet.testing import Planted

NET = """<ir_version: 8, opset_import: ["" : 18]>
g (float[2,4] x) => (float[2,4] y) { a = Neg(x)  b = Relu(a)  y = Tanh(b) }"""
PIPELINE = ("keep_01", "drop_relu", "keep_02", "keep_03")
_spoilt: list[bool] = []


@dataclass
class Leaves(Planted):
    """Once ``drop_relu`` ran in a process, every application there drops Relu."""

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        if "drop_relu" in passes:
            _spoilt.append(True)
        return super().apply(source, [*passes, *(["drop_relu"] if _spoilt else [])], options)


@dataclass
class Once(Planted):
    """``drop_relu`` works once, and never again."""

    flag: Path = Path()

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        done = self.flag.exists()
        if "drop_relu" in passes:
            self.flag.touch()
        kept = [n for n in passes if not (done and n == "drop_relu")]
        return super().apply(source, kept, options)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    preload = (
        "numpy",
        "onnx",
        "onnx.checker",
        "onnxruntime",
        "optvet.testing",
        "optvet.engine.work.trials.preload",
        __name__,
    )
    with Sandbox(jobs=1, limits=Limits(60, 1 << 30), preload=preload) as own:
        yield own


def vet(folder: Path, optimizer: Any, sandbox: Sandbox, **settings: Any) -> VetResult:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    model = open_model(path, str(path), folder / "cache")
    request = VetRequest(
        model=str(path), optimizer="planted", limit=2, cache_dir=folder / "cache", **settings
    )
    plugins = Plugins().register("optimizer", optimizer)
    return vet_model(model, request, plugins, sandbox=sandbox)


def test_a_pass_that_spoils_its_process_is_the_only_culprit(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    optimizer = Leaves(default=PIPELINE, offered=PIPELINE)
    result = vet(tmp_path, optimizer, sandbox)
    (finding,) = result.findings
    assert (result.verdict, finding.culprit, finding.confirmed) == ("faulty", ["drop_relu"], True)
    assert detail(result, "empty pipeline") == "shows no fault"
    assert result.safe_pipeline == [n for n in PIPELINE if n != "drop_relu"]


def test_what_no_fresh_process_repeats_is_undecided_and_no_finding(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    optimizer = Once(default=PIPELINE, offered=PIPELINE, flag=tmp_path / "done")
    result = vet(tmp_path, optimizer, sandbox)
    assert result.findings == []
    assert result.verdict == "undecided"
    assert "once and not again in a fresh process" in result.reason
    assert detail(result, "isolation") == "each trial in a process of its own"


def test_passes_tried_each_in_a_spoilt_process_are_no_findings(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    optimizer = Leaves(default=("keep_01",), offered=PIPELINE)
    result = vet(tmp_path, optimizer, sandbox, strategy="each", pairs=False)
    assert [f.culprit for f in result.findings] == [["drop_relu"]]
