"""What the documentation of JAX leaves open: approximations, and operands outside of a domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def undefined_by_jax(
    primitive: str, parameters: Mapping[str, Any], operands: Sequence[np.ndarray]
) -> str:
    """Why a primitive has no defined answer on these operands; empty if it has one."""
    if primitive == "approx_top_k":
        return _explain_approximation(parameters)
    if primitive == "cholesky" and not _are_positive_definite(operands[0]):
        return "a matrix that is not positive definite, or only by rounding"
    if primitive == "qr" and not _determine_factors(operands[0]):
        return "columns of which one depends on those before it, but for rounding"
    return ""


def undefined_by_numpy(function: str, operands: Sequence[np.ndarray]) -> str:
    """The same of a function of ``jax.numpy`` that is no primitive."""
    if function == "searchsorted" and not _ascends(operands[0]):
        return "a search in numbers that are not sorted"
    if function == "digitize" and not (_ascends(operands[1]) or _ascends(operands[1][::-1])):
        return "bins that are not monotonic"
    if any(polynomial.ndim != 1 for polynomial in operands[: _POLYNOMIALS.get(function, 0)]):
        return "a polynomial whose coefficients are no vector"
    return ""


_POLYNOMIALS = {"polyadd": 2, "polysub": 2, "polyval": 1, "polyint": 1, "polyder": 1}
"""How many of the first operands are polynomials."""


def _ascends(numbers: np.ndarray) -> bool:
    return bool(np.all(numbers[:-1] <= numbers[1:]))


def _explain_approximation(parameters: Mapping[str, Any]) -> str:
    if not parameters["aggregate_to_topk"]:
        return (
            "any number of elements in any order, among which are most of the largest or smallest"
        )
    return "" if parameters["recall_target"] >= 1 else "most of the largest or smallest elements"


def _are_positive_definite(matrices: np.ndarray) -> bool:
    """Whether all are, by more than rounding; the lower triangle alone is read."""
    if not np.isfinite(matrices).all():
        return False
    if not matrices.size:
        return True
    lower = np.tril(matrices.astype(np.float64))
    whole = lower + np.swapaxes(np.tril(lower, -1), -1, -2)
    values = np.linalg.eigvalsh(whole)
    size = np.abs(values).max(axis=-1)
    rounding = matrices.shape[-1] * float(np.finfo(matrices.dtype).eps)
    return bool(np.all(values.min(axis=-1) > rounding * size))


def _determine_factors(matrices: np.ndarray) -> bool:
    """Whether no diagonal element of R is 0 but for rounding."""
    if not np.isfinite(matrices).all():
        return False
    if not matrices.size:
        return True
    factors = np.linalg.qr(matrices.astype(np.float64), mode="r")
    diagonal = np.abs(np.diagonal(factors, axis1=-2, axis2=-1))
    rounding = max(matrices.shape[-2:]) * float(np.finfo(matrices.dtype).eps)
    return bool(np.all(diagonal > rounding * np.abs(factors).max(axis=(-2, -1))[..., None]))
