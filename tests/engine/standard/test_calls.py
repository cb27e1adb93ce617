"""Calls of single operators that the standard defines, and near ones that it does not."""

from typing import Any

import numpy as np
import onnx
import pytest

from optvet.engine.standard.defined import undefined_in
from optvet.engine.standard.shapes import describe_wrong_shape

_NEWEST = 24


def rules(operator: str, operands: list[Any], opset: int = _NEWEST, **attributes: Any) -> list[str]:
    """Names of the rules that a call breaks; ``d.Op`` is an operator of another domain."""
    domain, _, operator = operator.rpartition(":")
    values = {f"i{n}": np.asarray(v) for n, v in enumerate(operands) if v is not None}
    names = ["" if v is None else f"i{n}" for n, v in enumerate(operands)]
    node = onnx.helper.make_node(operator, names, ["y"], domain=domain, **attributes)
    graph = onnx.helper.make_graph([node], "g", [], [])
    imports = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    model = onnx.helper.make_model(graph, opset_imports=imports)
    wrong = describe_wrong_shape(model, values)
    found = [u.kind.partition(": ")[2] for u in undefined_in(model, values)]
    return [*found, *(["wrong shape"] if wrong else [])]


def f(*shape: int) -> np.ndarray:
    return np.linspace(0.1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def i(values: Any) -> np.ndarray:
    return np.array(values, np.int64)


NAN = np.array(np.nan, np.float32)
IMAGE, GRID, REGION = f(1, 2, 5, 5), f(1, 3, 3, 2), f(1, 4)
SMALL, WEIGHTS, EMPTY = f(1, 2, 2, 2), f(4, 2, 3, 3), f(1, 2, 0, 5)
OPEN, BACK = f(2, 3, 3, 3), f(1, 1, 2, 2)


@pytest.mark.parametrize(
    ("operator", "operands", "fine", "open_", "rule"),
    [
        ("AveragePool", [SMALL], {"kernel_shape": [2, 2]}, {"kernel_shape": [3, 2]}, "window"),
        (
            "LpPool",
            [SMALL],
            {"kernel_shape": [3, 2], "pads": [1, 0, 0, 0]},
            {"kernel_shape": [3, 2], "pads": [0, 1, 0, 0]},
            "window",
        ),
        (
            "MaxPool",
            [SMALL],
            {"kernel_shape": [3, 2], "auto_pad": "SAME_UPPER"},
            {"kernel_shape": [3, 2], "auto_pad": "VALID"},
            "window",
        ),
        ("Conv", [SMALL, WEIGHTS], {"pads": [0, 0, 1, 1]}, {"pads": [0, 0, 0, 1]}, "window"),
        ("Conv", [IMAGE, WEIGHTS], {"dilations": [2, 2]}, {"dilations": [3, 1]}, "window"),
        ("Conv", [IMAGE, WEIGHTS], {"auto_pad": "VALID"}, {"auto_pad": "SAME"}, "word"),
        ("Conv", [IMAGE, WEIGHTS], {"kernel_shape": [3, 3]}, {"kernel_shape": [2, 3]}, "kernel"),
        (
            "Conv",
            [IMAGE, WEIGHTS],
            {"pads": [0, 0, 0, 0], "auto_pad": "NOTSET"},
            {"pads": [0, 0, 0, 0], "auto_pad": "SAME_UPPER"},
            "padding twice",
        ),
        ("Conv", [IMAGE, f(4, 1, 3, 3)], {"group": 2}, {"group": 0}, "groups"),
        (
            "ConvTranspose",
            [IMAGE, OPEN],
            {"pads": [0, 0, 1, 1]},
            {"pads": [0, 0, 1, -1]},
            "negative padding",
        ),
        (
            "ConvTranspose",
            [IMAGE, OPEN],
            {"output_padding": [1, 1], "strides": [2, 2]},
            {"output_padding": [2, 1], "strides": [2, 2]},
            "added padding",
        ),
        ("ConvTranspose", [IMAGE, OPEN], {"pads": [3] * 4}, {"pads": [4, 3, 3, 3]}, "transposed"),
        ("ConvTranspose", [IMAGE, OPEN], {"group": 2}, {"group": 3}, "groups"),
        ("LpPool", [IMAGE], {"kernel_shape": [2, 2], "p": 3}, {"p": 0}, "norm of window"),
        ("GlobalLpPool", [IMAGE], {"p": 1}, {"p": -1}, "norm of window"),
        ("LpNormalization", [IMAGE], {"p": 1}, {"p": 3}, "norm"),
        ("LpNormalization", [IMAGE], {"axis": -4}, {"axis": 4}, "axis inside"),
        (
            "RotaryEmbedding",
            [f(1, 2, 5, 4), f(1, 5, 2), f(1, 5, 2)],
            {},
            {"num_heads": -1},
            "number of heads",
        ),
        ("Celu", [SMALL], {"alpha": 0.5}, {"alpha": 0.0}, "dividing alpha"),
        ("LRN", [IMAGE], {"size": 2}, {"size": 0}, "region"),
        ("GridSample", [IMAGE, GRID], {"mode": "cubic"}, {"mode": "bicubic"}, "word"),
        ("GridSample", [IMAGE, GRID], {"padding_mode": "border"}, {"padding_mode": "b"}, "word"),
        (
            "RoiAlign",
            [IMAGE, REGION, i([0])],
            {"sampling_ratio": 0},
            {"sampling_ratio": -1},
            "sampling",
        ),
        ("RoiAlign", [IMAGE, REGION, i([0])], {"output_width": 1}, {"output_width": 0}, "sampling"),
        ("DepthToSpace", [f(1, 4, 2, 3)], {"blocksize": 2}, {"blocksize": 3}, "blocks"),
        ("SpaceToDepth", [f(1, 2, 6, 4)], {"blocksize": 2}, {"blocksize": 3}, "blocks"),
        ("Transpose", [IMAGE], {"perm": [0, 3, 1, 2]}, {"perm": [0, 1, 2]}, "permutation"),
        ("Hardmax", [f(2, 3)], {"axis": -2}, {"axis": 2}, "axis inside"),
        (
            "ReverseSequence",
            [f(2, 2), i([1, 1])],
            {"time_axis": 0},
            {"time_axis": 1},
            "reversed axes",
        ),
        (
            "ReverseSequence",
            [f(2, 2, 2), i([1, 1])],
            {"time_axis": 1, "batch_axis": 0},
            {"time_axis": 2, "batch_axis": 0},
            "reversed axes",
        ),
        (
            "CenterCropPad",
            [IMAGE, i([3, 3])],
            {"axes": [2, 3]},
            {"axes": [3, -1]},
            "axes listed once",
        ),
        (
            "GroupNormalization",
            [f(2, 6, 5), f(6), f(6)],
            {"num_groups": 3},
            {"num_groups": 4},
            "channels of groups",
        ),
        ("LayerNormalization", [f(2, 3), f(3)], {"stash_type": 1}, {"stash_type": 7}, "precision"),
        ("RandomUniform", [], {"low": 1.0, "high": 1.0}, {"low": 2.0}, "spread"),
        ("RandomNormal", [], {"scale": 0.0}, {"scale": -1.0}, "spread"),
        (
            "LinearAttention",
            [f(1, 3, 8)] * 3,
            {"update_rule": "linear", "q_num_heads": 4, "kv_num_heads": 4},
            {"update_rule": "gated"},
            "gates",
        ),
        (
            "LinearAttention",
            [f(1, 3, 8), f(1, 3, 4), f(1, 3, 4)],
            {"update_rule": "linear", "q_num_heads": 4, "kv_num_heads": 2},
            {"q_num_heads": 3},
            "gates",
        ),
        ("Multinomial", [f(2, 3)], {"sample_size": 1}, {"sample_size": -1}, "outcomes"),
        ("Einsum", [f(2, 3)], {"equation": "ij -> ji"}, {"equation": "ij->ii"}, "equation"),
        ("Einsum", [f(2, 3)], {"equation": "...j->...j"}, {"equation": "..j->j"}, "equation"),
        ("ScatterND", [f(3), i([[0]]), f(1)], {"reduction": "max"}, {"reduction": "sum"}, "word"),
        ("Pad", [f(2, 3), i([0, 2, 0, 0])], {"mode": "edge"}, {"mode": "symmetric"}, "word"),
    ],
)
def test_attributes_of_a_call_have_an_answer_or_none(
    operator: str,
    operands: list[Any],
    fine: dict[str, Any],
    open_: dict[str, Any],
    rule: str,
) -> None:
    assert rules(operator, operands, **fine) == []
    assert rule in rules(operator, operands, **{**fine, **open_})


@pytest.mark.parametrize(
    ("operator", "fine", "open_", "attributes", "rule"),
    [
        ("Conv", [IMAGE, f(4, 1, 3, 3)], [IMAGE, f(3, 1, 3, 3)], {"group": 2}, "groups"),
        ("GlobalAveragePool", [f(0, 2, 0)], [f(1, 2, 0)], {}, "pooled nothing"),
        ("GlobalMaxPool", [f(1, 0, 0)], [f(1, 2, 0)], {}, "pooled nothing"),
        ("MaxPool", [SMALL], [SMALL * NAN], {"kernel_shape": [1, 1]}, "order"),
        (
            "MaxPool",
            [f(1, 0, 2, 2)],
            [f(1, 2, 0, 2)],
            {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]},
            "padding",
        ),
        ("Split", [f(4), i([4])], [f(4), i([4, 0])], {}, "parts"),
        (
            "ConvInteger",
            [BACK.astype(np.uint8), BACK.astype(np.uint8), np.uint8(1)],
            [BACK.astype(np.uint8), BACK.astype(np.uint8), np.ones((1, 1), np.uint8)],
            {},
            "wrong shape",
        ),
        ("LRN", [f(1, 2, 3)], [f(2, 3)], {"size": 3}, "wrong shape"),
        (
            "InstanceNormalization",
            [f(1, 2, 3), f(2), f(2)],
            [f(1, 2), f(2), f(2)],
            {},
            "wrong shape",
        ),
        ("GridSample", [IMAGE, GRID], [EMPTY, GRID], {}, "sampled nothing"),
        ("GridSample", [EMPTY, f(1, 0, 3, 2)], [EMPTY, GRID], {}, "sampled nothing"),
        ("GridSample", [IMAGE, GRID * 9], [IMAGE, GRID * NAN], {}, "finite places"),
        ("RoiAlign", [IMAGE, REGION, i([0])], [IMAGE, REGION, i([-1])], {}, "images"),
        ("RoiAlign", [IMAGE, REGION, i([0])], [IMAGE, REGION, i([1])], {}, "images"),
        ("RoiAlign", [IMAGE, REGION, i([0])], [EMPTY, REGION, i([0])], {}, "sampled nothing"),
        ("RoiAlign", [IMAGE, REGION, i([0])], [IMAGE, f(1, 5), i([0])], {}, "wrong shape"),
        (
            "MaxRoiPool",
            [IMAGE, f(1, 5) * 0],
            [IMAGE, f(1, 5)],
            {"pooled_shape": [1, 1]},
            "images",
        ),
        (
            "MaxUnpool",
            [BACK, i([[[[0, 1], [2, 15]]]])],
            [BACK, i([[[[0, 1], [2, 16]]]])],
            {"kernel_shape": [2, 2], "strides": [2, 2]},
            "unpooled",
        ),
        (
            "MaxUnpool",
            [BACK, i([[[[0, 1], [2, 3]]]])],
            [BACK, i([[[[0, 1], [2, 1]]]])],
            {"kernel_shape": [2, 2], "strides": [2, 2]},
            "unpooled",
        ),
        (
            "MaxUnpool",
            [BACK, i([[[[0, 1], [2, 3]]]]), i([1, 1, 3, 4])],
            [BACK, i([[[[0, 1], [2, 3]]]]), i([1, 1, 3, 2])],
            {"kernel_shape": [2, 2]},
            "unpooled",
        ),
        (
            "Resize",
            [SMALL, f(8), None, i([1, 2, 3, 3])],
            [SMALL, None, None, i([1, 2, 3, 3])],
            {"coordinate_transformation_mode": "tf_crop_and_resize"},
            "resized region",
        ),
        (
            "Resize",
            [f(1, 2), np.array([0, 0.2, 0, 0.45]), None, i([1, 3])],
            [f(1, 2), np.array([0, 0.4, 0, 0.6]), None, i([1, 3])],
            {"coordinate_transformation_mode": "tf_crop_and_resize"},
            "cropped between",
        ),
        ("Unsqueeze", [f(2), i(0)], [f(2), i([[0]])], {}, "wrong shape"),
        ("Squeeze", [f(1, 2), i([0])], [f(1, 2), i([])], {}, "some axes"),
        (
            "Resize",
            [SMALL, None, None, i([1, 2, 3, 1])],
            [SMALL, None, None, i([1, 2, 3, 0])],
            {},
            "size",
        ),
        (
            "OneHot",
            [i([0]), np.float32(1.5) + f(), f(2)],
            [i([0]), np.float32(0.8) + f(), f(2)],
            {},
            "depth",
        ),
        ("ConstantOfShape", [i([0, 2])], [i([-1, 2])], {}, "size"),
        ("Reshape", [f(2, 3), i([-1, 2])], [f(2, 3), i([-2, 2])], {}, "size"),
        ("Tile", [f(2), i([0])], [f(2), i([-1])], {}, "size"),
        ("HannWindow", [i(0)], [i(-1)], {}, "size"),
        ("SplitToSequence", [f(4), i(1)], [f(4), i(0)], {}, "sizes of parts"),
        ("SplitToSequence", [f(4), i([4, 0])], [f(4), i([5, -1])], {}, "sizes of parts"),
        ("Pad", [f(2, 3), i([0, -2, 0, -1])], [f(2, 3), i([0, -2, 0, -2])], {}, "removed"),
        ("Pad", [f(2, 3), i([0, -3, 0, 1])], [f(2, 3), i([0, -4, 0, 1])], {}, "removed"),
        (
            "Pad",
            [f(0, 3), i([0, 1, 0, 0])],
            [f(0, 3), i([1, 0, 0, 0])],
            {"mode": "edge"},
            "removed",
        ),
        (
            "Pad",
            [f(2, 3), i([1, 2, 0, 0])],
            [f(2, 3), i([2, 0, 0, 0])],
            {"mode": "reflect"},
            "long reflection",
        ),
        (
            "Pad",
            [f(2, 3), i([1, 1, 1, 1]), None, i([0, 1])],
            [f(2, 3), i([1, 1, 1, 1]), None, i([1, -1])],
            {},
            "axes listed once",
        ),
        (
            "Col2Im",
            [f(1, 5, 5), i([5, 5]), i([1, 5])],
            [f(1, 5, 4), i([5, 5]), i([1, 5])],
            {},
            "columns",
        ),
        (
            "DequantizeLinear",
            [np.ones((2, 3), np.uint8), f(3)],
            [np.ones((2, 3), np.uint8), f(2)],
            {},
            "granularity",
        ),
        (
            "QuantizeLinear",
            [f(3, 4), f(3, 2)],
            [f(3, 4), f(3, 1)],
            {"block_size": 3},
            "granularity",
        ),
        (
            "Attention",
            [f(1, 4, 3, 2), *[f(1, 2, 3, 2)] * 2],
            [f(1, 3, 3, 2), *[f(1, 2, 3, 2)] * 2],
            {},
            "heads",
        ),
        ("Attention", [f(1, 2, 3, 2)] * 3, [*[f(1, 2, 3, 2)] * 2, f(1, 2, 4, 2)], {}, "heads"),
        ("Attention", [f(1, 2, 3, 2)] * 3, [f(2, 2, 3, 2), *[f(1, 2, 3, 2)] * 2], {}, "heads"),
        (
            "Attention",
            [f(1, 2, 3, 2)] * 3,
            [*[f(1, 2, 3, 2)] * 3, None, f(1, 2, 1, 2)],
            {},
            "past",
        ),
        (
            "RotaryEmbedding",
            [f(1, 2, 3, 4), f(8, 2), f(8, 2), i([[0, 1, 7]])],
            [f(1, 2, 3, 4), f(8, 2), f(8, 2), i([[0, 1, 8]])],
            {},
            "position ids",
        ),
        (
            "RotaryEmbedding",
            [f(1, 2, 3, 4), f(8, 2), f(8, 2), i([[0, 1, 7]])],
            [f(1, 2, 3, 5), f(8, 2), f(8, 2), i([[0, 1, 7]])],
            {},
            "rotated",
        ),
        (
            "TensorScatter",
            [f(1, 4, 2), f(1, 2, 2), i([2])],
            [f(1, 4, 2), f(1, 2, 2), i([3])],
            {},
            "written",
        ),
        ("CumSum", [f(2, 3), i(-2)], [f(2, 3), i(2)], {}, "axis of sum"),
        ("ArgMax", [f(1)], [f()], {}, "axis inside"),
        ("ArgMin", [f(0, 2)], [f(2, 0)], {"axis": 1}, "argument of nothing"),
        (
            "GatherElements",
            [f(2, 3), i([[0, 1, 2, 0]])],
            [f(2, 3), i([[0], [1], [2]])],
            {"axis": 1},
            "beside",
        ),
        ("GatherND", [f(2, 3), i([[1]])], [f(2, 3), np.zeros((1, 0), np.int64)], {}, "points"),
        (
            "GatherND",
            [f(2, 3, 4), i([[1], [1]])],
            [f(2, 3, 4), i([[1], [1], [1]])],
            {"batch_dims": 1},
            "points",
        ),
        ("Compress", [f(2, 2), np.ones(4, bool)], [f(2, 2), np.ones(5, bool)], {}, "selected"),
        (
            "Compress",
            [f(2, 2), np.ones(2, bool)],
            [f(2, 2), np.ones(3, bool)],
            {"axis": 1},
            "selected",
        ),
        ("NegativeLogLikelihoodLoss", [f(2, 3), i([0, 2])], [f(2, 3), i([0, 3])], {}, "classes"),
        (
            "SoftmaxCrossEntropyLoss",
            [f(2, 3), i([0, -1])],
            [f(2, 3), i([0, -2])],
            {"ignore_index": -1},
            "classes",
        ),
        (
            "NonMaxSuppression",
            [f(1, 3, 4), f(1, 1, 3), i([2]), f(1)],
            [f(1, 3, 4), f(1, 1, 3), i([2]), f(1) + 1],
            {},
            "thresholds",
        ),
        (
            "NonMaxSuppression",
            [f(1, 3, 4), f(1, 1, 3)],
            [f(1, 3, 4), f(1, 1, 3) * NAN],
            {},
            "thresholds",
        ),
        (
            "NegativeLogLikelihoodLoss",
            [f(2, 3), i([0, 7])],
            [f(2, 3), i([7, 7])],
            {"ignore_index": 7},
            "mean of losses",
        ),
        (
            "SoftmaxCrossEntropyLoss",
            [f(2, 3), i([0, 2]), np.array([0, 0, 1], np.float32)],
            [f(2, 3), i([0, 1]), np.array([0, 0, 1], np.float32)],
            {},
            "mean of losses",
        ),
        ("DynamicQuantizeLinear", [f(2)], [f(2) * 0], {}, "range to quantize"),
        ("DynamicQuantizeLinear", [f(2)], [f(0)], {}, "range to quantize"),
        (
            "AffineGrid",
            [f(1, 2, 3), i([1, 1, 2, 2])],
            [f(1, 2, 3), i([1, 1, 2, 1])],
            {"align_corners": 1},
            "corners",
        ),
        ("ReduceMin", [f(2, 2), i([0, 1])], [f(2, 2), i([1, -1])], {}, "axes once"),
        ("DFT", [f(1, 2, 1)], [f(1, 0, 1)], {}, "transformed"),
        ("DFT", [f(1, 2, 1)], [f(1, 2, 2)], {"onesided": 1}, "transformed"),
        ("DFT", [f(1, 2, 2)], [f(1, 1, 2)], {"onesided": 1, "inverse": 1}, "transformed"),
        (
            "Resize",
            [f(1, 1, 2, 2), None, None, i([1, 1, 3, 2])],
            [f(1, 1, 2, 2), None, None, i([1, 1, 3, 1])],
            {"coordinate_transformation_mode": "align_corners"},
            "aligned corners",
        ),
        (
            "Resize",
            [f(1, 1, 2, 4), None, np.array([1, 1, 1, 0.6], np.float32)],
            [f(1, 1, 2, 4), None, np.array([1, 1, 1, 0.25], np.float32)],
            {"coordinate_transformation_mode": "align_corners"},
            "aligned corners",
        ),
        (
            "Pad",
            [f(4), i([-1, 0])],
            [f(4), i([-1, 1])],
            {"mode": "reflect"},
            "repeated or removed",
        ),
        (
            "MaxUnpool",
            [BACK, i([[[[0, 5], [7, 15]]]]), i([1, 1, 5, 5])],
            [BACK, i([[[[0, 5], [7, 16]]]]), i([1, 1, 5, 5])],
            {"kernel_shape": [2, 2], "strides": [2, 2]},
            "unpooled",
        ),
        ("Bernoulli", [f(2)], [f(2) + 0.5], {}, "probability"),
        ("Multinomial", [f(0, 0)], [f(2, 0)], {}, "outcomes"),
        ("TopK", [f(3), i([2])], [f(3), i([2, 2])], {}, "wrong shape"),
        ("TopK", [f(3), i([1])], [f(3), i([2])], {"sorted": 0}, "any order"),
        (
            "StringSplit",
            [np.array([" a b  c d"])],
            [np.array([" a b  c "])],
            {"maxsplit": 2},
            "rest of text",
        ),
    ],
)
def test_operands_of_a_call_have_an_answer_or_none(
    operator: str,
    fine: list[Any],
    open_: list[Any],
    attributes: dict[str, Any],
    rule: str,
) -> None:
    assert rules(operator, fine, **attributes) == []
    assert rule in rules(operator, open_, **attributes)


CELLS = [f(3, 2, 4), f(1, 5, 4), f(1, 5, 5)]


def test_cells_of_a_recurrence_have_functions_and_a_limit() -> None:
    def broken(**attributes: Any) -> list[str]:
        return rules("RNN", CELLS, **{"hidden_size": 5, **attributes})

    assert broken() == broken(clip=0.0) == broken(activations=["Relu"]) == []
    assert broken(clip=-1.0) == broken(activations=["tanh"]) == ["cells"]
    assert broken(activations=["Tanh", "Tanh"]) == broken(hidden_size=0) == ["cells"]
    assert "word" in broken(direction="both")


def test_no_sequence_of_a_recurrence_is_longer_than_there_are_steps() -> None:
    for lengths, expected in (([3, 0], []), ([4, 0], ["steps of cells"]), ([3, -1], None)):
        found = rules("RNN", [*CELLS, None, np.array(lengths, np.int32)], hidden_size=5)
        assert found == (["steps of cells"] if expected is None else expected)


def test_the_state_after_no_steps_is_open_where_it_is_asked_for() -> None:
    kinds = set()
    for steps, lengths, outputs in ((2, [2], ["y", "h"]), (0, [0], ["y"]), (0, [0], ["y", "h"])):
        operands = {"x": f(steps, 1, 3), "w": f(1, 2, 3), "r": f(1, 2, 2), "n": i(lengths)}
        node = onnx.helper.make_node("RNN", ["x", "w", "r", "", "n"], outputs, hidden_size=2)
        model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], []))
        kinds |= {(steps, len(outputs), u.kind) for u in undefined_in(model, operands)}
    assert kinds == {(0, 2, "RNN: last state")}


def test_a_split_has_parts_by_number_or_by_size() -> None:
    assert rules("Split", [f(4)], num_outputs=1) == []
    assert rules("Split", [f(4)], num_outputs=2) == ["number of parts"]
    assert rules("Split", [f(4), i([4])], num_outputs=1) == ["number of parts"]


def test_scales_of_upsample_are_not_below_1_but_those_of_resize_may_be() -> None:
    scales = np.array([1, 1, 0.5, 1], np.float32)
    assert rules("Resize", [SMALL, scales], 10) == []
    assert rules("Upsample", [SMALL, scales], 9) == ["scales of size"]
    assert rules("Upsample", [SMALL, scales + 0.5], 9) == []


def test_an_operator_set_lists_the_words_that_it_knows() -> None:
    assert rules("GridSample", [IMAGE, GRID], 16, mode="bilinear") == []
    assert rules("GridSample", [IMAGE, GRID], 16, mode="linear") == ["word"]
    assert rules("ScatterND", [f(3), i([[0]]), f(1)], 16, reduction="max") == ["word"]
    assert rules("ai.onnx.ml:Normalizer", [f(1, 2)], norm="L2") == []
    assert rules("ai.onnx.ml:Normalizer", [f(1, 2)], norm="L3") == ["word"]


def test_several_scales_need_an_operator_set_that_knows_axes() -> None:
    assert rules("QuantizeLinear", [f(2, 3), f(3)], 13) == []
    assert rules("QuantizeLinear", [f(2, 3), f(3)], 10) == ["granularity"]


def test_padding_twice_and_long_reflections_excuse_no_value() -> None:
    node = onnx.helper.make_node("Pad", ["x", "p"], ["y"], mode="reflect")
    imports = [onnx.helper.make_opsetid("", 18)]
    graph = onnx.helper.make_graph([node], "g", [], [])
    model = onnx.helper.make_model(graph, opset_imports=imports)
    (found,) = undefined_in(model, {"x": f(2), "p": i([2, 0])})
    assert (found.kind, found.values) == ("Pad: long reflection", ())


def test_attributes_that_count_nothing_are_told_without_an_error() -> None:
    assert "groups" in rules("Conv", [IMAGE, WEIGHTS], group=0)
    assert rules("Gemm", [f(2, 3), f(2, 4), f(3, 4)], transA=2) == ["flag"]
    assert "axis inside" in rules("GatherElements", [f(), i(0)])
