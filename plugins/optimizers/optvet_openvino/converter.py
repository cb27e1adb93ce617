"""OpenVINO's converters: from ONNX, and from modules and exported programs of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    Artifact,
    ConversionStage,
    Feeds,
    PartScript,
    Session,
    load_factory,
    version_of,
)

IR = "openvino-ir"
_CONVERT = """\
imported = {imported}
file = str(HERE / "part.xml")
openvino.save_model(imported, file, compress_to_fp16={compress})
properties = {{"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}}
return openvino.Core().compile_model(file, "CPU", properties)"""
_RUN = """\
values = model(list(feeds.values()))
return {i: values[port] for i, port in enumerate(model.outputs)}"""
_EXTRA = "optvet[openvino]"


class OpenVinoConverterOptions(BaseModel):
    """How ``openvino.convert_model`` and ``openvino.save_model`` are called."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimize: bool = True
    """From ONNX: whether the model transformations of ``convert_model`` follow the import."""
    compress_to_fp16: bool = False
    """Whether a stage follows that stores weights in half precision, as ``save_model`` does."""


class OpenVinoConverter:
    """A model in OpenVINO's own format: an XML file with its weights beside it."""

    name = "openvino"
    consumes = frozenset({"onnx", "torch", "torch-program"})
    produces = IR
    # In the server that forks, which does not import this module, its telemetry would start.
    preload: Sequence[str] = ()
    libraries: Mapping[str, str] = {"openvino": "openvino"}
    options: OpenVinoConverterOptions = OpenVinoConverterOptions()

    def version(self) -> str:
        """Version of the installed package."""
        return version_of("openvino", extra=_EXTRA)

    def stages(self, options: OpenVinoConverterOptions) -> Sequence[ConversionStage]:
        """Import, transform, compress."""
        found = [ConversionStage("import", "convert", IR)]
        if options.optimize:
            found.append(ConversionStage("transform", "optimize", IR))
        if options.compress_to_fp16:
            found.append(ConversionStage("compress", "lossy", IR, tolerance=1e-2))
        return found

    def convert(
        self, source: Artifact, options: OpenVinoConverterOptions, folder: Path
    ) -> Iterator[Artifact]:
        """The imported model, and the transformed one, which of PyTorch's models is the same."""
        openvino = _openvino()
        if source.format == "onnx":
            file = folder / "source.onnx"
            file.write_bytes(source.data)
            yield _save(_core().read_model(source.data), folder / "import.xml")
            model = openvino.convert_model(str(file))
        else:
            model = _from_torch(source)
            yield _save(model, folder / "import.xml")
        if options.optimize:
            yield _save(model, folder / "transform.xml")
        if options.compress_to_fp16:
            yield _save(model, folder / "compress.xml", compress=True)

    def part_script(self, options: OpenVinoConverterOptions) -> PartScript:
        """The file is read, or converted, and compiled for the CPU."""
        file = 'str(HERE / "part.onnx")'
        call = "openvino.convert_model" if options.optimize else "openvino.Core().read_model"
        convert = _CONVERT.format(imported=f"{call}({file})", compress=options.compress_to_fp16)
        return PartScript(
            "OpenVINO", ("onnx", "openvino"), "import openvino", "", convert, run=_RUN
        )


def _from_torch(source: Artifact) -> Any:
    import torch

    openvino = _openvino()
    if source.format == "torch-program":
        return openvino.convert_model(torch.export.load(str(source.path)))
    loaded = load_factory(source, torch.manual_seed, torch.tensor)
    loaded.model.eval()
    inputs = {name: torch.as_tensor(value) for name, value in loaded.arguments.items()}
    example = inputs if loaded.named else tuple(inputs.values())
    with torch.no_grad():
        return openvino.convert_model(loaded.model, example_input=example)


def _save(model: Any, path: Path, *, compress: bool = False) -> Artifact:
    _openvino().save_model(model, str(path), compress_to_fp16=compress)
    return Artifact(IR, path=path)


class OpenVinoModelOptions(BaseModel):
    """Properties of the compiled model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    threads: int = Field(default=1, ge=0)
    """Threads of one inference; 0 lets OpenVINO choose."""


class OpenVinoIrRuntime:
    """Files of OpenVINO on CPU, computed in float32."""

    name = "openvino_ir"
    accepts = frozenset({IR})
    preload: Sequence[str] = ()
    libraries: Mapping[str, str] = {"openvino": "openvino"}
    options: OpenVinoModelOptions = OpenVinoModelOptions()
    deployed: OpenVinoModelOptions = OpenVinoModelOptions(threads=0)

    def version(self) -> str:
        """Version of the installed package."""
        return version_of("openvino", extra=_EXTRA)

    def load(self, artifact: Artifact, options: OpenVinoModelOptions) -> Session:
        """The compiled model."""
        properties = {
            "INFERENCE_PRECISION_HINT": "f32",
            "EXECUTION_MODE_HINT": "ACCURACY",
            "INFERENCE_NUM_THREADS": options.threads,
        }
        if not options.threads:
            del properties["INFERENCE_NUM_THREADS"]
        return IrSession(_core().compile_model(str(artifact.path), "CPU", properties))


class IrSession:
    """A compiled model; inputs by their names, else by their places."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Outputs in order, with numbers for names."""
        ports = self._compiled.inputs
        names = [next((n for n in p.get_names() if n in feeds), None) for p in ports]
        rest = [name for name in feeds if name not in names]
        if len(rest) < names.count(None):
            raise ValueError(f"the model has {len(ports)} inputs, the source {len(feeds)}")
        operands = [np.array(feeds[n if n is not None else rest.pop(0)]) for n in names]
        values = self._compiled(operands)
        return {f"output_{i}": np.array(values[p]) for i, p in enumerate(self._compiled.outputs)}


def _openvino() -> Any:
    import openvino

    return openvino


def _core() -> Any:
    return _openvino().Core()
