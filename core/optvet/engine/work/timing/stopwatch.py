"""Times pass sequences against the original, in processes of their own, while nothing else runs."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from optvet.engine.numerics import time_ratio
from optvet.engine.numerics.time_ratio import Call, RatioInterval
from optvet.engine.work.sandbox import Outcome, Role, Sandbox
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.timing.paired_runs import (
    Footprint,
    Product,
    Repeat,
    RepeatSpec,
    SideFailure,
    TimedModel,
    Written,
    facts_of,
    footprint,
    make,
    repeat,
)
from optvet.engine.work.trials.building import BuildSpec
from optvet.engine.work.trials.case import Case
from optvet.engine.work.trials.from_file import stamp_of
from optvet.engine.work.trials.trial_runner import Progress, refuse_misuse
from optvet.graph.interface import align
from optvet.graph.structure import Facts
from optvet.spec.errors import InfrastructureError, NothingTested
from optvet.spec.types import Failure, Sample

Passes = tuple[str, ...]
MEASURES = "optvet.engine.work.timing.paired_runs"
"""Worth preloading where anything is timed: each repeat has a process of its own."""
_LOCK = "\0optvet-timing"
_POLL_S = 0.2
_REPEAT_S, _QUICK_REPEAT_S = 0.5, 0.2


@dataclass(frozen=True)
class Timed:
    """The measurements of one pass sequence.

    Attributes:
        passes: The pass sequence.
        failure: The step that failed, so that it could not be timed; None if none did.
        interface_problem: How its inputs or outputs differ, so that it could not be fed as the
            reference is; empty if they do not.
        facts: Structure of what was made; None if that is hidden.
        identical: Whether the candidate is the reference, byte for byte; it is not timed then.
        build_s: Time to apply the passes.
        repeats: The repeats.
        interval: Of the ratio; None without repeats.
        confidence: Of the interval.
        call: What the interval says.
    """

    passes: Passes
    failure: Failure | None = None
    interface_problem: str = ""
    facts: Facts | None = None
    identical: bool = False
    build_s: float | None = None
    repeats: tuple[Repeat, ...] = ()
    interval: RatioInterval | None = None
    confidence: float = time_ratio.CONFIDENCE
    call: Call = "undecided"


@dataclass(frozen=True)
class PairTimer:
    """Times a model beside another, in processes of their own; see ``Stopwatch`` for its fields."""

    sandbox: Sandbox
    samples: tuple[Sample, ...]
    threshold: float
    repeats: int
    timeout_s: float
    progress: Progress = lambda text, done, total: None
    more_s: float = 0.0

    def footprint(self, side: TimedModel) -> Outcome[Footprint]:
        """What loading and running one model takes, in a process of its own."""
        about = (footprint, side, self.samples)
        return self.sandbox.call(*about, fresh=True, role=_role(side), alone=True)

    def time(
        self, reference: TimedModel, candidate: TimedModel, *, sequential: bool = False
    ) -> Timed:
        """Time both in turn; ``sequential`` as in ``Stopwatch.time``.

        Raises:
            NothingTested: The reference cannot be loaded or run.
        """
        looks = self._looks(sequential)
        confidence = time_ratio.confidence_of_a_look(len(looks))
        repeats: list[Repeat] = []
        with exclusive_timing(self.progress):
            for number in range(looks[-1]):
                if number == self.repeats:
                    deadline = time.monotonic() + self.more_s
                if number >= self.repeats and time.monotonic() > deadline:
                    break
                total = next(n for n in looks if n > number)
                self.progress("timing", number, self.repeats if sequential else total)
                measured = self._repeat(
                    reference, candidate, number, _QUICK_REPEAT_S if sequential else _REPEAT_S
                )
                if isinstance(measured, SideFailure):
                    return Timed((), self._of_candidate(measured))
                repeats.append(measured)
                if number + 1 in looks and self._is_clear(repeats, confidence, sequential):
                    break
        interval = time_ratio.interval_of([r.log_ratios for r in repeats], confidence)
        call = time_ratio.call_of(interval, self.threshold)
        return Timed(
            (),
            repeats=tuple(repeats),
            interval=interval,
            confidence=confidence,
            call=call,
        )

    def _looks(self, sequential: bool) -> tuple[int, ...]:
        """After how many repeats the interval is looked at; the last is their largest number."""
        if sequential:
            return time_ratio.looks(self.repeats)
        return time_ratio.growing_looks(self.repeats) if self.more_s else (self.repeats,)

    def _is_clear(self, repeats: Sequence[Repeat], confidence: float, sequential: bool) -> bool:
        found = time_ratio.interval_of([r.log_ratios for r in repeats], confidence)
        if not sequential:
            return time_ratio.call_of(found, self.threshold) != "undecided"
        return not found.low <= 1 + self.threshold <= found.high

    def _repeat(
        self, reference: TimedModel, candidate: TimedModel, number: int, seconds: float
    ) -> Repeat | SideFailure:
        timeout_s = self.timeout_s
        spec = RepeatSpec(reference, candidate, self.samples, seconds, bool(number % 2), timeout_s)
        outcome = self.sandbox.call(
            repeat,
            spec,
            fresh=True,
            timeout_s=timeout_s,
            role=_role(reference, candidate),
            alone=True,
        )
        if outcome.value is not None:
            return outcome.value
        # The reference was run alone before, so what kills the process is the candidate.
        assert outcome.failure is not None
        return SideFailure(True, outcome.failure)

    def _of_candidate(self, found: SideFailure) -> Failure:
        """The failure; raises if it is the reference's, or a refusal of an option."""
        refuse_misuse(found.failure)
        if found.failure.kind == "killed":
            raise InfrastructureError(
                f"a timing was killed from outside: {found.failure.message}; find out who kills "
                "processes here and run again"
            )
        if not found.of_candidate:
            raise NothingTested(f"the original cannot be timed: {describe(found.failure)}")
        return found.failure


@dataclass
class Stopwatch:
    """Times pass sequences of one case.

    Sequences that make the same bytes share their timing. Timings are kept as long as this object,
    never in the cache: they say how fast this machine was at that time.

    Attributes:
        case: Who is timed, under which runtimes; see ``Case.both_shipped``.
        sandbox: Runs the tasks.
        samples: Inputs.
        folder: Where products are kept while they are timed; removed by the caller.
        threshold: Relative difference that matters.
        repeats: Repeats, each in a process of its own; at most so many where it is sequential.
        more_s: Seconds that may be spent on more repeats where the interval of these is too wide
            to tell; there are at most four times as many then.
        large: Whether the model is used from its file.
        progress: Told what is done.
        timed: The pass sequences that were timed so far.
    """

    case: Case
    sandbox: Sandbox
    samples: tuple[Sample, ...]
    folder: Path
    threshold: float
    repeats: int
    large: bool = False
    progress: Progress = lambda text, done, total: None
    more_s: float = 0.0
    timed: set[Passes] = field(default_factory=set)
    _base: Passes | Literal["by traits"] | None = "by traits"
    _products: dict[Passes | None, Product | Failure] = field(default_factory=dict)
    _footprints: dict[str, Outcome[Footprint]] = field(default_factory=dict)
    _facts: dict[str, Facts | None] = field(default_factory=dict)
    _known: dict[tuple[str, str, bool], Timed] = field(default_factory=dict)

    @property
    def base(self) -> Passes | None:
        """What candidates are timed against: None for the original, else the empty pipeline.

        Where the optimization takes place in a session, or makes another format, the original is
        what the same session, or the same lowering, does without any optional pass.
        """
        if self._base != "by traits":
            return self._base
        traits = self.case.optimizer.traits
        own = traits.optimizes_on_load or self.case.lowers
        return self.case.passes.base if own else None

    def against(self, passes: Passes) -> Stopwatch:
        """A stopwatch that compares with ``passes``, and shares what was built and timed."""
        return replace(self, _base=passes)

    def time(self, passes: Passes, *, sequential: bool = False) -> Timed:
        """Time ``passes``.

        Args:
            passes: The pass sequence.
            sequential: Stop as soon as it is clear whether it is slower by the threshold.

        Raises:
            NothingTested: The reference itself cannot be loaded or run.
        """
        candidate = self._build_once(passes)
        if isinstance(candidate, Failure):
            return Timed(passes, candidate)
        reference = self._reference()
        facts, built_s = self._facts_of(candidate), candidate.build_s
        if (candidate.digest, candidate.format) == (reference.digest, reference.format):
            return Timed(passes, facts=facts, identical=True, build_s=built_s, call="no-difference")
        pair = reference.digest, candidate.digest
        key = (*pair, sequential and (*pair, False) not in self._known)
        if key not in self._known:
            self._known[key] = self._time_pair(passes, reference, candidate, sequential)
        return replace(self._known[key], passes=passes, build_s=built_s)

    def again(self, passes: Passes) -> Timed:
        """Time ``passes`` once more: what is built and timed anew shares nothing with before."""
        for known in (passes, self.base):
            product = self._products.pop(known, None)
            if isinstance(product, Product):
                for key in [k for k in self._known if product.digest in k]:
                    del self._known[key]
        return self.time(passes)

    def facts(self, passes: Passes | None) -> Facts | None:
        """The structure of what ``passes`` make, None the original; None if that is hidden."""
        product = self._build_once(passes)
        return None if isinstance(product, Failure) else self._facts_of(product)

    def footprint(self, passes: Passes | None) -> Footprint | None:
        """Peak memory that loading and running adds, and busy processors; None if that failed."""
        product = self._build_once(passes)
        return None if isinstance(product, Failure) else self._footprint(product).value

    def _reference(self) -> Product:
        """What candidates are timed against, after it was run alone once."""
        product = self._build_once(self.base)
        failure = product if isinstance(product, Failure) else self._footprint(product).failure
        if failure is not None:
            refuse_misuse(failure)
            raise NothingTested(f"the original cannot be timed: {describe(failure)}")
        assert isinstance(product, Product)
        return product

    def _footprint(self, product: Product) -> Outcome[Footprint]:
        if product.digest not in self._footprints:
            self._footprints[product.digest] = self.timer.footprint(self._side(product))
        return self._footprints[product.digest]

    def _time_pair(
        self, passes: Passes, reference: Product, candidate: Product, sequential: bool
    ) -> Timed:
        self.timed.add(passes)
        facts = self._facts_of(candidate)
        sides = self._side(reference), self._side(candidate)
        problem = sides[1].alignment.problem if sides[1].alignment else ""
        if problem:
            return Timed(passes, interface_problem=problem, facts=facts)
        timed = self.timer.time(*sides, sequential=sequential)
        return replace(timed, passes=passes, facts=facts)

    @property
    def timer(self) -> PairTimer:
        """Times two models."""
        return PairTimer(
            self.sandbox,
            self.samples,
            self.threshold,
            self.repeats,
            self.case.checks.timeout_s or self.sandbox.limits.timeout_s,
            self.progress,
            self.more_s,
        )

    def _side(self, product: Product) -> TimedModel:
        case = self.case
        if product.build_spec.optimizer is None:
            return TimedModel(product, case.reference)
        facts, allowed = self._facts_of(product), case.passes.interface(product.build_spec.passes)
        alignment = None if facts is None else align(case.model, facts, allowed)
        return TimedModel(product, case.candidate, alignment)

    def _facts_of(self, product: Product) -> Facts | None:
        if product.digest not in self._facts:
            outcome = self.sandbox.call(facts_of, product, role="judging")
            self._facts[product.digest] = outcome.value
        return self._facts[product.digest]

    def _build_once(self, passes: Passes | None) -> Product | Failure:
        if passes not in self._products:
            self._products[passes] = self._build(passes)
        return self._products[passes]

    def _build(self, passes: Passes | None) -> Product | Failure:
        case, model = self.case, self.case.model
        scratch = Path(tempfile.mkdtemp(dir=self.folder)) if self.large else None
        stamp = stamp_of(model.blob) if self.large else None
        build_spec = BuildSpec(model.blob, model.digest, scratch=scratch, stamp=stamp)
        if passes is None:
            return Product(model.digest, model.format, build_spec=build_spec)
        build_spec = replace(
            build_spec, optimizer=case.optimizer, options=case.options, passes=passes
        )
        handle, name = tempfile.mkstemp(dir=self.folder)
        os.close(handle)
        outcome = self.sandbox.call(make, build_spec, Path(name), fresh=True, alone=True)
        failure = outcome.value if isinstance(outcome.value, Failure) else outcome.failure
        refuse_misuse(failure)
        if failure is not None:
            return failure
        assert isinstance(outcome.value, Written)
        return Product(**vars(outcome.value), build_spec=build_spec)


def _role(*sides: TimedModel) -> Role:
    """A process in which an optimizer runs is of role "tested", and never serves judging tasks."""
    products = [s.product for s in sides if isinstance(s.product, Product)]
    built = any(p.path is None and p.build_spec.optimizer is not None for p in products)
    return "tested" if built else "judging"


@contextmanager
def exclusive_timing(progress: Progress) -> Iterator[None]:
    """Within the block no other optvet process of this machine times anything.

    The lock is a name of a socket that has no file: it ends with its process, users share it, and
    nothing is left behind.

    Raises:
        InfrastructureError: There are no such sockets.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as lock:
        waits = False
        while not _take_lock(lock):
            if not waits:
                progress("waiting: another process is timing", 0, None)
            waits = True
            time.sleep(_POLL_S)
        yield


def _take_lock(lock: socket.socket) -> bool:
    try:
        lock.bind(_LOCK)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise InfrastructureError(
            f"cannot make a socket by which timings wait for each other: {error.strerror}"
        ) from error
    return True
