"""Reads arrays by key from ``.npz``, ``.npy`` and ``.pb`` files; pickled data is never loaded."""

from __future__ import annotations

import lzma
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from optvet.plugin import ValueInfo, announced_bytes, open_file, read_file
from optvet_files.errors import bad_file, check_bytes
from optvet_files.find_files import SampleFiles

Arrays = Mapping[str, np.ndarray]
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


def read_arrays(source: SampleFiles, inputs: Sequence[ValueInfo]) -> Arrays:
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
            raise bad_file(str(path), "is no npz archive; rename it to .npy")
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
                check_bytes(f"{path}, key {_cut(key)!r}", size)
                total += size
    except _UNREADABLE:
        return
    check_bytes(f"{path}, all {len(archive.infolist())} keys", total)


def _check_array(path: Path) -> None:
    try:
        with open_file(path) as file:
            size = announced_bytes(file)
    except _UNREADABLE:
        return
    check_bytes(str(path), size)


def _read_npy(path: Path) -> np.ndarray:
    _check_array(path)
    with _load(path) as array:
        if not isinstance(array, np.ndarray):
            raise bad_file(str(path), "is an archive of arrays; rename it to .npz")
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
            raise bad_file(str(path), _why(path, error)) from error
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
        raise bad_file(f"{path}, key {_cut(key)!r}", _why(path, error)) from error
    if not isinstance(array, np.ndarray):
        raise bad_file(f"{path}, key {_cut(key)!r}", "is no array; expected what np.savez writes")
    return array


def _read_tensors(files: Sequence[Path], inputs: Sequence[ValueInfo]) -> Arrays:
    """Tensors by their own names if those are inputs, else by the number in ``input_N.pb``."""
    tensors = [(f, _tensor(f)) for f in files]
    names = {i.name for i in inputs}
    if len({t.name for _, t in tensors} & names) == len(tensors):
        return {t.name: _array(f, t) for f, t in tensors}
    return {f.stem: _array(f, t) for f, t in tensors}


def _tensor(path: Path) -> onnx.TensorProto:
    check_bytes(str(path), 2 * path.stat().st_size if path.exists() else 0)
    try:
        tensor = onnx.TensorProto()
        tensor.ParseFromString(read_file(path))
        return tensor
    except Exception as error:  # protobuf's DecodeError has no base class but Exception
        raise bad_file(str(path), f"is no TensorProto ({error}); write it again") from error


def _array(path: Path, tensor: onnx.TensorProto) -> np.ndarray:
    try:
        # Data outside the file would be read relative to the working folder: refuse it.
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ValueError("its data is in another file")
        return np.asarray(numpy_helper.to_array(tensor))
    except Exception as error:  # to_array raises whatever its many branches raise
        raise bad_file(str(path), f"is no TensorProto ({error}); write it again") from error
