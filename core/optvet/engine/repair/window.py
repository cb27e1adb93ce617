"""The nodes around a fault as a model of their own, on which many edits are tried quickly.

Its inputs are values that are known, so an edit is judged by what it gives there: it explains a
value that the converted model lacks, or it does not. Runs in worker processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from onnx import ModelProto, ValueInfoProto, helper

from optvet.engine.repair.aligned_run import AlignedRun
from optvet.engine.repair.edited_model import DoesNotFit
from optvet.engine.repair.edits import apply_edits
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inner_values import record_values
from optvet.graph.walk import reads
from optvet.spec.records.repair import Edit, InsertNode, ReplaceNode, ReplaceRegion, SetInput

NODES = 16
_UPSTREAM = 4


@dataclass(frozen=True)
class Window:
    """A part of the model of an aligned run.

    Attributes:
        nodes: Indices of its nodes, in order: the first of the broken region, and some before it.
    """

    aligned: AlignedRun
    config: RuntimeConfig
    nodes: tuple[int, ...]

    @cached_property
    def plain(self) -> Mapping[str, np.ndarray]:
        """Its values without any edit."""
        return self._run(self.model(()))

    def model(self, edits: Sequence[Edit]) -> ModelProto:
        """The window as a model, with values that ``edits`` read from outside."""
        whole = self.aligned.model
        nodes = [whole.graph.node[i] for i in self.nodes]
        computed = {name for node in nodes for name in node.output}
        wanted = {name for node in nodes for name in reads(node)} | set(_find_read_names(edits))
        part = ModelProto(ir_version=whole.ir_version)
        part.opset_import.extend(whole.opset_import)
        part.functions.extend(whole.functions)
        weights = {t.name for t in whole.graph.initializer}
        part.graph.name = "window"
        part.graph.initializer.extend(t for t in whole.graph.initializer if t.name in wanted)
        for node in whole.graph.node:
            if node.op_type == "Constant" and set(node.output) & wanted:
                part.graph.node.append(node)
                computed.update(node.output)
        for name in sorted(wanted - computed - weights):
            value = self.aligned.values.get(name)
            if value is not None:
                kind = helper.np_dtype_to_tensor_dtype(value.dtype)
                part.graph.input.append(helper.make_tensor_value_info(name, kind, value.shape))
        part.graph.node.extend(n for n in nodes if n.op_type != "Constant")
        outputs = {o.name for o in whole.graph.output} & computed
        part.graph.output.extend(ValueInfoProto(name=name) for name in sorted(outputs))
        return part

    def depth(self, edits: Sequence[Edit]) -> frozenset[int]:
        """Places of missing values of the source that are there with ``edits``."""
        try:
            model = apply_edits(self.model(edits), edits)
        except DoesNotFit:
            return frozenset()
        found: set[int] = set()
        for name, value in self._run(model).items():
            before = self.plain.get(name)
            if before is not None and (before.shape, before.dtype) == (value.shape, value.dtype):
                if np.array_equal(before, value, equal_nan=value.dtype.kind == "f"):
                    continue
            found.update(self.aligned.find_matching_places(name, value))
        return frozenset(found)

    def _run(self, model: ModelProto) -> dict[str, np.ndarray]:
        feeds = {i.name: self.aligned.values[i.name] for i in model.graph.input}
        try:
            return record_values(model.SerializeToString(), feeds, self.config)
        except Exception:  # whatever a runtime raises: the edit explains nothing
            return {}


def _find_read_names(edits: Iterable[Edit]) -> Iterable[str]:
    """Values that edits read."""
    for edit in edits:
        for operation in edit.operations:
            if isinstance(operation, SetInput):
                yield operation.value
            elif isinstance(operation, InsertNode | ReplaceNode | ReplaceRegion):
                yield from (name for name in operation.inputs if name)


def window_of(aligned: AlignedRun, config: RuntimeConfig) -> Window:
    """The window at the first fault of an aligned run."""
    model = aligned.model
    first = aligned.region.nodes[:NODES]
    chosen = set(first)
    maker = {name: i for i, node in enumerate(model.graph.node) for name in node.output}
    edge = set(first[:4])
    for _ in range(_UPSTREAM):
        before = {
            maker[name]
            for i in edge
            for name in reads(model.graph.node[i])
            if name in maker and name not in aligned.constants
        }
        chosen |= before
        edge = before
    return Window(aligned, config, tuple(sorted(chosen)))
