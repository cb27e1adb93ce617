"""The tables of DiTOX (Louloudakis and Rajan, arXiv:2505.01892) for a stored campaign.

The study ran models of the ONNX Model Hub before and after ONNX Optimizer, with all passes and with
each alone. Its figures (``published.toml``) stand beside ours: of the same model and operator set
where the name in the catalogue is the study's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePath
from textwrap import shorten
from typing import Any, NamedTuple

from optvet.plugin import (
    OUTCOMES,
    Finding,
    Outcome,
    PassRecord,
    ReportTable,
    Study,
    StudyData,
    Symptom,
    TrialRow,
    by_model,
    grouped,
    hookimpl,
    read_toml,
)

Cell = str | int | float | None

_SOURCE = "DiTOX's figures are counted from the data that its authors published."
_KINDS: Mapping[str, str] = {
    "classification": "classification",
    "detection": "detection",
    "segmentation": "segmentation",
    "text": "text",
    "token": "text",
}
"""What a model is, by the comparator that reads its answers."""
_TASKS: Mapping[str, str] = {
    "classification": r"classif|sentiment",
    "detection": r"(?<!text-)\bdetection",
    "segmentation": r"segmentation",
    "text": r"text|language|question|translat|summar",
}
"""The same, by the words of its declared task, where no outputs were compared."""
_SCORES = ("f1@0.5", "precision@0.5", "recall@0.5", "mAP", "iou")

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


class Ditox:
    """The study's tables."""

    name = "ditox"
    description = "DiTOX (arXiv:2505.01892): ONNX Optimizer on the models of the ONNX Model Hub"

    def tables(self, data: StudyData) -> Sequence[ReportTable]:
        """The study's tables, of the trials of one campaign."""
        rows = data.rows
        return [
            shares(rows),
            findings(rows),
            published_findings(rows),
            labels(rows),
            detection(rows),
            text(rows),
            outcomes(rows, data.models),
            by_symptom(rows),
            by_task(rows),
            different_models(rows),
            by_pass(rows),
            blamed(rows),
        ]


@hookimpl
def optvet_studies() -> Iterable[Study]:
    """The study."""
    return [Ditox()]


@cache
def published() -> Mapping[str, Any]:
    """The figures that the study printed."""
    return read_toml(Path(__file__).with_name("published.toml"), "listing")


def _kind(row: TrialRow) -> str:
    comparator = row.impact.comparator if row.impact else row.parts.comparator
    if comparator in _KINDS:
        return _KINDS[comparator]
    if comparator:
        return "other"
    return next((kind for kind, words in _TASKS.items() if re.search(words, row.task)), "other")


def _find_figures(table: str, row: TrialRow) -> tuple[str, Mapping[str, Any]]:
    """The key and the figures that a table of the study has of a model in its operator set."""
    name = row.source.rpartition(":")[2]
    same: str = published()["same_network"].get(name, name.rpartition("-")[0])
    entry: Mapping[str, Any] = published()[table].get(same, {})
    return (same, entry) if entry and row.opset in entry["opsets"] else ("", {})


def _unasked(table: str, seen: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """What a table of the study has of models that are not in this campaign."""
    known = {*seen}
    return (entry for key, entry in published()[table].items() if key not in known)


def _opsets(entry: Mapping[str, Any]) -> str:
    return ", ".join(map(str, entry["opsets"]))


def _percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None


# --- the tables that the study prints ------------------------------------------------------------


def shares(rows: Sequence[TrialRow]) -> ReportTable:
    """The study's headline figures: what crashed or became invalid, and whose results differ."""
    paper: Mapping[str, float] = published()["shares"]
    lines: list[list[Cell]] = []
    for optimizer, group in grouped(rows).items():
        worst = [row for row in by_model(group).values() if row.judged]
        crashed = sum(row.outcome == "crashes" for row in worst)
        about = [optimizer, "crashed, or became an invalid model"]
        lines.append([*about, crashed, len(worst), _percent(crashed, len(worst)), paper["crashes"]])
        for kind in ("classification", "detection", "text"):
            found = [row for row in worst if _kind(row) == kind]
            changed = {r.digest for r in group if r.impact is not None and r.impact.changed > 0}
            moved = sum(row.digest in changed for row in found)
            about = [optimizer, f"{kind}: other results"]
            lines.append([*about, moved, len(found), _percent(moved, len(found)), paper.get(kind)])
    return ReportTable(
        title="DiTOX: shares of models",
        note="Other results: labels, boxes or texts of at least one input differ beyond noise "
        "of rounding; the study counted every difference. It reports few texts, without a figure. "
        "A model is what the comparator that read its answers is for.",
        columns=["optimizer", "what", "models", "of", "%", "DiTOX %"],
        rows=lines,
    )


def _type(found: Finding) -> str:
    """The study's word for a symptom."""
    if found.severity == "note" and found.known_limit is None:
        return "warning"
    return _type_of(found.symptom, found.stage)


_FROM_FIRST = ("build", "check", "load", "run", "compare")


def _type_of(symptom: Symptom, stage: str) -> str:
    if symptom.info.of_values:
        return "accuracy"
    return "crash" if stage in ("build", "check") else "crash when run"


class _Issue(NamedTuple):
    """What makes two findings one row, beside the words of the error."""

    optimizer: str
    passes: str
    type: str
    about: str


class _Said(NamedTuple):
    error: str
    symptom: str
    cause: str


def _issues(row: TrialRow) -> Iterator[tuple[_Issue, _Said]]:
    """Faults, notes, and passes that fail alone though no finding is about them."""
    for seen in row.faults:
        yield _issue_of(row, seen.finding, seen.issue, seen.cause.name)
    for note in row.notes:
        cause = "by design" if note.known_limit else "the pass" if note.culprit else "round trip"
        yield _issue_of(row, note, str(note.symptom), cause)
    blamed = {name for f in (*(s.finding for s in row.faults), *row.notes) for name in f.culprit}
    for record in row.passes:
        if record.symptom is None or record.effect != "failed" or record.name in blamed:
            continue
        kind = _type_of(record.symptom, min(record.symptom.info.stages, key=_FROM_FIRST.index))
        key = _Issue(row.optimizer, record.name, kind, str(record.symptom))
        cause = "unclear" if record.known_limit is None else "by design"
        yield key, _Said(record.known_limit or "alone", str(record.symptom), cause)


def _issue_of(row: TrialRow, found: Finding, issue: str, cause: str) -> tuple[_Issue, _Said]:
    passes = ", ".join(found.culprit) or "round trip"
    error = found.known_limit or found.message or found.blamed()
    return _Issue(row.optimizer, passes, _type(found), issue), _Said(error, found.symptom, cause)


def findings(rows: Sequence[TrialRow]) -> ReportTable:
    """Each issue: the passes, what the error says, its type and cause, and the models."""
    issues: dict[_Issue, list[TrialRow]] = {}
    about: dict[_Issue, _Said] = {}
    for row in rows:
        for key, said in _issues(row):
            issues.setdefault(key, []).append(row)
            about.setdefault(key, said)
    lines: list[list[Cell]] = []
    ordered = sorted(issues.items(), key=lambda item: -len({r.digest for r in item[1]}))
    for number, (key, those) in enumerate(ordered, 1):
        said = about[key]
        named = sorted({f"{r.model} (op. {r.opset})" if r.opset else r.model for r in those})
        models = len({r.digest for r in those})
        listed = ", ".join(named[:_LISTED]) + (" …" if len(named) > _LISTED else "")
        error = shorten(said.error, _MESSAGE, placeholder=" …")
        cells: list[Cell] = [error, key.type, said.symptom, said.cause, listed, models]
        lines.append([number, key.optimizer, key.passes, *cells])
    return ReportTable(
        title="DiTOX: findings",
        note="The same crash of the same passes is one finding, and so is the same note; "
        "wrong values are one per place. By design: what the pass documents that it does, which "
        "the study counted too.",
        columns=[
            "no.", "optimizer", "passes", "error", "type", "symptom", "cause", "models", "how many"
        ],
        rows=lines,
    )  # fmt: skip


_MESSAGE = 80
_LISTED = 6


def published_findings(rows: Sequence[TrialRow]) -> ReportTable:
    """The study's fifteen findings, and how many models here have each pass at fault."""
    blamed: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for key, said in _issues(row):
            for name in key.passes.split(", "):
                blamed.setdefault((name, said.symptom), set()).add(row.digest)
    lines: list[list[Cell]] = []
    for number, entry in enumerate(published()["findings"], 1):
        names, symptom = entry["passes"] or ["round trip"], entry.get("symptom")
        ours = {
            digest
            for (name, shown), digests in blamed.items()
            if name in names and symptom in (None, shown)
            for digest in digests
        }
        passes = ", ".join(entry["passes"]) or "all passes"
        lines.append([number, passes, entry["text"], entry["type"], entry["models"], len(ours)])
    return ReportTable(
        title="DiTOX: the study's findings",
        note="Here: models of this campaign with a finding or a note on one of these passes, on "
        "the round trip that all passes share, or on which the pass fails alone; the error may be "
        "another.",
        columns=["no.", "passes", "error", "type", "models in DiTOX", "here"],
        rows=lines,
    )


def _issue(row: TrialRow) -> str:
    """The study's letters: FV, another format version; MG, a malformed graph."""
    if any(not found.culprit for found in (*(s.finding for s in row.faults), *row.notes)):
        return "FV"
    failed = any(seen.finding.symptom.info.failed for seen in row.faults)
    return "MG" if failed or row.faults else ""


def labels(rows: Sequence[TrialRow]) -> ReportTable:
    """Each classifier: the share of inputs whose first labels are in another order."""
    lines: list[list[Cell]] = []
    seen: list[str] = []
    for row in rows:
        if row.impact is None or not row.judged:
            continue
        known = [row.impact.metrics.get(f"reordered_top{k}") for k in (1, 5, 10)]
        if all(share is None for share in known):
            continue
        key, paper = _find_figures("labels", row)
        seen.append(key)
        ours: list[Cell] = [None if share is None else 100 * share for share in known]
        place: list[Cell] = [row.model, _LETTERS[_kind(row)], row.opset, _chunk(row)]
        lines.append([*place, row.impact.samples, *ours, _issue(row), *_of_labels(paper)])
    lines += [
        [paper["name"], paper.get("type", "CL"), _opsets(paper), *[None] * 6, *_of_labels(paper)]
        for paper in _unasked("labels", seen)
    ]
    columns = [
        "model",
        "type",
        "opset",
        "data",
        "inputs",
        "top 1 %",
        "top 5 %",
        "top 10 %",
        "issue",
    ]
    return ReportTable(
        title="DiTOX: labels in another order",
        note="Share of inputs whose first k labels are ranked otherwise (Kendall's tau below 0.99; "
        "for k of 1, another label). FV: import and export; MG: a pass. Last, the study's models "
        "that are not in this campaign.",
        columns=[*columns, "DiTOX 1", "DiTOX 5", "DiTOX 10", "DiTOX issue"],
        rows=lines,
    )


_LETTERS = {
    "classification": "CL",
    "detection": "OD",
    "segmentation": "SE",
    "text": "TX",
    "other": "",
}


def _of_labels(told: Mapping[str, Any]) -> list[Cell]:
    return [*told.get("top", (None, None, None)), told.get("issue")]


def _chunk(row: TrialRow) -> str:
    """The data of a job, without the folder that it is in."""
    source, _, place = (row.parts.dataset or "random").partition(":")
    return f"{source}:{PurePath(place).name}" if place else source


def detection(rows: Sequence[TrialRow]) -> ReportTable:
    """Each detector: how far its boxes agree before and after."""
    lines: list[list[Cell]] = []
    seen: list[str] = []
    for row in rows:
        if _kind(row) != "detection" or row.impact is None or not row.judged:
            continue
        key, paper = _find_figures("detection", row)
        seen.append(key)
        found = [row.impact.metrics.get(name) for name in _SCORES]
        ours: list[Cell] = [None if score is None else 100 * score for score in found]
        place: list[Cell] = [row.model, row.opset, _chunk(row), row.impact.samples]
        lines.append([*place, *ours, *paper.get("scores", (None,) * len(_SCORES))])
    lines += [
        [paper["name"], _opsets(paper), *[None] * (2 + len(_SCORES)), *paper["scores"]]
        for paper in _unasked("detection", seen)
    ]
    names = ("F1", "precision", "recall", "mAP", "IoU")
    return ReportTable(
        title="DiTOX: detectors",
        note="Of the optimized model's boxes against the original's, in %; overlap at least 0.5. "
        "Last, the study's models that are not in this campaign.",
        columns=["model", "opset", "data", "inputs", *names, *(f"DiTOX {n}" for n in names)],
        rows=lines,
    )


def text(rows: Sequence[TrialRow]) -> ReportTable:
    """Each model of texts: BLEU and exact match of the optimized model's texts or spans."""
    lines: list[list[Cell]] = []
    for row in rows:
        if _kind(row) != "text" or row.impact is None or not row.judged:
            continue
        scores = [row.impact.metrics.get(name) for name in ("bleu", "exact_match")]
        ours: list[Cell] = [None if score is None else 100 * score for score in scores]
        place: list[Cell] = [row.model, row.opset, _chunk(row), row.impact.samples]
        lines.append([*place, *ours, row.impact.changed])
    return ReportTable(
        title="DiTOX: texts",
        note="Of the optimized model's texts, or spans of a text, against the original's, in %. "
        "The study prints no table of them.",
        columns=["model", "opset", "data", "inputs", "BLEU", "exact match", "changed"],
        rows=lines,
    )


# --- what else a campaign tells ------------------------------------------------------------------


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
    for task in sorted({_kind(row) for row in rows if row.judged}):
        found = [row for row in rows if row.judged and _kind(row) == task]
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
        f"are labels, boxes, texts and so on, as the task's comparator reads them. {_SOURCE}",
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
        f"included. {_SOURCE}",
        columns=["culprit", "models", "DiTOX"],
        rows=[[name, len(found), theirs.get(name)] for name, found in kinds.items()],
    )
