"""Short names of models, and of what was asked of each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from optvet.spec.records.campaign import TrialSummary


def short_model(reference: str) -> str:
    """A model's name in tables: the file name of a path, or the whole name of a model source.

    >>> short_model("a/b/c.onnx"), short_model("zoo:alexnet")
    ('c.onnx', 'zoo:alexnet')
    """
    scheme, colon, _ = reference.partition(":")
    if (colon and scheme.isidentifier()) or "/" not in reference:
        return reference
    return Path(reference).name


def short_models(references: Iterable[str]) -> dict[str, str]:
    """The name of each model in a table of them: short where no other has the same short name.

    >>> short_models(["a/x.onnx", "b/x.onnx", "b/y.onnx"])
    {'a/x.onnx': 'a/x.onnx', 'b/x.onnx': 'b/x.onnx', 'b/y.onnx': 'y.onnx'}
    """
    short = {reference: short_model(reference) for reference in references}
    taken = Counter(short.values())
    return {whole: name if taken[name] == 1 else whole for whole, name in short.items()}


_PARTS: Sequence[Callable[[TrialSummary], str]] = (
    lambda t: t.options,
    lambda t: t.dataset,
    lambda t: t.runtime,
    lambda t: t.comparator,
)


def questions(trials: Sequence[TrialSummary]) -> dict[str, tuple[str, ...]]:
    """What each trial asked, by its key: a column of a table whose rows are models.

    That is the optimizer, the pipeline, and what else differs between trials of one model. What
    goes with the model, such as a dataset of its own, tells no questions apart.
    """
    differing = [part for part in _PARTS if _differs_for_a_model(part, trials)]
    parts = (lambda t: t.optimizer, lambda t: t.pipeline, *differing)
    return {t.key: tuple(words for part in parts if (words := part(t))) for t in trials}


def _differs_for_a_model(
    part: Callable[[TrialSummary], str], trials: Sequence[TrialSummary]
) -> bool:
    values: dict[str, set[str]] = {}
    for trial in trials:
        values.setdefault(trial.model, set()).add(part(trial))
    return any(len(found) > 1 for found in values.values())
