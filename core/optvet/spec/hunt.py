"""What can be asked of ``hunt``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from optvet.spec.request import Names, Texts, duration_of, option

CONVERTER = "converter:"
"""Before the name of a converter that is hunted in."""
OPERATORS_CONVERTED = "operators were converted"


def budget_of(text: object) -> tuple[int | None, float | None]:
    """Candidates, or seconds of CPU time, that ``1000`` or ``90s``, ``10m``, ``2h`` means.

    Raises:
        ValueError: It is neither.
    """
    words = str(text).strip()
    if words.isdecimal() and 0 < int(words) < 10**12:
        return int(words), None
    try:
        return None, duration_of(words if words[-1:].isalpha() else "")
    except ValueError:
        raise ValueError(
            f"{words[:100]!r} is no budget; write CPU time as 90s, 10m or 2h, or a number of models"
        ) from None


def _checked_budget(value: object) -> str:
    budget_of(value)
    return str(value)


_WHERE, _WITH, _LIMITS, _ANSWER = "Where to hunt", "With what", "Limits and cache", "The answer"


class HuntRequest(BaseModel):
    """One hunt: in which optimizer, with what, and for how long."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimizer: str = option(group=_WHERE, metavar="NAME", also="--target")
    """Optimizer to hunt in; `runtime:NAME` is a runtime, whose import and kernels are compared with
    another one's; `converter:NAME` is a converter to ONNX."""
    passes: Names = option((), group=_WHERE, metavar="PASS", shown="all")
    """Hunt only in these passes."""
    optimizer_options: dict[str, Any] = option({}, group=_WHERE, metavar="KEY=VALUE")
    """Options of the optimizer."""
    runtime_options: dict[str, Any] = option({}, group=_WHERE, metavar="KEY=VALUE")
    """Options of the runtime under test, or of the one that runs what the optimizer writes, such
    as the device."""
    as_shipped: bool = option(False, group=_WHERE)
    """Also run what the optimizer writes in a session with the runtime's defaults: find what only
    the optimizer and that session together get wrong."""

    pools: Texts = option(
        (), group=_WITH, metavar="NAME[:ARGUMENT]", shown="all that need no argument"
    )
    """Source of model fragments, such as windows:FOLDER."""
    seed: int = option(0, group=_WITH, ge=0)
    """Seed of all random choices."""
    known: tuple[Path, ...] = option((), group=_WITH, metavar="FILE|DIR")
    """Findings not to report again: a baseline, a bundle, or a folder of bundles."""

    budget: Annotated[str, BeforeValidator(_checked_budget)] = option(
        "10m", group=_LIMITS, metavar="TIME|N"
    )
    """CPU time of making and judging models, such as 90s, 10m or 2h, or a number of models. Vetting
    suspicions takes extra time."""
    jobs: int | None = option(
        None, group=_LIMITS, ge=1, shown="one per processor, at most 8", metavar="N"
    )
    """Worker processes at a time."""
    cache_dir: Path | None = option(
        None, group=_LIMITS, metavar="DIR", shown="the user's cache folder"
    )
    """Folder where pools are kept."""

    out: Path | None = option(None, group=_ANSWER, metavar="DIR", shown="hunts/OPTIMIZER")
    """Folder for findings and state."""
    resume: bool = option(False, group=_ANSWER)
    """Continue the hunt in the folder."""

    @property
    def folder(self) -> Path:
        """Where findings and state are."""
        name = self.optimizer.replace(":", "-")
        return (self.out or Path("hunts") / name).expanduser()
