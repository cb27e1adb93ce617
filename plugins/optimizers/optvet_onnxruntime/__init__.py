"""ONNX Runtime: its graph optimizer, its runtime, its fusions and quantizers.

Each family is a module, imported when its plugins are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable

from optvet.plugin import Converter, Optimizer, Runtime, hookimpl


@hookimpl
def optvet_converters() -> Iterable[Converter]:
    """The converters of this library."""
    from optvet_onnxruntime.quantizer import DynamicQuantizer, StaticQuantizer

    return [DynamicQuantizer(), StaticQuantizer()]


@hookimpl
def optvet_optimizers() -> Iterable[Optimizer]:
    """The optimizers of this library."""
    from optvet_onnxruntime.half import OrtBf16, OrtFp16
    from optvet_onnxruntime.node_quantizers import (
        OrtDynamicQuantizer,
        OrtFourBits,
        OrtStaticQuantizer,
    )
    from optvet_onnxruntime.optimizer import OrtOptimizer
    from optvet_onnxruntime.plugin_providers import PACKAGES
    from optvet_onnxruntime.provider_optimizer import OrtProvider
    from optvet_onnxruntime.transformers import OrtTransformers

    half = (OrtFp16(), OrtBf16())
    quantizers = (OrtStaticQuantizer(), OrtDynamicQuantizer(), OrtFourBits())
    devices = [OrtProvider(name) for name in PACKAGES]
    return [OrtOptimizer(), OrtTransformers(), *half, *quantizers, *devices]


@hookimpl
def optvet_runtimes() -> Iterable[Runtime]:
    """The runtimes of this library."""
    from optvet_onnxruntime.runtime import OrtRuntime

    return [OrtRuntime()]
