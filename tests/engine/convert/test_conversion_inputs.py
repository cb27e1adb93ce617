"""Inputs are drawn as the source uses them, and one that never ends costs little."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np

from optvet.engine.convert.conversion_inputs import inputs_of
from optvet.engine.convert.session import Conversion
from optvet.engine.convert.worker_steps import Observed, move_inputs
from optvet.engine.work.sandbox import Outcome
from optvet.spec.converters import SourceFacts
from optvet.spec.types import Artifact, Failure, Sample

TABLE = np.array([[0.5, 2, np.nan], [-1.5, 7, 1], [0.25, 2, 3], [2.5, 4, 1]], np.float32)


def drawn(facts: SourceFacts) -> dict[str, np.ndarray]:
    found = inputs_of(facts, seed=1, random=3, edges=True, sizes=False)
    return {d.about or d.sample.id: d.sample.feeds["x"] for d in found}


def test_a_column_of_categories_has_no_fractions() -> None:
    found = drawn(SourceFacts({"x": TABLE}, tables=frozenset({"x"})))
    for words, value in found.items():
        whole = value[:, 1:][np.isfinite(value[:, 1:])]
        assert np.array_equal(whole, np.round(whole)), words
    for number in (1, 2, 3):
        assert sorted(found[f"random {number}"][:, 1]) == [2, 2, 4, 7]
    assert found["x: halfway between integers"][:, 0].tolist() == [-3.5, -0.5, 2.5, -2.5]


def test_what_is_no_table_has_halves_and_fractions_everywhere() -> None:
    found = drawn(SourceFacts({"x": np.ones((2, 4), np.float32)}))
    halves = found["x: halfway between integers"]
    assert halves.reshape(-1).tolist() == [-3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5]
    assert np.all(found["x: a millionth as large"] < 1)


def test_an_edge_value_that_never_ends_has_a_short_time_of_its_own() -> None:
    limits: dict[str, float | None] = {}
    hung = Failure("timeout", "run", "no result after 60 s")

    class Pool:
        def call(self, _: Any, *about: Any, timeout_s: float | None, **more: Any) -> Outcome[Any]:
            (sample,) = about[2]
            limits[sample.id] = timeout_s
            if sample.id == "edge 1":
                return Outcome(None, hung)
            return Outcome(Observed("", None, {sample.id: {}}), None)

    conversion: Any = SimpleNamespace(
        request=SimpleNamespace(timeout=60.0), sandbox_of=lambda runtime: Pool()
    )
    future: Future[Outcome[Observed]] = Future()
    future.set_result(Outcome(None, hung))
    samples = [
        Sample("example", {}, origin="example"),
        Sample("edge 1", {}, origin="edge"),
        Sample("random 1", {}, origin="random"),
    ]
    config: Any = SimpleNamespace(runtime=None)
    observed = Conversion.finish(conversion, future, config, Artifact("onnx"), samples)
    assert observed.runs == {"example": {}, "edge 1": hung, "random 1": {}}
    assert (limits["example"], limits["random 1"]) == (None, None)
    assert limits["edge 1"] is not None
    assert limits["edge 1"] < 10


def test_values_that_no_rounding_made_are_not_moved() -> None:
    given = np.array([0.5, -2.5, 3, 0.1, 0.7, -0.3] * 4, np.float32)
    moved = move_inputs({"x": given, "i": np.arange(3)}, np.random.default_rng(0))
    changed = (moved["x"] != given).reshape(4, 6)
    assert not changed[:, :3].any()
    assert changed[:, 3:].any()
    assert moved["i"].tolist() == [0, 1, 2]


def test_each_column_of_a_table_lacks_a_value_in_some_row() -> None:
    # Estimators have a rule for each column: one NaN in the middle of a table shows one of them.
    facts = SourceFacts({"x": np.ones((5, 3), np.float32)}, tables=frozenset({"x"}))
    found = inputs_of(facts, seed=0, random=0, edges=True, sizes=False)
    (edge,) = [d for d in found if "in one column of each row" in d.about]
    assert edge.outside_domain
    missing = np.isnan(edge.sample.feeds["x"])
    assert missing.sum(axis=1).tolist() == [1] * 5
    assert missing.any(axis=0).all()
