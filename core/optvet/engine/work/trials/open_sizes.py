"""Which open sizes of inputs the original computes with, and which it only leaves undeclared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from optvet.graph.interface import HasInterface, Place, feeds_of_size, fixed_sizes, with_sizes
from optvet.spec.types import Model, Sample

Refuses = Callable[[Sample], bool]
"""Whether the original raises an error on a sample, or the standard has no answer for it."""


def with_only_sizes(
    model: Model, candidate: HasInterface, samples: Sequence[Sample], refuses: Refuses
) -> Model:
    """The original with the sizes fixed that ``candidate`` fixes, where it computes with no other.

    Who declares that a matrix has the only size that its product allows takes nothing from any
    caller. The original is run with a size that is larger by one, with 1, and with twice the size:
    where it does not refuse one, or where a sample has another size, the size is open.

    Args:
        model: The original.
        candidate: What an optimizer made of it.
        samples: Inputs on which the original runs, at least one.
        refuses: Whether it has no answer for a further one.
    """
    fixed = fixed_sizes(model, candidate)
    only = {p: n for p, n in fixed.items() if not _is_open(model, p, n, samples, refuses)}
    return replace(model, inputs=with_sizes(model.inputs, only)) if only else model


def _is_open(
    model: Model, place: Place, size: int, samples: Sequence[Sample], refuses: Refuses
) -> bool:
    name, axis = place
    others = [s for s in samples if name in s.feeds and np.shape(s.feeds[name])[axis] != size]
    same = next(
        (s for s in samples if name in s.feeds and np.shape(s.feeds[name])[axis] == size), None
    )
    if same is None:
        return True
    sizes = dict.fromkeys((size + 1, 1, 2 * size))
    others += [_resized(model, same, place, n) for n in sizes if n != size]
    return not all(map(refuses, others))


def _resized(model: Model, sample: Sample, place: Place, size: int) -> Sample:
    feeds: Mapping[str, np.ndarray] = feeds_of_size(model.inputs, sample.feeds, place, size)
    return Sample(f"{sample.id}-{place[0]}-{place[1]}-{size}", feeds)
