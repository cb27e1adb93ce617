"""Large models: how long a vet takes, how much memory all of its processes take, what it leaves.

Makes models of weights alone (a chain of MatMul and Identity, random weights, a fixed seed) in a
temporary folder, those above 2 GiB with external data, and vets each with each optimizer in a
process of its own. Memory is the largest sum of PSS over the process tree, sampled ten times a
second: pages that several processes map count once.

    python benchmarks/large.py [--gigabytes 1.6,2.4] [--optimizers onnxoptimizer,onnxruntime]
        [--folder DIR] [--memory SIZE]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from machine import describe, environment
from onnx import TensorProto, helper

SIDE = 4096
MESSAGE_BYTES = 2**31 - 1
BOUND = "at most 4 x model + 1 GB"


def make(folder: Path, size_bytes: int) -> Path:
    """A model of about ``size_bytes``; one weight at a time is in memory."""
    layers = max(1, round(size_bytes / (4 * SIDE * SIDE)))
    rng = np.random.default_rng(0)
    graph = helper.make_graph(
        [],
        "large",
        [helper.make_tensor_value_info("h0", TensorProto.FLOAT, [1, SIDE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, SIDE])],
    )
    with (folder / "model.data").open("wb") as file:
        for i in range(layers):
            weight = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[SIDE, SIDE])
            weight.data_location = TensorProto.EXTERNAL
            place = {"location": "model.data", "offset": file.tell(), "length": 4 * SIDE * SIDE}
            for key, value in place.items():
                weight.external_data.add(key=key, value=str(value))
            file.write((rng.standard_normal((SIDE, SIDE), np.float32) / 64).tobytes())
            graph.initializer.append(weight)
            graph.node.append(helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"m{i}"]))
            graph.node.append(helper.make_node("Identity", [f"m{i}"], [f"h{i + 1}"]))
    graph.node.append(helper.make_node("Relu", [f"h{layers}"], ["y"]))
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    if layers * 4 * SIDE * SIDE < MESSAGE_BYTES:
        onnx.save(onnx.load(path), path)
        (folder / "model.data").unlink()
    return path


def tree(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [c for t in tasks for c in (t / "children").read_text().split()]
    except OSError:
        return
    for child in children:
        yield from tree(int(child))


def pss_bytes(pid: int) -> int:
    """Memory of a process, shared pages in proportion; 0 once it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(n.split()[1]) << 10 for n in text.splitlines() if n.startswith("Pss:")), 0)


def measured(command: list[str]) -> tuple[int, float, int]:
    """Exit code, seconds, and the largest sum of memory of all processes."""
    process, began, peak = subprocess.Popen(command), time.monotonic(), 0
    while process.poll() is None:
        peak = max(peak, sum(map(pss_bytes, tree(process.pid))))
        time.sleep(0.1)
    return process.returncode, time.monotonic() - began, peak


def vetted(path: Path, optimizer: str, options: list[str]) -> str:
    """One line of the table."""
    folder = path.parent
    before = {f for f in folder.rglob("*") if f.is_file()}
    size = sum(f.stat().st_size for f in before)
    answer, cache = folder / "answer.json", folder / "cache"
    program = "import sys; from optvet.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "vet", str(path), "--optimizer", optimizer]
    command += ["--limit", "2", "--no-cache", "--cache-dir", str(cache), "--quiet"]
    code, seconds, peak = measured([*command, "--json", str(answer), *options])
    verdict = json.loads(answer.read_text())["verdict"] if answer.exists() else f"exit {code}"
    answer.unlink(missing_ok=True)
    left = {f for f in folder.rglob("*") if f.is_file()} - before
    left_bytes = sum(f.stat().st_size for f in left)
    held = "yes" if peak <= 4 * size + 1e9 else "NO"
    return (
        f"{size / 1e9:5.2f} GB  {optimizer:14} {verdict:9} {seconds:5.0f} s  "
        f"{peak / 1e9:5.2f} GB  {peak / size:4.2f} x  {held:4} {len(left)} files, {left_bytes:,} B"
    )


def main() -> None:
    """Print the machine and a line per model and optimizer."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gigabytes", default="1.6,2.4")
    parser.add_argument("--optimizers", default="onnxoptimizer,onnxruntime")
    parser.add_argument("--folder", type=Path, help="where the models are made")
    parser.add_argument("--memory", default="16G")
    parser.add_argument("--timeout", default="300")
    given = parser.parse_args()
    print(describe(environment()))
    print(
        f"model     optimizer      verdict       time  peak      ratio   {BOUND}; left", flush=True
    )
    for size in given.gigabytes.split(","):
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            path = make(Path(folder), int(float(size) * 1e9))
            for optimizer in given.optimizers.split(","):
                options = ["--memory", given.memory, "--timeout", given.timeout]
                print(vetted(path, optimizer, options), flush=True)


if __name__ == "__main__":
    main()
