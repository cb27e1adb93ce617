"""A result is used for another model only if the runtime reads nothing that differs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

import numpy as np
import onnx
import onnx.parser
import pytest
from pydantic import BaseModel
from tests.preload import TRIALS

from optvet.engine.discovery import Plugins
from optvet.engine.hunt.quick_oracle import examine
from optvet.engine.hunt.resolve_optimizer import resolve_optimizer
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.spec.hunt import HuntRequest
from optvet.spec.records import VetResult
from optvet.spec.request import VetRequest
from optvet.spec.types import Artifact, Pass, Traits
from optvet.testing import PlantedOptions

# Pieces of unequal length, which shape inference gives one symbolic length.
UNEVEN = """<ir_version: 8, opset_import: ["" : 17]>
uneven (float[1,10,8] x) => (float[1,2,8] o0, float[1,5,8] o1, float[1,3,8] o2)
<int64[3] split = {2, 5, 3}, int64 i0 = {0}, int64 i1 = {1}, int64 i2 = {2}>
{
    s = SplitToSequence <axis = 1> (x, split)
    p0 = SequenceAt(s, i0)  r0 = ReduceMean <axes = [1], keepdims = 1> (p0)  o0 = Sub(p0, r0)
    p1 = SequenceAt(s, i1)  r1 = ReduceMean <axes = [1], keepdims = 1> (p1)  o1 = Sub(p1, r1)
    p2 = SequenceAt(s, i2)  r2 = ReduceMean <axes = [1], keepdims = 1> (p2)  o2 = Sub(p2, r2)
}"""


class Describes:
    """An optimizer whose passes change what models say of themselves, and no operator."""

    name = "describes"
    preload: Sequence[str] = ("onnx",)
    options: PlantedOptions = PlantedOptions()
    traits = Traits()

    def version(self) -> str:
        return "1"

    def passes(self) -> Sequence[Pass]:
        return [Pass(n, "rewrite") for n in ("name_nodes", "describe", "share_a_symbol", "declare")]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        return {"default": [p.name for p in self.passes()]}

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        model = onnx.load_from_string(source.data)
        for name in passes:
            getattr(self, name)(model)
        return Artifact("onnx", model.SerializeToString(deterministic=True))

    def name_nodes(self, model: onnx.ModelProto) -> None:
        for i, node in enumerate(model.graph.node):
            node.name = f"node_{i}"

    def describe(self, model: onnx.ModelProto) -> None:
        model.graph.doc_string = "described"
        onnx.helper.set_model_props(model, {"described": "yes"})

    def share_a_symbol(self, model: onnx.ModelProto) -> None:
        self._declare(model, ("n", "n", "n"))

    def declare(self, model: onnx.ModelProto) -> None:
        if not model.graph.value_info:
            self._declare(model, (2, 5, 3))

    def _declare(self, model: onnx.ModelProto, lengths: Sequence[int | str]) -> None:
        del model.graph.value_info[:]
        model.graph.value_info.extend(
            onnx.helper.make_tensor_value_info(f"p{i}", onnx.TensorProto.FLOAT, (1, n, 8))
            for i, n in enumerate(lengths)
        )


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=1, limits=Limits(60, 1 << 30), preload=(*TRIALS, __name__)) as shared:
        yield shared


def vet(folder: Path, sandbox: Sandbox, optimizer: str, **settings: object) -> VetResult:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(UNEVEN), path)
    request = VetRequest.model_validate(
        {"model": str(path), "optimizer": optimizer, "limit": 2, "cache_dir": folder, **settings}
    )
    plugins = Plugins().register("optimizer", Describes())
    return vet_model(
        open_model(path, str(path), folder / "cache"), request, plugins, sandbox=sandbox
    )


def test_a_wrong_declared_shape_is_the_fault_of_the_pass_that_declared_it(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    result = vet(tmp_path, sandbox, "describes")
    (finding,) = result.findings
    assert (finding.symptom, finding.culprit) == ("run-failure", ["share_a_symbol"])
    assert result.safe_pipeline == ["name_nodes", "describe", "declare"]


@pytest.mark.parametrize("optimizer", ["onnxsim", "onnxslim"])
def test_shape_inference_that_gives_unequal_pieces_one_size_is_found(
    optimizer: str, tmp_path: Path, sandbox: Sandbox
) -> None:
    pytest.importorskip(optimizer)
    result = vet(tmp_path, sandbox, optimizer)
    shown = [(f.symptom, f.culprit) for f in result.findings]
    assert shown == [("run-failure", ["shape_inference"])]


def test_a_model_is_run_again_only_if_the_runtime_reads_what_differs(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    result = vet(tmp_path, sandbox, "describes", strategy="each", pairs=False)
    assert {p.name: p.effect for p in result.passes} == {
        "name_nodes": "none",
        "describe": "none",
        "share_a_symbol": "failed",
        "declare": "changed",
    }
    # "declare" alone is equal to the safe pipeline, which names nodes and describes the model too.
    assert result.safe_pipeline == ["name_nodes", "describe", "declare"]
    assert result.cost.by_purpose["each"].inferences == 0


def test_a_hunt_suspects_a_pass_that_declares_a_wrong_shape(tmp_path: Path) -> None:
    plugins = Plugins().register("optimizer", Describes())
    request = HuntRequest(optimizer="describes", out=tmp_path / "hunt", budget="1")
    tested = resolve_optimizer(request, plugins)
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 10, 8)).astype(np.float32)}
    data = onnx.parser.parse_model(UNEVEN).SerializeToString()
    found = examine(tested, data, feeds, lambda *_: None, frozenset(), Random(0))
    assert ("share_a_symbol",) in {s.passes for s in found.suspicions}
    assert {s.symptom for s in found.suspicions} == {"run-failure"}
    assert not {"name_nodes", "describe", "declare"} & {
        p for s in found.suspicions if len(s.passes) == 1 for p in s.passes
    }
