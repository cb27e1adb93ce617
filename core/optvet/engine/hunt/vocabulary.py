"""Gathers the fragments of pools once, into files that all workers read."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import overload

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, helper, numpy_helper
from pydantic import BaseModel

from optvet.engine.contract import other_returns
from optvet.engine.discovery import Plugins
from optvet.engine.work.cache.disk import cache_root
from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inner_values import record_values
from optvet.spec.errors import InfrastructureError, UsageError
from optvet.spec.files import private_folder, replacing
from optvet.spec.generators import Fragment, Pattern, Pool, PoolRequest, Vocabulary
from optvet.spec.runtime_protocols import Runtime
from optvet.spec.types import Pass

FRAGMENTS = 5000
"""Limit of one pool."""
ELEMENTS = 20_000
"""Limit of one value."""
_GATHER_S = 600.0
_ATTRIBUTE_VALUES = 24
_FORMAT = "fragments/3"

Place = tuple[str, str, str]
"""Domain, operator and name of an attribute."""


@dataclass(frozen=True)
class PoolChoice:
    """A pool and the argument that the user gave it."""

    pool: Pool
    argument: str | None


def choices_of(named: Sequence[str], plugins: Plugins) -> list[PoolChoice]:
    """The pools that a user named, as ``NAME`` or ``NAME:ARGUMENT``; by default each that can.

    Raises:
        UsageError: There is none.
    """
    named = named or [n for n in plugins.pools() if not plugins.pool(n).needs_argument]
    if not named:
        raise UsageError("there is no pool of fragments; see: optvet plugins")
    # An empty argument is one, unlike none: the pool says what it thinks of it.
    parts = (text.partition(":") for text in named)
    return [PoolChoice(plugins.pool(n), argument if c else None) for n, c, argument in parts]


def gather(
    choices: Sequence[PoolChoice],
    passes: Sequence[Pass],
    runtime: Runtime,
    options: BaseModel,
    *,
    seed: int,
    sandbox: Sandbox,
    folder: Path,
    version: str,
) -> list[Path]:
    """A file for each pool, below ``folder``; pools without an argument are asked only once.

    Raises:
        UsageError: A pool refuses its argument.
        InfrastructureError: A pool failed.
    """
    private_folder(folder)
    files = []
    for choice in choices:
        about = [_FORMAT, version, onnx.__version__, choice.pool.name, choice.argument, seed]
        # A pool that was changed is gathered anew, though its version is the same.
        about.append(_content_of(choice.pool))
        names = [p.name for p in passes]
        key = hashlib.sha256(json.dumps([*about, names]).encode()).hexdigest()[:32]
        file = folder / f"{key}.zip"
        # Models that the argument names may have changed since.
        if choice.argument is not None or not file.exists():
            order = (choice.pool, choice.argument, tuple(passes), runtime, options, seed, file)
            # In a process of its own, which ends: a pool loads whole models, and runs them.
            outcome = sandbox.call(_write, *order, fresh=True, timeout_s=_GATHER_S)
            if outcome.failure is not None:
                kind = outcome.failure.error_type.rpartition(".")[2]
                words = f"pool {choice.pool.name!r}: {outcome.failure.message}"
                # What the pool says of its argument is the user's; all else is the pool's mistake.
                raise (UsageError if kind in _REFUSALS else InfrastructureError)(words)
        files.append(file)
    return files


_REFUSALS = ("UsageError", "InputError")


def _content_of(pool: Pool) -> str:
    """A digest of a pool's module and the files beside it in its package."""
    path = getattr(sys.modules.get(type(pool).__module__), "__file__", None)
    if path is None:
        return ""
    file = Path(path)
    files = sorted(file.parent.glob("*.*")) if file.name == "__init__.py" else [file]
    return hashlib.sha256(b"".join(f.read_bytes() for f in files if f.is_file())).hexdigest()


def _write(
    pool: Pool,
    argument: str | None,
    passes: Sequence[Pass],
    runtime: Runtime,
    options: BaseModel,
    seed: int,
    file: Path,
) -> None:
    """Called in a worker."""

    def values(model: bytes, feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return record_values(model, feeds, RuntimeConfig(runtime, options))

    request = PoolRequest(argument, passes, seed, FRAGMENTS, values)
    checked = other_returns.check_fragments(pool, lambda: pool.fragments(request))
    # Models of hunts are small; a fragment with megabytes would be refused with each of them.
    found = [item for item in checked if _is_small(item)]
    with replacing(file) as target, zipfile.ZipFile(target, "w") as archive:
        fragments = [item for item in found if isinstance(item, Fragment)]
        blob, places = _laid_out(_pack(item) for item in fragments)
        archive.writestr("fragments", blob)
        attributes = _attributes(fragments)
        blob, inner = _laid_out(a.SerializeToString() for v in attributes.values() for a in v)
        archive.writestr("attributes", blob)
        index = {
            "fragments": places,
            "operators": [[n.op_type for n in f.nodes if not n.domain] for f in fragments],
            "attributes": [[*place, len(values)] for place, values in attributes.items()],
            "values": inner,
            "patterns": [[p.about, p.operators] for p in found if isinstance(p, Pattern)],
        }
        archive.writestr("index.json", json.dumps(index))


def _laid_out(parts: Iterable[bytes]) -> tuple[bytes, list[int]]:
    """The parts one behind the other, and where each ends."""
    blob, ends = bytearray(), list[int]()
    for part in parts:
        blob += part
        ends.append(len(blob))
    return bytes(blob), ends


def _is_small(item: Fragment | Pattern) -> bool:
    if isinstance(item, Pattern):
        return True
    return all(v.size <= ELEMENTS for v in (*item.inputs.values(), *item.outputs.values()))


def _pack(item: Fragment) -> bytes:
    """A fragment as a model: ``inputs`` are its initializers, ``outputs`` those of a second graph.

    What are weights are its inputs.
    """
    weights = [helper.make_empty_tensor_value_info(name) for name in sorted(item.weights)]
    graph = helper.make_graph(item.nodes, item.name, weights, [], _tensors(item.inputs))
    opsets = [helper.make_opsetid(d, v) for d, v in item.opsets.items()]
    model = helper.make_model(graph, opset_imports=opsets, functions=item.functions)
    model.training_info.add().initialization.initializer.extend(_tensors(item.outputs))
    return bytes(model.SerializeToString())


def _tensors(values: Mapping[str, np.ndarray]) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()]


def _unpack(data: bytes) -> Fragment:
    model = ModelProto.FromString(data)
    tensors = model.training_info[0].initialization.initializer
    return Fragment(
        model.graph.name,
        tuple(model.graph.node),
        {t.name: numpy_helper.to_array(t) for t in model.graph.initializer},
        {t.name: numpy_helper.to_array(t) for t in tensors},
        {entry.domain: entry.version for entry in model.opset_import},
        tuple(model.functions),
        frozenset(v.name for v in model.graph.input),
    )


class _Fragments(Sequence[Fragment]):
    """Fragments that are parsed when they are asked for.

    A worker that died is replaced by one that reads the vocabulary again: parsing all of it takes
    400 ms, this 10 ms.
    """

    def __init__(self, parts: Sequence[bytes]) -> None:
        self._parts = parts
        self._known: dict[int, Fragment] = {}

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, index: int) -> Fragment: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Fragment]: ...

    def __getitem__(self, index: int | slice) -> Fragment | Sequence[Fragment]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        if place not in self._known:
            self._known[place] = _unpack(self._parts[place])
        return self._known[place]


class _Attributes(Mapping[Place, tuple[AttributeProto, ...]]):
    """Attributes that are parsed when they are asked for."""

    def __init__(self, parts: Mapping[Place, Sequence[bytes]]) -> None:
        self._parts = parts

    def __getitem__(self, place: Place) -> tuple[AttributeProto, ...]:
        return tuple(AttributeProto.FromString(data) for data in self._parts[place])

    def __iter__(self) -> Iterator[Place]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


@dataclass(frozen=True)
class Stock:
    """A vocabulary, and which of its fragments are one node of an operator, by its name."""

    vocabulary: Vocabulary
    single: Mapping[str, Sequence[int]]


def fragments_folder(cache_dir: Path | None) -> Path:
    """The folder in the cache that pools are kept in, made if need be: workers write there."""
    folder = (cache_dir or cache_root()) / "fragments"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@lru_cache(maxsize=2)
def read_vocabulary(files: tuple[Path, ...]) -> Stock:
    """The vocabulary in ``files``; that of the last two calls is kept in memory.

    Small pools come first: fragments are tried once in this order, and handwritten patterns that
    optimizers look for must not wait for thousands of tests.

    Raises:
        InfrastructureError: A file is not as it was written.
    """
    parts: list[bytes] = []
    patterns: list[Pattern] = []
    attributes: dict[Place, list[bytes]] = {}
    single: dict[str, list[int]] = {}
    for read in sorted((_read(file) for file in files), key=lambda read: len(read.fragments)):
        for number, operators in enumerate(read.operators, len(parts)):
            if len(operators) == 1:
                single.setdefault(operators[0], []).append(number)
        parts += read.fragments
        patterns += read.patterns
        for place, values in read.attributes:
            attributes.setdefault(place, []).extend(values)
    fragments, known = _Fragments(parts), _Attributes(attributes)
    return Stock(Vocabulary(fragments, tuple(patterns), known), single)


@dataclass(frozen=True)
class _Read:
    """What one file holds; ``operators`` are those of each fragment."""

    fragments: Sequence[bytes]
    operators: Sequence[Sequence[str]]
    patterns: Sequence[Pattern]
    attributes: Sequence[tuple[Place, Sequence[bytes]]]


def _read(file: Path) -> _Read:
    try:
        with zipfile.ZipFile(file) as archive:
            index = json.loads(archive.read("index.json"))
            values = iter(_split_at(archive.read("attributes"), index["values"]))
            return _Read(
                _split_at(archive.read("fragments"), index["fragments"]),
                [list(operators) for operators in index["operators"]],
                [Pattern(tuple(o), about) for about, o in index["patterns"]],
                [
                    ((domain, operator, name), list(itertools.islice(values, count)))
                    for domain, operator, name, count in index["attributes"]
                ],
            )
    except (OSError, ValueError, TypeError, zipfile.BadZipFile, LookupError) as error:
        raise InfrastructureError(f"{os.fspath(file)} is damaged; delete it") from error


def _split_at(blob: bytes, ends: Sequence[int]) -> list[bytes]:
    return [blob[a:b] for a, b in itertools.pairwise((0, *ends))]


def _attributes(fragments: Iterable[Fragment]) -> dict[Place, list[AttributeProto]]:
    found: dict[Place, dict[bytes, AttributeProto]] = {}
    for fragment in fragments:
        for node in fragment.nodes:
            for attribute in node.attribute:
                values = found.setdefault((node.domain, node.op_type, attribute.name), {})
                if len(values) < _ATTRIBUTE_VALUES and not attribute.HasField("g"):
                    values.setdefault(attribute.SerializeToString(), attribute)
    return {place: list(values.values()) for place, values in found.items()}
