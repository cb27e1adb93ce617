"""The text of an issue about a converter, to be pasted into its tracker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from optvet.engine.scripts.parts import PART, PART_SCRIPT
from optvet.spec.foreign import read_text
from optvet.spec.records.convert import ConversionFinding
from optvet.spec.words import markdown_block, markdown_text

_CHARS = 6_000


def issue_of(
    title: str, fault: ConversionFinding, bundle: Path, versions: Mapping[str, str]
) -> str:
    """Markdown: title, source, script, expected, actual, versions, where."""
    info = fault.symptom.info
    source = read_text(bundle / PART)[:_CHARS]
    listed = "\n".join(f"- {markdown_text(n)} {markdown_text(v)}" for n, v in versions.items())
    parts = [
        f"# {markdown_text(title)}\n",
        f"Stages: {markdown_text(', '.join(fault.stages))}.\n",
        f"## To reproduce\n\n`python {PART_SCRIPT}` in this folder converts this source, runs the "
        "result, and exits with 1 while this is so:\n",
        markdown_block(source, "python"),
        "## Expected\n\nThe converted model gives what the source gives.\n",
        f"## Actual\n\n{info.headline[0].upper()}{info.headline[1:]}:\n",
        markdown_block(fault.message[:_CHARS]),
        f"## Versions\n\n{listed}\n",
    ]
    if fault.place is not None and (words := fault.place.words()):
        parts += ["## Where\n", markdown_block("\n".join([words, *fault.place.nodes])[:_CHARS])]
    return "\n".join(parts)
