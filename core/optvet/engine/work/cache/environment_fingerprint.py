"""The environment fingerprint: versions and builds of all code that contributes to an answer.

Cached answers are valid for one fingerprint only.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

from optvet.engine import numerics
from optvet.engine.work.cache.modified_installs import modified_code_digest, owners_of
from optvet.engine.work.sandbox import landlock
from optvet.spec.extras import PluginExtras, extras
from optvet.spec.optimizer_protocols import Optimizer
from optvet.spec.runtime_protocols import Runtime

CODE_VERSION = 16
"""Raised when the meaning of a cached fact changes, and what measures noise aside."""
_LIBRARIES = ("onnx", "numpy", "scipy", "protobuf", "ml_dtypes")
"""They read, check and evaluate models for everybody."""


def fingerprint_environment() -> tuple[object, ...]:
    """Versions that every answer depends on: this code, Python, and the shared libraries."""
    versions = (version_and_digest(name) for name in _LIBRARIES)
    # The user's setting is asked each time: a process may serve commands of several settings.
    confined = landlock.setting()
    where = (confined,) if confined else ()
    return CODE_VERSION, *sys.version_info[:3], *versions, modified_code_digest("onnx"), *where


@cache
def numerics_digest() -> str:
    """A digest of the code that measures noise: a change of it is not answered from the cache."""
    files = sorted(Path(numerics.__file__ or "").parent.rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def about_plugin(plugin: Optimizer | Runtime) -> tuple[object, ...]:
    """Name, versions and builds of a plugin and its libraries; hashable."""
    libraries = extras(plugin, PluginExtras).libraries
    modules = modules_of(plugin)
    return (
        plugin.name,
        plugin.version(),
        _source(type(plugin)),
        _builds(modules, tuple(sorted(libraries))),
        modified_code_digest(*modules),
    )


def modules_of(plugin: Optimizer | Runtime) -> tuple[str, ...]:
    """Top-level modules of the libraries that a plugin uses, without optvet's own; sorted."""
    libraries = extras(plugin, PluginExtras).libraries
    names = (*plugin.preload, *libraries.values())
    return tuple(sorted({name.partition(".")[0] for name in names} - {"optvet"}))


@cache
def version_and_digest(distribution: str) -> str:
    """Version of a distribution, and a digest of what was installed; empty if it is not there.

    Two builds of one version, such as a nightly one, differ in their lists of files.
    """
    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return ""
    record = found.read_text("RECORD") or ""
    return f"{found.version} {hashlib.sha256(record.encode()).hexdigest()[:16]}"


@cache
def _builds(modules: tuple[str, ...], named: tuple[str, ...]) -> tuple[str, ...]:
    names = {name for module in modules for name in owners_of(module)}
    return tuple(f"{name} {version_and_digest(name)}" for name in sorted({*names, *named}))


@cache
def _plugin_distributions() -> Mapping[str, str]:
    """The distribution of each module that is registered as a plugin.

    What is installed from a checkout lists no modules, but what it registers.
    """
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        # Most distributions register nothing; parsing what they do register takes longer.
        if "[optvet]" in (distribution.read_text("entry_points.txt") or ""):
            name = distribution.name
            for point in distribution.entry_points.select(group="optvet"):
                found.setdefault(point.value.partition(":")[0].partition(".")[0], name)
    return found


@cache
def _source(plugin: type) -> str:
    """The distribution of a plugin, and a digest of the packages that its class is written in."""
    roots = {kind.__module__.partition(".")[0] for kind in plugin.__mro__}
    registered = _plugin_distributions()
    names = {registered[root] for root in roots & registered.keys()}
    unknown = roots - registered.keys() - sys.stdlib_module_names - {"optvet"}
    names |= {name for root in unknown for name in owners_of(root)}
    digest = hashlib.sha256()
    for kind in plugin.__mro__:
        for file in _files_of(kind):
            digest.update(file.read_bytes())
    return " ".join(
        (*(f"{name} {version_and_digest(name)}" for name in sorted(names)), digest.hexdigest()[:16])
    )


def _files_of(kind: type) -> list[Path]:
    """The files that a class of a plugin rests on: its module and those beside it in a package."""
    root = kind.__module__.partition(".")[0]
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if file is None or root in sys.stdlib_module_names:
        return []
    # Protocols of optvet stand beside each other, and a class has those that it names.
    if root == "optvet" or not getattr(module, "__package__", ""):
        return [Path(file)]
    return sorted(Path(file).parent.glob("*.py"))
