"""From an image to the values of an input, as a plan says; and the inputs beside it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from optvet.graph import numpy_dtype
from optvet.plugin import InputError, Model
from optvet_images.plan_preparation import PreparationPlan, bad_preparation

if TYPE_CHECKING:
    from PIL import Image

_OPEN_SIDE = 640
"""Longest side of an image whose size nobody fixes."""
_SHORTER = 800
"""Shorter side where that is what is fixed, and nobody says to what (Ren et al. 2015)."""
_MAX_PIXELS = 1 << 26
_SIZES = re.compile(r"shape|size|scale|info", re.IGNORECASE)


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


def prepare(image: Image.Image, plan: PreparationPlan) -> tuple[np.ndarray, Placed]:
    """The input without batch, and where the image is in it."""
    modes = {"GRAY": "L", "Y": "YCbCr"}
    image = image.convert(modes.get(plan.channels, "RGB"))
    if plan.channels == "Y":
        image = image.getchannel(0)
    resized, placed = _resize_image(image, plan)
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


def _resize_image(image: Image.Image, plan: PreparationPlan) -> tuple[Image.Image, Placed]:
    if plan.resize == "shorter":
        return _resize_by_shorter(image, plan)
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


def _resize_by_shorter(image: Image.Image, plan: PreparationPlan) -> tuple[Image.Image, Placed]:
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
            raise bad_preparation(
                model, f"input {info.name!r} is no image; declare a constant recipe for it"
            )
        feeds[info.name] = np.broadcast_to(np.asarray(value), shape).astype(numpy_dtype(info))
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
