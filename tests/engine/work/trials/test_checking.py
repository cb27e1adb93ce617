from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import ModelProto, numpy_helper

from optvet.engine.work.trials.checking import check, passes_without_weights

SIZE = 600


def network(shape: tuple[int, ...] = (SIZE, SIZE)) -> ModelProto:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        f"g (float[1,{SIZE}] x) => (float[1,{SIZE}] y) {{ y = MatMul(x, w) }}"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(shape, np.float32), "w"))
    return model


def complaint(model: bytes | Path, *, whole: bool) -> str:
    """What the checker says; nothing if it accepts the model."""
    try:
        onnx.checker.check_model(model, full_check=True) if whole else check(model, full=True)
    except Exception as error:
        return str(error)
    return ""


def truncated() -> ModelProto:
    model = network()
    model.graph.initializer[0].raw_data = bytes(4 * SIZE * SIZE - 1)
    return model


def doubled() -> ModelProto:
    model = network()
    model.graph.initializer[0].float_data.append(1.0)
    return model


def nameless() -> ModelProto:
    model = network()
    model.graph.node[0].input[1] = "other"
    return model


def reshaped() -> ModelProto:
    model = network()
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones(1 << 18, np.int64), "w"))
    model.graph.node[0].op_type = "Reshape"
    return model


@pytest.mark.parametrize("as_file", [False, True])
@pytest.mark.parametrize(
    "model", [network((SIZE, 700)), truncated(), doubled(), nameless(), reshaped()]
)
def test_what_is_wrong_beside_large_weights_is_told_as_by_the_checker(
    model: ModelProto, as_file: bool, tmp_path: Path
) -> None:
    data = model.SerializeToString()
    (tmp_path / "model.onnx").write_bytes(data)
    given = tmp_path / "model.onnx" if as_file else data
    words = complaint(given, whole=True)
    assert words
    assert complaint(given, whole=False) == words


@pytest.mark.parametrize("full", [False, True])
def test_a_sound_model_is_accepted_by_its_graph(full: bool, tmp_path: Path) -> None:
    data = network().SerializeToString()
    (tmp_path / "graph").write_bytes(data)
    for model in (data, tmp_path / "graph"):
        assert passes_without_weights(model, full=full)
        check(model, full=full)


def test_weights_beside_the_model_are_left_to_the_checker(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = network()
    model.doc_string = "x" * (1 << 20)
    onnx.save(model, path, save_as_external_data=True, location="w.bin")
    assert not passes_without_weights(path, full=True)
    check(path, full=True)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(onnx.checker.ValidationError):
        check(path, full=True)


def test_operators_of_a_dialect_are_accepted_where_they_are_meant() -> None:
    model = network()
    model.graph.node[0].op_type = "FusedMatMul"
    data = model.SerializeToString()
    with pytest.raises(onnx.checker.ValidationError, match="FusedMatMul"):
        check(data, full=False)
    assert passes_without_weights(data, full=False, dialect=True)
    check(data, full=False, dialect=True)
