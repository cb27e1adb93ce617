from __future__ import annotations

import pytest

from optvet.engine.numerics.agreement import agreement


def test_kappa_of_a_table_worked_out_by_hand() -> None:
    # 25 both yes, 5 yes/no, 10 no/yes, 10 both no: p_o = 0.7, p_e = 0.6*0.7 + 0.4*0.3 = 0.54.
    first = ["yes"] * 30 + ["no"] * 20
    second = ["yes"] * 25 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 10
    found = agreement(first, second)
    assert (found.items, found.same) == (50, 35)
    assert found.kappa == pytest.approx((0.7 - 0.54) / 0.46)


def test_full_agreement_is_one_and_less_than_chance_is_negative() -> None:
    assert agreement("abc", "abc").kappa == 1
    assert agreement("ab", "ba").kappa == -1


@pytest.mark.parametrize(("first", "second"), [("", ""), ("aaa", "aaa")])
def test_kappa_is_not_defined_where_chance_explains_all(first: str, second: str) -> None:
    found = agreement(first, second)
    assert (found.kappa, found.same) == (None, len(first))
    assert "not defined" in found.words()
