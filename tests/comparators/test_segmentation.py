from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import accuracy_score, jaccard_score

from optvet import InputError, Sample
from optvet.plugin import Comparison, Model, ModelConfig, ValueInfo
from optvet_segmentation import (
    SegmentationComparator,
    SegmentationOptions,
    class_axis,
    mean_iou,
    overlaps,
)

COMPARATOR = SegmentationComparator()


def model(task: str | None = None, shape: tuple[Any, ...] = (1, 3, 32, 48)) -> Model:
    path = Path("m.onnx")
    inputs = (ValueInfo("x", "float", shape),)
    return Model("m", path, path, "0", inputs, (), 8, {}, 1, 1, ModelConfig(task=task))


def compare(before: Any, after: Any, noise: float = 0.0, **options: Any) -> Comparison:
    return COMPARATOR.compare(
        model(),
        Sample("s", {}),
        {"mask": np.asarray(before)},
        {"mask": np.asarray(after)},
        SegmentationOptions(**options),
        noise={"mask": noise},
    )


def one_hot(mask: np.ndarray, classes: int) -> np.ndarray:
    """[1, classes, H, W]"""
    planes: np.ndarray = np.moveaxis(np.eye(classes)[mask], -1, 0)[None]
    return planes


masks = hnp.arrays(np.int64, (6, 7), elements=st.integers(0, 3))
LEFT = np.array([[0, 0, 1, 1]] * 2)
MORE = np.array([[0, 0, 0, 1]] * 2)


# Worked out by hand


def test_overlap_by_hand() -> None:
    # Class 0: 4 of 4 and 6 pixels: 4/6. Class 1: 2 of 4 and 2: 2/4. Mean 7/12; 6 of 8 agree.
    compared = compare(LEFT, MORE)
    assert compared.metrics["mean_iou"] == pytest.approx(7 / 12)
    assert compared.metrics["pixel_agreement"] == 0.75
    assert compared.detail["classes"]["1"] == {"intersection": 2, "union": 4, "iou": 0.5}
    summary = COMPARATOR.summarise([compared], SegmentationOptions())
    assert summary.headline == "1 of 1 masks changed; mean IoU 0.583333, 2 of 8 pixels"
    assert summary.metrics["iou_class_0"] == pytest.approx(4 / 6)


def test_samples_are_added_before_they_are_divided() -> None:
    # Class 1: (2 + 4) of (4 + 4); class 0: (4 + 4) of (6 + 4).
    pair = [compare(LEFT, MORE), compare(LEFT, LEFT)]
    summary = COMPARATOR.summarise(pair, SegmentationOptions())
    assert summary.metrics["mean_iou"] == pytest.approx((6 / 8 + 8 / 10) / 2)
    assert summary.metrics["pixel_agreement"] == 14 / 16
    assert summary.metrics["worst_mean_iou"] == pytest.approx(7 / 12)


# Layouts


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("said", [True, False])
def test_classes_may_be_second_or_last(layout: str, said: bool) -> None:
    pair = [one_hot(np.repeat(np.repeat(m, 4, 0), 4, 1), 3) for m in (LEFT, MORE)]
    if layout == "NHWC":
        pair = [np.moveaxis(p, 1, -1) for p in pair]
    ours, theirs = pair
    compared = compare(ours, theirs, layout=layout if said else "auto")
    assert compared.metrics["mean_iou"] == pytest.approx(7 / 12)


@pytest.mark.parametrize("shape", [(2, 4), (1, 2, 4), (1, 1, 2, 4), (1, 2, 4, 1)])
def test_one_channel_is_a_matte(shape: tuple[int, ...]) -> None:
    before, after = (m.reshape(shape) * 0.8 for m in (LEFT, MORE))
    assert compare(before, after).metrics["mean_iou"] == pytest.approx(7 / 12)
    assert compare(before, after, threshold=0.9).metrics["mean_iou"] == 1
    # Logits are cut at 0.
    logits = compare(before * 8 - 4, after * 8 - 4)
    assert logits.metrics["mean_iou"] == pytest.approx(7 / 12)


@pytest.mark.parametrize(
    ("shape", "images", "axis"),
    [
        ((1, 21, 64, 48), [], 1),
        ((1, 64, 48, 21), [], 3),
        ((1, 150, 128, 128), [], 1),
        ((1, 128, 128, 150), [], 3),
        ((1, 150, 96, 128), [(384, 512)], 1),
        ((1, 96, 128, 150), [(384, 512)], 3),
        ((1, 1, 2, 4), [], 1),
        ((1, 2, 4, 1), [], 3),
    ],
)
def test_classes_may_outnumber_pixels_of_a_side(
    shape: tuple[int, ...], images: list[tuple[int, int]], axis: int
) -> None:
    assert class_axis(shape, "auto", images) == axis


def test_integers_are_class_numbers_and_quantized_scores_are_scores() -> None:
    assert compare(LEFT, MORE).metrics["mean_iou"] == pytest.approx(7 / 12)
    before, after = ((one_hot(m, 3) * 200).astype(np.uint8) for m in (LEFT, MORE))
    assert compare(before, after, layout="NCHW").metrics["mean_iou"] == pytest.approx(7 / 12)


def test_float16() -> None:
    before, after = (one_hot(m, 3).astype(np.float16) for m in (LEFT, MORE))
    assert compare(before, after, layout="NCHW").changed
    assert not compare(before, before).changed


def test_what_has_no_pixels_is_refused() -> None:
    with pytest.raises(InputError, match="no output 'with pixels'"):
        compare(np.zeros(3), np.zeros(3))
    with pytest.raises(InputError, match="no output 'other'"):
        compare(LEFT, LEFT, output="other")


# Planted changes


@pytest.mark.parametrize("pixels", [1, 5, 24])
def test_planted_pixels_must_fail(pixels: int) -> None:
    before = np.zeros((4, 6))
    after = before.ravel().copy()
    after[:pixels] = 1
    compared = compare(before, after.reshape(4, 6))
    assert compared.changed
    assert compared.metrics["pixels_changed"] == pixels


def test_a_class_that_is_lost_costs_its_whole_share() -> None:
    before = LEFT.copy()
    before[0, 0] = 2
    compared = compare(before, LEFT)
    assert compared.detail["classes"]["2"]["iou"] == 0
    assert compared.metrics["mean_iou"] < 0.6


def test_pixels_within_noise_are_sensitivity() -> None:
    before, after = np.full((1, 1, 4, 4), 0.501), np.full((1, 1, 4, 4), 0.499)
    close = compare(before, after, noise=0.01)
    assert (close.changed, close.sensitive) == (False, True)
    assert compare(before, after, noise=1e-4).changed
    scores = np.zeros((1, 2, 4, 4))
    scores[:, 0] = 0.001
    close = compare(scores, scores[:, ::-1], noise=0.01, layout="NCHW")
    assert (close.changed, close.sensitive) == (False, True)
    assert compare(scores, scores[:, ::-1], noise=1e-4, layout="NCHW").changed


def test_few_pixels_may_be_allowed() -> None:
    before, after = np.zeros((10, 10)), np.zeros((10, 10))
    after[0, 0] = 1
    assert compare(before, after).changed
    assert not compare(before, after, min_agreement=0.99).changed
    assert compare(before, after, min_agreement=0.995).changed


# NaN, nothing


def test_nan_has_no_class() -> None:
    before = one_hot(LEFT, 3)
    broken = before.copy()
    broken[0, 1, 0, 0] = np.nan
    same = compare(broken, broken.copy(), layout="NCHW")
    assert not same.changed
    assert same.metrics["mean_iou"] == 1
    for pair in ((before, broken), (broken, before)):
        lost = compare(*pair, noise=1e9, layout="NCHW")
        assert lost.changed
        assert lost.metrics["mean_iou"] < 1
    matte = np.where(np.isnan(broken[:, 1:2]), np.nan, 0.2)
    assert compare(matte, np.full(matte.shape, 0.2), noise=1e9).changed


@pytest.mark.parametrize("shape", [(0, 3, 32, 32), (1, 3, 0, 8), (0, 4)])
def test_nothing_agrees_with_nothing(shape: tuple[int, ...]) -> None:
    compared = compare(np.zeros(shape), np.zeros(shape))
    assert not compared.changed
    assert compared.metrics["mean_iou"] == compared.metrics["pixel_agreement"] == 1
    assert COMPARATOR.summarise([compared], SegmentationOptions()).metrics["mean_iou"] == 1


# Properties


@given(masks)
def test_identical_masks_are_perfect(mask: np.ndarray) -> None:
    compared = compare(one_hot(mask, 4), one_hot(mask, 4))
    assert compared.metrics["mean_iou"] == compared.metrics["pixel_agreement"] == 1
    assert not compared.changed
    assert not compared.sensitive


@given(masks, masks)
def test_overlap_is_symmetric_and_bounded(a: np.ndarray, b: np.ndarray) -> None:
    first, second = mean_iou(overlaps(a, b)), mean_iou(overlaps(b, a))
    assert first == second
    assert 0 <= first <= 1
    assert (first == 1) == np.array_equal(a, b)


@given(masks, masks, st.integers(0, 41))
def test_repairing_a_pixel_never_lowers_agreement(a: np.ndarray, b: np.ndarray, i: int) -> None:
    mended = b.ravel().copy()
    mended[i] = a.ravel()[i]
    before, after = compare(a, b).metrics, compare(a, mended.reshape(b.shape)).metrics
    assert after["pixel_agreement"] >= before["pixel_agreement"]


@settings(deadline=None)
@given(masks, masks)
def test_overlap_is_sklearns(a: np.ndarray, b: np.ndarray) -> None:
    compared = compare(one_hot(a, 4), one_hot(b, 4)).metrics
    expected = jaccard_score(a.ravel(), b.ravel(), average="macro")
    assert compared["mean_iou"] == pytest.approx(expected, abs=1e-9)
    agreed = accuracy_score(a.ravel(), b.ravel())
    assert compared["pixel_agreement"] == pytest.approx(agreed, abs=1e-9)


# Choosing it


@pytest.mark.parametrize(
    ("task", "mine"),
    [
        ("semantic-segmentation (Pascal VOC 21)", True),
        ("segmentation (person matte)", True),
        ("text-detection", True),
        ("sentence segmentation (byte BiLSTM)", False),
        ("object-detection", False),
    ],
)
def test_it_recognises_its_tasks(task: str, mine: bool) -> None:
    score = COMPARATOR.matches(model(task), {"y": np.zeros((1, 5), np.float32)})
    assert (score >= 0.9) is mine


@pytest.mark.parametrize(
    ("shape", "fill", "likely"),
    [
        ((1, 21, 32, 48), "normal", True),
        ((1, 32, 48, 21), "normal", True),
        ((1, 1, 32, 48), "sure", True),
        ((1, 1, 32, 48), "uniform", False),
        ((1, 3, 32, 48), "normal", False),
        ((1, 198, 8, 12), "normal", False),
        ((1, 1, 96, 144), "sure", False),
        ((1, 24, 32, 48), "normal", False),
        ((1, 5, 32, 48), "shares", True),
        ((1, 1, 32, 48), "dark", False),
        ((1, 32, 48), "numbers", True),
        ((1, 32, 48), "large numbers", False),
    ],
)
def test_it_infers_maps_of_the_inputs_size(shape: tuple[int, ...], fill: str, likely: bool) -> None:
    rng = np.random.default_rng(0)
    value = {
        "normal": rng.normal(size=shape),
        "uniform": rng.random(shape),
        "sure": (rng.random(shape) > 0.5).astype(float),
        "dark": rng.random(shape) / 12,
        "shares": rng.dirichlet(np.ones(5), (1, 32, 48)).transpose(0, 3, 1, 2),
        "numbers": rng.integers(0, 5, shape),
        "large numbers": rng.integers(0, 5000, shape),
    }[fill]
    score = COMPARATOR.matches(model(), {"y": value})
    assert 0.01 < score < 0.9 if likely else score < 0.01


def test_a_name_is_evidence_of_classes_where_numbers_are_none() -> None:
    value = np.random.default_rng(0).normal(size=(1, 24, 32, 48))
    scores = {name: COMPARATOR.matches(model(), {name: value}) for name in ("y", "class_logits")}
    assert scores["y"] < 0.01 < scores["class_logits"] < 0.9
