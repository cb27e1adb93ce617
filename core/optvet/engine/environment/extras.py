"""Finding the extra that installs a missing library, from the distributions' metadata."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, requires

from optvet.engine.plugin_entries import SELF, Loaded
from optvet.spec.errors import MissingLibrary

_REQUIREMENT = re.compile(r"^([\w.-]++)[^;]*+;.*\bextra\s*==\s*['\"]([\w.-]+)['\"]")

Requires = Callable[[str], Sequence[str] | None]


def canonical(name: str) -> str:
    """The canonical name of a distribution: lower case, hyphens."""
    return re.sub(r"[-_.]+", "-", name).lower()


def missing_extra(plugin: Loaded, requires: Requires = requires) -> str | None:
    """The extra, such as ``optvet[tvm]``, that makes ``plugin`` usable; None if there is none."""
    if plugin.absent is None:
        return None
    return extra_for(plugin.absent, plugin.distribution, requires)


def wanted_extra(plugin: Loaded, requires: Requires = requires) -> str | None:
    """The extra, such as ``optvet[speech]``, with optional libraries of ``plugin``; or None."""
    owner = plugin.distribution
    found = (_extra_with(m, owner, requires) for m in plugin.lacks)
    names = sorted({extra.partition("[")[2].rstrip("]") for extra in found if extra})
    return f"{owner}[{','.join(names)}]" if names else None


def extra_for(
    absent: ModuleNotFoundError | MissingLibrary, owner: str = SELF, requires: Requires = requires
) -> str | None:
    """The extra of distribution ``owner`` that installs what is absent; None if no extra does."""
    if isinstance(absent, MissingLibrary):
        return absent.extra
    return _extra_with((absent.name or "").partition(".")[0], owner, requires)


def _extra_with(module: str, owner: str, requires: Requires) -> str | None:
    """The smallest extra that requires a distribution named like ``module``."""
    try:
        lines = requires(owner) or []
    except PackageNotFoundError:
        return None
    found = [m for line in lines if (m := _REQUIREMENT.match(line)) is not None]
    extras = [m[2] for m in found if canonical(m[1]) == canonical(module)]
    sizes = {e: sum(m[2] == e for m in found) for e in extras}
    best = min(sizes, key=lambda e: (sizes[e], e), default=None)
    return f"{owner}[{best}]" if best is not None else None
