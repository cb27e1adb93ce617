from __future__ import annotations

import math

import pytest

from optvet.engine.numerics.group_test import compare_groups


def test_variance_between_groups_is_compared_with_that_within() -> None:
    # By hand: means 2 and 5, grand mean 3.5; between 2 * 3 * 2.25 = 13.5, within (2 + 2) / 4 = 1.
    found = compare_groups([1, 2, 3], [4, 5, 6])
    assert (found.similar, found.dissimilar) == (2.0, 5.0)
    assert found.f == pytest.approx(13.5)
    assert found.p == pytest.approx(0.02131164, rel=1e-5)
    assert found.rank_p == pytest.approx(0.04953461, rel=1e-5)


def test_groups_without_variance_differ_for_certain_or_not_at_all() -> None:
    apart, alike = compare_groups([0, 0], [1, 1]), compare_groups([2, 2], [2, 2])
    assert (apart.f, apart.p) == (math.inf, 0.0)
    assert (alike.f, alike.p, alike.rank_p) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize(("similar", "dissimilar"), [([], [1.0, 2.0]), ([1.0, 2.0, 3.0], [4.0])])
def test_one_sample_is_no_group(similar: list[float], dissimilar: list[float]) -> None:
    found = compare_groups(similar, dissimilar)
    assert (found.f, found.p, found.rank_p) == (None, None, None)
    assert found.dissimilar == sum(dissimilar) / len(dissimilar)
