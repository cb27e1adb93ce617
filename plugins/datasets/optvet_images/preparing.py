"""From an image to an input: what the model's record declares, else what can be inferred.

Each of size, layout, channels and values is taken from the first that says something: the options,
the record, the preset that these name, the shape and type of the input, the recipe for random
inputs, the preset that the model's name suggests; then an assumption. Where each came from is kept.

``values = (pixel * scale + offset - mean) / std``, per channel in the order of the input, with
pixels of 0..255.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from optvet.plugin import InputError, Model, ValueInfo

if TYPE_CHECKING:
    from PIL import Image

_IMAGENET = {"scale": 1 / 255, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_SIGNED = {"scale": 1 / 127.5, "mean": (1.0,)}
_UNIT = {"range": (0.0, 1.0)}
_RAW = {"range": (0.0, 255.0)}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    # torchvision, and the models of the ONNX zoo that were trained with it or with MXNet.
    "imagenet": {"channels": "RGB", "resize": "crop", **_IMAGENET},
    # TensorFlow's slim: inception and mobilenet, -1..1.
    "inception": {"channels": "RGB", "resize": "crop", **_SIGNED},
    # Caffe, and Keras' "caffe" mode.
    "caffe": {"channels": "BGR", "resize": "crop", "mean": (103.939, 116.779, 123.68)},
    "signed": {"channels": "RGB", "resize": "stretch", **_SIGNED},
    "unit": {"channels": "RGB", "resize": "stretch", **_UNIT},
    "raw": {"channels": "RGB", "resize": "stretch", **_RAW},
    # Ultralytics: YOLOv5 and later.
    "yolo": {"channels": "RGB", "resize": "letterbox", "pad": 114.0, **_UNIT},
    # The zoo's YOLOv3 and v4.
    "yolov3": {"channels": "RGB", "resize": "letterbox", "pad": 128.0, **_UNIT},
    "yolox": {"channels": "BGR", "resize": "letterbox", "pad": 114.0, "anchor": "corner", **_RAW},
    "ultraface": {"channels": "RGB", "resize": "stretch", "mean": (127.0,), "std": (128.0,)},
    "ssd-mobilenet": {"channels": "RGB", "resize": "stretch", **_RAW},
    "ssd": {"channels": "RGB", "resize": "stretch", **_IMAGENET},
    "retinanet": {"channels": "RGB", "resize": "stretch", **_IMAGENET},
    # The zoo's Faster and Mask R-CNN: shorter side 800, sides multiples of 32.
    "rcnn": {
        "channels": "BGR",
        "resize": "shorter",
        "multiple": 32,
        "mean": (102.9801, 115.9465, 122.7717),
    },
    "mnist": {"channels": "GRAY", "resize": "stretch", **_UNIT},
    "emotion": {"channels": "GRAY", "resize": "stretch", **_RAW},
    "super-resolution": {"channels": "Y", "resize": "stretch", **_UNIT},
}
"""Preprocessing of families of models, by name."""

_NAMED = (
    (r"yolox", "yolox"),
    (r"yolo[-_]?v?[34](?!\d)", "yolov3"),
    (r"yolo[-_]?(v?(5|6|7|8|9|1\d)|nas)", "yolo"),
    (r"ultra[-_]?face", "ultraface"),
    (r"ssd[-_]?mobilenet", "ssd-mobilenet"),
    (r"(^|[-_])ssd", "ssd"),
    (r"retinanet", "retinanet"),
    (r"(faster|mask)[-_]?rcnn", "rcnn"),
    (r"mnist", "mnist"),
    (r"emotion|ferplus", "emotion"),
    (r"super[-_]?res|espcn", "super-resolution"),
    (r"fcn|deeplab.*resnet", "ssd"),
    (r"caffenet|bvlc|rcnn[-_]ilsvrc|zfnet|alexnet", "caffe"),
    (r"resnet|vgg|densenet|shufflenet|squeezenet|googlenet|regnet|convnext|mnasnet", "imagenet"),
    (r"mobilenet|efficientnet|inception", "imagenet"),
)
"""What a file's name suggests where nobody says anything; the first that fits."""

_GEOMETRY = frozenset({"size", "resize", "crop", "pad", "anchor", "multiple"})
_VALUES = frozenset({"scale", "mean", "std", "range"})
KEYS = _GEOMETRY | _VALUES | {"preset", "layout", "channels", "dtype"}
"""Keys of a record that speak of images."""
_FLOATS = frozenset({"float", "float16", "double", "bfloat16"})
_INTEGERS = frozenset({"uint8", "int8", "int32", "int64"})
_SMALLEST = 16
"""An input with a shorter side is no image."""
_OPEN_SIDE = 640
"""Longest side of an image whose size nobody fixes."""
_SHORTER = 800
"""Shorter side where that is what is fixed, and nobody says to what (Ren et al. 2015)."""
_MAX_PIXELS = 1 << 26
_SIZES = re.compile(r"shape|size|scale|info", re.IGNORECASE)


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


@dataclass(frozen=True)
class Placed:
    """Where an image of ``width`` and ``height`` went: x of it became x * across + left."""

    across: float
    down: float
    left: float
    top: float
    width: int
    height: int

    def box(self, box: tuple[float, ...]) -> list[float]:
        """x, y, width, height in pixels of the input."""
        x, y, w, h = box
        return [
            x * self.across + self.left,
            y * self.down + self.top,
            w * self.across,
            h * self.down,
        ]


# --- planning -------------------------------------------------------------------------------------


def find_slot(model: Model, layout: str | None = None) -> Slot | None:
    """The first input that can hold an image."""
    for info in model.inputs:
        slot = _slot(model, info, layout or model.config.preprocessing.get("layout"))
        if slot is not None:
            return slot
    return None


def _slot(model: Model, info: ValueInfo, layout: str | None) -> Slot | None:
    if info.shape is None or info.dtype not in _FLOATS | _INTEGERS or len(info.shape) not in (3, 4):
        return None
    shape = _close_shape(model, info)
    sides = {
        "NCHW": (shape[-3], shape[-2], shape[-1]),
        "NHWC": (shape[-1], shape[-3], shape[-2]),
    }
    fitting = [name for name, dims in sides.items() if _is_image(*dims)]
    if not fitting:
        return None
    # A channel count that is there beats one that is open.
    chosen = layout if layout in fitting else min(fitting, key=lambda n: sides[n][0] is None)
    return Slot(info, shape, chosen, 0 if len(shape) == 4 else None)


def _is_image(channels: int | None, height: int | None, width: int | None) -> bool:
    return channels in (1, 3, None) and all(d is None or d >= _SMALLEST for d in (height, width))


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
    slot = find_slot(model, options.get("layout"))
    if slot is None:
        shown = ", ".join(f"{i.name} {i.dtype}{list(i.shape or [])}" for i in model.inputs)
        raise _bad(model, f"no input takes an image ({shown}); use another dataset")
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


def preset_of(name: str) -> Mapping[str, Any]:
    """The preset called ``name``; InputError if there is none."""
    if name not in PRESETS:
        raise InputError(
            f"dataset 'images': there is no preset {name!r}; choose one of {', '.join(PRESETS)}"
        )
    return PRESETS[name]


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
    return [("assumed", _UNIT)]


def named_preset(model: Model) -> str | None:
    """The preset that the model's file name suggests, if any."""
    stem = Path(model.source.rpartition(":")[2]).stem.lower()
    return next((preset for pattern, preset in _NAMED if re.search(pattern, stem)), None)


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
        raise _bad(model, f"channels {channels} do not fit input {_describe(slot)}")
    height, width = (slot.shape[a] for a in slot.axes[1:])
    size = first("size", None)
    resize = first("resize", *_resize(model))
    if size is not None and resize != "shorter":
        if (width or size[0], height or size[1]) != tuple(size):
            raise _bad(model, f"size {tuple(size)} (width, height) does not fit {_describe(slot)}")
        width, height = size
    elif size is not None and height is None and width is None:
        width, height = size
    else:
        why["size"] = f"of input {slot.info.name}" if height and width else "of each image"
    values = [np.asarray(first(k, d), np.float64) for k, d in (("mean", (0.0,)), ("std", (1.0,)))]
    scale, offset = _affine(first, why)
    for key, value in zip(("mean", "std"), values, strict=True):
        if value.size not in (1, 1 if channels in ("GRAY", "Y") else 3):
            raise _bad(model, f"{key} has {value.size} values for channels {channels}")
    if not values[1].all():
        raise _bad(model, "std is 0; it divides")
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
        dtype=_dtype(slot.info),
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


def _dtype(info: ValueInfo) -> np.dtype[Any]:
    kind = onnx.TensorProto.DataType.Value(info.dtype.upper())
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))


def _describe(slot: Slot) -> str:
    return f"{slot.info.name!r} {slot.layout} {['?' if d is None else d for d in slot.shape]}"


def _bad(model: Model, problem: str) -> InputError:
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
    said = {
        "size": size,
        "resize": plan.resize,
        "channels": plan.channels,
        "layout": plan.slot.layout,
        "values": values,
    }
    return {key: f"{value} ({plan.why[key]})" for key, value in said.items() if key in plan.why}


# --- carrying out ---------------------------------------------------------------------------------


def prepare(image: Image.Image, plan: PreparationPlan) -> tuple[np.ndarray, Placed]:
    """The input without batch, and where the image is in it."""
    modes = {"GRAY": "L", "Y": "YCbCr"}
    image = image.convert(modes.get(plan.channels, "RGB"))
    if plan.channels == "Y":
        image = image.getchannel(0)
    resized, placed = _resized(image, plan)
    pixels = np.asarray(resized, np.float64)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if plan.channels == "BGR":
        pixels = pixels[..., ::-1]
    values = (pixels * plan.scale + plan.offset - np.array(plan.mean)) / np.array(plan.std)
    if plan.resize == "shorter":
        # These models are trained on zeros beyond the image, after the mean is taken off.
        values[placed.height :] = 0.0
        values[:, placed.width :] = 0.0
    if plan.slot.layout == "NCHW":
        values = values.transpose(2, 0, 1)
    if plan.dtype.kind in "iu":
        bounds = np.iinfo(plan.dtype)
        values = np.clip(np.round(values), bounds.min, bounds.max)
    return np.ascontiguousarray(values.astype(plan.dtype)), placed


def _resized(image: Image.Image, plan: PreparationPlan) -> tuple[Image.Image, Placed]:
    if plan.resize == "shorter":
        return _by_shorter(image, plan)
    width, height = plan.width, plan.height
    if width is None or height is None:
        width, height = _open_size(image, plan)
    if plan.resize == "letterbox":
        return _letterbox(image, width, height, plan)
    if plan.resize == "crop":
        return _crop(image, width, height, plan.crop)
    placed = Placed(width / image.width, height / image.height, 0.0, 0.0, width, height)
    return _scale(image, width, height), placed


def _scale(image: Image.Image, width: int, height: int) -> Image.Image:
    from PIL import Image as pillow

    if width * height > _MAX_PIXELS:
        raise InputError(f"dataset 'images': {width}x{height} pixels are too many")
    return image.resize((width, height), pillow.Resampling.BILINEAR)


def _open_size(image: Image.Image, plan: PreparationPlan) -> tuple[int, int]:
    """The image's own size, at most ``_OPEN_SIDE``, in multiples of ``multiple``."""
    ratio = min(1.0, _OPEN_SIDE / max(image.size))
    step = plan.multiple
    width, height = (max(step, round(side * ratio / step) * step) for side in image.size)
    return plan.width or width, plan.height or height


def _letterbox(
    image: Image.Image, width: int, height: int, plan: PreparationPlan
) -> tuple[Image.Image, Placed]:
    from PIL import Image as pillow

    ratio = min(width / image.width, height / image.height)
    inner = max(1, round(image.width * ratio)), max(1, round(image.height * ratio))
    left, top = ((width - inner[0]) // 2, (height - inner[1]) // 2)
    if plan.anchor == "corner":
        left = top = 0
    fill: Any = round(plan.pad) if image.mode == "L" else (round(plan.pad),) * 3
    canvas = pillow.new(image.mode, (width, height), fill)
    canvas.paste(_scale(image, *inner), (left, top))
    across, down = inner[0] / image.width, inner[1] / image.height
    return canvas, Placed(across, down, left, top, width, height)


def _crop(image: Image.Image, width: int, height: int, crop: float) -> tuple[Image.Image, Placed]:
    """Scaled until ``crop`` of the shorter side fills the input, of which the centre is taken."""
    ratio = max(width / crop / image.width, height / crop / image.height)
    full = max(width, round(image.width * ratio)), max(height, round(image.height * ratio))
    left, top = round((full[0] - width) / 2), round((full[1] - height) / 2)
    across, down = full[0] / image.width, full[1] / image.height
    cut = _scale(image, *full).crop((left, top, left + width, top + height))
    return cut, Placed(across, down, -left, -top, width, height)


def _by_shorter(image: Image.Image, plan: PreparationPlan) -> tuple[Image.Image, Placed]:
    """Shorter side as asked, longer one at most 5/3 of it, filled up to a multiple."""
    from PIL import Image as pillow

    shorter = min(plan.width or _SHORTER, plan.height or _SHORTER)
    ratio = min(shorter / min(image.size), shorter * 5 / 3 / max(image.size))
    inner = max(1, round(image.width * ratio)), max(1, round(image.height * ratio))
    step = plan.multiple
    outer = math.ceil(inner[0] / step) * step, math.ceil(inner[1] / step) * step
    canvas = pillow.new(image.mode, outer)
    canvas.paste(_scale(image, *inner), (0, 0))
    across, down = inner[0] / image.width, inner[1] / image.height
    return canvas, Placed(across, down, 0.0, 0.0, *inner)


def others(
    model: Model, plan: PreparationPlan, original: tuple[int, int], placed: Placed
) -> dict[str, np.ndarray]:
    """Inputs beside the image: constants of recipes, and what tells of its size.

    Args:
        model: What takes them.
        plan: How its image is made.
        original: Width and height of the image as it was.
        placed: Where it went.

    Raises:
        InputError: An input means something else.
    """
    feeds = {}
    for info in model.inputs:
        if info.name == plan.slot.info.name:
            continue
        recipe = model.config.inputs.get(info.name) or {}
        shape = [d if isinstance(d, int) and d > 0 else 1 for d in info.shape or ()]
        if recipe.get("kind") == "const":
            value: Any = recipe["value"]
            shape = list(recipe.get("shape") or shape)
        elif _SIZES.search(info.name) and shape and shape[-1] in (2, 3):
            value = _size_values(info.name, shape[-1], plan, original, placed)
        else:
            raise _bad(model, f"input {info.name!r} is no image; declare a constant recipe for it")
        feeds[info.name] = np.broadcast_to(np.asarray(value), shape).astype(_dtype(info))
    return feeds


def _size_values(
    name: str, count: int, plan: PreparationPlan, original: tuple[int, int], placed: Placed
) -> list[float]:
    """Height and width, or their ratios: PaddleDetection's ``scale_factor`` and ``im_shape``."""
    if "scale" in name.lower() and count == 2:
        return [placed.down, placed.across]
    if "im_shape" in name.lower() or count == 3:
        return [float(placed.height), float(placed.width), placed.across][:count]
    return [float(original[1]), float(original[0])]  # the zoo's YOLOv3: image_shape
