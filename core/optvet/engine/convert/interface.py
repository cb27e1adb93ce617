"""Inputs and outputs of a source and of what was made of it: which is which, and of which type.

Inputs are found by name, else by their place. Outputs are found by their place. The width of
integers and of floats may change; it is noted, and values are compared in the narrower float, or in
the source's integers. Everything else is a change of the interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from optvet.engine.numerics.floats import is_float
from optvet.engine.work.trial import Outputs
from optvet.graph.interface import graph_inputs
from optvet.graph.types import dtype_name
from optvet.spec.types import Artifact


def fed_to(artifact: Artifact, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """``feeds`` of a source under the names and types of the artifact's inputs.

    Raises:
        ValueError: The artifact asks for inputs that the source does not have.
    """
    if artifact.format != "onnx":
        return {name: np.array(value) for name, value in feeds.items()}
    model = onnx.load_from_string(artifact.data)
    kinds = {i.name: i.type.tensor_type.elem_type for i in model.graph.input}
    names = [info.name for info in graph_inputs(model)]
    places = dict(zip(names, feeds, strict=True)) if len(names) == len(feeds) else {}
    found = {name: name if name in feeds else places.get(name) for name in names}
    unknown = [name for name, source in found.items() if source is None]
    if unknown:
        raise ValueError(
            f"the model asks for {', '.join(unknown)}, which the source does not have; that takes "
            f"{', '.join(feeds)}"
        )
    return {
        name: _as_declared(feeds[source], kinds[name])
        for name, source in found.items()
        if source is not None
    }


def _as_declared(value: np.ndarray, kind: int) -> np.ndarray:
    """A copy of another width, if the model asks for the same kind of number."""
    if not kind or dtype_name(kind) == "string":
        return np.array(value)
    wanted = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    same = value.dtype.kind == wanted.kind or (is_float(value.dtype) and is_float(wanted))
    return np.array(value, dtype=wanted if same else None)


@dataclass(frozen=True)
class Matched:
    """Outputs of both sides under the source's names, in one type each; or why there are none."""

    reference: Outputs
    candidate: Outputs
    notes: tuple[str, ...] = ()
    problem: str = ""
    place: str = ""


def matched(reference: Outputs, candidate: Outputs) -> Matched:
    """The outputs of both, ready to be compared."""
    if len(reference) != len(candidate):
        return Matched({}, {}, problem=f"{len(reference)} outputs became {len(candidate)}")
    left: Outputs = {}
    right: Outputs = {}
    notes = []
    for (name, expected), value in zip(reference.items(), candidate.values(), strict=True):
        if expected.shape != value.shape:
            change = f"shape {list(expected.shape)} became {list(value.shape)}"
            return Matched({}, {}, problem=f"{name}: {change}", place=name)
        if expected.dtype == value.dtype or _is_text(expected, value):
            left[name], right[name] = _plain(expected), _plain(value)
            continue
        words = f"{name}: {expected.dtype} became {value.dtype}"
        if is_float(expected.dtype) and is_float(value.dtype):
            common = min(expected.dtype, value.dtype, key=lambda d: d.itemsize)
            with np.errstate(over="ignore"):
                left[name], right[name] = expected.astype(common), value.astype(common)
        elif {expected.dtype.kind, value.dtype.kind} <= {"i", "u"}:
            left[name], right[name] = expected.astype(np.int64), value.astype(np.int64)
        else:
            return Matched({}, {}, problem=words, place=name)
        notes.append(words)
    return Matched(left, right, tuple(notes))


def _is_text(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype.kind in "OSU" and b.dtype.kind in "OSU"


def _plain(array: np.ndarray) -> np.ndarray:
    return array.astype(str) if array.dtype.kind in "OSU" else array
