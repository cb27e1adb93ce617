"""What an answer rests on beside what was asked: the versions and builds of all that takes part.

A remembered answer is of these very versions; with another of any of them it is worked out anew.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

from optvet.spec.protocols import Optimizer, Runtime, UsesLibraries

CODE_VERSION = 11
"""Raised when the meaning of a cached fact changes."""
_LIBRARIES = ("onnx", "numpy", "scipy", "protobuf", "ml_dtypes")
"""They read, check and evaluate models for everybody."""


@cache
def basis() -> tuple[object, ...]:
    """Of what every answer depends on: this code, Python, and the libraries that all share."""
    return CODE_VERSION, *sys.version_info[:3], *(installed(name) for name in _LIBRARIES)


def about_plugin(plugin: Optimizer | Runtime) -> tuple[object, ...]:
    """Of a plugin and the libraries that it uses; hashable."""
    libraries = plugin.libraries if isinstance(plugin, UsesLibraries) else {}
    modules = {name.partition(".")[0] for name in (*plugin.preload, *libraries.values())}
    return (
        plugin.name,
        plugin.version(),
        _source(type(plugin)),
        _builds(tuple(sorted(modules)), tuple(sorted(libraries))),
    )


@cache
def installed(distribution: str) -> str:
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
    names = {name for module in modules for name in _owners_of(module)}
    return tuple(f"{name} {installed(name)}" for name in sorted({*names, *named}))


@cache
def _owners() -> Mapping[str, Sequence[metadata.Distribution]]:
    """The distributions of each module, also of what else they install at the top.

    ``metadata.packages_distributions`` makes a path of every installed file and parses the metadata
    of every distribution, which takes longer than vetting a small model.
    """
    owners: dict[str, list[metadata.Distribution]] = {}
    for distribution in metadata.distributions():
        declared = (distribution.read_text("top_level.txt") or "").split()
        lines = (distribution.read_text("RECORD") or "").splitlines() if not declared else ()
        for name in set(declared) or {_top(line) for line in lines}:
            owners.setdefault(name, []).append(distribution)
    return owners


def _top(line: str) -> str:
    """The module that a line of a RECORD is a file of."""
    return line.partition(",")[0].partition("/")[0].partition(".")[0]


@cache
def _owners_of(module: str) -> tuple[str, ...]:
    return tuple(sorted({distribution.name for distribution in _owners().get(module, ())}))


@cache
def _registered() -> Mapping[str, str]:
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
    """The distribution of a plugin, and a digest of the files that its class is written in."""
    roots = {kind.__module__.partition(".")[0] for kind in plugin.__mro__}
    registered = _registered()
    names = {registered[root] for root in roots & registered.keys()}
    unknown = roots - registered.keys() - sys.stdlib_module_names - {"optvet"}
    names |= {name for root in unknown for name in _owners_of(root)}
    digest = hashlib.sha256()
    for kind in plugin.__mro__:
        module = sys.modules.get(kind.__module__)
        file = None if module is None else getattr(module, "__file__", None)
        if file is not None and kind.__module__.partition(".")[0] not in sys.stdlib_module_names:
            digest.update(Path(file).read_bytes())
    return " ".join(
        (*(f"{name} {installed(name)}" for name in sorted(names)), digest.hexdigest()[:16])
    )
