"""Inputs from files: ``.npz``, ``.npy``, and ONNX ``test_data_set_*`` folders of ``.pb``.

A file becomes a sample in three steps: it is read into arrays by key (``read_arrays``), keys
become input names (``name_inputs``), and each array is cast to its input's type or refused
(``fit_array``).
Nothing is guessed silently: a value is cast only if every element survives, and pickled data,
which could run code, is never loaded.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnx
from pydantic import BaseModel, ConfigDict

from optvet.plugin import (
    Deferred,
    InputError,
    Model,
    Probe,
    Sample,
    UsageError,
    ValueInfo,
    hookimpl,
)

if TYPE_CHECKING:
    from optvet_files.find_files import SampleFiles
    from optvet_files.read_arrays import Arrays

_NUMBERED = re.compile(r"^(-?\d+)[|/](.+)$")
_TENSORS = frozenset(onnx.TensorProto.DataType.keys()) - {"UNDEFINED"}


class FilesOptions(BaseModel):
    """There is nothing to choose."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FilesDataset:
    """Reads inputs from a file, a folder or a pattern."""

    name = "files"
    options: FilesOptions = FilesOptions()

    def samples(
        self,
        model: Model,
        argument: str | None,
        options: FilesOptions,
        *,
        seed: int,
        limit: int | None,
        probe: Probe,
    ) -> Iterator[Sample | Deferred]:
        """Samples in the natural order of file names, read one by one; see ``Dataset``."""
        from optvet_files.find_files import find_samples

        if not argument:
            raise UsageError("dataset 'files': no path was given; say --dataset files:PATH")
        for info in model.inputs:
            if info.dtype != "optional" and info.dtype.upper() not in _TENSORS:
                raise InputError(
                    f"dataset 'files': input {info.name!r} is a {info.dtype}, expected a tensor; "
                    "vet a model with tensor inputs"
                )
        sources = find_samples(argument, model.inputs)
        return itertools.islice(_fitting(sources, model.inputs, model.optional), limit)


def _fitting(
    sources: Sequence[SampleFiles], inputs: Sequence[ValueInfo], optional: Sequence[ValueInfo]
) -> Iterator[Sample | Deferred]:
    from optvet_files.errors import bad_file

    found = False
    for source in sources:
        try:
            for sample in _samples(source, inputs, optional):
                found = True
                yield sample
        except InputError as error:
            found = True
            yield Deferred(source.id, partial(_refuse, error))
    if not found:
        raise bad_file(str(sources[-1].files[0]), "holds no rows; give a file with at least one")


def _refuse(error: InputError) -> Sample:
    raise error


def _samples(
    source: SampleFiles, inputs: Sequence[ValueInfo], optional: Sequence[ValueInfo]
) -> Iterator[Sample]:
    """Samples of one source; all of it is checked before the first is given.

    An optional input is fed where the source has it.
    """
    from optvet_files.fit_inputs import fit_array, name_inputs, split_batch
    from optvet_files.read_arrays import read_arrays

    where = str(source.files[0] if len(source.files) == 1 else source.files[0].parent)
    fitted = [
        Sample(
            id=id,
            feeds={i.name: fit_array(part[i.name], i, where) for i in wanted},
            origin=where,
        )
        for name, arrays in _split_numbered(
            source.id, read_arrays(source, (*inputs, *optional)), inputs
        )
        for wanted in [(*inputs, *(i for i in optional if i.name in arrays))]
        for id, part in split_batch(name, name_inputs(arrays, wanted, where), wanted)
    ]
    yield from fitted


def _split_numbered(
    id: str, arrays: Arrays, inputs: Sequence[ValueInfo]
) -> Iterator[tuple[str, Arrays]]:
    """Several samples of one archive, whose keys are ``0|name``, ``1|name`` or ``0/name``.

    Keys of negative numbers hold remarks on the archive, and are left out.
    """
    keys = {k: m for k in arrays if (m := _NUMBERED.match(k))}
    if len(keys) < len(arrays) or not keys or any(i.name in arrays for i in inputs):
        yield id, arrays
        return
    groups: dict[int, dict[str, np.ndarray]] = {}
    for key, match in keys.items():
        groups.setdefault(int(match[1]), {})[match[2]] = arrays[key]
    for number in sorted(n for n in groups if n >= 0):
        yield f"{id}#{number}", groups[number]


@hookimpl
def optvet_datasets() -> Iterable[FilesDataset]:
    """The dataset "files"."""
    return [FilesDataset()]
