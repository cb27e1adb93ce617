"""Where JAX and jax2onnx are: an environment of their own."""

from __future__ import annotations

from optvet.plugin import PythonEnvironment

ENVIRONMENT = PythonEnvironment(
    "jax", ("jax==0.10.2", "jax2onnx==0.17.1", "onnx==1.23.2"), ("jax", "jax2onnx")
)
EXTRA = "it by: optvet env make jax"
PRELOAD = ("jax",)
