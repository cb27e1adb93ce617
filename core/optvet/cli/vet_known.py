"""On the screen of ``optvet vet``: which known faults its findings are."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from optvet.cli.render import text
from optvet.cli.vet_facts import labelled_grid
from optvet.spec.records.vet import VetResult


def known_faults(result: VetResult) -> Iterator[RenderableType]:
    """A row per known fault that a finding is, with the releases that have it."""
    released = {name: f.known_releases.get(name) for f in result.findings for name in f.known}
    unfinished = dict.fromkeys(name for f in result.findings for name in f.known_unfinished)
    if not released and not unfinished:
        return
    rows = [f"{name}, {words}" if words else name for name, words in released.items()]
    if any(released.values()):
        rows.append("by the fault's smallest model; on this one no other release was tried")
    if unfinished:
        rows.append(
            f"not looked at fully, the search takes too many steps: {', '.join(unfinished)}"
        )
    yield labelled_grid([("known", text("\n".join(rows)))])
