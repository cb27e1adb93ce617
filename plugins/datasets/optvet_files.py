"""Inputs from files: ``.npz``, ``.npy``, and ONNX ``test_data_set_*`` folders of ``.pb``.

A file becomes a sample in three steps: it is read into arrays by key (``_read``), keys become
input names (``_by_input``), and each array is made to fit its input or is refused (``_fit``).
Nothing is guessed silently: a value is cast only if every element survives, and pickled data,
which could run code, is never loaded.
"""

from __future__ import annotations

import difflib
import glob
import itertools
import lzma
import os
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from pydantic import BaseModel, ConfigDict

from optvet.plugin import (
    Deferred,
    InputError,
    Model,
    Probe,
    Sample,
    UsageError,
    ValueInfo,
    announced_bytes,
    check_size,
    hookimpl,
    matching,
    open_file,
    read_file,
)

Arrays = Mapping[str, np.ndarray]

_POSITIONAL = re.compile(r"^(?:arr_|input[_-]?)?(\d+)$")
_NUMBERED = re.compile(r"^(-?\d+)[|/](.+)$")
_READABLE = (".npz", ".npy", ".pb")
_EXPECTED = ".npz, .npy or .pb files, or test_data_set_* folders"
_SHOWN = 300
"""Characters of a name or an error, in a message; errors of zipfile quote what the file holds."""
# What numpy raises for a damaged or forged file; a header may also ask for all memory.
_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    MemoryError,
    OverflowError,
    RuntimeError,  # an encrypted archive, a compression that this Python lacks
    SyntaxError,
    TypeError,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


_BLOCK = 1 << 20
_TENSORS = frozenset(onnx.TensorProto.DataType.keys()) - {"UNDEFINED"}


class FilesOptions(BaseModel):
    """There is nothing to choose."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class _SampleFiles:
    """Files that make one sample, or a batch of samples; read only when needed."""

    id: str
    files: tuple[Path, ...]


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sorts ``set_2`` before ``set_10``."""
    return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", path.name)]


def _describe(info: ValueInfo) -> str:
    """An input's type as ONNX text writes it: ``float[N,3]``."""
    if info.shape is None:
        return f"{info.dtype}[...]"
    return f"{info.dtype}[{','.join('?' if d is None else str(d) for d in info.shape)}]"


def _bad(where: str, problem: str) -> InputError:
    return InputError(f"dataset 'files': {where}: {problem}")


# --- Finding files ------------------------------------------------------------------------------


def _sources(argument: str, inputs: Sequence[ValueInfo]) -> list[_SampleFiles]:
    """All samples below a path or a glob pattern, in natural order.

    Raises:
        InputError: There is no such path, or nothing readable in it.
    """
    path = Path(argument).expanduser()
    if path.is_dir():
        found = _in_folder(path, path, inputs)
        if not found:
            raise InputError(
                f"dataset 'files': folder {argument!r} has nothing readable in it; "
                f"expected {_EXPECTED}"
            )
        return found
    if os.path.exists(path):
        return [_single(path, path.name)]
    if glob.has_magic(argument):
        matches = sorted(map(Path, matching(str(path))), key=_natural)
        return _match(argument, matches, inputs)
    raise InputError(_no_such_path(argument, path))


def _match(
    argument: str, matches: Sequence[Path], inputs: Sequence[ValueInfo]
) -> list[_SampleFiles]:
    """Samples of all paths that match a pattern; ids are unique paths as matched."""
    found: list[_SampleFiles] = []
    for match in matches:
        if match.is_dir():
            inside = _in_folder(match, match, inputs)
            found += [_SampleFiles(f"{match.as_posix()}/{s.id}", s.files) for s in inside]
        elif match.suffix in _READABLE:
            found.append(_single(match, match.as_posix()))
    if not found:
        raise InputError(
            f"dataset 'files': pattern {argument!r} matches nothing readable; expected {_EXPECTED}"
        )
    return found


def _single(path: Path, id: str) -> _SampleFiles:
    if path.suffix not in _READABLE:
        raise InputError(
            f"dataset 'files': {path} is a {path.suffix or 'nameless'} file; expected {_EXPECTED}"
        )
    if not os.path.isfile(path):
        # Reading it might never end.
        raise InputError(f"dataset 'files': {path} is a device or a pipe; expected {_EXPECTED}")
    return _SampleFiles(id, (path,))


def _in_folder(
    root: Path, folder: Path, inputs: Sequence[ValueInfo], depth: int = 2
) -> list[_SampleFiles]:
    """Samples in ``folder``; where it has none of its own, those in its subfolders.

    Folders ``test_data_set_*`` count in any case. The depth is bounded, since links may go round.
    """
    entries = sorted(folder.iterdir(), key=_natural)
    files = [e for e in entries if e.is_file()]
    found = [_SampleFiles(_id(root, f), (f,)) for f in files if f.suffix == ".npz"]
    for suffix in (".npy", ".pb"):
        members = [f for f in files if f.suffix == suffix and not re.match(r"output_\d+$", f.stem)]
        if not members:
            continue
        if len(inputs) == 1 and not _is_one_sample(members, inputs):
            found += [_SampleFiles(_id(root, f), (f,)) for f in members]
        else:
            found.append(_SampleFiles(_id(root, folder), tuple(members)))
    has_own = bool(found)
    for inner in (e for e in entries if depth and e.is_dir()):
        if not has_own or inner.name.startswith("test_data_set"):
            found += _in_folder(root, inner, inputs, depth - 1)
    return found


def _is_one_sample(members: Sequence[Path], inputs: Sequence[ValueInfo]) -> bool:
    """Whether one file of a single-input model's folder is that input by its name."""
    return len(members) == 1 and members[0].stem in (inputs[0].name, "input_0")


def _id(root: Path, path: Path) -> str:
    return path.name if path == root else path.relative_to(root).as_posix()


def _no_such_path(argument: str, path: Path) -> str:
    parent = path.parent
    if not parent.is_dir():
        return f"dataset 'files': {argument!r} does not exist, and neither does folder {parent}"
    near = difflib.get_close_matches(path.name, [p.name for p in parent.iterdir()], n=3)
    advice = f"did you mean {' or '.join(repr(n) for n in near)}?" if near else "check the path"
    return f"dataset 'files': {argument!r} does not exist; {advice}"


# --- Reading ------------------------------------------------------------------------------------


def _read(source: _SampleFiles, inputs: Sequence[ValueInfo]) -> Arrays:
    """Arrays of a source by key: an npz key, a file's stem, or a TensorProto's name."""
    first = source.files[0]
    if first.suffix == ".npz":
        return _read_npz(first)
    if first.suffix == ".npy":
        arrays: Arrays = {f.stem: _read_npy(f) for f in source.files}
    else:
        arrays = _read_tensors(source.files, inputs)
    lone = len(inputs) == len(arrays) == 1
    return {inputs[0].name: next(iter(arrays.values()))} if lone else arrays


def _read_npz(path: Path) -> Arrays:
    _check_archive(path)
    with _load(path) as archive:
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise _bad(str(path), "is no npz archive; rename it to .npy")
        return {key: _member(path, key, archive) for key in archive.files}


def _check_archive(path: Path) -> None:
    """Refuse an archive whose arrays take too much memory together; none of them is read.

    What cannot be told from the headers is left to ``np.load``, which says what is wrong.
    """
    total = 0
    try:
        with open_file(path) as opened, zipfile.ZipFile(opened) as archive:
            for member in archive.infolist():
                with archive.open(member) as file:
                    size = announced_bytes(file)
                key = member.filename.removesuffix(".npy")
                _check(f"{path}, key {_cut(key)!r}", size)
                total += size
    except _UNREADABLE:
        return
    _check(f"{path}, all {len(archive.infolist())} keys", total)


def _check_array(path: Path) -> None:
    try:
        with open_file(path) as file:
            size = announced_bytes(file)
    except _UNREADABLE:
        return
    _check(str(path), size)


def _check(where: str, size_bytes: int) -> None:
    check_size(f"dataset 'files': {where}", size_bytes)


def _read_npy(path: Path) -> np.ndarray:
    _check_array(path)
    with _load(path) as array:
        if not isinstance(array, np.ndarray):
            raise _bad(str(path), "is an archive of arrays; rename it to .npz")
        return array


@contextmanager
def _load(path: Path) -> Iterator[Any]:
    """What ``np.load`` makes of a file, which stays open meanwhile."""
    with ExitStack() as stack:
        try:
            # Opened here: np.load leaves the file open when it fails on a damaged archive.
            file = stack.enter_context(open_file(path))
            loaded = np.load(file, allow_pickle=False)
        except _UNREADABLE as error:
            raise _bad(str(path), _why(path, error)) from error
        if isinstance(loaded, np.lib.npyio.NpzFile):
            stack.enter_context(loaded)
        yield loaded


def _why(path: Path, error: BaseException) -> str:
    text = str(error)
    if "Object arrays" in text:
        return (
            "holds Python objects, which are never unpickled; store texts as fixed-width strings, "
            "array.astype(str)"
        )
    if "pickle" in text:
        # numpy takes any file that it does not know for a pickle.
        return f"is no {path.suffix} file; write it with np.save or np.savez"
    return f"cannot be read ({type(error).__name__}: {_cut(text)}); write it again"


def _cut(text: str) -> str:
    """A text out of a file, for a message."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _member(path: Path, key: str, archive: Mapping[str, Any]) -> np.ndarray:
    try:
        array = archive[key]
    except _UNREADABLE as error:
        raise _bad(f"{path}, key {_cut(key)!r}", _why(path, error)) from error
    if not isinstance(array, np.ndarray):
        raise _bad(f"{path}, key {_cut(key)!r}", "is no array; expected what np.savez writes")
    return array


def _read_tensors(files: Sequence[Path], inputs: Sequence[ValueInfo]) -> Arrays:
    """Tensors by their own names if those are inputs, else by the number in ``input_N.pb``."""
    tensors = [(f, _tensor(f)) for f in files]
    names = {i.name for i in inputs}
    if len({t.name for _, t in tensors} & names) == len(tensors):
        return {t.name: _array(f, t) for f, t in tensors}
    return {f.stem: _array(f, t) for f, t in tensors}


def _tensor(path: Path) -> onnx.TensorProto:
    _check(str(path), 2 * path.stat().st_size if path.exists() else 0)
    try:
        tensor = onnx.TensorProto()
        tensor.ParseFromString(read_file(path))
        return tensor
    except Exception as error:  # protobuf's DecodeError has no base class but Exception
        raise _bad(str(path), f"is no TensorProto ({error}); write it again") from error


def _array(path: Path, tensor: onnx.TensorProto) -> np.ndarray:
    try:
        # Data outside the file would be read relative to the working folder: refuse it.
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ValueError("its data is in another file")
        return np.asarray(numpy_helper.to_array(tensor))
    except Exception as error:  # to_array raises whatever its many branches raise
        raise _bad(str(path), f"is no TensorProto ({error}); write it again") from error


# --- Fitting to the model -----------------------------------------------------------------------


def _by_input(arrays: Arrays, inputs: Sequence[ValueInfo], where: str) -> Arrays:
    """The same arrays under the names of the inputs.

    Raises:
        InputError: A key is no input, or an input is missing.
    """
    known = {i.name: i for i in inputs}
    unknown = [k for k in arrays if k not in known]
    missing = [n for n in known if n not in arrays]
    if len(unknown) == len(arrays) == len(inputs):
        numbers = [_POSITIONAL.match(k) for k in arrays]
        if all(numbers):
            ordered = sorted(arrays, key=lambda k: int(_POSITIONAL.sub(r"\1", k)))
            return {i.name: arrays[k] for i, k in zip(inputs, ordered, strict=True)}
    listing = ", ".join(f"{i.name!r} {_describe(i)}" for i in inputs)
    if unknown:
        near = difflib.get_close_matches(unknown[0], missing or known, n=1)
        advice = f"did you mean {near[0]!r}? " if near else ""
        raise _bad(
            where, f"key {unknown[0]!r} is no input of the model; {advice}expected {listing}"
        )
    if missing:
        raise _bad(where, f"input {missing[0]!r} is missing; expected {listing}")
    return {name: arrays[name] for name in known}


def _split(id: str, arrays: Arrays, inputs: Sequence[ValueInfo]) -> Iterator[tuple[str, Arrays]]:
    """One sample, or one for each row where all arrays have one leading axis too many."""
    batched = all(i.shape is not None and arrays[i.name].ndim == len(i.shape) + 1 for i in inputs)
    counts = {a.shape[0] for a in arrays.values() if a.ndim}
    if not (batched and len(counts) == 1):
        yield id, arrays
        return
    for row in range(counts.pop()):
        yield f"{id}#{row}", {n: a[row, ...] for n, a in arrays.items()}


def _has_shape(array: np.ndarray, info: ValueInfo) -> bool:
    """Whether rank and known dimensions agree; a negative dimension is an unknown one."""
    if info.shape is None:
        return True
    return array.ndim == len(info.shape) and all(
        not isinstance(expected, int) or expected < 0 or expected == size
        for expected, size in zip(info.shape, array.shape, strict=True)
    )


def _fit(array: np.ndarray, info: ValueInfo, where: str) -> np.ndarray:
    """``array`` in the dtype of its input.

    Raises:
        InputError: Its shape differs, or a cast would change a value.
    """
    where = f"{where}, input {info.name!r}"
    if not _has_shape(array, info):
        found = ",".join(map(str, array.shape))
        raise _bad(where, f"has shape [{found}], expected {_describe(info)}; reshape the array")
    if info.dtype == "optional":
        return array
    if info.dtype == "string" or array.dtype.kind in "USO":
        return _fit_strings(array, info, where)
    expected = np.dtype(
        onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(info.dtype.upper()))
    )
    if array.dtype.kind == "V" and array.dtype.itemsize == expected.itemsize:
        # A file keeps only the bytes of bfloat16 and float8.
        return array if array.dtype == expected else array.view(expected)
    if array.dtype == expected:
        return array.astype(expected, copy=False)
    return _cast(array, expected, info, where)


def _fit_strings(array: np.ndarray, info: ValueInfo, where: str) -> np.ndarray:
    if info.dtype != "string" or array.dtype.kind not in "USO":
        raise _bad(where, f"has dtype {array.dtype}, expected {info.dtype}; store another dtype")
    found = np.empty(array.shape, object)
    for position, text in np.ndenumerate(array):
        try:
            found[position] = text.decode() if isinstance(text, bytes) else str(text)
        except UnicodeDecodeError as error:
            raise _bad(where, f"has bytes that are no UTF-8 ({error}); store str") from error
    return found


def _cast(array: np.ndarray, expected: np.dtype[Any], info: ValueInfo, where: str) -> np.ndarray:
    _check(where, array.nbytes + array.size * expected.itemsize)
    # Dates and durations are no numbers, although numpy casts them.
    exact = array.dtype.kind not in "cmM" or expected.kind == array.dtype.kind
    if exact:
        with np.errstate(all="ignore"):
            cast = array.astype(expected)
        exact = _survives_cast(array, cast)
    if not exact:
        raise _bad(
            where,
            f"has dtype {array.dtype}, expected {info.dtype} ({expected}), and some values would "
            f"change; store array.astype({str(expected)!r}) if that is meant",
        )
    return cast


def _survives_cast(array: np.ndarray, cast: np.ndarray) -> bool:
    """Whether a cast changed no value; compared in blocks, which need little memory."""
    numbers = array.dtype.kind in "iuf" and cast.dtype.kind in "iuf"
    flat, flat_cast = array.reshape(-1), cast.reshape(-1)
    for start in range(0, array.size, _BLOCK):
        before, after = flat[start : start + _BLOCK], flat_cast[start : start + _BLOCK]
        with np.errstate(all="ignore"):
            back = after.astype(array.dtype)
        same = (back == before) | ((back != back) & (before != before))
        if numbers:
            # Wrapping survives a round trip (-1 as uint64 and back), so signs must agree too.
            same &= (after < 0) == (before < 0)
        if not np.all(same):
            return False
    return True


# --- The dataset --------------------------------------------------------------------------------


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
        if not argument:
            raise UsageError("dataset 'files': no path was given; say --dataset files:PATH")
        for info in model.inputs:
            if info.dtype != "optional" and info.dtype.upper() not in _TENSORS:
                raise InputError(
                    f"dataset 'files': input {info.name!r} is a {info.dtype}, expected a tensor; "
                    "vet a model with tensor inputs"
                )
        sources = _sources(argument, model.inputs)
        return itertools.islice(_fitting(sources, model.inputs, model.optional), limit)


def _fitting(
    sources: Sequence[_SampleFiles], inputs: Sequence[ValueInfo], optional: Sequence[ValueInfo]
) -> Iterator[Sample | Deferred]:
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
        raise _bad(str(sources[-1].files[0]), "holds no rows; give a file with at least one")


def _refuse(error: InputError) -> Sample:
    raise error


def _samples(
    source: _SampleFiles, inputs: Sequence[ValueInfo], optional: Sequence[ValueInfo]
) -> Iterator[Sample]:
    """Samples of one source; all of it is checked before the first is given.

    An optional input is fed where the source has it.
    """
    where = str(source.files[0] if len(source.files) == 1 else source.files[0].parent)
    fitted = [
        Sample(
            id=id,
            feeds={i.name: _fit(part[i.name], i, where) for i in wanted},
            origin=where,
        )
        for name, arrays in _number(source.id, _read(source, (*inputs, *optional)), inputs)
        for wanted in [(*inputs, *(i for i in optional if i.name in arrays))]
        for id, part in _split(name, _by_input(arrays, wanted, where), wanted)
    ]
    yield from fitted


def _number(id: str, arrays: Arrays, inputs: Sequence[ValueInfo]) -> Iterator[tuple[str, Arrays]]:
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
