"""Faults planted in exported decoders, and right optimizers of their files.

``python benchmarks/decoders.py`` prints how often `optvet compare` names the right file, token,
value and cache entries, and how many right pairs differ.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from decoder_models import FAULTS, Fault, write_model


def compare(a: Path, b: Path, seed: int) -> tuple[int, dict[str, Any]]:
    """Run `optvet compare`; return its exit code and its document."""
    command = ["optvet", "compare", str(a), str(b), "--seed", str(seed), "--json", "-"]
    ran = subprocess.run(command, capture_output=True, text=True)
    if not ran.stdout:
        sys.exit(ran.stderr)
    return ran.returncode, json.loads(ran.stdout)


def named(found: dict[str, Any], fault: Fault) -> dict[str, bool]:
    """Which facts of a fault the answer has right."""
    return {
        "found": found["verdict"] == "differs",
        "file": found["file"] == fault.file,
        "token": found["token"] == fault.token,
        "value": str(found["layer"]).startswith(fault.place),
        "entry": _entries_are_right(found["cache_entries"], fault),
    }


def _entries_are_right(entries: list[str], fault: Fault) -> bool:
    """Whether the named cache entries are those of the fault; true if it has none."""
    return not fault.entries or (bool(entries) and set(entries) <= set(fault.entries))


def by_onnxruntime(level: str) -> Callable[[Path, Path], None]:
    """Optimize a file by ONNX Runtime at one level, and save it."""

    def optimize(source: Path, target: Path) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        options.optimized_model_filepath = str(target)
        options.log_severity_level = 3
        ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])

    return optimize


def by_onnxslim(source: Path, target: Path) -> None:
    """Optimize a file by onnxslim."""
    import onnx
    import onnxslim

    onnx.save(onnxslim.slim(onnx.load(source)), target)


RIGHT: dict[str, Callable[[Path, Path], object]] = {
    "the same files": shutil.copyfile,
    "ONNX Runtime, basic": by_onnxruntime("ORT_ENABLE_BASIC"),
    "ONNX Runtime, extended": by_onnxruntime("ORT_ENABLE_EXTENDED"),
    "onnxslim": by_onnxslim,
}


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="models of each kind")
    seeds = range(parser.parse_args().seeds)
    right, total, codes = Counter[str](), 0, Counter[tuple[str, int]]()
    with tempfile.TemporaryDirectory() as temporary:
        for seed in seeds:
            for crosses, faults in FAULTS.items():
                root = Path(temporary) / f"{seed}-{crosses}"
                a = write_model(root / "a", seed, crosses=crosses)
                for number, fault in enumerate(faults):
                    b = write_model(root / f"b{number}", seed, crosses=crosses, fault=fault)
                    marks = named(compare(a, b, seed)[1], fault)
                    total += 1
                    right.update(name for name, is_right in marks.items() if is_right)
                    if missed := [name for name, is_right in marks.items() if not is_right]:
                        print(f"seed {seed}, {fault.name} in {fault.file}: not {missed}")
                for label, optimize in RIGHT.items():
                    b = root / label
                    b.mkdir()
                    for file in a.iterdir():
                        optimize(file, b / file.name)
                    codes[label, compare(a, b, seed)[0]] += 1
    print("\n| of the faults | right |\n|---|---|")
    for name in ("found", "file", "token", "value", "entry"):
        print(f"| {name} | {right[name]} of {total} |")
    print("\n| right pairs | agrees | differs | undecided |\n|---|---|---|---|")
    for label in RIGHT:
        print(f"| {label} | {codes[label, 0]} | {codes[label, 1]} | {codes[label, 4]} |")


if __name__ == "__main__":
    main()
