"""Tables of conversions: the funnel, what breaks where, frameworks × frameworks, repairs.

Each is a function of conversions that were judged, whether a store or documents hold them. A cell
counts what an answer says: a refusal is no fault, and what an answer leaves open is undecided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from onnx import ModelProto

from optvet.engine.campaign.causes import cause_of_conversion
from optvet.engine.campaign.conversion_findings import findings_of, stage_of
from optvet.engine.campaign.display_names import short_model
from optvet.engine.campaign.results import JobResult
from optvet.spec.records.convert import ConversionFinding, ConversionResult
from optvet.spec.records.repair import RepairResult
from optvet.spec.records.report_table import ReportTable
from optvet.spec.studies import ConversionFault, StudiedConversion
from optvet.spec.symptoms import ScriptCheck, Stage

Cell = str | int | float | None
Reach = Mapping[str, frozenset[str]]
"""Formats that chains of installed converters make of a format."""
Outcome = Literal[
    "right",
    "differs",
    "does not run",
    "does not load",
    "refused",
    "died",
    "undecided",
    "no result",
]
"""What became of a conversion; for several faults, the step that fails first."""
OUTCOMES: tuple[Outcome, ...] = (
    "refused",
    "died",
    "does not load",
    "does not run",
    "differs",
    "undecided",
    "right",
    "no result",
)
_FAILED: Mapping[Stage, Outcome] = {
    "build": "died",
    "check": "does not load",
    "load": "does not load",
    "run": "does not run",
    "compare": "differs",
}
_STAGES: Mapping[str, str] = {"convert": "node conversion", "optimize": "optimization"}


@dataclass(frozen=True)
class ConversionRow:
    """One conversion: source, chain, its answer or None; reference and digest of the source."""

    source: str
    chain: str
    result: ConversionResult | None
    reference: str = ""
    digest: str = ""

    @property
    def outcome(self) -> Outcome:
        """What became of it."""
        return "no result" if self.result is None else outcome_of(self.result)

    @property
    def reported(self) -> list[ConversionFinding]:
        """Faults and refusals; no notes."""
        return (
            [f for f in self.result.findings if f.severity in ("fault", "refusal")]
            if self.result
            else []
        )


def converted_of(trials: Iterable[JobResult]) -> list[ConversionRow]:
    """The conversions among jobs, those without an answer too."""
    return [
        ConversionRow(short_model(t.model), t.optimizer, t.conversion, t.model, t.model_digest)
        for t in trials
        if t.kind == "convert"
    ]


def converted_from(results: Iterable[ConversionResult]) -> list[ConversionRow]:
    """Conversions of documents."""
    return [
        ConversionRow(
            short_model(r.source.source),
            ",".join(c.name for c in r.converters),
            r,
            r.source.source,
        )
        for r in results
    ]


def outcome_of(result: ConversionResult) -> Outcome:
    """What became of a conversion."""
    if result.verdict == "refused":
        return "refused"
    if result.verdict != "faulty":
        return "right" if result.verdict == "right" else "undecided"
    stages = {stage_of(result, f) for f in result.findings if f.severity == "fault"}
    return next(outcome for stage, outcome in _FAILED.items() if stage in stages)


def tables_of_conversions(
    found: Sequence[ConversionRow],
    reach: Reach | None,
    repairs: Sequence[RepairResult] = (),
) -> list[ReportTable]:
    """All tables; without ``reach``, what was not asked is not told from what has no chain."""
    tables = [funnel(found), kinds(found), frameworks(found, reach), matrix(found), blame(found)]
    return [*tables, tabulate_repairs(repairs)] if repairs else tables


def conversion_for_studies(found: ConversionRow, graph: ModelProto | None) -> StudiedConversion:
    """A conversion as studies read it."""
    faults = tuple(
        ConversionFault(
            finding,
            finding.stages[0].partition("/")[0],
            stage_words(finding),
            issue,
            cause_of_conversion(finding),
        )
        for _, finding, issue in _faults_and_refusals([found])
    )
    about = (found.source, found.chain, found.outcome, found.result)
    return StudiedConversion(*about, faults, graph)


# --- how many -------------------------------------------------------------------------------------


def funnel(found: Sequence[ConversionRow]) -> ReportTable:
    """What became of the conversions of each chain, from the step that fails first."""
    groups = {chain: [c for c in found if c.chain == chain] for chain in _chains(found)}
    if len(groups) > 1:
        groups["all"] = list(found)
    return ReportTable(
        title="Funnel of conversions",
        note="Refused: the converter raised an error; this is not counted as a fault. Sources "
        "whose format a chain does not support are not counted. In the failure study of 1,761 real "
        "models, tf2onnx refuses 4 %, 1 % do not load, 1 % differ, and 68 % are right; for "
        "torch.onnx 2, 2, 1 and 75 %. Its models are others, and its tolerance is always 1e-7, "
        "while optvet measures noise.",
        columns=["chain", "asked", *OUTCOMES, "share right"],
        rows=[[chain, *_count(group)] for chain, group in groups.items()],
    )


def _count(group: Sequence[ConversionRow]) -> list[Cell]:
    counts = Counter(c.outcome for c in group)
    judged = len(group) - counts["no result"]
    share = counts["right"] / judged if judged else None
    return [len(group), *(counts[outcome] for outcome in OUTCOMES), share]


def kinds(found: Sequence[ConversionRow]) -> ReportTable:
    """What is wrong by converter, stage, symptom and proposed cause."""
    groups: dict[tuple[str, str, str, str], list[tuple[str, str]]] = {}
    for conversion, finding, issue in _faults_and_refusals(found):
        cause = "" if finding.severity == "refusal" else cause_of_conversion(finding).name
        where = (finding.stages[0].partition("/")[0], stage_words(finding))
        about = (*where, finding.symptom, cause)
        groups.setdefault(about, []).append((issue, conversion.source))
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]), item[0]))
    return ReportTable(
        title="Faults and refusals by converter, stage, symptom and cause",
        note="The stage is the one to blame; several with 'or' if artifacts between cannot be run. "
        "Target runtime: another runtime runs the same model right. Findings with one "
        "fingerprint are one issue; a refusal has none. Causes are guessed from messages and "
        "places; if these suggest none or several, it is unclear. The failure study has 74 % node "
        "conversion, 10 % optimization, 6 % load, 2 % validation, 1 % export, 9 % unclear of "
        "200 reported issues.",
        columns=["converter", "stage", "symptom", "cause", "issues", "sources"],
        rows=[
            [*about, len({i for i, _ in each if i}) or None, len({s for _, s in each})]
            for about, each in ordered
        ],
    )


def stage_words(finding: ConversionFinding) -> str:
    """The kind of stage in the words of the failure study; a range where it is one."""
    if finding.kind == "target-runtime":
        return "target runtime"
    if len(finding.stages) > 1:
        return " or ".join(stage.partition("/")[2] for stage in finding.stages)
    return _STAGES.get(finding.kind, finding.kind)


def _faults_and_refusals(
    found: Iterable[ConversionRow],
) -> Iterator[tuple[ConversionRow, ConversionFinding, str]]:
    """Faults and refusals with the fingerprint of each fault."""
    for conversion in found:
        if conversion.result is None:
            continue
        faults = (f for f in findings_of(conversion.result) if f.severity == "fault")
        for finding in conversion.reported:
            is_fault = finding.severity == "fault"
            yield conversion, finding, str(next(faults).fingerprint) if is_fault else ""


# --- matrices -------------------------------------------------------------------------------------


def frameworks(found: Sequence[ConversionRow], reach: Reach | None) -> ReportTable:
    """Formats of sources × formats of what conversions end in."""
    cells: dict[tuple[str, str], Counter[str]] = {}
    for conversion in found:
        if (result := conversion.result) is not None:
            about = (result.source.format, result.stages[-1].format)
            cells.setdefault(about, Counter())[conversion.outcome] += 1
    sources = sorted({source for source, _ in cells})
    reached = {s: frozenset[str]() if reach is None else reach.get(s, frozenset()) for s in sources}
    targets = sorted({target for _, target in cells}.union(*reached.values()))
    return ReportTable(
        title="Frameworks × frameworks",
        note="Rows are formats of sources, columns formats of converted models; a cell counts "
        "conversions by outcome. No chain: no installed converters lead there; not asked: there "
        "are converters, but no conversion.",
        columns=["source", *targets],
        rows=[
            [
                source,
                *(
                    _words(cells[source, target])
                    if (source, target) in cells
                    else _absent(target in reached[source], known=reach is not None)
                    for target in targets
                ),
            ]
            for source in sources
        ],
    )


def _words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts[o]} {o}" for o in reversed(OUTCOMES) if counts.get(o))


def _absent(reachable: bool, *, known: bool) -> str:
    """Why no conversion is counted."""
    return ("not asked" if reachable else "no chain") if known else ""


def matrix(found: Sequence[ConversionRow]) -> ReportTable:
    """Each source through each chain: its error, or what became of it."""
    chains = _chains(found)
    cells = {(c.source, c.chain): c for c in found}
    return ReportTable(
        title="Each source through each chain",
        note="A number is the error of the worst output, relative to its largest magnitude; ! "
        "marks a fault. An empty cell was not asked.",
        columns=["source", *chains],
        rows=[
            [source, *(_cell(cells.get((source, chain))) for chain in chains)]
            for source in dict.fromkeys(c.source for c in found)
        ],
    )


def _cell(conversion: ConversionRow | None) -> str:
    if conversion is None:
        return ""
    outcome, result = conversion.outcome, conversion.result
    if result is None or outcome not in ("right", "differs"):
        return outcome
    if outcome == "right":
        error = result.stages[-1].error
        return "right" if error is None else f"{error:.2g}"
    sizes = [f.error for f in conversion.reported if f.error is not None]
    return f"! {max(sizes):.2g}" if sizes else f"! {conversion.reported[0].symptom}"


def _chains(found: Iterable[ConversionRow]) -> list[str]:
    return list(dict.fromkeys(c.chain for c in found))


# --- which stage ----------------------------------------------------------------------------------


def blame(found: Sequence[ConversionRow]) -> ReportTable:
    """The stage that breaks the model, per fault, and whether that is certain."""
    return ReportTable(
        title="Which stage breaks the model",
        note="Decided: one stage, whose artifact differs from the source and from its predecessor, "
        "on every runtime that could run it. On one runtime: no other could run it, so the "
        "runtime may be wrong. The localization study's Table I would be undecided in rows 2 "
        "and 3: there the intermediate ONNX model agrees with TFLite, not with TensorFlow, "
        "which does not support the printed conclusion.",
        columns=["source", "chain", "symptom", "stage", "decided", "other runtimes", "inside"],
        rows=[
            [
                conversion.source,
                conversion.chain,
                finding.symptom,
                _name_culprit(finding),
                _yes_or_no(finding),
                ", ".join(f"{c.runtime}: {c.outcome}" for c in finding.cross_check),
                finding.place.words() if finding.place is not None else "",
            ]
            for conversion, finding, _ in _faults_and_refusals(found)
            if finding.severity == "fault"
        ],
    )


def _name_culprit(finding: ConversionFinding) -> str:
    if finding.kind == "target-runtime":
        return f"runtime {finding.culprit}"
    return " or ".join(finding.stages)


def _yes_or_no(finding: ConversionFinding) -> str:
    """Whether the answer names one culprit for certain."""
    if len(finding.stages) > 1:
        return "undecided: artifacts between cannot be run"
    if not finding.confirmed:
        return "undecided: it agrees with its predecessor"
    outcomes = {c.outcome for c in finding.cross_check} & {"fault", "no-fault"}
    if len(outcomes) > 1:
        return "undecided: other runtimes disagree"
    # The checker, and the end of a process, need no second runtime to be believed.
    info = finding.symptom.info
    notices = info.check is ScriptCheck.DEATH or info.stages == ("check",)
    if not notices and not outcomes:
        return "on one runtime"
    return "yes"


# --- repairs --------------------------------------------------------------------------------------


def tabulate_repairs(results: Sequence[RepairResult]) -> ReportTable:
    """What repairs came to, with the numbers on inputs that no edit was chosen by."""
    counts = Counter(r.verdict for r in results)
    words = ", ".join(f"{amount} {verdict}" for verdict, amount in sorted(counts.items()))
    return ReportTable(
        title="Repairs",
        note=f"{len(results)} repairs: {words}. Wrong inputs of all kinds, before and after; "
        "no edit was chosen by held-out inputs. The localization study repaired one case.",
        columns=["source", "chain", "verdict", "edits", "wrong", "after", "held out, after", "of"],
        rows=[
            [
                short_model(r.source),
                ",".join(c.name for c in r.converters),
                r.verdict,
                "; ".join(e.about for e in r.edits),
                sum(n.wrong for n in r.before.values()),
                sum(n.wrong for n in r.after.values()) if r.after else None,
                *_held_out(r),
            ]
            for r in results
        ],
    )


def _held_out(result: RepairResult) -> tuple[int | None, int | None]:
    kept = [n for part, n in result.after.items() if part != "witnesses"]
    if not kept:
        return None, None
    return sum(n.wrong for n in kept), sum(n.inputs for n in kept)
