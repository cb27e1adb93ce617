"""Finds the output that holds images, and brings it into planes of channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from optvet.plugin import readable_outputs


def image_name(outputs: Mapping[str, np.ndarray], wanted: str) -> str:
    """The output that has the images.

    Raises:
        InputError: There is none.
    """

    def fits(_: str, value: np.ndarray) -> bool:
        return 2 <= value.ndim <= 4 and value.dtype.kind in "fiu"

    fitting = readable_outputs("image", outputs, wanted, fits, "with pixels", of="of rank 2 to 4")
    return max(fitting, key=lambda n: (outputs[n].ndim, outputs[n].size))


def channel_axis(shape: Sequence[int], layout: str) -> int:
    """Axis of the channels in a shape of four: the smaller one of the second and the last."""
    if layout != "auto":
        return layout.index("C")
    return 3 if shape[3] < shape[1] else 1


def is_enlarged(
    shape: tuple[int | str | None, ...] | None, channels: int, size: Sequence[int]
) -> bool:
    """Whether an input of this shape has as many channels, and sides that divide ``size``."""
    if shape is None or len(shape) != 4 or channels not in (1, 3, 4):
        return False
    for depth, sides in ((shape[1], shape[2:]), (shape[3], shape[1:3])):
        factors = {d / s for s, d in zip(sides, size, strict=True) if isinstance(s, int) and s > 0}
        if depth == channels and len(factors) < 2 and all(f == int(f) for f in factors):
            return True
    return False


def planes_of(images: np.ndarray, layout: str) -> list[np.ndarray]:
    """Each image of a batch as float64 [channels, height, width]."""
    if images.ndim == 4:
        axis = channel_axis(images.shape, layout)
        images = np.moveaxis(images, axis, 1)
    elif images.ndim == 3:
        # [H, W, C] or [C, H, W]: channels are few.
        last = images.shape[2] < images.shape[0] and images.shape[2] in (1, 3, 4)
        images = np.moveaxis(images, -1, 0)[None] if last else images[None]
    else:
        images = images[None, None]
    return [image.astype(np.float64) for image in images] if images.size else []
