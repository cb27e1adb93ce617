"""Makes the content of the page from a report, in the order of the page."""

from __future__ import annotations

import base64
import io
import math
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from optvet.plugin import (
    CampaignReport,
    FindingFiles,
    ReportedFinding,
    ReportedTrial,
    ReportTable,
    WarningRecord,
)
from optvet_html.charts import Drawing, drawing_of

STATUSES = (
    "clean",
    "drift",
    "right",
    "found",
    "nothing-to-keep",
    "unmet",
    "faulty",
    "refused",
    "undecided",
    "error",
    "failed",
    "running",
    "queued",
)
"""Outcomes of jobs, as they are counted from left to right."""

_PICTURES, _BUNDLES = 1_600_000, 1_000_000
"""Bytes of all pictures and of all bundles, which keep the page below 5 MB."""
_PICTURE, _BUNDLE = 200_000, 200_000
"""Bytes of one."""
_WARNINGS = 50
"""Kinds of warnings shown of one job."""
_COLUMNS = 9
"""Metrics in a table."""


@dataclass(frozen=True)
class Cell:
    """A cell of the heat map: outcome, text, and the link to its section."""

    status: str
    words: str
    target: str = ""


@dataclass(frozen=True)
class Scale:
    """Positions of error and noise floor on a logarithmic scale from 0 to 100."""

    error: float
    noise: float | None
    ticks: Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Picture:
    """An image as a ``data:`` URL."""

    title: str
    source: str


@dataclass(frozen=True)
class Shown:
    """A finding as the page shows it.

    Attributes:
        anchor: Anchor of its section.
        state: "new", "known" or "note".
        models: Numbers of models in the filter.
        words: Text that the text filter searches.
        scale: None if there is no error with a size.
        pictures: Graphs before and after, if there are any.
        bundle: Its archive as a ``data:`` URL; empty if there is none.
        bundle_remark: Why there is no bundle, if one could be expected.
    """

    finding: ReportedFinding
    anchor: str
    state: str
    models: Sequence[int]
    words: str
    scale: Scale | None
    pictures: Sequence[Picture]
    bundle: str
    bundle_remark: str

    @property
    def error(self) -> float | None:
        """The largest error of all sightings."""
        return max((s.error for s in self.finding.sightings if s.error is not None), default=None)


@dataclass(frozen=True)
class WarnedJob:
    """A job with warnings that are new after optimization; ``left_out`` of them are not shown."""

    trial: ReportedTrial
    shown: Sequence[WarningRecord]
    left_out: int


@dataclass(frozen=True)
class View:
    """The page."""

    models: Sequence[str]
    questions: Sequence[str]
    heat: Mapping[str, Sequence[Cell | None]]
    counts: Sequence[tuple[str, int, float, float]]
    findings: Sequence[Shown]
    without: Sequence[ReportedTrial]
    warned: Sequence[WarnedJob]
    charts: Sequence[Drawing]
    tables: Sequence[ReportTable]

    @classmethod
    def of(cls, report: CampaignReport, files: FindingFiles) -> View:
        """The content of the page for ``report``."""
        models = list(dict.fromkeys(t.short_name for t in report.trials))
        questions = list(dict.fromkeys(t.question for t in report.trials))
        findings = list(_iter_shown(report, files, models))
        unjudged = ("refused", "undecided", "error", "failed")
        return cls(
            models=models,
            questions=questions,
            heat=_heat(report, models, questions, findings),
            counts=_counts(report.trials),
            findings=findings,
            without=[t for t in report.trials if t.status in unjudged],
            warned=list(_iter_warned(report.trials)),
            charts=[drawing_of(chart) for chart in report.charts],
            tables=[*report.tables, *_metrics(report.trials), _models(report.trials)],
        )

    def number(self, value: float | None) -> str:
        """A measured number in a few digits."""
        return "–" if value is None else f"{value:.3g}"

    def day(self, seconds: float) -> str:
        """A time, in UTC."""
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


# --- overview -------------------------------------------------------------------------------------


def _counts(trials: Sequence[ReportedTrial]) -> list[tuple[str, int, float, float]]:
    """Per outcome: number of jobs, and start and width of its part of a bar of length 100."""
    counted = Counter(t.status for t in trials)
    parts, start = [], 0.0
    for status in STATUSES:
        if counted[status]:
            width = 100 * counted[status] / len(trials)
            parts.append((status, counted[status], round(start, 3), round(width, 3)))
            start += width
    return parts


def _heat(
    report: CampaignReport,
    models: Sequence[str],
    questions: Sequence[str],
    findings: Sequence[Shown],
) -> dict[str, list[Cell | None]]:
    columns: dict[str, list[Shown]] = {}
    for shown in findings:
        for trial in shown.finding.trials:
            columns.setdefault(trial, []).append(shown)
    cells = {(t.short_name, t.question): _cell(t, columns.get(t.key, [])) for t in report.trials}
    return {model: [cells.get((model, q)) for q in questions] for model in models}


def _cell(trial: ReportedTrial, findings: Sequence[Shown]) -> Cell:
    faults = [s for s in findings if s.state != "note"]
    target = faults[0].anchor if faults else ""
    if faults and all(s.state == "known" for s in faults):
        return Cell("known", f"{len(faults)} known", target)
    if faults:
        new = sum(s.state == "new" for s in faults)
        return Cell("faulty", f"{new} fault" if new == 1 else f"{new} faults", target)
    return Cell(trial.status, trial.outcome, "without" if trial.error or trial.reason else "")


# --- findings -------------------------------------------------------------------------------------


def _iter_shown(
    report: CampaignReport, files: FindingFiles, models: Sequence[str]
) -> Iterator[Shown]:
    place = {name: i for i, name in enumerate(models)}
    pictures_left, bundles_left = _PICTURES, _BUNDLES
    for finding in report.findings:
        attached = files(finding)
        pictures = _pictures(attached)
        size = sum(len(content) for _, content in pictures)
        if size > min(_PICTURE, pictures_left):
            pictures, size = [], 0
        pictures_left -= size
        archive = _archive(attached) if attached else b""
        remark = ""
        if len(archive) > min(_BUNDLE, bundles_left):
            remark = f"too large for this page ({len(archive) / 1000:.0f} kB)"
            archive = b""
        bundles_left -= len(archive)
        names = list(dict.fromkeys(s.short_name for s in finding.sightings))
        yield Shown(
            finding=finding,
            anchor=f"finding-{finding.fingerprint[:16]}",
            state="known" if finding.known else "new" if finding.counts else "note",
            models=[place[n] for n in names if n in place],
            words=_words(finding, names),
            scale=_scale(finding.finding.error, finding.finding.noise_floor),
            pictures=[Picture(t, _url("image/svg+xml", content)) for t, content in pictures],
            bundle=_url("application/zip", archive) if archive else "",
            bundle_remark=remark,
        )


def _words(finding: ReportedFinding, names: Iterable[str]) -> str:
    parts = [finding.title, finding.message, finding.optimizer, finding.fingerprint, *names]
    return " ".join(parts).lower()


def _scale(error: float | None, noise: float | None) -> Scale | None:
    if error is None or not math.isfinite(error) or error <= 0:
        return None
    known = [v for v in (error, noise) if v is not None and math.isfinite(v) and v > 0]
    low = min(-9, math.floor(math.log10(min(known))))
    high = max(1, math.ceil(math.log10(max(known))))
    step = max(1, (high - low) // 5)

    def at(value: float) -> float:
        return round(100 * (math.log10(value) - low) / (high - low), 2)

    ticks = [(at(10.0**n), f"1e{n}" if n else "1") for n in range(low, high + 1, step)]
    floor = at(noise) if noise is not None and math.isfinite(noise) and noise > 0 else None
    return Scale(at(error), floor, ticks)


def _pictures(files: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    """Pictures before and after; of the region at fault if that is a part of the graph."""
    found = []
    for when in ("before", "after"):
        content = files.get(f"region-{when}.svg") or files.get(f"{when}.svg")
        if content:
            found.append((when, content))
    return found


def _archive(files: Mapping[str, bytes]) -> bytes:
    """A ZIP archive; equal files give equal bytes."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return target.getvalue()


def _url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _iter_warned(trials: Iterable[ReportedTrial]) -> Iterator[WarnedJob]:
    for trial in trials:
        if trial.warned:
            shown = trial.new_warnings[:_WARNINGS]
            yield WarnedJob(trial, shown, trial.warned - sum(w.new for w in shown))


# --- tables ---------------------------------------------------------------------------------------


def _metrics(trials: Sequence[ReportedTrial]) -> Iterator[ReportTable]:
    """The effect on the tasks of models: a table per comparator."""
    groups: dict[str, list[ReportedTrial]] = {}
    for trial in trials:
        if trial.impact is not None:
            groups.setdefault(trial.impact.comparator, []).append(trial)
    for comparator, group in groups.items():
        known = [(t, t.impact) for t in group if t.impact is not None]
        columns = _columns([impact.metrics for _, impact in known])
        rows: list[list[str | int | float | None]] = [
            [t.short_name, t.question, impact.headline, *map(impact.metrics.get, columns)]
            for t, impact in known
        ]
        yield ReportTable(
            title=f"Effect on the task: {comparator}",
            note="Optimized model against the original, over all samples.",
            columns=["model", "asked", "", *columns],
            rows=rows,
        )


def _columns(metrics: Sequence[Mapping[str, float | None]]) -> list[str]:
    """The first metrics, in the order in which the comparator declares them."""
    return list(dict.fromkeys(name for each in metrics for name in each))[:_COLUMNS]


def _models(trials: Sequence[ReportedTrial]) -> ReportTable:
    known = {t.short_name: t for t in trials if t.nodes is not None}
    rows: list[list[str | int | float | None]] = [
        [
            name,
            t.task or "–",
            t.nodes,
            None if t.size_bytes is None else round(t.size_bytes / 1000),
            ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in t.opsets.items()),
            t.samples,
        ]
        for name, t in known.items()
    ]
    columns = ["model", "task", "nodes", "kB", "operator sets", "samples"]
    return ReportTable(title="Models", columns=columns, rows=rows)
