"""What PyTorch's documentation leaves open: what is written twice, indices, and targets of losses.

The targets are those that PyTorch's own tests keep to. Where the documentation asks for a label of
1 or -1 but gives a formula for any number, they do not, and the formula is the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

_Arguments = Mapping[str, Any]
_IN_PROBABILITIES = frozenset({"binary_cross_entropy_with_logits", "cross_entropy"})
"""Losses whose targets, if these are floats, should be between 0 and 1."""
_OF_CASES = frozenset({"hinge_embedding_loss", "cosine_embedding_loss"})
"""Losses that are given by cases: one for a target of 1, one for -1."""
_BY_INDEX = frozenset({"gather", "scatter", "scatter_add", "scatter_reduce"})
"""Operators whose index has the dimensions of what is indexed."""


def undefined_by_function(function: str, given: _Arguments) -> str:
    """Why a function of PyTorch in Python leaves its answer open; empty if it does not."""
    if function == "_unravel_index":
        places: Any = given["indices"]
        inside = (places >= 0) & (places < math.prod(given["shape"]))
        return "" if inside.all() else "a place that is outside of the shape"
    target: Any = given.get("target")
    if function == "kl_div" and not given["log_target"] and (target < 0).any():
        return "targets that are negative probabilities"
    in_probabilities = function in _IN_PROBABILITIES and target.is_floating_point()
    if in_probabilities and ((target < 0) | (target > 1)).any():
        return "targets that are not between 0 and 1"
    if function in _OF_CASES and (target.abs() != 1).any():
        return "targets that are neither 1 nor -1"
    return ""


def undefined_by_operator(operator: str, given: _Arguments) -> str:
    """The same of an operator of ATen, before it is executed: some write into what they read."""
    name = operator.removeprefix("aten.").removesuffix("_")
    if name in _BY_INDEX and max(1, given["index"].ndim) != max(1, given["self"].ndim):
        return "an index of another number of dimensions"  # not checked if it has no elements
    if name in _WRITTEN and _is_overwritten(*_WRITTEN[name](given)):
        return "different elements that are written to the same place"
    return ""


def _is_overwritten(written: Any, read: Any) -> bool:
    """Whether an element is not there any more; a NaN is equal to a NaN."""
    both_nan = (read != read) & (written != written)
    return bool(((read != written) & ~both_nan).any())


def _scatter(given: _Arguments) -> tuple[Any, Any]:
    if "src" not in given or "reduce" in given:
        return given["self"], given["self"]  # one number, or sums: their order does not matter
    index = given["index"].long()
    written = given["src"][tuple(map(slice, index.shape))]
    dim = given["dim"]
    return written, given["self"].scatter(dim, index, written).gather(dim, index)


def _index_copy(given: _Arguments) -> tuple[Any, Any]:
    dim, index, written = given["dim"], given["index"], given["source"]
    return written, given["self"].index_copy(dim, index, written).index_select(dim, index)


def _index_put(given: _Arguments) -> tuple[Any, Any]:
    import torch

    aten = torch.ops.aten
    if given.get("accumulate"):
        return given["self"], given["self"]
    indices, written = given["indices"], given["values"]
    return written, aten.index(aten.index_put(given["self"], indices, written), indices)


def _max_unpool(given: _Arguments) -> tuple[Any, Any]:
    size = given["output_size"]
    written, index = (given[name].flatten(-len(size)) for name in ("self", "indices"))
    whole = written.new_zeros(*written.shape[:-1], math.prod(size))
    return written, whole.scatter(-1, index, written).gather(-1, index)


_WRITTEN: Mapping[str, Callable[[_Arguments], tuple[Any, Any]]] = {
    "scatter": _scatter,
    "index_copy": _index_copy,
    "index_put": _index_put,
    "max_unpool2d": _max_unpool,
    "max_unpool3d": _max_unpool,
}
"""What an operator writes, and what is read at the same places afterwards."""
