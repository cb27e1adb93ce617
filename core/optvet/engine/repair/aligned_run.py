"""One run of a source beside one of its converted model: what is known, and what is missing.

Runs in worker processes. A model that cannot be run as a whole is run without the nodes that fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, numpy_helper

from optvet.engine.convert.align import (
    Known,
    SuspectRegion,
    Tolerances,
    broken_region,
    equal_up_to_layout,
    known_values,
)
from optvet.engine.convert.locate import LocatedRun, first_wrong_output, wrong_decision
from optvet.engine.convert.match_interface import fed_to
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inner_values import record_values, unfold_run
from optvet.graph.interface import graph_inputs
from optvet.graph.unfold import Unfolded
from optvet.graph.walk import reads
from optvet.graph.weights import constants_of
from optvet.spec.converters import SourceInside, SourceOperand, SourceValue
from optvet.spec.types import Artifact, Sample

THE_SOURCE = "the source"
"""The name among the references of a source that is in ONNX."""
_MISSING = 48
"""Missing values of the source, the first in order, that an edit may explain."""
_FAILING = 4
"""Nodes that cannot run, without which the rest is tried."""
_FIRST, _LAST = 16, 8
"""So many of one part of the source: a recurrent layer computes many, and gives the last."""


@dataclass(frozen=True)
class ReferenceModel:
    """Another model of the same source, and its values on the same input; no weights.

    ``is_source``: it is the source itself.
    """

    name: str
    model: ModelProto
    values: Mapping[str, np.ndarray]
    is_source: bool = False


@dataclass(frozen=True)
class AlignedRun:
    """A source and a converted model on one input.

    Attributes:
        unfolded: The model as it is laid flat on this input, which is ``model``.
        references: Other models of the source, whose regions may take the place of a wrong one.
        inputs: Inputs of the model by the source's names.
        values: Values of the converted model by name, its inputs included; no weights.
        output: The first output that is wrong, and where it is among the values of the source.
    """

    unfolded: Unfolded
    inside: SourceInside
    allowed: Tolerances
    values: Mapping[str, np.ndarray]
    known: Known
    region: SuspectRegion
    output: str
    place: int
    references: tuple[ReferenceModel, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def model(self) -> ModelProto:
        """The converted model; without control flow, where it can be laid flat."""
        return self.unfolded.model

    @cached_property
    def constants(self) -> dict[str, np.ndarray]:
        """Initializers and ``Constant`` nodes."""
        found = {n: numpy_helper.to_array(t) for n, t in constants_of(self.model).items()}
        return {name: value for name, value in found.items() if value.dtype != object}

    @cached_property
    def missing(self) -> tuple[int, ...]:
        """Places of values of the source that the converted model lacks, the first few."""
        constant = [self.inside.values[i].constant for i in self.region.operators]
        kept = [i for i, c in zip(self.region.operators, constant, strict=True) if not c]
        by_part: dict[str, list[int]] = {}
        for i in kept:
            by_part.setdefault(self.inside.values[i].module, []).append(i)
        ends = {i for part in by_part.values() for i in (*part[:_FIRST], *part[-_LAST:])}
        return tuple(sorted(ends)[:_MISSING])

    @cached_property
    def uses(self) -> dict[str, int]:
        """How often a value is read."""
        found: dict[str, int] = {}
        for node in self.model.graph.node:
            for name in reads(node):
                found[name] = found.get(name, 0) + 1
        return found

    def operators(self, number: int) -> Iterator[SourceValue]:
        """The first operators of the source whose values are missing."""
        for i in self.missing[:number]:
            yield self.inside.values[i]

    def names_of(self, operand: SourceOperand, *, turned: bool = False) -> list[str]:
        """Values of the converted model that are this operand, in its own layout.

        With ``turned``, then those that are it in another layout.
        """
        if operand.input:
            wanted, allowed = self._source_value(operand.input), 0.0
        elif operand.place is not None:
            wanted = self.inside.values[operand.place].value
            allowed = self.allowed.values[operand.place]
        else:
            return []
        if wanted is None:
            return []
        found, others = [], []
        for name, value in self.values.items():
            if value.dtype.kind != wanted.dtype.kind:
                continue
            if value.shape == wanted.shape:
                with np.errstate(invalid="ignore"):
                    off = np.abs(value.astype(np.float64) - wanted.astype(np.float64))
                if bool(np.all((off <= allowed) | (value == wanted))):
                    found.append(name)
                    continue
            if turned and value.size > 1 and equal_up_to_layout(wanted, value, allowed):
                others.append(name)
        if self.unfolded.joints:
            # One value has many names on its way into branches and iterations: only those that
            # are read at the fault are seen there.
            found.sort(key=lambda name: name not in self._read_at_fault)
        return found + others

    @cached_property
    def _read_at_fault(self) -> set[str]:
        return {name for i in self.region.nodes for name in reads(self.node_of(i))}

    def dtype_of(self, operand: SourceOperand) -> np.dtype[Any] | None:
        """The type of an operand that is an input, or a value inside; None for others."""
        if operand.input:
            value = self._source_value(operand.input)
            return None if value is None else value.dtype
        return None if operand.place is None else self.inside.values[operand.place].value.dtype

    def _source_value(self, name: str) -> np.ndarray | None:
        return self.values.get(self.inputs.get(name, ""))

    def array_of(self, operand: SourceOperand) -> np.ndarray | None:
        """The value of an operand that no input changes; None for others."""
        if operand.parameter:
            return self.inside.parameters.get(operand.parameter)
        if operand.place is not None:
            value = self.inside.values[operand.place]
            return value.value if value.constant else None
        if isinstance(operand.constant, (bool, int, float)):
            return np.asarray(operand.constant)
        return None

    def find_matching_places(self, name: str, value: np.ndarray) -> Iterator[int]:
        """Places of missing values of the source that ``value``, which is ``name``, is."""
        for i in self.missing:
            wanted = self.inside.values[i].value
            if value.size != wanted.size or value.dtype.kind != wanted.dtype.kind:
                continue
            if name == self.output and value.shape != self.inside.values[self.place].value.shape:
                continue
            if equal_up_to_layout(wanted, value, self.allowed.values[i]):
                yield i

    def node_of(self, index: int) -> NodeProto:
        """A node by its index."""
        nodes: Sequence[NodeProto] = self.model.graph.node
        return nodes[index]


def aligned_run_of(
    recorded: Sequence[SourceInside],
    config: RuntimeConfig,
    model: ModelProto,
    sample: Sample,
    references: Mapping[str, bytes] | None = None,
) -> AlignedRun | None:
    """The two sides on ``sample``; None where the outputs of the source are not known inside it.

    ``recorded`` is what ``source_inside`` gave; ``references`` are other models of the source, by
    name.
    """
    if not recorded:
        return None
    inside, *moved = recorded
    artifact = Artifact("onnx", model.SerializeToString())
    fed = fed_to(artifact, sample.feeds)
    whole, unfolded = model, unfold_run(model, fed, config)
    model = unfolded.model
    every = {**fed, **_values(model, fed, config)}
    values = {name: value for name, value in every.items() if value.dtype != object}
    allowed = Tolerances.of(inside, moved)
    wrong = _wrong(model, inside, allowed, values)
    if wrong is None:
        return None
    known = known_values(model, values, inside, allowed)
    region = broken_region(model, inside, known, *wrong)
    if unfolded.joints:
        located = LocatedRun(unfolded, inside, allowed, values, known, region)
        decision = wrong_decision(located, whole, fed, config)
        if decision is not None and decision.region is not None and decision.condition is not None:
            # Once the condition is the source's, the branch is.
            wrong, region = decision.condition, decision.region
    lent = (_reference(name, data, config, sample) for name, data in (references or {}).items())
    inputs = _inputs(model, sample)
    return AlignedRun(unfolded, inside, allowed, values, known, region, *wrong, tuple(lent), inputs)


def _inputs(model: ModelProto, sample: Sample) -> dict[str, str]:
    """Inputs of the model by the source's names: by name, or else by place."""
    names = [info.name for info in graph_inputs(model)]
    places = dict(zip(sample.feeds, names, strict=True)) if len(names) == len(sample.feeds) else {}
    return {name: name if name in names else places.get(name, "") for name in sample.feeds}


def _reference(name: str, data: bytes, config: RuntimeConfig, sample: Sample) -> ReferenceModel:
    fed = fed_to(Artifact("onnx", data), sample.feeds)
    model = unfold_run(onnx.load_from_string(data), fed, config).model
    values = {**fed, **_values(model, fed, config)}
    kept = {n: v for n, v in values.items() if v.dtype != object}
    return ReferenceModel(name, model, kept, is_source=name == THE_SOURCE)


def _wrong(
    model: ModelProto,
    inside: SourceInside,
    allowed: Tolerances,
    values: Mapping[str, np.ndarray],
) -> tuple[str, int] | None:
    """The first output that is not the source's, or else the first of all; with its place."""
    pairs = zip(model.graph.output, inside.outputs, strict=False)
    first = next(((o.name, place) for o, place in pairs if place is not None), None)
    return first_wrong_output(model, inside, allowed, values) or first


def _values(
    model: ModelProto, feeds: Mapping[str, np.ndarray], config: RuntimeConfig
) -> dict[str, np.ndarray]:
    """Values of the model; of one that does not run, those that need none of the failing nodes."""
    found = _attempt(model, feeds, config)
    if found is not None:
        return found
    nodes, best = list(model.graph.node), dict[str, np.ndarray]()
    for _ in range(_FAILING):
        low, high = 0, len(nodes)
        while high - low > 1:
            middle = (low + high) // 2
            values = _attempt(_beginning(model, nodes[:middle]), feeds, config)
            if values is None:
                high = middle
            else:
                low, best = middle, {**best, **values}
        nodes = _without(nodes, low)
        if len(nodes) <= low:
            return best
        values = _attempt(_beginning(model, nodes), feeds, config)
        if values is not None:
            return values
    return best


def _without(nodes: Sequence[NodeProto], index: int) -> list[NodeProto]:
    """The nodes but one, and but those that need its results."""
    lost: set[str] = set()
    kept = []
    for i, node in enumerate(nodes):
        if i == index or lost.intersection(reads(node)):
            lost.update(name for name in node.output if name)
        else:
            kept.append(node)
    return kept


def _beginning(model: ModelProto, nodes: Sequence[NodeProto]) -> ModelProto:
    """The model with these of its nodes alone, and all that they compute as its outputs."""
    part = ModelProto()
    part.CopyFrom(model)
    del part.graph.node[:], part.graph.output[:]
    part.graph.node.extend(nodes)
    computed = [name for node in nodes for name in node.output if name]
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in computed)
    return part


def _attempt(
    model: ModelProto, feeds: Mapping[str, np.ndarray], config: RuntimeConfig
) -> dict[str, np.ndarray] | None:
    try:
        return record_values(model.SerializeToString(), feeds, config)
    except Exception:  # whatever a runtime raises: a smaller part is tried
        return None
