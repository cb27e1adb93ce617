"""Results of trials, and their form in the cache.

There are two kinds. A *build* is the result of a pass sequence on the model: a digest and the
structure, or a failure. A *run* is the result of an artifact on a sample.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np
from pydantic import TypeAdapter

from optvet.engine.work.cache.array_bytes import dump_arrays, load_arrays
from optvet.engine.work.sandbox import Outcome
from optvet.engine.work.sandbox.landlock import DENIED
from optvet.engine.work.trials.inference import Outputs
from optvet.engine.work.trials.library_warnings import Warned
from optvet.engine.work.trials.trial import TrialReport
from optvet.graph.digest import UNKNOWN, Contents
from optvet.graph.interface import Alignment
from optvet.graph.structure import Facts
from optvet.spec.records import Cost, StageCost
from optvet.spec.records.vet import CulpritSearch
from optvet.spec.shortage import shortage_in
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Failure, Model, Sample

Purpose = Literal[
    "reference",
    "detect",
    "control",
    "noise",
    "walk",
    "localize",
    "each",
    "confirm",
    "verify",
    "decode",
]


FINDING: AbstractSet[Purpose] = frozenset(
    {"reference", "detect", "control", "walk", "localize", "each", "confirm", "verify"}
)
"""Detection and localization: what it takes to know that there is a fault, and whose it is."""


@dataclass(frozen=True)
class Build:
    """The result of applying a pass sequence to the model.

    ``warned`` is what came before the model was loaded, ``strict`` what strict shape inference says
    of a model that loads all the same.
    """

    digest: str = ""
    contents: Contents = UNKNOWN
    facts: Facts | None = None
    failure: Failure | None = None
    changing_passes: tuple[str, ...] | None = None
    loads: bool = False
    warned: tuple[Warned, ...] = ()
    strict: Failure | None = None


@dataclass(frozen=True)
class Trial:
    """A build and its runs: the results of one pass sequence on some samples.

    ``runs`` has one entry per sample, in order, up to the first failure. ``of_optimizer`` is False
    for the original model, and True for an empty pass sequence.
    """

    passes: tuple[str, ...]
    build: Build
    alignment: Alignment | None = None
    runs: Mapping[str, Outputs | Failure] = field(default_factory=dict)
    of_optimizer: bool = True


class Ledger:
    """Counts applications and inferences by purpose."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._searches: list[CulpritSearch] = []

    def add(self, purpose: str, applications: int = 0, inferences: int = 0) -> None:
        """Count work that was done, not read from the cache."""
        count = self._counts.setdefault(purpose, [0, 0])
        count[0] += applications
        count[1] += inferences

    def searched(self, symptom: Symptom, asked: int, among: int, found: int) -> None:
        """Record a search for culprits, beside the fewest answers that it can take."""
        # Each answer halves the choices at best.
        needed = math.log2(math.comb(max(among, found), found))
        search = CulpritSearch(
            symptom=symptom, asked=asked, among=among, found=found, needed=round(needed, 1)
        )
        self._searches.append(search)

    def inferences(self, purposes: AbstractSet[str]) -> int:
        """How many were made for these purposes."""
        return sum(count for purpose, (_, count) in self._counts.items() if purpose in purposes)

    def cost(self, wall_s: float) -> Cost:
        """The totals, for the result document."""
        parts = {
            p: StageCost(applications=a, inferences=i)
            for p, (a, i) in self._counts.items()
            if a or i
        }
        return Cost(
            applications=sum(c.applications for c in parts.values()),
            inferences=sum(c.inferences for c in parts.values()),
            wall_s=round(wall_s, 3),
            by_purpose=parts,
            searches=list(self._searches),
        )


def is_circumstantial(failure: Failure | None) -> bool:
    """Whether a failure may be due to this machine, so that it must not be cached on disk.

    What the kernel denied names files, which lie elsewhere for the next model of the same bytes;
    what the machine lacked is there the next time.
    """
    if failure is None:
        return False
    words = f"{failure.error_type} {failure.message}"
    lacking = bool(DENIED.search(words) or shortage_in(words))
    return lacking or failure.kind in ("timeout", "out-of-memory", "killed")


def is_late(trial: Trial) -> bool:
    """Whether a run of ``trial`` reached the time limit."""
    return any(isinstance(r, Failure) and r.kind == "timeout" for r in trial.runs.values())


def fits(run: Outputs | Failure, model: Model, build: Build) -> bool:
    """Whether a cached run has the outputs of the model, or of the build."""
    if isinstance(run, Failure):
        return True
    sides = [model.outputs, *([build.facts.outputs] if build.facts else [])]
    return any(_has_outputs(run, {o.name for o in side}) for side in sides)


def _has_outputs(run: Outputs, names: AbstractSet[str]) -> bool:
    """Whether ``run`` has all outputs ``names``, flattened as ``flatten`` does, and no others."""
    return run.keys() == names or {_OUTPUT.sub("", name) for name in run} == names


_OUTPUT = re.compile(r"(\[\d+\]|\.keys|\.length|\.is_none)+\Z")


def hangs(trial: Trial) -> bool:
    """Whether the build or a run of the trial reached the time limit."""
    failures = [trial.build.failure, *(r for r in trial.runs.values() if isinstance(r, Failure))]
    return any(f is not None and f.kind == "timeout" for f in failures)


def read_outcome(
    outcome: Outcome[TrialReport], samples: Sequence[Sample], build_key: str
) -> tuple[Build, dict[str, Outputs | Failure]]:
    """Split the outcome of a trial into its build and its runs by sample."""
    report = outcome.value
    failure = outcome.failure or (report.failure if report else None)
    late = failure is not None and failure.stage in ("load", "run")
    if report is None:
        # The worker died before it sent the digest; the key of the build stands for it.
        name = f"lost:{build_key}" if late else ""
        runs: dict[str, Outputs | Failure] = {}
        if late and failure is not None:
            runs = {s.id: failure for s in samples}
        return Build(name, Contents(name), None, None if late else failure), runs
    build = Build(
        report.digest,
        report.contents,
        report.facts,
        None if late else failure,
        report.changing_passes,
        bool(report.interface_problem),
        strict=report.strict,
    )
    runs = dict(report.outputs)
    if late and failure is not None:
        # If loading failed, every sample failed; if a run failed, only its sample.
        for sample in samples:
            if report.failed_sample in (None, sample.id):
                runs[sample.id] = failure
    return build, runs


# --- facts as bytes -------------------------------------------------------------------------------


_BUILD: TypeAdapter[Build] = TypeAdapter(Build)
_FAILURE: TypeAdapter[Failure] = TypeAdapter(Failure)
_WARNED: TypeAdapter[tuple[Warned, ...]] = TypeAdapter(tuple[Warned, ...])


def build_to_json(build: Build) -> bytes:
    """A build in its form in the cache."""
    return json.dumps(asdict(build)).encode()


def build_from_json(data: bytes) -> Build:
    """Read the output of ``build_to_json``."""
    return _BUILD.validate_python(json.loads(data))


def replay_to_bytes(
    build: Build, runs: Mapping[str, Outputs | Failure], samples: Sequence[Sample]
) -> bytes:
    """A repeated trial in its form in the cache."""
    # By position, not by id: equal feeds may have another id next time.
    packed = {
        str(i): np.frombuffer(run_to_bytes(runs[s.id]), np.uint8)
        for i, s in enumerate(samples)
        if s.id in runs
    }
    return dump_arrays(packed, {"build": build_to_json(build).decode()})


def replay_from_bytes(
    data: bytes, samples: Sequence[Sample]
) -> tuple[Build, dict[str, Outputs | Failure]]:
    """Read the output of ``replay_to_bytes``, for samples in the same order."""
    packed, meta = load_arrays(data)
    runs = {samples[int(i)].id: run_from_bytes(a.tobytes()) for i, a in packed.items()}
    return build_from_json(meta["build"].encode()), runs


def run_to_bytes(run: Outputs | Failure, warned: Sequence[Warned] = ()) -> bytes:
    """A run in its form in the cache, with the warnings that came when it was made."""
    about: dict[str, object] = {"warned": [asdict(w) for w in warned]} if warned else {}
    if isinstance(run, Failure):
        return dump_arrays({}, {"failure": asdict(run), **about})
    return dump_arrays(run, {"failure": None, **about})


def run_from_bytes(data: bytes) -> Outputs | Failure:
    """Read the output of ``run_to_bytes``, without warnings."""
    return warned_run_from_bytes(data)[0]


def warned_run_from_bytes(data: bytes) -> tuple[Outputs | Failure, tuple[Warned, ...]]:
    """Read the output of ``run_to_bytes``."""
    arrays, meta = load_arrays(data)
    warned = _WARNED.validate_python(meta.get("warned", ()))
    if meta["failure"] is not None:
        return _FAILURE.validate_python(meta["failure"]), warned
    return arrays, warned
