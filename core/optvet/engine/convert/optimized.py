"""An optimizer as a converter of ONNX to ONNX, so that what it makes is judged in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from optvet.engine.options import parse_options
from optvet.engine.pipelines import parse_pipeline
from optvet.spec.converters import ConversionStage
from optvet.spec.errors import UsageError
from optvet.spec.optimizer_protocols import Optimizer
from optvet.spec.types import Artifact


class OptimizerAsConverter:
    """Applies a pipeline of an optimizer; a converter of one stage.

    Raises:
        UsageError: The optimizer makes no ONNX, or there is no such pipeline or option.
    """

    consumes = frozenset({"onnx"})
    produces = "onnx"

    def __init__(self, optimizer: Optimizer, pipeline: str, requested: Mapping[str, Any]) -> None:
        produced = optimizer.traits.produces
        if produced != "onnx":
            raise UsageError(
                f"optimizer {optimizer.name!r} makes {produced}; models are repaired in ONNX: "
                "choose an optimizer that makes it"
            )
        self.optimizer = optimizer
        self.name = f"optimizer {optimizer.name}"
        self.preload: Sequence[str] = optimizer.preload
        self.passes = parse_pipeline(pipeline, optimizer)
        self.options: BaseModel = parse_options(
            f"optimizer {optimizer.name!r}", optimizer.options, requested
        )

    def version(self) -> str:
        """Version of the optimizer."""
        return self.optimizer.version()

    def stages(self, options: BaseModel) -> Sequence[ConversionStage]:
        """One stage."""
        return [ConversionStage("optimize", "optimize", "onnx")]

    def convert(self, source: Artifact, options: BaseModel, folder: Path) -> Iterator[Artifact]:
        """The optimized model."""
        artifact = self.optimizer.apply(source, self.passes, options)
        yield Artifact("onnx", artifact.data)
