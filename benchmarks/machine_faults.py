"""Whether any fault of the machine makes an answer wrong, loses data, hangs or ends in a traceback.

    python benchmarks/machine_faults.py [--jobs vet,campaign,hunt,bisect] [--calls write,open,…]
        [--most N] [--every N] [--random N --seed S] [--json FILE]

The n-th system call of a kind fails, for n = 1, 2, … until the command makes no more of them (at
most ``--most``), with each error of ``CALLS``: in the first process, and in each process of the
command. With ``--every`` errors take turns, and numbers beyond it grow by a half. With ``--random``
so many of all are drawn, small numbers more often. Calls on files count only below the place in
which the command works. After the fault the command is run again, or
resumed, on the sound machine. What must hold: exit code 2 to 5 with one clear message, or the
answer of a sound machine; no half-written file; the second run gives the answer of a sound machine.

With ``--json`` rows are kept as they come, and what the file has is not tried again. Exit status 1
if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path

import machine

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.assault.harness import Place
from tests.assault.machine_faults import (
    CALLS,
    COMPILER,
    Fault,
    Job,
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


def drawn(calls: Sequence[str], most: int, seed: str) -> Iterator[Fault]:
    """Faults at random, of each call in turn; numbers of each size are as frequent."""
    source = random.Random(seed)
    for turn in count():
        call = calls[turn % len(calls)]
        number = round(most ** source.random())
        yield Fault(call, source.choice(CALLS[call]), number, source.random() < 0.5)


class Record:
    """What came of each fault, by job and fault; kept in a file as it comes."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, list[str]] = {}
        if path is not None and path.exists():
            self._known = json.loads(path.read_text())
        self.tried: Counter[tuple[str, str]] = Counter()
        self.wrong: list[str] = []

    def add(self, place: Place, name: str, job: Job, fault: Fault) -> bool:
        """Try a fault, if it was not; returns whether it happened."""
        key = f"{name}: {fault}"
        if key not in self._known:
            found, happened = wrongs(place, job, fault)
            if not happened:
                return False
            self._known[key] = found
            if self._path is not None:
                self._path.write_text(json.dumps(self._known, indent=1))
        self.tried[name, fault.call] += 1
        if self._known[key]:
            self.wrong.append(f"{key}: {'; '.join(self._known[key])}")
            print(f"  {self.wrong[-1][:1000]}", flush=True)
        return True


def main() -> None:
    """Try them, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", default="vet,campaign,hunt,bisect")
    parser.add_argument("--calls", default=",".join(CALLS))
    parser.add_argument("--most", type=int, default=60)
    parser.add_argument("--every", type=int)
    parser.add_argument("--random", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if COMPILER is None:
        sys.exit("needs a C compiler (cc or gcc)")
    print(machine.describe(machine.environment()), flush=True)
    record, calls = Record(asked.json), asked.calls.split(",")
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.jobs.split(","):
            place = Place(Path(folder) / name)
            job = undisturbed(place, name)
            if asked.random is not None:
                for fault in islice(drawn(calls, asked.most, f"{asked.seed} {name}"), asked.random):
                    record.add(place, name, job, fault)
            # In turns, so that a run that is cut short has tried each call.
            waiting = {call: numbered(call, asked.every) for call in calls}
            while waiting and asked.random is None:
                for call, numbers in list(waiting.items()):
                    together = next(numbers)
                    happened = [record.add(place, name, job, fault) for fault in together]
                    if not any(happened) or together[0].number >= asked.most:
                        del waiting[call]
            for call in calls:
                print(f"{name:10} {call:8} {record.tried[name, call]:5} faults", flush=True)
    print(f"\n{record.tried.total()} faults, {len(record.wrong)} with something wrong")
    sys.exit(1 if record.wrong else 0)


if __name__ == "__main__":
    main()
