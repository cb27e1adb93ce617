"""What runtimes tell of the devices that they use, such as GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from optvet.spec.generics import OptionsT_contra


@dataclass(frozen=True)
class Reading:
    """What a device tells of itself at one time; None is what it does not tell.

    Attributes:
        utilisation: Part of the time in which it worked, from 0 to 1.
        memory_bytes: Memory in use, of all processes.
        power_w: Electrical power, watts.
        temperature_c: Degrees Celsius.
    """

    utilisation: float | None = None
    memory_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True)
class KernelLaunch:
    """One launch of a kernel on a device, as the device's profiler tells it.

    Attributes:
        name: Of the kernel.
        block: Threads of a block, by dimension.
        grid: Blocks, by dimension.
        compute_share: What it uses of the peak throughput of the processors, from 0 to 1; None if
            that was not told.
        memory_share: The same of the memory.
        utilisation: Part of the cycles in which a processor had work, mean over processors, from 0
            to 1; a processor that waits for memory is in use.
    """

    name: str
    block: tuple[int, ...]
    grid: tuple[int, ...]
    compute_share: float | None = None
    memory_share: float | None = None
    utilisation: float | None = None


@runtime_checkable
class Meter(Protocol):
    """Reads what a device tells of itself. Picklable: it is used in a process of its own."""

    @property
    def device(self) -> str:
        """What the device is called."""
        ...

    def read(self) -> Reading:
        """What the device tells now. Called every 10 ms, so it must take less."""
        ...


@runtime_checkable
class ProfilesKernels(Protocol[OptionsT_contra]):
    """Optional part of a runtime that uses devices: a profiler of what runs on the device."""

    def kernel_profiler(self, options: OptionsT_contra, folder: Path) -> Sequence[str] | str:
        """The words to put before a command so that its kernels are profiled into ``folder``.

        Or why they cannot be, in one line.
        """
        ...

    def kernels(self, folder: Path) -> Sequence[KernelLaunch]:
        """The launches that the profiler has written to ``folder``, in order.

        Raises:
            InputError: What it has written is not of the form that is known.
        """
        ...
