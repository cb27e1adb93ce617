"""What can be asked of ``hunt``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

_TIME = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([smh])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def budget_of(text: object) -> tuple[int | None, float | None]:
    """Candidates, or seconds of CPU time, that ``1000`` or ``90s``, ``10m``, ``2h`` means.

    Raises:
        ValueError: It is neither.
    """
    words = str(text).strip()
    if words.isdecimal() and 0 < int(words) < 10**12:
        return int(words), None
    match = _TIME.fullmatch(words)
    if match is None or not float(match[1]):
        raise ValueError(
            f"{words[:100]!r} is no budget; write CPU time as 90s, 10m or 2h, or a number of models"
        )
    return None, float(match[1]) * _SECONDS[match[2]]


class HuntRequest(BaseModel):
    """One hunt: in which optimizer, with what, and for how long."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    optimizer: str
    """The optimizer."""
    out: Path
    """Folder for findings and state."""
    budget: str = "10m"
    """CPU time of making and judging models, or a number of models."""
    passes: tuple[str, ...] = ()
    """Passes to hunt in; all if empty."""
    pools: tuple[str, ...] = ()
    """``NAME`` or ``NAME:ARGUMENT``; all that need no argument if empty."""
    seed: int = Field(0, ge=0)
    """Seeds everything random."""
    jobs: int | None = Field(None, ge=1)
    """Worker processes at a time."""
    known: tuple[Path, ...] = ()
    """Baselines, bundles or folders of bundles, whose findings are not reported again."""
    resume: bool = False
    """Whether to go on with the hunt in ``out``."""
    optimizer_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the optimizer."""
    cache_dir: Path | None = None
    """Folder where pools are kept; None for the user's cache folder."""

    @field_validator("budget")
    @classmethod
    def _check_budget(cls, value: str) -> str:
        budget_of(value)
        return value
