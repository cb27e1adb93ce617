"""Known findings, with a link to the issue of each.

::

    [[known]]
    fingerprint = "9f1c02d7"
    url = "https://tracker.example/1"

    [[known]]
    optimizer = "some_optimizer"
    culprit = "fuse_*"
    message = "*undefined attribute*"
    url = "https://tracker.example/2"
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from optvet.spec.errors import InputError, near_names
from optvet.spec.parsing import read_bytes, read_toml
from optvet.spec.records import Finding
from optvet.spec.symptoms import Symptom
from optvet.spec.toml_lines import join_with_dots, line_of
from optvet.spec.validation_words import words_of
from optvet.spec.words import show

_PATTERNS = ("optimizer", "symptom", "culprit", "message")


class KnownEntry(BaseModel):
    """One known finding: a fingerprint, or patterns that must all match; and its link."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, Field(pattern=r"^https?://[^\s<>\"']+$")]
    fingerprint: Annotated[str | None, Field(pattern=r"^[0-9a-f]{8,64}$")] = None
    optimizer: str | None = None
    symptom: Symptom | None = None
    culprit: str | None = None
    message: str | None = None
    note: str = ""

    @model_validator(mode="after")
    def _says_what(self) -> KnownEntry:
        if self.fingerprint is None and all(getattr(self, name) is None for name in _PATTERNS):
            raise ValueError(
                f"says of no finding that it is known; give fingerprint, or patterns: "
                f"{', '.join(_PATTERNS)}"
            )
        return self

    def means(self, fingerprint: str, optimizer: str, finding: Finding) -> bool:
        """Whether the entry matches this finding."""
        if self.fingerprint is not None and not fingerprint.startswith(self.fingerprint):
            return False
        facts = {
            "optimizer": optimizer,
            "symptom": str(finding.symptom),
            "culprit": ",".join(finding.culprit) or "round trip",
            "message": " ".join(finding.message.split()),
        }
        wanted = {name: getattr(self, name) for name in _PATTERNS}
        return all(fnmatchcase(facts[n], str(p)) for n, p in wanted.items() if p is not None)


class _KnownFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    known: tuple[KnownEntry, ...] = ()


def read_tracked(path: Path) -> tuple[KnownEntry, ...]:
    """The entries of the file ``path``.

    Raises:
        InputError: It cannot be read or a value is wrong; the message says where.
    """
    document = read_toml(path, "listing")
    try:
        return _KnownFile.model_validate(document).known
    except ValidationError as error:
        text = read_bytes(path, "listing").decode("utf-8")
        raise InputError(_refusal(path, text, error)) from error


def _refusal(path: Path, text: str, error: ValidationError) -> str:
    first = error.errors()[0]
    key = tuple(part for part in first["loc"])
    line = line_of(text, key)
    where = f"{path}:{line}" if line else str(path)
    name = str(key[-1])
    if first["type"] == "extra_forbidden":
        known = _KnownFile.model_fields if len(key) == 1 else KnownEntry.model_fields
        words = f"unknown; {_nearest(name, known)}"
    elif first["type"] == "missing":
        words = "missing; each entry needs it"
    elif first["type"] == "value_error":
        words = first["msg"].removeprefix("Value error, ")
    elif name == "url":
        words = f"{show(first['input'])}: expected a link, http:// or https://"
    elif name == "fingerprint":
        words = f"{show(first['input'])}: expected at least its first 8 digits, hexadecimal"
    else:
        words = f"{show(first['input'])}: {words_of(first)}"
    return f"{where}: key {join_with_dots(key)!r}: {words}"


def _nearest(name: str, known: Iterable[str]) -> str:
    near = near_names(name, known, count=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"


def link_of(
    entries: Iterable[KnownEntry], fingerprint: str, optimizer: str, finding: Finding
) -> KnownEntry | None:
    """The first entry that matches a finding; None if the finding is new."""
    return next((e for e in entries if e.means(fingerprint, optimizer, finding)), None)
