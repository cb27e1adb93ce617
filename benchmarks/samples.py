"""Peak memory of a vet with many samples beside that with few.

Vets one model with 100 samples and with 10,000, in caches of their own, and looks at the processes
while they run. Memory counts as the peak of the resident set, of the command and of the largest of
its workers. ``python benchmarks/samples.py --samples 100 1000`` is a shorter form.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import machine

_LOOK_S = 0.05


@dataclass
class Peak:
    """Bytes of the command, and of the largest process that it started."""

    command: int = 0
    worker: int = 0


def main() -> None:
    """Measure, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="zoo:digits-cnn")
    parser.add_argument("--dataset", help="as optvet vet takes it; by default random inputs")
    parser.add_argument("--samples", type=int, nargs="+", default=[100, 10_000])
    chosen = parser.parse_args()
    print(machine.describe(machine.environment()), flush=True)
    first: Peak | None = None
    with machine.as_installed():
        for samples in chosen.samples:
            started = time.perf_counter()
            peak = vetted(chosen.model, samples, chosen.dataset)
            first = first or peak
            print(
                f"{samples:>7,} samples: command {peak.command >> 20:4} MiB "
                f"({peak.command / first.command:.2f}×), largest worker {peak.worker >> 20:4} MiB "
                f"({peak.worker / first.worker:.2f}×), {time.perf_counter() - started:.0f} s "
                "(at most 1.3× the first)",
                flush=True,
            )


def vetted(model: str, samples: int, dataset: str | None) -> Peak:
    """The peak of a vet of ``model`` on so many samples."""
    with tempfile.TemporaryDirectory(prefix="optvet-benchmark-") as cache:
        words = ["vet", model, "--limit", samples, "--jobs", 1, "--cache-dir", cache, "-q"]
        words += ["--dataset", dataset] if dataset else []
        command = [sys.executable, "-m", "optvet_start", *map(str, words)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        peak = Peak()
        while process.poll() is None:
            for pid in tree(process.pid):
                size = peak_bytes(pid)
                if pid == process.pid:
                    peak.command = max(peak.command, size)
                else:
                    peak.worker = max(peak.worker, size)
            time.sleep(_LOOK_S)
    if process.returncode not in (0, 1, 4):
        sys.exit(f"optvet vet failed with exit code {process.returncode}")
    return peak


def tree(root: int) -> list[int]:
    """Process ids of ``root`` and of all that it started."""
    children: dict[int, list[int]] = defaultdict(list)
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            # The name of the process is in parentheses, and may have any characters.
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            children[int(fields[1])].append(int(name))
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def peak_bytes(pid: int) -> int:
    """Peak of the resident set of a process so far; 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0


if __name__ == "__main__":
    main()
