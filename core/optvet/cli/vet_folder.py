"""The screen of ``optvet vet``, of several models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from optvet.cli.render import VERDICT_COLOURS, table_of, text
from optvet.cli.terminal import one_line
from optvet.spec.records.error import ErrorRecord
from optvet.spec.records.vet import Finding, VetResult


def folder_table(
    rows: Sequence[tuple[str, str, VetResult | ErrorRecord]], optimizers: bool = False
) -> RenderableType:
    """One line per model and optimizer: verdict, what was found, seconds.

    Args:
        rows: Model, optimizer, and the result, or why there is none.
        optimizers: Whether the optimizer is shown.
    """
    who = [("optimizer", "")] * optimizers
    keys = 2 + optimizers
    table = table_of(("verdict", ""), ("model", ""), *who, ("findings", ""), keys=keys)
    table.add_column("seconds", justify="right", no_wrap=True)
    for model, optimizer, result in rows:
        name = [text(model.rpartition("/")[2]), *([text(optimizer)] * optimizers)]
        if isinstance(result, ErrorRecord):
            verdict = Text(result.symptom or "error", "yellow" if result.symptom else "red")
            table.add_row(verdict, *name, text(one_line(result.message, 90)), "")
            continue
        verdict = Text(result.verdict, VERDICT_COLOURS[result.verdict])
        found = [f for f in result.findings if f.severity != "note"]
        words = "\n".join(f"{f.symptom}: {f.blamed()}" for f in found)
        table.add_row(verdict, *name, text(words), f"{result.cost.wall_s:.1f}")
    return Padding(table, (1, 0, 0, 0))


def distinct(results: Sequence[tuple[str, VetResult]]) -> Iterator[RenderableType]:
    """Findings of one fingerprint as one, with the models that have it; nothing if none has one."""
    models: dict[str, dict[str, None]] = {}
    first: dict[str, Finding] = {}
    for name, result in results:
        for finding in result.findings:
            if finding.fingerprint is not None:
                models.setdefault(finding.fingerprint, {})[name] = None
                first.setdefault(finding.fingerprint, finding)
    if not models:
        return
    table = table_of(("fingerprint", ""), ("finding", ""), ("models", ""))
    for fingerprint, names in models.items():
        finding = first[fingerprint]
        words = f"{finding.symptom}: {finding.blamed()}"
        table.add_row(text(fingerprint[:8]), text(words), text("\n".join(names)))
    yield Padding(table, (1, 0, 0, 0))
