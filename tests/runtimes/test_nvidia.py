"""What NVIDIA's tools tell; without a GPU, of logs in the form that their documentation gives."""

from __future__ import annotations

import csv
import sys
from io import StringIO
from pathlib import Path

import pytest

from optvet import InputError
from optvet_onnxruntime.nvidia import GpuMeter, _listed, launches_in, meter_of, parse_log
from optvet_onnxruntime.runtime import OrtOptions, OrtRuntime

CUDA = "CUDAExecutionProvider"
COLUMNS = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
    "Block Size", "Grid Size", "Device", "CC", "Section Name", "Metric Name", "Metric Unit",
    "Metric Value",
)  # fmt: skip
SPEED = "GPU Speed Of Light Throughput"
ROWS = (
    ("0", "implicit_convolve_sgemm", "(256, 1, 1)", "(1, 98, 2)", "Memory Throughput", "%", "41.5"),
    ("0", "implicit_convolve_sgemm", "(256, 1, 1)", "(1, 98, 2)", "Memory Throughput",
     "byte/second", "1,234,567,890"),
    ("0", "implicit_convolve_sgemm", "(256, 1, 1)", "(1, 98, 2)", "Compute (SM) Throughput", "%",
     "78.02"),
    ("0", "implicit_convolve_sgemm", "(256, 1, 1)", "(1, 98, 2)", "Duration", "nsecond", "9,216"),
    ("0", "implicit_convolve_sgemm", "(256, 1, 1)", "(1, 98, 2)", "Elapsed Cycles", "cycle",
     "12,000"),
    ("0", "implicit_convolve_sgemm", "(256, 1, 1)", "(1, 98, 2)", "SM Active Cycles", "cycle",
     "10,801.5"),
    ("0", "implicit_convolve_sgemm", "(256, 1, 1)", "(1, 98, 2)", "SM Frequency", "cycle/nsecond",
     "1.3"),
    ("1", 'void relu<float, "4">(T1 *)', "(1,024, 1, 1)", "(12, 1, 1)", "Registers Per Thread",
     "register/thread", "16"),
)  # fmt: skip


def log_of(rows: tuple[tuple[str, ...], ...] = ROWS, columns: tuple[str, ...] = COLUMNS) -> str:
    out = StringIO()
    write = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow
    write(columns)
    for number, kernel, block, grid, metric, unit, value in rows:
        full = (number, "42", "python3", "127.0.0.1", kernel, "1", "7", block, grid, "0", "9.0",
                SPEED, metric, unit, value)  # fmt: skip
        write(full[: len(columns)])
    return (
        "==PROF== Connected to process 42 (/usr/bin/python3)\n"
        '==PROF== Profiling "implicit_convolve_sgemm" - 0: 0%....50%....100% - 9 passes\n'
        f"==PROF== Disconnected from process 42\n{out.getvalue()}"
    )


def test_launches_have_sizes_and_shares_of_the_peak() -> None:
    first, second = parse_log(log_of())
    assert first.name == "implicit_convolve_sgemm"
    assert (first.block, first.grid) == ((256, 1, 1), (1, 98, 2))
    assert first.compute_share == pytest.approx(0.7802)
    assert first.memory_share == pytest.approx(0.415)
    assert first.utilisation == pytest.approx(10_801.5 / 12_000)
    assert second.name == 'void relu<float, "4">(T1 *)'
    assert (second.compute_share, second.memory_share, second.utilisation) == (None, None, None)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", "profiled no kernel: its log is empty"),
        ("==WARNING== No kernels were profiled.\n", "No kernels were profiled"),
        (log_of(columns=COLUMNS[:5]), "no column 'Block Size'"),
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "ERR_NVGPUCTRPERM"),
        (log_of((("0", "k", "n/a", "(1,1,1)", "Duration", "ns", "1"),)), "'n/a' as a size"),
        (
            log_of((("0", "k", "(1,1,1)", "(1,1,1)", "Memory Throughput", "%", "much"),)),
            "'much' as a value",
        ),
    ],
)
def test_a_log_of_another_form_is_refused_with_the_reason(log: str, words: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_log(log)
    assert words in str(refused.value)


def test_a_log_that_was_not_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="wrote no log"):
        launches_in(tmp_path)


def test_no_meter_and_no_profiler_of_what_is_not_used(tmp_path: Path) -> None:
    runtime = OrtRuntime()
    assert runtime.meter(runtime.deployed) == ""
    words = runtime.kernel_profiler(runtime.deployed, tmp_path)
    assert words == "kernels are not profiled: no GPU was asked for, by --provider"


def test_what_is_missing_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    asked = OrtOptions(providers=(CUDA,))
    runtime = OrtRuntime()
    assert runtime.meter(asked) == (
        "the GPU is not metered: NVML's bindings are missing; install optvet[gpu]"
    )
    words = runtime.kernel_profiler(asked, tmp_path)
    assert isinstance(words, str)
    assert "there is no ncu" in words


@pytest.mark.parametrize(
    ("visible", "device_id", "listed"),
    [("", 1, 1), ("2,3", 1, 3), ("GPU-5ca1ab1e, 0", 0, "GPU-5ca1ab1e"), ("2", 1, 1)],
)
def test_nvml_is_asked_for_the_gpu_that_cuda_numbers(
    visible: str, device_id: int, listed: int | str
) -> None:
    assert _listed(device_id, visible) == listed


@pytest.mark.gpu
def test_a_gpu_tells_its_state() -> None:
    meter = meter_of(0)
    if isinstance(meter, str):
        pytest.skip(meter)
    assert isinstance(meter, GpuMeter)
    reading = meter.read()
    assert reading.memory_bytes is not None
    assert reading.memory_bytes > 0
    assert reading.utilisation is None or 0 <= reading.utilisation <= 1
    assert reading.temperature_c is None or 0 < reading.temperature_c < 120
