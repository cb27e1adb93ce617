"""Compositions of three to five operators of PyTorch, each of which is exported right alone.

    python benchmarks/torch_compositions.py DIR --via EXPORTER [--pool-of EXPORTER]
        [--count N] [--pool N] [--seed N]

Operators and their sample inputs are those of PyTorch's own operator database; needs expecttest. An
operator belongs to the pool if ``optvet convert`` finds nothing wrong with it alone, by this
exporter or the one that ``--pool-of`` names: then both get the same compositions. Compositions are
drawn from the pool; each operator reads what the one before makes. Of one that fails, the shortest
part that fails in the same way on the values that occur there is searched for. Prints what became
of the compositions, the shortest parts, and sequences of three to five ONNX operators that occur
only in exports of failing compositions. Answers are kept in DIR: a second run goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import runpy
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx
import torch  # noqa: TID253  # the operators are PyTorch's
from torch_operators import RANDOM, literal

import optvet
from optvet import OptvetError
from optvet.engine.work.sandbox import keep_servers
from optvet.graph import sequences_of
from optvet.spec.converters import SourceStep
from optvet.spec.records.convert import ConversionResult
from optvet_torch.made_sources import operators, write_source

_LENGTHS = (3, 4, 5)
_DRAWS = 40
"""Operators that are tried behind a composition's beginning before it is given up."""
_SAMPLES = 8
_LISTED = 15
_PART = '''\
"""{title}"""

import torch


class Part(torch.nn.Module):
    def forward(self, {names}):
{lines}


example_inputs = (
{inputs}
)


def part():
    return Part().eval()
'''


@dataclass(frozen=True)
class Judged:
    """What ``optvet convert`` says of a source; ``made`` are sequences in the exported model."""

    outcome: str
    symptom: str = ""
    stage: str = ""
    place: str = ""
    message: str = ""
    made: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether anything is wrong, a refusal included."""
        return self.outcome in ("faulty", "refused")

    def is_like(self, other: Judged) -> bool:
        """Whether both fail in the same way."""
        return self.failed and (self.outcome, self.symptom) == (other.outcome, other.symptom)


class Judge:
    """Converts sources by one exporter, each once; answers are lines of a file."""

    def __init__(self, folder: Path, via: str) -> None:
        self._via, self._file = via, folder / f"{via}.jsonl"
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        self._known = {key: Judged(**about) for key, about in map(json.loads, lines)}

    def judge(self, source: Path) -> Judged:
        """The answer for a file with a function ``part``."""
        key = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
        if key not in self._known:
            self._known[key] = self._convert(source)
            with self._file.open("a") as file:
                file.write(json.dumps([key, asdict(self._known[key])]) + "\n")
        found = self._known[key]
        return Judged(**{**asdict(found), "made": tuple(found.made)})

    def _convert(self, source: Path) -> Judged:
        with tempfile.TemporaryDirectory(prefix="optvet-composition-") as out:
            try:
                result = optvet.convert(
                    f"{source}:part",
                    via=[self._via],
                    random=1,
                    sizes=False,
                    cross_check=["onnx_reference"],
                    trust=True,
                    out=out,
                )
            except OptvetError as error:
                return Judged("undecided", message=str(error).splitlines()[0][:200])
            return _judged(result, Path(out))


def _judged(result: ConversionResult, out: Path) -> Judged:
    files = [s.file for s in result.stages if s.format == "onnx" and s.file]
    made: set[str] = set()
    if files:
        model = onnx.load(out / files[-1])
        made = {" → ".join(s) for length in _LENGTHS for s in sequences_of(model, length)}
    told = [f for f in result.findings if f.severity != "note"]
    if not told:
        return Judged(result.verdict, made=tuple(sorted(made)))
    first = told[0]
    place = first.place.words() if first.place is not None else ""
    message = " ".join(first.message.split())[:300]
    about = (first.symptom, first.kind, place or first.culprit, message)
    return Judged(result.verdict, *about, tuple(sorted(made)))


def main() -> None:
    """Draw and judge compositions, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--via", default="torch_script")
    parser.add_argument("--pool-of", metavar="EXPORTER")
    parser.add_argument("--count", type=int, default=250)
    parser.add_argument("--pool", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    keep_servers()
    rng = random.Random(options.seed)
    judge = Judge(options.folder, options.via)
    with tempfile.TemporaryDirectory(prefix="optvet-compositions-") as scratch:
        choosing = Judge(options.folder, options.pool_of or options.via)
        pool = _pool(choosing, rng, options.pool, Path(scratch))
        judged: list[tuple[tuple[str, ...], Judged]] = []
        shortest: list[tuple[tuple[str, ...], Judged]] = []
        for number, (names, file) in enumerate(_compositions(pool, rng, options.count, scratch)):
            answer = judge.judge(file)
            judged.append((names, answer))
            words = ""
            if answer.failed:
                kept = options.folder / f"{options.via}-{number}.py"
                shutil.copy(file, kept)
                part = _shortest(judge, file, names, answer, Path(scratch))
                shortest.append((part, answer))
                words = f"{kept.name}: {answer.symptom}; {' → '.join(part)}; {answer.place}"
            print(f"{number:4} {answer.outcome:10} {' → '.join(names)} {words}", flush=True)
    _print_tables(options.via, judged, shortest)


def _pool(judge: Judge, rng: random.Random, size: int, scratch: Path) -> list[SourceStep]:
    """Operators with a sample on which each is right alone."""
    known = operators()
    names = sorted(n for n in known if "float32" in known[n] and not RANDOM.search(n))
    rng.shuffle(names)
    pool: list[SourceStep] = []
    asked = 0
    for name in names:
        if len(pool) == size:
            break
        step = SourceStep(name, "float32", rng.randrange(_SAMPLES))
        if write_source([step], False, scratch) is None:
            continue
        asked += 1
        answer = judge.judge(scratch / "part.py")
        if answer.outcome == "right":
            pool.append(step)
        print(f"alone {answer.outcome:10} {name} {answer.symptom} {answer.place}", flush=True)
    print(f"{len(pool)} of {asked} operators are right alone", flush=True)
    return pool


def _compositions(
    pool: Sequence[SourceStep], rng: random.Random, count: int, scratch: str
) -> Iterator[tuple[tuple[str, ...], Path]]:
    """Names of the operators, and the file; no composition twice."""
    seen: set[tuple[SourceStep, ...]] = set()
    folder = Path(scratch) / "whole"
    folder.mkdir(exist_ok=True)
    while len(seen) < count:
        steps: tuple[SourceStep, ...] = ()
        length = rng.choice(_LENGTHS)
        for _ in range(_DRAWS):
            longer = (*steps, rng.choice(pool))
            if write_source(longer, False, folder) and _is_sound(folder / "part.py"):
                steps = longer
                if len(steps) == length:
                    break
        if len(steps) < length or steps in seen:
            continue
        seen.add(steps)
        write_source(steps, False, folder)
        yield tuple(step.operator for step in steps), folder / "part.py"


def _is_sound(file: Path) -> bool:
    """Whether most of what a source gives is finite, and not all of it equal."""
    values = [v.double() for v in _outputs(file) if v.numel()]
    return bool(values) and all(
        v.isfinite().double().mean() > 0.5 and (v.numel() == 1 or v.min() != v.max())
        for v in values
    )


def _outputs(file: Path) -> list[torch.Tensor]:
    from torch.utils import _pytree

    made = runpy.run_path(str(file))
    with torch.no_grad():
        given = made["part"]()(*(x.clone() for x in made["example_inputs"]))
    return [v for v in _pytree.tree_leaves(given) if isinstance(v, torch.Tensor)]


def _shortest(
    judge: Judge, file: Path, names: tuple[str, ...], whole: Judged, scratch: Path
) -> tuple[str, ...]:
    """The shortest part that fails like the whole, on the values that occur there."""
    for size in range(1, len(names)):
        for first in range(len(names) - size + 1):
            part = _write_part(file, first, first + size, scratch)
            if judge.judge(part).is_like(whole):
                return names[first : first + size]
    return names


def _write_part(file: Path, first: int, end: int, scratch: Path) -> Path:
    """The source of some lines of another; it is given what the line before them makes."""
    text = file.read_text()
    body = text.partition("def forward")[2].partition("example_inputs")[0]
    lines = [line.strip() for line in body.splitlines()[1:] if line.strip()]
    given: dict[str, Any] = {
        f"x{i}": x for i, x in enumerate(runpy.run_path(str(file))["example_inputs"])
    }
    if first:
        before = _write_lines(lines[:first], given, scratch / "before.py")
        given[f"y{first - 1}"] = _outputs(before)[0]
    return _write_lines(lines[first:end], given, scratch / "shorter.py")


def _write_lines(lines: Sequence[str], given: dict[str, Any], file: Path) -> Path:
    last = f"return {re.sub(r'^(return|y[0-9]+ =) ', '', lines[-1])}"
    body = [*lines[:-1], last]
    made = {line.partition(" =")[0] for line in lines[:-1]}
    read = set(re.findall(r"\b[xy][0-9]+\b", "\n".join(body))) - made
    names = sorted(read, key=lambda name: (name[0] == "x", int(name[1:])))
    text = _PART.format(
        title="Some operators of a composition.",
        names=", ".join(names),
        lines="\n".join(f"        {line}" for line in body),
        inputs="\n".join(f"    {literal(given[name])}," for name in names),
    )
    file.write_text(text)
    return file


def _print_tables(
    via: str,
    judged: Sequence[tuple[tuple[str, ...], Judged]],
    shortest: Sequence[tuple[tuple[str, ...], Judged]],
) -> None:
    counts = Counter(f"{a.outcome} {a.symptom}".strip() for _, a in judged)
    print(
        f"\n{via}: {len(judged)} compositions: " + ", ".join(f"{n} {w}" for w, n in counts.items())
    )
    sizes = Counter((len(part), answer.outcome) for part, answer in shortest)
    print("operators of the shortest failing part | outcome | compositions")
    for (size, outcome), number in sorted(sizes.items()):
        print(f"{size} | {outcome} | {number}")
    print("\nshortest failing part | symptom | compositions | place")
    parts = Counter((part, a.symptom) for part, a in shortest)
    places = {(part, a.symptom): a.place for part, a in shortest}
    for (part, symptom), number in parts.most_common():
        print(f"{' → '.join(part)} | {symptom} | {number} | {places[part, symptom]}")
    sound = {s for _, a in judged if a.outcome == "right" for s in a.made}
    failing = [a for _, a in judged if a.failed and a.made]
    only = Counter(s for a in failing for s in a.made if s not in sound)
    shared = sum(any(only[s] > 1 for s in a.made) for a in failing)
    print(
        f"\n{len(failing)} exports of failing compositions; "
        f"{sum(any(s in only for s in a.made) for a in failing)} have a sequence that no right one "
        f"has, {shared} one that another failing one has too"
    )
    print("sequence of ONNX operators | failing exports")
    for sequence, number in sorted(only.items(), key=lambda i: (-i[1], len(i[0])))[:_LISTED]:
        print(f"{sequence} | {number}")


if __name__ == "__main__":
    main()
