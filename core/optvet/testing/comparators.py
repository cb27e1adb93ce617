"""The conformance suite of comparators: no unexpected exception, false alarm or missed change."""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from optvet.engine.vet.impact.bounded_details import MAX_DETAIL_BYTES
from optvet.spec.comparators import ComparatorExtras
from optvet.spec.errors import InputError
from optvet.spec.extras import given
from optvet.spec.protocols import Comparator, Decodes
from optvet.spec.types import Comparison, Model, ModelConfig, Sample, Summary, ValueInfo
from optvet.testing.conformance import check_form, require

CERTAIN = 0.9
"""Minimal score of a comparator for a declared task that it is made for."""
_ENDLESS = 1e30

Outputs = Mapping[str, np.ndarray]


def pretend_model(
    task: str | None = None,
    inputs: Mapping[str, tuple[int | str | None, ...]] | None = None,
    options: Mapping[str, object] | None = None,
) -> Model:
    """A ``Model`` without a file, with everything that comparators may use.

    Args:
        task: What its record declares, if anything.
        inputs: Shapes of its inputs, float32, by name; one image of 32 by 32 pixels by default.
        options: What its record declares as options of the comparator.
    """
    shapes = {"x": (1, 3, 32, 32)} if inputs is None else inputs
    path = Path("pretended.onnx")
    return Model(
        source=str(path),
        path=path,
        blob=path,
        digest="0" * 64,
        inputs=tuple(ValueInfo(name, "float", tuple(shape)) for name, shape in shapes.items()),
        outputs=(),
        ir_version=8,
        opsets={"ai.onnx": 17},
        size_bytes=0,
        nodes=0,
        config=ModelConfig(task=task, comparator_options=dict(options or {})),
    )


def hostile_outputs() -> dict[str, np.ndarray]:
    """Unusual outputs, by what is unusual about them."""
    single = np.finfo(np.float32)
    wide = np.array([1.7e308, -1.7e308, 1.7e308, 0, -1.7e308])
    odd = np.array([np.nan, np.inf, -np.inf, single.max, -single.max, 0], np.float32)
    image = np.resize(odd, (1, 3, 16, 16))
    return {
        "a lone number": np.array(1.5, np.float32),
        "nothing": np.zeros((0,), np.float32),
        "rows of nothing": np.zeros((2, 0), np.float32),
        "no rows": np.zeros((0, 4), np.float32),
        "no positions": np.zeros((1, 0, 6), np.float32),
        "no images": np.zeros((0, 3, 8, 8), np.float32),
        "no whole numbers": np.zeros((1, 0, 6), np.int64),
        "a vector": np.arange(5, dtype=np.float32),
        "all NaN": np.full((2, 3), np.nan, np.float32),
        "all infinite": np.full((1, 4, 8), np.inf, np.float32),
        "of every kind": odd,
        "rows of every kind": np.resize(odd, (3, 7)),
        "positions of every kind": np.resize(odd, (1, 4, 7)),
        "an image of every kind": image,
        "the largest numbers": wide,
        "rows of the largest numbers": np.resize(wide, (3, 16)),
        "positions of the largest numbers": np.resize(wide, (1, 3, 7)),
        "an image of the largest numbers": np.resize(wide, (1, 3, 16, 16)),
        "the smallest numbers": np.array([[5e-324, -5e-324, 0], [0, 5e-324, 5e-324]]),
        "half precision": np.resize(np.array([65504, -65504, np.inf], np.float16), (1, 3, 4)),
        "whole numbers": np.array([[-(2**63), 2**63 - 1, 0]]),
        "bytes": np.arange(12, dtype=np.uint8).reshape(1, 3, 4),
        "booleans": np.array([[True, False]]),
        "complex numbers": np.array([[1 + 2j, complex(math.nan, 1)]], np.complex64),
        "complex images": np.ones((1, 3, 16, 16), np.complex64),
        "words": np.array(["a", ""], dtype=object),
        "no words": np.zeros((0,), object),
        "objects": np.array([[None, 1.5]], dtype=object),
        "sequences": np.array([[1, 2], [3]], dtype=object),
        "rank six": np.ones((1, 1, 1, 1, 1, 2), np.float32),
    }


def check_comparator(
    comparator: Comparator, task: str | None, outputs: Outputs, other: Outputs
) -> None:
    """Raise AssertionError unless ``comparator`` keeps its contract.

    Beside the form of its answers: it never says "changed" of equal outputs, always of an answer
    that its users would call another one and of NaN in place of numbers, and whatever it is given
    it either compares or refuses with an InputError, without a warning.

    Args:
        comparator: What is checked.
        task: A task for which it claims to be made; None if there is none.
        outputs: What a model of this task may answer, by name.
        other: Another answer, by the same names, that a user would not take for the same.
    """
    check_form(comparator, Comparator, "a comparator")
    model = pretend_model(task)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score = _score(comparator, model, outputs, "its own outputs")
        if task is not None:
            claim = f"must score {task!r} at least {CERTAIN}, not {score}"
            require(comparator, score >= CERTAIN, claim)
        _check_answers(comparator, model, outputs, other)
        for kind, value in hostile_outputs().items():
            _check_hostile(comparator, model, kind, value)


def _score(comparator: Comparator, model: Model, outputs: Outputs, what: str) -> float:
    score = comparator.matches(model, outputs)
    fits = isinstance(score, (int, float)) and 0 <= score <= 1
    require(comparator, fits, f"matches() of {what} must be from 0 to 1, not {score!r}")
    return float(score)


def _check_answers(comparator: Comparator, model: Model, outputs: Outputs, other: Outputs) -> None:
    same = _compare(comparator, model, outputs, outputs)
    require(comparator, not same.changed, "says that equal outputs changed")
    require(comparator, not same.sensitive, "says that equal outputs were undecided")
    changed = _compare(comparator, model, outputs, other)
    require(comparator, changed.changed, "does not notice another answer")
    floats = {n: v for n, v in outputs.items() if v.dtype.kind == "f" and v.size}
    if floats and len(floats) == len(outputs):
        nan = {n: np.full_like(v, np.nan) for n, v in floats.items()}
        for pair, words in (((outputs, nan), "that gave NaN"), ((nan, outputs), "in place of NaN")):
            lost = _compare_if_any(comparator, model, *pair, noise=_ENDLESS)
            require(comparator, lost is None or lost.changed, f"does not notice numbers {words}")
    for several in ([same], [changed], [same, changed]):
        _summarise(comparator, several)


def _check_hostile(comparator: Comparator, model: Model, kind: str, value: np.ndarray) -> None:
    outputs = {"y": value}
    try:
        _score(comparator, pretend_model(), outputs, kind)
        same = _compare_if_any(comparator, model, outputs, copy.deepcopy(outputs), noise=0.0)
        if same is not None:
            quiet = not same.changed and not same.sensitive
            require(comparator, quiet, f"says that equal outputs changed: {kind}")
            _summarise(comparator, [same])
        if value.dtype.kind == "f" and value.size and np.isfinite(value).all():
            for odd in (np.nan, np.inf, -value.max()):
                spoilt = {"y": np.where(np.arange(value.size).reshape(value.shape), value, odd)}
                spoilt["y"] = spoilt["y"].astype(value.dtype)
                for pair in ((outputs, spoilt), (spoilt, outputs)):
                    _compare_if_any(comparator, model, *pair, noise=0.0)
    except AssertionError:
        raise
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        raise AssertionError(
            f"{comparator.name}: stumbles over {kind}, {value.dtype}{list(value.shape)}: {words}; "
            "raise InputError for what it does not understand"
        ) from error


def _compare_if_any(
    comparator: Comparator, model: Model, reference: Outputs, candidate: Outputs, *, noise: float
) -> Comparison | None:
    try:
        return _compare(comparator, model, reference, candidate, noise=noise)
    except InputError as error:
        require(comparator, bool(str(error)), "refuses without a word")
        return None


def _compare(
    comparator: Comparator,
    model: Model,
    reference: Outputs,
    candidate: Outputs,
    *,
    noise: float = 0.0,
) -> Comparison:
    """One comparison, checked for its form, and for not changing its arguments.

    Each run of a comparator that decodes gives these outputs, whatever it is fed.
    """
    options = comparator.options
    sides = [{n: v.copy() for n, v in side.items()} for side in (reference, candidate)]
    for side in sides:
        for value in side.values():
            value.setflags(write=False)
    sample = Sample("sample", {})
    if isinstance(comparator, Decodes):
        require(
            comparator, isinstance(comparator.decoder(model, options), str), "decoder() is no text"
        )
        sides = [
            dict(comparator.decode(model, sample, lambda _, side=side: side, options))  # type: ignore[misc]
            for side in sides
        ]
    if calibrated := given(comparator, ComparatorExtras.calibrated):
        settled = calibrated(model, iter([reference]), options)
        fits = type(settled) is type(options)
        require(comparator, fits, f"calibrated() gives its options, not {settled!r}")
        options = settled
    compared = comparator.compare(
        model,
        sample,
        sides[0],
        sides[1],
        options,
        noise=dict.fromkeys(reference, noise),
    )
    require(comparator, isinstance(compared, Comparison), f"compare() returned {compared!r}")
    require(comparator, compared.sample == "sample", "compare() must name the sample that it got")
    for flag in (compared.changed, compared.sensitive):
        require(comparator, type(flag) is bool, f"changed and sensitive are bool, not {flag!r}")
    _check_metrics(comparator, compared.metrics)
    try:
        size = len(json.dumps(compared.detail))
    except (TypeError, ValueError) as error:
        words = "detail must hold numbers, texts, lists and mappings"
        raise AssertionError(f"{comparator.name}: {words}: {error}") from error
    most = MAX_DETAIL_BYTES
    require(comparator, size <= most, f"detail has {size} bytes as JSON, at most {most} are kept")
    return compared


def _summarise(comparator: Comparator, comparisons: list[Comparison]) -> None:
    summary = comparator.summarise(comparisons, comparator.options)
    require(comparator, isinstance(summary, Summary), f"summarise() returned {summary!r}")
    words = summary.headline
    is_line = isinstance(words, str) and words.strip() == words != "" and "\n" not in words
    require(comparator, is_line, f"the headline must be one line of text, not {words!r}")
    _check_metrics(comparator, summary.metrics)
    if metrics := given(comparator, ComparatorExtras.metrics):
        names = metrics(comparator.options)
        untold = [m for m in summary.metrics if not any(fnmatchcase(m, n) for n in names)]
        require(comparator, not untold, f"metrics() does not tell {', '.join(untold)}")


def _check_metrics(comparator: Comparator, metrics: Mapping[str, float]) -> None:
    for name, value in metrics.items():
        fits = isinstance(name, str) and isinstance(value, (int, float))
        require(comparator, fits, f"metric {name!r} must be a number, not {value!r}")
