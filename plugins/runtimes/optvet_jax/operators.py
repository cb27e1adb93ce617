"""A function of JAX as a list of operators: its equations, and calls of JAX's own functions.

A converter may have rules for functions such as ``jax.nn.one_hot``, which an equation of their
inside would not meet. So a call of a public function is one operator, as its caller wrote it; what
is computed by methods and signs is the equations that they make.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from optvet_jax.program import JaxProgram, inner_function, line_of

MODULES = (
    "jax.numpy",
    "jax.numpy.linalg",
    "jax.numpy.fft",
    "jax.nn",
    "jax.lax",
    "jax.lax.linalg",
    "jax.scipy.special",
    "jax.image",
    "jax.random",
)
"""Modules whose functions are operators where they are called."""
_numbers = itertools.count()


@dataclass(frozen=True)
class Value:
    """The result of an operator, or an input of the function, by its number."""

    number: int


@dataclass(frozen=True)
class Constant:
    """A weight, or a number that is written in the program."""

    value: np.ndarray


@dataclass(frozen=True)
class Call:
    """A call of a public function: where it is, its arguments, and the line that calls it.

    ``leaves`` are the leaves of its arguments; None stands where an array of the program is, as
    ``varies`` says. ``plain``: whether it returns one array, and not a tuple or a list.
    """

    path: str
    structure: Any
    leaves: tuple[Any, ...]
    varies: tuple[bool, ...]
    line: str
    plain: bool


@dataclass(frozen=True)
class Operator:
    """A call, or an equation of a primitive.

    Attributes:
        name: Such as ``jax.nn.one_hot``, or ``jax.add`` of a primitive.
        reads: Its operands.
        makes: Numbers of its results.
        line: The line of the user's code, as FILE:LINE.
        call: The call; None of a primitive.
        equation: The equation of JAX.
    """

    name: str
    reads: tuple[Value | Constant, ...]
    makes: tuple[int, ...]
    line: str
    call: Call | None
    equation: Any


@dataclass(frozen=True)
class Listed:
    """A function as operators in order; ``inputs`` are the numbers of its inputs.

    ``calls`` are those in its program, by the names of their equations.
    """

    inputs: tuple[int, ...]
    operators: tuple[Operator, ...]
    outputs: tuple[Value | Constant, ...]
    calls: Mapping[str, Call]


def listed(program: JaxProgram, inputs: Sequence[np.ndarray]) -> Listed:
    """The operators of a function that its outputs need."""
    import jax

    # What was traced before without these names would be taken as it is.
    jax.clear_caches()
    calls: dict[str, Call] = {}
    with _recorded(calls):
        closed = jax.make_jaxpr(program.function)(*inputs)
    return _list(closed.jaxpr, closed.consts, calls)


def list_inner(inner: Any, calls: Mapping[str, Call]) -> Listed:
    """The operators of a function that is a parameter of an operator, such as a loop's body."""
    closed = hasattr(inner, "jaxpr")
    return _list(inner.jaxpr if closed else inner, inner.consts if closed else (), calls)


def _list(jaxpr: Any, consts: Sequence[Any], calls: Mapping[str, Call]) -> Listed:
    listing = EquationLister(calls)
    inputs = [Value(listing.number()) for _ in jaxpr.invars]
    outputs = listing.add(jaxpr, consts, inputs)
    numbers = tuple(value.number for value in inputs)
    return Listed(numbers, _needed(listing.operators, outputs), tuple(outputs), calls)


def _needed(
    operators: Sequence[Operator], outputs: Iterable[Value | Constant]
) -> tuple[Operator, ...]:
    wanted = {each.number for each in outputs if isinstance(each, Value)}
    kept: list[Operator] = []
    for operator in reversed(operators):
        if wanted.intersection(operator.makes) or operator.equation.effects:
            kept.append(operator)
            wanted.update(each.number for each in operator.reads if isinstance(each, Value))
    return tuple(reversed(kept))


class EquationLister:
    """Lists equations; those of inner functions in the place of the equation that calls them."""

    def __init__(self, calls: Mapping[str, Call]) -> None:
        self._calls = calls
        self._numbers = itertools.count()
        self.operators: list[Operator] = []

    def number(self) -> int:
        """The number of the next value."""
        return next(self._numbers)

    def add(
        self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Value | Constant]
    ) -> list[Value | Constant]:
        """Add the equations of a function; its outputs."""
        known: dict[Any, Value | Constant] = dict(zip(jaxpr.invars, inputs, strict=True))
        weights = (_constant(value) for value in consts)
        known.update(zip(jaxpr.constvars, weights, strict=True))
        for equation in jaxpr.eqns:
            reads = [_read(v, known) for v in equation.invars]
            known.update(zip(equation.outvars, self._apply(equation, reads), strict=True))
        return [_read(v, known) for v in jaxpr.outvars]

    def _apply(
        self, equation: Any, reads: Sequence[Value | Constant]
    ) -> Sequence[Value | Constant]:
        call = self._calls.get(str(equation.params.get("name")))
        inner = None if call is not None else inner_function(equation)
        if inner is not None:
            return self.add(inner.jaxpr, inner.consts, reads)
        makes = tuple(self.number() for _ in equation.outvars)
        name = f"jax.{equation.primitive.name}" if call is None else call.path
        line = line_of(equation) if call is None else call.line
        self.operators.append(Operator(name, tuple(reads), makes, line, call, equation))
        return [Value(number) for number in makes]


def _constant(value: Any) -> Constant:
    return Constant(value if isinstance(value, np.ndarray) else np.asarray(value))


def _read(variable: Any, known: Mapping[Any, Value | Constant]) -> Value | Constant:
    if hasattr(variable, "val"):
        return Constant(np.asarray(variable.val, variable.aval.dtype))
    return known[variable]


def function_at(path: str) -> Any:
    """The public function of a path such as ``jax.nn.relu``."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def arguments_of(call: Call, operands: Iterable[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments of a call with ``operands`` in the place of its arrays."""
    import jax

    left = iter(operands)
    leaves = [
        next(left) if varies else leaf
        for leaf, varies in zip(call.leaves, call.varies, strict=True)
    ]
    arguments, named = jax.tree.unflatten(call.structure, leaves)
    return arguments, named


def results_of(operator: Operator, operands: Sequence[Any]) -> list[np.ndarray]:
    """What an operator gives for its operands."""
    import jax

    if operator.call is not None:
        arguments, named = arguments_of(operator.call, map(jax.numpy.asarray, operands))
        results = function_at(operator.call.path)(*arguments, **named)
        return list(jax.tree.leaves(results))
    primitive = operator.equation.primitive
    parameters = primitive.get_bind_params(operator.equation.params)
    results = primitive.bind(*operands, **parameters)
    return list(results) if gives_list(operator) else [results]


def gives_list(operator: Operator) -> bool:
    """Whether an operator returns several arrays, or one in a tuple or a list."""
    if operator.call is not None:
        return not operator.call.plain
    return bool(operator.equation.primitive.multiple_results)


@contextlib.contextmanager
def _recorded(calls: dict[str, Call]) -> Iterator[None]:
    """Within it, calls of JAX's functions with arrays of a program are noted by their names."""
    recorder = CallRecorder(calls)
    replaced: list[tuple[Any, str, Any]] = []
    for path in MODULES:
        module = importlib.import_module(path)
        for name, function in list(vars(module).items()):
            if name[0] != "_" and callable(function) and not isinstance(function, type):
                replaced.append((module, name, function))
                setattr(module, name, RecordedFunction(recorder, f"{path}.{name}", function))
    try:
        yield
    finally:
        for module, name, function in replaced:
            setattr(module, name, function)


def _is_function(leaf: Any) -> bool:
    return callable(leaf) and not isinstance(leaf, type)


class RecordedFunction:
    """A public function, whose calls become one equation each."""

    def __init__(self, recorder: CallRecorder, path: str, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._recorder, self._path, self._function = recorder, path, function

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What the function returns."""
        caller = sys._getframe(1)
        line = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        return self._recorder.call(self._path, self._function, arguments, named, line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


class CallRecorder:
    """Wraps a call into a function of its own, by whose name it is found in the program."""

    def __init__(self, calls: dict[str, Call]) -> None:
        self._calls, self._inside = calls, False

    def call(
        self,
        path: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        line: str,
    ) -> Any:
        """What ``function`` returns."""
        import jax

        leaves, structure = jax.tree.flatten((arguments, named))
        varies = tuple(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
        # Functions among the arguments may read arrays that are not among them.
        if self._inside or not any(varies) or any(map(_is_function, leaves)):
            return function(*arguments, **named)
        self._inside = True
        try:
            plain = function(*arguments, **named)
            given = jax.tree.leaves(plain)
            if not given or not all(isinstance(leaf, jax.core.Tracer) for leaf in given):
                return plain
            rest = tuple(None if v else leaf for leaf, v in zip(leaves, varies, strict=True))
            call = Call(path, structure, rest, varies, line, given[0] is plain)
            name = f"optvet_call_{next(_numbers)}"

            def again(*operands: Any) -> Any:
                positional, by_name = arguments_of(call, operands)
                return function(*positional, **by_name)

            again.__name__ = name
            try:
                result = jax.jit(again)(
                    *(leaf for leaf, v in zip(leaves, varies, strict=True) if v)
                )
            except Exception:
                # It needs its operands as it got them; its equations are the operators then.
                return plain
            self._calls[name] = call
            return result
        finally:
            self._inside = False
