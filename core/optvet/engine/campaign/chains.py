"""Conversions of a campaign: sources × chains of converters.

A source and a chain that does not take files of its kind make no job. A Python file does not tell
which framework it is for: if it does not suit a chain, the answer of the job says so.
"""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from optvet.engine.campaign.file import CampaignSource, inputs_of
from optvet.engine.convert.chain import links_of, runtimes_for
from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import Pythons, environments_root
from optvet.engine.trust import check_source, locate_data
from optvet.spec.campaign import JobSet
from optvet.spec.convert import ConvertRequest, parts_of
from optvet.spec.converters import TellsSource
from optvet.spec.errors import InputError, OptvetError, UsageError
from optvet.spec.foreign import files_in, matching

_ONNX = ".onnx"


def conversions_of(
    source: CampaignSource, number: int, jobs: JobSet, plugins: Plugins, *, trust: bool
) -> Iterator[ConvertRequest]:
    """The conversions of one set of jobs: those sources and chains whose formats meet.

    Raises:
        UsageError: A selector means no source, a chain cannot be used, or none takes a source; or
            a source may hold code, and ``trust`` is false.
    """
    general = ConvertRequest.model_validate({"model": "", **jobs.convert})
    plugins = with_environments(general, plugins)
    folder = source.path.parent
    options = {"jobs": 1, **locate_data(folder, jobs.convert, plugins)}
    try:
        models = expand_sources(jobs.models, plugins, folder=folder, exclude=jobs.exclude)
    except UsageError as error:
        raise source.refusal(source.place(number, "models"), str(error)) from error
    taken: set[str] = set()
    for via, dataset, runtime in itertools.product(
        jobs.via, inputs_of(jobs, folder) or [()], jobs.runtimes or [None]
    ):
        fields = {"via": via, "dataset": dataset, "runtime": runtime, **options}
        whole = ConvertRequest.model_validate({"model": "", **fields})
        try:
            first = links_of(whole, plugins)[0].converter
        except OptvetError as error:
            raise source.refusal(source.place(number, "via"), str(error)) from error
        for model in models:
            suffix = Path(parts_of(model)[0]).suffix.lower()
            try:
                ways = runtimes_for(suffix, first, plugins, model)
            except InputError:
                continue
            try:
                check_source(model, suffix, [runtime for runtime, _ in ways], trust=trust)
            except InputError as error:
                raise source.refusal(source.place(number, "models"), str(error)) from error
            taken.add(model)
            yield whole.model_copy(update={"model": model, "trust": trust})
    if left := [model for model in models if model not in taken]:
        words = f"{left[0]}: no chain of 'via' takes it; choose other chains, or leave it out"
        raise source.refusal(source.place(number, "models"), words)


def with_environments(request: ConvertRequest, plugins: Plugins) -> Plugins:
    """The registry in which plugins of the request's environments can be used."""
    return Pythons(request.environments, environments_root()).among(plugins)


def expand_sources(
    selectors: Sequence[str], plugins: Plugins, *, folder: Path, exclude: Iterable[str] = ()
) -> list[str]:
    """Sources, each once: files, what folders hold, globs, and ``FILE.py:FUNCTION``.

    Args:
        selectors: As a user names sources.
        plugins: What is installed.
        folder: Where relative paths begin.
        exclude: Patterns of paths and file names that are left out.

    Raises:
        UsageError: A selector means no source.
    """
    suffixes = {_ONNX}
    for runtime in map(plugins.runtime, plugins.names("runtime")):
        if isinstance(runtime, TellsSource):
            suffixes |= set(runtime.source_formats)
    suffixes -= {"", ".py"}
    found = [s for selector in selectors for s in _expand(selector, folder, suffixes)]
    patterns = tuple(exclude)
    return [s for s in dict.fromkeys(found) if not any(_is_meant(s, p) for p in patterns)]


def _is_meant(source: str, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in (source, Path(source).name))


def _expand(selector: str, folder: Path, suffixes: set[str]) -> list[str]:
    name, function = parts_of(selector)
    path = folder / Path(name).expanduser()
    if not os.path.exists(path) and glob.has_magic(name) and not function:
        files = [p for p in matching(str(path)) if _suits(p, suffixes)]
        if not files:
            raise UsageError(f"{path}: no source matches; check the pattern")
        return files
    if not os.path.exists(path):
        raise UsageError(f"{path}: no such file or folder")
    if os.path.isdir(path):
        # A folder without files of sources may be a source itself, such as a SavedModel.
        files = [str(p) for p in files_in(path) if _suits(p, suffixes)]
        return files or [str(path)]
    if path.suffix == ".py" and not function:
        raise UsageError(f"{path} is Python: say which function makes it, as {name}:FUNCTION")
    return [f"{path}:{function}" if function else str(path)]


def _suits(path: str | Path, suffixes: set[str]) -> bool:
    return Path(path).suffix.lower() in suffixes and os.path.isfile(path)
