"""On the screen of ``optvet vet``: which known faults its findings are."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from optvet.cli.render import text
from optvet.cli.vet_facts import labelled_grid
from optvet.spec.records.vet import VetResult


def known_faults(result: VetResult) -> Iterator[RenderableType]:
    """A row per known fault that a finding is, with the releases that have it."""
    from optvet.engine.known.documents import shipped
    from optvet.engine.known.naming import name_findings

    named = name_findings(result, shipped())
    faults = {fault.id: fault for several in named.values() for fault in several}
    if faults:
        rows = [f"{fault.id}, {fault.when}" for fault in faults.values()]
        yield labelled_grid([("known", text("\n".join(rows)))])
