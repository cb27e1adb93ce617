"""How a script of a reduced source runs the converted model and compares it with the source.

A copy of this file lies beside every such script, which runs without optvet: it imports nothing of
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

SHOWN, REFUSED, UNTOLD = 1, 2, 3
"""Exit codes: the fault is there; the converter refuses; nothing there can run the model."""
SAID = "the fault is there"
"""The last line of a script that shows it."""


Run = Callable[[Any, dict[str, np.ndarray]], dict[str, Any]]


def compared(
    convert: Callable[[], object],
    target: Path,
    inputs: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    tolerance: float,
    runs: Sequence[Run],
    *,
    flat: bool = False,
) -> tuple[list[str], int]:
    """Lines that tell whether a conversion changes what its source computes, and an exit code.

    Args:
        convert: Writes the model in ONNX to ``target``; one of another format, it returns.
        target: The file of the model in ONNX.
        inputs: Inputs in the order of the model's.
        expected: What the source gives on them.
        tolerance: Relative to the largest magnitude of an output.
        runs: How to run a model, the best first: one whose library is missing is passed over.
        flat: Whether values alone are compared, and not shapes.
    """
    try:
        made = convert()
    except Exception as error:
        return [f"refused: {_words(error)}"], REFUSED
    for number, run in enumerate(runs):
        try:
            if made is None:
                outputs = run(onnx.load(target), _match_feeds(target, inputs))
            else:
                outputs = run(made, {f"input_{i}": value for i, value in enumerate(inputs)})
        except ImportError:
            continue
        except Exception as error:
            return _broken(target, error, number)
        got = [_array(value) for value in outputs.values()]
        lines, wrong = differences(list(expected), got, tolerance, flat=flat)
        return [*lines, SAID if wrong else "the fault is not there"], SHOWN if wrong else 0
    return ["nothing is here to run the model"], UNTOLD


def _broken(target: Path, error: Exception, number: int) -> tuple[list[str], int]:
    """A model that cannot be run: of one that another library refuses, the checker is asked."""
    words = f"the model cannot be loaded or run: {_words(error)}"
    if number:
        try:
            onnx.checker.check_model(str(target), full_check=True)
        except Exception as complaint:
            words = f"the model is invalid: {_words(complaint)}"
        else:
            return [words], UNTOLD
    return [words, SAID], SHOWN


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _match_feeds(target: Path, inputs: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    graph = onnx.load(target).graph
    weights = {tensor.name for tensor in graph.initializer}
    names = [i.name for i in graph.input if i.name not in weights]
    if len(names) != len(inputs):
        raise ValueError(f"it asks for {len(names)} inputs ({', '.join(names)}), not {len(inputs)}")
    return dict(zip(names, inputs, strict=True))


def _array(value: Any) -> np.ndarray:
    array = np.asarray(value)
    # What is no number to numpy itself, such as bfloat16, is one of ml_dtypes.
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def differences(
    expected: Sequence[np.ndarray],
    got: Sequence[np.ndarray],
    tolerance: float,
    *,
    flat: bool = False,
) -> tuple[list[str], bool]:
    """A line for each output, and whether any is wrong."""
    if len(expected) != len(got):
        return [f"{len(expected)} outputs became {len(got)}"], True
    lines, wrong = [], False
    for number, (a, b) in enumerate(zip(expected, got, strict=True)):
        a, b = (a.ravel(), b.ravel()) if flat else (a, b)
        if a.shape != b.shape or _kind(a) != _kind(b):
            words, bad = f"{a.dtype}{list(a.shape)} became {b.dtype}{list(b.shape)}", True
        elif _kind(a) in "fc" and a.size:
            words, bad = _apart(a, b, tolerance)
        else:
            bad = not np.array_equal(a, b)
            words = f"{int(np.sum(a != b))} of {a.size} elements differ"
        lines.append(f"output {number}: {words}")
        wrong |= bad
    return lines, wrong


def _kind(value: np.ndarray) -> str:
    """Whole numbers of any sign are of one kind, and texts of any form."""
    return {"u": "i", "O": "U", "S": "U", "T": "U"}.get(value.dtype.kind, value.dtype.kind)


def _apart(a: np.ndarray, b: np.ndarray, tolerance: float) -> tuple[str, bool]:
    """How far floats or complex numbers are apart; NaN and infinities are compared exactly."""
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    a, b = a.astype(wide), b.astype(wide)
    known = np.isfinite(a)
    top = float(np.max(np.abs(a), where=known, initial=0.0)) or 1.0
    both = known & np.isfinite(b)
    off = np.abs(np.where(both, a, 0) - np.where(both, b, 0))
    error = float(np.max(off, initial=0.0)) / top
    same = np.array_equal(a[~known], b[~known], equal_nan=True) and bool(np.all(both == known))
    words = f"differs by {error:.3g} of its largest value"
    return words if same else f"{words}; NaN or infinity elsewhere", error > tolerance or not same
