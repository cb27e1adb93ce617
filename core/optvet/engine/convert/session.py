"""What all steps of one question share, and the steps that start worker processes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx

from optvet.engine.convert import worker_steps
from optvet.engine.convert.chain import ConversionSource, Link, in_full
from optvet.engine.convert.compare_outputs import Judge
from optvet.engine.convert.conversion_inputs import ConversionInput
from optvet.engine.convert.match_interface import NO_FACTS
from optvet.engine.convert.source_model import (
    FIRST_SAMPLES,
    model_in_onnx,
    model_like,
    names_of_sizes,
    samples_of,
)
from optvet.engine.convert.source_noise import NoiseMeter
from optvet.engine.convert.worker_steps import Converted, Observed
from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import Pythons, environments_root
from optvet.engine.judge.sample import unlike
from optvet.engine.work.sandbox import Outcome, Sandbox
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.inference import Outputs, RuntimeConfig
from optvet.engine.work.trials.inputs import Inputs
from optvet.engine.work.trials.library_warnings import warnings_in
from optvet.engine.work.trials.trial_runner import refuse_misuse
from optvet.graph.interface import interface_of
from optvet.spec.convert import ConvertRequest
from optvet.spec.converters import Converter, ConverterExtras, SourceFacts
from optvet.spec.errors import InfrastructureError, InputError, PluginError
from optvet.spec.extras import given
from optvet.spec.foreign import read_file
from optvet.spec.protocols import Feeds
from optvet.spec.runtime_protocols import Runtime
from optvet.spec.types import Artifact, Failure, Model, Sample

_SHORT_S, _SHORT_TIMES = 5.0, 3.0
"""Time of an edge value in a process of its own: so many seconds, and times the example's."""


@dataclass(frozen=True)
class Conversion:
    """One question: a source, its chain, and where steps run.

    ``sandbox`` runs what needs no environment of its own, ``abroad`` the rest, by environment.
    ``folder`` is where converters write; ``warnings`` are the lines that they wrote to stderr.
    ``output_names`` are the outputs of the source, known after it ran; ``read`` are the files that
    it and the converters opened, but for those of what is installed.
    """

    request: ConvertRequest
    plugins: Plugins
    sandbox: Sandbox
    source: ConversionSource
    links: tuple[Link, ...]
    folder: Path
    warnings: list[str]
    output_names: list[str]
    abroad: Mapping[str, Sandbox] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)

    @property
    def sandboxes(self) -> Mapping[str, Sandbox]:
        """All of them by environment; this one's name is empty."""
        return {"": self.sandbox, **self.abroad}

    def sandbox_of(self, plugin: object) -> Sandbox:
        """Where the library of a plugin is."""
        return self.sandboxes[self.plugins.home_of(plugin)]

    @property
    def pythons(self) -> Pythons:
        """The environments of their own."""
        return Pythons(self.request.environments, environments_root())

    @property
    def source_is_here(self) -> bool:
        """Whether the source runs where ONNX models do."""
        return not self.plugins.home_of(self.source.runtime)

    def version_of(self, plugin: Converter | Runtime) -> str:
        """The version of its library.

        Raises:
            PluginError: It cannot be told.
        """
        if not self.plugins.home_of(plugin):
            return plugin.version()
        outcome = self.sandbox_of(plugin).call(worker_steps.version, plugin)
        if outcome.value is None:
            assert outcome.failure is not None
            raise PluginError(f"{plugin.name!r} cannot be used: {describe(outcome.failure)}")
        return outcome.value

    @property
    def reference(self) -> RuntimeConfig:
        """What runs the source."""
        return RuntimeConfig(self.source.runtime, self.source.runtime.options)

    def facts(self) -> SourceFacts:
        """How the source is called.

        Of one in ONNX, samples of the datasets are example and further inputs.

        Raises:
            UsageError: The source or a dataset cannot be used.
            NothingTested: There is no sample.
        """
        if self.source.artifact.format == "onnx":
            model = model_in_onnx(self.request, self.plugins)
            first, *others = self.first_samples(model)
            return SourceFacts(first, tuple(others), names_of_sizes(model))
        sandbox = self.sandbox_of(self.source.runtime)
        about = (worker_steps.describe_watched, self.reference, self.source.artifact)
        # In a new process, which has opened no file of the source yet.
        outcome = sandbox.call(*about, fresh=True)
        refuse_misuse(outcome.failure)
        if outcome.value is None:
            assert outcome.failure is not None
            raise InputError(
                f"{self.request.model} cannot be loaded: {describe(outcome.failure)}; mend it"
            )
        facts, read = outcome.value
        self.read.extend(read)
        return facts

    def model(self, facts: SourceFacts, outputs: Outputs) -> Model:
        """The source as a model; ``outputs`` are those of its example."""
        if self.source.artifact.format == "onnx":
            return model_in_onnx(self.request, self.plugins)
        return model_like(self.request.model, self.source.digest, facts, outputs)

    def samples(self, model: Model) -> Inputs:
        """The samples of the datasets, as they fit the source."""
        source = self.source.artifact
        if source.format == "onnx":
            source = Artifact("onnx", read_file(model.blob))
        about = (self.request, self.plugins, model, source, self.reference)
        return samples_of(*about, self.sandbox_of(self.source.runtime))

    def first_samples(self, model: Model) -> list[Feeds]:
        """Those that are judged like the source's own inputs."""
        first = itertools.islice(self.samples(model), FIRST_SAMPLES)
        return [{n: np.asarray(v) for n, v in s.feeds.items()} for s in first]

    def runtime_for(self, format: str, *, last: bool = False) -> RuntimeConfig | None:
        """What runs artifacts of ``format``; None if nothing here does.

        Raises:
            UsageError: The runtime that the user named does not run the last artifact.
        """
        if last and self.request.runtime is not None:
            chosen = self.plugins.runtime(self.request.runtime)
            return RuntimeConfig(chosen, chosen.options)
        own = format != "onnx" or self.source.artifact.format == "onnx"
        if format in self.source.runtime.accepts and own:
            return self.reference
        try:
            runtime = self.plugins.reference_runtime(format)
        except PluginError:
            return None
        return RuntimeConfig(runtime, runtime.options)

    def others(self, config: RuntimeConfig, format: str) -> list[RuntimeConfig]:
        """Runtimes for a cross-check: those of the request, else all others, the best one first."""
        names = self.request.cross_check
        if not names:
            ranked = sorted(
                (-int(getattr(r, "preference", 0)), r.name)
                for r in map(self.plugins.runtime, self.plugins.names("runtime"))
                if format in r.accepts and r.name != config.runtime.name
            )
            names = tuple(name for _, name in ranked)
        chosen = [self.plugins.runtime(name) for name in names]
        return [RuntimeConfig(r, r.options) for r in chosen if format in r.accepts]

    def shares_library(self, runtime: Runtime) -> bool:
        """Whether ``runtime`` computes by a library that the source is computed by."""
        both = (self.source.runtime, runtime)
        of, other = (set(getattr(r, "libraries", {})) for r in both)
        return bool(of & other)

    def convert(
        self,
        link: Link,
        source: Artifact,
        number: int,
        inputs: Sequence[Feeds],
        *,
        fresh: bool = True,
    ) -> Converted:
        """The artifacts of one converter, made in a process of its own if that is to be fresh."""
        place = self.folder / f"{number}-{link.converter.name}"
        place.mkdir()
        examples = inputs if given(link.converter, ConverterExtras.convert_on) else ()
        about = (link.converter, source, link.options, place, examples)
        registered = [in_full(function) for function in self.request.registered]
        # What is registered lasts as long as the process.
        outcome = self.sandbox_of(link.converter).call(
            worker_steps.convert, *about, registered, fresh=fresh or bool(registered)
        )
        refuse_misuse(outcome.failure)
        lines = [w.text for w in warnings_in(outcome.stderr, {})]
        self.warnings.extend(line for line in dict.fromkeys(lines) if line not in self.warnings)
        if outcome.value is None:
            return Converted((), outcome.failure)
        self.read.extend(outcome.value.read)
        return outcome.value

    def start(
        self,
        config: RuntimeConfig,
        artifact: Artifact,
        samples: Sequence[Sample],
        *,
        again: bool = False,
    ) -> Future[Outcome[Observed]]:
        """Begin to observe an artifact; ``again`` in a new process with poisoned memory."""
        return self.sandbox_of(config.runtime).submit(
            worker_steps.observe, config, artifact, list(samples), not again, again, fresh=again
        )

    def finish(
        self,
        future: Future[Outcome[Observed]],
        config: RuntimeConfig,
        artifact: Artifact,
        samples: Sequence[Sample],
    ) -> Observed:
        """What was observed; after the death of the process, each sample in one of its own."""
        outcome = future.result()
        refuse_misuse(outcome.failure)
        if outcome.value is not None:
            return outcome.value
        assert outcome.failure is not None
        if outcome.failure.stage != "run":
            return Observed("", outcome.failure)
        runs: dict[str, Outputs | Failure] = {}
        complaint = ""
        sandbox = self.sandbox_of(config.runtime)
        short: float | None = None
        for sample in samples:
            began = time.monotonic()
            about = (config, artifact, [sample], True)
            limit = short if sample.origin == "edge" else None
            alone = sandbox.call(worker_steps.observe, *about, fresh=True, timeout_s=limit)
            if short is None and alone.value is not None:
                # An edge value on which a model never ends costs no more than that.
                usual = _SHORT_S + _SHORT_TIMES * (time.monotonic() - began)
                short = min(self.request.timeout, usual)
            if alone.value is not None and alone.value.load is None:
                runs |= alone.value.runs
                complaint = alone.value.complaint
            else:
                runs[sample.id] = alone.failure or outcome.failure
        return Observed(complaint, None, runs)

    def observe(
        self,
        config: RuntimeConfig,
        artifact: Artifact,
        samples: Sequence[Sample],
        *,
        again: bool = False,
    ) -> Observed:
        """What an artifact does on ``samples``."""
        future = self.start(config, artifact, samples, again=again)
        return self.finish(future, config, artifact, samples)


def reference_of(
    conversion: Conversion, samples: Sequence[Sample]
) -> tuple[dict[str, Outputs], dict[str, Failure], frozenset[str]]:
    """Outputs of the source, samples on which it fails, and names of its random outputs.

    Raises:
        InputError: The source does not run on its example.
    """
    config, artifact = conversion.reference, conversion.source.artifact
    first = conversion.start(config, artifact, samples)
    second = conversion.start(config, artifact, samples, again=True)
    one = conversion.finish(first, config, artifact, samples)
    two = conversion.finish(second, config, artifact, samples)
    failure = one.load or one.runs.get(samples[0].id)
    if failure is None:
        raise InfrastructureError(f"{conversion.request.model}: its example was not run")
    if isinstance(failure, Failure):
        raise InputError(
            f"{conversion.request.model} does not run on its example inputs: "
            f"{describe(failure)}; mend the model or the inputs"
        )
    outputs: dict[str, Outputs] = {}
    failed: dict[str, Failure] = {}
    random: set[str] = set()
    for sample in samples:
        run, again = one.runs[sample.id], two.runs.get(sample.id)
        if isinstance(run, Failure):
            failed[sample.id] = run
            continue
        outputs[sample.id] = run
        if isinstance(again, dict):
            random |= unlike(run, again) & again.keys()
    return outputs, failed, frozenset(random)


_DRAWS = 256
"""Runs after which what happens in one of thirty is seen."""


def random_outputs(conversion: Conversion, sample: Sample, outputs: Outputs) -> frozenset[str]:
    """Names of outputs of the source that many more runs of ``sample`` give otherwise.

    Two runs may be alike by chance, such as where a rare event is drawn.
    """
    copies = [replace(sample, id=f"{sample.id} {n}") for n in range(_DRAWS)]
    observed = conversion.observe(conversion.reference, conversion.source.artifact, copies)
    runs = [run for run in observed.runs.values() if not isinstance(run, Failure)]
    return frozenset(name for run in runs for name in unlike(outputs, run) & run.keys())


def judge_for(
    conversion: Conversion,
    inputs: Sequence[ConversionInput],
    outputs: Mapping[str, Outputs],
    random: frozenset[str] = frozenset(),
    facts: SourceFacts = NO_FACTS,
) -> Judge:
    """What compares with the outputs of the source on ``inputs``, which are given by sample."""
    artifact = conversion.source.artifact
    meter = NoiseMeter(
        conversion.sandbox_of(conversion.source.runtime),
        conversion.reference,
        artifact,
        outputs,
        conversion.sandbox,
        facts,
    )
    usual = frozenset(d.sample.id for d in inputs if d.origin != "edge")
    interface = None
    if artifact.format == "onnx":
        interface = interface_of(onnx.load_from_string(artifact.data), by_habit=False)
    return Judge(outputs, random, meter, usual, interface, facts)
