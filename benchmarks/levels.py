"""Each level of ONNX Runtime on zoo models: nodes, operators, placement, speed.

    python benchmarks/levels.py MODEL … [--repeats N] [--into FOLDER] [--write docs/levels.md]

Of each model it runs ``optvet bench MODEL --optimizer onnxruntime --pipeline each`` and keeps the
document in FOLDER; what is there already is not measured again. The levels are compared with a
session whose optimizations are all off. Exit status 1 if a model could not be timed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import machine

from optvet.report.charts import short_operator
from optvet.spec.records.bench import BenchResult, BenchVariant
from optvet.spec.records.placement import Placement

COMMAND = "optvet bench MODEL --optimizer onnxruntime --pipeline each"
_TOP = 5
_CODES = (0, 1, 4)
"""A level may be slower, or undecided."""


def measured(model: str, repeats: int, folder: Path) -> BenchResult | None:
    """The answer for one model, kept or new; None if there is none."""
    file = folder / f"{model.replace(':', '-').replace('/', '-')}.json"
    if not file.exists():
        asked = ["bench", model, "--optimizer", "onnxruntime", "--pipeline", "each"]
        asked += ["--repeats", str(repeats), "--json", str(file)]
        code = "import sys, optvet.cli; sys.exit(optvet.cli.main())"
        done = subprocess.run([sys.executable, "-c", code, *asked], stdout=subprocess.DEVNULL)
        if done.returncode not in _CODES:
            return None
    return BenchResult.model_validate_json(file.read_text())


def rows_of(result: BenchResult) -> Iterator[list[str]]:
    """A line for the original, and one for each level."""
    if result.original is not None:
        first = next(iter(result.placements.values()), None)
        counts = f"{result.original.nodes:,}", _operators(result.original.operators)
        yield [result.model.source, "original", *counts, _providers(first), "1"]
    for variant in result.variants:
        found = variant.inventory
        counts = ("–", "–") if found is None else (f"{found.nodes:,}", _operators(found.operators))
        placed = _providers(variant.placement)
        yield [result.model.source, variant.pipeline, *counts, placed, _ratio(variant)]


def _operators(counts: Mapping[str, int]) -> str:
    total = max(sum(counts.values()), 1)
    shown = Counter(counts).most_common(_TOP)
    return ", ".join(f"{short_operator(name)} {n} ({n / total:.0%})" for name, n in shown)


def _providers(placement: Placement | None) -> str:
    if placement is None:
        return "–"
    shares = ((name, placement.share_of(name)) for name in placement.providers)
    words = ", ".join(f"{name.removesuffix('ExecutionProvider')} {s:.0%}" for name, s in shares)
    return f"{words} of {placement.nodes:,}"


def _ratio(variant: BenchVariant) -> str:
    timing = variant.timing
    if timing is None:
        return "failed" if variant.failure else "–"
    if timing.ratio is None:
        return f"{timing.verdict}"
    return f"{timing.ratio:.2f} ({timing.low:.2f}–{timing.high:.2f}), {timing.verdict}"


def page(results: Iterable[BenchResult], command: str) -> str:
    """The page, with the machine on which it was made."""
    lines = [
        "# Levels of ONNX Runtime on zoo models",
        "",
        f"Made by `{command}`,",
        f"which runs `{COMMAND}` for each. Nodes are those",
        "of the graph as a session saves it, with those of nested graphs; operators are the five",
        "most frequent with their share of all nodes. Executed on: shares of the nodes that the",
        "session executes. Ratio: the time of one run over that with all optimizations off, with",
        "a 99 % confidence interval, and what that says of a difference of 5 %. Other work ran",
        "beside it, so many intervals are wide.",
        "",
        "```text",
        machine.describe(machine.environment()),
        "```",
        "",
        "| model | level | nodes | operators | executed on | ratio |",
        "|---|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for result in results for row in rows_of(result)),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--into", type=Path, default=Path("levels"))
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    asked.into.mkdir(parents=True, exist_ok=True)
    found = {m: measured(m, asked.repeats, asked.into) for m in asked.models}
    results = [result for result in found.values() if result is not None]
    command = f"python benchmarks/levels.py {' '.join(asked.models)} --repeats {asked.repeats}"
    text = page(results, command)
    if asked.write is None:
        sys.stdout.write(text)
    else:
        asked.write.write_text(text)
    for model, result in found.items():
        if result is None:
            sys.stderr.write(f"{model}: could not be timed\n")
    return int(len(results) < len(found))


if __name__ == "__main__":
    sys.exit(main())
