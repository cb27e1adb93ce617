"""Images in files: ``images:FOLDER``, ``images:FILE``, decoded and made to fit the model.

How they are made to fit is declared in the model's record, or inferred, and reported
(``plan_preparation``, ``prepare_image``); labels come from a label file (``labels``).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    Dataset,
    Deferred,
    InputError,
    Model,
    Probe,
    Sample,
    Sensitive,
    UsageError,
    check_size,
    files_in,
    hookimpl,
    open_file,
)
from optvet_images.labels import FOLDERS, Boxes, Labels, read_labels
from optvet_images.presets import PRESETS, preset_of

if TYPE_CHECKING:
    from optvet_images.plan_preparation import PreparationPlan
    from optvet_images.prepare_image import Placed

__all__ = ["PRESETS", "ImagesDataset", "ImagesOptions", "optvet_datasets"]

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_BYTES_PER_PIXEL = 8
"""Of a picture of four channels, decoded and copied."""
_IMAGES = re.compile(
    r"imag|vision|photo|picture|object|face|person|pose|landmark|segment|detection|resolution"
    r"|style|depth|ocr|text.(detect|recog|orient)|low.?light|denois|matt(e|ing)|cifar|mnist|coco"
)
_OTHER = re.compile(r"audio|speech|voice|sound|music|keyword|sentence|token|tabular|language|wake")


class ImagesOptions(BaseModel):
    """What is known of the images, and what the model's record does not say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    labels: Annotated[
        str | None,
        Sensitive("reads a file", reads_data=True, unless=lambda v: v == FOLDERS),
    ] = None
    """A file of labels: CSV with columns file and label, lines of file and label, JSON of labels
    or boxes, or COCO annotations; "folders" for one folder per class."""
    label_key: str = "label"
    """The key, or column, of the labels in that file."""
    label_offset: int | None = None
    """Added to class numbers; by default 1 for labels below 1000 and a model of 1001 classes, whose
    first is the background."""
    preset: str | None = None
    """Preprocessing of a family of models, such as imagenet, inception, caffe or yolo."""
    size: tuple[int, int] | None = None
    """Width and height, for a model that leaves them open."""
    resize: Literal["stretch", "crop", "letterbox", "shorter"] | None = None
    """How an image is brought to the size."""
    crop: float | None = Field(default=None, gt=0, le=1)
    """Part of the shorter side that "crop" keeps; 0.875 by default."""
    channels: Literal["RGB", "BGR", "GRAY", "Y"] | None = None
    """Their order, or one of them."""
    layout: Literal["NCHW", "NHWC"] | None = None
    """Where the channels are."""
    scale: float | None = None
    """Multiplies values of 0..255."""
    mean: tuple[float, ...] | None = None
    """Is subtracted then."""
    std: tuple[float, ...] | None = None
    """Divides at last."""
    range: tuple[float, float] | None = None
    """What 0 and 255 become, instead of scale."""


class ImagesDataset:
    """Images of a folder."""

    name = "images"
    libraries: Mapping[str, str] = {"pillow": "PIL"}
    options: ImagesOptions = ImagesOptions()

    def samples(
        self,
        model: Model,
        argument: str | None,
        options: ImagesOptions,
        *,
        seed: int,
        limit: int | None,
        probe: Probe,
    ) -> Iterator[Deferred]:
        """One sample per image, in the order of their names; see ``Dataset``."""
        _needs_pillow()
        files = _files(argument)
        plan = _plan(model, options)
        labels = _labels(options, files)
        offset = _offset(model, options, labels)
        for name, path in list(files.items())[:limit]:
            make = partial(_sample, name, path, model, plan, labels, offset)
            yield Deferred(name, make)

    def suits(self, model: Model, argument: str) -> float:
        """0.95 for a record that declares an image, less for a task or a shape like one's."""
        from optvet_images.plan_preparation import KEYS, find_slot

        says_image = bool(KEYS & model.config.preprocessing.keys())
        slot = find_slot(model, declared=says_image)
        task = (model.task or "").lower()
        if slot is None or _OTHER.search(task) or not any(_find_files(Path(argument).expanduser())):
            return 0.0
        if says_image:
            return 0.95
        if task:
            return 0.7 if _IMAGES.search(task) else 0.0
        return 0.4 if slot.shape[slot.axes[0]] == 3 else 0.0

    def provenance(
        self, model: Model, argument: str | None, options: ImagesOptions
    ) -> Mapping[str, str]:
        """The preprocessing and where each part of it is from, and how many images have labels."""
        from optvet_images.plan_preparation import describe

        details = describe(_plan(model, options))
        if options.labels is not None:
            files = _files(argument)
            labels = _labels(options, files)
            known = sum(labels.of(n) is not None for n in files)
            details["labels"] = f"{options.labels}: {known} of {len(files)} images"
            offset = _offset(model, options, labels)
            if offset:
                details["labels"] += f", class numbers shifted by {offset}"
        return details


def _needs_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401  # whether it can be had
    except ImportError as error:
        raise UsageError("dataset 'images' needs Pillow; install optvet[images]") from error


def _plan(model: Model, options: ImagesOptions) -> PreparationPlan:
    from optvet_images.plan_preparation import make_plan

    if options.preset is not None:
        preset_of(options.preset)
    chosen = options.model_dump(exclude={"labels", "label_key", "label_offset"}, exclude_none=True)
    return make_plan(model, chosen)


def _labels(options: ImagesOptions, files: Mapping[str, Path]) -> Labels:
    if options.labels is None:
        return Labels()
    return read_labels(options.labels, options.label_key, files)


def _offset(model: Model, options: ImagesOptions, labels: Labels) -> int:
    """What class numbers are shifted by."""
    if options.label_offset is not None:
        return options.label_offset
    sizes = {d for info in model.outputs for d in info.shape or () if isinstance(d, int)}
    numbers = [n for label in labels.by_path.values() for n in _numbers(label)]
    background = 1001 in sizes and 1000 not in sizes
    return int(background and bool(numbers) and max(numbers) < 1000)


def _numbers(label: Any) -> list[int]:
    several = label if isinstance(label, list) else [label]
    return [n for n in several if isinstance(n, int)]


# --- one sample -----------------------------------------------------------------------------------


def _sample(
    name: str, path: Path, model: Model, plan: PreparationPlan, labels: Labels, offset: int
) -> Sample:
    from optvet_images.prepare_image import others, prepare

    image = _decode(path)
    array, placed = prepare(image, plan)
    batch = plan.slot.shape[0] if plan.slot.batch is not None else None
    copies = batch or 1
    feeds = others(model, plan, image.size, placed)
    if plan.slot.batch is not None:
        array = np.repeat(array[None], copies, axis=0)
    label = _label(labels, name, placed, offset, model)
    if copies > 1 and label is not None:
        label = [label] * copies
    return Sample(name, {plan.slot.info.name: array, **feeds}, label)


def _decode(path: Path) -> Any:
    """The first picture in a file, with all its pixels.

    Raises:
        InputError: It is damaged, of another format, or far too large.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            # Anything odd about a file is bad data here, be it a bomb or a truncated tag.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.filterwarnings("ignore", category=UserWarning)
            with open_file(path) as file, Image.open(file, formats=_FORMATS) as image:
                check_size(
                    f"dataset 'images': {path} of {image.width} x {image.height} pixels",
                    image.width * image.height * _BYTES_PER_PIXEL,
                )
                image.load()
                return _eight_bits(image.copy())
    except InputError:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise InputError(
            f"dataset 'images': {path} has more than the {Image.MAX_IMAGE_PIXELS:,} pixels up to "
            "which Pillow decodes an image; scale it down or remove it"
        ) from error
    except Exception as error:  # Pillow's many plugins fail in as many ways
        raise InputError(
            f"dataset 'images': {path} is no readable image: {error}; mend or remove it"
        ) from error


def _eight_bits(image: Any) -> Any:
    """Pillow clips wider grey values where it should scale them."""
    from PIL import Image

    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels are of mode {image.mode}, expected 8 or 16 bits")
    return image


def _label(labels: Labels, name: str, placed: Placed, offset: int, model: Model) -> Any:
    label = labels.of(name)
    if isinstance(label, Boxes):
        return _annotations(label, labels.categories, placed, model)
    several = label if isinstance(label, list) else [label]
    shifted = [one + offset if isinstance(one, int) else one for one in several]
    largest = max((one for one in shifted if isinstance(one, int)), default=-1)
    classes = _most_classes(model)
    if classes is not None and largest >= classes:
        raise InputError(
            f"dataset 'images': {name} is of class {largest}, but {model.source} has at most "
            f"{classes}; give labels that belong to the model"
        )
    return shifted if isinstance(label, list) else shifted[0]


def _most_classes(model: Model) -> int | None:
    """No output has more of anything; None where one has an open dimension beside the batch."""
    sizes = [d for info in model.outputs for d in (info.shape or (None,))[1:]]
    return max((d for d in sizes if isinstance(d, int)), default=None) if _known(sizes) else None


def _known(sizes: list[int | str | None]) -> bool:
    return bool(sizes) and all(isinstance(d, int) and d > 0 for d in sizes)


def _annotations(
    label: Boxes, categories: tuple[int, ...], placed: Placed, model: Model
) -> dict[str, Any]:
    """Boxes in pixels of the input, as the comparator "detection" takes them."""
    found: dict[str, Any] = {
        "boxes": [placed.box(box) for box in label.boxes],
        "labels": list(label.categories),
        "iscrowd": list(label.crowd),
    }
    numbers = _class_numbers(categories, model)
    if numbers is not None:
        found["numbers"] = [numbers[int(c)] for c in label.categories]
    return found


def _class_numbers(categories: tuple[int, ...], model: Model) -> dict[int, int] | None:
    """Class numbers by category id, where the model has as many classes as there are categories.

    COCO's ids go to 90 with gaps; a model of 80 classes numbers them without.
    """
    sizes = {d for info in model.outputs for d in info.shape or () if isinstance(d, int)}
    count = len(categories)
    if count > 1 and sizes & {count, count + 4, count + 5}:
        return {c: i for i, c in enumerate(categories)}
    return None


# --- files ----------------------------------------------------------------------------------------


def _files(argument: str | None) -> dict[str, Path]:
    """Images by id, in the order of their names."""
    if not argument:
        raise UsageError("dataset 'images': no path was given; say --dataset images:FOLDER")
    path = Path(argument).expanduser()
    if not path.exists():
        raise InputError(f"dataset 'images': {argument!r} does not exist; check the path")
    found = sorted(_find_files(path), key=lambda f: f.as_posix())
    if not found:
        kinds = ", ".join(sorted(SUFFIXES))
        raise InputError(f"dataset 'images': {argument!r} has no image; expected {kinds}")
    if path.is_file():
        return {path.name: path}
    return {f.relative_to(path).as_posix(): f for f in found}


def _find_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield from [path] if path.suffix.lower() in SUFFIXES else []
        return
    yield from files_in(path, lambda file: file.suffix.lower() in SUFFIXES)


@hookimpl
def optvet_datasets() -> Iterable[Dataset]:
    """Images."""
    return [ImagesDataset()]
