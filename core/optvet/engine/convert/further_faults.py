"""Further faults of one converted model, behind the first one.

A fault hides what comes after it. So the value that is wrong first is set to the source's, and the
rest of the model runs on that: what is wrong then is another fault. Runs in worker processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper

from optvet.engine.convert.align import (
    Known,
    SuspectRegion,
    Tolerances,
    broken_region,
    equal_up_to_layout,
    iter_layouts,
    known_values,
)
from optvet.engine.convert.inside import shows_inside
from optvet.engine.convert.locate import (
    LocatedRun,
    describe_region,
    first_wrong_output,
    inner_values,
    of_source,
    source_inside,
    wrong_decision,
)
from optvet.engine.convert.match_interface import fed_to
from optvet.engine.convert.place_by_message import (
    find_nodes_in_message,
    place_in_message,
    source_operator_of,
)
from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inner_values import unfold_run
from optvet.graph.unfold import Unfolded
from optvet.graph.walk import reads
from optvet.spec.converters import SourceInside
from optvet.spec.records.convert import ConversionPlace
from optvet.spec.types import Artifact, Sample

MOST = 3
"""Most faults of one model that are reported."""
_VALUES = 16
"""Values of the converted model that may stand for the source's wrong one."""
_LAYOUTS = 3


@dataclass(frozen=True)
class FurtherFault:
    """A fault that shows once those before it are mended; ``message`` where nothing runs then."""

    place: ConversionPlace
    message: str = ""


def further_faults_beside(
    source_config: RuntimeConfig,
    source: Artifact,
    config: RuntimeConfig,
    artifact: Artifact,
    sample: Sample,
) -> list[FurtherFault]:
    """``further_faults``, with source and target in one worker."""
    if not shows_inside(source_config, source):
        return []
    return further_faults(source_inside(source_config, source, sample), config, artifact, sample)


def further_faults(
    recorded: Sequence[SourceInside],
    config: RuntimeConfig,
    artifact: Artifact,
    sample: Sample,
) -> list[FurtherFault]:
    """All faults but the first, at most two, each of another kind than those before it.

    Args:
        recorded: What the source computes inside on ``sample``.
        config: What runs the converted model.
        artifact: The converted model, in ONNX.
        sample: An input on which it is wrong, or does not run.
    """
    if not recorded:
        return []
    enter("run")
    kinds: set[tuple[object, ...]] = set()
    found = []
    for number, fault in enumerate(_faults(recorded, config, artifact, sample)):
        kind = _kind(fault.place)
        if kind not in kinds and number:
            found.append(fault)
        kinds.add(kind)
    return found


def _kind(place: ConversionPlace) -> tuple[object, ...]:
    """What faults of one cause have in common: a converter repeats a wrong rule at every layer."""
    if place.parameters:
        return ("parameters",)
    names = tuple(sorted(place.attributes))
    return place.operator.partition(" ")[0], place.node, names


@dataclass
class _MendedModel:
    """The model, laid flat, with the values that were set right so far, and what they are."""

    unfolded: Unfolded
    fed: dict[str, np.ndarray]

    @property
    def model(self) -> ModelProto:
        """The model."""
        return self.unfolded.model

    def with_value(self, name: str, value: np.ndarray) -> _MendedModel | None:
        """The model that is given ``name``; None where its node computes more than that."""
        graph = self.model.graph
        maker = next((n for n in graph.node if name in n.output), None)
        read = {r for node in graph.node for r in reads(node)} | {o.name for o in graph.output}
        if maker is None or any(o in read for o in maker.output if o and o != name):
            return None
        model = ModelProto()
        model.CopyFrom(self.model)
        model.graph.node.remove(maker)
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        model.graph.input.append(helper.make_tensor_value_info(name, kind, value.shape))
        return _MendedModel(replace(self.unfolded, model=model), {**self.fed, name: value})


def _faults(
    recorded: Sequence[SourceInside], config: RuntimeConfig, artifact: Artifact, sample: Sample
) -> Iterator[FurtherFault]:
    """The faults in order, the first included."""
    inside, *moved = recorded
    allowed = Tolerances.of(inside, moved)
    fed = dict(fed_to(artifact, sample.feeds))
    whole = onnx.load_from_string(artifact.data)
    run = _MendedModel(unfold_run(whole, fed, config), fed)
    if run.unfolded.joints and _takes_wrong_branch(run, whole, config, inside, allowed):
        return  # What is behind is another branch's.
    for _ in range(MOST):
        try:
            values = _values(run, config)
        except Exception as error:  # whatever a runtime raises for a model that is no model
            stopped = _stopped_at(run, config, inside, allowed, str(error))
        else:
            stopped = _parting(run, config, inside, allowed, values)
        if stopped is None:
            return
        fault, mended = stopped
        yield fault
        if mended is None:
            return
        run = mended


def _takes_wrong_branch(
    run: _MendedModel,
    whole: ModelProto,
    config: RuntimeConfig,
    inside: SourceInside,
    allowed: Tolerances,
) -> bool:
    values = _values(run, config)
    wrong = first_wrong_output(run.model, inside, allowed, values)
    if wrong is None:
        return False
    known = known_values(run.model, values, inside, allowed)
    region = broken_region(run.model, inside, known, *wrong)
    located = LocatedRun(run.unfolded, inside, allowed, values, known, region)
    return wrong_decision(located, whole, run.fed, config) is not None


_Stopped = tuple[FurtherFault, _MendedModel | None] | None


def _values(run: _MendedModel, config: RuntimeConfig) -> dict[str, np.ndarray]:
    return inner_values(run.unfolded, run.fed, config)


def _stopped_at(
    run: _MendedModel,
    config: RuntimeConfig,
    inside: SourceInside,
    allowed: Tolerances,
    message: str,
) -> _Stopped:
    """The node at which the model stops, and the model that is given what it should compute."""
    nodes = find_nodes_in_message(run.model, message)
    if not nodes or nodes[0] not in run.model.graph.node:
        return None
    node = nodes[0]
    found = source_operator_of(run.model, node, run.fed, config, inside, allowed)
    place = place_in_message(Artifact("onnx", run.model.SerializeToString()), message)
    if place is None or found is None:
        return None
    whole = {**of_source(inside.values[found]), **place.model_dump(exclude_defaults=True)}
    fault = FurtherFault(ConversionPlace(**whole), message)
    return fault, run.with_value(node.output[0], inside.values[found].value)


def _parting(
    run: _MendedModel,
    config: RuntimeConfig,
    inside: SourceInside,
    allowed: Tolerances,
    values: Mapping[str, np.ndarray],
) -> _Stopped:
    """Where values part, and the model that is given the right one; None where none is wrong."""
    wrong = first_wrong_output(run.model, inside, allowed, values)
    if wrong is None:
        return None
    known = known_values(run.model, values, inside, allowed)
    region = broken_region(run.model, inside, known, *wrong)
    located = LocatedRun(run.unfolded, inside, allowed, values, known, region)
    fault = FurtherFault(describe_region(located))
    return fault, _mended(run, config, inside, allowed, values, known, region)


def _mended(
    run: _MendedModel,
    config: RuntimeConfig,
    inside: SourceInside,
    allowed: Tolerances,
    values: Mapping[str, np.ndarray],
    known: Known,
    region: SuspectRegion,
) -> _MendedModel | None:
    """The model that is given the source's first missing value, where that explains more of it.

    Which value of the model stands for the source's is tried: the right one makes another value of
    the source appear that is computed from it, or all outputs right; or its node is ONNX's own
    operator for that of the source.
    """
    if region.first is None:
        return None
    first = inside.values[region.first]
    wanted = first.value
    # What merely passes the value on is there as soon as the value is set, wherever that is.
    readers = {
        i
        for i, v in enumerate(inside.values)
        if region.first in v.reads and not equal_up_to_layout(v.value, wanted, 0.0)
    }
    partly = None
    outputs = {o.name for o in run.model.graph.output}
    for name in itertools.islice(_fitting(run.model, region, values, wanted), _VALUES):
        if name in outputs:
            continue
        for value, _ in itertools.islice(iter_layouts(wanted, values[name].shape), _LAYOUTS):
            tried = run.with_value(name, np.ascontiguousarray(value.astype(values[name].dtype)))
            if tried is None:
                break
            try:
                after = _values(tried, config)
            except Exception:  # whatever a runtime raises: this value stands for something else
                continue
            if first_wrong_output(tried.model, inside, allowed, after) is None:
                return tried
            now = known_values(tried.model, after, inside, allowed)
            explains = readers & (now.source - known.source)
            if partly is None and (explains or _makes(run.model, name, first.alike)):
                partly = tried
    return partly


def _makes(model: ModelProto, name: str, operator: str) -> bool:
    return any(name in node.output for node in model.graph.node if node.op_type == operator)


def _fitting(
    model: ModelProto, region: SuspectRegion, values: Mapping[str, np.ndarray], wanted: np.ndarray
) -> Iterator[str]:
    """Values of the region that have the size of ``wanted``, in order."""
    nodes: Sequence[NodeProto] = [model.graph.node[i] for i in region.nodes]
    for node in nodes:
        for name in node.output:
            if name in values and values[name].size == wanted.size:
                yield name
