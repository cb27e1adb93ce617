from __future__ import annotations

from xml.etree import ElementTree as ET

import onnx
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, helper

from optvet.report.graph_svg import MAX_NODES, draw

SVG = "{http://www.w3.org/2000/svg}"
HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'
MODEL = """g (float[1,2,n,4] x) => (float[1,2,n,4] y)
    <float[2,2,1,1] w = {1, 2, 3, 4}, float[2] b = {0.5, 1}> {
    c = Conv <kernel_shape = [1, 1]> (x, w, b)  r = Relu(c)  y = Add(r, x) }"""


def parsed(text: str = MODEL) -> ModelProto:
    return onnx.parser.parse_model(HEAD + text)


def words(svg: str) -> list[str]:
    return [e.text or "" for e in ET.fromstring(svg).iter(f"{SVG}text")]


def tips(svg: str) -> list[str]:
    return [e.text or "" for e in ET.fromstring(svg).iter(f"{SVG}title")]


def chain(length: int) -> ModelProto:
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], f"n{i}") for i in range(length)]
    value = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2])
    ends = [helper.make_value_info(f"v{i}", value) for i in (0, length)]
    return helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]))


def test_a_picture_tells_operators_attributes_weights_and_values() -> None:
    shown = words(draw(parsed(), title="before the pass"))
    assert shown[0] == "before the pass"
    assert {"Conv", "Relu", "Add", "kernel_shape = [1, 1]", "w = [1, 2, 3, 4]"} <= set(shown)
    assert {"x", "float[1×2×n×4]", "c", "r", "y"} <= set(shown)


def test_only_what_was_rewritten_is_amber_and_only_what_is_wrong_is_red() -> None:
    plain = draw(parsed(), title="t")
    assert "#bf8700" not in plain
    assert "#cf222e" not in plain
    marked = draw(parsed(), title="t", changed=[1], wrong="r")
    amber = [r for r in ET.fromstring(marked).iter(f"{SVG}rect") if r.get("stroke") == "#bf8700"]
    assert len(amber) == 1
    red = [t.text for t in ET.fromstring(marked).iter(f"{SVG}text") if t.get("fill") == "#cf222e"]
    assert red == ["r"]
    assert {"rewritten by the pass", "first wrong value"} <= set(words(marked))


@pytest.mark.parametrize(
    "name",
    ["</title><script>alert(1)</script>", "a&b", "\"quoted'", "null\0bell\a", "\ud7ff￾"],
    ids=["markup", "ampersand", "quotes", "control", "no-character"],
)
def test_a_hostile_name_is_text_and_nothing_else(name: str) -> None:
    model = parsed()
    model.graph.node[1].name = name
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = name
    root = ET.fromstring(draw(model, title=name, wrong=name))
    drawn = {"svg", "title", "rect", "g", "path", "polygon", "text"}
    assert {e.tag.removeprefix(SVG) for e in root.iter()} == drawn
    keys = {key for e in root.iter() for key in e.keys()}
    assert not [key for key in keys if key.startswith("on") or "href" in key]


def test_a_long_name_is_cut_in_the_middle_and_whole_in_its_tooltip() -> None:
    name = "model/" + "block/" * 40 + "output"
    model = parsed()
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = name
    svg = draw(model, title="t")
    assert any(w.startswith("model/") and w.endswith("output") and "…" in w for w in words(svg))
    assert max(map(len, words(svg))) < 40
    assert any(tip.startswith(name) for tip in tips(svg))


def test_of_a_large_graph_only_the_surroundings_are_drawn() -> None:
    svg = draw(chain(200), title="after", changed=[100])
    assert words(svg).count("Relu") == 5
    assert words(svg)[0] == "after (195 more nodes are left out)"
    assert words(svg).count("…") == 2


def test_a_graph_that_was_rewritten_everywhere_is_cut_too() -> None:
    svg = draw(chain(200), title="after", changed=range(200), wrong="v150")
    assert words(svg).count("Relu") <= MAX_NODES
    assert "v150" in words(svg)


def test_what_is_asked_for_is_drawn_with_its_neighbours() -> None:
    assert words(draw(chain(20), title="t", about=[10])).count("Relu") == 3


def test_equal_graphs_make_equal_pictures() -> None:
    assert draw(parsed(), title="t", changed=[1]) == draw(parsed(), title="t", changed=[1])


def test_a_graph_without_nodes_has_a_picture() -> None:
    model = parsed("g (float[2] x) => (float[2] x) { }")
    assert words(draw(model, title="nothing")) == ["nothing"]


def test_a_value_that_an_inner_graph_reads_is_an_edge() -> None:
    model = parsed(
        """g (bool q, float[2] x) => (float[2] y) {
            a = Relu(x)
            y = If (q) <then_branch = g () => (float[2] u) { u = Neg(a) },
                        else_branch = g () => (float[2] v) { v = Abs(x) }> }"""
    )
    root = ET.fromstring(draw(model, title="t"))
    assert len(list(root.iter(f"{SVG}polygon"))) == 5  # q, a and x into If; x into Relu; y


Rectangle = tuple[float, float, float, float]


def rectangles(svg: str) -> tuple[Rectangle, list[Rectangle]]:
    """The view, and boxes with their labels."""
    root = ET.fromstring(svg)
    x, y, width, height = map(float, root.attrib["viewBox"].split())
    found = [
        tuple(float(r.attrib[k]) for k in ("x", "y", "width", "height"))
        for g in root.iter(f"{SVG}g")
        for r in g.iter(f"{SVG}rect")
    ]
    return (x, y, x + width, y + height), [(a, b, a + w, b + h) for a, b, w, h in found]


@settings(max_examples=40, deadline=None)
@given(data=st.data(), count=st.integers(1, 14))
def test_boxes_and_labels_do_not_overlap_and_are_in_view(data: st.DataObject, count: int) -> None:
    nodes = []
    names = ["x"]
    for i in range(count):
        read = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))
        made = [f"v{i}_{'long_' * data.draw(st.integers(0, 6))}"]
        nodes.append(helper.make_node("Sum", read, made, f"node_{i}"))
        names += made
    kind = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2])
    ends = [helper.make_value_info(n, kind) for n in ("x", names[-1])]
    model = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]))
    view, boxes = rectangles(draw(model, title="t"))
    for i, (a, b, c, d) in enumerate(boxes):
        assert view[0] <= a and view[1] <= b and c <= view[2] and d <= view[3]  # noqa: PT018
        for e, f, g, h in boxes[i + 1 :]:
            assert c <= e or g <= a or d <= f or h <= b
