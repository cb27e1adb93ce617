"""Judges optvet on a folder of models with known culprits: ``python benchmarks/corpus.py FOLDER``.

FOLDER holds a ``manifest.json`` whose cases name a model, inputs, the symptom and the culprit
passes, and for which library versions that was verified (``shows.py`` tells it of an ONNX Runtime
that the manifest does not know); controls are cases on which nothing may be reported. Every case
that applies to the installed version is vetted through ``optvet.vet`` in the *modes* in which its
bug can be seen:

- ``default``: the default pipeline, strategy "auto", as a user begins;
- ``each``: every pass alone and in pairs, where the default pipeline masks the bug, does not
  contain the culprit, or shows it only when run again; controls too;
- ``named``: the minimal sequence as the pipeline, where the default does not contain it;
- ``fixed-point``: the optimizer's option, for bugs that show only with it;
- ``benign``: the default pipeline on inputs that do not show the bug: must not be faulty;
- ``offline``: ONNX Runtime's optimized model saved, then run without optimization. It may show a
  bug earlier than the session that optimizes as it loads (mode ``default``), or not at all.

How to read the output. One row per case and mode: *found*, *missed* (nothing with an accepted
culprit), *symptom* (accepted culprit, other symptom), *wrong culprit* (a fault is blamed on a
sequence the manifest does not accept), *false alarm* (a control is faulty), *crashed* (the program
itself failed), *ok* (a control is not faulty), *not seen* (this mode cannot show it, another must),
*late* (the default pipeline shows it in the version the manifest was measured with, here only a
later mode did), *unscored* (the manifest calls the case ambiguous, or in another version than the
manifest's the round trip alone breaks the model, which is checked without optvet). Only confirmed
findings count. The totals give recall, culprit accuracy, false alarms and cost; then what
localization cost beyond the walk over prefixes. Exit status 1 if anything was missed, wrong, or
falsely alarmed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

import machine
import shows

from optvet import Finding, NothingTested, Symptom, VetResult, vet

SYMPTOMS: Mapping[str, frozenset[Symptom]] = {
    "optimizer-crash": frozenset({Symptom.OPTIMIZER_ERROR}),
    "optimizer-abort": frozenset({Symptom.OPTIMIZER_ABORT, Symptom.TIMEOUT, Symptom.OUT_OF_MEMORY}),
    "metadata-loss": frozenset({Symptom.METADATA_CHANGE}),
    "redundancy": frozenset({Symptom.BLOAT}),
    # ONNX Runtime's. A saved model that is wrong may be refused by the checker before it is run.
    "wrong-values": frozenset({Symptom.WRONG_OUTPUT, Symptom.INVALID_MODEL}),
    "wrong-shape": frozenset(
        {Symptom.WRONG_OUTPUT, Symptom.INTERFACE_CHANGE, Symptom.INVALID_MODEL}
    ),
    "load-error": frozenset({Symptom.OPTIMIZER_ERROR, Symptom.INVALID_MODEL, Symptom.LOAD_FAILURE}),
    "run-error": frozenset({Symptom.RUN_FAILURE, Symptom.INVALID_MODEL}),
    "crash": frozenset({Symptom.OPTIMIZER_ABORT}),
}
"""Names of symptoms in manifests where optvet has others."""

LOCALIZATION = ("control", "localize", "confirm", "verify")
"""Purposes in ``cost.by_purpose`` that a culprit costs, beside the walk over prefixes."""
MOST_APPLICATIONS = {1: 10, 2: 40, 3: 40}
"""Aim: applications beyond the walk, by length of the culprit."""
MOST_INFERENCES = 8

State = Literal[
    "found",
    "late",
    "missed",
    "symptom",
    "wrong culprit",
    "false alarm",
    "crashed",
    "ok",
    "not seen",
    "unscored",
]
BAD: tuple[State, ...] = ("missed", "symptom", "wrong culprit", "false alarm", "crashed")


@dataclass(frozen=True)
class Bug:
    """One defect of a case: ``symptoms`` first choice, ``lenient`` also seen, accepted culprits."""

    symptoms: frozenset[Symptom]
    lenient: frozenset[Symptom]
    culprits: frozenset[tuple[str, ...]]


@dataclass(frozen=True)
class Mode:
    """One call of ``optvet.vet``; ``must`` tells that what the case is about must show here."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    must: bool = True
    benign: bool = False


@dataclass(frozen=True)
class Case:
    """One model with what is known of it on the installed version.

    ``bugs`` is empty for a control and for a version that does not have the bug; ``absent`` is
    then what must not be reported. ``unscored`` passes are blamed by nobody. ``roundtrip`` checks
    without optvet whether import and export alone break the model, and says how: in versions other
    than the one the manifest was measured with, that may hide the case's own bug.
    """

    id: str
    model: Path
    inputs: tuple[Path, ...]
    benign: tuple[Path, ...]
    control: bool
    bugs: tuple[Bug, ...]
    absent: tuple[Bug, ...]
    modes: tuple[Mode, ...]
    unscored: frozenset[str] = frozenset()
    scored: bool = True
    strict: bool = True
    roundtrip: Callable[[Case], str] | None = None
    tags: tuple[str, ...] = ()


@dataclass
class Row:
    """What one vet of one case gave."""

    case: str
    mode: str
    state: State
    detail: str = ""
    verdict: str = ""
    findings: list[str] = field(default_factory=list)
    wall_s: float = 0.0
    applications: int = 0
    inferences: int = 0
    beyond: int = 0
    localizing: int = 0
    walk_inferences: int = 0
    culprit_length: int | None = None


Reader = Callable[[Path, Mapping[str, Any], str], list[Case]]


# --- the manifest of the ONNX Optimizer -----------------------------------------------------------


def onnxoptimizer_cases(folder: Path, manifest: Mapping[str, Any], version: str) -> list[Case]:
    """Cases of a manifest of the form of ONNX Optimizer's that apply to ``version``."""
    by_design = frozenset(manifest.get("by_design") or ())
    cases = [_onnxoptimizer_case(folder, raw, version, by_design) for raw in manifest["cases"]]
    return [c for c in cases if c is not None]


def _onnxoptimizer_case(
    folder: Path, raw: Mapping[str, Any], version: str, by_design: frozenset[str]
) -> Case | None:
    control = bool(raw.get("control"))
    has_bug = None if control else _affects(raw, version)
    if not control and has_bug is None:
        return None
    bugs = () if control else _bugs(raw)
    accepted = {name for bug in bugs for culprit in bug.culprits for name in culprit}
    default_set = raw.get("default_set") or {}
    strict = raw.get("reference_version") in (None, version)
    shows = raw.get("in_default_set", True) and not raw.get("masked_in_default_set")
    shows = shows and default_set.get("once", "unknown") is not None
    if control or not has_bug:
        modes = [Mode("default"), Mode("each", {"strategy": "each"})]
    else:
        # Where nothing is said of the default pipeline, either mode may find it.
        said = not raw.keys().isdisjoint(("in_default_set", "default_set", "masked_in_default_set"))
        modes = _modes(raw, bool(shows), strict and said, accepted & by_design)
    if raw.get("benign_inputs"):
        modes.append(Mode("benign", benign=True))
    return Case(
        raw["id"],
        folder / raw.get("model", f"models/{raw['id']}.onnx"),
        _existing(folder, raw.get("inputs")),
        _existing(folder, raw.get("benign_inputs")),
        control,
        bugs if has_bug else (),
        () if has_bug else bugs,
        tuple(modes),
        unscored=by_design - accepted,
        scored=not raw.get("ambiguous"),
        strict=strict,
        roundtrip=_onnxoptimizer_roundtrip,
        tags=tuple(raw.get("tags") or ()),
    )


def _affects(raw: Mapping[str, Any], version: str) -> bool | None:
    """Whether ``version`` has the bug; None where the manifest does not say."""
    if version in (raw.get("affected") or ()):
        return True
    if version in (raw.get("not_affected") or ()):
        return False
    live = raw.get(f"live_in_{version}")
    if live is None and not raw.get("affected") and not raw.get("not_affected"):
        live = True
    return live


def _bugs(raw: Mapping[str, Any]) -> tuple[Bug, ...]:
    symptoms = symptoms_named(raw.get("symptom"))
    lenient = symptoms.union(*(symptoms_named(s) for s in raw.get("all_symptoms") or ()))
    culprits: set[tuple[str, ...]] = {
        () if p == "*" else (p,) for p in raw.get("culprit_passes") or ()
    }
    if "minimal_sequence" in raw and (raw["minimal_sequence"] or raw.get("kind") == "roundtrip"):
        culprits.add(tuple(raw["minimal_sequence"]))
    for first, second, *symptom in raw.get("failing_pairs") or ():
        culprits.add((first, second))
        lenient = lenient.union(*(symptoms_named(s) for s in symptom))
    bugs = [Bug(symptoms, lenient, frozenset(culprits))]
    for sequence in raw.get("also_minimal_sequences") or ():
        bugs.append(Bug(symptoms, lenient, frozenset({tuple(sequence)})))
    return tuple(bugs)


def symptoms_named(name: str | None) -> frozenset[Symptom]:
    """Symptoms that a manifest's name stands for; all of them where it says nothing we know."""
    plain = (name or "").replace("_", "-")
    if plain in {s.value for s in Symptom}:
        return frozenset({Symptom(plain)})
    return SYMPTOMS.get(plain, frozenset(Symptom))


def _modes(
    raw: Mapping[str, Any], shows: bool, strict: bool, about_by_design: Iterable[str]
) -> list[Mode]:
    sequence = tuple(raw.get("minimal_sequence") or ())
    again = raw.get("kind") in ("repeat", "fixed-point")
    # What the default pipeline shows was measured with one version only.
    modes = [Mode("default", must=shows and strict)]
    fixed_point = raw.get("kind") == "fixed-point" or (
        not shows and (raw.get("default_set") or {}).get("fixed_point") is not None
    )
    if fixed_point:
        modes.append(Mode("fixed-point", {"optimizer_options": {"fixed_point": True}}, must=False))
    if not shows or again:
        # Passes that deviate by design are not blamed unless they are asked for.
        modes.append(Mode("each", {"strategy": "each"}, must=not list(about_by_design)))
    elif not strict:
        modes.append(Mode("each", {"strategy": "each"}, must=False))
    if sequence and (not raw.get("in_default_set", True) or about_by_design):
        modes.append(Mode("named", {"pipeline": sequence}))
    return modes


def _existing(folder: Path, names: str | Sequence[str] | None) -> tuple[Path, ...]:
    listed = [names] if isinstance(names, str) else list(names or ())
    return tuple(folder / name for name in listed if (folder / name).exists())


_ROUNDTRIP = """
import sys, onnx, onnxoptimizer, onnxruntime
model = onnxoptimizer.optimize(onnx.load(sys.argv[1]), ["nop"])
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
onnx.checker.check_model(model)
onnxruntime.InferenceSession(model.SerializeToString(), options)
"""


def _onnxoptimizer_roundtrip(case: Case) -> str:
    command = [sys.executable, "-c", _ROUNDTRIP, str(case.model)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    words = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
    return words[-1][:160] if done.returncode else ""


# --- the manifest of ONNX Runtime -----------------------------------------------------------------


def onnxruntime_cases(folder: Path, manifest: Mapping[str, Any], version: str) -> list[Case]:
    """Cases of a manifest of the form of ONNX Runtime's of which ``version`` was examined."""
    cases = [_onnxruntime_case(folder, raw, version) for raw in manifest["cases"]]
    return [c for c in cases if c is not None]


def _onnxruntime_case(folder: Path, raw: Mapping[str, Any], version: str) -> Case | None:
    model = folder / f"models/{raw['id']}.onnx"
    inputs = _existing(folder, f"inputs/{raw['id']}.npz")
    seen = raw["versions"].get(version)
    if seen is None:
        fed = inputs[0] if inputs else None
        seen = shows.in_onnxruntime(model, fed, float(raw.get("atol") or 0))
    # Slowness is measured, not judged; "not_applicable" is a model that the version cannot read.
    if seen in ("not_applicable", "slowdown"):
        return None
    control = bool(raw["control"])
    symptoms = symptoms_named(raw["symptom"] if seen == "same" else seen)
    bug = Bug(symptoms, symptoms, accepted_culprits(raw["culprits"], raw["relation"]))
    affected = not control and seen != "same"
    return Case(
        raw["id"],
        model,
        inputs,
        (),
        control,
        (bug,) if affected else (),
        () if affected or control else (bug,),
        (Mode("default"), Mode("offline", {"optimizer_options": {"mode": "offline"}}, must=False)),
        # What shows only where another pass is left out is no fault of the whole.
        scored=raw.get("severity") != "hazard",
    )


def accepted_culprits(culprits: Sequence[str], relation: str) -> frozenset[tuple[str, ...]]:
    """Sequences that may be blamed: all together if ``joint``, else each on its own."""
    if relation == "joint":
        return frozenset(permutations(culprits))
    return frozenset((name,) for name in culprits)


READERS: Mapping[str, Reader] = {
    "onnxoptimizer": onnxoptimizer_cases,
    "onnxruntime": onnxruntime_cases,
}
"""By optimizer plugin. Another plugin's manifest needs one function here, nothing else: it turns
the manifest's fields into ``Bug`` and ``Mode``."""


# --- judging --------------------------------------------------------------------------------------


def judge_mode(case: Case, mode: Mode, result: VetResult) -> tuple[State, str]:
    """What one result says about one case."""
    # What did not show again in a fresh process is no claim: the verdict says "undecided" then.
    faults = [f for f in result.findings if f.severity == "fault" and f.confirmed]
    if not case.scored:
        return "unscored", ""
    if mode.benign or case.control:
        bad = result.verdict == "faulty" or faults
        return ("false alarm", _words(result.findings)) if bad else ("ok", result.reason)
    if not case.bugs:
        same = [f for f in result.findings if any(_is(f, b, b.symptoms) for b in case.absent)]
        if same:
            return "false alarm", f"version does not have it: {_words(same)}"
        return "ok", f"other findings: {_words(faults)}" if faults else ""
    return _judge_bugs(case, mode, result, faults)


def _judge_bugs(
    case: Case, mode: Mode, result: VetResult, faults: Sequence[Finding]
) -> tuple[State, str]:
    # What the runtime's own defaults are wrong about, of the original too, is blamed on no pass.
    by_runtime = (f.as_deployed and not f.culprit for f in faults)
    passes = [f for f, own in zip(faults, by_runtime, strict=True) if not own]
    strangers = [f for f in passes if not _accepted(case, f)]
    claims = [f for f in result.findings if f.confirmed]
    exact = [any(_is(f, b, b.symptoms) for f in claims) for b in case.bugs]
    blamed = [any(_is(f, b, b.lenient) for f in claims) for b in case.bugs]
    doubtful = _words(f for f in result.findings if not f.confirmed)
    if strangers and not case.strict and not any(f.culprit for f in strangers):
        if case.roundtrip is not None and (why := case.roundtrip(case)):
            return "unscored", f"in this version the round trip alone fails: {why}"
    if strangers:
        return "wrong culprit", _words(strangers)
    if all(exact):
        return "found", doubtful
    if all(blamed):
        return ("found" if not case.strict else "symptom"), _words(faults)
    words = f"verdict {result.verdict}; {_words(result.findings)}"
    return ("missed" if mode.must else "not seen"), words


def _accepted(case: Case, finding: Finding) -> bool:
    if set(finding.culprit) & case.unscored:
        return True
    return any(tuple(finding.culprit) in b.culprits for b in case.bugs)


def _is(finding: Finding, bug: Bug, symptoms: frozenset[Symptom]) -> bool:
    return finding.symptom in symptoms and tuple(finding.culprit) in bug.culprits


def _words(findings: Iterable[Finding]) -> str:
    return "; ".join(
        f"{f.symptom.value} by [{', '.join(f.culprit)}]"
        + ("" if f.confirmed else " (unconfirmed)")
        + (f": {f.message[:120]}" if f.message else "")
        for f in findings
    )


def settle(case: Case, rows: list[Row]) -> None:
    """Judge a case over its modes: some mode must have found it."""
    if not case.bugs or not case.scored:
        return
    if any(r.state in BAD for r in rows):
        return
    states = [r.state for r in rows]
    if "found" not in states:
        if "unscored" in states:
            return
        last = next(r for r in reversed(rows) if r.mode != "benign")
        last.state = "missed"
    elif rows[0].state == "not seen" and not case.strict:
        next(r for r in rows if r.state == "found").state = "late"


# --- running --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """How every case is run."""

    optimizer: str
    datasets: tuple[str, ...] = ("files",)
    limit_s: float = 120.0
    timeout_s: float = 60.0
    only: tuple[str, ...] = ()


def run_case(case: Case, plan: Plan) -> list[Row]:
    """All modes of one case; never raises."""
    rows = []
    for mode in case.modes:
        if plan.only and mode.name not in plan.only:
            continue
        rows.append(run_mode(case, mode, plan))
    if rows and not plan.only:
        settle(case, rows)
    return rows


def run_mode(case: Case, mode: Mode, plan: Plan) -> Row:
    """One vet of one case; never raises."""
    inputs = case.benign if mode.benign else case.inputs
    # Other inputs than the benign ones may well show the bug.
    datasets = [f"files:{path}" for path in inputs if "files" in plan.datasets or mode.benign]
    if not datasets or ("random" in plan.datasets and not mode.benign):
        datasets.append("random")
    started = time.perf_counter()
    row = Row(case.id, mode.name, "crashed")
    try:
        result = vet(
            case.model,
            optimizer=plan.optimizer,
            dataset=datasets,
            timeout=plan.timeout_s,
            cache=False,
            **mode.options,
        )
    except NothingTested as error:
        row.state = "ok" if case.control else "missed"
        row.detail = f"{type(error).__name__}: {error}"
    except Exception as error:  # the finding of this benchmark, whatever it is
        row.detail = f"{type(error).__name__}: {error}"
    else:
        row.state, row.detail = judge_mode(case, mode, result)
        _fill(row, result)
    row.wall_s = round(time.perf_counter() - started, 3)
    return row


def _fill(row: Row, result: VetResult) -> None:
    cost = result.cost
    row.verdict = result.verdict
    row.findings = [_words([f]) for f in result.findings]
    row.applications, row.inferences = cost.applications, cost.inferences
    parts = [cost.by_purpose[p] for p in LOCALIZATION if p in cost.by_purpose]
    row.beyond = sum(p.applications for p in parts)
    row.localizing = sum(p.inferences for p in parts)
    row.walk_inferences = cost.by_purpose["walk"].inferences if "walk" in cost.by_purpose else 0
    faults = [f for f in result.findings if f.severity == "fault"]
    if row.mode == "default" and len(faults) == 1:
        row.culprit_length = len(faults[0].culprit)


# --- printing -------------------------------------------------------------------------------------


def report_row(row: Row) -> str:
    """One line."""
    cost = f"{row.applications:>4} appl {row.inferences:>4} inf {row.wall_s:>6.2f} s"
    detail = f"  {row.detail}" if row.detail else ""
    return f"{row.case:<34} {row.mode:<11} {row.state:<13} {cost}{detail}"


def totals(cases: Sequence[Case], rows: Sequence[Row], plan: Plan) -> dict[str, Any]:
    """The sums that say how good it is."""
    by_case: dict[str, list[Row]] = {}
    for row in rows:
        by_case.setdefault(row.case, []).append(row)
    hidden = {c.id for c in cases if any(r.state == "unscored" for r in by_case.get(c.id, ()))}
    bugs = [c for c in cases if c.bugs and c.id in by_case and c.id not in hidden]
    clean = [c for c in cases if not c.bugs and c.scored and c.id in by_case]
    found = [c for c in bugs if any(r.state in ("found", "late") for r in by_case[c.id])]
    bad_of = {s: sorted({r.case for r in rows if r.state == s}) for s in BAD}
    slow = [r for r in rows if r.wall_s > plan.limit_s + 2]
    localized = [r for r in rows if r.culprit_length]
    over = [
        r
        for r in localized
        if r.beyond > MOST_APPLICATIONS.get(r.culprit_length or 1, 40)
        or (r.culprit_length == 1 and r.localizing + r.walk_inferences > MOST_INFERENCES)
    ]
    return {
        "bugs": len(bugs),
        "found": len(found),
        "recall": len(found) / len(bugs) if bugs else None,
        "culprit_right": sum(1 for c in found if c.id not in bad_of["wrong culprit"]),
        "symptom_right": sum(1 for c in found if c.id not in bad_of["symptom"]),
        "clean": len(clean),
        "clean_controls": sum(1 for c in clean if c.control),
        "false_alarms": bad_of["false alarm"],
        "missed": bad_of["missed"],
        "wrong_culprit": bad_of["wrong culprit"],
        "wrong_symptom": bad_of["symptom"],
        "crashed": bad_of["crashed"],
        "late": sorted({r.case for r in rows if r.state == "late"}),
        "unscored": sorted(hidden),
        "applications": sum(r.applications for r in rows),
        "inferences": sum(r.inferences for r in rows),
        "wall_s": round(sum(r.wall_s for r in rows), 1),
        "longest_s": max((r.wall_s for r in rows), default=0.0),
        "beyond_limit": [f"{r.case}/{r.mode}" for r in slow],
        "localization": _localization(localized),
        "localization_over": [
            f"{r.case}: {r.beyond} applications, {r.localizing}+{r.walk_inferences} inferences"
            for r in over
        ],
    }


def _localization(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Applications beyond the walk, and inferences, by length of the culprit."""
    table = {}
    for length in sorted({r.culprit_length or 0 for r in rows}):
        of = [r for r in rows if r.culprit_length == length]
        table[str(length)] = {
            "cases": len(of),
            "most_applications": max(r.beyond for r in of),
            "mean_applications": round(sum(r.beyond for r in of) / len(of), 1),
            "most_inferences": max(r.localizing for r in of),
            "most_inferences_with_walk": max(r.localizing + r.walk_inferences for r in of),
        }
    return table


def print_totals(sums: Mapping[str, Any]) -> None:
    """The totals in words."""
    print()
    print(f"recall            {sums['found']} of {sums['bugs']}")
    print(f"culprits right    {sums['culprit_right']} of {sums['found']}")
    print(f"symptoms right    {sums['symptom_right']} of {sums['found']}")
    print(
        f"false alarms      {len(sums['false_alarms'])} of {sums['clean']} clean cases "
        f"({sums['clean_controls']} controls)"
    )
    for key in ("missed", "wrong_culprit", "wrong_symptom", "false_alarms", "crashed", "late"):
        if sums[key]:
            print(f"  {key.replace('_', ' ')}: {', '.join(sums[key])}")
    if sums["unscored"]:
        print(f"  not scored: {', '.join(sums['unscored'])}")
    print(
        f"cost              {sums['applications']} applications, {sums['inferences']} inferences, "
        f"{sums['wall_s']} s; longest case {sums['longest_s']:.2f} s"
    )
    for length, row in sums["localization"].items():
        print(
            f"localization of {length:<2}: {row['cases']:>3} cases, beyond the walk at most "
            f"{row['most_applications']} applications (mean {row['mean_applications']}), "
            f"{row['most_inferences']} inferences ({row['most_inferences_with_walk']} with the "
            "walk's)"
        )
    for words in sums["localization_over"]:
        print(f"  over budget: {words}")
    for words in sums["beyond_limit"]:
        print(f"  beyond its time limit: {words}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the corpus; 1 if anything was missed or falsely reported."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with manifest.json, models and inputs")
    parser.add_argument("--limit-to", default="", metavar="ID,ID", help="only these cases")
    parser.add_argument("--modes", default="", help="only these modes (default,each,named,...)")
    parser.add_argument("--thorough", action="store_true", help="mode 'each' for every case")
    parser.add_argument("--strategy", help="this strategy in the mode 'default'")
    parser.add_argument("--optimizer", help="default: the name of FOLDER")
    parser.add_argument("--dataset", choices=["files", "random", "both"], default="files")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for one step")
    parser.add_argument("--case-limit", type=float, default=120.0, help="seconds for one vet")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows and totals here")
    options = parser.parse_args(arguments)
    manifest = json.loads((options.folder / "manifest.json").read_text())
    options.optimizer = options.optimizer or options.folder.resolve().name
    if options.optimizer not in READERS:
        parser.error(f"no reader for manifests of {options.optimizer!r}; there is {[*READERS]}")
    version = machine.library_version(options.optimizer)
    cases = READERS[options.optimizer](options.folder, manifest, version)
    wanted = {name for name in options.limit_to.split(",") if name}
    if unknown := wanted - {c["id"] for c in manifest["cases"]}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    cases = [c for c in cases if not wanted or c.id in wanted]
    if not cases:
        parser.error(f"nothing in {options.folder} applies to {options.optimizer} {version}")
    if options.thorough:
        cases = [_thorough(c) for c in cases]
    if options.strategy:
        cases = [_with_strategy(c, options.strategy) for c in cases]
    datasets = ("files", "random") if options.dataset == "both" else (options.dataset,)
    only = tuple(m for m in options.modes.split(",") if m)
    plan = Plan(options.optimizer, datasets, options.case_limit, options.timeout, only)
    found = machine.environment()
    print(machine.describe(found), flush=True)
    print(f"{len(cases)} cases of {options.folder.name} apply to {options.optimizer} {version}\n")
    rows: list[Row] = []
    for case in cases:
        for row in run_case(case, plan):
            rows.append(row)
            print(report_row(row), flush=True)
    sums = totals(cases, rows, plan)
    print_totals(sums)
    print(f"states            {dict(Counter(r.state for r in rows))}")
    if options.json:
        document = {
            "environment": found,
            "optimizer": {"name": options.optimizer, "version": version},
            "totals": sums,
            "rows": [asdict(r) for r in rows],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return int(any(r.state in BAD for r in rows) or bool(sums["beyond_limit"]))


def _thorough(case: Case) -> Case:
    if any(m.name == "each" for m in case.modes):
        return case
    return replace(case, modes=(*case.modes, Mode("each", {"strategy": "each"}, must=False)))


def _with_strategy(case: Case, strategy: str) -> Case:
    modes = tuple(
        replace(m, options={**m.options, "strategy": strategy}) if m.name == "default" else m
        for m in case.modes
    )
    return replace(case, modes=modes)


if __name__ == "__main__":
    sys.exit(main())
