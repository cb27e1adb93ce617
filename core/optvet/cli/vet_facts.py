"""Facts about a verdict on the screen of `optvet vet`: inputs, controls, outputs, the cost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from optvet.cli.layers import layers_text
from optvet.cli.render import (
    LABEL_COLUMNS,
    count,
    number,
    text,
    timing_costs,
    timing_line,
    warm_up_words,
)
from optvet.cli.structure import structure_words
from optvet.cli.terminal import one_line
from optvet.cli.warned import warnings_text
from optvet.spec.records import (
    Control,
    CrossCheck,
    DatasetRecord,
    FixedTolerance,
    Impact,
    RequirementRecord,
)
from optvet.spec.records.precision import PrecisionResult
from optvet.spec.records.vet import NOT_ASKED, Cost, Finding, VetResult
from optvet.spec.request import VetRequest

if TYPE_CHECKING:
    # It takes onnx, which a cached answer does not wait for.
    from optvet.spec.records.convert import ConversionResult

MADE_UP = "random noise, no data of the task: give yours with --dataset"
MESSAGE_CHARS = 300
BRIEF_CHARS = 100
_LISTED_CHANGING = 12
_LISTED_METRICS = 4
ANSWER_CHARS = 120
_TYPE = re.compile(r"^(?:\w+\.)+(\w+:)")


def are_inputs_made_up(result: VetResult | PrecisionResult) -> bool:
    """Whether only the default inputs were used: nobody named a dataset or declared one."""
    return [d.chosen_by for d in result.datasets] == [NOT_ASKED]


def labelled_grid(rows: Sequence[tuple[str, RenderableType]]) -> Table:
    """A table with labels on the left and values on the right."""
    grid = Table.grid(padding=(0, 0))
    grid.add_column(width=LABEL_COLUMNS, style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in rows:
        grid.add_row(label, value)
    return grid


def difference_words(finding: Finding) -> str:
    """The message, the known limit, the consequence, and partners of the culprit."""
    parts = [finding.known_limit, finding.message]
    parts += [f"also with {' then '.join(partner)}" for partner in finding.partners]
    return "; ".join(part for part in [*parts, finding.consequence, finding.location] if part)


def message_words(message: str, limit: int = MESSAGE_CHARS) -> str:
    """A message on one line; of an exception's type only the last part: ``a.b.Error: …``."""
    return one_line(_TYPE.sub(r"\1", message), limit)


def facts_table(result: VetResult, request: VetRequest, explain: bool) -> Table:
    """Facts about the verdict, in the order of what is shown; some only to ``explain`` it."""
    rows: list[tuple[str, RenderableType]] = []
    for finding in result.findings:
        if finding.severity == "note":
            rows.append(("note", _note(finding)))
        elif (
            len(words := message_words(difference_words(finding), 3 * MESSAGE_CHARS)) > BRIEF_CHARS
        ):
            rows.append(("message", text(words)))
    if described := _inputs(result):
        rows.append(("inputs", text(described)))
    supporting = _supporting(result)
    carrying = supporting.keys() if explain else _carrying(result, request)
    rows += [(name, row) for name, row in supporting.items() if name in carrying]
    rows += task_rows(result, fixed=request.fixed_tolerances)
    if words := warnings_text(result.warnings, in_table=request.warnings):
        rows.append(("warnings", text(words, "dim")))
    rows += [(name, text(words)) for name, words in structure_words(result).items()]
    if hidden := [name for name in supporting if name not in carrying]:
        rows.append(("more", text(f"--explain shows {', '.join(hidden)}", "dim")))
    return labelled_grid(rows)


def task_rows(
    result: VetResult | ConversionResult, *, fixed: bool
) -> Iterator[tuple[str, RenderableType]]:
    """What was required, how long both models take, and ``fixed`` tolerances if they are asked."""
    if result.requirements:
        yield "required", text("\n".join(map(_requirement, result.requirements)))
    if result.timing is not None:
        parts = [timing_line(result.timing), timing_costs(result.timing)]
        parts.append(warm_up_words([result.timing]))
        yield "timing", text("\n".join(part for part in parts if part))
    if fixed and result.fixed_tolerances:
        yield "fixed", text("\n".join(map(_show_fixed_tolerance, result.fixed_tolerances)))


def append_unmet(to: Text, requirements: Sequence[RequirementRecord]) -> None:
    """Add a line to a headline for each requirement that is not met."""
    for record in requirements:
        if record.met is False:
            words = f"not met: {record.requirement} ({record.detail})"
            append_line(to, one_line(words, 2 * ANSWER_CHARS), "red")


def append_line(to: Text, words: str, style: str) -> None:
    """Add a line below a label."""
    indented = f"\n{'':<{LABEL_COLUMNS}}{words}"
    to.append_text(text(indented, f"not bold {style}"))


def _supporting(result: VetResult) -> dict[str, Text]:
    """Facts that a verdict rests on, by label."""
    own_rows = {"samples"} | ({"orders"} if result.orders is not None else set())
    controls = (_control(c) for c in result.controls if c.name not in own_rows)
    rows = {"controls": text("; ".join(controls))}
    if result.outputs:
        rows["outputs"] = text(_outputs(result))
    if result.quantized is not None:
        rows["layers"] = text(layers_text(result.quantized))
    if result.impact is not None:
        rows["metrics"] = text(metrics_words(result.impact), "dim")
    if result.changing_passes is not None:
        rows["changing"] = text(changing_words(result))
    if result.orders is not None and (orders := result.control("orders")) is not None:
        rows["orders"] = text(orders.detail)
    rows["cost"] = text(_cost(result))
    return rows


def _carrying(result: VetResult, request: VetRequest) -> set[str]:
    """Labels of the facts without which the part above is not understood."""
    names = {"orders"} if result.orders is not None else set[str]()
    if any(c.state not in ("passed", "not-needed") for c in result.controls):
        names |= {"controls"}
    if result.verdict != "faulty" and any(o.verdict != "same" for o in result.outputs):
        names |= {"outputs"}
    if result.verdict != "clean":
        names |= {"layers"}
    impact = result.impact
    moved = impact is not None and impact.changed + impact.sensitive > 0
    if moved or request.comparator is not None or not are_inputs_made_up(result):
        names |= {"metrics"}
    if result.passes_alone:
        names |= {"changing"}
    return names


def _control(control: Control) -> str:
    return f"{control.name}: {one_line(control.detail, 100) or control.state.replace('-', ' ')}"


def _inputs(result: VetResult) -> str:
    """The datasets, unless only the default one was used, and samples that were left out."""
    plain = are_inputs_made_up(result) and not result.skipped
    words = [] if plain else [_dataset(d) for d in result.datasets]
    if result.skipped:
        first = result.skipped[0]
        reason = one_line(f"{first.sample}: {first.reason}", MESSAGE_CHARS)
        words.append(f"{count(len(result.skipped), 'sample')} left out, the first {reason}")
    if not result.complete and (control := result.control("samples")) is not None:
        words.append(control.detail)
    return "\n".join(words)


def _dataset(record: DatasetRecord) -> str:
    provenance = "; ".join(f"{k} {v}" for k, v in record.provenance.items())
    why = "" if record.chosen_by == "--dataset" else f" ({record.chosen_by})"
    line = f"{record.name}{why}, {count(record.samples, 'sample')}"
    return f"{line}: {provenance}" if provenance else line


def metrics_words(impact: Impact) -> str:
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
    return f"{record.requirement}: {how}, {one_line(record.detail, MESSAGE_CHARS)}{by}{who}"


def changing_words(result: VetResult) -> str:
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
    words = [
        f"{finding.symptom}, {who}: {message_words(difference_words(finding))}",
        *runtime_answers(finding),
    ]
    return text("\n".join(words), "dim")


def runtime_answers(finding: Finding) -> list[str]:
    """The results on other runtimes, one line each."""
    return [f"on {c.runtime}: {one_line(_answer(c), ANSWER_CHARS)}" for c in finding.cross_check]


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
            if worst.largest is not None:
                part += f" of {number(worst.largest)}"
            if worst.excused is not None:
                part += f", up to {number(worst.excused)} excused"
            if verdict == "drift" and worst.detail:
                part += f" ({worst.detail})"
        parts.append(part)
    return "; ".join(parts)


def _cost(result: VetResult) -> str:
    cost = result.cost
    if not (cost.applications or cost.inferences):
        return f"nothing was run, all from the cache; {cost.wall_s:.1f} s"
    return (
        f"{count(cost.applications, 'application')}, {count(cost.inferences, 'inference')}, "
        f"{cost.wall_s:.1f} s{_searches(cost)}"
    )


def _searches(cost: Cost) -> str:
    """How many answers the searches for culprits took, and how few can do."""
    if not cost.searches:
        return ""
    asked, needed = (sum(getattr(s, key) for s in cost.searches) for key in ("asked", "needed"))
    searches = count(len(cost.searches), "search", "es")
    return f"; {searches} for culprits with {count(asked, 'answer')}, at least {needed:.1f} needed"
