"""A fault of an importer stays one when it is replayed: vet and replay choose one reference."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx.parser
import pytest
from pydantic import BaseModel

from optvet.engine.bundle import Bundle, replay_bundle, write_bundles
from optvet.engine.discovery import Plugins
from optvet.engine.models.sources import resolve_model
from optvet.engine.vet.run import vet_model
from optvet.spec.request import VetRequest
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Artifact, Traits
from optvet.testing import Planted
from optvet_onnxruntime.runtime import OrtOptions, OrtRuntime

NET = """<ir_version: 8, opset_import: ["" : 18]>
g (float[2,4] x) => (float[2,4] y) { a = Neg(x)  b = Relu(a)  c = Tanh(b)  y = Neg(c) }"""


def imported(data: bytes, *, faulty: bool) -> bytes:
    """The model as the importer reads it; Relu is overlooked if ``faulty``."""
    model = onnx.load_from_string(data)
    for node in model.graph.node:
        if faulty and node.op_type == "Relu":
            node.op_type = "Identity"
    read: bytes = model.SerializeToString()
    return read


@dataclass
class Lowers(Planted):
    """Makes of a model what only its own runtime runs."""

    faulty: bool = True

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        made = super().apply(source, passes, options)
        return Artifact("acme", imported(made.data, faulty=self.faulty))


class Acme(OrtRuntime):
    """Runs what was lowered; ONNX too, by the same import."""

    name = "acme"
    accepts = frozenset({"acme", "onnx"})
    preference = 0

    def __init__(self, faulty: bool = True) -> None:
        super().__init__()
        self.faulty = faulty

    def load(self, artifact: Artifact, options: OrtOptions) -> object:  # type: ignore[override]
        data = artifact.data
        if artifact.format == "onnx":
            data = imported(data, faulty=self.faulty)
        return super().load(Artifact("onnx", data), options)


def plugins(*, faulty: bool) -> Plugins:
    traits = Traits(produces="acme", reference="empty pipeline")
    registered = Plugins().register("optimizer", Lowers(traits=traits, faulty=faulty))
    return registered.register("runtime", Acme(faulty))


def bundle_of(folder: Path, *, reduce: bool) -> Bundle:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    request = VetRequest(
        model=str(path), optimizer="planted", cache_dir=folder / "cache", reduce=reduce, limit=2
    )
    here = plugins(faulty=True)
    (model,) = resolve_model(str(path), here, folder / "cache")
    result = vet_model(model, request, here)
    (finding,) = result.findings
    assert (finding.symptom, finding.culprit) == (Symptom.WRONG_OUTPUT, [])
    assert not result.safe_pipeline
    (bundle,) = write_bundles(result, request, folder / "out", here)
    return bundle


@pytest.mark.long
def test_a_lowering_fault_is_still_there_although_its_runtime_reads_onnx_too(
    tmp_path: Path,
) -> None:
    bundle = bundle_of(tmp_path, reduce=False)
    again = replay_bundle(bundle.path, plugins(faulty=True))
    assert (again.outcome, again.now) == ("still there", Symptom.WRONG_OUTPUT)
    assert replay_bundle(bundle.path, plugins(faulty=False)).outcome == "fixed"


@pytest.mark.long
def test_a_lowering_fault_is_reduced_to_the_node_that_is_read_wrong(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path, reduce=True)
    assert bundle.record.nodes == (4, 1)
    model = onnx.load(bundle.path / "model.onnx")
    assert [n.op_type for n in model.graph.node] == ["Relu"]
    assert replay_bundle(bundle.path, plugins(faulty=True)).outcome == "still there"


class Picky(OrtRuntime):
    """A runtime that takes no Relu; its short snippet is for what another optimizer compiled."""

    name = "picky"
    preference = 0

    def load(self, artifact: Artifact, options: OrtOptions) -> object:  # type: ignore[override]
        if b"Relu" in artifact.data:
            raise RuntimeError("a broken table of Relu")
        return super().load(artifact, options)

    def snippet(self, options: OrtOptions) -> str:
        return "raise RuntimeError('a broken table of Relu')"

    def simple_snippets(self, options: OrtOptions) -> Sequence[str]:
        return ["return model(feeds)"]


@pytest.mark.long
def test_a_mistake_of_the_script_itself_is_not_what_an_issue_shows(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    request = VetRequest(
        model=str(path), optimizer="runtime:picky", cache_dir=tmp_path / "cache", limit=1, jobs=1
    )
    here = Plugins().register("runtime", Picky())
    (model,) = resolve_model(str(path), here, tmp_path / "cache")
    result = vet_model(model, request, here)
    (finding,) = result.findings
    assert finding.symptom == Symptom.LOAD_FAILURE
    (bundle,) = write_bundles(result, request, tmp_path / "bundles", here)
    issue = (bundle.path / "ISSUE.md").read_text("utf-8")
    assert "actual: RuntimeError: a broken table of Relu" in issue
    assert "TypeError" not in issue
