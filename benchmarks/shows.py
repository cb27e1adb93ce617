"""Whether an installed ONNX Runtime shows a known fault, for versions that no manifest speaks of.

A corpus was measured with the releases of its day. What a later one still does wrong is looked up
here without optvet: the model is run with every optimization off, twice, and with all of them on,
in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_LOOK = """
import sys
import numpy as np, onnxruntime as ort

def run(level):
    options = ort.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 4
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
    except Exception:
        return "load_error"
    fed = np.load(sys.argv[2], allow_pickle=False) if sys.argv[2] else {}
    try:
        return session.run(None, {i.name: fed[i.name] for i in session.get_inputs()})
    except Exception:
        return "run_error"

def difference(ours, theirs):
    if isinstance(theirs, str):
        return theirs
    for a, b in zip(map(np.asarray, ours), map(np.asarray, theirs)):
        if a.dtype != b.dtype:
            return "wrong_dtype"
        if a.shape != b.shape:
            return "wrong_shape"
        exact = a.dtype.kind not in "fc"
        scale = np.abs(a[np.isfinite(a)], dtype=a.dtype).max(initial=0) if not exact else 0
        near = np.array_equal(a, b) if exact else np.allclose(
            a, b, rtol=0, atol=max(float(sys.argv[3]), 1e-5 * float(scale)), equal_nan=True)
        if not near:
            return "wrong_values"
    return "same"

levels = ort.GraphOptimizationLevel
first, again = run(levels.ORT_DISABLE_ALL), run(levels.ORT_DISABLE_ALL)
if isinstance(first, str):
    print("not_applicable")
elif difference(first, again) != "same":
    # The original is random: what it became is wrong if that is not.
    fast, twice = run(levels.ORT_ENABLE_ALL), run(levels.ORT_ENABLE_ALL)
    fixed = not isinstance(fast, str) and difference(fast, twice) == "same"
    print(fast if isinstance(fast, str) else "wrong_values" if fixed else "same")
else:
    print(difference(first, run(levels.ORT_ENABLE_ALL)))
"""


def in_onnxruntime(
    model: Path, inputs: Path | None, atol: float, python: str = sys.executable
) -> str:
    """What a manifest's ``versions`` would say of the ONNX Runtime of ``python``.

    "same", "wrong_values", "wrong_shape", "wrong_dtype", "load_error", "run_error", "crash", or
    "not_applicable" if the model does not run without optimizations either. ``atol`` is in units of
    the outputs; floats also differ only beyond 1e-5 of an output's largest value.
    """
    command = [python, "-c", _LOOK, str(model), str(inputs or ""), str(atol)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode < 0:
        return "crash"
    if done.returncode:
        raise RuntimeError(f"{model}: {done.stderr.strip()[-400:]}")
    return done.stdout.split()[-1]
