"""Limiting a comparator's details in a result: plain JSON values, of bounded size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

MAX_DETAIL_BYTES = 1 << 16
"""Size of one sample's details as JSON; a result keeps those of a hundred samples."""
CUT = "cut_to"
"""Key that tells to how many items longer lists and mappings were cut."""
_LENGTHS = (1000, 300, 100, 30, 10, 3, 1)
_CHARACTERS_PER_ITEM = 20


def kept_detail(detail: Mapping[str, Any]) -> dict[str, Any]:
    """``detail`` as JSON can hold it, in at most ``MAX_DETAIL_BYTES``.

    Arrays become lists, and what JSON does not know becomes text. Where that is too large, lists,
    mappings and texts are cut, and ``cut_to`` says to how many items.
    """
    whole = _plain(detail, None)
    if _fits(whole):
        return dict(whole)
    for length in _LENGTHS:
        cut = {**_plain(detail, length), CUT: length}
        if _fits(cut):
            return cut
    return {CUT: 0}


def _fits(value: Any) -> bool:
    return len(json.dumps(value)) <= MAX_DETAIL_BYTES


def _plain(value: Any, length: int | None) -> Any:
    """``value`` in numbers, texts, lists and mappings of at most ``length`` items."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(k): _plain(v, length) for k, v in list(value.items())[:length]}
    if isinstance(value, list | tuple):
        return [_plain(v, length) for v in value[:length]]
    return str(value)[: length and length * _CHARACTERS_PER_ITEM]
