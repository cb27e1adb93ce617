"""Opening a model: what is read from it, and what is said of a file that is none."""

import hashlib
import io
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from optvet.engine.models.opening import open_model
from optvet.graph.types import value_info
from optvet.graph.weights import tensors_of
from optvet.spec.errors import InfrastructureError, InputError
from optvet.spec.types import ValueInfo


@pytest.fixture(autouse=True, params=["parsed whole", "read in place"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models are parsed whole; larger ones are read where they lie, with equal answers."""
    if request.param == "read in place":
        monkeypatch.setattr("optvet.engine.models.opening._IN_PLACE_BYTES", 1)
        monkeypatch.setattr("optvet.graph.outline._LARGE_BYTES", 4)


LINEAR = """
    <ir_version: 8, opset_import: ["": 17]>
    linear (float[N,2] x) => (float[N,2] y) <float[2] b = {1, 2}> { y = Add (x, b) }
"""


def saved(tmp_path: Path, text: str = LINEAR) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return path


def external(tmp_path: Path, size_bytes: int = 8, **entries: str) -> Path:
    """LINEAR with its ``b`` in ``b.bin``, which has ``size_bytes``; entries override."""
    model = onnx.parser.parse_model(LINEAR)
    point_outside(model.graph.initializer[0], **({"location": "b.bin"} | entries))
    (tmp_path / "b.bin").write_bytes(
        np.array([1, 2], np.float32).tobytes().ljust(size_bytes, b"\0")
    )
    with (tmp_path / "b.bin").open("r+b") as file:
        file.truncate(size_bytes)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def point_outside(tensor: onnx.TensorProto, **entries: str) -> None:
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


def refusal(path: Path) -> str:
    """The text of the error; nothing may be written for a model that is refused."""
    with pytest.raises(InputError) as caught:
        open_model(path, "source", path.parent / "store")
    assert not (path.parent / "store").exists()
    assert str(path) in str(caught.value)
    return str(caught.value)


# ── What is read ───────────────────────────────────────────────────────────────────────────────


def test_a_self_contained_model_is_its_own_blob(tmp_path: Path) -> None:
    path = saved(tmp_path)
    model = open_model(path, "given", tmp_path / "store")
    assert (model.source, model.path, model.blob) == ("given", path, path)
    assert model.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert model.size_bytes == path.stat().st_size
    assert (model.ir_version, model.opsets, model.nodes, model.task) == (
        8,
        {"ai.onnx": 17},
        1,
        None,
    )
    assert model.inputs == (ValueInfo("x", "float", ("N", 2)),)
    assert model.outputs == (ValueInfo("y", "float", ("N", 2)),)
    assert not (tmp_path / "store").exists()


def test_initializers_among_the_inputs_need_not_be_fed(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(LINEAR)
    model.graph.input.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [2]))
    model.graph.input.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, [2]))
    values = numpy_helper.from_array(np.array([1], np.float32), "s")
    indices = numpy_helper.from_array(np.array([0], np.int64), "s_indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2]))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    assert [value.name for value in open_model(path, "", tmp_path).inputs] == ["x"]


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_both_spellings_of_the_default_domain_are_one(tmp_path: Path, domain: str) -> None:
    text = LINEAR.replace('["": 17]', f'["{domain}": 17, "com.microsoft": 1]')
    opsets = open_model(saved(tmp_path, text), "", tmp_path).opsets
    assert opsets == {"ai.onnx": 17, "com.microsoft": 1}


@pytest.mark.parametrize(
    ("type_proto", "dtype", "shape"),
    [
        (helper.make_tensor_type_proto(TensorProto.FLOAT, None), "float", None),
        (helper.make_tensor_type_proto(TensorProto.INT64, []), "int64", ()),
        (
            helper.make_tensor_type_proto(TensorProto.STRING, [1, "N", None]),
            "string",
            (1, "N", None),
        ),
        (helper.make_tensor_type_proto(TensorProto.BFLOAT16, [-1]), "bfloat16", (None,)),
        (helper.make_tensor_type_proto(999, [0]), "type999", (0,)),
        (
            helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [1])),
            "sequence",
            None,
        ),
        (
            helper.make_optional_type_proto(helper.make_tensor_type_proto(1, [1])),
            "optional",
            None,
        ),
        (helper.make_map_type_proto(7, helper.make_tensor_type_proto(1, [1])), "map", None),
        (helper.make_sparse_tensor_type_proto(1, [2, 3]), "sparse", (2, 3)),
        (onnx.TypeProto(), "undefined", None),
    ],
)
def test_value_infos_spell_type_and_shape(
    type_proto: onnx.TypeProto, dtype: str, shape: tuple[int | str | None, ...] | None
) -> None:
    proto = onnx.ValueInfoProto(name="v", type=type_proto)
    assert value_info(proto) == ValueInfo("v", dtype, shape)


# ── What a file seems to be ────────────────────────────────────────────────────────────────────


def zipped(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "is an empty file"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            "git-lfs pull|git lfs pull",
        ),
        (b"\n<!DOCTYPE html><html>not found</html>", "is an HTML page"),
        (zipped("archive/data.pkl"), "is a PyTorch checkpoint"),
        (zipped("model.onnx"), "is a zip archive"),
        (b"\x1f\x8b\x08\x00aaaaaaaa", "is a gzip archive"),
        (pickle.dumps({"weights": [1.0]}), "is a Python pickle"),
        (b"\x1c\x00\x00\x00TFL3\x14\x00", "is a TensorFlow Lite model"),
        (b"\x1c\x00\x00\x00ORTM\x14\x00", "ORT format"),
        (b"\x89HDF\r\n\x1a\n0000", "is an HDF5 file"),
        (b"GGUF\x03\x00\x00\x00", "is a GGUF file"),
        ((50).to_bytes(8, "little") + b'{"__metadata__":{}}', "is a safetensors file"),
        (LINEAR.encode(), "is ONNX text"),
        (b'{"irVersion": 8}', "is JSON text"),
        (b"just some words, nothing else", "is no ONNX file"),
        (bytes(100), "is no ONNX file"),
        (numpy_helper.from_array(np.ones(3)).SerializeToString(), "another kind of protobuf"),
    ],
)
def test_a_file_that_is_no_model_is_told_by_kind(tmp_path: Path, data: bytes, text: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    found = refusal(path)
    assert re.search(text, found)
    assert "expected an ONNX model; " in found


def test_a_model_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        refusal(path)


def test_a_cut_model_says_how_much_is_missing(tmp_path: Path) -> None:
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:40])
    assert re.search(r"is cut short \(it announces at least \d+ bytes and has 40\)", refusal(path))


@pytest.mark.parametrize("field", ["ir_version", "opset_import"])
def test_a_model_without_version_is_refused(tmp_path: Path, field: str) -> None:
    model = onnx.parser.parse_model(LINEAR)
    model.ClearField(field)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert f"has a graph but no {field}" in refusal(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refusal(tmp_path / "none.onnx")
    assert "cannot be read: it is a folder, expected a regular file" in refusal(tmp_path)


def test_a_file_above_two_gib_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)  # sparse: takes no disk
    assert "2,147,483,648 bytes, but a protobuf holds at most 2 GiB" in refusal(path)


# ── External data ──────────────────────────────────────────────────────────────────────────────


def test_external_data_is_embedded_into_a_blob(tmp_path: Path) -> None:
    path = external(tmp_path, offset="0", length="8")
    model = open_model(path, "", tmp_path / "store")
    assert model.path == path
    assert model.blob == tmp_path / "store" / "blobs" / f"{model.digest}.onnx"
    assert model.digest == hashlib.sha256(model.blob.read_bytes()).hexdigest()
    assert model.size_bytes == model.blob.stat().st_size
    (tensor,) = model.load().graph.initializer
    assert numpy_helper.to_array(tensor).tolist() == [1, 2]
    assert not tensor.external_data
    assert os.listdir(model.blob.parent) == [model.blob.name]


def test_the_blob_is_written_once(tmp_path: Path) -> None:
    path = external(tmp_path)
    first = open_model(path, "", tmp_path / "store")
    before = first.blob.stat()
    assert open_model(path, "", tmp_path / "store") == first
    assert first.blob.stat().st_ino == before.st_ino


def test_the_digest_follows_the_external_data(tmp_path: Path) -> None:
    path = external(tmp_path)
    first = open_model(path, "", tmp_path / "store")
    (tmp_path / "b.bin").write_bytes(np.array([1, 3], np.float32).tobytes())
    assert open_model(path, "", tmp_path / "store").digest != first.digest


def test_offsets_are_honoured(tmp_path: Path) -> None:
    path = external(tmp_path, offset="4")
    (tmp_path / "b.bin").write_bytes(np.array([9, 5, 6], np.float32).tobytes())
    (tensor,) = open_model(path, "", tmp_path).load().graph.initializer
    assert numpy_helper.to_array(tensor).tolist() == [5, 6]


def test_packed_types_need_half_a_byte_for_an_element(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(LINEAR)
    tensor = TensorProto(name="q", data_type=TensorProto.INT4, dims=[3])
    point_outside(tensor, location="q.bin", length="2")
    model.graph.initializer.append(tensor)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    (tmp_path / "q.bin").write_bytes(b"\x21\x03")
    found = open_model(path, "", tmp_path).load().graph.initializer[1]
    assert numpy_helper.to_array(found).astype(int).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"location": "gone.bin"}, "lies in 'gone.bin', which is not in the model's folder"),
        ({"location": ""}, "names no file"),
        ({"location": "/etc/hostname"}, "only relative paths are read"),
        ({"location": "C:\\b.bin"}, "only relative paths are read"),
        ({"location": "../b.bin"}, "outside of the model's folder"),
        ({"location": "a/../../b.bin"}, "outside of the model's folder"),
        ({"location": "b.bin\0"}, "no path holds a zero byte"),
        ({"location": "."}, "which is not in the model's folder"),
        ({"offset": "4"}, "needs bytes 4 to 12 of b.bin, which has only 8"),
        ({"offset": "-4"}, "gives offset '-4', expected a number of bytes"),
        ({"length": "many"}, "gives length 'many', expected a number of bytes"),
        ({"length": "4"}, r"gives length 4, but float\[2\] has 8 bytes"),
    ],
)
def test_unusable_external_data_names_file_and_tensor(
    tmp_path: Path, entries: dict[str, Any], text: str
) -> None:
    found = refusal(external(tmp_path, **entries))
    assert "external data of tensor 'b'" in found
    assert re.search(text, found)


def test_external_data_that_is_cut_is_refused(tmp_path: Path) -> None:
    assert "needs bytes 0 to 8 of b.bin, which has only 7" in refusal(external(tmp_path, 7))


def test_a_link_must_not_leave_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = external(folder)
    (folder / "b.bin").rename(tmp_path / "secret.bin")
    (folder / "b.bin").symlink_to(tmp_path / "secret.bin")
    assert "outside of the model's folder; copy the model" in refusal(path)


def test_a_folder_that_is_itself_a_link_may_be_used(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    external(real)
    (tmp_path / "link").symlink_to(real)
    assert open_model(tmp_path / "link" / "model.onnx", "", tmp_path / "store").nodes == 1


def test_strings_cannot_be_external(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(LINEAR)
    model.graph.initializer[0].data_type = TensorProto.STRING
    point_outside(model.graph.initializer[0], location="b.bin")
    (tmp_path / "b.bin").write_bytes(bytes(8))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert "element type string, which cannot be external" in refusal(path)


def test_external_data_above_two_gib_is_refused_unread(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(LINEAR)
    for name in ("v", "w"):
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[2**28])
        point_outside(tensor, location="w.bin")
        model.graph.initializer.append(tensor)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(2**30)
    assert re.search(
        r"has 2,147,483,\d+ bytes with its external data, but a protobuf holds at most 2 GiB",
        refusal(path),
    )


def test_tensors_are_found_wherever_they_hide() -> None:
    model = onnx.parser.parse_model(LINEAR)

    def tensor(name: str) -> onnx.TensorProto:
        return helper.make_tensor(name, TensorProto.FLOAT, [1], [0])

    def sparse(name: str) -> onnx.SparseTensorProto:
        indices = helper.make_tensor(f"{name}/indices", TensorProto.INT64, [1], [0])
        return helper.make_sparse_tensor(tensor(name), indices, [1])

    def graph(name: str) -> onnx.GraphProto:
        return helper.make_graph([], "g", [], [], [tensor(name)])

    node = helper.make_node("Any", [], [], t=tensor("t"), ts=[tensor("ts")], s=sparse("s"))
    node.attribute.append(helper.make_attribute("g", graph("g")))
    node.attribute.append(helper.make_attribute("gs", [graph("gs")]))
    node.attribute.append(helper.make_attribute("ss", [sparse("ss")]))
    model.graph.node.append(node)
    model.graph.sparse_initializer.append(sparse("si"))
    function = model.functions.add(name="f")
    function.node.append(helper.make_node("Any", [], [], t=tensor("f")))
    function.attribute_proto.append(helper.make_attribute("d", tensor("d")))
    info = model.training_info.add()
    info.initialization.CopyFrom(graph("init"))
    info.algorithm.CopyFrom(graph("algo"))
    names = {found.name for found in tensors_of(model)}
    outer = {"b", "t", "ts", "s", "g", "gs", "ss", "si", "f", "d", "init", "algo"}
    assert names == outer | {"s/indices", "ss/indices", "si/indices"}


def test_external_data_of_a_subgraph_is_embedded(tmp_path: Path) -> None:
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        g (bool c) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] p) { p = Constant <value = float[2] {1, 2}> () },
                else_branch = e () => (float[2] q) { q = Constant <value = float[2] {3, 4}> () }
            >
        }
    """
    model = onnx.parser.parse_model(text)
    for tensor in tensors_of(model):
        point_outside(tensor, location="b.bin")
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    (tmp_path / "b.bin").write_bytes(np.array([7, 8], np.float32).tobytes())
    blob = open_model(path, "", tmp_path / "store").load()
    assert [numpy_helper.to_array(t).tolist() for t in tensors_of(blob)] == [[7, 8], [7, 8]]


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "store").write_bytes(b"a file where a folder should be")
    with pytest.raises(InfrastructureError, match="cannot write a self-contained copy"):
        open_model(path, "", tmp_path / "store")


def test_a_failed_write_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InfrastructureError, match="No space left on device; make room"):
        open_model(external(tmp_path), "", tmp_path / "store")
    assert os.listdir(tmp_path / "store" / "blobs") == []


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (b"the name", "GraphProto.name"),
        (b"the node", "NodeProto.name"),
        (b"the axis", "TensorShapeProto.Dimension.dim_param|Dimension.dim_param"),
        (b"the place", "StringStringEntryProto.value"),
        (b"the weight", "TensorProto.name"),
    ],
)
def test_a_text_that_is_not_utf8_is_refused_with_its_field(
    tmp_path: Path, text: bytes, field: str
) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>'
        "g (float[N] x) => (float[N] y) <float w = {1}> { y = Add(x, w) }"
    )
    model.graph.name = "the name"
    model.graph.node[0].name = "the node"
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "the axis"
    model.graph.initializer[0].name = "the weight"
    onnx.helper.set_model_props(model, {"key": "the place"})
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString().replace(text, b"\xff" + text[1:]))
    with pytest.raises(InputError, match=rf"a text in a field ({field}) is not UTF-8"):
        open_model(path, "", tmp_path / "store")
