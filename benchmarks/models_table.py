"""Every model of a folder under every optimizer: verdicts, culprits, a line per faulty cell.

    python benchmarks/models_table.py MODELS --into FOLDER [--columns openvino,tvm] [--limit N]
        [--data FOLDER] [--seconds N] [--models NAME,…] [--again faulty,error]

Rows are the ONNX files of MODELS, the smallest first; columns are optimizers with their default
pipelines, and ONNX Runtime also with each level (``onnxruntime:basic``) and saving what it makes
(``onnxruntime:offline``). Each cell is one ``optvet vet`` in a process of its own, under a limit of
``--seconds``, whose JSON is kept as a file in FOLDER: begun again, only what is missing is done,
and what ``--again`` names. With ``--data`` each model gets what suits it (``--dataset auto:``).

Below the table stands a line per faulty cell: symptom, culprit, outputs, what was seen. A person
judges each by means of their own; write it into ``judged.txt`` in FOLDER (``MODEL COLUMN words``),
and it is printed behind the line. Exit status 1 if a cell has no verdict for a reason of optvet's.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import machine

COLUMNS: Mapping[str, Sequence[str]] = {
    "onnxoptimizer": ("--optimizer", "onnxoptimizer"),
    "onnxsim": ("--optimizer", "onnxsim"),
    "onnxslim": ("--optimizer", "onnxslim"),
    "onnxscript": ("--optimizer", "onnxscript"),
    "ort_transformers": ("--optimizer", "ort_transformers"),
    "onnxruntime": ("--optimizer", "onnxruntime"),
    **{
        f"onnxruntime:{level}": ("--optimizer", "onnxruntime", "--pipeline", level)
        for level in ("basic", "extended", "layout", "all")
    },
    "onnxruntime:offline": ("--optimizer", "onnxruntime", "--option", "mode=offline"),
    "openvino": ("--optimizer", "openvino"),
    "tvm": ("--optimizer", "tvm"),
}
ENDS = {2: "refused", 3: "error", 4: "undecided", 5: "untested"}
"""What an exit status without a document means."""
Cell = dict[str, Any]
"""What is kept of one vet: exit status, seconds, the document, what stderr said."""


def models_in(folder: Path, wanted: Sequence[str]) -> list[Path]:
    """ONNX files of the folder and of the folders directly in it, the smallest first."""
    files = [*folder.glob("*.onnx"), *folder.glob("*/*.onnx")]
    return sorted(
        (f for f in files if not wanted or f.stem in wanted), key=lambda f: (f.stat().st_size, f)
    )


def vetted(model: Path, column: str, options: argparse.Namespace) -> Cell:
    """One vet in a process group of its own, ended as a whole when its time is over."""
    command = [sys.executable, "-m", "optvet_start", "vet", str(model), *COLUMNS[column]]
    command += ["--limit", str(options.limit), "--seed", str(options.seed), "--json", "-"]
    if options.data:
        command += ["--dataset", f"auto:{options.data}"]
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=options.seconds)
        status: int | None = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            out, err = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        status = None
    try:
        document = json.loads(out)
    except ValueError:
        document = None
    seconds = round(time.monotonic() - started, 1)
    return {"status": status, "seconds": seconds, "document": document, "stderr": err[-2000:]}


def verdict_of(cell: Cell) -> str:
    """The verdict, or in a word why there is none."""
    if cell["status"] is None:
        return "too slow"
    if cell["document"] and "verdict" in cell["document"]:
        return str(cell["document"]["verdict"])
    return ENDS.get(cell["status"], "error")


def faults_of(cell: Cell) -> list[dict[str, Any]]:
    """Findings that make a cell faulty."""
    findings = (cell["document"] or {}).get("findings", [])
    return [f for f in findings if f["severity"] == "fault"]


def _culprit(finding: Mapping[str, Any]) -> str:
    """The passes to blame, or what else is."""
    alone = "the runtime, as shipped" if finding["as_deployed"] else "round trip"
    return "+".join(finding["culprit"]) or alone


def in_a_cell(cell: Cell) -> str:
    """Verdict and culprits."""
    faults = faults_of(cell)
    culprits = dict.fromkeys(map(_culprit, faults))
    return verdict_of(cell) + (f" ({'; '.join(culprits)})" if culprits else "")


def judged(folder: Path) -> dict[tuple[str, str], str]:
    """What a person wrote of faulty cells."""
    file = folder / "judged.txt"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    parts = [line.split(maxsplit=2) for line in lines]
    return {(p[0], p[1]): p[2] for p in parts if len(p) == 3}


def lines_below(
    cells: Mapping[tuple[str, str], Cell], words: Mapping[tuple[str, str], str]
) -> Iterator[str]:
    """A line per finding of faulty cells, and per cell without a verdict."""
    for (model, column), cell in cells.items():
        for f in faults_of(cell):
            culprit = _culprit(f)
            sure = "" if f["confirmed"] else ", not again in a fresh process"
            where = f" [{', '.join(f['outputs'])}]" if f["outputs"] else ""
            what = " ".join(f["message"].split())[:300]
            yield f"- {model} × {column}: {f['symptom']}, {culprit}{sure}{where}: {what}"
        if faults_of(cell):
            yield f"  judged: {words.get((model, column), 'not yet')}"
        elif verdict_of(cell) not in ("clean", "drift", "faulty"):
            said = " ".join((cell["stderr"] or (cell["document"] or {}).get("reason", "")).split())
            yield f"- {model} × {column}: {verdict_of(cell)}: {said[-300:]}"


def main() -> int:
    """Fill the folder with what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="MODELS")
    parser.add_argument("--into", type=Path, required=True, help="folder of the cells")
    parser.add_argument("--columns", default="", help="all of them by default")
    parser.add_argument("--models", default="", help="names without .onnx; all by default")
    parser.add_argument("--data", type=Path, help="folder of real inputs")
    parser.add_argument("--limit", type=int, default=5, help="samples per model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600, help="limit for one cell")
    parser.add_argument("--again", default="", help="verdicts whose cells are done once more")
    parser.add_argument("--only-print", action="store_true", help="vet nothing")
    options = parser.parse_args()
    columns = [c for c in options.columns.split(",") if c] or list(COLUMNS)
    if unknown := [c for c in columns if c not in COLUMNS]:
        parser.error(f"unknown columns {', '.join(unknown)}; known are {', '.join(COLUMNS)}")
    again = set(options.again.split(","))
    models = models_in(options.folder, [m for m in options.models.split(",") if m])
    if not models:
        parser.error(f"no such models in {options.folder}")
    options.into.mkdir(parents=True, exist_ok=True)
    cells: dict[tuple[str, str], Cell] = {}
    for model in models:
        for column in columns:
            file = options.into / f"{model.stem}--{column.replace(':', '-')}.json"
            cell = json.loads(file.read_text()) if file.is_file() else None
            if not options.only_print and (cell is None or verdict_of(cell) in again):
                cell = vetted(model, column, options)
                file.write_text(json.dumps(cell, indent=1))
                print(f"{model.stem} × {column}: {in_a_cell(cell)}", file=sys.stderr, flush=True)
            if cell is not None:
                cells[model.stem, column] = cell
    print(machine.describe(machine.environment()), "", sep="\n")
    print(f"| model | {' | '.join(columns)} |", "|" + "---|" * (len(columns) + 1), sep="\n")
    for model in models:
        row = [cells.get((model.stem, c)) for c in columns]
        print(f"| {model.stem} | {' | '.join('' if c is None else in_a_cell(c) for c in row)} |")
    count = Counter(verdict_of(c) for c in cells.values())
    print("", ", ".join(f"{n} {v}" for v, n in count.most_common()), "", sep="\n")
    print(*lines_below(cells, judged(options.into)), sep="\n")
    return int(any(verdict_of(c) == "error" for c in cells.values()))


if __name__ == "__main__":
    sys.exit(main())
