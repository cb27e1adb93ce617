"""onnx's own version converter: a model in another version of ONNX's operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import onnx
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import Artifact, ConversionStage, Converter, PartScript, hookimpl, version_of


class VersionConverterOptions(BaseModel):
    """How ``onnx.version_converter.convert_version`` is called."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    opset: int = Field(default=16, ge=7)
    """The operator set that the model is to have; 16 is the last one that onnx2torch knows."""


class VersionConverter:
    """Older converters know older operators, and newer ones the newer."""

    name = "onnx_version"
    consumes = frozenset({"onnx"})
    produces = "onnx"
    preload: Sequence[str] = ("onnx.version_converter",)
    libraries: Mapping[str, str] = {"onnx": "onnx"}
    options: VersionConverterOptions = VersionConverterOptions()

    def version(self) -> str:
        """Version of onnx."""
        return version_of("onnx", extra="optvet")

    def stages(self, options: VersionConverterOptions) -> Sequence[ConversionStage]:
        """One stage."""
        return [ConversionStage("convert", "convert", "onnx")]

    def convert(
        self, source: Artifact, options: VersionConverterOptions, folder: Path
    ) -> Iterator[Artifact]:
        """The model with the operator set that is asked for."""
        from onnx import version_converter

        model = onnx.load_from_string(source.data)
        converted = version_converter.convert_version(model, options.opset)
        yield Artifact("onnx", converted.SerializeToString())

    def part_script(self, options: VersionConverterOptions) -> PartScript:
        """The converted model is saved."""
        call = f"onnx.save(version_converter.convert_version(model, {options.opset}), target)"
        imports = "import onnx\nfrom onnx import version_converter"
        return PartScript("onnx's version converter", ("onnx",), imports, "", call)


@hookimpl
def optvet_converters() -> Iterable[Converter]:
    """The version converter."""
    return [VersionConverter()]
