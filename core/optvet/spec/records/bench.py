"""What optimizers cost and gain: document ``optvet.bench/1``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from optvet.spec.records.base import Record
from optvet.spec.records.devices import DeviceUse, KernelProfile
from optvet.spec.records.placement import Placement
from optvet.spec.records.structure import Inventory, InventoryChange
from optvet.spec.records.vet import DatasetRecord, ModelRecord, OptimizerRecord, RuntimeRecord
from optvet.spec.types import Stage, Symptom


class TimedSide(Record):
    """One of two models that were timed.

    ``latency_s`` is the median time of one run, ``throughput`` the runs per second that it comes
    to, ``load_s`` the median time to create the session. ``memory_bytes`` is the peak memory that
    loading and running it adds to a process of its own; None if that was not measured.
    """

    latency_s: float
    throughput: float
    load_s: float
    memory_bytes: int | None = None


class Timing(Record):
    """Two models timed in turn, in ``repeats`` processes of ``rounds`` rounds each at the median.

    ``ratio`` is the candidate's time over the reference's, ``low`` and ``high`` the ends of its
    interval at ``confidence``. ``verdict`` holds for all of the interval: "slower" is above
    1 + ``threshold``, "faster" below 1 / (1 + ``threshold``), "no-difference" between the two;
    else it is undecided, for the reason in ``detail``. ``identical``: both are the same bytes, and
    neither was timed. ``spread`` is the relative standard deviation of the ratio from process to
    process, ``redone`` the number of rounds beyond three standard deviations that were measured
    again. ``ratios`` has one entry per process. ``baseline`` tells what the candidate was compared
    with. ``difference`` is the largest difference of an output, relative to the largest magnitude
    of the reference's; None where outputs cannot be compared element by element, and no verdict on
    them: that is the task of ``vet``.
    """

    verdict: Literal["slower", "faster", "no-difference", "undecided"]
    detail: str = ""
    baseline: Literal["original", "empty pipeline"]
    identical: bool = False
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float
    threshold: float
    repeats: int = 0
    rounds: int = 0
    redone: int = 0
    spread: float | None = None
    reference: TimedSide | None = None
    candidate: TimedSide | None = None
    ratios: list[float] = Field(default_factory=list)
    difference: float | None = None


class StepFailure(Record):
    """A step of a candidate that failed, so that it could not be timed."""

    symptom: Symptom
    stage: Stage
    message: str


Part = Literal["inventory", "placement", "device", "kernels"]
"""What is told of a variant besides its speed."""


class BenchVariant(Record):
    """One optimizer with one pipeline.

    ``pipeline`` is its name or notation as it was asked for. ``optimization_s`` is the time to
    apply the passes, with reading the model; where a session optimizes as it loads, that time is
    part of ``load_s``. ``timing`` is None if the candidate ``failure`` prevented it. ``inventory``
    is what its model is made of, ``change`` what that has more of than the original, ``placement``
    where it is executed, ``device`` what the device does meanwhile, if there is one, and
    ``kernels`` what runs on it, if that was asked for. What of these is not known is None, for the
    reasons in ``unknown``.
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
    device: DeviceUse | None = None
    kernels: KernelProfile | None = None
    unknown: dict[Part, str] = Field(default_factory=dict)


class MachineRecord(Record):
    """The machine, with the load (running processes, mean over a minute) before and after."""

    processor: str
    memory: str
    platform: str
    python: str
    cores: int
    load_before: float
    load_after: float


class BenchResult(Record):
    """The result of ``bench``: what each variant costs and gains on one model.

    ``original`` is what the original is made of. ``placements`` and ``devices`` tell of what
    variants are compared with, by what that is. ``skipped`` has a line for whatever could not be
    measured at all.
    """

    schema_: Literal["optvet.bench/1"] = Field("optvet.bench/1", alias="schema")
    model: ModelRecord
    machine: MachineRecord
    original: Inventory | None = None
    placements: dict[str, Placement] = Field(default_factory=dict)
    devices: dict[str, DeviceUse] = Field(default_factory=dict)
    skipped: list[str] = Field(default_factory=list)
    variants: list[BenchVariant]
    samples: int
    datasets: list[DatasetRecord] = Field(default_factory=list)
    seed: int = 0
    wall_s: float
