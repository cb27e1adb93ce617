"""Functions of JAX, as a whole and operator by operator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from optvet.plugin import (
    Artifact,
    InputError,
    SourceFacts,
    SourceInside,
    SourceOperand,
    SourceValue,
    load_factory,
    may_be_rounded,
)
from optvet_jax.undefined import undefined_by_jax, undefined_by_numpy

Feeds = Mapping[str, np.ndarray]
Mover = Callable[[np.ndarray, bool], np.ndarray]
"""What becomes of a value, and whether it is a weight."""
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "remat2": "jaxpr"}
_CALLS |= dict.fromkeys(("custom_jvp_call", "custom_vjp_call"), "call_jaxpr")
"""Operators that are functions themselves, and the parameter that holds them."""
_EXACT = frozenset(
    "broadcast_in_dim reshape transpose slice dynamic_slice gather concatenate pad rev squeeze "
    "expand_dims copy iota select_n max min argmax argmin neg abs sign floor ceil round "
    "convert_element_type stop_gradient reduce_max reduce_min sort while scan cond".split()
)
"""Operators that do not round."""


@dataclass(frozen=True)
class JaxProgram:
    """A function, and how it is called.

    Attributes:
        model: What the factory returned.
        facts: Example inputs.
        named: Whether it takes its inputs by name.
        call: ``run(model, *inputs)`` of the file; None without.
    """

    model: Any
    facts: SourceFacts
    named: bool
    call: Any

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The model as a function of arrays in order."""
        names = list(self.facts.inputs)

        def function(*values: Any) -> Any:
            if self.call is not None:
                return self.call(self.model, *values)
            if self.named:
                return self.model(**dict(zip(names, values, strict=True)))
            return self.model(*values)

        return function

    def specs(self) -> list[Any]:
        """Shapes and types of the inputs; sizes that may change have names."""
        import jax

        dynamic = self.facts.dynamic
        known = {n: value.dtype for n, value in self.facts.inputs.items()}
        if any(dynamic.values()):
            # jax2onnx gives open sizes to inputs of float32 alone.
            return [
                tuple(dynamic.get(name, {}).get(axis, size) for axis, size in enumerate(v.shape))
                for name, v in self.facts.inputs.items()
            ]
        return [jax.ShapeDtypeStruct(v.shape, known[n]) for n, v in self.facts.inputs.items()]


def program_of(artifact: Artifact) -> JaxProgram:
    """The function that a factory makes.

    Raises:
        InputError: It is none.
    """
    loaded = load_factory(artifact)
    if not callable(loaded.model):
        assert artifact.path is not None
        raise InputError(
            f"{artifact.path.name}:{artifact.handle.name}() returned a "
            f"{type(loaded.model).__name__}, expected a function of arrays"
        )
    return JaxProgram(loaded.model, loaded.facts, loaded.named, loaded.call)


def evaluated(program: JaxProgram, feeds: Feeds, mover: Mover | None, double: bool) -> list[Any]:
    """What the function returns: as it is, with values moved, or in float64."""
    import jax

    # Arrays of numpy would compute by numpy, and have no methods of JAX: it gets its own.
    arrays = [np.asarray(value) for value in feeds.values()]
    if double:
        with jax.enable_x64(True):
            wide = [v.astype(np.float64) if v.dtype.kind == "f" else v for v in arrays]
            own = map(jax.numpy.asarray, wide)
            return [np.asarray(leaf) for leaf in jax.tree.leaves(program.function(*own))]
    if mover is None:
        own = map(jax.numpy.asarray, arrays)
        return list(jax.tree.leaves(program.function(*own)))
    return _JaxEvaluation(mover).outputs(program, arrays)


def values_of(program: JaxProgram, feeds: Feeds, mover: Mover | None) -> SourceInside:
    """What every operator of the function computes."""
    walk = _JaxEvaluation(mover or (lambda value, weight: value))
    inputs = {name: np.array(value) for name, value in feeds.items()}
    walk.inputs.update({id(value): name for name, value in inputs.items()})
    outputs = walk.outputs(program, list(inputs.values()))
    places = {id(each.value): i for i, each in enumerate(walk.values)}
    found = tuple(places.get(id(value)) for value in outputs)
    return SourceInside(tuple(walk.values), found)


def moved(seed: int, inside: bool) -> Mover:
    """Moves weights, or what operators give, by a roundoff up or down."""
    rng = np.random.default_rng(seed)

    def mover(value: np.ndarray, weight: bool) -> np.ndarray:
        if weight == inside or value.dtype.kind != "f":
            return value
        step = value.dtype.type(np.finfo(value.dtype).eps)
        sign = rng.choice((-1, 1), value.shape).astype(value.dtype) * may_be_rounded(value)
        return np.asarray(value * (1 + step * sign), value.dtype)

    return mover


class _JaxEvaluation:
    """Evaluates a function operator by operator, and notes what each gives."""

    def __init__(self, mover: Mover) -> None:
        self._move = mover
        self.values: list[SourceValue] = []
        self.inputs: dict[int, str] = {}
        self._places: dict[int, int] = {}
        self._varies: set[int] = set()

    def outputs(self, program: JaxProgram, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs of the function."""
        import jax

        closed = jax.make_jaxpr(program.function)(*inputs)
        self._varies.update(map(id, inputs))
        return self._evaluate(closed.jaxpr, closed.consts, inputs)

    def _evaluate(
        self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        known: dict[Any, np.ndarray] = {}
        for variable, value in zip(jaxpr.constvars, consts, strict=True):
            known[variable] = self._move(np.asarray(value), True)
        known.update(zip(jaxpr.invars, inputs, strict=True))
        for equation in jaxpr.eqns:
            operands = [_read(v, known) for v in equation.invars]
            results = self._apply(equation, operands)
            known.update(zip(equation.outvars, results, strict=True))
        return [_read(v, known) for v in jaxpr.outvars]

    def _apply(self, equation: Any, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        inner = inner_function(equation)
        if inner is not None:
            return self._call(equation, inner, operands)
        parameters = equation.primitive.get_bind_params(equation.params)
        results = equation.primitive.bind(*operands, **parameters)
        listed = list(results) if equation.primitive.multiple_results else [results]
        return [self._note_result(equation, operands, np.asarray(value)) for value in listed]

    def _call(self, equation: Any, inner: Any, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Evaluate the inside of a function; if it leaves something open, all of it is.

        What digitize searches in is its own matter: numbers as they are and in reverse.
        """
        name = equation.params.get("name", "")
        words = undefined_by_numpy(name, operands)
        start, results = len(self.values), self._evaluate(inner.jaxpr, inner.consts, operands)
        if words or name == "digitize":
            self.values[start:] = [replace(v, undefined=words) for v in self.values[start:]]
        return results

    def _note_result(
        self, equation: Any, operands: Sequence[np.ndarray], value: np.ndarray
    ) -> np.ndarray:
        name = equation.primitive.name
        if name not in _EXACT:
            value = self._move(value, False)
        # An array of its own: places are told by it.
        value = value.copy()
        reads = tuple(
            dict.fromkeys(self._places[i] for i in map(id, operands) if i in self._places)
        )
        varies = any(id(operand) in self._varies for operand in operands)
        if varies:
            self._varies.add(id(value))
        self._places[id(value)] = len(self.values)
        line = line_of(equation)
        about = tuple(self._operand(str(i), each) for i, each in enumerate(operands))
        self.values.append(
            SourceValue(
                f"jax.{name}",
                value,
                reads,
                constant=not varies,
                line=line,
                operands=about,
                undefined=undefined_by_jax(name, equation.params, operands),
            )
        )
        return value

    def _operand(self, name: str, value: np.ndarray) -> SourceOperand:
        written = value.item() if value.ndim == 0 and value.dtype.kind in "biuf" else None
        place, source = self._places.get(id(value)), self.inputs.get(id(value), "")
        return SourceOperand(name, place, source, constant=None if source else written)


def _read(variable: Any, known: Mapping[Any, np.ndarray]) -> np.ndarray:
    """A value, or a number that is written in the program."""
    return np.asarray(variable.val) if hasattr(variable, "val") else known[variable]


def inner_function(equation: Any) -> Any:
    """The function that an equation calls; None if it is an operator."""
    inner = equation.params.get(_CALLS.get(equation.primitive.name, ""))
    return inner if hasattr(inner, "jaxpr") else None


def line_of(equation: Any) -> str:
    """File and line of the user's code; empty where JAX does not know them."""
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import source_info_util

        frame = source_info_util.user_frame(equation.source_info.traceback)
        if frame is not None:
            return f"{frame.file_name}:{frame.start_line}"
    return ""
