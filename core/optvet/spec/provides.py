"""Whether an object has what a protocol asks for: ``isinstance``, with the members looked up once.

Python 3.11 collects the members of a protocol at each ``isinstance``, which took a third of the
time in which plugins are discovered.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Generic, Protocol


def provides(thing: object, protocol: type) -> bool:
    """Whether ``thing`` has all members of ``protocol``; for any other class, ``isinstance``."""
    if not getattr(protocol, "_is_protocol", False) or protocol in type(thing).__mro__:
        return isinstance(thing, protocol)
    return all(
        hasattr(thing, name) and not (is_method and getattr(thing, name) is None)
        for name, is_method in _members(protocol)
    )


def members_of(protocol: type) -> frozenset[str]:
    """Names of attributes and methods of a protocol, those of its bases too."""
    return frozenset(name for name, _ in _members(protocol))


@lru_cache(maxsize=256)
def _members(protocol: type) -> tuple[tuple[str, bool], ...]:
    """Names of members, each with whether it is a method: one that is None is as good as absent."""
    bases = [base for base in protocol.__mro__ if base not in (object, Protocol, Generic)]
    named = {n for base in bases for n in (*vars(base), *vars(base).get("__annotations__", {}))}
    public = sorted(name for name in named if not name.startswith("_"))
    return tuple((name, callable(getattr(protocol, name, None))) for name in public)
