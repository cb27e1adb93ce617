import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import scipy
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from optvet import InputError, Sample
from optvet.plugin import Comparison, Model, ModelConfig, ValueInfo
from optvet_image import ImageComparator, ImageOptions
from optvet_image.similarity import image_metrics, psnr_db, ssim
from optvet_image.value_range import data_range

COMPARATOR = ImageComparator()
planes = hnp.arrays(np.float64, (14, 13), elements=st.floats(0, 1, width=16))


def model(task: str | None = None, shape: tuple[Any, ...] = (1, 3, 32, 48)) -> Model:
    path = Path("m.onnx")
    inputs = (ValueInfo("x", "float", shape),)
    return Model("m", path, path, "0", inputs, (), 8, {}, 1, 1, ModelConfig(task=task))


def compare(before: Any, after: Any, noise: float = 0.0, **options: Any) -> Comparison:
    return COMPARATOR.compare(
        model(),
        Sample("s", {}),
        {"image": np.asarray(before)},
        {"image": np.asarray(after)},
        ImageOptions(**options),
        noise={"image": noise},
    )


def ssim_by_windows(x: np.ndarray, y: np.ndarray, span: float) -> float:
    """The definition, with sums over explicit windows and no mirroring."""
    at = np.arange(-5, 6)
    row = np.exp(-(at**2) / (2 * 1.5**2))
    window = np.outer(row, row) / row.sum() ** 2

    def mean(v: np.ndarray) -> np.ndarray:
        return np.asarray(scipy.signal.convolve2d(v, window, mode="valid"))

    mx, my = mean(x), mean(y)
    vx, vy, cov = mean(x * x) - mx**2, mean(y * y) - my**2, mean(x * y) - mx * my
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    top = (2 * mx * my + c1) * (2 * cov + c2)
    return float(np.mean(top / ((mx**2 + my**2 + c1) * (vx + vy + c2))))


# Worked out by hand


def test_psnr_by_hand() -> None:
    # One of a hundred pixels off by 1 of 1: MSE 0.01, 10 log10(1 / 0.01) = 20 dB.
    before, after = np.zeros((1, 10, 10)), np.zeros((1, 10, 10))
    after[0, 3, 3] = 1
    metrics = image_metrics(before, after, 1.0)
    assert metrics["psnr_db"] == pytest.approx(20)
    assert metrics["rmse"] == pytest.approx(0.1)
    assert metrics["max_levels"] == 255
    assert psnr_db(1.0, 255.0) == pytest.approx(48.1308, abs=1e-4)
    assert psnr_db(0.0, 255.0) == math.inf


def test_ssim_of_flat_planes_by_hand() -> None:
    # Without variance only the means are left: (2 a b + C1) / (a² + b² + C1).
    a, b, c1 = 0.5, 0.75, 1e-4
    expected = (2 * a * b + c1) / (a * a + b * b + c1)
    assert ssim(np.full((12, 12), a), np.full((12, 12), b), 1.0) == pytest.approx(expected)
    # So it is in small images, which hold no window.
    assert ssim(np.full((4, 5), a), np.full((4, 5), b), 1.0) == pytest.approx(expected)


def test_ssim_of_a_negative_is_negative() -> None:
    x = np.indices((16, 16)).sum(axis=0) % 2 - 0.5
    # Means vanish, covariance is minus the variance: (C2 - 2v) / (C2 + 2v), v = 1/4.
    assert ssim(x, -x, 1.0) == pytest.approx((9e-4 - 0.5) / (9e-4 + 0.5), abs=1e-3)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([0, 3], np.uint8), 255),
        (np.array([0.0, 1.0]), 1),
        (np.array([-0.05, 1.04]), 1),
        (np.array([-1.0, 0.9]), 2),
        (np.array([0.0, 250]), 255),
        (np.array([-12.0, 262]), 255),
        (np.array([-500.0, 500]), 1000),
        (np.array([np.nan, 0.5, np.inf]), 1),
        (np.array([0.0, 1.3]), 1.3),
        (np.array([0.0, 12.5]), 12.5),
        (np.array([0.0, 3, 12]), 255),
        (np.zeros(0), 1),
    ],
)
def test_the_range_is_found(values: np.ndarray, expected: float) -> None:
    assert data_range(values) == expected


def test_the_worst_image_speaks_for_the_batch() -> None:
    before = np.zeros((2, 3, 16, 16))
    after = before.copy()
    after[1] = 0.1
    compared = compare(before, after)
    assert compared.metrics["psnr_db"] == pytest.approx(20)
    summary = COMPARATOR.summarise([compared], ImageOptions())
    assert summary.headline.startswith("1 of 1 images changed visibly; lowest PSNR 20.0 dB")


def test_equal_images_say_so() -> None:
    image = np.random.default_rng(0).random((1, 3, 16, 16))
    summary = COMPARATOR.summarise([compare(image, image)], ImageOptions())
    assert summary.headline == "0 of 1 images changed visibly; all equal"
    assert summary.metrics["psnr_db"] == math.inf


# Planted changes


def test_a_patch_must_fail_though_psnr_is_high() -> None:
    before = np.full((1, 1, 600, 600), 0.5, np.float32)
    after = before.copy()
    after[0, 0, 0, 0] = 0.7
    compared = compare(before, after)
    assert compared.metrics["psnr_db"] > 60
    assert compared.changed


@pytest.mark.parametrize("kind", ["brightness", "blur", "swapped channels", "shifted"])
def test_planted_changes_are_noticed(kind: str) -> None:
    before = np.random.default_rng(0).random((1, 3, 24, 24))
    after = {
        "brightness": before + 0.02,
        "blur": (before + np.roll(before, 1, 3)) / 2,
        "swapped channels": before[:, ::-1],
        "shifted": np.roll(before, 1, 2),
    }[kind]
    compared = compare(before, after)
    assert compared.changed
    assert compared.metrics["psnr_db"] < 40
    assert compared.metrics["ssim"] < 0.9999


def test_what_no_screen_shows_is_no_change() -> None:
    before = np.random.default_rng(0).random((1, 3, 24, 24))
    compared = compare(before, before + 1e-5)
    assert not compared.changed
    assert not compared.sensitive
    assert compare(before, before + 1e-5, min_psnr_db=120).changed


def test_visible_but_within_noise_is_sensitivity() -> None:
    before = np.full((1, 1, 16, 16), 0.5)
    compared = compare(before, before + 0.1, noise=0.2)
    assert (compared.changed, compared.sensitive) == (False, True)


# Layouts and types


@pytest.mark.parametrize("shape", [(1, 3, 16, 20), (1, 16, 20, 3), (3, 16, 20), (16, 20, 3)])
def test_channels_may_be_anywhere(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    image = rng.random((16, 20, 3))
    other = np.clip(image + rng.normal(0, 0.1, image.shape), 0, 1)
    expected = compare(image, other).metrics
    pair = [image, other]
    if 16 != shape[-3]:
        pair = [np.moveaxis(p, -1, 0) for p in pair]
    ours, theirs = (p.reshape(shape) for p in pair)
    assert compare(ours, theirs).metrics == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.uint8])
def test_types(dtype: Any) -> None:
    before = np.arange(256).reshape(1, 1, 16, 16).astype(dtype)
    assert not compare(before, before).changed
    assert compare(before, before[:, :, ::-1]).changed


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(InputError, match="no output 'with pixels' of rank 2 to 4"):
        compare(np.zeros(3), np.zeros(3))


# NaN, nothing


def test_nan_on_both_sides_is_left_out() -> None:
    image = np.random.default_rng(0).random((1, 1, 16, 16))
    image[0, 0, 3, 3] = np.nan
    compared = compare(image, image.copy())
    assert not compared.changed
    assert compared.metrics["psnr_db"] == math.inf
    assert compared.metrics["ssim"] == 1


@pytest.mark.parametrize("odd", [np.nan, np.inf])
@pytest.mark.parametrize("swap", [False, True])
def test_nan_on_one_side_is_the_worst_there_is(odd: float, swap: bool) -> None:
    image = np.full((1, 1, 16, 16), 0.5)
    broken = image.copy()
    broken[0, 0, 0, 0] = odd
    compared = compare(*((broken, image) if swap else (image, broken)))
    assert compared.changed
    assert compared.metrics["psnr_db"] == -math.inf
    assert compared.metrics["ssim"] == 0
    assert compared.metrics["nonfinite"] == 1 / 256
    COMPARATOR.summarise([compared], ImageOptions())


def test_an_empty_batch_has_no_images() -> None:
    compared = compare(np.zeros((0, 3, 16, 16)), np.zeros((0, 3, 16, 16)))
    assert not compared.changed
    assert COMPARATOR.summarise([compared], ImageOptions()).metrics == {}


# Properties


@given(planes)
def test_identical_images_are_perfect(x: np.ndarray) -> None:
    compared = compare(x, x.copy())
    assert (compared.metrics["ssim"], compared.metrics["psnr_db"]) == (1, math.inf)
    assert not compared.changed


@given(planes, planes)
def test_metrics_are_symmetric_and_bounded(x: np.ndarray, y: np.ndarray) -> None:
    first, second = image_metrics(x[None], y[None], 1.0), image_metrics(y[None], x[None], 1.0)
    assert first == pytest.approx(second, abs=1e-12)
    assert -1 <= first["ssim"] <= 1
    assert first["psnr_db"] >= 0


@given(planes, planes, st.floats(0, 1), st.floats(0, 1))
def test_psnr_falls_with_the_error(x: np.ndarray, y: np.ndarray, s: float, t: float) -> None:
    less, more = sorted((s, t))
    quality = [
        image_metrics(x[None], (x + k * (y - x))[None], 1.0)["psnr_db"] for k in (less, more)
    ]
    assert quality[0] >= quality[1] - 1e-9


@settings(deadline=None)
@given(planes, planes, st.sampled_from([1.0, 255.0]))
def test_ssim_is_the_definition(x: np.ndarray, y: np.ndarray, span: float) -> None:
    expected = ssim_by_windows(x * span, y * span, span)
    assert ssim(x * span, y * span, span) == pytest.approx(expected, abs=1e-9)


@settings(deadline=None)
@given(planes, planes, st.sampled_from([1.0, 255.0]))
def test_psnr_and_ssim_are_scikit_images(x: np.ndarray, y: np.ndarray, span: float) -> None:
    assume(not np.array_equal(x, y))
    metrics = image_metrics(x[None] * span, y[None] * span, span)
    expected = peak_signal_noise_ratio(  # type: ignore[no-untyped-call]  # ships no types
        x * span, y * span, data_range=span
    )
    assert metrics["psnr_db"] == pytest.approx(expected, abs=1e-9)
    expected = structural_similarity(  # type: ignore[no-untyped-call]  # ships no types
        x * span,
        y * span,
        data_range=span,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
    )
    assert metrics["ssim"] == pytest.approx(expected, abs=1e-9)


def test_the_largest_numbers_have_a_quality_too() -> None:
    x = np.array([[1.7e308, -1.7e308, 0]])
    metrics = image_metrics(x[None], -x[None], 1e308)
    assert metrics["psnr_db"] == pytest.approx(-20 * math.log10(3.4 * math.sqrt(2 / 3)))
    assert metrics["max_levels"] == pytest.approx(3.4 * 255)
    assert data_range(x) == np.finfo(np.float64).max


# Choosing it


@pytest.mark.parametrize(
    ("task", "mine"),
    [
        ("super-resolution x3 (luma)", True),
        ("style-transfer", True),
        ("low-light enhancement", True),
        ("speech enhancement (LSTM mask)", False),
        ("image-classification", False),
    ],
)
def test_it_recognises_its_tasks(task: str, mine: bool) -> None:
    score = COMPARATOR.matches(model(task), {"y": np.zeros((1, 5), np.float32)})
    assert (score >= 0.9) is mine


@pytest.mark.parametrize(
    ("shape", "likely"),
    [
        ((1, 3, 32, 48), True),
        ((1, 3, 96, 144), True),
        ((1, 32, 48, 3), True),
        ((1, 3, 33, 48), False),
        ((1, 1, 32, 48), False),
        ((1, 21, 32, 48), False),
        ((1, 3), False),
    ],
)
def test_it_infers_images_out_of_images(shape: tuple[int, ...], likely: bool) -> None:
    value = np.random.default_rng(0).normal(size=shape)
    score = COMPARATOR.matches(model(), {"y": value})
    assert 0.01 < score < 0.9 if likely else score < 0.01


def calibrated(graph: str | onnx.ModelProto, *images: np.ndarray, tmp_path: Path) -> ImageOptions:
    proto = onnx.parser.parse_model(graph) if isinstance(graph, str) else graph
    onnx.save(proto, tmp_path / "m.onnx")
    described = replace(model(), path=tmp_path / "m.onnx")
    return COMPARATOR.calibrated(described, ({"y": i} for i in images), ImageOptions())


def text(body: str, constants: str = "") -> str:
    signature = "agraph (float[1,3,16,16] x) => (float[1,3,16,16] y)"
    return f'<ir_version: 8, opset_import: ["": 17]> {signature} <{constants}> {{ {body} }}'


def images(low: float, high: float, count: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.uniform(low, high, (1, 3, 16, 16)).astype(np.float32) for _ in range(count)]


LIMITS = "float low = {0}, float top = {255}"


@pytest.mark.parametrize(
    ("body", "constants", "expected"),
    [
        ("y = Sigmoid(x)", "", 1),
        ("y = Tanh(x)", "", 2),
        ("y = Clip(x, low, top)", LIMITS, 255),
        ("a = Clip(x, low, top) b = Transpose<perm = [0, 1, 3, 2]>(a) y = Div(b, top)", LIMITS, 1),
        ("a = Sigmoid(x) y = Mul(top, a)", LIMITS, 255),
        ("a = Tanh(x) b = Mul(a, w) y = Add(b, m)", "float w = {150}, float m = {115}", 255),
        ("a = Tanh(x) b = Mul(a, w) y = Add(b, m)", "float w = {0.5}, float m = {0.5}", 1),
        ("a = Tanh(x) y = Mul(a, w)", "float w = {8}", 16),
    ],
)
def test_the_last_operators_declare_the_range(
    body: str, constants: str, expected: float, tmp_path: Path
) -> None:
    """Whatever the outputs are: those of a dark image in 0..255 lie between 0 and 1."""
    options = calibrated(text(body, constants), *images(0, 0.9), tmp_path=tmp_path)
    assert (options.data_range, options.range_from) == (expected, "graph")


@pytest.mark.parametrize(
    "body",
    ["y = Relu(x)", "a = Sigmoid(x) y = Add(a, x)", "a = Clip(x, low) y = Identity(a)"],
)
@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0, 1, 1), (0, 1.3, 1.3), (-1, 1, 2), (0, 254, 255), (0, 30, 30)]
)
def test_without_a_declaration_the_outputs_of_all_samples_tell(
    body: str, low: float, high: float, expected: float, tmp_path: Path
) -> None:
    for count in (1, 5):
        made = images(low, high, count)
        options = calibrated(text(body, LIMITS), *made, tmp_path=tmp_path)
        assert options.data_range == pytest.approx(expected, rel=0.01)
        assert options.range_from == "outputs"


def test_an_edge_input_does_not_widen_the_range_of_the_others(tmp_path: Path) -> None:
    """0..1 with one extreme output: in a range of 255, all PSNR would be 48 dB too high."""
    usual, odd = images(0, 1, 5), np.full((1, 3, 16, 16), 200, np.float32)
    options = calibrated(text("y = Relu(x)"), *usual, odd, tmp_path=tmp_path)
    assert options.data_range == 1
    made, sample = usual[0] + np.float32(0.0613), Sample("s", {})
    pair = ({"y": usual[0]}, {"y": made})
    compared = COMPARATOR.compare(model(), sample, *pair, options, noise={})
    assert compared.metrics["psnr_db"] == pytest.approx(24.25, abs=0.01)
    words = COMPARATOR.summarise([compared], options).headline
    assert words.endswith("(range 1, from the original's outputs)")
    # The extreme image has the range of its own numbers, or it would count as all wrong.
    alone = COMPARATOR.compare(model(), sample, {"y": odd}, {"y": odd + 0.1}, options, noise={})
    assert alone.metrics["psnr_db"] == pytest.approx(20 * np.log10(255 / 0.1), abs=0.01)


@pytest.mark.parametrize(
    ("nominal", "low", "high", "expected", "source"),
    [
        ("NominalRange_0_255", 0, 30.5, 255, "metadata"),
        ("NominalRange_0_255", 0, 1, 1, "outputs"),
        ("Normalized_0_1", 0, 1, 1, "metadata"),
        ("Normalized_1_1", 0, 0.5, 2, "metadata"),
        ("Normalized_0_1", 0, 250, 255, "outputs"),
        ("of another kind", 0, 1, 1, "outputs"),
    ],
)
def test_metadata_declare_the_range_where_the_outputs_do_not_refute_it(
    nominal: str, low: float, high: float, expected: float, source: str, tmp_path: Path
) -> None:
    proto = onnx.parser.parse_model(text("y = Relu(x)"))
    onnx.helper.set_model_props(proto, {"Image.NominalPixelRange": nominal})
    options = calibrated(proto, *images(low, high), tmp_path=tmp_path)
    assert (options.data_range, options.range_from) == (expected, source)
    proto.graph.input[0].type.denotation = "IMAGE"  # then it is said of the input alone
    options = calibrated(proto, *images(low, high), tmp_path=tmp_path)
    assert options.range_from == "outputs"


def test_the_range_of_integers_is_that_of_their_type(tmp_path: Path) -> None:
    dark = np.zeros((1, 3, 16, 16), np.uint8)
    options = calibrated(text("y = Relu(x)"), dark, tmp_path=tmp_path)
    assert (options.data_range, options.range_from) == (255, "dtype")


def test_all_images_have_one_range_whatever_each_of_them_suggests() -> None:
    bright, dark = np.full((1, 1, 16, 16), 200.0), np.full((1, 1, 16, 16), 0.5)
    options = COMPARATOR.calibrated(model(), iter([{"y": dark}, {"y": bright}]), ImageOptions())
    assert options.data_range == 255
    assert data_range(dark) == 1
    sample = Sample("dark", {})
    moved = {"y": dark + 0.25}
    compared = COMPARATOR.compare(model(), sample, {"y": dark}, moved, options, noise={})
    assert compared.metrics["psnr_db"] == pytest.approx(20 * np.log10(255 / 0.25))
    assert not compared.changed
    assert COMPARATOR.summarise([compared], options).metrics["data_range"] == 255


def test_a_range_that_is_given_or_that_nothing_tells_is_left_alone() -> None:
    given = ImageOptions(data_range=7.0)
    assert COMPARATOR.calibrated(model(), iter([{"y": np.ones((1, 1, 16, 16))}]), given) is given
    assert COMPARATOR.calibrated(model(), iter([]), ImageOptions()).data_range is None
