"""Rows of Hugging Face datasets: ``huggingface:ORG/NAME[@REVISION][#CONFIG]``, or a local file.

The revision, a branch or a tag, is resolved to a commit first, and the answer tells which. Rows are
streamed; with the option ``streaming=false`` the split is downloaded into the cache of the library
``datasets``, from where it is read without a network later. Datasets that run code of their own are
not supported. A path to a ``.parquet``, ``.csv``, ``.json`` or ``.jsonl`` file is read as it is.

A column feeds the input of its name; the option ``columns`` says so of others. A model with one
input is fed from the one column that fits it. Images and sounds have datasets that prepare them:
export the files, and use ``images:FOLDER`` or ``audio:FOLDER``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from optvet.graph import numpy_dtype
from optvet.plugin import (
    Dataset,
    Deferred,
    InputError,
    MissingLibrary,
    Model,
    Probe,
    Sample,
    UnknownName,
    UsageError,
    ValueInfo,
    check_file,
    check_size,
    hookimpl,
    open_file,
)

BUILDERS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json"}
SPLITS = ("validation", "test", "train")
"""Which split is taken where none is asked for: the first of these that there is."""
_LABELS = ("label", "labels", "target")


class HuggingFaceOptions(BaseModel):
    """Which rows, and what of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    split: str = ""
    """The split; by default validation, else test, else train."""
    columns: dict[str, str] = {}
    """The column of an input that is called otherwise, such as {"input_ids": "ids"}."""
    label: str = ""
    """The column of the labels; by default label, labels or target."""
    streaming: bool = True
    """Read rows from the hub as they are needed, or download the split and keep it."""


class HuggingFaceDataset:
    """Datasets of the Hugging Face Hub, and files in their formats."""

    name = "huggingface"
    environment: Mapping[str, str] = {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        # Without it, a request tells of every dataset that is opened, of local files too.
        "HF_UPDATE_DOWNLOAD_COUNTS": "0",
    }
    wants: Sequence[str] = ("datasets",)
    options: HuggingFaceOptions = HuggingFaceOptions()

    def __init__(self) -> None:
        self._sources: dict[tuple[str, str], dict[str, str]] = {}

    def samples(
        self,
        model: Model,
        argument: str | None,
        options: HuggingFaceOptions,
        *,
        seed: int,
        limit: int | None,
        probe: Probe,
    ) -> Iterator[Sample | Deferred]:
        """Rows in the order of the dataset; see ``Dataset``."""
        if not argument:
            raise UsageError(
                "dataset 'huggingface': no name was given; say --dataset huggingface:ORG/NAME"
            )
        rows, source = _rows(argument, options)
        self._sources[argument, options.split] = source
        for number, row in enumerate(rows):
            if number == limit:
                return
            id_ = f"{source['split']}[{number}]"
            yield Deferred(id_, partial(_sample, model, id_, dict(row), options))

    def provenance(
        self, model: Model, argument: str | None, options: HuggingFaceOptions
    ) -> Mapping[str, str]:
        """The commit and the split of the rows."""
        return self._sources.get((argument or "", options.split), {})


def _rows(
    argument: str, options: HuggingFaceOptions
) -> tuple[Iterable[Mapping[str, Any]], dict[str, str]]:
    """Rows, lazily, and what they depend on."""
    try:
        import datasets
    except ImportError as error:
        who, extra = "dataset 'huggingface'", "optvet[huggingface]"
        raise MissingLibrary("the library datasets", extra, who) from error
    path = Path(argument).expanduser()
    if path.suffix in BUILDERS and path.is_file():
        if options.split not in ("", "train"):
            raise UnknownName("split", options.split, ["train"])
        _check_file(path)
        try:
            # A lock is left in the cache, which nothing else is written to.
            with tempfile.TemporaryDirectory() as cache:
                rows = datasets.load_dataset(
                    BUILDERS[path.suffix],
                    data_files=str(path),
                    split="train",
                    streaming=True,
                    cache_dir=cache,
                )
            return _guard(str(path), rows), {"file": path.name, "split": "train"}
        except Exception as error:  # the library lets through whatever its readers raise
            raise InputError(f"dataset 'huggingface': {path}: {_brief(error)}") from error
    if path.suffix in BUILDERS or argument.startswith((".", "/", "~")):
        raise InputError(
            f"dataset 'huggingface': {argument!r} does not exist, or is none of "
            f"{', '.join(BUILDERS)}"
        )
    return _of_hub(datasets, argument, options)


def _check_file(path: Path) -> None:
    """Refuse a file that has to be read in pieces too large.

    Parquet is read by groups of rows, whose sizes stand at its end; the others by lines.
    """
    check_file(path)
    if path.suffix != ".parquet":
        return
    import pyarrow.parquet

    try:
        with open_file(path) as file:
            about = pyarrow.parquet.read_metadata(file)
    except Exception:  # the library that reads the rows says what is wrong
        return
    groups = [about.row_group(i).total_byte_size for i in range(about.num_row_groups)]
    check_size(f"dataset 'huggingface': {path}, its largest group of rows", max(groups, default=0))


def _of_hub(
    datasets: Any, argument: str, options: HuggingFaceOptions
) -> tuple[Iterable[Mapping[str, Any]], dict[str, str]]:
    from huggingface_hub import HfApi

    rest, _, config = argument.partition("#")
    name, _, revision = rest.partition("@")
    try:
        sha = HfApi().dataset_info(name, revision=revision or None).sha
        splits = datasets.get_dataset_split_names(name, config or None, revision=sha)
    except Exception as error:  # of the network, the hub, the library: they have no common base
        raise InputError(
            f"dataset 'huggingface': {argument!r} is not available ({_brief(error)}); check the "
            f"name, your network and {'HF_ENDPOINT' if os.environ.get('HF_ENDPOINT') else 'access'}"
        ) from error
    if options.split and options.split not in splits:
        raise UnknownName(f"split of {name}", options.split, splits)
    split = options.split or next((s for s in SPLITS if s in splits), splits[0])
    source = {"revision": str(sha), "split": split, **({"config": config} if config else {})}
    try:
        rows = datasets.load_dataset(
            name, config or None, split=split, revision=sha, streaming=options.streaming
        )
    except Exception as error:  # as above
        raise InputError(f"dataset 'huggingface': {argument!r}: {_brief(error)}") from error
    return _guard(argument, rows), source


def _guard(what: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The rows; what breaks off the stream is told as bad data."""
    try:
        yield from rows
    except Exception as error:  # the library lets through whatever its readers raise
        raise InputError(f"dataset 'huggingface': {what}: {_brief(error)}") from error


def _brief(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{type(error).__name__}: {lines[0][:200]}"


# --- rows to inputs -------------------------------------------------------------------------------


def _sample(model: Model, id_: str, row: Mapping[str, Any], options: HuggingFaceOptions) -> Sample:
    """The inputs of one row.

    Raises:
        InputError: A column is missing, or does not fit its input.
    """
    if unknown := set(options.columns) - {i.name for i in model.inputs}:
        raise UnknownName("input", min(unknown), [i.name for i in model.inputs])
    label = options.label or next((k for k in _LABELS if k in row), "")
    if options.label and options.label not in row:
        raise UnknownName(f"column of {id_}", options.label, row)
    feeds = {}
    for info in model.inputs:
        column = options.columns.get(info.name) or _column(model, info, row, label)
        if column not in row:
            raise UnknownName(
                f"column of {id_}", column, row, hint="(--dataset-option columns={…} maps inputs)"
            )
        feeds[info.name] = _array(f"{id_}, column {column!r}", info, row[column])
    return Sample(id_, feeds, row.get(label))


def _column(model: Model, info: ValueInfo, row: Mapping[str, Any], label: str) -> str:
    """The column of the input's name; of a single input, the only one that has its kind."""
    if info.name in row or len(model.inputs) > 1:
        return info.name
    wanted = str if info.dtype == "string" else (int, float, list)
    fitting = [k for k, v in row.items() if k != label and isinstance(v, wanted)]
    return fitting[0] if len(fitting) == 1 else info.name


def _array(where: str, info: ValueInfo, value: Any) -> np.ndarray:
    if not isinstance(value, (str, int, float, list, np.ndarray)):
        raise InputError(
            f"dataset 'huggingface': {where} is a {type(value).__name__}, which is no tensor; "
            "export images and sounds to files, and use --dataset images:FOLDER or audio:FOLDER"
        )
    check_size(f"dataset 'huggingface': {where}", _elements(value) * 16)
    try:
        array = np.array(value, dtype=_dtype(info))
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"dataset 'huggingface': {where}: {error}") from error
    if info.shape is None:
        return array
    # A row has no dimension for the batch.
    array = array.reshape([1] * (len(info.shape) - array.ndim) + list(array.shape))
    fits = len(array.shape) == len(info.shape) and all(
        not isinstance(d, int) or d == have for d, have in zip(info.shape, array.shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"dataset 'huggingface': {where} has the shape {list(np.shape(value))}, and input "
            f"{info.name!r} takes {list(info.shape)}"
        )
    return array


def _elements(value: Any) -> int:
    """How many elements the array of a value will have, if its lists are as long as their first."""
    if isinstance(value, np.ndarray):
        return int(value.size)
    if not isinstance(value, list):
        return 1
    return len(value) * _elements(value[0]) if value else 0


def _dtype(info: ValueInfo) -> np.dtype[Any]:
    try:
        return numpy_dtype(info)
    except ValueError:
        raise InputError(
            f"dataset 'huggingface': input {info.name!r} is a {info.dtype}, expected a tensor"
        ) from None


@hookimpl
def optvet_datasets() -> Iterable[Dataset]:
    """Hugging Face."""
    return [HuggingFaceDataset()]
