"""The text of an issue, to be pasted unchanged into the tracker of an optimizer.

Names and messages come from models and native code, so they are quoted or escaped.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable

from optvet.engine.scripts.context import ReproContext
from optvet.engine.scripts.inline import Standalone
from optvet.spec.words import markdown_block, markdown_code, markdown_text

_ISSUE_CHARS = 12_000
_MESSAGE_CHARS = 2_000


def issue(context: ReproContext, shown: Standalone | None) -> str:
    """The text of ``ISSUE.md``: title, script or steps, expected, actual, graphs, versions."""
    passes = (
        ", ".join(markdown_code(p) for p in context.culprit) or "none (import and export alone)"
    )
    versions = "\n".join(
        f"- {markdown_text(n)} {markdown_text(v)}" for n, v in context.versions.items()
    )
    options = json.dumps(context.options.model_dump(mode="json"))
    options = without_folders(options, context.carried)
    info = context.symptom.info
    parts = [
        f"# {markdown_text(context.title)}\n",
        f"Passes: {passes}. Options of the optimizer: {markdown_code(options)}.\n",
        *_steps(context, shown),
        f"## Expected\n\n{info.expected}\n",
        f"## Actual\n\n{info.headline[0].upper()}{info.headline[1:]}:\n",
        markdown_block(_cut(_wrap_lines(context.message), _MESSAGE_CHARS)),
        f"## Versions\n\n{versions}\n",
        *_section("## Where", context.where),
        *_section("## Lines that rewrite the model", context.lines),
        "## The model\n",
        markdown_block(_cut(context.before, _ISSUE_CHARS)),
    ]
    if context.after:
        parts += [
            "The optimized model:\n",
            markdown_block(_cut(context.after, _ISSUE_CHARS)),
        ]
    return "\n".join(parts)


def _section(heading: str, text: str) -> list[str]:
    return [f"{heading}\n", markdown_block(_cut(text, _ISSUE_CHARS))] if text else []


def without_folders(text: str, files: Iterable[str]) -> str:
    """``text`` with the files that the bundle carries called by their names, not by their paths."""
    for name in files:
        path = rf'[^"=\s]*/{re.escape(name)}\b'
        text = re.sub(path, name.replace("\\", r"\\"), text)
    return text


def _steps(context: ReproContext, shown: Standalone | None) -> list[str]:
    if shown is None:
        words = "Run `python repro.py` in this folder; it exits with 1 while this is so. The call:"
        call = textwrap.dedent(context.optimize).strip()
        return [f"## To reproduce\n\n{words}\n", markdown_block(call, "python")]
    return [
        "## To reproduce\n",
        markdown_block(shown.script, "python"),
        "This prints, and exits with 1:\n",
        markdown_block(_cut(_wrap_lines(shown.printed), _MESSAGE_CHARS)),
    ]


def _wrap_lines(text: str) -> str:
    """``text`` with long lines broken at spaces, since code blocks do not wrap."""
    return "\n".join(textwrap.fill(line, 100, break_long_words=False) for line in text.split("\n"))


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n… {len(text) - limit:,} more characters"
