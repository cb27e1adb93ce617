"""Errors that people read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optvet import InputError
from optvet.spec.errors import LONGEST_MESSAGE, near_names


@given(st.integers(0, 3 * LONGEST_MESSAGE))
def test_a_message_is_whole_or_cut_in_the_middle(length: int) -> None:
    text = "".join(chr(ord("a") + i % 26) for i in range(length))
    said = str(InputError(text))
    assert len(said) == min(length, LONGEST_MESSAGE)
    head, _, tail = said.partition("…")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert (said == text) == (length <= LONGEST_MESSAGE)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("ort", "onnxruntime"),
        ("max_ab", "max_abs"),
        ("onnxoptimiser", "onnxoptimizer"),
        ("ONNX-Runtime", "onnxruntime"),
        ("tvn", "tvm"),
    ],
)
def test_near_names_are_parts_misspelt_or_abbreviated(name: str, first: str) -> None:
    known = ["iree", "onnxoptimizer", "onnxruntime", "onnxscript", "ort_bf16", "ort_fp16", "tvm"]
    known += ["end_max_abs", "max_abs"]
    assert near_names(name, known)[0] == first
    assert near_names("ort", known)[1:] == ["ort_bf16", "onnxscript"]
    assert near_names("ort", ["torch", "onnxruntime"])[0] == "onnxruntime"
    assert near_names("xyz", known) == []
