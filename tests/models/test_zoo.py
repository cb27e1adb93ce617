"""The zoo: published networks with random weights, small trained models."""

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import optvet_zoo
from optvet import InputError, UnknownName
from optvet.plugin import ModelSource
from optvet_zoo import light

RECIPES = Path(optvet_zoo.__file__).with_name("recipes")
RECORD = json.loads((RECIPES / "recipes.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def fetch(name: str, cache: Path) -> Path:
    (path,) = optvet_zoo.ZooSource().fetch(name, cache)
    return path


def scores(path: Path, images: np.ndarray) -> np.ndarray:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3  # IR 3 makes onnxruntime warn of each weight
    session = ort.InferenceSession(path, options)
    feed = session.get_inputs()[0].name
    return np.array([session.run(None, {feed: image})[0].ravel() for image in images])


def normal_images(count: int) -> np.ndarray:
    rng = np.random.default_rng(7)
    return rng.standard_normal((count, 1, 3, 224, 224)).astype(np.float32)


def weights_digest(model: onnx.ModelProto) -> str:
    digest = hashlib.sha256()
    for tensor in sorted(model.graph.initializer, key=lambda tensor: tensor.name):
        digest.update(tensor.name.encode() + numpy_helper.to_array(tensor).tobytes())
    return digest.hexdigest()


def test_the_source_keeps_the_protocol() -> None:
    assert isinstance(optvet_zoo.ZooSource(), ModelSource)
    assert [source.name for source in optvet_zoo.optvet_model_sources()] == ["zoo"]


def test_every_network_is_listed_in_two_editions() -> None:
    names = [card.name for card in optvet_zoo.ZooSource().models()]
    assert names == sorted(set(names))
    assert {f"{name}{edition}" for name in light.PUBLISHED for edition in ("", "-ir3")} < set(names)


def test_every_trained_model_is_listed_and_recorded() -> None:
    trained = {c.name: c for c in optvet_zoo.ZooSource().models() if "trained" in c.tags}
    assert set(trained) == set(RECORD) == {path.stem for path in RECIPES.glob("*.onnx")}
    for name, card in trained.items():
        assert card.size_bytes == pytest.approx((RECIPES / f"{name}.onnx").stat().st_size, rel=0.5)


def test_a_near_name_is_suggested(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"unknown zoo model 'resnet-50'.*'resnet50'"):
        fetch("resnet-50", tmp_path)


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_scores_are_spread_and_depend_on_the_image(name: str, cache: Path) -> None:
    found = scores(fetch(name, cache), normal_images(3))
    assert np.all((found.max(axis=1) > 0.01) & (found.max(axis=1) < 0.5))
    assert np.std(np.log(found), axis=0).mean() > 0.1


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_both_editions_compute_the_same(name: str, cache: Path) -> None:
    images = normal_images(1)
    modern, old = fetch(name, cache), fetch(f"{name}-ir3", cache)
    np.testing.assert_allclose(scores(modern, images), scores(old, images), rtol=1e-4)


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_the_editions_differ_in_ir_version_and_inputs(name: str, cache: Path) -> None:
    modern, old = (onnx.load(fetch(f"{name}{edition}", cache)) for edition in ("", "-ir3"))
    weights = [tensor.name for tensor in old.graph.initializer]
    assert (modern.ir_version, len(modern.graph.input)) == (8, 1)
    assert old.ir_version == 3
    assert [value.name for value in old.graph.input] == [modern.graph.input[0].name, *weights]
    onnx.checker.check_model(modern, full_check=True)
    onnx.checker.check_model(old, full_check=True)


def test_nothing_is_left_of_the_nodes_that_made_the_weights(cache: Path) -> None:
    graph = onnx.load(fetch("squeezenet", cache)).graph
    assert "ConstantOfShape" not in {node.op_type for node in graph.node}
    used = {name for node in graph.node for name in node.input}
    assert {tensor.name for tensor in graph.initializer} <= used


def test_the_weights_are_the_same_on_every_machine() -> None:
    model = light.make("squeezenet", "modern")
    expected = "b84a3848bce111ddf348b44dbec1f1feaa03a7277684a39d38e5e9839465a4b7"
    assert weights_digest(model) == expected, "if this is on purpose, change light.RECIPE too"


def test_kernels_have_he_scale_and_little_mean() -> None:
    kernel = light.draw("any", (64, 128, 3, 3), "kernel")
    assert kernel.dtype == np.float32
    assert kernel.std() == pytest.approx(np.sqrt(2 / (128 * 9)), rel=0.01)
    # Half centred: a row's mean has half of the standard deviation it would have.
    means = kernel.reshape(64, -1).mean(axis=1)
    assert means.std() == pytest.approx(0.5 * kernel.std() / np.sqrt(128 * 9), rel=0.3)


def test_variances_lie_between_a_half_and_one_and_a_half() -> None:
    variances = light.draw("any", (10_000,), "variance")
    assert variances.min() >= 0.5
    assert variances.max() < 1.5
    assert variances.mean() == pytest.approx(1.0, abs=0.01)


def test_each_tensor_has_its_own_stream_and_the_stream_is_pinned() -> None:
    first, second = light.raw_bits("a", 5), light.raw_bits("b", 5)
    assert first.tolist() == [58189, 57559, 26637, 21625, 47301]
    assert second.tolist() != first.tolist()
    assert light.raw_bits("a", 3).tolist() == first.tolist()[:3]


def test_roles_are_told_through_unsqueeze_and_reshape() -> None:
    graph = onnx.parser.parse_graph(
        """g (float[1,2,4,4] x, float[2] s, float[6] w) => (float[1,3] z) <int64[2] t = {3, 2}> {
            u = Unsqueeze <axes = [1, 2]> (s)
            y = Mul (x, u)
            p = GlobalAveragePool (y)
            f = Flatten (p)
            m = Reshape (w, t)
            z = Gemm <transB = 1> (f, m)
        }"""
    )
    for name in ("s", "w"):
        graph.initializer.append(onnx.helper.make_tensor(name, 1, [0], []))
    assert light.roles_of(graph) == {"s": "scale", "w": "kernel"}


def test_a_made_model_is_reused(tmp_path: Path) -> None:
    path = fetch("squeezenet", tmp_path)
    before = path.stat()
    assert fetch("squeezenet", tmp_path) == path
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert path == tmp_path / "zoo" / light.RECIPE / "squeezenet.onnx"


def test_an_edition_made_from_the_other_is_the_same_file(tmp_path: Path) -> None:
    alone = fetch("squeezenet-ir3", tmp_path / "alone").read_bytes()
    fetch("squeezenet", tmp_path / "both")
    assert fetch("squeezenet-ir3", tmp_path / "both").read_bytes() == alone


@pytest.mark.parametrize("damage", ["cut", "changed", "unrecorded"])
def test_a_damaged_file_in_the_cache_is_made_again(damage: str, tmp_path: Path) -> None:
    path = fetch("squeezenet", tmp_path)
    whole = path.read_bytes()
    if damage == "cut":
        path.write_bytes(whole[:-1])
    elif damage == "changed":
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    else:
        path.write_bytes(b"")
        path.with_name(f"{path.name}.sha256").unlink()
    assert fetch("squeezenet", tmp_path).read_bytes() == whole
    assert len(list(path.parent.iterdir())) == 2  # no temporary file stays behind


def test_an_onnx_without_the_networks_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(onnx, "__file__", str(tmp_path / "onnx" / "__init__.py"))
    with pytest.raises(InputError, match=r"'vgg19'.*light_vgg19.onnx.*does not ship; install"):
        fetch("vgg19", tmp_path)


TABULAR = ("accuracy", "r_squared")
"""Metrics of models that take rows of a data set as they are, or digits."""


@pytest.mark.parametrize("name", sorted(n for n, e in RECORD.items() if e["metric"] in TABULAR))
def test_a_trained_model_scores_on_held_out_data_as_recorded(name: str, cache: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn ships the data")
    import onnxruntime as ort

    from optvet_zoo.recipes import training
    from optvet_zoo.recipes.training_data import held_out

    entry = RECORD[name]
    _, inputs, _, targets = held_out(entry["data"].rpartition("load_")[2])
    inputs = (inputs / 16).reshape(-1, 1, 8, 8) if name == "digits-cnn" else inputs
    session = ort.InferenceSession(fetch(name, cache))
    *_, output = session.run(None, {session.get_inputs()[0].name: inputs})
    found = getattr(training, entry["metric"])(output, targets)
    assert found == pytest.approx(entry["held_out"], abs=0.003)
    assert found > {"accuracy": 0.95, "r_squared": 0.35}[entry["metric"]]


def test_the_detector_finds_digits_that_it_was_not_trained_on(cache: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn ships the data")
    import onnxruntime as ort

    from optvet_zoo.recipes.training import f1
    from optvet_zoo.recipes.training_data import canvases, held_out

    _, digits, _, labels = held_out("digits")
    images, targets, placed = canvases(np.random.default_rng(0), digits, labels, 100)
    session = ort.InferenceSession(fetch("canvas-detector", cache))
    boxes, scores = session.run(None, {"image": images})
    recorded = RECORD["canvas-detector"]["held_out"]
    assert f1(scores, targets) == pytest.approx(recorded, abs=0.05)
    # Boxes of cells that hold the centre of a digit are where the digit is, to a pixel or so.
    where = np.argwhere(targets[..., 0] > 0)
    left = [x for image in placed for x, _, _ in image]
    assert len(where) == len(left)
    assert np.median(np.abs(np.sort(boxes[tuple(where.T)][:, 0]) - np.sort(left))) < 1


def test_the_language_model_knows_the_next_letter(cache: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn ships the texts")
    import onnxruntime as ort

    from optvet_zoo.recipes.training import accuracy
    from optvet_zoo.recipes.training_data import letter_windows

    windows = letter_windows(np.random.default_rng(0))[:500]
    session = ort.InferenceSession(fetch("letters-lm", cache))
    (logits,) = session.run(None, {"input_ids": windows[:, :-1]})
    # The most frequent letter, the space, is right in one of six places.
    assert accuracy(logits[:, -1], windows[:, -1]) > 0.4


@pytest.mark.parametrize("name", sorted(RECORD))
def test_a_trained_model_is_valid_small_and_takes_any_batch(name: str, cache: Path) -> None:
    import onnxruntime as ort

    path = fetch(name, cache)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert path.stat().st_size < 200_000
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    session = ort.InferenceSession(path)
    feed = session.get_inputs()[0]
    sizes = [size if isinstance(size, int) else 5 for size in feed.shape[1:]]
    for batch in (1, 3):
        x = np.ones([batch, *sizes], np.int64 if "int64" in feed.type else np.float32)
        assert all(len(output) == batch for output in session.run(None, {feed.name: x}))
