"""Tables of findings over many models: by kind, by issue, by release, and between variants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from packaging.version import InvalidVersion, Version

from optvet.engine.campaign.tracker import KnownEntry, link_of
from optvet.spec.records.pass_tables import PassesAlone, pass_tables
from optvet.spec.records.report_table import ReportTable
from optvet.spec.studies import FaultRow, TrialRow, by_model, variants

Cell = str | int | float | None


def kinds(rows: Iterable[TrialRow]) -> ReportTable:
    """Faults by symptom, stage and proposed cause."""
    groups: dict[tuple[str, str, str], list[tuple[TrialRow, FaultRow]]] = {}
    for row, seen in _faults(rows):
        about = (str(seen.finding.symptom), seen.finding.stage, seen.cause.name)
        groups.setdefault(about, []).append((row, seen))
    ordered = sorted(groups.items(), key=lambda item: (-len(_issues(item[1])), item[0]))
    return ReportTable(
        title="Faults by symptom, stage and cause",
        note="Findings with one fingerprint are one issue; so are crashes of an optimizer at one "
        "stage whose messages differ only in names and numbers. Causes are guessed from messages, "
        "operators and the first wrong value; if these suggest none or several, it is unclear.",
        columns=["symptom", "stage", "cause", "issues", "models", "jobs"],
        rows=[
            [*about, len(_issues(found)), _models(found), len({row.key for row, _ in found})]
            for about, found in ordered
        ],
    )


def issues(rows: Iterable[TrialRow], known: Sequence[KnownEntry] | None) -> ReportTable:
    """Each issue once: its symptom, its proposed cause, and its link.

    Args:
        rows: Trials.
        known: Known findings; None leaves out the column.
    """
    groups: dict[str, list[tuple[TrialRow, FaultRow]]] = {}
    for row, seen in _faults(rows):
        groups.setdefault(seen.issue, []).append((row, seen))
    lines: list[list[Cell]] = []
    used: set[int] = set()
    for found in sorted(groups.values(), key=lambda f: -_models(f)):
        row, seen = found[0]
        culprits = dict.fromkeys(s.finding.blamed() for _, s in found)
        more = f" and {len(culprits) - 1} more" if len(culprits) > 1 else ""
        line: list[Cell] = [
            seen.fingerprint[:8],
            row.optimizer,
            str(seen.finding.symptom),
            f"{next(iter(culprits))}{more}",
            f"{seen.cause.name}: {seen.cause.evidence}".rstrip(": "),
            _models(found),
        ]
        if known is not None:
            entry = _find_entry(found, known)
            used |= {number for number, e in enumerate(known) if e is entry}
            line.append(entry.url if entry else "new")
        lines.append(line)
    columns = ["fingerprint", "optimizer", "symptom", "culprit", "cause", "models"]
    return ReportTable(
        title="Issues",
        note=_list_unused(known, used),
        columns=columns if known is None else [*columns, "tracked"],
        rows=lines,
    )


def _find_entry(
    found: Iterable[tuple[TrialRow, FaultRow]], known: Sequence[KnownEntry]
) -> KnownEntry | None:
    links = (link_of(known, s.fingerprint, row.optimizer, s.finding) for row, s in found)
    return next((entry for entry in links if entry is not None), None)


def _list_unused(known: Sequence[KnownEntry] | None, used: set[int]) -> str:
    unused = [e.url for number, e in enumerate(known or ()) if number not in used]
    return f"Known, but not found here: {', '.join(unused)}." if unused else ""


def _faults(rows: Iterable[TrialRow]) -> Iterator[tuple[TrialRow, FaultRow]]:
    return ((row, seen) for row in rows for seen in row.faults)


def _issues(found: Iterable[tuple[TrialRow, FaultRow]]) -> set[str]:
    return {seen.issue for _, seen in found}


def _models(found: Iterable[tuple[TrialRow, FaultRow]]) -> int:
    return len({row.digest for row, _ in found})


# --- releases and operator sets ------------------------------------------------------------------


def releases(rows: Iterable[TrialRow]) -> ReportTable:
    """Faults per release of each optimizer, over all given campaigns."""
    lines: list[list[Cell]] = []
    notes = []
    ordered = sorted((r for r in rows if r.judged), key=lambda r: r.optimizer)
    for optimizer, group in groupby(ordered, key=lambda r: r.optimizer):
        found = list(group)
        versions = sorted({row.version for row in found}, key=_release)
        lines += [_count([optimizer, v], [r for r in found if r.version == v]) for v in versions]
        shared = _in_all(found, versions)
        correlation = _correlation([(versions.index(r.version), len(_of(r))) for r in shared])
        if len(versions) > 1:
            notes.append(f"{optimizer}, models of every release: {correlation}")
    return ReportTable(
        title="Faults per release",
        note=f"{_SPEARMAN.format('release')} {'; '.join(notes)}." if notes else "",
        columns=["optimizer", "release", *_COUNTED],
        rows=lines,
    )


def operator_sets(rows: Iterable[TrialRow]) -> ReportTable:
    """Faults per version of the operator set that models import."""
    found = [row for row in rows if row.judged and row.opset is not None]
    lines = [
        _count([opset], [r for r in found if r.opset == opset])
        for opset in sorted({row.opset for row in found if row.opset is not None})
    ]
    correlation = _correlation([(r.opset, len(_of(r))) for r in found if r.opset is not None])
    return ReportTable(
        title="Faults per operator set",
        note=f"{_SPEARMAN.format('operator set')} {correlation}.",
        columns=["operator set", *_COUNTED],
        rows=lines,
    )


_COUNTED = ("models", "jobs", "faulty jobs", "share faulty", "issues")
_SPEARMAN = "Spearman's rank correlation of {} and issues per job:"


def _count(about: list[Cell], rows: Sequence[TrialRow]) -> list[Cell]:
    faulty = sum(row.faulty for row in rows)
    found = list(_faults(rows))
    models = len({row.digest for row in rows})
    return [*about, models, len(rows), faulty, faulty / len(rows), len(_issues(found))]


def _of(row: TrialRow) -> set[str]:
    return {seen.issue for seen in row.faults}


def _in_all(rows: Sequence[TrialRow], versions: Sequence[str]) -> list[TrialRow]:
    """Rows of models that were vetted under every release, so that the releases are comparable."""
    seen: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        seen.setdefault(_question(row), set()).add(row.version)
    return [row for row in rows if len(seen[_question(row)]) == len(versions)]


def _question(row: TrialRow) -> tuple[str, ...]:
    optimizer, _, *others = row.parts
    return (row.digest, optimizer, *others)


def _release(version: str) -> tuple[bool, Any]:
    """Sort key of a release; names that are not Python versions come first, by their letters."""
    try:
        return True, Version(version)
    except InvalidVersion:
        return False, version


def _correlation(pairs: Sequence[tuple[int, int]]) -> str:
    """Spearman's rho with its p-value, as text; or the reason why it is not defined.

    >>> _correlation([(1, 3), (2, 2), (3, 1), (4, 0)])
    'rho -1.00, p 0, n 4'
    >>> _correlation([(1, 0), (2, 0), (3, 0)])
    'not defined, since all of one side are equal'
    """
    if len(pairs) < _FEWEST:
        return f"not computed for fewer than {_FEWEST} jobs"
    first, second = zip(*pairs, strict=True)
    if len({*first}) < 2 or len({*second}) < 2:
        return "not defined, since all of one side are equal"
    if len({*first}) < _FEWEST:
        return f"not computed for fewer than {_FEWEST} different values"
    from scipy import stats  # Here, since importing it takes a second.

    found = stats.spearmanr(first, second)
    return f"rho {found.statistic:.2f}, p {found.pvalue:.2g}, n {len(pairs)}"


_FEWEST = 3

# --- variants ------------------------------------------------------------------------------------


def each_model(rows: Iterable[TrialRow]) -> ReportTable:
    """Each model under each variant: its error, or how it fails."""
    columns = variants(rows)
    models: dict[str, str] = {}
    for row in (r for group in columns.values() for r in group):
        models.setdefault(row.digest, row.model)
    cells = {name: by_model(group) for name, group in columns.items()}
    return ReportTable(
        title="Each model under each variant",
        note="A number is the error of the worst output, relative to its largest magnitude; ! "
        "marks a fault. Words name a failure.",
        columns=["model", *columns],
        rows=[
            [name, *(_describe_move(cells[variant].get(digest)) for variant in columns)]
            for digest, name in models.items()
        ],
    )


def _describe_move(row: TrialRow | None) -> str:
    if row is None:
        return ""
    size = "" if row.error is None else f"{row.error:.2g}"
    if row.outcome == "crashes":
        return next(str(s.finding.symptom) for s in row.faults if s.finding.stage != "compare")
    if row.outcome == "differs":
        return f"! {size or row.faults[0].finding.symptom}"
    return {"same": "0", "rounded": size or "rounded"}.get(row.outcome, row.outcome)


def each_pass(rows: Iterable[TrialRow]) -> list[ReportTable]:
    """Each model under each pass alone, a table for each comparator; none if no pass was."""
    found = []
    for name, group in variants(rows).items():
        found += [
            PassesAlone((row.model, row.opset, name), row.passes, row.round_trip)
            for row in group
            if row.round_trip is not None
        ]
    return pass_tables(found, ["model", "opset", "variant"])


def against_each_other(rows: Iterable[TrialRow]) -> ReportTable | None:
    """Pairs of variants: on how many models they differ; None if there is only one variant."""
    groups = {name: by_model(group) for name, group in variants(rows).items()}
    if len(groups) < 2:
        return None
    return ReportTable(
        title="Variants against each other",
        note="A cell counts models on which both variants gave a result, and only one keeps the "
        "outputs. Two wrong results may be equal: such models are counted with a question mark. "
        "Crashed: models on which a variant gave no result. A variant against itself: models "
        "that it changes.",
        columns=["", *groups],
        rows=[
            [name, *(_against(first, second) for second in groups.values())]
            for name, first in groups.items()
        ],
    )


def _against(a: Mapping[str, TrialRow], b: Mapping[str, TrialRow]) -> str:
    shared = [(a[d], b[d]) for d in a if d in b and a[d].judged and b[d].judged]
    crashed = sum("crashes" in (x.outcome, y.outcome) for x, y in shared)
    compared = Counter(
        (x.faulty, y.faulty) for x, y in shared if "crashes" not in (x.outcome, y.outcome)
    )
    differ = compared[True, False] + compared[False, True]
    both = compared[True, True]
    if a is b:
        differ, both = both, 0
    words = f"{differ} of {compared.total()}"
    words += f", {both}?" if both else ""
    return words + (f", {crashed} crashed" if crashed else "")
