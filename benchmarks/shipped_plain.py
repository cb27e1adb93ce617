"""How far a model in a default session is from the original without optimizations; no optvet.

    python benchmarks/shipped_plain.py ORIGINAL.onnx [FILE.onnx] [--inputs INPUTS.npz]

Prints the largest difference of any output over three random inputs (or those of the file),
relative to the output's largest value; ``inf`` for another shape or type, or if the default session
fails. Exit status 1 if the original does not run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

_TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(bool)": np.bool_,
}
_OPEN = 4
"""The size of a dimension that the model leaves open."""


def plain_session(path: str) -> Any:
    """Without optimizations, on one thread, with weights as they are."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def drawn(session: Any, seed: int) -> dict[str, np.ndarray]:
    """Random inputs of a session."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for each in session.get_inputs():
        shape = [d if isinstance(d, int) else _OPEN for d in each.shape]
        dtype = np.dtype(_TYPES[each.type])
        drawn = rng.normal(size=shape) if dtype.kind == "f" else rng.integers(1, 10, shape)
        feeds[each.name] = np.asarray(drawn).astype(dtype)
    return feeds


def difference(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The largest relative difference of two sessions' outputs."""
    worst = 0.0
    for x, y in zip(map(np.asarray, one), map(np.asarray, other), strict=True):
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            return float("inf")
        if x.size == 0:
            continue
        a, b = x.astype(np.float64), y.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        largest = np.abs(a[np.isfinite(a)]).max(initial=0.0) or 1.0
        worst = max(worst, float(np.where(same, 0.0, np.abs(a - b)).max() / largest))
    return worst


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the difference; 1 if the original does not run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("original")
    parser.add_argument("file", nargs="?")
    parser.add_argument("--inputs")
    options = parser.parse_args(arguments)
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    try:
        original = plain_session(options.original)
        given = [dict(np.load(options.inputs))] if options.inputs else None
        samples = given or [drawn(original, seed) for seed in range(3)]
        wanted = [original.run(None, feeds) for feeds in samples]
    except Exception as error:  # whatever the runtime raises
        print(error, file=sys.stderr)
        return 1
    try:
        session = ort.InferenceSession(
            options.file or options.original, providers=["CPUExecutionProvider"]
        )
        found = [session.run(None, feeds) for feeds in samples]
    except Exception as error:  # whatever the runtime raises: the session fails
        print(error, file=sys.stderr)
        print("inf")
        return 0
    print(max(map(difference, wanted, found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
