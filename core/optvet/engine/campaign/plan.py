"""Makes jobs from a campaign file: one per request, each with a key of all that it depends on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import optvet
from optvet.engine.bisect.run import released_packages
from optvet.engine.campaign.baseline import read_baseline
from optvet.engine.campaign.chains import conversions_of, with_environments
from optvet.engine.campaign.digests import Digests, digest_of_data
from optvet.engine.campaign.file import CampaignSource, inputs_of
from optvet.engine.campaign.versions import (
    build_name,
    declared_optimizer,
    releases_by_optimizer,
)
from optvet.engine.convert.chain import links_of, runtimes_for
from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import Pythons, environments_root
from optvet.engine.models.selectors import expand_models
from optvet.engine.options import parse_options
from optvet.engine.precision.run import choose_optimizer
from optvet.engine.trust import data_named_in, locate, locate_data
from optvet.engine.work.cache.cache_key import key
from optvet.engine.work.cache.environment_fingerprint import fingerprint_environment, modules_of
from optvet.engine.work.cache.modified_installs import modified_code_digest
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.participants import choose_runtime, configure, reference_for
from optvet.spec.campaign import JobRequest, JobSet, ReleaseRequest
from optvet.spec.convert import ConvertRequest, parts_of
from optvet.spec.errors import OptvetError, UsageError
from optvet.spec.precision import PrecisionRequest
from optvet.spec.records.campaign import Baseline
from optvet.spec.request import VetRequest

_NO_ANSWER = frozenset({"jobs", "cache", "cache_dir", "trust", "out", "save", "fail_on"})
"""Fields of a request on which its answer does not depend."""
LIMITS = frozenset({"timeout", "memory", "budget"})
"""Fields that limit a job's resources."""

Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Job:
    """One job of a campaign.

    Attributes:
        key: Digest of everything that the answer depends on: the request, the content of model and
            data, and the versions of optvet, plugins and their libraries.
        cell: Digest of the request alone, which is equal for other versions and contents.
        request: The request.
        model_digest: Digest of the model's file and the files of its weights; empty if they cannot
            be read; the job reports why.
        versions: Versions of optvet, plugins and their libraries.
        bundles: Whether a bundle is made for each finding.
    """

    key: str
    cell: str
    request: JobRequest
    model_digest: str
    versions: Mapping[str, str]
    bundles: bool = False


@dataclass(frozen=True)
class Plan:
    """A campaign that is ready to run."""

    name: str
    text: str
    jobs: tuple[Job, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def requests(self) -> dict[str, JobRequest]:
        """What is asked, by the key of the job."""
        return {job.key: job.request for job in self.jobs}

    @property
    def digest(self) -> str:
        """A digest of all jobs, equal for equal campaigns."""
        return key(self.name, [job.key for job in self.jobs])


def plan_campaign(
    source: CampaignSource,
    plugins: Plugins,
    digests: Digests,
    *,
    cache_dir: Path,
    trust: bool = False,
    baseline: Baseline | None = None,
    progress: Progress = lambda text, done, total: None,
) -> Plan:
    """The jobs of a campaign, those of one optimizer together and large models first.

    Args:
        source: The campaign file.
        plugins: The installed plugins.
        digests: Cached digests of files.
        cache_dir: Where models of model sources are cached.
        trust: Whether the file, and records beside models, may name code.
        baseline: Known findings, in place of the file's.
        progress: Called with a text, the number of steps done, and of all steps.

    Raises:
        UsageError: A selector means no model, or the file of known findings cannot be read.
    """
    known_findings = baseline
    if known_findings is None and source.baseline is not None:
        known_findings = read_baseline(source.baseline)
    settled = {"cache_dir": cache_dir, "trust": trust}
    requests = list(requests_of(source, plugins, settled))
    versions = _Versions(plugins)
    jobs: dict[str, Job] = {}
    sizes: dict[str, int] = {}
    known: dict[str, tuple[str, int]] = {}
    wanted = list(dict.fromkeys(request.model for request in requests))
    sources = {r.model for r in requests if isinstance(r, ConvertRequest)}
    for number, reference in enumerate(wanted):
        progress(f"reading {reference}", number, len(wanted))
        known[reference] = (
            digests.of_source(reference)
            if reference in sources
            else digests.of_model(reference, plugins, cache_dir)
        )
    for request in requests:
        digest, size_bytes = known[request.model]
        bundles = isinstance(request, VetRequest) and (source.content.bundles or request.reduce)
        job = _job(request, digest, versions, bundles, plugins)
        jobs.setdefault(job.key, job)
        sizes[job.key] = size_bytes
    # Results of the original are cached for all optimizers. So jobs of one model are not
    # neighbours, and no two workers compute these at the same time.
    names = list(dict.fromkeys(tool_of(job.request) for job in jobs.values()))
    ordered = sorted(
        jobs.values(),
        key=lambda job: (names.index(tool_of(job.request)), -sizes[job.key]),
    )
    settings = {
        "baseline": known_findings and json.loads(known_findings.to_json()),
        "store_size": source.content.store_size,
        "fail_on": sorted(
            {note for r in requests if isinstance(r, VetRequest) for note in r.fail_on}
        ),
    }
    return Plan(source.name, source.text, tuple(ordered), settings)


def requests_of(
    source: CampaignSource, plugins: Plugins, settled: Mapping[str, Any] | None = None
) -> Iterator[JobRequest]:
    """The requests of the file, one per combination; ``settled`` holds for all but conversions."""
    folder = source.path.parent
    for number, jobs in enumerate(source.sets):
        if jobs.via:
            trust = bool((settled or {}).get("trust"))
            yield from conversions_of(source, number, jobs, plugins, trust=trust)
            continue
        try:
            models = expand_models(jobs.models, plugins, folder=folder, exclude=jobs.exclude)
        except UsageError as error:
            raise source.refusal(source.place(number, "models"), str(error)) from error
        if jobs.precisions:
            yield from _searches(jobs, models, folder, plugins, settled or {})
            continue
        vet_options = _options(jobs, folder, plugins)
        try:
            releases = releases_by_optimizer(jobs, folder, plugins)
        except UsageError as error:
            raise source.refusal(source.place(number, "versions"), str(error)) from error
        for combination in itertools.product(
            _axis(jobs, "optimizers", [plugins.default("optimizer")]),
            _axis(jobs, "pipelines"),
            inputs_of(jobs, folder) or [None],
            _axis(jobs, "runtimes"),
            _axis(jobs, "comparators"),
            models,
        ):
            fields = dict(zip(_FIELDS, combination, strict=True))
            options: dict[str, Any] = {n: v for n, v in fields.items() if v is not None}
            # The options override the default of an axis.
            options |= vet_options
            request = VetRequest.model_validate({"jobs": 1, **options, **(settled or {})})
            asked = releases.get(request.optimizer or plugins.default("optimizer"))
            yield from [request] if asked is None else [each.ask(request) for each in asked]


def _searches(
    jobs: JobSet,
    models: Sequence[str],
    folder: Path,
    plugins: Plugins,
    settled: Mapping[str, Any],
) -> Iterator[PrecisionRequest]:
    """The searches of one set of jobs, one per combination."""
    options = _options(jobs, folder, plugins)
    names = ("to", "dataset", "runtime", "comparator", "model")
    for combination in itertools.product(
        jobs.precisions,
        inputs_of(jobs, folder) or [None],
        _axis(jobs, "runtimes"),
        _axis(jobs, "comparators"),
        models,
    ):
        fields = dict(zip(names, combination, strict=True))
        chosen = {name: value for name, value in fields.items() if value is not None}
        yield PrecisionRequest.model_validate({"jobs": 1, **chosen, **options, **settled})


def _options(jobs: JobSet, folder: Path, plugins: Plugins) -> dict[str, Any]:
    """The options of ``jobs``; files of data and of a user model are found from ``folder``."""
    options: Mapping[str, Any] = getattr(jobs, jobs.kind)
    settled = locate_data(folder, options, plugins)
    user_model = options.get("user_model")
    if not isinstance(user_model, str) or ":" not in user_model:
        return settled
    file, _, name = user_model.rpartition(":")
    return {**settled, "user_model": f"{locate(folder, file)}:{name}"}


_FIELDS = ("optimizer", "pipeline", "dataset", "runtime", "comparator", "model")


def _axis(jobs: JobSet, name: str, default: Sequence[str | None] = (None,)) -> Sequence[str | None]:
    return getattr(jobs, name) or default


def tool_of(request: JobRequest) -> str:
    """What is asked about: the optimizer, empty for the default, converters, or the precision."""
    if isinstance(request, ConvertRequest):
        return ",".join(request.via)
    if isinstance(request, PrecisionRequest):
        return request.to
    return request.optimizer or ""


def question(request: JobRequest, leave_out: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Fields of a request on which its answer depends, as JSON has them.

    Defaults are left out, so that a new field does not change the keys of earlier jobs.
    """
    left_out = set(_NO_ANSWER | leave_out)
    asked = request.model_dump(mode="json", exclude=left_out, exclude_defaults=True)
    # It tells a search from a vet of the same model, also where it is the default.
    return {**asked, "to": request.to} if isinstance(request, PrecisionRequest) else asked


def _job(
    request: JobRequest, digest: str, versions: _Versions, bundles: bool, plugins: Plugins
) -> Job:
    data = {text: digest_of_data(text.partition(":")[2]) for text in request.dataset}
    # Such as labels: answers depend on what the file says.
    data |= {text: digest_of_data(text) for text in data_named_in(dict(request), plugins)}
    if not isinstance(request, ConvertRequest) and request.user_model and ":" in request.user_model:
        data[request.user_model] = digest_of_data(request.user_model.rpartition(":")[0])
    used = versions.of(request)
    return Job(
        key=key(question(request), digest, data, used, fingerprint_environment(), bundles),
        cell=key(question(request, LIMITS)),
        request=request,
        model_digest=digest,
        versions=used,
        bundles=bundles,
    )


_SAYS_VERSIONS = frozenset(
    "to optimizer optimizer_options runtime cross_check package release wheels".split()
)
"""Fields of a vet or a search that say which plugins it uses, and which release of a package."""


class _Versions:
    """Versions of the plugins and libraries of a job; each combination is looked up once."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self._known: dict[str, Mapping[str, str]] = {}

    def of(self, request: JobRequest) -> Mapping[str, str]:
        """Versions by name; "unknown" for a plugin that cannot be used (the job reports why)."""
        # Of a source, its kind of file tells what runs it.
        model = ""
        if isinstance(request, ConvertRequest):
            model = Path(parts_of(request.model)[0]).suffix.lower()
        asked = {**question(request), "model": model}
        if not isinstance(request, ConvertRequest):
            asked = {name: asked[name] for name in _SAYS_VERSIONS & asked.keys()}
        about = key(asked)
        if about not in self._known:
            self._known[about] = self._look(request)
        return self._known[about]

    def _look(self, request: JobRequest) -> Mapping[str, str]:
        found = {"optvet": optvet.__version__}
        found |= {name: metadata.version(name) for name in ("numpy", "onnx")}
        if isinstance(request, ConvertRequest):
            plugins = with_environments(request, self._plugins)
            pythons = Pythons(request.environments, environments_root())
            named = _in_conversion(request, plugins)
        else:
            plugins, pythons = self._plugins, None
            named = self._in_vet(request)
        released = _of_package(request, named, plugins)
        for plugin in named:
            home = plugins.home_of(plugin)
            if home and pythons is not None:
                found[f"environment {home}"] = pythons.digest_of(home)
                continue
            if isinstance(request, ReleaseRequest) and plugin.name in released:
                found[plugin.name] = " ".join((request.release, build_name(request))).strip()
                continue
            try:
                version = str(plugin.version())
            except Exception:  # the job reports the same error
                version = "unknown"
            changed = modified_code_digest(*modules_of(plugin))
            found[plugin.name] = f"{version} (changed: {changed})" if changed else version
        return found

    def _in_vet(self, request: VetRequest | PrecisionRequest) -> list[Any]:
        """The plugins of a vet or a search, as far as they can be told."""
        plugins = self._plugins
        named: list[Any] = []
        with suppress(OptvetError):
            optimizer = _optimizer_of(request, plugins)
            named.append(optimizer)
            options = parse_options(optimizer.name, optimizer.options, request.optimizer_options)
            optimizer = configure(optimizer, options)
            runtime = choose_runtime(plugins, optimizer, request.runtime)
            named.append(runtime)
            judge = RuntimeConfig(runtime, runtime.options)
            named.append(reference_for(plugins, optimizer, judge).runtime)
            if isinstance(request, VetRequest):
                named += [plugins.runtime(name) for name in request.cross_check]
        return named


def _optimizer_of(request: VetRequest | PrecisionRequest, plugins: Plugins) -> Any:
    if isinstance(request, PrecisionRequest):
        return choose_optimizer(plugins, request.to, request.optimizer)
    name = request.optimizer or plugins.default("optimizer")
    if isinstance(request, ReleaseRequest):
        return declared_optimizer(name, plugins)
    return plugins.optimizer_without_passes(name)


def _of_package(request: JobRequest, named: Sequence[Any], plugins: Plugins) -> set[str]:
    """The plugins whose library is the package of which the request names a release."""
    if not isinstance(request, ReleaseRequest):
        return set()
    (module, *_) = {r.module for _, r in released_packages(plugins).get(request.package, ())}
    return {p.name for p in named if module in (m.partition(".")[0] for m in modules_of(p))}


def _in_conversion(request: ConvertRequest, plugins: Plugins) -> list[Any]:
    """The plugins of a conversion, as far as they can be told."""
    named: list[Any] = []
    with suppress(OptvetError):
        converters = [link.converter for link in links_of(request, plugins)]
        named += converters
        suffix = Path(parts_of(request.model)[0]).suffix.lower()
        named += [r for r, _ in runtimes_for(suffix, converters[0], plugins, request.model)]
        others = [request.runtime] if request.runtime else []
        named += [plugins.runtime(name) for name in (*others, *request.cross_check)]
        named.append(plugins.reference_runtime())
        named.append(plugins.reference_runtime(converters[-1].produces))
    return named
