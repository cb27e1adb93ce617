"""Takes modules apart: each submodule with what it is called with, as an exported program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from optvet.plugin import InputError, PartScript, SourcePart

_SOURCE = '''\
"""A part of a model, as an exported program, and what it was called with."""

from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
example_inputs = tuple(torch.load(HERE / "inputs.pt", weights_only=True))


def part():
    return torch.export.unflatten(torch.export.load(HERE / "part.pt2")).eval()
'''
_EXPECTED = """\
def array(value):
    value = torch.as_tensor(value).detach()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


module = part()
given = [array(value) for value in example_inputs]
with torch.no_grad():
    expected = [array(v) for v in _pytree.tree_leaves(module(*example_inputs)) if v is not None]"""
_IMPORTS = "import torch\nfrom torch.utils import _pytree"
_OPENVINO = """\
with torch.no_grad():
    made = openvino.convert_model(module, example_input=example_inputs)
file = str(HERE / "part.xml")
openvino.save_model(made, file, compress_to_fp16={compress})
properties = {{"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}}
return openvino.Core().compile_model(file, "CPU", properties)"""
_RUN_OPENVINO = """\
values = model(list(feeds.values()))
return {i: values[port] for i, port in enumerate(model.outputs)}"""
_TVM = """\
with torch.no_grad():
    made = from_exported_program(torch.export.export(module, example_inputs))
return relax.VirtualMachine(relax.build(made, tvm.target.Target("llvm")), tvm.cpu())["main"]"""
_TVM_IMPORTS = """\
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program"""
_RUN_TVM = """\
import tvm

values = model(*[tvm.runtime.tensor(value) for value in feeds.values()])
listed = [values] if hasattr(values, "numpy") else list(values)
return {i: value.numpy() for i, value in enumerate(listed)}"""
_LITERT = "return litert_torch.convert(module, example_inputs{settings}).model_content()"
_RUN_LITERT = """\
from ai_edge_litert.interpreter import Interpreter

interpreter = Interpreter(model_content=model)
runner = interpreter.get_signature_runner()
kinds = runner.get_input_details()
given = {f"args_{i}": value for i, value in enumerate(feeds.values())}
runner(**{name: value.astype(kinds[name]["dtype"]) for name, value in given.items()})
places = [each["index"] for each in interpreter.get_output_details()]
return {i: interpreter.get_tensor(place) for i, place in enumerate(places)}"""
_TOOLS = {
    "torch_dynamo": ("torch.onnx.export(dynamo=True)", ("onnxscript",)),
    "torch_script": ("torch.onnx.export(dynamo=False)", ()),
}


def parts_of(module: Any, call: Callable[..., Any], feeds: Mapping[str, Any]) -> list[SourcePart]:
    """Submodules that are called with tensors alone, and the whole."""
    calls = calls_of(module, call, feeds)
    return [
        SourcePart(name, sum(1 for _ in part.modules()), frozenset(_paths(name, part)))
        for name, part in module.named_modules()
        if name in calls
    ]


def _paths(name: str, part: Any) -> list[str]:
    return [f"{name}.{inner}".strip(".") for inner, _ in part.named_modules()]


def calls_of(
    module: Any, call: Callable[..., Any], feeds: Mapping[str, Any]
) -> dict[str, tuple[Any, ...]]:
    """What each submodule is called with first, if that is tensors by position alone."""
    import torch

    calls: dict[str, tuple[Any, ...]] = {}
    other: set[str] = set()

    def note(name: str, arguments: Any, named: Any) -> None:
        if name in calls or name in other:
            return
        if arguments and not named and all(isinstance(a, torch.Tensor) for a in arguments):
            calls[name] = tuple(a.detach().clone() for a in arguments)
        else:
            other.add(name)

    hooks = [
        part.register_forward_pre_hook(
            lambda _, arguments, named, name=name: note(name, arguments, named), with_kwargs=True
        )
        for name, part in module.named_modules()
    ]
    try:
        with torch.no_grad():
            call(module, *feeds.values())
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def write_part(
    module: Any, call: Callable[..., Any], feeds: Mapping[str, Any], name: str, folder: Path
) -> str:
    """Write a submodule as ``part.py``, with its program and its inputs beside it.

    Raises:
        InputError: It cannot be exported.
    """
    import torch

    arguments = calls_of(module, call, feeds)[name]
    try:
        program = torch.export.export(module.get_submodule(name), arguments, strict=False)
        torch.export.save(program, folder / "part.pt2")
    except Exception as error:
        raise InputError(f"torch.export refuses it: {type(error).__name__}: {error}") from error
    torch.save(list(arguments), folder / "inputs.pt")
    (folder / "part.py").write_text(_SOURCE)
    return "part.py"


def script_for(converter: str, options: Mapping[str, object]) -> PartScript | None:
    """A script that converts a part by the library itself; None for libraries unknown here."""
    if converter == "openvino":
        call = _OPENVINO.format(compress=bool(options.get("compress_to_fp16")))
        needs, imports = ("torch", "onnx", "openvino"), f"import openvino\n{_IMPORTS}"
        return PartScript("OpenVINO", needs, imports, _EXPECTED, call, run=_RUN_OPENVINO)
    if converter == "tvm":
        imports = f"import tvm\n{_IMPORTS}\n{_TVM_IMPORTS}"
        needs = ("torch", "onnx", "apache-tvm")
        return PartScript("TVM", needs, imports, _EXPECTED, _TVM, run=_RUN_TVM)
    if converter == "litert_torch":
        words = "".join(f", {name}=True" for name, value in options.items() if value)
        needs, imports = ("torch", "litert-torch", "onnx"), f"import litert_torch\n{_IMPORTS}"
        call = _LITERT.format(settings=words)
        return PartScript("litert_torch", needs, imports, _EXPECTED, call, run=_RUN_LITERT)
    return _exporter_script(converter, options) if converter in _TOOLS else None


def _exporter_script(converter: str, options: Mapping[str, object]) -> PartScript:
    tool, more = _TOOLS[converter]
    settings: dict[str, object] = {"dynamo": converter == "torch_dynamo"}
    if version := options.get("opset_version") or options.get("opset"):
        settings["opset_version"] = version
    if converter == "torch_dynamo":
        settings |= {"optimize": bool(options.get("optimize", True)), "verbose": False}
    else:
        settings["do_constant_folding"] = bool(options.get("fold", True))
    words = "".join(f", {key}={value!r}" for key, value in settings.items())
    call = f"torch.onnx.export(module, example_inputs, str(target){words})"
    return PartScript(tool, ("torch", "onnx", "onnxruntime", *more), _IMPORTS, _EXPECTED, call)
