"""Which roundings of a quantized model may have been left out, and which can be tried at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from optvet.engine.numerics.forced import CutRegion, Plain, alike, can_skip

CHOOSABLE, _VARIANTS = 4, 8
"""Up to so many roundings, all subsets are tried; up to so many, each alone."""


def choices_of(original: Plain, region: CutRegion) -> Iterator[tuple[str, ...]]:
    """Sets of quantizers of a region whose rounding may have been left out.

    Up to ``CHOOSABLE`` quantizers: every subset. More: all, every subset of up to ``CHOOSABLE``
    kinds of place (see ``alike``), and up to ``_VARIANTS`` each alone; a set costs a run of the
    model.
    """
    names = [n for n in region.inside if can_skip(original, n)]
    if len(names) <= CHOOSABLE:
        yield from _subsets([(n,) for n in names])
        return
    yield tuple(names)
    for operands in (False, True):
        every = alike(original, operands=operands)
        places = [p for p in (tuple(n for n in g if n in names) for g in every) if p]
        yield from _subsets(places) if len(places) <= CHOOSABLE else places
    if len(names) <= _VARIANTS:
        yield from ((name,) for name in names)


def in_batches(
    tried: Mapping[str, tuple[str, ...]], inside: Mapping[str, frozenset[str]]
) -> list[list[str]]:
    """The parts in batches within which no choice takes anything from another part."""
    batches: list[list[str]] = []
    for name, choice in tried.items():
        for batch in batches:
            if all(
                inside[name].intersection(tried[other]) <= set(choice)
                and inside[other].intersection(choice) <= set(tried[other])
                for other in batch
            ):
                batch.append(name)
                break
        else:
            batches.append([name])
    return batches


def _subsets(groups: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """The union of each subset of ``groups`` but the empty one, small ones first."""
    for size in range(1, len(groups) + 1):
        for chosen in itertools.combinations(groups, size):
            yield tuple(n for group in chosen for n in group)
