"""What optvet costs beside the work that it is asked for, as ratios of processor time.

``python benchmarks/own_cost.py [--repeats 5] [--json FILE]``

*start-up*: commands against ``python -c 'import numpy'``: ``--version`` (aim 2), ``--help`` (3) and
``vet`` of a small model that is answered from the cache (4).

*detection*: the default pipeline of onnxoptimizer on a clean model and on one that drifts and
grows, against the bare loop of ``vs_naive.py``: load twice, optimize once, run both on each input,
compare. Inside, which is without starting processes and importing libraries (aims 1.3 and 1.6),
and with it (2).

Ratios are of processor time of all processes, medians over ``--repeats``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import machine
import vs_naive

SMALL = "zoo:digits-cnn"
START = (
    ("--version", 2.0, ("--version",)),
    ("--help", 3.0, ("--help",)),
    ("vet, from the cache", 4.0, ("vet", SMALL, "--optimizer", "onnxoptimizer")),
)
DETECTION = (("zoo:squeezenet", 1.3), ("zoo:resnet50", 1.6))
START_UP = 2.0


def start_up(repeats: int, cache: str) -> dict[str, dict[str, float]]:
    """Seconds and ratio of each command."""
    optvet = [sys.executable, "-m", "optvet_start"]
    commands = {"import numpy": [sys.executable, "-c", "import numpy"]}
    commands |= {name: [*optvet, *words] for name, _, words in START}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    # The first turn fills the cache and compiles modules, the second keeps the whole answer.
    for turn in range(repeats + 2):
        for name, command in commands.items():
            cost = vs_naive.run_measured(command, answers=False, OPTVET_CACHE=cache)
            seconds[name] += [cost.cpu_s] if turn > 1 else []
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    base = medians["import numpy"]
    print(f"\nstart-up: import numpy takes {base:.3f} s CPU")
    for name, aim, _ in START:
        print(_line(name, medians[name], medians[name] / base, aim))
    return {name: {"cpu_s": s, "ratio": s / base} for name, s in medians.items()}


def detection(reference: str, aim: float, options: argparse.Namespace) -> dict[str, float]:
    """Ratios of a vet to the bare loop."""
    table = vs_naive.part_detect(reference, options, vs_naive.WAYS[:1])["table"]
    found = {}
    for label, limit in (("inside", aim), ("start-up", START_UP)):
        ours, bare = (table[name][label][1] for name in ("optvet", "bare"))
        found[label] = ours / bare
        print(_line(f"{reference}, {label}", ours, ours / bare, limit))
    return found


def _line(name: str, seconds: float, ratio: float, aim: float) -> str:
    met = "met" if ratio <= aim else "NOT MET"
    return f"  {name:<32} {seconds:>7.3f} s CPU {ratio:>6.2f}x   aim {aim:g}x: {met}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--inputs", type=int, default=vs_naive.INPUTS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    found = machine.environment()
    print(machine.describe(found), flush=True)
    document: dict[str, Any] = {"environment": found}
    with machine.as_installed(), tempfile.TemporaryDirectory(prefix="optvet-bench-") as cache:
        document["start-up"] = start_up(options.repeats, cache)
        document["detection"] = {n: detection(n, aim, options) for n, aim in DETECTION}
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
