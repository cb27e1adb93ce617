"""What is wrong with a value, without pydantic's words, which speak of inputs and parsing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_EXPECTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a table",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "frozen_set_type": "a list",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_type": "a table",
    "path_type": "a path",
    "string_type": "a text",
    "tuple_type": "a list",
}
_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def words_of(error: Mapping[str, Any]) -> str:
    """What was expected, of one of the errors of a ``ValidationError``."""
    kind, context = error["type"], error.get("ctx") or {}
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"expected {words} {context[key]}"
    if kind in ("literal_error", "enum"):
        return f"expected {context['expected']}"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}"
    return str(error["msg"]).removeprefix("Value error, ")
