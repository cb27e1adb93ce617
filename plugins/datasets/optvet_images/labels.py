"""What is known of images: class numbers or names, acceptable alternatives, or boxes.

A label file is one of

- JSON of COCO's form, with ``images``, ``annotations`` and ``categories``: boxes;
- JSON, a mapping of file names to labels, or a list of objects (or an object with such a list as
  ``files``) with ``file`` and a label under a key of one's choice, or with ``file`` and ``boxes``:
  objects with a ``label`` (name or number) and either ``xyxy`` (corners) or ``bbox`` (x, y, width,
  height), in pixels;
- CSV with the columns ``file`` and ``label``;
- lines of a file name and a label, separated by white space, as of ImageNet's validation list.

Instead of a file, ``folders`` numbers the folders that hold the images, in the order of names.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from optvet.plugin import InputError, check_size, parse_json, read_text

FOLDERS = "folders"
_BYTES_PER_BYTE = 8
"""Memory that JSON of numbers takes, by what it takes on disk."""


@dataclass(frozen=True)
class Boxes:
    """Annotated boxes of one image: x, y, width, height in its pixels; categories; crowds.

    Categories are COCO's ids, or the labels (names or numbers) of a list of objects.
    """

    boxes: tuple[tuple[float, ...], ...]
    categories: tuple[int | str, ...]
    crowd: tuple[int, ...]


@dataclass(frozen=True)
class Labels:
    """Labels by file name.

    Attributes:
        by_path: Labels under the names that the file gives.
        by_name: The same under the last part of each name, where it is unique.
        categories: Ids of all categories, in order, where the labels are boxes.
    """

    by_path: Mapping[str, Any] = field(default_factory=dict)
    by_name: Mapping[str, Any] = field(default_factory=dict)
    categories: tuple[int, ...] = ()

    def of(self, name: str) -> Any:
        """The label of the image ``name``, its path within the folder; None if it has none."""
        found = self.by_path.get(name)
        return self.by_name.get(PurePosixPath(name).name) if found is None else found


def read_labels(source: str, key: str, names: Iterable[str]) -> Labels:
    """Labels for the images ``names``.

    Raises:
        InputError: The file cannot be read, is of no known form, or has none of the images.
    """
    names = list(names)
    if source == FOLDERS:
        return _of_folders(names)
    path = Path(source).expanduser()
    try:
        check_size(f"dataset 'images': labels {source}", _BYTES_PER_BYTE * path.stat().st_size)
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(source, f"cannot be read: {error}") from error
    categories: tuple[int, ...] = ()
    if path.suffix.lower() == ".json":
        found, categories = _of_json(source, text, key)
    elif path.suffix.lower() == ".csv":
        found = _of_csv(source, text, key)
    else:
        found = _of_lines(source, text)
    labels = Labels(found, _by_name(found), categories)
    if not any(labels.of(n) is not None for n in names):
        shown = next(iter(found), "nothing")
        raise _bad(source, f"has none of the images; it has {shown!r}, the images are {names[0]!r}")
    return labels


def _bad(source: str, problem: str) -> InputError:
    return InputError(f"dataset 'images': labels {source}: {problem}")


def _by_name(found: Mapping[str, Any]) -> dict[str, Any]:
    single: dict[str, Any] = {}
    twice: set[str] = set()
    for path, label in found.items():
        name = PurePosixPath(path).name
        twice |= {name} & single.keys()
        single[name] = label
    return {n: v for n, v in single.items() if n not in twice}


def _of_folders(names: Sequence[str]) -> Labels:
    folders = sorted({PurePosixPath(n).parent.as_posix() for n in names} - {"."})
    if not folders:
        raise _bad(FOLDERS, "the images are in no folders of their own; give a file of labels")
    number = {folder: i for i, folder in enumerate(folders)}
    found = {n: number.get(PurePosixPath(n).parent.as_posix()) for n in names}
    return Labels({n: v for n, v in found.items() if v is not None})


def _of_lines(source: str, text: str) -> dict[str, Any]:
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split(maxsplit=1)
        if len(parts) == 1:
            raise _bad(source, f"line {number} is {line!r}, expected a file name and a label")
        if parts:
            found[parts[0]] = _label(parts[1].strip())
    return found


def _of_csv(source: str, text: str, key: str) -> dict[str, Any]:
    try:
        rows = list(csv.DictReader(text.splitlines()))
    except csv.Error as error:
        raise _bad(source, f"is no CSV: {error}") from error
    if not rows or not {"file", key} <= rows[0].keys():
        raise _bad(source, f"expected columns 'file' and {key!r}; see option label_key")
    return {row["file"]: _label(row[key]) for row in rows if row["file"] and row[key]}


def _of_json(source: str, text: str, key: str) -> tuple[dict[str, Any], tuple[int, ...]]:
    data = parse_json(text, f"dataset 'images': labels {source}", "annotations")
    if isinstance(data, dict) and {"images", "annotations"} <= data.keys():
        try:
            return _of_coco(data)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise _bad(source, f"is not of COCO's form: {error!r}") from error
    if isinstance(data, dict) and isinstance(data.get("files"), list):
        data = data["files"]
    if isinstance(data, dict):
        return {str(name): _label(label) for name, label in data.items()}, ()
    if not isinstance(data, list) or not all(isinstance(e, dict) for e in data):
        raise _bad(source, "expected COCO annotations, a mapping of files, or a list of objects")
    entries = [e for e in data if isinstance(e.get("file"), str) and e.get(key) is not None]
    if not entries and any(isinstance(e.get("boxes"), list) for e in data):
        try:
            return {str(e["file"]): _boxes(e["boxes"]) for e in data}, ()
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise _bad(source, f"is no list of files with boxes: {error!r}") from error
    if not entries:
        raise _bad(source, f"no entry has 'file' and {key!r}; choose the key by option label_key")
    return {e["file"]: _label(e[key]) for e in entries}, ()


def _of_coco(data: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[int, ...]]:
    rows: dict[Any, list[Mapping[str, Any]]] = {image["id"]: [] for image in data["images"]}
    for annotation in data["annotations"]:
        rows.setdefault(annotation["image_id"], []).append(annotation)
    ids = {int(a["category_id"]) for a in data["annotations"]}
    ids |= {int(c["id"]) for c in data.get("categories") or ()}
    found = {
        str(image["file_name"]): Boxes(
            tuple(tuple(float(v) for v in a["bbox"]) for a in rows[image["id"]]),
            tuple(int(a["category_id"]) for a in rows[image["id"]]),
            tuple(int(a.get("iscrowd", 0)) for a in rows[image["id"]]),
        )
        for image in data["images"]
    }
    if any(len(box) != 4 for label in found.values() for box in label.boxes):
        raise ValueError("a bbox is not of four numbers")
    return found, tuple(sorted(ids))


def _boxes(rows: Sequence[Mapping[str, Any]]) -> Boxes:
    """Boxes of one image, from objects with ``label`` and ``xyxy`` or ``bbox``."""
    boxes = []
    for row in rows:
        left, top, third, fourth = (float(v) for v in row["xyxy" if "xyxy" in row else "bbox"])
        corner = (left, top) if "xyxy" in row else (0.0, 0.0)
        boxes.append((left, top, third - corner[0], fourth - corner[1]))
    crowd = tuple(int(row.get("iscrowd", 0)) for row in rows)
    return Boxes(tuple(boxes), tuple(_label(row["label"]) for row in rows), crowd)


def _label(value: Any) -> Any:
    """Numbers as integers; several acceptable labels as a list."""
    if isinstance(value, list):
        return [_label(v) for v in value]
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return value
    return value
