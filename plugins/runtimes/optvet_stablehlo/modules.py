"""Modules of StableHLO: how they are parsed, executed by XLA, and taken apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from optvet.plugin import Artifact, InputError, load_factory, read_text

STABLEHLO = "stablehlo"
_TYPES = {"i1": "bool", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
_TYPES |= {f"{u}i{bits}": f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)}
_LINE = re.compile(r'"([^"]+)":(\d+):\d+')
_WORDS = 300


def text_of(artifact: Artifact) -> str:
    """The module: of a converter, of a file, or what a factory returns.

    Raises:
        InputError: It is no text.
    """
    if artifact.data:
        return artifact.data.decode()
    assert artifact.path is not None
    if artifact.handle is None:
        return read_text(artifact.path)
    text = load_factory(artifact).model
    if not isinstance(text, str):
        raise InputError(
            f"{artifact.path.name}:{artifact.handle.name}() returned a {type(text).__name__}, "
            "expected the text of a module of StableHLO"
        )
    return text


class Program:
    """A module whose function ``main`` calls no function itself: calls are replaced by their body.

    Its operators and values must not be used when it is gone: that ends the process.

    Raises:
        InputError: It is no module of StableHLO, or its sizes are open.
    """

    def __init__(self, text: str) -> None:
        from jax.interpreters import mlir
        from jaxlib.mlir import ir

        with mlir.make_ir_context():
            try:
                self.module = ir.Module.parse(text)
            except ir.MLIRError as error:
                raise InputError(f"it is no module of StableHLO: {str(error)[:_WORDS]}") from error
            functions = {_symbol(f): f for f in self.module.body.operations}
            if "main" not in functions:
                raise InputError("the module has no function 'main'")
            self.main = functions["main"]
            _inline_calls(self._block, functions)

    @property
    def _block(self) -> Any:
        return self.main.regions[0].blocks[0]

    @property
    def arguments(self) -> list[Any]:
        """What the function is given."""
        return list(self._block.arguments)

    @property
    def body(self) -> list[Any]:
        """Constants and operators, in the order of execution."""
        return [each.operation for each in self._block.operations][:-1]

    @property
    def outputs(self) -> list[Any]:
        """What the function returns."""
        return list(list(self._block.operations)[-1].operands)

    @property
    def operators(self) -> list[Any]:
        """The same without constants."""
        return [each for each in self.body if not is_constant(each)]

    def give(self, values: Sequence[Any]) -> None:
        """Let the function return ``values`` instead."""
        from jaxlib.mlir import ir
        from jaxlib.mlir.dialects import func

        old = list(self._block.operations)[-1]
        with self.module.context, ir.Location.unknown(), ir.InsertionPoint(old):
            func.ReturnOp(list(values))
            old.erase()
            inputs, outputs = [a.type for a in self.arguments], [v.type for v in values]
            kind = ir.TypeAttr.get(ir.FunctionType.get(inputs, outputs))
            self.main.attributes["function_type"] = kind
            if "res_attrs" in self.main.attributes:
                del self.main.attributes["res_attrs"]

    def part(self, kept: Sequence[Any], given: Sequence[Any], outputs: Sequence[Any]) -> str:
        """The text of a module of some operators; the constants that they read come along."""
        from jaxlib.mlir import ir, passmanager
        from jaxlib.mlir.dialects import func

        chosen = set(kept)
        needed = {v.owner for op in kept for v in reads_of(op) if is_constant(v.owner)}
        with self.module.context, ir.Location.unknown():
            module = ir.Module.parse(self.module.operation.get_asm())
            old = next(f for f in module.body.operations if _symbol(f) == "main")
            old.operation.erase()
            with ir.InsertionPoint(module.body):
                kinds = [v.type for v in given], [v.type for v in outputs]
                function = func.FuncOp("main", kinds)
            block = function.add_entry_block()
            new = dict(zip(given, block.arguments, strict=True))
            with ir.InsertionPoint(block):
                for each in self.body:
                    if each in chosen or each in needed:
                        _copy(each, new)
                func.ReturnOp([new[v] for v in outputs])
            passmanager.PassManager.parse("builtin.module(symbol-dce)").run(module.operation)
            return str(module)


def _symbol(function: Any) -> str:
    return str(function.attributes["sym_name"]).strip('"')


def _copy(operation: Any, new: dict[Any, Any]) -> None:
    """A copy where operations are being inserted, which reads the ``new`` values."""
    made = operation.clone()
    _renew(made, new)
    new.update(zip(operation.results, made.results, strict=True))


def _renew(operation: Any, new: Mapping[Any, Any]) -> None:
    for i, value in enumerate(operation.operands):
        if value in new:
            operation.operands[i] = new[value]
    for inner in _nested(operation):
        _renew(inner, new)


def _nested(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region.blocks:
            yield from (each.operation for each in block.operations)


def _inline_calls(block: Any, functions: Mapping[str, Any]) -> None:
    from jaxlib.mlir import ir

    calls = [each.operation for each in block.operations if each.operation.name == "func.call"]
    while calls:
        call = calls.pop()
        body = functions[str(call.attributes["callee"])[1:]].regions[0].blocks[0]
        new = dict(zip(body.arguments, call.operands, strict=True))
        *inner, ending = (each.operation for each in body.operations)
        with ir.InsertionPoint(call):
            for each in inner:
                _copy(each, new)
        for result, value in zip(call.results, ending.operands, strict=True):
            result.replace_all_uses_with(new[value])
        call.erase()
        calls = [each.operation for each in block.operations if each.operation.name == "func.call"]


def is_constant(operation: Any) -> bool:
    """Whether it is a weight or a number, and nothing that is executed."""
    return str(getattr(operation, "name", "")) == "stablehlo.constant"


def reads_of(operation: Any) -> list[Any]:
    """Values outside of an operator that it reads, those that its regions capture among them."""
    inside = {operation, *_every(operation)}
    blocks = {b for each in inside for region in each.regions for b in region.blocks}
    every = [v for each in (operation, *_every(operation)) for v in each.operands]
    return [v for v in dict.fromkeys(every) if v.owner not in inside and v.owner not in blocks]


def _every(operation: Any) -> Iterator[Any]:
    for inner in _nested(operation):
        yield inner
        yield from _every(inner)


def name_of(operation: Any) -> str:
    """What an operator is called; of one that stands for others, what it stands for."""
    if operation.name == "stablehlo.composite":
        return str(operation.attributes["name"]).strip('"')
    return str(operation.name)


def line_of(operation: Any) -> str:
    """File and line of the user's code; empty if the module does not say."""
    found = _LINE.search(str(operation.location))
    return f"{found[1]}:{found[2]}" if found and found[1] != "-" else ""


def form_of(value: Any) -> tuple[tuple[int, ...], np.dtype] | None:
    """Shape and element type of a tensor that numpy can hold; None of others."""
    import ml_dtypes
    from jaxlib.mlir import ir

    if not isinstance(value.type, ir.RankedTensorType):
        return None
    element = _TYPES.get(str(value.type.element_type))
    if element is None or not value.type.has_static_shape:
        return None
    held = np.dtype(ml_dtypes.bfloat16 if element == "bfloat16" else element)
    return tuple(value.type.shape), held


class XlaSession:
    """A module that is compiled for the CPU as JAX compiles it."""

    def __init__(self, program: Program) -> None:
        from jax.extend.backend import get_backend
        from jaxlib.xla_client import CompileOptions

        self._forms = [_known_form(argument) for argument in program.arguments]
        self._device = get_backend("cpu").devices()[0]
        self._executable = get_backend("cpu").compile_and_load(
            program.module.operation.get_asm(), [self._device], CompileOptions()
        )

    def values(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What is returned."""
        import jax

        given = []
        for array, (shape, kind) in zip(arrays, self._forms, strict=True):
            if array.shape != shape:
                raise ValueError(f"an input has shape {array.shape}, the module takes {shape}")
            given.append(np.asarray(array, kind))
        with jax.enable_x64(True):
            placed = [jax.device_put(array, self._device) for array in given]
            results = self._executable.execute_sharded(placed)
            shards = results.disassemble_into_single_device_arrays()
        return [np.asarray(of_device) for (of_device,) in shards]

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs in order, with numbers for names."""
        values = self.values(list(feeds.values()))
        return {f"output_{i}": value for i, value in enumerate(values)}


def _known_form(argument: Any) -> tuple[tuple[int, ...], np.dtype]:
    form = form_of(argument)
    if form is None:
        raise InputError(f"an input is {argument.type}, expected a tensor of numbers of one size")
    return form
