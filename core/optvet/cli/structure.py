"""Describe operators of models and where they are executed, in a few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optvet.spec.records import Placement, VetResult
    from optvet.spec.records.structure import Structure

_OPERATORS = 6


def structure_words(result: VetResult) -> Mapping[str, str]:
    """Rows of the answer, by name, if ``--structure`` asked for them."""
    placements = result.placements
    if placements is None:
        return {}
    words = {}
    if result.structures is not None:
        before, after = result.structures.original, result.structures.optimized
        words["structure"] = "\n".join(
            [
                f"{before.nodes:,} nodes became {after.nodes:,}, "
                f"{before.size_bytes:,} bytes became {after.size_bytes:,}",
                f"most: {_operators(after)}",
            ]
        )
    known = (("before", placements.reference), ("after", placements.optimized))
    lines = [f"{when}: {_show_placement(found)}" for when, found in known if found is not None]
    lines += [f"not known: {placements.unknown}"] if placements.unknown else []
    return {**words, "executed": "\n".join(lines)}


def _operators(structure: Structure) -> str:
    ranked = sorted(structure.operators.items(), key=lambda item: -item[1])
    more = ["…"] * (len(ranked) > _OPERATORS)
    return ", ".join([f"{name} {count}" for name, count in ranked[:_OPERATORS]] + more)


def _show_placement(placement: Placement) -> str:
    counts = ", ".join(f"{count} on {name}" for name, count in placement.providers.items())
    slowest = ", ".join(f"{o.operator} {o.share:.0%}" for o in placement.operators[:3])
    return f"{counts or 'nothing'}; time: {slowest}" if slowest else counts or "nothing"
