"""The catalogue of the studies' models; its sources are replaced, nothing is downloaded."""

from __future__ import annotations

import pickle
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

import onnx
import onnx.parser
import pytest

import optvet_catalogue
from optvet import InfrastructureError, InputError, PluginError, UsageError
from optvet.engine.discovery import Plugins
from optvet.engine.models.sidecar import Preprocessing
from optvet.engine.models.sources import resolve_model
from optvet.plugin import ModelCard, ModelSource
from optvet.spec.extras import extras
from optvet.spec.protocols import ModelSourceExtras
from optvet_catalogue import StudySource, catalogue

TEXT = '<ir_version: 8, opset_import: ["" : 12]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
ENTRIES = catalogue()


class Elsewhere:
    """A source that has every model, or fails with ``error``."""

    def __init__(self, name: str, error: Exception | None = None) -> None:
        self.name = name
        self.error = error
        self.asked: list[str] = []

    def models(self) -> Iterable[ModelCard]:
        return []

    def fetch(self, reference: str, cache: Path) -> Sequence[Path]:
        self.asked.append(reference)
        if self.error is not None:
            raise self.error
        path = cache / self.name / f"{Path(reference).name}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(onnx.parser.parse_model(TEXT), path)
        return [path]

    def pinned(self, reference: str, cache: Path) -> str:
        return f"{self.name}:{reference}@1234"


def use(monkeypatch: pytest.MonkeyPatch, *sources: Elsewhere) -> None:
    found = {source.name: source for source in sources}
    monkeypatch.setattr(optvet_catalogue, "_source", found.get)


def test_the_source_keeps_the_protocol() -> None:
    (source,) = optvet_catalogue.optvet_model_sources()
    assert isinstance(source, ModelSource)
    assert source.name == "study"
    assert pickle.loads(pickle.dumps(source)).name == "study"


def test_listing_needs_no_network() -> None:
    assert not extras(StudySource(), ModelSourceExtras).needs_network
    cards = {card.name: card for card in StudySource().models()}
    card = cards["resnet50-v1-12-int8"]
    assert card.task == "image-classification"
    assert {"resnet", "ditox", "int8"} == set(card.tags)
    assert card.extra["opset"] == "12"
    assert card.extra["ditox"] == "ResNet50-int8-12"
    assert "unverified-name" in cards["ssd-10"].tags


def test_every_name_is_there_once() -> None:
    names = [entry.name for entry in ENTRIES]
    assert len(set(names)) == len(names)
    called = [entry.ditox for entry in ENTRIES if entry.ditox]
    assert len(set(called)) == len(called)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_entry_can_be_declared_beside_a_model(entry: optvet_catalogue.Entry) -> None:
    declared = tomllib.loads(optvet_catalogue._toml(entry))
    assert declared == dict(entry.config)
    Preprocessing.model_validate(declared.get("preprocessing", {}))
    assert declared["task"]
    assert 1 <= entry.opset <= 13


def test_the_opset_is_what_ditox_says() -> None:
    wrong = [e.name for e in ENTRIES if e.ditox and e.ditox.rpartition("-")[2] != str(e.opset)]
    assert wrong == []


def test_every_comparator_that_is_declared_exists() -> None:
    known = Plugins().names("comparator")
    assert {e.config["comparator"] for e in ENTRIES if "comparator" in e.config} <= set(known)


def test_every_name_in_from_memory_is_a_file_of_its_family() -> None:
    data = tomllib.loads(optvet_catalogue._CATALOGUE.read_text(encoding="utf-8"))
    for name, family in data["family"].items():
        named = {*family.get("from_memory", ()), *family.get("opsets", {})}
        assert named <= family["files"].keys(), name


def test_the_sources_are_found_by_their_entry_points() -> None:
    for name in ("huggingface", "onnx_hub"):
        source = optvet_catalogue._source(name)
        assert source is not None
        assert source.name == name


def test_a_model_is_fetched_and_what_is_known_of_it_is_declared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub = Elsewhere("huggingface")
    use(monkeypatch, hub)
    plugins = Plugins([]).register("model source", StudySource())
    (model,) = resolve_model("study:efficientnet-lite4-11", plugins, tmp_path)
    assert hub.asked == ["onnxmodelzoo/efficientnet-lite4-11"]
    assert model.source == "huggingface:onnxmodelzoo/efficientnet-lite4-11@1234"
    assert model.task == "image-classification"
    assert model.config.comparator == "classification"
    assert model.config.preprocessing["layout"] == "NHWC"


@pytest.mark.parametrize(
    "error", [UsageError("no such repository"), PluginError("needs huggingface_hub")]
)
def test_the_next_source_is_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    use(monkeypatch, Elsewhere("huggingface", error), Elsewhere("onnx_hub"))
    (path,) = StudySource().fetch("mnist-8", tmp_path)
    assert path.parent.name == "onnx_hub"
    assert StudySource().pinned("mnist-8", tmp_path) == "onnx_hub:mnist-8@1234"


def test_all_reasons_are_told_where_no_source_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, Elsewhere("onnx_hub", InputError("answers 404 Not Found")))
    with pytest.raises(
        UsageError,
        match=r"study model 'ssd-10' is not available "
        r"\(its name in the catalogue was never verified\)"
        r": huggingface:onnxmodelzoo/ssd-10: there is no model source 'huggingface'; "
        r"onnx_hub:ssd-10: answers 404 Not Found",
    ):
        StudySource().fetch("ssd-10", tmp_path)


def test_a_full_disk_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    second = Elsewhere("onnx_hub")
    use(monkeypatch, Elsewhere("huggingface", InfrastructureError("disk full")), second)
    with pytest.raises(InfrastructureError, match="disk full"):
        StudySource().fetch("mnist-8", tmp_path)
    assert second.asked == []


def test_an_unknown_name_is_refused_with_near_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown study model 'resnet50-v1'; did you mean .*7"):
        StudySource().fetch("resnet50-v1", tmp_path)
