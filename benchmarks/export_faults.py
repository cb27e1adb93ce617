"""Faults of PyTorch's two exporters and of jax2onnx, each shown plainly, without optvet.

    python benchmarks/export_faults.py older|newer|jax2onnx [NAME…]

Needs released wheels alone: onnx, ONNX Runtime, and torch with onnxscript, or jax2onnx. What a
function gives is compared with its exported model in ONNX Runtime and in onnx's reference
evaluator; a fault counts only if it shows with both, or if what ONNX Runtime refuses is refused by
onnx's checker, or declares other sizes than the evaluator computes. Exit status 1 if one does not
show.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from runtime_faults import difference

Source = tuple[Callable[..., Any], Sequence[Any]]
"""A function of tensors or arrays, and what it is called with."""


def newer() -> Mapping[str, Source]:
    """What ``torch.onnx.export(dynamo=True)`` gets wrong."""
    import torch
    from torch.nn import functional

    image, token = torch.arange(16.0).reshape(1, 1, 4, 4), torch.arange(8.0).reshape(1, 2, 4)
    number, large = torch.tensor(-1.0), torch.tensor([200.0, 500.0])
    column = torch.tensor([[-8.0], [3.5], [-7.5]])
    first, one = torch.tensor(0), torch.ones(1)
    return {
        "logarithm-of-sums": (lambda x: torch.logcumsumexp(x, 0), [large - 200]),
        "logarithm-of-a-sum": (torch.logaddexp2, [large, large]),
        "scaled-error-function": (torch.special.erfcx, [large]),
        "mean-without-dimensions": (
            lambda x, i, u: torch.scatter_reduce(x, 0, i, u, "mean"),
            [number, first, 3 * number],
        ),
        "statistics-that-stay": (
            lambda x, m, v, w, b: functional.batch_norm(x, m, v, w, b, training=True, momentum=0.0),
            [column, one, 3 * one, 2 * one, -one],
        ),
        "divisor": (lambda x: functional.avg_pool2d(x, 2, divisor_override=3), [image]),
        "squeeze": (lambda x: torch.squeeze(x, 0), [image[0, 0]]),
        "least-without-dimensions": (lambda x: torch.amin(x, dim=-1), [number]),
        "norm-without-dimensions": (lambda x: functional.normalize(x, p=1.2, dim=0), [number]),
        "class-probabilities": (functional.cross_entropy, [token[0], token[0]]),
        "attention-of-rank-3": (functional.scaled_dot_product_attention, [token, token, token]),
        "logsigmoid": (functional.logsigmoid, [torch.tensor([-800.0])]),
        "loss-without-batch": (functional.cross_entropy, [image[0, 0, 0], torch.tensor(2)]),
    }


def older() -> Mapping[str, Source]:
    """What ``torch.onnx.export(dynamo=False)`` gets wrong."""
    return {**older_values(), **older_models(), **older_without_dimensions()}


def older_values() -> Mapping[str, Source]:
    """Another result than PyTorch's."""
    import torch
    from torch.nn import functional

    t, arange = torch.tensor, torch.arange
    square, pairs = arange(6.0).reshape(3, 2), arange(4.0).reshape(1, 2, 2)
    three_rows: Any = (3, None)
    image = arange(16.0).reshape(1, 1, 4, 4)
    return {
        "adaptive-pool-without-batch": (
            lambda x: functional.adaptive_max_pool2d(x, three_rows),
            [arange(48.0).reshape(4, 4, 3)],
        ),
        "floor-of-quotient": (torch.floor_divide, [t([-1.0]), t([2.0])]),
        "weighted-loss-of-logits": (
            lambda x, u, w: functional.binary_cross_entropy_with_logits(x, u, weight=w),
            [t([-800.0]), t([0.0]), t([1.0])],
        ),
        "shift-of-negative": (torch.bitwise_right_shift, [t([-1]), t([1])]),
        "distance-of-rank-1": (
            lambda x, u: functional.pairwise_distance(x, u, p=-1.0),
            [t([1.0, 2.0]), t([3.0, 5.0])],
        ),
        "product-without-dimensions": (torch.addcmul, [t(1.0), t(2.0), t(3.0)]),
        "any-of-numbers": (lambda x: torch.any(x, dim=0), [t([-1.0, 1.0])]),
        "trunc-of-large": (lambda x, u: torch.div(x, u, rounding_mode="trunc"), [t(1e20), t(3.0)]),
        "logsigmoid": (functional.logsigmoid, [t([-800.0])]),
        "atan2": (torch.atan2, [t([0.0]), t([-1.0])]),
        "distance": (lambda x, u: torch.cdist(x, u, p=1.0), [square, 2 * square]),
        "cumsum-of-int32": (lambda x: torch.cumsum(x, 0), [t([1, 2], dtype=torch.int32)]),
        "clamp-of-integers": (lambda x: torch.clamp(x, 0.5), [t([0, 1, 2])]),
        "negative-indices": (lambda x, i, j: x[i, j], [square, t([0, -1]), t([1, -1])]),
        "divisor": (lambda x: functional.avg_pool2d(x, 2, divisor_override=3), [image]),
        "max-norm": (
            lambda i, w: functional.embedding(i, w.clone(), max_norm=1.0),
            [t([0, 1]), square],
        ),
        "negative-circular-pad": (lambda x: functional.pad(x, (-1, 1, 0, 0), "circular"), [image]),
        "inverse-of-unique": (lambda x: torch.unique(x, return_inverse=True)[1], [square]),
        "var-that-keeps-dimensions": (lambda x: torch.var(x, dim=None, keepdim=True), [square]),
        "norm-that-keeps-dimensions": (
            lambda x: torch.linalg.norm(x, 2, keepdim=True),
            [t([3.0, 4.0])],
        ),
        "linspace-of-one": (lambda x, u: torch.linspace(x, u, 1), [t(1.0), t(3.0)]),
        "distance-that-broadcasts": (torch.cdist, [pairs.reshape(2, 1, 1, 2), pairs]),
        "put-that-adds": (
            lambda x, i, u: torch.index_put(x, (i,), u, accumulate=True),
            [square, t([0, 0]), square[1:]],
        ),
        "logit-of-integers": (lambda x: torch.logit(x, 0.2), [t([0, 1])]),
    }


def older_models() -> Mapping[str, Source]:
    """No model, or one that does not run."""
    import torch
    from torch.nn import functional

    t, arange = torch.tensor, torch.arange
    square = arange(6.0).reshape(3, 2)
    mask = t([[True, False, True], [True, True, False]])
    image = arange(16.0).reshape(1, 1, 4, 4)
    return {
        "all-of-numbers": (torch.all, [t([1.0, 0.0])]),
        "negative-axes": (lambda x: torch.permute(x, (0, -2, -1, 1)), [image]),
        "statistics-of-instances": (functional.instance_norm, [image, t([1.0]), t([2.0])]),
        "put-with-mask": (
            lambda x, m, u: torch.index_put(x, (m,), u),
            [square, t([True, False, True]), t([[7.0, 8.0]])],
        ),
        "class-probabilities": (functional.cross_entropy, [square, torch.ones(3, 2) / 2]),
        "pools-without-batch": (lambda x: functional.max_pool2d(x, 2), [image[0]]),
        "masked-select": (torch.masked_select, [arange(6.0).reshape(2, 1, 3), mask]),
        "masked-scatter": (torch.masked_scatter, [arange(3.0), mask, arange(6.0).reshape(2, 3)]),
        "exp-of-integers": (torch.exp, [t([1, 2])]),
        "flip-of-nothing": (lambda x: torch.flip(x, ()), [square]),
        "tensordot-that-broadcasts": (
            lambda x, u: torch.tensordot(x, u, dims=([0, 1], [2, 0])),
            [square.reshape(2, 3, 1), square.reshape(3, 2, 1)],
        ),
        "celu-of-float16": (functional.celu, [t([-1.0], dtype=torch.float16)]),
        "loss-without-batch": (functional.nll_loss, [arange(3.0), t(2)]),
        "roll-without-dimensions": (lambda x: torch.roll(x, 1), [square]),
        "scatter-multiply": (
            lambda x, i: torch.scatter(x, 0, i, 7.0, reduce="multiply"),
            [square, t([[0, 2]])],
        ),
        "largest-of-scattered": (
            lambda x, i, u: torch.scatter_reduce(x, 0, i, u, "amax"),
            [square, t([[0, 2]]), square[2:]],
        ),
        "pad-that-removes-all": (
            lambda x: functional.pad(x, (-4, 5, 0, 0), "replicate"),
            [image],
        ),
        "tile-of-nothing": (lambda x: torch.tile(x, (2, 1)), [torch.zeros(0)]),
        "unshuffle-of-nothing": (
            lambda x: functional.pixel_unshuffle(x, 1),
            [torch.zeros(1, 1, 2, 0)],
        ),
    }


def older_without_dimensions() -> Mapping[str, Source]:
    """A model that does not run, since a tensor has no dimensions."""
    import torch
    from torch.nn import functional

    number, index = torch.tensor(-1.0), torch.tensor([0])
    return {
        "select-without-dimensions": (lambda x, i: torch.index_select(x, 0, i), [number, index]),
        "prelu-of-a-scalar": (functional.prelu, [torch.ones(1, 1, 4, 4), number]),
        "sum-without-dimensions": (lambda x: torch.sum(x, dim=0), [number]),
        "cumsum-without-dimensions": (lambda x: torch.cumsum(x, 0), [number]),
        "copy-without-dimensions": (
            lambda x, i, u: torch.index_copy(x, 0, i, u),
            [number, index, number],
        ),
        "log-softmax-without-dimensions": (lambda x: functional.log_softmax(x, 0), [number]),
        "nonzero-without-dimensions": (lambda x: torch.nonzero(x, as_tuple=True)[0], [number]),
    }


def of_jax() -> Mapping[str, Source]:
    """What ``jax2onnx.to_onnx`` gets wrong."""
    from jax import numpy

    floats = np.array([1, 2, 3], np.float32)
    return {
        "newer-operator": (numpy.cumprod, [floats]),
        "two-types": (numpy.inner, [floats.astype(np.int32), floats]),
        "sum-of-polynomials": (numpy.polyadd, [floats, floats]),
    }


def tell_missing(modules: Sequence[str], wanted: Sequence[str]) -> None:
    """End the script, with a line for each wanted case, if one of the modules is not there."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            print("\n".join(f"{name}: needs {module}" for name in wanted or ["each case"]))
            sys.exit(1)


def first_line(error: BaseException) -> str:
    """What kind of error the first cause is, and the beginning of its message."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {[*str(error).splitlines(), ''][0][:120]}"


def answer(run: Callable[[], Any]) -> list[np.ndarray] | str:
    """What a runtime computes, or what it says of a model that it refuses."""
    try:
        return [np.asarray(value) for value in run()]
    except Exception as error:  # whatever a runtime says of a wrong model
        return first_line(error)


def is_valid(model: onnx.ModelProto) -> bool:
    """Whether onnx's checker accepts it, with the types and shapes that it infers."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def as_declared(model: onnx.ModelProto, outputs: Sequence[np.ndarray]) -> bool:
    """Whether outputs have the sizes that the model declares for them."""
    shapes = [value.type.tensor_type.shape.dim for value in model.graph.output]
    return all(
        len(shape) == array.ndim
        and all(d.dim_value in (0, size) for d, size in zip(shape, array.shape, strict=True))
        for shape, array in zip(shapes, outputs, strict=True)
    )


def judged(model: onnx.ModelProto, inputs: Sequence[np.ndarray], expected: list[np.ndarray]) -> str:
    """What ONNX Runtime says or computes; empty if that is right, or nothing else agrees."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    feeds = {value.name: array for value, array in zip(model.graph.input, inputs, strict=True)}
    text = model.SerializeToString()
    got = answer(lambda: onnxruntime.InferenceSession(text, options).run(None, feeds))
    other = answer(lambda: ReferenceEvaluator(model).run(None, feeds))
    confirmed = (
        isinstance(other, str) or bool(difference(expected, other)) or not as_declared(model, other)
    )
    if isinstance(got, str):
        return got if confirmed or not is_valid(model) else ""
    return difference(expected, got) if confirmed else ""


def arrays(values: Any) -> list[np.ndarray]:
    """One tensor, or several."""
    several = values if isinstance(values, list | tuple) else [values]
    return [value.detach().numpy() for value in several]


def torch_fault(function: Callable[..., Any], inputs: Sequence[Any], *, dynamo: bool) -> str:
    """What happens to a function; empty if its model computes the same."""
    import torch

    class Part(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            return function(*given)

    torch._C._jit_set_onnx_log_output_stream("stderr")
    names = [f"x{i}" for i in range(len(inputs))]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        file, export = f"{folder}/model.onnx", torch.onnx.export
        try:
            export(
                Part(),
                tuple(inputs),
                file,
                dynamo=dynamo,
                input_names=names,
                opset_version=18 if dynamo else 17,
            )
        except Exception as error:  # any error of the exporter is what is asked for
            return f"no model: {first_line(error)}"
        model = onnx.load(file)
    kept = [inputs[names.index(value.name)].numpy() for value in model.graph.input]
    return judged(model, kept, arrays(function(*inputs)))


def jax_fault(function: Callable[..., Any], inputs: Sequence[np.ndarray]) -> str:
    """What happens to a function of arrays; empty if its model computes the same."""
    import jax
    import jax2onnx

    model = jax2onnx.to_onnx(function, [jax.ShapeDtypeStruct(i.shape, i.dtype) for i in inputs])
    return judged(model, inputs, [np.asarray(function(*inputs))])


Fault = Callable[[Callable[..., Any], Sequence[Any]], str]
PROGRAMS: Mapping[str, tuple[list[str], Callable[[], Mapping[str, Source]], Fault]] = {
    "older": (["torch", "onnxscript"], older, partial(torch_fault, dynamo=False)),
    "newer": (["torch", "onnxscript"], newer, partial(torch_fault, dynamo=True)),
    "jax2onnx": (["jax2onnx"], of_jax, jax_fault),
}
"""The modules of each, its cases, and what happens to one."""


def main() -> None:
    """Print a line for each fault."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    program, *wanted = sys.argv[1:]
    (modules, cases, fault), missing = PROGRAMS[program], 0
    tell_missing(modules, wanted)
    for name, case in cases().items():
        if not wanted or name in wanted:
            said = fault(*case)
            missing += not said
            print(f"{name}: {said or 'does not show'}", flush=True)
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
