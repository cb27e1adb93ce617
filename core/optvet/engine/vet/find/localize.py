"""Finds the passes that cause a fault, for any optimizer; the only side effects are the test's.

A test answers for one pass sequence: *fails* (it shows the fault under search), *passes*, or
*unresolved* (another fault, or the sequence cannot be built). No decision is based on an
unresolved test. The caller memoizes tests. Passes are identified by position, since a pass may be
listed twice.

Source: Zeller and Hildebrandt 2002, "Simplifying and Isolating Failure-Inducing Input" (ddmin).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal

Answer = Literal["fails", "passes", "unresolved"]
Sequence_ = tuple[str, ...]
Test = Callable[[Sequence_], Answer]


def first_bad_prefix(
    pipeline: Sequence[str],
    test: Test,
    *,
    required: Collection[str] = (),
    suspects: Collection[str] | None = None,
) -> int:
    """The length of a prefix that fails although the next shorter prefix does not fail.

    Precondition: ``pipeline`` fails, and its required passes alone do not. Bisection finds *some*
    such prefix, also if failing is not monotonic in the length; the last pass of the prefix is a
    culprit in the context of those before it.

    Args:
        pipeline: Passes in order.
        test: See the module.
        required: Passes that are in every test, also those after the prefix: without them the
            optimizer makes no model that can be tested.
        suspects: Passes that the optimizer reports as changing the model. Only prefixes that end
            with one of them, and the whole pipeline, are tested. Other passes stay in the prefix.
    """
    ends = [i + 1 for i, name in enumerate(pipeline) if name not in required]
    if suspects is not None:
        ends = [k for k in ends[:-1] if pipeline[k - 1] in suspects] + ends[-1:]
    # Invariant: the prefix at ``high`` fails, that at ``low`` is not known to. An unresolved prefix
    # moves ``low``: only a failing one may become the answer.
    low, high = 0, len(ends)
    while high - low > 1:
        middle = (low + high) // 2
        if test(with_required_passes(pipeline, ends[middle - 1], required)) == "fails":
            high = middle
        else:
            low = middle
    return ends[high - 1] if ends else len(pipeline)


def with_required_passes(
    pipeline: Sequence[str], length: int, required: Collection[str]
) -> Sequence_:
    """The first ``length`` passes, and all required passes after them."""
    return tuple(n for i, n in enumerate(pipeline) if i < length or n in required)


def minimal_sequence(
    pipeline: Sequence[str], test: Test, *, required: Collection[str] = ()
) -> Sequence_:
    """A subsequence that fails, but does not fail without any one of its passes (1-minimal).

    Precondition: ``pipeline`` fails. Its last optional pass is tried alone first; then a small set
    of its predecessors is searched with which it fails. Passes in ``required`` are in every test,
    but not in the answer.
    """
    fixed = [i for i, name in enumerate(pipeline) if name in required]
    optional = [i for i, name in enumerate(pipeline) if name not in required]

    def fails(positions: Sequence[int]) -> bool:
        return test(tuple(pipeline[i] for i in sorted({*fixed, *positions}))) == "fails"

    # Required passes that fail by themselves leave no pass to choose.
    if not optional or (fixed and fails([])):
        return ()
    *before, last = optional
    # The last pass is needed by construction: without it the prefix does not fail. Most often it is
    # enough, for one trial in place of a search among those before it.
    if fails([last]):
        kept = [last]
    else:
        kept = [*ddmin(before, lambda part: fails([*part, last])), last]
    # ddmin never tried to leave out ``last``, and what it kept early may not be needed any more.
    kept = _one_minimal(kept, fails)
    return tuple(pipeline[i] for i in kept)


def minimal_set(
    pipeline: Sequence[str], test: Test, *, required: Collection[str] = ()
) -> Sequence_:
    """A 1-minimal subset of a failing ``pipeline`` that fails, in the pipeline's order."""
    fixed = [i for i, name in enumerate(pipeline) if name in required]
    optional = [i for i, name in enumerate(pipeline) if name not in required]

    def fails(positions: Sequence[int]) -> bool:
        return test(tuple(pipeline[i] for i in sorted({*fixed, *positions}))) == "fails"

    return tuple(pipeline[i] for i in _one_minimal(ddmin(optional, fails), fails))


def ddmin(items: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> list[int]:
    """A small subset of ``items`` that fails, in their order; ``items`` itself fails."""
    kept, parts = list(items), 2
    while len(kept) >= 2:
        size = -(-len(kept) // parts)
        chunks = [kept[i : i + size] for i in range(0, len(kept), size)]
        # Subsets before complements: one that fails removes the most at once.
        chunk = next((c for c in chunks if fails(c)), None)
        if chunk is not None:
            kept, parts = chunk, 2
            continue
        rest = next(
            (r for c in chunks if len(chunks) > 2 and fails(r := [i for i in kept if i not in c])),
            None,
        )
        if rest is not None:
            # One part fewer keeps the size of the parts, so that none is cut anew after each
            # success.
            kept, parts = rest, max(parts - 1, 2)
        # Parts are single items and none can be left out: nothing finer exists.
        elif parts >= len(kept):
            break
        else:
            parts = min(parts * 2, len(kept))
    # The loop never tries the empty set, and a property may not need any item.
    if len(kept) == 1 and fails([]):
        return []
    return kept


def _one_minimal(kept: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> list[int]:
    """Remove single items while the remaining ones fail."""
    kept = list(kept)
    index = 0
    while index < len(kept):
        rest = kept[:index] + kept[index + 1 :]
        if rest and fails(rest):
            # Start over: a member that was necessary before may not be so now.
            kept, index = rest, 0
        else:
            index += 1
    return kept
