"""Results of trials in memory and on disk, under keys of all that they depend on.

Most passes do not change a given model, so most builds give an artifact that was run before.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from optvet.engine.work.cache import cache_key
from optvet.engine.work.cache.disk import Cache
from optvet.engine.work.cache.environment_fingerprint import about_plugin, fingerprint_environment
from optvet.engine.work.sandbox import Outcome
from optvet.engine.work.trials.building import BuildSpec
from optvet.engine.work.trials.case import Case
from optvet.engine.work.trials.inference import Outputs, RuntimeConfig
from optvet.engine.work.trials.library_warnings import Warned, by_sample, formats_of, together
from optvet.engine.work.trials.trial import TrialReport, digest_of_outputs, when_run
from optvet.engine.work.trials.trial_results import (
    Build,
    build_from_json,
    build_to_json,
    fits,
    is_circumstantial,
    read_outcome,
    run_to_bytes,
    warned_run_from_bytes,
)
from optvet.graph.interface import align
from optvet.spec.extras import extras
from optvet.spec.files import file_sha256
from optvet.spec.runtime_protocols import RuntimeExtras
from optvet.spec.sensitive import data_files
from optvet.spec.types import Failure, ModelPart, Sample


class KnownResults:
    """Builds and runs of one optimizer on one model under one runtime, as far as they are known."""

    def __init__(self, case: Case, cache: Cache) -> None:
        self.case, self.cache = case, cache
        self.formats = formats_of(case.optimizer, case.candidate.runtime, case.reference.runtime)
        self.memory = _Memory(live=case.optimizer.traits.produces != "onnx")
        self._by_digest: dict[str, Build] = {}
        self._about_build: tuple[object, ...] = (
            fingerprint_environment(),
            case.model.digest,
            about_plugin(case.optimizer),
            case.options.model_dump(mode="json"),
            _digest_data(case.options),
        )
        self._about_run = _identity_of(case.candidate)
        self._about_reference = _identity_of(case.reference)

    def under(self, case: Case, *, other_checks: bool) -> KnownResults:
        """The same for a case with other checks; ``other_checks`` are some on which builds rest."""
        results = copy.copy(self)
        results.case = case
        if other_checks:
            # An artifact that failed the former checks may pass these.
            known = self._by_digest.items()
            results._by_digest = {d: b for d, b in known if b.failure is None}
        return results

    def drop_shared_trials(self) -> KnownResults:
        """The same without trials that shared a process: one may have changed another."""
        results = copy.copy(self)
        results._by_digest = {}
        results._about_build = (*self._about_build, "isolated")
        results._about_run = (*self._about_run, "isolated")
        return results

    # --- keys --------------------------------------------------------------------------------

    @property
    def identity(self) -> tuple[object, ...]:
        """Everything that all these results depend on, as part of cache keys."""
        mends = self.case.checks.mends
        return (*self._about_build, *self._about_run, *self._about_reference, *mends)

    @property
    def reference_identity(self) -> tuple[object, ...]:
        """The key of results of the original alone, which other optimizers share."""
        return fingerprint_environment(), self.case.model.digest, *self._about_reference

    def build_key(self, build_spec: BuildSpec) -> str:
        """Cache key of the build of ``build_spec`` under the checks of the case."""
        checks = self.case.checks
        if build_spec.optimizer is None:
            return cache_key.key(
                "original", fingerprint_environment(), build_spec.digest, checks.full, checks.plain
            )
        about = (list(build_spec.passes), checks.full, checks.plain, checks.ignored_complaint)
        return cache_key.key("build", *self._about_build, *about, *build_spec.mends)

    def run_key(self, build_spec: BuildSpec, build: Build, sample: Sample) -> str:
        """Cache key of a run; artifacts share it that are equal in all that the runtime reads."""
        about = self._about_run if build_spec.optimizer else self._about_reference
        content = self.content(build_spec, build)
        name = ((*about, *build_spec.mends), content, self.memory.digest_of(sample))
        if name not in self.memory.run_keys:
            self.memory.run_keys[name] = cache_key.key("run", *name)
        return self.memory.run_keys[name]

    def content(self, build_spec: BuildSpec, build: Build) -> str:
        """What the runtime reads of ``build``; empty if nothing is known of it."""
        return build.contents.read_by(self.reads(build_spec))

    def reads(self, build_spec: BuildSpec) -> frozenset[ModelPart]:
        """The parts of a model that the runtime of ``build_spec`` reads."""
        optimized, original = self._reads
        return optimized if build_spec.optimizer else original

    @cached_property
    def _reads(self) -> tuple[frozenset[ModelPart], frozenset[ModelPart]]:
        """The same of optimized models and of the original: each key of a run asks for it."""
        configs = (self.case.candidate, self.case.reference)
        optimized, original = (extras(c.runtime, RuntimeExtras).reads for c in configs)
        return optimized, original

    # --- builds and runs ---------------------------------------------------------------------

    def known_artifacts(self, build_spec: BuildSpec, samples: Sequence[Sample]) -> frozenset[str]:
        """Artifacts of which all results on ``samples`` are known: digests, and what is read."""
        settled = [b for b in self._by_digest.values() if self.is_settled(build_spec, b, samples)]
        read = (self.content(build_spec, b) for b in settled)
        return frozenset(name for name in (*(b.digest for b in settled), *read) if name)

    def first_outputs(self, build_spec: BuildSpec, samples: Sequence[Sample]) -> dict[str, str]:
        """See ``TrialSpec``."""
        known = self._runs_by_need(build_spec, samples)
        return {n: digest_of_outputs(runs[samples[0].id]) for n, (_, runs) in known.items()}

    def _runs_by_need(
        self, build_spec: BuildSpec, samples: Sequence[Sample]
    ) -> dict[str, tuple[Build, dict[str, Outputs]]]:
        """Artifacts that ran on all ``samples``, with their outputs, by what was read to run."""
        found = {}
        for build in self._by_digest.values() if len(samples) > 1 else ():
            runs = self.recall_runs(build_spec, build, samples) or {}
            outputs = {s: run for s, run in runs.items() if not isinstance(run, Failure)}
            if len(outputs) == len(samples):
                found[when_run(build.contents, self.reads(build_spec))] = (build, outputs)
        return found

    def is_settled(self, build_spec: BuildSpec, build: Build, samples: Sequence[Sample]) -> bool:
        """Whether all results of ``build`` on ``samples`` are known."""
        if build.failure is not None:
            return True
        if build.loads and build_spec.optimizer is not None and build.facts is not None:
            allowed = self.case.passes.interface(build_spec.passes)
            if align(self.case.model, build.facts, allowed).problem:
                return True
        return self.recall_runs(build_spec, build, samples) is not None

    def recall_build(self, build_spec: BuildSpec) -> Build | None:
        """The build of ``build_spec``; None if it is unknown."""
        key = self.build_key(build_spec)
        if key not in self.memory.builds:
            build = self.cache.read(key, build_from_json, build_to_json)
            if build is None:
                return None
            self._learn(key, build)
        return self.memory.builds[key]

    def _learn(self, key: str, build: Build) -> None:
        self.memory.builds[key] = build
        if build.digest:
            self._by_digest[build.digest] = build

    def recall_runs(
        self, build_spec: BuildSpec, build: Build, samples: Sequence[Sample]
    ) -> dict[str, Outputs | Failure] | None:
        """Runs of all ``samples`` up to the first failure, or None if one is unknown."""
        runs: dict[str, Outputs | Failure] = {}
        if not build.contents.computation:
            return None
        for sample in samples:
            key = self.run_key(build_spec, build, sample)
            if key not in self.memory.runs:
                kept = self.cache.read(key, warned_run_from_bytes)
                if kept is None or not fits(kept[0], self.case.model, build):
                    return None
                self.memory.runs[key], self.memory.warned[key] = kept
            runs[sample.id] = self.memory.runs[key]
            if isinstance(self.memory.runs[key], Failure):
                break
        return runs

    def remember(
        self,
        build_spec: BuildSpec,
        samples: Sequence[Sample],
        outcome: Outcome[TrialReport],
    ) -> None:
        """Keep what a trial showed, in the cache too unless it may be by chance."""
        key = self.build_key(build_spec)
        build, runs = read_outcome(outcome, samples, key)
        before, during = by_sample(outcome.stderr, samples, self.formats)
        build, report = replace(build, warned=before), outcome.value
        if report is not None and report.known:
            # A known artifact with the same bytes, or with others of which the same is read.
            read = self.content(build_spec, build)
            twin = self._by_digest.get(build.digest) or next(
                b for b in self._by_digest.values() if self.content(build_spec, b) == read
            )
            build = _complete_from_twin(build, twin)
        if report is not None and report.follows:
            need = when_run(build.contents, self.reads(build_spec))
            twin, known = self._runs_by_need(build_spec, samples)[need]
            during |= {s.id: self._warned_as(build_spec, twin, s, during) for s in samples[1:]}
            runs = {**known, **runs}
        # An error of the original is cached; the death of its process may be by chance.
        died = build.failure is not None and build.failure.kind != "error"
        chance = is_circumstantial(build.failure) or (died and build_spec.optimizer is None)
        self._learn(key, build)
        if not chance:
            self.cache.put(key, "build", build_to_json(build))
        for sample in samples:
            if (run := runs.get(sample.id)) is None or not build.contents.computation:
                continue
            run_key = self.run_key(build_spec, build, sample)
            warned = during.get(sample.id, ())
            self.memory.runs[run_key], self.memory.warned[run_key] = run, warned
            if not (isinstance(run, Failure) and is_circumstantial(run)):
                self.cache.put(run_key, "run", run_to_bytes(run, warned))

    def _warned_as(
        self,
        build_spec: BuildSpec,
        twin: Build,
        sample: Sample,
        during: Mapping[str, tuple[Warned, ...]],
    ) -> tuple[Warned, ...]:
        """The warnings of a load, with those of the run of ``twin``, which was not repeated."""
        warned = self.memory.warned.get(self.run_key(build_spec, twin, sample), ())
        return (*during.get(sample.id, ()), *(w for w in warned if w.stage != "load"))

    def forget_build(self, build_spec: BuildSpec) -> None:
        """Build ``build_spec`` again on the next call: its failure may have been by chance."""
        self.memory.builds.pop(self.build_key(build_spec), None)

    def warnings_of(self, build_spec: BuildSpec, samples: Sequence[Sample]) -> list[Warned]:
        """The warnings of a trial that was made: of one build, one load, and a run per sample."""
        build = self.recall_build(build_spec)
        if build is None:
            return []
        keys = {self.run_key(build_spec, build, s) for s in samples}
        return [*build.warned, *self.memory.warnings_of(keys)]


def _complete_from_twin(build: Build, twin: Build) -> Build:
    """A build that was recognized and not looked at further, with what is known of its twin."""
    return replace(
        twin,
        digest=build.digest,
        changing_passes=build.changing_passes,
        facts=build.facts or twin.facts,
        strict=build.strict or twin.strict,
        warned=(*build.warned, *(w for w in twin.warned if w.stage == "check")),
    )


@dataclass
class _Memory:
    """Results shared by cases that differ in their checks; the keys include the checks."""

    live: bool
    late: int = 0
    builds: dict[str, Build] = field(default_factory=dict)
    runs: dict[str, Outputs | Failure] = field(default_factory=dict)
    warned: dict[str, tuple[Warned, ...]] = field(default_factory=dict)
    run_keys: dict[tuple[object, ...], str] = field(default_factory=dict)
    sample_digests: dict[int, tuple[Sample, str]] = field(default_factory=dict)
    changing_passes: dict[tuple[str, ...], list[str] | None] = field(default_factory=dict)

    def digest_of(self, sample: Sample) -> str:
        """Digest of the sample's feeds, computed once."""
        known = self.sample_digests.get(id(sample))
        if known is None or known[0] is not sample:
            known = (sample, sample_digests([sample])[0])
            self.sample_digests[id(sample)] = known
        return known[1]

    def is_second(self, outcome: Outcome[TrialReport]) -> bool:
        """Whether a trial timed out before; then the samples are not tried one by one again."""
        if outcome.failure is None or outcome.failure.kind != "timeout":
            return False
        self.late += 1
        return self.late > 1

    def warnings_of(self, run_keys: Iterable[str]) -> list[Warned]:
        """The warnings of one load, and of all these runs."""
        return together([self.warned.get(key, ()) for key in run_keys])

    def forget(self, samples: Sequence[Sample]) -> None:
        """Drop the results of ``samples``."""
        gone = {self.digest_of(s) for s in samples}
        for sample in samples:
            self.sample_digests.pop(id(sample), None)
        for name in [n for n in self.run_keys if n[-1] in gone]:
            key = self.run_keys.pop(name)
            self.runs.pop(key, None)
            self.warned.pop(key, None)


def _digest_data(options: BaseModel) -> dict[str, str]:
    """What the files have that options name to be read as data."""
    named = {name: Path(file) for name, file in data_files(options).items()}
    return {name: file_sha256(file) for name, file in named.items() if file.is_file()}


def _identity_of(config: RuntimeConfig) -> tuple[object, ...]:
    """The rest of a run's key, besides artifact and sample; hashable."""
    runtime = config.runtime
    options = config.options.model_dump_json()
    return fingerprint_environment(), about_plugin(runtime), options


def sample_digests(samples: Iterable[Sample]) -> list[str]:
    """One digest per sample, over names, dtypes, shapes and contents."""
    digests = []
    for sample in samples:
        content = hashlib.sha256()
        for name in sorted(sample.feeds):
            array = np.ascontiguousarray(sample.feeds[name])
            data = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
            content.update(f"{name}|{array.dtype}|{array.shape}|{len(data)}|".encode())
            content.update(data)
        digests.append(content.hexdigest())
    return digests
