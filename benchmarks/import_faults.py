"""Faults of onnx2torch and of TVM's import, each shown plainly, without optvet.

    python benchmarks/import_faults.py onnx2torch|tvm [NAME…]

Needs released wheels alone: onnx, ONNX Runtime, and torch with onnx2torch, or TVM. A model's
outputs are compared with those of ONNX Runtime and of onnx's reference evaluator; a fault counts
only if both say the same of it. Exit status 1 if one does not show.
"""

from __future__ import annotations

import importlib.machinery
import logging
import sys
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx.reference import ReferenceEvaluator

CLOSE = 1e-3
Case = tuple[str, Sequence[np.ndarray]]
"""A graph in ONNX's text, and its inputs."""

X = np.array([[1, -2, 3], [-4, 5, 0.5]], np.float32)
INTEGERS = np.array([[1, 2, 3], [4, 5, 7]], np.int32)
IMAGE = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4) ** 2
INFINITE = np.array([np.inf, -np.inf], np.float32)
BOXES = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11]]], np.float32)
SCORES = np.array([[[0.9, 0.75, 0.6]]], np.float32)

ONNX2TORCH: Mapping[str, Case] = {
    "cumsum": ("(float[2,3] x) => (float[2,3] y) <int64 a = {1}> { y = CumSum(x, a) }", [X]),
    "isinf": ("(float[2] x) => (bool[2] y) { y = IsInf<detect_negative=0>(x) }", [INFINITE]),
    "clip-of-integers": (
        "(int32[2,3] x) => (int32[2,3] y) <int32 l = {2}, int32 h = {5}> { y = Clip(x, l, h) }",
        [INTEGERS],
    ),
    "sum-of-integers": ("(int32[2,3] x) => (int32[1,1] y) { y = ReduceSum(x) }", [INTEGERS]),
    "second-output": ("(float[2,3] x) => (float[2,3] y, bool[2,3] m) { y, m = Dropout(x) }", [X]),
    "mean-of-integers": ("(int32[2,3] x) => (int32[1,1] y) { y = ReduceMean(x) }", [INTEGERS]),
    "flatten": ("(float[2,3] x) => (float[1,6] y) { y = Flatten<axis=0>(x) }", [X]),
    "clip-without-minimum": (
        "(float[2,3] x) => (float[2,3] y) <float h = {1}> { y = Clip(x, , h) }",
        [X],
    ),
    "pad-of-rank-2": (
        "(float[2,3] x) => (float[2,4] y) <int64[4] p = {0, 1, 0, 0}>"
        ' { y = Pad<mode="edge">(x, p) }',
        [X],
    ),
}

TVM: Mapping[str, Case] = {
    "expand-by-input": (
        "(float[2,1] x, int64[2] s) => (float[A,B] y) { y = Expand(x, s) }",
        [X[:, :1], np.array([1, 4])],
    ),
    "limit-of-boxes": (
        "(float[1,3,4] b, float[1,1,3] s, int64[1] m) => (int64[N,3] y)"
        " <float[1] i = {0.5}> { y = NonMaxSuppression(b, s, m, i) }",
        [BOXES, SCORES, np.array([3])],
    ),
    "output-shape": (
        "(float[1,1,4,4] x) => (float[1,1,9,9] y) <float[1,1,2,2] w = {1, 2, 3, 4}>"
        " { y = ConvTranspose<strides=[2,2], output_shape=[9,9]>(x, w) }",
        [IMAGE],
    ),
    "mean-of-normalization": (
        "(float[2,3] x) => (float[2,3] y, float[2,1] m) <float[3] s = {1, 2, 3}>"
        " { y, m = LayerNormalization(x, s) }",
        [X],
    ),
    "scale-of-resize": (
        "(float[1,1,4,4] x) => (float[1,1,5,5] y) <float[4] s = {1, 1, 1.3, 1.3}>"
        ' { y = Resize<mode="linear">(x, , s) }',
        [IMAGE],
    ),
    "antialias": (
        "(float[1,1,4,4] x) => (float[1,1,2,2] y) <float[4] s = {1, 1, 0.5, 0.5}>"
        ' { y = Resize<mode="linear", antialias=1>(x, , s) }',
        [IMAGE],
    ),
    "isinf": ("(float[2] x) => (bool[2] y) { y = IsInf<detect_negative=0>(x) }", [INFINITE]),
    "mask": ("(float[2,3] x) => (float[2,3] y, bool[2,3] m) { y, m = Dropout(x) }", [X]),
    "mean-of-integers": (
        "(int32[2,3] x) => (int32[1,1] y) { y = ReduceMean<axes=[0,1]>(x) }",
        [INTEGERS],
    ),
    "one-hot": (
        "(int64[2] x) => (float[2,4] y) <int64 d = {4}, float[2] v = {2, 5}>"
        " { y = OneHot(x, d, v) }",
        [np.array([0, 2])],
    ),
    "power-of-integers": ("(int32[2,3] x) => (int32[2,3] y) { y = Pow(x, x) }", [INTEGERS]),
    "rms-normalization": (
        "(float[2,3] x, float[2,3] s) => (float[2,3] y) { y = RMSNormalization<axis=0>(x, s) }",
        [X, X],
    ),
    "eye-of-another-type": (
        "(int32[2,3] x) => (float[2,3] y) { y = EyeLike<dtype=1>(x) }",
        [INTEGERS],
    ),
    "indices-of-pool": (
        "(float[1,1,4,4] x) => (float[1,1,2,2] y, int64[1,1,2,2] i)"
        " { y, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }",
        [IMAGE],
    ),
}
NEWER = {"antialias": 18, "rms-normalization": 23, "mean-of-normalization": 17}
"""Operator sets, where 13 does not do."""


def onnx2torch_outputs(model: onnx.ModelProto, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """By the module that onnx2torch makes."""
    leave_torchvision_out()
    import onnx2torch
    import torch

    given = onnx2torch.convert(model).eval()(*map(torch.from_numpy, inputs))
    several = given if isinstance(given, list | tuple) else [given]
    return [value.detach().numpy() for value in several]


def leave_torchvision_out() -> None:
    """onnx2torch imports it for two operators; one made for another torch does not import."""
    for name in ("torchvision", "torchvision.ops"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__dict__.update(__path__=[], roi_align=None, nms=None)
        sys.modules[name] = module


def tvm_outputs(model: onnx.ModelProto, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """By TVM's virtual machine, on LLVM."""
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    module = from_onnx(model, keep_params_in_input=False)
    module = relax.transform.DecomposeOpsForInference()(module)
    module = relax.transform.LegalizeOps()(module)
    machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    given = machine["main"](*[tvm.runtime.tensor(np.ascontiguousarray(i)) for i in inputs])
    return [value.numpy() for value in ([given] if hasattr(given, "numpy") else given)]


PROGRAMS: Mapping[str, tuple[Mapping[str, Case], Callable[..., list[np.ndarray]]]] = {
    "onnx2torch": (ONNX2TORCH, onnx2torch_outputs),
    "tvm": (TVM, tvm_outputs),
}


def difference(expected: Sequence[Any], got: Sequence[np.ndarray]) -> str:
    """Nothing where both are the same."""
    if len(expected) != len(got):
        return f"{len(expected)} outputs became {len(got)}"
    for want, have in zip(map(np.asarray, expected), got, strict=True):
        if want.shape != have.shape:
            return f"shape {list(want.shape)} became {list(have.shape)}"
        if want.dtype != have.dtype:
            return f"{want.dtype} became {have.dtype}"
        wide, other = want.astype(np.float64), have.astype(np.float64)
        if not np.allclose(wide, other, CLOSE, 0.1 * CLOSE, equal_nan=True):
            return f"{want.ravel()[:4].tolist()} became {have.ravel()[:4].tolist()}"
    return ""


def fault(
    case: Case, opset: int, run: Callable[[onnx.ModelProto, Sequence[np.ndarray]], list[np.ndarray]]
) -> str:
    """What happens to a model; empty if the program computes the same, or it cannot be judged."""
    import onnxruntime

    text, inputs = case
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g {text}')
    onnx.checker.check_model(model, full_check=True)
    feeds = {value.name: array for value, array in zip(model.graph.input, inputs, strict=True)}
    onnxruntime.set_default_logger_severity(4)
    judges = (
        onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds),
        ReferenceEvaluator(model).run(None, feeds),
    )
    if difference(judges[0], [np.asarray(value) for value in judges[1]]):
        return ""
    try:
        got = run(model, inputs)
    except Exception as error:  # any error of the program is what is asked for
        return f"{type(error).__name__}: {[*str(error).splitlines(), ''][0][:120]}"
    return difference(judges[0], got)


def main() -> None:
    """Print a line for each fault."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    program, *wanted = sys.argv[1:]
    (cases, run), missing = PROGRAMS[program], 0
    for name, case in cases.items():
        if not wanted or name in wanted:
            said = fault(case, NEWER.get(name, 13), run)
            missing += not said
            print(f"{program} {name}: {said or 'does not show'}", flush=True)
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
