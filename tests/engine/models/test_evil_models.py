"""Models that say impossible things are refused with words, as they are opened."""

import contextlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from optvet.engine.models.opening import open_model
from optvet.engine.models.soundness import check_model
from optvet.spec.errors import InputError


@pytest.fixture(autouse=True, params=["parsed whole", "read in place"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models are parsed whole; larger ones are read where they lie, with equal answers."""
    if request.param == "read in place":
        monkeypatch.setattr("optvet.engine.models.opening._IN_PLACE_BYTES", 1)
        monkeypatch.setattr("optvet.graph.outline._LARGE_BYTES", 4)


Change = Callable[[ModelProto], object]
KINDS = [*TensorProto.DataType.values(), 77, -1]


def sound() -> ModelProto:
    """A model with a weight, which each case changes."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2], struct.pack("<2f", 1, 2), raw=True)
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def opened(folder: Path, model: ModelProto) -> None:
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    open_model(folder / "net.onnx", "net.onnx", folder / "store")


def refusal(folder: Path, model: ModelProto) -> str:
    with pytest.raises(InputError) as caught:
        opened(folder, model)
    message = str(caught.value)
    assert len(message) < 700
    assert message.isprintable()
    return message


def weight(model: ModelProto) -> TensorProto:
    tensor: TensorProto = model.graph.initializer[0]
    return tensor


def late_operators(model: ModelProto) -> None:
    model.opset_import[0].version = 2**40


def early_operators(model: ModelProto) -> None:
    model.functions.add(name="f", domain="own").opset_import.add(domain="own", version=-2)


def cut_data(model: ModelProto) -> None:
    weight(model).raw_data = b"1234567"


def huge(model: ModelProto) -> None:
    weight(model).dims[:] = [2**62]


def overflow(model: ModelProto) -> None:
    weight(model).dims[:] = [2**62, 4]


def negative(model: ModelProto) -> None:
    weight(model).dims[:] = [-2]


def rank(model: ModelProto) -> None:
    weight(model).dims[:] = [2] + [1] * 199


def wide_input(model: ModelProto) -> None:
    for _ in range(200):
        model.graph.input[0].type.tensor_type.shape.dim.add().dim_value = 1


def undefined_in_sequence(model: ModelProto) -> None:
    kind = model.graph.output[0].type
    kind.Clear()
    kind.sequence_type.elem_type.optional_type.elem_type.tensor_type.elem_type = 99


def nameless_operator(model: ModelProto) -> None:
    model.graph.node.extend([NodeProto(name="\x1b[2J" + "n" * 100_000)] * 3)


def constant_of_nothing(model: ModelProto) -> None:
    node = helper.make_node("Constant", [], ["c"], name="c", value_float=1.0)
    node.attribute[0].CopyFrom(AttributeProto(name="value", type=AttributeProto.TENSOR))
    model.graph.node.insert(0, node)


def calls_itself(model: ModelProto) -> None:
    for name, called in (("F", "G"), ("G", "F")):
        body = [helper.make_node(called, ["x"], ["y"], domain="d")]
        opsets = [helper.make_opsetid("d", 1)]
        model.functions.append(helper.make_function("d", name, ["x"], ["y"], body, opsets))


def doubling(model: ModelProto, functions: int = 2000) -> None:
    """Each function calls the one before twice."""
    opsets = [helper.make_opsetid("d", 1), helper.make_opsetid("", 17)]
    model.opset_import.append(opsets[0])
    for number in range(functions):
        call = (f"F{number - 1}", "d") if number else ("Relu", "")
        body = [
            helper.make_node(call[0], [a], [b], domain=call[1]) for a, b in (("x", "t"), ("t", "y"))
        ]
        model.functions.append(helper.make_function("d", f"F{number}", ["x"], ["y"], body, opsets))
    model.graph.node[0].CopyFrom(helper.make_node(f"F{functions - 1}", ["x"], ["y"], domain="d"))


def test_functions_that_call_each_other_a_little_are_opened(tmp_path: Path) -> None:
    model = sound()
    doubling(model, 12)
    opened(tmp_path, model)


def strings_as_bytes(model: ModelProto) -> None:
    weight(model).data_type = TensorProto.STRING


def text_in_no_code(model: ModelProto) -> None:
    weight(model).CopyFrom(
        TensorProto(name="w", dims=[2], data_type=TensorProto.STRING, string_data=[b"\xff", b"a"])
    )


def segment(model: ModelProto) -> None:
    weight(model).segment.begin = 1


def long_location(model: ModelProto) -> None:
    weight(model).data_location = TensorProto.EXTERNAL
    weight(model).name = "w" * 100_000
    entry = weight(model).external_data.add()
    entry.key, entry.value = "location", "a" * 5000


def long_part(model: ModelProto) -> None:
    weight(model).data_location = TensorProto.EXTERNAL
    entry = weight(model).external_data.add()
    entry.key, entry.value = "location", "a" * 300


def loop_of_links(model: ModelProto) -> None:
    weight(model).data_location = TensorProto.EXTERNAL
    entry = weight(model).external_data.add()
    entry.key, entry.value = "location", "loop"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (late_operators, "operator set 'ai.onnx' has version 1099511627776, which there cannot be"),
        (early_operators, "operator set 'own' has version -2, which there cannot be"),
        (cut_data, "tensor 'w' has data for 1 elements, but float[2] has 2"),
        (huge, "has data for 2 elements, but float[4611686018427387904] has 4,611,686,018"),
        (overflow, "but float[4611686018427387904, 4] has 18,446,744,073,709,551,616"),
        (negative, "has the negative shape float[-2]"),
        (rank, "tensor 'w' has 200 dimensions, expected at most 64"),
        (wide_input, "input 'x' has 201 dimensions, expected at most 64"),
        (undefined_in_sequence, "output 'y' has the element type type99"),
        (nameless_operator, "of graph 'g' has no operator"),
        (constant_of_nothing, "attribute 'value' of node 'c' has no value"),
        (calls_itself, "calls itself, directly or through others"),
        (doubling, "has more than 250,000 nodes once they are inlined"),
        (strings_as_bytes, "has data for 0 elements, but string[2] has 2"),
        (text_in_no_code, "tensor 'w' has a text that is not in UTF-8"),
        (segment, "tensor 'w' is one of several segments"),
        (long_location, "which has 5,000 bytes, and a path at most 4,095"),
        (long_part, "which is not in the model's folder"),
        (loop_of_links, "'loop'"),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_what_cannot_be_is_refused_in_a_few_words(
    tmp_path: Path, change: Change, words: str
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    model = sound()
    change(model)
    assert words in refusal(tmp_path, model)


def test_the_sound_model_is_opened(tmp_path: Path) -> None:
    opened(tmp_path, sound())


@pytest.mark.parametrize("kind", KINDS)
def test_every_element_type_is_opened_or_refused_in_words(tmp_path: Path, kind: int) -> None:
    for place in ("input", "output", "initializer"):
        model = sound()
        if place == "initializer":
            weight(model).data_type = kind
        else:
            getattr(model.graph, place)[0].type.tensor_type.elem_type = kind
        with contextlib.suppress(InputError):
            opened(tmp_path, model)


@pytest.mark.parametrize(
    "kind", [k for k in TensorProto.DataType.values() if k not in (0, *range(27, 40))]
)
@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_tensors_as_the_library_writes_them_are_sound(
    tmp_path: Path, kind: int, count: int
) -> None:
    values: Any = [b"a"] * count if kind == TensorProto.STRING else [1] * count
    model = sound()
    weight(model).CopyFrom(helper.make_tensor("w", kind, [count], values))
    opened(tmp_path, model)


def test_graphs_nested_beyond_what_protobuf_reads_are_told_so(tmp_path: Path) -> None:
    # As bytes: the library itself writes no such model.
    def field(number: int, data: bytes) -> bytes:
        size, length = len(data), b""
        while size > 127:
            length += bytes([size & 127 | 128])
            size >>= 7
        return bytes([number << 3 | 2]) + length + bytes([size]) + data

    graph = GraphProto(name="g").SerializeToString()
    for _ in range(60):
        # graph ⊂ attribute (field 6) ⊂ node (field 5) ⊂ graph (field 1)
        head = AttributeProto(name="a", type=AttributeProto.GRAPH).SerializeToString()
        graph = field(1, field(5, head + field(6, graph)))
    path = tmp_path / "deep.onnx"
    path.write_bytes(b"\x08\x08" + field(7, graph))
    with pytest.raises(InputError, match="nests graphs or types more deeply than protobuf reads"):
        open_model(path, "deep.onnx", tmp_path)


def test_a_long_chain_of_functions_is_no_circle(tmp_path: Path) -> None:
    model = sound()
    for i in range(3000):
        body = [helper.make_node(f"F{i + 1}" if i < 2999 else "Relu", ["x"], ["y"], domain="d")]
        opsets = [helper.make_opsetid("d", 1)]
        model.functions.append(helper.make_function("d", f"F{i}", ["x"], ["y"], body, opsets))
    check_model(tmp_path / "net.onnx", model)


def test_a_file_that_becomes_shorter_or_vanishes_is_told(tmp_path: Path) -> None:
    model = sound()
    onnx.save_model(
        model, tmp_path / "net.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    open_model(tmp_path / "net.onnx", "net.onnx", tmp_path / "store")
    (tmp_path / "w.bin").unlink()
    with pytest.raises(InputError, match=r"'w\.bin', which is not in the model's folder"):
        open_model(tmp_path / "net.onnx", "net.onnx", tmp_path / "store")
