"""From a request to the answer: list releases, search, check, blame, replay."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from optvet.engine.bisect.overlay import Overlays
from optvet.engine.bisect.predicate import (
    CommandPredicate,
    Predicate,
    ReleaseAnswer,
    VetPredicate,
    shortened,
    shown_there,
    vet_there,
)
from optvet.engine.bisect.search import Change, NoneDecided, ReleaseSearch, State
from optvet.engine.discovery import Plugins
from optvet.engine.environment.package_index import (
    NotInstallable,
    PackageIndex,
    available,
    choose,
    find,
)
from optvet.engine.environment.releases import ReleaseStore, releases_root
from optvet.engine.models.sources import resolve_model
from optvet.engine.reduce.check_command import parse_command
from optvet.engine.work.cache.disk import cache_root
from optvet.engine.work.trials.trial_runner import Progress
from optvet.spec.bisect import BisectRequest
from optvet.spec.convert import parts_of
from optvet.spec.errors import NoneTried, PluginError, UnknownName, UsageError
from optvet.spec.extras import PluginExtras, extras
from optvet.spec.optimizer_protocols import OptimizerExtras
from optvet.spec.records import ErrorRecord
from optvet.spec.records.bisect import (
    BisectResult,
    ReleaseAtFault,
    ReleaseChange,
    Shown,
    TriedRelease,
)
from optvet.spec.releases import ReleasedPackage
from optvet.spec.requirement import parse_requirement
from optvet.spec.scratch import temporary_folder
from optvet.spec.symptoms import Symptom

_SLOWEST = 0.01
_MOST_BUNDLES = 3
"""Bundles that are replayed on all releases."""


def bisect(request: BisectRequest, plugins: Plugins, *, progress: Progress) -> BisectResult:
    """Find the releases at which the answer changes, and the pass at fault in the first bad one.

    Raises:
        UsageError: An option is wrong, or there is no release.
        NoneTried: Every release was skipped.
        InfrastructureError: The disk is full, or the index is out of reach.
    """
    started = time.monotonic()
    optimizer, package = _package_of(request, plugins)
    is_vetted = package.distribution in released_packages(plugins)
    request = _checked(request, optimizer, plugins, is_vetted=is_vetted)
    index = PackageIndex(request.index)
    progress(f"releases of {package.distribution}", 0, None)
    versions, good, bad = _range(request, available(package.distribution, index, pre=request.pre))
    store = ReleaseStore(releases_root(), request.room)
    overlays = Overlays(package, store, index, lambda words: progress(words, 0, None))
    width = 1 if request.measure else request.jobs or 1
    with (
        ThreadPoolExecutor(width) as pool,
        closing(overlays.processes),
        _bundles(request) as out,
    ):
        bench = _Bench(versions, overlays, _predicate(request), progress, pool)
        found = _search(bench, width, good, bad)
        if narrower := _narrower(bench, found):
            bench = replace(bench, predicate=narrower, answers={})
            found = _search(bench, width, good, bad)
        stable = bench.repeat([found.low, found.high])
        fault = _blame(request, bench, found, out)
        bundles = [out / name for name in fault.bundles[:_MOST_BUNDLES]] if fault else []
        shown = bench.replay(bundles, trust=request.trust)
    return BisectResult(
        schema="optvet.bisect/1",
        model=request.model,
        package=package.distribution,
        optimizer=optimizer,
        predicate=bench.predicate.words,
        releases=bench.records(found.states, shown),
        changes=[_recorded(c, versions) for c in found.changes],
        stable=stable,
        at_fault=fault,
        installed=len(overlays.installed),
        runs=bench.runs,
        seconds=round(time.monotonic() - started, 1),
    )


@dataclass(frozen=True)
class _Found:
    """The outermost decided releases, the changes between them, and the state of each tried."""

    low: int
    high: int
    changes: Sequence[Change]
    states: Mapping[int, State]


def _search(bench: _Bench, width: int, good: str, bad: str) -> _Found:
    search = ReleaseSearch(len(bench.versions), bench.ask, width)
    low, high = _ends(search, bench, good, bad)
    search.check_within(low, high, search.changes(low, high))
    return _Found(low, high, search.changes(low, high), search.states)


@lru_cache(maxsize=4)  # A campaign asks for each of its jobs.
def released_packages(plugins: Plugins) -> dict[str, list[tuple[str, ReleasedPackage]]]:
    """Optimizers by the package whose releases they can be tried with."""
    found: dict[str, list[tuple[str, ReleasedPackage]]] = {}
    for entry in plugins.all():
        released = extras(entry.plugin, OptimizerExtras).released
        if entry.family == "optimizer" and released is not None:
            found.setdefault(released.distribution, []).append((entry.name, released))
    return found


def _package_of(request: BisectRequest, plugins: Plugins) -> tuple[str, ReleasedPackage]:
    """The optimizer to vet, or a plugin that uses the package, and the package."""
    known = released_packages(plugins)
    by_optimizer = {name: released for several in known.values() for name, released in several}
    optimizer = request.optimizer
    if not request.package:
        optimizer = optimizer or plugins.default("optimizer")
        if optimizer not in by_optimizer:
            plugins.optimizer_without_passes(optimizer)
            raise UsageError(
                f"optimizer {optimizer!r} declares no package whose releases can be tried; "
                f"--package takes {', '.join(sorted(known))}"
            )
        return optimizer, by_optimizer[optimizer]
    if request.package not in known:
        return _library_of(request, plugins, known)
    several = dict(known[request.package])
    if optimizer is None:
        optimizer = request.package if request.package in several else min(several)
    if optimizer not in several:
        raise UsageError(
            f"--optimizer {optimizer}: {request.package} is the package of "
            f"{', '.join(sorted(several))}"
        )
    return optimizer, several[optimizer]


def _library_of(
    request: BisectRequest, plugins: Plugins, known: Collection[str]
) -> tuple[str, ReleasedPackage]:
    """A plugin that is no optimizer and the library that it names; a command has to decide."""
    libraries = {
        distribution: (entry.name, ReleasedPackage(distribution, module))
        for entry in plugins.all()
        if not entry.elsewhere
        for distribution, module in extras(entry.plugin, PluginExtras).libraries.items()
    }
    if request.package not in libraries:
        raise UnknownName("package", request.package, {*known, *libraries})
    name, package = libraries[request.package]
    if request.check is None:
        raise UsageError(
            f"package {request.package!r} has no optimizer to vet; say what a bad release does "
            "with --check 'COMMAND {model}', such as --check 'optvet convert {model}'"
        )
    return name, package


def _checked(
    request: BisectRequest, optimizer: str, plugins: Plugins, *, is_vetted: bool
) -> BisectRequest:
    """The request about one file, with what does not depend on a release looked at."""
    if request.symptom is not None and request.symptom not in set(Symptom):
        raise UnknownName("symptom", request.symptom, [s.value for s in Symptom])
    if request.check is not None and (request.symptom or request.culprit):
        raise UsageError("--check decides alone; leave --symptom and --culprit out")
    if request.save is not None:
        raise UsageError("bisect saves no model; use optvet vet --save with the release you choose")
    if not is_vetted:
        # What the command reads need not be ONNX: a source of a converter, with a function's name.
        source, function = parts_of(request.model)
        if not Path(source).exists():
            raise UsageError(f"no such file: {source}; check the path")
        path = f"{Path(source).absolute()}{function and f':{function}'}"
        return request.model_copy(update={"model": path})
    models = resolve_model(request.model, plugins, request.cache_dir or cache_root())
    if len(models) != 1:
        raise UsageError(f"{request.model}: {len(models)} models; bisect one at a time")
    for name in request.dataset:
        if name.partition(":")[0] not in ("auto", *plugins.names("dataset")):
            plugins.dataset(name.partition(":")[0])
    if request.comparator is not None:
        plugins.comparator(request.comparator)
    request = _with_speed(request)
    path = str(models[0].path.absolute()) if Path(request.model).exists() else request.model
    return request.model_copy(update={"model": path, "optimizer": optimizer})


def _with_speed(request: BisectRequest) -> BisectRequest:
    """The request with ``speedup>=0.9`` as what ``vet`` asks: a slowdown of 1 / 0.9 counts."""
    kept = []
    for text in request.require:
        wanted = parse_requirement(text)
        if wanted.metric != "speedup":
            kept.append(text)
            continue
        if wanted.relation not in (">", ">=") or not _SLOWEST <= wanted.bound < 1:
            raise UsageError(
                f"--require {text!r}: expected speedup>=N with N from {_SLOWEST} to below 1; a "
                "release is bad where the optimized model is slower than that"
            )
        slower = {"measure": True, "slower_than": 1 / wanted.bound - 1}
        request = request.model_copy(update=slower)
    return request.model_copy(update={"require": tuple(kept)})


def _predicate(request: BisectRequest) -> Predicate:
    if request.check is not None:
        words = parse_command(request.check)
        return CommandPredicate(words, Path(request.model), request.check_timeout)
    culprits = (request.culprit,) if request.culprit else ()
    return VetPredicate(request.of_vet(), request.symptom, culprits)


def _narrower(bench: _Bench, found: _Found) -> VetPredicate | None:
    """What is new in the last release where all are bad, but not all by the same passes."""
    oldest, newest = bench.answers[found.low], bench.answers[found.high]
    asked = bench.predicate
    if found.changes or {oldest.state, newest.state} != {"bad"}:
        return None
    if not isinstance(asked, VetPredicate) or asked.symptom or asked.culprits:
        return None
    new = sorted(newest.culprits - oldest.culprits)
    if not new:
        return None
    why = f"{bench.versions[found.low]} is bad too, by {'; '.join(oldest.findings)}"
    return replace(asked, culprits=tuple(new), why=why)


def _range(request: BisectRequest, versions: list[str]) -> tuple[list[str], str, str]:
    """The releases to look at, oldest first, with the good and the bad end that the user names."""
    if request.versions is not None:
        versions = choose(versions, request.versions)
    good = "" if request.good is None else find(versions, request.good, "--good")
    bad = "" if request.bad is None else find(versions, request.bad, "--bad")
    if good and good == bad:
        raise UsageError(f"--good and --bad are both {good}; name two releases")
    places = sorted(versions.index(v) for v in (good, bad) if v)
    if len(places) == 2:
        versions = versions[places[0] : places[1] + 1]
    elif good:
        versions = versions[places[0] :]
    elif bad:
        versions = versions[: places[0] + 1]
    if len(versions) < 2:
        raise UsageError(f"only release {versions[0]} is left to try; give a wider range")
    return versions, good, bad


def _ends(search: ReleaseSearch, bench: _Bench, good: str, bad: str) -> tuple[int, int]:
    """The outermost decided releases; those that the user names are what he says.

    Raises:
        UsageError: A release that the user names is not as he says, or was skipped.
        NoneTried: All releases were skipped.
    """
    try:
        low, high = search.ends()
    except NoneDecided:
        raise bench.nothing() from None
    for named, state in ((good, "good"), (bad, "bad")):
        if not named:
            continue
        answer = bench.answers[bench.versions.index(named)]
        if answer.state != state:
            words = answer.reason or "; ".join(answer.findings) or f"verdict {answer.verdict}"
            raise UsageError(
                f"--{state} {named}: it is {answer.state} ({words}); name another release, or what "
                "to look for with --symptom or --culprit"
            )
    return low, high


def _blame(
    request: BisectRequest, bench: _Bench, found: _Found, out: Path
) -> ReleaseAtFault | None:
    """The findings of the first bad release after the last change to bad, with bundles."""
    broke = [c.first for c in found.changes if c.to == "bad"]
    mended = [c.last for c in found.changes if c.to == "good"]
    if broke or mended:
        number = broke[-1] if broke else mended[-1]
    elif bench.answers[found.high].state == "bad":
        number = found.high
    else:
        return None
    version, predicate = bench.versions[number], bench.predicate
    if not isinstance(predicate, VetPredicate):
        return ReleaseAtFault(version=version, note="a command decides, so no pass was looked for")
    asked = request.of_vet(reduce=request.reduce, out=out)
    with bench.overlays.using(version) as overlay:
        bench.progress(f"the pass at fault in {version}", 0, None)
        answer = vet_there(overlay, asked, symptom=predicate.symptom, culprits=predicate.culprits)
    if isinstance(answer, ErrorRecord):
        return ReleaseAtFault(version=version, note=shortened(answer.message))
    blamed = [f for f in answer.findings if predicate.matches(f)]
    names = list(dict.fromkeys(f.bundle for f in blamed if f.bundle is not None))
    return ReleaseAtFault(version=version, findings=blamed, bundles=names)


@contextmanager
def _bundles(request: BisectRequest) -> Iterator[Path]:
    """The folder of bundles: the user's, else one that is removed at the end."""
    if request.out is not None:
        yield request.out
        return
    with temporary_folder("optvet-bisect-") as folder:
        yield Path(folder)


def _recorded(change: Change, versions: Sequence[str]) -> ReleaseChange:
    return ReleaseChange(
        last=versions[change.last],
        first=versions[change.first],
        to="bad" if change.to == "bad" else "good",
        between=list(versions[change.last + 1 : change.first]),
    )


@dataclass
class _Bench:
    """Asks releases, and keeps what they answer."""

    versions: Sequence[str]
    overlays: Overlays
    predicate: Predicate
    progress: Progress
    pool: Executor
    """Its threads stay until the end: processes that wait end with those that started them."""
    answers: dict[int, ReleaseAnswer] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        """How often a release was asked."""
        return sum(self.counts.values())

    def ask(self, numbers: Sequence[int]) -> Mapping[int, State]:
        """The states of releases, which are tried at the same time."""
        for number, answer in zip(numbers, self._together(numbers), strict=True):
            self.answers[number] = answer
        self._refuse_what_holds_for_all()
        return {number: self.answers[number].state for number in numbers}

    def repeat(self, numbers: Sequence[int]) -> bool:
        """Whether releases answer the same once more, without what is kept of the first time."""
        again = [self._try(number, again=True).state for number in dict.fromkeys(numbers)]
        return again == [self.answers[number].state for number in dict.fromkeys(numbers)]

    def replay(self, bundles: Sequence[Path], *, trust: bool) -> Mapping[int, list[Shown]]:
        """What each release that was tried shows of each bundle."""
        if not bundles:
            return {}
        usable = [n for n in sorted(self.answers) if self._is_usable(n)]

        def shown(number: int) -> list[Shown]:
            version = self.versions[number]
            with self.overlays.using(version) as overlay:
                self.progress(f"replaying on {version}", usable.index(number), len(usable))
                return [shown_there(overlay, bundle, trust=trust) for bundle in bundles]

        return {number: shown(number) for number in usable}

    def records(
        self, states: Mapping[int, State], shown: Mapping[int, list[Shown]]
    ) -> list[TriedRelease]:
        """A record of each release, oldest first."""
        records = []
        for number, version in enumerate(self.versions):
            answer = self.answers.get(number)
            if answer is None:
                records.append(TriedRelease(version=version))
                continue
            records.append(
                TriedRelease(
                    version=version,
                    state=states[number],
                    reason=answer.reason,
                    verdict=answer.verdict,
                    findings=list(answer.findings),
                    bundles=shown.get(number, []),
                    runs=self.counts.get(number, 0),
                )
            )
        return records

    def nothing(self) -> NoneTried:
        """That every release was skipped, with the reason of each that was tried."""
        reasons = [f"{self.versions[n]}: {a.reason}" for n, a in sorted(self.answers.items())]
        return NoneTried(f"no release of {len(self.answers)} could be tried", reasons)

    def _refuse_what_holds_for_all(self) -> None:
        """Stop where the first two releases have the same error of usage: all would have it."""
        errors = [answer.error for answer in self.answers.values()]
        if len(errors) != 2 or None in errors:
            return
        first, second = (error for error in errors if error is not None)
        same = (first.error, first.message) == (second.error, second.message)
        if same and first.error in ("UsageError", "UnknownName", "InputError"):
            raise UsageError(first.message)
        if same and first.error in ("PluginError", "MissingLibrary"):
            raise PluginError(first.message)

    def _is_usable(self, number: int) -> bool:
        answer = self.answers[number]
        return answer.state != "skipped" or answer.error is not None

    def _try(self, number: int, *, again: bool = False) -> ReleaseAnswer:
        version = self.versions[number]
        words = f"trying {self.overlays.package.distribution} {version}"
        try:
            with self.overlays.using(version) as overlay:
                # After the overlay is there: installing it says so in the same place.
                self.progress(f"{words} again" if again else words, len(self.answers), None)
                self.counts[number] = self.counts.get(number, 0) + 1
                return self.predicate(overlay, again=again)
        except NotInstallable as error:
            return ReleaseAnswer("skipped", shortened(str(error)))

    def _together(self, numbers: Sequence[int]) -> Iterable[ReleaseAnswer]:
        if len(numbers) == 1:
            return [self._try(numbers[0])]
        return self.pool.map(self._try, numbers)
