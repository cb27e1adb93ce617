"""A search for precision in the words of a campaign: findings and numbers.

The whole answer stays in the store; what is made here is what tables of all jobs have in common.
"""

from __future__ import annotations

from collections.abc import Iterator

from optvet.engine.work.cache.cache_key import key
from optvet.spec.records.precision import PrecisionReading, PrecisionResult
from optvet.spec.records.vet import Finding
from optvet.spec.symptoms import Symptom


def findings_of_search(result: PrecisionResult) -> list[Finding]:
    """What is required and not met, whatever is kept; none if that is met, or not known."""
    if result.verdict != "unmet":
        return []
    # With what comes nearest first: the list, then everything kept, then nothing.
    readings = (*result.chosen, *result.none, *result.whole)
    missed = next((r for r in readings if r.met is False), None)
    required = missed.requirement if missed is not None else " and ".join(result.requirements)
    about = (result.optimizer.name, result.precision, result.requirements, result.model.digest)
    return [
        Finding(
            symptom=Symptom.REQUIREMENT,
            severity="requirement",
            stage="compare",
            culprit=[result.optimizer.name],
            confirmed=True,
            message=f"{required} is required; {result.reason}",
            requirement=required,
            measured=missed.measured if missed is not None else None,
            fingerprint=key("precision", *about)[:16],
        )
    ]


def numbers_of_search(result: PrecisionResult) -> Iterator[tuple[str, str, float | None]]:
    """Kind, name and value of each number of an answer."""
    yield "precision", "kept", len(result.kept)
    yield "precision", "parts", result.parts
    for name, readings in (("all converted", result.whole), ("list kept", result.chosen)):
        yield from _measured(name, readings)
    if result.mixed_size_bytes is not None:
        yield "precision", "mixed_size_bytes", result.mixed_size_bytes
    if result.timing is not None:
        yield "precision", "time ratio", result.timing.ratio
    yield "cost", "inferences", result.inferences
    yield "cost", "wall_s", result.wall_s
    yield "model", "nodes", result.model.nodes
    yield "model", "size_bytes", result.model.size_bytes
    yield "model", "samples", result.samples


def _measured(
    name: str, readings: list[PrecisionReading]
) -> Iterator[tuple[str, str, float | None]]:
    for reading in readings:
        yield "precision", f"{name}: {reading.requirement}", reading.measured
