"""Cuts a few connected nodes out of models, with the values of one run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random

import numpy as np
from onnx import GraphProto, ModelProto, helper, numpy_helper

from optvet.graph import ONNX_DOMAIN, opset_versions, reads
from optvet.plugin import Fragment, PoolRequest, load_model

_LARGEST_MODEL = 512 << 20
_PER_MODEL = 300
_NODES = (1, 6)
_ELEMENTS = 4096
_WORDS = 200


def read_model(file: Path) -> ModelProto:
    """The model of a file, unless it is larger than what a hunt runs.

    Raises:
        ValueError: It is.
    """
    if file.stat().st_size > _LARGEST_MODEL:
        raise ValueError(f"it is larger than {_LARGEST_MODEL >> 20} MiB")
    return load_model(file)


def windows_of(
    models: Iterable[tuple[str, Callable[[], ModelProto]]], request: PoolRequest
) -> Iterator[Fragment | str]:
    """Windows of models that are given by name, and for each that cannot be used, why not."""
    random = Random(request.seed)
    for name, read in models:
        # Not every file of a folder is a model that runs on inputs of this kind.
        try:
            ran = _run(read(), request)
        except Exception as error:  # of any kind: what the parser or the runtime raises
            yield f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:_WORDS]}"
            continue
        yield from _windows(Path(name).stem, *ran, random)


def _run(model: ModelProto, request: PoolRequest) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """The model with the values of a run."""
    feeds = _feeds(model.graph, request.seed)
    values = dict(request.values(model.SerializeToString(), feeds))
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return model, values | weights | feeds


def _windows(
    stem: str, model: ModelProto, values: dict[str, np.ndarray], random: Random
) -> Iterator[Fragment]:
    seen = set[tuple[str, ...]]()
    for _ in range(4 * _PER_MODEL):
        fragment = _window(model, values, f"windows/{stem}/{len(seen)}", random)
        sequence = tuple(n.op_type for n in fragment.nodes) if fragment else ()
        if fragment is not None and sequence not in seen:
            seen.add(sequence)
            yield fragment
        if len(seen) == _PER_MODEL:
            return


def _feeds(graph: GraphProto, seed: int) -> dict[str, np.ndarray]:
    """Values for the inputs: 1 for dimensions that are not known, up to 1 for numbers."""
    generator, weights = np.random.default_rng(seed), {t.name for t in graph.initializer}
    feeds = {}
    for info in graph.input:
        if info.name in weights:
            continue
        tensor = info.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else 1 for d in tensor.shape.dim]
        kind = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if kind.kind == "f":
            feeds[info.name] = generator.normal(size=shape).astype(kind)
        else:
            feeds[info.name] = generator.integers(0, 2, size=shape).astype(kind)
    return feeds


def _window(
    model: ModelProto, values: dict[str, np.ndarray], name: str, random: Random
) -> Fragment | None:
    """Nodes that end in a random one; None if a value at the border is not known."""
    nodes = model.graph.node
    maker = {o: i for i, node in enumerate(nodes) for o in node.output if o}
    end = random.randrange(len(nodes)) if nodes else 0
    chosen, border = {end}, list(reads(nodes[end])) if nodes else []
    for _ in range(random.randint(*_NODES) - 1):
        before = [maker[n] for n in border if n in maker and maker[n] not in chosen]
        if not before:
            break
        chosen.add(random.choice(before))
        border = [n for i in sorted(chosen) for n in reads(nodes[i])]
    picked = [nodes[i] for i in sorted(chosen)]
    computed = {o for node in picked for o in node.output if o}
    needed = dict.fromkeys(n for node in picked for n in reads(node) if n not in computed)
    inner = {n for node in picked for n in reads(node) if n in computed}
    inputs = {n: _small(values[n]) for n in needed if n in values}
    outputs = {n: values[n] for n in computed - inner if n in values}
    if not picked or len(inputs) != len(needed) or any(v is None for v in inputs.values()):
        return None
    versions = opset_versions(model)
    versions.setdefault(ONNX_DOMAIN, 1)
    known = {n: v for n, v in inputs.items() if v is not None}
    weights = {t.name for t in model.graph.initializer}
    weights |= {o for node in nodes if node.op_type == "Constant" for o in node.output}
    functions = tuple(model.functions)
    constant = frozenset(weights & known.keys())
    return Fragment(name, tuple(picked), known, outputs, versions, functions, constant)


def _small(value: np.ndarray) -> np.ndarray | None:
    """The value, if it is small enough for thousands of runs."""
    return value if value.size <= _ELEMENTS else None
