"""litert_torch: PyTorch's modules to TFLite, in an environment with a PyTorch of its own."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from optvet.plugin import Artifact, ConversionStage, PythonEnvironment, version_of
from optvet_torch.exporters import module_of, open_shapes, recording, save_program
from optvet_torch.programs import MODULE, PROGRAM

_ENVIRONMENT = PythonEnvironment(
    "litert",
    (
        "torch==2.13.0",
        "litert-torch==0.10.0",
        "litert-converter==0.5.0",
        "ai-edge-litert==2.3.0",
        "jax==0.10.2",
        "torchao==0.18.0",
        "onnx==1.23.2",
    ),
    ("torch", "litert_torch", "ai_edge_litert"),
)
_TFLITE = "tflite"


class LitertOptions(BaseModel):
    """How ``litert_torch.convert`` is called."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enable_x64: bool = False
    """Keep integers and floats of 64 bits, which become those of 32 bits otherwise."""
    lightweight_conversion: bool = False
    """Leave constants alone while converting, and fold them by LiteRT afterwards."""
    strict_export: bool = False
    """Capture the program by TorchDynamo."""


class LitertTorch:
    """Captures a program, decomposes it, and makes a TFLite model of it."""

    name = "litert_torch"
    consumes = frozenset({MODULE})
    produces = _TFLITE
    preload: Sequence[str] = ("torch", "torch.export", "litert_torch")
    libraries: Mapping[str, str] = {"litert-torch": "litert_torch"}
    python_environment = _ENVIRONMENT
    options: LitertOptions = LitertOptions()

    def version(self) -> str:
        """Version of litert_torch."""
        return version_of("litert-torch", extra="it by: optvet env make litert")

    def stages(self, options: LitertOptions) -> Sequence[ConversionStage]:
        """Load, decompose, convert."""
        return (
            ConversionStage("load", "load", PROGRAM),
            ConversionStage("decompose", "convert", PROGRAM),
            ConversionStage("convert", "convert", _TFLITE),
        )

    def convert(self, source: Artifact, options: LitertOptions, folder: Path) -> Iterator[Artifact]:
        """The captured program, the decomposed one, and the TFLite model."""
        import litert_torch

        call = _call_of(source, options)
        handle = "named" if call["sample_kwargs"] else None
        captured: list[Any] = []
        decomposed: list[Artifact] = []
        failure, data = None, b""

        def note_decomposed(program: Any) -> None:
            # What follows changes this program, in operators of litert_torch's own.
            decomposed.append(save_program(program, folder / "decompose.pt2", handle))

        with recording(captured), _noting_decomposed(note_decomposed), _quiet():
            try:
                data = litert_torch.convert(**call).model_content()
            except Exception as error:
                failure = error
        if captured:
            yield save_program(captured[0], folder / "load.pt2", handle)
        yield from decomposed
        if failure is not None:
            raise failure
        # A file, as one whose outputs are in the order of the source.
        file = folder / "model.tflite"
        file.write_bytes(data)
        yield Artifact(_TFLITE, path=file)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what PyTorch tells the authors of litert_torch."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`isinstance\\(treespec", FutureWarning)
        yield


@contextlib.contextmanager
def _noting_decomposed(note: Callable[[Any], None]) -> Iterator[None]:
    """Show ``note`` the program that is decomposed before litert_torch rewrites and lowers it."""
    from unittest.mock import patch

    from litert_torch._convert import core

    export = core.export_torch_signature

    def noted(*arguments: Any, **settings: Any) -> Any:
        program = export(*arguments, **settings)
        note(program)
        return program

    with patch.object(core, "export_torch_signature", noted):
        yield


def _call_of(source: Artifact, options: LitertOptions) -> dict[str, Any]:
    """What ``litert_torch.convert`` is called with."""
    code = module_of(source)
    values = dict(code.arguments)
    return {
        "module": code.model,
        "sample_args": None if code.named else tuple(values.values()),
        "sample_kwargs": values if code.named else None,
        "dynamic_shapes": open_shapes(code),
        "enable_x64": options.enable_x64,
        "lightweight_conversion": options.lightweight_conversion,
        "strict_export": options.strict_export,
    }
