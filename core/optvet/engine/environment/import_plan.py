"""Divides libraries among processes so that what many of them import is imported in one.

The division decides how long importing takes, and not what is found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution

from packaging.requirements import InvalidRequirement, Requirement

from optvet.engine.environment.extras import canonical
from optvet.engine.environment.packages import name_of


@dataclass(frozen=True)
class ImportPlan:
    """Lists of distributions, each imported in a process of its own.

    ``needs`` are all that importing a distribution may import, itself included.
    """

    parts: list[list[str]]
    needs: Mapping[str, frozenset[str]]

    def saw_others(self, name: str) -> bool:
        """Whether something is imported before ``name`` in its process that it does not need."""
        part = next(p for p in self.parts if name in p)
        return not set(part[: part.index(name)]) <= self.needs.get(name, frozenset())


def plan_imports(
    installed: Iterable[Distribution],
    names: Collection[str],
    more: Mapping[str, Collection[str]],
    groups: int,
) -> ImportPlan:
    """Divide ``names`` among at most ``groups`` processes.

    Args:
        installed: All distributions.
        names: What is to be imported.
        more: What distributions import where it is installed, though they do not require it.
        groups: The number of processes.
    """
    every = list(installed)
    needs = needs_of(every, more)
    late = [n for n in names if needs.get(n, frozenset()) & more.keys()]
    parts = divide(names, needs, sizes_of(every), groups)
    return ImportPlan([_needs_first(part, needs, late) for part in parts], needs)


def needs_of(
    installed: Iterable[Distribution], more: Mapping[str, Collection[str]]
) -> dict[str, frozenset[str]]:
    """What each distribution needs by its metadata and ``more``, with what these need in turn."""
    direct = {name_of(d): {*_required(d), *more.get(name_of(d), ())} for d in installed}
    found: dict[str, frozenset[str]] = {}
    for name in direct:
        reached, left = {name}, [name]
        while left:
            further = (direct[left.pop()] & direct.keys()) - reached
            reached |= further
            left += further
        found[name] = frozenset(reached)
    return found


def sizes_of(installed: Iterable[Distribution]) -> dict[str, int]:
    """The number of Python files of each distribution."""
    return {
        name_of(distribution): (distribution.read_text("RECORD") or "").count(".py,") + 1
        for distribution in installed
    }


def divide(
    names: Collection[str],
    needs: Mapping[str, frozenset[str]],
    sizes: Mapping[str, int],
    groups: int,
) -> list[list[str]]:
    """``names`` in at most ``groups`` lists of about the same cost, shared needs in one list."""

    def cost(of: Iterable[str]) -> int:
        return sum(sizes.get(name, 1) for name in of)

    def all_of(name: str) -> frozenset[str]:
        return needs.get(name, frozenset({name}))

    loads: list[set[str]] = [set() for _ in range(groups)]
    lists: list[list[str]] = [[] for _ in range(groups)]
    for name in sorted(names, key=lambda n: (-cost(all_of(n)), n)):
        # What is added counts twice: to import it in two processes costs more than a long list.
        added = [cost(all_of(name) - load) for load in loads]
        chosen = min(range(groups), key=lambda i: (added[i] > 0, cost(loads[i]) + 2 * added[i]))
        loads[chosen] |= all_of(name)
        lists[chosen].append(name)
    return [each for each in lists if each]


def _needs_first(
    part: Sequence[str], needs: Mapping[str, frozenset[str]], late: Collection[str]
) -> list[str]:
    """``part`` in its order, but each after those of its needs that are in it.

    Those that are ``late`` come last: what they import is no requirement of theirs, so that the
    failure of another library after them would have to be tried again.
    """
    ordered: list[str] = []
    begun: set[str] = set()

    def add(name: str) -> None:
        begun.add(name)
        # What has most needs first: then it is imported after them and after nothing else.
        inside = [n for n in part if n in needs.get(name, ())]
        for needed in sorted(inside, key=lambda n: (-len(needs.get(n, ())), n)):
            if needed not in begun:
                add(needed)
        ordered.append(name)

    for name in sorted(part, key=lambda n: n in late):
        if name not in begun:
            add(name)
    return ordered


def _required(distribution: Distribution) -> set[str]:
    """Names of the requirements that hold here, without extras."""
    names = set()
    for line in distribution.requires or ():
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            names.add(canonical(requirement.name))
    return names
