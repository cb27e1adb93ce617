"""Models of Keras and TensorFlow as functions of arrays, and as concrete functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from optvet.plugin import Artifact, InputError, SourceFacts, load_factory

TF = "tf"
_ROWS = 2
_SIZE = 4
"""Sizes of drawn inputs where a model leaves them open: rows, and other axes."""


@dataclass(frozen=True)
class Spec:
    """One input: its name, its type, and its shape with None where a size may change."""

    name: str
    dtype: Any
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class TensorFlowProgram:
    """A model, and how it is called.

    Attributes:
        model: A Keras model, a module, or a function.
        specs: Its inputs in order.
        facts: Example inputs.
        named: Whether a function takes its inputs by name.
        call: ``run(model, *inputs)`` of the file; None without.
        owner: What has the variables of the model, which does not keep them itself.
    """

    model: Any
    specs: tuple[Spec, ...]
    facts: SourceFacts
    named: bool = False
    call: Any = None
    owner: Any = None

    @property
    def is_keras(self) -> bool:
        """Whether it is a Keras model."""
        return is_keras(self.model)

    def __call__(self, *values: Any) -> Any:
        """What the model returns for tensors or arrays in order."""
        tf = tensorflow()
        tensors = [
            tf.cast(v, s.dtype)
            if isinstance(v, tf.Tensor)
            else tf.constant(np.asarray(v).astype(object) if _is_text(v) else v, s.dtype)
            for v, s in zip(values, self.specs, strict=True)
        ]
        if self.call is not None:
            return self.call(self.model, *tensors)
        if self.is_keras:
            return self._of_keras(tensors)
        if self.named:
            return self.model(**{s.name: v for s, v in zip(self.specs, tensors, strict=True)})
        return self.model(*tensors)

    def _of_keras(self, tensors: Sequence[Any]) -> Any:
        import keras

        if not _is_functional(self.model):
            return self.model(*tensors, training=False)
        structure = getattr(self.model, "_inputs_struct", None)
        if structure is None:
            return self.model(tensors[0] if len(tensors) == 1 else list(tensors), training=False)
        return self.model(keras.tree.pack_sequence_as(structure, list(tensors)), training=False)

    @cached_property
    def function(self) -> Any:
        """The model as a ``tf.function`` whose inputs have names, types and open sizes."""
        tf = tensorflow()
        return tf.function(lambda *values: self(*values), input_signature=self.signature)

    @property
    def signature(self) -> list[Any]:
        """The inputs as TensorFlow declares them."""
        tf = tensorflow()
        return [tf.TensorSpec(s.shape, s.dtype, name=_identifier(s.name)) for s in self.specs]


def tensorflow() -> Any:
    """The library, which takes seconds to import."""
    import tensorflow

    import optvet_tensorflow.start  # noqa: F401  (sets variables first)

    return tensorflow


def is_keras(model: Any) -> bool:
    """Whether ``model`` is of Keras."""
    import keras

    return isinstance(model, keras.Model)


def _is_functional(model: Any) -> bool:
    import keras

    return isinstance(model, (keras.Sequential, keras.src.models.Functional))


def _is_text(value: Any) -> bool:
    return np.asarray(value).dtype.kind in "OSU"


def _identifier(name: str) -> str:
    """A name that TensorFlow allows."""
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name)


def program_of(artifact: Artifact) -> TensorFlowProgram:
    """The model that a factory makes, or that a file or a folder holds.

    Raises:
        InputError: It cannot be loaded, or is no model.
    """
    if artifact.handle is not None:
        return _make(artifact)
    path = artifact.path
    assert path is not None
    model = _load_saved(path)
    if is_keras(model):
        specs = _keras_specs(model, str(path))
        return TensorFlowProgram(model, specs, _draw(specs))
    function, specs = _signature(model, path)
    return TensorFlowProgram(function, specs, _draw(specs), named=True, owner=model)


def _make(artifact: Artifact) -> TensorFlowProgram:
    tensorflow()
    import keras

    assert artifact.path is not None
    keras.backend.clear_session()  # Names are numbered anew.
    loaded = load_factory(artifact, keras.utils.set_random_seed)
    where = f"{artifact.path.name}:{artifact.handle.name}()"
    if not callable(loaded.model):
        kind = type(loaded.model).__name__
        raise InputError(
            f"{where} returned a {kind}, expected a Keras model, a tf.Module or a function"
        )
    if is_keras(loaded.model) and _is_functional(loaded.model) and loaded.model.inputs:
        specs = _keras_specs(loaded.model, where)
        names = [s.name for s in specs]
        facts = _rename(loaded.facts, names, loaded.named, where)
        dynamic = loaded.facts.dynamic or {s.name: _open(s) for s in specs}
        facts = replace(facts, dynamic=dynamic if set(dynamic) <= set(names) else {})
        return TensorFlowProgram(loaded.model, specs, facts, call=loaded.call)
    facts = loaded.facts
    specs = tuple(
        Spec(
            name,
            tensorflow().as_dtype("string" if _is_text(value) else value.dtype),
            tuple(
                None if axis in facts.dynamic.get(name, {}) else size
                for axis, size in enumerate(value.shape)
            ),
        )
        for name, value in facts.inputs.items()
    )
    program = TensorFlowProgram(loaded.model, specs, facts, loaded.named, loaded.call)
    if is_keras(loaded.model):
        # A model that was never called has no weights yet.
        program(*facts.inputs.values())
    return program


def _rename(facts: SourceFacts, names: Sequence[str], named: bool, where: str) -> SourceFacts:
    """The inputs under the model's own names, in its order."""

    def under(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if len(inputs) != len(names):
            raise InputError(
                f"{where}: {len(inputs)} example inputs, but the model has {len(names)}: "
                f"{', '.join(names)}"
            )
        if named and set(inputs) == set(names):
            return {name: inputs[name] for name in names}
        return dict(zip(names, inputs.values(), strict=True))

    return SourceFacts(under(facts.inputs), tuple(under(o) for o in facts.others), facts.dynamic)


def _keras_specs(model: Any, where: str) -> tuple[Spec, ...]:
    inputs = getattr(model, "inputs", None)
    if not inputs:
        raise InputError(
            f"{where}: this model does not declare its inputs; write a function that loads it, "
            "with example_inputs beside it"
        )
    tf = tensorflow()
    return tuple(
        Spec(_own_name(t.name, i), tf.as_dtype(t.dtype), tuple(t.shape))
        for i, t in enumerate(inputs)
    )


def _own_name(name: str, place: int) -> str:
    """The name of an input; Keras numbers those without one through all models of a process."""
    return f"input_{place}" if re.fullmatch(r"keras_tensor(_\d+)?", name) else name


def _open(spec: Spec) -> dict[int, str]:
    return {
        axis: f"{spec.name}_{axis}" if axis else "batch"
        for axis, size in enumerate(spec.shape)
        if size is None
    }


def _load_saved(path: Path) -> Any:
    tf = tensorflow()
    try:
        if path.is_dir():
            return tf.saved_model.load(str(path))
        import keras

        return keras.saving.load_model(str(path), compile=False, safe_mode=True)
    except Exception as error:
        words = " ".join(str(error).split())[:300]
        raise InputError(
            f"{path} cannot be loaded: {type(error).__name__}: {words}; give a .keras file or the "
            "folder of a SavedModel"
        ) from error


def _signature(model: Any, path: Path) -> tuple[Any, tuple[Spec, ...]]:
    known = dict(getattr(model, "signatures", {}))
    function = known.get("serving_default") or next(iter(known.values()), None)
    if function is None:
        raise InputError(f"{path} has no signature; save the model with one (signatures=…)")
    specs = function.structured_input_signature[1]
    listed = tuple(Spec(name, s.dtype, tuple(s.shape)) for name, s in sorted(specs.items()))
    return function, listed


def _draw(specs: Sequence[Spec]) -> SourceFacts:
    """Inputs of a file, which brings none: drawn from a normal distribution, integers 0 and 1."""
    rng = np.random.default_rng(0)
    inputs = {}
    for s in specs:
        shape = [_size(axis) if size is None else size for axis, size in enumerate(s.shape)]
        kind = s.dtype.as_numpy_dtype
        if s.dtype.is_floating:
            inputs[s.name] = rng.normal(size=shape).astype(kind)
        elif s.dtype.is_integer or s.dtype.is_bool:
            inputs[s.name] = rng.integers(0, 2, shape).astype(kind)
        else:
            raise InputError(
                f"input {s.name!r} is of {s.dtype.name}, which cannot be drawn; write a function "
                "that loads the model, with example_inputs beside it"
            )
    return SourceFacts(inputs, (), {s.name: _open(s) for s in specs})


def _size(axis: int) -> int:
    return _SIZE if axis else _ROWS
