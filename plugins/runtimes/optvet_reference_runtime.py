"""ONNX's reference evaluator with its defects corrected: the standard's own reading of a model.

Slow, but independent of every runtime's kernels and graph transformations. In float64 its own
rounding vanishes, and what remains are the differences that the model itself makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
import onnx
from pydantic import BaseModel, ConfigDict

from optvet.plugin import Artifact, Feeds, ModelPart, Runtime, Session, hookimpl


class ReferenceOptions(BaseModel):
    """How the evaluator computes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    precision: Literal["float32", "float64"] = "float32"
    """float32: every tensor in the model's own type. float64: all in double, rounded at the end."""


class ReferenceRuntime:
    """``onnx.reference``, in the corrected form that optvet's float64 oracle uses too."""

    name = "onnx_reference"
    accepts = frozenset({"onnx"})
    preload: Sequence[str] = ("onnx.reference.ops", "scipy.special")
    options: ReferenceOptions = ReferenceOptions()
    deployed: ReferenceOptions = ReferenceOptions()
    evaluates = True
    # Declared types say which values are floats, where onnx infers none.
    reads: frozenset[ModelPart] = frozenset({"names", "inner types"})

    def version(self) -> str:
        """Version of onnx."""
        return str(onnx.__version__)

    def load(self, artifact: Artifact, options: ReferenceOptions) -> Session:
        """Check that every operator can be evaluated, and prepare the graph."""
        from optvet.plugin import reference_evaluator  # imports the engine, which plugins need not

        model = onnx.load_from_string(artifact.data)
        run = reference_evaluator(model, double=options.precision == "float64")
        return ReferenceSession(run, model.graph)

    def snippet(self, options: ReferenceOptions) -> str:
        """ONNX's evaluator as it is; optvet's corrections of it are left out."""
        return "\n".join(
            (
                "import onnx.reference\n",
                "evaluator = onnx.reference.ReferenceEvaluator(model)",
                "return dict(zip(evaluator.output_names, evaluator.run(None, feeds)))",
            )
        )


class ReferenceSession:
    """A model that the evaluator can run."""

    def __init__(self, run: Callable[[Feeds], dict[str, Any]], graph: onnx.GraphProto) -> None:
        weights = {t.name for t in graph.initializer}
        self._run = run
        self._inputs = {i.name: i.type for i in graph.input if i.name not in weights}
        self._outputs = {o.name: o.type for o in graph.output}

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Outputs by name, in the graph's order and in the types that it declares."""
        for name, kind in self._inputs.items():
            if name not in feeds:
                raise ValueError(f"input {name!r} is missing")
            _check(name, feeds[name], kind)
        values = self._run(feeds)
        for name, kind in self._outputs.items():
            if kind.WhichOneof("value") == "tensor_type" and isinstance(values[name], list):
                raise NotImplementedError(f"output {name!r} is a sequence, declared as a tensor")
        return {name: _declared(values[name], kind) for name, kind in self._outputs.items()}


def _check(name: str, value: Any, kind: onnx.TypeProto) -> None:
    """Refuse what a strict runtime refuses; the evaluator would compute with it."""
    if kind.WhichOneof("value") != "tensor_type":
        return
    dtype = _dtype(kind)
    if dtype is not None and value.dtype != dtype:
        raise TypeError(f"input {name!r} is {value.dtype}, expected {dtype}")
    if not kind.tensor_type.HasField("shape"):
        return
    dims = [d.dim_value if d.HasField("dim_value") else None for d in kind.tensor_type.shape.dim]
    fits = len(dims) == value.ndim and all(
        d is None or d == n for d, n in zip(dims, value.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"input {name!r} has shape {list(value.shape)}, expected {dims}")


def _declared(value: Any, kind: onnx.TypeProto) -> Any:
    which = kind.WhichOneof("value")
    if which in ("sequence_type", "optional_type"):
        inner = getattr(kind, which).elem_type
        if isinstance(value, list):
            return [_declared(each, inner) for each in value]
        return value if value is None else _declared(value, inner)
    dtype = _dtype(kind) if which == "tensor_type" else None
    if dtype is None or not isinstance(value, np.ndarray | np.generic):
        return value
    array = np.array(value)  # never a view of what the session holds
    wide = array.dtype == np.float64 and dtype != array.dtype
    with np.errstate(over="ignore"):
        return array.astype(dtype) if wide else array


def _dtype(kind: onnx.TypeProto) -> np.dtype[Any] | None:
    code = kind.tensor_type.elem_type
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(code)) if code else None


@hookimpl
def optvet_runtimes() -> Iterable[Runtime]:
    """ONNX's reference evaluator."""
    return [ReferenceRuntime()]
