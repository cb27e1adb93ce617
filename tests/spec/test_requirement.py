"""How a requirement is written, and when it is met."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optvet.spec.errors import InputError, UsageError
from optvet.spec.request import VetRequest, request_of
from optvet.spec.requirement import (
    Requirement,
    Tolerance,
    parse_requirement,
    parse_tolerance,
    select,
    split_part,
    tolerances_of,
)

NAMES = st.text(st.characters(codec="utf-8", exclude_characters=":<>=!"), min_size=1).filter(
    lambda text: not any(c.isspace() for c in text)
)
RELATIONS = st.sampled_from([">=", "<=", ">", "<", "=="])


@given(
    st.none() | st.text(min_size=1).filter(lambda t: t == t.strip()),
    NAMES,
    RELATIONS,
    st.integers(-99999, 99999),
)
def test_a_requirement_is_read_as_it_is_written(
    output: str | None, metric: str, relation: str, bound: int
) -> None:
    written = Requirement(metric, relation, bound, output)
    assert parse_requirement(str(written)) == written


@pytest.mark.parametrize(
    "text",
    [
        " ",
        "top1",
        "top1>=",
        ">=1",
        "top1>=a",
        "top1=>1",
        "top1>=nan",
        "top1>=inf",
        "a b>=1",
        "x:>=1",
    ],
)
def test_what_is_no_requirement_is_refused_with_how_to_write_it(text: str) -> None:
    with pytest.raises(UsageError, match=r"--require: .*METRIC>=NUMBER"):
        request_of(VetRequest, {"model": "m", "require": text})


@pytest.mark.parametrize("text", ["", "x", "-1", "nan", "inf", "y:", "1e", "1:y", True])
def test_what_is_no_tolerance_is_refused_with_how_to_write_it(text: object) -> None:
    with pytest.raises(UsageError, match=r"--rtol"):
        request_of(VetRequest, {"model": "m", "rtol": [text]})


def test_names_of_outputs_may_hold_colons_and_relations() -> None:
    assert parse_requirement("a>=1:b:0:cosine > .5") == Requirement("cosine", ">", 0.5, "a>=1:b:0")
    assert parse_tolerance("Identity:0: 1e-3") == ("Identity:0", 1e-3)


def test_every_relation_holds_as_it_reads_and_not_a_number_never_does() -> None:
    met = {r: [Requirement("m", r, 1).is_met(v) for v in (0, 1, 2)] for r in (">=", "<=", ">", "<")}
    assert met == {
        ">=": [False, True, True],
        "<=": [True, True, False],
        ">": [False, False, True],
        "<": [True, False, False],
    }
    assert not any(Requirement("m", r, 1).is_met(math.nan) for r in (*met, "=="))


@given(RELATIONS.filter(lambda r: r != "=="), st.floats(-1e9, 1e9))
def test_what_is_not_met_falls_short(relation: str, value: float) -> None:
    requirement = Requirement("m", relation, 1)
    assert requirement.shortfall(value) >= 0 or requirement.is_met(value)


def test_the_part_of_a_tolerance_that_is_not_given_is_the_general_one_or_0() -> None:
    assert tolerances_of(["1e-3", "y:1e-2"], ["z:5"]) == (
        Tolerance(1e-3, 0.0, None, frozenset("yz")),
        Tolerance(1e-2, 0.0, "y"),
        Tolerance(1e-3, 5.0, "z"),
    )
    assert tolerances_of([], []) == ()


def test_a_request_with_requirements_prints_the_command_that_repeats_it() -> None:
    asked = request_of(VetRequest, {"model": "m", "require": "a>=1", "rtol": [1e-3, "y:0"]})
    assert asked.arguments() == ["m", "--require", "a>=1", "--rtol", "0.001", "--rtol", "y:0"]


ALL = slice(None)


@pytest.mark.parametrize(
    ("output", "name", "index"),
    [
        ("pred[:, 4:]", "pred", (ALL, slice(4, None))),
        ("pred[:,4:7,:]", "pred", (ALL, slice(4, 7), ALL)),
        ("pred[..., -1]", "pred", (..., -1)),
        ("pred[0, ::2]", "pred", (0, slice(None, None, 2))),
        ("scores[0][:, 1:]", "scores[0]", (ALL, slice(1, None))),
        # An item of a sequence has such a name, and what numpy does not read is a name too.
        ("scores[0]", "scores[0]", None),
        ("pred[:,]", "pred[:,]", None),
        ("pred[::::]", "pred[::::]", None),
        ("a:b", "a:b", None),
    ],
)
def test_a_requirement_may_be_about_a_part_of_an_output(
    output: str, name: str, index: object
) -> None:
    assert split_part(output) == (name, index)
    required = parse_requirement(f"{output}:max_change<=0.01")
    assert (required.output, required.tensor, required.metric) == (output, name, "max_change")
    assert parse_requirement(str(required)) == required


def test_the_part_of_an_output_is_what_numpy_gives() -> None:
    values = {"pred": np.arange(14).reshape(1, 7, 2), "other": np.zeros(2)}
    assert select(None, values).keys() == values.keys()
    assert select("other", values).keys() == {"other"}
    assert select("pred[:, 5:]", values)["pred"].tolist() == [[[10, 11], [12, 13]]]
    assert select("missing[:, 5:]", values) == {}
    for part in ("pred[:, 9:]", "pred[:, 9, 0]", "pred[0, 0, 0, :]"):
        with pytest.raises(
            InputError, match=r"output .pred. has the shape \[1, 7, 2\], and no part"
        ):
            select(part, values)
