"""How far outputs on a GPU are from those on the CPU, by the settings of CUDA's provider.

::

    python benchmarks/gpu_error.py MODEL.onnx ...

One random input per model, no optimization of the session; the largest difference over the largest
output. Needs ``optvet[gpu]`` and an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np

from optvet_onnxruntime.providers import CPU_PROVIDER, CUDA_PROVIDER, load_providers, with_settings

_TYPES = {
    "tensor(float16)": np.float16,
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
}


def main() -> None:
    """Print a line for each model and setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    models = parser.parse_args().models
    load_providers([CUDA_PROVIDER])
    print(f"{'model':40} {'defaults':>9} {'judged':>9}")
    for path in models:
        on_cpu = session(path, [CPU_PROVIDER])
        feeds = random_feeds(on_cpu)
        expected = on_cpu.run(None, feeds)
        judged = with_settings([CUDA_PROVIDER], device_id=0, tf32=False, deterministic=True)
        errors = [
            error(session(path, providers).run(None, feeds), expected)
            for providers in ([CUDA_PROVIDER], judged)
        ]
        print(f"{path.rpartition('/')[2]:40} {errors[0]:9.2e} {errors[1]:9.2e}")


def session(path: str, providers: list[Any]) -> Any:
    """A session that optimizes nothing."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return ort.InferenceSession(path, options, providers=providers)


def random_feeds(of: Any) -> Mapping[str, np.ndarray]:
    """Floats from 0 to 1, and ones; open dimensions are 1."""
    random = np.random.default_rng(0)
    feeds = {}
    for given in of.get_inputs():
        shape = [size if isinstance(size, int) and size > 0 else 1 for size in given.shape]
        dtype = np.dtype(_TYPES[given.type])
        values = random.random(shape) if dtype.kind == "f" else np.ones(shape)
        feeds[given.name] = values.astype(dtype)
    return feeds


def error(found: list[Any], expected: list[Any]) -> float:
    """The largest difference over the largest magnitude, of all outputs."""
    errors = []
    for a, b in zip(found, expected, strict=True):
        if isinstance(a, np.ndarray) and a.size and a.dtype.kind in "fiu":
            wide, true = a.astype(np.float64), b.astype(np.float64)
            errors.append(float(np.abs(wide - true).max() / max(np.abs(true).max(), 1e-30)))
    return max(errors, default=0.0)


if __name__ == "__main__":
    main()
