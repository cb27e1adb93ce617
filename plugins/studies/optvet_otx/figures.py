"""The figures that the study printed, and what its tables share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from optvet.plugin import TrialParts, TrialRow, read_toml, variants

Cell = str | int | float | None

LEVELS = ("basic", "extended", "all")
BASE = "base"
"""What the study calls the original."""
ITS_DETECTOR = "Faster R-CNN"


@cache
def published() -> Mapping[str, Any]:
    """The figures that the study printed."""
    return read_toml(Path(__file__).with_name("published.toml"), "listing")


def by_level(rows: Iterable[TrialRow]) -> dict[str, list[TrialRow]]:
    """Rows by level, under the shortest names that are distinct.

    Models of several tasks have other data, which make no other level; but where one model was
    vetted on several data, these are part of the name.
    """
    listed = list(rows)
    chosen: dict[str, set[TrialParts]] = {}
    for row in listed:
        of_data = TrialParts("", "", **{part: getattr(row.parts, part) for part in _OF_DATA})
        chosen.setdefault(row.digest, set()).add(of_data)
    if all(len(found) == 1 for found in chosen.values()):
        left_out = dict.fromkeys(_OF_DATA, "")
        listed = [replace(row, parts=row.parts._replace(**left_out)) for row in listed]
    return variants(listed)


_OF_DATA = ("dataset", "data_options", "comparator")


def level_of(group: Sequence[TrialRow]) -> str:
    """The study's name of the level that all rows have; empty if there is none."""
    found = {row.parts.pipeline for row in group}
    return found.pop() if len(found) == 1 and found <= {*LEVELS} else ""


def study_name_of(source: str) -> str:
    """What the study calls the model of a reference; empty for others."""
    return str(published()["models"].get(source.rpartition(":")[2], ""))


def percent(share: float | None) -> float | None:
    """A share in %."""
    return None if share is None else 100 * share


def megabytes(size: int | None) -> float | None:
    """A size in bytes in MB."""
    return None if size is None else size / 1e6
