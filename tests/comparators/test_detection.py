import contextlib
import io
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from optvet import InputError, Sample
from optvet.plugin import Comparison, Model, ModelConfig
from optvet_detection import DetectionComparator, is_detection
from optvet_detection.boxes import Detections, Proposals, box_iou, is_box, select, suppress
from optvet_detection.coco import average_precision, is_available, truth_from_detections
from optvet_detection.decoders import DECODERS, choose, image_size
from optvet_detection.heads import DecoderInput
from optvet_detection.matching import THRESHOLDS, assign, count, difference, label_order, ratios
from optvet_detection.options import DetectionOptions

coco = pytest.mark.skipif(not is_available(), reason="needs pycocotools (optvet[detection])")

SIZE = (64, 96)
BOXES = np.array([[9.0, 9, 41, 41], [50, 10, 90, 60], [20, 44, 36, 60]])
SCORES = np.array([0.9, 0.8, 0.6])
LABELS = np.array([2, 0, 1])
CLASSES = 3


def model(task: str | None = "object-detection") -> Model:
    config = ModelConfig(task=task)
    return Model("m", Path("m"), Path("m"), "0", (), (), 8, {"ai.onnx": 17}, 0, 0, config)


def sample(label: Any = None, size: tuple[int, int] = SIZE, images: int = 1) -> Sample:
    return Sample("s", {"x": np.zeros((images, 3, *size), np.float32)}, label)


def final_outputs(
    boxes: Any = BOXES, scores: Any = SCORES, labels: Any = LABELS
) -> dict[str, np.ndarray]:
    return {
        "boxes": np.asarray(boxes, np.float32).reshape(-1, 4),
        "labels": np.asarray(labels, np.int64),
        "scores": np.asarray(scores, np.float32),
    }


def compare(
    reference: Mapping[str, np.ndarray],
    candidate: Mapping[str, np.ndarray],
    noise: float = 0.0,
    label: Any = None,
    images: int = 1,
    size: tuple[int, int] = SIZE,
    **options: Any,
) -> Comparison:
    return DetectionComparator().compare(
        model(),
        sample(label, size, images),
        reference,
        candidate,
        DetectionOptions(**options),
        noise=dict.fromkeys(reference, noise),
    )


def detections(boxes: Any, scores: Any = None, labels: Any = None) -> Detections:
    b = np.asarray(boxes, np.float64).reshape(-1, 4)
    s = np.asarray([0.9] * len(b) if scores is None else scores, np.float64)
    return Detections(
        b,
        s,
        np.asarray([0] * len(b) if labels is None else labels, np.int64),
        np.zeros(len(b), bool),
    )


# Overlap, by hand


def test_the_overlap_of_a_box_with_its_shifted_copy_is_a_third() -> None:
    # 10 x 10 moved by 5: 50 shared of 150.
    iou = box_iou(np.array([[0.0, 0, 10, 10]]), np.array([[5.0, 0, 15, 10], [20, 20, 30, 30]]))
    assert iou.tolist() == [[50 / 150, 0.0]]


def test_what_has_no_area_or_is_no_number_is_no_box() -> None:
    rows = [[0, 0, 1, 1], [0, 0, 0, 1], [2, 0, 1, 1], [math.nan, 0, 1, 1], [0, 0, math.inf, 1]]
    assert (
        is_box(np.array([*rows, [0, 0, 1e30, 1e30]], np.float64)).tolist() == [True] + [False] * 5
    )


def test_suppression_drops_the_lesser_of_two_that_overlap() -> None:
    boxes = np.array([[0.0, 0, 10, 10], [1, 0, 11, 10], [20, 0, 30, 10]])
    assert suppress(boxes, 0.45, 10).tolist() == [0, 2]
    assert suppress(boxes, 0.9, 10).tolist() == [0, 1, 2]
    assert suppress(boxes, 0.9, 2).tolist() == [0, 1]


@pytest.mark.parametrize(("agnostic", "kept"), [(True, [0]), (False, [0, 1])])
def test_suppression_within_a_label_spares_other_labels(agnostic: bool, kept: list[int]) -> None:
    proposals = Proposals(
        np.array([[0.0, 0, 10, 10], [0, 0, 10, 10]]), np.array([[0.9, 0.1], [0.1, 0.8]])
    )
    shown = select(
        proposals,
        score_threshold=0.25,
        max_detections=9,
        iou_threshold=0.45,
        class_agnostic=agnostic,
    )
    assert shown.labels.tolist() == kept


# Metrics, by hand


def test_precision_recall_and_f1_of_a_dropped_and_a_shifted_box() -> None:
    ours = detections([[0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]])
    # The second moved by 2: 80 of 120 shared; the third is gone; one is new.
    theirs = detections([[0, 0, 10, 10], [22, 0, 32, 10], [0, 40, 10, 50], [0, 60, 10, 70]])
    metrics = ratios(count(ours, theirs))
    assert metrics["precision@0.5"] == 2 / 4
    assert metrics["recall@0.5"] == 2 / 3
    assert metrics["f1@0.5"] == 4 / 7
    assert metrics["precision@0.75"] == 1 / 4
    assert metrics["recall@0.9"] == 1 / 3
    assert metrics["iou"] == pytest.approx((1 + 80 / 120) / 4, abs=1e-15)


def test_boxes_of_different_labels_are_never_paired() -> None:
    metrics = ratios(count(detections([[0, 0, 9, 9]]), detections([[0, 0, 9, 9]], labels=[1])))
    assert metrics["iou"] == metrics["f1@0.5"] == 0.0


def test_no_detections_on_both_sides_is_agreement_and_on_one_side_is_none() -> None:
    nothing, one = detections([]), detections([[0, 0, 9, 9]])
    assert set(ratios(count(nothing, nothing)).values()) == {1.0}
    for pair in ((nothing, one), (one, nothing)):
        metrics = ratios(count(*pair))
        assert set(metrics.values()) == {0.0}


def test_the_matching_is_a_largest_one() -> None:
    # Greedy takes 0.9 first and is left with 0.1; both pairs at 0.6 and 0.5 are to be had.
    iou = np.array([[0.9, 0.6], [0.5, 0.1]])
    assert [x.tolist() for x in assign(iou, 0.5)] == [[0, 1], [1, 0]]


def test_score_agreement_is_what_the_largest_change_leaves() -> None:
    ours = detections([[0, 0, 9, 9], [20, 0, 29, 9]], [0.9, 0.8])
    theirs = detections([[0, 0, 9, 9], [20, 0, 29, 9]], [0.9, 0.5])
    assert ratios(count(ours, theirs))["score_agreement"] == pytest.approx(0.7, abs=1e-15)


def test_labels_of_the_first_boxes_are_compared_in_the_order_of_their_scores() -> None:
    ours = [detections(BOXES, [0.9, 0.8, 0.6], [2, 0, 1]), detections(BOXES, [0.9, 0.8, 0.6])]
    theirs = [detections(BOXES, [0.7, 0.8, 0.6], [2, 0, 1]), detections(BOXES, [0.9, 0.8, 0.6])]
    assert label_order(ours, ours) == dict.fromkeys(label_order(ours, ours), 1.0)
    assert label_order(ours, theirs)["label_order_top1"] == 0.5
    # The same labels in other places have the same order: only boxes moved.
    moved = [detections(BOXES + 5, d.scores, d.labels) for d in ours]
    assert label_order(ours, moved)["label_order_top10"] == 1.0


def test_boxes_in_one_place_are_paired_by_score() -> None:
    ours = detections([[0, 0, 9, 9], [0, 0, 9, 9]], [0.9, 0.4])
    theirs = detections([[0, 0, 9, 9], [0, 0, 9, 9], [0, 0, 9, 9]], [0.95, 0.88, 0.4])
    assert ratios(count(ours, theirs))["score_agreement"] == pytest.approx(0.98, abs=1e-9)


@coco
def test_average_precision_by_hand() -> None:
    truth = [truth_from_detections(detections([[0, 0, 10, 10], [20, 0, 30, 10]]))]
    # Right, wrong, right: precision 1 up to recall 0.5, then 2/3: 51 and 50 of 101 recalls.
    found = [detections([[0, 0, 10, 10], [60, 0, 70, 10], [20, 0, 30, 10]], [0.9, 0.8, 0.7])]
    metrics = average_precision(truth, found, max_detections=100)
    assert metrics["mAP"] == pytest.approx((51 + 50 * 2 / 3) / 101, abs=1e-12)
    assert metrics["AR"] == 1.0


@coco
def test_average_precision_by_overlap() -> None:
    truth = [truth_from_detections(detections([[0, 0, 10, 10]]))]
    # 80 shared of 100: right at 0.50, 0.55, … 0.80, wrong above.
    metrics = average_precision(truth, [detections([[0, 0, 8, 10]])], max_detections=100)
    assert metrics["mAP"] == pytest.approx(0.7, abs=1e-12)
    assert (metrics["AP@0.5"], metrics["AP@0.75"], metrics["AP@0.9"]) == (1.0, 1.0, 0.0)
    assert metrics["AR"] == pytest.approx(0.7, abs=1e-12)


@coco
def test_the_average_is_over_the_classes_that_are_true() -> None:
    truth = [truth_from_detections(detections([[0, 0, 9, 9]], labels=[7]))]
    found = [detections([[0, 0, 9, 9], [0, 0, 9, 9]], labels=[7, 3])]
    assert average_precision(truth, found, max_detections=100)["mAP"] == 1.0


@coco
def test_nothing_true_is_right_only_if_nothing_is_found() -> None:
    none = [truth_from_detections(detections([]))]
    assert set(average_precision(none, [detections([])], max_detections=9).values()) == {1.0}
    found = [detections([[0, 0, 9, 9]])]
    assert set(average_precision(none, found, max_detections=9).values()) == {0.0}


# Random detections


@st.composite
def random_detections(draw: st.DrawFn) -> Detections:
    rows: list[tuple[Any, ...]] = draw(
        st.lists(
            st.tuples(
                *(st.floats(0, 60), st.floats(0, 60), st.floats(0.01, 40), st.floats(0.01, 40)),
                st.sampled_from([0.3, 0.5, 0.5000001, 0.9]) | st.floats(0.25, 1),
                st.integers(0, 3),
            ),
            max_size=12,
        )
    )
    twice: bool = draw(st.booleans()) if rows else False
    if twice:
        # The same box once more, with another score.
        rows.append((*rows[0][:4], draw(st.floats(0.25, 1)), rows[0][5]))
    rows.sort(key=lambda r: -r[4])
    boxes = [[x, y, x + w, y + h] for x, y, w, h, _, _ in rows]
    return detections(boxes, [r[4] for r in rows], [r[5] for r in rows])


@given(random_detections())
def test_detections_compared_with_themselves_score_exactly_one(d: Detections) -> None:
    assert set(ratios(count(d, d)).values()) == {1.0}
    assert not difference(d, d, 1.0).missing
    outputs = final_outputs(d.boxes, d.scores, d.labels)
    same = compare(outputs, outputs, noise=1e-3)
    assert set(same.metrics.values()) == {1.0}
    assert (same.changed, same.sensitive) == (False, False)


@coco
@given(st.lists(random_detections(), min_size=1, max_size=3))
def test_average_precision_of_detections_against_themselves_is_exactly_one(
    images: list[Detections],
) -> None:
    truth = [truth_from_detections(d) for d in images]
    assert set(average_precision(truth, images, max_detections=100).values()) == {1.0}


@given(random_detections(), random_detections())
def test_metrics_are_symmetric_bounded_and_fall_with_the_overlap(
    a: Detections, b: Detections
) -> None:
    there, back = ratios(count(a, b)), ratios(count(b, a))
    assert all(0.0 <= v <= 1.0 for v in there.values())
    assert there["iou"] == pytest.approx(back["iou"], abs=1e-12)
    for t in THRESHOLDS:
        assert there[f"precision@{t}"] == back[f"recall@{t}"]
        assert there[f"f1@{t}"] == back[f"f1@{t}"]
    for low, high in itertools.pairwise(THRESHOLDS):
        for name in ("precision", "recall", "f1"):
            assert there[f"{name}@{low}"] >= there[f"{name}@{high}"]


@given(random_detections())
def test_dropping_a_box_never_helps(d: Detections) -> None:
    if len(d):
        fewer = detections(d.boxes[1:], d.scores[1:], d.labels[1:])
        metrics = ratios(count(d, fewer))
        assert metrics["recall@0.5"] == (len(d) - 1) / len(d)
        assert metrics["iou"] < 1.0


@coco
@given(st.lists(st.tuples(random_detections(), random_detections()), min_size=1, max_size=3))
def test_average_precision_is_that_of_pycocotools(
    images: list[tuple[Detections, Detections]],
) -> None:
    if not any(len(t) for t, _ in images) or not any(len(f) for _, f in images):
        return
    expected = direct_run(images)
    ours = average_precision(
        [truth_from_detections(t) for t, _ in images], [f for _, f in images], max_detections=100
    )
    assert ours["mAP"] == pytest.approx(expected[0], abs=1e-9)
    assert ours["AP@0.5"] == pytest.approx(expected[1], abs=1e-9)
    assert ours["AP@0.75"] == pytest.approx(expected[2], abs=1e-9)
    assert ours["AR"] == pytest.approx(expected[8], abs=1e-9)


def direct_run(images: Sequence[tuple[Detections, Detections]]) -> list[float]:
    """COCOeval as its own demonstration uses it."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def rows(n: int, d: Detections) -> list[dict[str, Any]]:
        boxes = np.hstack([d.boxes[:, :2], d.boxes[:, 2:] - d.boxes[:, :2]]).tolist()
        return [
            {"image_id": n, "category_id": int(c) + 1, "bbox": b, "score": float(s)}
            for b, c, s in zip(boxes, d.labels, d.scores, strict=True)
        ]

    truth = [row for n, (t, _) in enumerate(images) for row in rows(n, t)]
    for number, row in enumerate(truth, start=1):
        row |= {"id": number, "area": row["bbox"][2] * row["bbox"][3], "iscrowd": 0}
    with contextlib.redirect_stdout(io.StringIO()):
        gt = COCO()
        gt.dataset = {
            "info": {},
            "images": [{"id": n} for n in range(len(images))],
            "annotations": truth,
            "categories": [{"id": c} for c in sorted({r["category_id"] for r in truth})],
        }
        gt.createIndex()
        found = gt.loadRes([row for n, (_, f) in enumerate(images) for row in rows(n, f)])
        evaluation = COCOeval(gt, found, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [float(v) for v in evaluation.stats]


# Planted changes


def test_a_dropped_box_is_a_change() -> None:
    scores = SCORES.copy()
    scores[1] = 0.0
    result = compare(final_outputs(), final_outputs(scores=scores))
    assert result.changed
    assert result.detail["images"][0]["missing"] == [1]
    assert result.metrics["recall@0.5"] == 2 / 3


def test_a_shifted_box_is_a_change_and_a_nudged_one_is_not() -> None:
    moved, nudged = BOXES.copy(), BOXES.copy()
    moved[0] += [3, 0, 3, 0]
    nudged[0] += [0.01, 0, 0.01, 0]
    shifted = compare(final_outputs(), final_outputs(moved))
    assert shifted.changed
    # 29 of 35 columns are shared.
    assert shifted.metrics["f1@0.75"] == 1.0
    assert shifted.metrics["f1@0.9"] == 2 / 3
    slight = compare(final_outputs(), final_outputs(nudged))
    assert not slight.changed
    assert slight.metrics["iou"] < 1.0


def test_another_label_is_a_change() -> None:
    result = compare(final_outputs(), final_outputs(labels=[2, 1, 1]))
    assert result.changed
    assert result.metrics["f1@0.5"] == 2 / 3


def test_a_lower_score_is_seen_and_below_the_threshold_it_is_a_change() -> None:
    lower = compare(final_outputs(), final_outputs(scores=[0.9, 0.5, 0.6]))
    assert not lower.changed
    assert lower.metrics["score_agreement"] == pytest.approx(0.7, abs=1e-6)
    gone = compare(final_outputs(), final_outputs(scores=[0.9, 0.2, 0.6]))
    assert gone.changed


def test_a_score_that_crosses_the_threshold_by_less_than_the_noise_is_sensitivity() -> None:
    above, below = (
        final_outputs(scores=[0.9, 0.8, 0.2504]),
        final_outputs(scores=[0.9, 0.8, 0.2496]),
    )
    for pair in ((above, below), (below, above)):
        result = compare(*pair, noise=0.001)
        assert (result.changed, result.sensitive) == (False, True)
        assert compare(*pair, noise=0.0001).changed
    far = final_outputs(scores=[0.9, 0.8, 0.1])
    assert compare(above, far, noise=0.001).changed


def test_a_real_change_beside_an_undecided_box_is_a_change() -> None:
    above, below = (
        final_outputs(scores=[0.9, 0.8, 0.2504]),
        final_outputs(scores=[0.9, 0.0, 0.2496]),
    )
    result = compare(above, below, noise=0.001)
    assert (result.changed, result.sensitive) == (True, False)


def raw_outputs(scores: Any) -> dict[str, np.ndarray]:
    """Two boxes that overlap by 9/11, class scores beside them."""
    boxes = np.zeros((1, 40, 4), np.float32)
    boxes[0, :2] = [[0, 0, 10, 10], [1, 0, 11, 10]]
    table = np.zeros((1, 40, 2), np.float32)
    table[0, :2] = scores
    return {"boxes": boxes, "scores": table}


def test_two_labels_with_near_equal_scores_are_sensitivity() -> None:
    first = raw_outputs([[0.6001, 0.6], [0, 0]])
    second = raw_outputs([[0.6, 0.6001], [0, 0]])
    assert compare(first, second, noise=0.001).sensitive
    assert compare(first, second, noise=1e-6).changed


def test_two_boxes_with_near_equal_scores_are_sensitivity() -> None:
    first, second = raw_outputs([[0.6001, 0], [0.6, 0]]), raw_outputs([[0.6, 0], [0.6001, 0]])
    result = compare(first, second, noise=0.001)
    assert (result.changed, result.sensitive) == (False, True)
    assert compare(first, second, noise=1e-6).changed


def test_a_tie_at_the_greatest_number_of_boxes_is_sensitivity() -> None:
    first, second = (
        final_outputs(scores=[0.9, 0.8001, 0.8]),
        final_outputs(scores=[0.9, 0.8, 0.8001]),
    )
    assert compare(first, second, noise=0.001, max_detections=2).sensitive
    assert compare(first, second, noise=1e-6, max_detections=2).changed


def test_nan_is_no_detection() -> None:
    broken = {k: v * np.nan if v.dtype.kind == "f" else v for k, v in final_outputs().items()}
    lost = compare(final_outputs(), broken)
    assert lost.changed
    assert lost.metrics["recall@0.5"] == 0.0
    assert lost.detail["images"][0]["candidate"]["invalid"] == 3
    both = compare(broken, broken)
    assert not both.changed
    assert set(both.metrics.values()) == {1.0}
    odd = final_outputs(boxes=np.where(np.arange(12).reshape(3, 4) == 0, np.inf, BOXES))
    assert compare(final_outputs(), odd).detail["images"][0]["missing"] == [0]


@pytest.mark.parametrize("swap", [False, True])
def test_numbers_that_became_nan_are_a_change_where_no_box_is_seen(swap: bool) -> None:
    faint = final_outputs(scores=np.array([0.01, 0.02, 0.03], np.float32))
    broken = {k: v * np.nan if v.dtype.kind == "f" else v for k, v in faint.items()}
    ours, theirs = (broken, faint) if swap else (faint, broken)
    compared = compare(ours, theirs, noise=1e9)
    assert compared.changed
    assert compared.detail["nan_differs"] == ["boxes", "scores"]


def test_a_column_of_huge_numbers_is_no_number_of_an_image() -> None:
    table = np.array([[0, 1, 1, 2, 2, 5, 0.9], [1e30, 1, 1, 2, 2, 5, 0.9]], np.float32)
    assert DetectionComparator().matches(model(None), {"y": table}) == 0.0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("name", ["yolox", "yolov8", "yolov2", "retinanet", "yolov5-grid"])
def test_no_value_breaks_a_decoder(name: str, value: float) -> None:
    outputs, size = HEADS[name]()
    odd = {k: np.full_like(v, value) for k, v in outputs.items()}
    for ours, theirs in ((outputs, odd), (odd, odd)):
        result = compare(ours, theirs, size=size, decoder=name)
        assert all(np.isfinite(list(result.metrics.values())))
    assert set(result.metrics.values()) == {1.0}


# Decoders: heads made from known boxes


def logit(p: Any) -> Any:
    return np.log(np.asarray(p, np.float64) / (1 - np.asarray(p, np.float64)))


def centred(boxes: np.ndarray) -> np.ndarray:
    return np.hstack([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]])


def one_hot(low: float = 0.0) -> np.ndarray:
    table = np.full((3, CLASSES), low)
    table[np.arange(3), LABELS] = SCORES
    return table


def head_final() -> Any:
    return final_outputs(), SIZE


def head_ssd() -> Any:
    scale = [SIZE[1], SIZE[0]] * 2
    return {
        "bboxes": (BOXES / scale).astype(np.float32)[None],
        "labels": LABELS[None],
        "scores": SCORES.astype(np.float32)[None],
    }, SIZE


def head_tensorflow() -> Any:
    boxes = np.zeros((1, 5, 4), np.float32)
    boxes[0, :3] = (BOXES / [SIZE[1], SIZE[0], SIZE[1], SIZE[0]])[:, [1, 0, 3, 2]]
    # Rows behind num_detections are left over and mean nothing.
    boxes[0, 3:] = [0, 0, 1, 1]
    return {
        "num_detections:0": np.array([3.0], np.float32),
        "detection_boxes:0": boxes,
        "detection_scores:0": np.array([[*SCORES, 0.9, 0.9]], np.float32),
        "detection_classes:0": np.array([[*LABELS, 0, 0]], np.float32),
        "raw_detection_boxes:0": np.zeros((1, 7, 4), np.float32),
    }, SIZE


def head_mask_rcnn() -> Any:
    return {
        "6568": BOXES.astype(np.float32),
        "6570": LABELS,
        "6572": SCORES.astype(np.float32),
        "6887": np.zeros((3, 1, 28, 28), np.float32),
    }, SIZE


def head_rows6() -> Any:
    table = np.zeros((1, 5, 6), np.float32)
    table[0, :3] = np.hstack([BOXES, SCORES[:, None], LABELS[:, None]])
    return {"output0": table}, SIZE


def head_rows7() -> Any:
    zero = np.zeros((3, 1))
    rows = np.hstack([zero, BOXES, LABELS[:, None], SCORES[:, None]])
    return {"output": rows.astype(np.float32)}, SIZE


def head_detection_output() -> Any:
    table = np.zeros((1, 1, 5, 7), np.float32)
    table[0, 0, :3] = np.hstack(
        [np.zeros((3, 1)), LABELS[:, None], SCORES[:, None], BOXES / ([SIZE[1], SIZE[0]] * 2)]
    )
    table[0, 0, 3:, 0] = -1
    return {"detection_out": table}, SIZE


def head_yolov3(tiny: bool = False) -> Any:
    boxes = np.zeros((1, 6, 4), np.float32)
    boxes[0, 1:4] = BOXES[:, [1, 0, 3, 2]]
    scores = np.full((1, CLASSES, 6), 0.01, np.float32)
    scores[0, LABELS, [1, 2, 3]] = SCORES
    chosen = np.array([[0, c, i] for c, i in zip(LABELS, [1, 2, 3], strict=True)], np.int32)
    if tiny:
        chosen = np.concatenate([chosen, [[-1, -1, -1]]]).astype(np.int32)[None]
    return {"boxes": boxes, "scores": scores, "indices": chosen}, SIZE


def head_ultraface() -> Any:
    boxes, scores = np.zeros((1, 4420, 4), np.float32), np.zeros((1, 4420, 2), np.float32)
    boxes[0, :3] = BOXES / ([320, 240] * 2)
    # The same box again, a little lower and moved: suppression drops it.
    boxes[0, 3] = boxes[0, 0] + 0.002
    scores[..., 0] = 1
    scores[0, :4, 1] = [*SCORES, 0.55]
    scores[..., 0] -= scores[..., 1]
    return {"scores": scores, "boxes": boxes}, (240, 320)


def head_raw_ssd() -> Any:
    boxes = np.zeros((1, 40, 4), np.float32)
    boxes[0, :3] = BOXES
    scores = np.zeros((1, 40, 1 + CLASSES))
    scores[0, :3, 1:] = one_hot()
    scores[..., 0] = 1 - scores.sum(axis=-1)
    return {"boxes": boxes, "scores": np.log(scores + 1e-9).astype(np.float32)}, SIZE


def head_pytorch_yolov4() -> Any:
    boxes, scores = np.zeros((1, 40, 1, 4), np.float32), np.zeros((1, 40, CLASSES), np.float32)
    boxes[0, :3, 0], scores[0, :3] = BOXES / ([SIZE[1], SIZE[0]] * 2), one_hot()
    return {"boxes": boxes, "confs": scores}, SIZE


def head_yolox(decoded: bool = False) -> Any:
    cells = [
        (s, x, y) for s in (8, 16, 32) for y in range(SIZE[0] // s) for x in range(SIZE[1] // s)
    ]
    table = np.zeros((1, len(cells), 5 + CLASSES))
    for i, (s, x, y) in enumerate(cells):
        table[0, i, :4] = [(x + 0.5) * s, (y + 0.5) * s, s, s] if decoded else [0.5, 0.5, 0, 0]
    for row, box, scores in zip((3, 60, 125), centred(BOXES), one_hot(), strict=True):
        s, x, y = cells[row]
        sides = box[2:] if decoded else np.log(box[2:] / s)
        table[0, row, :2] = box[:2] if decoded else box[:2] / s - [x, y]
        table[0, row, 2:] = [*sides, 1.0, *scores]
    return {"output": table.astype(np.float32)}, SIZE


def head_yolo(normalised: bool = False) -> Any:
    table = np.zeros((1, 378, 5 + CLASSES), np.float32)
    scale = np.array([SIZE[1], SIZE[0]] * 2) if normalised else 1
    # Objectness 0.95 leaves the class scores to make up the product.
    table[0, 5:8] = np.hstack([centred(BOXES) / scale, np.full((3, 1), 0.95), one_hot() / 0.95])
    return {"output": table}, SIZE


def head_yolov8(masks: bool = False) -> Any:
    table = np.zeros((1, 4 + CLASSES + 8 * masks, 126), np.float32)
    table[0, : 4 + CLASSES, 5:8] = np.hstack([centred(BOXES), one_hot()]).T
    table[0, 4 + CLASSES :] = 5.0
    outputs = {"output0": table}
    if masks:
        outputs["output1"] = np.zeros((1, 8, 16, 24), np.float32)
    return outputs, SIZE


def head_yolov2() -> Any:
    from optvet_detection.grids import COCO_ANCHORS

    grid = np.full((1, 5, 5 + CLASSES, 2, 3), -12.0)
    for a, box, label, score in zip((1, 3, 4), centred(BOXES) / 32, LABELS, SCORES, strict=True):
        x, y = int(box[0]), int(box[1])
        grid[0, a, :2, y, x] = logit(box[:2] - [x, y])
        grid[0, a, 2:4, y, x] = np.log(box[2:] / COCO_ANCHORS[a])
        grid[0, a, 4, y, x] = logit(score)
        grid[0, a, 5:, y, x] = 0
        grid[0, a, 5 + label, y, x] = 60.0
    return {"grid": grid.reshape(1, -1, 2, 3).astype(np.float32)}, SIZE


def head_levels(name: str) -> Any:
    """Grids at 8, 16 and 32; each box sits in the level of its number."""
    from optvet_detection.grids import YOLOV3_ANCHORS, YOLOV4_ANCHORS, YOLOV4_SCALES

    outputs = {}
    published = YOLOV4_ANCHORS if name == "yolov4-grid" else YOLOV3_ANCHORS
    anchors = np.array(published, float).reshape(3, 3, 2)
    for level, stride in enumerate((8, 16, 32)):
        h, w = SIZE[0] // stride, SIZE[1] // stride
        grid = np.full((1, h, w, 3, 5 + CLASSES), 0.0 if name == "yolov4-grid" else -12.0)
        box, label, score = centred(BOXES)[level], LABELS[level], SCORES[level]
        x, y = (box[:2] / stride).astype(int)
        inside = box[:2] / stride - [x, y]
        ratio = box[2:] / anchors[level, 2]
        if name == "yolov4-grid":
            s = YOLOV4_SCALES[stride]
            txy, twh = logit((inside + (s - 1) / 2) / s), np.log(ratio)
            rest = [1.0, *np.eye(CLASSES)[label] * score]
        else:
            txy, twh = logit(inside), np.log(ratio)
            if name == "yolov5-grid":
                txy, twh = logit((inside + 0.5) / 2), logit(np.sqrt(ratio) / 2)
            rest = [30.0, *np.where(np.arange(CLASSES) == label, logit(score), -12.0)]
        grid[0, y, x, 2] = [*txy, *twh, *rest]
        if name == "yolov3-grid":
            grid = grid.transpose(0, 3, 4, 1, 2).reshape(1, -1, h, w)
        if name == "yolov5-grid":
            grid = grid.transpose(0, 3, 1, 2, 4)
        outputs[f"level{level}"] = grid.astype(np.float32)
    return outputs, SIZE


def head_retinanet() -> Any:
    outputs: dict[str, np.ndarray] = {}
    for level, stride in enumerate((8, 16, 32)):
        h, w = SIZE[0] // stride, SIZE[1] // stride
        classes = np.zeros((1, 9, CLASSES, h, w))
        deltas = np.zeros((1, 9, 4, h, w))
        # Anchor 0 is a square of 4 strides, its last pixel included, around the cell's centre.
        side = 4 * stride + 1
        left, top, right, bottom = BOXES[level]
        width, height = right - left + 1, bottom - top + 1
        centre = np.array([left + width / 2, top + height / 2])
        x, y = (centre / stride).astype(int)
        middle = np.array([x, y]) * stride + stride / 2 - 2 * stride + side / 2
        delta = [*(centre - middle) / side, np.log(width / side), np.log(height / side)]
        deltas[0, 0, :, y, x] = delta
        classes[0, 0, LABELS[level], y, x] = SCORES[level]
        outputs[f"cls{level}"] = classes.reshape(1, -1, h, w).astype(np.float32)
        outputs[f"box{level}"] = deltas.reshape(1, -1, h, w).astype(np.float32)
    return outputs, SIZE


HEADS: dict[str, Any] = {
    "final": head_final,
    "final ssd": head_ssd,
    "final tensorflow": head_tensorflow,
    "final mask-rcnn": head_mask_rcnn,
    "rows": head_rows6,
    "rows yolov7": head_rows7,
    "rows caffe": head_detection_output,
    "yolov3": head_yolov3,
    "yolov3 tiny": lambda: head_yolov3(tiny=True),
    "boxes-scores": head_ultraface,
    "boxes-scores ssd": head_raw_ssd,
    "boxes-scores yolov4": head_pytorch_yolov4,
    "yolox": head_yolox,
    "yolox decoded": lambda: head_yolox(decoded=True),
    "yolo": head_yolo,
    "yolo normalised": lambda: head_yolo(normalised=True),
    "yolov8": head_yolov8,
    "yolov8 masks": lambda: head_yolov8(masks=True),
    "yolov2": head_yolov2,
    "yolov3-grid": lambda: head_levels("yolov3-grid"),
    "yolov4-grid": lambda: head_levels("yolov4-grid"),
    "yolov5-grid": lambda: head_levels("yolov5-grid"),
    "retinanet": head_retinanet,
}


def test_every_decoder_has_a_head_made_by_hand() -> None:
    assert {name.split()[0] for name in HEADS} == set(DECODERS)


@pytest.mark.parametrize("name", HEADS)
def test_a_decoder_finds_the_boxes_that_were_encoded(name: str) -> None:
    outputs, size = HEADS[name]()
    result = compare(outputs, outputs, noise=1e-6, size=size)
    assert result.detail["decoder"] == name.split()[0]
    seen = result.detail["images"][0]["reference"]
    labels = LABELS + 1 if name == "boxes-scores ssd" else LABELS
    labels = np.ones(3, int) if name == "boxes-scores" else labels
    assert seen["labels"] == labels.tolist()
    assert np.allclose(seen["scores"], SCORES, atol=1e-4)
    assert np.allclose(seen["boxes"], BOXES, atol=2e-2)
    assert set(result.metrics.values()) == {1.0}
    assert (result.changed, result.sensitive) == (False, False)


@pytest.mark.parametrize("name", HEADS)
def test_a_decoder_can_be_asked_for_by_name(name: str) -> None:
    outputs, size = HEADS[name]()
    wanted = compare(outputs, outputs, size=size, decoder=name.split()[0])
    assert len(wanted.detail["images"][0]["reference"]["scores"]) == 3


def test_boxes_stay_as_they_are_where_the_input_is_no_image() -> None:
    outputs, _ = head_ssd()
    given = Sample("s", {"tokens": np.zeros((1, 9), np.int64)})
    result = DetectionComparator().compare(
        model(), given, outputs, outputs, DetectionOptions(), noise={}
    )
    assert np.max(result.detail["images"][0]["reference"]["boxes"]) <= 1.0


def test_units_are_those_of_the_reference_on_both_sides() -> None:
    outputs, size = head_ssd()
    wild = {k: v * 100 if k == "bboxes" else v for k, v in outputs.items()}
    assert compare(outputs, wild, size=size).metrics["recall@0.5"] == 0.0


def test_images_of_a_batch_are_kept_apart() -> None:
    outputs, size = head_yolov8()
    both = {k: np.concatenate([v, v]) for k, v in outputs.items()}
    half = {k: np.concatenate([v, v * 0]) for k, v in outputs.items()}
    result = compare(both, half, size=size, images=2)
    assert [i["missing"] for i in result.detail["images"]] == [[], [0, 1, 2]]
    assert result.metrics["recall@0.5"] == 0.5


def test_outputs_of_no_known_form_are_refused_with_their_shapes() -> None:
    logits = {"logits": np.zeros((1, 1000), np.float32)}
    with pytest.raises(InputError, match=r"logits \[1, 1000\]; expected one of yolov3, final"):
        compare(logits, logits)
    with pytest.raises(InputError, match="expected decoder 'yolox'"):
        compare(logits, logits, decoder="yolox")


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((1, 3, 240, 320), (240, 320)),
        ((1, 416, 400, 3), (416, 400)),
        ((3, 800, 600), (800, 600)),
        ((1, 3, None, "w"), None),
        ((1, 128), None),
        (None, None),
    ],
)
def test_the_size_of_an_image_is_told_from_its_shape(shape: Any, size: Any) -> None:
    assert image_size([None, shape]) == size


# Choice


@pytest.mark.parametrize(
    ("task", "score"),
    [
        ("object-detection (COCO 80)", 1.0),
        ("face-detection", 1.0),
        ("Object Detection", 1.0),
        ("detection", 1.0),
        ("text-detection", 0.0),
        ("voice-activity detection", 0.0),
        ("content-type detection from bytes", 0.0),
        ("image-classification", 0.0),
    ],
)
def test_a_declared_task_decides(task: str, score: float) -> None:
    assert is_detection(task) == bool(score)
    assert DetectionComparator().matches(model(task), final_outputs()) == score


@pytest.mark.parametrize("name", HEADS)
def test_what_is_inferred_stays_below_a_declaration(name: str) -> None:
    assert DetectionComparator().matches(model(None), HEADS[name]()[0]) < 0.9


@pytest.mark.parametrize(
    "outputs",
    [
        {"logits": (1, 1000)},
        {"hidden": (1, 128, 312), "pooled": (1, 312)},
        {"mask": (1, 21, 64, 64)},
        {"flow": (1, 2, 60, 80), "depth": (1, 1, 60, 80)},
        {"heat": (1, 75, 20, 20)},
        {"start": (1, 256), "end": (1, 256)},
        {"tokens": (1, 16, 9)},
    ],
    ids=lambda o: "-".join(o),
)
def test_other_outputs_are_left_to_others(outputs: dict[str, tuple[int, ...]]) -> None:
    rng = np.random.default_rng(0)
    values = {n: rng.normal(size=s).astype(np.float32) for n, s in outputs.items()}
    assert DetectionComparator().matches(model(None), values) == 0.0


def test_a_head_is_recognised_by_its_cells() -> None:
    outputs, size = head_yolox()
    head = choose(DecoderInput(outputs, size))
    assert head is not None
    assert 0.5 < head.certainty < 0.9


# Annotations


def annotated(boxes: np.ndarray = BOXES, labels: Any = LABELS) -> dict[str, Any]:
    xywh = np.hstack([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]])
    return {"boxes": xywh.tolist(), "labels": list(labels)}


@coco
def test_both_sides_are_scored_against_annotations() -> None:
    worse = final_outputs(scores=[0.9, 0.0, 0.6])
    result = compare(final_outputs(), worse, label=annotated())
    assert result.metrics["reference_mAP"] == 1.0
    # One of three classes is lost.
    assert result.metrics["candidate_mAP"] == pytest.approx(2 / 3, abs=1e-12)
    summary = DetectionComparator().summarise([result], DetectionOptions())
    assert summary.metrics["candidate_mAP"] == pytest.approx(2 / 3, abs=1e-12)
    assert summary.headline == (
        "1 of 1 images changed (mAP 0.67; against annotations 0.67, was 1.00)"
    )


def test_what_a_user_sees_is_scored_against_annotations() -> None:
    worse = final_outputs(scores=[0.9, 0.0, 0.6])  # two of three boxes
    result = compare(final_outputs(), worse, label=annotated())
    both = DetectionComparator().summarise([result, result], DetectionOptions())
    for found in (result.metrics, both.metrics):
        assert found["reference_precision@0.5"] == found["reference_recall@0.5"] == 1.0
        assert found["candidate_precision@0.5"] == 1.0
        assert found["candidate_recall@0.9"] == pytest.approx(2 / 3)
        assert found["candidate_f1@0.5"] == pytest.approx(4 / 5)
        assert found["candidate_iou"] == pytest.approx(2 / 3)
    label = annotated(BOXES[:1], LABELS[:1])
    found = compare(final_outputs(), final_outputs(), label=label).metrics
    assert found["reference_precision@0.5"] == pytest.approx(1 / 3)
    assert set(found) <= {*DetectionComparator().metrics(DetectionOptions())}


def test_a_box_in_a_crowd_is_no_mistake() -> None:
    label = annotated() | {"iscrowd": [0, 1, 0]}
    worse = final_outputs(scores=[0.9, 0.0, 0.6])
    found = compare(final_outputs(), worse, label=label).metrics
    assert found["reference_precision@0.5"] == found["candidate_precision@0.5"] == 1.0
    assert found["reference_recall@0.5"] == found["candidate_recall@0.5"] == 1.0


@coco
def test_annotations_are_scored_over_all_detections_as_coco_does() -> None:
    # What scores below the line that users see still has its place in the ranking.
    faint = final_outputs(scores=[0.9, 0.1, 0.05])
    result = compare(final_outputs(), faint, label=annotated())
    assert result.metrics["reference_mAP"] == result.metrics["candidate_mAP"] == 1.0
    assert result.metrics["recall@0.5"] < 1
    both = DetectionComparator().summarise([result, result], DetectionOptions())
    assert both.metrics["candidate_mAP"] == 1.0


@coco
@given(seed=st.integers(0, 99))
def test_map_against_annotations_is_pycocotools_own(seed: int) -> None:
    rng = np.random.default_rng(seed)
    corners = rng.uniform(0, 60, (6, 2))
    boxes = np.hstack([corners, corners + rng.uniform(5, 30, (6, 2))]).astype(np.float32)
    scores, labels = rng.uniform(0.01, 1, 6), rng.integers(0, 2, 6)
    moved = boxes + rng.normal(0, 2, boxes.shape).astype(np.float32)
    label = annotated(boxes[:4].astype(np.float64), labels[:4])
    found = compare(
        final_outputs(boxes, scores, labels), final_outputs(moved, scores, labels), label=label
    ).metrics
    assert found["candidate_mAP"] == pytest.approx(_own_map(label, moved, scores, labels))


def _own_map(label: Any, boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray) -> float:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth = [
        {"id": i + 1, "image_id": 1, "category_id": int(c), "bbox": b, "iscrowd": 0}
        | {"area": b[2] * b[3]}
        for i, (b, c) in enumerate(zip(label["boxes"], label["labels"], strict=True))
    ]
    wide = boxes.astype(np.float64)
    rows = np.hstack([wide[:, :2], wide[:, 2:] - wide[:, :2]]).tolist()
    found = [
        {"image_id": 1, "category_id": int(c), "bbox": b, "score": float(np.float32(s))}
        for b, s, c in zip(rows, scores, labels, strict=True)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = {
            "images": [{"id": 1}],
            "categories": [{"id": 0}, {"id": 1}],
            "annotations": truth,
        }
        known.createIndex()
        run = COCOeval(known, known.loadRes(found), "bbox")
        run.evaluate()
        run.accumulate()
        run.summarize()
    return float(run.stats[0])


@coco
@pytest.mark.parametrize(
    ("classes", "labels"),
    [
        (("cat", "dog", "owl"), ["owl", "cat", "dog"]),
        ("coco", [3, 1, 2]),
        ("coco", ["car", "person", "bicycle"]),
        (None, ["2", 0, 1]),
    ],
)
def test_labels_of_annotations_are_brought_to_class_numbers(classes: Any, labels: Any) -> None:
    result = compare(
        final_outputs(), final_outputs(), label=annotated(labels=labels), classes=classes
    )
    assert result.metrics["reference_mAP"] == 1.0


def test_a_label_that_is_no_box_is_no_annotation() -> None:
    result = compare(final_outputs(), final_outputs(), label=17)
    assert not [k for k in result.metrics if k.startswith("reference_")]


@pytest.mark.parametrize(
    ("label", "text"),
    [
        ({"boxes": [[0, 0, 1, 1]], "labels": []}, "has 1 boxes, 0 labels"),
        ({"boxes": [["a", 0, 1, 1]], "labels": [1]}, "are no numbers"),
        ({"boxes": [[0, 0, 1, 1]], "labels": ["cat"]}, "annotated with the name 'cat'"),
        ([{"boxes": [], "labels": []}] * 2, "annotations for 2 images"),
    ],
)
def test_malformed_annotations_are_refused(label: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        compare(final_outputs(), final_outputs(), label=label)


# Summary


@coco
def test_the_headline_tells_how_many_images_changed() -> None:
    same = compare(final_outputs(), final_outputs())
    moved = compare(final_outputs(), final_outputs(scores=[0.9, 0.8, 0.1]))
    summary = DetectionComparator().summarise([same] * 9 + [moved], DetectionOptions())
    # Recall 9/10 in one of three classes: 91 of 101 recalls.
    assert summary.metrics["mAP"] == pytest.approx((2 + 91 / 101) / 3, abs=1e-12)
    assert summary.metrics["recall@0.5"] == 29 / 30
    assert summary.headline == "1 of 10 images changed (mAP 0.97)"


def test_the_headline_tells_that_there_was_nothing_to_see() -> None:
    nothing = compare(final_outputs(scores=[0, 0, 0]), final_outputs(scores=[0, 0, 0]))
    summary = DetectionComparator().summarise([nothing] * 2, DetectionOptions())
    assert summary.headline == "0 of 2 images changed (no detections)"
    assert set(summary.metrics.values()) == {1.0}


@coco
def test_a_mean_that_is_not_one_does_not_read_one() -> None:
    nudged = compare(final_outputs(), final_outputs(BOXES + 0.9))
    odd = [compare(final_outputs(), final_outputs())] * 300 + [nudged]
    summary = DetectionComparator().summarise(odd, DetectionOptions())
    assert summary.metrics["mAP"] < 1.0
    assert "mAP 1.00" not in summary.headline


def test_without_pycocotools_the_rest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = compare(final_outputs(), final_outputs(scores=[0.9, 0.8, 0.1]), label=annotated())
    summary = DetectionComparator().summarise([result], DetectionOptions())
    assert "mAP" not in summary.metrics
    assert summary.headline == "1 of 1 images changed (F1 0.80; mAP needs optvet[detection])"


@coco
@given(random_detections(), random_detections())
def test_overlaps_are_those_of_pycocotools(a: Detections, b: Detections) -> None:
    from pycocotools import mask

    if not len(a) or not len(b):
        return
    sides = [np.hstack([d.boxes[:, :2], d.boxes[:, 2:] - d.boxes[:, :2]]) for d in (a, b)]
    expected = np.asarray(mask.iou(*sides, [0] * len(b)))
    assert box_iou(a.boxes, b.boxes) == pytest.approx(expected, abs=1e-9)


@given(random_detections(), random_detections())
def test_the_number_of_pairs_is_that_of_scipys_matching_of_a_graph(
    a: Detections, b: Detections
) -> None:
    for number, threshold in enumerate(THRESHOLDS):
        same = a.labels[:, None] == b.labels[None, :]
        graph = scipy.sparse.csr_array((box_iou(a.boxes, b.boxes) >= threshold) & same)
        match = scipy.sparse.csgraph.maximum_bipartite_matching
        pairs = int((match(graph) >= 0).sum()) if len(a) and len(b) else 0
        counts = count(a, b)
        assert counts.paired[number] == pairs
        told = len(a) + len(b)
        expected = 2 * pairs / told if told else 1.0
        assert ratios(counts)[f"f1@{threshold}"] == pytest.approx(expected, abs=1e-9)
