"""Models that the user converted: a chain of one converter that returns the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from optvet.engine.options import NoOptions
from optvet.spec.converters import ConversionStage
from optvet.spec.types import Artifact


class GivenConverter:
    """Returns an existing ONNX model instead of converting."""

    name = "given"
    produces = "onnx"
    preload: Sequence[str] = ()
    options = NoOptions()

    def __init__(self, data: bytes, consumes: frozenset[str]) -> None:
        self.data, self.consumes = data, consumes

    def version(self) -> str:
        """Empty, since no library is used."""
        return "-"

    def stages(self, options: NoOptions) -> Sequence[ConversionStage]:
        """One stage."""
        return [ConversionStage("convert", "convert", "onnx")]

    def convert(self, source: Artifact, options: NoOptions, folder: Path) -> Iterator[Artifact]:
        """The model."""
        yield Artifact("onnx", self.data)
