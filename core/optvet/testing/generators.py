"""Conformance suites of pools and mutators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import onnx

from optvet.engine.discovery import Plugins
from optvet.engine.hunt.make_candidates import complete
from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inner_values import record_values
from optvet.engine.work.trials.server_modules import preload_for
from optvet.graph.compose import candidate_of
from optvet.graph.walk import ONNX_DOMAIN, reads
from optvet.spec.generators import (
    Candidate,
    Fragment,
    Mutator,
    Pattern,
    Pool,
    PoolRequest,
    Vocabulary,
)
from optvet.spec.runtime_protocols import Runtime
from optvet.spec.types import Pass
from optvet.testing.conformance import LIMITS, check_form, require

_FEW = 25
_SEEDS = 40
_PASSES = (Pass("fuse_add_into_matmul"), Pass("eliminate_identity"))


def check_pool(pool: Pool, argument: str | None = None) -> None:
    """Check that ``pool`` keeps the contract; raises AssertionError where it does not.

    Args:
        pool: The pool.
        argument: An argument that it takes; needed if it needs one.
    """
    _check_form(pool, Pool, "a pool")
    runtime = Plugins().reference_runtime()
    preload = (*preload_for(None, runtime), type(pool).__module__, __name__)
    with Sandbox(jobs=1, limits=LIMITS, preload=preload) as sandbox:
        drawn = []
        for _ in range(2):
            outcome = sandbox.call(_problems_and_digests, pool, argument, runtime, fresh=True)
            failure = outcome.failure
            words = "" if failure is None else f"{failure.error_type}: {failure.message}"
            require(pool, failure is None, f"fragments() failed: {words}")
            problems, digests = outcome.value or ([], [])
            require(pool, not problems, "; ".join(problems[:3]))
            drawn.append(digests)
    require(pool, bool(drawn[0]), "fragments() gave nothing")
    require(pool, drawn[0] == drawn[1], "fragments() must give the same for the same request")
    require(pool, len(drawn[0]) <= _FEW, f"fragments() gave more than the limit, {_FEW}")


def _check_form(plugin: Any, protocol: type, what: str) -> None:
    require(plugin, hasattr(plugin, "name"), "does not provide name")
    check_form(plugin, protocol, what)


def _problems_and_digests(
    pool: Pool, argument: str | None, runtime: Runtime
) -> tuple[list[str], list[str]]:
    """What is wrong with a pool's items, and each of them as text; called in a worker."""

    def values(model: bytes, feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return record_values(model, feeds, RuntimeConfig(runtime, runtime.options))

    items = list(pool.fragments(PoolRequest(argument, _PASSES, 0, _FEW, values)))
    problems = [words for item in items for words in _problems(item)]
    fragments = [i for i in items if isinstance(i, Fragment)]
    if fragments and not problems:
        models = (complete(candidate_of(f, Random(0))) for f in fragments)
        if all(data is None for data in models):
            problems.append("no fragment makes a model whose outputs have types")
    return problems, [repr(item) for item in items]


def _problems(item: Any) -> list[str]:
    if isinstance(item, Pattern):
        return [] if item.operators else [f"the pattern about {item.about!r} has no operators"]
    if not isinstance(item, Fragment):
        return [f"fragments() gave {type(item).__name__}, expected Fragment or Pattern"]
    known = set(item.inputs)
    for node in item.nodes:
        missing = [name for name in reads(node) if name not in known]
        if missing:
            return [f"{item.name}: {node.op_type} reads {missing[0]!r}, which nothing makes"]
        known.update(node.output)
    unknown = [name for name in item.outputs if name not in known]
    if unknown:
        return [f"{item.name}: no node makes the output {unknown[0]!r}"]
    if not item.nodes or ONNX_DOMAIN not in item.opsets:
        return [f"{item.name}: it has no nodes, or no version of {ONNX_DOMAIN!r} in opsets"]
    return []


def check_mutator(mutator: Mutator) -> None:
    """Check that ``mutator`` keeps the contract; raises AssertionError where it does not."""
    _check_form(mutator, Mutator, "a mutator")
    require(mutator, mutator.weight > 0, f"weight must be above 0, not {mutator.weight!r}")
    fragments = tuple(_fragments())
    vocabulary = Vocabulary(fragments, invented=("made_by_the_optimizer",))
    changed = 0
    for seed in range(_SEEDS):
        texts = []
        for _ in range(2):
            candidate = candidate_of(fragments[seed % len(fragments)], Random(seed))
            before = _text(candidate)
            result = mutator.mutate(candidate, vocabulary, Random(seed))
            require(
                mutator,
                result is None or isinstance(result, Candidate),
                f"mutate() gave {type(result).__name__}, expected Candidate or None",
            )
            texts.append("" if result is None else _text(result))
        require(
            mutator,
            texts[0] == texts[1],
            "mutate() gave another model for equal arguments; draw from the generator it is given",
        )
        changed += texts[0] not in ("", before)
    require(mutator, changed > 0, f"changed none of {_SEEDS} models")


def _text(candidate: Candidate) -> str:
    feeds = {n: (v.dtype, v.shape, v.tolist()) for n, v in sorted(candidate.feeds.items())}
    return f"{candidate.model}{feeds}"


def _fragments() -> Sequence[Fragment]:
    """A few fragments in which there is something for mutators of every kind."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
    node = onnx.helper.make_node
    opsets = {ONNX_DOMAIN: 17}
    value = onnx.numpy_helper.from_array(np.array([1, 2], np.float32))
    chain = (
        node("Constant", [], ["c"], value=value),
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["m", "c"], ["s"]),
        node("Cast", ["s"], ["y"], to=onnx.TensorProto.FLOAT),
    )
    weight = np.ones((3, 2), np.float32)
    clip = (node("Clip", ["x", "low", "high"], ["c"]), node("Clip", ["c", "low"], ["y"]))
    bounds = {"low": np.array(-1, np.float32), "high": np.array(1, np.float32)}
    gemm = (node("Gemm", ["x", "w", "b"], ["y"], alpha=0.5, transB=0),)
    pooled = (node("MaxPool", ["i"], ["y"], kernel_shape=[2]), node("Neg", ["y"], ["z"]))
    image = np.ones((1, 1, 4), np.float32)
    halves = {"y": image[..., :3], "z": -image[..., :3]}
    turned = (
        node("Transpose", ["x"], ["t"], perm=[1, 0]),
        node("Softmax", ["t"], ["p"], axis=0),
        node("Einsum", ["p"], ["e"], equation="ij->ij"),
        node("Mul", ["e", "k"], ["y"]),
    )
    rounded = (
        node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        node("Concat", ["d", "x"], ["y"], axis=0),
    )
    grid: dict[str, np.ndarray] = {
        "scale": np.array(0.5, np.float32),
        "zero": np.array(3, np.uint8),
    }
    words = np.array(["a", "b", ""], object)
    flags = np.array([True, False, True])
    nodes = (node("Identity", ["x"], ["t"]), node("Where", ["c", "t", "more"], ["y"]))
    outputs = {"y": np.zeros((2, 2), np.float32)}
    return (
        Fragment("chain", chain, {"x": x, "w": weight}, outputs, opsets),
        Fragment("clip", clip, {"x": x, **bounds}, {"y": x}, opsets),
        Fragment("gemm", gemm, {"x": x, "w": weight, "b": x[0, :2]}, outputs, opsets),
        Fragment("pooled", pooled, {"i": image}, halves, opsets),
        Fragment("rounded", rounded, {"x": x, **grid}, {"y": np.concatenate([x, x])}, opsets),
        Fragment("told", nodes, {"x": words, "more": words[:1], "c": flags}, {"y": words}, opsets),
        Fragment("turned", turned, {"x": x, "k": x.T.copy()}, {"y": x.T.copy()}, opsets),
    )
