"""Each level of ONNX Runtime on zoo models: nodes, operators, placement, speed.

    python benchmarks/levels.py MODEL … [--bloat MODEL …] [--repeats N] [--into FOLDER]
        [--write docs/levels.md]

Of each model it runs ``optvet bench MODEL --optimizer onnxruntime --pipeline each`` and keeps the
document in FOLDER; what is there already is not measured again. The levels are compared with a
session whose optimizations are all off; of a slower one, the rules and transformers to blame are
told. For ``--bloat``, the pass of ONNX Optimizer that bloats models is timed, with ONNX Runtime's
own optimizations on and off. Exit status 1 if a model could not be timed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import machine

from optvet.report.charts import short_operator
from optvet.spec.records.bench import BenchResult, BenchVariant
from optvet.spec.records.placement import Placement

COMMAND = "optvet bench MODEL --optimizer onnxruntime --pipeline each"
_TOP = 5
_CODES = (0, 1, 4)
"""A level may be slower, or undecided."""


LEVELS = ("--optimizer", "onnxruntime", "--pipeline", "each")
PASS = "fuse_bn_into_conv"
SETTINGS = {"on": "all", "off": "disable_all"}
"""ONNX Runtime's own optimizations, as values of its option."""


def bloating(setting: str) -> tuple[str, ...]:
    """Options by which the pass that bloats is timed."""
    chosen = ("--optimizer", "onnxoptimizer", "--pipeline", PASS)
    return (*chosen, "--runtime-option", f"optimization={SETTINGS[setting]}", "--no-blame")


def measured(
    model: str, repeats: int, folder: Path, options: Sequence[str], suffix: str = ""
) -> BenchResult | None:
    """The answer for one model, kept or new; None if there is none."""
    file = folder / f"{model.replace(':', '-').replace('/', '-')}{suffix}.json"
    if not file.exists():
        asked = ["bench", model, *options, "--repeats", str(repeats), "--json", str(file)]
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


def slower(results: Sequence[BenchResult]) -> list[str]:
    """A line for each level that is slower, with what is to blame and why."""
    rows = [(result, variant) for result in results for variant in result.variants]
    timed = [(r, v) for r, v in rows if v.timing is not None]
    calls = Counter(str(v.timing.verdict) for _, v in timed if v.timing is not None)
    lines = [
        f"Of {len(timed)} timed levels, {calls['slower']} are slower than a session "
        f"without optimizations, {calls['faster']} faster, {calls['no-difference']} neither, and "
        f"{calls['undecided']} undecided."
    ]
    for result, variant in timed:
        if variant.timing is None or variant.timing.verdict != "slower":
            continue
        name = f"{result.model.source}, {variant.pipeline}"
        found = [
            f"{', '.join(each.culprit) or 'import and export alone'} ({'; '.join(each.reasons)})"
            for each in variant.slowdowns
        ]
        lines.append(f"- {name}: {' and '.join(found) or variant.blame_undecided}")
    return lines


def bloat_rows(results: Mapping[tuple[str, str], BenchResult | None]) -> Iterator[list[str]]:
    """Two lines a model: what the pass makes of it, and what that costs."""
    for (model, setting), result in results.items():
        for variant in result.variants if result is not None else ():
            found, placed = variant.inventory, variant.placement
            was = result.original if result is not None else None
            nodes = f"{was.nodes:,} → {found.nodes:,}" if was and found else "–"
            executed = f"{placed.nodes:,}" if placed else "–"
            timing = variant.timing
            sides = (timing.reference, timing.candidate) if timing is not None else ()
            taken = [f"{side.load_s * 1e3:.0f}" for side in sides if side is not None]
            created = f"{' → '.join(taken)} ms" if taken else "–"
            yield [model, setting, nodes, executed, created, _ratio(variant)]


def page(
    results: Sequence[BenchResult],
    bloated: Mapping[tuple[str, str], BenchResult | None],
    command: str,
) -> str:
    """The page, with the machine on which it was made."""
    load = float(machine.environment()["load"])
    beside = "Other work ran on the machine, so many intervals are wide." if load > 1 else ""
    lines = [
        "# Levels of ONNX Runtime on zoo models",
        "",
        f"Made with `{command}`,",
        f"which runs `{COMMAND}` for each model. *Nodes* counts",
        "the graph that a session saves, nested graphs included. *Operators* lists the five most",
        "frequent ones with their share of all nodes. *Executed on* shows the shares of the nodes",
        "that the session executes. *Ratio* is the time of one run divided by the time with all",
        "optimizations off, with a 99 % confidence interval and a verdict for a threshold of 5 %.",
        *([beside] if beside else []),
        "",
        "```text",
        machine.describe(machine.environment()),
        "```",
        "",
        "| model | level | nodes | operators | executed on | ratio |",
        "|---|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for result in results for row in rows_of(result)),
        "",
        "## Slower levels",
        "",
        *slower(results),
        "",
    ]
    if bloated:
        lines += [
            f"## What `{PASS}` costs",
            "",
            f"ONNX Optimizer's `{PASS}` replaces each BatchNormalization by nodes that compute",
            "weights. ONNX Runtime folds these nodes unless its own optimizations are off. *Nodes*",
            "counts the models' nodes, *executed* the session's. *Ratio* is the time of one run",
            "divided by the original's, as above.",
            "",
            "| model | optimizations | nodes | executed | session created in | ratio |",
            "|---|---|---|---|---|---|",
            *(f"| {' | '.join(row)} |" for row in bloat_rows(bloated)),
            "",
        ]
    return "\n".join(lines)


def main() -> int:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--bloat", nargs="*", default=[], metavar="MODEL")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--into", type=Path, default=Path("levels"))
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    asked.into.mkdir(parents=True, exist_ok=True)
    found = {m: measured(m, asked.repeats, asked.into, LEVELS) for m in asked.models}
    bloated = {
        (model, setting): measured(
            model, asked.repeats, asked.into, bloating(setting), f"-bloat-{setting}"
        )
        for model in asked.bloat
        for setting in SETTINGS
    }
    results = [result for result in found.values() if result is not None]
    more = ["--bloat", *asked.bloat] if asked.bloat else []
    words = " ".join([*asked.models, *more])
    command = f"python benchmarks/levels.py {words} --repeats {asked.repeats}"
    text = page(results, bloated, command)
    if asked.write is None:
        sys.stdout.write(text)
    else:
        asked.write.write_text(text)
    every = {**found, **{f"{model} ({setting})": r for (model, setting), r in bloated.items()}}
    missing = [name for name, result in every.items() if result is None]
    for name in missing:
        sys.stderr.write(f"{name}: could not be timed\n")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
