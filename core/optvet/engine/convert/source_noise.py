"""How far rounding may move the outputs of a source, measured where a conversion differs.

A source whose runtime can move weights and operators is measured by that, and by float64 where it
computes in it. Of another one only the inputs can be moved; then the converted model's own weights
are moved too, which tells how far their rounding to another type may lead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import onnx

from optvet.engine.convert import worker_steps
from optvet.engine.convert.conversion_inputs import is_finite
from optvet.engine.convert.match_interface import NO_FACTS, Matched, match_outputs
from optvet.engine.convert.open_labels import OpenLabels, further_labels, moved_labels
from optvet.engine.convert.undefined_inputs import open_rows
from optvet.engine.convert.worker_steps import Observed
from optvet.engine.judge.known_noise import Noise
from optvet.engine.numerics import perturb
from optvet.engine.numerics.floats import is_float, unit_roundoff
from optvet.engine.numerics.inject import INJECTIONS
from optvet.engine.work.sandbox import Outcome, Sandbox
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.inference import Outputs, RuntimeConfig
from optvet.graph.structure import draws_random
from optvet.spec.converters import SourceExtras, SourceFacts
from optvet.spec.extras import given
from optvet.spec.types import Artifact, Failure, Sample

SEEDS = range(5)
T = TypeVar("T")


@dataclass
class NoiseMeter:
    """Measures noise of one source, each sample once.

    Attributes:
        sandbox: Where the source runs.
        reference: Outputs of the source by sample.
        here: Where ONNX models run.
        facts: What the source says about its outputs.
        converted: A converted model in ONNX, and what it gave; None if there is none.
    """

    sandbox: Sandbox
    config: RuntimeConfig
    source: Artifact
    reference: Mapping[str, Outputs]
    here: Sandbox
    facts: SourceFacts = NO_FACTS
    converted: tuple[RuntimeConfig, Artifact, Mapping[str, Outputs | Failure]] | None = None
    known: dict[str, Noise] = field(default_factory=dict)
    labels: dict[str, dict[str, OpenLabels]] = field(default_factory=dict)
    """By sample and output; none of a sample on which the source cannot be moved."""
    _loosened: dict[tuple[str, float], tuple[Outputs, ...]] = field(default_factory=dict)

    def of(self, samples: Sequence[Sample]) -> dict[str, Noise]:
        """The noise on each of ``samples``."""
        todo = [s for s in samples if s.id not in self.known]
        if todo:
            self._measure(todo)
        return {s.id: self.known[s.id] for s in samples}

    def borrow(
        self,
        configs: Sequence[RuntimeConfig | None],
        artifacts: Sequence[Artifact | None],
        observed: Sequence[Observed | None],
    ) -> None:
        """Take the first converted model in ONNX that runs, for what only a graph tells.

        The noise of a model that draws random numbers is not that of the source.
        """
        for config, artifact, seen in zip(configs, artifacts, observed, strict=True):
            if config is None or artifact is None or seen is None or seen.load is not None:
                continue
            # The first one that runs is the nearest to the source: later stages change more.
            if artifact.format == "onnx" and artifact.data and not draws(artifact):
                self.converted = (config, artifact, seen.runs)
                return

    def open_rows(self, samples: Sequence[Sample]) -> Mapping[str, np.ndarray]:
        """Rows for which the source leaves its answer open, of samples that have some."""
        if not self.facts.tables or not samples:
            return {}
        about = (self.config, self.source, samples)
        return self.sandbox.call(open_rows, *about, role="judging").value or {}

    def refinements(self, sample: Sample) -> Iterator[Noise]:
        """Better and better noise: all of it at once, since a source is mostly run quickly."""
        yield self.of([sample])[sample.id]

    def loosened(self, sample: Sample, tolerance: float) -> tuple[Outputs, ...]:
        """Outputs of the source with inputs and weights moved by a declared loss.

        Weights of a source that is no ONNX model are moved where it was converted to one.
        """
        key = sample.id, tolerance
        if key not in self._loosened:
            share, seeds = perturb.Share(tolerance), range(perturb.LOOSENED)
            # Weights of the converted model first: of most sources only the inputs can be moved,
            # and a loss in the weights would be missed.
            runs = self._borrow_noise([sample], share).get(sample.id)
            if not runs:
                about = (self.config, self.source, [sample], seeds, False, share)
                job = self.sandbox.call(worker_steps.run_perturbed, *about, role="judging")
                runs = _answer(job).value.get(sample.id, [])
            self._loosened[key] = tuple(runs)
        return self._loosened[key]

    def _measure(self, samples: Sequence[Sample]) -> None:
        about = (self.config, self.source, samples)
        # Submitted together: each is a process of its own, and none needs the result of another.
        jobs = [
            self.sandbox.submit(
                worker_steps.run_perturbed, *about, list(SEEDS), False, role="judging"
            ),
            self.sandbox.submit(
                worker_steps.run_perturbed, *about, list(range(INJECTIONS)), True, role="judging"
            ),
        ]
        exact = self.sandbox.submit(worker_steps.run_in_float64, *about, role="judging")
        kinds = {s.id: self._kind(s) for s in samples}
        named = self.facts.labels
        labels = (
            self.sandbox.submit(moved_labels, *about, named, kinds, role="judging")
            if named
            else None
        )
        jitters, injected = (_answer(job.result()) for job in jobs)
        truth = _answer(exact.result())
        borrowed = self._borrow_noise(samples)
        facts = self._graph()
        for s in samples:
            names = list(self.reference[s.id])
            # Inputs of the source and weights of the converted model move different values, so both
            # count.
            moved = (*jitters.value.get(s.id, ()), *borrowed.get(s.id, ()))
            exactly = truth.value.get(s.id, {})
            self.known[s.id] = Noise(
                jitters=tuple(moved),
                injected=tuple(injected.value.get(s.id, ())),
                truth=exactly,
                in_double=_computed_in_double(self.reference[s.id], exactly),
                longest_reduction=_terms(facts, s),
                discontinuous=frozenset(names[i] for i in facts.discontinuous if i < len(names)),
                finite_inputs=frozenset(names if all(map(is_finite, s.feeds.values())) else ()),
                missing=jitters.missing or injected.missing,
            )
        for name, found in ({} if labels is None else _answer(labels.result()).value).items():
            shifted = self.known[name].jitters
            self.labels[name] = further_labels(self.reference[name], found, kinds[name], shifted)

    def _kind(self, sample: Sample) -> np.dtype:
        """The float type in which the converted model computes: the narrowest of its outputs."""
        runs = {} if self.converted is None else self.converted[2]
        run = runs.get(sample.id)
        values = [] if run is None or isinstance(run, Failure) else [*run.values()]
        kinds = [v.dtype for v in values if is_float(v.dtype)]
        return max(kinds, key=unit_roundoff, default=np.dtype(np.float32))

    def _graph(self) -> worker_steps.GraphFacts:
        graph = self.source if self.source.format == "onnx" else None
        artifact = graph or (None if self.converted is None else self.converted[1])
        if artifact is not None:
            outcome = self.here.call(worker_steps.graph_facts, artifact, role="judging")
            if outcome.value is not None:
                return outcome.value
        # Nothing is known of the graph. A sum of 64 terms is short, so that it excuses little.
        return worker_steps.GraphFacts(64, frozenset())

    def _borrow_noise(
        self, samples: Sequence[Sample], ulps: float = 1.0
    ) -> dict[str, list[Outputs]]:
        """What moving the converted model's weights does, as moved outputs of the source."""
        loose = isinstance(ulps, perturb.Share)  # of which sources know nothing
        # A source that moves its own weights needs no stand-in.
        perturbs = given(self.config.runtime, SourceExtras.load_perturbed) and not loose
        measured = perturbs or self.source.format == "onnx"
        if self.converted is None or measured:
            return {}
        config, artifact, runs = self.converted
        about = (config, artifact, samples, list(range(perturb.LOOSENED) if loose else SEEDS), ulps)
        moved = _answer(self.here.call(worker_steps.moved_weights, *about, role="judging")).value
        found: dict[str, list[Outputs]] = {}
        for s in samples:
            plain = runs.get(s.id)
            if plain is None or isinstance(plain, Failure):
                continue
            pair = match_outputs(self.reference[s.id], plain, facts=self.facts)
            each = (self._shift_outputs(s.id, pair, m) for m in moved.get(s.id, ()))
            found[s.id] = [shifted for shifted in each if shifted]
            found[s.id] += [] if loose else [_round_outputs(pair, seed) for seed in SEEDS]
        return found

    def _shift_outputs(self, sample: str, one: Matched, moved: Outputs) -> Outputs:
        """The reference, changed as ``moved`` differs from what it is matched with."""
        other = match_outputs(self.reference[sample], moved, facts=self.facts)
        # Without a match of outputs, a move of one model is no move of the other.
        if one.problem or other.problem:
            return {}
        shifted: Outputs = {}
        for name, value in one.reference.items():
            before, after = one.candidate[name], other.candidate[name]
            if is_float(value.dtype):
                finite = np.isfinite(before) & np.isfinite(after)
                with np.errstate(invalid="ignore", over="ignore"):
                    step = np.where(finite, after - before, 0)
                    shifted[name] = (value + step).astype(value.dtype)
                # A NaN that comes or goes by moving is noise; one that stays is the model's.
                turned = np.isfinite(before) != np.isfinite(after)
                shifted[name] = np.where(turned, after, shifted[name])
            else:
                shifted[name] = np.where(before != after, after, value)
        return shifted


def draws(artifact: Artifact) -> bool:
    """Whether an artifact is an ONNX model that draws random numbers."""
    if artifact.format != "onnx" or not artifact.data:
        return False
    return draws_random(onnx.load_from_string(artifact.data))


def _computed_in_double(outputs: Outputs, truth: Outputs) -> frozenset[str]:
    """Outputs in float64 that are the same if the source is asked to compute in it."""
    doubles = {n: v for n, v in outputs.items() if v.dtype == np.float64 and n in truth}
    return frozenset(n for n, v in doubles.items() if np.array_equal(v, truth[n], equal_nan=True))


def _terms(facts: worker_steps.GraphFacts, sample: Sample) -> int:
    """How many independent terms round as the longest sum does; the bound grows with their root.

    Sums of equal terms are rounded the same way again and again, so theirs grows with the number.
    """
    floats = (v for v in sample.feeds.values() if is_float(v.dtype) and v.size > 1)
    same = any(bool(v.any()) and bool(np.all(v == v.reshape(-1)[0])) for v in floats)
    return facts.longest_reduction ** (2 if same else 1)


@dataclass(frozen=True)
class _MeasuredNoise(Generic[T]):
    value: Mapping[str, T]
    missing: str = ""


def _answer(outcome: Outcome[dict[str, T]]) -> _MeasuredNoise[T]:
    """The value; where a limit was reached, why it is missing."""
    failure = outcome.failure
    late = failure is not None and failure.kind in ("timeout", "out-of-memory", "killed")
    words = f"noise could not be measured: {describe(failure)}" if failure and late else ""
    return _MeasuredNoise(outcome.value or {}, words)


def _round_outputs(pair: Matched, seed: int) -> Outputs:
    """The reference, moved by a roundoff of its largest values in the converted model's type.

    So far is what a sum, or a function with values near 1, may be off that was computed in it.
    """
    rng = np.random.default_rng(seed)
    moved: Outputs = {}
    for name, value in pair.reference.items():
        if is_float(value.dtype) and value.size:
            top = np.max(np.abs(value), where=np.isfinite(value), initial=0)
            step = unit_roundoff(value.dtype) * float(top)
            moved[name] = (value + rng.choice((-step, step), value.shape)).astype(value.dtype)
    return moved
