"""Fragments that come with onnx itself: its tests of single operators, and its small models."""

from __future__ import annotations

import io
import os
import random
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types
from onnx import ModelProto, numpy_helper

from optvet import Fragment, Pattern, Pool, PoolRequest, hookimpl
from optvet.graph import ONNX_DOMAIN, opset_versions

_KINDS = ("simple", "pytorch-operator", "pytorch-converted")
_ELEMENTS = 20_000


class OnnxTests:
    """The backend tests of every operator: valid attributes, inputs and outputs.

    Operators that are functions come expanded too, as patterns of several nodes.
    """

    name = "onnx-tests"
    needs_argument = False

    def fragments(self, request: PoolRequest) -> Iterable[Fragment | Pattern]:
        """One fragment per test whose values are all tensors."""
        with _seeded(request.seed):
            from onnx.backend.test.case.node import collect_testcases

            # Annotated as taking a name; None means every operator.
            everything: Any = None
            cases = collect_testcases(everything)
        for case in cases[: request.limit]:
            if case.model is None or not case.data_sets:
                continue
            read, made = case.data_sets[0]
            if fragment := _fragment(f"onnx-tests/{case.name}", case.model, read, made):
                yield fragment


class OnnxModels:
    """Small models in the onnx package: operators as exporters wrote them, of old operator sets."""

    name = "onnx-models"
    needs_argument = False

    def fragments(self, request: PoolRequest) -> Iterable[Fragment | Pattern]:
        """One fragment per model whose values are all tensors."""
        import onnx.backend.test

        root = Path(onnx.backend.test.__file__).parent / "data"
        folders = [f.parent for kind in _KINDS for f in root.glob(f"{kind}/*/model.onnx")]
        for folder in sorted(folders)[: request.limit]:
            model = onnx.load(folder / "model.onnx")
            data = folder / "test_data_set_0"
            try:
                read, made = (_tensors(data, kind) for kind in ("input", "output"))
            except (DecodeError, ValueError, OSError):
                continue  # values that are no tensors
            if fragment := _fragment(f"onnx-models/{folder.name}", model, read, made):
                yield fragment


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The tests draw their values from the global generators, when they are imported."""
    before, other = np.random.get_state(), random.getstate()
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        np.random.set_state(before)
        random.setstate(other)


def _tensors(folder: Path, kind: str) -> list[np.ndarray]:
    files = [folder / f"{kind}_{i}.pb" for i in range(len(os.listdir(folder)))]
    return [
        numpy_helper.to_array(onnx.TensorProto.FromString(f.read_bytes()))
        for f in files
        if f.exists()
    ]


def _fragment(
    name: str, model: ModelProto, read: Sequence[Any], made: Sequence[Any]
) -> Fragment | None:
    """The model as a fragment; None if a value is no tensor or is large."""
    graph = model.graph
    weights = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    needed = [v.name for v in graph.input if v.name not in weights]
    values = [np.asarray(v) for v in (*read, *made) if isinstance(v, np.ndarray | np.generic)]
    if len(values) != len(read) + len(made) or (len(needed), len(graph.output)) != (
        len(read),
        len(made),
    ):
        return None
    if any(v.size > _ELEMENTS for v in (*values, *weights.values())):
        return None
    inputs = dict(zip(needed, values[: len(read)], strict=True)) | weights
    outputs = {v.name: value for v, value in zip(graph.output, values[len(read) :], strict=True)}
    versions = opset_versions(model)
    versions.setdefault(ONNX_DOMAIN, onnx.defs.onnx_opset_version())
    functions = tuple(model.functions)
    return Fragment(name, tuple(graph.node), inputs, outputs, versions, functions)


@hookimpl
def optvet_generators() -> Iterable[Pool]:
    """The pools of onnx's own tests."""
    return [OnnxTests(), OnnxModels()]
