"""A second opinion on what models mean: the runtime that judges may be wrong itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, ValueInfoProto
from onnx.reference import ReferenceEvaluator
from pydantic import BaseModel

from optvet.engine.bundle.folder import read_arrays
from optvet.engine.bundle.layout import EXPECTED, INPUTS, MODEL
from optvet.engine.hunt.expected import Values
from optvet.engine.judge.second_opinion import is_contradicted
from optvet.engine.standard.defined import undefined_in
from optvet.engine.standard.shapes import describe_wrong_shape
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.trials.inference import Outputs
from optvet.engine.work.trials.opinions import collect_opinions, evaluate_in_own_types
from optvet.graph.functions import without_functions
from optvet.graph.structure import draws_random
from optvet.graph.walk import reads
from optvet.spec.errors import InputError
from optvet.spec.foreign import load_model
from optvet.spec.optimizer_protocols import Optimizer
from optvet.spec.symptoms import ScriptCheck, Symptom
from optvet.spec.types import Artifact

_MEMORY_BYTES = 4 << 30
_TIME_S = 30.0


@dataclass(frozen=True)
class Applied:
    """What made the optimized model: an optimizer with its options, and the passes."""

    optimizer: Optimizer
    options: BaseModel
    passes: tuple[str, ...]

    @property
    def is_portable(self) -> bool:
        """Whether it makes models of ONNX's operators alone, which any runtime can judge."""
        traits = self.optimizer.traits
        return traits.produces == "onnx" and not traits.dialect


def is_disputed(
    symptom: Symptom,
    bundle: Path,
    applied: Applied,
    *,
    error: float | None = None,
    noise: float | None = None,
    by_import: bool = False,
) -> bool:
    """Whether ONNX's reference evaluator says something else of the models than the runtime did.

    Then it is not known who is wrong, and the optimizer is not accused: the evaluator gives other
    outputs of the original, as far from what was expected as those that are told; or of the
    optimized model what was expected, so that only the runtime reads it as wrong; or it refuses a
    model that the import refuses too, which the runtime only tolerates. Nor is it where the
    standard says nothing of the original on these inputs, or where no values are compared, and an
    operand of the original has a shape that the standard does not allow; but no process may die.

    Args:
        symptom: Of the finding.
        bundle: Its folder.
        applied: What the finding is about.
        error: How far off the outputs are, relative to the largest magnitude.
        noise: That of the original, likewise.
        by_import: Whether import and export alone show it.
    """
    refused = (
        by_import and symptom.info.check is ScriptCheck.ERROR and symptom.info.stages != ("check",)
    )
    if symptom.info.check is ScriptCheck.DEATH:
        return False
    preload = ("onnx.reference.ops", *applied.optimizer.preload, __name__)
    with Sandbox(jobs=1, limits=Limits(_TIME_S, _MEMORY_BYTES), preload=preload) as box:
        shapes_alone = symptom.info.check is not ScriptCheck.OUTPUTS and not refused
        undefined = box.call(_is_undefined, bundle, shapes_alone, fresh=True).value
        if undefined or shapes_alone:
            return bool(undefined)
        if refused:
            failure = box.call(_runs, bundle, fresh=True).failure
            # Operators that it lacks are RuntimeErrors.
            return failure is not None and failure.error_type == "ValueError"
        outcome = box.call(_disagrees, bundle, error, noise, fresh=True)
        if outcome.value or outcome.failure is not None or not applied.is_portable:
            return bool(outcome.value)
        return bool(box.call(_acquits, bundle, applied, error, noise, fresh=True).value)


def _is_undefined(bundle: Path, shapes_alone: bool) -> bool:
    """Whether the standard leaves something open of the reduced model; called in a worker.

    An operand has another shape than it allows, or has no answer.
    """
    model = without_functions(load_model(bundle / MODEL))
    feeds = _feeds(bundle, model)
    inner = _values_inside(model, feeds)
    if describe_wrong_shape(model, feeds, inner):
        return True
    return not shapes_alone and bool(undefined_in(model, feeds, inner))


def _values_inside(model: ModelProto, feeds: Values) -> Values:
    """The evaluator's values, but for those behind an operator that it lacks or fails in."""
    nodes = list(model.graph.node)
    whole = _values_of(model, nodes, feeds)
    if whole is not None:
        return whole
    kept, lost = list[NodeProto](), set[str]()
    values: Values = {}
    for node in nodes:
        found = None if lost.intersection(reads(node)) else _values_of(model, [*kept, node], feeds)
        if found is None:
            lost.update(node.output)
        else:
            kept, values = [*kept, node], found
    return values


def _values_of(model: ModelProto, nodes: Sequence[NodeProto], feeds: Values) -> Values | None:
    """The evaluator's values of some nodes; None if it fails."""
    part = ModelProto()
    part.CopyFrom(model)
    del part.graph.node[:], part.graph.output[:]
    part.graph.node.extend(nodes)
    names = (name for node in nodes for name in node.output if name)
    part.graph.output.extend(ValueInfoProto(name=name) for name in names)
    try:
        with np.errstate(all="ignore"):
            given: Any = ReferenceEvaluator(part).run(None, dict(feeds), intermediate=True)
    except Exception as error:  # it raises what it likes of operators that it lacks
        if isinstance(error, MemoryError):
            raise
        return None
    return {n: v for n, v in given.items() if isinstance(v, np.ndarray)}


def _runs(bundle: Path) -> None:
    """Run the original; called in a worker for what it raises."""
    model = load_model(bundle / MODEL)
    if not draws_random(model):
        evaluate_in_own_types(model, _feeds(bundle, model), [v.name for v in model.graph.output])


def _disagrees(bundle: Path, error: float | None, noise: float | None) -> bool:
    """Called in a worker."""
    model = load_model(bundle / MODEL)
    opinions = collect_opinions(model.SerializeToString(), _feeds(bundle, model)) or []
    return bool(opinions) and _differ(bundle, opinions, error, noise)


def _acquits(bundle: Path, applied: Applied, error: float | None, noise: float | None) -> bool:
    """Whether the optimized model gives what was expected; called in a worker."""
    model = load_model(bundle / MODEL)
    if draws_random(model):
        return False
    source = Artifact("onnx", model.SerializeToString())
    artifact = applied.optimizer.apply(source, applied.passes, applied.options)
    names = [v.name for v in model.graph.output]
    outputs = evaluate_in_own_types(
        ModelProto.FromString(artifact.data), _feeds(bundle, model), names
    )
    return not _differ(bundle, [outputs], error, noise)


def _feeds(bundle: Path, model: ModelProto) -> Values:
    weights = {t.name for t in model.graph.initializer}
    return read_arrays(
        bundle / INPUTS, [v.name for v in model.graph.input if v.name not in weights]
    )


def _differ(
    bundle: Path, opinions: list[Outputs], error: float | None, noise: float | None
) -> bool:
    try:
        expected = read_arrays(bundle / EXPECTED, list(opinions[0]))
    except InputError:
        return True  # a sequence of another length
    return is_contradicted(expected, opinions, error, noise)
