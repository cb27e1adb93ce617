"""Texts in arrays, in each form that numpy has for them."""

from __future__ import annotations

import numpy as np
import pytest

from optvet.engine.convert.conversion_inputs import _edges_of
from optvet.engine.convert.match_interface import match_outputs
from optvet.engine.judge.outputs import judge
from optvet.engine.numerics.texts import plain, type_name
from optvet.engine.work.trials.inference import flatten

WORDS = ["low", "highest", "mid"]
FORMS = {
    "width": np.array(WORDS),
    "wider": np.array(WORDS, "U40"),
    "objects": np.array(WORDS, object),
    "bytes": np.array([w.encode() for w in WORDS]),
    "bytes as objects": np.array([w.encode() for w in WORDS], object),
    "variable": np.array(WORDS, np.dtypes.StringDType()),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_text_is_the_same_in_each_form(form: str) -> None:
    value = FORMS[form]
    assert plain(value).tolist() == WORDS
    assert type_name(value.dtype) == "text"
    for other in FORMS.values():
        (judged,) = judge({"y": value}, {"y": other})
        assert judged.call == "same"
        pair = match_outputs({"y": value}, {"y": other})
        assert (pair.problem, pair.notes) == ("", ())
        assert pair.reference["y"].tolist() == pair.candidate["y"].tolist() == WORDS
    (judged,) = judge({"y": value}, {"y": np.array(["low", "highest", "mi"])})
    assert (judged.call, judged.detail) == ("unsure", "1 of 3 elements differ")
    (judged,) = judge({"y": value}, {"y": np.arange(3)})
    assert (judged.call, judged.detail) == ("fault", "text became int64")


@pytest.mark.parametrize("form", FORMS)
def test_outputs_of_runtimes_have_one_form_of_texts(form: str) -> None:
    (value,) = flatten({"y": FORMS[form]}).values()
    assert (value.dtype, value.tolist()) == (np.dtype(object), WORDS)
    (inner,) = (v for n, v in flatten({"y": [FORMS[form]]}).items() if n == "y[0]")
    assert inner.dtype == object


def test_numbers_and_bytes_that_are_no_text_are_kept() -> None:
    numbers = np.arange(3)
    assert plain(numbers) is numbers
    assert plain(np.array(["a\0"], object)).tolist() == ["a\0"]
    assert plain(np.array([b"\xff"], object)).tolist() == ["\\xff"]
    assert plain(np.array("x")).shape == ()


def test_texts_of_a_width_get_longer_ones_as_edges() -> None:
    found = [edge.tolist() for _, edge in _edges_of(np.array(["a", "b"]))]
    assert found == [["a", "\N{SNOWMAN} unseen"], ["a", ""]]
