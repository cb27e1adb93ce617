"""Faults of PyTorch's two exporters, each shown plainly, without optvet.

    python benchmarks/export_faults.py [NAME…]

Needs released wheels alone: onnx, ONNX Runtime, torch and onnxscript. What a function gives is
compared with its exported model in ONNX Runtime and in onnx's reference evaluator; a fault counts
only if it shows with both. Exit status 1 if one does not show.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from import_faults import difference
from onnx.reference import ReferenceEvaluator

Source = tuple[Callable[..., Any], Sequence[Any]]
"""A function of tensors, and what it is called with."""


def newer() -> Mapping[str, Source]:
    """What ``torch.onnx.export(dynamo=True)`` gets wrong."""
    import torch
    from torch.nn import functional

    image, token = torch.arange(16.0).reshape(1, 1, 4, 4), torch.arange(8.0).reshape(1, 2, 4)
    return {
        "divisor": (lambda x: functional.avg_pool2d(x, 2, divisor_override=3), [image]),
        "squeeze": (lambda x: torch.squeeze(x, 0), [image[0, 0]]),
        "attention-of-rank-3": (functional.scaled_dot_product_attention, [token, token, token]),
        "logsigmoid": (functional.logsigmoid, [torch.tensor([-800.0])]),
        "loss-without-batch": (functional.cross_entropy, [image[0, 0, 0], torch.tensor(2)]),
    }


def older() -> Mapping[str, Source]:
    """What ``torch.onnx.export(dynamo=False)`` gets wrong."""
    import torch
    from torch.nn import functional

    t, arange = torch.tensor, torch.arange
    square = arange(6.0).reshape(3, 2)
    mask = t([[True, False, True], [True, True, False]])
    image = arange(16.0).reshape(1, 1, 4, 4)
    return {
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
        "class-probabilities": (functional.cross_entropy, [square, torch.ones(3, 2) / 2]),
        "pools-without-batch": (lambda x: functional.max_pool2d(x, 2), [image[0]]),
        "prelu-of-a-scalar": (functional.prelu, [image, t(-1.0)]),
        "masked-select": (torch.masked_select, [arange(6.0).reshape(2, 1, 3), mask]),
        "masked-scatter": (torch.masked_scatter, [arange(3.0), mask, arange(6.0).reshape(2, 3)]),
        "exp-of-integers": (torch.exp, [t([1, 2])]),
        "roll-without-dimensions": (lambda x: torch.roll(x, 1), [square]),
        "scatter-multiply": (
            lambda x, i: torch.scatter(x, 0, i, 7.0, reduce="multiply"),
            [square, t([[0, 2]])],
        ),
        "negative-circular-pad": (lambda x: functional.pad(x, (-1, 1, 0, 0), "circular"), [image]),
        "inverse-of-unique": (lambda x: torch.unique(x, return_inverse=True)[1], [square]),
        "var-that-keeps-dimensions": (lambda x: torch.var(x, dim=None, keepdim=True), [square]),
        "sum-without-dimensions": (lambda x: torch.sum(x, dim=0), [t(-1.0)]),
        "log-softmax-without-dimensions": (lambda x: functional.log_softmax(x, 0), [t(-1.0)]),
        "loss-without-batch": (functional.nll_loss, [arange(3.0), t(2)]),
    }


def first_line(error: Exception) -> str:
    """What kind of error it is, and the beginning of its message."""
    return f"{type(error).__name__}: {[*str(error).splitlines(), ''][0][:120]}"


def outputs(model: onnx.ModelProto, inputs: Sequence[np.ndarray]) -> list[list[np.ndarray] | str]:
    """By ONNX Runtime and by the reference evaluator; an error is told."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    feeds = {value.name: array for value, array in zip(model.graph.input, inputs, strict=False)}
    given: list[list[np.ndarray] | str] = []
    runs = (
        lambda: onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds),
        lambda: ReferenceEvaluator(model).run(None, feeds),
    )
    for run in runs:
        try:
            given.append([np.asarray(value) for value in run()])
        except Exception as error:  # whatever a runtime says of a wrong model
            given.append(first_line(error))
    return given


def arrays(values: Any) -> list[np.ndarray]:
    """One tensor, or several."""
    several = values if isinstance(values, list | tuple) else [values]
    return [value.detach().numpy() for value in several]


def fault(function: Callable[..., Any], inputs: Sequence[Any], *, dynamo: bool) -> str:
    """What happens to a function; empty if its model computes the same."""
    import torch

    class Part(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            return function(*given)

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
    expected = arrays(function(*inputs))
    answers = outputs(model, kept)
    said = [got if isinstance(got, str) else difference(expected, got) for got in answers]
    return said[0] if all(said) else ""


def main() -> None:
    """Print a line for each fault."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    wanted, missing = sys.argv[1:], 0
    for dynamo, cases in ((False, older()), (True, newer())):
        for name, case in cases.items():
            if not wanted or name in wanted:
                said = fault(*case, dynamo=dynamo)
                missing += not said
                print(f"dynamo={dynamo} {name}: {said or 'does not show'}", flush=True)
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
