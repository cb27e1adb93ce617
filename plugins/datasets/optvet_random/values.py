"""Values of one input: a domain says which are allowed, a regime which of them are drawn.

Ordinary regimes come first, so that the first samples are the most telling, and edge cases
(±0.0, denormals, halves) come last.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import ml_dtypes
import numpy as np
import onnx

from optvet.graph import numpy_dtype
from optvet.plugin import InputError, ValueInfo, check_size

# fmt: off
Regime = Literal[
    "normal", "uniform", "image", "sparse", "negative",
    "ones", "zeros", "tiny", "large", "special", "nonfinite",
]
# fmt: on
FINITE: tuple[Regime, ...] = tuple(r for r in get_args(Regime) if r != "nonfinite")
"""Distributions of values, in the order in which samples take them."""

WORDS = ("good", "bad", "the", "movie", "was", "not", "great", "and", "Hello", "WORLD", "x1")
_ODD_WORDS = ("", " ", "café", "naïve", "…", "a-b_c", "42")


def _float_max() -> dict[str, float]:
    """Largest finite value of signed floats whose range is smaller than float32's."""
    found = {}
    for name, number in onnx.TensorProto.DataType.items():
        if name.startswith("FLOAT"):
            dtype = onnx.helper.tensor_dtype_to_np_dtype(number)
            about = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
            if about.min < 0 and float(about.max) < np.finfo(np.float32).max:
                found[name.lower()] = float(about.max)
    return found


_FLOAT_MAX = _float_max()
_DENORMAL = {"float16": 1e-7, "double": 1e-310}
FLOATS = frozenset({"float", "double", "bfloat16", *_FLOAT_MAX})
INTEGER = re.compile(r"^(u?)int(\d+)$")


@dataclass(frozen=True)
class DeclaredValues:
    """What somebody declared of an input's values (``ModelConfig.inputs``).

    ``first`` and ``second`` are the two parameters of "normal" (mean, std), "uniform" (low, high)
    and "randint" (low, high exclusive), which fit the last axis if they are tuples; ``values``
    are those of "choice" and "const". "prefix_mask" has none: each row is ones, then zeros.
    """

    kind: Literal["normal", "uniform", "randint", "const", "choice", "prefix_mask"]
    first: float | tuple[float, ...] = 0.0
    second: float | tuple[float, ...] = 1.0
    values: tuple[Any, ...] = ()
    shape: tuple[int, ...] | None = None

    def domain(self) -> Domain:
        """What is allowed: all integers of a range, or what is drawn in the same way."""
        if (
            self.kind != "randint"
            or isinstance(self.first, tuple)
            or isinstance(self.second, tuple)
        ):
            return Domain("recipe", recipe=self)
        return Domain("range", int(self.first), int(self.second))

    def array(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        """Values of this shape."""
        match self.kind:
            case "normal":
                return np.asarray(rng.normal(self.first, self.second, shape))
            case "uniform":
                return np.asarray(rng.uniform(self.first, self.second, shape))
            case "randint":
                low, high = (np.asarray(v, np.int64) for v in (self.first, self.second))
                return rng.integers(low, high, shape)
            case "const":
                return np.resize(np.array(self.values), shape)
            case "choice":
                picks = rng.integers(len(self.values), size=shape)
                return np.array([*self.values, None], object)[picks]
            case "prefix_mask":
                return _prefix_mask(shape, rng)


def recipe_from(name: str, declared: Mapping[str, Any]) -> DeclaredValues:
    """The recipe that was declared for input ``name``.

    Raises:
        InputError: It is of an unknown kind, or lacks something.
    """

    def plain(key: str, default: Any = None) -> Any:
        value = declared.get(key, default)
        if value is None:
            raise InputError(
                f"dataset 'random': the recipe of input {name!r} has no {key!r}: {dict(declared)}"
            )
        return tuple(value) if isinstance(value, (list, tuple)) else value

    kind, shape = declared.get("kind"), declared.get("shape")
    size = None if shape is None else tuple(int(d) for d in shape)
    match kind:
        case "normal":
            return DeclaredValues(kind, plain("mean", 0.0), plain("std", 1.0), shape=size)
        case "uniform":
            return DeclaredValues(kind, plain("low", 0.0), plain("high", 1.0), shape=size)
        case "randint":
            return DeclaredValues(kind, plain("low", 0), plain("high"), shape=size)
        case "const":
            value = plain("value")
            return DeclaredValues(
                kind, values=value if isinstance(value, tuple) else (value,), shape=size
            )
        case "choice":
            return DeclaredValues(kind, values=plain("values"), shape=size)
        case "prefix_mask":
            return DeclaredValues(kind, shape=size)
        case _:
            raise InputError(
                f"dataset 'random': the recipe of input {name!r} is of kind {kind!r}, expected "
                "normal, uniform, randint, const, choice or prefix_mask"
            )


@dataclass(frozen=True)
class Domain:
    """Values that an input may take.

    ``values`` holds the members of "choice", the words of "text", and the pattern that "fixed"
    repeats; ``low`` and ``high`` (exclusive) bound "range". "recipe" follows ``recipe``.
    """

    kind: Literal["float", "bool", "range", "length", "choice", "text", "mask", "fixed", "recipe"]
    low: int = 0
    high: int = 10
    values: tuple[Any, ...] = ()
    recipe: DeclaredValues | None = None

    @property
    def selects(self) -> bool:
        """Whether it is one value that takes one branch of the model."""
        return self.kind == "choice" and len(self.values) == 1


def tensor_dtype(info: ValueInfo) -> np.dtype[Any]:
    """Numpy's dtype of a tensor input; raises InputError where there is none."""
    try:
        return numpy_dtype(info)
    except ValueError as error:
        raise InputError(
            f"dataset 'random': input {info.name!r} is of type {info.dtype!r}, expected a tensor; "
            + (
                "supply it with --dataset files:PATH.npz"
                if info.dtype == "optional"
                else "vet a model with tensor inputs, or supply it with a dataset plugin"
            )
        ) from error


def _floats(dtype: str, shape: tuple[int, ...], regime: Regime, rng: np.random.Generator) -> Any:
    """float64 values of ``regime`` that ``dtype`` can hold."""
    top = _FLOAT_MAX.get(dtype, math.inf)
    normal = rng.standard_normal(shape)
    match regime:
        case "normal":
            values = normal
        case "uniform":
            values = rng.random(shape)
        case "image":
            values = rng.random(shape) * min(255.0, top)
        case "sparse":
            values = np.where(rng.random(shape) < 0.9, 0.0, normal)
        case "negative":
            values = -np.abs(normal)
        case "ones":
            values = np.ones(shape)
        case "zeros":
            values = np.zeros(shape)
        case "tiny":
            values = normal * 10.0 ** rng.uniform(-6, -3, shape)
        case "large":
            # Moderate: products along a stack of convolutions must not overflow.
            values = normal * (1e3 if math.isinf(top) else min(100.0, top / 8))
        case "special" | "nonfinite":
            denormal = _DENORMAL.get(dtype, 1e-40)
            edges = [0.0, -0.0, denormal, -denormal, 1, -1, 2, -2, 3, 0.5, -0.5, 1.5, 2.5, -1.5]
            edges += [0.25, 1 / 3, 7, 16, 100, -100, 127, 128, 255]
            values = rng.choice(np.array(edges), shape)
            if regime == "nonfinite":
                odd = rng.choice(np.array([np.nan, np.inf, -np.inf]), shape)
                return np.where(rng.random(shape) < 0.1, odd, normal)
    return np.clip(values, -top, top)


def _integers(
    domain: Domain, shape: tuple[int, ...], regime: Regime, rng: np.random.Generator
) -> Any:
    """Integers in the domain's range; the regime says which part of the range."""
    low, high = domain.low, max(domain.high, domain.low + 1)
    rest = min(max(0, low), high - 1)
    quarter = max(1, (high - low) // 4)
    match regime:
        case "zeros":
            return np.full(shape, rest, object)
        case "ones":
            return np.full(shape, low + int(rng.integers(high - low)), object)
        case "tiny":
            high = min(high, low + quarter) if low >= 0 else min(high, 4)
            low = max(low, -3)
        case "large":
            low = high - quarter
        case "negative" if low < 0:
            high = min(high, 0)
        case "special":
            return rng.choice(np.array([low, high - 1, rest], object), shape)
        case _:
            pass
    dtype = np.uint64 if high > np.iinfo(np.int64).max else np.int64
    values = rng.integers(low, high, shape, dtype=dtype)
    return np.where(_few(shape, rng), values, rest) if regime == "sparse" else values


def _few(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """True at few places: from one of the first row's to a tenth of the last row's.

    A tenth of a long row is many: a sum over a vocabulary saturates what comes behind it.
    """
    length = shape[-1] if shape else 1
    rows = math.prod(shape[:-1])
    turns = (np.arange(rows) + 0.5) / max(1, rows)
    share = 0.1 * min(1.0, 10 / max(1, length)) ** (1 - turns)
    return rng.random(shape) < np.reshape(share, (*shape[:-1], *(1 for _ in shape[-1:])))


def _strings(
    domain: Domain, shape: tuple[int, ...], regime: Regime, rng: np.random.Generator
) -> np.ndarray:
    """Texts of a few words."""
    count = math.prod(shape)
    words = [*domain.values, *WORDS, *(_ODD_WORDS if regime == "special" else ())]
    lengths = {"zeros": (0, 1), "ones": (1, 2)}.get(regime, (1, 13))
    flat = np.empty(count, object)
    for i in range(count):
        flat[i] = " ".join(rng.choice(words, int(rng.integers(*lengths))))
    return flat.reshape(shape)


def _prefix_mask(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Ones, at least half of them, then zeros along the last axis."""
    # All zeros would mask everything, and a softmax over nothing is NaN for any optimizer.
    length = shape[-1] if shape else 1
    kept = rng.integers(max(1, (length + 1) // 2), length + 1, shape[:-1]) if length else 0
    return (np.arange(length) < np.expand_dims(kept, -1)).reshape(shape)


_BYTES_PER_ELEMENT = 24
"""A draw, what the regime makes of it, and the result of the input's type."""


def array_of(
    info: ValueInfo,
    shape: tuple[int, ...],
    domain: Domain,
    regime: Regime,
    rng: np.random.Generator,
) -> np.ndarray:
    """One input; refused where making it takes too much memory."""
    check_size(
        f"dataset 'random': input {info.name!r} of shape {list(shape)}",
        math.prod(shape) * _BYTES_PER_ELEMENT,
    )
    dtype = tensor_dtype(info)
    match domain.kind:
        case "float" if dtype.kind == "c":
            real = _floats("float", shape, regime, rng)
            values = real + 1j * _floats("float", shape, regime, rng)
        case "float":
            values = _floats(info.dtype, shape, regime, rng)
        case "bool":
            values = rng.random(shape) < 0.5
        case "range" | "length":
            values = _integers(domain, shape, regime, rng)
        case "choice":
            picks = rng.integers(len(domain.values), size=shape)
            values = np.array([*domain.values, None], object)[picks]
        case "text":
            values = _strings(domain, shape, regime, rng)
        case "mask":
            values = _prefix_mask(shape, rng)
        case "fixed":
            values = np.resize(np.array(domain.values), shape)
        case "recipe":
            assert domain.recipe is not None
            values = _follow_recipe(info, domain.recipe, shape, rng)
    return np.asarray(values).astype(dtype)


def _follow_recipe(
    info: ValueInfo, recipe: DeclaredValues, shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray:
    try:
        values = recipe.array(shape, rng)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"dataset 'random': the recipe of input {info.name!r} ({recipe.kind}) does not fit its "
            f"shape {list(shape)}: {error}"
        ) from error
    limits = _LIMITS.get(info.dtype)
    if limits is not None and values.dtype.kind in "iuf":
        # A draw from a normal distribution has no bounds, an integer type has.
        values = np.clip(np.rint(values), *limits)
    return values


_LIMITS = {
    name: (np.iinfo(name).min, np.iinfo(name).max)
    for name in ("int8", "int16", "int32", "uint8", "uint16", "uint32")
}


def describe(info: ValueInfo) -> str:
    """An input's type as ONNX text writes it: ``float[N,3]``."""
    if info.shape is None:
        return f"{info.dtype}[...]"
    return f"{info.dtype}[{','.join('?' if d is None else str(d) for d in info.shape)}]"
