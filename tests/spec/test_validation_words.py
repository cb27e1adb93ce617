"""What is wrong with a value is told without pydantic's words."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from optvet.spec.validation_words import words_of


class Options(BaseModel):
    count: Annotated[int, Field(ge=1, lt=10)] = 1
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    on: bool = False
    name: str = ""
    kind: Literal["a", "b"] = "a"
    items: tuple[str, ...] = ()
    table: dict[str, int] = {}
    odd: int = 1

    @field_validator("odd")
    @classmethod
    def _check_odd(cls, value: int) -> int:
        if value % 2 == 0:
            raise ValueError("write an odd number")
        return value


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("count", "many", "expected a whole number"),
        ("count", 1.5, "expected a whole number"),
        ("count", 0, "expected at least 1"),
        ("count", 10, "expected less than 10"),
        ("share", "x", "expected a number"),
        ("share", 0, "expected more than 0.0"),
        ("share", 2, "expected at most 1.0"),
        ("on", "maybe", "expected true or false"),
        ("name", 3, "expected a text"),
        ("kind", "c", "expected 'a' or 'b'"),
        ("items", 3, "expected a list"),
        ("table", 3, "expected a table"),
        ("odd", 2, "write an odd number"),
    ],
)
def test_a_wrong_value_is_told_by_what_was_expected(field: str, value: Any, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Options.model_validate({field: value})
    assert words_of(caught.value.errors()[0]) == words
