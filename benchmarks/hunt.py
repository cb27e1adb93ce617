"""What hunts find in a given time: rate, share of valid models, passes that fire, known faults.

For each optimizer a hunt per seed, in a folder of its own; then a table of models per second of CPU
time, the share of valid ones, passes that changed a model, the time of vetting, and findings, also
by how much of the time was used when the model that showed them was made. Where a corpus of known
faults of the optimizer is at hand (the folder ``bugs`` of the tests' data), it counts those that
were found again blind, by each seed and by all, *by cause*: a finding of a known fault's symptom
whose culprit is one of its culprits, or its sequence, and whose reduced model has what
``causes.toml`` says of the cause. The looser count, by culprit and symptom alone, stands beside it,
and how many of the causes that hunts met at some time (``docs/finds.md``) one hunt meets.
Faults of ONNX Runtime count where its installed version still shows them: each case is run in a
process of its own, without optvet, with all optimizations and with none. With ``--vet known`` only
suspicions are vetted that may be a known fault which was not met yet: vetting all of them takes
longer than making and judging models; with ``--vet none`` none is. ``--ignore-code`` tells what it
brings to edit models that run new lines of passes in Python.

    python benchmarks/hunt.py --budget 2m --seeds 1 onnxoptimizer
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import onnx
import onnx.parser

from optvet.engine.discovery import Plugins
from optvet.engine.hunt.run import Wanted, hunt
from optvet.engine.hunt.state import HuntStore, Suspect
from optvet.engine.hunt.summary import HuntProgress
from optvet.engine.hunt.suspicions import ANY
from optvet.graph.features import features
from optvet.spec.hunt import HuntRequest
from optvet.spec.records import HuntFinding, HuntSummary

HERE = Path(__file__).parent
DATA = HERE.parents[1] / "shared"
OPTIMIZERS = ("onnxoptimizer", "onnxslim", "onnxscript", "onnxsim", "onnxruntime")
SYMPTOMS = {
    "optimizer-crash": {"optimizer-error", "optimizer-abort"},
    "optimizer-abort": {"optimizer-abort", "timeout"},
    "metadata-loss": {"metadata-change"},
    "redundancy": {"bloat"},
    "wrong_values": {"wrong-output"},
    "wrong_shape": {"wrong-output"},
    "load_error": {"load-failure", "optimizer-error"},
    "run_error": {"run-failure"},
    "crash": {"optimizer-abort", "load-failure"},
}
"""Symptoms of findings, by what the corpora call them, where the words differ."""


def main() -> None:
    """Hunt, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("optimizers", nargs="*", default=OPTIMIZERS)
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--vet", choices=["all", "known", "none"], default="all")
    parser.add_argument(
        "--ignore-code", action="store_true", help="edit no model for the lines that it runs"
    )
    parser.add_argument("--out", type=Path, help="keep the hunts, and go on with those that exist")
    options = parser.parse_args()
    print(machine.describe(machine.environment()), flush=True)
    with machine.as_installed(), tempfile.TemporaryDirectory(prefix="optvet-hunts-") as scratch:
        place = options.out or Path(scratch)
        for name in options.optimizers:
            cases = live_cases(name)
            met_once = listed(name)
            found: list[Found] = []
            for seed in range(options.seeds):
                out = place / f"{name}-{seed}"
                wanted: Wanted = (
                    MayBeKnown([*cases, *met_once], out) if options.vet == "known" else anything
                )
                wanted = nothing if options.vet == "none" else wanted
                follows = not options.ignore_code
                summary = one(name, seed, options.budget, options.jobs, out, wanted, follows)
                mine = [Found(f, out / f.bundle) for f in summary.findings]
                found += mine
                print(row(summary), flush=True)
                print(f"    {over_time(summary)}", flush=True)
                print(f"    {kinds(out)}", flush=True)
                print(f"    {known(cases, mine)}", flush=True)
                print(f"    {of_list(met_once, mine)}", flush=True)
            print(
                f"{name}, all seeds: {known(cases, found)}; {of_list(met_once, found)}", flush=True
            )
            for defect in missed(cases, found):
                print(f"    not met by cause: {defect}", flush=True)
            for cause in missed(met_once, found):
                print(f"    not met of docs/finds.md: {cause}", flush=True)
            for some in beside([*cases, *met_once], found):
                print(f"    of none of these: {some}", flush=True)


def anything(suspect: Suspect) -> bool:
    """Every suspicion is vetted."""
    return True


def nothing(suspect: Suspect) -> bool:
    """No suspicion is vetted."""
    return False


def one(
    name: str,
    seed: int,
    budget: str,
    jobs: int,
    out: Path,
    wanted: Wanted = anything,
    follows_code: bool = True,
) -> HuntSummary:
    """The summary of one hunt; it is gone on with if it exists."""
    resume = (out / "hunt.sqlite").exists()
    request = HuntRequest(
        optimizer=name, out=out, budget=budget, seed=seed, jobs=jobs, resume=resume
    )

    def told(event: HuntProgress) -> None:
        if event.found is not None:
            if isinstance(wanted, MayBeKnown):
                wanted.take(event.found)
            culprit = ",".join(event.found.culprit) or "*"
            words = f"{event.seconds:7.1f} s  {event.found.symptom}  {culprit}"
            print(words, file=sys.stderr, flush=True)

    return hunt(request, Plugins(), progress=told, wanted=wanted, follows_code=follows_code)


def row(summary: HuntSummary) -> str:
    """One hunt in numbers."""
    faults = sum(f.severity == "fault" for f in summary.findings)
    notes = len(summary.findings) - faults
    share = summary.valid / max(summary.candidates, 1)
    passes = len(summary.fired) + len(summary.unfired)
    return (
        f"{summary.optimizer} {summary.version}, seed {summary.seed}: {summary.candidates} models, "
        f"{summary.valid / max(summary.seconds, 1e-9):.0f} valid/s, {share:.0%} valid, "
        f"{len(summary.fired)} of {passes} passes changed a model, "
        f"{summary.signatures} kinds of changes, "
        f"{faults} faults, {notes} notes of {len(summary.causes)} probable causes, "
        f"{summary.vetting_seconds:.0f} s of vetting beside {summary.seconds:.0f} s of making, "
        f"{summary.refuted} suspicions not confirmed"
    )


def over_time(summary: HuntSummary) -> str:
    """How many findings there were after parts of the time: models take about equally long."""
    parts = []
    for share in (0.1, 0.25, 0.5, 0.75, 1.0):
        count = sum(f.candidate <= share * summary.candidates for f in summary.findings)
        parts.append(f"{count} after {share * summary.seconds:.0f} s")
    return f"findings: {', '.join(parts)}"


def kinds(out: Path) -> str:
    """How many kinds of suspicions a hunt had, and lines of passes in Python that it ran."""
    with closing(HuntStore(out)) as store:
        state = store.load()
    places = {key.place for key in state.signs}
    ran = f"; {len(state.reached)} lines of the passes' code ran" if state.reached else ""
    return (
        f"suspicions of {len(state.signs)} kinds, at {len(places)} pairs of passes and symptom{ran}"
    )


@dataclass(frozen=True)
class Cause:
    """What the reduced model of a finding of a cause has; see ``causes.toml``."""

    has: tuple[re.Pattern[str], ...]
    lacks: tuple[re.Pattern[str], ...]
    shared: bool
    symptoms: frozenset[str] = frozenset()

    def fits(self, model: onnx.ModelProto) -> bool:
        """Whether the model has what the cause needs."""
        words = [str(feature) for feature in features(model)]
        return all(any(map(p.search, words)) for p in self.has) and not any(
            any(map(p.search, words)) for p in self.lacks
        )


@dataclass(frozen=True)
class Case:
    """A known fault, with its entry of the manifest."""

    entry: Mapping[str, Any]
    cause: Cause

    def shows(self, symptom: str) -> bool:
        """Whether a symptom may be of the cause."""
        return symptom in self.cause.symptoms or shows_alike(self.entry, symptom)

    @property
    def defect(self) -> str:
        """The name of the defect that it shows."""
        return str(self.entry.get("defect", self.entry["id"]))


class Found:
    """A finding with its reduced model."""

    def __init__(self, finding: HuntFinding, folder: Path) -> None:
        self.finding = finding
        self.model = onnx.load(folder / "model.onnx", load_external_data=False)


def live_cases(name: str) -> list[Case]:
    """The live faults of the optimizer's corpus; none if there is no corpus here.

    Raises:
        SystemExit: A case lacks what ``causes.toml`` says of its cause, or its cause is not there.
    """
    file = DATA / "bugs" / name / "manifest.json"
    if not file.is_file():
        return []
    causes = tomllib.loads((HERE / "causes.toml").read_text())[name]
    cases = []
    for entry in json.loads(file.read_text())["cases"]:
        if not is_live(entry) or (
            name == "onnxruntime" and not still_shows(file.parent, entry["id"])
        ):
            continue
        rule = causes.get(str(entry.get("defect", entry["id"])))
        if rule is None:
            raise SystemExit(f"causes.toml does not say what makes the cause of {entry['id']}")
        case = Case(entry, cause_of(rule))
        model = onnx.load(file.parent / "models" / f"{entry['id']}.onnx", load_external_data=False)
        if not case.cause.fits(model):
            raise SystemExit(f"the case {entry['id']} lacks what causes.toml says of its cause")
        cases.append(case)
    return cases


def listed(name: str) -> list[Case]:
    """The causes of ``docs/finds.md`` in an optimizer, as ``causes.toml`` tells them.

    Raises:
        SystemExit: The model of a document lacks what ``causes.toml`` says of its cause.
    """
    causes = tomllib.loads((HERE / "causes.toml").read_text())["listed"].get(name, {})
    places = [*HERE.parent.glob("known/*/*.toml"), *HERE.glob("ranges/*.toml")]
    documents = {place.stem: place for place in places}
    cases = []
    for key, rule in causes.items():
        document = tomllib.loads(documents[key].read_text()) if key in documents else {}
        passes = rule.get("passes", document.get("passes", [])) or ["*"]
        symptom = rule.get("symptom", document.get("symptom"))
        entry = {"id": key, "symptom": symptom, "culprit_passes": passes, "relation": "some"}
        case = Case(entry, cause_of(rule))
        if document and not case.cause.fits(onnx.parser.parse_model(document["model"])):
            raise SystemExit(f"the model of {key} lacks what causes.toml says of its cause")
        cases.append(case)
    return cases


def cause_of(rule: Mapping[str, Any]) -> Cause:
    """What ``causes.toml`` says of a cause."""
    has, lacks = (tuple(map(re.compile, rule.get(k, ()))) for k in ("has", "lacks"))
    return Cause(has, lacks, rule.get("shared", False), frozenset(rule.get("symptoms", ())))


class MayBeKnown:
    """Whether a suspicion has place, symptom and parts of a known fault that was not met yet."""

    def __init__(self, cases: Sequence[Case], out: Path) -> None:
        self._cases, self._out = list(cases), out

    def __call__(self, suspect: Suspect) -> bool:
        """Whether it is to be vetted."""
        model = onnx.load_from_string(suspect.model)
        passes = suspect.passes if suspect.key.passes == (ANY,) else suspect.key.passes
        return any(
            c.shows(suspect.key.symptom)
            and (c.cause.shared or at(c.entry, passes))
            and c.cause.fits(model)
            for c in self._cases
        )

    def take(self, finding: HuntFinding) -> None:
        """Seek the fault that was found no more."""
        found = Found(finding, self._out / finding.bundle)
        met = {case.defect for case in self._cases if is_of(case, found)}
        self._cases = [case for case in self._cases if case.defect not in met]


def known(cases: Sequence[Case], found: Sequence[Found]) -> str:
    """How many of the faults were found again."""
    if not cases:
        return "there is no corpus of known faults here"
    defects = {c.defect for c in cases}
    met = len(defects) - len(missed(cases, found))
    loosely = {c.defect for c in cases if any(in_place(c.entry, f.finding) for f in found)}
    return (
        f"{met} of {len(defects)} known defects met again by cause; by culprit and symptom alone, "
        f"{len(loosely)}"
    )


def of_list(cases: Sequence[Case], found: Sequence[Found]) -> str:
    """How many causes of the list were found again."""
    met = len(cases) - len(missed(cases, found))
    return f"{met} of {len(cases)} causes of docs/finds.md met again"


def beside(cases: Sequence[Case], found: Sequence[Found]) -> list[str]:
    """The findings that are of no known cause, in a line each."""
    others = [f for f in found if not any(is_of(c, f) for c in cases)]
    return sorted(
        f"{f.finding.symptom}  {','.join(f.finding.culprit) or '*'}  {f.finding.bundle}"
        for f in others
    )


def missed(cases: Sequence[Case], found: Sequence[Found]) -> list[str]:
    """The defects of which no case was found again."""
    met = {c.defect for c in cases if any(is_of(c, f) for f in found)}
    return sorted({c.defect for c in cases} - met)


def is_of(case: Case, found: Found) -> bool:
    """Whether a finding shows the cause of a known fault."""
    finding, cause = found.finding, case.cause
    somewhere = cause.shared or at(case.entry, finding.culprit)
    return somewhere and case.shows(finding.symptom) and cause.fits(found.model)


def is_live(case: Mapping[str, Any]) -> bool:
    """Whether a fault of the corpus is in the newest version that it knows."""
    live = [value for key, value in case.items() if key.startswith("live_in_")]
    return not case.get("control") and any(live)


_SESSIONS = """
import sys
import numpy as np
import onnxruntime as ort

model, values = open(sys.argv[1], "rb").read(), dict(np.load(sys.argv[2]))
ort.set_default_logger_severity(4)


def outputs(level):
    options = ort.SessionOptions()
    options.graph_optimization_level, options.intra_op_num_threads = level, 1
    session = ort.InferenceSession(model, options, ["CPUExecutionProvider"])
    return session.run(None, {i.name: values[i.name] for i in session.get_inputs()})


expected = outputs(ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
print("runs", flush=True)
made = outputs(ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
for a, b in zip(expected, made, strict=True):
    assert a.shape == b.shape and a.dtype == b.dtype
    np.testing.assert_allclose(b.astype(float), a.astype(float), rtol=1e-3, atol=1e-5)
"""


def still_shows(folder: Path, case: str) -> bool:
    """Whether the installed ONNX Runtime gives or raises something else for a case if it optimizes.

    Raises:
        SystemExit: The model does not run without optimizations either.
    """
    places = [str(folder / "models" / f"{case}.onnx"), str(folder / "inputs" / f"{case}.npz")]
    command = [sys.executable, "-c", _SESSIONS, *places]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if "runs" not in ended.stdout:
        raise SystemExit(
            f"{case} does not run without optimizations: {ended.stderr.strip()[-300:]}"
        )
    return ended.returncode != 0


def shows_alike(case: Mapping[str, Any], symptom: str) -> bool:
    """Whether a symptom is that of a known fault."""
    return str(symptom) in SYMPTOMS.get(case["symptom"], {case["symptom"]})


def at(case: Mapping[str, Any], culprit: Sequence[str]) -> bool:
    """Whether passes are the culprit of a known fault."""
    culprits = set(case.get("culprit_passes") or case.get("culprits") or ())
    sequence = list(case.get("minimal_sequence") or ())
    joint = case.get("relation") == "joint"
    if case.get("relation") == "some":
        return set(culprit or ["*"]) <= culprits
    return (
        (bool(culprit) and list(culprit) == sequence)
        or (joint and set(culprit) == culprits)
        or (not joint and len(culprit) == 1 and culprit[0] in culprits)
        or (not culprit and "*" in culprits)
    )


def in_place(case: Mapping[str, Any], finding: HuntFinding) -> bool:
    """Whether symptom and culprit of a finding are those of a known fault."""
    return shows_alike(case, finding.symptom) and at(case, finding.culprit)


if __name__ == "__main__":
    main()
