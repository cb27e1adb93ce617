"""Sources for hunts: functions of JAX, called as their signatures declare, as Python files.

The annotation of a parameter says what it may be: an array, a number, an axis, a shape. The number
of a sample decides which, and a call counts if JAX traces it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import random
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter
from pathlib import Path
from typing import Any

import numpy as np

from optvet.plugin import Feeds, SourceStep

_MODULES = ("jax.numpy", "jax.nn", "jax.lax", "jax.scipy.special", "jax.numpy.linalg")
_TYPES = ("float32", "int32", "bool", "float16", "uint8", "int8")
_SHAPES = ((3, 4), (4,), (3, 3), (2, 3, 4), (1, 4), (2, 3, 3), (2, 2, 5, 5), (1,), ())
_TRIES = 12
_GIVEN = 0.35
"""How often a parameter is given that need not be."""
_OF_ANOTHER_TYPE = 0.15
"""How often an array holds integers or truth values, as indices and masks do."""
_WITHOUT_EFFECT = frozenset({"out", "inplace", "device", "out_sharding", "sharding", "precision"})
_ARRAY = re.compile(r"\bArray(Like)?\b")
_INTEGERS = re.compile(r"Sequence\[(int|DimSize)\]|tuple\[int|\bShape\b")
_PARTS = 64
"""Floats are multiples of a 64th."""
_SOURCE = '''\
"""{title}"""

from pathlib import Path

{imports}
import numpy as np

HERE = Path(__file__).resolve().parent
example_inputs = (
{inputs}
)
{dynamic}

def function({names}):
{lines}


def part():
    return function
'''


class NoSuchCallError(Exception):
    """A function takes no such call."""


def operators() -> dict[str, list[str]]:
    """Functions by their public names, of which one knows what they take."""
    found = {}
    for module in _MODULES:
        for name, function in vars(importlib.import_module(module)).items():
            if not name.startswith("_") and inspect.isroutine(_plain(function)):
                if _parameters(f"{module}.{name}"):
                    found[f"{module}.{name}"] = list(_TYPES)
    return found


def _plain(function: Any) -> Any:
    """What is wrapped, if something is: compiled functions are objects of a class."""
    return inspect.unwrap(function) if callable(function) else function


@functools.cache
def _function(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@functools.cache
def _parameters(path: str) -> tuple[Parameter, ...]:
    """What a function takes; nothing if it takes no array, or requires what is unknown here."""
    try:
        listed = tuple(inspect.signature(_function(path)).parameters.values())
    except (TypeError, ValueError):
        return ()
    required = [p for p in listed if p.default is Parameter.empty and _is_named(p)]
    arrays = [p for p in listed if p.kind is not Parameter.VAR_KEYWORD and _is_array(p)]
    return listed if arrays and all(map(_kind, required)) else ()


def _is_named(parameter: Parameter) -> bool:
    return parameter.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def _kind(parameter: Parameter) -> str:
    """What a parameter may be; empty if unknown."""
    text = str(parameter.annotation)
    if parameter.name in _WITHOUT_EFFECT or text == "None":
        return ""
    if re.search(r"Sequence\[Array", text):
        return "arrays"
    if _INTEGERS.search(text) and not text.startswith("Array"):
        return "integers"
    if _ARRAY.search(text) and parameter.name != "dtype":
        return "array"
    known = {"bool": "bool", "float": "float", "Axis": "int", "int": "int", "DimSize": "int"}
    known |= {"DTypeLike": "type", "str": "str"}
    return known.get(re.split(r"\W", text.removeprefix("<class '"))[0], "")


def _is_array(parameter: Parameter) -> bool:
    return _kind(parameter) in ("array", "arrays")


@dataclass
class _DrawnCall:
    """A call that is being drawn: the arrays that it reads, new ones in order."""

    draw: random.Random
    dtype: str
    shape: tuple[int, ...]
    before: str
    first: int
    made: list[np.ndarray] = field(default_factory=list)

    def text(self, path: str) -> str:
        """The call in Python."""
        words = []
        for parameter in _parameters(path):
            if parameter.kind is Parameter.VAR_POSITIONAL and _is_array(parameter):
                words += [self._array(), self._array()]
            if not _is_named(parameter):
                continue
            required = parameter.default is Parameter.empty
            if not required and (not _kind(parameter) or self.draw.random() > _GIVEN):
                continue
            value = self._value(parameter)
            by_place = required and parameter.kind is not Parameter.KEYWORD_ONLY
            words.append(value if by_place else f"{parameter.name}={value}")
        return f"{path}({', '.join(words)})"

    def _value(self, parameter: Parameter) -> str:
        draw, kind = self.draw, _kind(parameter)
        if kind == "arrays":
            return f"[{', '.join(self._array() for _ in range(draw.choice((1, 2, 2, 3))))}]"
        if kind == "array":
            return self._array()
        if kind == "bool":
            return repr(not parameter.default if parameter.default in (True, False) else True)
        if kind == "integers":
            rank = max(len(self.shape), 1)
            axes = tuple(draw.sample(range(rank), rank))
            sizes = (self.shape, self.shape[::-1], (-1,), (2, *self.shape))
            return repr(draw.choice((axes, axes[:1], *sizes, (1,) * rank, (2,) * rank)))
        if kind == "type":
            return f'"{draw.choice(_TYPES)}"'
        if kind == "str":
            return repr(draw.choice(("SAME", "VALID", "same", "valid", "full", "wrap", "clip")))
        return repr(draw.choice((0.5, 1.5, -0.25) if kind == "float" else (0, 1, -1, 2, 3, -2)))

    def _array(self) -> str:
        """What the call before gives, or a new input of a shape that probably fits."""
        if self.before and not self.made and self.first == 0:
            self.first = 1
            return self.before
        shape = self.draw.choice(
            (self.shape,) * 5 + (self.shape[-1:], (), self.draw.choice(_SHAPES))
        )
        other = self.draw.random() < _OF_ANOTHER_TYPE
        dtype = self.draw.choice(("int32", "bool")) if other else self.dtype
        self.made.append(_drawn(self.draw, dtype, shape))
        return f"{{{len(self.made) - 1}}}"


def _drawn(draw: random.Random, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers around zero, or above it: many functions are defined there alone."""
    rng = np.random.default_rng(draw.randrange(1000))
    low = draw.choice((-128, -128, 1))
    drawn = rng.integers(low, 129, shape)
    if dtype.startswith("float"):
        return np.asarray(drawn / _PARTS, dtype)
    if dtype == "bool":
        return np.asarray(drawn % 2, dtype)
    return np.asarray(np.abs(drawn) // 32 if low > 0 or dtype[0] == "u" else drawn // 32, dtype)


def write_source(
    steps: Sequence[SourceStep],
    dynamic: bool,
    folder: Path,
    feeds: Feeds | None = None,
) -> str | None:
    """Write ``part.py``; None if the steps do not fit each other.

    ``feeds`` are inputs in place of those that are drawn.
    """
    inputs: list[np.ndarray] = []
    lines: list[str] = []
    try:
        for number, step in enumerate(steps):
            _add(step, number, inputs, lines)
    except NoSuchCallError:
        return None
    given = inputs if feeds is None else list(feeds.values())
    names = [f"x{i}" for i in range(len(inputs))]
    axes = _open_axes(dict(zip(names, inputs, strict=True)))
    if dynamic and not axes:
        return None
    modules = sorted({"jax", *(step.operator.rpartition(".")[0] for step in steps)})
    text = _SOURCE.format(
        title=" → ".join(step.operator for step in steps),
        imports="\n".join(f"import {name}" for name in modules),
        inputs="\n".join(f"    {_literal(value)}," for value in given),
        dynamic=f"dynamic_axes = {axes}\n" if dynamic else "",
        names=", ".join(names),
        lines="\n".join(f"    {line}" for line in [*lines, f"return y{len(lines) - 1}"]),
    )
    (folder / "part.py").write_text(text, "utf-8")
    return "part.py"


def _open_axes(inputs: Mapping[str, np.ndarray]) -> dict[str, dict[int, str]]:
    """First sizes as one that may change; of floats, since jax2onnx opens no others."""
    sizes = {name: value.shape[0] for name, value in inputs.items() if value.ndim}
    one = next(iter(sizes.values()), 1)
    if one == 1 or any(value.dtype != np.float32 for value in inputs.values()):
        return {}
    return {name: {0: "n"} for name, size in sizes.items() if size == one}


def _add(step: SourceStep, number: int, inputs: list[np.ndarray], lines: list[str]) -> None:
    """Write a call that JAX traces, of several that are drawn."""
    before = _traced(lines, inputs) if number else None
    taken = ""
    if before is not None:
        taken = f"y{number - 1}[0]" if isinstance(before, (tuple, list)) else f"y{number - 1}"
        before = before[0] if isinstance(before, (tuple, list)) else before
    draw = random.Random(f"{step.operator} {step.dtype} {step.sample}")
    for _ in range(_TRIES):
        shape = draw.choice(_SHAPES) if before is None else tuple(before.shape)
        call = _DrawnCall(draw, step.dtype, shape, taken, 0)
        text = call.text(step.operator)
        for i in reversed(range(len(call.made))):
            text = text.replace(f"{{{i}}}", f"x{len(inputs) + i}")
        more = [*lines, f"y{number} = {text}"]
        if (taken and not call.first) or (not call.made and not inputs):
            continue
        if _fits(more, [*inputs, *call.made]):
            inputs += call.made
            lines[:] = more
            return
    raise NoSuchCallError(step.operator)


def _fits(lines: Sequence[str], inputs: Sequence[np.ndarray]) -> bool:
    """Whether JAX traces the calls, and they give arrays of numbers that are real."""
    import jax

    try:
        leaves = jax.tree.leaves(_traced(lines, inputs))
        return bool(leaves) and all(leaf.dtype.kind in "fiub" for leaf in leaves)
    except Exception:
        # Whatever a function raises on what it does not take.
        return False


def _traced(lines: Sequence[str], inputs: Sequence[np.ndarray]) -> Any:
    """Shapes and types of what the last call gives."""
    import jax

    names = [f"x{i}" for i in range(len(inputs))]
    body = [*lines, f"return y{len(lines) - 1}"]
    scope: dict[str, Any] = {"jax": jax}
    for module in _MODULES:
        importlib.import_module(module)
    exec(f"def made({', '.join(names)}):\n" + "\n".join(f"    {line}" for line in body), scope)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return jax.eval_shape(scope["made"], *inputs)


def _literal(value: np.ndarray) -> str:
    """An array as Python."""
    listed = repr(value.tolist()).replace("nan", "np.nan").replace("inf", "np.inf")
    shape = f".reshape({value.shape})" if 0 in value.shape else ""
    return f'np.array({listed}, "{value.dtype}"){shape}'
