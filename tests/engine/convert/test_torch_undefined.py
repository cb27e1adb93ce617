"""What PyTorch's documentation leaves open is no witness of a fault; what is near it stays one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optvet.engine.convert.run import convert_model
from optvet.engine.convert.undefined_inputs import undefined_in
from optvet.engine.discovery import Plugins
from optvet.spec.convert import ConvertRequest

torch: Any = pytest.importorskip("torch")
F = torch.nn.functional
Call = Callable[..., object]

ROWS = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
EQUAL = [[7.0, 8.0, np.nan]] * 2
LOGITS = [0.5, -0.5]
TWICE = "written to the same place"


def found(call: Call, *given: object) -> str:
    from optvet_torch.inside import recorded

    tensors = [torch.tensor(each) for each in given]
    names = [f"x{i}" for i in range(len(tensors))]
    run = recorded(torch.nn.Identity(), lambda _, *read: call(*read), tensors, {}, names=names)
    return undefined_in(run, {n: t.numpy() for n, t in zip(names, tensors, strict=True)})


def divergence(x: Any, target: Any, *, log_target: bool = False) -> object:
    return F.kl_div(x, target, reduction="sum", log_target=log_target)


@pytest.mark.parametrize(
    ("loss", "given", "words"),
    [
        (divergence, (LOGITS, [0.5, -0.1]), "negative probabilities"),
        (divergence, (LOGITS, [0.0, 1.5]), ""),
        (partial(divergence, log_target=True), (LOGITS, [0.5, -0.1]), ""),
        (F.binary_cross_entropy_with_logits, (LOGITS, [0.5, 1.1]), "not between 0 and 1"),
        (F.binary_cross_entropy_with_logits, (LOGITS, [0.0, 1.0]), ""),
        (F.cross_entropy, (ROWS, [[0.0, 1.0, 0.0], [0.5, -0.5, 1.0]]), "not between 0 and 1"),
        (F.cross_entropy, (ROWS, [[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]]), ""),
        (F.cross_entropy, (ROWS, [2, 1]), ""),
        (F.hinge_embedding_loss, (LOGITS, [1.0, 0.0]), "neither 1 nor -1"),
        (F.hinge_embedding_loss, (LOGITS, [1.0, -1.0]), ""),
        (F.cosine_embedding_loss, (ROWS, ROWS, [1.0, 2.0]), "neither 1 nor -1"),
        (F.cosine_embedding_loss, (ROWS, ROWS, [1.0, -1.0]), ""),
        (F.margin_ranking_loss, (LOGITS, LOGITS, [1.0, 2.0]), ""),
    ],
)
def test_targets_without_a_defined_loss_are_known(
    loss: Call, given: tuple[object, ...], words: str
) -> None:
    told = found(loss, *given)
    assert words in told
    assert bool(words) == bool(told)


@pytest.mark.parametrize(("places", "words"), [([0, 5], ""), ([-1], "outside"), ([6], "outside")])
def test_a_place_outside_of_a_shape_is_none(places: list[int], words: str) -> None:
    told = found(partial(torch.unravel_index, shape=(2, 3)), places)
    assert words in told
    assert bool(words) == bool(told)


@pytest.mark.parametrize(("shape", "words"), [((0,), ""), ((2, 0), "another number of dimensions")])
def test_an_index_has_the_dimensions_of_what_it_is_about(
    shape: tuple[int, ...], words: str
) -> None:
    index = torch.zeros(shape, dtype=torch.int64)
    told = found(lambda x: torch.gather(x, 0, index), [1.0, 2.0])
    assert words in told
    assert bool(words) == bool(told)


def scatter(x: Any, index: Any, source: Any) -> object:
    return x.scatter(0, index, source)


def index_copy(x: Any, index: Any, source: Any) -> object:
    return x.index_copy(0, index, source)


def index_put(x: Any, index: Any, values: Any, *, accumulate: bool = False) -> object:
    return x.index_put((index,), values, accumulate=accumulate)


def assign(x: Any, index: Any, values: Any) -> object:
    changed = x.clone()
    changed[index] = values
    return changed


def unpool(x: Any, index: Any) -> object:
    return F.max_unpool2d(x, index, 2)


TO_ONE, TO_ALL = [[0, 1, 0], [0, 0, 1]], [[0, 1, 0], [1, 0, 1]]


@pytest.mark.parametrize(
    ("write", "given", "words"),
    [
        (scatter, (ROWS, TO_ONE, ROWS), TWICE),
        (lambda x, i, s: x.clone().scatter_(0, i, s), (ROWS, TO_ONE, ROWS), TWICE),
        (scatter, (ROWS, TO_ALL, ROWS), ""),
        (scatter, (ROWS, TO_ONE, EQUAL), ""),
        (lambda x, i: x.scatter(0, i, 7.0), (ROWS, TO_ONE), ""),
        (lambda x, i, s: x.scatter_add(0, i, s), (ROWS, TO_ONE, ROWS), ""),
        (index_copy, (ROWS, [1, 1], ROWS), TWICE),
        (index_copy, (ROWS, [1, 0], ROWS), ""),
        (index_copy, (ROWS, [1, 1], EQUAL), ""),
        (index_put, (ROWS, [0, -2], ROWS), TWICE),
        (index_put, (ROWS, [0, 1], ROWS), ""),
        (index_put, (ROWS, [[True, False, True], [False, False, True]], [1.0, 2.0, 3.0]), ""),
        (partial(index_put, accumulate=True), (ROWS, [0, 0], ROWS), ""),
        (assign, (ROWS, [0, 0], ROWS), TWICE),
        (assign, (ROWS, [0, 0], EQUAL[0]), ""),
        (unpool, ([[[1.0, 2.0], [3.0, 4.0]]], [[[0, 0], [8, 10]]]), TWICE),
        (unpool, ([[[1.0, 2.0], [3.0, 4.0]]], [[[0, 2], [8, 10]]]), ""),
    ],
)
def test_writing_different_elements_to_one_place_is_undefined(
    write: Call, given: tuple[object, ...], words: str
) -> None:
    told = found(write, *given)
    assert words in told
    assert bool(words) == bool(told)


DIVERGENCE = """
import torch

example_inputs = torch.tensor([-1.0, -0.5]), torch.tensor([0.25, 0.75])


class Divergence(torch.nn.Module):
    def forward(self, x, target):
        return torch.nn.functional.kl_div(x, target, reduction="sum")


def net():
    return Divergence()
"""


def test_a_divergence_from_negative_probabilities_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(DIVERGENCE)
    request = ConvertRequest(model=f"{tmp_path / 'net.py'}:net", via=("torch_script",), sizes=False)
    result = convert_model(request, Plugins())
    # The older exporter takes a target that is not above 0 for one of 0: of NaN that is a fault.
    assert {f.witness.about for f in result.findings if f.witness} == {"target: NaN in one place"}
    left = {s.reason for s in result.skipped}
    assert any("kl_div): targets that are negative probabilities" in words for words in left)
