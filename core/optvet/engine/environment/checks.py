"""Checks of the installed packages and of plugins' libraries that are the same for all libraries.

The libraries are imported in workers only, since a broken one may kill its process.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from optvet.engine.environment.extras import missing_extra, wanted_extra
from optvet.engine.environment.import_plan import ImportPlan
from optvet.engine.plugin_entries import SELF, Loaded
from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.sandbox.outcome import describe
from optvet.spec.environment import Collision, Unimportable, Unmet
from optvet.spec.records import EnvironmentEntry
from optvet.spec.records.doctor import Check, Status


def check_collisions(found: Iterable[Collision], pip: str) -> list[Check]:
    """Distributions that install the same files."""
    again = f"uninstall one of them, then: {pip} install --force-reinstall"
    checks = [
        Check(
            name="packages",
            status="warning",
            message=collision.message,
            cure=f"{again} {collision.names[0]}",
            about=collision.names,
        )
        for collision in found
    ]
    words = "no two distributions own the same file"
    return checks or [Check(name="packages", status="ok", message=words)]


def check_duplicates(found: Mapping[str, Sequence[str]], pip: str) -> list[Check]:
    """Distributions that are installed in several versions, of which any may be imported."""
    return [
        Check(
            name="packages",
            status="broken",
            message=f"{name} is installed in several versions: {', '.join(versions)}",
            cure=f"{pip} uninstall {name}, until none is left; then: {pip} install {name}",
        )
        for name, versions in found.items()
    ]


def check_usurpers(found: Mapping[str, Sequence[str]], pip: str) -> list[Check]:
    """Other distributions with a module named as one of optvet's: they overwrite or delete it."""
    return [
        Check(
            name="packages",
            status="broken",
            message=f"{name} ships {', '.join(modules)}, which belongs to optvet",
            cure=f"{pip} uninstall {name}, then: {pip} install --force-reinstall --no-deps optvet",
        )
        for name, modules in found.items()
    ]


def check_requirements(found: Iterable[Unmet], pip: str) -> list[Check]:
    """Unmet requirements, such as a version of protobuf that onnx does not support."""
    return [
        Check(
            name="packages",
            status="broken",
            message=unmet.message,
            cure=f"{pip} install '{unmet.requirement}'",
            about=(unmet.name, unmet.requirement),
        )
        for unmet in found
    ]


def check_shadows(folder: Path, modules: Iterable[str]) -> list[Check]:
    """Folders in the working directory that Python imports in place of libraries."""
    names = [n for n in modules if (folder / n).is_dir() or (folder / f"{n}.py").is_file()]
    return [
        Check(
            name="working directory",
            status="warning",
            message=f"{folder} holds {name!r}, which may be imported in place of the library",
            cure="run optvet in another directory",
            about=(name,),
        )
        for name in names
    ]


def import_all(
    sandbox: Sandbox,
    modules: Mapping[str, str],
    progress: Callable[[str, int, int | None], None],
    plan: ImportPlan | None = None,
) -> dict[str, Unimportable]:
    """Import the module of each distribution in a worker; those that fail, by name.

    Args:
        sandbox: Where the workers run.
        modules: The module of each distribution.
        progress: Called with what is being imported.
        plan: Which are imported together: what many libraries need is then imported once. What
            fails after others that it does not need is tried again without what works, and fails
            only if it does there too. None imports each module in a process of its own, which finds
            a module that only works after another one.
    """
    if plan is None:
        return _import_apart(sandbox, [[n] for n in modules], modules, progress)
    first = _import_apart(sandbox, plan.parts, modules, progress)
    # A module that kills its process leaves no answer about the others of its group.
    killed = {n for part in plan.parts if set(part) <= first.keys() for n in part}
    again = [[n] for n in modules if n in killed]
    if raising := [n for n in first if n not in killed and plan.saw_others(n)]:
        again.append(raising)
    own = {n: why for n, why in first.items() if n not in killed and n not in raising}
    return own | _import_apart(sandbox, again, modules, progress)


def _import_apart(
    sandbox: Sandbox,
    groups: Sequence[Sequence[str]],
    modules: Mapping[str, str],
    progress: Callable[[str, int, int | None], None],
) -> dict[str, Unimportable]:
    """Import each group in a process of its own; if that dies, all of the group failed."""
    # All are started before the first is waited for, so they run in parallel.
    futures = [
        sandbox.submit(_import_each, {n: modules[n] for n in group}, fresh=True) for group in groups
    ]
    failed: dict[str, Unimportable] = {}
    for done, (group, future) in enumerate(zip(groups, futures, strict=True)):
        progress(f"importing {', '.join(group)}", done, len(groups))
        outcome = future.result()
        if outcome.failure is not None:
            reason = one_paragraph(describe(outcome.failure))
            failed |= dict.fromkeys(group, Unimportable(reason))
        else:
            failed |= outcome.value or {}
    return failed


def check_imports(
    failed: Mapping[str, Unimportable],
    versions: Mapping[str, str],
    required: Iterable[str],
    tried: int,
    pip: str,
) -> list[Check]:
    """Libraries that cannot be imported; a warning only if optvet does not require the library."""
    needed = set(required)
    checks = [
        Check(
            name="libraries",
            status="broken" if name in needed else "warning",
            message=f"{name} {versions[name]} cannot be imported: {why.reason}",
            cure=f"{pip} install --force-reinstall {name}",
            about=(name,),
        )
        for name, why in failed.items()
    ]
    words = f"{tried - len(failed)} libraries can be imported"
    return [*checks, Check(name="libraries", status="ok", message=words)]


def _import_each(modules: Mapping[str, str]) -> dict[str, Unimportable]:
    """Import modules in this process, by distribution; those that fail."""
    failed = {}
    # Some libraries make a folder of their own when they are imported, and leave it.
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        os.environ |= dict.fromkeys(("XDG_CONFIG_HOME", "XDG_CACHE_HOME"), folder)
        for name, module in modules.items():
            try:
                importlib.import_module(module)
            except Exception as error:
                reason = one_paragraph(f"{type(error).__name__}: {error}")
                failed[name] = Unimportable(reason, _modules_in(error))
    return failed


def _modules_in(error: Exception) -> tuple[str, ...]:
    """The top-level modules whose code was running when ``error`` was raised, without Python's."""
    frames = traceback.walk_tb(error.__traceback__)
    names = (str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame, _ in frames)
    return tuple(dict.fromkeys(n for n in names if n not in (*sys.stdlib_module_names, SELF)))


def one_paragraph(text: str, limit: int = 300) -> str:
    """The first ``limit`` characters on one line."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[:limit]}…"


def check_environments(entries: Sequence[EnvironmentEntry]) -> list[Check]:
    """Environments of their own: which are not made, and which do not work."""
    checks = []
    for entry in entries:
        who = f"{entry.name}, for {', '.join(entry.plugins)}"
        if entry.python is None:
            cure = f"optvet env make {entry.name}"
            status: Status = "absent"
            words = f"not made: {who}"
        elif entry.problem:
            words, cure, status = entry.problem, entry.cure, "broken"
        else:
            words, cure, status = f"{who}: {entry.python}", "", "ok"
        checks.append(Check(name="environments", status=status, message=words, cure=cure))
    return checks


def check_plugins(plugins: Sequence[Loaded], pip: str) -> list[Check]:
    """Plugins that cannot be used: a library is missing, or the plugin is broken."""
    checks: list[Check] = []
    absent: dict[str, list[str]] = {}
    wanted: dict[str, list[str]] = {}
    for plugin in plugins:
        if plugin.elsewhere:
            continue  # The check of its environment says what is missing.
        who = f"{plugin.family or 'plugin'} {plugin.name}"
        extra = missing_extra(plugin)
        if extra is not None:
            absent.setdefault(extra, []).append(who)
        elif plugin.problem is not None:
            words = f"{who} ({plugin.origin}): {one_paragraph(plugin.problem)}"
            cure = "reinstall or uninstall its distribution"
            status: Status = "warning" if plugin.idle or plugin.displaced else "broken"
            checks.append(Check(name="plugins", status=status, message=words, cure=cure))
        elif plugin.outdated:
            words = f"{who} ({plugin.origin}) works, but {plugin.outdated}"
            cure = "write its members as the contract names them now"
            checks.append(Check(name="plugins", status="warning", message=words, cure=cure))
        elif (more := wanted_extra(plugin)) is not None:
            wanted.setdefault(more, []).append(who)
    for extra in sorted(absent.keys() | wanted.keys()):
        words = "; ".join(
            f"{what}: {', '.join(among[extra])}"
            for what, among in (("not installed", absent), ("can do more", wanted))
            if extra in among
        )
        cure = f"{pip} install '{extra}'"
        checks.append(Check(name="plugins", status="absent", message=words, cure=cure))
    usable = sum(p.problem is None for p in plugins)
    return [*checks, Check(name="plugins", status="ok", message=f"{usable} can be used")]
