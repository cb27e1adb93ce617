"""How a script runs two models with random outputs many times, and compares their distributions.

A copy of this file lies beside every such script, with copies of the two modules that hold the
test. The script runs without optvet.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner

from optvet.engine.judge.distribution import most_unlike

SIDES = {"original": 1_000_000, "optimized": 2_000_000}
"""The two models, and the first of each one's seeds."""
Outputs = Mapping[str, np.ndarray]


def find_difference(
    models: Mapping[str, Any],
    run: Callable[[Any], Outputs],
    names: Sequence[str],
    looks: Sequence[tuple[int, float]],
) -> str:
    """What differs in the distributions of random outputs, as a sentence; empty if nothing does.

    Args:
        models: The two models, by the names in ``SIDES``.
        run: Loads a model and runs it once; gives outputs by name.
        names: The random outputs.
        looks: Runs of each model so far, and the p-value that ends the test.
    """
    reference, candidate = (_draws(side, models[side], run, names) for side in SIDES)
    original: list[Outputs] = []
    optimized: list[Outputs] = []
    for count, limit in looks:
        original += islice(reference, count - len(original))
        optimized += islice(candidate, count - len(optimized))
        permutations = max(999, round(2 / limit) - 1)
        seen = most_unlike(original, optimized, names, permutations=permutations, seed=0)
        if seen is not None and seen.p <= limit:
            return f"{seen.output!r}: {seen.detail} ({count} runs of each model, p {seen.p:.1g})"
    return ""


def _draws(
    side: str, model: Any, run: Callable[[Any], Outputs], names: Sequence[str]
) -> Iterator[Outputs]:
    """Runs with a seed of their own each; in new processes if the model takes no seeds."""
    for number in range(SIDES[side], 2 * SIDES[side]):
        copy = seeded(model, number)
        # A runtime may give every session of one process the same seed.
        yield _draw_in_new_process(side, names) if copy is None else run(copy)


def _draw_in_new_process(side: str, names: Sequence[str]) -> Outputs:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "outputs.npz")
        command = [sys.executable, sys.argv[0], "draw", side, str(file)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with np.load(file, allow_pickle=False) as loaded:
            return dict(zip(names, (loaded[key] for key in loaded.files), strict=True))


def save_draw(file: str, outputs: Outputs, names: Sequence[str]) -> None:
    """Write random outputs, in the order of ``names``; see ``_draw_in_new_process``."""
    values = [np.asarray(outputs[name]) for name in names]
    # What is no number to numpy itself, such as bfloat16, is one of ml_dtypes.
    np.savez(file, *(v.astype(np.float32) if v.dtype.kind == "V" else v for v in values))


def seeded(model: Any, number: int) -> onnx.ModelProto | None:
    """A copy of ``model`` whose random operators draw from streams of their own.

    Operators that share a seed share one in the copy too. None if the model is none in ONNX.
    """
    if isinstance(model, bytes):
        model = onnx.load_from_string(model)
    if not isinstance(model, onnx.ModelProto):
        return None
    copy = onnx.inliner.inline_local_functions(model) if model.functions else onnx.ModelProto()
    if not model.functions:
        copy.CopyFrom(model)
    versions = {o.domain: o.version for o in copy.opset_import}
    random = np.random.default_rng(number)
    shared: dict[float, int] = {}
    for node in _nodes(copy.graph):
        own = next((a for a in node.attribute if a.name == "seed"), None)
        if own is None and not _takes_seed(node, versions):
            continue
        seed = int(random.integers(1, 1 << 24))
        if own is not None:
            seed = shared.setdefault(onnx.helper.get_attribute_value(own), seed)
            node.attribute.remove(own)
        whole = node.op_type == "Dropout"
        node.attribute.append(onnx.helper.make_attribute("seed", seed if whole else float(seed)))
    return copy


def _takes_seed(node: onnx.NodeProto, versions: Mapping[str, int]) -> bool:
    if node.domain not in versions or not onnx.defs.has(node.op_type, node.domain):
        return False
    try:
        schema = onnx.defs.get_schema(node.op_type, versions[node.domain], node.domain)
    except onnx.defs.SchemaError:
        return False
    return "seed" in schema.attributes


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes, those of nested graphs too."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)
