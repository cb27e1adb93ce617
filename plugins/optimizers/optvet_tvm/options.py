"""Options of TVM as an optimizer."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from optvet.plugin import Sensitive

EXTRA_PASS = re.compile(
    r"(?:(?P<name>[^=@:,]+)=)?(?P<module>[^=@:,]+):(?P<function>\w+)(?:@(?P<position>\d+))?"
)


_HARMLESS = frozenset({"kind", "mcpu", "mattr", "mtriple", "num-cores", "opt-level"})
UNOPTIMIZED = '{"kind": "llvm", "opt-level": 0}'
"""The default target, with machine code as it comes."""


def _is_plain_target(target: object) -> bool:
    """Whether a target has none but options that choose a processor."""
    if target == "llvm":
        return True
    try:
        parts = json.loads(target) if isinstance(target, str) else target
    except ValueError:
        return False
    return isinstance(parts, dict) and parts.get("kind") == "llvm" and parts.keys() <= _HARMLESS


class TvmOptions(BaseModel):
    """How models are compiled."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: Annotated[
        str,
        Sensitive("may pass LLVM options that name files", unless=lambda t: _is_plain_target(t)),
    ] = "llvm"
    """What code is generated for; the runtime runs on the CPU. A name, or
    {"kind": "llvm", "mcpu": …}."""
    opt_level: int = Field(default=3, ge=0)
    """Optimization level of TVM's pass context."""
    tir: bool = False
    """Passes over the loops of kernels can be left out too: they are listed, behind the others."""
    package: bool = False
    """The other passes over the graph of the installed release that need no argument are listed
    too, behind those of the graph; some make another interface, or no executable."""
    extra_passes: Annotated[tuple[str, ...], Sensitive("runs Python code")] = ()
    """Passes of your own, [NAME=]MODULE:FUNCTION[@POSITION]. MODULE is a module or a file.py,
    FUNCTION makes a TVM pass, POSITION counts in the list of all passes (default: behind those of
    the graph)."""

    @field_validator("target", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return json.dumps(value) if isinstance(value, dict) else value

    @field_validator("extra_passes")
    @classmethod
    def _readable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if not EXTRA_PASS.fullmatch(text):
                raise ValueError(f"{text!r} is not [NAME=]MODULE:FUNCTION[@POSITION]")
        return value
