"""Options of plugins, as they are given on a command line."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ConfigDict

from optvet.engine.options import parse_options
from optvet.spec.errors import UsageError


class Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    operators: tuple[str, ...] = ()
    bits: int = 8


@pytest.mark.parametrize("given", ["MatMul,Gemm", ["MatMul", "Gemm"], ("MatMul", "Gemm")])
def test_a_text_stands_for_its_parts(given: object) -> None:
    assert parse_options("it", Options(), {"operators": given}) == Options(
        operators=("MatMul", "Gemm")
    )


def test_a_wrong_value_is_shown() -> None:
    with pytest.raises(UsageError, match="option 'bits' = 'a,b'"):
        parse_options("it", Options(), {"bits": "a,b"})
