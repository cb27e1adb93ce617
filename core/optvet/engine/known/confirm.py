"""What avoids a known fault, and whether it does so on the user's model."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import metadata

from packaging.version import Version

from optvet.engine.bisect.overlay import Overlays
from optvet.engine.bisect.predicate import shortened, vet_there
from optvet.engine.bisect.run import released_packages
from optvet.engine.discovery import Plugins
from optvet.engine.environment.package_index import NotInstallable, PackageIndex
from optvet.engine.environment.releases import ReleaseStore, releases_root
from optvet.engine.vetting import error_of, vet_request
from optvet.engine.work.trials.trial_runner import Progress
from optvet.spec.errors import OptvetError, UsageError
from optvet.spec.records import ErrorRecord, VetResult
from optvet.spec.records.known import AdviceResult, Advised, AffectedRange, KnownFault, is_affected
from optvet.spec.request import VetRequest

_QUICK_BYTES = 32 << 20
"""Models up to this size are vetted in seconds."""
_QUICK_S = 60.0
"""Begins no further try after that, unless the user asks for all."""


@dataclass(frozen=True)
class WayRound:
    """What avoids a fault: ``words`` for the user, and what to try, if it can be tried.

    Attributes:
        words: A requirement of pip, options of ``vet``, or an edit of the model.
        version: The release to try.
        pipeline: The pipeline to try with the release at hand.
    """

    words: str
    version: str | None = None
    pipeline: str | None = None


def installed_version(package: str) -> str | None:
    """The version of an installed package, None if there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def ways_round(
    fault: KnownFault, version: str, ranges: Sequence[AffectedRange] | None
) -> list[WayRound]:
    """What avoids a fault: a later or an earlier version, fewer passes, another model.

    Args:
        fault: The fault.
        version: The release that shows it.
        ranges: Of the form of its trigger; None if that was not dated. Then no version is named.
    """
    ways = [] if ranges is None else _other_versions(fault.package, version, ranges)
    if off := (fault.pipeline[-1:] or fault.passes):
        pipeline = ",".join(("default", *(f"-{name}" for name in off)))
        words = f"--optimizer {fault.optimizer} --pipeline {pipeline}"
        ways.append(WayRound(words, pipeline=pipeline))
    return [*ways, *([WayRound(fault.edit)] if fault.edit else [])]


def _other_versions(package: str, version: str, ranges: Sequence[AffectedRange]) -> list[WayRound]:
    at = Version(version.split()[0])
    number = next(i for i, one in enumerate(ranges) if one.covers(at))
    ways = []
    if (fixed := ranges[number].fixed) is not None:
        again = ranges[number + 1].introduced if number + 1 < len(ranges) else None
        ways.append(WayRound(f"{package}>={fixed}{f',<{again}' if again else ''}", fixed))
    if (introduced := ranges[number].introduced) is not None:
        good = ranges[number].good_before
        before = ranges[number - 1].fixed if number else None
        since = f">={before}," if before else ""
        ways.append(WayRound(f"{package}{since}{f'<={good}' if good else f'<{introduced}'}", good))
    return ways


@dataclass
class Tries:
    """Runs passes and ways round on one model, and keeps what was found out of each release.

    Attributes:
        request: About the model; what differs between tries is put into it.
        plugins: What is installed.
        index: Where releases are installed from.
        progress: Called with what is being done.
        size_bytes: Of the model.
        is_quick: Whether only what takes seconds is tried, and nothing is installed.
    """

    request: VetRequest
    plugins: Plugins
    index: PackageIndex
    progress: Progress
    size_bytes: int
    is_quick: bool
    _started: float = field(default_factory=time.monotonic)

    def confirm(self, result: AdviceResult, faults: Mapping[str, KnownFault]) -> AdviceResult:
        """The same advice, with whether the passes show each fault and what avoids it."""
        advice = []
        for number, one in enumerate(result.advice):
            self.progress(f"confirming {one.fault}", number, len(result.advice))
            advice.append(self._confirmed(one, faults[one.fault]))
        return result.model_copy(update={"advice": advice})

    def _confirmed(self, one: Advised, fault: KnownFault) -> Advised:
        """Advice after running the passes of its fault on the model, and these alone."""
        applied = ",".join(fault.applied) or "none"
        strategy = "auto" if fault.applied else "none"
        answer = self._answer(fault, one.version, applied, strategy)
        if not isinstance(answer, VetResult):
            return one.model_copy(update={"note": _not_tried(answer)})
        if not any(f.symptom in fault.symptoms for f in answer.findings):
            return one.model_copy(update={"confirmed": False, "tried": {}})
        ways = {way.words: way for way in self._ways(one, fault)}
        tried = {words: self._outcome(way, fault, one.version) for words, way in ways.items()}
        return one.model_copy(update={"confirmed": True, "tried": tried})

    def _ways(self, one: Advised, fault: KnownFault) -> list[WayRound]:
        every = [form.affected for form in fault.every_form]
        shown = [ranges for ranges in every if is_affected(ranges, one.version)]
        found = [w for ranges in (None, *shown) for w in ways_round(fault, one.version, ranges)]
        return [next(w for w in found if w.words == words) for words in one.avoid]

    def _outcome(self, way: WayRound, fault: KnownFault, version: str) -> str:
        """What a way round gives on the model, in words."""
        if way.version is None and way.pipeline is None:
            return "not tried: an edit is made by hand"
        asked = (way.version or version, way.pipeline or "default")
        answer = self._answer(fault, *asked, "none")
        if not isinstance(answer, VetResult):
            return _not_tried(answer)
        where = f"tried with {asked[0]}" if way.version else "tried"
        if answer.verdict == "faulty":
            symptoms = dict.fromkeys(f.symptom for f in answer.findings if f.severity == "fault")
            return f"{where}: still {', '.join(symptoms)} on this model"
        return f"{where}: {answer.verdict} on this model"

    def _answer(
        self, fault: KnownFault, version: str, pipeline: str, strategy: str
    ) -> VetResult | ErrorRecord | str:
        """The answer of ``vet``, or why there is none."""
        if self.is_quick and self.size_bytes > _QUICK_BYTES:
            return f"the model has {self.size_bytes >> 20} MiB; --confirm tries it"
        if self.is_quick and time.monotonic() - self._started > _QUICK_S:
            return f"{_QUICK_S:g} s were over; --confirm tries it"
        changed = {"optimizer": fault.optimizer, "pipeline": pipeline, "strategy": strategy}
        request = self.request.model_copy(update=changed)
        try:
            if installed_version(fault.package) == version:
                return vet_request(request, self.plugins)
            return self._answer_of_release(fault.package, version, request)
        except NotInstallable as error:
            return f"{fault.package} {version}: {error}"
        except OptvetError as error:
            return error_of(request.model, error)

    def _answer_of_release(
        self, package: str, version: str, request: VetRequest
    ) -> VetResult | ErrorRecord | str:
        """The answer under a release that is not installed, as ``bisect`` asks it."""
        released = released_packages(self.plugins).get(package)
        if released is None:
            raise UsageError(f"{package} {version} is not installed, and no plugin declares it")
        store = ReleaseStore(releases_root())
        kept = {(release.package, release.version) for release in store.kept()}
        if self.is_quick and (package, version) not in kept:
            return f"{package} {version} is not installed; --confirm installs it apart"
        with ExitStack() as stack:
            overlays = Overlays(
                released[0][1], store, self.index, lambda words: self.progress(words, 0, None)
            )
            stack.callback(overlays.processes.close)
            return vet_there(stack.enter_context(overlays.using(version)), request)


def _not_tried(answer: ErrorRecord | str) -> str:
    words = answer if isinstance(answer, str) else answer.message
    return f"not tried: {shortened(words)}"
