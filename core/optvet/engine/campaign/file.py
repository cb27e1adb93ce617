"""Reads a campaign file; error messages name the file, the line and the key."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from optvet.engine.campaign.versions import check_versions, is_folder, optimizers_of
from optvet.engine.discovery import Plugins
from optvet.engine.models.selectors import expand_models
from optvet.engine.options import parse_options
from optvet.engine.precision.run import check_accumulation, choose_optimizer
from optvet.engine.trust import check_request, locate
from optvet.spec.campaign import CampaignFile, JobKind, JobSet
from optvet.spec.contract import Family
from optvet.spec.convert import ConvertRequest
from optvet.spec.errors import InputError, OptvetError, UsageError, near_names
from optvet.spec.parsing import read_bytes, read_toml
from optvet.spec.precision import PrecisionRequest
from optvet.spec.request import VetRequest, empty_texts
from optvet.spec.toml_lines import join_with_dots, line_of
from optvet.spec.words import show

Key = tuple[str | int, ...]

_AXES: Mapping[str, str] = {
    "model": "models",
    "optimizer": "optimizers",
    "pipeline": "pipelines",
    "dataset": "datasets",
    "runtime": "runtimes",
    "comparator": "comparators",
}
"""The field of a request, by the key of the file that lists its values."""
_ON_THE_COMMAND_LINE: Mapping[str, str] = {
    "trust": "a file cannot grant trust; give --trust on the command line",
    "jobs": "say --jobs on the command line",
}
_CACHE_DIR = "say --cache-dir on the command line"
_ELSEWHERE: Mapping[JobKind, Mapping[str, str]] = {
    "vet": {
        **_ON_THE_COMMAND_LINE,
        "out": "bundles are kept in the store; say bundles = true beside 'models'",
        "save": "say --save to `optvet vet` for a single model",
        "cache_dir": _CACHE_DIR,
    },
    "convert": {
        **_ON_THE_COMMAND_LINE,
        "model": "sources are listed by 'models'",
        "via": "chains are listed by 'via', beside 'models'",
        "converted": "a campaign converts; use `optvet convert --converted` for a single model",
        "out": "say --out to `optvet convert` for a single source",
        "registered": "a file cannot name code; say --register to `optvet convert`",
        "cache_dir": _CACHE_DIR,
    },
    "precision": {
        **_ON_THE_COMMAND_LINE,
        "to": "precisions are listed by 'precisions', beside 'models'",
        "recipe": "say --recipe to `optvet precision` for a single model",
        "out": "say --out to `optvet precision` for a single model",
        "cache_dir": _CACHE_DIR,
    },
}
"""Options that a campaign file does not have, by the command, and what says them instead."""
_REQUESTS: Mapping[JobKind, type[VetRequest | ConvertRequest | PrecisionRequest]] = {
    "vet": VetRequest,
    "convert": ConvertRequest,
    "precision": PrecisionRequest,
}
_NAMED: Sequence[tuple[str, Family]] = (
    ("optimizers", "optimizer"),
    ("runtimes", "runtime"),
    ("comparators", "comparator"),
)
_OPTIONS: Mapping[str, Family] = {
    "optimizer_options": "optimizer",
    "runtime_options": "runtime",
    "comparator_options": "comparator",
}
_OWN: Mapping[JobKind, frozenset[str]] = {
    "vet": frozenset({"optimizers", "pipelines", "comparators", "versions", "vet"}),
    "convert": frozenset({"via", "convert"}),
    "precision": frozenset({"precisions", "precision", "comparators"}),
}
"""Keys that only jobs of this kind have; ``comparators`` has two kinds."""
_TOLD_BY: Mapping[JobKind, str] = {"convert": "via", "precision": "precisions"}
"""The key that makes jobs those of its kind; without any, they are vets."""


@dataclass(frozen=True)
class CampaignSource:
    """A campaign file that was read.

    Attributes:
        path: The file.
        text: Its text.
        content: Its parsed content.
        sets: Its sets of jobs, each complete.
        baseline: The file of known findings, if it names one.
    """

    path: Path
    text: str
    content: CampaignFile
    sets: tuple[JobSet, ...]
    baseline: Path | None

    @property
    def name(self) -> str:
        """The name of the campaign."""
        return self.content.name or self.path.stem

    def about(self, selectors: Sequence[str], plugins: Plugins) -> CampaignSource:
        """The same questions about other models, whose paths begin in the current folder.

        Raises:
            UsageError: A selector means no model.
        """
        models: tuple[str, ...] = ()
        if not all(jobs.via for jobs in self.sets):
            found = expand_models(selectors, plugins, folder=Path())
            models = tuple(_from_here(model, plugins) for model in found)
        sources = tuple(str(Path(selector).expanduser().absolute()) for selector in selectors)
        sets = tuple(
            jobs.model_copy(update={"models": sources if jobs.via else models})
            for jobs in self.sets
        )
        return replace(self, sets=sets)

    def refusal(self, key: Key, words: str) -> UsageError:
        """The error for the value of ``key``."""
        line = line_of(self.text, key)
        where = f"{self.path}:{line}" if line else str(self.path)
        return UsageError(f"{where}: key {join_with_dots(key)!r}: {words}")

    def place(self, number: int, key: str) -> Key:
        """The table that sets ``key`` for set ``number``: its own, or that of the whole file."""
        parts = tuple(key.split("."))
        if self.content.jobs:
            value: Any = self.content.jobs[number]
            for part in parts:
                names = value.model_fields_set if isinstance(value, JobSet) else value
                if part not in names:
                    return parts
                value = getattr(value, part) if isinstance(value, JobSet) else value[part]
            return ("jobs", number, *parts)
        return parts


def _from_here(model: str, plugins: Plugins) -> str:
    """A reference to a model that means the same in every folder."""
    is_path = os.path.exists(model) or model.partition(":")[0] not in plugins.names("model source")
    return str(Path(model).absolute()) if is_path else model


def read_campaign(path: Path, plugins: Plugins, *, trust: bool = False) -> CampaignSource:
    """The campaign in the file ``path``, checked as far as it can be without its models.

    Args:
        path: A TOML file.
        plugins: What is installed.
        trust: Whether options of it may name code and commands.

    Raises:
        UsageError: It cannot be read, or a value is wrong; the message says where.
    """
    document = read_toml(path, "listing")
    text = read_bytes(path, "listing").decode("utf-8")
    empty = CampaignSource(path, text, CampaignFile(), (), None)
    for place in empty_texts(document):
        raise empty.refusal(_told(place), "it is empty; give a value, or leave the key out")
    try:
        content = CampaignFile.model_validate(document)
    except ValidationError as error:
        raise _invalid(empty, error) from error
    sets = tuple(_complete(content, jobs) for jobs in content.jobs) or (content,)
    baseline = content.baseline and path.parent / content.baseline.expanduser()
    source = CampaignSource(path, text, content, sets, baseline)
    for number, jobs in enumerate(sets):
        _check(source, number, jobs, plugins, trust=trust)
    return source


def _invalid(source: CampaignSource, error: ValidationError) -> UsageError:
    first = error.errors()[0]
    key = _told(first["loc"])
    if first["type"] == "extra_forbidden":
        known = CampaignFile.model_fields if len(key) == 1 else JobSet.model_fields
        return source.refusal(key, f"unknown; {_nearest(str(key[-1]), known)}")
    return source.refusal(key, _words(first))


def _told(place: Key) -> Key:
    """Positions below a list of texts are of no use to a reader; those of tables are."""
    return tuple(p for i, p in enumerate(place) if not isinstance(p, int) or i == 1)


_EXPECTED: Mapping[str, str] = {
    "tuple_type": "expected a list of texts",
    "model_type": "expected a table",
    "dict_type": "expected a table",
    "string_type": "expected a text",
}


def _words(error: Any) -> str:
    """Pydantic's message about a value, with the value if the message lacks it."""
    value = show(error["input"])
    if error["type"] == "value_error":
        return str(error["msg"].removeprefix("Value error, "))
    return f"{value}: {_EXPECTED.get(error['type'], error['msg'])}"


def _nearest(name: str, known: Iterable[str]) -> str:
    near = near_names(name, known, count=2)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"known: {', '.join(sorted(known))}"


def _complete(whole: CampaignFile, jobs: JobSet) -> JobSet:
    """``jobs``, with the values of the whole file for keys that it does not set."""
    own = jobs.model_fields_set
    kind = next((kind for kind, key in _TOLD_BY.items() if key in own), None)
    shared = _OWN["precision"] if whole.kind == "precision" else frozenset()
    if kind is None and own & (_OWN["vet"] - shared):
        kind = "vet"
    every = frozenset().union(*_OWN.values())
    others = every - _OWN[kind] - own if kind is not None else frozenset()
    names = JobSet.model_fields.keys() - own - others
    update = {name: getattr(whole, name) for name in names}
    for table in _OWN:
        if table not in others:
            update[table] = {**getattr(whole, table), **getattr(jobs, table)}
    return jobs.model_copy(update=update)


# --- one set of jobs -----------------------------------------------------------------------------


def _check(
    source: CampaignSource, number: int, jobs: JobSet, plugins: Plugins, *, trust: bool
) -> None:
    """Check now what would make every job of the set fail."""
    _check_kind(source, number, jobs)
    _check_options(source, number, jobs)
    if jobs.kind == "convert":
        _check_conversions(source, number, jobs, plugins, trust=trust)
        return
    _check_versions(source, number, jobs, plugins, trust=trust)
    _check_precisions(source, number, jobs, plugins)
    _check_names(source, number, jobs, plugins)
    if not trust:
        for model in jobs.models:
            _check_request(source, number, "models", {"model": model}, plugins)
        options = getattr(jobs, jobs.kind)
        try:
            check_request(str(source.path), options, plugins)
        except InputError as error:
            words = str(error).removeprefix(f"{source.path}: ")
            names = (name for name in options if f"{name}." in words or repr(name) in words)
            key = ".".join([jobs.kind, *itertools.islice(names, 1)])
            raise source.refusal(source.place(number, key), words) from error


def _check_kind(source: CampaignSource, number: int, jobs: JobSet) -> None:
    """Refuse keys of other kinds of jobs than these are, and jobs without models."""
    if jobs.kind == "vet":
        if jobs.convert:
            raise source.refusal(source.place(number, "convert"), "say which chains, by 'via'")
        if jobs.precision:
            words = "say to what, by 'precisions', such as [\"fp16\"]"
            raise source.refusal(source.place(number, "precision"), words)
    else:
        every = frozenset().union(*_OWN.values())
        for name in sorted(every - _OWN[jobs.kind]):
            if getattr(jobs, name):
                what = {"convert": "conversions", "precision": "searches"}[jobs.kind]
                words = f"these jobs are {what}, by {_TOLD_BY[jobs.kind]!r}; make it a set of "
                raise source.refusal(source.place(number, name), f"{words}[[jobs]] of its own")
    if not jobs.models:
        what = "files, folders or 'zoo:all'"
        what = "sources: files or folders" if jobs.kind == "convert" else what
        raise source.refusal(("models",), f"missing or empty; name {what}")


def _check_options(source: CampaignSource, number: int, jobs: JobSet) -> None:
    """Check the options of the command that each job is."""
    kind, request = jobs.kind, _REQUESTS[jobs.kind]
    options: Mapping[str, Any] = getattr(jobs, kind)
    for name in options:
        key = source.place(number, f"{kind}.{name}")
        if name in _ELSEWHERE[kind]:
            raise source.refusal(key, _ELSEWHERE[kind][name])
        if name in _AXES and getattr(jobs, _AXES[name]):
            raise source.refusal(key, f"{_AXES[name]!r} says this already; leave one out")
        if name not in request.model_fields:
            nearest = _nearest(name, request.model_fields)
            raise source.refusal(key, f"unknown option of optvet {kind}; {nearest}")
    try:
        request.model_validate({"model": "", **options})
    except ValidationError as error:
        first = error.errors()[0]
        key = source.place(number, ".".join([kind, *map(str, first["loc"][:1])]))
        raise source.refusal(key, _words(first)) from error


def _check_precisions(source: CampaignSource, number: int, jobs: JobSet, plugins: Plugins) -> None:
    """Check that an optimizer converts to each of the precisions, with its sums as asked for."""
    named = "precision.optimizer" if "optimizer" in jobs.precision else "precisions"
    for to in jobs.precisions:
        request = PrecisionRequest.model_validate({"model": "", "to": to, **jobs.precision})
        key = source.place(number, named)
        _try(source, key, lambda r=request: choose_optimizer(plugins, r.to, r.optimizer))
        optimizer = choose_optimizer(plugins, to, request.optimizer)
        _check_table(source, number, jobs, "optimizer_options", optimizer)
        if "accumulate" in jobs.precision:
            key = source.place(number, "precision.accumulate")
            _try(source, key, lambda o=optimizer, r=request: check_accumulation(o, r))


def _check_versions(
    source: CampaignSource, number: int, jobs: JobSet, plugins: Plugins, *, trust: bool
) -> None:
    key = source.place(number, "versions")
    _try(source, key, lambda: check_versions(jobs, plugins))
    folders = [v for several in jobs.versions.values() for v in several if is_folder(v)]
    if folders and not trust:
        _check_request(source, number, "versions", {"wheels": folders[0]}, plugins)


def _check_conversions(
    source: CampaignSource, number: int, jobs: JobSet, plugins: Plugins, *, trust: bool
) -> None:
    """The same for conversions; sources and chains are looked at when jobs are made."""
    for name in jobs.runtimes:
        _try(source, source.place(number, "runtimes"), lambda n=name: plugins.runtime(n))
    if trust:
        return
    for model in jobs.models:
        _check_request(source, number, "models", {"model": model, "via": jobs.via}, plugins)
    _check_request(source, number, "convert", {"via": jobs.via, **jobs.convert}, plugins)


def _check_request(
    source: CampaignSource, number: int, key: str, values: Mapping[str, Any], plugins: Plugins
) -> None:
    try:
        check_request(str(source.path), values, plugins)
    except InputError as error:
        words = str(error).removeprefix(f"{source.path}: ")
        raise source.refusal(source.place(number, key), words) from error


def _check_names(source: CampaignSource, number: int, jobs: JobSet, plugins: Plugins) -> None:
    """Check the names of plugins, and their options; optimizers of searches are checked already."""
    options: Mapping[str, Any] = getattr(jobs, jobs.kind)
    named: dict[Family, Sequence[str]] = {}
    # Their library need not be installed: each job runs with a release of its own.
    varied = optimizers_of(jobs, plugins)
    for axis, family in _NAMED:
        if (jobs.kind, family) == ("precision", "optimizer"):
            continue
        single = next(s for s, listed in _AXES.items() if listed == axis)
        key = axis if getattr(jobs, axis) else f"{jobs.kind}.{single}"
        named[family] = getattr(jobs, axis) or [n for n in [options.get(single)] if n]
        if family == "optimizer":
            named[family] = named[family] or [plugins.default(family)]
        for name in named[family]:
            if family == "optimizer" and name in varied:
                continue
            _try(source, source.place(number, key), lambda f=family, n=name: _plugin(plugins, f, n))
    for table, family in _OPTIONS.items():
        for name in named.get(family, ()):
            if family == "optimizer" and name in varied:
                continue
            _check_table(source, number, jobs, table, _plugin(plugins, family, name))


def _check_table(
    source: CampaignSource, number: int, jobs: JobSet, table: str, plugin: Any
) -> None:
    """Check the options of a plugin, if there are any."""
    entries = getattr(jobs, jobs.kind).get(table)
    if isinstance(entries, dict):
        key = source.place(number, f"{jobs.kind}.{table}")
        _try(source, key, lambda: parse_options(plugin.name, plugin.options, entries))


def _plugin(plugins: Plugins, family: Family, name: str) -> Any:
    # The passes of an optimizer are checked by the jobs, which apply them.
    return (
        plugins.optimizer_without_passes(name)
        if family == "optimizer"
        else getattr(plugins, family)(name)
    )


def _try(source: CampaignSource, key: Key, act: Any) -> None:
    try:
        act()
    except OptvetError as error:
        raise source.refusal(key, str(error)) from error


def inputs_of(jobs: JobSet, folder: Path) -> tuple[tuple[str, ...], ...]:
    """The datasets of ``jobs``, with their paths resolved from ``folder``."""
    return tuple(tuple(_dataset(text, folder) for text in choice) for choice in jobs.datasets)


def _dataset(text: str, folder: Path) -> str:
    name, colon, argument = text.partition(":")
    return f"{name}:{locate(folder, argument)}" if colon else text
