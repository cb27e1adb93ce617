"""Cases of a folder of conversion faults as sources that ``optvet convert`` takes.

A case module makes a model and calls a function that converts and compares it (``observe``, ``skl``
or ``boost``). Here these functions note what they are given, and do nothing. Of a module that calls
none of them, the model is looked for in what it gives to ``differential``. A module with
``source_of`` tells model and inputs itself. This module is imported
in worker processes: it executes code of the cases.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from pydantic import BaseModel, ConfigDict

from optvet.plugin import Artifact, ConversionStage

PLANTED = "planted_in_torch"
SOURCE = """\
import sys

sys.path[:0] = [{benchmarks!r}]
import conversion_source

case = conversion_source.given({folder!r}, {module!r}, {id!r})
example_inputs, more_inputs = case.inputs[0], case.inputs[1:]
dynamic_axes = case.dynamic


def source():
    return case.model
"""


@dataclass(frozen=True)
class Given:
    """What a case converts: a model, its inputs, and how.

    Attributes:
        model: The module, estimator or ONNX model.
        inputs: Each a tuple of what the model is called with.
        dynamic: Axes that may change, by the name of an input.
        options: Options of the converter.
    """

    model: Any
    inputs: Sequence[tuple[Any, ...]]
    dynamic: dict[str, dict[int, str]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


class _Noted(Exception):
    """Ends a case as soon as it has told what it converts."""

    def __init__(self, given: Given) -> None:
        super().__init__()
        self.given = given


def given(folder: str, module: str, id: str) -> Given:
    """What the case converts."""
    sys.path[:0] = [folder, str(Path(__file__).parent)]
    cases = importlib.import_module(module)
    if hasattr(cases, "source_of"):
        made = cases.source_of(id)
        return Given(made.model, made.inputs, dict(made.dynamic or {}))
    if hasattr(cases, "build"):
        source, _, _, feeds = cases.build(id.removeprefix("planted_"))
        return Given(source, [tuple(feeds)])
    for name, note in _NOTES.items():
        if hasattr(cases, name):
            setattr(cases, name, lambda *a, _note=note, **k: _note(cases, *a, **k))
    if hasattr(cases, "differential"):
        setattr(cases, "differential", _compared)  # noqa: B010 -- the module is the user's
    try:
        importlib.import_module("common").CASES[id].observe()
    except _Noted as noted:
        return noted.given
    raise LookupError(f"{module} {id}: it calls none of {', '.join(_NOTES)}")


def options_of(folder: str, module: str, id: str) -> dict[str, Any]:
    """Options of the converter that the case asks for; it is executed for that."""
    return given(folder, module, id).options


def files_of(folder: str, module: str, id: str, target: str) -> dict[str, Any]:
    """A model in ONNX as a file in ``target``, with its inputs: parts of a request.

    Empty for a model of another kind, which is made where it is used.
    """
    case = given(folder, module, id)
    if not isinstance(case.model, onnx.ModelProto):
        return {}
    place = Path(target) / id
    place.mkdir(parents=True)
    onnx.save(case.model, place / "model.onnx")
    weights = {t.name for t in case.model.graph.initializer}
    names = [i.name for i in case.model.graph.input if i.name not in weights]
    for i, values in enumerate(case.inputs):
        np.savez(place / f"{i}.npz", **dict(zip(names, values, strict=True)))
    return {"model": str(place / "model.onnx"), "dataset": (f"files:{place}",)}


def _module(
    cases: Any,
    module: Any,
    args: Any,
    others: Any = (),
    *,
    dynamo: bool = True,
    optimize: bool = True,
    dyn: Any = None,
    tol: float = 0.0,
) -> None:
    """``observe`` of a module in PyTorch, or of a model in ONNX."""
    import torch

    if isinstance(module, onnx.ModelProto):
        raise _Noted(Given(module, [tuple(s) for s in args]))
    model = module if isinstance(module, torch.nn.Module) else cases.Fn(module)
    plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [
        p.name for p in inspect.signature(model.forward).parameters.values() if p.kind == plain
    ]
    dynamic = {(names or ["input_0"])[0]: dict(dyn)} if dyn else {}
    options = {"optimize": optimize} if dynamo and not optimize else {}
    raise _Noted(Given(model, [tuple(args), *map(tuple, others)], dynamic, options))


def _estimator(
    cases: Any,
    model: Any,
    x: Any = None,
    tol: float = 0.0,
    init: Any = None,
    reference: Any = None,
    samples: Any = None,
    options: bool = True,
) -> None:
    """``skl`` of an estimator."""
    inputs = [tuple(s) for s in samples] if samples else [(cases.T if x is None else x,)]
    raise _Noted(Given(model, inputs, {}, {"opset": 21, "ml_opset": 3}))


def _booster(cases: Any, convert: Any, model: Any, x: Any = None, *_: Any, **__: Any) -> None:
    """``boost`` of an estimator of another library."""
    raise _Noted(Given(model, [(cases.T if x is None else x,)], {}, {"opset": 15}))


def _of_tensorflow(
    cases: Any,
    source: Any,
    samples: Any,
    via: str,
    *,
    tol: float = 0.0,
    concrete: bool = False,
    settings: Any = None,
) -> None:
    """``observe`` of a Keras model, or of a function of tensors."""
    import tensorflow as tf

    inputs = [tuple(s) for s in samples]
    if via == cases.LITE:
        options = {"concrete": True} if concrete else {}
        raise _Noted(Given(source, inputs, {}, options | _lite_options(settings or {})))
    if via == cases.EXPORT:
        raise _Noted(Given(source, inputs))
    if via == cases.TF2:
        raise _Noted(Given(source, inputs, {}, {"opset": 18}))
    model = source if isinstance(source, cases.keras.Model) else None
    called = source if model is None else lambda x: model(x, training=False)
    signature = [tf.TensorSpec(a.shape, a.dtype, name=f"x{i}") for i, a in enumerate(inputs[0])]
    function = tf.function(called, input_signature=signature)
    lite = cases.to_tflite(function, model, settings=settings)
    raise _Noted(Given(lite, inputs, {}, {"opset": 18}))


def _lite_options(settings: dict[str, Any]) -> dict[str, Any]:
    """Attributes of ``TFLiteConverter`` as options of its plugin."""
    options: dict[str, Any] = {}
    for name, value in settings.items():
        if name == "optimizations":
            options["optimize"] = bool(value)
        elif name == "target_spec":
            types = [t.name for t in value.supported_types]
            options["float16"] = types == ["float16"]
            options["select_tf_ops"] = "SELECT_TF_OPS" in str(value.supported_ops)
        elif name == "representative_dataset":
            options["calibrate"] = value is not None
        elif name == "allow_custom_ops":
            options[name] = bool(value)
        else:
            options.setdefault("attributes", {})[name] = value
    return options


def _observed(cases: Any, *args: Any, **more: Any) -> None:
    """``observe``, by the framework of the module."""
    (_of_tensorflow if hasattr(cases, "keras") else _module)(cases, *args, **more)


def _compared(reference: Any, convert: Any, load: Any, samples: Any, **_: Any) -> None:
    """``differential`` of a model that the functions given to it remember."""
    import torch

    for value in _remembered((convert, reference, load), 4):
        if isinstance(value, (torch.nn.Module, onnx.ModelProto)):
            raise _Noted(Given(value, [tuple(s) for s in samples]))
    raise LookupError("neither a module of PyTorch nor a model in ONNX is found in it")


def _remembered(values: Any, depth: int) -> Iterator[Any]:
    """Values of variables that functions read from around them, and of their defaults."""
    for value in values:
        yield value
        if depth and inspect.isfunction(value):
            around = inspect.getclosurevars(value).nonlocals
            defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
            yield from _remembered((*around.values(), *defaults), depth - 1)


_NOTES = {"observe": _observed, "skl": _estimator, "boost": _booster}


class NoOptions(BaseModel):
    """Nothing to choose."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PlantedConverter:
    """Gives the faulty model of a planted case, whatever it is asked to convert."""

    name = PLANTED
    consumes = frozenset({"torch", "estimator"})
    produces = "onnx"
    preload: Sequence[str] = ("torch",)
    options = NoOptions()

    def __init__(self, folder: Path, module: str, id: str) -> None:
        self.folder, self.module, self.id = folder, module, id

    def version(self) -> str:
        """There is no library underneath."""
        return "-"

    def stages(self, options: NoOptions) -> Sequence[ConversionStage]:
        """One stage."""
        return [ConversionStage("convert", "convert", "onnx")]

    def convert(self, source: Artifact, options: NoOptions, folder: Path) -> Iterator[Artifact]:
        """The faulty model."""
        sys.path[:0] = [str(self.folder), str(Path(__file__).parent)]
        cases = importlib.import_module(self.module)
        if hasattr(cases, "source_of"):
            faulty = cases.source_of(self.id).converted
        else:
            _, _, faulty, _ = cases.build(self.id.removeprefix("planted_"))
        yield Artifact("onnx", faulty.SerializeToString())
