"""On the screen of ``optvet vet``: which known faults its findings are."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from optvet.cli.render import text
from optvet.cli.vet_facts import labelled_grid
from optvet.spec.records.vet import VetResult


def known_faults(result: VetResult) -> Iterator[RenderableType]:
    """A row per known fault that a finding is, with the releases that have it."""
    ids = dict.fromkeys(name for finding in result.findings for name in finding.known)
    if not ids:
        return
    from optvet.engine.known.documents import shipped

    rows = [f"{fault.id}, {fault.when}" for fault in shipped() if fault.id in ids]
    yield labelled_grid([("known", text("\n".join(rows)))])
