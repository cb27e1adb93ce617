"""The quick oracle: is a candidate valid, which passes change it, and does one look wrong?

Called in workers. The optimizer runs in the same process, and the judge measures no noise (see
``quick_look``), so findings are suspicions that ``vet`` confirms. It skips models that the checker
refuses or whose outputs do not repeat, and faults that import and export alone show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types
from onnx import ModelProto

from optvet.engine.hunt.expected import (
    ExpectedOutput,
    Unrepeated,
    Values,
    is_defined,
    is_repeated,
    outputs_of,
    truth_of,
)
from optvet.engine.hunt.quick_look import QUICK, QUICK_ELSEWHERE, Look, look, verdict_on_error
from optvet.engine.hunt.rewrites import (
    changing_passes,
    compare_graphs,
    complaint_about,
    content_of,
)
from optvet.engine.hunt.suspicions import (
    ANY,
    UNSEEN,
    Complaint,
    Rewrite,
    Suspicion,
    passes_of_key,
    suspect,
)
from optvet.engine.hunt.tested_optimizer import TestedOptimizer
from optvet.engine.judge.interface_change import changes_interface
from optvet.engine.judge.sample import SampleVerdict
from optvet.engine.runtime_target import lacks_kernel
from optvet.graph.digest import contents_of
from optvet.graph.mend import find_mends
from optvet.spec.errors import REFUSALS
from optvet.spec.extras import extras, given
from optvet.spec.optimizer_protocols import OptimizerExtras
from optvet.spec.runtime_protocols import RuntimeExtras
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Artifact, ModelPart

_PAIRS = 3
"""Pairs of passes that are judged of one model."""
_LOWERED = 3
"""Passes that are judged alone of one model where each result is lowered to machine code."""
_TRIED_PAIRS = 24
"""Pairs that are tried for that: most do nothing new, and some optimizers are slow."""
_FOLLOWED = 0.4
"""Share of the models on which whatever can follow one pass is tried behind it."""
_INVENTED = 8  # names that are kept of those that an optimizer gave to new values of a model
_LAYERS = 3  # how often a model is looked at again without a pass that looked wrong

OnStep = Callable[[str, Sequence[str]], None]
"""Records what is about to be done, with which passes, before it can kill the process."""


@dataclass(frozen=True)
class Examined:
    """The result of examining one candidate.

    Attributes:
        valid: Whether the original is usable as a reference.
        refused: Whether the optimizer refuses it.
        rewrites: What passes did.
        suspicions: What looks wrong.
        complaint: About a mistake of the optimizer's plugin.
        invented: Names that passes gave to values that they made.
        by_arbiter: Whether the arbiter ran the models.
    """

    valid: bool
    refused: bool = False
    rewrites: tuple[Rewrite, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()
    complaint: Complaint | None = None
    invented: tuple[str, ...] = ()
    by_arbiter: bool = False


INVALID = Examined(False)


def examine(
    tested: TestedOptimizer,
    data: bytes,
    feeds: Values,
    logged: OnStep,
    skip: frozenset[str],
    random: Random,
    *,
    labelled: bool = True,
    known: Set[Rewrite] = frozenset(),
    covered: Set[str] = frozenset(),
    is_new: Callable[[], bool] = lambda: False,
) -> Examined:
    """Judge one candidate.

    Where the runtime leaves an output unwritten, for example, the arbiter runs the models, and none
    of them is a seed.

    Args:
        tested: What is tried.
        data: The model.
        feeds: Its inputs.
        logged: Called before each step.
        skip: Passes that are left out this time.
        random: Draws the pairs of passes that are tried.
        labelled: Whether it is wanted which passes changed, where that takes another run.
        known: Rewrites of which nothing more is wanted.
        covered: Passes of which nothing more is wanted.
        is_new: Asked afterwards: whether the model is wanted for what the optimizer did.
    """
    logged("reference", ())
    try:
        truth = truth_of(tested.reference, data, feeds, with_random=not tested.lowers)
    except Unrepeated:
        if tested.arbiter is None:
            return INVALID
        found = examine(tested.by_arbiter(), data, feeds, logged, skip, random)
        return replace(found, rewrites=(), by_arbiter=True)
    if truth is None:
        return INVALID
    request = _ExamineRequest(skip, labelled, known, covered, is_new)
    return _examine_passes(tested, data, truth, logged, random, request)


@dataclass(frozen=True)
class _ExamineRequest:
    """What is wanted of one candidate; see ``examine``."""

    skip: frozenset[str]
    labelled: bool
    known: Set[Rewrite]
    covered: Set[str]
    is_new: Callable[[], bool]


def _examine_passes(
    tested: TestedOptimizer,
    data: bytes,
    truth: ExpectedOutput,
    logged: OnStep,
    random: Random,
    request: _ExamineRequest,
) -> Examined:
    logged("optimize", ())
    source, skip = Artifact("onnx", data), request.skip
    try:
        plain = tested.apply(source, tested.base)
        logged("run", ())
        seen = Look(SampleVerdict("same"))
        if not _is_original(tested, plain, data):
            seen = look(tested, plain, truth, QUICK_ELSEWHERE if tested.lowers else QUICK)
    except REFUSALS:
        return Examined(True, refused=True)
    except Exception as error:
        seen = Look(verdict_on_error("build", error))
    if seen.verdict.symptom is not None:
        # Of its own: what an optimizer to ONNX makes fails in a runtime that ran the original.
        own = seen.verdict.stage == "build" or tested.lowers
        if own and lacks_kernel("", seen.verdict.message):
            return Examined(True, refused=True)
        if not is_defined(tested.reference, truth):
            return INVALID
        suspicion = suspect((), seen.verdict.symptom, seen.verdict.message, truth.names)
        found = _examine_mended(tested, data, truth, logged, random, request)
        return replace(found, suspicions=(suspicion, *found.suspicions))
    if tested.lowers:
        truth = _expect_outputs_of_plain(tested, plain, truth)
    suspicions = [suspect((), Symptom.METADATA_CHANGE, k, truth.names) for k in seen.lost]
    trial = _QuickTrial(tested, source, plain, truth, logged, frozenset(seen.lost))
    rewrites = trial.each([p for p in tested.each if p not in skip], random)
    # A pass that is wrong alone must not hide what others do.
    wrong = {name for s in trial.suspicions for name in s.passes}
    alone = len(trial.suspicions)
    if tested.takes_sets:
        rewrites += trial.sets(tuple(p for p in tested.whole if p not in skip), request.labelled)
    elif len(left := tuple(p for p in tested.whole if p not in skip | wrong)) > bool(tested.each):
        rewrites += trial.whole(left)
    if len(trial.suspicions) == alone:
        trial.pairs(
            [r.label for r in rewrites if r.label not in wrong | {ANY}], wrong | skip, random
        )
    every = (*suspicions, *trial.suspicions)
    unequal = any(s.symptom.info.of_values for s in trial.suspicions)
    if unequal and not is_repeated(tested.reference, data, truth):
        return INVALID
    # What becomes a seed must be defined too; few models are either.
    fresh = request.is_new() or any(
        r not in request.known and r.label not in request.covered for r in rewrites
    )
    if (every or fresh) and not is_defined(tested.reference, truth):
        return INVALID
    invented = tuple(trial.invented)[:_INVENTED]
    return Examined(True, False, tuple(rewrites), every, trial.complaint, invented)


def _examine_mended(
    tested: TestedOptimizer,
    data: bytes,
    truth: ExpectedOutput,
    logged: OnStep,
    random: Random,
    request: _ExamineRequest,
) -> Examined:
    """What passes do where import and export alone look wrong, if a mend cures that."""
    nothing, source = Examined(True), Artifact("onnx", data)
    if tested.mends:
        return nothing
    try:
        changed = ModelProto.FromString(tested.apply(source, tested.base).data)
        mended = replace(tested, mends=tuple(find_mends(ModelProto.FromString(data), changed)))
        again = look(mended, mended.apply(source, tested.base), truth)
    except Exception:  # it makes no model, or one in another format
        return nothing
    if not (mended.mends and again.verdict.right):
        return nothing
    return _examine_passes(mended, data, truth, logged, random, request)


def _is_original(tested: TestedOptimizer, plain: Artifact, data: bytes) -> bool:
    """Whether the empty pipeline yields the original itself, which ran already."""
    same = tested.candidate.runtime.name == tested.reference.runtime.name
    return same and tested.optimizer.traits.optimizes_on_load and plain.data == data


def _expect_outputs_of_plain(
    tested: TestedOptimizer, plain: Artifact, truth: ExpectedOutput
) -> ExpectedOutput:
    """Expected outputs of passes that are compared with the empty pipeline."""
    session = tested.candidate.runtime.load(plain, tested.candidate.options)
    outputs = tuple(outputs_of(session, f) for f in truth.feeds)
    return replace(truth, outputs=outputs)


class _QuickTrial:
    """Tries passes on one candidate."""

    def __init__(
        self,
        tested: TestedOptimizer,
        source: Artifact,
        plain: Artifact,
        truth: ExpectedOutput,
        logged: OnStep,
        lost: frozenset[str],
    ) -> None:
        self._tested, self._source, self._plain = tested, source, plain
        self._truth, self._logged, self._lost = truth, logged, lost
        self._seen: set[bytes] = {content_of(plain)}
        self._alike: set[str] = set()
        self.suspicions: list[Suspicion] = []
        self.complaint: Complaint | None = None
        self.invented: dict[str, None] = {}

    def each(self, passes: Sequence[str], random: Random) -> list[Rewrite]:
        """Every pass alone that changes something; some of them where that takes long."""
        rewrites: list[Rewrite] = []
        idle = self._idle(())
        passes = [name for name in passes if name not in idle]
        if self._tested.lowers:
            passes = random.sample(passes, min(len(passes), _LOWERED))
        for name in passes:
            artifact = self._optimize((name,))
            if artifact is None or content_of(artifact) == content_of(self._plain):
                continue
            rewrite = self._rewrite(name, artifact.data)
            rewrites.append(rewrite)
            if self._is_new(artifact):
                self._look(artifact, (name,), rewrite)
        return rewrites

    def _idle(self, first: tuple[str, ...]) -> set[str]:
        """Passes tried together that change nothing after ``first``.

        Where a group changes something, the optimizer may tell which of its passes did.
        """
        idle: set[str] = set()
        together = self._tested.together
        was = self._apply(first) if first and together else self._plain
        if was is None:
            return idle
        for group in together:
            artifact = self._apply((*first, *group))
            if artifact is None:
                continue
            if content_of(artifact) == content_of(was):
                idle.update(group)
            elif artifact.changing_passes is not None:
                idle.update(set(group).difference(artifact.changing_passes))
        return idle

    def _apply(self, passes: tuple[str, ...]) -> Artifact | None:
        tested = self._tested
        self._logged("optimize", passes)
        try:
            applied = (*tested.base, *passes)
            return tested.apply(self._source, applied)
        except Exception:  # it is seen later which of them it is
            return None

    def whole(self, passes: tuple[str, ...], labelled: bool = True) -> list[Rewrite]:
        """A whole pipeline; what it changed if that is wanted."""
        artifact = self._optimize(passes)
        if artifact is None or content_of(artifact) in self._seen:
            return []
        before = len(self.suspicions)
        rewrite = self._rewrite(ANY, self._graph(artifact, passes).data) if labelled else None
        self._look(artifact, passes, rewrite)
        if rewrite is None:
            for n, s in enumerate(self.suspicions[before:], before):
                rewrite = self._rewrite(ANY, self._graph(artifact, passes).data)
                self.suspicions[n] = replace(s, key=s.key.after(rewrite))
            return []
        return [rewrite] if rewrite.change != UNSEEN else []

    def sets(self, passes: tuple[str, ...], labelled: bool) -> list[Rewrite]:
        """A whole pipeline, and what is left of it without the passes that look wrong.

        A pass that is wrong for many models would hide the faults of all others.
        """
        rewrites: list[Rewrite] = []
        for _ in range(_LAYERS):
            before, earlier = len(self.suspicions), self.complaint
            rewrites += self.whole(passes, labelled)
            if len(self.suspicions) == before:
                break
            found = self.suspicions.pop()
            self._logged("optimize", passes)
            hits, complaint = changing_passes(self._tested, self._source.data, passes)
            self.complaint = earlier or complaint  # what is faulty need not be fit to be saved
            cures = [p for p in hits if not self._looks_wrong(_without(passes, p))]
            # Of two faults in one model, leaving out one pass cures neither.
            alone = next((p for p in cures or hits if self._looks_wrong((p,))), None)
            wrong = (alone,) if alone is not None else tuple(cures[:2])
            shown = wrong if alone is not None else hits
            shown = shown if shown == wrong or self._looks_wrong(shown) else passes
            key = found.key._replace(passes=passes_of_key(wrong) if wrong else (ANY,))
            self.suspicions.append(replace(found, passes=shown, key=key))
            if not wrong:
                break
            passes = _without(passes, wrong[0])
        return list(dict.fromkeys(rewrites))

    def _looks_wrong(self, passes: tuple[str, ...]) -> bool:
        self._logged("optimize", passes)
        try:
            artifact = self._tested.apply(self._source, passes)
            seen = look(self._tested, artifact, self._truth)
        except REFUSALS:
            return False
        except Exception:  # what the optimizer raises
            return True
        return not seen.verdict.right

    def _graph(self, artifact: Artifact, passes: tuple[str, ...]) -> Artifact:
        """The optimized model as ONNX, if the optimizer exports it; the source if that fails."""
        tested = self._tested
        saved = given(tested.optimizer, OptimizerExtras.saved)
        if artifact.format == "onnx" or saved is None:
            return artifact
        try:
            return saved(self._source, passes, tested.options)
        except Exception as error:
            self.complaint = complaint_about(tested, "saved", error)
            return self._source  # what can be shown of it does not decide

    def pairs(self, passes: Sequence[str], hidden: Set[str], random: Random) -> None:
        """Some pairs of passes: two that change the model, or one, and any that may follow it.

        Args:
            passes: Those that change the model, and do not look wrong.
            hidden: Those that are left out.
            random: Draws the pairs.
        """
        tested = self._tested
        excused = tested.excused
        # Else nothing could be compared.
        passes = [p for p in passes if Symptom.INTERFACE_CHANGE not in excused.get(p, ())]
        if not passes:
            return
        several: Iterable[tuple[str, str]] = ((a, b) for a in passes for b in passes)
        if random.random() < _FOLLOWED:
            # Some passes find something only in what another one has made.
            first = random.choice(passes)
            left = set(tested.each) - self._idle((first,)) - set(hidden)
            several = ((first, p) for p in tested.each if p in left)
        repeatable = tested.optimizer.traits.repeatable
        pairs = [pair for pair in several if repeatable or pair[0] != pair[1]]
        looked = 0
        for pair in random.sample(pairs, min(len(pairs), _TRIED_PAIRS)):
            if looked == (1 if tested.lowers else _PAIRS):
                break
            artifact = self._optimize(pair)
            if artifact is not None and self._is_new(artifact):
                self._look(artifact, pair, self._rewrite(ANY, artifact.data))
                looked += 1

    def _is_new(self, artifact: Artifact) -> bool:
        """Whether nothing like it was looked at before; from now on it was."""
        content = content_of(artifact)
        known = content in self._seen
        self._seen.add(content)
        return not known

    def _rewrite(self, label: str, data: bytes) -> Rewrite:
        """The rewrite that passes made; records names that they invented."""
        with suppress(DecodeError):
            graph = ModelProto.FromString(data).graph
            names = [o for n in graph.node for o in n.output] + [t.name for t in graph.initializer]
            invented = (n for n in names if n and n not in self._truth.names)
            self.invented.update(dict.fromkeys(invented))
        return compare_graphs(label, self._plain.data, data)

    def _optimize(self, passes: tuple[str, ...]) -> Artifact | None:
        tested = self._tested
        self._logged("optimize", passes)
        base = tested.base
        applied = (*base, *(p for p in passes if p not in base)) if base else passes
        try:
            return tested.apply(self._source, applied)
        except REFUSALS:
            return None
        except Exception as error:
            self._suspect(passes, verdict_on_error("build", error), None)
            return None

    def _look(self, artifact: Artifact, passes: tuple[str, ...], rewrite: Rewrite | None) -> None:
        if self._changes_interface_on_purpose(artifact, passes):
            try:
                onnx.checker.check_model(artifact.data, full_check=True)
            except Exception as error:
                self._suspect(passes, verdict_on_error("check", error), rewrite)
            return
        reads = extras(self._tested.candidate.runtime, RuntimeExtras).reads
        if not self._alike:
            self._alike.add(_read(self._plain, reads))
        read = _read(artifact, reads)
        if read and read in self._alike:
            return
        self._alike.add(read)
        self._logged("run", passes)
        try:
            seen = look(self._tested, artifact, self._truth)
        except REFUSALS:
            return
        if not seen.verdict.right:
            self._suspect(passes, seen.verdict, rewrite)
            return
        for name in sorted(seen.lost.keys() - self._lost):
            lost = SampleVerdict("fault", Symptom.METADATA_CHANGE, "build", name)
            self._suspect(passes, lost, None)

    def _changes_interface_on_purpose(self, artifact: Artifact, passes: tuple[str, ...]) -> bool:
        """Whether a pass changed the interface as it declares, so that no comparison is possible.

        Some passes change it in every model; checking this first saves half of the checks.
        """
        excused = self._tested.excused
        if artifact.format != "onnx" or not any(
            Symptom.INTERFACE_CHANGE in excused.get(name, ()) for name in passes
        ):
            return False
        return changes_interface(self._truth.interface, artifact.data)

    def _suspect(
        self, passes: tuple[str, ...], verdict: SampleVerdict, rewrite: Rewrite | None
    ) -> None:
        symptom, excused = verdict.symptom, self._tested.excused
        if symptom is None or any(symptom in excused.get(name, ()) for name in passes):
            return
        self.suspicions.append(
            suspect(passes, symptom, verdict.message, self._truth.names, rewrite)
        )


def _read(artifact: Artifact, reads: frozenset[ModelPart]) -> str:
    """What a runtime reads of a model, as a digest; empty for other formats."""
    if artifact.format != "onnx":
        return ""
    try:
        return contents_of(ModelProto.FromString(artifact.data)).read_by(reads)
    except DecodeError:
        return ""  # the checker will say what is wrong with it


def _without(passes: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(p for p in passes if p != name)
