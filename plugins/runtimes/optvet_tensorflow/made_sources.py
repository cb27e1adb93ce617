"""Sources for hunts: layers of Keras in settings that fit their defaults, as Python files.

The default of a setting says what it may be; the number of a sample decides which settings are
given, and the shape of the input. A layer counts if Keras builds it.
"""

from __future__ import annotations

import functools
import inspect
import random
import warnings
from collections.abc import Mapping, Sequence
from inspect import Parameter
from pathlib import Path
from typing import Any

import numpy as np

from optvet.plugin import Feeds, SourceStep

_TYPES = ("float32", "int32")
_SHAPES = ((6, 3), (5, 4, 3), (4,), (6, 6, 2), (3, 4, 4, 2), (7, 4))
_ROWS = 2
_TRIES = 12
_MOST_GIVEN = 3
_PARTS = 64
"""Floats are multiples of a 64th."""
_LEFT_OUT = frozenset(
    {"name", "dtype", "seed", "trainable", "stateful", "implementation", "sparse"}
)
"""Settings without an effect on numbers, or that give something else than an array of them."""
_ACTIVATIONS = ("relu", "elu", "gelu", "silu", "softmax", "tanh", "selu", "softplus", "mish")
_WORDS: Mapping[str, Sequence[Any]] = {
    "padding": ("same", "valid", "causal"),
    "data_format": ("channels_first",),
    "activation": (*_ACTIVATIONS, "leaky_relu", "hard_sigmoid", "relu6", "exponential"),
    "recurrent_activation": ("hard_sigmoid", "tanh", "relu"),
    "interpolation": ("nearest", "bicubic", "lanczos3", "bilinear"),
    "output_mode": ("one_hot", "multi_hot", "count"),
    "merge_mode": ("sum", "mul", "ave"),
    "score_mode": ("concat",),
    "fill_mode": ("reflect", "wrap", "nearest"),
    "layer": ("keras.layers.Dense(3)", "keras.layers.LSTM(3)", "keras.layers.Conv1D(2, 2)"),
    "cell": ("keras.layers.LSTMCell(3)", "keras.layers.GRUCell(2)"),
    "dims": ((2, 1), (2, 1, 3), (3, 1, 2)),
    "target_shape": ((-1,), (2, -1), (-1, 3)),
    "axes": (1, 2, (1, 2), (2, 1)),
    "max_value": (1.0, 6.0),
    "strides": (2, 3),
}
"""What a setting may be whose default does not tell."""
_INTEGERS, _FLOATS = (2, 3, 1, 4), (0.5, 2.0, 0.25, 0.0)
_SOURCE = '''\
"""{title}"""

from pathlib import Path

import keras
import numpy as np

HERE = Path(__file__).resolve().parent
example_inputs = (
{inputs}
)


def part():
{lines}
    rng = np.random.default_rng(0)
    for weight in model.weights:
        # What is not trained may be a variance.
        drawn = rng.integers(-64 if weight.trainable else 1, 65, weight.shape)
        weight.assign(drawn / 64)
    return model
'''


@functools.cache
def _layers() -> Mapping[str, type]:
    """Layers by name; each once."""
    import keras

    found: dict[str, type] = {}
    for name in sorted(vars(keras.layers)):
        kind = getattr(keras.layers, name)
        if isinstance(kind, type) and issubclass(kind, keras.layers.Layer):
            if kind not in found.values():
                found[name] = kind
    return found


def operators() -> dict[str, list[str]]:
    """Element types of inputs for each layer."""
    return {name: list(_TYPES) for name in _layers()}


def write_source(
    steps: Sequence[SourceStep], dynamic: bool, folder: Path, feeds: Feeds | None = None
) -> str | None:
    """Write ``part.py``; None if the layers do not fit each other or their inputs."""
    lines: list[str] = []
    inputs: list[np.ndarray] = []
    for number, step in enumerate(steps):
        if not _add(step, number, dynamic, inputs, lines):
            return None
    given = inputs if feeds is None else list(feeds.values())
    text = _SOURCE.format(
        title=" → ".join(step.operator for step in steps),
        inputs="\n".join(f"    {_literal(value)}," for value in given),
        lines=_body(lines, len(inputs)),
    )
    (folder / "part.py").write_text(text, "utf-8")
    return "part.py"


def _add(
    step: SourceStep, number: int, dynamic: bool, inputs: list[np.ndarray], lines: list[str]
) -> bool:
    """Write a layer that Keras builds, of several that are drawn."""
    draw = random.Random(f"{step.operator} {step.dtype} {step.sample}")
    before = _built(lines, len(inputs)) if number else None
    for _ in range(_TRIES):
        shape = draw.choice(_SHAPES) if before is None else tuple(before.outputs[0].shape[1:])
        if None in shape:
            return False
        read = [f"y{number - 1}"] if number else []
        made: list[np.ndarray] = []
        more = list(lines)
        for _ in range(draw.choice((1, 1, 1, 2)) - len(read)):
            name = f"x{len(inputs) + len(made)}"
            made.append(_drawn(draw, step.dtype, shape))
            open_shape = (None, *shape[1:]) if dynamic and len(shape) > 1 else shape
            kind = "" if step.dtype == "float32" else f', dtype="{step.dtype}"'
            more.append(f"{name} = keras.Input({open_shape}{kind})")
            read.append(name)
        arguments = ", ".join(read)
        if len(read) > 1 and draw.random() < 0.5:
            arguments = f"[{arguments}]"
        more.append(f"y{number} = {_layer(step.operator, draw)}({arguments})")
        if _is_built(more, len(inputs) + len(made)):
            inputs += made
            lines[:] = more
            return True
    return False


def _layer(name: str, draw: random.Random) -> str:
    """The call that makes a layer, in its usual settings or some of the others."""
    known = inspect.signature(_layers()[name]).parameters.values()
    named = [p for p in known if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]
    given = [p for p in named if p.default is Parameter.empty]
    others = [p for p in named if p.default is not Parameter.empty and _may_differ(p)]
    given += draw.sample(others, min(draw.randint(0, _MOST_GIVEN), len(others)))
    return f"keras.layers.{name}({', '.join(f'{p.name}={_value(p, draw)}' for p in given)})"


def _may_differ(parameter: Parameter) -> bool:
    name, default = parameter.name, parameter.default
    if name in _LEFT_OUT or name.endswith(("initializer", "regularizer", "constraint")):
        return False
    return name in _WORDS or isinstance(default, (bool, int, float, tuple))


def _value(parameter: Parameter, draw: random.Random) -> str:
    name, default = parameter.name, parameter.default
    if name in _WORDS and not (name == "padding" and not isinstance(default, str)):
        value = draw.choice(_WORDS[name])
        return value if str(value).startswith("keras.") else repr(value)
    if isinstance(default, bool):
        return repr(not default)
    if isinstance(default, float) or name == "rate":
        return repr(draw.choice(_FLOATS))
    if isinstance(default, tuple):
        return repr(_like(default, draw))
    return repr(draw.choice((*_INTEGERS, -1, 0) if isinstance(default, int) else _INTEGERS))


def _like(value: tuple[Any, ...], draw: random.Random) -> tuple[Any, ...]:
    """A tuple of the same form."""
    return tuple(_like(v, draw) if isinstance(v, tuple) else draw.choice((1, 2, 0)) for v in value)


def _body(lines: Sequence[str], count: int) -> str:
    names = ", ".join(f"x{i}" for i in range(count))
    last = lines[-1].partition(" = ")[0]
    return "\n".join(f"    {line}" for line in [*lines, f"model = keras.Model([{names}], {last})"])


def _is_built(lines: list[str], count: int) -> bool:
    """Whether Keras builds the layers; of several results of the last the first one is taken.

    The first axis of an input is that of the rows, as many as one likes. What takes it for another
    one, such as the height of a single image, gives a number of rows that is fixed.
    """
    try:
        model = _built(lines, count)
        if len(model.outputs) > 1:
            lines[-1] += "[0]"
        return all(output.shape[0] is None for output in model.outputs)
    except Exception:
        # Whatever a layer raises in settings or on inputs that it does not take.
        return False


def _built(lines: Sequence[str], count: int) -> Any:
    import keras

    scope: dict[str, Any] = {"keras": keras}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(f"def made():\n{_body(lines, count)}\n    return model", scope)
        return scope["made"]()


def _drawn(draw: random.Random, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(draw.randrange(1000))
    drawn = rng.integers(-128, 129, (_ROWS, *shape))
    return np.asarray(drawn / _PARTS if dtype == "float32" else np.abs(drawn) // 64, dtype)


def _literal(value: np.ndarray) -> str:
    """An array as Python."""
    listed = repr(value.tolist()).replace("nan", "np.nan").replace("inf", "np.inf")
    shape = f".reshape({value.shape})" if 0 in value.shape else ""
    return f'np.array({listed}, "{value.dtype}"){shape}'
