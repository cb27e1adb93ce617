"""Sound in WAV files: ``audio:FILE_OR_FOLDER``, cut into what a model takes at a time.

Two kinds of input are made; which one the model has is read off its shape:

- a *waveform*, ``[…, samples]`` with all other dimensions 1 or open: consecutive cuts of that many
  samples, the last one filled up with silence, or the whole clip where the length is open;
- a *spectrum*, ``[…, n/2 + 1, …]`` with n a power of two: frames of n samples under Hann's window,
  half of them shared with the next, as magnitudes, or as real and imaginary parts where the shape
  has a dimension of 2.

A scalar integer input called like a sample rate gets it, and other inputs, such as states of
recurrent layers, are zeros. Features beyond that (mel, MFCC) depend on their recipe to the last
constant: compute them as the model's authors do, and use the dataset ``files``.
"""

from __future__ import annotations

import csv
import functools
import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.graph import numpy_dtype
from optvet.plugin import (
    Dataset,
    Deferred,
    InputError,
    Model,
    Probe,
    Sample,
    Sensitive,
    UsageError,
    ValueInfo,
    check_file,
    check_size,
    files_in,
    hookimpl,
    open_text,
)

RATE = 16_000
"""Samples per second of most speech models, where nothing says otherwise."""

_SOUND = re.compile(
    r"audio|speech|voice|sound|acoustic|keyword|wake.?word|vad\b|wav|denois|music|speaker", re.I
)
_IS_RATE = re.compile(r"^(sr|fs|rate|sample_?rate|sampling_?rate)$", re.I)
_IS_STATE = re.compile(r"state|cache|hidden|memory|mem\b|^[hc]_?\d*$|_h$|_c$", re.I)
_SHORTEST = 256
"""Fewer samples at a time are no waveform."""
_FLOATS = {"float", "float16", "double"}


class AudioOptions(BaseModel):
    """How sound becomes inputs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rate: int | None = Field(default=None, ge=1000, le=768_000)
    """Samples per second that the model expects; by default what its record gives it as a sample
    rate, else 16000. Files of another rate are resampled."""
    hop: int | None = Field(default=None, ge=1)
    """Samples from the beginning of one cut to that of the next; by default no overlap."""
    labels: Annotated[str | None, Sensitive("reads a file", reads_data=True)] = None
    """A CSV file with the columns file and label. It names the label, or the words, of whole clips;
    a clip that is cut into several samples has none."""


@dataclass(frozen=True)
class _Form:
    """How one input takes sound; ``axis`` is that of the samples or of the frequencies."""

    info: ValueInfo
    kind: Literal["waveform", "magnitudes", "complex"]
    shape: tuple[int | None, ...]
    axis: int

    @property
    def window(self) -> int | None:
        """Samples that one input is made of; None for all of a clip."""
        size = self.shape[self.axis]
        return 2 * (size - 1) if size is not None and self.kind != "waveform" else size

    def to_input(self, cut: np.ndarray) -> np.ndarray:
        """The input of ``cut``, float64[window] within -1 and 1."""
        shape = [1 if d is None else d for d in self.shape]
        values = cut
        if self.kind == "waveform":
            shape[self.axis] = len(cut)
        else:
            hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(len(cut)) / len(cut))
            spectrum = np.fft.rfft(cut * hann)
            values = np.abs(spectrum)
            if self.kind == "complex":
                values = np.stack([spectrum.real, spectrum.imag], axis=-1)
        if self.info.dtype in ("int16", "int32"):
            values = np.round(values * (2**15 - 1))
        return values.reshape(shape).astype(_dtype(self.info))


class AudioDataset:
    """Sound in WAV files."""

    name = "audio"
    options: AudioOptions = AudioOptions()

    def samples(
        self,
        model: Model,
        argument: str | None,
        options: AudioOptions,
        *,
        seed: int,
        limit: int | None,
        probe: Probe,
    ) -> Iterator[Sample | Deferred]:
        """Cuts of the clips in the order of their names; see ``Dataset``."""
        if not argument:
            raise UsageError("dataset 'audio': no path was given; say --dataset audio:FOLDER")
        form = _form(model)
        if form is None:
            shown = ", ".join(f"{i.name} {list(i.shape or [])}" for i in model.inputs)
            raise InputError(
                f"dataset 'audio': {model.source} has no input that takes a waveform or a spectrum "
                f"({shown}); compute its features and use --dataset files:PATH"
            )
        files = _files(argument)
        labels = _labels(options.labels, files)
        yielded = 0
        for name, path in files.items():
            for item in self._cuts(model, form, options, name, path, labels.get(path.name)):
                yield item
                yielded += 1
                if yielded == limit:
                    return

    def _cuts(
        self,
        model: Model,
        form: _Form,
        options: AudioOptions,
        name: str,
        path: Path,
        label: Any,
    ) -> Iterator[Sample | Deferred]:
        rate, _ = _rate(model, options)
        try:
            clip = _decode(path, path.stat().st_mtime_ns, rate)
        except InputError as error:
            yield Deferred(name, partial(_refuse, error))
            return
        window = form.window or len(clip)
        hop = options.hop or (window if form.kind == "waveform" else window // 2)
        starts = range(0, max(1, len(clip) - window + hop), hop)
        others = _others(model, form, rate)
        for start in starts:
            cut = clip[start : start + window]
            cut = np.pad(cut, (0, window - len(cut)))
            id_ = name if len(starts) == 1 else f"{name}@{start / rate:.3f}s"
            feeds = {form.info.name: form.to_input(cut), **others}
            yield Sample(id_, feeds, label if len(starts) == 1 else None)

    def suits(self, model: Model, argument: str) -> float:
        """0.8 for a model that is said to be about sound, and a folder that has some."""
        words = " ".join(
            [model.task or "", Path(model.source).stem, *(i.name for i in model.inputs)]
        )
        if not _SOUND.search(words) or _form(model) is None:
            return 0.0
        return 0.8 if _find_files(Path(argument).expanduser()) else 0.0

    def provenance(
        self, model: Model, argument: str | None, options: AudioOptions
    ) -> Mapping[str, str]:
        """The sample rate and the form of the input, and where they are from."""
        form = _form(model)
        rate, why = _rate(model, options)
        if form is None:
            return {}
        length = "whole clips" if form.window is None else f"cuts of {form.window} samples"
        return {
            "rate": f"{rate} Hz ({why})",
            "input": f"{form.info.name}: {form.kind}, {length} (inferred from its shape)",
        }


def _refuse(error: InputError) -> Sample:
    raise error


# --- what the model takes -------------------------------------------------------------------------


def _form(model: Model) -> _Form | None:
    """The first input that takes sound; one that is not called like a state is preferred."""
    fresh = [i for i in model.inputs if not _IS_STATE.search(i.name)]
    for info in (*fresh, *(i for i in model.inputs if i not in fresh)):
        form = _form_of(info, _shape(model, info))
        if form is not None:
            return form
    return None


def _shape(model: Model, info: ValueInfo) -> tuple[int | None, ...] | None:
    """The shape, with open dimensions as the model's record fixes them."""
    declared = (model.config.inputs.get(info.name) or {}).get("shape")
    if declared is not None and (info.shape is None or len(declared) == len(info.shape)):
        return tuple(declared)
    if info.shape is None:
        return None
    return tuple(d if isinstance(d, int) else None for d in info.shape)


def _form_of(info: ValueInfo, shape: tuple[int | None, ...] | None) -> _Form | None:
    if not shape or info.dtype not in _FLOATS | {"int16", "int32"}:
        return None
    long = [i for i, d in enumerate(shape) if d is not None and d > 1]
    if info.dtype in _FLOATS and (spectral := _spectral(info, shape, long)) is not None:
        return spectral
    if not long:
        # The first of several open dimensions is the batch.
        free = [i for i, d in enumerate(shape) if d is None]
        return _Form(info, "waveform", shape, free[-1]) if free else None
    if len(long) == 1 and (shape[long[0]] or 0) >= _SHORTEST:
        return _Form(info, "waveform", shape, long[0])
    return None


def _spectral(info: ValueInfo, shape: tuple[int | None, ...], long: Sequence[int]) -> _Form | None:
    bins = [i for i in long if _is_bins(shape[i] or 0)]
    rest = [shape[i] for i in long if i not in bins]
    if len(bins) != 1 or rest not in ([], [2]) or (rest and shape[-1] != 2):
        return None
    return _Form(info, "complex" if rest else "magnitudes", shape, bins[0])


def _is_bins(size: int) -> bool:
    return size >= 65 and (size - 1).bit_count() == 1


def _rate(model: Model, options: AudioOptions) -> tuple[int, str]:
    """Samples per second, and who says so."""
    if options.rate is not None:
        return options.rate, "option rate"
    for info in model.inputs:
        value = (model.config.inputs.get(info.name) or {}).get("value")
        if _IS_RATE.match(info.name) and isinstance(value, int) and value > 0:
            return value, f"declared in {model.config.origin}"
    return RATE, "assumed"


def _others(model: Model, form: _Form, rate: int) -> dict[str, np.ndarray]:
    """Inputs beside the sound: the sample rate, and silence of states."""
    feeds = {}
    for info in model.inputs:
        if info.name == form.info.name:
            continue
        shape = _shape(model, info)
        if shape is None:
            raise InputError(
                f"dataset 'audio': the rank of input {info.name!r} is unknown; "
                "use --dataset files:PATH"
            )
        value = rate if _IS_RATE.match(info.name) else 0
        feeds[info.name] = np.full([1 if d is None else d for d in shape], value, _dtype(info))
    return feeds


def _dtype(info: ValueInfo) -> np.dtype[Any]:
    try:
        return numpy_dtype(info)
    except ValueError:
        raise InputError(
            f"dataset 'audio': input {info.name!r} is a {info.dtype}, expected a tensor; "
            "use --dataset files:PATH"
        ) from None


# --- files ----------------------------------------------------------------------------------------


def _files(argument: str) -> dict[str, Path]:
    """WAV files by id, in the order of their names."""
    path = Path(argument).expanduser()
    if not os.path.exists(path):
        raise InputError(f"dataset 'audio': {argument!r} does not exist; check the path")
    found = _find_files(path)
    if not found:
        raise InputError(
            f"dataset 'audio': {argument!r} has no .wav file; convert other formats to WAV"
        )
    if os.path.isfile(path):
        return {path.name: path}
    return {f.relative_to(path).as_posix(): f for f in found}


def _find_files(path: Path) -> list[Path]:
    if os.path.isfile(path):
        return [path] if path.suffix.lower() == ".wav" else []
    inside = files_in(path, lambda f: f.suffix.lower() == ".wav")
    return sorted(inside, key=lambda f: f.as_posix())


def _labels(path: str | None, files: Mapping[str, Path]) -> dict[str, Any]:
    """Labels by file name; integers become integers."""
    if path is None:
        return {}
    try:
        with open_text(path, newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"dataset 'audio': labels {path}: {error}") from error
    if not rows or not {"file", "label"} <= rows[0].keys():
        raise InputError(f"dataset 'audio': labels {path}: expected a CSV with columns file,label")
    labels: dict[str, Any] = {}
    for row in rows:
        label = row["label"] or ""
        labels[Path(row["file"] or "").name] = int(label) if label.isdecimal() else label
    if not labels.keys() & {f.name for f in files.values()}:
        raise InputError(f"dataset 'audio': labels {path}: none of its files is in the dataset")
    return labels


def _map(path: Path) -> tuple[int, np.ndarray]:
    """Rate and samples of a WAV file; still on disk where samples are of 1, 2, 4 or 8 bytes."""
    from scipy.io import wavfile

    check_file(path)
    try:
        own, data = wavfile.read(path, mmap=True)
    except ValueError as error:
        if "mmap" not in str(error):
            raise
        # Samples of three bytes become four.
        check_size(f"dataset 'audio': {path}", 2 * path.stat().st_size)
        own, data = wavfile.read(path)
    return own, data


def _check(path: Path, own: int, data: np.ndarray, rate: int) -> None:
    """Refuse a clip that takes too much memory as float64, or once it is resampled."""
    frames = len(data)
    resampled = 2 * frames * rate // own if own > 0 and own != rate else 0
    what = f"dataset 'audio': {path} of {frames / max(own, 1):,.0f} s at {own} Hz"
    check_size(what, 8 * (2 * data.size + frames + resampled))


@functools.lru_cache(maxsize=1)
def _decode(path: Path, modified_ns: int, rate: int) -> np.ndarray:
    """float64[samples] within -1 and 1, all channels mixed, at ``rate``; the last one is kept.

    ``modified_ns`` is there to read a file anew that has changed.
    """
    from scipy.io import wavfile
    from scipy.signal import resample_poly

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)
            own, data = _map(path)
            _check(path, own, data, rate)
    except InputError:
        raise
    except Exception as error:  # scipy's reader fails in many ways on a damaged file
        raise InputError(f"dataset 'audio': {path} is no readable WAV file: {error}") from error
    if data.size == 0 or own <= 0:
        raise InputError(f"dataset 'audio': {path} has no sound in it")
    if data.dtype == np.uint8:
        values = (data.astype(np.float64) - 128) / 128
    elif data.dtype.kind == "i":
        values = data / float(-int(np.iinfo(data.dtype).min))
    else:
        values = data.astype(np.float64)
    if not np.isfinite(values).all():
        raise InputError(f"dataset 'audio': {path} has samples that are no numbers")
    if values.ndim == 2:
        values = values.mean(axis=1)
    if own != rate:
        common = math.gcd(own, rate)
        values = resample_poly(values, rate // common, own // common)
    return np.asarray(values)


@hookimpl
def optvet_datasets() -> Iterable[Dataset]:
    """Sound."""
    return [AudioDataset()]
