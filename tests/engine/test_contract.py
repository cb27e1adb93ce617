"""A plugin's mistake is told as its own: plugin, origin, method, expected and got."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from optvet import ContractError, PluginError, UsageError
from optvet.engine.contract import (
    comparator_returns,
    optimizer_returns,
    runtime_returns,
    source_returns,
)
from optvet.engine.discovery import Plugins
from optvet.engine.models.sources import resolve_model
from optvet.engine.vet.run import vet_model
from optvet.plugin import Artifact, Comparison, Deferred, Model, ModelCard, Pass, Summary, Traits
from optvet.spec.request import VetRequest
from optvet.testing import Planted
from optvet_tensor import TensorComparator

HERE = re.escape(__name__)


def named(**members: Any) -> Any:
    """A plugin of this module that does but what a test asks it to do."""
    return type("Wrong", (), {"name": "wrong", "__module__": __name__} | members)()


@pytest.mark.parametrize(
    ("method", "given", "words"),
    [
        ("passes", None, "passes() gave None, expected a list of Pass"),
        ("passes", ["fuse"], "passes() gave an item that is str, expected a list of Pass"),
        ("pipelines", [], "pipelines() gave list, expected a mapping of names to lists of passes"),
        ("pipelines", {"all": []}, "pipelines() gave ['all'], expected 'default' among them"),
        ("pipelines", {"default": "a"}, "pipelines() gave str for 'default', expected a mapping"),
        ("pipelines", {"default": ["b"]}, "pipelines() gave 'default' with 'b', expected names"),
    ],
)
def test_an_optimizer_is_refused_by_the_method_that_is_wrong(
    method: str, given: Any, words: str
) -> None:
    class Wrong(Planted):
        def passes(self) -> Sequence[Pass]:
            return [Pass("a")]

        def pipelines(self) -> Any:
            return {"default": ["a"]}

    setattr(Wrong, method, lambda self: given)
    plugins = Plugins([]).register("optimizer", Wrong(name="wrong"))
    with pytest.raises(PluginError, match=re.escape(words)) as caught:
        plugins.optimizer("wrong")
    assert str(caught.value).startswith("optimizer 'wrong' (")
    assert caught.value.exit_code == 3


class Endless(bytes):
    """Bytes that are equal to anything, and have any length."""

    def __eq__(self, other: object) -> bool:
        return True

    def __len__(self) -> int:
        return 1 << 40

    __hash__ = bytes.__hash__


class Every(str):
    """A text that is equal to any other."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


def test_an_artifact_is_made_of_plain_values() -> None:
    given = Artifact(Every("acme"), Endless(b"model"), None, Every("twin"), (Every("fuse"),))
    plain = optimizer_returns.artifact(Planted(traits=Traits(produces="acme")), given)
    assert plain == Artifact("acme", b"model", None, "twin", ("fuse",))
    assert (type(plain.format), type(plain.data), type(plain.fingerprint)) == (str, bytes, str)
    assert plain.format != "onnx"


def test_an_artifact_is_of_the_format_that_the_traits_declare() -> None:
    with pytest.raises(ContractError, match=r"gave an Artifact of format 'acme', expected"):
        optimizer_returns.artifact(Planted(), Artifact(Every("acme"), b"model"))


def test_what_passes_raises_is_the_plugin_s_error() -> None:
    class Wrong(Planted):
        def passes(self) -> Sequence[Pass]:
            return [][0]

    plugins = Plugins([]).register("optimizer", Wrong(name="wrong"))
    with pytest.raises(PluginError, match=r"passes\(\) raised IndexError: list index out of range"):
        plugins.optimizer("wrong")


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("name", 3, "attribute 'name' is int, expected a text"),
        ("traits", {}, "attribute 'traits' is dict, expected Traits"),
        ("options", {}, "attribute 'options' is dict, expected a pydantic model with the defaults"),
        ("preload", "onnx", "attribute 'preload' is str, expected a list of texts"),
        ("preference", "high", "attribute 'preference' is str, expected a whole number"),
        (
            "environment",
            [],
            "attribute 'environment' is list, expected a mapping to texts",
        ),
        ("environment", {"A": 1}, "attribute 'environment' sets A to int, expected a text"),
        (
            "environment",
            {"A=": "1"},
            "attribute 'environment' names 'A=', no name of a variable",
        ),
        ("version", lambda: 1.0, "version() gave float, expected a text"),
    ],
)
def test_a_plugin_with_a_wrong_attribute_is_listed_with_its_mistake(
    attribute: str, value: Any, words: str
) -> None:
    optimizer = Planted()
    object.__setattr__(optimizer, attribute, value)
    (entry,) = Plugins([]).register("optimizer", optimizer).all()
    assert entry.problem == words


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "samples() gave None, expected an iterable of Sample or Deferred"),
        ([{"x": np.zeros(1)}], "samples() gave dict, expected Sample or Deferred"),
        ((1 // x for x in [0]), "samples() raised ZeroDivisionError: "),
    ],
)
def test_a_dataset_that_gives_no_samples_is_named(given: Any, words: str) -> None:
    with pytest.raises(PluginError, match=rf"dataset 'wrong' \({HERE}\): {re.escape(words)}"):
        list(source_returns.samples(named(), lambda: given))


def test_a_deferred_sample_must_become_one() -> None:
    item = Deferred("1", lambda: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(PluginError, match=r"Deferred\.make\(\) gave None, expected Sample"):
        source_returns.make_sample(named(), item)


@pytest.mark.parametrize(
    ("value", "words"),
    [("high", "gave str, expected a number from 0 to 1"), (2.0, "gave 2.0, expected a number")],
)
def test_a_score_is_a_number_from_0_to_1(value: Any, words: str) -> None:
    with pytest.raises(PluginError, match=re.escape(f"matches() {words}")):
        comparator_returns.score(named(), lambda: value)
    assert comparator_returns.score(named(), lambda: 1) == 1.0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "compare() gave None, expected Comparison"),
        (Comparison("s", {"psnr": "big"}), "metric 'psnr' = 'big', expected a number"),  # type: ignore[dict-item]
        (Comparison("s", 3), "gave int, expected metrics as a mapping"),  # type: ignore[arg-type]
    ],
)
def test_a_comparison_has_metrics_that_are_numbers(value: Any, words: str) -> None:
    with pytest.raises(PluginError, match=re.escape(words)):
        comparator_returns.comparison(named(), value)


def test_a_summary_has_a_headline() -> None:
    with pytest.raises(PluginError, match=r"summarise\(\) gave None, expected a text as headline"):
        comparator_returns.summary(named(), Summary({}, None))  # type: ignore[arg-type]
    with pytest.raises(PluginError, match=r"summarise\(\) gave str, expected Summary"):
        comparator_returns.summary(named(), "3 of 5")


@pytest.mark.parametrize(
    ("fetched", "words"),
    [
        (None, "fetch() gave None, expected a list of paths"),
        ([], "fetch() gave an empty list, expected a list of paths"),
        (["a.onnx"], "fetch() gave str, expected a list of paths"),
        ([Path("/no/such.onnx")], "fetch() gave /no/such.onnx, expected a file that exists"),
    ],
)
def test_a_source_must_fetch_files(tmp_path: Path, fetched: Any, words: str) -> None:
    source = named(fetch=lambda self, reference, cache: fetched, models=lambda self: [])
    plugins = Plugins().register("model source", source)
    with pytest.raises(PluginError, match=rf"model source 'wrong' \({HERE}\): {re.escape(words)}"):
        resolve_model("wrong:x", plugins, tmp_path)


def test_what_a_source_refuses_on_purpose_stays_its_refusal(tmp_path: Path) -> None:
    def fetch(self: Any, reference: str, cache: Path) -> list[Path]:
        raise UsageError("there is no such model")

    plugins = Plugins().register("model source", named(fetch=fetch, models=lambda self: []))
    with pytest.raises(UsageError, match="there is no such model"):
        resolve_model("wrong:x", plugins, tmp_path)


def test_a_source_lists_cards() -> None:
    assert source_returns.cards(named(models=lambda self: iter([ModelCard("a")]))) == [
        ModelCard("a")
    ]
    with pytest.raises(PluginError, match=r"models\(\) gave str, expected ModelCard"):
        source_returns.cards(named(models=lambda self: ["a"]))
    with pytest.raises(PluginError, match=r"models\(\) gave None, expected an iterable of Model"):
        source_returns.cards(named(models=lambda self: None))


class Silent:
    """A comparator whose ``compare`` forgets to return."""

    name = "silent"
    options = TensorComparator().options

    def matches(self, model: Model, outputs: Mapping[str, np.ndarray]) -> float:
        return 1.0

    def compare(self, *_: Any, **__: Any) -> Any:
        return None

    def summarise(self, *_: Any) -> Any:
        return None


def test_a_comparator_that_gives_nothing_costs_the_impact_and_not_the_verdict(
    tmp_path: Path,
) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(SUM), model)
    plugins = Plugins().register("comparator", Silent()).register("optimizer", Planted())
    (opened,) = resolve_model(str(model), plugins, tmp_path)
    settings = VetRequest(model="model", optimizer="planted", cache=False, jobs=1)
    result = vet_model(opened, settings, plugins)
    (control,) = [c for c in result.controls if c.name == "comparator"]
    assert "'silent'" in control.detail
    assert "compare() gave None, expected Comparison" in control.detail
    assert result.impact is not None
    assert result.impact.comparator == plugins.default("comparator")
    wanted = settings.model_copy(update={"comparator": "silent"})
    with pytest.raises(ContractError, match=r"compare\(\) gave None, expected Comparison"):
        vet_model(opened, wanted, plugins)


SUM = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] X) => (float[4] Y) { Y = Add(X, X) }'


def test_what_a_runtime_gives_holds_numbers_or_texts() -> None:
    runtime = named(name="r")
    runtime_returns.arrays(runtime, {"y": np.zeros(2), "s": np.array(["a", b"b"], dtype=object)})
    with pytest.raises(ContractError, match=r"runtime 'r'.*output 's'.*Silent.*numbers or texts"):
        runtime_returns.arrays(runtime, {"s": np.array([Silent()], dtype=object)})
