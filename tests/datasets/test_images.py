"""Images become the inputs that records declare; values are worked out by hand."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from optvet import InputError, Sample, UsageError
from optvet.engine.models.opening import open_model
from optvet.plugin import Deferred, Feeds, Model
from optvet_images import PRESETS, ImagesDataset, ImagesOptions, optvet_datasets

pillow = pytest.importorskip("PIL.Image", reason="needs Pillow, of the extra images")

Maker = Callable[..., Model]

NCHW = "float[1,3,16,16] x"
NHWC = "float[N,16,16,3] x"
RED, GREEN = (200, 100, 50), (0, 255, 0)


@pytest.fixture
def model(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    def make(inputs: str = NCHW, record: str = "", name: str = "model", outputs: str = "") -> Model:
        folder = tmp_path_factory.mktemp("model")
        first = inputs.split("] ")[1].split(",")[0]
        body = f"g ({inputs}) => ({outputs or 'float y'}) {{ y = ReduceSum<keepdims=0>(c) }}"
        body = body.replace("{", f"{{ c = Cast<to = 1>({first})", 1)
        text = f'<ir_version: 9, opset_import: ["" : 18]> {body}'
        onnx.save(onnx.parser.parse_model(text), folder / f"{name}.onnx")
        if record:
            (folder / f"{name}.toml").write_text(record)
        return open_model(folder / f"{name}.onnx", f"{name}.onnx", folder)

    return make


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    pillow.new("RGB", (40, 20), RED).save(folder / "a.png")
    pillow.new("RGB", (20, 40), GREEN).save(folder / "b.png")
    return folder


def never(batch: Sequence[Feeds]) -> list[str | None]:
    raise AssertionError("images are not tried out")


def items(model: Model, path: Any, limit: int | None = None, **options: Any) -> list[Deferred]:
    chosen = ImagesOptions.model_validate(options)
    found = ImagesDataset().samples(model, str(path), chosen, seed=0, limit=limit, probe=never)
    return list(found)


def samples(model: Model, path: Any, **options: Any) -> list[Sample]:
    return [item.make() for item in items(model, path, **options)]


def told(model: Model, path: Any, **options: Any) -> dict[str, str]:
    chosen = ImagesOptions.model_validate(options)
    return dict(ImagesDataset().provenance(model, str(path), chosen))


@pytest.mark.parametrize(
    ("inputs", "shape"),
    [("float[N,1,8,8] x", (1, 1, 8, 8)), ("float[1,5,7,3] x", (1, 5, 7, 3))],
)
def test_an_input_of_few_pixels_takes_images_that_the_user_names(
    inputs: str, shape: tuple[int, ...], model: Maker, photos: Path
) -> None:
    small = model(inputs)
    (red, _) = samples(small, photos)
    assert red.feeds["x"].shape == shape
    if shape[-1] == 3:
        np.testing.assert_allclose(red.feeds["x"][0, 2, 3], np.array(RED) / 255, rtol=1e-6)
    # Nobody says that it is an image, so no folder of images is proposed for it.
    assert ImagesDataset().suits(small, str(photos)) == 0
    declared = model(inputs, "[preprocessing]\nrange = [0.0, 1.0]\n")
    assert ImagesDataset().suits(declared, str(photos)) == 0.95


def test_an_input_of_the_size_of_a_picture_goes_before_a_smaller_one(
    model: Maker, photos: Path
) -> None:
    record = '[inputs.a]\nkind = "const"\nvalue = 0\n'
    (first, _) = samples(model("float[1,3,4,4] a, float[1,3,16,16] x", record), photos)
    assert first.feeds["x"].max() > 0
    assert first.feeds["a"].max() == 0


# Values


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ('preset = "imagenet"', [(200 / 255 - 0.485) / 0.229, (100 / 255 - 0.456) / 0.224]),
        ('preset = "inception"', [200 / 127.5 - 1, 100 / 127.5 - 1]),
        ('preset = "caffe"', [50 - 103.939, 100 - 116.779]),
        ('preset = "yolo"', [200 / 255, 100 / 255]),
        ('preset = "yolox"', [50.0, 100.0]),
        ('preset = "ultraface"', [73 / 128, -27 / 128]),
        ('preset = "rcnn"\nresize = "stretch"', [50 - 102.9801, 100 - 115.9465]),
        ("range = [0.0, 1.0]", [200 / 255, 100 / 255]),
        ("range = [-1.0, 1.0]", [200 / 127.5 - 1, 100 / 127.5 - 1]),
        ("scale = 0.5\nmean = [1.0, 2.0, 3.0]\nstd = [2.0, 4.0, 8.0]", [99 / 2, 48 / 4]),
        ('preset = "unit"\nchannels = "BGR"', [50 / 255, 100 / 255]),
    ],
    ids=lambda value: value.replace("\n", " ").replace('"', "") if isinstance(value, str) else "",
)
def test_values_are_those_of_the_record(
    model: Maker, photos: Path, record: str, expected: list[float]
) -> None:
    (made, _) = samples(model(NCHW, f"[preprocessing]\n{record}\n"), photos)
    array = made.feeds["x"]
    assert array.shape == (1, 3, 16, 16)
    assert array.dtype == np.float32
    # This pixel is image in every way of resizing.
    np.testing.assert_allclose(array[0, :2, 6, 8], expected, rtol=1e-5)


def test_every_preset_makes_an_input(model: Maker, photos: Path) -> None:
    for name, preset in PRESETS.items():
        shape = "float[1,1,16,16] x" if preset["channels"] in ("GRAY", "Y") else NCHW
        if preset["resize"] == "shorter":
            shape = "float[3,h,w] x"
        (first, _) = samples(model(shape, f'[preprocessing]\npreset = "{name}"\n'), photos)
        assert np.isfinite(first.feeds["x"]).all(), name


def test_grey_and_luma_have_one_channel(model: Maker, photos: Path) -> None:
    luma = 0.299 * 200 + 0.587 * 100 + 0.114 * 50
    for channels in ("GRAY", "Y"):
        record = f'[preprocessing]\nchannels = "{channels}"\nrange = [0.0, 255.0]\n'
        (made, _) = samples(model("float[1,1,16,16] x", record), photos)
        np.testing.assert_allclose(made.feeds["x"], luma, atol=1)


def test_integers_are_rounded_and_stay_within_their_type(model: Maker, photos: Path) -> None:
    (made, _) = samples(model("uint8[1,16,16,3] x"), photos)
    assert made.feeds["x"].dtype == np.uint8
    assert made.feeds["x"][0, 3, 3].tolist() == list(RED)
    (made, green) = samples(model("int8[1,16,16,3] x"), photos)
    assert made.feeds["x"][0, 3, 3].tolist() == [72, -28, -78]
    assert green.feeds["x"][0, 3, 3].tolist() == [-128, 127, -128]


# What is inferred, and said


def test_what_nobody_declared_is_inferred_and_told(model: Maker, photos: Path) -> None:
    plain = model(NHWC)
    (made, _) = samples(plain, photos)
    assert made.feeds["x"].shape == (1, 16, 16, 3)
    np.testing.assert_allclose(made.feeds["x"][0, 3, 3], np.array(RED) / 255, rtol=1e-6)
    assert told(plain, photos) == {
        "size": "16x16 (of input x)",
        "resize": "stretch (assumed)",
        "channels": "RGB (assumed)",
        "layout": "NHWC (of the shape)",
        "values": "0..255 to 0..1 (assumed)",
    }


def test_the_recipe_for_random_inputs_tells_the_range(model: Maker, photos: Path) -> None:
    recipe = '[inputs.x]\nkind = "uniform"\nlow = -1.0\nhigh = 3.0\n'
    declared = model(NCHW, recipe)
    (made, _) = samples(declared, photos)
    assert made.feeds["x"][0, 0, 3, 3] == pytest.approx(-1 + 4 * 200 / 255)
    assert told(declared, photos)["values"].endswith("(inferred from the range of its recipe)")
    standard = model(NCHW, '[inputs.x]\nkind = "normal"\nmean = 2.0\nstd = 3.0\n')
    (made, _) = samples(standard, photos)
    expected = 2 + 3 * (200 / 255 - 0.449) / 0.226
    assert made.feeds["x"][0, 0, 3, 3] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("resnet50-v1-7", "imagenet"),
        ("tiny-yolov3-11", "yolov3"),
        ("yolov4", "yolov3"),
        ("yolov8n", "yolo"),
        ("yolox_s", "yolox"),
        ("ssd_mobilenet_v1_12", "ssd-mobilenet"),
        ("ssd-12", "ssd"),
        ("version-RFB-320-ultraface", "ultraface"),
        ("FasterRCNN-12", None),
        ("faster-rcnn-10", "rcnn"),
        ("emotion-ferplus-8", "emotion"),
    ],
)
def test_a_name_suggests_a_preset_which_is_told(
    model: Maker, photos: Path, name: str, preset: str | None
) -> None:
    shape = "float[1,1,16,16] x" if preset == "emotion" else NCHW
    words = told(model(shape, name=name), photos)["values"]
    expected = f"preset {preset}, by the model's name" if preset else "preset rcnn, by the"
    assert expected in words


def test_a_declaration_beats_the_name(model: Maker, photos: Path) -> None:
    declared = model(NCHW, "[preprocessing]\nrange = [0.0, 255.0]\n", name="resnet50")
    (made, _) = samples(declared, photos)
    assert made.feeds["x"][0, 0, 8, 8] == 200.0
    assert "declared in resnet50.toml" in told(declared, photos)["values"]


def test_an_option_beats_the_record(model: Maker, photos: Path) -> None:
    declared = model(NCHW, "[preprocessing]\nrange = [0.0, 255.0]\n")
    (made, _) = samples(declared, photos, range=(0, 1), channels="BGR")
    assert made.feeds["x"][0, 0, 3, 3] == pytest.approx(50 / 255)
    assert "(option)" in told(declared, photos, range=(0, 1))["values"]


# Geometry


def test_letterbox_keeps_the_proportions_and_pads(model: Maker, photos: Path) -> None:
    record = '[preprocessing]\nresize = "letterbox"\nrange = [0.0, 255.0]\n'
    (wide, tall) = samples(model(NCHW, record), photos)
    assert wide.feeds["x"][0, 0, :, 8].tolist() == [114] * 4 + [200] * 8 + [114] * 4
    assert tall.feeds["x"][0, 1, 8, :].tolist() == [114] * 4 + [255] * 8 + [114] * 4
    (wide, _) = samples(model(NCHW, f'{record}anchor = "corner"\npad = 0.0\n'), photos)
    assert wide.feeds["x"][0, 0, :, 8].tolist() == [200] * 8 + [0] * 8


def test_crop_takes_the_centre_of_the_shorter_side(model: Maker, tmp_path: Path) -> None:
    # 32 columns, of which the middle 16 are white: half of 32 rows is 16 of each.
    pixels = np.zeros((32, 64, 3), np.uint8)
    pixels[8:24, 24:40] = 255
    pillow.fromarray(pixels).save(tmp_path / "a.png")
    record = '[preprocessing]\nresize = "crop"\ncrop = 0.5\nrange = [0.0, 1.0]\n'
    (made,) = samples(model(NCHW, record), tmp_path)
    assert (made.feeds["x"] == 1).all()


def test_open_sides_are_the_image_s_own_in_multiples(model: Maker, tmp_path: Path) -> None:
    pillow.new("RGB", (100, 50)).save(tmp_path / "a.png")
    pillow.new("RGB", (1280, 320)).save(tmp_path / "b.png")
    small, large = samples(model("float[N,3,H,W] x"), tmp_path)
    assert small.feeds["x"].shape == (1, 3, 64, 96)
    assert large.feeds["x"].shape == (1, 3, 160, 640)
    (small, _) = samples(model("float[N,3,H,W] x"), tmp_path, size=(48, 40))
    assert small.feeds["x"].shape == (1, 3, 40, 48)


def test_shorter_side_fills_up_with_zeros_after_the_mean(model: Maker, photos: Path) -> None:
    record = '[preprocessing]\npreset = "rcnn"\nsize = [20, 20]\nmultiple = 16\n'
    (wide, _) = samples(model("float[3,h,w] x", record), photos)
    array = wide.feeds["x"]
    # 40x20 becomes 33x17: the longer side is at most 5/3 of 20.
    assert array.shape == (3, 32, 48)
    assert array[0, 16, 32] == pytest.approx(50 - 102.9801, rel=1e-5)
    assert not array[:, 17:].any()
    assert not array[:, :, 33:].any()


def test_inputs_beside_the_image_tell_its_size(model: Maker, photos: Path) -> None:
    inputs = f"{NCHW}, float[1,2] image_shape, float[1,2] scale_factor, float[1] t"
    record = '[inputs.t]\nkind = "const"\nvalue = 7.0\n'
    (made, _) = samples(model(inputs, record), photos)
    assert made.feeds["image_shape"].tolist() == [[20.0, 40.0]]
    np.testing.assert_allclose(made.feeds["scale_factor"], [[16 / 20, 16 / 40]])
    assert made.feeds["t"].tolist() == [7.0]
    with pytest.raises(InputError, match="input 't' is no image; declare a constant recipe"):
        samples(model(inputs), photos)


def test_a_batch_that_is_fixed_is_filled(model: Maker, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_text("a.png 3\nb.png 4\n")
    (made, _) = samples(model("float[2,3,16,16] x"), photos, labels=str(tmp_path / "l.txt"))
    assert made.feeds["x"].shape == (2, 3, 16, 16)
    assert made.label == [3, 3]


# Labels


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        ("l.csv", "file,label\na.png,7\nb.png,cat\n", "label"),
        ("l.txt", "a.png 7\nb.png cat\n", "label"),
        ("l.json", '{"a.png": 7, "deep/b.png": "cat"}', "label"),
        ("l.json", '[{"file": "x/a.png", "k": 7}, {"file": "b.png", "k": "cat"}]', "k"),
        ("l.json", '{"files": [{"file": "a.png", "k": 7}, {"file": "b.png", "k": "cat"}]}', "k"),
    ],
    ids=["csv", "lines", "mapping", "list", "files"],
)
def test_labels_of_every_form(
    model: Maker, photos: Path, tmp_path: Path, name: str, text: str, key: str
) -> None:
    (tmp_path / name).write_text(text)
    made = samples(model(), photos, labels=str(tmp_path / name), label_key=key)
    assert [s.label for s in made] == [7, "cat"]


def test_folders_are_classes(model: Maker, tmp_path: Path) -> None:
    for folder in ("n02", "n01"):
        (tmp_path / folder).mkdir()
        pillow.new("RGB", (16, 16)).save(tmp_path / folder / "x.png")
    made = samples(model(), tmp_path, labels="folders")
    assert [(s.id, s.label) for s in made] == [("n01/x.png", 0), ("n02/x.png", 1)]


def test_a_background_class_shifts_the_labels(model: Maker, photos: Path, tmp_path: Path) -> None:
    path = tmp_path / "l.json"
    path.write_text(json.dumps({"a.png": [5, 6]}))
    shifted = model(NCHW, outputs="float[1,1001] y")
    made = samples(shifted, photos, labels=str(path))
    assert [s.label for s in made] == [[6, 7], None]
    assert told(shifted, photos, labels=str(path))["labels"].endswith(
        "1 of 2 images, class numbers shifted by 1"
    )
    assert samples(model(NCHW, outputs="float[1,1000] y"), photos, labels=str(path))[0].label == [
        5,
        6,
    ]
    assert samples(shifted, photos, labels=str(path), label_offset=0)[0].label == [5, 6]


def test_a_label_that_the_model_cannot_give_is_bad_data(
    model: Maker, photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "l.txt").write_text("a.png 985\nb.png 9\n")
    labels = str(tmp_path / "l.txt")
    wrong, right = items(model(NCHW, outputs="float[N,10] y"), photos, labels=labels)
    with pytest.raises(InputError, match=r"a\.png is of class 985, but model\.onnx has at most 10"):
        wrong.make()
    assert right.make().label == 9
    assert samples(model(NCHW, outputs="float[N,c] y"), photos, labels=labels)[0].label == 985


def coco(path: Path, categories: Sequence[int]) -> str:
    data = {
        "images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}],
        "annotations": [
            {"image_id": 1, "category_id": categories[1], "bbox": [10, 5, 20, 10], "iscrowd": 1}
        ],
        "categories": [{"id": c, "name": str(c)} for c in categories],
    }
    path.write_text(json.dumps(data))
    return str(path)


def test_annotated_boxes_follow_the_image(model: Maker, photos: Path, tmp_path: Path) -> None:
    labels = coco(tmp_path / "coco.json", [1, 3, 90])
    record = '[preprocessing]\nresize = "letterbox"\n'
    # 40x20 becomes 16x8, four rows from the top.
    (wide, empty) = samples(model(NCHW, record), photos, labels=labels)
    assert wide.label == {"boxes": [[4.0, 6.0, 8.0, 4.0]], "labels": [3], "iscrowd": [1]}
    assert empty.label == {"boxes": [], "labels": [], "iscrowd": []}
    (wide, _) = samples(model(NCHW, '[preprocessing]\nresize = "stretch"\n'), photos, labels=labels)
    assert wide.label["boxes"] == [[4.0, 4.0, 8.0, 8.0]]
    # Scaled by 0.8 / 0.5, from which 24 columns and 8 rows are cut off at either side.
    record = '[preprocessing]\nresize = "crop"\ncrop = 0.5\n'
    (wide, _) = samples(model(NCHW, record), photos, labels=labels)
    np.testing.assert_allclose(wide.label["boxes"], [[16 - 24, 8 - 8, 32, 16]])


@pytest.mark.parametrize("box", [{"xyxy": [10, 5, 30, 15]}, {"bbox": [10, 5, 20, 10]}], ids=list)
def test_boxes_may_be_listed_by_file_with_names(
    model: Maker, photos: Path, tmp_path: Path, box: dict[str, list[int]]
) -> None:
    one = {"file": "photos/a.png", "boxes": [{"label": "cat", "iscrowd": 1} | box]}
    rows = [one, {"file": "photos/b.png", "boxes": []}]
    (tmp_path / "boxes.json").write_text(json.dumps(rows))
    record = '[preprocessing]\nresize = "letterbox"\n'
    wide, empty = samples(model(NCHW, record), photos, labels=str(tmp_path / "boxes.json"))
    assert wide.label == {"boxes": [[4.0, 6.0, 8.0, 4.0]], "labels": ["cat"], "iscrowd": [1]}
    assert empty.label == {"boxes": [], "labels": [], "iscrowd": []}


def test_categories_become_class_numbers_where_there_are_as_many(
    model: Maker, photos: Path, tmp_path: Path
) -> None:
    labels = coco(tmp_path / "coco.json", [1, 3, 90])
    (wide, _) = samples(model(NCHW, outputs="float[1,10,8] y"), photos, labels=labels)
    assert (wide.label["labels"], wide.label["numbers"]) == ([3], [1])
    (wide, _) = samples(model(NCHW, outputs="float[1,10,91] y"), photos, labels=labels)
    assert "numbers" not in wide.label


# Bad data


@pytest.mark.parametrize("data", [b"", b"no image", b"\x89PNG\r\n\x1a\n cut"], ids=len)
def test_a_damaged_image_fails_alone_and_is_named(model: Maker, photos: Path, data: bytes) -> None:
    (photos / "a.png").write_bytes(data)
    bad, good = items(model(), photos)
    with pytest.raises(InputError, match=r"a\.png is no readable image"):
        bad.make()
    assert good.make().id == "b.png"


def test_a_truncated_image_is_no_image(model: Maker, photos: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    pillow.fromarray(noise).save(photos / "a.jpg")
    (photos / "a.jpg").write_bytes((photos / "a.jpg").read_bytes()[:900])
    with pytest.raises(InputError, match=r"a\.jpg is no readable image"):
        items(model(), photos)[0].make()


def test_an_image_of_absurd_size_is_refused(
    model: Maker, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InputError, match=r"a\.png has more than the 100 pixels.*scale it down"):
        items(model(), photos)[0].make()


def test_sixteen_bits_are_scaled_to_eight(model: Maker, tmp_path: Path) -> None:
    pillow.fromarray(np.full((16, 16), 0x8000, np.uint16)).save(tmp_path / "a.png")
    (made,) = samples(model("uint8[1,16,16,1] x"), tmp_path)
    assert (made.feeds["x"] == 0x80).all()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("l.csv", "name,label\na.png,1\n", "expected columns 'file' and 'label'"),
        ("l.txt", "a.png\n", "line 1 is 'a.png', expected a file name and a label"),
        ("l.json", "{", "cannot be read: Expecting property name"),
        ("l.json", "3", "expected COCO annotations"),
        ("l.json", '[{"file": "a.png"}]', "choose the key by option label_key"),
        ("l.json", '{"images": [{}], "annotations": []}', "is not of COCO's form"),
        ("l.json", '[{"file": "a.png", "boxes": [{"label": 1}]}]', "no list of files with boxes"),
        ("l.txt", "z.png 4\n", "has none of the images; it has 'z.png', the images are 'a.png'"),
    ],
    ids=["csv", "lines", "json", "number", "key", "coco", "boxes", "others"],
)
def test_a_wrong_label_file_is_refused(
    model: Maker, photos: Path, tmp_path: Path, name: str, text: str, words: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=words):
        items(model(), photos, labels=str(tmp_path / name))


@pytest.mark.parametrize(
    ("inputs", "record", "words"),
    [
        ("float[1,5] x", "", "no input takes an image"),
        (NCHW, "[preprocessing]\nsize = [20, 16]\n", "size (20, 16) (width, height) does not fit"),
        (NCHW, '[preprocessing]\nchannels = "GRAY"\n', "channels GRAY do not fit input 'x'"),
        (NCHW, "[preprocessing]\nmean = [1.0, 2.0]\n", "mean has 2 values for channels RGB"),
        (NCHW, "[preprocessing]\nstd = [0.0]\n", "std is 0"),
        (NCHW, '[preprocessing]\npreset = "vgg"\n', "there is no preset 'vgg'; choose one of"),
    ],
    ids=["no image", "size", "channels", "mean", "std", "preset"],
)
def test_what_does_not_fit_is_refused(
    model: Maker, photos: Path, inputs: str, record: str, words: str
) -> None:
    with pytest.raises(InputError, match=".*".join(map(_escaped, words.split(" ... ")))):
        items(model(inputs, record), photos)


def _escaped(words: str) -> str:
    return words.replace("(", r"\(").replace(")", r"\)")


def test_paths_that_lead_nowhere_are_refused(model: Maker, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="say --dataset images:FOLDER"):
        list(ImagesDataset().samples(model(), None, ImagesOptions(), seed=0, limit=1, probe=never))
    with pytest.raises(InputError, match="does not exist"):
        items(model(), tmp_path / "nowhere")
    with pytest.raises(InputError, match="has no image"):
        items(model(), tmp_path)


# Choosing


def test_images_suit_models_that_take_some(model: Maker, photos: Path, tmp_path: Path) -> None:
    (dataset,) = optvet_datasets()
    assert isinstance(dataset, ImagesDataset)

    def suits(inputs: str, record: str = "", folder: Path = photos) -> float:
        return dataset.suits(model(inputs, record), str(folder))

    assert suits(NCHW, '[preprocessing]\nchannels = "RGB"\n') == 0.95
    assert suits(NCHW, 'task = "object-detection"\n') == 0.7
    assert suits(NCHW) == 0.4
    assert suits("float[1,1,32,32] x") == 0.0
    assert suits("float[1,1,32,32] x", 'task = "keyword spotting"\n') == 0.0
    assert suits("float[1,16] x", 'task = "image-classification"\n') == 0.0
    assert suits(NCHW, folder=tmp_path / "models") == 0.0


def test_limit_counts_images_and_decodes_none(model: Maker, photos: Path) -> None:
    (photos / "a.png").write_bytes(b"")
    assert [i.id for i in items(model(), photos, limit=1)] == ["a.png"]
