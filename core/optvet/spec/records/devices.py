"""What devices such as GPUs do while a model runs: parts of other documents."""

from __future__ import annotations

from pydantic import Field

from optvet.spec.records.base import Record


class Quantity(Record):
    """Mean and peak of what was read every 10 ms; the mean is over time."""

    mean: float
    peak: float


class DeviceUse(Record):
    """A device while one model ran in a loop: ``runs`` runs in ``seconds``.

    ``utilisation`` is from 0 to 1; ``memory_bytes`` is that of all processes. What the device does
    not tell is None. ``energy_per_run_j`` is the power integrated over the time, by run.
    """

    device: str
    readings: int
    seconds: float
    runs: int
    utilisation: Quantity | None = None
    memory_bytes: Quantity | None = None
    power_w: Quantity | None = None
    temperature_c: Quantity | None = None
    energy_per_run_j: float | None = None


class KernelUse(Record):
    """A kernel over all its launches: ``launches`` per run, shares of peak throughput as means.

    ``block`` and ``grid`` are those of most launches. ``utilisation`` is the mean part of the
    cycles in which a processor of the device had work.
    """

    name: str
    launches: float
    block: list[int]
    grid: list[int]
    compute_share: float | None = None
    memory_share: float | None = None
    utilisation: float | None = None


class KernelProfile(Record):
    """The kernels of ``runs`` runs, those with the most launches first."""

    runs: int
    launches: float
    kernels: list[KernelUse] = Field(default_factory=list)
