"""Conformance suites of what brings inputs and models, and of what runs jobs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from optvet.engine.contract import source_returns
from optvet.spec.errors import UsageError
from optvet.spec.executor import Executor
from optvet.spec.foreign import read_file
from optvet.spec.protocols import Dataset, Feeds, ModelSource
from optvet.spec.scratch import temporary_folder
from optvet.spec.types import Model, Sample
from optvet.testing.comparators import pretend_model
from optvet.testing.conformance import check_form, require

_FEW = 3
_WAIT_S = 60.0


# --- datasets -------------------------------------------------------------------------------------


def check_dataset(
    dataset: Dataset, argument: str | None = None, model: Model | None = None
) -> None:
    """Check that ``dataset`` keeps the contract; raises AssertionError where it does not.

    Args:
        dataset: The dataset.
        argument: What stands behind the colon of ``NAME:ARGUMENT``.
        model: A model that it makes inputs for; by default one with an input ``x`` of float[2, 3].
    """
    check_form(dataset, Dataset, "a dataset")
    chosen = model or pretend_model(inputs={"x": (2, 3)})
    first, again = (_take(dataset, argument, chosen, seed=0) for _ in range(2))
    require(dataset, bool(first), "samples() gave none")
    ids = [sample.id for sample in first]
    require(dataset, len(set(ids)) == len(ids), f"samples() has ids twice: {ids}")
    same = len(first) == len(again) and all(map(_equal, first, again))
    require(dataset, same, "samples() gave others for equal arguments; draw from the seed alone")
    require(
        dataset,
        len(_take(dataset, argument, chosen, seed=0, limit=1)) == 1,
        "samples() must end after `limit` samples",
    )
    known = {info.name for info in (*chosen.inputs, *chosen.optional)}
    for sample in first:
        missing = {info.name for info in chosen.inputs} - sample.feeds.keys()
        require(dataset, not missing, f"sample {sample.id!r} lacks inputs {sorted(missing)}")
        more = sample.feeds.keys() - known
        require(dataset, not more, f"sample {sample.id!r} feeds {sorted(more)}, no inputs")


def _take(
    dataset: Dataset, argument: str | None, model: Model, *, seed: int, limit: int | None = _FEW
) -> list[Sample]:
    def probe(feeds: Sequence[Feeds]) -> list[str | None]:
        return [None for _ in feeds]

    def ask() -> Any:
        options = dataset.options
        return dataset.samples(model, argument, options, seed=seed, limit=limit, probe=probe)

    items = source_returns.samples(dataset, ask)
    taken = itertools.islice(items, _FEW)
    return [s if isinstance(s, Sample) else source_returns.make_sample(dataset, s) for s in taken]


def _equal(one: Sample, other: Sample) -> bool:
    if one.id != other.id or one.feeds.keys() != other.feeds.keys():
        return False
    pairs = [(np.asarray(v), np.asarray(other.feeds[n])) for n, v in one.feeds.items()]
    return all(
        a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
        for a, b in pairs
    )


# --- model sources --------------------------------------------------------------------------------


def check_model_source(source: ModelSource, reference: str | None = None) -> None:
    """Check that ``source`` keeps the contract; raises AssertionError where it does not.

    Args:
        source: The model source.
        reference: A model of it, which is fetched; by default the first that it lists.
    """
    check_form(source, ModelSource, "a model source")
    cards = source_returns.cards(source)
    names = [card.name for card in cards]
    require(source, len(set(names)) == len(names), f"models() lists names twice: {names}")
    require(source, bool(reference or names), "models() lists none; give a reference")
    wanted = reference or names[0]
    with temporary_folder("optvet-check-") as folder:
        cache = Path(folder)
        first = source_returns.files(source, wanted, cache)
        kept = {path: read_file(path) for path in first}
        for path in first:
            onnx.checker.check_model(str(path))
        again = source_returns.files(source, wanted, cache)
        same = first == again and all(read_file(p) == kept[p] for p in again)
        require(source, same, f"fetch({wanted!r}) gave other files the second time")
        unknown = "no model has this name"
        try:
            fetched = source.fetch(unknown, cache)
        except UsageError:
            return
        require(source, False, f"fetch({unknown!r}) must raise UsageError; it gave {fetched}")


# --- executors ------------------------------------------------------------------------------------


def check_executor(executor: Executor) -> None:
    """Check that ``executor`` keeps the contract; raises AssertionError where it does not.

    It starts one worker, and ends it.
    """
    check_form(executor, Executor, "an executor")
    shares = executor.shares_disk
    require(executor, isinstance(shares, bool), f"shares_disk must be a bool, not {shares!r}")
    workers = executor.start(executor.options, jobs=1)
    try:
        count = workers.count
        require(executor, count >= 1, f"count of its workers must be above 0, not {count!r}")
        total = workers.submit(_add, 2, 3).result(timeout=_WAIT_S)
        require(executor, total == 5, f"submit() gave {total!r}, the function returns 5")
        error = _error_of(workers.submit(_fail, "planted"))
        fits = isinstance(error, ValueError) and str(error) == "planted"
        require(executor, fits, f"submit() must raise what the function raises, not {error!r}")
    finally:
        workers.close()


def _error_of(future: Future[Any]) -> BaseException | None:
    return future.exception(timeout=_WAIT_S)


def _add(a: int, b: int, report: Callable[[str], None]) -> int:
    report("adding")
    return a + b


def _fail(words: str, report: Callable[[str], None]) -> None:
    raise ValueError(words)
