"""torch.onnx: both exporters, the one based on torch.export and the one based on TorchScript."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import Artifact, ConversionStage, load_factory, version_of
from optvet_torch.programs import as_called

_EXTRA = "optvet[torch,onnxscript]"


class ExportOptions(BaseModel):
    """What both exporters take, by the exporter's own names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    opset_version: int | None = Field(default=None, ge=7)
    """Operator set; by default the exporter's own choice."""
    opset: int | None = Field(default=None, ge=7)
    """The same."""
    output_names: tuple[str, ...] = ()
    """Names of the outputs in the ONNX model, in order; by default the exporter's own."""

    def settings(self) -> dict[str, Any]:
        """Those that are set, as the exporter takes them."""
        given: dict[str, Any] = {}
        if (version := self.opset_version or self.opset) is not None:
            given["opset_version"] = version
        if self.output_names:
            given["output_names"] = list(self.output_names)
        return given


class DynamoOptions(ExportOptions):
    """How ``torch.onnx.export(dynamo=True)`` is called."""

    optimize: bool = True
    """Whether the stage that optimizes follows."""
    strict: bool | None = None
    """`strict` of `torch.export.export`, which captures the program; by default the exporter
    chooses."""


class ScriptOptions(ExportOptions):
    """How ``torch.onnx.export(dynamo=False)`` is called."""

    fold: bool = True
    """Whether the stage that folds constants, and batch norms into convolutions, follows."""


class Dynamo:
    """Captures a program, decomposes it, rewrites its operators as ONNX's, and optimizes."""

    name = "torch_dynamo"
    preference = 100
    consumes = frozenset({"torch", "torch-program"})
    produces = "onnx"
    # The exporter imports the rest when it is called: 2 s in each worker.
    preload: Sequence[str] = (
        "torch",
        "torch.export",
        "torch.export._trace",
        "torch._inductor.decomposition",
        "torch.onnx._internal.exporter._core",
        "onnxscript",
        "onnxscript.function_libs.torch_lib.ops",
        "onnxscript.optimizer",
    )
    libraries: Mapping[str, str] = {"torch": "torch", "onnxscript": "onnxscript"}
    options: DynamoOptions = DynamoOptions()

    def version(self) -> str:
        """Versions of PyTorch and of onnxscript, which does the translation."""
        torch, script = version_of("torch", extra=_EXTRA), version_of("onnxscript", extra=_EXTRA)
        return f"{torch} (onnxscript {script})"

    def stages(self, options: DynamoOptions) -> Sequence[ConversionStage]:
        """Load, decompose, convert, optimize."""
        found = [
            ConversionStage("load", "load", "torch-program"),
            ConversionStage("decompose", "convert", "torch-program"),
            ConversionStage("convert", "convert", "onnx"),
        ]
        return [*found, ConversionStage("optimize", "optimize", "onnx")][: 3 + options.optimize]

    def convert(self, source: Artifact, options: DynamoOptions, folder: Path) -> Iterator[Artifact]:
        """The captured program, the decomposed one, the translated model and the optimized one."""
        torch = _torch()
        settings = options.settings()
        settings |= {"dynamo": True, "optimize": False, "verbose": False}
        captured: list[Any] = []
        handle, arguments = _call(source, captured, settings)
        try:
            with recording(captured, options.strict):
                if options.strict is not None:
                    arguments = _capture(arguments, settings)
                translated = torch.onnx.export(*arguments, **settings)
        except Exception:
            # The exporter captures, decomposes and translates in one call: which of it refused?
            if captured:
                yield save_program(captured[-1], folder / "load.pt2", handle)
                if (decomposed := _decompose(captured[-1])) is not None:
                    yield save_program(decomposed, folder / "decompose.pt2", handle)
            raise
        yield save_program(captured[-1], folder / "load.pt2", handle)
        yield save_program(translated.exported_program, folder / "decompose.pt2", handle)
        yield Artifact("onnx", translated.model_proto.SerializeToString())
        if options.optimize:
            translated.optimize()
            yield Artifact("onnx", translated.model_proto.SerializeToString())


class TorchScript:
    """Traces a module, rewrites its operators as ONNX's, and folds constants."""

    name = "torch_script"
    consumes = frozenset({"torch"})
    produces = "onnx"
    preload: Sequence[str] = ("torch", "torch.onnx")
    libraries: Mapping[str, str] = {"torch": "torch"}
    options: ScriptOptions = ScriptOptions()

    def version(self) -> str:
        """Version of PyTorch."""
        return version_of("torch", extra="optvet[torch]")

    def stages(self, options: ScriptOptions) -> Sequence[ConversionStage]:
        """Trace, convert, fold."""
        found = [
            ConversionStage("trace", "load", "torchscript"),
            ConversionStage("convert", "convert", "onnx"),
        ]
        return [*found, ConversionStage("fold", "optimize", "onnx")][: 2 + options.fold]

    def convert(self, source: Artifact, options: ScriptOptions, folder: Path) -> Iterator[Artifact]:
        """The traced module, the translated model, and the one with constants folded."""
        torch = _torch()
        code = module_of(source)
        arguments = tuple(code.arguments.values())
        path = folder / "trace.pt"
        with torch.no_grad():
            # As the exporter does, which takes dictionaries as outputs.
            if code.named:
                named = dict(code.arguments)
                traced = torch.jit.trace(code.model, example_kwarg_inputs=named, strict=False)
            else:
                traced = torch.jit.trace(code.model, arguments, check_trace=False, strict=False)
            torch.jit.save(traced, str(path))
        yield Artifact("torchscript", path=path, handle="named" if code.named else None)
        settings = options.settings()
        names = list(code.arguments)
        settings |= {"input_names": names, "dynamic_axes": _axes(code.facts.dynamic)}
        operands = (*(() if code.named else arguments), *([dict(code.arguments)] * code.named))
        folding = torch.onnx.TrainingMode.EVAL
        plain = {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
        yield _export(code.model, operands, settings | plain)
        if options.fold:
            yield _export(code.model, operands, settings | {"training": folding})


def _torch() -> Any:
    import torch

    return torch


def module_of(source: Artifact) -> Any:
    """What the factory made, in evaluation mode, as the file says that it is called."""
    torch = _torch()
    code = load_factory(source, torch.manual_seed, torch.tensor)
    return replace(code, model=as_called(code), call=None)


def _call(
    source: Artifact, captured: list[Any], settings: dict[str, Any]
) -> tuple[str | None, tuple[Any, ...]]:
    """How the source is called, and the exporter's arguments; more of them in ``settings``.

    A source that is an exported program is ``captured`` already.
    """
    torch = _torch()
    if source.format == "torch-program":
        captured.append(torch.export.load(str(source.path)))
        return source.handle, (captured[0],)
    code = module_of(source)
    if (shapes := open_shapes(code)) is not None:
        settings["dynamic_shapes"] = shapes
    if code.named:
        settings["kwargs"] = dict(code.arguments)
        return "named", (code.model, ())
    return None, (code.model, tuple(code.arguments.values()))


def open_shapes(code: Any) -> dict[str, Any] | tuple[Any, ...] | None:
    """``dynamic_shapes`` of ``torch.export.export``; None if no size may change."""
    dynamic = _torch().export.Dim.DYNAMIC
    axes = code.facts.dynamic
    if not axes:
        return None
    each = {n: dict.fromkeys(axes[n], dynamic) if n in axes else None for n in code.arguments}
    return each if code.named else _nest(code.model, tuple(each.values()))


def _capture(arguments: tuple[Any, ...], settings: dict[str, Any]) -> tuple[Any, ...]:
    """The exporter's arguments with the program in place of the module, which is captured here.

    The exporter tries one way to capture a program after the other, and takes no say in it.
    """
    model, *others = arguments
    if not others:
        return arguments
    named = {name: settings.pop(name) for name in ("kwargs", "dynamic_shapes") if name in settings}
    return (_torch().export.export(model, *others, **named),)


@contextlib.contextmanager
def recording(captured: list[Any], strict: bool | None = None) -> Iterator[None]:
    """Note the programs that ``torch.export.export`` gives; it captures ``strict`` if that is set.

    Where the exporter captures, it chooses itself.
    """
    from unittest.mock import patch

    torch = _torch()
    export = torch.export.export

    def recorded(*arguments: Any, **settings: Any) -> Any:
        if strict is not None:
            settings["strict"] = strict
        program = export(*arguments, **settings)
        captured.append(program)
        return program

    with patch.object(torch.export, "export", recorded):
        yield


def _decompose(program: Any) -> Any:
    """The program in the operators that translations exist for; None where that fails."""
    try:
        return program.run_decompositions()
    except Exception as error:
        warnings.warn(f"run_decompositions: {type(error).__name__}: {error}", stacklevel=2)
        return None


def _nest(model: Any, shapes: tuple[Any, ...]) -> Any:
    """Shapes by argument; those of ``forward(*args)`` are one argument."""
    import inspect

    parameters = list(inspect.signature(model.forward).parameters.values())
    if len(parameters) == 1 and parameters[0].kind == inspect.Parameter.VAR_POSITIONAL:
        return (shapes,)
    return shapes


def save_program(program: Any, path: Path, handle: str | None) -> Artifact:
    """The program in a file; an artifact without one, where it cannot be written."""
    torch = _torch()
    try:
        torch.export.save(program, str(path))
    except Exception as error:
        warnings.warn(f"torch.export.save: {type(error).__name__}: {error}", stacklevel=2)
        return Artifact("torch-program", handle=handle)
    return Artifact("torch-program", path=path, handle=handle)


def _axes(dynamic: Mapping[str, Mapping[int, str]]) -> dict[str, dict[int, str]]:
    return {name: dict(axes) for name, axes in dynamic.items()}


def _export(model: Any, arguments: tuple[Any, ...], settings: Mapping[str, Any]) -> Artifact:
    torch = _torch()
    file = io.BytesIO()
    torch.onnx.export(model, arguments, file, dynamo=False, **settings)
    return Artifact("onnx", file.getvalue())
