"""What optimizer and runtime share: import from ONNX, and the compiler by phases."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnx.version_converter

from optvet.graph import (
    ONNX_DOMAIN,
    RANDOM_OPERATORS,
    is_onnx,
    nodes_of,
    opset_versions,
    values_outside,
)
from optvet.plugin import Unsupported

ENTRY = "main"
_OPSET = 17
"""The operator set from which on IREE's import knows all forms of the operators that it knows."""
_TYPES = frozenset(
    "FLOAT DOUBLE FLOAT16 BOOL INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64".split()
)
_FLAGS = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")
_TO_INPUT = ("--iree-input-type=onnx", "--compile-to=input")
_FROM_INPUT = ("--compile-from=input", "--iree-llvmcpu-target-cpu=host")
_REFUSAL = re.compile(r"failed to legalize operation '(torch|onnx)|not (yet )?(supported|implem)")
_DIAGNOSTIC = re.compile("Diagnostics:\n")
_CHARS = 300


class IreeError(RuntimeError):
    """The compiler refused; the message says in which phase or pass."""


@dataclass(frozen=True)
class MlirModule:
    """A model in MLIR: linear algebra on tensors, before any optimization of IREE's.

    ``code`` is in MLIR's bytecode. ``inputs`` are names, ``outputs`` names and types that the model
    declares, by their position: MLIR's integers have no sign, so that the runtime tells none.
    """

    code: bytes
    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, np.dtype], ...]


@lru_cache(maxsize=2)
def imported(data: bytes) -> MlirModule:
    """A serialized ONNX model after IREE's import.

    Raises:
        Unsupported: IREE's import lacks an operator or a type.
        IreeError: It fails in another way.
    """
    from iree.compiler import ir
    from iree.compiler.extras import onnx_importer

    proto = onnx.load_from_string(data)
    weights = {w.name for w in proto.graph.initializer}
    inputs = tuple(i.name for i in proto.graph.input if i.name not in weights)
    _refuse(proto.graph)
    outputs = tuple((o.name, _dtype_of(o)) for o in proto.graph.output)
    proto = _prepare(proto)
    try:
        info = onnx_importer.ModelInfo(proto)
        module = info.create_module(context=ir.Context())
        root = getattr(module, "operation", module)
        onnx_importer.NodeImporter.define_function(info.main_graph, root).import_all()
        text = root.get_asm(binary=False, assume_verified=True).encode()
    except Exception as error:  # of types and attributes that it does not know: no class in common
        raise Unsupported(f"IREE's import from ONNX: {brief(str(error))}") from error
    try:
        code = _run_phases(text, *_TO_INPUT)
    except IreeError as error:
        # Of the import alone: what a pass made, and the lowering does not take, is a fault.
        if not _REFUSAL.search(str(error)):
            raise
        raise Unsupported(str(error)) from error
    return MlirModule(code, inputs, outputs)


def _dtype_of(value: onnx.ValueInfoProto) -> np.dtype:
    return onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)


def as_declared(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """An integer without sign, which numpy gets as a signed one, as the model declares it."""
    unsigned = dtype.kind == "u" and value.dtype.kind == "i" and value.itemsize == dtype.itemsize
    return value.view(dtype) if unsigned else value


def compiled(code: bytes) -> bytes:
    """A module of IREE's virtual machine for this processor, made of MLIR in bytecode.

    Raises:
        IreeError: It cannot be compiled.
    """
    return _run_phases(code, *_FROM_INPUT)


def _refuse(graph: onnx.GraphProto) -> None:
    """Types that its runtime has no arrays of, and draws, which are the same in each session."""
    for name, _, what in values_outside((*graph.input, *graph.output), _TYPES):
        raise Unsupported(f"{name!r} is {what}, which IREE takes no arrays of")
    for node in nodes_of(graph):
        if is_onnx(node) and node.op_type in RANDOM_OPERATORS:
            raise Unsupported(
                f"operator {node.op_type} {node.name!r} draws the same random numbers in each "
                "session of IREE; choose another runtime"
            )


def _prepare(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model as the import needs it: its operator set, known shapes, the entry's name."""
    try:
        if opset_versions(proto).get(ONNX_DOMAIN, _OPSET) < _OPSET:
            proto = onnx.version_converter.convert_version(proto, _OPSET)
        proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except Exception as error:  # the converter raises what it likes of operators that it lacks
        words = f"its operator set cannot become {_OPSET}, which IREE needs: {brief(str(error))}"
        raise Unsupported(words) from error
    proto.graph.name = ENTRY
    return proto


def _run_phases(source: bytes, *flags: str) -> bytes:
    """What ``iree-compile`` makes of a module."""
    from iree.compiler.tools import CompilerToolError, compile_str

    try:
        return bytes(compile_str(source, extra_args=[*_FLAGS, *flags]))
    except CompilerToolError as error:
        reason = brief(_DIAGNOSTIC.split(str(error), maxsplit=1)[-1])
        raise IreeError(f"iree-compile {flags[0]}: {reason}") from error


def brief(text: str) -> str:
    """The first words of a diagnostic, without what it quotes of the module."""
    return " ".join(text.split())[:_CHARS]


def run_passes(code: bytes, passes: Sequence[str]) -> tuple[bytes, list[str]]:
    """The module after MLIR passes, in bytecode, and which of them changed it.

    Raises:
        IreeError: A pass failed, or left a module that MLIR's verifier refuses.
    """
    from iree.compiler import ir

    changed: list[str] = []
    with ir.Context():
        module = ir.Module.parse(code)
        _run(module, "strip-debuginfo")  # places in a source are no content
        before = _bytecode(module)
        for name in passes:
            _run(module, name)
            after = _bytecode(module)
            if after != before:
                changed.append(name)
            before = after
    return before, changed


def check_pass(name: str) -> None:
    """Whether the compiler has a pass.

    Raises:
        IreeError: It has none of this name.
    """
    from iree.compiler import ir
    from iree.compiler.passmanager import PassManager

    with ir.Context():
        try:
            PassManager.parse(f"builtin.module({name})")
        except ValueError as error:
            raise IreeError(f"the compiler has no pass {name!r}") from error


def _run(module: Any, name: str) -> None:
    """One pass, over the module or, if it cannot be scheduled there, over its functions."""
    from iree.compiler import ir
    from iree.compiler.passmanager import PassManager

    for place in ("builtin.module", "builtin.module(util.func"):
        pipeline = f"{place}({name}){')' * place.count('(')}"
        try:
            PassManager.parse(pipeline).run(module.operation)
            return
        except (ValueError, ir.MLIRError) as error:
            if "(" in place or "unable to schedule" not in str(error):
                raise IreeError(f"pass {name}: {brief(str(error))}") from error


def _bytecode(module: Any) -> bytes:
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


_IMPORT_CODE = f"""\
weights = {{w.name for w in model.graph.initializer}}
inputs = [i.name for i in model.graph.input if i.name not in weights]
kinds = [o.type.tensor_type.elem_type for o in model.graph.output]
kinds = map(onnx.helper.tensor_dtype_to_np_dtype, kinds)
outputs = [(o.name, kind) for o, kind in zip(model.graph.output, kinds)]
if next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")) < {_OPSET}:
    model = onnx.version_converter.convert_version(model, {_OPSET})
model = onnx.shape_inference.infer_shapes(model, data_prop=True)
model.graph.name = {ENTRY!r}
info = onnx_importer.ModelInfo(model)
module = info.create_module(context=ir.Context())
root = getattr(module, "operation", module)
onnx_importer.NodeImporter.define_function(info.main_graph, root).import_all()
flags = {list(_FLAGS)!r}
first = {list(_TO_INPUT)!r}
code = compile_str(root.get_asm(assume_verified=True), extra_args=flags + first)
"""
_IMPORTS = """\
import onnx.version_converter
from iree.compiler import ir
from iree.compiler.extras import onnx_importer
from iree.compiler.passmanager import PassManager
from iree.compiler.tools import compile_str

"""


def pass_code(passes: Sequence[str]) -> str:
    """Code that imports ``model`` and runs passes over it, for a script."""
    listed = textwrap.wrap(" ".join(passes), 80, break_on_hyphens=False)
    names = "\n".join(("passes = '''", *(f"    {line}" for line in listed), "'''.split()"))
    return f"{_IMPORTS}{_IMPORT_CODE}{names}{_PASS_CODE}"


_PASS_CODE = """
with ir.Context():
    module = ir.Module.parse(code)
    PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
    for name in passes:
        try:
            PassManager.parse(f"builtin.module({name})").run(module.operation)
        except ir.MLIRError as error:
            if "unable to schedule" not in str(error):
                raise
            PassManager.parse(f"builtin.module(util.func({name}))").run(module.operation)
    return str(module).encode(), inputs, outputs
"""


def run_code(driver: str) -> str:
    """Code that compiles and runs a module that ``pass_code`` made, or a model, for a script."""
    indented = textwrap.indent(_IMPORT_CODE, "    ")
    return f"""\
import numpy as np
from iree import runtime
{_IMPORTS.strip()}

if isinstance(model, tuple):
    code, inputs, outputs = model
else:
    model = onnx.load_from_string(model) if isinstance(model, bytes) else model
{indented}
flags = {list(_FLAGS)!r}
last = {list(_FROM_INPUT)!r}
compiled = compile_str(code, extra_args=flags + last)
context = runtime.SystemContext(config=runtime.Config({driver!r}))
context.add_vm_module(runtime.VmModule.copy_buffer(context.instance, compiled))
result = context.modules.module[{ENTRY!r}](*[np.asarray(feeds[name]) for name in inputs])
values = result if isinstance(result, (list, tuple)) else [result]
made = {{}}
for (name, kind), value in zip(outputs, values):
    host = value.to_host()
    # Integers have no sign in MLIR, and are signed ones here.
    made[name] = host.view(kind) if kind.kind == "u" and host.dtype.kind == "i" else host
return made
"""
