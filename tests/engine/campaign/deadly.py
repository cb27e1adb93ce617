"""Optimizers that abort, hang or eat memory on some models, for jobs in processes of their own.

``install`` makes a folder that, on ``PYTHONPATH``, is an installed plugin.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from tests.engine.work.faults import hog_memory

from optvet.plugin import Artifact, Optimizer, Pass, Traits, hookimpl


class NoOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Deadly:
    """One pass, which does to its process what the name of the model's graph says."""

    name = "deadly"
    preload: Sequence[str] = ()
    options: NoOptions = NoOptions()
    traits = Traits()

    def version(self) -> str:
        return "1.0"

    def passes(self) -> Sequence[Pass]:
        return [Pass("strike", "rewrite")]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        return {"default": ("strike",), "all": ("strike",)}

    def apply(self, source: Artifact, passes: Sequence[str], options: NoOptions) -> Artifact:
        if passes and b"abort_" in source.data:
            os.abort()
        if passes and b"hang_" in source.data:
            time.sleep(3600)
        if passes and b"eat_" in source.data:
            hog_memory()
        return source


@hookimpl
def optvet_optimizers() -> Iterable[Optimizer]:
    return [Deadly()]


def install(folder: Path) -> None:
    """Make ``folder`` hold this module as the plugin "deadly"."""
    about = folder / "deadly-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "optvet_deadly.py").write_text(Path(__file__).read_text())
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: deadly\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[optvet]\ndeadly = optvet_deadly\n")
