"""Options of TVM as an optimizer."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from optvet.plugin import Sensitive

EXTRA_PASS = re.compile(
    r"(?:(?P<name>[^=@:,]+)=)?(?P<module>[^=@:,]+):(?P<function>\w+)(?:@(?P<position>\d+))?"
)


_TARGET = re.compile(r"llvm(\s+-(mcpu|mattr|mtriple|num-cores|opt-level)=[\w+,.-]+)*")


def _is_plain_target(target: object) -> bool:
    """Whether a target has none but options that choose a processor."""
    return isinstance(target, str) and _TARGET.fullmatch(target) is not None


class TvmOptions(BaseModel):
    """How models are compiled."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: Annotated[
        str,
        Sensitive("may pass LLVM options that name files", unless=lambda t: _is_plain_target(t)),
    ] = "llvm"
    """What code is generated for; the runtime runs on the CPU."""
    opt_level: int = Field(default=3, ge=0)
    """Optimization level of TVM's pass context."""
    tir: bool = False
    """Passes over the loops of kernels can be left out too: they are listed, behind the others."""
    extra_passes: Annotated[tuple[str, ...], Sensitive("runs Python code")] = ()
    """Passes of your own, [NAME=]MODULE:FUNCTION[@POSITION]. MODULE is a module or a file.py,
    FUNCTION makes a TVM pass, POSITION counts in the list of all passes (default: behind those of
    the graph)."""

    @field_validator("extra_passes")
    @classmethod
    def _readable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if not EXTRA_PASS.fullmatch(text):
                raise ValueError(f"{text!r} is not [NAME=]MODULE:FUNCTION[@POSITION]")
        return value
