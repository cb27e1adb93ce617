"""The time for a whole answer: what is known when it is over is the answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx.parser
import pytest
from pydantic import BaseModel, ValidationError
from tests.engine.work.faults import hang
from tests.preload import TRIALS

import optvet
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.spec.errors import BudgetSpent
from optvet.spec.records import VetResult
from optvet.spec.request import VetRequest
from optvet.spec.types import Artifact
from optvet.testing import Planted

NET = """<ir_version: 8, opset_import: ["" : 18]>
g (float[2,4] x) => (float[2,4] y) { a = Neg(x)  b = Relu(a)  y = Tanh(b) }"""


@dataclass
class Hangs(Planted):
    """``keep_03`` never ends; the others are as planted."""

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        if "keep_03" in passes:
            hang()
        return super().apply(source, passes, options)


def vet(folder: Path, optimizer: Planted, **settings: object) -> tuple[VetResult, list[str]]:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    request = VetRequest.model_validate(
        {"model": str(path), "optimizer": "planted", "limit": 2, "cache_dir": folder, **settings}
    )
    plugins, said = Plugins().register("optimizer", optimizer), list[str]()
    with Sandbox(jobs=1, limits=Limits(3600, 1 << 30), preload=(*TRIALS, __name__)) as sandbox:
        result = vet_model(
            open_model(path, str(path), folder / "cache"),
            request,
            plugins,
            sandbox=sandbox,
            progress=lambda text, done, total: said.append(text),
        )
    return result, said


def test_a_step_that_does_not_end_leaves_the_answer_open(tmp_path: Path) -> None:
    result, said = vet(tmp_path, Hangs(default=("keep_03",)), budget=4, timeout=3600)
    assert (result.verdict, result.findings, result.safe_pipeline) == ("undecided", [], [])
    assert "4 s of --budget were over while" in result.reason
    assert (control := result.control("budget"))
    assert control.state == "limited"
    assert said[-1].startswith("stopped: the 4 s of --budget")


def test_a_confirmed_finding_stays_where_the_budget_ends_later(tmp_path: Path) -> None:
    optimizer = Hangs(default=("drop_relu",), offered=("drop_relu", "keep_03"))
    result, _ = vet(tmp_path, optimizer, budget=25, timeout=3600, strategy="each")
    assert result.verdict == "faulty"
    assert [f.culprit for f in result.findings] == [["drop_relu"]]
    assert result.control("budget")
    assert not result.safe_pipeline


def test_a_fault_whose_excuses_were_not_asked_is_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spent(*about: object) -> None:
        raise BudgetSpent

    monkeypatch.setattr("optvet.engine.vet.find.excuses._excuse", spent)
    result, _ = vet(tmp_path, Hangs(default=("drop_relu",)), budget=600)
    assert result.verdict == "undecided"
    assert result.reason.startswith("drop_relu shows wrong-output, but the 600 s of --budget")
    assert [(f.culprit, f.severity) for f in result.findings] == [(["drop_relu"], "note")]


def test_a_conversion_has_no_answer_where_its_budget_ends(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    with pytest.raises(BudgetSpent, match="--budget was over before there was an answer"):
        optvet.convert(str(path), via="onnx_version", budget=0.001)
    with pytest.raises(BudgetSpent):
        optvet.repair(str(path), via="onnx_version", out=tmp_path / "out", budget=0.001)
    with pytest.raises(BudgetSpent):
        optvet.precision(str(path), to="fp16", budget=0.001)


def test_what_ends_in_time_is_answered_as_without_a_budget(tmp_path: Path) -> None:
    result, _ = vet(tmp_path, Hangs(default=("keep_01",)), budget="1h")
    assert result.verdict == "clean"
    assert result.control("budget") is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("60", 60), ("90s", 90), ("10m", 600), ("1.5h", 5400), (None, None)]
)
def test_a_budget_is_written_as_a_time(text: str | None, seconds: float | None) -> None:
    assert VetRequest(model="m", budget=text).budget == seconds  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["0", "-1", "soon", "10 weeks", "", True])
def test_what_is_no_time_is_refused(text: object) -> None:
    with pytest.raises(ValidationError, match="no time above 0"):
        VetRequest(model="m", budget=text)  # type: ignore[arg-type]
