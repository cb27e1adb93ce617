"""What a typed command costs by itself, and while ``optvet serve`` runs.

``python benchmarks/served.py [--models zoo:squeezenet,zoo:resnet50] [--repeats 3]``

*detect*: ``optvet vet MODEL`` on 10 inputs with an empty cache (*cold*), a second time, for which
answers of steps are kept (*again*), and a third, for which the whole answer is (*warm*). Beside it
the bare work in a new interpreter, as in ``vs_naive.py`` with its start-up: import, load twice,
optimize once, run reference and candidate on each input. Aim: at most 2 times the CPU time.

*each*: ``--strategy each`` (which of the optimizer's passes are wrong?) on 10 random inputs, with a
cache of its own. ``vs_naive.py`` has the loop that it replaces; with ``--loop`` it is run here too.

CPU time of a served command is that of the process that was typed and of the resident one with all
that it has started since. Medians over ``--repeats``; a service is warmed by one vet of a small
model, as ``vs_naive.py`` warms what it measures inside.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import machine
import vs_naive
from vs_naive import Cost

OPTVET = (sys.executable, "-m", "optvet_start")
AIM = 2.0
_SETTLE_S = 0.5
"""After a command the resident process imports what it has learned, which counts."""


@contextmanager
def service(place: str) -> Iterator[Callable[[], float]]:
    """A service; its CPU seconds so far, with all that it has started and reaped."""
    variables = {**os.environ, "XDG_RUNTIME_DIR": place}
    with subprocess.Popen([*OPTVET, "serve"], stdout=subprocess.PIPE, env=variables) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield lambda: vs_naive.tree_cpu_s(process.pid)
        finally:
            process.terminate()


def run_alone(words: Sequence[str]) -> Cost:
    """A command without a service."""
    with tempfile.TemporaryDirectory() as nobody:
        command = [*OPTVET, *words]
        return vs_naive.run_measured(command, answers=False, XDG_RUNTIME_DIR=nobody)


def run_served(words: Sequence[str], place: str, spent: Callable[[], float]) -> Cost:
    """A command that the service runs; the process that is typed has no children."""
    before, usage, started = spent(), resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    variables = {**os.environ, "XDG_RUNTIME_DIR": place}
    subprocess.run([*OPTVET, *words], env=variables, stdout=subprocess.DEVNULL, check=True)
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    time.sleep(_SETTLE_S)
    own = after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime
    return Cost(wall, own + spent() - before)


def measure(
    path: Path, inputs: Path, cache: str, run: Callable[[Sequence[str]], Cost]
) -> dict[str, Cost]:
    """Each question once, with a cache of its own."""
    vet = ["vet", str(path), "--quiet", "--limit", str(vs_naive.INPUTS), "--cache-dir"]
    detect = [*vet, f"{cache}-detect", "--dataset", f"files:{inputs}"]
    each = [*vet, f"{cache}-each", "--dataset", "random", "--strategy", "each", "--no-pairs"]
    return {
        "detect, cold": run(detect),
        "detect, again": run(detect),
        "detect, warm": run(detect),
        "each, cold": run(each),
        "each, again": run(each),
        "each, warm": run(each),
    }


def medians(costs: list[Cost]) -> Cost:
    """Median wall and CPU seconds."""
    return Cost(
        statistics.median(c.wall_s for c in costs), statistics.median(c.cpu_s for c in costs)
    )


def _add(rows: dict[str, list[Cost]], way: str, costs: Mapping[str, Cost]) -> None:
    for name, cost in costs.items():
        rows.setdefault(f"{name}, {way}", []).append(cost)


def report(reference: str, options: argparse.Namespace) -> None:
    """Measure a model and print its table."""
    path, first = vs_naive.model_path(reference), str(vs_naive.model_path(vs_naive.FIRST))
    rows: dict[str, list[Cost]] = {}
    with tempfile.TemporaryDirectory(prefix="optvet-", dir="/tmp") as folder:
        inputs = Path(folder, "inputs.npz")
        vs_naive.save_inputs(path, inputs, vs_naive.INPUTS)
        for i in range(options.repeats):
            _add(rows, "alone", measure(path, inputs, f"{folder}/alone{i}", run_alone))
            bare = vs_naive.child("bare_detect", path=str(path), first=first, inputs=str(inputs))
            rows.setdefault("bare", []).append(bare)
        with service(folder) as spent:
            served = partial(run_served, place=folder, spent=spent)
            served(["vet", first, "--quiet", "--no-cache"])
            for i in range(options.repeats):
                _add(rows, "served", measure(path, inputs, f"{folder}/served{i}", served))
        if options.loop:
            loop, _ = vs_naive.naive(path, vs_naive.all_passes(), inputs, False)
            rows["loop"] = [loop]
    table = {name: medians(costs) for name, costs in rows.items()}
    print(f"\n{reference}, {vs_naive.INPUTS} inputs")
    for name, cost in table.items():
        line = f"  {name:<22} {cost.wall_s:>7.2f} s wall {cost.cpu_s:>7.2f} s CPU"
        if name.startswith("detect"):
            line += f"   {cost.cpu_s / table['bare'].cpu_s:>5.2f} times the bare work"
            line += f" (aim {AIM:g})" * name.startswith("detect, cold")
        elif name.startswith("each") and options.loop:
            line += f"   {table['loop'].cpu_s / cost.cpu_s:>6.1f} times less than the loop"
        print(line)


def main() -> None:
    """Print machine, versions, and a table per model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default="zoo:squeezenet,zoo:resnet50")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--loop", action="store_true")
    options = parser.parse_args()
    print(machine.describe(machine.environment()))
    with machine.as_installed():
        for reference in options.models.split(","):
            report(reference, options)


if __name__ == "__main__":
    main()
