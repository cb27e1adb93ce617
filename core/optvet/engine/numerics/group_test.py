"""Whether two groups of samples differ in a number: analysis of variance, and its rank form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class GroupTest:
    """Two groups of samples, compared in one number.

    Attributes:
        similar: Mean over the first group; None if it is empty.
        dissimilar: Mean over the second group; None if it is empty.
        f: F statistic of a one-way analysis of variance: variance between groups over variance
            within; infinite if there is none within. None with fewer than two samples in a group.
        p: Probability of such an F, or a larger one, if both groups are alike.
        rank_p: The same by the Kruskal-Wallis test, which assumes no distribution.
    """

    similar: float | None
    dissimilar: float | None
    f: float | None = None
    p: float | None = None
    rank_p: float | None = None


def compare_groups(similar: Sequence[float], dissimilar: Sequence[float]) -> GroupTest:
    """Test whether two groups have the same mean.

    Args:
        similar: The numbers of the first group, finite, in any unit.
        dissimilar: Those of the second one.

    Source: Fisher 1925, "Statistical Methods for Research Workers", chapter 7; Kruskal and Wallis
    1952, "Use of Ranks in One-Criterion Variance Analysis".
    """
    means = [float(np.mean(each)) if each else None for each in (similar, dissimilar)]
    if min(len(similar), len(dissimilar)) < 2:
        return GroupTest(means[0], means[1])
    if len({*similar, *dissimilar}) == 1:  # no variance at all: scipy gives NaN, and warns
        return GroupTest(means[0], means[1], 0.0, 1.0, 1.0)
    from scipy import stats  # Here, since importing it takes a second.

    if len({*similar}) == len({*dissimilar}) == 1:
        f, p = float("inf"), 0.0
    else:
        f, p = map(float, stats.f_oneway(similar, dissimilar))
    return GroupTest(means[0], means[1], f, p, float(stats.kruskal(similar, dissimilar).pvalue))
