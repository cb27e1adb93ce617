"""A quick look at an optimized model: the one judge, under a setting that measures no noise.

Called in workers. Its findings are suspicions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx.checker
import onnx.shape_inference
from onnx import ModelProto

from optvet.engine.hunt.expected import ExpectedOutput, Values, outputs_of
from optvet.engine.hunt.tested_optimizer import TestedOptimizer
from optvet.engine.judge.dependence import Runs
from optvet.engine.judge.judgement import Judgement
from optvet.engine.judge.random_outputs import Side, judge_random
from optvet.engine.judge.sample import (
    InterfaceProblem,
    SampleVerdict,
    Setting,
    judge_failure,
    judge_sample,
)
from optvet.engine.runtime_target import RuntimeTarget, lacks_kernel
from optvet.engine.work.trials.draws import graph_in, seeded_runs
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.graph import structure
from optvet.graph.interface import (
    Alignment,
    align,
    describe_misdeclared_outputs,
    find_weaker_shapes,
    interface_of,
)
from optvet.graph.randomness import SeedBy
from optvet.spec.errors import REFUSALS, Unsupported
from optvet.spec.extras import extras
from optvet.spec.runtime_protocols import RuntimeExtras
from optvet.spec.symptoms import Stage, Symptom
from optvet.spec.types import Artifact, Failure

QUICK = Setting(quick=1.0)
"""A plain tolerance in place of measured noise."""
QUICK_ELSEWHERE = Setting(quick=1024.0)
"""The same for kernels of another runtime, which may differ by more."""
QUICK_RUNS = 48
"""Runs of each model, in either test, by which random outputs are compared."""


@dataclass(frozen=True)
class Look:
    """First verdict on an optimized model, and the metadata that it lost.

    ``strict`` is the verdict if the runtime does not load what strict shape inference refuses.
    """

    verdict: SampleVerdict
    lost: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    alignment: Alignment | None = None
    strict: SampleVerdict | None = None


def look(
    tested: TestedOptimizer, artifact: Artifact, truth: ExpectedOutput, setting: Setting = QUICK
) -> Look:
    """Look at a model that an optimizer made.

    Raises:
        Exception: Of ``REFUSALS``: it cannot be judged here.
    """
    graph = Look(SampleVerdict("same"))
    if artifact.format == "onnx":
        graph = _look_at_graph(tested, artifact.data, truth)
    if not graph.verdict.right:
        return graph
    verdict = _look_at_outputs(tested, artifact, truth, setting, graph.alignment)
    if verdict.symptom is Symptom.LOAD_FAILURE and graph.strict is not None:
        verdict = graph.strict
    return replace(graph, verdict=verdict)


def verdict_on_error(stage: Stage, error: Exception) -> SampleVerdict:
    """The verdict on a step that raised an error."""
    return judge_failure(Failure("error", stage, str(error)))


def _look_at_outputs(
    tested: TestedOptimizer,
    artifact: Artifact,
    truth: ExpectedOutput,
    setting: Setting,
    alignment: Alignment | None,
) -> SampleVerdict:
    verdict = _in_session(tested, tested.candidate, artifact, truth, setting, alignment)
    if verdict.right and truth.random:
        verdict = _look_at_draws(tested, artifact, truth)
    if verdict.right and tested.shipped is not None:
        verdict = _look_as_shipped(tested, tested.shipped, artifact, truth)
    return verdict


def _look_as_shipped(
    tested: TestedOptimizer, shipped: RuntimeConfig, artifact: Artifact, truth: ExpectedOutput
) -> SampleVerdict:
    """What only the optimizer and the session as its users have it get wrong together.

    Where that session is wrong on the original as well, the optimizer is not what is at fault.
    """
    lost = extras(shipped.runtime, RuntimeExtras).declared_loss(shipped.options)
    setting = replace(QUICK_ELSEWHERE, tolerance=lost)
    verdict = _in_session(tested, shipped, artifact, truth, setting)
    if verdict.right:
        return verdict
    original = _in_session(tested, shipped, Artifact("onnx", truth.data), truth, setting)
    if not original.right:
        return SampleVerdict("same")
    return replace(verdict, message=f"as shipped: {verdict.message}")


def _in_session(
    tested: TestedOptimizer,
    config: RuntimeConfig,
    artifact: Artifact,
    truth: ExpectedOutput,
    setting: Setting,
    alignment: Alignment | None = None,
) -> SampleVerdict:
    try:
        session = config.runtime.load(artifact, config.options)
    except REFUSALS:
        raise
    except Exception as error:
        _refuse_lack(tested, error)
        return verdict_on_error("load", error)
    verdict = SampleVerdict("same")
    for feeds, expected in zip(truth.feeds, truth.outputs, strict=True):
        try:
            outputs = outputs_of(session, feeds)
        except Exception as error:
            _refuse_lack(tested, error)
            return verdict_on_error("run", error)
        fixed = truth.drop_random_outputs(expected)
        verdict = judge_sample(fixed, outputs, setting=setting)
        if not verdict.right:
            # Suspicions are told apart by their words, which must not be about this model.
            return replace(verdict, message=_kind(verdict.faults[0], fixed))
        if alignment is not None and (words := describe_misdeclared_outputs(alignment, outputs)):
            return judge_sample({}, InterfaceProblem(words))
    return verdict


def _refuse_lack(tested: TestedOptimizer, error: Exception) -> None:
    """Raise Unsupported where a runtime under test says that it lacks an operator or a type."""
    by_runtime = isinstance(tested.optimizer, RuntimeTarget)
    if by_runtime and lacks_kernel(type(error).__name__, str(error)):
        raise Unsupported(str(error)) from error


def _look_at_draws(
    tested: TestedOptimizer, artifact: Artifact, truth: ExpectedOutput
) -> SampleVerdict:
    """Compare the distributions of random outputs; an output may be random in parts."""
    draws = SeededSessions(tested, artifact, truth)
    judged = judge_random(draws, sorted(truth.random), screen=QUICK_RUNS, proof=QUICK_RUNS)
    wrong = any(j.call == "fault" for j in judged.values())
    if wrong:
        return SampleVerdict("fault", Symptom.WRONG_OUTPUT, message="draws")
    return SampleVerdict("same")


@dataclass(frozen=True)
class SeededSessions:
    """Draws of the original and of an optimized model, by sessions of this process."""

    tested: TestedOptimizer
    artifact: Artifact
    truth: ExpectedOutput

    def run_seeds(self, side: Side, numbers: range, by: SeedBy) -> Runs | None:
        """One run for each seed; None if the model takes no seeds."""
        if side == "candidate":
            return self._draw(side, numbers, by)
        if (numbers, by) not in self.truth.drawn:
            self.truth.drawn[numbers, by] = self._draw(side, numbers, by)
        return self.truth.drawn[numbers, by]

    def in_turn(self, side: Side, session: int, runs: int) -> Runs:
        """Runs of one new session."""
        config, artifact = self._parts(side)
        opened = config.runtime.load(artifact, config.options)
        return [outputs_of(opened, self.truth.feeds[0]) for _ in range(runs)]

    def _parts(self, side: Side) -> tuple[RuntimeConfig, Artifact]:
        if side == "candidate":
            return self.tested.candidate, self.artifact
        return self.tested.reference, Artifact("onnx", self.truth.data)

    def _draw(self, side: Side, numbers: range, by: SeedBy) -> Runs | None:
        config, artifact = self._parts(side)
        # What is no graph may hold the original, beside instructions for the runtime.
        whole = artifact.format == "onnx" or artifact.data == self.truth.data
        model = graph_in(artifact) if whole else None
        if model is None:
            return None

        def run(copy: Artifact) -> dict[str, np.ndarray]:
            return outputs_of(config.runtime.load(copy, config.options), self.truth.feeds[0])

        return seeded_runs(model, artifact, numbers, by, run)


def _kind(fault: Judgement, expected: Values) -> str:
    """The kind of a difference: in dtype and shape, in where numbers are, or in values."""
    kind = "structure" if fault.structural else "places" if fault.detail else "values"
    return f"{kind} {expected[fault.output].dtype}"


def _look_at_graph(tested: TestedOptimizer, data: bytes, truth: ExpectedOutput) -> Look:
    strict = None
    try:
        proto = ModelProto.FromString(data)
        if not tested.optimizer.traits.dialect:
            onnx.checker.check_model(data, full_check=True)
    except onnx.shape_inference.InferenceError as error:
        strict = verdict_on_error("check", error)
    except Exception as error:
        return Look(verdict_on_error("check", error))
    interface = interface_of(proto)
    alignment = align(truth.interface, interface, frozenset())
    if alignment.changed:
        return Look(judge_sample({}, InterfaceProblem(alignment.changed)))
    facts = structure.brief_facts(proto, len(data))
    if structure.is_bloated(truth.facts, facts):
        words = structure.growth(truth.facts, facts)
        return Look(SampleVerdict("fault", Symptom.BLOAT, "build", words))
    lost = structure.lost_metadata(truth.facts, facts)
    weaker = find_weaker_shapes(truth.interface, interface)
    return Look(SampleVerdict("same"), {**lost, **weaker}, alignment, strict)
