"""Matches inputs and outputs of a source with those of its artifact, by name, place and type.

Inputs are found by name, else by their place. Outputs are found by their place. The width of
integers and of floats may change; it is noted, and values are compared in the narrower float, or in
the source's integers. Everything else is a change of the interface: whoever calls the source could
not call the artifact so. Between two ONNX models, names, order and defaults count too, as for
optimizers.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx

from optvet.engine.numerics import texts
from optvet.engine.numerics.floats import is_float
from optvet.engine.work.trials.inference import Outputs
from optvet.graph.interface import Interface, align, graph_inputs
from optvet.graph.types import dtype_name
from optvet.spec.converters import SourceFacts
from optvet.spec.types import Artifact, ValueInfo

NO_FACTS = SourceFacts({})
"""Of a source that says nothing about its outputs."""


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
        asks = f"the model asks for {', '.join(unknown)}, which the source does not have"
        theirs = f"that takes {', '.join(feeds)}" if feeds else "that has no inputs"
        raise ValueError(f"{asks}; {theirs}")
    return {
        name: _cast_to_input_type(feeds[source], kinds[name])
        for name, source in found.items()
        if source is not None
    }


def unfit(source: Interface | None, artifact: Interface, feeds: Mapping[str, np.ndarray]) -> str:
    """Why an artifact cannot be called as its source is, in words; empty if it can.

    Args:
        source: The interface of the source, if it is an ONNX model.
        artifact: The interface of the artifact.
        feeds: Inputs of the source.
    """
    if source is not None:
        changed = align(_with_widths_of(artifact, source), artifact, frozenset()).changed
        if changed:
            return changed
    names = {v.name for v in artifact.inputs}
    if len(names) != len(feeds) and not names <= feeds.keys():
        added = ", ".join(sorted(names - feeds.keys()))
        return f"the model asks for {added}, which the source does not have"
    by_name = names <= feeds.keys()
    taken = names | {v.name for v in artifact.optional} if by_name else feeds.keys()
    lost = [name for name in feeds if name not in taken]
    if lost:
        return f"the model does not take {', '.join(lost)}, which the source takes"
    places = dict(zip((v.name for v in artifact.inputs), feeds, strict=False))
    wrong = (
        _misfit(v, feeds[v.name if v.name in feeds else places[v.name]]) for v in artifact.inputs
    )
    return next((words for words in wrong if words), "")


def _with_widths_of(artifact: Interface, source: Interface) -> Interface:
    """The interface of ``source``, with the widths of numbers that ``artifact`` has."""

    def with_new_widths(
        old: tuple[ValueInfo, ...], new: tuple[ValueInfo, ...]
    ) -> tuple[ValueInfo, ...]:
        by_name = {v.name: v.dtype for v in new}
        kinds = ((v, by_name.get(v.name, v.dtype)) for v in old)
        return tuple(
            replace(v, dtype=dtype) if _KIND.sub("", v.dtype) == _KIND.sub("", dtype) else v
            for v, dtype in kinds
        )

    return Interface(
        with_new_widths(source.inputs, artifact.inputs),
        with_new_widths(source.outputs, artifact.outputs),
        with_new_widths(source.optional, (*artifact.optional, *artifact.inputs)),
    )


_KIND = re.compile(r"^b(?=float)|^u(?=int)|\d.*$")
"""What to leave out of the name of an element type to get the kind of number."""


def _misfit(declared: ValueInfo, value: np.ndarray) -> str:
    """Why a value cannot be fed to an input; empty if it can."""
    shape = declared.shape
    if shape is None or (
        len(shape) == value.ndim
        and all(not isinstance(d, int) or d == n for d, n in zip(shape, value.shape, strict=True))
    ):
        return ""
    taken = ", ".join("?" if d is None else str(d) for d in shape)
    return f"input {declared.name!r} takes [{taken}], and the source also {list(value.shape)}"


def _cast_to_input_type(value: np.ndarray, kind: int) -> np.ndarray:
    """A copy of another width, if the model asks for the same kind of number."""
    if not kind or dtype_name(kind) == "string":
        return np.array(value)
    wanted = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    same = value.dtype.kind == wanted.kind or (is_float(value.dtype) and is_float(wanted))
    return np.array(value, dtype=wanted if same else None)


@dataclass(frozen=True)
class Matched:
    """Comparable outputs of both sides under the source's names; or why there are none."""

    reference: Outputs
    candidate: Outputs
    notes: tuple[str, ...] = ()
    problem: str = ""
    place: str = ""


def match_outputs(
    reference: Outputs,
    candidate: Outputs,
    listed: Sequence[str] = (),
    facts: SourceFacts = NO_FACTS,
) -> Matched:
    """Match the outputs of both sides for a comparison.

    Args:
        reference: Of the source.
        candidate: Of what was made of it.
        listed: Outputs of the source as it lists them: one that it lists twice is one of
            ``reference``, and may be two of ``candidate``.
        facts: Which outputs of the source may come in another form, or with others behind them.
    """
    if len(reference) != len(candidate) == len(listed):
        first = dict(zip(reversed(listed), reversed(candidate.values()), strict=True))
        for name, value in zip(listed, candidate.values(), strict=True):
            if not _is_same(first[name], value):
                words = f"{name}: listed twice, it came with two values"
                return Matched({}, {}, problem=words, place=name)
        candidate = {name: first[name] for name in reference if name in first}
    if not facts.has_counterparts:
        candidate = dict(itertools.islice(candidate.items(), len(reference)))
    if len(reference) != len(candidate):
        return Matched({}, {}, problem=f"{len(reference)} outputs became {len(candidate)}")
    left: Outputs = {}
    right: Outputs = {}
    notes = []
    for (name, expected), value in zip(reference.items(), candidate.values(), strict=True):
        if expected.shape != value.shape:
            change = f"{name}: shape {list(expected.shape)} became {list(value.shape)}"
            if name not in facts.columns or not _is_one_column(expected, value):
                return Matched({}, {}, problem=change, place=name)
            notes.append(change)
            value = value.reshape(expected.shape)
        if texts.is_text(expected.dtype) and texts.is_text(value.dtype):
            left[name], right[name] = texts.plain(expected), texts.plain(value)
            continue
        if expected.dtype == value.dtype:
            left[name], right[name] = expected, value
            continue
        words = f"{name}: {texts.type_name(expected.dtype)} became {texts.type_name(value.dtype)}"
        if is_float(expected.dtype) and is_float(value.dtype):
            common = min(expected.dtype, value.dtype, key=lambda d: d.itemsize)
            with np.errstate(over="ignore"):
                left[name], right[name] = expected.astype(common), value.astype(common)
        elif {expected.dtype.kind, value.dtype.kind} <= _INTEGERS or (
            # The operators of classifiers (ai.onnx.ml) give integers and texts, never booleans.
            name in facts.labels and expected.dtype == bool and value.dtype.kind in _INTEGERS
        ):
            left[name], right[name] = expected.astype(np.int64), value.astype(np.int64)
        else:
            return Matched({}, {}, problem=words, place=name)
        notes.append(words)
    return Matched(left, right, tuple(notes))


_INTEGERS = frozenset("iu")


def _is_one_column(a: np.ndarray, b: np.ndarray) -> bool:
    return sorted((a.shape, b.shape)) == [(a.size,), (a.size, 1)]


def _is_same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=is_float(a.dtype))
