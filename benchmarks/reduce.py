"""The reducer on ten conditions with a known optimum, beside Polygraphy's ``debug reduce``.

``python benchmarks/reduce.py [--only N,...] [--polygraphy PYTHON] [--full]``. Each condition is
about the graph of a zoo model, or about what it computes; the least number of nodes that can
satisfy it is known. How to read the output:

- *left*: nodes of the reduced model, beside the optimum; *checks*: how often the condition was
  asked; *CPU*: seconds of this process, loading the model excluded, the conditions included.
  The optimum is what removing and rewiring nodes can reach; changed shapes (``--full``) may allow
  for less.
- The aims: 10 of 10 at the optimum, at most 26 nodes left in all, 200 checks, 10 CPU seconds.
- *Polygraphy*: its ``debug reduce`` (mode bisect, then linear on the result) on the same models
  with the same conditions, asked by a process per check; its time is wall time and says little
  beside ours. ``--polygraphy`` names an interpreter that has polygraphy, onnx, onnxruntime and
  onnx_graphsurgeon, where this one has not. What it cuts off is not fed from a recording by
  itself, so its check of a value is given the recorded values.
- ``--full`` also makes what is left plain (attributes, dimensions, contents, names).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper

from optvet.engine.discovery import Plugins
from optvet.engine.models.sources import resolve_model
from optvet.engine.reduce.reduction_order import ReductionCandidate, reduce_model
from optvet.engine.work.cache.disk import cache_root

Feeds = Mapping[str, np.ndarray]
AIMS = (10, 26, 200, 10.0)
BOUND = 90.0


# --- conditions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Condition:
    """What must stay true, of which model, and how few nodes can make it true."""

    name: str
    model: str
    optimum: int
    holds: Callable[[ModelProto, Feeds | None], bool]
    runs: bool = False
    change: Callable[[ModelProto], None] = lambda model: None


def nodes_of(model: ModelProto) -> Iterator[NodeProto]:
    """All nodes, those of subgraphs included."""
    pending = list(model.graph.node)
    while pending:
        node = pending.pop()
        yield node
        for attribute in node.attribute:
            pending.extend(attribute.g.node)


def has_type(*types: str) -> Callable[[ModelProto, Feeds | None], bool]:
    """A node of each of these types."""
    return lambda model, feeds: set(types) <= {n.op_type for n in nodes_of(model)}


def has_chain(*types: str) -> Callable[[ModelProto, Feeds | None], bool]:
    """Nodes of these types, each reading what the one before it made."""

    def holds(model: ModelProto, feeds: Feeds | None) -> bool:
        reached: set[str] = set()
        for i, kind in enumerate(types):
            nodes = [n for n in model.graph.node if n.op_type == kind]
            nodes = [n for n in nodes if not i or not reached.isdisjoint(n.input)]
            reached = {o for n in nodes for o in n.output}
        return bool(reached)

    return holds


def has_join(join: str, *types: str) -> Callable[[ModelProto, Feeds | None], bool]:
    """A node ``join`` that reads what nodes of these types made, in separate branches."""

    def holds(model: ModelProto, feeds: Feeds | None) -> bool:
        maker = {o: n.op_type for n in model.graph.node for o in n.output}
        return any(
            n.op_type == join and set(types) <= {maker.get(i) for i in n.input}
            for n in model.graph.node
        )

    return holds


def has_path(first: str, last: str) -> Callable[[ModelProto, Feeds | None], bool]:
    """A node ``last`` that depends on a node ``first``."""

    def holds(model: ModelProto, feeds: Feeds | None) -> bool:
        after: set[str] = set()
        for node in model.graph.node:
            depends = not after.isdisjoint(node.input)
            if depends and node.op_type == last:
                return True
            if depends or node.op_type == first:
                after.update(node.output)
        return False

    return holds


def has_rank(rank: int) -> Callable[[ModelProto, Feeds | None], bool]:
    """A value of this rank, by shape inference."""

    def holds(model: ModelProto, feeds: Feeds | None) -> bool:
        graph = onnx.shape_inference.infer_shapes(model).graph
        values = (*graph.input, *graph.value_info, *graph.output)
        return any(len(v.type.tensor_type.shape.dim) == rank for v in values)

    return holds


def has_kernel(size: int) -> Callable[[ModelProto, Feeds | None], bool]:
    """A Conv whose attribute ``kernel_shape`` is [size, size]."""
    return lambda model, feeds: any(
        a.name == "kernel_shape" and list(a.ints) == [size, size]
        for n in model.graph.node
        if n.op_type == "Conv"
        for a in n.attribute
    )


def has_weight(*shape: int) -> Callable[[ModelProto, Feeds | None], bool]:
    """A node that reads an initializer of this shape."""

    def holds(model: ModelProto, feeds: Feeds | None) -> bool:
        names = {t.name for t in model.graph.initializer if tuple(t.dims) == shape}
        return any(not names.isdisjoint(n.input) for n in model.graph.node)

    return holds


def has_count(kind: str, count: int) -> Callable[[ModelProto, Feeds | None], bool]:
    """At least so many nodes of a type."""
    return lambda model, feeds: sum(n.op_type == kind for n in model.graph.node) >= count


def has_value_above(bound: float) -> Callable[[ModelProto, Feeds | None], bool]:
    """An element of a float output above ``bound``, when the model runs on ``feeds``."""

    def holds(model: ModelProto, feeds: Feeds | None) -> bool:
        assert feeds is not None
        try:
            outputs = _session(model).run(None, dict(feeds))
        except Exception:  # it does not run: the condition does not hold
            return False
        return any(o.dtype.kind == "f" and o.size and float(o.max()) > bound for o in outputs)

    return holds


def wrap_in_if(model: ModelProto) -> None:
    """Put the MaxPool of a model into both branches of an If."""
    graph = model.graph
    index = next(i for i, n in enumerate(graph.node) if n.op_type == "MaxPool")
    pool = graph.node[index]
    name = pool.output[0]
    branches = {}
    for branch in ("then_branch", "else_branch"):
        inner = NodeProto()
        inner.CopyFrom(pool)
        inner.output[0] = f"{name}_{branch}"
        value = onnx.ValueInfoProto(name=inner.output[0])
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        branches[branch] = helper.make_graph([inner], branch, [], [value])
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "choose"))
    graph.node[index].CopyFrom(helper.make_node("If", ["choose"], [name], **branches))


CONDITIONS = (
    Condition("a node type is present", "zoo:resnet50", 1, has_type("MaxPool")),
    Condition("two types in sequence", "zoo:resnet50", 2, has_chain("BatchNormalization", "Relu")),
    Condition(
        "two types in two branches",
        "zoo:shufflenet",
        3,
        has_join("Concat", "BatchNormalization", "AveragePool"),
    ),
    Condition(
        "three types in a middle section",
        "zoo:inception_v1",
        3,
        has_chain("Relu", "LRN", "MaxPool"),
    ),
    Condition("one type after another, anywhere", "zoo:resnet50", 3, has_path("MaxPool", "Sum")),
    Condition("an output above a bound", "zoo:diabetes-mlp", 1, has_value_above(BOUND), runs=True),
    Condition("a value of rank 5", "zoo:shufflenet", 1, has_rank(5)),
    Condition("an attribute's value", "zoo:inception_v1", 1, has_kernel(5)),
    Condition("an initializer's shape", "zoo:squeezenet", 1, has_weight(256, 64, 3, 3)),
    Condition(
        "an operator inside an If", "zoo:squeezenet", 1, has_type("MaxPool"), False, wrap_in_if
    ),
)


# --- running --------------------------------------------------------------------------------------


def _session(model: ModelProto) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def record(model: ModelProto, feeds: Feeds) -> dict[str, np.ndarray] | None:
    """All values of a model; None if it does not run."""
    full = ModelProto()
    full.CopyFrom(model)
    del full.graph.output[:]
    names = [o for n in model.graph.node for o in n.output if o]
    full.graph.output.extend(onnx.ValueInfoProto(name=n) for n in dict.fromkeys(names))
    try:
        session = _session(full)
        values = session.run(None, dict(feeds))
    except Exception:  # the answer to the question
        return None
    outputs = [o.name for o in session.get_outputs()]
    return {n: v for n, v in zip(outputs, values, strict=True) if isinstance(v, np.ndarray)}


def inputs_of(model: ModelProto) -> dict[str, np.ndarray]:
    """Seeded normal numbers for each input; open dimensions are 1."""
    rng = np.random.default_rng(0)
    weights = {t.name for t in model.graph.initializer}
    return {
        i.name: rng.normal(
            scale=100, size=[d.dim_value or 1 for d in i.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for i in model.graph.input
        if i.name not in weights
    }


@dataclass(frozen=True)
class Row:
    """What one tool made of one condition."""

    left: int
    checks: int
    seconds: float


def reduce_ours(
    condition: Condition, model: ModelProto, feeds: Feeds | None, *, full: bool
) -> tuple[Row, ModelProto]:
    """Reduce in this process."""

    def interesting(candidates: Sequence[ReductionCandidate]) -> Iterator[bool]:
        for candidate in candidates:
            yield condition.holds(candidate.model, candidate.feeds)

    began = time.process_time()
    reduction = reduce_model(
        model,
        feeds,
        interesting,
        record=record if condition.runs else None,
        effort="full" if full else "nodes",
    )
    seconds = time.process_time() - began
    return Row(reduction.nodes[1], reduction.checks, seconds), reduction.model


def reduce_theirs(
    python: str, number: int, model: ModelProto, feeds: Feeds | None, folder: Path
) -> Row | None:
    """Reduce by Polygraphy: mode bisect, then linear on what is left. None if it fails."""
    start, checks = time.perf_counter(), folder / "checks"
    onnx.save(model, folder / "0.onnx")
    if feeds is not None:
        np.savez(folder / "recorded.npz", **(record(model, feeds) or {}), **feeds)  # type: ignore[arg-type]
    best = folder / "0.onnx"
    for i, mode in enumerate(("bisect", "linear")):
        target = folder / f"{i + 1}.onnx"
        start_it = "import sys; from polygraphy.tools import main; sys.exit(main())"
        command = [python, "-c", start_it, "debug", "reduce", str(best), "-o", str(target)]
        command += ["--mode", mode, "--check", sys.executable, str(Path(__file__).resolve())]
        command += ["--judge", f"{number}:{folder}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if target.is_file():
            best = target
        elif done.returncode:
            print(done.stdout[-800:], done.stderr[-800:], file=sys.stderr)
            return None
    left = sum(1 for _ in nodes_of(onnx.load(best)))
    count = checks.stat().st_size if checks.is_file() else 0
    return Row(left, count, time.perf_counter() - start)


def judge(text: str) -> int:
    """Exit status for Polygraphy, to which 1 is a failure, and a failure is interesting."""
    number, _, folder = text.partition(":")
    condition = CONDITIONS[int(number)]
    with (Path(folder) / "checks").open("ab") as checks:
        checks.write(b".")
    model = onnx.load("polygraphy_debug.onnx")
    feeds: dict[str, np.ndarray] | None = None
    if condition.runs:
        recorded = np.load(Path(folder) / "recorded.npz")
        feeds = {i.name: recorded[i.name] for i in model.graph.input if i.name in recorded}
    return int(condition.holds(model, feeds))


def main() -> int:
    """Print one row per condition, and the totals."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="numbers of conditions, from 1")
    parser.add_argument("--polygraphy", default="", help="an interpreter that has polygraphy")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--judge", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.judge:
        return judge(options.judge)
    environment = machine.environment()
    print(machine.describe(environment))
    python = options.polygraphy
    if not python and importlib.util.find_spec("polygraphy"):
        python = sys.executable
    print(f"polygraphy: {_version(python)}" if python else "polygraphy: not installed, left out")
    chosen = {int(n) - 1 for n in options.only.split(",") if n} or set(range(len(CONDITIONS)))
    ours: list[Row] = []
    theirs: list[Row | None] = []
    print(
        f"\n{'condition':38}{'nodes':>6}{'opt.':>5}{'left':>5}{'checks':>7}{'CPU s':>7}"
        "   Polygraphy"
    )
    for number in sorted(chosen):
        condition = CONDITIONS[number]
        model = load(condition)
        feeds = inputs_of(model) if condition.runs else None
        row, reduced = reduce_ours(condition, model, feeds, full=options.full)
        onnx.checker.check_model(reduced, full_check=True)
        ours.append(row)
        line = f"{number + 1:>2} {condition.name:35}{sum(1 for _ in nodes_of(model)):>6}"
        line += f"{condition.optimum:>5}{row.left:>5}{row.checks:>7}{row.seconds:>7.2f}"
        print(line, end="", flush=True)
        other = None
        if python:
            with tempfile.TemporaryDirectory(prefix="optvet-reduce-") as folder:
                other = reduce_theirs(python, number, model, feeds, Path(folder))
            words = f"{other.left} left, {other.checks} checks" if other else "failed"
            line = f"   {words}{f', {other.seconds:.0f} s' if other else ''}"
            print(line, end="", flush=True)
        theirs.append(other)
        print()
    optima = [CONDITIONS[n].optimum for n in sorted(chosen)]
    met = summarise(ours, theirs, optima)
    if options.json:
        rows = [vars(r) for r in ours]
        others = [vars(r) if r else None for r in theirs]
        options.json.write_text(json.dumps({**environment, "ours": rows, "theirs": others}))
    return 0 if met else 1


def summarise(ours: Sequence[Row], theirs: Sequence[Row | None], optima: Sequence[int]) -> bool:
    """Print the totals beside the aims; whether all aims are met."""
    best = sum(r.left <= o for r, o in zip(ours, optima, strict=True))
    left, checks = sum(r.left for r in ours), sum(r.checks for r in ours)
    seconds = sum(r.seconds for r in ours)
    print(f"\nat the optimum {best} of {len(ours)} (aim {AIMS[0]}), ", end="")
    print(f"nodes left {left} (optimum {sum(optima)}, aim {AIMS[1]}), ", end="")
    print(f"checks {checks} (aim {AIMS[2]}), CPU {seconds:.2f} s (aim {AIMS[3]:g})")
    done = [(r, o) for r, o in zip(theirs, optima, strict=True) if r]
    if done:
        best_of = sum(r.left <= o for r, o in done)
        print(f"Polygraphy: at the optimum {best_of} of {len(done)}, ", end="")
        print(f"nodes left {sum(r.left for r, _ in done)}, checks {sum(r.checks for r, _ in done)}")
    return best == len(ours) and left <= AIMS[1] and checks <= AIMS[2] and seconds <= AIMS[3]


def load(condition: Condition) -> ModelProto:
    """The model of a condition."""
    (model,) = resolve_model(condition.model, Plugins(), cache_root())
    proto = model.load()
    condition.change(proto)
    return proto


def _version(python: str) -> str:
    command = [python, "-c", "import polygraphy; print(polygraphy.__version__)"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})
    return done.stdout.strip() or "cannot be imported"


if __name__ == "__main__":
    sys.exit(main())
