"""Readings of a device and profiles of kernels, of a runtime with a pretended device.

Processes, files and clocks are real; only what a device would tell is made up.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx.parser
import pytest
from tests.engine.work.trials.test_placement import NET

from optvet import InputError
from optvet.cli.render import timing_costs
from optvet.engine.bench import bench
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.engine.work.timing.device_readings import profile_of, use_of
from optvet.plugin import KernelLaunch, Meter, Reading
from optvet.report.bench_tables import summary_tables
from optvet.spec.bench import BenchRequest
from optvet.spec.request import VetRequest
from optvet_onnxruntime.runtime import OrtOptions, OrtRuntime

WATTS = 100.0


@dataclass(frozen=True)
class Steady:
    """Always the same power, and memory that tells which process reads."""

    device: str = "pretended"

    def read(self) -> Reading:
        return Reading(utilisation=0.5, memory_bytes=os.getpid(), power_w=WATTS)


class OnDevice(OrtRuntime):
    """Has a device, and a profiler of kernels that writes what it is called with."""

    name = "on-device"
    preference = 0

    def meter(self, options: OrtOptions) -> Meter | str:
        return Steady()

    def kernel_profiler(self, options: OrtOptions, folder: Path) -> Sequence[str] | str:
        script = folder / "profiler"
        # CUDA writes to its process's entries too, below Nsight Compute.
        script.write_text(
            f'#!/bin/sh\necho k > /proc/self/comm && "$@" && echo "$@" > {folder}/log\n'
        )
        script.chmod(0o755)
        return [str(script)]

    def kernels(self, folder: Path) -> Sequence[KernelLaunch]:
        assert "optvet.engine.work.timing.profiled_run" in (folder / "log").read_text()
        return [KernelLaunch("k", (32, 1, 1), (4, 1, 1), 0.5, 0.25, 0.75)] * 10


class Without(OnDevice):
    """Has neither, and says why."""

    name = "without"

    def meter(self, options: OrtOptions) -> Meter | str:
        return "the device is asleep"

    def kernel_profiler(self, options: OrtOptions, folder: Path) -> Sequence[str] | str:
        return "there is no profiler"


class Failing(OnDevice):
    """Its profiler ends with an error."""

    name = "failing"

    def meter(self, options: OrtOptions) -> Meter | str:
        return ""

    def kernel_profiler(self, options: OrtOptions, folder: Path) -> Sequence[str] | str:
        return ["sh", "-c", "echo no permission >&2; exit 9"]


class Unreadable(Failing):
    """Writes a log that cannot be understood."""

    name = "unreadable"

    def kernel_profiler(self, options: OrtOptions, folder: Path) -> Sequence[str] | str:
        return ["env"]

    def kernels(self, folder: Path) -> Sequence[KernelLaunch]:
        raise InputError("the log is of another form")


@pytest.fixture
def plugins(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> Plugins:
    # Workers, and what they start, import this file by name.
    monkeypatch.syspath_prepend(pytestconfig.rootpath)
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{pytestconfig.rootpath}{os.pathsep}{before}")
    found = Plugins()
    for runtime in (OnDevice(), Without(), Failing(), Unreadable()):
        found.register("runtime", runtime)
    return found


def asked(tmp_path: Path, runtime: str) -> BenchRequest:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    return BenchRequest(
        model=str(path),
        optimizer=("onnxoptimizer",),
        runtime=runtime,
        repeats=3,
        threshold=50,
        ncu=True,
        cache_dir=tmp_path / "cache",
    )


@pytest.mark.long
def test_a_device_is_read_in_another_process_while_the_model_runs(
    tmp_path: Path, plugins: Plugins
) -> None:
    result = bench(asked(tmp_path, "on-device"), plugins)
    (variant,) = result.variants
    assert variant.unknown == {}
    (reference,) = result.devices.values()
    for use in (variant.device, reference):
        assert use is not None
        assert use.device == "pretended"
        assert use.seconds >= 2
        assert 5 <= use.readings <= use.seconds / 0.01 + 1
        assert use.power_w is not None
        assert use.power_w.mean == pytest.approx(WATTS)
        assert use.energy_per_run_j == pytest.approx(WATTS * use.seconds / use.runs)
        assert use.memory_bytes is not None
        assert use.memory_bytes.peak == pytest.approx(use.memory_bytes.mean)
        assert use.memory_bytes.peak != os.getpid()
        assert use.temperature_c is None
    kernels = variant.kernels
    assert kernels is not None
    # One sample, five times; ten launches.
    assert (kernels.runs, kernels.launches) == (5, 2)
    assert [(k.name, k.block, k.compute_share) for k in kernels.kernels] == [("k", [32, 1, 1], 0.5)]
    assert [k.utilisation for k in kernels.kernels] == [0.75]
    # The original's stand next to those of the variant.
    ((name, original),) = result.kernels.items()
    assert name.startswith("original on")
    assert (original.runs, original.launches) == (5, 2)
    (table,) = (t for t in summary_tables(result) if t.title == "Kernels")
    assert [(row[0] == name, *row[1:6]) for row in table.rows] == [
        (True, "k", 2, "32x1x1", "4x1x1", "75%"),
        (True, "all kernels", 2, None, None, None),
        (False, "k", 2, "32x1x1", "4x1x1", "75%"),
        (False, "all kernels", 2, None, None, None),
    ]


@pytest.mark.release
def test_vet_tells_what_the_device_does_while_it_is_timed(plugins: Plugins, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    model = open_model(path, "model.onnx", tmp_path)
    asked = VetRequest(
        model="model", runtime="on-device", measure=True, limit=1, cache_dir=tmp_path
    )
    timing = vet_model(model, asked, plugins).timing
    assert timing is not None
    sides = [timing.reference, timing.candidate]
    assert all(s is not None and s.device is not None and s.device.runs > 3 for s in sides)
    assert "50% beside 50% of pretended busy" in timing_costs(timing)


@pytest.mark.parametrize(
    ("runtime", "why", "skipped"),
    [
        pytest.param(
            "without", "there is no profiler", ["the device is asleep"], marks=pytest.mark.long
        ),
        ("failing", "sh ended with 9: no permission", []),
        pytest.param("unreadable", "the log is of another form", [], marks=pytest.mark.long),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_no_failure(
    tmp_path: Path, plugins: Plugins, runtime: str, why: str, skipped: list[str]
) -> None:
    result = bench(asked(tmp_path, runtime), plugins)
    (variant,) = result.variants
    assert variant.timing is not None
    assert variant.placement is not None
    assert (variant.device, variant.kernels) == (None, None)
    assert variant.unknown == {"kernels": why}
    assert result.skipped == skipped


def test_power_is_integrated_over_the_time_of_the_runs_alone() -> None:
    readings = [(t / 10, Reading(power_w=w)) for t, w in enumerate((900, 900, 10, 20, 30, 900))]
    # From 0.2 to 0.5 s: 10 → 20 → 30 in 0.2 s, and 30 held for the last tenth: 4 + 3 J.
    use = use_of("d", readings, 0.2, 0.49999999, runs=7)
    assert use.readings == 3
    assert use.energy_per_run_j == pytest.approx(1.0)
    assert use.power_w is not None
    assert use.power_w.peak == 30
    assert use.power_w.mean == pytest.approx(7 / 0.3)


def test_a_device_that_tells_nothing_has_no_quantities() -> None:
    use = use_of("d", [(1.0, Reading())], 0.0, 2.0, runs=1)
    assert (use.readings, use.power_w, use.energy_per_run_j) == (1, None, None)
    assert use_of("d", [], 0.0, 2.0, runs=1).readings == 0


def test_kernels_are_counted_per_run_and_told_by_their_usual_size() -> None:
    launches = [KernelLaunch("conv", (64,), (n,), 0.5, None) for n in (1, 2, 2, 3)]
    launches.append(KernelLaunch("add", (32,), (1,)))
    found = profile_of(launches, runs=2)
    conv, add = found.kernels
    assert (found.launches, conv.launches, conv.grid) == (2.5, 2.0, [2])
    assert (conv.compute_share, conv.memory_share, add.compute_share) == (0.5, None, None)
