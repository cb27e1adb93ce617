"""Every model of a folder on its task: which inputs, which comparator, what of the task changed.

    python benchmarks/tasks.py MODELS [--data FOLDER] [--optimizer NAME] [--limit N]

MODELS is a folder of ONNX files with their records (a TOML beside a model, or ``models.json``); of
FOLDER each model gets what suits it (``--dataset auto:FOLDER``), random inputs where nothing does.
Nothing else is configured. Columns: the task that the record names, the dataset and the number of
samples, the comparator and who chose it, the comparator's metrics, and the verdict. Metrics against
labels, where there are any, stand for the original and the candidate. Exit status 1 if a model
could not be vetted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import machine

from optvet import OptvetError, VetResult, vet

SHOWN = 5
"""Metrics per model; ``--json`` has all."""


def models_in(folder: Path) -> list[Path]:
    """ONNX files of the folder and of the folders directly in it, by name."""
    return sorted([*folder.glob("*.onnx"), *folder.glob("*/*.onnx")])


def line(path: Path, result: VetResult) -> str:
    """One row of the table."""
    used = "; ".join(f"{d.name.partition(':')[0]} ({d.samples})" for d in result.datasets)
    impact = result.impact
    metrics = dict(list(impact.metrics.items())[:SHOWN]) if impact is not None else {}
    words = ", ".join(f"{k} {v:.4g}" for k, v in metrics.items() if v is not None)
    chosen = f"{impact.comparator} ({impact.chosen_by.split(' in ')[0]})" if impact else "–"
    faults = [f for f in result.findings if f.severity == "fault"]
    blame = "; ".join(f"{f.symptom} by {', '.join(f.culprit) or 'round trip'}" for f in faults)
    verdict = f"{result.verdict}: {blame}" if blame else result.verdict
    task = result.model.task or "–"
    return f"| {path.stem} | {task} | {used} | {chosen} | {words} | {verdict} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Vet all models; 1 if one could not be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path)
    parser.add_argument("--data", type=Path, help="folder with images, sounds and texts")
    parser.add_argument("--optimizer", default="onnxoptimizer")
    parser.add_argument("--limit", type=int, default=40, help="samples per model at most")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results here")
    options = parser.parse_args(arguments)
    print(machine.describe(machine.environment()))
    print(f"optimizer {options.optimizer}\n")
    print("| model | task | inputs (samples) | comparator | metrics | verdict |")
    print("|---|---|---|---|---|---|", flush=True)
    failed, documents = 0, dict[str, Any]()
    for path in models_in(options.models):
        dataset = f"auto:{options.data}" if options.data else None
        try:
            result = vet(
                path,
                optimizer=options.optimizer,
                dataset=dataset or (),
                limit=options.limit,
                on_bad="skip",
                use_cache=False,
            )
        except OptvetError as error:
            failed += 1
            print(f"| {path.stem} | | | | | {type(error).__name__}: {error} |", flush=True)
            continue
        documents[path.stem] = result.model_dump(mode="json", by_alias=True)
        print(line(path, result), flush=True)
    if options.json:
        options.json.write_text(json.dumps(documents, indent=1) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
