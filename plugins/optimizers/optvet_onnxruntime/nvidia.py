"""What NVIDIA's tools tell of a GPU: NVML of its state, Nsight Compute of its kernels."""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from optvet.plugin import InputError, KernelLaunch, Reading

_LOG = "kernels.csv"
_LOG_BYTES = 64 << 20
_COMPUTE, _MEMORY = "Compute (SM) Throughput", "Memory Throughput"
_ACTIVE, _ELAPSED = "SM Active Cycles", "Elapsed Cycles"
"""Mean over multiprocessors of the cycles with a warp, and all cycles; both in SpeedOfLight."""
_NEEDED = ("ID", "Kernel Name", "Block Size", "Grid Size", "Metric Name", "Metric Unit")


@dataclass(frozen=True)
class GpuMeter:
    """Reads one GPU by NVML, by its number among those that NVML lists or by its UUID."""

    key: int | str
    device: str

    def read(self) -> Reading:
        """Utilization, memory in use, power, temperature."""
        nvml, handle = _open_device(self.key)
        rates = _ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        power = _ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        return Reading(
            utilisation=None if rates is None else rates / 100,
            memory_bytes=_ask(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used)),
            power_w=None if power is None else power / 1000,
            temperature_c=_ask(
                lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            ),
        )


def meter_of(device_id: int) -> GpuMeter | str:
    """The meter of the GPU that CUDA calls ``device_id``; or why there is none, in one line."""
    try:
        import pynvml
    except ImportError:
        return "the GPU is not metered: NVML's bindings are missing; install optvet[gpu]"
    key = _listed(device_id, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    try:
        name = pynvml.nvmlDeviceGetName(_open_device(key)[1])
    except pynvml.NVMLError as error:
        return f"the GPU is not metered: NVML says: {error}"
    return GpuMeter(key, name.decode() if isinstance(name, bytes) else str(name))


def device_words() -> str:
    """Name and driver of the first GPU; empty where NVML or its bindings are missing."""
    meter = meter_of(0)
    if isinstance(meter, str):
        return ""
    import pynvml

    driver = _ask(pynvml.nvmlSystemGetDriverVersion)
    driver = driver.decode() if isinstance(driver, bytes) else driver
    return f"{meter.device}, driver {driver}" if driver else meter.device


def _listed(device_id: int, visible: str) -> int | str:
    """What NVML knows a GPU by: it lists all, CUDA only those of ``CUDA_VISIBLE_DEVICES``.

    Both number them alike if CUDA_DEVICE_ORDER is PCI_BUS_ID, or if all are of one kind.
    """
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if device_id >= len(names):
        return device_id
    name = names[device_id]
    return int(name) if name.isdigit() else name


@cache
def _open_device(key: int | str) -> tuple[Any, Any]:
    import pynvml

    pynvml.nvmlInit()
    by_number = isinstance(key, int)
    find = pynvml.nvmlDeviceGetHandleByIndex if by_number else pynvml.nvmlDeviceGetHandleByUUID
    return pynvml, find(key)


def _ask(ask: Callable[[], Any]) -> Any:
    """The answer; None where this GPU gives none, as for the power of some."""
    import pynvml

    with suppress(pynvml.NVMLError):
        return ask()
    return None


# --- Nsight Compute ------------------------------------------------------------------------------


def profiler_in(folder: Path) -> list[str] | str:
    """Nsight Compute as a command that writes to ``folder``; or why not, in one line."""
    ncu = shutil.which("ncu")
    if ncu is None:
        return "kernels are not profiled: there is no ncu; install Nsight Compute, or leave --ncu"
    sections = ["--section", "SpeedOfLight", "--section", "LaunchStats"]
    # By default it fixes the clocks of the GPU, which others may use.
    how = ["--clock-control", "none", "--target-processes", "all"]
    return [ncu, "--csv", "--log-file", str(folder / _LOG), *how, *sections]


def launches_in(folder: Path) -> list[KernelLaunch]:
    """The launches that Nsight Compute has logged to ``folder``.

    Raises:
        InputError: There is no log, or it is not of the form that is known.
    """
    file = folder / _LOG
    if not file.is_file():
        raise InputError("Nsight Compute wrote no log")
    if file.stat().st_size > _LOG_BYTES:
        raise InputError(f"Nsight Compute's log has more than {_LOG_BYTES:,} bytes; run less")
    return parse_log(file.read_text("utf-8", "replace"))


def parse_log(text: str) -> list[KernelLaunch]:
    """The launches in what ``ncu --csv`` writes: a row for each metric of each launch.

    Lines of the tool itself, which begin with ``==``, stand before the table and among its rows.

    Raises:
        InputError: It is another table, or says why nothing could be profiled.
    """
    lines = text.splitlines()
    errors = [line for line in lines if line.startswith("==ERROR==")]
    if errors:
        raise InputError(f"Nsight Compute: {errors[0].removeprefix('==ERROR==').strip()}")
    rows = csv.DictReader(line for line in lines if line.strip() and not line.startswith("=="))
    if rows.fieldnames is None:
        said = next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")
        raise InputError(f"Nsight Compute profiled no kernel: {said}")
    missing = [name for name in (*_NEEDED, "Metric Value") if name not in rows.fieldnames]
    if missing:
        raise InputError(f"Nsight Compute's table has no column {missing[0]!r}")
    found: dict[str, KernelLaunch] = {}
    cycles: dict[str, dict[str, float]] = {}
    for row in rows:
        key, about = row["ID"], row["Metric Name"]
        if key not in found:
            block, grid = _sizes(row["Block Size"]), _sizes(row["Grid Size"])
            found[key] = KernelLaunch(row["Kernel Name"], block, grid)
        if about in (_COMPUTE, _MEMORY) and row["Metric Unit"] == "%":
            share = _number(row["Metric Value"]) / 100
            found[key] = (
                replace(found[key], compute_share=share)
                if about == _COMPUTE
                else replace(found[key], memory_share=share)
            )
        elif about in (_ACTIVE, _ELAPSED) and row["Metric Unit"] == "cycle":
            cycles.setdefault(key, {})[about] = _number(row["Metric Value"])
    return [
        replace(launch, utilisation=_used(cycles.get(key, {}))) for key, launch in found.items()
    ]


def _used(cycles: Mapping[str, float]) -> float | None:
    """The part of the cycles in which multiprocessors had a warp; None if that was not told."""
    active, elapsed = cycles.get(_ACTIVE), cycles.get(_ELAPSED)
    # The two are counted by different units, so that their ratio may exceed 1 by a little.
    return min(active / elapsed, 1.0) if active is not None and elapsed else None


def _sizes(text: str | None) -> tuple[int, ...]:
    """``(256, 1, 1)`` as numbers."""
    return tuple(_whole(text or ""))


def _whole(text: str) -> Iterator[int]:
    numbers = re.findall(r"\d+", text.replace(",", " ") if "(" in text else text.replace(",", ""))
    if not numbers:
        raise InputError(f"Nsight Compute's table has {text[:40]!r} as a size")
    yield from map(int, numbers)


def _number(text: str | None) -> float:
    """A number as it is written with thousands separated by commas."""
    try:
        return float((text or "").replace(",", ""))
    except ValueError as error:
        raise InputError(f"Nsight Compute's table has {(text or '')[:40]!r} as a value") from error
