"""The screen of `optvet vet`, of one model; it fits into 80 columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from optvet.cli.layers import layers_text
from optvet.cli.render import (
    LABEL_COLUMNS,
    VERDICT_COLOURS,
    count,
    middle,
    node_line,
    number,
    table_of,
    text,
    timing_costs,
    timing_line,
    warm_up_words,
)
from optvet.cli.structure import structure_words
from optvet.cli.terminal import one_line
from optvet.cli.warned import warnings_table, warnings_text
from optvet.spec.records import (
    Control,
    CrossCheck,
    DatasetRecord,
    Divergence,
    FixedTolerance,
    Impact,
    RequirementRecord,
)
from optvet.spec.records.vet import NOT_ASKED, Finding, VetResult
from optvet.spec.request import VetRequest

_MESSAGE_CHARS = 300
_BRIEF_CHARS = 130
_CODE_LINES = 16
_LISTED_CHANGING = 12
_LISTED_METRICS = 4
_LISTED_DIVERGENCES = 4
_LISTED_NODES = 6
_LISTED_SITES = 3
_ANSWER_CHARS = 120
_TYPE = re.compile(r"^(?:\w+\.)+(\w+:)")


def screen(result: VetResult, request: VetRequest) -> Iterator[RenderableType]:
    """All parts of the screen below the verdict, without the next command."""
    yield from first_part(result, request)
    yield from details(result, request, explain=True)
    yield from code(result)


def first_part(result: VetResult, request: VetRequest) -> Iterator[RenderableType]:
    """Show the faults, their effect on the task, and the verified pipeline."""
    faults = _faults(result)
    yield Padding(_subject(result, request), (0, 0, 1 if faults else 0, 0))
    if faults:
        yield _findings(faults)
    rows: list[tuple[str, RenderableType]] = []
    if result.reason:
        rows.append(("because", text(_words(result.reason), "yellow")))
    shown = "\n".join(map(_brief_words, faults))
    if result.impact is not None and result.impact.headline not in shown:
        rows.append(("impact", text(result.impact.headline)))
    if result.impact is not None and result.impact.changed and _are_made_up(result):
        words = "random noise, no data of the task: give yours with --dataset"
        rows.append(("inputs", text(words, "yellow")))
    rows.append(("verified", text(_safe(result, request))))
    yield _grid(rows)


def _are_made_up(result: VetResult) -> bool:
    """Whether only the default inputs were used: nobody named a dataset or declared one."""
    return [d.chosen_by for d in result.datasets] == [NOT_ASKED]


def _faults(result: VetResult) -> list[Finding]:
    return [f for f in result.findings if f.severity != "note"]


def details(result: VetResult, request: VetRequest, *, explain: bool) -> Iterator[RenderableType]:
    """Show where values differ, passes, warnings, and facts: all, or those of consequence."""
    faults = _faults(result)
    yield Text()
    for finding in [f for f in faults if f.divergence is not None][:_LISTED_DIVERGENCES]:
        yield Padding(_where(finding, len(faults) > 1), (0, 0, 1, 0))
    if result.passes_alone:
        yield Padding(_passes(result), (0, 0, 1, 0))
    if request.warnings and result.warnings:
        yield Padding(warnings_table(result.warnings), (0, 0, 1, 0))
    yield _facts(result, request, explain)


def code(result: VetResult) -> Iterator[Text]:
    """The optimizer's own call of the verified pipeline, to be pasted; where to find a long one."""
    if not result.safe_code or result.safe_pipeline == result.optimizer.pipeline:
        return
    lines = [line for line in result.safe_code.splitlines() if line.strip()]
    label = Text(f"{'as code':<{LABEL_COLUMNS}}", style="dim")
    if len(lines) > _CODE_LINES:
        words = f"{count(len(lines), 'line')} of Python: see safe_code in the output of --json FILE"
        yield label.append_text(text(words, "not dim"))
        return
    yield label
    # At the margin and a line each, whatever the width: what is pasted is Python.
    yield text("\n".join(["def optimize(model):", *(f"    {line}" for line in lines)]))


def headline(result: VetResult) -> Text:
    """Verdict and model; and in a line each, what changed of the answer, and what is not met."""
    verdict = result.verdict.upper()
    line = Text(f"{verdict:<{LABEL_COLUMNS - 1}} ", style=f"bold {VERDICT_COLOURS[result.verdict]}")
    line.append_text(text(result.model.source, "not bold default"))
    impact = result.impact
    # If there is a fault that changes answers, its finding says what it means.
    if impact is not None and impact.changed + impact.sensitive and result.verdict != "faulty":
        _append_line(line, one_line(impact.headline, _ANSWER_CHARS), "yellow")
    elif impact is not None and not impact.changed and result.verdict == "faulty":
        line.append_text(text(f"; {_unmoved(impact)}", "not bold yellow"))
    for record in result.requirements:
        if record.met is False:
            words = f"not met: {record.requirement} ({record.detail})"
            _append_line(line, one_line(words, 2 * _ANSWER_CHARS), "red")
    return line


def _unmoved(impact: Impact) -> str:
    """State in few words that the answers of the task are unchanged."""
    return f"no answer of {count(impact.samples, 'compared sample')} changed"


def _append_line(to: Text, words: str, style: str) -> None:
    indented = f"\n{'':<{LABEL_COLUMNS}}{words}"
    to.append_text(text(indented, f"not bold {style}"))


def _subject(result: VetResult, request: VetRequest) -> Table:
    optimizer, runtime = result.optimizer, result.runtime
    passes = count(len(optimizer.pipeline), "pass", "es")
    pipeline = f"{request.pipeline}, {passes}" if _is_named(result, request) else passes
    words = (
        f"{optimizer.name} {optimizer.version} ({pipeline}), "
        f"judged by {runtime.name} {runtime.version} on {count(result.samples, 'sample')}"
    )
    return _grid([("", text(words, "dim"))])


def _is_named(result: VetResult, request: VetRequest) -> bool:
    """Whether the pipeline was asked for by name, not as a list of passes."""
    return "," not in request.pipeline and [request.pipeline] != result.optimizer.pipeline


def _grid(rows: Sequence[tuple[str, RenderableType]]) -> Table:
    """A table with labels on the left and values on the right."""
    grid = Table.grid(padding=(0, 0))
    grid.add_column(width=LABEL_COLUMNS, style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in rows:
        grid.add_row(label, value)
    return grid


def _findings(findings: Sequence[Finding]) -> Table:
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
        table.add_row(symptom, _blame(finding), *numbers)
    return table


def culprit_of(finding: Finding) -> Text:
    """``a → b``, or the round trip; a line of its own for each, since names are long."""
    if not finding.culprit:
        return Text("round trip (import and export alone)")
    if not finding.localized:
        return text(finding.blamed())
    return text(" →\n".join(finding.culprit))


def _blame(finding: Finding) -> Text:
    """The culprit, the witness, whether it was confirmed, and the message."""
    blame = culprit_of(finding)
    blame.stylize("bold")
    where = f" on {finding.witness.sample}" if finding.witness is not None else ""
    # On one line where it fits: two findings are read with what to do about them on 12 lines.
    if finding.confirmed:
        blame.append_text(text(f"  confirmed{where}", "not bold green"))
    else:
        blame.append_text(text(f"  seen{where}, not again in a fresh process", "not bold yellow"))
    if finding.as_deployed:
        blame.append("\nonly under the runtime's own defaults", "dim")
    if words := _brief_words(finding):
        blame.append_text(text(f"\n{words}"))
    for line in _elsewhere(finding):
        blame.append_text(text(f"\n{line}", "dim"))
    return blame


def _brief_words(finding: Finding) -> str:
    """What differs, without its middle if it is long: the end often says what is wrong."""
    return middle(_words(_difference(finding), 0), _BRIEF_CHARS)


def _difference(finding: Finding) -> str:
    """The message, the known limit, the consequence, and partners of the culprit."""
    parts = [finding.known_limit, finding.message]
    parts += [f"also with {' then '.join(partner)}" for partner in finding.partners]
    return "; ".join(part for part in [*parts, finding.consequence, finding.location] if part)


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
    rows += [("", text(one_line(words, _ANSWER_CHARS))) for words in found.differs]
    if found.whole:
        rows.append(("", text("these are all nodes of the model", "dim")))
    rows += _sites(found)
    if found.note:
        rows.append(("", text(one_line(found.note, _ANSWER_CHARS), "dim")))
    return _grid(rows)


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


def _words(message: str, limit: int = _MESSAGE_CHARS) -> str:
    """A message on one line; of an exception's type only the last part: ``a.b.Error: …``."""
    return one_line(_TYPE.sub(r"\1", message), limit)


def _passes(result: VetResult) -> Table:
    """The result of each pass alone; passes not seen to change anything are only counted."""
    table = table_of(("pass alone", ""), ("effect", ""), ("", "dim"))
    others = Counter[str]()
    for record in result.passes_alone:
        if record.effect in ("none", "unknown"):
            others[record.effect] += 1
            continue
        failed = record.effect == "failed"
        remark = str(record.symptom) if failed else ""
        if failed and record.known_limit:
            remark = f"{remark}; documented: {record.known_limit}"
        style = "red" if failed and not record.known_limit else ""
        table.add_row(text(record.name), Text(record.effect, style), text(remark))
    for effect in ("unknown", "none"):
        if others[effect] or effect == "none":
            table.add_row(Text(f"{others[effect]} others", "dim"), Text(effect, "dim"), "")
    return table


def _facts(result: VetResult, request: VetRequest, explain: bool) -> Table:
    """Facts about the verdict, in the order of what is shown; some only to ``explain`` it."""
    rows: list[tuple[str, RenderableType]] = []
    for finding in result.findings:
        if finding.severity == "note":
            rows.append(("note", _note(finding)))
        elif len(words := _words(_difference(finding), 3 * _MESSAGE_CHARS)) > _BRIEF_CHARS:
            rows.append(("message", text(words)))
    if described := _inputs(result):
        rows.append(("inputs", text(described)))
    supporting = _supporting(result)
    carrying = supporting.keys() if explain else _carrying(result, request)
    rows += [(name, row) for name, row in supporting.items() if name in carrying]
    if result.requirements:
        rows.append(("required", text("\n".join(map(_requirement, result.requirements)))))
    if result.timing is not None:
        parts = [timing_line(result.timing), timing_costs(result.timing)]
        parts.append(warm_up_words([result.timing]))
        rows.append(("timing", text("\n".join(part for part in parts if part))))
    if request.fixed_tolerances and result.fixed_tolerances:
        rows.append(("fixed", text("\n".join(map(_show_fixed_tolerance, result.fixed_tolerances)))))
    if words := warnings_text(result.warnings, in_table=request.warnings):
        rows.append(("warnings", text(words, "dim")))
    rows += [(name, text(words)) for name, words in structure_words(result).items()]
    if hidden := [name for name in supporting if name not in carrying]:
        rows.append(("more", text(f"--explain shows {', '.join(hidden)}", "dim")))
    return _grid(rows)


def _supporting(result: VetResult) -> dict[str, Text]:
    """Facts that a verdict rests on, by label."""
    controls = (_control(c) for c in result.controls if c.name != "samples")
    rows = {"controls": text("; ".join(controls))}
    if result.outputs:
        rows["outputs"] = text(_outputs(result))
    if result.quantized is not None:
        rows["layers"] = text(layers_text(result.quantized))
    if result.impact is not None:
        rows["metrics"] = text(_metrics(result.impact), "dim")
    if result.changing_passes is not None:
        rows["changing"] = text(_changing_passes(result))
    rows["cost"] = text(_cost(result))
    return rows


def _carrying(result: VetResult, request: VetRequest) -> set[str]:
    """Labels of the facts without which the part above is not understood."""
    names = set[str]()
    if any(c.state not in ("passed", "not-needed") for c in result.controls):
        names |= {"controls"}
    if result.verdict != "faulty" and any(o.verdict != "same" for o in result.outputs):
        names |= {"outputs"}
    if result.verdict != "clean":
        names |= {"layers"}
    if request.comparator is not None or not _are_made_up(result):
        names |= {"metrics"}
    if result.passes_alone:
        names |= {"changing"}
    return names


def _control(control: Control) -> str:
    return f"{control.name}: {one_line(control.detail, 100) or control.state.replace('-', ' ')}"


def _inputs(result: VetResult) -> str:
    """The datasets, unless only the default one was used, and samples that were left out."""
    plain = _are_made_up(result) and not result.skipped
    words = [] if plain else [_dataset(d) for d in result.datasets]
    if result.skipped:
        first = result.skipped[0]
        reason = one_line(f"{first.sample}: {first.reason}", _MESSAGE_CHARS)
        words.append(f"{count(len(result.skipped), 'sample')} left out, the first {reason}")
    if not result.complete and (control := result.control("samples")) is not None:
        words.append(control.detail)
    return "\n".join(words)


def _dataset(record: DatasetRecord) -> str:
    provenance = "; ".join(f"{k} {v}" for k, v in record.provenance.items())
    why = "" if record.chosen_by == "--dataset" else f" ({record.chosen_by})"
    line = f"{record.name}{why}, {count(record.samples, 'sample')}"
    return f"{line}: {provenance}" if provenance else line


def _metrics(impact: Impact) -> str:
    """Who compared the outputs as the model's task does, and the numbers."""
    metrics = [f"{k} {number(v)}" for k, v in impact.metrics.items()]
    shown = ", ".join(metrics[:_LISTED_METRICS]) + (", …" * (len(metrics) > _LISTED_METRICS))
    who = f"{impact.comparator} ({impact.chosen_by})"
    return f"{who}{': ' if shown else ''}{shown}"


def _show_fixed_tolerance(record: FixedTolerance) -> str:
    """How many samples, and which outputs, exceed a fixed tolerance."""
    named = [f"{n} on {k}" for n, k in record.outputs.items() if k]
    shown = f": {', '.join(named[:3])}{', …' if len(named) > 3 else ''}" if named else ""
    size = f"rtol {record.rtol:g}, atol {record.atol:g}"
    return f"{record.beyond} of {record.samples} samples beyond {record.name} ({size}){shown}"


def _requirement(record: RequirementRecord) -> str:
    """Whether it is met, what was measured, and who requires it if the user did not type it."""
    how = {True: "met", False: "not met", None: "cannot be measured"}[record.met]
    who = "" if record.origin.startswith("--") else f", required by {record.origin}"
    by = f" ({record.comparator})" if record.comparator else ""
    return f"{record.requirement}: {how}, {one_line(record.detail, _MESSAGE_CHARS)}{by}{who}"


def _changing_passes(result: VetResult) -> str:
    """Which passes changed the model, and who says so."""
    names = result.changing_passes or []
    listed = ", ".join(names[:_LISTED_CHANGING]) + (", …" * (len(names) > _LISTED_CHANGING))
    if result.passes_alone:
        return listed or "no pass"
    if not names:
        return "no pass, by the optimizer's log"
    return f"at most {count(len(names), 'pass', 'es')}, by the optimizer's log: {listed}"


def _note(finding: Finding) -> Text:
    who = finding.blamed()
    words = [f"{finding.symptom}, {who}: {_words(_difference(finding))}", *_elsewhere(finding)]
    return text("\n".join(words), "dim")


def _elsewhere(finding: Finding) -> list[str]:
    """The results on other runtimes, one line each."""
    return [f"on {c.runtime}: {one_line(_answer(c), _ANSWER_CHARS)}" for c in finding.cross_check]


def _answer(check: CrossCheck) -> str:
    """The result on one runtime, in words."""
    if check.outcome in ("not-judged", "does-not-run"):
        return check.detail
    words = {"no-fault": "no fault", "runs": "runs it"}.get(check.outcome, str(check.symptom))
    remark = ", but it computes the original differently" if check.same_original is False else ""
    return words + remark


def _outputs(result: VetResult) -> str:
    """How many outputs have which verdict; those that are not the same by name."""
    words = {
        "drift": "rounded differently",
        "sensitivity": "sensitive to rounding",
        "fault": "wrong",
        "flaky": "not deterministic",
        "not-judged": "not judged",
    }
    groups = Counter(o.verdict for o in result.outputs)
    parts = []
    for verdict, amount in groups.items():
        part = f"{amount} {words.get(verdict, verdict)}"
        members = [o for o in result.outputs if o.verdict == verdict]
        if verdict != "same":
            shown = ", ".join(o.name for o in members[:3])
            part += f" ({shown}{', …' if amount > 3 else ''})"
        worst = max(members, key=lambda o: o.error or 0.0)
        if verdict in ("drift", "sensitivity") and worst.error:
            part += f", error {number(worst.error)}"
            if worst.noise_floor is not None:
                part += f", noise floor {number(worst.noise_floor)}"
            if verdict == "drift" and worst.detail:
                part += f" ({worst.detail})"
        parts.append(part)
    return "; ".join(parts)


def _safe(result: VetResult, request: VetRequest) -> str:
    """The vetted safe pipeline, as ``--pipeline`` takes it."""
    whole, safe = result.optimizer.pipeline, result.safe_pipeline
    name = f"the pipeline {request.pipeline!r}" if _is_named(result, request) else "the pipeline"
    if safe == whole and (safe or result.verdict != "faulty"):
        unless = " (no fault was found)" if result.verdict == "undecided" else ""
        return f"all of {name}{unless}"
    if not safe:
        if any(not f.localized for f in result.findings):
            return "not searched: --strategy is none"
        if result.verdict != "faulty" and any(r.met is False for r in result.requirements):
            return "No pipeline meets the requirements."
        return "No safe pipeline."
    return f"--pipeline {result.safe_option}"


def _cost(result: VetResult) -> str:
    cost = result.cost
    if not (cost.applications or cost.inferences):
        return f"nothing was run, all from the cache; {cost.wall_s:.1f} s"
    return (
        f"{count(cost.applications, 'application')}, {count(cost.inferences, 'inference')}, "
        f"{cost.wall_s:.1f} s"
    )
