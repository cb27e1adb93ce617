"""Finds the files of each sample below a path or a pattern, in natural order of their names."""

from __future__ import annotations

import difflib
import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from optvet.plugin import InputError, ValueInfo, matching

_READABLE = (".npz", ".npy", ".pb")
_EXPECTED = ".npz, .npy or .pb files, or test_data_set_* folders"


@dataclass(frozen=True)
class SampleFiles:
    """Files that make one sample, or a batch of samples; read only when needed."""

    id: str
    files: tuple[Path, ...]


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sorts ``set_2`` before ``set_10``."""
    return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", path.name)]


def find_samples(argument: str, inputs: Sequence[ValueInfo]) -> list[SampleFiles]:
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
) -> list[SampleFiles]:
    """Samples of all paths that match a pattern; ids are unique paths as matched."""
    found: list[SampleFiles] = []
    for match in matches:
        if match.is_dir():
            inside = _in_folder(match, match, inputs)
            found += [SampleFiles(f"{match.as_posix()}/{s.id}", s.files) for s in inside]
        elif match.suffix in _READABLE:
            found.append(_single(match, match.as_posix()))
    if not found:
        raise InputError(
            f"dataset 'files': pattern {argument!r} matches nothing readable; expected {_EXPECTED}"
        )
    return found


def _single(path: Path, id: str) -> SampleFiles:
    if path.suffix not in _READABLE:
        raise InputError(
            f"dataset 'files': {path} is a {path.suffix or 'nameless'} file; expected {_EXPECTED}"
        )
    if not os.path.isfile(path):
        # Reading it might never end.
        raise InputError(f"dataset 'files': {path} is a device or a pipe; expected {_EXPECTED}")
    return SampleFiles(id, (path,))


def _in_folder(
    root: Path, folder: Path, inputs: Sequence[ValueInfo], depth: int = 2
) -> list[SampleFiles]:
    """Samples in ``folder``; where it has none of its own, those in its subfolders.

    Folders ``test_data_set_*`` count in any case. The depth is bounded, since links may go round.
    """
    entries = sorted(folder.iterdir(), key=_natural)
    files = [e for e in entries if e.is_file()]
    found = [SampleFiles(_id(root, f), (f,)) for f in files if f.suffix == ".npz"]
    for suffix in (".npy", ".pb"):
        members = [f for f in files if f.suffix == suffix and not re.match(r"output_\d+$", f.stem)]
        if not members:
            continue
        if len(inputs) == 1 and not _is_one_sample(members, inputs):
            found += [SampleFiles(_id(root, f), (f,)) for f in members]
        else:
            found.append(SampleFiles(_id(root, folder), tuple(members)))
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
