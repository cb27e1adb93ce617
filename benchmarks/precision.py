"""How good the lists of ``optvet precision`` are: planted faults of float16, and layers of int8.

    python benchmarks/precision.py half MODELS... [--limit N] [--autocast PYTHON]
    python benchmarks/precision.py int8 MODELS... [--limit N]

MODELS are ONNX files of float32 that take tensors of floats, or of integers below 50.

``half`` plants one fault at a time in the middle of each network, which leaves what the network
computes: an ``overflow`` (a value is multiplied beyond 65,504, then divided), an ``absorption`` (a
large number is added, then subtracted) and an ``epsilon`` (the root of 1e-12 is divided by 1e-6).
The requirement is four times the error of the network without the fault, at least 0.02 of the
output's range. Of networks of up to 16 parts, ``rounding`` plants nothing and requires half the
error of the whole conversion. Columns: parts that can be converted; length of the list; the
shortest list, by brute force over all subsets of the planted nodes (``rounding``: of all nodes);
whether all nodes of the list are among these; lists tried; inferences; seconds; and how many nodes
have to be kept in the order of ONNX Runtime's own
``float_to_float16_max_diff`` of their weights, before the same requirement is met (``never``: all),
with the error then and the seconds of ranking and trying.
``--autocast`` names the Python of an environment with ``nvidia-modelopt[onnx]``: AutoCast converts
the same model with the same inputs. Its column has the parts that compute in float32 after it, the
error, whether the requirement is met, and its seconds, without the import.

``int8`` quantizes each layer alone. The truth is the loss on 32 other samples. Columns: layers;
Spearman's rank correlation of optvet's losses on N samples with the truth; that of the largest
rounding error of the layer's weights; for half the error of all layers together: optvet's list, the
shortest beginning of its own ranking that is enough, and whether it is to leave out the first and
the last layer.

Lists are tried again here by ONNX Runtime alone, apart from optvet's own runs.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import machine
import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper
from scipy.stats import spearmanr

from optvet import PrecisionResult, precision
from optvet.engine.work.trials.calibration import write_inputs
from optvet.graph import name_nodes, round_half_types
from optvet.graph.types import element_types
from optvet.plugin import Artifact
from optvet_onnxruntime.half import OrtFp16
from optvet_onnxruntime.node_quantizers import OrtStaticQuantizer

Feeds = list[dict[str, np.ndarray]]
_LEAST = 0.02
_TRUTH = 32
_SMALL = 16
_UNKNOWN = 32
_SIZES = {"overflow": (4.0, 1e4), "absorption": (0.0, 15.0), "epsilon": (0.0, 1e4)}
"""Between which magnitudes the value must be that a fault is planted at."""


def feeds_of(model: ModelProto, count: int, seed: int) -> Feeds:
    """Random inputs; unknown dimensions are 32, the first is 1, integers are below 50."""
    rng, weights = np.random.default_rng(seed), {t.name for t in model.graph.initializer}
    found = []
    for _ in range(count):
        feeds = {}
        for value in model.graph.input:
            tensor = value.type.tensor_type
            if value.name in weights:
                continue
            known = [d.dim_value for d in tensor.shape.dim]
            shape = [d if d > 0 else (_UNKNOWN if i else 1) for i, d in enumerate(known)]
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            if dtype.kind == "f":
                feeds[value.name] = rng.normal(size=shape).astype(dtype)
            else:
                feeds[value.name] = rng.integers(0, 50, shape).astype(dtype)
        found.append(feeds)
    return found


def run(model: ModelProto, feeds: Feeds) -> list[list[np.ndarray]]:
    """Outputs of each sample, without the runtime's own optimizations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return [session.run(None, each) for each in feeds]


def change(expected: list[list[np.ndarray]], actual: list[list[np.ndarray]]) -> float:
    """The largest change of an output relative to its largest magnitude; infinite for NaN."""
    worst = 0.0
    for before, after in zip(expected, actual, strict=True):
        for a, b in zip(before, after, strict=True):
            if a.dtype.kind != "f" or not a.size:
                continue
            finite = np.isfinite(a)
            if not np.isfinite(b[finite]).all():
                return float("inf")
            top = float(np.abs(a[finite]).max(initial=0.0)) or 1.0
            worst = max(worst, float(np.abs(a - b)[finite].max(initial=0.0)) / top)
    return worst


# --- float16 --------------------------------------------------------------------------------------


def plant(model: ModelProto, fault: str, feeds: Feeds) -> tuple[ModelProto, list[str]] | None:
    """A copy with ``fault`` in the middle, and the names of its nodes; None if nothing fits."""
    copy = ModelProto()
    copy.CopyFrom(model)
    name_nodes(copy)
    outputs = {o.name for o in copy.graph.output}
    types = element_types(copy)
    places = [
        (index, name)
        for index, node in enumerate(copy.graph.node)
        for name in node.output[:1]
        if types.get(name) == TensorProto.FLOAT
        and name not in outputs
        and node.op_type not in ("Constant", "Shape")
    ]
    low, high = _SIZES[fault]
    half = len(places) // 2
    for place in (*places[half:], *reversed(places[:half])):
        if low < (top := _largest(model, place[1], feeds)) < high:
            index, name = place
            break
    else:
        return None
    nodes, constants = _fault_nodes(fault, name, top)
    for node in copy.graph.node[index + 1 :]:
        for place, read in enumerate(node.input):
            if read == name:
                node.input[place] = f"{name}_planted"
    for tensor in constants:
        copy.graph.initializer.append(tensor)
    for offset, node in enumerate(nodes, 1):
        copy.graph.node.insert(index + offset, node)
    return copy, [node.name for node in nodes]


def _largest(model: ModelProto, name: str, feeds: Feeds) -> float:
    """The largest magnitude of an inner value."""
    probe = ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    probe.graph.output.append(onnx.ValueInfoProto(name=name))
    return max(float(np.abs(outputs[0]).max(initial=0.0)) for outputs in run(probe, feeds))


def _fault_nodes(
    fault: str, name: str, top: float
) -> tuple[list[onnx.NodeProto], list[TensorProto]]:
    """Nodes that give ``name`` again as ``name_planted``, and their constants."""
    end = f"{name}_planted"

    def node(operator: str, number: int, inputs: list[str], output: str) -> onnx.NodeProto:
        return helper.make_node(operator, inputs, [output], name=f"planted_{number}")

    def constant(what: str, value: float) -> TensorProto:
        return numpy_helper.from_array(np.array(value, np.float32), what)

    if fault == "overflow":
        factor = constant("planted_factor", 2.0**15)
        nodes = [
            node("Mul", 0, [name, "planted_factor"], "planted_a"),
            node("Div", 1, ["planted_a", "planted_factor"], end),
        ]
        return nodes, [factor]
    if fault == "absorption":
        large = constant("planted_large", 2.0 ** np.ceil(np.log2(top * 2000)))
        nodes = [
            node("Add", 0, [name, "planted_large"], "planted_a"),
            node("Sub", 1, ["planted_a", "planted_large"], end),
        ]
        return nodes, [large]
    nodes = [
        node("Sub", 0, [name, name], "planted_a"),
        node("Add", 1, ["planted_a", "planted_epsilon"], "planted_b"),
        node("Sqrt", 2, ["planted_b"], "planted_c"),
        node("Div", 3, ["planted_c", "planted_root"], "planted_d"),
        node("Mul", 4, [name, "planted_d"], end),
    ]
    return nodes, [constant("planted_epsilon", 1e-12), constant("planted_root", 1e-6)]


def with_kept(model: ModelProto) -> tuple[list[str], Callable[[Sequence[str]], ModelProto]]:
    """The parts of a model, and what makes the emulated one with some of them kept."""
    source = Artifact("onnx", model.SerializeToString())
    optimizer = OrtFp16()
    optimizer = optimizer.for_model(source, optimizer.options)
    options = optimizer.emulated(optimizer.options)
    parts = list(optimizer.parts)

    def make(kept: Sequence[str]) -> ModelProto:
        passes = [name for name in parts if name not in kept]
        return onnx.load_from_string(optimizer.apply(source, passes, options).data)

    return parts, make


_AUTOCAST = """
import sys, time, onnx
from modelopt.onnx.autocast import convert_to_mixed_precision
started = time.perf_counter()
folder = sys.argv[1]
half = convert_to_mixed_precision(
    folder + "/model.onnx", keep_io_types=True, calibration_data=folder + "/inputs"
)
print("seconds", time.perf_counter() - started)
onnx.save(half, folder + "/half.onnx")
"""


def by_autocast(
    python: str, model: ModelProto, parts: Sequence[str], feeds: Feeds, bound: float
) -> str:
    """What ModelOpt's AutoCast makes of ``model``."""
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs"
        inputs.mkdir()
        for number, each in enumerate(feeds):
            np.savez(inputs / f"{number}.npz", **each)  # type: ignore[arg-type]  # names of inputs
        onnx.save(model, f"{folder}/model.onnx")
        ran = subprocess.run(
            [python, "-c", _AUTOCAST, folder], capture_output=True, text=True, check=False
        )
        if ran.returncode:
            return " ".join(ran.stderr.strip().splitlines()[-1].split())[:60]
        half = onnx.load(f"{folder}/half.onnx")
    seconds = float(ran.stdout.rpartition("seconds ")[2].split()[0])
    types = element_types(half)
    made = {node.name: types.get(node.output[0]) for node in half.graph.node if node.output}
    kept = sum(made.get(name) == TensorProto.FLOAT for name in parts)
    error = change(run(model, feeds), run(round_half_types(half), feeds))
    met = "met" if error <= bound else "not met"
    return f"{kept} kept, {error:.2g} {met}, {seconds:.1f} s"


def judge_half(path: Path, fault: str, limit: int, python: str) -> list[str]:
    """One row of the table of planted faults."""
    model = onnx.load(path)
    name_nodes(model)
    feeds = feeds_of(model, limit, 0)
    planted = plant(model, fault, feeds) if fault != "rounding" else (model, [])
    if planted is None:
        return [path.stem, fault, "no place"]
    faulty, names = planted
    expected = run(model, feeds)
    _, sound = with_kept(model)
    error = change(expected, run(sound([]), feeds))
    parts, make = with_kept(faulty)
    bound, names = (error / 2, parts) if fault == "rounding" else (max(_LEAST, 4 * error), names)
    if fault == "rounding" and len(parts) > _SMALL:
        return [path.stem, fault, str(len(parts)), "too large for brute force"]

    def lost(kept: Sequence[str]) -> float:
        return change(expected, run(make(kept), feeds))

    def enough(kept: Sequence[str]) -> bool:
        return lost(kept) <= bound

    if enough([]):
        return [path.stem, fault, str(len(parts)), "no effect"]
    sizes = range(1, len(names) + 1)
    combine = itertools.combinations
    best = next((n for n in sizes if any(enough(few) for few in combine(names, n))), None)
    if best is None:
        return [path.stem, fault, str(len(parts)), "the planted nodes are not enough"]
    started = time.perf_counter()
    result = _search(faulty, feeds, bound)
    seconds = time.perf_counter() - started
    kept = [part.name for part in result.kept]
    verified = "" if enough(kept) else " (not enough)"
    return [
        path.stem,
        fault,
        str(len(parts)),
        f"{len(kept)}{verified}",
        str(best),
        "yes" if set(kept) <= set(names) and kept else "no",
        str(result.trials),
        str(result.inferences),
        f"{seconds:.0f}",
        _by_weights(faulty, parts, lost, bound),
        *([by_autocast(python, faulty, parts, feeds, bound)] if python else []),
    ]


def _search(model: ModelProto, feeds: Feeds, bound: float) -> PrecisionResult:
    with tempfile.TemporaryDirectory() as folder:
        return precision(
            model, dataset=feeds, require=f"max_change<={bound:.6g}", cache_dir=folder, jobs=1
        )


def _by_weights(
    model: ModelProto,
    parts: Sequence[str],
    lost: Callable[[Sequence[str]], float],
    bound: float,
) -> str:
    """How many parts are kept in the order of the largest rounding error of their weights."""
    from onnxruntime.transformers.float16 import float_to_float16_max_diff

    started = time.perf_counter()
    # Of weights without elements it says that their data were not loaded.
    weights = {
        t.name: t
        for t in model.graph.initializer
        if t.data_type == TensorProto.FLOAT and 0 not in t.dims
    }
    worst = {
        node.name: max(
            (float(float_to_float16_max_diff(weights[n])) for n in node.input if n in weights),
            default=-1.0,
        )
        for node in model.graph.node
    }
    weighted = [n for n in sorted(parts, key=lambda n: -worst[n]) if worst[n] >= 0]
    length = 1
    while (left := lost(weighted[:length])) > bound and length < len(weighted):
        length = min(2 * length, len(weighted))
    told = f"{left:.2g}, {time.perf_counter() - started:.1f} s"
    return f"≤ {length}, {told}" if left <= bound else f"never, {told}"


# --- int8 -----------------------------------------------------------------------------------------


def judge_int8(path: Path, limit: int) -> list[str]:
    """One row of the table of quantized layers."""
    model = onnx.load(path)
    name_nodes(model)
    feeds, others = feeds_of(model, limit, 0), feeds_of(model, _TRUTH, 1)
    operators = ("Conv", "ConvTranspose", "Gemm", "MatMul")
    with tempfile.TemporaryDirectory() as folder:
        quantizer = OrtStaticQuantizer()
        options = quantizer.options.model_copy(
            update={"operators": operators, "inputs": str(write_inputs(Path(folder), feeds))}
        )
        source = Artifact("onnx", model.SerializeToString())
        fitted = quantizer.for_model(source, options)
        layers = list(fitted.parts)

        def loss(kept: Sequence[str], on: Feeds, expected: list[list[np.ndarray]]) -> float:
            passes = [name for name in layers if name not in kept]
            quantized = onnx.load_from_string(fitted.apply(source, passes, options).data)
            return _relative(expected, run(quantized, on))

        expected = run(model, others)
        truth = {n: loss([k for k in layers if k != n], others, expected) for n in layers}
        whole = change(run(model, feeds), run(_quantized(fitted, source, layers, options), feeds))
        bound = whole / 2
        result = precision(
            model,
            dataset=feeds,
            to="int8",
            optimizer_options={"operators": operators},
            require=f"max_change<={bound:.6g}",
            rank=True,
            cache_dir=folder,
            jobs=1,
        )
        ranked = {part.name: part.loss or 0.0 for part in result.ranking}

        def enough(kept: Sequence[str]) -> bool:
            passes = [name for name in layers if name not in kept]
            made = _quantized(fitted, source, passes, options)
            return change(run(model, feeds), run(made, feeds)) <= bound

        order = [part.name for part in result.ranking]
        prefix = next((k for k in range(len(order) + 1) if enough(order[:k])), len(order))
        return [
            path.stem,
            str(len(layers)),
            _correlation(ranked, truth),
            _correlation(_weight_errors(model, layers), truth),
            f"{whole:.3g}",
            str(len(result.kept)),
            str(prefix),
            "yes" if enough([layers[0], layers[-1]]) else "no",
            str(result.inferences),
        ]


def _quantized(
    optimizer: OrtStaticQuantizer, source: Artifact, passes: Sequence[str], options: Any
) -> ModelProto:
    return onnx.load_from_string(optimizer.apply(source, passes, options).data)


def _relative(expected: list[list[np.ndarray]], actual: list[list[np.ndarray]]) -> float:
    """Root mean square of the change relative to the outputs' own, of the worst output."""
    worst = 0.0
    for index in range(len(expected[0])):
        pairs = [(a[index], b[index]) for a, b in zip(expected, actual, strict=True)]
        if pairs[0][0].dtype.kind != "f":
            continue
        moved = sum(float(np.sum((a.astype(float) - b) ** 2)) for a, b in pairs)
        total = sum(float(np.sum(a.astype(float) ** 2)) for a, _ in pairs)
        worst = max(worst, float(np.sqrt(moved / total)) if total else 0.0)
    return worst


def _weight_errors(model: ModelProto, layers: Sequence[str]) -> dict[str, float]:
    """Rounding error of each layer's weights in 8 bits, relative to their norm."""
    weights = {t.name: t for t in model.graph.initializer}
    found = dict.fromkeys(layers, 0.0)
    for node in model.graph.node:
        if node.name in found and len(node.input) > 1 and node.input[1] in weights:
            value = numpy_helper.to_array(weights[node.input[1]])
            step = float(np.abs(value).max()) / 127 or 1.0
            norm = float(np.linalg.norm(value)) or 1.0
            found[node.name] = float(np.linalg.norm(np.round(value / step) * step - value)) / norm
    return found


def _correlation(losses: Mapping[str, float], truth: Mapping[str, float]) -> str:
    names = [name for name in truth if name in losses]
    if len(names) < 3:
        return "–"
    found = spearmanr([losses[n] for n in names], [truth[n] for n in names]).statistic
    return f"{found:.3f}"


# --- tables ---------------------------------------------------------------------------------------

_COLUMNS = {
    "half": "model fault parts kept optimum planted lists inferences s max_diff".split(),
    "int8": "model layers ranking weights error kept prefix first+last inferences".split(),
}


def rows(kind: str, models: Sequence[Path], limit: int, python: str) -> Iterator[list[str]]:
    """Rows as they are known; a model that cannot be judged says why."""
    for path in models:
        for fault in (*_SIZES, "rounding") if kind == "half" else ("",):
            try:
                yield judge_half(path, fault, limit, python) if fault else judge_int8(path, limit)
            except Exception as error:  # one model that fails is a row, not the end
                yield [path.stem, *([fault] if fault else []), " ".join(str(error).split())[:80]]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("kind", choices=list(_COLUMNS))
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--limit", type=int, default=4)
    parser.add_argument("--autocast", default="", metavar="PYTHON")
    given = parser.parse_args()
    columns = [*_COLUMNS[given.kind], *(["autocast"] if given.autocast else [])]
    print(machine.describe(machine.environment()), flush=True)
    print("| " + " | ".join(columns) + " |", flush=True)
    print("|" + "---|" * len(columns), flush=True)
    for row in rows(given.kind, given.models, given.limit, given.autocast):
        print("| " + " | ".join(row) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
