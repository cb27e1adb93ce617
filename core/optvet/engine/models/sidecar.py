"""Declarations about a model in a file beside it: its task, its inputs, its comparator.

A model ``m.onnx`` is described by ``m.toml`` in its folder::

    task = "image-classification"
    comparator = "classification"           # else chosen by the task, or by the outputs

    require = ["top1_agreement>=0.99"]      # what the optimized model must meet; also rtol, atol
    limits = "4 of its 24 layers"           # what a vet of it cannot say; told with each answer

    [comparator_options]
    topk = [1, 5]

    dataset = "images:photos"               # where inputs come from; a path within this folder

    [dataset_options]
    labels = "labels.csv"

    [preprocessing]
    preset = "imagenet"                     # a family of models; what else is said here wins
    size = [224, 224]                       # width, height
    resize = "crop"                         # "stretch", "crop", "letterbox" or "shorter" (side)
    crop = 0.875                            # part of the shorter side that "crop" keeps
    pad = 114.0                             # grey around a "letterbox", 0..255
    anchor = "center"                       # where the image is in it; or "corner"
    multiple = 32                           # sides of "shorter", or of open size, are multiples
    layout = "NCHW"                         # or "NHWC"
    channels = "RGB"                        # "RGB", "BGR", "GRAY" or "Y"
    scale = 0.00392156862745098             # 1. multiplies values of 0..255
    mean = [0.485, 0.456, 0.406]            # 2. is subtracted, per channel
    std = [0.229, 0.224, 0.225]             # 3. divides, per channel
    range = [0.0, 1.0]                      # what 1. makes of 0 and 255, instead of "scale"
    dtype = "float32"
    labels = "labels.txt"
    vocabulary = "vocabulary.json"

    [inputs.x]                              # for the dataset "random"
    kind = "uniform"                        # normal, uniform, randint, const, choice, prefix_mask
    low = 0.0
    high = 1.0
    shape = [1, 3, 224, 224]                # sizes of the dimensions that the model leaves open

A folder of models may have one catalogue instead, ``models.json``: a list of objects with ``file``
and any of ``task``, ``preprocessing`` (in words), ``labels``, ``vocabulary``, ``input_spec``,
``dataset`` and ``suggested_comparator``, whose ``kind`` selects a comparator. If there is a TOML
file too, it takes precedence. Everything that is not declared is inferred.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from optvet.spec.errors import InputError
from optvet.spec.parsing import read_json, read_toml
from optvet.spec.request import Requirements, Tolerances
from optvet.spec.types import ModelConfig
from optvet.spec.validation_words import words_of
from optvet.spec.words import quote, show

CATALOGUE = "models.json"
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class _Strict(BaseModel):
    # Few models have a file beside them.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


_Shape = Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=16)] | None
_Numbers = float | list[float]


class _Normal(_Strict):
    kind: Literal["normal"]
    mean: _Numbers = 0.0
    std: _Numbers = 1.0
    shape: _Shape = None


class _Uniform(_Strict):
    kind: Literal["uniform"]
    low: _Numbers = 0.0
    high: _Numbers = 1.0
    shape: _Shape = None


class _Randint(_Strict):
    kind: Literal["randint"]
    low: int = 0
    high: int
    shape: _Shape = None


class _Const(_Strict):
    kind: Literal["const"]
    value: int | float | bool | str | list[int] | list[float]
    shape: _Shape = None


class _Choice(_Strict):
    kind: Literal["choice"]
    values: list[int | float | bool | str] = Field(min_length=1)
    shape: _Shape = None


class _PrefixMask(_Strict):
    kind: Literal["prefix_mask"]
    shape: _Shape = None


_Recipe = Annotated[
    _Normal | _Uniform | _Randint | _Const | _Choice | _PrefixMask, Field(discriminator="kind")
]
_RECIPE: TypeAdapter[Any] = TypeAdapter(_Recipe, config=ConfigDict(defer_build=True))


class Preprocessing(_Strict):
    """How an image becomes an input; the keys that a TOML may set."""

    preset: str | None = None
    size: tuple[int, int] | None = None
    resize: Literal["stretch", "crop", "letterbox", "shorter"] | None = None
    crop: Annotated[float, Field(gt=0, le=1)] | None = None
    pad: float | None = None
    anchor: Literal["center", "corner"] | None = None
    multiple: Annotated[int, Field(ge=1)] | None = None
    layout: Literal["NCHW", "NHWC"] | None = None
    channels: Literal["RGB", "BGR", "GRAY", "Y"] | None = None
    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    range: tuple[float, float] | None = None
    dtype: str | None = None
    labels: str | None = None
    vocabulary: str | None = None


class _Declared(_Strict):
    """The whole TOML."""

    task: str | None = None
    comparator: str | None = None
    comparator_options: dict[str, Any] = Field(default_factory=dict)
    preprocessing: Preprocessing = Preprocessing()
    inputs: dict[str, _Recipe] = Field(default_factory=dict)
    dataset: str | None = None
    dataset_options: dict[str, Any] = Field(default_factory=dict)
    require: Requirements = ()
    rtol: Tolerances = ()
    atol: Tolerances = ()
    limits: Annotated[str, Field(max_length=500)] = ""


def config_for(path: Path) -> ModelConfig:
    """Declarations about the model in the file ``path``; empty if there are none.

    Raises:
        InputError: A declaration is invalid.
    """
    beside = path.with_suffix(".toml")
    if os.path.isfile(beside) and beside != path:
        return _from_toml(beside)
    for catalogue in places_of(path)[1:]:
        if os.path.isfile(catalogue):
            entry = _entry(catalogue, path.absolute().relative_to(catalogue.parent).as_posix())
            if entry is not None:
                return _from_entry(catalogue, entry)
    return ModelConfig()


def places_of(path: Path) -> list[Path]:
    """Where declarations about the model in the file ``path`` are looked for."""
    absolute = path.absolute()
    # A model with external data may have a folder of its own below the catalogue's.
    catalogues = [folder / CATALOGUE for folder in absolute.parents[:2]]
    return [absolute.with_suffix(".toml"), *catalogues]


# ── The TOML ───────────────────────────────────────────────────────────────────────────────────


def _from_toml(file: Path) -> ModelConfig:
    data = read_toml(file, "record")
    for key, value in data.items():
        if value == "":
            words = f"{file}: key {quote(key)} is empty; give a value, or leave the key out"
            raise InputError(words)
    try:
        declared = _Declared.model_validate(data)
    except ValidationError as error:
        raise InputError(_complaint(file, error)) from error
    return ModelConfig(
        task=declared.task,
        comparator=declared.comparator,
        comparator_options=declared.comparator_options,
        preprocessing=declared.preprocessing.model_dump(exclude_none=True),
        inputs={n: r.model_dump(exclude_none=True) for n, r in declared.inputs.items()},
        dataset=declared.dataset,
        dataset_options=declared.dataset_options,
        require=declared.require,
        rtol=declared.rtol,
        atol=declared.atol,
        limits=declared.limits,
        origin=str(file),
    )


def _complaint(file: Path, error: ValidationError) -> str:
    """A message for the first error: file, key, value and what is wrong with it."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or "(the whole)"
    if first["type"] == "extra_forbidden":
        return (
            f"{file}: there is no key {quote(key)}; see the documentation of "
            "optvet.engine.models.sidecar"
        )
    shown = "nothing" if first["type"] == "missing" else show(first["input"])
    return f"{file}: key {quote(key)} is {shown}: {words_of(first)}"


# ── The catalogue ──────────────────────────────────────────────────────────────────────────────


def _entry(catalogue: Path, file: str) -> Mapping[str, Any] | None:
    """The catalogue's entry for ``file``; None if there is none, or the file is no catalogue."""
    data = read_json(catalogue, "listing")
    if not isinstance(data, list):
        return None
    return next((e for e in data if isinstance(e, dict) and e.get("file") == file), None)


def _from_entry(catalogue: Path, entry: Mapping[str, Any]) -> ModelConfig:
    task = _text(catalogue, entry, "task")
    preprocessing = preprocessing_from_words(_text(catalogue, entry, "preprocessing") or "")
    for key in ("labels", "vocabulary"):
        words = _text(catalogue, entry, key)
        if words:
            preprocessing[key] = words
    suggestion = entry.get("suggested_comparator") or {}
    if not isinstance(suggestion, dict):
        raise _unfit(catalogue, entry, "suggested_comparator", suggestion, "an object with 'kind'")
    return ModelConfig(
        task=task,
        suggestion=suggestion,
        preprocessing=preprocessing,
        inputs=_recipes(catalogue, entry),
        dataset=_text(catalogue, entry, "dataset"),
        origin=str(catalogue),
    )


def _text(catalogue: Path, entry: Mapping[str, Any], key: str) -> str | None:
    value = entry.get(key)
    if value is not None and not isinstance(value, str):
        raise _unfit(catalogue, entry, key, value, "a text")
    return value


def _unfit(
    catalogue: Path, entry: Mapping[str, Any], key: str, value: Any, expected: str
) -> InputError:
    where = f"{catalogue}: key {key!r} of {show(entry.get('file'))}"
    return InputError(f"{where} is {show(value)}, expected {expected}")


def _recipes(catalogue: Path, entry: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Recipes by input, or by element type if the entry gives one for all inputs of a type."""
    spec = entry.get("input_spec")
    if spec is None:
        return {}
    if isinstance(spec, dict):
        items = [{"dtype": spec.get("dtype"), **spec}] if "fill" in spec else _by_dtype(spec)
        key = "dtype"
    elif isinstance(spec, list):
        items, key = spec, "name"
    else:
        raise _unfit(catalogue, entry, "input_spec", spec, "a list or an object")
    found: dict[str, dict[str, Any]] = {}
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get(key), str):
            raise _unfit(catalogue, entry, "input_spec", item, f"an object with {key!r}")
        fill = item.get("fill")
        recipe = {**(fill if isinstance(fill, dict) else {}), "shape": item.get("shape")}
        try:
            checked = _RECIPE.validate_python(recipe)
        except ValidationError as error:
            where = f"{catalogue}: input_spec of {show(entry['file'])}, {key} {show(item[key])}"
            raise InputError(f"{where}: {words_of(error.errors()[0])}") from error
        found[item[key]] = checked.model_dump(exclude_none=True)
    return found


def _by_dtype(spec: Mapping[str, Any]) -> list[Any]:
    """``{"float32": {"kind": …}}`` or ``{"float32": {"fill": {…}, "shape": […]}}`` as a list."""
    return [
        {"dtype": dtype, **(item if "fill" in item else {"fill": item})}
        if isinstance(item, dict)
        else item
        for dtype, item in spec.items()
    ]


# ── Preprocessing in words ─────────────────────────────────────────────────────────────────────

# The number of digits is bounded, since matching takes superlinear time in it.
_NUMBER = r"[-+]?(?:\d{1,20}\.?\d{0,20}|\.\d{1,20})"
_WORDS = 2000
"""Maximal number of characters of a description that are read."""
_TRIPLE = rf"\(({_NUMBER}(?:\s*,\s*{_NUMBER})+)\)"
_MINUS_OVER = re.compile(rf"\(\s*x\s*-\s*({_NUMBER})\s*\)\s*/\s*({_NUMBER})")
_OVER_MINUS_OVER = re.compile(rf"\(\s*x\s*/\s*({_NUMBER})\s*-\s*({_NUMBER})\s*\)\s*/\s*({_NUMBER})")
_OVER_MINUS = re.compile(rf"\bx\s*/\s*({_NUMBER})\s*-\s*({_NUMBER})")
_OVER = re.compile(rf"(?:\bx|\s|^)/\s*({_NUMBER})")
_RANGE = re.compile(rf"({_NUMBER})\s*\.\.\s*({_NUMBER})")


def preprocessing_from_words(words: str) -> dict[str, Any]:
    """Keys of ``Preprocessing`` that a description in words mentions.

    >>> preprocessing_from_words("RGB, (x-127)/128, NCHW, 320x240")["mean"]
    (127.0,)
    """
    # Of "…; outputs scores [1,4420,2], boxes corner-form 0..1" only the first part is input.
    text = re.split(r"[;,]\s*(?:outputs?|grid|decode)\b", words[:_WORDS])[0]
    found: dict[str, Any] = {}
    size = re.search(r"(?<![\w.])(\d{2,5})\s*x\s*(\d{2,5})(?![\w.])", text)
    boxed = re.search(r"letterbox(?:ed)?\s+(\d{2,5})(?!\s*x)", text)
    if size:
        found["size"] = (int(size[1]), int(size[2]))
    elif boxed:
        found["size"] = (int(boxed[1]), int(boxed[1]))
    for resize in ("letterbox", "crop", "stretch"):
        if resize in text.lower():
            found["resize"] = resize
            break
    layout = re.search(r"\b(NCHW|NHWC)\b", text)
    if layout:
        found["layout"] = layout[1]
    channels = re.search(r"\b(RGB|BGR|gr[ae]y(?:scale)?|Y channel|luma)\b", text, re.IGNORECASE)
    if channels:
        word = channels[1].upper()
        found["channels"] = (
            word if word in ("RGB", "BGR") else "GRAY" if word.startswith("GR") else "Y"
        )
    dtype = re.search(r"\b(u?int8|float16|float32|float64)\b", text)
    if dtype:
        found["dtype"] = dtype[1]
    try:
        return found | _values_from_words(text)
    except ZeroDivisionError:  # What is meant is not known.
        return found


def _values_from_words(text: str) -> dict[str, Any]:
    """Scale, mean, std and range: the conversion of 0..255 to the model's input range.

    Raises:
        ZeroDivisionError: The words divide by zero.
    """
    if re.search(r"ImageNet\s+(mean|normali)", text, re.IGNORECASE):
        return {"scale": 1 / 255, "mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    match = _OVER_MINUS_OVER.search(text)
    if match:
        return {
            "scale": 1 / _divisor(match[1]),
            "mean": (float(match[2]),),
            "std": (_divisor(match[3]),),
        }
    match = _MINUS_OVER.search(text)
    if match:
        return {"mean": (float(match[1]),), "std": (_divisor(match[2]),)}
    match = _OVER_MINUS.search(text)
    if match:
        return {"scale": 1 / _divisor(match[1]), "mean": (float(match[2]),)}
    found: dict[str, Any] = {}
    match = _RANGE.search(text)
    if match:
        found["range"] = (float(match[1]), float(match[2]))
    mean = re.search(rf"(?:minus\s+)?mean\s*{_TRIPLE}", text)
    std = re.search(rf"std\s*{_TRIPLE}", text)
    if mean:
        found["mean"] = _numbers(mean[1])
    if std:
        found["std"] = tuple(map(_divisor, std[1].split(",")))
    match = _OVER.search(text)
    if match:
        found["scale"] = 1 / _divisor(match[1])
    return found


def _divisor(number: str) -> float:
    value = float(number)
    if not value:
        raise ZeroDivisionError
    return value


def _numbers(text: str) -> Sequence[float]:
    return tuple(float(part) for part in text.split(","))
