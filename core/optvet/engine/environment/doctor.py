"""``optvet doctor``: the environment of optvet, its problems, and what to do.

The engine makes checks that apply to every package. Checks of a particular library are made by its
plugin (``libraries``, ``diagnose``). Nothing is changed, except for a probe file in the cache
folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from optvet.engine.contract import checked_calls
from optvet.engine.environment import checks, packages
from optvet.engine.environment.environments import Pythons, environments_root, list_environments
from optvet.engine.environment.extras import canonical
from optvet.engine.environment.import_plan import plan_imports
from optvet.engine.environment.machine import check_cache, check_sandbox, environment
from optvet.engine.environment.packages import ParsedOnce, name_of
from optvet.engine.plugin_entries import SELF, Loaded
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.sandbox.outcome import describe
from optvet.spec.environment import Installation, Ran, Unimportable
from optvet.spec.errors import OptvetError
from optvet.spec.extras import PluginExtras, extras, given
from optvet.spec.records.doctor import STATUSES, Check, Diagnosis

IMPORT_S = 120.0
_ALSO = {"ml-dtypes": "ml_dtypes", "protobuf": "google.protobuf"}
"""Modules of distributions that optvet does not require itself, but onnx does."""
_SHADOWS = ("numpy", "onnx")
"""Libraries of the engine that a folder in the working directory may hide."""

Progress = Callable[[str, int, int | None], None]


def diagnose(
    plugins: Sequence[Loaded],
    cache: Path,
    folder: Path,
    *,
    installed: Sequence[Distribution] | None = None,
    pythons: Pythons | None = None,
    deep: bool = False,
    progress: Progress = lambda text, done, total: None,
) -> Diagnosis:
    """Make all checks; takes seconds, since every library is imported once.

    Args:
        plugins: The plugins, including broken ones.
        cache: The cache folder.
        folder: The working directory, in which programs are started.
        installed: Distributions to check; by default all that Python finds.
        pythons: Where environments of their own are; by default where they are made.
        deep: Import each library in a process of its own, which takes a minute.
        progress: Called with what is being checked.
    """
    found = [ParsedOnce(d) for d in (distributions() if installed is None else installed)]
    needed, modules = required_libraries(found), {**_ALSO, **declared_libraries(plugins)}
    names = {SELF, *needed, *modules}
    versions = {name_of(d): d.version for d in reversed(found)}
    progress("packages", 0, None)
    collisions = tuple(packages.collisions(found, names))
    unmet = tuple(packages.unmet(found, names & versions.keys()))
    pip = _installer(found)
    general = [
        *checks.check_collisions(collisions, pip),
        *checks.check_duplicates(packages.duplicates(found, names), pip),
        *checks.check_usurpers(packages.usurpers(found, _own_modules(found), SELF), pip),
        *checks.check_requirements(unmet, pip),
        *checks.check_shadows(folder, _names_to_check(modules)),
    ]
    limits = Limits(IMPORT_S, 64 << 30)
    jobs = min(len(os.sched_getaffinity(0)), 4)
    # Plugins first: their modules may turn off messages of a library that is imported next.
    preload = ("numpy", *sorted(_modules_with_libraries(plugins)))
    with Sandbox(jobs=jobs, limits=limits, preload=preload) as sandbox:
        progress("sandbox", 0, None)
        general.append(check_sandbox(sandbox))
        failed: dict[str, Unimportable] = {}
        if general[-1].status != "broken":
            wanted = _modules_to_import(
                sorted((needed | modules.keys()) & versions.keys()), modules
            )
            plan = None
            if not deep:
                plan = plan_imports(found, wanted, _imported_along(plugins), jobs)
            failed = checks.import_all(sandbox, wanted, progress, plan)
            general += checks.check_imports(failed, versions, needed, len(wanted), pip)
        run = _runner(sandbox)
        installation = Installation(versions, collisions, unmet, failed, folder, run, pip)
        found_by_plugins = ask_plugins(plugins, installation, progress)
    every = [
        *merge(general, found_by_plugins),
        *checks.check_environments(
            list_environments(plugins, pythons or Pythons({}, environments_root()))
        ),
        *checks.check_plugins(plugins, pip),
        check_cache(cache),
    ]
    return Diagnosis(
        schema="optvet.doctor/1",
        environment=environment(),
        libraries={name: versions.get(name) for name in sorted(names - {SELF})},
        checks=sorted(every, key=lambda c: STATUSES.index(c.status)),
    )


def merge(general: Iterable[Check], by_plugins: Sequence[Check]) -> list[Check]:
    """All checks; a plugin's check replaces the engine's with the same name and subject."""
    covered = {(c.name, c.about) for c in by_plugins if c.about}
    return [*(c for c in general if (c.name, c.about) not in covered), *by_plugins]


# --- plugins -------------------------------------------------------------------------------------


def _modules_with_libraries(plugins: Iterable[Loaded]) -> set[str]:
    declaring = (p.plugin for p in plugins if extras(p.plugin, PluginExtras).libraries)
    return {type(plugin).__module__ for plugin in declaring}


def declared_libraries(plugins: Iterable[Loaded]) -> dict[str, str]:
    """Modules of the libraries that plugins declare, by distribution."""
    modules: dict[str, str] = {}
    for plugin in plugins:
        libraries = extras(plugin.plugin, PluginExtras).libraries
        modules |= {canonical(n): m for n, m in libraries.items()}
    return modules


def _imported_along(plugins: Iterable[Loaded]) -> dict[str, set[str]]:
    """What libraries import, by what plugins say, though they do not require it."""
    found: dict[str, set[str]] = {}
    for plugin in plugins:
        for name, others in extras(plugin.plugin, PluginExtras).imports.items():
            found.setdefault(canonical(name), set()).update(map(canonical, others))
    return found


def ask_plugins(
    plugins: Iterable[Loaded], installation: Installation, progress: Progress
) -> list[Check]:
    """The checks of plugins, including plugins whose library is absent or broken."""
    checks: list[Check] = []
    for entry in plugins:
        if given(entry.plugin, PluginExtras.diagnose) and not entry.displaced:
            progress(f"{entry.family} {entry.name}", 0, None)
            checks += [c for c in _diagnosis_of(entry, installation) if c not in checks]
    return checks


def _diagnosis_of(entry: Loaded, installation: Installation) -> list[Check]:
    plugin, family = entry.plugin, entry.family or "plugin"
    try:
        found = checked_calls.list_items(
            family, plugin, "diagnose", lambda: plugin.diagnose(installation), Check, entry.origin
        )
    except OptvetError as error:
        cure = "report it to the maintainer of the plugin"
        return [Check(name="plugins", status="broken", message=str(error), cure=cure)]
    return found


def _runner(sandbox: Sandbox) -> Callable[..., Ran]:
    def run(function: Any, *arguments: Any) -> Ran:
        try:
            outcome = sandbox.call(function, *arguments, fresh=True)
        except Exception as error:  # no worker can be started: the check of the sandbox says why
            return Ran(error=checks.one_paragraph(f"{type(error).__name__}: {error}"))
        if outcome.failure is not None:
            return Ran(error=checks.one_paragraph(describe(outcome.failure)))
        return Ran(outcome.value)

    return run


# --- packages ------------------------------------------------------------------------------------


def _modules_to_import(names: Iterable[str], modules: Mapping[str, str]) -> dict[str, str]:
    """The module of each distribution; a module of several distributions only once."""
    found: dict[str, str] = {}
    for name in names:
        module = modules.get(name, name.replace("-", "_"))
        if module not in found.values():
            found[name] = module
    return found


def _names_to_check(modules: Mapping[str, str]) -> list[str]:
    tops = {m for n, m in modules.items() if n not in _ALSO and "." not in m}
    return sorted({*_SHADOWS, *tops})


def _installer(installed: Iterable[Distribution]) -> str:
    """The command that cures begin with: of uv if uv installed optvet, since pip may be missing."""
    ours = next((d for d in installed if name_of(d) == SELF), None)
    by = "" if ours is None else (ours.read_text("INSTALLER") or "").strip()
    return "uv pip" if by == "uv" else "pip"


def required_libraries(installed: Iterable[Distribution]) -> set[str]:
    """What optvet requires, with all extras but those for its own development."""
    names = set()
    for distribution in installed:
        if name_of(distribution) == SELF:
            for line in distribution.requires or ():
                name = canonical(re.split(r"[^\w.-]", line.strip(), maxsplit=1)[0])
                if not re.search(r"extra\s*==\s*['\"]dev['\"]", line):
                    names.add(name)
    return names


def _own_modules(installed: Iterable[Distribution]) -> set[str]:
    modules = {SELF}
    for distribution in installed:
        if name_of(distribution) == SELF:
            points = distribution.entry_points
            modules |= {p.value.partition(":")[0] for p in points if p.group == SELF}
    return modules
