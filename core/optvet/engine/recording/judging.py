"""Recorded values beside those of the clean room, with the noise measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import ModelProto

from optvet.engine.judge.thresholds import OTHER_KERNELS
from optvet.engine.recording.reading import Recording
from optvet.engine.vet.observe.divergence import INNER_JITTERS, comparison_of, node_texts, region_of
from optvet.engine.vet.observe.recorded_values import RecordedValues, record_with_jitter
from optvet.engine.vet.observe.value_pairs import ValuePair, find_pairs
from optvet.engine.work.sandbox import Sandbox, enter
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.spec.errors import InputError
from optvet.spec.records import ModelComparison
from optvet.spec.records.compare import RecordedOn
from optvet.spec.types import Model

Values = Mapping[str, np.ndarray]


def judge_recording(
    model: Model, recording: Recording, config: RuntimeConfig, sandbox: Sandbox, tolerance: float
) -> tuple[ModelComparison, list[str]]:
    """The comparison on the first sample that differs, and the values that its region makes.

    Args:
        model: The one that was recorded.
        recording: What a device gave.
        config: The clean room.
        sandbox: Runs it.
        tolerance: Error of the device's arithmetic, relative to a value's largest magnitude.

    Raises:
        InputError: The recording is of another model, or the model does not run on its inputs.
    """
    about = recording.about
    if about.model != model.digest:
        raise InputError(
            f"the recording is of another model (digest {about.model[:12]!r}, not "
            f"{model.digest[:12]}); compare it with the model that `optvet record` was given"
        )
    told = RecordedOn(
        client=about.client,
        runtime=about.runtime,
        providers=about.providers,
        options=about.options,
        system=about.system,
        samples=len(recording.inputs),
        failure=about.failure,
    )
    samples = list(zip(recording.inputs, recording.values, strict=True))
    data = model.load().SerializeToString()
    outcome = sandbox.call(_judge, data, samples, config, tolerance)
    if outcome.value is None:
        words = outcome.failure.message if outcome.failure else "no answer"
        raise InputError(f"the model does not run on the recording's inputs: {words}")
    found, inside = outcome.value
    return found.model_copy(update={"recording": told}), inside


# --- in the worker --------------------------------------------------------------------------------


def _judge(
    data: bytes, samples: Sequence[tuple[Values, Values]], config: RuntimeConfig, tolerance: float
) -> tuple[ModelComparison, list[str]]:
    model = onnx.load_from_string(data)
    kept: tuple[ModelComparison, list[str]] | None = None
    for feeds, values in samples:
        first = record_with_jitter(data, feeds, config, INNER_JITTERS)
        enter("compare")
        first = replace(first, thresholds=OTHER_KERNELS)
        second = RecordedValues(values)
        pairs = [_within(p, tolerance) for p in find_pairs(model, model, first, second, None)]
        found = comparison_of(model, model, first, second, pairs)
        if found.diverges_at is None:
            kept = kept or (found, [])
            continue
        return _located(model, found, pairs)
    assert kept is not None, "a recording has a sample"
    return kept


def _within(pair: ValuePair, tolerance: float) -> ValuePair:
    """The pair; a difference that the device's arithmetic explains is drift."""
    judged = pair.judgement
    if judged.structural or judged.error is None or judged.error > tolerance:
        return pair
    return replace(pair, judgement=replace(judged, call="drift")) if judged.error else pair


def _located(
    model: ModelProto, found: ModelComparison, pairs: Sequence[ValuePair]
) -> tuple[ModelComparison, list[str]]:
    """With the nodes between the first wrong value and those that are right; one graph has them."""
    sound = {p.a for p in pairs if p.judgement.call != "fault"}
    assert found.diverges_at is not None
    nodes, agreeing = region_of(model, found.diverges_at, sound)
    inside = [o for node in nodes for o in node.output if o]
    changed = {
        "before": node_texts(model, nodes),
        "after": [],
        "agreeing": sorted(agreeing),
    }
    return found.model_copy(update=changed), inside
