"""The main job: from a model and an optimizer to confirmed culprits and a safe pipeline.

::

    open model → samples → reference ∥ candidate → compare ─ same or drift ─→ clean, drift
                                                      └ fault → controls → localize → confirm
                                                                   ↑______ without the culprit
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter

from optvet.engine import cache as caching
from optvet.engine import contract, localize
from optvet.engine.cache import Cache, cache_root
from optvet.engine.decoding import Decoder
from optvet.engine.discovery import Plugins
from optvet.engine.examine import Examiner, Findings, Observation, alike, describe, finite
from optvet.engine.explain import explain
from optvet.engine.impact import Answers, Assessment, choose, fallback
from optvet.engine.inputs import Inputs, Slice
from optvet.engine.lab import (
    CODE_VERSION,
    Lab,
    Ledger,
    Progress,
    Trial,
    is_late,
    refuse_misuse,
)
from optvet.engine.models import OPSET_FLOOR, open_model
from optvet.engine.numerics.oracle import THRESHOLDS, Judgement
from optvet.engine.options import parse_options
from optvet.engine.pipelines import names_passes, parse_pipeline, written
from optvet.engine.roles import (
    check_options,
    choose_runtime,
    configured,
    reference_for,
    require_format,
)
from optvet.engine.sandbox import Limits, Sandbox
from optvet.engine.trial import Judge, Order, Outputs, Subject, ask_touched, gist, probe
from optvet.engine.trust import options_from
from optvet.graph import structure
from optvet.graph.walk import ONNX_DOMAIN
from optvet.spec.errors import (
    ContractError,
    InfrastructureError,
    InputError,
    NothingTested,
    UnknownName,
    Unsupported,
)
from optvet.spec.files import private_folder
from optvet.spec.protocols import (
    Comparator,
    Decodes,
    Explains,
    Feeds,
    Optimizer,
    Pins,
    Runtime,
    TellsTouched,
)
from optvet.spec.records import (
    Control,
    ControlState,
    CrossCheck,
    Finding,
    Impact,
    ModelRecord,
    OptimizerRecord,
    OutputRecord,
    PassRecord,
    RuntimeRecord,
    Skipped,
    Verdict,
    VetResult,
    Witness,
)
from optvet.spec.request import VetRequest
from optvet.spec.types import NOTES, Failure, InterfaceChange, Model, Pass, Sample, Symptom

_PROBED: TypeAdapter[tuple[str | None]] = TypeAdapter(tuple[str | None])
"""What a probe answered, as it is kept."""

PAIR_BYTES = 64 << 20
PAIR_NODES = 200_000
"""``each`` tries pairs unasked while trials x model size, and trials x nodes, stay below these."""
MAX_ROUNDS = 24
SHORT_WAITS_S = 20.0
"""What the search of a hang may spend on trials that hang; the time limit, if that is longer."""
STOPPED = "a second one runs into the time limit"
OTHER_KERNELS = replace(
    THRESHOLDS,
    rounding=4 * THRESHOLDS.rounding,
    jitter_rms=4 * THRESHOLDS.jitter_rms,
    jitter_max=4 * THRESHOLDS.jitter_max,
    truth=4 * THRESHOLDS.truth,
    reduction=4 * THRESHOLDS.reduction,
)
"""For comparing two runtimes: every sum of the graph may be taken in another order."""


def resolve_model(reference: str, plugins: Plugins, cache_dir: Path) -> list[Model]:
    """The models that ``reference`` (a path, a folder, ``zoo:NAME``) stands for.

    ``Model.source`` says which revision it is, where the source knows revisions.
    """
    scheme, colon, rest = reference.partition(":")
    if colon and scheme in plugins.names("model source"):
        source = plugins.model_source(scheme)
        _make_room(cache_dir / "models")
        files = contract.files(source, rest, cache_dir / "models")
        if isinstance(source, Pins):
            reference = contract.pinned(source, rest, cache_dir / "models")
    elif colon and scheme.isalpha() and len(scheme) > 1 and not Path(reference).exists():
        raise UnknownName("model source", scheme, plugins.names("model source"))
    else:
        paths = plugins.model_source(plugins.default("model source"))
        files = contract.files(paths, reference, cache_dir / "models")
    several = len(files) > 1
    return [open_model(f, str(f) if several else reference, cache_dir) for f in files]


def _make_room(folder: Path) -> None:
    try:
        private_folder(folder)
    except OSError as error:
        raise InfrastructureError(
            f"cache folder {folder} cannot be made: {error.strerror or error}; choose another with "
            "--cache-dir"
        ) from error


def vet_model(
    model: Model,
    request: VetRequest,
    plugins: Plugins,
    *,
    progress: Progress = lambda text, done, total: None,
    sandbox: Sandbox | None = None,
) -> VetResult:
    """Vet one model; raises OptvetError for what is not the optimizer's fault."""
    started = time.perf_counter()
    with open_vetting(model, request, plugins, progress=progress, sandbox=sandbox) as vetting:
        try:
            return vetting.run(started)
        except Unsupported as error:
            raise Unsupported(f"{model.source}: {error}; nothing was tested") from None


@contextmanager
def open_vetting(
    model: Model,
    request: VetRequest,
    plugins: Plugins,
    *,
    progress: Progress = lambda text, done, total: None,
    sandbox: Sandbox | None = None,
) -> Iterator[Vetting]:
    """All that vetting one model takes; a sandbox of its own if none is given."""
    optimizer = plugins.optimizer(request.optimizer or plugins.default("optimizer"))
    options = parse_options(optimizer.name, optimizer.options, request.optimizer_options)
    optimizer = configured(optimizer, options)
    require_format(optimizer, model)
    runtime = choose_runtime(plugins, optimizer, request.runtime)
    root = request.cache_dir or cache_root()
    cache = Cache(root if request.cache else None)
    preload = ("numpy", "onnx", "onnx.checker", *optimizer.preload, *runtime.preload)
    own = sandbox is None
    limits = Limits(request.timeout, request.memory)
    sandbox = sandbox or Sandbox(
        jobs=request.jobs or default_jobs(), limits=limits, preload=preload
    )
    try:
        check_options(sandbox, optimizer, options)
        vetting = Vetting(
            model, request, plugins, optimizer, options, runtime, sandbox, cache, progress
        )
        check_options(sandbox, runtime, vetting.judge.options)
        yield vetting
    finally:
        cache.close()
        if own:
            sandbox.close()


def default_jobs() -> int:
    """One worker per processor, at most eight."""
    return min(os.cpu_count() or 1, 8)


class Vetting:
    """The state of one vet: what was asked, the lab, and what was found so far."""

    def __init__(
        self,
        model: Model,
        request: VetRequest,
        plugins: Plugins,
        optimizer: Optimizer,
        options: BaseModel,
        runtime: Runtime,
        sandbox: Sandbox,
        cache: Cache,
        progress: Progress,
    ) -> None:
        self.model, self.request, self.plugins = model, request, plugins
        self.optimizer, self.options, self.runtime = optimizer, options, runtime
        self.sandbox, self.cache, self.progress = sandbox, cache, progress
        name = optimizer.name
        self.judge = Judge(
            runtime, parse_options(runtime.name, runtime.options, request.runtime_options)
        )
        self.reference_judge = reference_for(plugins, optimizer, self.judge)
        self.passes: dict[str, Pass] = {p.name: p for p in optimizer.passes()}
        self.pipeline = parse_pipeline(request.pipeline, optimizer, request.exclude)
        self.named = names_passes(request.pipeline, optimizer)
        self.required = frozenset(n for n, p in self.passes.items() if p.required)
        limit = optimizer.traits.max_model_bytes
        if limit is not None and model.size_bytes > limit:
            raise InputError(
                f"{model.source}: the model has {model.size_bytes:,} bytes; {name} takes at most "
                f"{limit:,}"
            )
        # A wrong name is found out before the work, not when a fault asks for it.
        for other in request.cross_check:
            plugins.runtime(other)
        wanted = request.comparator or model.config.comparator
        if request.comparator is not None or wanted in plugins.names("comparator"):
            self._comparator_options(plugins.comparator(str(wanted)))
        self.ledger = Ledger()
        self.findings: list[Finding] = []
        self.controls: dict[str, Control] = {}
        self.reasons: list[str] = []
        self.safe: tuple[str, ...] = self.pipeline
        self.touched: dict[tuple[str, ...], list[str] | None] = {}
        self.assessment: Assessment | None = None
        self.judged = 0
        self.complete = True
        self.refused: dict[str, str] = {}
        self.late_probes = 0
        self.stopped = False

    # --- the story ---------------------------------------------------------------------------

    def run(self, started: float) -> VetResult:
        """The whole answer; ``started`` is when the clock, ``time.perf_counter``, began."""
        lab = self.lab_of(self.judge, self.reference_judge)
        self.inputs = self.inputs_for(lab)
        examiner, found = self._first_look(lab, self.inputs)
        samples = examiner.samples
        detected = found
        sound = not self.findings
        if sound:
            self.safe = self._blame(lab, examiner, samples, self.pipeline, found)
        blamed = tuple(self.findings)
        records = None
        if self._studies() and sound:
            records = self._study(lab, examiner, samples)
        if self.request.as_deployed and sound:
            self._deployed(samples)
        self._explain(lab, samples)
        self._notes(lab, examiner, samples, detected)
        if self.request.cross_check:
            self._cross_check(samples)
        impact = self._impact()
        self._summarise_controls(examiner, samples)
        outputs = _with_faults(examiner.outputs(detected.judgements), blamed)
        if self.cache.degraded is not None:
            self._control("cache", "limited", self.cache.degraded)
        verdict, reason = self._verdict(examiner, detected)
        return VetResult(
            schema="optvet.vet/2",
            model=ModelRecord(
                source=self.model.source,
                digest=self.model.digest,
                ir_version=self.model.ir_version,
                opsets=dict(self.model.opsets),
                nodes=self.model.nodes,
                size_bytes=self.model.size_bytes,
                task=self.model.task,
            ),
            optimizer=OptimizerRecord(
                name=self.optimizer.name,
                version=self.optimizer.version(),
                options=self.options.model_dump(mode="json"),
                pipeline=list(self.pipeline),
            ),
            runtime=RuntimeRecord(
                name=self.runtime.name,
                version=self.runtime.version(),
                options=self.judge.options.model_dump(mode="json"),
            ),
            verdict=verdict,
            reason=reason,
            findings=self.findings,
            outputs=outputs,
            passes=records,
            touched=self._told(lab, records),
            impact=impact,
            safe_pipeline=list(self.safe),
            safe_option=written(self.safe, self.request.pipeline, self.optimizer),
            safe_code=self._safe_code(),
            controls=list(self.controls.values()),
            complete=self.complete,
            samples=self.judged,
            skipped=[
                Skipped(sample=name, reason=reason)
                for name, reason in (self.inputs.skipped | self.refused).items()
            ],
            datasets=self.inputs.records(),
            seed=self.request.seed,
            strategy=self.request.strategy,
            cost=self.ledger.cost(time.perf_counter() - started),
        )

    def _safe_code(self) -> str:
        """The optimizer's own call of the safe pipeline, where the optimizer can write it down."""
        if not self.safe or not isinstance(self.optimizer, Explains):
            return ""
        return self.optimizer.snippet(self.with_required(self.safe), self.options)

    def lab_of(self, judge: Judge, reference: Judge | None = None) -> Lab:
        """A lab for the model, whose candidates ``judge`` runs, and ``reference`` the original."""
        return Lab(
            self.model,
            self.optimizer,
            self.options,
            judge,
            self.sandbox,
            self.cache,
            jobs=self.request.jobs or default_jobs(),
            reference_judge=reference,
            interface=self.interface,
            ledger=self.ledger,
            progress=self.progress,
        )

    def interface(self, passes: Sequence[str]) -> frozenset[InterfaceChange]:
        """How ``passes`` change the interface on purpose."""
        changes: frozenset[InterfaceChange] = frozenset()
        return changes.union(*(self.passes[p].interface for p in passes))

    # --- inputs ------------------------------------------------------------------------------

    def inputs_for(self, lab: Lab) -> Inputs:
        """The samples that were asked for."""
        request = self.request
        return Inputs(
            self.model,
            self.plugins,
            request.dataset,
            request.dataset_options,
            cut=Slice(request.start, request.limit, request.shuffle, request.on_bad),
            seed=request.seed,
            probe=lambda feeds: self._probe(lab, feeds),
            memory_bytes=request.memory,
            trust=request.trust,
        )

    def find_samples(self, lab: Lab, names: Iterable[str | None]) -> dict[str | None, Sample]:
        """The samples of these names; None is the first."""
        wanted = set(names)
        found: dict[str | None, Sample] = {}
        for sample in self.inputs_for(lab):
            if None in wanted:
                found[None] = sample
            if sample.id in wanted:
                found[sample.id] = sample
            wanted -= found.keys()
            if not wanted:
                break
        return found

    def _probe(self, lab: Lab, feeds: Sequence[Feeds]) -> list[str | None]:
        samples = [Sample(f"probe-{i}", f) for i, f in enumerate(feeds)]
        keys = [
            caching.key(
                "probe",
                CODE_VERSION,
                self.model.digest,
                lab.reference_judge.runtime.name,
                lab.reference_judge.runtime.version(),
                lab.reference_judge.options.model_dump(mode="json"),
                lab.sample_digest(s),
            )
            for s in samples
        ]
        answers: dict[int, str | None] = {}
        for i, key in enumerate(keys):
            known = self.cache.read(key, _PROBED.validate_json)
            if known is not None:
                (answers[i],) = known
        todo = [i for i in range(len(samples)) if i not in answers]
        fresh = self._ask(lab, [samples[i] for i in todo]) if todo else []
        for i, answer in zip(todo, fresh, strict=True):
            answers[i] = answer
            self.cache.put(keys[i], "probe", json.dumps([answer]).encode())
        return [answers[i] for i in range(len(samples))]

    def _ask(self, lab: Lab, samples: Sequence[Sample]) -> list[str | None]:
        subject = Subject(self.model.blob, self.model.digest)
        order = Order(subject, lab.reference_judge, tuple(samples))
        outcome = self.sandbox.call(probe, order, role="referee")
        self.ledger.add("inputs", inferences=len(samples))
        if outcome.value is not None:
            return outcome.value
        refuse_misuse(outcome.failure)
        if outcome.failure is not None and outcome.failure.kind == "timeout":
            self.late_probes += 1
            if self.late_probes > 1:
                raise self._no_answer()
        if outcome.failure is not None and outcome.failure.stage == "load":
            raise self._cannot_load(outcome.failure)
        if len(samples) == 1:
            return [describe(outcome.failure) if outcome.failure else "no answer"]
        return [answer for sample in samples for answer in self._ask(lab, [sample])]

    # --- the first look ----------------------------------------------------------------------

    def _first_look(self, lab: Lab, inputs: Inputs) -> tuple[Examiner, Findings]:
        """Reference and candidate on all samples, a chunk at a time.

        What follows needs the first chunk and the witnesses alone, so the others are let go of.
        """
        self.progress("making inputs", 0, None)
        examiner = Examiner(lab, (), tolerance=self.tolerance)
        gate = Examiner(lab, (), thresholds=OTHER_KERNELS)
        found = Findings()
        chunks = inputs.chunks()
        for chunk in chunks:
            self.progress("comparing", self.judged, None)
            samples = self._usable(lab, self._run_both(lab, chunk), chunk)
            if not samples:
                break
            sound, here = self._look(lab, examiner, gate, samples)
            self.judged += len(samples)
            if sound:
                found.add(here)
            self._assess(lab, examiner, samples)
            self._let_go(lab, examiner, samples, here)
            if not sound or (here.observation and here.observation.stage != "compare"):
                # Each further chunk would end in the same failure.
                self.complete = next(chunks, None) is None
                break
            if self.stopped:
                break
        return examiner, found

    def _run_both(self, lab: Lab, samples: Sequence[Sample]) -> Trial:
        """The reference's trial; the candidate's is made at the same time, and remembered."""
        reference, _ = lab.both(self.pipeline, samples, "detect")
        if _is_death(reference.build.failure):
            lab.forget_original()
            reference, _ = lab.both(self.pipeline, samples, "detect")
        if _is_death(reference.build.failure):
            assert reference.build.failure is not None
            raise InfrastructureError(
                f"{self.model.source}: onnx.checker did not end on the original model, twice: "
                f"{describe(reference.build.failure)}; give it more with --timeout or --memory"
            )
        if reference.build.failure is not None and lab.full_check:
            # Strict shape inference fails on the original already: it is no test then.
            lab.full_check = False
            self._control(
                "checker",
                "limited",
                "the original passes onnx.checker but not strict shape inference, "
                "so candidates are checked without it",
            )
            return self._run_both(lab, samples)
        if reference.build.failure is not None:
            words = describe(reference.build.failure)
            raise InputError(f"{self.model.source}: not a valid ONNX model: {words}")
        return reference

    def _look(
        self, lab: Lab, examiner: Examiner, gate: Examiner, samples: Sequence[Sample]
    ) -> tuple[bool, Findings]:
        """What is wrong with the pipeline on ``samples``; False where the lowering already is."""
        if not examiner.samples:
            examiner.samples = gate.samples = list(samples)
        examiner.learn_reference(lab.reference(samples))
        if self.optimizer.traits.reference == "empty pipeline":
            fault = self._fault_of_lowering(examiner, gate, samples)
            if fault is not None:
                return False, Findings(fault)
        return True, examiner.examine(lab.trial(self.pipeline, samples, "detect"), samples)

    def _let_go(
        self, lab: Lab, examiner: Examiner, samples: Sequence[Sample], found: Findings
    ) -> None:
        """Forget ``samples`` but for the first chunk's and the witnesses of what was found."""
        seen = found.observation
        witnesses = {s.id for s, _ in found.sensitive}
        if seen is not None and seen.sample is not None:
            witnesses.add(seen.sample.id)
        known = {s.id for s in examiner.samples}
        examiner.samples += [s for s in samples if s.id in witnesses - known]
        gone = [s for s in samples if s.id not in witnesses | known]
        lab.forget(gone)
        examiner.forget(gone)

    def _rest_is_sound(self, lab: Lab, examiner: Examiner, pipeline: Sequence[str]) -> Findings:
        """What is wrong with ``pipeline`` on the samples that were let go of; the first of it."""
        held = {s.id for s in examiner.samples}
        for chunk in self.inputs.chunks():
            samples = [s for s in chunk if s.id not in held and s.id not in self.refused]
            if not samples:
                continue
            base = examiner.base
            examiner.learn_reference(
                lab.reference(samples) if base is None else lab.trial(base, samples, "control")
            )
            found = examiner.examine(lab.trial(pipeline, samples, "verify"), samples)
            self._let_go(lab, examiner, samples, Findings(found.observation))
            if found.observation is not None:
                return found
        return Findings()

    def _fault_of_lowering(
        self, examiner: Examiner, gate: Examiner, samples: Sequence[Sample]
    ) -> Observation | None:
        """Rule 3 for artifacts of another format: first the fixed lowering against the original.

        Its kernels are others than the reference's, so more rounding is allowed for. From here on
        the lowering is the reference: what differs between the two is no pass's doing.
        """
        lab = examiner.lab
        base = lab.trial(self._base(), samples, "control")
        gate.learn_reference(lab.reference(samples))
        found = gate.examine(base, samples)
        if found.observation is not None:
            self.safe = ()
            if self._is_unexplained(found.observation):
                return found.observation
            words = f"{self.optimizer.name}'s import and lowering"
            self._control("empty pipeline", "failed", f"{words} show {found.observation.symptom}")
            self._report(self._finding(lab, gate, found.observation, ()))
            return found.observation
        gate.forget(samples)
        words = "import and lowering agree with the original"
        self._control("empty pipeline", "passed", words)
        examiner.learn_reference(base)
        return None

    def _base(self) -> tuple[str, ...]:
        """The empty pipeline: the required passes alone."""
        return self.with_required(())

    def _usable(self, lab: Lab, reference: Trial, samples: Sequence[Sample]) -> list[Sample]:
        """Samples that the reference runs on; why it refused the others is kept.

        After one that does not end no other is tried: each might take its full time too.
        """
        usable = list(samples)
        while True:
            if is_late(reference):
                return self._those_that_end(reference, usable)
            failed = {i: r for i, r in reference.runs.items() if isinstance(r, Failure)}
            if not failed:
                return usable
            name, failure = next(iter(failed.items()))
            if failure.stage == "load":
                raise self._cannot_load(failure)
            self.refused[name] = describe(failure)
            usable = [s for s in usable if s.id != name]
            if not usable and not self.judged:
                raise NothingTested(
                    f"{self.model.source}: the original model runs on none of the "
                    f"{'first ' if self.inputs.several else ''}{len(samples)} samples; "
                    f"the last error was: {describe(failure)}"
                )
            reference = lab.reference(usable)

    def _those_that_end(self, reference: Trial, samples: Sequence[Sample]) -> list[Sample]:
        """Samples before the one that does not end; the others are refused, and what follows."""
        self.stopped = True
        limit = f"{self.request.timeout:g} s"
        usable = []
        for sample in samples:
            run = reference.runs.get(sample.id)
            if run is None:
                self.refused[sample.id] = f"not tried: the original did not end within {limit}"
            elif isinstance(run, Failure):
                self.refused[sample.id] = describe(run)
            else:
                usable.append(sample)
        if not usable and not self.judged:
            raise self._no_answer()
        return usable

    def _no_answer(self) -> NothingTested:
        limit = self.request.timeout
        return NothingTested(
            f"{self.model.source}: the original model does not end within {limit:g} s, twice; give "
            "it more with --timeout, or take other inputs"
        )

    def _cannot_load(self, failure: Failure) -> InputError:
        opset = self.model.opsets.get(ONNX_DOMAIN, OPSET_FLOOR)
        advice = "choose another runtime, or repair the model"
        if opset < OPSET_FLOOR:
            advice = (
                f"its opset is {opset}, and runtimes promise {OPSET_FLOOR} and later only: take a "
                "newer export, or convert it with onnx.version_converter"
            )
        return InputError(
            f"{self.model.source}: {self.reference_judge.runtime.name} cannot load the original "
            f"model: {describe(failure)}; {advice}"
        )

    def tolerance(self, passes: Iterable[str]) -> float | None:
        """What lossy ones among ``passes`` may be off by, relative; None if none is lossy."""
        declared = [t for p in passes if (t := self.passes[p].tolerance) is not None]
        return max(declared, default=None)

    # --- blame -------------------------------------------------------------------------------

    def _blame(
        self,
        lab: Lab,
        examiner: Examiner,
        samples: Sequence[Sample],
        pipeline: tuple[str, ...],
        found: Findings,
        *,
        as_deployed: bool = False,
    ) -> tuple[str, ...]:
        """Explain every fault of ``pipeline``; what remains of it is safe."""
        rounds = 0
        while found.observation is not None:
            rounds += 1
            observation = found.observation
            if self._is_unexplained(observation) or self._stops(observation):
                return tuple(n for n in pipeline if n in self.required)
            self.progress(f"localizing {observation.symptom}", rounds, None)
            witness = observation.sample
            within = [witness] if witness is not None else []
            started = time.perf_counter()
            inherited = self._empty_shows(lab, examiner, within)
            if observation.symptom == Symptom.TIMEOUT:
                lab.timeout_s = self.patience(time.perf_counter() - started)
            if inherited is not None:
                if self._is_unexplained(inherited):
                    return ()
                if lab.excused and not inherited.outputs:
                    return ()  # what the malformed model leads to was told with it
                finding = self._finding(lab, examiner, inherited, (), as_deployed)
                self._report(finding)
                if inherited.symptom == Symptom.INVALID_MODEL:
                    self._excuse(lab)
                elif not inherited.outputs:
                    return ()
                examiner.excused |= set(inherited.outputs)
            else:
                culprit = self._localize(lab, examiner, pipeline, observation)
                self._report(self._finding(lab, examiner, observation, culprit, as_deployed))
                drop = self._to_drop(culprit)
                if not drop or rounds >= MAX_ROUNDS:
                    self.reasons.append(f"no safe pipeline was found in {rounds} rounds")
                    return tuple(n for n in pipeline if n in self.required)
                pipeline = tuple(n for n in pipeline if n not in drop)
            lab.timeout_s = None
            trial = lab.trial(pipeline, samples, "verify")
            found = examiner.examine(trial, samples)
            if found.observation is None and self.inputs.several and not as_deployed:
                found = self._rest_is_sound(lab, examiner, pipeline)
        return () if lab.excused else pipeline

    def _is_unexplained(self, observation: Observation) -> bool:
        """Whether it is no finding, since somebody else may have caused it; the reason is kept."""
        if observation.unexplained and observation.message not in self.reasons:
            self.reasons.append(observation.message)
        return observation.unexplained

    def _stops(self, observation: Observation) -> bool:
        """Whether it is the second hang: each further one would take the whole limit, twice."""
        if observation.symptom != Symptom.TIMEOUT:
            return False
        if not any(f.symptom == Symptom.TIMEOUT for f in self.findings):
            return False
        words = "something else runs into the time limit as well, and was not searched"
        self._control("time limit", "limited", words)
        if words not in self.reasons:
            self.reasons.append(words)
        return True

    def _excuse(self, lab: Lab) -> None:
        """Pass over what the checker says of the round trip: passes may do worse behind it."""
        failure = lab.trial(self._base(), (), "control").build.failure
        lab.excuse(gist(failure.message if failure is not None else "") or "nothing")

    def patience(self, empty_s: float) -> float:
        """How long to wait while searching a hang: far longer than the empty pipeline took.

        The confirmation waits the full time, so that a pass is not called hanging for being slow.
        """
        return min(self.request.timeout, max(2.0, 20 * empty_s))

    def _to_drop(self, culprit: Sequence[str]) -> set[str]:
        optional = [n for n in culprit if n not in self.required]
        return {optional[-1]} if optional else set()

    def _empty_shows(
        self, lab: Lab, examiner: Examiner, samples: Sequence[Sample]
    ) -> Observation | None:
        """Rule 3: what import and export alone already do wrong."""
        trial = lab.trial(self._base(), samples, "control")
        observation = examiner.examine(trial, samples).observation
        if "empty pipeline" not in self.controls:
            if observation is None:
                self._control("empty pipeline", "passed", "innocent")
            else:
                self._control("empty pipeline", "failed", f"shows {observation.symptom}")
        return observation

    def _localize(
        self,
        lab: Lab,
        examiner: Examiner,
        pipeline: tuple[str, ...],
        observation: Observation,
    ) -> tuple[str, ...]:
        samples = [observation.sample] if observation.sample is not None else []
        seen: dict[tuple[str, ...], Observation | None] = {}
        # What may be spent on trials that hang, beside the first and its confirmation.
        left = max(self.request.timeout, SHORT_WAITS_S)

        def observe(passes: tuple[str, ...], purpose: str) -> Observation | None:
            nonlocal left
            if passes not in seen:
                if left <= 0:
                    return _NOT_TRIED
                trial = lab.trial(passes, samples, purpose)  # type: ignore[arg-type]
                here = seen[passes] = examiner.examine(trial, samples).observation
                if here is not None and here.symptom == Symptom.TIMEOUT:
                    left -= lab.timeout_s or self.request.timeout
            return seen[passes]

        def akin(other: Observation | None) -> bool:
            return other is not None and _akin(observation, other)

        return self._search(
            lab,
            pipeline,
            lambda passes: _answer(observe(passes, "walk"), akin),
            lambda basis: (
                lambda passes: _answer(
                    observe(passes, "localize"),
                    lambda o: o is not None and alike(o, seen.get(basis) or observation),
                )
            ),
        )

    def _search(
        self,
        lab: Lab,
        pipeline: tuple[str, ...],
        coarse: localize.Test,
        fine: Callable[[tuple[str, ...]], localize.Test],
    ) -> tuple[str, ...]:
        traits = self.optimizer.traits
        strategy = self.request.strategy
        walks = strategy == "walk" or (
            strategy != "subset" and traits.ordered and traits.composable
        )
        if not walks:
            test = fine(pipeline)
            return localize.minimal_set(
                self._suspects(pipeline, test), test, required=self.required
            )
        told = lab.trial(pipeline, (), "walk").build.touched
        length = localize.first_bad_prefix(pipeline, coarse, required=self.required, suspects=told)
        prefix = localize.with_required(pipeline, length, self.required)
        return localize.minimal_sequence(prefix, fine(prefix), required=self.required)

    def _suspects(self, pipeline: tuple[str, ...], test: localize.Test) -> tuple[str, ...]:
        """The passes that the optimizer's own log says did something, if they show the fault.

        A log is a hint, no evidence: what it leaves out may matter, so the whole pipeline is the
        fallback.
        """
        touched = self._ask_touched(pipeline)
        if touched is None:
            return pipeline
        few = tuple(n for n in pipeline if n in touched or n in self.required)
        return few if len(few) < len(pipeline) and test(few) == "fails" else pipeline

    def _ask_touched(self, passes: tuple[str, ...]) -> list[str] | None:
        if not isinstance(self.optimizer, TellsTouched):
            return None
        if passes not in self.touched:
            subject = Subject(
                self.model.blob, self.model.digest, self.optimizer, self.options, passes
            )
            outcome = self.sandbox.call(ask_touched, subject)
            self.ledger.add("walk", applications=1)
            self.touched[passes] = outcome.value
        return self.touched[passes]

    # --- findings ----------------------------------------------------------------------------

    def _finding(
        self,
        lab: Lab,
        examiner: Examiner,
        observation: Observation,
        culprit: tuple[str, ...],
        as_deployed: bool = False,
    ) -> Finding:
        """The finding, with the culprit's own observation, replayed in a fresh process."""
        sample = observation.sample
        samples = [sample] if sample is not None else []
        passes = self.with_required(culprit) if culprit else self._base()
        own = examiner.examine(lab.trial(passes, samples, "confirm"), samples).observation
        shown = observation
        if own is not None and own.symptom == observation.symptom and not own.unexplained:
            shown = own
        again = examiner.examine(lab.fresh(passes, samples), samples).observation
        confirmed = again is not None and alike(again, shown)
        if confirmed and shown.stage == "compare":
            confirmed = self._reference_agrees(lab, examiner, samples)
        severity, limit = self._severity(shown, culprit)
        return Finding(
            symptom=shown.symptom,
            severity=severity,
            stage=shown.stage,
            culprit=list(culprit),
            confirmed=confirmed,
            outputs=list(shown.outputs),
            error=finite(shown.error),
            noise_floor=finite(shown.noise),
            witness=self._witness(sample),
            message=shown.message,
            known_limit=limit,
            as_deployed=as_deployed,
        )

    def with_required(self, culprit: Sequence[str]) -> tuple[str, ...]:
        """``culprit`` with the passes that the optimizer cannot do without, in order."""
        if not self.required:
            return tuple(culprit)
        order = self.pipeline if set(culprit) <= set(self.pipeline) else tuple(self.passes)
        return localize.completed(culprit, order, self.required)

    def _reference_agrees(self, lab: Lab, examiner: Examiner, samples: Sequence[Sample]) -> bool:
        again = lab.fresh(examiner.base, samples)
        return all(
            not isinstance(run := again.runs.get(s.id), Failure)
            and run is not None
            and examiner.agrees(s, run)
            for s in samples
        )

    def _severity(
        self, observation: Observation, culprit: Sequence[str]
    ) -> tuple[Literal["fault", "note"], str | None]:
        """How serious it is, and the documented limit of a pass that explains it."""
        for name in culprit:
            for limit in self.passes[name].known_limits:
                if observation.symptom in limit.excuses:
                    return "note", f"documented limit of {name}: {limit.reason}"
        return ("note" if observation.symptom in NOTES else "fault"), None

    def _witness(self, sample: Sample | None) -> Witness | None:
        if sample is None:
            return None
        return Witness(dataset=sample.origin, sample=sample.id, seed=self.request.seed)

    def _report(self, finding: Finding) -> None:
        twin = (finding.symptom, finding.culprit, finding.outputs)
        if all((f.symptom, f.culprit, f.outputs) != twin for f in self.findings):
            self.findings.append(finding)

    # --- every pass alone, and pairs ---------------------------------------------------------

    def _studies(self) -> bool:
        every = self.request.strategy == "auto" and self.request.pipeline == "all"
        return self.request.strategy == "each" or (every and self.optimizer.traits.single)

    def _on_some(self, samples: Sequence[Sample]) -> str:
        """How many samples were used where not all are."""
        total = self.judged
        return f" (on {len(samples)} of {total} samples)" if len(samples) < total else ""

    def _study(self, lab: Lab, examiner: Examiner, samples: Sequence[Sample]) -> list[PassRecord]:
        empty = lab.trial(self._base(), samples, "control")
        inherited = examiner.examine(empty, samples).observation
        if inherited is not None and inherited.symptom == Symptom.TIMEOUT:
            words = "import and export alone run into the time limit, so no pass was tried"
            self._control("every pass alone", "limited", words)
            return []
        # Where import and export alone already fail, nothing can be said of a pass.
        judgeable = inherited is None or bool(inherited.outputs)
        original = lab.reference(samples).build.facts
        names = [n for n in self.passes if n not in self.required]
        records: list[PassRecord] = []
        alone: dict[str, Observation | None] = {}
        changed = []
        for name, trial in zip(
            names,
            lab.trials([self.with_required((n,)) for n in names], samples, "each"),
            strict=True,
        ):
            observation = examiner.examine(trial, samples).observation
            if observation is not None and inherited is not None:
                observation = None if alike(observation, inherited) else observation
            known = any(f.culprit == [name] for f in self.findings)
            if observation is not None and not known and self._stops(observation):
                words = f"stopped after {len(records)} of {len(names)}: {STOPPED}"
                self._control("every pass alone", "limited", words)
                return records
            alone[name] = observation
            explained = observation is not None and not self._is_unexplained(observation)
            same = trial.build.canonical == empty.build.canonical
            effect = "failed" if observation else ("none" if same else "changed")
            if effect == "changed":
                changed.append(name)
            limits = self.passes[name].known_limits
            records.append(
                PassRecord.model_validate(
                    {
                        "name": name,
                        "effect": effect,
                        "symptom": observation.symptom if explained and observation else None,
                        "known_limit": limits[0].reason if limits else None,
                    }
                )
            )
            if observation is not None and explained and judgeable and self._counts(name):
                self._report(self._finding(lab, examiner, observation, (name,)))
            if original is not None:
                self._note_bloat((name,), original, trial)
        if self._on_some(samples):
            self._control("every pass alone", "limited", f"tried{self._on_some(samples)}")
        if inherited is None:
            self._study_pairs(lab, examiner, samples, changed, alone)
        return records

    def _counts(self, name: str) -> bool:
        """A pass that is documented not to yield a standard model is blamed only when asked for."""
        return not self.passes[name].known_limits or (self.named and name in self.pipeline)

    def _study_pairs(
        self,
        lab: Lab,
        examiner: Examiner,
        samples: Sequence[Sample],
        changed: Sequence[str],
        alone: Mapping[str, Observation | None],
    ) -> None:
        traits = self.optimizer.traits
        sound = [n for n, o in alone.items() if o is None and self._counts(n)]
        pairs = [
            (a, b)
            for a in changed
            for b in sound
            if a in sound and (a != b or traits.repeatable) and traits.ordered
        ]
        trials = len(pairs)
        small = trials * self.model.size_bytes <= PAIR_BYTES
        small = small and trials * self.model.nodes <= PAIR_NODES
        wanted = self.request.pairs if self.request.pairs is not None else small
        if not wanted:
            if pairs:
                words = f"{trials} ordered pairs not tried; add --pairs"
                self._control("pairs", "limited", words)
            return
        self._control("pairs", "passed", f"{trials} ordered pairs tried")
        pairs.sort(key=lambda pair: not self.passes[pair[1]].default)
        blamed: dict[tuple[str, tuple[str, str]], int] = {}
        sequences = [self.with_required(pair) for pair in pairs]
        for pair, trial in zip(pairs, lab.trials(sequences, samples, "each"), strict=True):
            observation = examiner.examine(trial, samples).observation
            if observation is None or self._is_unexplained(observation):
                continue
            if self._stops(observation):
                self._control("pairs", "limited", f"stopped: {STOPPED}")
                return
            # One enabling pass with many partners, each with the same words, is one defect.
            defect = (pair[0], observation.signature)
            mirrored = (pair[1], observation.signature)
            if defect in blamed or mirrored in blamed:
                self._add_partner(blamed.get(defect, blamed.get(mirrored, 0)), pair)
                continue
            self._report(self._finding(lab, examiner, observation, pair))
            blamed[defect] = next(i for i, f in enumerate(self.findings) if f.culprit == list(pair))
        self._study_twice(lab, examiner, samples)

    def _add_partner(self, index: int, pair: tuple[str, str]) -> None:
        finding = self.findings[index]
        if finding.culprit != list(pair):
            partners = [*finding.partners, list(pair)]
            self.findings[index] = finding.model_copy(update={"partners": partners})

    def _study_twice(self, lab: Lab, examiner: Examiner, samples: Sequence[Sample]) -> None:
        """The safe pipeline a second time: optimizers are run again on what they made."""
        twice = (*self.safe, *self.safe)
        if not self.optimizer.traits.repeatable or not twice:
            return
        found = examiner.examine(lab.trial(twice, samples, "each"), samples)
        if found.observation is None or self._is_unexplained(found.observation):
            return
        culprit = self._localize(lab, examiner, twice, found.observation)
        self._report(self._finding(lab, examiner, found.observation, culprit))

    # --- as deployed -------------------------------------------------------------------------

    def _deployed(self, samples: Sequence[Sample]) -> None:
        """A second judgement under the runtime's own defaults."""
        judge = Judge(self.runtime, self.runtime.deployed)
        lab = self.lab_of(judge)
        lab.full_check = False
        reference, candidate = lab.both(self.safe, samples, "detect")
        failures = [r for r in reference.runs.values() if isinstance(r, Failure)]
        if failures or candidate is None:
            words = f"the original itself fails: {describe(failures[0])}"
            self._control("as deployed", "limited", words)
            return
        examiner = Examiner(lab, samples, tolerance=self.tolerance)
        examiner.learn_reference(reference)
        found = examiner.examine(candidate, samples)
        before = len(self.findings)
        self.safe = self._blame(lab, examiner, samples, self.safe, found, as_deployed=True)
        faults = len(self.findings) - before
        words = f"{faults} more findings" if faults else "agrees"
        state: ControlState = "failed" if faults else "passed"
        self._control("as deployed", state, words + self._on_some(samples))

    # --- impact ------------------------------------------------------------------------------

    def _assess(self, lab: Lab, examiner: Examiner, samples: Sequence[Sample]) -> None:
        """Add ``samples`` to what the pipeline's differences mean on the model's task."""
        trial = lab.trial(self.pipeline, samples, "detect")
        runs = {i: r for i, r in trial.runs.items() if not isinstance(r, Failure)}
        first = next((s for s in samples if s.id in runs and s.id in examiner.reference), None)
        if first is None:
            return
        if self.assessment is None:
            self.assessment = self._assessment(examiner.reference[first.id])
        try:
            self._add_to(self.assessment, lab, examiner, samples, runs)
        except (InputError, ContractError) as error:
            if self.request.comparator is not None:
                raise
            # A comparator that takes a model for its own and then does not understand it.
            self._control("comparator", "limited", str(error))
            plain = fallback(self.plugins)
            if self.assessment.begun or plain is None:
                return
            self.assessment = Assessment(plain, plain.comparator.options, self.model)
            self._add_to(self.assessment, lab, examiner, samples, runs)

    def _assessment(self, outputs: Outputs) -> Assessment:
        choice = choose(self.plugins, self.model, outputs, self.request.comparator)
        comparator = choice.comparator
        given = self._comparator_options(comparator)
        options = parse_options(f"comparator {comparator.name}", comparator.options, given)
        return Assessment(choice, options, self.model)

    def _comparator_options(self, comparator: Comparator) -> dict[str, Any]:
        """What was asked for, and what the model's record says where nothing was."""
        config, given = self.model.config, dict(self.request.comparator_options)
        if comparator.name != config.comparator:
            return given
        more = {k: v for k, v in config.comparator_options.items() if k not in given}
        return given | options_from(
            config.origin,
            "comparator_options",
            comparator.options,
            more,
            folder=Path(config.origin).parent,
            trust=self.request.trust,
        )

    def _add_to(
        self,
        assessment: Assessment,
        lab: Lab,
        examiner: Examiner,
        samples: Sequence[Sample],
        runs: Mapping[str, Outputs],
    ) -> None:
        reference, comparator = examiner.reference, assessment.choice.comparator
        answers = self._answers(lab, samples, comparator, assessment.options, reference, runs)
        assessment.add(samples, reference, runs, examiner.levels(runs), answers)

    def _impact(self) -> Impact | None:
        """What the pipeline's differences mean on the model's task, if it changed anything."""
        if self.assessment is None:
            return None
        try:
            impact = self.assessment.impact()
        except (InputError, ContractError) as error:
            if self.request.comparator is not None:
                raise
            self._control("comparator", "limited", str(error))
            return None
        self._tell_impact(impact)
        return impact

    def _answers(
        self,
        lab: Lab,
        samples: Sequence[Sample],
        comparator: Comparator,
        options: BaseModel,
        *sides: Mapping[str, Any],
    ) -> Answers | None:
        """What a comparator that decodes makes of the original and of the optimized model."""
        if not isinstance(comparator, Decodes):
            return None
        self.progress("decoding", 0, None)
        usable = [s for s in samples if all(s.id in side for side in sides)]
        original, optimized = Decoder(lab, comparator, options).answers(
            (None, self.pipeline), usable
        )
        return original, optimized

    def _tell_impact(self, impact: Impact) -> None:
        """Add the headline to the finding it belongs to: the only wrong output there is."""
        wrong = [i for i, f in enumerate(self.findings) if f.symptom == Symptom.WRONG_OUTPUT]
        if len(wrong) == 1 and impact.changed:
            update = {"consequence": impact.headline}
            self.findings[wrong[0]] = self.findings[wrong[0]].model_copy(update=update)

    # --- other runtimes ----------------------------------------------------------------------

    def _cross_check(self, samples: Sequence[Sample]) -> None:
        """Is a fault in the model, or in one runtime's reading? Who runs foreign operators?"""
        by_id = {s.id: s for s in samples}
        for i, finding in enumerate(self.findings):
            foreign = finding.symptom == Symptom.PORTABILITY
            sample = by_id.get(finding.witness.sample) if finding.witness else None
            if foreign and samples:
                sample = samples[0]
            elif finding.severity != "fault" or finding.stage == "build":
                continue
            if sample is None:
                continue
            told = [
                self._second_opinion(name, finding, sample) for name in self.request.cross_check
            ]
            update: dict[str, object] = {"cross_check": told}
            if foreign:
                # Whether what they compute is right is a question for the faults.
                update["cross_check"] = [_as_portability(answer) for answer in told]
            else:
                update["location"] = _location(self.runtime.name, told)
            self.findings[i] = finding.model_copy(update=update)

    def _second_opinion(self, name: str, finding: Finding, sample: Sample) -> CrossCheck:
        """What another runtime shows."""
        runtime = self.plugins.runtime(name)

        def unable(why: str) -> CrossCheck:
            return CrossCheck(runtime=name, outcome="not-judged", detail=why)

        if self.optimizer.traits.produces not in runtime.accepts or "onnx" not in runtime.accepts:
            return unable(f"cannot run {self.optimizer.traits.produces}")
        lab = self.lab_of(Judge(runtime, runtime.options))
        lab.full_check = False
        reference = lab.reference([sample])
        run = reference.runs.get(sample.id)
        if run is None or isinstance(run, Failure):
            why = run or reference.build.failure
            return unable(f"cannot run the original: {describe(why) if why else 'no answer'}")
        gate = Examiner(self.lab_of(self.reference_judge), [sample], thresholds=OTHER_KERNELS)
        gate.learn_reference(gate.lab.reference([sample]))
        same = gate.examine(reference, [sample]).observation is None
        examiner = Examiner(lab, [sample], tolerance=self.tolerance)
        examiner.learn_reference(reference)
        passes = self.with_required(finding.culprit) if finding.culprit else self._base()
        trial = lab.trial(passes, [sample], "confirm")
        failed = trial.runs.get(sample.id)
        if isinstance(failed, Failure) and _has_foreign(reference, trial):
            # It does not know the operators: that says nothing of the fault.
            return unable(f"cannot run the optimized model: {describe(failed)}")
        seen = examiner.examine(trial, [sample]).observation
        return CrossCheck(
            runtime=name,
            outcome="no-fault" if seen is None else "fault",
            symptom=None if seen is None else seen.symptom,
            same_original=same,
        )

    # --- explanation -------------------------------------------------------------------------

    def _explain(self, lab: Lab, samples: Sequence[Sample]) -> None:
        """Where in the graph each fault is."""
        by_id = {s.id: s for s in samples}
        for i, finding in enumerate(self.findings):
            sample = by_id.get(finding.witness.sample) if finding.witness else samples[0]
            if finding.severity != "fault" or finding.as_deployed or sample is None:
                continue
            self.progress(f"explaining {finding.symptom}", i + 1, len(self.findings))
            passes = self.with_required(finding.culprit) if finding.culprit else self._base()
            found = explain(lab, finding.symptom, finding.outputs, passes, sample)
            self.findings[i] = finding.model_copy(update={"divergence": found})

    # --- notes -------------------------------------------------------------------------------

    def _notes(
        self, lab: Lab, examiner: Examiner, samples: Sequence[Sample], found: Findings
    ) -> None:
        original = lab.reference(samples).build.facts
        result = lab.trial(self.pipeline, samples, "detect").build.facts
        if original is not None and result is not None:
            self._note_metadata(lab, original, result)
            self._note_portability(lab, original, result)
            if structure.is_bloated(original, result):
                self._blame_bloat(lab, original)
        seen: set[str] = set()
        for sample, judgement in found.sensitive:
            if judgement.output not in seen:
                seen.add(judgement.output)
                self._note_sensitivity(lab, examiner, sample, judgement)

    def _note_metadata(self, lab: Lab, original: structure.Facts, result: structure.Facts) -> None:
        lost = structure.lost_metadata(original, result)
        if not lost:
            return
        empty = lab.trial(self._base(), (), "control").build.facts
        inherited = structure.lost_metadata(original, empty) if empty else {}
        for what in (lost, inherited):
            trip = what is inherited
            mine = {k: v for k, v in what.items() if trip or k not in inherited}
            if not mine:
                continue
            culprit: tuple[str, ...] = ()
            if not trip:
                test = self._metadata_test(lab, original, frozenset(mine))
                culprit = self._search(lab, self.pipeline, test, lambda _, t=test: t)  # type: ignore[misc]
            words = structure.in_words(mine)
            self._report(
                Finding(
                    symptom=Symptom.METADATA_CHANGE,
                    severity="note",
                    stage="build",
                    culprit=list(culprit),
                    confirmed=True,
                    message=words,
                )
            )

    def _metadata_test(
        self, lab: Lab, original: structure.Facts, keys: frozenset[str]
    ) -> localize.Test:
        def test(passes: tuple[str, ...]) -> localize.Answer:
            facts = lab.trial(passes, (), "localize").build.facts
            if facts is None:
                return "unresolved"
            return "fails" if keys <= structure.lost_metadata(original, facts).keys() else "passes"

        return test

    def _note_portability(
        self, lab: Lab, original: structure.Facts, result: structure.Facts
    ) -> None:
        """One note per domain of which the result has operators that ONNX does not define."""
        for domain, operators in structure.gained_operators(original, result).items():
            test = self._portability_test(lab, original, domain)
            inherited = test(self._base()) == "fails"
            culprit = () if inherited else self._search(lab, self.pipeline, test, lambda _: test)  # noqa: B023  # used at once
            told = [f"{n}: {p.description}" for n in culprit if (p := self.passes[n]).description]
            self._report(
                Finding(
                    symptom=Symptom.PORTABILITY,
                    severity="note",
                    stage="build",
                    culprit=list(culprit),
                    confirmed=True,
                    message="; ".join([structure.portability(domain, operators), *told]),
                )
            )

    def _portability_test(self, lab: Lab, original: structure.Facts, domain: str) -> localize.Test:
        def test(passes: tuple[str, ...]) -> localize.Answer:
            facts = lab.trial(passes, (), "localize").build.facts
            if facts is None:
                return "unresolved"
            gained = structure.gained_operators(original, facts)
            return "fails" if domain in gained else "passes"

        return test

    def _blame_bloat(self, lab: Lab, original: structure.Facts) -> None:
        def test(passes: tuple[str, ...]) -> localize.Answer:
            facts = lab.trial(passes, (), "localize").build.facts
            if facts is None:
                return "unresolved"
            return "fails" if structure.is_bloated(original, facts) else "passes"

        inherited = test(self._base()) == "fails"
        culprit = () if inherited else self._search(lab, self.pipeline, test, lambda _: test)
        passes = self.with_required(culprit) if culprit else self._base()
        self._note_bloat(culprit, original, lab.trial(passes, (), "localize"))

    def _note_bloat(
        self, culprit: tuple[str, ...], original: structure.Facts, trial: Trial
    ) -> None:
        facts = trial.build.facts
        if facts is not None and structure.is_bloated(original, facts):
            self._report(
                Finding(
                    symptom=Symptom.BLOAT,
                    severity="note",
                    stage="build",
                    culprit=list(culprit),
                    confirmed=True,
                    message=structure.growth(original, facts),
                )
            )

    def _note_sensitivity(
        self, lab: Lab, examiner: Examiner, sample: Sample, judgement: Judgement
    ) -> None:
        name = judgement.output

        def test(passes: tuple[str, ...]) -> localize.Answer:
            found = examiner.examine(lab.trial(passes, [sample], "localize"), [sample])
            if found.observation is not None:
                return "unresolved"
            j = found.judgements.get(name)
            return "fails" if j is not None and j.call == "sensitivity" else "passes"

        culprit = (
            ()
            if test(self._base()) == "fails"
            else self._search(lab, self.pipeline, test, lambda _: test)
        )
        self._report(
            Finding(
                symptom=Symptom.SENSITIVITY,
                severity="note",
                stage="compare",
                culprit=list(culprit),
                confirmed=True,
                outputs=[name],
                error=finite(judgement.error),
                noise_floor=finite(judgement.noise),
                witness=self._witness(sample),
                message=f"output {name!r}: {judgement.detail}",
            )
        )

    def _told(self, lab: Lab, records: Sequence[PassRecord] | None) -> list[str] | None:
        """Passes that changed the model: by the optimizer's word, or as seen one by one."""
        if self.touched:
            return next(iter(self.touched.values()))
        said = lab.trial(self.pipeline, (), "detect").build.touched
        if said is not None:
            return list(said)
        if records is None:
            return None
        return [r.name for r in records if r.effect != "none"]

    # --- the answer --------------------------------------------------------------------------

    def _control(self, name: str, state: ControlState, detail: str = "") -> None:
        self.controls[name] = Control(name=name, state=state, detail=detail)

    def _summarise_controls(self, examiner: Examiner, samples: Sequence[Sample]) -> None:
        name = "reference against itself"
        if examiner.random:
            names = ", ".join(sorted(examiner.random))
            words = f"random outputs compared by distribution: {names}"
            self._control(name, "limited", words)
        elif examiner.flaky:
            words = f"differs between two runs: {', '.join(sorted(examiner.flaky))}"
            self._control(name, "failed", words)
        elif examiner.self_checked:
            self._control(name, "passed", "agrees")
        else:
            self._control(name, "not-needed")
        if "empty pipeline" not in self.controls:
            self._control("empty pipeline", "not-needed")
        words = f"{self.judged} judged"
        if not self.complete:
            words += "; it fails on these, so it was not tried on the others"
        if self.inputs.skipped:
            words += f"; {len(self.inputs.skipped)} skipped as bad data"
        if self.refused:
            words += f"; {len(self.refused)} on which the original does not run"
        whole = self.complete and not self.inputs.skipped and not self.refused
        self._control("samples", "passed" if whole else "limited", words)

    def _verdict(self, examiner: Examiner, found: Findings) -> tuple[Verdict, str]:
        faults = [f for f in self.findings if f.severity == "fault"]
        if any(f.confirmed for f in faults):
            return "faulty", ""
        if faults:
            return "undecided", "a fault was seen but did not show again in a fresh process"
        if self.reasons:
            return "undecided", "; ".join(self.reasons)
        if examiner.undecided:
            return "undecided", "; ".join(examiner.undecided.values())
        if examiner.flaky:
            names = ", ".join(sorted(examiner.flaky))
            return "undecided", f"the reference differs between two runs in: {names}"
        if examiner.tells_nothing():
            return "undecided", "every float output of the reference is NaN on every sample"
        calls = {j.call for j in found.judgements.values()}
        if "unsure" in calls:
            names = ", ".join(n for n, j in found.judgements.items() if j.call == "unsure")
            return "undecided", f"differences that could not be judged in: {names}"
        if calls <= {"same"}:
            return "clean", ""
        return "drift", ""


_NOT_TRIED = Observation(Symptom.OUT_OF_MEMORY, "build", "not tried: the search took too long")
"""Like no hang, so it is no evidence for a pass or against one."""


def _is_death(failure: Failure | None) -> bool:
    """Whether a process ended, or was ended: no word of the checker's."""
    return failure is not None and failure.kind != "error"


def _answer(
    observation: Observation | None, akin: Callable[[Observation | None], bool]
) -> localize.Answer:
    if observation is None:
        return "passes"
    return "fails" if akin(observation) else "unresolved"


def _akin(a: Observation, b: Observation) -> bool:
    """Same symptom, and an output in common where outputs are wrong; the words may differ."""
    if a.symptom != b.symptom or a.unexplained or b.unexplained:
        return False
    return a.symptom != Symptom.WRONG_OUTPUT or not set(a.outputs).isdisjoint(b.outputs)


def _with_faults(records: Sequence[OutputRecord], blamed: Sequence[Finding]) -> list[OutputRecord]:
    """``records`` with the outputs of confirmed faults that a later round found."""
    worst: dict[str, Finding] = {}
    for finding in blamed:
        if finding.confirmed and finding.severity == "fault":
            for name in finding.outputs:
                worst.setdefault(name, finding)
    return [
        OutputRecord(name=r.name, verdict="fault", error=f.error, noise_floor=f.noise_floor)
        if (f := worst.get(r.name)) is not None and r.verdict not in ("fault", "flaky")
        else r
        for r in records
    ]


def _has_foreign(reference: Trial, trial: Trial) -> bool:
    """Whether ``trial`` brought operators that ONNX does not define."""
    before, after = reference.build.facts, trial.build.facts
    return (
        before is not None and after is not None and bool(structure.gained_operators(before, after))
    )


def _as_portability(answer: CrossCheck) -> CrossCheck:
    """The answer to whether a runtime has the operators of the optimized model."""
    if answer.outcome == "not-judged":
        return answer.model_copy(update={"outcome": "does-not-run"})
    return CrossCheck(runtime=answer.runtime, outcome="runs")


def _location(runtime: str, answers: Sequence[CrossCheck]) -> str:
    """What other runtimes' answers say about where a fault lies.

    One that computes something else of the original already is no witness while there are others:
    it reads another model.
    """
    judged = {a.runtime: a for a in answers if a.outcome != "not-judged"}
    if not judged:
        return "no other runtime could judge it"
    fellows = sorted(n for n, a in judged.items() if a.same_original)
    innocent = [n for n in fellows if judged[n].outcome == "no-fault"]
    if not fellows:
        others = ", ".join(sorted(judged))
        if all(a.outcome == "no-fault" for a in judged.values()):
            return (
                f"only in {runtime}'s reading, unless {others} misread the original: no fault there"
            )
        return f"unclear where: {others} compute{'s' * (len(judged) == 1)} the original otherwise"
    if not innocent:
        return f"in the model: {', '.join(fellows)} agree{'' if len(fellows) > 1 else 's'}"
    if innocent == fellows:
        return f"only in {runtime}'s reading: no fault on {', '.join(innocent)}"
    return f"depends on the runtime: no fault on {', '.join(innocent)}"
