"""The script beside a part of a source, and the files that it needs to run and compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from optvet.engine.scripts import comparing
from optvet.engine.scripts.rendering import render
from optvet.spec.converters import PartScript

PART_SCRIPT = "reproduce.py"
PART = "part.py"
"""The source itself."""
VERSIONS = "versions.json"
"""Versions of packages by which a hunt saw the fault."""


def part_files(script: PartScript, snippets: Sequence[str], tolerance: float) -> Mapping[str, str]:
    """Texts by name; ``snippets`` are bodies of ``run(model, feeds)``, the best first.

    They run models in ONNX; ``script`` knows how to run one of another format.
    """
    snippets = [script.run] if script.run else snippets
    return {
        PART_SCRIPT: render("part.py", script=script, tolerance=tolerance),
        "running.py": render("running.py", snippets=snippets, onnx=not script.run),
        "comparing.py": Path(comparing.__file__).read_text("utf-8"),
    }


def onnx_part(run: str) -> str:
    """Text of the file of a part in ONNX; ``run`` is the body of ``run(model, feeds)``."""
    return render("onnx_part.py", run=run)
