"""Which comparator is taken, and why."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from pydantic import BaseModel

from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.models.sources import with_suggestion
from optvet.engine.vet.impact.comparator_options import in_declared_order
from optvet.engine.vet.impact.comparisons import pack_comparison
from optvet.engine.vet.impact.impact import Assessment, ComparatorChoice, choose
from optvet.spec.errors import ContractError
from optvet.spec.types import Comparison, Model, Sample, Suggestion
from optvet_tensor import TensorComparator

MODEL = '<ir_version: 8, opset_import: ["" : 17]> g (float[1,10] x) => (float[1,10] y) {y=Relu(x)}'
OUTPUTS = {"y": np.linspace(0, 1, 10, dtype=np.float32)[None] / 5}


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return Plugins()


def model(folder: Path, *, record: str = "", catalogue: str = "") -> Model:
    onnx.save(onnx.parser.parse_model(MODEL), folder / "m.onnx")
    if record:
        (folder / "m.toml").write_text(record)
    if catalogue:
        (folder / "models.json").write_text(f'[{{"file": "m.onnx", {catalogue}}}]')
    return open_model(folder / "m.onnx", "m.onnx", folder / "cache")


NUMERIC = '"suggested_comparator": {"kind": "numeric"}'


@pytest.mark.parametrize(
    ("catalogue", "expected", "reason"),
    [
        (f'"task": "audio embedding", {NUMERIC}', "embedding", "task 'audio embedding'"),
        (f'"task": "robot locomotion policy", {NUMERIC}', "tensor", "task"),
        # Ten numbers between 0 and 1 look like scores, but the record says that they are numbers.
        (f'"task": "chess position", {NUMERIC}', "tensor", "declared in"),
        (NUMERIC, "tensor", "declared in"),
    ],
    ids=["claimed", "claimed by tensor", "claimed by none", "without a task"],
)
def test_numeric_stands_back_behind_a_comparator_of_the_task(
    plugins: Plugins, tmp_path: Path, catalogue: str, expected: str, reason: str
) -> None:
    choice = choose(plugins, model(tmp_path, catalogue=catalogue), OUTPUTS, None)
    assert choice.comparator.name == expected
    assert choice.reason.startswith(reason)


@pytest.mark.parametrize(
    ("kind", "comparator"),
    [
        *(("classification", "classification"), ("detection", "detection"), ("image", "image")),
        *(("segmentation", "segmentation"), ("numeric", None), ("tabular", "tabular")),
        *(("token_logits", "token"), ("something new", None), (None, None), (["text"], None)),
    ],
)
def test_a_suggestion_means_the_comparator_that_takes_it(
    plugins: Plugins, tmp_path: Path, kind: object, comparator: str | None
) -> None:
    given = json.dumps({"kind": kind, "rtol": 1, "note": "x"})
    suggested = model(tmp_path, catalogue=f'"suggested_comparator": {given}')
    config = with_suggestion(suggested, plugins).config
    assert config.comparator == comparator
    assert set(config.comparator_options) <= {"rtol"}


@pytest.mark.parametrize(
    ("task", "comparator"),
    [
        *(("language model (character GPT)", "text"), ("Text generation", "text")),
        *(("masked language model", "token"), ("sentence segmentation", "token"), ("", "token")),
    ],
)
def test_scores_per_token_are_there_to_write_with_if_the_task_says_so(
    plugins: Plugins, tmp_path: Path, task: str, comparator: str
) -> None:
    catalogue = f'"task": "{task}", "suggested_comparator": {{"kind": "token_logits"}}'
    found = with_suggestion(model(tmp_path, catalogue=catalogue), plugins)
    assert found.config.comparator == comparator


class Gaze(TensorComparator):
    """A third party's comparator, which a catalogue may suggest."""

    name = "gaze"
    suggestions = (Suggestion("gaze-angles", ("limit",)),)


def test_a_third_party_s_comparator_can_be_suggested(tmp_path: Path) -> None:
    plugins = Plugins().register("comparator", Gaze())
    given = '"suggested_comparator": {"kind": "gaze-angles", "limit": 3, "rtol": 1}'
    config = with_suggestion(model(tmp_path, catalogue=given), plugins).config
    assert (config.comparator, config.comparator_options) == ("gaze", {"limit": 3})


def test_a_suggestion_that_is_none_is_the_plugin_s_mistake() -> None:
    class Wrong(Gaze):
        suggestions = ("gaze",)  # type: ignore[assignment]

    (entry,) = Plugins([]).register("comparator", Wrong()).all()
    assert entry.problem == "attribute 'suggestions' holds str, expected Suggestion"


def test_a_declared_comparator_is_taken_whatever_the_task(plugins: Plugins, tmp_path: Path) -> None:
    declared = model(tmp_path, record='task = "audio embedding"\ncomparator = "tensor"\n')
    assert choose(plugins, declared, OUTPUTS, None).comparator.name == "tensor"
    assert choose(plugins, declared, OUTPUTS, "image").comparator.name == "image"


class NoOptions(BaseModel):
    pass


class Normalizing:
    """A comparator that works in place, on what the verdict rests on too."""

    name = "normalizing"

    def compare(self, model: Model, sample: Sample, ours: Any, *_: Any, **__: Any) -> Any:
        ours["y"] /= 2


def test_a_comparator_cannot_change_the_reference(plugins: Plugins, tmp_path: Path) -> None:
    reference = {"s": {"y": np.ones(10, np.float32)}}
    choice = ComparatorChoice(Normalizing(), "asked for")  # type: ignore[arg-type]  # it only compares
    assessment = Assessment(choice, NoOptions(), model(tmp_path))
    samples = [Sample("s", {"x": np.ones((1, 10), np.float32)})]
    with pytest.raises(ContractError, match=r"compare\(\) raised ValueError: .*read-only"):
        assessment.add(samples, reference, reference, {})
    assert reference["s"]["y"].tolist() == [1.0] * 10


def test_metrics_stand_in_the_order_that_the_comparator_declares() -> None:
    comparator = Plugins().comparator("classification")
    given = {"zzz": 0.0, "certainty_change_top1": 1.0, "kendall_tau": 1.0, "top1_agreement": 1.0}
    ordered = in_declared_order(comparator, comparator.options, given)
    assert list(ordered) == ["top1_agreement", "kendall_tau", "certainty_change_top1", "zzz"]


@pytest.mark.long
def test_comparisons_of_many_samples_take_little_memory(plugins: Plugins, tmp_path: Path) -> None:
    comparator = plugins.comparator("classification")
    assessment = Assessment(
        ComparatorChoice(comparator, "test"), comparator.options, model(tmp_path)
    )
    rng = np.random.default_rng(0)

    def add(numbers: range) -> None:
        for number in numbers:
            ours = {"y": rng.dirichlet(np.ones(10), size=1).astype(np.float32)}
            theirs = {"y": ours["y"] * np.float32(1 + 1e-6)}
            name = f"sample-{number}"
            assessment.add([Sample(name, {"x": OUTPUTS["y"]})], {name: ours}, {name: theirs}, {})

    add(range(20))  # what is imported and cached at first use
    tracemalloc.start()
    try:
        add(range(20, 420))
        kept_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # 6,500 bytes each as dictionaries: 10,000 samples would take half as much again as 100.
    assert kept_bytes < 400 * 2000
    impact = assessment.impact()
    assert impact.samples == 420
    assert impact.details[0].detail["rows"][0]["reference"]


def test_what_a_comparator_kept_is_what_it_gets_to_summarise() -> None:
    detail = {"classes": {1: [0.5, np.float32(2)]}, "words": "a", "none": None}
    given = Comparison("s", {"a": 1, "b": float("inf")}, True, detail=detail)
    packed = pack_comparison(given)
    assert dict(packed.metrics) == given.metrics
    assert ("a" in packed.metrics, "c" in packed.metrics) == (True, False)
    assert packed.metrics.get("c") is None
    assert dict(packed.detail) == detail
    assert packed.detail["classes"] == detail["classes"]
    assert (packed.sample, packed.changed) == ("s", True)
    unpicklable = Comparison("s", {}, detail={"call": lambda: None})
    assert pack_comparison(unpicklable).detail is unpicklable.detail
