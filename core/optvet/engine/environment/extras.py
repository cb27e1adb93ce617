"""Finding the extra that installs a missing library, from the distributions' metadata.

A plugin whose library is absent raises ImportError; the user needs the name to install.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, requires

from optvet.engine.discovery import Loaded

_NAMED = re.compile(r"install ([\w.-]+\[[\w.,-]+\])")
_NO_MODULE = re.compile(r"No module named '([\w]+)")
_OWNER = re.compile(r"\(([\w.-]+) \S+\)$")
_REQUIREMENT = re.compile(r"^([\w.-]++)[^;]*+;.*\bextra\s*==\s*['\"]([\w.-]+)['\"]")

Requires = Callable[[str], Sequence[str] | None]


def canonical(name: str) -> str:
    """The canonical name of a distribution: lower case, hyphens."""
    return re.sub(r"[-_.]+", "-", name).lower()


def missing_extra(plugin: Loaded, requires: Requires = requires) -> str | None:
    """The extra, such as ``optvet[tvm]``, that makes ``plugin`` usable; None if there is none."""
    if plugin.problem is None:
        return None
    return extra_for(plugin.problem, _owner(plugin), requires)


def wanted_extra(plugin: Loaded, requires: Requires = requires) -> str | None:
    """The extra, such as ``optvet[speech]``, with optional libraries of ``plugin``; or None."""
    owner = _owner(plugin)
    found = (extra_for(f"No module named {m!r}", owner, requires) for m in plugin.lacks)
    names = sorted({extra.partition("[")[2].rstrip("]") for extra in found if extra})
    return f"{owner}[{','.join(names)}]" if names else None


def _owner(plugin: Loaded) -> str:
    owner = _OWNER.search(plugin.origin)
    return owner[1] if owner else "optvet"


def extra_for(problem: str, owner: str = "optvet", requires: Requires = requires) -> str | None:
    """The extra of distribution ``owner`` that cures ``problem``, an ImportError's text.

    The text may name the extra itself; else the extra is that which requires a distribution named
    like the module, the smallest if there are several.
    """
    named = _NAMED.search(problem)
    if named is not None:
        return named[1]
    module = _NO_MODULE.search(problem)
    if module is None:
        return None
    try:
        lines = requires(owner) or []
    except PackageNotFoundError:
        return None
    found = [m for line in lines if (m := _REQUIREMENT.match(line)) is not None]
    extras = [m[2] for m in found if canonical(m[1]) == canonical(module[1])]
    sizes = {e: sum(m[2] == e for m in found) for e in extras}
    best = min(sizes, key=lambda e: (sizes[e], e), default=None)
    return f"{owner}[{best}]" if best is not None else None
