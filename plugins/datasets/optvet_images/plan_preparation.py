"""Plans how an image becomes an input: what the model's record declares, else what can be inferred.

Each of size, layout, channels and values is taken from the first that says something: the options,
the record, the preset that these name, the shape and type of the input, the recipe for random
inputs, the preset that the model's name suggests; then an assumption. Where each came from is kept.

``values = (pixel * scale + offset - mean) / std``, per channel in the order of the input, with
pixels of 0..255.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from optvet.graph import numpy_dtype
from optvet.plugin import InputError, Model, ValueInfo
from optvet_images.presets import PRESETS, UNIT_RANGE, named_preset, preset_of

_GEOMETRY = frozenset({"size", "resize", "crop", "pad", "anchor", "multiple"})
_VALUES = frozenset({"scale", "mean", "std", "range"})
KEYS = _GEOMETRY | _VALUES | {"preset", "layout", "channels", "dtype"}
"""Keys of a record that speak of images."""
_FLOATS = frozenset({"float", "float16", "double", "bfloat16"})
_INTEGERS = frozenset({"uint8", "int8", "int32", "int64"})
_SMALLEST = 16
"""An input with a shorter side is no image, unless the user or the record says so."""


@dataclass(frozen=True)
class Slot:
    """The input that takes an image: where its dimensions are, None if it is not there."""

    info: ValueInfo
    shape: tuple[int | None, ...]
    layout: str
    batch: int | None

    @property
    def axes(self) -> tuple[int, int, int]:
        """Axes of channels, height and width."""
        first = len(self.shape) - 3
        return (
            (first, first + 1, first + 2)
            if self.layout == "NCHW"
            else (first + 2, first, first + 1)
        )


@dataclass(frozen=True)
class PreparationPlan:
    """How an image becomes the input ``slot``; ``why`` tells where each part came from."""

    slot: Slot
    channels: str
    height: int | None
    width: int | None
    resize: str
    crop: float
    pad: float
    anchor: str
    multiple: int
    scale: float
    offset: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: np.dtype[Any]
    why: Mapping[str, str]


def find_slot(model: Model, layout: str | None = None, *, declared: bool = False) -> Slot | None:
    """The first input that can hold an image.

    Args:
        model: What takes it.
        layout: Where its channels are, if that is known.
        declared: Whether the user or the record says that an input is an image: if none has the
            size of a picture, one of any size may hold it.
    """
    for smallest in (_SMALLEST, 1) if declared else (_SMALLEST,):
        for info in model.inputs:
            where = layout or model.config.preprocessing.get("layout")
            slot = _slot(model, info, where, smallest)
            if slot is not None:
                return slot
    return None


def _slot(model: Model, info: ValueInfo, layout: str | None, smallest: int) -> Slot | None:
    if info.shape is None or info.dtype not in _FLOATS | _INTEGERS or len(info.shape) not in (3, 4):
        return None
    shape = _close_shape(model, info)
    sides = {
        "NCHW": (shape[-3], shape[-2], shape[-1]),
        "NHWC": (shape[-1], shape[-3], shape[-2]),
    }
    fitting = [name for name, dims in sides.items() if _is_image(*dims, smallest)]
    if not fitting:
        return None
    # A channel count that is there beats one that is open.
    chosen = layout if layout in fitting else min(fitting, key=lambda n: sides[n][0] is None)
    return Slot(info, shape, chosen, 0 if len(shape) == 4 else None)


def _is_image(channels: int | None, height: int | None, width: int | None, smallest: int) -> bool:
    return channels in (1, 3, None) and all(d is None or d >= smallest for d in (height, width))


def _close_shape(model: Model, info: ValueInfo) -> tuple[int | None, ...]:
    """The shape; open dimensions but the batch are as the record's recipe says."""
    assert info.shape is not None
    shape = [d if isinstance(d, int) and d > 0 else None for d in info.shape]
    recipe = (model.config.inputs.get(info.name) or {}).get("shape")
    if recipe is not None and len(recipe) == len(shape):
        first = 1 if len(shape) == 4 else 0
        shape[first:] = [r if d is None else d for d, r in zip(shape, recipe, strict=True)][first:]
    return tuple(shape)


def make_plan(model: Model, options: Mapping[str, Any]) -> PreparationPlan:
    """How images become inputs of ``model``; ``options`` hold what was given, by key.

    Raises:
        InputError: No input takes an image, or what was declared does not fit it.
    """
    declared = dict(model.config.preprocessing)
    slot = find_slot(model, options.get("layout"), declared=True)
    if slot is None:
        shown = ", ".join(f"{i.name} {i.dtype}{list(i.shape or [])}" for i in model.inputs)
        raise bad_preparation(model, f"no input takes an image ({shown}); use another dataset")
    origin = model.config.origin or "the record"
    layers: list[tuple[str, Mapping[str, Any]]] = [
        ("option", {k: v for k, v in options.items() if v is not None}),
        (f"declared in {Path(origin).name}", declared),
    ]
    preset = options.get("preset") or declared.get("preset")
    if preset is not None:
        layers.append((f"preset {preset}", preset_of(str(preset))))
    inferred = not any(k in layer for _, layer in layers for k in _VALUES)
    if inferred:
        layers += _infer(model, slot)
    named = named_preset(model)
    if preset is None and named is not None:
        geometry = {k: v for k, v in PRESETS[named].items() if k in _GEOMETRY}
        layers.append((f"preset {named}, by the model's name", geometry))
    return _plan(model, slot, layers)


def _infer(model: Model, slot: Slot) -> list[tuple[str, Mapping[str, Any]]]:
    """Values where nobody declared any."""
    recipe = model.config.inputs.get(slot.info.name) or model.config.inputs.get(slot.info.dtype)
    if slot.info.dtype in _INTEGERS:
        low = -128.0 if slot.info.dtype == "int8" else 0.0
        return [("inferred from its type", {"range": (low, low + 255.0)})]
    if recipe is not None and recipe.get("kind") == "uniform":
        bounds = (_number(recipe.get("low", 0.0)), _number(recipe.get("high", 1.0)))
        return [("inferred from the range of its recipe", {"range": bounds})]
    if recipe is not None and recipe.get("kind") == "normal":
        mean, std = _number(recipe.get("mean", 0.0)), _number(recipe.get("std", 1.0))
        # Of photos the mean is 0.449 and the deviation 0.226, over all of ImageNet's channels.
        spread = 0.226 / std if std > 0 else 1.0
        return [
            (
                "inferred from mean and deviation of its recipe",
                {"scale": 1 / 255, "mean": (0.449 - mean * spread,), "std": (spread,)},
            )
        ]
    named = named_preset(model)
    if named is not None:
        return [(f"preset {named}, by the model's name", PRESETS[named])]
    return [("assumed", UNIT_RANGE)]


def _number(value: Any) -> float:
    return float(np.mean(value))


def _plan(model: Model, slot: Slot, layers: list[tuple[str, Mapping[str, Any]]]) -> PreparationPlan:
    why: dict[str, str] = {}

    def first(key: str, default: Any, reason: str = "") -> Any:
        for origin, layer in layers:
            if layer.get(key) is not None:
                why[key] = origin
                return layer[key]
        if reason:
            why[key] = reason
        return default

    count = slot.shape[slot.axes[0]]
    channels = first("channels", "GRAY" if count == 1 else "RGB", "assumed")
    if count is not None and count != (1 if channels in ("GRAY", "Y") else 3):
        raise bad_preparation(model, f"channels {channels} do not fit input {_describe(slot)}")
    height, width = (slot.shape[a] for a in slot.axes[1:])
    size = first("size", None)
    resize = first("resize", *_resize(model))
    if size is not None and resize != "shorter":
        if (width or size[0], height or size[1]) != tuple(size):
            raise bad_preparation(
                model, f"size {tuple(size)} (width, height) does not fit {_describe(slot)}"
            )
        width, height = size
    elif size is not None and height is None and width is None:
        width, height = size
    else:
        why["size"] = f"of input {slot.info.name}" if height and width else "of each image"
    values = [np.asarray(first(k, d), np.float64) for k, d in (("mean", (0.0,)), ("std", (1.0,)))]
    scale, offset = _affine(first, why)
    for key, value in zip(("mean", "std"), values, strict=True):
        if value.size not in (1, 1 if channels in ("GRAY", "Y") else 3):
            raise bad_preparation(model, f"{key} has {value.size} values for channels {channels}")
    if not values[1].all():
        raise bad_preparation(model, "std is 0; it divides")
    why["layout"] = "of the record" if "layout" in model.config.preprocessing else "of the shape"
    return PreparationPlan(
        slot=slot,
        channels=channels,
        height=height,
        width=width,
        resize=resize,
        crop=float(first("crop", 0.875)),
        pad=float(first("pad", 114.0)),
        anchor=str(first("anchor", "center")),
        multiple=int(first("multiple", 32)),
        scale=scale,
        offset=offset,
        mean=tuple(values[0].ravel().tolist()),
        std=tuple(values[1].ravel().tolist()),
        dtype=numpy_dtype(slot.info),
        why=why,
    )


def _affine(first: Any, why: dict[str, str]) -> tuple[float, float]:
    """Scale and offset; a range stands for both."""
    scale = first("scale", None)
    bounds = first("range", None)
    if scale is not None or bounds is None:
        why["values"] = why.get("scale") or why.get("mean") or why.get("std") or "0..255"
        return (1.0 if scale is None else float(scale)), 0.0
    why["values"] = why["range"]
    low, high = (float(b) for b in bounds)
    return (high - low) / 255, low


def _resize(model: Model) -> tuple[str, str]:
    if re.search(r"image.classif|imagenet", (model.task or "").lower()):
        return "crop", "by the task"
    return "stretch", "assumed"


def _describe(slot: Slot) -> str:
    return f"{slot.info.name!r} {slot.layout} {['?' if d is None else d for d in slot.shape]}"


def bad_preparation(model: Model, problem: str) -> InputError:
    """An error of this dataset about a model."""
    return InputError(f"dataset 'images': {model.source}: {problem}")


def describe(plan: PreparationPlan) -> dict[str, str]:
    """The plan in words, each with where it came from."""
    size = f"{plan.width or '?'}x{plan.height or '?'}"
    mean, std = (",".join(f"{v:.4g}" for v in part) for part in (plan.mean, plan.std))
    low, high = plan.offset, 255 * plan.scale + plan.offset
    values = f"0..255 to {low:.4g}..{high:.4g}"
    if plan.mean != (0.0,):
        values += f", minus {mean}"
    if plan.std != (1.0,):
        values += f", over {std}"
    parts = {
        "size": size,
        "resize": plan.resize,
        "channels": plan.channels,
        "layout": plan.slot.layout,
        "values": values,
    }
    return {key: f"{value} ({plan.why[key]})" for key, value in parts.items() if key in plan.why}
