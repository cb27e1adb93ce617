"""Base of every document that optvet writes."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from optvet.spec.words import printable_json


class Record(BaseModel):
    """Base of all that is written: strict, frozen, no unknown keys."""

    # Built when first used: there are a hundred of them, and a command writes one or two.
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)

    def to_json(self) -> str:
        """The document as indented JSON, with ``schema`` as the key of its version."""
        return printable_json(self.model_dump_json(by_alias=True, indent=2))
