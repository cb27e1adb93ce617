"""Models counted: by outcome, symptom, task, pass and culprit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from optvet.plugin import (
    OUTCOMES,
    Finding,
    Outcome,
    PassRecord,
    ReportTable,
    Symptom,
    TrialRow,
    by_model,
    grouped,
)
from optvet_ditox.figures import SOURCE, Cell, kind_of, percent, published

_WORDS: dict[Outcome, str] = {
    "same": "same outputs",
    "rounded": "rounded differently, within the noise",
    "differs": "outputs differ",
    "crashes": "optimizer fails, or its model is malformed, does not load or run",
    "undecided": "undecided",
    "not taken": "optimizer says that it does not take the model",
    "no result": "no result, such as a model that does not run",
    "waits": "not vetted yet",
}


def shares(rows: Sequence[TrialRow]) -> ReportTable:
    """The study's headline figures: what crashed or became invalid, and whose results differ."""
    paper: Mapping[str, float] = published()["shares"]
    lines: list[list[Cell]] = []
    for optimizer, group in grouped(rows).items():
        worst = [row for row in by_model(group).values() if row.judged]
        crashed = sum(row.outcome == "crashes" for row in worst)
        about = [optimizer, "crashed, or became an invalid model"]
        lines.append([*about, crashed, len(worst), percent(crashed, len(worst)), paper["crashes"]])
        for kind in ("classification", "detection", "text"):
            found = [row for row in worst if kind_of(row) == kind]
            changed = {r.digest for r in group if r.impact is not None and r.impact.changed > 0}
            moved = sum(row.digest in changed for row in found)
            about = [optimizer, f"{kind}: other results"]
            lines.append([*about, moved, len(found), percent(moved, len(found)), paper.get(kind)])
    return ReportTable(
        title="DiTOX: shares of models",
        note="Other results: labels, boxes or texts of at least one input differ beyond noise "
        "of rounding; the study counted every difference. It reports few texts, without a figure. "
        "A model is what the comparator that read its answers is for.",
        columns=["optimizer", "what", "models", "of", "%", "DiTOX %"],
        rows=lines,
    )


def outcomes(rows: Sequence[TrialRow], theirs: Sequence[str]) -> ReportTable:
    """How many models can be optimized; each model counts once, by the worst of its jobs."""
    optimizers = grouped(rows)
    worst = {name: list(by_model(group).values()) for name, group in optimizers.items()}
    lines: list[list[Cell]] = [
        [_WORDS[outcome], *(sum(r.outcome == outcome for r in worst[name]) for name in optimizers)]
        for outcome in OUTCOMES
    ]
    intact = ("same", "rounded")
    lines.append(
        ["optimizable", *(sum(r.outcome in intact for r in worst[name]) for name in optimizers)]
    )
    lines.append(["all models", *(len(worst[name]) for name in optimizers)])
    return ReportTable(
        title="DiTOX: models that can be optimized",
        note=f"{_set_of_models(rows, theirs)} Optimizable: the outputs are the same, or as near as "
        "rounding explains; the study compared with fixed tolerances.",
        columns=["models", *optimizers],
        rows=lines,
    )


def _set_of_models(rows: Sequence[TrialRow], theirs: Sequence[str]) -> str:
    """How the campaign's set of models differs from the study's."""
    ours = {row.source for row in rows}
    if not theirs:
        return f"The models are {len(ours)} of your own; the study's are not listed here."
    shared = len(ours & {*theirs})
    old = sum(int(found[1]) < _LEAST_OPSET for m in theirs if (found := _LAST.search(m)))
    return (
        f"Of {len(theirs)} models that are listed as the study's, {shared} are in this campaign; "
        f"{len(ours) - shared} of its {len(ours)} models are others. {old} are of operator sets "
        f"below {_LEAST_OPSET}, whose operators mean something else: the study left those out. It "
        f"counts {published()['models']} models, not all of which it names."
    )


_LEAST_OPSET = 7
_LAST = re.compile(r"-(\d+)$")


def by_symptom(rows: Sequence[TrialRow]) -> ReportTable:
    """Per symptom: the number of models that show it, and the number of issues."""
    optimizers = grouped(rows)
    present = {str(s.finding.symptom) for row in rows for s in row.faults}
    lines: list[list[Cell]] = []
    for symptom in (str(s) for s in Symptom if str(s) in present):
        line: list[Cell] = [symptom]
        for group in optimizers.values():
            found = [(r, s) for r in group for s in r.faults if str(s.finding.symptom) == symptom]
            line += [len({r.digest for r, _ in found}), len({s.issue for _, s in found})]
        lines.append(line)
    return ReportTable(
        title="DiTOX: issues by symptom",
        note="A model is in each row whose symptom it shows. The same crash is one issue.",
        columns=["symptom", *(f"{n} {what}" for n in optimizers for what in ("models", "issues"))],
        rows=lines,
    )


def by_task(rows: Sequence[TrialRow]) -> ReportTable:
    """Per kind of model: the number of models whose results differ."""
    lines: list[list[Cell]] = []
    counted = published()["counted"]
    for task in sorted({kind_of(row) for row in rows if row.judged}):
        found = [row for row in rows if row.judged and kind_of(row) == task]
        worst = list(by_model(found).values())
        impacts = [r.impact for r in found if r.impact is not None]
        different = [r for r in found if r.outcome == "differs"]
        lines.append(
            [
                task,
                len(worst),
                len({r.digest for r in different}),
                counted["classifiers_that_differ"] if task == "classification" else None,
                len({r.digest for r in found if r.impact is not None and r.impact.changed}),
                sum(i.changed for i in impacts),
                sum(i.samples for i in impacts),
                max((r.error for r in different if r.error is not None), default=None),
            ]
        )
    return ReportTable(
        title="DiTOX: results per task",
        note="Differ: beyond what rounding explains; the study counted every difference. Answers "
        f"are labels, boxes, texts and so on, as the task's comparator reads them. {SOURCE}",
        columns=[
            "task",
            "models",
            "differ",
            "differ in DiTOX",
            "answers changed",
            "samples changed",
            "samples",
            "largest error",
        ],
        rows=lines,
    )


def different_models(rows: Sequence[TrialRow]) -> ReportTable:
    """Each model whose results differ, and by how much."""
    found = [r for r in rows if r.outcome == "differs" or (r.impact and r.impact.changed)]
    return ReportTable(
        title="DiTOX: models whose results differ",
        note="Error and noise are relative to the largest magnitude of the output.",
        columns=["model", "optimizer", "task", "error", "noise", "what changed"],
        rows=[
            [
                row.model,
                row.optimizer,
                row.task,
                row.error,
                row.noise,
                row.impact.headline if row.impact else "",
            ]
            for row in sorted(found, key=lambda r: -(r.error or 0.0))
        ],
    )


def by_pass(rows: Sequence[TrialRow]) -> ReportTable:
    """Per pass: the models that it changes or fails on alone, and those in which it is blamed."""
    alone: dict[tuple[str, str], dict[str, PassRecord]] = {}
    guilty: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for record in row.passes:
            alone.setdefault((row.optimizer, record.name), {})[row.digest] = record
        for seen in row.faults:
            for name in dict.fromkeys(seen.finding.culprit if seen.finding.localized else ()):
                guilty.setdefault((row.optimizer, name), set()).add(row.digest)
    lines: list[list[Cell]] = []
    for about in dict.fromkeys((*alone, *guilty)):
        records = list(alone.get(about, {}).values())
        failed = [r for r in records if r.effect == "failed" and not r.known_limit]
        changed = sum(r.effect in ("changed", "failed") for r in records)
        symptoms = sorted({str(r.symptom) for r in failed if r.symptom})
        if changed or guilty.get(about):
            lines.append(
                [
                    *about,
                    len(records),
                    changed,
                    len(failed),
                    len(guilty.get(about, ())),
                    ", ".join(symptoms),
                ]
            )
    lines.sort(key=lambda line: (-int(str(line[5])), -int(str(line[4])), -int(str(line[3]))))
    return ReportTable(
        title="DiTOX: per pass",
        note='Alone: the pass and nothing else, which strategy = "each" tries; documented limits '
        "are no failures. Blamed: it is among the shortest sequence of passes that shows a fault. "
        "Passes that did nothing are left out.",
        columns=["optimizer", "pass", "tried alone", "changed", "failed", "blamed", "symptoms"],
        rows=lines,
    )


def _culprits(found: Finding) -> str:
    if not found.localized:
        return "not searched"
    return ("round trip", "one pass", "several passes")[min(len(found.culprit), 2)]


def blamed(rows: Iterable[TrialRow]) -> ReportTable:
    """Models by culprit: the round trip that all passes share, one pass, or several."""
    kinds: dict[str, set[str]] = {n: set() for n in ("round trip", "one pass", "several passes")}
    for row in rows:
        for seen in row.faults:
            kinds.setdefault(_culprits(seen.finding), set()).add(row.digest)
    counted = published()["counted"]
    theirs: dict[str, Cell] = {
        "round trip": f"{counted['alike_under_every_pass']} of "
        f"{counted['classifiers_that_differ']} classifiers"
    }
    return ReportTable(
        title="DiTOX: who is to blame",
        note="Round trip: import and export alone show it, with no pass at all. In the study's "
        "data these are classifiers that differ alike under each of the 44 passes that ran, nop "
        f"included. {SOURCE}",
        columns=["culprit", "models", "DiTOX"],
        rows=[[name, len(found), theirs.get(name)] for name, found in kinds.items()],
    )
