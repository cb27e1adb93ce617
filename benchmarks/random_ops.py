"""Vets of models with random operators: how many false alarms, how many planted faults found.

    python benchmarks/random_ops.py [--vets 1000] [--planted 250] [--whole 40] [--seed 0]

Small models are made at random: RandomNormal and RandomUniform (with and without Like), Bernoulli,
Multinomial, Dropout in training mode, alone, behind layers, in subgraphs and in functions, with a
seed and without, with continuous and with discrete outputs. An optimizer's default pipeline is
applied to each, and the draws of both models are judged as a vet judges them: half of them with the
same seeds on both sides, half as if none could be set, so that statistics alone decide. The
first ``--planted`` get a fault, too: another mean, scale, range or ratio, a scaling that is lost, a
value that is stuck. ``--whole`` is how many vets are made in full, in worker processes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.parser
from onnx import ModelProto, NodeProto, helper, numpy_helper
from onnx.inliner import inline_local_functions

import optvet
from optvet.engine.discovery import Plugins
from optvet.engine.judge.dependence import Runs
from optvet.engine.judge.random_outputs import Side, judge_random
from optvet.graph.randomness import SeedBy, seed_operators
from optvet.graph.walk import attribute_of, graphs
from optvet.plugin import Artifact

OPTIMIZERS = ("onnxoptimizer", "onnxslim", "onnxscript", "onnxruntime")


# --- models ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """A model, its inputs, and which kind it is."""

    model: ModelProto
    feeds: dict[str, np.ndarray]
    kind: str


def drawn(number: int, seed: int) -> Drawn:
    """The model of this number."""
    rng = np.random.default_rng([seed, number])
    kind = list(_BODIES)[number % len(_BODIES)]
    size = int(rng.choice([1, 3, 8, 40]))
    seeds = f"seed={float(rng.integers(1, 1000))}" if rng.random() < 0.5 else ""
    numbers = {
        "n": size,
        "seed": f", {seeds}" if seeds else "",
        "whole": f"<{seeds.replace('.0', '')}>" if seeds else "",
        "mean": f"{rng.normal():.3f}",
        "scale": f"{rng.uniform(0.3, 3):.3f}",
        "low": f"{-rng.uniform(0.5, 2):.3f}",
        "high": f"{rng.uniform(0.5, 2):.3f}",
        "ratio": f"{rng.choice([0.1, 0.3, 0.5, 0.7]):.1f}",
        "shape": str(size),
    }
    body = _BODIES[kind]
    for key, value in numbers.items():
        body = body.replace(f"${key}", str(value))
    wrap = ("plain", "layers", "branch", "function")[int(rng.integers(4))]
    text = _WRAPS[wrap].replace("$n", str(size)).replace("$body", body)
    feeds = {"x": rng.uniform(0.2, 0.8, (2, size)).astype(np.float32)}
    return Drawn(onnx.parser.parse_model(text), feeds, f"{kind} {wrap}")


_BODIES = {
    "normal": "r = RandomNormal <shape=[2, $n], mean=$mean, scale=$scale$seed> ()\n y = Add(a, r)",
    "normal-like": "r = RandomNormalLike <mean=$mean, scale=$scale$seed> (a)\n y = Mul(a, r)",
    "uniform": "r = RandomUniform <shape=[2, $n], low=$low, high=$high$seed> ()\n y = Add(a, r)",
    "uniform-like": "r = RandomUniformLike <low=$low, high=$high$seed> (a)\n y = Sub(r, a)",
    "bernoulli": "p = Sigmoid(a)\n y = Bernoulli <dtype=1$seed> (p)",
    "multinomial": (
        "l = Log(a)\n d = Multinomial <sample_size=6, dtype=7$seed> (l)\n y = Cast <to=1> (d)"
    ),
    "dropout": (
        "ratio = Constant <value=float {$ratio}> ()\n train = Constant <value=bool {1}> ()\n"
        " y, mask = Dropout $whole (a, ratio, train)"
    ),
    "sign": "r = RandomNormalLike <mean=0.2, scale=$scale$seed> (a)\n y = Sign(r)",
}
_HEAD = '<ir_version: 8, opset_import: ["" : 17, "local" : 1]>\n'
_WRAPS = {
    "plain": _HEAD + "g (float[2,$n] x) => (float[2,k] y)\n{ a = Identity(x)\n $body }",
    "layers": _HEAD
    + "g (float[2,$n] x) => (float[2,k] out)\n"
    + "{ b = Relu(x)\n a = Identity(b)\n $body\n c = Neg(y)\n out = Neg(c) }",
    "branch": _HEAD
    + "g (float[2,$n] x) => (float[2,k] out)\n"
    + "{ s = ReduceSum <keepdims=0> (x)\n z = Constant <value=float {0.0}> ()\n c = Greater(s, z)\n"
    + " out = If (c) <then_branch = t () => (float[2,k] y) { a = Identity(x)\n $body },"
    + " else_branch = e () => (float[2,k] w) { w = Neg(x) }> }",
    "function": _HEAD
    + "g (float[2,$n] x) => (float[2,k] out) { u = local.draw(x)\n w = local.draw(x)\n"
    + " out = Add(u, w) }\n"
    + '<domain: "local", opset_import: ["" : 17]>\n'
    + "draw (x) => (y) { a = Identity(x)\n $body }",
}


# --- faults ---------------------------------------------------------------------------------------


def planted(given: Drawn, rng: np.random.Generator) -> tuple[ModelProto, str]:
    """The model with a fault in its random operator, and which."""
    model = ModelProto()
    model.CopyFrom(given.model)
    holders = [*graphs(model.graph), *model.functions]
    holder, node = next((h, n) for h in holders for n in h.node if n.op_type in _FAULTS)
    choices = _FAULTS[node.op_type]
    if given.kind.startswith("sign"):
        # Behind Sign a scale hardly shows.
        choices = {n: f for n, f in choices.items() if "scal" not in n}
    name = list(choices)[int(rng.integers(len(choices)))]
    shape = (2, 6) if node.op_type == "Multinomial" else given.feeds["x"].shape
    made = choices[name](node, shape, rng)
    after = [new for old in holder.node for new in (made if old is node else [old])]
    kept = [NodeProto.FromString(n.SerializeToString()) for n in after]
    del holder.node[:]
    holder.node.extend(kept)
    return model, f"{name}, {node.op_type}"


Fault = Callable[[NodeProto, tuple[int, ...], np.random.Generator], list[NodeProto]]


def _with(**changes: Callable[[float], float]) -> Fault:
    """The node with other attributes."""

    def apply(node: NodeProto, shape: tuple[int, ...], rng: np.random.Generator) -> list[NodeProto]:
        for name, change in changes.items():
            value = change(attribute_of(node, name, 0.0))
            kept = [a for a in node.attribute if a.name != name]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute(name, value)])
        return [node]

    return apply


def _times(factor: float) -> Fault:
    """What the node makes, scaled."""

    def apply(node: NodeProto, shape: tuple[int, ...], rng: np.random.Generator) -> list[NodeProto]:
        name = node.output[0]
        node.output[0] = f"{name}_unscaled"
        by = helper.make_node("Constant", [], [f"{name}_by"], value_float=factor)
        return [node, by, helper.make_node("Mul", [node.output[0], f"{name}_by"], [name])]

    return apply


def _stuck(node: NodeProto, shape: tuple[int, ...], rng: np.random.Generator) -> list[NodeProto]:
    """One draw in place of the node, as if it had been folded."""
    name, kind = node.output[0], node.op_type
    if kind == "Multinomial":
        value = rng.integers(0, shape[1], shape).astype(np.int64)
    elif kind in ("Bernoulli", "Dropout"):
        value = (2 * rng.integers(0, 2, shape)).astype(np.float32)
    else:
        value = rng.normal(size=shape).astype(np.float32)
    made = helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))
    if kind != "Dropout":
        return [made]
    made.output[0] = f"{name}_mask"
    return [made, helper.make_node("Mul", [node.input[0], made.output[0]], [name])]


def _other_ratio(
    node: NodeProto, shape: tuple[int, ...], rng: np.random.Generator
) -> list[NodeProto]:
    name = f"{node.output[0]}_ratio"
    node.input[1] = name
    return [helper.make_node("Constant", [], [name], value_float=0.9), node]


def _in_inference(
    node: NodeProto, shape: tuple[int, ...], rng: np.random.Generator
) -> list[NodeProto]:
    return [helper.make_node("Identity", [node.input[0]], [node.output[0]])]


def _other_odds(
    node: NodeProto, shape: tuple[int, ...], rng: np.random.Generator
) -> list[NodeProto]:
    """Twice the logarithm of the odds."""
    twice, name = f"{node.output[0]}_twice", f"{node.output[0]}_odds"
    node_in = node.input[0]
    node.input[0] = name
    by = helper.make_node("Constant", [], [twice], value_float=8.0)
    return [by, helper.make_node("Mul", [node_in, twice], [name]), node]


def _other_chance(
    node: NodeProto, shape: tuple[int, ...], rng: np.random.Generator
) -> list[NodeProto]:
    """The square of the probability."""
    name = f"{node.output[0]}_chance"
    node_in = node.input[0]
    node.input[0] = name
    return [helper.make_node("Mul", [node_in, node_in], [name]), node]


_MOVED = {
    "wrong mean": _with(mean=lambda m: m + 1.0),
    "wrong scale": _with(scale=lambda s: 1.6 * s),
    "lost scaling": _times(0.5),
    "stuck value": _stuck,
}
_RANGED = {
    "wrong range": _with(low=lambda low: low - 1.0),
    "lost scaling": _times(0.5),
    "stuck value": _stuck,
}
_FAULTS: dict[str, dict[str, Fault]] = {
    "RandomNormal": _MOVED,
    "RandomNormalLike": _MOVED,
    "RandomUniform": _RANGED,
    "RandomUniformLike": _RANGED,
    "Bernoulli": {"wrong probability": _other_chance, "stuck value": _stuck},
    "Multinomial": {"wrong probability": _other_odds, "stuck value": _stuck},
    "Dropout": {
        "wrong ratio": _other_ratio,
        "lost scaling": _times(0.5),
        "training lost": _in_inference,
        "stuck value": _stuck,
    },
}


# --- judging in this process ----------------------------------------------------------------------


@dataclass
class InProcess:
    """Draws both models with ONNX Runtime; with ``shared``, from the same seeds if asked."""

    models: dict[Side, ModelProto]
    feeds: dict[str, np.ndarray]
    shared: bool

    def run_seeds(self, side: Side, numbers: range, by: SeedBy) -> Runs | None:
        """One run for each number."""
        if numbers.start < 1_000_000 and not self.shared:
            return None
        return [self._run(seed_operators(self.models[side], number, by)) for number in numbers]

    def in_turn(self, side: Side, session: int, runs: int) -> Runs:
        """Not needed: these models take seeds."""
        return []

    def _run(self, model: ModelProto | None) -> dict[str, np.ndarray]:
        import onnxruntime as ort

        assert model is not None
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level, options.intra_op_num_threads = 3, 1
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(None, self.feeds), strict=True))


def judged(given: Drawn, candidate: ModelProto, *, shared: bool) -> str:
    """What a vet would say of the model's output, and why."""
    name = given.model.graph.output[0].name
    draws = InProcess({"reference": given.model, "candidate": candidate}, given.feeds, shared)
    judgement = judge_random(draws, [name])[name]
    return f"{judgement.call}: {judgement.detail}"


def optimized(given: Drawn, optimizer: str, plugins: Plugins) -> ModelProto:
    """What the default pipeline of an optimizer makes of the model."""
    chosen = plugins.optimizer(optimizer)
    options = chosen.options
    if "mode" in type(options).model_fields:
        options = options.model_copy(update={"mode": "offline"})
    source = Artifact("onnx", given.model.SerializeToString())
    return onnx.load_from_string(chosen.apply(source, chosen.pipelines()["default"], options).data)


def operators(model: ModelProto) -> int:
    """How many random operators a model has, where each call of a function counts."""
    flat = inline_local_functions(model)
    return sum(n.op_type in _FAULTS for graph in graphs(flat.graph) for n in graph.node)


def is_folded(given: Drawn, result: ModelProto) -> bool:
    """Whether an optimizer left fewer random operators: then a fault is true, and its own."""
    return operators(result) < operators(given.model)


def whole(given: Drawn, optimizer: str) -> str:
    """The verdict of a whole vet, and what it found."""
    result = optvet.vet(given.model, optimizer=optimizer, limit=3, cache=False)
    faults = [
        f"{f.symptom} {f.culprit} {f.message}" for f in result.findings if f.severity == "fault"
    ]
    return f"{result.verdict}: {'; '.join(faults)}"


# --- the table ------------------------------------------------------------------------------------


def main() -> None:
    """Print the counts, and every case that went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--vets", type=int, default=1000, help="models judged in this process")
    parser.add_argument("--planted", type=int, default=250, help="of these, models with a fault")
    parser.add_argument("--whole", type=int, default=40, help="vets made in full")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    started = time.perf_counter()
    plugins = Plugins()
    calls: Counter[str] = Counter()
    found: Counter[str] = Counter()
    missed: list[str] = []
    alarms: list[str] = []
    for number in range(asked.vets):
        print(f"\r{number}", end="", file=sys.stderr, flush=True)
        given = drawn(number, asked.seed)
        optimizer = OPTIMIZERS[number // len(_BODIES) % len(OPTIMIZERS)]
        result = optimized(given, optimizer, plugins)
        said = judged(given, result, shared=bool(number // 32 % 2))
        if said.startswith("fault") and is_folded(given, result):
            calls["folded by the optimizer"] += 1
            continue
        calls[said.partition(":")[0]] += 1
        if not said.startswith(("same", "drift")):
            alarms.append(f"model {number} ({given.kind}) x {optimizer}: {said}")
        if number >= asked.planted:
            continue
        faulty, name = planted(given, np.random.default_rng([asked.seed, number, 1]))
        said = judged(given, faulty, shared=bool(number // 32 % 2))
        found[f"{name}: {'found' if said.startswith('fault') else 'missed'}"] += 1
        if not said.startswith("fault"):
            missed.append(f"model {number} ({given.kind}), {name}: {said}")
    verdicts: Counter[str] = Counter()
    for number in range(asked.whole):
        given = drawn(number, asked.seed + 1)
        optimizer = OPTIMIZERS[number // len(_BODIES) % len(OPTIMIZERS)]
        said = whole(given, optimizer)
        if said.startswith("faulty") and is_folded(given, optimized(given, optimizer, plugins)):
            verdicts["folded by the optimizer"] += 1
            continue
        verdicts[said.partition(":")[0]] += 1
        if not said.startswith(("clean", "drift")):
            alarms.append(f"whole vet of model {number} ({given.kind}) x {optimizer}: {said}")
    print("\n".join([*alarms, *missed]))
    print(f"\n{asked.vets} models judged: {dict(calls)}")
    print(f"{asked.whole} whole vets: {dict(verdicts)}")
    print(f"false alarms: {len(alarms)} of {asked.vets + asked.whole}")
    print(f"planted faults found: {sum(found.values()) - len(missed)} of {sum(found.values())}")
    for name, count in sorted(found.items()):
        print(f"  {name:45} {count}")
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
