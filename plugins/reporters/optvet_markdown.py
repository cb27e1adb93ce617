"""A summary in Markdown, short enough for the page of a CI job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from optvet.plugin import Reporter, hookimpl, markdown_block, markdown_code, markdown_text

if TYPE_CHECKING:
    from optvet.plugin import CampaignReport, FindingFiles, ReportedFinding, ReportedTrial

_ROWS = 20
_CHARS = 160
_CODES = 10


class MarkdownReporter:
    """Counts, findings, and jobs without a verdict."""

    name = "markdown"
    suffix = ".md"
    preference = 100

    def render(self, report: CampaignReport, files: FindingFiles) -> str:
        """The document."""
        return "\n".join(_lines(report)) + "\n"


_WITHOUT_VERDICT = ("refused", "undecided", "error", "failed")


def _lines(report: CampaignReport) -> Iterator[str]:
    yield f"## optvet: {_cell(report.name)}\n"
    yield f"{_outcome(report)}\n"
    judged = ("clean", "drift", "right", "found", "nothing-to-keep", "unmet", "faulty")
    names = (*judged, *_WITHOUT_VERDICT, "queued", "running")
    tally: dict[str, Counter[str]] = {}
    for trial in report.trials:
        tally.setdefault(trial.question, Counter())[trial.status] += 1
    seen = [n for n in names if any(counts[n] for counts in tally.values())]
    rows = [[q, *(str(counts[n] or "") for n in seen)] for q, counts in tally.items()]
    yield from _table(["", *seen], rows)
    yield from _verified(report.trials)
    for table in report.tables:
        if table.brief:
            yield f"### {_cell(table.title)}\n"
            cells = [["" if v is None else str(v) for v in row] for row in table.rows]
            yield from _table(table.columns, cells)
    yield from _findings("Findings", [f for f in report.findings if f.counts])
    yield from _findings("Known findings", [f for f in report.findings if f.known])
    yield from _findings("Notes", [f for f in report.findings if not f.counts and not f.known])
    without = [t for t in report.trials if t.status in _WITHOUT_VERDICT]
    if without:
        yield f"### Without a verdict: {len(without)}\n"
        rows = [[t.short_name, t.question, t.status, t.why] for t in without]
        yield from _table(["model", "asked", "", "reason"], rows)
    yield from _warnings(report.trials)
    if report.fixed:
        yield f"### Fixed: {len(report.fixed)}\n"
        fixed = [[k.symptom, " → ".join(k.culprit), k.optimizer, k.note] for k in report.fixed]
        yield from _table(["symptom", "passes", "optimizer", ""], fixed)


def _verified(trials: Sequence[ReportedTrial]) -> Iterator[str]:
    """What to use in place of what is at fault: configuration, and code to paste, each once."""
    faulty = [t for t in trials if t.replaced]
    if not faulty:
        return
    yield f"### Verified, to use instead: {len(faulty)}\n"
    for each in faulty[:_ROWS]:
        about = _cell(f"{each.short_name}, {each.question}")
        yield f"- {about}: {markdown_code(each.verified.words)}"
    if len(faulty) > _ROWS:
        yield f"- … and {len(faulty) - _ROWS} more"
    yield ""
    codes: dict[str, list[str]] = {}
    for trial in faulty:
        if trial.verified.code:
            codes.setdefault(trial.verified.code, []).append(trial.short_name)
    for code, names in list(codes.items())[:_CODES]:
        yield f"For {_cell(_names(names))}:\n"
        yield f"{markdown_block(code, 'python')}\n"
    if len(codes) > _CODES:
        yield f"… and {len(codes) - _CODES} more in the other formats\n"


def _outcome(report: CampaignReport) -> str:
    counted = [f for f in report.findings if f.counts]
    models = {m for f in counted for m in f.models}
    every = len({t.model for t in report.trials})
    answered = sum(t.state in ("done", "failed") for t in report.trials)
    jobs = _counted(len(report.trials), "job")
    if answered < len(report.trials):
        jobs = f"{answered} of {jobs}"
    if not counted:
        new = "new " if any(f.known for f in report.findings) else ""
        return f"**No {new}findings** on {_counted(every, 'model')}, in {jobs}."
    found = _counted(len(counted), "finding")
    return f"**{found}** on {len(models)} of {_counted(every, 'model')}, in {jobs}."


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _findings(title: str, found: Sequence[ReportedFinding]) -> Iterator[str]:
    if not found:
        return
    yield f"### {title}: {len(found)}\n"
    rows = [
        [
            f"{f.symptom} ({remark})" if (remark := f.remark()) else f.symptom,
            *f.facts().values(),
            f.blamed() if f.culprit else "import and export",
            _models(f),
            f.message,
        ]
        for f in found
    ]
    yield from _table(["symptom", *found[0].facts(), "passes", "models", ""], rows)


def _warnings(trials: Iterable[ReportedTrial]) -> Iterator[str]:
    """New warnings, folded away: equal ones of several jobs are one row."""
    jobs: dict[tuple[str, str, str], list[tuple[str, int]]] = {}
    for trial in trials:
        for each in trial.new_warnings:
            key = each.message, each.by, each.stage
            jobs.setdefault(key, []).append((trial.short_name, each.new))
    if not jobs:
        return
    total = sum(new for group in jobs.values() for _, new in group)
    yield f"<details><summary>New warnings after optimization: {total}</summary>\n"
    rows = [
        [*key, str(sum(new for _, new in group)), _names(name for name, _ in group)]
        for key, group in jobs.items()
    ]
    yield from _table(["warning", "by", "stage", "new", "models"], rows)
    yield "</details>\n"


def _models(finding: ReportedFinding) -> str:
    return _names(s.short_name for s in finding.sightings)


def _names(every: Iterable[str]) -> str:
    names = list(dict.fromkeys(every))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(_cell(h) for h in head)} |"
    yield f"|{' --- |' * len(head)}"
    yield from (f"| {' | '.join(_cell(c) for c in row)} |" for row in rows[:_ROWS])
    if len(rows) > _ROWS:
        yield f"\n… and {len(rows) - _ROWS} more"
    yield ""


def _cell(text: str) -> str:
    return markdown_text(text, _CHARS)


@hookimpl
def optvet_reporters() -> Iterable[Reporter]:
    """The reporter of this module."""
    return [MarkdownReporter()]
