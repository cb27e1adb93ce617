"""A model that was delivered as a file, and how to make it again."""

from __future__ import annotations

from pydantic import Field

from optvet.spec.records.base import Record


class SavedFile(Record):
    """A file that was written; ``digest`` is the sha256 of its content, hexadecimal."""

    path: str
    digest: str
    size_bytes: int

    def line(self) -> str:
        """Path, size and digest."""
        return f"{self.path}, {self.size_bytes:,} bytes, sha256 {self.digest}"


class Saved(Record):
    """The file of a model that was judged right as it lies there, or why none was written.

    ``path`` is the model's, empty if nothing was written: ``reason`` says why. ``beside`` are the
    files of its weights. ``judged`` says how it was loaded and run, and against what. ``command``,
    ``code`` (Python, the body of a function of ``model``) and ``recipe`` (arguments of the
    library's call, or a patch, by name) each make it again; empty where there is no such way.
    """

    path: str = ""
    digest: str = ""
    size_bytes: int = 0
    beside: list[SavedFile] = Field(default_factory=list)
    judged: str = ""
    reason: str = ""
    command: str = ""
    code: str = ""
    recipe: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def of(cls, files: list[SavedFile], judged: str) -> Saved:
        """What was written: the model first, then the files of its weights."""
        first, *beside = files
        return cls(**dict(first), beside=beside, judged=judged)

    def lines(self) -> list[str]:
        """What was written, a file on a line, or why nothing was."""
        if not self.path:
            return [f"nothing: {self.reason}"]
        first = SavedFile(path=self.path, digest=self.digest, size_bytes=self.size_bytes)
        return [*(file.line() for file in (first, *self.beside)), self.judged]
