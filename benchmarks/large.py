"""Large models: how long a vet takes, how much memory all of its processes take, what it leaves.

Makes models of weights alone (a chain of MatMul and Identity, random weights, a fixed seed) in a
temporary folder, those above 2 GiB with external data, and vets each with each optimizer in a
process of its own, and does the same with the bare libraries (``bare``, of ONNX Optimizer: load,
optimize, load both in ONNX Runtime, run both on two inputs, compare). Each is also vetted as
``blocks:``, two of its equal blocks alone, which are left in the cache; ``--blocks-only`` is for
models of which the memory does not hold four copies. Memory is the largest sum of PSS over the
process tree, sampled ten times a second: pages that several processes map count once.

    python benchmarks/large.py [--gigabytes 1.6,2.4] [--optimizers onnxoptimizer,onnxruntime]
        [--folder DIR] [--memory SIZE] [--blocks-only]
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from machine import describe, environment
from onnx import TensorProto, helper

SIDE = 4096
MESSAGE_BYTES = 2**31 - 1
PR_SET_CHILD_SUBREAPER = 36
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


@dataclass(frozen=True)
class Took:
    """Exit code, seconds of time and of CPU, and the largest sum of memory of all processes."""

    code: int
    wall_s: float
    cpu_s: float
    peak_bytes: int

    def row(self, size: int, name: str, verdict: str) -> str:
        """The first columns of the table."""
        peak = self.peak_bytes
        return (
            f"{size / 1e9:5.2f} GB  {name:20} {verdict:9} {self.wall_s:5.0f} s {self.cpu_s:5.0f} s"
            f"  {peak / 1e9:5.2f} GB  {peak / size:4.2f} x"
        )


def measured(command: list[str]) -> Took:
    """What a command takes with all that it starts."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # to count its orphans, too
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process, began, peak = subprocess.Popen(command), time.monotonic(), 0
    while process.poll() is None:
        peak = max(peak, sum(map(pss_bytes, tree(process.pid))))
        time.sleep(0.1)
    wall_s = time.monotonic() - began
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Took(process.returncode, wall_s, cpu_s, peak)


BARE = """
import sys, numpy, onnxoptimizer, onnxruntime
from onnxoptimizer import onnx_opt_cpp2py_export as native
path, optimized = sys.argv[1:]
passes = onnxoptimizer.get_fuse_and_elimination_passes()
native.optimize_from_path(path, optimized, passes, "bare.bin")
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
options.intra_op_num_threads = options.inter_op_num_threads = 1
options.add_session_config_entry("session.disable_prepacking", "1")
draw = numpy.random.default_rng(0).standard_normal
feeds = [{"h0": draw((1, SIDE), numpy.float32)} for _ in range(2)]
results = []
for model in (path, optimized):
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    results.append([session.run(None, feed)[0] for feed in feeds])
    del session
assert all(map(numpy.array_equal, *results))
"""


def bare(path: Path) -> str:
    """The line of the bare script."""
    size = sum(f.stat().st_size for f in path.parent.iterdir())
    program = BARE.replace("SIDE", str(SIDE))
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        took = measured([sys.executable, "-c", program, str(path), f"{folder}/optimized.onnx"])
    return took.row(size, "bare", "equal" if took.code == 0 else f"exit {took.code}")


def vetted(path: Path, optimizer: str, options: list[str], form: str = "") -> str:
    """One line of the table; ``form`` is ``blocks:`` for two of the equal blocks alone."""
    folder = path.parent
    before = {f for f in folder.rglob("*") if f.is_file()}
    size = sum(f.stat().st_size for f in before)
    answer, cache = folder / "answer.json", folder / "cache"
    program = "import sys; from optvet.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "vet", f"{form}{path}"]
    command += ["--optimizer", optimizer]
    command += ["--limit", "2", "--no-cache", "--cache-dir", str(cache), "--quiet"]
    took = measured([*command, "--json", str(answer), *options])
    verdict = json.loads(answer.read_text())["verdict"] if answer.exists() else f"exit {took.code}"
    answer.unlink(missing_ok=True)
    left = {f for f in folder.rglob("*") if f.is_file()} - before
    left_bytes = sum(f.stat().st_size for f in left)
    held = "yes" if took.peak_bytes <= 4 * size + 1e9 else "NO"
    row = took.row(size, f"{form}{optimizer}", verdict)
    return f"{row}  {held:4} {len(left)} files, {left_bytes:,} B"


def main() -> None:
    """Print the machine and a line per model and optimizer."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gigabytes", default="1.6,2.4")
    parser.add_argument("--optimizers", default="onnxoptimizer,onnxruntime")
    parser.add_argument("--folder", type=Path, help="where the models are made")
    parser.add_argument("--memory", default="16G")
    parser.add_argument("--timeout", default="300")
    parser.add_argument("--blocks-only", action="store_true")
    given = parser.parse_args()
    print(describe(environment()))
    head = "model     optimizer            verdict    time     CPU     peak      ratio"
    print(f"{head}   {BOUND}; left", flush=True)
    for size in given.gigabytes.split(","):
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            path = make(Path(folder), int(float(size) * 1e9))
            if not given.blocks_only:
                print(bare(path), flush=True)
            for optimizer in given.optimizers.split(","):
                options = ["--memory", given.memory, "--timeout", given.timeout]
                for form in ("blocks:",) if given.blocks_only else ("", "blocks:"):
                    print(vetted(path, optimizer, options, form), flush=True)


if __name__ == "__main__":
    main()
