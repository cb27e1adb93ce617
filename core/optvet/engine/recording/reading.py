"""Reads what a client of a kit wrote, which is foreign data."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from optvet.spec.errors import InputError
from optvet.spec.foreign import open_file
from optvet.spec.memory import announced_bytes, check_size

SUFFIX = ".npz"
SCHEMA = "optvet.recording/1"
_MOST_ARRAYS = 100_000
_ABOUT_BYTES = 16 << 20


class RecordingHeader(BaseModel):
    """What a recording says of itself; ``inputs`` and ``values`` are sample and name of each array.

    Attributes:
        model: Digest of the model that the kit is of.
        client: What ran the kit.
        runtime: Library and version.
        providers: Execution providers of the session.
        options: Options of the provider, as ``KEY=VALUE``.
        system: The device's operating system.
        seconds: Of each run.
        failure: Why a run failed; empty if none did.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: str = Field(alias="schema")
    model: str = Field(max_length=100)
    client: str = Field("", max_length=200)
    runtime: str = Field("", max_length=200)
    providers: list[str] = Field(default_factory=list, max_length=20)
    options: list[str] = Field(default_factory=list, max_length=100)
    system: str = Field("", max_length=500)
    seconds: list[float] = Field(default_factory=list, max_length=_MOST_ARRAYS)
    inputs: list[tuple[int, str]] = Field(max_length=_MOST_ARRAYS)
    values: list[tuple[int, str]] = Field(max_length=_MOST_ARRAYS)
    failure: str = Field("", max_length=5000)


@dataclass(frozen=True)
class Recording:
    """Inputs and recorded values by name, of each sample."""

    about: RecordingHeader
    inputs: tuple[Mapping[str, np.ndarray], ...]
    values: tuple[Mapping[str, np.ndarray], ...]


def read_recording(path: Path) -> Recording:
    """The recording in a file.

    Raises:
        InputError: It is none, is damaged, or is larger than the limit of memory.
    """
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            return _read(path, archive)
    except InputError:
        raise
    except Exception as error:  # numpy and zipfile raise many kinds of errors for damaged files
        reason = (str(error) or type(error).__name__)[:300]
        raise InputError(f"{path}: no recording ({reason}); record it anew") from error


def _read(path: Path, archive: zipfile.ZipFile) -> Recording:
    members = {m.filename: m for m in archive.infolist()}
    if "about.npy" not in members:
        raise InputError(f"{path}: no recording: it has no about.npy; `optvet record` makes a kit")
    check_size(str(path), sum(_announced(archive, m) for m in members.values()))
    if members["about.npy"].file_size > _ABOUT_BYTES:
        raise InputError(f"{path}: about.npy is larger than {_ABOUT_BYTES:,} bytes")
    told = _array(archive, members["about.npy"])
    try:
        about = RecordingHeader.model_validate(json.loads(told.astype(np.uint8).tobytes()))
    except (ValidationError, ValueError, RecursionError) as error:
        words = str(error).splitlines()[0][:200]
        raise InputError(f"{path}: about.npy is not as {SCHEMA} says: {words}") from error
    if about.schema_ != SCHEMA:
        raise InputError(f"{path}: written as {about.schema_[:50]!r}; this optvet reads {SCHEMA}")
    samples = 1 + max((n for n, _ in about.inputs), default=-1)
    if min((n for n, _ in (*about.inputs, *about.values)), default=0) < 0 or any(
        n >= samples for n, _ in about.values
    ):
        raise InputError(f"{path}: values of a sample that has no inputs")

    def arrays(kind: str, entries: list[tuple[int, str]]) -> tuple[dict[str, np.ndarray], ...]:
        found: tuple[dict[str, np.ndarray], ...] = tuple({} for _ in range(samples))
        for place, (number, name) in enumerate(entries):
            key = f"{kind}{place}.npy"
            if key not in members:
                raise InputError(f"{path}: {key}, of {name[:100]!r}, is missing")
            found[number][name] = _array(archive, members[key])
        return found

    if samples > _MOST_ARRAYS:
        raise InputError(f"{path}: {samples:,} samples; at most {_MOST_ARRAYS:,}")
    return Recording(about, arrays("i", about.inputs), arrays("v", about.values))


def _announced(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    with archive.open(member) as file:
        return announced_bytes(file)


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
        return array
