"""Two converters in a row: what stands in a file beside a source, packed and then unpacked.

Workers import this module by name.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
import onnx.parser
from tests.engine.convert.plain import NoOptions, StandIn

from optvet.plugin import Artifact, ConversionStage


class Pack(StandIn):
    """The ONNX text beside the source, compressed."""

    name = "shelf_pack"
    consumes = frozenset({"estimator"})
    produces = "packed"

    def stages(self, options: NoOptions) -> Sequence[ConversionStage]:
        return [ConversionStage("pack", "load", "packed")]

    def convert(self, source: Artifact, options: NoOptions, folder: Path) -> Iterator[Artifact]:
        assert source.path is not None
        text = source.path.with_suffix(".txt").read_bytes()
        yield Artifact("packed", zlib.compress(text))


class Unpack(StandIn):
    """The model of a compressed ONNX text."""

    name = "shelf_unpack"
    consumes = frozenset({"packed"})
    produces = "onnx"

    def stages(self, options: NoOptions) -> Sequence[ConversionStage]:
        return [ConversionStage("unpack", "convert", "onnx")]

    def convert(self, source: Artifact, options: NoOptions, folder: Path) -> Iterator[Artifact]:
        model = onnx.parser.parse_model(zlib.decompress(source.data).decode())
        yield Artifact("onnx", model.SerializeToString())
