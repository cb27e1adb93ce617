"""Whether verdicts on quantized models depend on how many samples, and which, were tried.

    python benchmarks/stability.py [--models PATH,...] [--samples 5,10,20,40] [--seeds 0,1,2]

Every model is vetted under each optimizer with each number of samples and each seed. A row is one
model and optimizer, a column one number of samples: the verdict for every seed, with the quantized
layer at fault where there is one. A row is *stable* if all its verdicts are the same ("clean" and
"drift" count as one: a tie may not occur in a few samples), or if larger numbers of samples found a
fault that smaller ones had no sample for. A fault that more samples took back makes the row
*unstable*, and the exit code 1.

Models are the quantized ones of the folder ``shared`` beside the checkout, where it is there, and
small ones that are made here; ``--models`` replaces them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import machine
import onnx

from optvet import OptvetError, vet

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.quantized.models import quantized_model

SHARED = Path(__file__).parents[2] / "shared" / "models"
AT_HAND = (
    "kws-dscnn-int8",
    "micro-kws-qdq",
    "mobilenet-v1-0.25-128-int8",
    "mobilenet-v2-1.0-224-int8",
    "movenet-lightning-int8",
)
MADE: dict[str, dict[str, Any]] = {
    "made-unsigned": {"seed": 1},
    "made-signed": {"seed": 2, "signed": True, "per_channel": True},
    "made-softmax": {"seed": 3, "softmax": True},
}
PIPELINES = {"onnxruntime": "all", "openvino": "default"}


def models(given: str, folder: Path) -> Iterator[Path]:
    """The models to vet; those that are made go into ``folder``."""
    if given:
        yield from (Path(name) for name in given.split(","))
        return
    for name, made in MADE.items():
        path = folder / f"{name}.onnx"
        onnx.save(quantized_model(**made), path)
        yield path
    yield from (p for name in AT_HAND if (p := SHARED / f"{name}.onnx").exists())


def verdict_of(path: Path, optimizer: str, samples: int, seed: int) -> str:
    """The verdict, with the layers at fault."""
    try:
        result = vet(
            str(path),
            optimizer=optimizer,
            pipeline=PIPELINES.get(optimizer, "default"),
            limit=samples,
            seed=seed,
            dataset="random",
        )
    except OptvetError as error:
        return f"refused ({str(error)[:60]})"
    found = [f for f in result.findings if f.severity == "fault" and f.confirmed]
    layers = sorted({f.layer.name if f.layer else "whole run" for f in found})
    if layers:
        return f"{result.verdict} ({', '.join(layers)})"
    method = f" ({result.quantized.method})" if result.quantized else ""
    return "sound" if result.verdict == "clean" else f"{result.verdict}{method}"


def is_stable(columns: Sequence[Sequence[str]]) -> bool:
    """Whether no larger number of samples takes back what a smaller one found.

    Args:
        columns: Verdicts by number of samples, smallest first; in each, one for every seed.
    """
    faulty = [[v.startswith("faulty") for v in column] for column in columns]
    other = {v.split(" ")[0] for column in columns for v in column} - {"faulty", "sound", "drift"}
    if other:
        return len({v for column in columns for v in column}) == 1
    # For one seed, samples of a smaller number are among those of a larger one.
    return all(
        later or not sooner for a, b in pairwise(faulty) for sooner, later in zip(a, b, strict=True)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 if a row is unstable."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="", help="paths, with commas between them")
    parser.add_argument("--optimizers", default="onnxruntime,openvino")
    parser.add_argument("--samples", default="5,10,20,40")
    parser.add_argument("--seeds", default="0,1,2")
    options = parser.parse_args(arguments)
    print(machine.describe(machine.environment()), flush=True)
    counts = sorted(int(n) for n in options.samples.split(","))
    seeds = [int(n) for n in options.seeds.split(",")]
    unstable = 0
    with tempfile.TemporaryDirectory(prefix="optvet-stability-") as folder:
        for path in models(options.models, Path(folder)):
            for optimizer in options.optimizers.split(","):
                started = time.perf_counter()
                columns = [[verdict_of(path, optimizer, n, s) for s in seeds] for n in counts]
                stable = is_stable(columns)
                unstable += not stable
                took = time.perf_counter() - started
                word = "stable" if stable else "UNSTABLE"
                print(f"{path.stem} × {optimizer}: {word}, {took:.0f} s")
                for count, column in zip(counts, columns, strict=True):
                    print(f"  {count:>3} samples: {'; '.join(column)}", flush=True)
    return int(bool(unstable))


if __name__ == "__main__":
    sys.exit(main())
