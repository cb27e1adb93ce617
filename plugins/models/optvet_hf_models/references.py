"""References to models of the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass

from optvet.plugin import UsageError

ZOO = "onnxmodelzoo"
_NAME = r"[A-Za-z0-9][\w.-]*"
_REFERENCE = re.compile(
    rf"(?:(?P<org>{_NAME})/)?(?P<repo>{_NAME})(?:@(?P<revision>[\w.%-]+))?(?:/(?P<file>.+\.onnx))?"
)


@dataclass(frozen=True)
class HfReference:
    """A reference to a repository at a revision, and to a file where one is named."""

    org: str
    repo: str
    revision: str
    file: str | None

    @property
    def id(self) -> str:
        """The repository as the hub names it."""
        return f"{self.org}/{self.repo}"

    @property
    def label(self) -> str:
        """How it is called in messages."""
        return f"huggingface model {self.id}@{self.revision}"


def parse_reference(reference: str) -> HfReference:
    """The parts of a reference; UsageError if it is none."""
    match = _REFERENCE.fullmatch(reference)
    if match is None or ".." in reference:
        raise UsageError(
            f"huggingface reference {reference!r} is not understood; write it as ORG/REPO, "
            "ORG/REPO@REVISION or ORG/REPO/PATH/FILE.onnx"
        )
    revision = (match["revision"] or "main").replace("%2F", "/").replace("%2f", "/")
    return HfReference(match["org"] or ZOO, match["repo"], revision, match["file"])
