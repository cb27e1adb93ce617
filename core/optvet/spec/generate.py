"""What can be asked of ``models generate``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from optvet.spec.request import Names, Texts, option

MOST_NODES = 1000
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


def nodes_of(text: object) -> tuple[int, int]:
    """The fewest and the most nodes that ``15-100`` or ``40`` means.

    Raises:
        ValueError: It is no such range.
    """
    words = str(text).strip()
    match = _RANGE.fullmatch(words)
    least = int(match[1]) if match else 0
    most = int(match[2] or match[1]) if match else 0
    if not 1 <= least <= most <= MOST_NODES:
        raise ValueError(
            f"{words[:100]!r} is no number of nodes from 1 to {MOST_NODES}; write 15-100 or 40"
        )
    return least, most


def sizes_of(text: object) -> tuple[tuple[int, int], ...]:
    """The ranges that ``15-100``, or in steps ``10,50,100``, means; each once.

    Raises:
        ValueError: One of them is no range.
    """
    return tuple(dict.fromkeys(nodes_of(part) for part in str(text).split(",")))


def _checked_nodes(value: object) -> str:
    sizes_of(value)
    return str(value)


_WHAT, _WITH, _LIMITS, _ANSWER = "What to make", "With what", "Limits and cache", "The answer"


class GenerateRequest(BaseModel):
    """Synthetic models to make: how many, how large, of which operators."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int = option(group=_WHAT, ge=1, le=1_000_000, metavar="N")
    """Number of models, for each of several sizes."""
    nodes: Annotated[str, BeforeValidator(_checked_nodes)] = option(
        "15-100", group=_WHAT, metavar="N-N[,N-N…]"
    )
    """Nodes of a model, those of nested graphs too; drawn evenly from this range. Several sizes,
    such as 10,50,100, get `count` models each."""
    opset: int | None = option(
        None, group=_WHAT, ge=7, shown="the latest that the runtime takes", metavar="N"
    )
    """Version of ONNX's operator set."""
    operators: Names = option((), group=_WHAT, metavar="A,B,…", shown="all")
    """Operators to use. Cast, Clip, Concat, Gather and Reshape join them where types or shapes
    differ."""
    exclude_operators: Names = option((), group=_WHAT, metavar="A,B,…")
    """Operators to exclude."""
    exclude_types: Names = option((), group=_WHAT, metavar="A,B,…")
    """Element types to exclude, such as float16, string or double."""

    pools: Texts = option(
        (), group=_WITH, metavar="NAME[:ARGUMENT]", shown="all that need no argument"
    )
    """Source of model fragments, such as windows:FOLDER."""
    runtime: str | None = option(
        None, group=_WITH, metavar="NAME", shown="the preferred one that runs ONNX"
    )
    """Runtime that must be able to run the models."""
    seed: int = option(0, group=_WITH, ge=0)
    """Seed of all random choices."""

    jobs: int | None = option(
        None, group=_LIMITS, ge=1, shown="one per processor, at most 8", metavar="N"
    )
    """Worker processes at a time."""
    cache_dir: Path | None = option(
        None, group=_LIMITS, metavar="DIR", shown="the user's cache folder"
    )
    """Folder where pools are kept."""

    out: Path = option(group=_ANSWER, metavar="DIR")
    """Folder for the models: new or empty."""
