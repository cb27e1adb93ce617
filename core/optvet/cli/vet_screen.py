"""The screen of `optvet vet`, of one model; it fits into 80 columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from optvet.cli.render import (
    LABEL_COLUMNS,
    VERDICT_COLOURS,
    count,
    first_clauses,
    middle,
    node_line,
    number,
    table_of,
    text,
)
from optvet.cli.tables import shown_table
from optvet.cli.terminal import one_line
from optvet.cli.vet_facts import (
    ANSWER_CHARS,
    BRIEF_CHARS,
    MADE_UP,
    append_line,
    append_unmet,
    are_inputs_made_up,
    difference_words,
    facts_table,
    labelled_grid,
    message_words,
    runtime_answers,
)
from optvet.cli.warned import warnings_table
from optvet.spec.records import Divergence, Impact
from optvet.spec.records.pass_tables import PassesAlone, pass_tables
from optvet.spec.records.saved import Saved
from optvet.spec.records.verified import is_named, verified_of
from optvet.spec.records.vet import Exercise, Finding, VetResult
from optvet.spec.request import VetRequest
from optvet.spec.symptoms import Symptom

_CODE_LINES, _CODE_CHARS = 40, 3000
_PATH = re.compile(r"[\w./+-]*")
_LISTED_DIVERGENCES = 4
_LISTED_LOSSES = 3
_LISTED_METRICS = 8
_LISTED_NODES = 6
_LISTED_SITES = 3
_LISTED_REGIONS = 3


def screen(result: VetResult, request: VetRequest) -> Iterator[RenderableType]:
    """All parts of the screen below the verdict, without the next command."""
    yield subject(result, request)
    yield from to_use(result, request)
    yield from first_part(result, request)
    yield from details(result, request, explain=True)
    yield from code_to_paste(result, request)


def first_part(result: VetResult, request: VetRequest) -> Iterator[RenderableType]:
    """Show the faults and their effect on the task."""
    faults = _faults(result)
    listed = _listed(result, faults)
    if listed:
        yield Text()
        yield _findings(listed, result.runtime.name if result.judge else "")
    if more := len(faults) - len(listed):
        words = f"… {more} more lists of nodes that are too much to convert, in --json"
        yield Padding(text(words, "dim"), (0, 0, 1, 0))
    rows: list[tuple[str, RenderableType]] = []
    if result.reason:
        rows.append(("because", text(message_words(result.reason), "yellow")))
    shown = "\n".join(map(_brief_words, faults))
    told = result.impact is not None and _leads(result.impact, result)
    if result.impact is not None and not told and result.impact.headline not in shown:
        where = ", in the clean room" if any(f.as_deployed for f in faults) else ""
        rows.append(("impact", text(result.impact.headline + where)))
    if result.impact is not None and result.impact.changed and are_inputs_made_up(result):
        rows.append(("inputs", text(MADE_UP, "yellow")))
    if rows:
        yield labelled_grid(rows)


def to_use(result: VetResult, request: VetRequest) -> Iterator[Text]:
    """The verified pipeline, and the file that was saved."""
    found = verified_of(result, request.pipeline)
    yield _verified(found.words, result.exercise)
    yield from saved_lines(found.saved)


def code_to_paste(result: VetResult, request: VetRequest) -> Iterator[Text]:
    """The code of the verified pipeline, which stands last: it may be long."""
    yield from code_lines(verified_of(result, request.pipeline).code)


def _verified(words: str, found: Exercise | None) -> Text:
    """The verified pipeline on one line, so that it can be copied; or why there is none.

    Below it the rewritten parts that no sample exercised.
    """
    line = Text(f"{'verified':<{LABEL_COLUMNS}}", style="dim")
    line.append_text(text(words, "not dim"))
    if found is None or not found.unexercised:
        return line
    number, all_ = len(found.unexercised), count(found.regions, "rewritten region")
    verb = "was" if number == 1 else "were"
    samples = count(found.samples, "sample")
    append_line(line, f"but {number} of {all_} {verb} not fully exercised by {samples}:", "yellow")
    for region in found.unexercised[:_LISTED_REGIONS]:
        append_line(line, one_line("; ".join(region.why), ANSWER_CHARS), "")
    if number > _LISTED_REGIONS:
        append_line(line, f"… {number - _LISTED_REGIONS} more in --json", "")
    return line


def _faults(result: VetResult) -> list[Finding]:
    return [f for f in result.findings if f.severity != "note"]


def _listed(result: VetResult, faults: list[Finding]) -> list[Finding]:
    """Findings that are shown: all, but few where each is a part that becomes less precise.

    Then there is no wrong pass: any part may lose too much, alone or with others. Those alone
    come first.
    """
    if not result.optimizer.precision:
        return faults
    lossy = sorted((f for f in faults if f.stage == "compare"), key=lambda f: len(f.culprit))
    return [*(f for f in faults if f.stage != "compare"), *lossy[:_LISTED_LOSSES]]


def details(result: VetResult, request: VetRequest, *, explain: bool) -> Iterator[RenderableType]:
    """Show where values differ, passes, warnings, and facts: all, or those of consequence."""
    faults = _faults(result)
    yield Text()
    shown = [f for f in _listed(result, faults) if f.divergence is not None]
    for finding in shown[: 1 if result.optimizer.precision else _LISTED_DIVERGENCES]:
        yield Padding(_where(finding, len(faults) > 1), (0, 0, 1, 0))
    if result.passes_alone:
        yield Padding(_passes(result), (0, 0, 1, 0))
    if explain and result.round_trip is not None:
        alone = PassesAlone((), result.passes_alone, result.round_trip)
        for table in pass_tables([alone], most=_LISTED_METRICS):
            yield from shown_table(table)
            yield Text()
    if request.warnings and result.warnings:
        yield Padding(warnings_table(result.warnings), (0, 0, 1, 0))
    yield facts_table(result, request, explain)


def saved_lines(saved: Saved | None) -> Iterator[Text]:
    """What was written, on lines that can be copied; or why nothing was."""
    if saved is None:
        return
    line = Text(f"{'saved':<{LABEL_COLUMNS}}", style="dim")
    first, *rest = saved.lines()
    line.append_text(text(first, "not dim" if saved.path else "not dim red"))
    for words in rest:
        append_line(line, words, "")
    yield line
    if saved.command:
        again = Text(f"{'again':<{LABEL_COLUMNS}}", style="dim")
        yield again.append_text(text(saved.command, "not dim"))


def code_lines(code: str) -> Iterator[Text]:
    """The code to paste; where to find a long one."""
    if not code:
        return
    lines = code.splitlines()
    label = Text(f"{'as code':<{LABEL_COLUMNS}}", style="dim")
    if len(lines) > _CODE_LINES or len(code) > _CODE_CHARS:
        words = f"{count(len(lines), 'line')} of Python: see safe_code in the output of --json FILE"
        yield label.append_text(text(words, "not dim"))
        return
    yield label
    # At the margin and a line each, whatever the width: what is pasted is Python.
    yield text(code)


def headline(result: VetResult, *, about: str = "", fail_on: Collection[str] = ()) -> Text:
    """Verdict and model; and in a line each, what changed of the answer, and what is not met.

    ``about`` is added to the model; notes of the kinds ``fail_on`` are what the exit code tells.
    """
    verdict = result.verdict.upper()
    line = Text(f"{verdict:<{LABEL_COLUMNS - 1}} ", style=f"bold {VERDICT_COLOURS[result.verdict]}")
    named = f"{result.model.source}, {about}" if about else result.model.source
    line.append_text(text(named, "not bold default"))
    impact = result.impact
    if impact is not None and _leads(impact, result):
        append_line(line, one_line(impact.headline, ANSWER_CHARS), "yellow")
    elif _is_unmoved(result) and impact is not None:
        line.append_text(text(f"; {_unmoved(impact)}", "not bold yellow"))
    append_unmet(line, result.requirements)
    counted = sorted({f.symptom for f in result.findings if f.symptom in fail_on})
    if counted:
        append_line(line, f"fails by --fail-on: {', '.join(counted)}", "red")
    return line


def _leads(impact: Impact, result: VetResult) -> bool:
    """Whether changed answers stand below the verdict; of a fault, its finding tells them."""
    return result.verdict != "faulty" and bool(impact.changed + impact.sensitive)


def _is_unmoved(result: VetResult) -> bool:
    """Whether no answer changed despite a fault. As shipped, answers are not compared."""
    shipped = any(f.as_deployed for f in result.findings)
    changed = result.impact is None or result.impact.changed
    return result.verdict == "faulty" and not shipped and not changed


def _unmoved(impact: Impact) -> str:
    """State in few words that the answers of the task are unchanged."""
    return f"no answer of {count(impact.samples, 'compared sample')} changed"


def subject(result: VetResult, request: VetRequest) -> Table:
    """Optimizer, pipeline, judge and number of samples."""
    optimizer, judge = result.optimizer, result.judge or result.runtime
    passes = count(len(optimizer.pipeline), "pass", "es")
    pipeline = f"{request.pipeline}, {passes}" if is_named(result, request.pipeline) else passes
    words = (
        f"{optimizer.name} {optimizer.version} ({pipeline}), "
        f"judged by {judge.name} {judge.version} on {count(result.samples, 'sample')}"
    )
    return labelled_grid([("", text(words, "dim"))])


def _findings(findings: Sequence[Finding], tested: str) -> Table:
    """``tested`` is the runtime under test, if one is."""
    table = table_of(("symptom", "red"), ("culprit and failing sample", ""))
    sized = any(f.error is not None or f.noise_floor is not None for f in findings)
    if sized:
        table.add_column("error", justify="right", no_wrap=True)
        table.add_column("noise", justify="right", no_wrap=True)
    for finding in findings:
        numbers = (number(finding.error), number(finding.noise_floor)) if sized else ()
        symptom = text(finding.symptom)
        if remark := finding.remark():
            symptom.append(f"\n({remark})", "dim")
        table.add_row(symptom, _blame(finding, tested), *numbers)
    return table


def culprit_of(finding: Finding, tested: str) -> Text:
    """``a → b``, or the round trip; a line of its own for each, since names are long."""
    if finding.as_deployed and not finding.culprit:
        return text(finding.blamed())
    if not finding.culprit and tested:
        return text(f"{tested}, its import or its kernels")
    if not finding.culprit:
        return Text("round trip (import and export alone)")
    if not finding.localized:
        return text(finding.blamed())
    return text(" →\n".join(finding.culprit))


def _blame(finding: Finding, tested: str = "") -> Text:
    """The culprit, the witness, whether it was confirmed, and the message."""
    blame = culprit_of(finding, tested)
    blame.stylize("bold")
    where = f" on {finding.witness.sample}" if finding.witness is not None else ""
    # On one line where it fits: two findings are read with what to do about them on 12 lines.
    if finding.confirmed:
        blame.append_text(text(f"  confirmed{where}", "not bold green"))
    else:
        blame.append_text(text(f"  seen{where}, not again in a fresh process", "not bold yellow"))
    if finding.as_deployed:
        parts = ", ".join(finding.runtime_parts) if finding.culprit else ""
        words = "only as shipped, not in the clean room"
        blame.append_text(text(f"\n{words}{parts and f': {parts}'}", "dim"))
    if words := _brief_words(finding):
        blame.append_text(text(f"\n{words}"))
    if finding.set_aside:
        blame.append_text(text(f"\n{finding.set_aside}", "yellow"))
    for line in runtime_answers(finding):
        blame.append_text(text(f"\n{line}", "dim"))
    return blame


def _brief_words(finding: Finding) -> str:
    """What differs, without its middle if it is long: the end often says what is wrong.

    Without the noise too, which stands in its own column, and without the folders of files.
    """
    from optvet.engine.judge.words import noise_remark

    words = message_words(difference_words(finding), 0)
    words = _without_folders(words.replace(noise_remark(finding.noise_floor), ""))
    own = not Symptom(finding.symptom).info.failed
    return middle(first_clauses(words, BRIEF_CHARS) if own else words, BRIEF_CHARS)


def _without_folders(words: str) -> str:
    """``words`` with "c.h:273" in place of "/a/b/c.h:273"; in linear time, for any message.

    >>> _without_folders("at /a/b/c.h:273: see https://a.b/c/d.e and a/b")
    'at c.h:273: see https://a.b/c/d.e and a/b'
    """
    return " ".join(map(_file_name, words.split(" ")))


def _file_name(word: str) -> str:
    folder, _, name = word.rpartition("/")
    in_folders = "/" in folder and "." in name and _PATH.fullmatch(folder) is not None
    return name if in_folders else word


def _where(finding: Finding, several: bool) -> Table:
    """The first wrong value, the nodes that make it in both graphs, and the wrong sites."""
    found = finding.divergence
    assert found is not None
    rows: list[tuple[str, RenderableType]] = []
    if several:
        rows.append(("", text(finding.blamed(), "dim")))
    if found.value is not None:
        line = text(one_line(found.value), "bold")
        words = " is the first value that differs by more than its noise"
        if finding.layer is not None:
            words = " is wrong for the quantized values that it is computed from"
        if found.error is not None:
            words += f": error {number(found.error)}, noise {number(found.noise)}"
        rows.append(("where", line.append_text(text(words, "not bold"))))
    if found.agreeing:
        rows.append(("from", text(node_line(", ".join(found.agreeing)), "dim")))
    for label, lines in (("before", found.before), ("after", found.after)):
        rows.append((label, _nodes(lines)))
    rows += [("", text(one_line(words, ANSWER_CHARS))) for words in found.differs]
    if found.whole:
        rows.append(("", text("these are all nodes of the model", "dim")))
    rows += _sites(found)
    if found.note:
        rows.append(("", text(one_line(found.note, ANSWER_CHARS), "dim")))
    return labelled_grid(rows)


def _nodes(lines: Sequence[str]) -> Text:
    """The nodes, each on a line of its own; a dash where there is none."""
    shown = [node_line(line) for line in lines[:_LISTED_NODES]]
    if len(lines) > _LISTED_NODES:
        shown.append(f"… {count(len(lines) - _LISTED_NODES, 'more line')}")
    return text("\n".join(shown) or "–")


def _sites(found: Divergence) -> list[tuple[str, RenderableType]]:
    """Which of several rewritten places are wrong by themselves, and what is special in them."""
    if found.tried < 2:
        return []
    rows: list[tuple[str, RenderableType]] = []
    for site in found.wrong[:_LISTED_SITES]:
        words = f"{site.kind} {site.number} of {site.of}, {site.node}"
        rows.append(("site", text(node_line(words))))
    if len(found.wrong) > _LISTED_SITES:
        rows.append(("", text(f"… {len(found.wrong) - _LISTED_SITES} more", "dim")))
    rows += [("", text(words)) for words in found.distinction]
    rows.append(("", text(_show_tried_sites(found), "dim")))
    return rows


def _show_tried_sites(found: Divergence) -> str:
    tried = f"{found.tried} of {count(found.sites, 'rewritten place')} tried alone"
    return f"{tried}: {len(found.wrong)} wrong" if found.wrong else f"{tried}: none wrong alone"


def _passes(result: VetResult) -> Table:
    """The result of each pass alone; passes not seen to change anything are only counted."""
    table = table_of(("pass alone", ""), ("effect", ""), ("", "dim"))
    others = Counter[str]()
    for record in result.passes_alone:
        if record.effect in ("none", "unknown") and not record.warnings:
            others[record.effect] += 1
            continue
        failed = record.effect == "failed"
        remarks = [str(record.symptom)] if failed else []
        if failed and record.known_limit:
            remarks.append(f"documented: {record.known_limit}")
        remarks += [f'warning: "{one_line(words, ANSWER_CHARS)}"' for words in record.warnings]
        style = "red" if failed and not record.known_limit else ""
        table.add_row(text(record.name), Text(record.effect, style), text("; ".join(remarks)))
    for effect in ("unknown", "none"):
        if others[effect] or effect == "none":
            table.add_row(Text(f"{others[effect]} others", "dim"), Text(effect, "dim"), "")
    return table
