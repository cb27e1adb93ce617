"""What comparators return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel

from optvet.engine.contract.checked_calls import ask, blame, mismatch
from optvet.spec.protocols import Comparator, Decodes
from optvet.spec.types import Comparison, Summary


def score(comparator: Comparator, call: Callable[[], float]) -> float:
    """What ``matches`` says, a number from 0 to 1; ContractError if it is none."""
    value = ask("comparator", comparator, "matches", call, (int, float), "a number from 0 to 1")
    if not 0.0 <= value <= 1.0:
        raise blame(
            "comparator", comparator, f"matches() gave {value}, expected a number from 0 to 1"
        )
    return float(value)


def comparison(comparator: Comparator, value: Any) -> Comparison:
    """``value``, which ``compare`` gave; ContractError if it is no Comparison of numbers."""
    wrong = mismatch("compare()", value, Comparison, "Comparison")
    wrong = wrong or _metrics("compare()", value.metrics)
    if wrong is not None:
        raise blame("comparator", comparator, wrong)
    return value  # type: ignore[no-any-return]  # checked above


def check_calibrated(
    comparator: Comparator, call: Callable[[], Any], options: BaseModel
) -> BaseModel:
    """What ``call``, a call of ``calibrated``, gives; ContractError if it is no such options."""
    kind: type[BaseModel] = type(options)
    words = f"options of type {kind.__name__}"
    calibrated: BaseModel = ask("comparator", comparator, "calibrated", call, kind, words)
    return calibrated


def check_decoded(comparator: Decodes, value: Any) -> Mapping[str, Any]:
    """``value``, which ``decode`` gave; ContractError if it is no mapping of names to arrays."""
    wrong = mismatch("decode()", value, Mapping, "a mapping of names to arrays")
    if wrong is not None:
        raise blame("comparator", comparator, wrong)
    return value  # type: ignore[no-any-return]  # checked above


def summary(comparator: Comparator, value: Any) -> Summary:
    """``value``, which ``summarise`` gave; ContractError if it is no Summary of numbers."""
    wrong = mismatch("summarise()", value, Summary, "Summary")
    wrong = wrong or _metrics("summarise()", value.metrics)
    wrong = wrong or mismatch("summarise()", value.headline, str, "a text as headline")
    if wrong is not None:
        raise blame("comparator", comparator, wrong)
    return value  # type: ignore[no-any-return]  # checked above


def _metrics(method: str, metrics: Any) -> str | None:
    wrong = mismatch(method, metrics, Mapping, "metrics as a mapping of names to numbers")
    if wrong is not None:
        return wrong
    for name, value in metrics.items():
        try:
            float(value)
        except (TypeError, ValueError):
            return f"{method} gave metric {name!r} = {value!r}, expected a number"
    return None
