"""How far values inside of the optimized model are from the original's, for requirements on them.

Values of both models are recorded on each sample and matched as ``optvet compare`` matches them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx

from optvet.engine.judge.thresholds import OTHER_KERNELS
from optvet.engine.vet.observe.divergence import INNER_JITTERS, compare_values
from optvet.engine.vet.observe.recorded_values import record_with_jitter, told_values
from optvet.engine.work.sandbox import enter
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.building import BuildSpec, build, visible
from optvet.engine.work.trials.inference import RuntimeConfig, align_feeds
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.graph import structure
from optvet.graph.interface import align
from optvet.spec.errors import InputError, Unsupported
from optvet.spec.records import Layer
from optvet.spec.types import Artifact, InterfaceChange, Model, Sample


@dataclass(frozen=True)
class LayerError:
    """How far one value differs, on one sample.

    Attributes:
        name: The original's value.
        operators: The operators that compute it, in the original and in the optimized model.
        dtype: Its element type in the original, as numpy names it.
        error: Largest difference, relative to the largest magnitude of the original's value;
            infinite where shape, type, or what is NaN or infinite differs.
    """

    name: str
    operators: tuple[str, str]
    dtype: str
    error: float

    def is_of(self, wanted: str | None) -> bool:
        """Whether a requirement on this name, operator or element type is on this value."""
        return wanted in (None, self.name, *self.operators, self.dtype)


@dataclass(frozen=True)
class InnerErrorTask:
    """What a worker needs to compare the values of both models on one sample."""

    original: BuildSpec
    optimized: BuildSpec
    reference: RuntimeConfig
    candidate: RuntimeConfig
    model: Model
    interface: frozenset[InterfaceChange]
    feeds: Mapping[str, np.ndarray]


def layer_errors(
    runner: TrialRunner, passes: Sequence[str] | None, samples: Sequence[Sample]
) -> dict[str, list[LayerError]]:
    """The errors of all shared values after ``passes``, by sample id; None is the original again.

    Raises:
        InputError: The values cannot be recorded, or the model is used from its file.
    """
    if runner.build_spec(None).scratch is not None:
        raise InputError("the values inside of a model this large are not looked at")
    case, build_spec = runner.case, runner.build_spec(passes)
    found = {}
    for sample in samples:
        task = InnerErrorTask(
            runner.build_spec(None),
            build_spec,
            case.reference,
            case.reference if passes is None else case.candidate,
            runner.model,
            runner.order(build_spec, [sample]).interface,
            sample.feeds,
        )
        outcome = runner.submit(build_spec, shared_values, task, fresh=True).result()
        if outcome.value is None:
            words = describe(outcome.failure) if outcome.failure else "no answer"
            raise InputError(f"values inside of the models cannot be compared: {words}")
        found[sample.id] = [_error_of(layer) for layer in outcome.value]
    return found


def _error_of(layer: Layer) -> LayerError:
    beyond = math.inf if layer.call == "fault" else 0.0
    operators = layer.op_a, layer.op_b
    return LayerError(
        layer.name, operators, layer.dtype, beyond if layer.error is None else layer.error
    )


# --- in the worker --------------------------------------------------------------------------------


def shared_values(artifact: Artifact, task: InnerErrorTask) -> list[Layer]:
    """The values that both models have. Called in a worker; raises what a runtime raises.

    Raises:
        Unsupported: The optimizer makes a format whose inner values are hidden.
    """
    enter("build")
    original = build(task.original).data
    first = record_with_jitter(original, task.feeds, task.reference, INNER_JITTERS)
    onnx_bytes = artifact.data if artifact.format == "onnx" else None
    # An artifact of another format stays in the optimizer's process, so it is made again here,
    # in a process that serves nothing else.
    after = onnx.load_from_string(onnx_bytes) if onnx_bytes is not None else visible(task.optimized)
    if after is None:
        others = told_values(artifact, task.candidate, task.feeds, first.values.keys())
        if others is None:
            raise Unsupported("the optimizer makes a format whose inner values are hidden")
        after, second = others
        first = replace(first, thresholds=OTHER_KERNELS)
    else:
        data = after.SerializeToString()
        alignment = align(task.model, structure.facts(after, len(data)), task.interface)
        if alignment.problem:
            raise ValueError(f"inputs or outputs are others: {alignment.problem}")
        second = record_with_jitter(data, align_feeds(task.feeds, alignment), task.candidate, 0)
    enter("compare")
    return compare_values(onnx.load_from_string(original), after, first, second).layers
