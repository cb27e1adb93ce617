"""Where JAX and IREE are together: an environment of their own."""

from __future__ import annotations

from optvet.plugin import PythonEnvironment

ENVIRONMENT = PythonEnvironment(
    "stablehlo",
    ("jax==0.10.2", "iree-base-compiler==3.13.0", "iree-base-runtime==3.13.0"),
    ("jax", "iree.compiler", "iree.runtime"),
)
EXTRA = "it by: optvet env make stablehlo"
