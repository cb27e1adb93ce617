"""Tables of passes alone: a row for each model and pass, with what the model after it comes to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from optvet.spec.records.report_table import ReportTable
from optvet.spec.records.vet import PassNumbers, PassRecord

Cell = str | int | float | None

ROUND_TRIP = "import and export"
_NOTE = (
    "The model after the pass and nothing else, beside the original. Passes that leave the model "
    "as import and export alone do are counted in one row. Error and noise are those of the worst "
    "output, relative to its largest magnitude."
)


@dataclass(frozen=True)
class PassesAlone:
    """The passes that were tried alone on one model.

    Attributes:
        about: The cells that tell which model and which job it was.
        records: One per pass.
        round_trip: The numbers of import and export alone.
    """

    about: tuple[Cell, ...]
    records: Sequence[PassRecord]
    round_trip: PassNumbers

    @property
    def comparator(self) -> str:
        """Who compared the outputs; empty if nobody did."""
        every = (self.round_trip, *(r.numbers for r in self.records))
        return next((n.impact.comparator for n in every if n is not None and n.impact), "")


def pass_tables(
    found: Sequence[PassesAlone], about: Sequence[str] = (), most: int | None = None
) -> list[ReportTable]:
    """A table for each comparator, since each has metrics of its own.

    Args:
        found: The models; each has a cell for each column of ``about``.
        about: The columns that tell which model it was.
        most: The number of metrics that are shown, in the comparator's order; None for all.
    """
    groups: dict[str, list[PassesAlone]] = {}
    for one in found:
        groups.setdefault(one.comparator, []).append(one)
    return [_table(name, those, about, most) for name, those in groups.items()]


def _table(
    comparator: str, found: Sequence[PassesAlone], about: Sequence[str], most: int | None
) -> ReportTable:
    every = [n for one in found for n in _numbers_of(one)]
    metrics = list(dict.fromkeys(m for n in every if n.impact for m in n.impact.metrics))[:most]
    timed = any(n.timing is not None for n in every)
    time = ["time ratio", "low", "high"] if timed else []
    columns = [*about, "pass", "effect", "verdict", "symptom", "error", "noise", "nodes", "bytes"]
    return ReportTable(
        title=f"Each pass alone{f', {comparator}' if comparator else ''}",
        note=_NOTE,
        columns=[*columns, *time, "warnings", "changed", "samples", *metrics],
        rows=[row for one in found for row in _rows(one, metrics, timed=timed)],
    )


def _numbers_of(one: PassesAlone) -> Iterable[PassNumbers]:
    yield one.round_trip
    yield from (r.numbers for r in one.records if r.numbers is not None)


def _rows(one: PassesAlone, metrics: Sequence[str], *, timed: bool) -> Iterable[list[Cell]]:
    def row(name: str, effect: str, symptom: str, n: PassNumbers | None, warned: int) -> list[Cell]:
        return [*one.about, name, effect, *_cells(n, symptom, warned, metrics, timed=timed)]

    yield row(ROUND_TRIP, "", "", one.round_trip, 0)
    idle = 0
    for record in one.records:
        if record.effect == "none" and not record.warnings:
            idle += 1
            continue
        symptom = str(record.symptom or "")
        yield row(record.name, record.effect, symptom, record.numbers, len(record.warnings))
    if idle:
        yield row(f"{idle} others", "none", "", None, 0)


def _cells(
    numbers: PassNumbers | None,
    symptom: str,
    warned: int,
    metrics: Sequence[str],
    *,
    timed: bool,
) -> list[Cell]:
    if numbers is None:
        return ["", symptom, *[None] * (4 + 3 * timed), warned, None, None, *[None] * len(metrics)]
    worst, built, impact = numbers.worst, numbers.structure, numbers.impact
    timing = numbers.timing
    time = [timing.ratio, timing.low, timing.high] if timing is not None else [None] * 3
    return [
        numbers.verdict,
        symptom,
        worst.error if worst else None,
        worst.noise_floor if worst else None,
        built.nodes if built else None,
        built.size_bytes if built else None,
        *(time if timed else ()),
        warned,
        impact.changed if impact else None,
        impact.samples if impact else None,
        *(impact.metrics.get(name) if impact else None for name in metrics),
    ]
