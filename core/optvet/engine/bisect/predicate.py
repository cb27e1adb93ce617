"""What makes a release bad: the answer of ``vet`` under it, or the exit code of a command."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from packaging.version import InvalidVersion, Version

from optvet.engine.bisect.overlay import Overlay
from optvet.engine.bisect.release_process import LONGEST_S
from optvet.engine.bisect.search import State
from optvet.engine.environment.child_process import ChildEnd
from optvet.engine.reduce.check_command import PLACE
from optvet.spec.errors import InfrastructureError, UsageError
from optvet.spec.records import ErrorRecord, Finding, Replayed, VetResult
from optvet.spec.records.bisect import Shown
from optvet.spec.request import VetRequest
from optvet.spec.symptoms import Symptom

_ABOUT_CHARS = 400
_NO_SUCH_PASS = ("unknown pass", "unknown pipeline or pass")


@dataclass(frozen=True)
class ReleaseAnswer:
    """What one release does.

    Attributes:
        state: Good, bad, or skipped for ``reason``.
        verdict: Of ``vet``, or the exit code of a command in words.
        findings: In words.
        culprits: The passes that the findings blame.
        error: The answer in place of a result, if there was none.
    """

    state: State
    reason: str = ""
    verdict: str | None = None
    findings: tuple[str, ...] = ()
    culprits: frozenset[str] = frozenset()
    error: ErrorRecord | None = None


class Predicate(Protocol):
    """Says whether a release is bad."""

    @property
    def words(self) -> str:
        """What makes a release bad."""
        ...

    def __call__(self, overlay: Overlay, *, again: bool = False) -> ReleaseAnswer:
        """What the release does; ``again``: without what an earlier run has kept."""
        ...


@dataclass(frozen=True)
class VetPredicate:
    """A release is bad if ``vet`` finds there what is looked for."""

    request: VetRequest
    symptom: str | None = None
    culprits: tuple[str, ...] = ()
    """Any of these, if there are any."""
    why: str = ""
    """Why it asks for these culprits, if nobody named them."""

    @property
    def words(self) -> str:
        """What makes a release bad."""
        sought = [f"symptom {self.symptom}"] if self.symptom else []
        sought += [f"culprit {' or '.join(self.culprits)}"] if self.culprits else []
        words = " with ".join(sought) or "verdict faulty, or a requirement is not met"
        return f"{words}; {self.why}" if self.why else words

    def matches(self, finding: Finding) -> bool:
        """Whether this finding makes a release bad."""
        if self.symptom or self.culprits:
            return is_of(finding, self.symptom, self.culprits)
        counted = finding.severity in ("fault", "requirement")
        return counted or finding.symptom in self.request.fail_on

    def __call__(self, overlay: Overlay, *, again: bool = False) -> ReleaseAnswer:
        """The answer of ``vet`` there."""
        request = self.request.model_copy(update={"cache": False}) if again else self.request
        answer = vet_there(overlay, request)
        if isinstance(answer, ErrorRecord):
            if answer.message.startswith(_NO_SUCH_PASS):
                # What a release does not have breaks nothing in it.
                return ReleaseAnswer("good", "", "no such pass", error=answer)
            return ReleaseAnswer("skipped", shortened(answer.message), error=answer)
        found = [f for f in answer.findings if self.matches(f)]
        words = tuple(f"{f.symptom}: {f.blamed()}" for f in (found or answer.findings))
        if found:
            blamed = frozenset(name for f in found for name in f.culprit)
            return ReleaseAnswer("bad", "", answer.verdict, words, blamed)
        if open_question := self._open(answer):
            return ReleaseAnswer("skipped", open_question, answer.verdict, words)
        return ReleaseAnswer("good", "", answer.verdict, words)

    def _open(self, answer: VetResult) -> str:
        """Why a release without a finding may be bad all the same; empty if it is good."""
        if answer.verdict == "undecided":
            return "the verdict is undecided"
        if not self.request.measure or self.symptom not in (None, Symptom.SLOWDOWN):
            return ""
        timing = answer.timing
        if timing is None:
            return "it could not be timed"
        limit = 1 + timing.threshold
        if timing.verdict != "undecided" or (timing.high is not None and timing.high <= limit):
            return ""
        if timing.low is None or timing.high is None:
            return f"the timing is undecided: {timing.detail}"
        span = f"{timing.low:.2f} to {timing.high:.2f} times the time of the {timing.baseline}"
        return f"the timing is undecided: {span}, where {limit:.2f} is the limit"


@dataclass(frozen=True)
class CommandPredicate:
    """A release is good if a command exits with 0 there, and skipped if with 125."""

    command: Sequence[str]
    model: Path
    timeout_s: float

    SKIP = 125

    def __post_init__(self) -> None:
        """Refuse what is no program, before anything is installed."""
        if shutil.which(self.command[0]) is None:
            raise UsageError(
                f"--check: {self.command[0]!r} is no program on the path; give its full path"
            )

    @property
    def words(self) -> str:
        """What makes a release bad."""
        return f"{' '.join(self.command)} exits neither with 0 nor with {self.SKIP}"

    def __call__(self, overlay: Overlay, *, again: bool = False) -> ReleaseAnswer:
        """How the command ends there."""
        words = [word.replace(PLACE, str(self.model)) for word in self.command]
        ended = overlay.run_program(words, timeout_s=self.timeout_s)
        if ended.status is None:
            return ReleaseAnswer("skipped", f"the command takes more than {self.timeout_s:g} s")
        if ended.status == self.SKIP:
            return ReleaseAnswer("skipped", f"the command exits with {self.SKIP}")
        signalled = ended.status > 128
        verdict = f"signal {ended.status - 128}" if signalled else f"exit code {ended.status}"
        if ended.status == 0:
            return ReleaseAnswer("good", "", verdict)
        said = shortened(ended.last_lines(1))
        return ReleaseAnswer("bad", "", verdict, (f"{verdict}: {said}",) if said else ())


def vet_there(
    overlay: Overlay,
    request: VetRequest,
    *,
    symptom: str | None = None,
    culprits: Sequence[str] = (),
) -> VetResult | ErrorRecord:
    """The answer of ``vet`` under a release, with bundles if the request names a folder.

    A request without a cache has a process of its own: earlier ones leave nothing to it.
    Bundles are written of findings with that symptom and those culprits only, if any are named.

    Raises:
        InfrastructureError: Another version than the release's was vetted.
    """
    task = {
        "kind": "vet",
        "about": request.model,
        "request": request.model_dump(mode="json"),
        "symptom": symptom,
        "culprits": list(culprits),
    }
    answer = _ask(overlay, task, alone=not request.cache)
    if not isinstance(answer, dict):
        return answer
    result = VetResult.model_validate(answer)
    if not _same(result.optimizer.version, overlay.version):
        raise InfrastructureError(
            f"optimizer {result.optimizer.name} {result.optimizer.version} was vetted in place of "
            f"{overlay.version}; the package does not give the optimizer its version"
        )
    return result


def shown_there(overlay: Overlay, bundle: Path, *, trust: bool) -> Shown:
    """Whether a bundle shows its finding under a release."""
    answer = _ask(
        overlay, {"kind": "replay", "about": bundle.name, "bundle": str(bundle), "trust": trust}
    )
    if not isinstance(answer, dict):
        return "no such pass" if answer.message.startswith(_NO_SUCH_PASS) else "not judged"
    outcome = Replayed.model_validate(answer).outcome
    shown: dict[str, Shown] = {"fixed": "gone", "still there": "shows", "changed": "changed"}
    return shown[outcome]


def is_of(finding: Finding, symptom: str | None, culprits: Sequence[str]) -> bool:
    """Whether a finding has that symptom, None for any, and one of those culprits, if any."""
    blamed = not culprits or not {*culprits}.isdisjoint(finding.culprit)
    return symptom in (None, finding.symptom) and blamed


def shortened(message: str) -> str:
    """A message on one line, cut where it is long."""
    line = " ".join(message.split())
    return line if len(line) <= _ABOUT_CHARS else f"{line[: _ABOUT_CHARS - 1]}…"


def _ask(
    overlay: Overlay, task: dict[str, Any], *, alone: bool = False
) -> dict[str, Any] | ErrorRecord:
    """The document that a task gives in a process with the release, or why there is none."""
    ended = overlay.ask(task, alone=alone)
    if not isinstance(ended, ChildEnd):
        failed = ended.get("schema") == "optvet.error/1"
        return ErrorRecord.model_validate(ended) if failed else ended
    if ended.status is None:
        words = f"no answer after {LONGEST_S:g} s"
    elif ended.status > 128:
        words = f"the process ended with signal {ended.status - 128}"
    else:
        words = ended.last_lines(1) or f"the process ended with status {ended.status}"
    return ErrorRecord.model_validate(
        {
            "schema": "optvet.error/1",
            "model": {"source": str(task["about"])},
            "error": "InfrastructureError",
            "message": words,
            "exit_code": 3,
        }
    )


def _same(one: str, other: str) -> bool:
    """Whether two spellings are one version; a local part such as ``+cpu`` may be left out."""
    # Some optimizers name a second library too: "0.7.2 (acme_ir 0.1)".
    try:
        return Version(one.split()[0]).public == Version(other).public
    except InvalidVersion:
        return one == other
