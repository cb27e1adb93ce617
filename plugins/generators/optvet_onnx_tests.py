"""Fragments that come with onnx itself: its tests of operators, its small models, the rest."""

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
import onnx.parser
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types
from onnx import ModelProto, ValueInfoProto, numpy_helper

from optvet.graph import ONNX_DOMAIN, opset_versions
from optvet.plugin import Fragment, Pattern, Pool, PoolRequest, hookimpl

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
        with _seed_generators(request.seed):
            from onnx.backend.test.case.node import collect_testcases

            # Annotated as taking a name; None means every operator.
            everything: Any = None
            cases = collect_testcases(everything)
        for case in cases[: request.limit]:
            if case.model is None or not case.data_sets:
                continue
            read, results = case.data_sets[0]
            if fragment := _fragment(f"onnx-tests/{case.name}", case.model, read, results):
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
                read, results = (_tensors(data, kind) for kind in ("input", "output"))
            except (DecodeError, ValueError, OSError):
                continue  # values that are no tensors
            if fragment := _fragment(f"onnx-models/{folder.name}", model, read, results):
                yield fragment


class Untested:
    """Operators that onnx has no test of with tensors alone.

    Random ones, of a fixed seed, are left out for a hunt: an optimizer may draw other numbers.
    """

    name = "untested"
    needs_argument = False

    def fragments(self, request: PoolRequest) -> Iterable[Fragment | Pattern]:
        """One fragment per text that the runtime runs."""
        texts = _UNTESTED if request.passes else {**_UNTESTED, **_RANDOM}
        drawn = np.random.default_rng(request.seed)
        for name, text in list(texts.items())[: request.limit]:
            model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}')
            feeds = {i.name: _value(i, drawn) for i in model.graph.input}
            try:
                values = request.values(model.SerializeToString(), feeds)
            except Exception as error:  # what a runtime raises is its own matter
                warnings.warn(f"fragment {name} does not run: {error}", stacklevel=1)
                continue
            results = [values.get(o.name) for o in model.graph.output]
            read = list(feeds.values())
            if fragment := _fragment(f"untested/{name}", model, read, results):
                yield fragment


def _value(info: ValueInfoProto, drawn: np.random.Generator) -> np.ndarray:
    """Numbers from 0 to 1."""
    shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
    return drawn.random(shape).astype(np.float32)


_UNTESTED = {
    # onnx's checker refuses it without axes, although they have a default.
    "mean_variance_normalization": """g (float[2,3,4,5] x) => (float[2,3,4,5] y)
        { y = MeanVarianceNormalization <axes = [0, 2, 3]> (x) }""",
    "global_lp_pool": """g (float[1,3,5,5] x) => (float[1,3,1,1] y)
        { y = GlobalLpPool <p = 2> (x) }""",
    "max_roi_pool": """g (float[1,2,8,8] x, float[2,5] rois) => (float[2,2,2,2] y)
        { zero = Constant <value_float = 0.0> ()  at = Mul(rois, zero)
          y = MaxRoiPool <pooled_shape = [2, 2]> (x, at) }""",
    "optional": """g (float[2,3] x) => (float[2,3] y, bool has)
        { o = Optional (x)  y = OptionalGetElement (o)  has = OptionalHasElement (o) }""",
    "optional_out": """g (float[2,3] x) => (optional(float[2,3]) y)
        { o = Optional (x)  p = Identity (o)  y = Identity (p) }""",
    "optional_branch": """g (float[2,3] x, float[1] part) => (optional(seq(float[2,3])) y)
        { half = Constant <value_floats = [0.5]> ()  less = Less (part, half)
          whole = Squeeze (less)
          o = If (whole) <
            then_branch = t () => (optional(seq(float[2,3])) a)
              { s = SequenceConstruct (x)  a = Optional (s) },
            else_branch = e () => (optional(seq(float[2,3])) b)
              { b = Optional <type = seq(float[2,3])> () }>
          y = Identity (o) }""",
    "sequence": """g (float[2,3] x, float[2,3] more) => (float[k,3] y, int64 n)
        { s = SequenceConstruct (x, more)  end = Constant <value_int = 1> ()
          t = SequenceInsert (s, x, end)  u = SequenceErase (t, end)
          y = ConcatFromSequence <axis = 0> (u)  n = SequenceLength (u) }""",
    "sequence_empty": """g (float[2,3] x) => (float[2,3] y)
        { e = SequenceEmpty <dtype = 1> ()  s = SequenceInsert (e, x)
          zero = Constant <value_int = 0> ()  y = SequenceAt (s, zero) }""",
    "sequence_out": """g (float[2,3] x) => (seq(float[n,3]) y)
        { s = SplitToSequence <axis = 0> (x)  t = Identity (s)  y = Identity (t) }""",
    "sequence_map": """g (float[4,3] x) => (float[k,3] y)
        { s = SplitToSequence <axis = 0> (x)
          t = SequenceMap <body = b (float[1,3] a) => (float[1,3] c) { c = Relu (a) }> (s)
          y = ConcatFromSequence <axis = 0> (t) }""",
}
"""Graphs by name; inputs are numbers from 0 to 1."""
_RANDOM = {
    "bernoulli": "g (float[2,3] x) => (float[2,3] y) { y = Bernoulli <seed = 1.0> (x) }",
    "multinomial": """g (float[2,4] x) => (int32[2,3] y)
        { y = Multinomial <sample_size = 3, seed = 1.0> (x) }""",
    "random_normal": """g () => (float[2,3] y)
        { y = RandomNormal <shape = [2, 3], seed = 1.0> () }""",
    "random_normal_like": """g (float[2,3] x) => (float[2,3] y)
        { y = RandomNormalLike <seed = 1.0> (x) }""",
    "random_uniform": """g () => (float[2,3] y)
        { y = RandomUniform <shape = [2, 3], seed = 1.0> () }""",
    "random_uniform_like": """g (float[2,3] x) => (float[2,3] y)
        { y = RandomUniformLike <seed = 1.0> (x) }""",
}
"""As ``_UNTESTED``: what they draw is decided by their seed."""


@contextmanager
def _seed_generators(seed: int) -> Iterator[None]:
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
    name: str, model: ModelProto, read: Sequence[Any], expected: Sequence[Any]
) -> Fragment | None:
    """The model as a fragment; None if a value is no tensor or is large."""
    graph = model.graph
    weights = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    needed = [v.name for v in graph.input if v.name not in weights]
    # Of outputs only the names count: a sequence, or what is not there, needs no value.
    expected = [
        np.zeros(0, np.float32) if v is None or isinstance(v, list) else v for v in expected
    ]
    values = [np.asarray(v) for v in (*read, *expected) if isinstance(v, np.ndarray | np.generic)]
    if len(values) != len(read) + len(expected) or (len(needed), len(graph.output)) != (
        len(read),
        len(expected),
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
    """The pools of onnx's own tests, and of what they leave out."""
    return [OnnxTests(), OnnxModels(), Untested()]
