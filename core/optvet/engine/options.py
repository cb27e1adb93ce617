"""Checking the options that the user gives to a plugin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from optvet.spec.errors import UnknownName, UsageError
from optvet.spec.validation_words import words_of
from optvet.spec.words import quote, show


class NoOptions(BaseModel):
    """Options of a plugin that has none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def parse_options(what: str, defaults: BaseModel, requested: Mapping[str, Any]) -> BaseModel:
    """``defaults`` with ``requested`` set; UsageError for an unknown key or a wrong value.

    Where a default is a tuple, a text stands for its parts between commas.
    """
    fields = type(defaults).model_fields
    for key in requested:
        if key not in fields:
            raise UnknownName(f"option of {what}", key, fields)
    values = {
        key: _split_at_commas(getattr(defaults, key), value) for key, value in requested.items()
    }
    try:
        return type(defaults).model_validate(defaults.model_dump() | values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(p) for p in first["loc"])
        message = f"{what}: option {quote(key)} = {show(first['input'])}: {words_of(first)}"
        raise UsageError(message) from error


def _split_at_commas(default: object, value: object) -> object:
    if isinstance(default, tuple) and isinstance(value, str):
        return [part for part in value.split(",") if part]
    return value
