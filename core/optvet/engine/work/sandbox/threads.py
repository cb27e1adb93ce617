"""One thread for each library of linear algebra, where many processes run at once."""

from __future__ import annotations

from collections.abc import Mapping

_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def one_thread(variables: Mapping[str, str]) -> dict[str, str]:
    """``variables``, with the thread counts of OpenMP, OpenBLAS and MKL at 1 unless set."""
    return {**dict.fromkeys(_VARIABLES, "1"), **variables}
