"""The figures that the study printed, and what its tables have of a trial."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from optvet.plugin import TrialRow, read_toml

Cell = str | int | float | None

SOURCE = "DiTOX's figures are counted from the data that its authors published."
_KINDS: Mapping[str, str] = {
    "classification": "classification",
    "detection": "detection",
    "segmentation": "segmentation",
    "text": "text",
    "token": "text",
}
"""What a model is, by the comparator that reads its answers."""
_TASKS: Mapping[str, str] = {
    "classification": r"classif|sentiment",
    "detection": r"(?<!text-)\bdetection",
    "segmentation": r"segmentation",
    "text": r"text|language|question|translat|summar",
}
"""The same, by the words of its declared task, where no outputs were compared."""


@cache
def published() -> Mapping[str, Any]:
    """The figures that the study printed."""
    return read_toml(Path(__file__).with_name("published.toml"), "listing")


def kind_of(row: TrialRow) -> str:
    """What a model is: by the comparator that read its answers, or its task; else "other"."""
    comparator = row.impact.comparator if row.impact else row.parts.comparator
    if comparator in _KINDS:
        return _KINDS[comparator]
    if comparator:
        return "other"
    return next((kind for kind, words in _TASKS.items() if re.search(words, row.task)), "other")


def find_figures(table: str, row: TrialRow) -> tuple[str, Mapping[str, Any]]:
    """The key and the figures that a table of the study has of a model in its operator set."""
    name = row.source.rpartition(":")[2]
    same: str = published()["same_network"].get(name, name.rpartition("-")[0])
    entry: Mapping[str, Any] = published()[table].get(same, {})
    return (same, entry) if entry and row.opset in entry["opsets"] else ("", {})


def left_out(table: str, seen: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """What a table of the study has of models that are not in this campaign."""
    known = {*seen}
    return (entry for key, entry in published()[table].items() if key not in known)


def opsets_of(entry: Mapping[str, Any]) -> str:
    """The operator sets in which the study had a model."""
    return ", ".join(map(str, entry["opsets"]))


def percent(part: int, whole: int) -> float | None:
    """The share in percent; None of nothing."""
    return 100 * part / whole if whole else None
