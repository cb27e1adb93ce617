"""Options of plugins: what the user gave, checked against what there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from optvet.spec.errors import UnknownName, UsageError


def parse_options(what: str, defaults: BaseModel, given: Mapping[str, Any]) -> BaseModel:
    """``defaults`` with ``given`` set; a clear error for a key or value that does not fit."""
    fields = type(defaults).model_fields
    for key in given:
        if key not in fields:
            raise UnknownName(f"option of {what}", key, fields)
    try:
        return type(defaults).model_validate(defaults.model_dump() | dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(p) for p in first["loc"])
        message = f"{what}: option {key!r} = {first['input']!r}: {first['msg']}"
        raise UsageError(message) from error
