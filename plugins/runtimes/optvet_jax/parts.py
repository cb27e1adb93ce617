"""Writes operators of a function of JAX as a source of its own, in Python."""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from optvet.plugin import Artifact, Feeds, InputError, PartScript, SourceOperator
from optvet_jax.operators import (
    Call,
    Constant,
    Listed,
    Operator,
    Value,
    arguments_of,
    gives_list,
    list_inner,
    listed,
    results_of,
)
from optvet_jax.program import JaxProgram, program_of

_SOURCE = '''\
"""A part of a function of JAX, and what it was called with."""

from pathlib import Path

{imports}
import numpy as np

HERE = Path(__file__).resolve().parent
{loaded}


{functions}


def part():
    return computed
'''
_LOADED = """\
with np.load(HERE / "{file}.npz") as kept:
    {name} = {value}
"""
_EXPECTED = """\
function = part()
given = list(example_inputs)
returned = function(*map(jax.numpy.asarray, given))
expected = [np.asarray(value) for value in jax.tree.leaves(returned)]"""
_CONVERT = """\
specs = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in given]
onnx.save(jax2onnx.to_onnx(function, inputs=specs{opset}), target)"""
_IMPORTS = "import jax\nimport jax2onnx\nimport numpy as np\nimport onnx"
_NEEDS = ("jax", "jax2onnx", "onnx", "onnxruntime or else onnx's own evaluator")
_SMALL = 8
"""Constants with so many elements stand in the text."""


@dataclass(frozen=True)
class Executed:
    """A function as operators, and what each of its values is on some inputs, by number."""

    whole: Listed
    values: Mapping[int, Any]


def executed(program: JaxProgram, feeds: Feeds) -> Executed:
    """The operators of a function, executed."""
    import jax

    whole = listed(program, list(feeds.values()))
    known: dict[int, Any] = dict(
        zip(whole.inputs, map(jax.numpy.asarray, feeds.values()), strict=True)
    )
    for each in whole.operators:
        operands = [r.value if isinstance(r, Constant) else known[r.number] for r in each.reads]
        known.update(zip(each.makes, results_of(each, operands), strict=True))
    return Executed(whole, known)


_EXECUTED: dict[tuple[object, ...], Executed] = {}
"""The last one: many parts of one source are written, and executing it takes the longest."""


def executed_once(artifact: Artifact, feeds: Feeds) -> Executed:
    """The operators of a source, executed; those of the last source are remembered."""
    arrays = ((name, a.dtype.str, a.shape, a.tobytes()) for name, a in feeds.items())
    key = (artifact.path, artifact.handle, *arrays)
    if key not in _EXECUTED:
        _EXECUTED.clear()
        _EXECUTED[key] = executed(program_of(artifact), feeds)
    return _EXECUTED[key]


def operators_of(whole: Listed) -> list[SourceOperator]:
    """The operators of a function, in order."""
    makers = {number: i for i, each in enumerate(whole.operators) for number in each.makes}
    found = []
    for each in whole.operators:
        reads = tuple(dict.fromkeys(makers[n] for n in _numbers(each.reads) if n in makers))
        found.append(SourceOperator(each.name, each.line, reads))
    return found


def write_operators(run: Executed, kept: Collection[int], folder: Path) -> str:
    """Write some operators as ``part.py``, with what they were given beside it.

    Raises:
        InputError: They cannot be written as Python, or read nothing that can be an input.
    """
    part = _part(run.whole, frozenset(kept))
    if not part.inputs:
        raise InputError("these operators read no input")
    writer = PythonWriter()
    functions = writer.function("computed", part)
    given = [writer.stored(_recorded(run.values[number])) for number in part.inputs]
    inputs = {f"x{i}": array for i, (array, _) in enumerate(given)}
    listing = " ".join(f'kept["x{i}"]{suffix},' for i, (_, suffix) in enumerate(given))
    np.savez(folder / "inputs.npz", **inputs)  # type: ignore[arg-type]
    loaded = _LOADED.format(file="inputs", name="example_inputs", value=f"({listing})")
    weights = ""
    if writer.weights:
        np.savez(folder / "weights.npz", **writer.weights)  # type: ignore[arg-type]
        weights = _LOADED.format(file="weights", name="weights", value="dict(kept)")
    text = _SOURCE.format(
        imports="\n".join(f"import {name}" for name in sorted({"jax", *writer.modules})),
        loaded=(loaded + weights).rstrip(),
        functions=functions,
    )
    (folder / "part.py").write_text(text)
    return "part.py"


def script_for(converter: str, options: Mapping[str, object]) -> PartScript | None:
    """A script that converts by jax2onnx itself; None for other converters."""
    if converter != "jax2onnx":
        return None
    opset = f", opset={options['opset']}" if options.get("opset") else ""
    return PartScript("jax2onnx", _NEEDS, _IMPORTS, _EXPECTED, _CONVERT.format(opset=opset))


def _part(whole: Listed, kept: frozenset[int]) -> Listed:
    """Some operators: what they read of others is an input, what others read is an output."""
    inside = [each for i, each in enumerate(whole.operators) if i in kept]
    outside = [each for i, each in enumerate(whole.operators) if i not in kept]
    makes = {number for each in inside for number in each.makes}
    reads = _numbers(read for each in inside for read in each.reads)
    wanted = [*whole.outputs, *(read for each in outside for read in each.reads)]
    outputs = [Value(number) for number in _numbers(wanted) if number in makes]
    if not outputs:
        raise InputError("nothing reads what these operators give")
    inputs = tuple(n for n in reads if n not in makes)
    return Listed(inputs, tuple(inside), tuple(outputs), whole.calls)


def _numbers(reads: Iterable[Value | Constant]) -> list[int]:
    return list(dict.fromkeys(read.number for read in reads if isinstance(read, Value)))


def _recorded(value: Any) -> np.ndarray:
    import jax

    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        raise InputError(f"an array of {value.dtype} cannot be an input")
    return np.asarray(value)


@dataclass(frozen=True)
class _Code:
    """An expression as it is written."""

    text: str


@dataclass
class PythonWriter:
    """Writes functions; notes the modules that they import, and their weights."""

    weights: dict[str, np.ndarray] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)
    _functions: int = 0

    def function(self, name: str, body: Listed) -> str:
        """The text of a function, behind the functions that it needs."""
        names = {number: f"x{i}" for i, number in enumerate(body.inputs)}
        lines, inner = [f"def {name}({', '.join(names.values())}):"], list[str]()
        for each in body.operators:
            operands = [self._operand(read, names) for read in each.reads]
            for number in each.makes:
                names[number] = f"v{len(names) - len(body.inputs)}"
            made = ", ".join(names[number] for number in each.makes)
            target = f"[{made}]" if gives_list(each) else made
            lines.append(f"    {target} = {self._expression(each, operands, body.calls, inner)}")
        outputs = [self._operand(read, names).text for read in body.outputs]
        lines.append(f"    return {outputs[0] if len(outputs) == 1 else ', '.join(outputs)}")
        return "\n\n\n".join([*inner, "\n".join(lines)])

    def stored(self, value: np.ndarray) -> tuple[np.ndarray, str]:
        """An array as numpy can store it, and how its own type is restored."""
        if value.dtype.kind in "biufc":
            return value, ""
        bits = np.ascontiguousarray(value).view(f"uint{8 * value.dtype.itemsize}")
        return bits.reshape(value.shape), f'.view("{value.dtype.name}")'

    def _operand(self, read: Value | Constant, names: Mapping[int, str]) -> _Code:
        if isinstance(read, Value):
            return _Code(names[read.number])
        return _Code(self._array(read.value))

    def _expression(
        self,
        operator: Operator,
        operands: Sequence[_Code],
        calls: Mapping[str, Call],
        inner: list[str],
    ) -> str:
        def literal(value: Any) -> str:
            return self._literal(value, calls, inner)

        if operator.call is not None:
            self.modules.add(operator.call.path.rpartition(".")[0])
            positional, named = arguments_of(operator.call, operands)
            words = [literal(value) for value in positional]
            words += [f"{name}={literal(value)}" for name, value in named.items()]
            text = f"{operator.call.path}({', '.join(words)})"
            return f"jax.tree.leaves({text})" if gives_list(operator) else text
        words = [operand.text for operand in operands]
        words += [f"{name}={literal(v)}" for name, v in operator.equation.params.items()]
        return f"{self._primitive(operator.equation.primitive)}.bind({', '.join(words)})"

    def _literal(self, value: Any, calls: Mapping[str, Call], inner: list[str]) -> str:
        """An argument or a parameter as Python.

        Raises:
            InputError: It cannot be written.
        """

        def literal(each: Any) -> str:
            return self._literal(each, calls, inner)

        if isinstance(value, _Code):
            return value.text
        if isinstance(value, enum.Enum):
            return f"{self._class(type(value))}.{value.name}"
        if value is None or value is ... or type(value) in (bool, int, str, slice):
            return "..." if value is ... else repr(value)
        if type(value) is float:
            return repr(value) if np.isfinite(value) else f'float("{value}")'
        if isinstance(value, np.dtype) or _is_number_type(value):
            return f'np.dtype("{np.dtype(value).name}")'
        if _is_array(value):
            return self._array(np.asarray(value))
        if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
            return self._inner(value, calls, inner)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            named = zip(value._fields, value, strict=True)
            return f"{self._class(type(value))}({', '.join(f'{n}={literal(v)}' for n, v in named)})"
        if type(value) in (tuple, list):
            listed_ = "".join(f"{literal(v)}, " for v in value)
            text = listed_ if type(value) is tuple and len(value) == 1 else listed_[:-2]
            return f"({text.rstrip()})" if type(value) is tuple else f"[{text}]"
        if type(value) is dict:
            return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [f.name for f in dataclasses.fields(value) if f.init]
            words = ", ".join(f"{name}={literal(getattr(value, name))}" for name in fields)
            return f"{self._class(type(value))}({words})"
        raise InputError(f"a {type(value).__name__} cannot be written as Python")

    def _array(self, value: np.ndarray) -> str:
        if value.dtype.kind in "biuf" and value.size <= _SMALL and np.all(np.isfinite(value)):
            if value.ndim == 0:
                return repr(value[()])
            return f'np.array({value.tolist()}, "{value.dtype.name}").reshape({value.shape})'
        name = f"w{len(self.weights)}"
        self.weights[name], suffix = self.stored(value)
        return f'weights["{name}"]{suffix}'

    def _inner(self, value: Any, calls: Mapping[str, Call], inner: list[str]) -> str:
        """A function that is a parameter: it is traced from its text."""
        is_open = not hasattr(value, "jaxpr")
        if is_open and value.constvars:
            raise InputError("a function with weights of its own cannot be written as Python")
        name = f"inner_{self._functions}"
        self._functions += 1
        inner.append(self.function(name, list_inner(value, calls)))
        variables = (value if is_open else value.jaxpr).invars
        kinds = [f'jax.ShapeDtypeStruct({v.aval.shape}, "{v.aval.dtype}")' for v in variables]
        return f"jax.make_jaxpr({name})({', '.join(kinds)}){'.jaxpr' if is_open else ''}"

    def _class(self, kind: type) -> str:
        import jax

        if getattr(jax.lax, kind.__name__, None) is kind:
            return f"jax.lax.{kind.__name__}"
        self.modules.add(kind.__module__)
        return f"{kind.__module__}.{kind.__qualname__}"

    def _primitive(self, primitive: Any) -> str:
        path = _primitives().get(primitive)
        if path is None:
            raise InputError(f"primitive {primitive.name!r} is not public in JAX")
        self.modules.add(path.rpartition(".")[0])
        return path


def _is_array(value: Any) -> bool:
    import jax

    return isinstance(value, (np.ndarray, np.generic, jax.Array))


def _is_number_type(value: Any) -> bool:
    kinds = (np.generic, bool, int, float, complex)
    own = isinstance(getattr(value, "dtype", None), np.dtype)  # JAX's own, such as jnp.float32
    return isinstance(value, type) and (own or issubclass(value, kinds))


@functools.cache
def _primitives() -> Mapping[Any, str]:
    """Where JAX's primitives are public."""
    import jax

    found: dict[Any, str] = {}
    for path in ("jax.extend.core.primitives", "jax.lax.linalg", "jax.lax"):
        for name, value in vars(importlib.import_module(path)).items():
            if isinstance(value, jax.extend.core.Primitive):
                found[value] = f"{path}.{name}"
    return found
