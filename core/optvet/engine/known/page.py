"""A page about known faults, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from optvet.engine.known.documents import grouped_by_package
from optvet.spec.records.known import KnownFault
from optvet.spec.words import markdown_text

_HEAD = """\
# Known faults

`optvet known page` makes this page from the documents in `known/`. `optvet advise MODEL` says which
of these faults a model may trigger; `optvet known show FAULT` shows the smallest model.
"""


def page_of(faults: Sequence[KnownFault]) -> str:
    """The page: a table per package."""
    parts = [_HEAD]
    for package, several in grouped_by_package(faults).items():
        rows = "\n".join(map(_row, several))
        parts.append(
            f"\n## {package}\n\n| fault | what happens | passes | releases | upstream |\n"
            f"|---|---|---|---|---|\n{rows}\n"
        )
    return "".join(parts)


def _row(fault: KnownFault) -> str:
    passes = " then ".join(f"`{name}`" for name in fault.pipeline)
    passes = passes or ", ".join(f"`{name}`" for name in fault.passes) or "import and export"
    what = f"{markdown_text(fault.title)}: {fault.symptom}"
    upstream = ", ".join(fault.upstream)
    return f"| `{fault.id}` | {what} | {passes} | {fault.when} | {upstream} |"
