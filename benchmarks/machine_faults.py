"""Whether any fault of the machine makes an answer wrong, loses data, hangs or ends in a traceback.

    python benchmarks/machine_faults.py [--jobs vet,campaign,hunt,bisect] [--calls write,open,…]
        [--most N] [--every N] [--json FILE]

The n-th system call of a kind fails, for n = 1, 2, … until the command makes no more of them (at
most ``--most``), with each error of ``CALLS``: in the first process, and in each process of the
command. With ``--every`` errors take turns, and numbers beyond it grow by a half. Calls on files
count only below the place in which the command works. After the fault the command is run again, or
resumed, on the sound machine. What must hold: exit code 2 to 5 with one clear message, or the
answer of a sound machine; no half-written file; the second run gives the answer of a sound machine.

With ``--json`` rows are kept as they come, and what the file has is not tried again. Exit status 1
if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import machine

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.assault.harness import Place
from tests.assault.machine_faults import (
    CALLS,
    COMPILER,
    Fault,
    faults,
    sampled,
    undisturbed,
    wrongs,
)


def numbered(call: str, every: int | None) -> Iterator[Sequence[Fault]]:
    """The faults of each number."""
    if every is not None:
        return sampled(call, every)
    return (list(faults(call, [number])) for number in count(1))


def main() -> None:
    """Try them, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", default="vet,campaign,hunt,bisect")
    parser.add_argument("--calls", default=",".join(CALLS))
    parser.add_argument("--most", type=int, default=60)
    parser.add_argument("--every", type=int)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if COMPILER is None:
        sys.exit("needs a C compiler (cc or gcc)")
    print(machine.describe(machine.environment()), flush=True)
    known: dict[str, list[str]] = {}
    if asked.json is not None and asked.json.exists():
        known = json.loads(asked.json.read_text())
    tried: Counter[tuple[str, str]] = Counter()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.jobs.split(","):
            place = Place(Path(folder) / name)
            job = undisturbed(place, name)
            # In turns, so that a run that is cut short has tried each call.
            waiting = {call: numbered(call, asked.every) for call in asked.calls.split(",")}
            while waiting:
                for call, numbers in list(waiting.items()):
                    happened = False
                    for fault in next(numbers):
                        key = f"{name}: {fault}"
                        if key not in known:
                            found, seen = wrongs(place, job, fault)
                            if not seen:
                                continue
                            known[key] = found
                            if asked.json is not None:
                                asked.json.write_text(json.dumps(known, indent=1))
                        happened = True
                        tried[name, call] += 1
                        if known[key]:
                            wrong.append(f"{key}: {'; '.join(known[key])}")
                            print(f"  {wrong[-1][:1000]}", flush=True)
                    if not happened or fault.number >= asked.most:
                        del waiting[call]
            for call in asked.calls.split(","):
                print(f"{name:10} {call:8} {tried[name, call]:5} faults", flush=True)
    print(f"\n{sum(tried.values())} faults, {len(wrong)} with something wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
