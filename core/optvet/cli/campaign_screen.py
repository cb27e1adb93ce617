"""Campaigns as rich renderables."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from optvet.cli.convert import headline as converted_headline
from optvet.cli.convert import screen as converted_screen
from optvet.cli.errors import CLEAN, FINDINGS, NOTHING, UNDECIDED, worst
from optvet.cli.precision import headline as precision_headline
from optvet.cli.precision import pasted
from optvet.cli.precision import screen as precision_screen
from optvet.cli.render import count, table_of, text
from optvet.cli.terminal import one_line
from optvet.cli.vet_screen import headline, screen
from optvet.engine.campaign.display_names import questions, short_model, short_models
from optvet.engine.campaign.results import JobResult
from optvet.spec.campaign import JobRequest, kind_of
from optvet.spec.records.campaign import (
    CampaignDiff,
    CampaignStatus,
    CampaignSummary,
    FindingGroup,
    TrialSummary,
)
from optvet.spec.request import VetRequest, arguments_of

_COLOURS = {
    "clean": "green",
    "drift": "green",
    "right": "green",
    "found": "green",
    "nothing-to-keep": "green",
    "unmet": "red",
    "faulty": "red",
    "undecided": "yellow",
    "refused": "yellow",
}
_INTACT = ("clean", "drift", "right", "nothing-to-keep")
_LISTED_MODELS = 3
_COLUMNS = 6
"""With more columns than this, trials are shown as a list in place of a matrix."""


def exit_code(found: CampaignSummary) -> int:
    """The exit code of a campaign: that of its worst job, without known findings."""
    codes = [FINDINGS] * any(group.counts for group in found.findings)
    for trial in found.trials:
        if trial.verdict is None or trial.verdict == "undecided":
            codes.append(UNDECIDED)
        elif trial.verdict == "refused":
            codes.append(NOTHING)
        elif trial.exit_code is not None:
            codes.append(trial.exit_code)
    return worst(codes) if codes else CLEAN


def summary(found: CampaignSummary, *, quiet: bool) -> Iterator[RenderableType]:
    """Verdicts as a matrix, findings as a list, and one line of totals."""
    if not quiet:
        yield _matrix(found.trials)
        if shown := [g for g in found.findings if g.counts or g.known]:
            yield Padding(_findings(shown), (1, 0, 0, 0))
        for entry in found.fixed:
            who = f"{entry.optimizer}: {entry.symptom}, {' → '.join(entry.culprit) or 'round trip'}"
            yield text(f"fixed  {entry.fingerprint[:8]}  {who}", "green")
        for entry in found.unseen:
            words = f"{entry.fingerprint[:8]} of the baseline was not looked for, or not judged"
            yield text(f"unseen  {words}", "dim")
        if refused := [t for t in found.trials if t.verdict == "refused"]:
            yield Padding(_reasons("refused", "yellow", refused), (1, 0, 0, 0))
        if errors := [t for t in found.trials if t.error and t.verdict != "refused"]:
            yield Padding(_reasons("no result", "magenta", errors), (1, 0, 0, 0))
        yield Text()
    yield _totals(found)


def _totals(found: CampaignSummary) -> Text:
    """``CAMPAIGN name  110 jobs: 80 clean, 20 drift, 10 faulty; 4 findings``."""
    verdicts = Counter(t.verdict or t.state for t in found.trials)
    new = [g for g in found.findings if g.counts]
    line = text(found.name, "bold")
    parts = ", ".join(f"{amount} {name}" for name, amount in sorted(verdicts.items()))
    line.append_text(text(f"  {count(len(found.trials), 'job')}: {parts}", "not bold"))
    known = sum(g.known for g in found.findings)
    counts = f"; {count(len(new), 'finding')}"
    if known or found.fixed or found.unseen:
        counts = f"; {count(len(new), 'new finding')}, {known} known, {len(found.fixed)} fixed"
    notes = sum(not (g.counts or g.known) for g in found.findings)
    counts += f", {count(notes, 'note')}" if notes else ""
    return line.append_text(text(counts, "not bold red" if new else "not bold"))


def show_plan(name: str, requests: Sequence[JobRequest]) -> Iterator[RenderableType]:
    """What a campaign would ask: its models, and the options of each variant."""
    models = dict.fromkeys(request.model for request in requests)
    amounts = f"{count(len(requests), 'job')} on {count(len(models), 'model')}"
    line = text(name, "bold").append_text(text(f"  {amounts}", "not bold"))
    yield line
    yield text(_several([short_model(model) for model in models]), "dim")
    variants = Counter(
        (
            kind_of(request),
            shlex.join(arguments_of(request, "", ("cache_dir", "jobs", "trust"))[1:]),
        )
        for request in requests
    )
    for (command, words), amount in variants.items():
        yield text(f"{amount} x optvet {command} {words}")


# --- trials --------------------------------------------------------------------------------------


def _matrix(trials: Sequence[TrialSummary]) -> Table:
    """A row per model, a column per optimizer and pipeline; a list for too many columns."""
    rows = list(dict.fromkeys(t.model for t in trials))
    columns_asked = questions(trials)
    columns = list(dict.fromkeys(columns_asked.values()))
    if len(columns) > _COLUMNS:
        return _list(trials)
    cells = {(trial.model, columns_asked[trial.key]): trial for trial in trials}
    table = table_of(("model", ""))
    for label in _labels(columns):
        table.add_column(text(label), overflow="fold")
    for model, name in short_models(rows).items():
        found = (cells.get((model, column)) for column in columns)
        table.add_row(text(name), *map(_cell, found))
    return table


def _labels(columns: Sequence[tuple[str, ...]]) -> list[str]:
    """Column heads: the optimizer, and what is not the same in all columns."""
    shared = set[str]().union(*columns).intersection(*(column[1:] for column in columns))
    heads = ((column[0], *(w for w in column[1:] if w not in shared)) for column in columns)
    return ["\n".join(words) for words in heads]


def _cell(trial: TrialSummary | None) -> Text:
    if trial is None:
        return Text("")
    if trial.verdict is None:
        return Text(trial.state, "dim")
    return Text(trial.outcome, _COLOURS.get(trial.verdict, "magenta"))


def _list(trials: Sequence[TrialSummary]) -> Table:
    table = table_of(("model", ""), ("optimizer", ""), ("pipeline", ""), ("verdict", ""))
    for trial in trials:
        if trial.verdict not in _INTACT:
            setting = " ".join(part for part in (trial.pipeline, trial.options) if part)
            cells = (text(trial.optimizer), text(one_line(setting, 40)), _cell(trial))
            table.add_row(text(short_model(trial.model)), *cells)
    intact = sum(t.verdict in _INTACT for t in trials)
    table.add_row(Text(f"{intact} others", "dim"), "", "", Text("intact", "green"))
    return table


def _reasons(title: str, style: str, trials: Sequence[TrialSummary]) -> Table:
    """Jobs without a verdict on the model, one row per reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for trial in trials:
        words = one_line(trial.error or trial.reason, 200)
        groups.setdefault((trial.optimizer, words), []).append(short_model(trial.model))
    table = table_of((title, style), ("reason", ""), ("models", ""))
    for (optimizer, words), models in groups.items():
        table.add_row(text(optimizer), text(words), text(_several(models)))
    return table


# --- findings ------------------------------------------------------------------------------------


def _findings(groups: Sequence[FindingGroup]) -> Table:
    heads = ("finding", *groups[0].facts(), "what", "models")
    table = table_of(*((head, "") for head in heads))
    for group in groups:
        what = text(f"{group.symptom}: ", "dim" if group.known else "red")
        what.append_text(text(group.blamed(), "bold not red"))
        remarks = ", ".join(filter(None, (group.remark(), "known" if group.known else "")))
        if remarks:
            what.append(f" ({remarks})", "dim not bold")
        models = [short_model(model) for model in group.models]
        cells = (*map(text, group.facts().values()), what, text(_several(models)))
        table.add_row(text(group.fingerprint[:8]), *cells)
    return table


def _several(names: Sequence[str]) -> str:
    more = len(names) - _LISTED_MODELS
    return "\n".join([*names[:_LISTED_MODELS], *([f"and {more} more"] if more > 0 else [])])


def one_trial(trial: JobResult, width: int) -> Iterator[RenderableType]:
    """One trial, as the command that it is like shows it."""
    if trial.result is not None and isinstance(trial.request, VetRequest):
        yield headline(trial.result)
        yield from screen(trial.result, trial.request)
        return
    if trial.conversion is not None:
        yield converted_headline(trial.conversion)
        yield from converted_screen(trial.conversion)
        return
    if trial.precision is not None:
        yield precision_headline(trial.precision)
        yield from precision_screen(trial.precision)
        yield from pasted(trial.precision, width)
        return
    line = Text(f"{(trial.verdict or trial.state).upper()}  ", "bold magenta")
    yield line.append_text(text(trial.model, "not bold default"))
    if trial.error is not None:
        yield text(trial.error.message)


def diff(found: CampaignDiff) -> Iterator[RenderableType]:
    """New findings, findings that are gone, and changed verdicts."""
    for name, (before, after) in found.versions.items():
        yield text(f"{name} {before or '–'} → {after or '–'}", "dim")
    for label, colour, groups in (("new", "red", found.new), ("fixed", "green", found.fixed)):
        if groups:
            yield Padding(Text(label, f"bold {colour}"), (1, 0, 0, 0))
            yield _findings(groups)
    if found.verdicts:
        table = table_of(("model", ""), ("optimizer", ""), ("before", ""), ("after", ""))
        for item in found.verdicts:
            verdicts = (Text(v, _COLOURS.get(v, "")) for v in (item.before, item.after))
            table.add_row(text(short_model(item.model)), text(item.optimizer), *verdicts)
        yield Padding(table, (1, 0, 0, 0))
    yield Text()
    parts = [
        count(found.shared, "shared job"),
        f"{len(found.new)} new",
        f"{len(found.fixed)} fixed",
    ]
    parts.append(count(found.same, "finding") + " in both")
    if found.only_a or found.only_b:
        parts.append(f"{found.only_a} jobs in A alone, {found.only_b} in B alone")
    yield text("; ".join(parts), "bold")


# --- status --------------------------------------------------------------------------------------


def status(found: CampaignStatus) -> Iterator[RenderableType]:
    """Campaigns by number, and the running jobs."""
    table = table_of(("campaign", ""), ("number", "dim"), ("done", ""), ("", ""))
    for item in found.campaigns:
        total = item.queued + item.running + item.done + item.failed
        states = {"failed": item.failed, "running": item.running, "queued": item.queued}
        words = ", ".join(f"{amount} {state}" for state, amount in states.items() if amount)
        if item.work_left_s and (item.queued or item.running):
            words += f"; {duration(item.work_left_s)} of work left"
        done = f"{item.done}/{total}"
        table.add_row(text(item.name), str(item.number), done, text(words or "complete"))
    yield table
    if found.running:
        yield Text()
    for job in found.running:
        owner = "" if job.alive else ", by a process that is gone"
        words = f"{job.optimizer} on {short_model(job.model)}, for {duration(job.since_s)}{owner}"
        yield text(f"running  {words}", "dim")


def duration(seconds: float) -> str:
    """A duration in seconds as text.

    >>> duration(7), duration(95), duration(7300)
    ('7 s', '1 min 35 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
