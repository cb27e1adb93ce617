"""Every comparator keeps the contract: no stumble, no false alarm, no false peace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict

from optvet.engine.discovery import Plugins
from optvet.plugin import Comparison, Summary
from optvet.testing import check_comparator, pretend_model

Outputs = Mapping[str, np.ndarray]
RNG = np.random.default_rng(0)
SCORES = np.array([[5.0, 1, 2, 3], [0, 9, 1, 2]], np.float32)
IMAGE = RNG.uniform(0, 1, (1, 3, 16, 16)).astype(np.float32)
MASK = RNG.normal(size=(1, 5, 16, 16)).astype(np.float32)
VECTORS = RNG.normal(size=(2, 32)).astype(np.float32)
BODY = RNG.uniform(0.4, 1, (1, 1, 17, 3)).astype(np.float32)
FRAMES = RNG.normal(size=(1, 6, 5)).astype(np.float32)
DETECTIONS = {
    "boxes": np.array([[[1, 1, 20, 20], [4, 4, 30, 12]]], np.float32),
    "labels": np.array([[3, 7]]),
    "scores": np.array([[0.9, 0.8]], np.float32),
}
TABLE = {
    "label": np.array([0, 1]),
    "probabilities": np.array([[0.9, 0.1], [0.2, 0.8]], np.float32),
}
WORDS = np.array(["the cat sat on the mat"], dtype=object)
CASES: Mapping[str, tuple[str | None, Outputs, Outputs]] = {
    "classification": ("image-classification", {"y": SCORES}, {"y": SCORES[:, ::-1]}),
    "detection": (
        "object-detection",
        DETECTIONS,
        {**DETECTIONS, "boxes": DETECTIONS["boxes"] + np.float32(9)},
    ),
    "embedding": ("sentence-embedding", {"y": VECTORS}, {"y": VECTORS[:, ::-1]}),
    "image": ("super-resolution", {"y": IMAGE}, {"y": 1 - IMAGE}),
    "pose": ("single-person pose", {"y": BODY}, {"y": BODY[..., ::-1, :]}),
    "segmentation": ("image-segmentation", {"y": MASK}, {"y": MASK[:, ::-1]}),
    "speech": ("speech-recognition", {"y": FRAMES}, {"y": FRAMES[..., ::-1]}),
    "stream": (None, {"y": VECTORS}, {"y": VECTORS + 1}),
    "tabular": ("tabular classification", TABLE, {**TABLE, "label": np.array([1, 1])}),
    "tensor": ("head-pose regression", {"y": VECTORS}, {"y": VECTORS + 1}),
    "text": ("translation", {"y": WORDS}, {"y": np.array(["a dog ran"], dtype=object)}),
    "token": ("fill-mask", {"y": FRAMES}, {"y": FRAMES[..., ::-1]}),
}
BUILT_IN = [p.name for p in Plugins().all() if p.family == "comparator" and "(optvet " in p.origin]


def test_every_comparator_has_its_case() -> None:
    assert set(BUILT_IN) <= CASES.keys()


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_comparator_conforms(name: str) -> None:
    check_comparator(Plugins().comparator(name), *CASES[name])


# What the suite refuses


class Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Sound:
    """Equal or not; says what the tests below tell it to say in place of that."""

    name = "sound"
    options: BaseModel = Options()

    def __init__(self, **instead: Any) -> None:
        self.instead = instead

    def matches(self, model: Any, outputs: Outputs) -> float:
        return float(self.instead.get("score", 1.0))

    def compare(
        self, model: Any, sample: Any, ours: Outputs, theirs: Outputs, options: Any, *, noise: Any
    ) -> Comparison:
        changed = [
            not np.array_equal(v, theirs[n], equal_nan=v.dtype.kind in "fc")
            for n, v in ours.items()
        ]
        answer = {"sample": sample.id, "metrics": {"equal": 0.0}, "changed": any(changed)}
        for key, value in self.instead.items():
            if key not in ("score", "headline"):
                answer[key] = value(ours, theirs) if callable(value) else value
        return Comparison(**answer)

    def summarise(self, comparisons: Sequence[Comparison], options: Any) -> Summary:
        return Summary({}, self.instead.get("headline", "as it was"))


def check(**instead: Any) -> None:
    before = {"y": np.array([[1.0, 2]], np.float32)}
    check_comparator(Sound(**instead), "a task", before, {"y": before["y"] + 1})


def test_what_is_sound_conforms() -> None:
    check()


def within_noise(ours: Outputs, theirs: Outputs) -> bool:
    """Whether any number lies beyond 0; a comparison with NaN is false."""
    return bool(
        np.any([np.abs(theirs[n] - ours[n]) > 0 for n in ours if ours[n].dtype.kind in "fc"])
    )


def overflowing(ours: Outputs, theirs: Outputs) -> bool:
    """Whether squares differ, those of large numbers too."""
    squares = [[v * v for v in side.values() if v.dtype.kind == "f"] for side in (ours, theirs)]
    return not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(*squares, strict=True))


def spoiling(ours: Outputs, theirs: Outputs) -> bool:
    for value in theirs.values():
        value.fill(0)
    return True


@pytest.mark.parametrize(
    ("instead", "message"),
    [
        ({"score": 2.0}, r"from 0 to 1, not 2\.0"),
        ({"score": 0.5}, r"must score 'a task' at least 0\.9, not 0\.5"),
        ({"changed": True}, "says that equal outputs changed"),
        ({"sensitive": True}, "says that equal outputs were undecided"),
        ({"changed": False}, "does not notice another answer"),
        ({"changed": np.bool_(False)}, "are bool, not"),
        ({"sample": "x"}, "must name the sample"),
        ({"metrics": {"m": "high"}}, "metric 'm' must be a number, not 'high'"),
        ({"detail": {"a": np.ones(2)}}, "detail must hold numbers, texts"),
        ({"detail": {"a": [0] * 99_999}}, "detail has 300004 bytes as JSON"),
        ({"headline": "two\nlines"}, "the headline must be one line"),
    ],
)
def test_what_is_not_sound_is_refused(instead: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError, match=f"sound: .*{message}"):
        check(**instead)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (within_noise, "does not notice numbers that gave NaN"),
        (overflowing, "stumbles over .*RuntimeWarning"),
        (spoiling, "read-only"),
    ],
)
def test_carelessness_is_refused(changed: Callable[..., bool], message: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=message):
        check(changed=changed)


def test_a_pretended_model_has_a_task_and_inputs() -> None:
    model = pretend_model("a task", {"a": (1, "n")}, {"topk": [1]})
    assert (model.task, model.inputs[0].shape) == ("a task", (1, "n"))
    assert model.config.comparator_options == {"topk": [1]}
