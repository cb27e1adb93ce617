from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optvet import InputError, Sample
from optvet.plugin import Comparison, Model, ModelConfig, ValueInfo
from optvet_pose import PoseComparator, PoseOptions

COMPARATOR = PoseComparator()


def model(task: str | None = "single-person pose") -> Model:
    path = Path("m.onnx")
    inputs = (ValueInfo("x", "float", (1, 3, 8, 8)),)
    return Model("m", path, path, "0", inputs, (), 8, {}, 1, 1, ModelConfig(task=task))


def compare(before: Any, after: Any, noise: float = 0.0, **options: Any) -> Comparison:
    task = options.pop("task", "single-person pose")
    one, other = ({"y": np.asarray(side, np.float32)} for side in (before, after))
    sample, chosen = Sample("s", {}), PoseOptions(**options)
    return COMPARATOR.compare(model(task), sample, one, other, chosen, noise={"y": noise})


def body(seed: int = 0, sure: float = 0.9) -> np.ndarray:
    """COCO's 17 keypoints of one person, [1, 1, 17, 3]: y, x and a confidence."""
    points = np.random.default_rng(seed).uniform(0, 1, (17, 2))
    return np.concatenate([points, np.full((17, 1), sure)], axis=1)[None, None]


def test_a_pose_that_stays_is_the_same() -> None:
    same = compare(body(), body())
    assert (same.changed, same.sensitive) == (False, False)
    assert (same.metrics["pck"], same.metrics["oks"], same.metrics["keypoints"]) == (1, 1, 17)


def test_one_keypoint_that_moves_far_is_a_change() -> None:
    moved = body()
    moved[0, 0, 9, :2] += 0.5
    found = compare(body(), moved)
    assert found.changed
    assert found.metrics["pck"] == pytest.approx(16 / 17)
    assert found.metrics["oks"] < 1


def test_what_the_noise_moves_as_far_is_sensitive() -> None:
    moved = body()
    moved[0, 0, 9, :2] += 0.1
    found = compare(body(), moved, noise=0.2)
    assert (found.changed, found.sensitive) == (False, True)


def test_keypoints_of_which_the_original_is_unsure_are_left_out() -> None:
    assert compare(body(sure=0.1), body(1, sure=0.1)).metrics == {"keypoints": 0.0}


@given(st.floats(0.01, 1e3), st.integers(0, 50))
def test_oks_and_pck_do_not_depend_on_the_unit(scale: float, seed: int) -> None:
    one, other = body(seed), body(seed)
    other[..., :2] += np.random.default_rng(seed + 1).normal(0, 0.03, (17, 2))
    plain = compare(one, other).metrics
    one[..., :2] *= scale
    other[..., :2] *= scale
    scaled = compare(one, other).metrics
    assert scaled["oks"] == pytest.approx(plain["oks"], abs=1e-3)
    assert scaled["mean_distance"] == pytest.approx(plain["mean_distance"], rel=1e-3)


def test_oks_is_that_of_its_definition() -> None:
    """A nose (sigma 0.026) that moves by 0.05 of the diagonal; all others stay."""
    moved = body()
    size = np.linalg.norm(np.ptp(moved[0, 0, :, :2], axis=0))
    moved[0, 0, 0, 0] += 0.05 * size
    expected = (16 + np.exp(-(0.05**2) / (2 * 0.5 * (2 * 0.026) ** 2))) / 17
    assert compare(body(), moved).metrics["oks"] == pytest.approx(expected, abs=1e-4)


def test_angles_go_the_shorter_way_around() -> None:
    found = compare([[179.5, 0, 0]], [[-179.5, 0, 0]], task="head-pose regression", degrees=2)
    assert not found.changed
    assert found.metrics["max_degrees"] == pytest.approx(1)


def test_an_angle_that_turns_is_a_change() -> None:
    assert compare([[10, 0, 0]], [[14, 0, 0]], task="head-pose regression").changed


def test_flat_keypoints_are_divided() -> None:
    flat = np.arange(63, dtype=np.float32)[None]
    assert compare(flat, flat, task="hand-landmarks").metrics["keypoints"] == 21


def test_what_has_no_keypoints_is_an_input_error() -> None:
    with pytest.raises(InputError, match="no output has keypoints"):
        compare([1.0], [1.0])


def test_it_matches_poses_and_nothing_else() -> None:
    outputs = {"y": body().astype(np.float32)}
    assert COMPARATOR.matches(model(), outputs) > 0.9
    assert 0.5 < COMPARATOR.matches(model(None), outputs) < 0.9
    assert COMPARATOR.matches(model("face-landmarks (heat maps)"), outputs) == 0
    assert COMPARATOR.matches(model(None), {"y": np.zeros((1, 10), np.float32)}) == 0


def test_a_summary_weighs_by_keypoints() -> None:
    moved = body()
    moved[..., :2] += 0.5
    found = [compare(body(), body()), compare(body(), moved)]
    summary = COMPARATOR.summarise(found, PoseOptions())
    assert summary.metrics["pck"] == 0.5
    assert summary.headline == "1 of 2 poses moved"
