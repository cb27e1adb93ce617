"""An optimizer that returns an existing file, so that trials judge the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from optvet.engine.options import NoOptions
from optvet.spec.types import Artifact, Pass, Traits

FILE = "file"
"""The only pass of what makes a file."""


class MadeFile:
    """The optimizer whose result is a file that is there; without its pass, it is the source."""

    name = "saved"
    preload: Sequence[str] = ()
    options = NoOptions()
    memory_factor = 1.0

    def __init__(self, path: Path, digest: str, about: Pass, traits: Traits) -> None:
        self.path, self.digest, self.about, self.traits = path, digest, about, traits

    def version(self) -> str:
        """What the file holds: a trial of another content is another trial."""
        return self.digest

    def passes(self) -> Sequence[Pass]:
        """One, which declares what the passes that made the file do."""
        return (self.about,)

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """The only one."""
        return {"default": (FILE,)}

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        """The file."""
        return Artifact("onnx", path=self.path) if passes else source

    def apply_file(
        self, source: Artifact, passes: Sequence[str], options: BaseModel, folder: Path
    ) -> Artifact:
        """The file, for a large original."""
        return self.apply(source, passes, options)
