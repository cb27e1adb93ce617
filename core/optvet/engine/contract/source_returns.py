"""What datasets and model sources return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from optvet.engine.contract.checked_calls import ask, blame, list_items, mismatch
from optvet.spec.extras import extras
from optvet.spec.protocols import Dataset, ModelSource, ModelSourceExtras
from optvet.spec.types import Deferred, ModelCard, Sample


def samples(
    dataset: Dataset, ask_samples: Callable[[], Iterable[Sample | Deferred]]
) -> Iterator[Sample | Deferred]:
    """What ``samples`` of ``dataset`` gives, one at a time and checked.

    Raises:
        ContractError: It gives something else, or raised what plugins do not raise.
    """
    expected = "Sample or Deferred"
    items = iter(
        ask("dataset", dataset, "samples", ask_samples, Iterable, f"an iterable of {expected}")
    )
    end = object()
    while True:
        item: Any = ask("dataset", dataset, "samples", lambda: next(items, end), object, "")
        if item is end:
            return
        wrong = mismatch("samples()", item, (Sample, Deferred), expected)
        if wrong is not None:
            raise blame("dataset", dataset, wrong)
        yield item


def make_sample(dataset: Dataset, item: Deferred) -> Sample:
    """The sample that ``item`` of ``dataset`` stands for.

    Raises:
        InputError: The data is bad, as the dataset says.
        ContractError: It gives something else, or raised what plugins do not raise.
    """
    return ask("dataset", dataset, "Deferred.make", item.make, Sample, "Sample")


def cards(source: ModelSource) -> list[ModelCard]:
    """What ``models`` of ``source`` lists; ContractError if that is something else."""
    return list_items("model source", source, "models", source.models, ModelCard)


def files(source: ModelSource, reference: str, cache: Path) -> list[Path]:
    """What ``fetch`` of ``source`` gives for ``reference``; ContractError if these are no files."""
    expected = "a list of paths"
    fetched: Sequence[Any] = ask(
        "model source",
        source,
        "fetch",
        lambda: source.fetch(reference, cache),
        (list, tuple),
        expected,
    )
    if not fetched:
        raise blame("model source", source, f"fetch() gave an empty list, expected {expected}")
    for path in fetched:
        wrong = mismatch("fetch()", path, Path, expected)
        if wrong is not None:
            raise blame("model source", source, wrong)
        if not path.is_file() and not path.is_symlink():  # a dead link is told by who opens it
            raise blame("model source", source, f"fetch() gave {path}, expected a file that exists")
    return list(fetched)


def check_pinned(source: ModelSource, reference: str, cache: Path) -> str:
    """What ``pinned`` of ``source`` gives for ``reference``; ContractError if it is no text."""
    call = partial(extras(source, ModelSourceExtras).pinned, reference, cache)
    return ask("model source", source, "pinned", call, str, "a text")
