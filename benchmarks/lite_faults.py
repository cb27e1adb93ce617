"""Faults of LiteRT and of litert_torch, each shown plainly, without optvet.

    python benchmarks/lite_faults.py litert|litert_torch [NAME…]

Needs released wheels alone: onnx and ai-edge-litert, and tensorflow, or torch with litert_torch. A
model's output is compared with TensorFlow's or PyTorch's, once with LiteRT's own kernels and once
with its reference kernels. A fault of LiteRT counts only if the reference kernels are right, one of
litert_torch only if both sets of kernels fail. Exit status 1 if one does not show.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from export_faults import answer, tell_missing
from runtime_faults import difference

Made = tuple[bytes, list[np.ndarray], np.ndarray]
"""A TFLite model, its inputs, and what the framework gives for them."""


def layer_of_keras(name: str, rows: np.ndarray) -> Made:
    """A layer with its defaults, for any number of rows, by TensorFlow's own converter."""
    # oneDNN refuses a pool without steps, which TensorFlow's other kernel computes.
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
    import keras
    import tensorflow

    layers = [keras.Input((None, rows.shape[-1])), getattr(keras.layers, name)()]
    model = keras.Sequential(layers)
    made: bytes = tensorflow.lite.TFLiteConverter.from_keras_model(model).convert()
    return made, [rows], np.asarray(model(rows))


def transposed_convolution() -> Made:
    """Of rank 5, with a stride, by litert_torch."""
    import litert_torch
    import torch

    class Part(torch.nn.Module):
        def forward(self, x: Any, w: Any) -> Any:
            return torch.nn.functional.conv_transpose3d(x, w, stride=2)

    inputs = (torch.ones(1, 1, 2, 2, 2), torch.ones(1, 1, 2, 2, 2))
    made: bytes = litert_torch.convert(Part().eval(), inputs).model_content()
    return made, [i.numpy() for i in inputs], Part()(*inputs).numpy()


CASES: Mapping[str, Mapping[str, Callable[[], Made]]] = {
    "litert": {
        "length-of-zeros": lambda: layer_of_keras("UnitNormalization", np.zeros((1, 1, 4), "f4")),
        "pool-of-one-step": lambda: layer_of_keras("MaxPool1D", np.ones((2, 1, 4), "f4")),
    },
    "litert_torch": {"transposed-convolution": transposed_convolution},
}
NEEDS = {"litert": ["tensorflow"], "litert_torch": ["torch", "litert_torch"]}
"""The modules of each program, beside ai-edge-litert."""


def output(model: bytes, inputs: list[np.ndarray], *, reference: bool) -> list[np.ndarray]:
    """By LiteRT."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kernels = {"experimental_op_resolver_type": OpResolverType.BUILTIN_REF} if reference else {}
    interpreter = Interpreter(model_content=model, **kernels)
    details = interpreter.get_input_details()
    for detail, array in zip(details, inputs, strict=True):
        interpreter.resize_tensor_input(detail["index"], array.shape)
    interpreter.allocate_tensors()
    for detail, array in zip(details, inputs, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return [interpreter.get_tensor(interpreter.get_output_details()[0]["index"])]


def shown(make: Callable[[], Made], *, right_by_reference: bool) -> str:
    """What happens; empty if the output is right, or the reference kernels do otherwise."""
    with contextlib.redirect_stdout(io.StringIO()):
        model, inputs, expected = make()
    own, other = (
        got if isinstance(got, str) else difference([expected], got)
        for got in (
            answer(lambda: output(model, inputs, reference=False)),
            answer(lambda: output(model, inputs, reference=True)),
        )
    )
    return "" if right_by_reference == bool(other) else own


def main() -> None:
    """Print a line for each fault."""
    warnings.simplefilter("ignore")
    program, *wanted = sys.argv[1:]
    tell_missing(["ai_edge_litert", *NEEDS[program]], wanted)
    missing = 0
    for name, make in CASES[program].items():
        if not wanted or name in wanted:
            said = shown(make, right_by_reference=program == "litert")
            missing += not said
            print(f"{name}: {said or 'does not show'}", flush=True)
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
