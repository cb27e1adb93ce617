"""Sources of converters that are made by Python: a function in a file, and what lies beside it.

The file is executed, so this is called in worker processes alone.
"""

from __future__ import annotations

import importlib
import inspect
import random
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from optvet.spec.converters import Factory, SourceFacts
from optvet.spec.errors import InputError, UsageError
from optvet.spec.foreign import read_file
from optvet.spec.types import Artifact

_WORDS = 300


@dataclass(frozen=True)
class FactoryResult:
    """What a factory made, and how it is called.

    Attributes:
        model: What the function returned.
        arguments: Example inputs as they were given: arrays or the framework's own tensors.
        named: Whether they are passed by name.
        facts: The same as arrays.
        call: ``run(model, *inputs)`` of the function or its file, in place of calling the model;
            None without.
    """

    model: Any
    arguments: Mapping[str, Any]
    named: bool
    facts: SourceFacts
    call: Callable[..., Any] | None


def call_registering(reference: str) -> None:
    """Call ``MODULE:FUNCTION`` or ``FILE.py:FUNCTION``, which registers converters with a library.

    Raises:
        UsageError: It cannot be found, or fails.
    """
    place, _, name = reference.rpartition(":")
    try:
        is_file = place.endswith(".py")
        module = execute_file(Path(place)) if is_file else importlib.import_module(place)
        function = getattr(module, name)
    except Exception as error:
        raise UsageError(
            f"--register {reference}: {_words(error)}; write it as MODULE:FUNCTION or "
            "FILE.py:FUNCTION"
        ) from error
    try:
        function()
    except Exception as error:
        raise UsageError(
            f"--register {reference}: {name}() fails: {_words(error)}; it takes no arguments and "
            "registers converters with their library"
        ) from error


def load_factory(
    artifact: Artifact,
    seed: Callable[[int], object] = lambda number: None,
    tensor: Callable[[Any], Any] | None = None,
) -> FactoryResult:
    """Execute the file of ``artifact`` and call its factory.

    Beside the factory the file has ``example_inputs``, and may have ``more_inputs`` and
    ``dynamic_axes``: values, or functions without arguments. In place of the latter it may have
    ``dynamic_shapes``, as ``torch.export.export`` takes them. ``run(model, *inputs)`` says how the
    model is called, if not as ``model(*inputs)``.

    Args:
        artifact: A source with a ``path`` and a ``Factory`` as its handle.
        seed: Seeds the framework's own random numbers.
        tensor: Makes the framework's tensors of arrays of numpy, which it does not take itself.

    Raises:
        InputError: The file, the factory or the inputs cannot be used.
    """
    path, factory = artifact.path, artifact.handle
    assert path is not None
    assert isinstance(factory, Factory)
    where = f"{path.name}:{factory.name}"
    _seed_all(factory.seed, seed)
    module = execute_file(path)
    function = getattr(module, factory.name, None)
    if not callable(function):
        known = [n for n, v in vars(module).items() if inspect.isfunction(v) and n[0] != "_"]
        has = ", ".join(sorted(known)[:8]) or "no function"
        raise InputError(f"{path}: there is no function {factory.name!r}; it has {has}")
    _refuse_arguments(where, function)
    _seed_all(factory.seed, seed)
    model = _call(f"{where}()", function)
    if model is None:
        raise InputError(f"{where}() returned None; it must return the model")
    examples = _beside(module, function, "example_inputs")
    if examples is None:
        raise InputError(
            f"{where} has no example inputs: define example_inputs beside it, a tuple of what the "
            "model is called with, or a dictionary by name"
        )
    arguments, named = _arguments(where, "example_inputs", examples, _names(model))
    more = _beside(module, function, "more_inputs") or ()
    others = [_arguments(where, "more_inputs", m, tuple(arguments))[0] for m in more]
    facts = SourceFacts(
        _arrays(where, arguments),
        tuple(_arrays(where, o) for o in others),
        _dynamic(
            where,
            _beside(module, function, "dynamic_axes")
            or _axes_of(_beside(module, function, "dynamic_shapes"), tuple(arguments)),
            arguments,
        ),
    )
    if tensor is not None:
        arguments = {name: _as_tensor(v, tensor) for name, v in arguments.items()}
    call = getattr(function, "run", getattr(module, "run", None))
    return FactoryResult(model, arguments, named, facts, call if callable(call) else None)


def _as_tensor(value: Any, tensor: Callable[[Any], Any]) -> Any:
    return tensor(value) if isinstance(value, (np.ndarray, np.generic)) else value


def _names(model: Any) -> list[str]:
    """Names of what a model is called with, as far as its signature tells."""
    try:
        parameters = inspect.signature(getattr(model, "forward", model)).parameters.values()
    except (TypeError, ValueError):
        return []
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in plain]


def _seed_all(number: int, seed: Callable[[int], object]) -> None:
    random.seed(number)
    np.random.seed(number)
    seed(number)


def output_names(paths: Sequence[Sequence[object]]) -> list[str]:
    """Names of the outputs of a model that returns them in dictionaries, lists and objects.

    Args:
        paths: For each output the keys, attributes and numbers that lead to it, outermost first.

    Returns:
        The path with dots, if a key or an attribute is on it; else ``output_`` and its number.
    """
    named = [any(isinstance(part, str) for part in path) for path in paths]
    names = [
        ".".join(map(str, path)) if is_named else f"output_{i}"
        for i, (path, is_named) in enumerate(zip(paths, named, strict=True))
    ]
    unique = len(set(names)) == len(names) and all(names)
    return names if unique else [f"output_{i}" for i in range(len(names))]


def execute_file(path: Path) -> types.ModuleType:
    """Execute a Python file that the user trusts; its folder is searched last for its imports.

    Raises:
        InputError: The code fails.
    """
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    # Classes of the module are pickled by its name, and dataclasses look it up.
    sys.modules[path.stem] = module
    try:
        exec(compile(read_file(path), str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        raise InputError(f"{path} cannot be executed: {_words(error)}; mend it") from error
    return module


def _refuse_arguments(where: str, function: Callable[..., Any]) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    wanted = [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]
    if wanted:
        raise InputError(
            f"{where} needs arguments ({', '.join(wanted)}); write a function without any that "
            "calls it"
        )


def _call(what: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise InputError(f"{what} fails: {_words(error)}; mend it") from error


def _beside(module: Any, function: Any, name: str) -> Any:
    """What the factory, or else the file, has by ``name``; called if it is a function."""
    value = getattr(function, name, None)
    value = getattr(module, name, None) if value is None else value
    return _call(f"{name}()", value) if callable(value) else value


def _arguments(
    where: str, what: str, arguments: Any, names: Sequence[str]
) -> tuple[dict[str, Any], bool]:
    if isinstance(arguments, Mapping):
        return {str(k): v for k, v in arguments.items()}, True
    if hasattr(arguments, "shape"):
        arguments = (arguments,)
    if not isinstance(arguments, (tuple, list)) or not arguments:
        kind = type(arguments).__name__
        raise InputError(
            f"{where}: {what} is {kind}, expected a tuple of arrays, or a dictionary by name"
        )
    known = [names[i] if i < len(names) else f"input_{i}" for i in range(len(arguments))]
    return dict(zip(known, arguments, strict=True)), False


def _arrays(where: str, arguments: Mapping[str, Any]) -> dict[str, np.ndarray]:
    arrays = {}
    for name, value in arguments.items():
        try:
            arrays[name] = np.asarray(value.detach() if hasattr(value, "detach") else value)
        except Exception as error:
            words = f"{where}: input {name!r} is no array: {_words(error)}"
            raise InputError(f"{words}; give arrays or tensors") from error
    return arrays


def _axes_of(shapes: Any, names: Sequence[str]) -> dict[str, dict[int, str]]:
    """``dynamic_axes`` of ``dynamic_shapes``: by name or in order, for each axis what is open."""
    if shapes is None:
        return {}
    listed = shapes if isinstance(shapes, Mapping) else dict(zip(names, shapes, strict=False))
    found = {}
    for name, each in listed.items():
        sizes = each if isinstance(each, Mapping) else dict(enumerate(each or ()))
        sizes = {axis: _size_name(f"{name}_{axis}", size) for axis, size in sizes.items()}
        found[name] = {axis: size for axis, size in sizes.items() if size}
    return {name: axes for name, axes in found.items() if axes}


def _size_name(place: str, size: Any) -> str:
    """The name of a size that may change: its own, or of an unnamed one its place; else empty."""
    if size is None or isinstance(size, int) or "STATIC" in str(size):
        return ""
    return str(size if isinstance(size, str) else getattr(size, "__name__", place))


def _dynamic(where: str, dynamic_axes: Any, inputs: Mapping[str, Any]) -> dict[str, dict[int, str]]:
    """Names of sizes by input and axis; a list of axes gives each a name of its own."""
    found: dict[str, dict[int, str]] = {}
    for name, axes in (dynamic_axes or {}).items():
        if name not in inputs:
            known = ", ".join(inputs)
            raise InputError(f"{where}: dynamic_axes names {name!r}; the inputs are {known}")
        listed = axes if isinstance(axes, Mapping) else {a: f"{name}_{a}" for a in axes}
        rank = np.ndim(inputs[name])
        for axis, size in listed.items():
            if not isinstance(axis, int) or not 0 <= axis < rank:
                raise InputError(
                    f"{where}: dynamic_axes gives {name!r} axis {axis!r}; it has axes 0 to "
                    f"{rank - 1}"
                )
            found.setdefault(name, {})[axis] = str(size)
    return found


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())[:_WORDS]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
