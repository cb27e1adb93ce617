"""Converters of Keras and TensorFlow, in the environment that ``optvet env make tf`` makes."""

from __future__ import annotations

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import optvet.cli
from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import Pythons, environments_root
from optvet.engine.reduce.converted_source import reduced_or_why_not
from optvet.engine.repair.run import repair_model
from optvet.engine.work.sandbox import keep_servers
from optvet.spec.convert import ConvertRequest
from optvet.spec.errors import UsageError
from optvet.spec.records.convert import ConversionFinding, ConversionResult
from optvet.spec.repair import RepairRequest

SOURCE = """
import numpy as np

rng = np.random.default_rng(0)
example_inputs = (rng.normal(size=(2, 8, 8, 2)).astype("float32"),)


def net(*layers):
    import keras

    return keras.Sequential([keras.Input((8, 8, 2), name="x"), *layers])


def cnn():
    from keras import layers as k

    return net(k.ZeroPadding2D(1), k.Conv2D(4, 3, 2), k.BatchNormalization(), k.ReLU(6.0),
               k.DepthwiseConv2D(3, padding="same"), k.Flatten(), k.Dense(3))


def plain():
    from keras import layers as k

    return net(k.Conv2D(4, 3, activation="relu"), k.Flatten(), k.Dense(3))


def gelu():
    from keras import layers as k

    return net(k.Conv2D(4, 3, activation="gelu"), k.Flatten(), k.Dense(3))


def normalized():
    from keras import layers as k

    return net(k.Normalization(mean=[0.1, 0.2], variance=[1.0, 2.0]), k.Conv2D(2, 2))


def recurrent():
    import keras
    from keras import layers as k

    return keras.Sequential([keras.Input((5, 3)), k.GRU(4, bias_initializer="random_normal")])


recurrent.example_inputs = (rng.normal(size=(2, 5, 3)).astype("float32"),)


def pair():
    import keras
    from keras import layers as k

    a, b = keras.Input((3,), name="b"), keras.Input((4,), name="a")
    return keras.Model([a, b], [k.Dense(2)(a), k.Dense(5)(b)])


pair.example_inputs = (rng.normal(size=(2, 3)).astype("float32"),
                       rng.normal(size=(2, 4)).astype("float32"))


def remainder():
    return lambda a, b: a % b


remainder.example_inputs = (np.array([-7, 7, -8, 8], "int32"), np.array([2, 2, 3, -3], "int32"))


def positive():
    import tensorflow as tf

    return lambda a: tf.where(a > 0)


positive.example_inputs = (rng.normal(size=(2, 3)).astype("float32"),)


def lite():
    import tensorflow as tf

    spec = tf.TensorSpec((4,), tf.int32)
    function = tf.function(lambda a, b: a // b, input_signature=[spec, spec])
    concrete = [function.get_concrete_function()]
    return tf.lite.TFLiteConverter.from_concrete_functions(concrete).convert()


lite.example_inputs = remainder.example_inputs


def unit():
    import tensorflow as tf

    def function(x):
        length = tf.math.rsqrt(tf.reduce_sum(x * x, 1, keepdims=True))
        return tf.minimum(tf.math.log(x), [0.25, 0.5]), x * tf.minimum(length, 1e12)

    return function


unit.example_inputs = (np.array([[-1.0, 2.0], [3.0, 4.0]], "float32"),)
unit.more_inputs = [(np.zeros((2, 2), "float32"),)]


def number():
    return 7


def aborts():
    import os

    os.abort()
"""


@pytest.fixture(autouse=True, scope="module")
def _kept() -> None:
    keep_servers()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sources") / "tensorflow_sources.py"
    file.write_text(SOURCE)
    return file


@pytest.fixture
def made() -> None:
    if Pythons({}, environments_root()).python_of("tf") is None:
        pytest.skip("needs: optvet env make tf")


def converted(source: Path, function: str, *via: str, **options: Any) -> ConversionResult:
    model = f"{source}:{function}" if function else str(source)
    return convert_model(ConvertRequest(model=model, via=via, **options), Plugins())


def only_finding(result: ConversionResult) -> ConversionFinding:
    (finding,) = (f for f in result.findings if f.severity != "note")
    return finding


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    ("function", "via"),
    [
        ("cnn", "tf2onnx"),
        ("cnn", "keras_export"),
        ("cnn", "tflite"),
        ("cnn", "tflite,tflite2onnx"),
        ("pair", "tflite,tflite2onnx"),
        ("recurrent", "keras_export"),
        ("pair", "tf2onnx"),
        ("pair", "tflite"),
        ("gelu", "tflite"),
        ("remainder", "tflite"),
    ],
)
def test_what_is_converted_right_has_no_finding(source: Path, function: str, via: str) -> None:
    result = converted(source, function, *via.split(","))
    assert (result.verdict, result.findings) == ("right", []), result.reason
    assert result.source.version == "2.21.0"
    assert result.stages[-1].state in ("same", "drift")


@pytest.mark.usefixtures("made")
def test_an_operator_that_stays_one_of_tensorflow_makes_an_invalid_model(source: Path) -> None:
    result = converted(source, "gelu", "keras_export")
    finding = only_finding(result)
    assert (finding.symptom, finding.culprit) == ("invalid-model", "keras_export/convert")
    assert finding.place is not None
    assert finding.place.node == "Erfc"
    assert finding.message.startswith("not converted: ONNX defines no operator Erfc.")
    assert any("is not supported" in line for line in result.warnings)


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    ("function", "via", "operator", "node"),
    [("remainder", "tf2onnx", "FloorMod", "Div"), ("lite", "tflite2onnx", "TFL_FLOOR_DIV", "Div")],
)
def test_a_wrong_operator_is_found_in_the_graph(
    source: Path, function: str, via: str, operator: str, node: str
) -> None:
    finding = only_finding(converted(source, function, via))
    assert (finding.symptom, finding.culprit) == ("wrong-output", f"{via}/convert")
    assert finding.place is not None
    assert finding.place.operator == operator
    assert any(f"= {node} " in line for line in finding.place.nodes)


@pytest.mark.usefixtures("made")
def test_constants_that_become_inputs_are_blamed_on_freezing(source: Path) -> None:
    finding = only_finding(converted(source, "normalized", "keras_export"))
    assert (finding.symptom, finding.kind) == ("interface-change", "load")
    assert finding.place is not None
    asked = {p.name: p.how for p in finding.place.parameters}
    assert len(asked) == 2
    assert all("normalization" in n and how == "an input" for n, how in asked.items())


@pytest.mark.release
@pytest.mark.usefixtures("made")
def test_weights_that_are_never_set_are_found_in_a_tflite_model(source: Path) -> None:
    finding = only_finding(converted(source, "cnn", "tflite", converter_options={"concrete": True}))
    assert (finding.symptom, finding.culprit) == ("wrong-output", "tflite/convert")
    assert finding.place is not None
    assert any("TFL_READ_VARIABLE" in node for node in finding.place.nodes)


@pytest.mark.usefixtures("made")
def test_what_tflite_leaves_open_is_no_fault_and_hides_none(source: Path) -> None:
    result = converted(source, "unit", "tflite", edges=False, random=0)
    finding = only_finding(result)
    # LiteRT 2.3.0 gives NaN for RSQRT of 0, its reference kernels infinity.
    assert (finding.symptom, finding.kind) == ("wrong-output", "target-runtime")
    assert finding.outputs == ["output_1"]
    left = {each.sample: each.reason for each in result.skipped}
    assert list(left) == ["example"]
    assert "TFL_MINIMUM: the largest or smallest of numbers one of which is NaN" in left["example"]


@pytest.mark.usefixtures("made")
def test_a_refusal_names_the_operator(source: Path) -> None:
    result = converted(source, "recurrent", "tflite")
    assert result.verdict == "refused"
    (finding,) = result.findings
    assert finding.place is not None
    assert finding.place.operator == "tf.TensorListReserve"


@pytest.mark.usefixtures("made")
def test_an_output_without_elements_is_no_failure(source: Path) -> None:
    assert converted(source, "positive", "tflite").verdict == "right"


@pytest.mark.release
@pytest.mark.usefixtures("made")
def test_quantized_weights_are_a_fault_unless_a_tolerance_is_declared(source: Path) -> None:
    options = {"float16": True}
    finding = only_finding(converted(source, "cnn", "tflite", converter_options=options))
    assert (finding.symptom, finding.kind) == ("wrong-output", "lossy")
    assert finding.place is not None
    assert finding.place.operator == "Conv2D"
    declared = converted(source, "cnn", "tflite", converter_options={**options, "tolerance": 0.01})
    assert declared.verdict == "right"


@pytest.mark.usefixtures("made")
def test_the_file_of_a_tflite_model_is_a_source(source: Path, tmp_path: Path) -> None:
    converted(source, "cnn", "tflite", out=tmp_path)
    (file,) = tmp_path.glob("*.tflite")
    assert converted(file, "", "tflite2onnx").verdict == "right"


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        pytest.param("weight", "parameter", marks=pytest.mark.release),
        ("operator", "operator"),
    ],
)
def test_what_is_planted_into_a_conversion_is_repaired_from_the_source(
    source: Path, tmp_path: Path, fault: str, kind: str
) -> None:
    converted(source, "plain", "tf2onnx", out=tmp_path)
    model = onnx.load(tmp_path / "3-tf2onnx-optimize.onnx")
    if fault == "operator":
        (node,) = (n for n in model.graph.node if n.op_type == "Relu")
        node.op_type = "Neg"
    else:
        (tensor,) = (t for t in model.graph.initializer if len(t.dims) == 4)
        value = numpy_helper.to_array(tensor) * np.float32(1.01)
        tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    onnx.save(model, tmp_path / "faulty.onnx")
    given = {
        "model": f"{source}:plain",
        "converted": tmp_path / "faulty.onnx",
        "out": tmp_path / "repaired",
    }
    result = repair_model(RepairRequest.model_validate(given), Plugins())
    assert result.verdict == "repaired"
    assert [e.kind for e in result.edits] == [kind]


SAVE = """
import sys

import keras
from keras import layers as k

x = keras.Input((6, 4))
y = k.LayerNormalization()(x + k.MultiHeadAttention(2, 3)(x, x))
y = k.Dense(3)(k.LSTM(5)(k.Conv1D(4, 3, padding="same", activation="relu")(y)))
model = keras.Model(x, y)
model.save(sys.argv[1] + "/model.keras")
model.export(sys.argv[1] + "/saved", format="tf_saved_model", verbose=False)
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    python = Pythons({}, environments_root()).python_of("tf")
    if python is None:
        pytest.skip("needs: optvet env make tf")
    folder = tmp_path_factory.mktemp("saved")
    quiet = {**os.environ, "KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [str(python), "-c", SAVE, str(folder)]
    subprocess.run(command, env=quiet, check=True, capture_output=True, timeout=240)
    return folder


@pytest.mark.release
@pytest.mark.parametrize("file", ["model.keras", "saved"])
def test_files_of_keras_and_tensorflow_go_on_to_openvino(saved: Path, file: str) -> None:
    if find_spec("openvino") is None:
        pytest.skip("needs optvet[openvino]")
    result = converted(saved / file, "", "tf2onnx", "openvino", trust=True)
    assert result.verdict == "right", (result.findings, result.reason)
    assert [s.converter for s in result.stages] == ["tf2onnx"] * 3 + ["openvino"] * 2
    assert {s.state for s in result.stages} <= {"same", "drift"}


@pytest.mark.usefixtures("made")
def test_a_factory_that_makes_no_model_is_bad_input(source: Path) -> None:
    with pytest.raises(UsageError, match=r"number\(\) returned a int, expected a Keras model"):
        converted(source, "number", "tf2onnx")


@pytest.mark.usefixtures("made")
def test_a_source_that_aborts_is_told_with_its_signal(source: Path) -> None:
    with pytest.raises(UsageError, match="SIGABRT"):
        converted(source, "aborts", "tf2onnx")


def test_a_missing_environment_is_one_message(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    if not any(e.elsewhere == "tf" for e in Plugins().all()):
        pytest.skip("its libraries are in this environment")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    code = optvet.cli.main(["convert", f"{source}:cnn", "--via", "tf2onnx"])
    assert code == 2
    assert capsys.readouterr().err == (
        "error: converter 'tf2onnx' cannot be used: it needs the environment 'tf', which is "
        "missing; make it: optvet env make tf\n"
    )


def test_a_config_file_says_where_an_environment_is(tmp_path: Path) -> None:
    table = {"tf": {"python": "/opt/tf/bin/python"}}
    request = ConvertRequest.model_validate({"model": "m.py:f", "environments": table})
    assert request.environments == {"tf": Path("/opt/tf/bin/python")}


FUNCTION = """
import numpy as np

rng = np.random.default_rng(0)
V = rng.normal(size=(4, 8)).astype("float32")
example_inputs = (rng.normal(size=(3, 4)).astype("float32"), np.array([7, -7, 5], "int32"))


def model():
    import tensorflow as tf

    def net(x, i):
        y = tf.tanh(tf.nn.relu(x) @ V)
        # tf2onnx 1.17 rounds the quotient of integers to zero.
        return tf.nn.softmax(y) * tf.cast(tf.math.floormod(i, 3), tf.float32)[:, None]

    return net
"""


@pytest.mark.release
@pytest.mark.usefixtures("made")
def test_a_function_is_reduced_to_the_operator_at_fault(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FUNCTION)
    request = ConvertRequest(
        model=f"{tmp_path / 'net.py'}:model",
        via=("tf2onnx",),
        random=0,
        edges=False,
        sizes=False,
        timeout=600,
    )
    about = (request, convert_model(request, Plugins()), Plugins(), tmp_path / "part")
    found = reduced_or_why_not(*about, progress=lambda *about: None)
    assert (found.part, found.size, found.reproduces) == ("FloorMod", 1, True), found
    assert found.size_before > 5
    assert "part.pb" in found.files
