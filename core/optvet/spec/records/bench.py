"""What optimizers cost and gain: document ``optvet.bench/1``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from optvet.spec.records.base import Record, Result
from optvet.spec.records.devices import DeviceUse, KernelProfile
from optvet.spec.records.placement import Placement
from optvet.spec.records.structure import Inventory, InventoryChange
from optvet.spec.records.timing import Pace, Timing
from optvet.spec.records.vet import DatasetRecord, ModelRecord, OptimizerRecord, RuntimeRecord
from optvet.spec.symptoms import Stage, Symptom


class StepFailure(Record):
    """A step of a candidate that failed, so that it could not be timed."""

    symptom: Symptom
    stage: Stage
    message: str


Part = Literal["inventory", "placement", "pace", "device", "kernels"]
"""Facts about a variant besides its speed."""


class Slowdown(Record):
    """Passes that make the model slower; an empty ``culprit`` is import and export alone.

    ``timing`` is a second, independent one, of the culprit alone; its ``baseline`` is the empty
    pipeline, unless that itself is the culprit. ``reasons`` is what explains it.
    """

    culprit: list[str]
    timing: Timing
    reasons: list[str] = Field(default_factory=list)


class BenchVariant(Record):
    """One optimizer with one pipeline.

    ``pipeline`` is its name or notation as it was asked for. ``optimization_s`` is the time to
    apply the passes, with reading the model; where a session optimizes as it loads, that time is
    part of ``load_s``. ``timing`` is None if the candidate's ``failure`` prevented it.

    ``inventory`` is what its model is made of, ``change`` what that has more of than the original,
    ``placement`` where it is executed, ``pace`` how fast it writes text, if it does, ``device``
    what the device does meanwhile, if there is one, and ``kernels`` what runs on it, if that was
    asked for. What of these is not known is None, for the reasons in ``unknown``.

    Of a slower variant, ``slowdowns`` are the culprits; ``blame_undecided`` says why there are
    none, or may be more. ``fast_pipeline`` is what is left without them, ``fast_option`` the same
    as a value of ``--pipeline``, ``fast_timing`` its timing; None if nothing is left that is no
    slower than import and export. ``sequences_timed`` counts the pass sequences that were timed.
    """

    optimizer: OptimizerRecord
    pipeline: str
    runtime: RuntimeRecord
    optimization_s: float | None = None
    failure: StepFailure | None = None
    timing: Timing | None = None
    inventory: Inventory | None = None
    change: InventoryChange | None = None
    placement: Placement | None = None
    pace: Pace | None = None
    device: DeviceUse | None = None
    kernels: KernelProfile | None = None
    unknown: dict[Part, str] = Field(default_factory=dict)
    slowdowns: list[Slowdown] = Field(default_factory=list)
    blame_undecided: str = ""
    fast_pipeline: list[str] | None = None
    fast_option: str = ""
    fast_timing: Timing | None = None
    sequences_timed: int = 0


class MachineRecord(Record):
    """The machine, with the load (running processes, mean over a minute) before and after."""

    processor: str
    memory: str
    platform: str
    python: str
    cores: int
    load_before: float
    load_after: float


class BenchResult(Result):
    """The result of ``bench``: what each variant costs and gains on one model.

    ``original`` is what the original is made of. ``placements``, ``paces``, ``devices`` and
    ``kernels`` tell of what variants are compared with, by what that is. ``skipped`` has a line for
    whatever could not be measured at all.
    """

    schema_: Literal["optvet.bench/1"] = Field("optvet.bench/1", alias="schema")
    model: ModelRecord
    machine: MachineRecord
    original: Inventory | None = None
    placements: dict[str, Placement] = Field(default_factory=dict)
    paces: dict[str, Pace] = Field(default_factory=dict)
    devices: dict[str, DeviceUse] = Field(default_factory=dict)
    kernels: dict[str, KernelProfile] = Field(default_factory=dict)
    skipped: list[str] = Field(default_factory=list)
    variants: list[BenchVariant]
    samples: int
    datasets: list[DatasetRecord] = Field(default_factory=list)
    seed: int = 0
    wall_s: float

    def headline(self) -> str:
        """The model, and how many variants were timed."""
        timed = sum(v.timing is not None for v in self.variants)
        return f"{self.model.source}: {timed} of {len(self.variants)} variants timed"

    def rows(self) -> list[dict[str, Any]]:
        """One row per variant: median times of original and candidate, and their ratio."""
        return [
            {
                "optimizer": v.optimizer.name,
                "pipeline": v.pipeline,
                "verdict": None if v.timing is None else v.timing.verdict,
                "ratio": None if v.timing is None else v.timing.ratio,
                "low": None if v.timing is None else v.timing.low,
                "high": None if v.timing is None else v.timing.high,
                "slow": ", ".join(name for s in v.slowdowns for name in s.culprit),
                "failure": None if v.failure is None else v.failure.message,
            }
            for v in self.variants
        ]
