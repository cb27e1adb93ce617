"""The samples of a vet: their datasets, the selected slice, and reading them in chunks.

Datasets are lazy and are read again if their samples are needed again, so that only one chunk is in
memory at a time. A dataset that fits into one chunk is read once.
"""

from __future__ import annotations

import heapq
import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from pydantic import BaseModel

from optvet.engine.contract import source_returns
from optvet.engine.discovery import Plugins
from optvet.engine.options import parse_options
from optvet.engine.trust import dataset_from, options_from
from optvet.graph.types import element_bits
from optvet.spec.errors import InputError, NothingTested, UnknownName, UsageError
from optvet.spec.extras import extras
from optvet.spec.foreign import check_name
from optvet.spec.memory import DEFAULT_BYTES, check_size, limit_memory
from optvet.spec.protocols import Dataset, DatasetExtras, Probe
from optvet.spec.records.vet import NOT_ASKED, DatasetRecord
from optvet.spec.request import OnBad
from optvet.spec.types import Deferred, Model, Sample, ValueInfo

CHUNK_SAMPLES = 32
CHUNK_BYTES = 64 << 20
"""Limits of a chunk; the bytes are those of its inputs and of both models' outputs."""
AUTO = "auto"
"""``auto:FOLDER`` stands for the dataset that suits the folder and the model best."""


@dataclass(frozen=True)
class Slice:
    """The selected samples of each dataset: ``limit`` of them from ``start``, perhaps shuffled.

    ``on_bad`` says what happens to a sample that cannot be made; it counts towards ``limit``.
    """

    start: int = 0
    limit: int | None = None
    shuffle: bool = False
    on_bad: OnBad = "refuse"


@dataclass(frozen=True)
class _DatasetSource:
    spec: str
    dataset: Dataset
    argument: str | None
    options: BaseModel
    chosen_by: str


class Inputs:
    """The samples of a request; every iteration gives the same ones.

    Attributes:
        skipped: Why bad data was left out, by sample; complete after one whole iteration.

    Raises:
        UnknownName: There is no such dataset, or it has no such option.
        UsageError: The value of an option is wrong.
        InputError: The model's record sets an option that only a trusted record may set.
    """

    def __init__(
        self,
        model: Model,
        plugins: Plugins,
        specs: Sequence[str],
        options: Mapping[str, Any],
        *,
        cut: Slice,
        seed: int,
        probe: Probe,
        memory_bytes: int = DEFAULT_BYTES,
        trust: bool = False,
    ) -> None:
        self._model, self._cut, self._seed, self._probe = model, cut, seed, probe
        self._memory_bytes = memory_bytes
        self._sources = _sources(model, plugins, specs, options, trust)
        self._counts = [0] * len(self._sources)
        self._whole: list[Sample] | None = None
        self.skipped: dict[str, str] = {}

    def __iter__(self) -> Iterator[Sample]:
        """All samples, one at a time.

        Raises:
            InputError: A sample is bad, and ``on_bad`` is "refuse".
            NothingTested: There is no sample.
        """
        if self._whole is not None:
            yield from self._whole
            return
        found = False
        for number, source in enumerate(self._sources):
            self._counts[number] = 0
            prefix = f"{source.spec}/" if len(self._sources) > 1 else ""
            for item in self._limit_memory(source):
                sample = self._make_sample(source.dataset, item, prefix)
                if sample is not None:
                    found = True
                    self._counts[number] += 1
                    yield replace(sample, id=f"{prefix}{item.id}", origin=source.spec)
        if not found:
            raise self._nothing()

    def _nothing(self) -> Exception:
        if not self.skipped:
            return NothingTested("the datasets gave no sample; nothing was tested")
        reason = list(self.skipped.values())[-1]
        return InputError(f"no sample could be made; the last of {len(self.skipped)}: {reason}")

    def chunks(self) -> Iterator[list[Sample]]:
        """All samples, in lists that fit in memory."""
        samples = iter(self)
        following = next(samples, None)
        first = True
        while following is not None:
            chunk, following = _chunk(following, samples, self._model.outputs, self._chunk_bytes)
            if first and following is None:
                self._whole = chunk
            first = False
            yield chunk

    @property
    def several(self) -> bool:
        """Whether there is more than one chunk; known after the first chunk was read."""
        return self._whole is None

    @property
    def _chunk_bytes(self) -> int:
        # A task has a chunk's message, inputs and outputs in memory at the same time.
        return min(CHUNK_BYTES, self._memory_bytes // 4)

    def records(self) -> list[DatasetRecord]:
        """The datasets that the samples came from."""
        return [
            DatasetRecord(
                name=s.spec,
                chosen_by=s.chosen_by,
                options=s.options.model_dump(mode="json"),
                samples=count,
                provenance=dict(
                    extras(s.dataset, DatasetExtras).provenance(self._model, s.argument, s.options)
                ),
            )
            for s, count in zip(self._sources, self._counts, strict=True)
        ]

    def _limit_memory(self, source: _DatasetSource) -> Iterator[Sample | Deferred]:
        """The items of ``source``, read and made within the limit of memory."""
        # Not around the loop: while a generator is suspended, its limit would apply to the caller.
        with limit_memory(self._memory_bytes):
            items = iter(self._items(source))
        while True:
            with limit_memory(self._memory_bytes):
                item = next(items, None)
                if item is None:
                    return
                check_name(item.id)
                if isinstance(item, Sample):
                    check_size(f"dataset {source.spec!r}, sample {item.id!r}", _bytes_in(item))
            yield item

    def _items(self, source: _DatasetSource) -> Iterable[Sample | Deferred]:
        cut = self._cut
        # No sequence is longer than sys.maxsize, which is the most that islice takes.
        start = min(cut.start, sys.maxsize)
        end = None if cut.limit is None else min(start + cut.limit, sys.maxsize)
        items: Iterable[Sample | Deferred] = source_returns.samples(
            source.dataset,
            lambda: source.dataset.samples(
                self._model,
                source.argument,
                source.options,
                seed=self._seed,
                limit=None if cut.shuffle else end,
                probe=self._probe,
            ),
        )
        if cut.shuffle:
            items = _shuffle(items, self._seed, end)
        return itertools.islice(items, start, end)

    def _make_sample(self, dataset: Dataset, item: Sample | Deferred, prefix: str) -> Sample | None:
        if isinstance(item, Sample):
            return item
        try:
            with limit_memory(self._memory_bytes):
                sample = source_returns.make_sample(dataset, item)
                check_size(f"sample {prefix}{item.id}", _bytes_in(sample))
                return sample
        except InputError as error:
            if self._cut.on_bad == "refuse":
                raise InputError(f"{error} (or say --on-bad skip to leave it out)") from error
            self.skipped[f"{prefix}{item.id}"] = str(error)
            return None


def _shuffle(
    items: Iterable[Sample | Deferred], seed: int, count: int | None
) -> list[Sample | Deferred]:
    """The first ``count`` of all items in random order; only these are kept in memory."""
    draw = np.random.default_rng([seed, 0x5EED])
    keyed = ((draw.random(), i, item) for i, item in enumerate(items))
    if count is None:
        chosen = sorted(_check_memory(keyed), key=_order)
    else:
        chosen = heapq.nsmallest(count, keyed, _order)
    return [item for _, _, item in chosen]


def _check_memory(
    keyed: Iterable[tuple[float, int, Sample | Deferred]],
) -> Iterator[tuple[float, int, Sample | Deferred]]:
    """The same items; raises if more would be kept in memory than the limit allows."""
    total = 0
    for entry in keyed:
        if isinstance(entry[2], Sample):
            total += _bytes_in(entry[2])
            check_size("shuffling all samples (or say --limit, to shuffle few)", total)
        yield entry


def _order(keyed: tuple[float, int, Sample | Deferred]) -> tuple[float, int]:
    return keyed[:2]


def _chunk(
    first: Sample, others: Iterator[Sample], outputs: Sequence[ValueInfo], limit_bytes: int
) -> tuple[list[Sample], Sample | None]:
    """A chunk that begins with ``first``, and the sample that follows it."""
    own = 2 * sum(_bytes_of(info) for info in outputs)
    chunk = [first]
    size = own + _bytes_in(first)
    for sample in others:
        size += own + _bytes_in(sample)
        if len(chunk) >= CHUNK_SAMPLES or size > limit_bytes:
            return chunk, sample
        chunk.append(sample)
    return chunk, None


def _bytes_in(sample: Sample) -> int:
    return sum(_bytes_of_array(value) for value in sample.feeds.values())


def _bytes_of_array(array: np.ndarray) -> int:
    texts = array.ravel() if array.dtype == object else ()
    return int(array.nbytes) + sum(len(t) for t in texts if isinstance(t, (str, bytes)))


def _bytes_of(info: ValueInfo) -> int:
    """Bytes of a value; an unknown dimension counts as 1."""
    sizes = [d for d in info.shape or () if isinstance(d, int) and d > 0]
    try:
        kind = onnx.TensorProto.DataType.Value(info.dtype.upper())
    except ValueError:  # a sequence, a map
        return 0
    # An element of less than a byte, a text, or one of a type that is not declared takes one here.
    return math.prod(sizes) * max(1, (element_bits(kind) or 8) // 8)


# --- which datasets ------------------------------------------------------------------------------


def _sources(
    model: Model, plugins: Plugins, specs: Sequence[str], options: Mapping[str, Any], trust: bool
) -> list[_DatasetSource]:
    chosen = [_resolve_dataset(model, plugins, spec) for spec in specs] or [
        _declared_dataset(model, plugins, trust)
    ]
    names = {spec.partition(":")[0] for spec, _ in chosen}
    if any(spec.startswith(f"{AUTO}:") for spec in specs):
        # Several models may have different datasets, so options of all datasets are allowed.
        names = set(plugins.names("dataset"))
    known = {k for name in names for k in type(plugins.dataset(name).options).model_fields}
    for key in options:
        if key not in known:
            raise UnknownName(f"option of dataset {' and '.join(sorted(names))}", key, known)
    return [_source(model, plugins, spec, why, options, trust) for spec, why in chosen]


def _source(
    model: Model,
    plugins: Plugins,
    spec: str,
    why: str,
    options: Mapping[str, Any],
    trust: bool,
) -> _DatasetSource:
    name, _, argument = spec.partition(":")
    dataset = plugins.dataset(name)
    fields = dict(options)
    config = model.config
    if spec in (config.dataset, dataset_from(config, trust=True)):
        # Options that the user gives replace declared ones, which then need no trust.
        more = {k: v for k, v in config.dataset_options.items() if k not in fields}
        fields |= options_from(
            config.origin,
            "dataset_options",
            dataset.options,
            more,
            folder=Path(config.origin).parent,
            trust=trust,
        )
    own = {k: v for k, v in fields.items() if k in type(dataset.options).model_fields}
    parsed = parse_options(f"dataset {name}", dataset.options, own)
    return _DatasetSource(spec, dataset, argument or None, parsed, why)


def _declared_dataset(model: Model, plugins: Plugins, trust: bool) -> tuple[str, str]:
    spec = dataset_from(model.config, trust=trust)
    if spec is not None:
        return spec, f"declared in {model.config.origin}"
    return plugins.default("dataset"), NOT_ASKED


def _resolve_dataset(model: Model, plugins: Plugins, spec: str) -> tuple[str, str]:
    name, _, argument = spec.partition(":")
    if name != AUTO:
        try:
            plugins.dataset(name)
        except UnknownName as error:
            # A path without the name of what reads it.
            if not Path(spec).exists():
                raise
            names = ", ".join(plugins.names("dataset"))
            words = f"--dataset {spec}: a dataset has a name before its path; write {AUTO}:{spec}"
            raise UsageError(f"{words}, or NAME:{spec} with one of {names}") from error
        return spec, "--dataset"
    if not argument:
        raise UsageError("dataset 'auto' needs a folder; say --dataset auto:FOLDER")
    scores = {
        n: extras(plugins.dataset(n), DatasetExtras).suits(model, argument)
        for n in sorted(plugins.names("dataset"))
    }
    best = max(scores, key=lambda n: scores[n], default=None)
    if best is None or scores[best] <= 0:
        return plugins.default("dataset"), f"nothing in {argument} suits the model"
    sure = "the model's record" if scores[best] >= 0.9 else "the model's inputs and task"
    return f"{best}:{argument}", f"--dataset {spec}: it suits {sure}"
