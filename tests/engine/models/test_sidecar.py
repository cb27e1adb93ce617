"""What is declared of a model beside its file or in a catalogue."""

import json
import time
from pathlib import Path
from typing import Any

import onnx
import pytest

from optvet.engine.models.opening import open_model
from optvet.engine.models.sidecar import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    config_for,
    preprocessing_from_words,
)
from optvet.engine.trust import dataset_from
from optvet.spec.errors import InputError
from optvet.spec.types import ModelConfig

MODEL = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[N,2] x) => (float[N,2] y) { y = Relu (x) }
"""
FULL = """
task = "image-classification"
comparator = "classification"
[comparator_options]
topk = [1, 5]
[preprocessing]
size = [320, 240]
resize = "letterbox"
layout = "NCHW"
channels = "BGR"
scale = 1
mean = [104.0, 117, 123]
std = [1.0]
range = [0.0, 255]
dtype = "float32"
labels = "labels.txt"
vocabulary = "words.json"
[inputs.x]
kind = "uniform"
low = 0
high = [1.0, 2.0]
shape = [3, 2]
[inputs.ids]
kind = "randint"
high = 9
[inputs.sr]
kind = "const"
value = 16000
[inputs.word]
kind = "choice"
values = ["a", "b"]
[inputs.noise]
kind = "normal"
std = 0.1
[inputs.mask]
kind = "prefix_mask"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "net.onnx"
    file.write_bytes(onnx.parser.parse_model(MODEL).SerializeToString())
    return file


def catalogue(folder: Path, **entry: Any) -> Path:
    file = folder / "models.json"
    file.write_text(json.dumps([{"file": "other.onnx"}, {"file": "net.onnx", **entry}]))
    return file


# The TOML


def test_without_a_declaration_there_is_none(path: Path) -> None:
    assert config_for(path) == ModelConfig()
    assert open_model(path, "net", path.parent / "store").task is None


def test_a_toml_declares_everything(path: Path) -> None:
    beside = path.with_suffix(".toml")
    beside.write_text(FULL)
    config = config_for(path)
    assert (config.task, config.comparator) == ("image-classification", "classification")
    assert config.comparator_options == {"topk": [1, 5]}
    assert config.preprocessing == {
        "size": (320, 240),
        "resize": "letterbox",
        "layout": "NCHW",
        "channels": "BGR",
        "scale": 1,
        "mean": (104, 117, 123),
        "std": (1,),
        "range": (0, 255),
        "dtype": "float32",
        "labels": "labels.txt",
        "vocabulary": "words.json",
    }
    assert config.inputs["x"] == {
        "kind": "uniform",
        "low": 0,
        "high": [1, 2],
        "shape": [3, 2],
    }
    assert set(config.inputs) == {"x", "ids", "sr", "word", "noise", "mask"}
    assert config.origin == str(beside)
    assert open_model(path, "net", path.parent / "store").config == config


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("taks = 'x'", "there is no key 'taks'"),
        ("task = 3", "key 'task' is 3"),
        ("task = ", "cannot be read"),
        ("dataset = ''", "key 'dataset' is empty; give a value"),
        ("[preprocessing]\nsize = [1, 2, 3]", "key 'preprocessing.size'"),
        ("[preprocessing]\nlayout = 'CHWN'", "key 'preprocessing.layout' is 'CHWN'"),
        ("[preprocessing]\nmeans = [1]", "there is no key 'preprocessing.means'"),
        ("[inputs.x]\nlow = 1", "key 'inputs.x'"),
        ("[inputs.x]\nkind = 'gamma'", "gamma"),
        ("[inputs.x]\nkind = 'randint'", "'inputs.x.randint.high' is nothing"),
        ("[inputs.x]\nkind = 'const'\nvalue = 1\nlow = 2", "there is no key"),
        ("[inputs.x]\nkind = 'prefix_mask'\nshape = [-1]", "'inputs.x.prefix_mask.shape"),
        ("[inputs.x]\nkind = 'choice'\nvalues = []", "values"),
    ],
)
def test_a_toml_that_is_wrong_names_file_and_key(path: Path, text: str, complaint: str) -> None:
    path.with_suffix(".toml").write_text(text)
    with pytest.raises(InputError) as caught:
        open_model(path, "net", path.parent / "store")
    assert str(path.with_suffix(".toml")) in str(caught.value)
    assert complaint in str(caught.value)


# The catalogue


def test_a_catalogue_has_an_entry_per_file(path: Path) -> None:
    file = catalogue(
        path.parent,
        id="net",
        task="tabular classification",
        license="MIT",
        preprocessing="RGB uint8 NHWC 224x224",
        labels="labels.txt",
        vocabulary="vocabulary.json",
        input_spec=[
            {
                "name": "x",
                "dtype": "float32",
                "shape": [4, 2],
                "fill": {"kind": "uniform", "low": 0.0, "high": 1.0},
            }
        ],
        suggested_comparator={"kind": "tabular", "metric": "labels equal", "rtol": 0.001},
    )
    assert config_for(path) == ModelConfig(
        task="tabular classification",
        suggestion={"kind": "tabular", "metric": "labels equal", "rtol": 0.001},
        preprocessing={
            "size": (224, 224),
            "layout": "NHWC",
            "channels": "RGB",
            "dtype": "uint8",
            "labels": "labels.txt",
            "vocabulary": "vocabulary.json",
        },
        inputs={"x": {"kind": "uniform", "low": 0, "high": 1, "shape": [4, 2]}},
        origin=str(file),
    )


def test_the_toml_wins(path: Path) -> None:
    catalogue(path.parent, task="from the catalogue")
    path.with_suffix(".toml").write_text("task = 'from the file beside it'")
    assert config_for(path).task == "from the file beside it"


def test_a_model_may_have_a_folder_below_its_catalogue(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path.parent / "models.json").write_text('[{"file": "net/net.onnx", "task": "below"}]')
    folder = path.parent / "net"
    folder.mkdir()
    moved = path.rename(folder / "net.onnx")
    assert config_for(moved).task == "below"
    monkeypatch.chdir(folder)
    assert config_for(Path("net.onnx")).task == "below"


@pytest.mark.parametrize("text", ["{}", "[]", "[3]", '[{"name": "net.onnx"}]', '["net.onnx"]'])
def test_another_programs_file_of_that_name_is_none_of_ours(path: Path, text: str) -> None:
    (path.parent / "models.json").write_text(text)
    assert config_for(path) == ModelConfig()


def test_inputs_may_be_declared_by_element_type(path: Path) -> None:
    fill = {"kind": "normal", "mean": 0, "std": 2}
    for spec in (
        {"float32": fill},
        {"float32": {"fill": fill}},
        {"dtype": "float32", "fill": fill},
    ):
        catalogue(path.parent, input_spec=spec)
        assert config_for(path).inputs == {"float32": fill}


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"task": 3}, "key 'task' of 'net.onnx' is 3, expected a text"),
        ({"input_spec": "x"}, "key 'input_spec'"),
        ({"input_spec": [{"shape": [1]}]}, "expected an object with 'name'"),
        ({"input_spec": [{"name": "x", "fill": {"kind": "odd"}}]}, "name 'x'"),
        ({"input_spec": [{"name": "x", "fill": {"kind": "randint"}}]}, "Field required"),
        ({"suggested_comparator": "image"}, "an object with 'kind'"),
    ],
)
def test_an_entry_that_is_wrong_is_named(path: Path, entry: dict[str, Any], complaint: str) -> None:
    file = catalogue(path.parent, **entry)
    with pytest.raises(InputError) as caught:
        config_for(path)
    assert str(file) in str(caught.value)
    assert complaint in str(caught.value)


def test_a_catalogue_that_is_cut_short_is_named(path: Path) -> None:
    (path.parent / "models.json").write_text('[{"file": ')
    with pytest.raises(InputError, match=r"models\.json cannot be read"):
        config_for(path)


# Preprocessing in words


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "RGB, (x-127)/128, NCHW, 320x240; outputs scores [1,4420,2], boxes corner-form 0..1",
            {
                "channels": "RGB",
                "mean": (127,),
                "std": (128,),
                "layout": "NCHW",
                "size": (320, 240),
            },
        ),
        (
            "BGR 0..255 minus mean (104,117,123), NCHW, 224x224, float16",
            {
                "channels": "BGR",
                "range": (0, 255),
                "mean": (104, 117, 123),
                "layout": "NCHW",
                "size": (224, 224),
                "dtype": "float16",
            },
        ),
        (
            "letterbox 416, BGR 0..255, NCHW; grid decode strides 8/16/32",
            {
                "resize": "letterbox",
                "size": (416, 416),
                "channels": "BGR",
                "range": (0, 255),
                "layout": "NCHW",
            },
        ),
        (
            "RGB x/127.5-1 NHWC 257x257",
            {
                "channels": "RGB",
                "scale": 1 / 127.5,
                "mean": (1,),
                "layout": "NHWC",
                "size": (257, 257),
            },
        ),
        (
            "RGB /255 NHWC 256x144",
            {"channels": "RGB", "scale": 1 / 255, "layout": "NHWC", "size": (256, 144)},
        ),
        (
            "Y channel /255, NCHW 224x224 (batch dynamic)",
            {"channels": "Y", "scale": 1 / 255, "layout": "NCHW", "size": (224, 224)},
        ),
        (
            "(x/255-.5)/.5 NCHW 192x48 (dynamic)",
            {
                "scale": 1 / 255,
                "mean": (0.5,),
                "std": (0.5,),
                "layout": "NCHW",
                "size": (192, 48),
            },
        ),
        (
            "RGB normalised with ImageNet mean/std, NCHW, sides multiple of 32 (dynamic)",
            {
                "channels": "RGB",
                "scale": 1 / 255,
                "mean": IMAGENET_MEAN,
                "std": IMAGENET_STD,
                "layout": "NCHW",
            },
        ),
        (
            "RGB uint8 NHWC 192x192; output [1,1,17,3]",
            {"channels": "RGB", "dtype": "uint8", "layout": "NHWC", "size": (192, 192)},
        ),
        (
            "grey 28x28, white digit on black, 0..255",
            {"channels": "GRAY", "size": (28, 28), "range": (0, 255)},
        ),
        ("16 kHz mono float chunks of 512 samples with 64 samples of left context", {}),
        ("", {}),
    ],
)
def test_words_are_understood_as_far_as_they_can_be(words: str, expected: dict[str, Any]) -> None:
    found = preprocessing_from_words(words)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == value, key


# Which dataset


def test_a_record_names_its_dataset_by_a_path_within_its_folder(path: Path) -> None:
    (path.parent / "photos").mkdir()
    (path.parent / "l.csv").write_text("")
    path.with_suffix(".toml").write_text(
        'dataset = "images:photos"\n[dataset_options]\nlabels = "l.csv"\nlabel_key = "k"\n'
    )
    config = config_for(path)
    assert dataset_from(config, trust=False) == f"images:{path.parent / 'photos'}"
    assert config.dataset_options == {"labels": "l.csv", "label_key": "k"}


def test_what_is_no_path_stays_as_it_is(path: Path) -> None:
    path.with_suffix(".toml").write_text('dataset = "huggingface:user/name"\n')
    assert config_for(path).dataset == "huggingface:user/name"
    path.with_suffix(".toml").write_text('dataset = "random"\n')
    assert config_for(path).dataset == "random"


def test_a_catalogue_may_name_a_dataset(path: Path) -> None:
    entry = {"file": path.name, "dataset": "images:photos"}
    (path.parent / "models.json").write_text(json.dumps([entry]))
    assert config_for(path).dataset == "images:photos"


@pytest.mark.parametrize(
    "piece", ["9", "9.", "x/", "(x-", "(1,", " 1 ..", "mean (", "-", ", outputs"]
)
def test_a_long_description_takes_no_time_and_says_what_it_can(piece: str) -> None:
    began = time.process_time()
    preprocessing_from_words(piece * 50_000)
    preprocessing_from_words(f"mean {piece * 50_000} std")
    assert time.process_time() - began < 5


def test_a_division_by_zero_in_words_is_none() -> None:
    dividing = ["x/0", "(x/0-1)/2", "(x/2-1)/0", "(x-1)/0", "x/0 - 1", "x / 0.0", "x/-0", "x/.0"]
    for words in (*dividing, "std (1, 0, 1)", f"x/0.{'0' * 30}1"):
        assert preprocessing_from_words(words) == {}, words
    assert preprocessing_from_words("x/0.5")["scale"] == 2.0
