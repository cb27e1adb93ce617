"""Every model of a folder on its task: which inputs, which comparator, what of the task changed.

    python benchmarks/tasks.py MODELS [--data FOLDER] [--optimizer NAME] [--limit N]

MODELS is a folder of ONNX files with their records (a TOML beside a model, or ``models.json``); of
FOLDER each model gets what suits it (``--dataset auto:FOLDER``), random inputs where nothing does.
Nothing else is configured. FOLDER may have a manifest, ``data.json``: an object with ``files``, a
list of objects with ``file`` and class numbers under a key such as ``imagenet_1k_labels``; models
whose task names that set of labels (``ImageNet-1k``) are told them. Columns: the task that the
record names, the dataset and the number of samples, the comparator and who chose it, the
comparator's metrics, the share of labels that original and candidate get right beside what the
catalogue's ``checked_on_real_data`` says of the original, and the verdict. Where that is a count,
``agrees`` or ``differs`` tells whether both may come from one proportion (Fisher's exact test, at
0.01): if not, the preprocessing is wrong. Exit status 1 if a model could not be vetted, or differs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import machine
from scipy.stats import fisher_exact

from optvet import OptvetError, VetResult, vet
from optvet.engine.models.sidecar import config_for

SHOWN = 5
"""Metrics per model; ``--json`` has all."""


def models_in(folder: Path) -> list[Path]:
    """ONNX files of the folder and of the folders directly in it, by name."""
    return sorted([*folder.glob("*.onnx"), *folder.glob("*/*.onnx")])


def labels_for(data: Path | None, task: str | None) -> dict[str, str]:
    """Options that give a model of this task the labels of the manifest; none where none fit."""
    manifest = data / "data.json" if data is not None else None
    if manifest is None or not manifest.is_file():
        return {}
    keys = {k for e in json.loads(manifest.read_text())["files"] for k in e}
    for key in sorted(k for k in keys if k.endswith("_labels")):
        if _plain(key.removesuffix("_labels")) in _plain(task or ""):
            return {"labels": str(manifest), "label_key": key}
    return {}


def _plain(words: str) -> str:
    return re.sub(r"[^a-z0-9]", "", words.lower())


def claim_of(path: Path, folder: Path) -> str:
    """What the catalogue says of the model on real data; empty where it says nothing."""
    catalogue = folder / "models.json"
    if not catalogue.is_file():
        return ""
    name = path.relative_to(folder).as_posix()
    entries = [e for e in json.loads(catalogue.read_text()) if e.get("file") == name]
    return str(entries[0].get("checked_on_real_data") or "") if entries else ""


def on_real_data(result: VetResult, claim: str) -> tuple[str, bool]:
    """Accuracy of both, the claim, and whether accuracy and claim agree as far as can be told."""
    metrics = result.impact.metrics if result.impact is not None else {}
    parts, agreed = [], True
    for k in ("1", "5", ""):
        top = f"_top{k}" if k else ""
        ours = metrics.get(f"accuracy{top}_reference")
        if ours is None:
            continue
        theirs = metrics.get(f"accuracy{top}_candidate")
        words = f"top-{k or 1} {ours:.3f} → {theirs:.3f}"
        said = re.search(rf"(\d+) of (\d+)[^,;]* top-{k or 1}\b", claim)
        count = round(metrics.get("labelled") or 0)
        if said and count:
            right, total = int(said[1]), int(said[2])
            table = [[round(ours * count), count - round(ours * count)], [right, total - right]]
            same = bool(fisher_exact(table).pvalue > 0.01)
            agreed &= same
            words += f" of {count} ({'agrees' if same else 'differs'}: {right} of {total})"
        parts.append(words)
    if claim and not any("agrees" in p or "differs" in p for p in parts):
        parts.append(f"record: {claim}")
    return "; ".join(parts) or "–", agreed


def line(path: Path, result: VetResult, real: str) -> str:
    """One row of the table."""
    used = "; ".join(f"{d.name.partition(':')[0]} ({d.samples})" for d in result.datasets)
    impact = result.impact
    numbers = impact.metrics.items() if impact is not None else ()
    told = [f"{k} {v:.4g}" for k, v in numbers if v is not None and not k.startswith("accuracy")]
    words = ", ".join(told[:SHOWN])
    chosen = f"{impact.comparator} ({impact.chosen_by.split(' in ')[0]})" if impact else "–"
    faults = [f for f in result.findings if f.severity == "fault"]
    blame = "; ".join(f"{f.symptom} by {', '.join(f.culprit) or 'round trip'}" for f in faults)
    verdict = f"{result.verdict}: {blame}" if blame else result.verdict
    task = result.model.task or "–"
    return f"| {path.stem} | {task} | {used} | {chosen} | {words} | {real} | {verdict} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Vet all models; 1 if one could not be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path)
    parser.add_argument("--data", type=Path, help="folder with images, sounds and texts")
    parser.add_argument("--optimizer", default="onnxoptimizer")
    parser.add_argument("--limit", type=int, default=60, help="samples per model at most")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results here")
    options = parser.parse_args(arguments)
    print(machine.describe(machine.environment()))
    print(f"optimizer {options.optimizer}\n")
    print("| model | task | inputs (samples) | comparator | metrics | on real data | verdict |")
    print("|---|---|---|---|---|---|---|", flush=True)
    failed, documents = 0, dict[str, Any]()
    for path in models_in(options.models):
        dataset = f"auto:{options.data}" if options.data else None
        try:
            task = config_for(path).task
            result = vet(
                path,
                dataset_options=labels_for(options.data, task),
                optimizer=options.optimizer,
                dataset=dataset or (),
                limit=options.limit,
                on_bad="skip",
                cache=False,
            )
        except OptvetError as error:
            failed += 1
            print(f"| {path.stem} | | | | | | {type(error).__name__}: {error} |", flush=True)
            continue
        real, agreed = on_real_data(result, claim_of(path, options.models))
        failed += not agreed
        documents[path.stem] = result.model_dump(mode="json", by_alias=True)
        print(line(path, result, real), flush=True)
    if options.json:
        options.json.write_text(json.dumps(documents, indent=1) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
