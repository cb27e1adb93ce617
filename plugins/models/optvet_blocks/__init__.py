"""Models of which each repeated block is left twice: ``blocks:decoder.onnx``."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from onnx import ModelProto, TensorProto
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from optvet.plugin import (
    InputError,
    ModelCard,
    ModelSource,
    UsageError,
    hookimpl,
    load_model,
)

if TYPE_CHECKING:
    from optvet_blocks.repeats import BlockRow

_INSIDE_BYTES = 1 << 30
"""Weights of more than this lie in a file beside the model."""


class BlocksSource:
    """A large model with equal blocks in a row, cut to two of each: quick to vet, and no copy."""

    name = "blocks"

    def models(self) -> Iterable[ModelCard]:
        """Nothing: what lies on the disk is not listed."""
        return []

    def fetch(self, reference: str, cache: Path) -> Sequence[Path]:
        """The model in the file ``reference``, cut; it is made once, below ``cache``.

        Raises:
            UsageError: There is no such file, or no block in it stands more than twice in a row.
            InputError: It is no model, or its weights cannot be read.
        """
        path = Path(reference).expanduser()
        if not reference or not path.is_file():
            raise UsageError(f"no such file: {reference!r}; give blocks: a model's path")
        model = _read(path)
        target = cache / "blocks" / _stamp(path, model) / path.name
        if not target.is_file():
            _store(model, path, target)
        return [target]


@hookimpl
def optvet_model_sources() -> Iterable[ModelSource]:
    """Models cut to their distinct blocks."""
    return [BlocksSource()]


def _read(path: Path) -> ModelProto:
    """The model without the weights that lie in other files."""
    try:
        return load_model(path, weights=False)
    except Exception as error:
        raise InputError(f"{path} is no ONNX model: {error}") from error


def _stamp(path: Path, model: ModelProto) -> str:
    """Names the model's file and those of its weights, as they are now."""
    from optvet_blocks.repeats import KEPT

    outside = {e.value for t in _tensors(model) for e in t.external_data if e.key == "location"}
    words = [f"{path.absolute()}|{KEPT}"]
    for file in (path, *(path.parent / name for name in sorted(outside))):
        with contextlib.suppress(OSError):  # A file that is not there is missed when it is read.
            about = file.stat()
            words.append(f"{file.name}|{about.st_size}|{about.st_mtime_ns}")
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def _store(model: ModelProto, path: Path, target: Path) -> None:
    """Write the model cut, and beside it what a vet of it cannot say."""
    from optvet_blocks.repeats import KEPT, leave_out_repeats

    before = len(model.graph.node)
    repeats = leave_out_repeats(model)
    if not repeats:
        raise UsageError(
            f"{path}: none of its {before:,} nodes are in a block that stands more than {KEPT} "
            f"times in a row, so there is nothing to leave out; vet it whole: optvet vet {path}"
        )
    _load_weights(model, path)
    target.parent.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent.parent) as made:
        _write(model, Path(made, target.name))
        words = _limits(repeats, before, len(model.graph.node))
        Path(made, target.name).with_suffix(".toml").write_text(f'limits = "{words}"\n')
        target.parent.mkdir(exist_ok=True)
        # The model last: a folder without it is made again.
        for file in sorted(Path(made).iterdir(), key=lambda f: f.name == target.name):
            file.rename(target.parent / file.name)


def _limits(repeats: Sequence[BlockRow], before: int, after: int) -> str:
    from optvet_blocks.repeats import KEPT

    rows = ", ".join(f"{KEPT} of {r.count} equal blocks of {r.length} nodes" for r in repeats)
    return (
        f"{after} of {before} nodes: {rows}; not seen is what needs more blocks, other weights or "
        "the size of the whole"
    )


def _load_weights(model: ModelProto, path: Path) -> None:
    """Read the weights that are left, one at a time."""
    for tensor in _tensors(model):
        if uses_external_data(tensor):
            try:
                load_external_data_for_tensor(tensor, str(path.parent))
            except Exception as error:
                raise InputError(f"{path}: weights of {tensor.name!r}: {error}") from error
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]


def _tensors(model: ModelProto) -> Iterable[TensorProto]:
    yield from model.graph.initializer
    for node in model.graph.node:
        yield from (a.t for a in node.attribute if a.HasField("t"))


def _write(model: ModelProto, target: Path) -> None:
    size = sum(len(tensor.raw_data) for tensor in _tensors(model))
    outside = size > _INSIDE_BYTES
    onnx.save(model, str(target), save_as_external_data=outside, location=f"{target.name}.data")
