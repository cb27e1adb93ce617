"""How scripts of reduced sources compare: by kind, shape and size, and NaN exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from optvet.engine.scripts.comparing import REFUSED, SAID, SHOWN, UNTOLD, Run, compared, differences

F = np.float32
ONE = np.array([1, 2], F)


@pytest.mark.parametrize(
    ("a", "b", "wrong"),
    [
        (ONE, ONE, False),
        (ONE, ONE.astype(np.float64) + 1e-3, False),
        (ONE, ONE + F(0.5), True),
        (ONE, ONE.reshape(2, 1), True),
        (ONE, ONE.astype(int), True),
        (np.array([1, np.nan], F), np.array([1, 0], F), True),
        (np.array([1, np.nan], F), np.array([1, np.nan], F), False),
        (np.array([1, np.inf], F), np.array([1, -np.inf], F), True),
        (ONE, np.array([1, np.inf], F), True),
        (np.array([1 + 1j]), np.array([1 + 1j], np.complex64), False),
        (np.array([1 + 1j]), np.array([1 - 1j]), True),
        (np.array([1, 2]), np.array([1, 2], np.int32), False),
        (np.array([1, 2]), np.array([1, 3]), True),
        (np.array(["a"]), np.array(["a"], object), False),
        (np.zeros(0, F), np.zeros(0, F), False),
    ],
)
def test_outputs_are_compared_by_kind_shape_and_size(
    a: np.ndarray, b: np.ndarray, wrong: bool
) -> None:
    lines, answer = differences([a], [b], 1e-2)
    assert (len(lines), answer) == (1, wrong)


def test_shapes_do_not_count_where_values_alone_are_compared() -> None:
    assert differences([ONE], [ONE.reshape(2, 1)], 0.0, flat=True)[1] is False
    assert differences([ONE], [ONE, ONE], 0.0, flat=True) == (["1 outputs became 2"], True)


def written(target: Path, body: str) -> None:
    head = '<ir_version: 8, opset_import: ["" : 17, "acme" : 1]> g (float[n] x) => (float[n] y)'
    onnx.save(parser.parse_model(f"{head} {{ {body} }}"), target)


def by_onnx(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    evaluator = ReferenceEvaluator(model)
    return dict(zip(evaluator.output_names, evaluator.run(None, feeds), strict=True))


def missing(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    raise ImportError("no library")


@pytest.mark.parametrize("first", [[], [missing]])
def test_a_script_tells_right_wrong_and_broken_apart(tmp_path: Path, first: list[Run]) -> None:
    target = tmp_path / "part.onnx"
    runs: list[Run] = [*first, by_onnx]

    def code(body: str) -> tuple[str, int]:
        lines, code = compared(lambda: written(target, body), target, [ONE], [ONE], 1e-6, runs)
        return lines[-1], code

    assert code("y = Identity(x)") == ("the fault is not there", 0)
    assert code("y = Neg(x)") == (SAID, SHOWN)
    assert code("y = Unknown(x)") == (SAID, SHOWN)
    last, ended = code("this is no model")
    assert (last[:7], ended) == ("refused", REFUSED)


def test_a_valid_model_that_the_second_best_runtime_refuses_says_nothing(tmp_path: Path) -> None:
    target = tmp_path / "part.onnx"
    about = (lambda: written(target, "y = acme.Unknown(x)"), target, [ONE], [ONE], 1e-6)
    assert compared(*about, [missing, by_onnx])[1] == UNTOLD
    assert compared(*about, [missing])[1] == UNTOLD
