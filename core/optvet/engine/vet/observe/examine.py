"""Examining a trial: what is wrong with it?

An ``Examiner`` compares trials with the reference's. It measures noise only if outputs differ by
more than a few roundoffs, runs the controls that a finding needs, and caches both.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from optvet.engine.judge.dependence import Runs
from optvet.engine.judge.failures import OPTIMIZER, OPTIMIZER_ON_LOAD
from optvet.engine.judge.judgement import Judgement
from optvet.engine.judge.known_noise import Noise, uncertainty
from optvet.engine.judge.outputs import judge
from optvet.engine.judge.sample import (
    InterfaceProblem,
    Review,
    SampleVerdict,
    Setting,
    judge_failure,
    judge_outputs,
    judge_sample,
    refine,
    unlike,
)
from optvet.engine.judge.sizes import largest_difference
from optvet.engine.judge.thresholds import THRESHOLDS, Thresholds
from optvet.engine.judge.value_notes import ValueNote, value_notes
from optvet.engine.numerics.floats import is_float
from optvet.engine.vet.observe.layers import Layers
from optvet.engine.vet.observe.observation import (
    Examination,
    Observation,
    finite,
    keep_worst,
    observation_of,
)
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials import noise_floor as measuring
from optvet.engine.work.trials.draws import ModelPair
from optvet.engine.work.trials.inference import Outputs, graph_output_of
from optvet.engine.work.trials.trial_results import Trial
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.graph.interface import describe_misdeclared_outputs
from optvet.spec.parts import OutputPart, parts_of_outputs
from optvet.spec.records import OutputRecord
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Failure, Sample

Levels = dict[str, dict[str, float]]
_LISTED_INPUTS = 4
REST, REST_BYTES = 32, 16 << 20
"""Samples that are judged after a fault was found, and bytes of a model that is run for them."""
GROSS = 1e-3
"""Relative difference beyond which the reference is first compared with itself."""


class Examiner:
    """Compares trials with the reference on the same samples."""

    def __init__(
        self,
        runner: TrialRunner,
        samples: Sequence[Sample],
        *,
        tolerance: Callable[[Sequence[str]], float | None] = lambda passes: None,
        thresholds: Thresholds = THRESHOLDS,
    ) -> None:
        self.runner = runner
        self.base: tuple[str, ...] | None = None
        self.samples = list(samples)
        self.reference: dict[str, Outputs] = {}
        self.random: set[str] = set()
        self.flaky: set[str] = set()
        self.undecided: dict[str, str] = {}
        self.ignored_outputs: set[str] = set()
        self.of_base: set[str] = set()
        self.tolerance, self.thresholds = tolerance, thresholds
        self.self_checked: set[str] = set()
        self._names: dict[str, None] = {}
        self._numbers: set[bool] = set()
        self._noise: dict[str, Noise] = {}
        self._measured: set[str] = set()
        self._refining: dict[str, Iterator[Noise]] = {}
        self._late: dict[frozenset[tuple[str, tuple[int, ...]]], str] = {}
        self._draws = self._lists_weights = False
        self._moved: set[str] = set()
        self._loosened: dict[tuple[str, float], tuple[Outputs, ...]] = {}
        self._drawn: dict[str, Runs] = {}
        self.layers = Layers(runner)
        self._known_parts: tuple[frozenset[str], Mapping[str, Sequence[OutputPart]]] = (
            frozenset(),
            {},
        )

    def learn_reference(self, trial: Trial) -> None:
        """Take the reference outputs from a trial: of the original, or of the required passes."""
        self.base = trial.passes if trial.of_optimizer else None
        facts = trial.build.facts
        if facts is not None and not trial.of_optimizer:
            self._draws, self._lists_weights = facts.random, facts.lists_weights
        for sample, run in trial.runs.items():
            if not isinstance(run, Failure):
                self.reference[sample] = run
                self._names |= dict.fromkeys(run)
                self._numbers |= {_is_nan(v) for v in run.values() if v.size}

    def forget(self, samples: Sequence[Sample]) -> None:
        """Drop the data of ``samples``; conclusions for other samples are kept."""
        for sample in samples:
            self.reference.pop(sample.id, None)
            self._noise.pop(sample.id, None)
            self._measured.discard(sample.id)
            self._refining.pop(sample.id, None)
            self._moved.discard(sample.id)

    # --- one trial ---------------------------------------------------------------------------

    def examine(self, trial: Trial, samples: Sequence[Sample]) -> Examination:
        """What is wrong with ``trial``, which was run on ``samples``."""
        first = samples[0] if samples else None
        failed = self._find_failed_step(trial, samples)
        if failed is not None:
            return Examination(failed)
        if trial.alignment is not None and trial.alignment.problem:
            problem = InterfaceProblem(trial.alignment.problem)
            return Examination(observation_of(judge_sample({}, problem), first))
        found = self._compare(trial, samples)
        if found.observation is None:
            found.observation = self._find_lost_inputs(trial, samples) or misdeclared_in(
                trial, samples
            )
        return found

    def _find_failed_step(self, trial: Trial, samples: Sequence[Sample]) -> Observation | None:
        """The first step that failed: of the build, or of a sample."""
        on_load = self.runner.case.optimizer.traits.optimizes_on_load
        maker = OPTIMIZER_ON_LOAD if on_load else OPTIMIZER
        if trial.build.failure is not None:
            first = samples[0] if samples else None
            return observation_of(judge_failure(trial.build.failure, maker), first)
        gone = _find_fed_lost_input(trial, samples)
        if gone is not None:
            return gone
        for sample in samples:
            run = trial.runs.get(sample.id)
            if isinstance(run, Failure):
                return observation_of(judge_failure(run, maker), sample)
        return None

    def _find_lost_inputs(self, trial: Trial, samples: Sequence[Sample]) -> Observation | None:
        """An observation if optional inputs are gone; only a note for weights listed as inputs."""
        if trial.alignment is None or self._lists_weights:
            return None
        lost = tuple(n for n in trial.alignment.lost if n not in self.ignored_outputs)
        if not lost:
            return None
        words = f"{_inputs_words(lost)} gone: a caller can no longer replace the default"
        first = samples[0] if samples else None
        return observation_of(judge_sample({}, InterfaceProblem(words)), first, lost)

    def _compare(self, trial: Trial, samples: Sequence[Sample]) -> Examination:
        if self._draws:
            for sample in samples:
                self._know_random(sample)
        self._settle(trial, samples)
        found = Examination()
        worst: tuple[SampleVerdict, Sample] | None = None
        for sample in samples:
            verdict, notes = self._verdict(trial, sample)
            for j in verdict.judgements:
                keep_worst(found.judgements, j)
            found.notes += [(sample, noted) for noted in notes]
            if not verdict.right and (worst is None or verdict.exceeds > worst[0].exceeds):
                worst = (verdict, sample)
        if worst is not None:
            found.observation = observation_of(*worst)
        elif self.random:
            # Many runs of one sample: asked again for others, the answer is remembered.
            first = self.samples[0] if self.samples else samples[0]
            judged = self._compare_random(trial, first)
            found.judgements |= {j.output: j for j in judged}
            found.observation = _other_distribution(first, judged)
        return found

    def _judge(self, trial: Trial, sample: Sample) -> list[Judgement]:
        """The judgements of a sample under its known noise."""
        args = self._judge_arguments(trial, sample)
        return [] if args is None else judge_outputs(*args, review=self._review(trial, sample))

    def _verdict(self, trial: Trial, sample: Sample) -> tuple[SampleVerdict, list[ValueNote]]:
        args = self._judge_arguments(trial, sample)
        if args is None:
            return SampleVerdict("same"), []
        expected, came, _, _ = args
        verdict = judge_sample(*args, review=self._review(trial, sample))
        return verdict, list(value_notes(verdict, expected, came))

    def _judge_arguments(
        self, trial: Trial, sample: Sample
    ) -> tuple[Outputs, Outputs, Noise | None, Setting] | None:
        """Arguments of the judge for a sample; None if there is nothing to compare."""
        reference, run = self.reference.get(sample.id), trial.runs.get(sample.id)
        if reference is None or run is None or isinstance(run, Failure):
            return None
        skipped = self.random | self.flaky | self.ignored_outputs
        expected = _without(reference, skipped)
        setting, noise = Setting(self.thresholds), self._noise.get(sample.id)
        if noise is not None and self.of_base:
            noise = replace(noise, truth=_without(noise.truth, self.of_base))
        tolerance = self.tolerance(trial.passes)
        if tolerance is not None:
            setting = replace(setting, tolerance=tolerance, parts=self._parts())
            runs = self._loosened.get((sample.id, tolerance))
            noise = replace(noise, loosened=runs) if noise is not None else None
        return expected, run, noise, setting

    def _parts(self) -> Mapping[str, Sequence[OutputPart]]:
        """Parts of each output whose ranges differ over the samples."""
        known = frozenset(self.reference)
        if self._known_parts[0] != known:
            self._known_parts = known, parts_of_outputs(self.reference.values())
        return self._known_parts[1]

    def _review(self, trial: Trial, sample: Sample) -> Review:
        """Judgements by the layers of a quantized model, unless a tolerance is declared."""
        if self.tolerance(trial.passes) is not None:
            return lambda judgement: judgement
        return partial(self.layers.refine_judgement, trial.passes, sample.id)

    # --- noise, where it is needed ------------------------------------------------------------

    def _settle(self, trial: Trial, samples: Sequence[Sample]) -> None:
        """Measure noise until no judgement is open, largest difference first.

        It ends at a confirmed fault, since one failing sample is enough. Each differing sample is
        measured by itself: near a decision or a pole, noise may be a thousand times larger.
        """
        settled: set[str] = set()
        for sample in samples:
            # The graph alone settles much: what cannot round, and what sums in another order may.
            if sample.id not in self._noise and self._doubtful(trial, sample):
                self._noise[sample.id] = measuring.noise_without_runs(self.runner, sample)
        if self.tolerance(trial.passes) is None:
            doubtful = [
                (-_size(self._judge(trial, s)), s) for s in samples if self._doubtful(trial, s)
            ]
            self.layers.inspect(trial, doubtful)
        while True:
            doubts = [s for s in samples if s.id not in settled and self._doubtful(trial, s)]
            if not doubts:
                return
            sample = min(doubts, key=lambda s: _size(self._judge(trial, s)))
            if self._loosen(trial, sample) and not self._doubtful(trial, sample):
                settled.add(sample.id)
                continue
            if not settled and _is_gross(self._judge(trial, sample)):
                # A reference that differs from itself has no noise to measure.
                self._check_self(sample)
            # The one that differs most is mostly a fault, or none is: then all the others at once.
            self._measure(trial, doubts if settled else [sample])
            settled.add(sample.id)
            judged = self._judge(trial, sample)
            if any(j.call in ("fault", "sensitivity", "unsure") for j in judged):
                self._check_self(sample)
                if not self._certain(trial, sample):
                    self._refine(trial, sample)
                judged = self._judge(trial, sample)
            if any(j.call == "fault" for j in judged):
                return

    def _loosen(self, trial: Trial, sample: Sample) -> bool:
        """Measure how a declared loss turns discrete outputs, where one is in doubt."""
        tolerance = self.tolerance(trial.passes)
        doubts = [j.output for j in self._judge(trial, sample) if j.call == "unsure"]
        known = self.reference[sample.id]
        if tolerance is None or all(is_float(known[name].dtype) for name in doubts):
            return False
        key = sample.id, tolerance
        if key not in self._loosened:
            self._loosened[key] = measuring.loosened(self.runner, sample, tolerance)
        return True

    def _doubtful(self, trial: Trial, sample: Sample) -> bool:
        return any(j.call in ("unsure", "fault") for j in self._judge(trial, sample))

    def _faulty(self, trial: Trial, sample: Sample) -> bool:
        return any(j.call == "fault" for j in self._judge(trial, sample))

    def _measure(self, trial: Trial, samples: Sequence[Sample]) -> None:
        """Measure jitter on samples where, by the graph, the size of a difference matters."""
        wanted = []
        for sample in samples:
            self._noise.setdefault(sample.id, measuring.noise_without_runs(self.runner, sample))
            if sample.id not in self._measured and not self._certain(trial, sample):
                wanted.append(sample)
        self._measured.update(s.id for s in wanted)
        self._noise.update(measuring.measure(self.runner, wanted) if wanted else {})
        for sample in wanted:
            self._noise[sample.id] = self.layers.noise(sample, self._noise[sample.id])

    def _certain(self, trial: Trial, sample: Sample) -> bool:
        """Whether no noise could explain a wrong output."""
        discontinuous = measuring.analysis(self.runner).discontinuous
        return any(
            j.call == "fault"
            and (j.layered or (j.structural and graph_output_of(j.output) not in discontinuous))
            for j in self._judge(trial, sample)
        )

    def _refine(self, trial: Trial, sample: Sample) -> None:
        """Before a fault is reported: measure more noise, until nothing is open."""
        if self.layers.applies() and sample.id not in self._moved:
            self._moved.add(sample.id)
            self._noise[sample.id] = self.layers.noise(sample, self._noise[sample.id], more=True)
            if not self._doubtful(trial, sample):
                return
        shapes = frozenset((name, value.shape) for name, value in sample.feeds.items())
        stages = self._refining.get(sample.id)
        if stages is None:
            stages = self._refining[sample.id] = measuring.refinements(
                self.runner,
                sample,
                self._noise[sample.id],
                other_kernels=self.thresholds.other_kernels,
                missing=self._late.get(shapes, ""),
            )
        elif not self._doubtful(trial, sample):
            return

        def take(noise: Noise) -> bool:
            self._noise[sample.id] = noise
            if noise.missing:
                self._late.setdefault(shapes, noise.missing)
            return self._doubtful(trial, sample)

        refine(stages, take)
        if self._doubtful(trial, sample) and not self._faulty(trial, sample):
            # Gross differences that more draws decide; a fault is none by fewer of them already.
            self._noise[sample.id] = measuring.draw_more(
                self.runner, sample, self._noise[sample.id]
            )

    # --- controls ----------------------------------------------------------------------------

    def _know_random(self, sample: Sample) -> None:
        if sample.id not in self.reference:
            return
        # Workers forked from one server may share a runtime's seed, so agreement between two runs
        # would prove nothing: what depends on a random operator is random.
        drawn = measuring.analysis(self.runner).random
        self.random |= {n for n in self.reference[sample.id] if graph_output_of(n) in drawn}

    def _check_self(self, sample: Sample) -> None:
        """Check that two runs of the reference agree, before a difference is reported."""
        if sample.id in self.self_checked:
            return
        self.self_checked.add(sample.id)
        again = self.runner.fresh(self.base, [sample], "control").runs.get(sample.id)
        if isinstance(again, Failure) or again is None:
            words = describe(again) if again is not None else "no answer"
            self.undecided[sample.id] = f"the reference ran once, then failed: {words}"
            return
        # What differs by roundoffs alone is a reference all the same: noise covers that.
        self.flaky |= unlike(self.reference[sample.id], again, but="drift") - self.random

    def _compare_random(self, trial: Trial, sample: Sample) -> list[Judgement]:
        """Compare random outputs by many draws of both models."""
        names = sorted(self.random - self.ignored_outputs - self.flaky)
        if not names:
            return []
        pair = ModelPair(self.runner, self.base, trial.passes, sample, self._drawn)
        return list(pair.judgements(names).values())

    def agrees(self, sample: Sample, again: Outputs) -> bool:
        """Whether a second run of the reference agrees with the first, except random outputs."""
        skipped = self.random | self.flaky
        judged = _without(self.reference[sample.id], skipped)
        return not unlike(judged, again, but="drift")

    def tells_nothing(self) -> bool:
        """Whether the reference is NaN wherever it could be compared numerically."""
        return self._numbers == {True}

    def why_open(self, judged: Mapping[str, Judgement]) -> str:
        """Why ``judged``, among which no fault is, decides nothing; empty if it does."""
        if self.undecided:
            return "; ".join(self.undecided.values())
        if self.flaky:
            names = ", ".join(sorted(self.flaky))
            return f"the reference differs between two runs in: {names}"
        if self.tells_nothing():
            return "every float output of the reference is NaN on every sample"
        open_ = {name: j.detail for name, j in judged.items() if j.call == "unsure"}
        names = ", ".join(f"{name} ({why})" if why else name for name, why in open_.items())
        return f"differences that could not be judged in: {names}" if open_ else ""

    def judge_rest(self, trial: Trial, samples: Sequence[Sample]) -> set[str]:
        """Judge the samples that a fault on another one left open; those that still are, by id.

        One failing sample is enough for a verdict, and no noise was measured on the others. How
        many are wrong is another question, and answered by little work: layers and a few runs.
        """
        left = [s for s in samples if self._doubtful(trial, s)][:REST]
        if not left:
            return set()
        if self.tolerance(trial.passes) is None:
            sized = [(-_size(self._judge(trial, s)), s) for s in left]
            self.layers.inspect(trial, sized, most=REST)

        def is_open(sample: Sample) -> bool:
            return any(j.call == "unsure" for j in self._judge(trial, sample))

        left = [s for s in left if is_open(s)]
        if left and self.runner.model.size_bytes <= REST_BYTES:
            self._measure(trial, left)
        return {s.id for s in samples if is_open(s)}

    def levels(self, runs: Mapping[str, Outputs], passes: Sequence[str]) -> Levels:
        """Absolute uncertainty per sample and output, where it is known.

        At least the differences in ``runs``, the outputs after ``passes``, that were judged right:
        exact results or layers may have decided where the reference's spread could not. What an
        optimizer declares to change is no noise.
        """
        review = partial(self.layers.refine_judgement, tuple(passes))
        levels: Levels = {}
        for sample, outputs in self.reference.items():
            noise, run = self._noise.get(sample), runs.get(sample)
            for name, value in outputs.items():
                level = uncertainty(name, value, noise) if noise is not None else None
                if run is not None and is_float(value.dtype):
                    (j,) = judge({name: value}, run, noise, self.thresholds)
                    j = review(sample, j)
                    if j.call == "fault" and j.layered:
                        continue  # a layer is wrong, however far rounding moves what follows it
                    if j.call in ("drift", "sensitivity"):
                        level = max(level or 0.0, largest_difference(value, run[name]))
                if level is not None:
                    levels.setdefault(sample, {})[name] = level
        return levels

    # --- summary -----------------------------------------------------------------------------

    def outputs(self, judgements: Mapping[str, Judgement]) -> list[OutputRecord]:
        """One verdict per output over all samples that were examined."""
        records = []
        for name in self._names:
            if name in self.flaky:
                records.append(OutputRecord(name=name, verdict="flaky"))
            elif name in judgements:
                records.append(output_record(judgements[name]))
            else:
                records.append(OutputRecord(name=name, verdict="not-judged"))
        return records


def drawing_by(examiner: Examiner, runner: TrialRunner) -> Examiner:
    """The same for trials of ``runner``, which draws random outputs anew."""
    other = copy.copy(examiner)
    other.runner, other._drawn = runner, {}
    return other


def output_record(j: Judgement) -> OutputRecord:
    """The verdict on an output as documents have it."""
    return OutputRecord(
        name=j.output,
        verdict="undecided" if j.call == "unsure" else j.call,
        error=finite(j.error),
        noise_floor=finite(j.noise),
        detail=j.detail,
        excused=finite(j.excused),
        largest=finite(j.largest),
    )


def misdeclared_in(trial: Trial, samples: Sequence[Sample]) -> Observation | None:
    """A note if the candidate's declared shapes contradict the reference and its own outputs.

    If its outputs have the declared shapes, the original's declaration was wrong.
    """
    if trial.alignment is None or not trial.alignment.disputed:
        return None
    for sample in samples:
        run = trial.runs.get(sample.id)
        if isinstance(run, Failure):
            continue
        words = describe_misdeclared_outputs(trial.alignment, run or {})
        if words:
            return observation_of(judge_sample({}, InterfaceProblem(words)), sample)
    return None


def _find_fed_lost_input(trial: Trial, samples: Sequence[Sample]) -> Observation | None:
    """Report the first sample that feeds an optional input which the candidate lacks."""
    lost = trial.alignment.lost if trial.alignment is not None else ()
    for sample in samples:
        fed = [name for name in lost if name in sample.feeds]
        if fed:
            problem = InterfaceProblem(f"{_inputs_words(fed)} gone, which the sample feeds")
            return observation_of(judge_sample({}, problem), sample)
    return None


def _size(judged: Sequence[Judgement]) -> float:
    """A sort key that puts the sample with the largest open difference first."""
    doubtful = [j for j in judged if j.call in ("unsure", "fault")]
    structural = any(j.structural for j in doubtful)
    return -max((j.error or 0.0 for j in doubtful), default=0.0) - (math.inf if structural else 0)


def _is_gross(judged: Sequence[Judgement]) -> bool:
    doubtful = (j for j in judged if j.call in ("unsure", "fault"))
    return any(j.error is None or j.error > GROSS for j in doubtful)


def _without(outputs: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, np.ndarray]:
    return {name: value for name, value in outputs.items() if name not in names}


def _is_nan(value: np.ndarray) -> bool:
    return is_float(value.dtype) and bool(np.all(value != value))


def _inputs_words(names: Sequence[str]) -> str:
    """The beginning of a sentence: "optional inputs 'a', 'b' are"."""
    listed = ", ".join(repr(name) for name in names[:_LISTED_INPUTS])
    more = f" and {len(names) - _LISTED_INPUTS} more" if len(names) > _LISTED_INPUTS else ""
    several = len(names) > 1
    return f"optional input{'s' * several} {listed}{more} {'are' if several else 'is'}"


def _other_distribution(sample: Sample, judged: Sequence[Judgement]) -> Observation | None:
    """What is wrong with random outputs; None if nothing is."""
    faults = [j for j in judged if j.call == "fault"]
    if not faults:
        return None
    message = f"random output {faults[0].output!r}: {faults[0].detail}"
    names = tuple(j.output for j in faults)
    return Observation("fault", Symptom.WRONG_OUTPUT, "compare", message, names, sample=sample)
