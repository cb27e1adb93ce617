"""Reads a campaign file; error messages name the file, the line and the key."""

from __future__ import annotations

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
from optvet.engine.plugin_entries import Family
from optvet.engine.trust import check_request, locate
from optvet.spec.campaign import CampaignFile, JobSet
from optvet.spec.convert import ConvertRequest
from optvet.spec.errors import InputError, OptvetError, UsageError, near_names
from optvet.spec.parsing import read_bytes, read_toml
from optvet.spec.request import VetRequest
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
_ELSEWHERE: Mapping[str, str] = {
    "out": "bundles are kept in the store; say bundles = true beside 'models'",
    "trust": "a file cannot grant trust; give --trust on the command line",
    "jobs": "say --jobs on the command line",
    "cache_dir": "say --cache-dir on the command line",
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
_OF_VETS = ("optimizers", "pipelines", "comparators", "versions", "vet")
_OF_CONVERSIONS = ("via", "convert")
_CONVERT_ELSEWHERE: Mapping[str, str] = {
    "model": "sources are listed by 'models'",
    "via": "chains are listed by 'via', beside 'models'",
    "converted": "a campaign converts; use `optvet convert --converted` for a single model",
    "out": "say --out to `optvet convert` for a single source",
    "trust": "a file cannot grant trust; give --trust on the command line",
    "jobs": "say --jobs on the command line",
}


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
    # Positions below a list of texts are of no use to a reader; those of tables are.
    key = tuple(p for i, p in enumerate(first["loc"]) if not isinstance(p, int) or i == 1)
    if first["type"] == "extra_forbidden":
        known = CampaignFile.model_fields if len(key) == 1 else JobSet.model_fields
        return source.refusal(key, f"unknown; {_nearest(str(key[-1]), known)}")
    return source.refusal(key, _words(first))


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
    others: set[str] = set()
    if "via" in own:
        others = set(_OF_VETS) - own
    elif own & set(_OF_VETS):
        others = set(_OF_CONVERSIONS)
    names = JobSet.model_fields.keys() - own - others
    update = {name: getattr(whole, name) for name in names}
    for table in ("vet", "convert"):
        if table not in others:
            update[table] = {**getattr(whole, table), **getattr(jobs, table)}
    return jobs.model_copy(update=update)


# --- one set of jobs -----------------------------------------------------------------------------


def _check(
    source: CampaignSource, number: int, jobs: JobSet, plugins: Plugins, *, trust: bool
) -> None:
    """Check now what would make every job of the set fail."""
    if jobs.via:
        _check_conversions(source, number, jobs, plugins, trust=trust)
        return
    if jobs.convert:
        raise source.refusal(source.place(number, "convert"), "say which chains, by 'via'")
    for name in jobs.vet:
        key = source.place(number, f"vet.{name}")
        if name in _ELSEWHERE:
            raise source.refusal(key, _ELSEWHERE[name])
        if name in _AXES and getattr(jobs, _AXES[name]):
            raise source.refusal(key, f"{_AXES[name]!r} says this already; leave one out")
        if name not in VetRequest.model_fields:
            nearest = _nearest(name, VetRequest.model_fields)
            raise source.refusal(key, f"unknown option of optvet vet; {nearest}")
    if not jobs.models:
        raise source.refusal(("models",), "missing or empty; name files, folders or 'zoo:all'")
    try:
        VetRequest.model_validate({"model": "", **jobs.vet})
    except ValidationError as error:
        first = error.errors()[0]
        key = source.place(number, ".".join(["vet", *map(str, first["loc"][:1])]))
        raise source.refusal(key, _words(first)) from error
    _check_versions(source, number, jobs, plugins, trust=trust)
    _check_names(source, number, jobs, plugins)
    if not trust:
        try:
            check_request(str(source.path), jobs.vet, plugins)
        except InputError as error:
            words = str(error).removeprefix(f"{source.path}: ")
            name = next((t for t in jobs.vet if f"{t}." in words), "vet")
            raise source.refusal(source.place(number, f"vet.{name}"), words) from error


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
    for name in _OF_VETS:
        if getattr(jobs, name):
            words = "these jobs are conversions, by 'via'; make it a set of [[jobs]] of its own"
            raise source.refusal(source.place(number, name), words)
    if not jobs.models:
        raise source.refusal(("models",), "missing or empty; name sources: files or folders")
    for name in jobs.convert:
        key = source.place(number, f"convert.{name}")
        if name in _CONVERT_ELSEWHERE:
            raise source.refusal(key, _CONVERT_ELSEWHERE[name])
        axis = {"runtime": "runtimes", "dataset": "datasets"}.get(name)
        if axis and getattr(jobs, axis):
            raise source.refusal(key, f"{axis!r} says this already; leave one out")
        if name not in ConvertRequest.model_fields:
            nearest = _nearest(name, ConvertRequest.model_fields)
            raise source.refusal(key, f"unknown option of optvet convert; {nearest}")
    try:
        ConvertRequest.model_validate({"model": "", **jobs.convert})
    except ValidationError as error:
        first = error.errors()[0]
        key = source.place(number, ".".join(["convert", *map(str, first["loc"][:1])]))
        raise source.refusal(key, _words(first)) from error
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
    """Check the names of plugins, and their options."""
    named: dict[Family, Sequence[str]] = {}
    # Their library need not be installed: each job runs with a release of its own.
    varied = optimizers_of(jobs, plugins)
    for axis, family in _NAMED:
        single = next(s for s, listed in _AXES.items() if listed == axis)
        key = axis if getattr(jobs, axis) else f"vet.{single}"
        named[family] = getattr(jobs, axis) or [n for n in [jobs.vet.get(single)] if n]
        if family == "optimizer":
            named[family] = named[family] or [plugins.default(family)]
        for name in named[family]:
            if family == "optimizer" and name in varied:
                continue
            _try(source, source.place(number, key), lambda f=family, n=name: _plugin(plugins, f, n))
    for table, family in _OPTIONS.items():
        entries = jobs.vet.get(table)
        for name in named[family] if isinstance(entries, dict) else ():
            if family == "optimizer" and name in varied:
                continue
            plugin = _plugin(plugins, family, name)
            key_ = source.place(number, f"vet.{table}")
            _try(source, key_, lambda p=plugin, g=entries: parse_options(p.name, p.options, g))


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
