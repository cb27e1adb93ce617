"""PyTorch: exporters to ONNX, onnx2torch back, programs as sources, modules as models.

Each family is a module, imported when its plugins are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable

from optvet.plugin import Converter, ModelSource, Runtime, hookimpl


@hookimpl
def optvet_converters() -> Iterable[Converter]:
    """The converters of this library."""
    from optvet_torch.exporters import Dynamo, TorchScript
    from optvet_torch.litert import LitertTorch
    from optvet_torch.onnx2torch import Onnx2Torch

    return [Dynamo(), TorchScript(), LitertTorch(), Onnx2Torch()]


@hookimpl
def optvet_model_sources() -> Iterable[ModelSource]:
    """The model sources of this library."""
    from optvet_torch.models import TorchSource

    return [TorchSource()]


@hookimpl
def optvet_runtimes() -> Iterable[Runtime]:
    """The runtimes of this library."""
    from optvet_torch.onnx2torch import TorchRuntime
    from optvet_torch.programs import TorchProgramRuntime

    return [TorchRuntime(), TorchProgramRuntime()]
