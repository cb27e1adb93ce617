"""A graph as a self-contained SVG picture, without scripts or fonts; names are escaped.

Operators are boxes from top to bottom, with their attributes and weights; edges have the name of
the value and its shape. Rewritten nodes are amber, the first wrong value is red. The layout is made
by graphlay, a layered layout (Sugiyama, Tagawa and Toda 1981).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree as ET

from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, TypeProto

from optvet.graph.text import attribute_text, value_text
from optvet.graph.types import dtype_name
from optvet.graph.walk import is_onnx, qualified_name, reads
from optvet.graph.weights import constants_of

MAX_NODES = 60
"""Of larger graphs only the surroundings of rewritten nodes are drawn."""
_AROUND = 2
_LINES = 6
_CHARS = 34
_EDGE_CHARS = 28
_SHOWN = 6
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_SIZE, _SMALL = 13.0, 11.0
_WIDE = 0.602
"""Width of a character of a monospaced font, in units of its size."""
_PAD, _LEAD = 10.0, 15.0

_INK, _DIM, _LINE, _RED = "#1f2328", "#59636e", "#8c959f", "#cf222e"
_PLAIN = ("#f6f8fa", "#8c959f")
_CHANGED = ("#fff4d1", "#bf8700")
_PORT = ("#ddf4ff", "#54aeff")
_CUT = ("#ffffff", "#8c959f")


def draw(
    model: ModelProto,
    *,
    title: str,
    changed: Collection[int] = (),
    wrong: str | None = None,
    about: Collection[int] | None = None,
) -> str:
    """The graph of ``model`` as an SVG document.

    Args:
        model: Only its structure is used; shapes are taken from its ``value_info``.
        title: Shown above the picture.
        changed: Indices of nodes that the other graph does not have.
        wrong: Name of the value that is wrong, if there is one.
        about: Indices of nodes to draw with their neighbours, ``MAX_NODES`` at most. None for all,
            or, in larger graphs, for the surroundings of ``changed`` and ``wrong``.
    """
    chosen = _choose_nodes(model, changed, wrong)
    if about is not None:
        chosen = _around(model, about, None, 1)
        chosen = (chosen if len(chosen) <= MAX_NODES else sorted(about))[:MAX_NODES]
    boxes, edges = _scene(model, chosen, set(changed), wrong)
    places, routes, size = _laid_out(boxes, edges)
    left_out = len(model.graph.node) - len(chosen)
    words = f"{title} ({left_out} more nodes are left out)" if left_out else title
    marks = [(_CHANGED[1], "rewritten by the pass")] if changed else []
    marks += [(_RED, "first wrong value")] if any(e.wrong for e in edges) else []
    return _document(words, marks, boxes, edges, places, routes, size)


def _around(model: ModelProto, changed: Collection[int], wrong: str | None, far: int) -> list[int]:
    """Nodes at most ``far`` edges away from ``changed`` nodes or from the producer of ``wrong``."""
    nodes = model.graph.node
    maker = {o: i for i, n in enumerate(nodes) for o in n.output if o}
    readers: dict[str, list[int]] = {}
    for i, node in enumerate(nodes):
        for name in node.input:
            readers.setdefault(name, []).append(i)
    found = set(changed)
    if wrong in maker:
        found.add(maker[str(wrong)])
    found = found or {0}
    for _ in range(far):
        near = {maker[n] for i in found for n in nodes[i].input if n in maker}
        near |= {r for i in found for o in nodes[i].output if o for r in readers.get(o, [])}
        found |= near
    return sorted(found)


def _choose_nodes(model: ModelProto, changed: Collection[int], wrong: str | None) -> list[int]:
    everything = list(range(len(model.graph.node)))
    if len(everything) <= MAX_NODES:
        return everything
    for far in range(_AROUND, -1, -1):
        near = _around(model, changed, wrong, far)
        if len(near) <= MAX_NODES:
            return near
    # With many sites, draw those near the wrong value, or else the first ones.
    near = _around(model, (), wrong, 4) if wrong is not None else near
    return near[:MAX_NODES]


# --- what is drawn --------------------------------------------------------------------------------


@dataclass
class _Box:
    """A rectangle with text: a bold headline and lines below.

    ``label`` is the text for the value of the outgoing edges, drawn below the box.
    """

    head: str
    lines: list[str] = field(default_factory=list)
    tip: str = ""
    colours: tuple[str, str] = _PLAIN
    round: bool = False
    dashed: bool = False
    label: tuple[str, ...] = ()
    label_tip: str = ""
    wrong: bool = False

    @property
    def width(self) -> float:
        head = len(self.head) * _SIZE * _WIDE
        return max([head, *(len(t) * _SMALL * _WIDE for t in self.lines), 28.0]) + 2 * _PAD

    @property
    def height(self) -> float:
        return _LEAD * len(self.lines) + _SIZE + (1.4 * _PAD if self.lines else 1.2 * _PAD)

    @property
    def room(self) -> tuple[float, float]:
        """Width and height with the label."""
        wide, high = _label_size(self.label)
        return max(self.width, wide), self.height + high


@dataclass(frozen=True)
class _Edge:
    source: int
    target: int
    lines: tuple[str, ...]
    tip: str
    wrong: bool = False


def _scene(
    model: ModelProto, chosen: Sequence[int], changed: set[int], wrong: str | None
) -> tuple[list[_Box], list[_Edge]]:
    graph = model.graph
    weights = _weights(model)
    types = _types(model)
    shown = [i for i in chosen if not _is_constant(graph.node[i])]
    boxes = [_node_box(graph.node[i], weights, types, i in changed) for i in shown]
    place = {i: at for at, i in enumerate(shown)}
    for i, box in zip(shown, boxes, strict=True):
        output_names = [name for name in graph.node[i].output if name]
        if len(output_names) == 1:
            _mark(box, output_names[0], types, wrong)
    maker = {o: i for i, n in enumerate(graph.node) for o in n.output if o}
    outside: dict[str, int] = {}
    edges: list[_Edge] = []
    labelled: set[str] = set()

    def edge(name: str, source: int, target: int) -> None:
        first = name not in labelled
        labelled.add(name)
        lines = _label(name, types) if first and not boxes[source].label else ()
        if boxes[source].round and not boxes[source].dashed:
            lines = ()  # the box of the input has name and shape already
        edges.append(_Edge(source, target, lines, _tip(name, types), name == wrong))

    def source_of(name: str) -> int:
        if maker.get(name) in place:
            return place[maker[name]]
        if name not in outside:
            outside[name] = len(boxes)
            box = _outer_box(name, name not in maker)
            shape = _shape(name, types)
            if box.dashed:
                _mark(box, name, types, wrong)
            elif shape:
                box.lines.append(_cut(shape, _CHARS))
            boxes.append(box)
        return outside[name]

    for i in shown:
        for name in dict.fromkeys(reads(graph.node[i])):
            if name and name not in weights:
                edge(name, source_of(name), place[i])
    leaving = {n for i, node in enumerate(graph.node) if i not in place for n in node.input}
    outputs = [o.name for o in graph.output]
    for i in shown:
        for name in graph.node[i].output:
            if name in outputs or name in leaving:
                boxes.append(_outer_box(name, name in outputs))
                edge(name, place[i], len(boxes) - 1)
    return boxes, edges


def _mark(box: _Box, name: str, types: Mapping[str, TypeProto], wrong: str | None) -> None:
    """Write the only output value below ``box``."""
    box.label, box.label_tip = _label(name, types), _tip(name, types)
    box.wrong = name == wrong


def _is_constant(node: NodeProto) -> bool:
    return node.op_type == "Constant" and is_onnx(node)


def _weights(model: ModelProto) -> dict[str, TensorProto | None]:
    """Initializers and constants; None for a constant that is not a plain tensor."""
    found: dict[str, TensorProto | None] = {}
    found |= {t.values.name: None for t in model.graph.sparse_initializer}
    found |= {o: None for node in model.graph.node if _is_constant(node) for o in node.output}
    return found | constants_of(model)


def _types(model: ModelProto) -> dict[str, TypeProto]:
    graph = model.graph
    return {v.name: v.type for v in (*graph.value_info, *graph.input, *graph.output)}


def _node_box(
    node: NodeProto,
    weights: Mapping[str, TensorProto | None],
    types: Mapping[str, TypeProto],
    changed: bool,
) -> _Box:
    lines = [f"{a.name} = {_value(a)}" for a in node.attribute]
    lines += [_weight(n, weights[n]) for n in node.input if n in weights]
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 1], f"… {len(lines) - _LINES + 1} more"]
    operator = qualified_name(node.domain, node.op_type, ".")
    name = [node.name] if node.name and node.name not in node.output else []
    return _Box(
        _cut(node.op_type, _CHARS),
        [_cut(line, _CHARS) for line in (*name, *lines)],
        "\n".join([f"{operator} {node.name}", *_full(node, weights)]),
        _CHANGED if changed else _PLAIN,
    )


def _full(node: NodeProto, weights: Mapping[str, TensorProto | None]) -> Iterator[str]:
    yield from (f"{a.name} = {_value(a)}" for a in node.attribute)
    for name in node.input:
        yield _weight(name, weights[name]) if name in weights else name or "(absent)"
    yield f"→ {', '.join(node.output)}"


def _outer_box(name: str, port: bool) -> _Box:
    """The box of a graph input or output; or, dashed, of a value from outside the picture."""
    if port:
        return _Box(_cut(name, _CHARS), tip=name, colours=_PORT, round=True)
    return _Box("…", tip=name, colours=_CUT, round=True, dashed=True)


def _value(attribute: AttributeProto) -> str:
    if attribute.type == AttributeProto.FLOAT:
        return f"{attribute.f:.6g}"
    return attribute_text(attribute, limit=None)


def _weight(name: str, tensor: TensorProto | None) -> str:
    if tensor is None:
        return name
    shown = value_text(tensor, _SHOWN)
    if shown:
        return f"{name} = {shown}"
    return f"{name}: {dtype_name(tensor.data_type)}{list(tensor.dims)}"


def _label(name: str, types: Mapping[str, TypeProto]) -> tuple[str, ...]:
    shape = _shape(name, types)
    return (_cut(name, _EDGE_CHARS), *([_cut(shape, _EDGE_CHARS)] if shape else []))


def _tip(name: str, types: Mapping[str, TypeProto]) -> str:
    return f"{name} {_shape(name, types)}".strip()


def _shape(name: str, types: Mapping[str, TypeProto]) -> str:
    tensor = types[name].tensor_type if name in types else TypeProto.Tensor()
    if not tensor.elem_type:
        return ""
    dims = "×".join(
        str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?"
        for d in tensor.shape.dim
    )
    shown = f"[{dims}]" if tensor.HasField("shape") else ""
    return f"{dtype_name(tensor.elem_type)}{shown}"


def _cut(text: str, limit: int) -> str:
    """``text`` with its middle left out, since both ends of a name are informative."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[-tail:]}"


# --- where it goes --------------------------------------------------------------------------------

Point = tuple[float, float]


def _laid_out(
    boxes: Sequence[_Box], edges: Sequence[_Edge]
) -> tuple[list[Point], list[tuple[list[Point], Point | None]], tuple[float, float, float, float]]:
    """Centres of boxes; points of edges and centres of their labels; and the bounds of it all."""
    import graphlay

    graph: Any = graphlay.Graph()
    for box in boxes:
        graph.node(width=box.room[0], height=box.room[1])
    for each in edges:
        wide, high = _label_size(each.lines)
        label = {"label_size": {"width": wide, "height": high}} if each.lines else {}
        graph.edge(each.source, each.target, **label)
    options = {
        "direction": "topbottom",
        "spacing": {"layer_gap": 30.0, "node_gap": 30.0, "edge_label_margin": 10.0},
        "labels": {"reservation": "always", "placement": "gap_centre"},
        # Edges from one box may be merged only if they are for the same value.
        "routing": {"merge_edges": "none" if any(e.lines for e in edges) else "forks"},
    }
    layout = graphlay.layout(graph, preset="layered", options=options)
    places = [(n["center"]["x"], n["center"]["y"]) for n in layout.nodes]
    routes = []
    for route in layout.edges:
        anchor = route["label_anchor"]
        at = (anchor["x"], anchor["y"]) if anchor else None
        routes.append(([(p["x"], p["y"]) for p in route["points"]], at))
    low, high = layout.bounds["min"], layout.bounds["max"]
    return places, routes, (low["x"], low["y"], high["x"], high["y"])


def _label_size(lines: Sequence[str]) -> Point:
    if not lines:
        return 0.0, 0.0
    return max(len(line) for line in lines) * _SMALL * _WIDE + 8, 13.0 * len(lines) + 4


# --- the document ---------------------------------------------------------------------------------


def _document(
    title: str,
    marks: Sequence[tuple[str, str]],
    boxes: Sequence[_Box],
    edges: Sequence[_Edge],
    places: Sequence[Point],
    routes: Sequence[tuple[list[Point], Point | None]],
    size: tuple[float, float, float, float],
) -> str:
    left, top, right, bottom = _grow(size, edges, routes)
    head = 62.0 if marks else 44.0
    legend = "   ".join(words for _, words in marks)
    longest = max(len(title) * _SIZE, (len(legend) + 4) * _SMALL) * _WIDE
    width = max(right - left, longest) + 48
    height = bottom - top + head + 40
    x, y = (left + right - width) / 2, top - head
    view = f"{x:.1f} {y:.1f} {width:.1f} {height:.1f}"
    root = ET.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": view,
            "width": f"{width:.0f}",
            "height": f"{height:.0f}",
            "font-family": _FONT,
            "role": "img",
        },
    )
    ET.SubElement(root, "title").text = _legal(title)
    backdrop = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": "100%", "height": "100%"}
    ET.SubElement(root, "rect", {**backdrop, "fill": "#ffffff"})
    _text(root, title, x + 24, y + 26, _SIZE, _DIM, anchor="start")
    at = x + 24
    for colour, words in marks:
        spot = {"x": f"{at:.1f}", "y": f"{y + 37:.1f}", "width": "9", "height": "9", "rx": "2"}
        ET.SubElement(root, "rect", {**spot, "fill": colour})
        _text(root, words, at + 14, y + 45.5, _SMALL, _DIM, anchor="start")
        at += 14 + (len(words) + 2) * _SMALL * _WIDE
    for each, (points, _) in zip(edges, routes, strict=True):
        _draw_edge(root, each, points)
    for box, centre in zip(boxes, places, strict=True):
        _draw_box(root, box, centre)
    for box, (u, v) in zip(boxes, places, strict=True):
        high = _label_size(box.label)[1]
        middle = (u, v + (box.room[1] - high) / 2)
        _draw_label(root, box.label, box.label_tip, box.wrong, middle)
    for each, (_, anchor) in zip(edges, routes, strict=True):
        if anchor is not None:
            _draw_label(root, each.lines, each.tip, each.wrong, anchor)
    ET.indent(root)
    return f"{ET.tostring(root, encoding='unicode')}\n"


def _grow(
    size: tuple[float, float, float, float],
    edges: Sequence[_Edge],
    routes: Sequence[tuple[list[Point], Point | None]],
) -> tuple[float, float, float, float]:
    """The bounds with all labels within."""
    left, top, right, bottom = size
    for each, (_, anchor) in zip(edges, routes, strict=True):
        if anchor is not None and each.lines:
            half = _label_size(each.lines)[0] / 2
            left, right = min(left, anchor[0] - half), max(right, anchor[0] + half)
    return left, top, right, bottom


def _draw_edge(root: ET.Element, edge: _Edge, points: Sequence[Point]) -> None:
    colour, width = (_RED, "2.5") if edge.wrong else (_LINE, "1.3")
    group = ET.SubElement(root, "g")
    ET.SubElement(group, "title").text = _legal(edge.tip)
    (x, y), (u, v) = points[-1], points[-2]
    length = math.hypot(x - u, y - v) or 1.0
    dx, dy = (x - u) / length, (y - v) / length
    # End the line where the arrow head begins, so that it does not stick out beyond the tip.
    line = [*points[:-1], (x - 6 * dx, y - 6 * dy)]
    ET.SubElement(
        group,
        "path",
        {"d": _path(line), "fill": "none", "stroke": colour, "stroke-width": width},
    )
    back = (x - 7.5 * dx, y - 7.5 * dy)
    corners = [
        (x, y),
        (back[0] - 3.6 * dy, back[1] + 3.6 * dx),
        (back[0] + 3.6 * dy, back[1] - 3.6 * dx),
    ]
    tip = " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)
    ET.SubElement(group, "polygon", {"points": tip, "fill": colour})


def _path(points: Sequence[Point], radius: float = 7.0) -> str:
    """A polyline with rounded corners."""
    parts = [f"M{points[0][0]:.1f},{points[0][1]:.1f}"]
    for before, at, after in zip(points, points[1:], points[2:], strict=False):
        to, away = _toward(at, before, radius), _toward(at, after, radius)
        parts.append(
            f"L{to[0]:.1f},{to[1]:.1f}Q{at[0]:.1f},{at[1]:.1f} {away[0]:.1f},{away[1]:.1f}"
        )
    parts.append(f"L{points[-1][0]:.1f},{points[-1][1]:.1f}")
    return "".join(parts)


def _toward(start: Point, end: Point, distance: float) -> Point:
    length = math.hypot(end[0] - start[0], end[1] - start[1]) or 1.0
    share = min(distance, length / 2) / length
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share


def _draw_box(root: ET.Element, box: _Box, centre: Point) -> None:
    x, y = centre[0] - box.room[0] / 2, centre[1] - box.room[1] / 2
    fill, stroke = box.colours
    group = ET.SubElement(root, "g")
    ET.SubElement(group, "title").text = _legal(box.tip)
    shape = {
        "x": f"{x:.1f}",
        "y": f"{y:.1f}",
        "width": f"{box.room[0]:.1f}",
        "height": f"{box.height:.1f}",
        "rx": f"{box.height / 2 if box.round else 5:.1f}",
        "fill": fill,
        "stroke": stroke,
        "stroke-width": "1.6" if box.colours == _CHANGED else "1.2",
    }
    if box.dashed:
        shape["stroke-dasharray"] = "3 3"
    ET.SubElement(group, "rect", shape)
    line = y + 0.6 * _PAD + _SIZE * 0.85
    weight = "400" if box.round else "700"
    _text(group, box.head, centre[0], line, _SIZE, _INK, weight=weight)
    for i, words in enumerate(box.lines, 1):
        _text(group, words, centre[0], line + i * _LEAD, _SMALL, _DIM)


def _draw_label(
    root: ET.Element, lines: Sequence[str], tip: str, wrong: bool, centre: Point
) -> None:
    if not lines:
        return
    wide, high = _label_size(lines)
    x, y = centre[0] - wide / 2, centre[1] - high / 2
    group = ET.SubElement(root, "g")
    ET.SubElement(group, "title").text = _legal(tip)
    back = {
        "x": f"{x:.1f}",
        "y": f"{y + 1:.1f}",
        "width": f"{wide:.1f}",
        "height": f"{high - 2:.1f}",
    }
    ET.SubElement(group, "rect", {**back, "fill": "#ffffff", "fill-opacity": "0.9"})
    for i, words in enumerate(lines):
        colour = _RED if wrong else (_DIM if i else _INK)
        _text(group, words, centre[0], y + 11.5 + 13 * i, _SMALL, colour)


def _text(
    parent: ET.Element,
    words: str,
    x: float,
    y: float,
    size: float,
    colour: str,
    *,
    weight: str = "400",
    anchor: str = "middle",
) -> None:
    element = ET.SubElement(
        parent,
        "text",
        {
            "x": f"{x:.1f}",
            "y": f"{y:.1f}",
            "font-size": f"{size:g}",
            "font-weight": weight,
            "text-anchor": anchor,
            "fill": colour,
        },
    )
    element.text = _legal(words)


def _legal(text: str) -> str:
    """``text`` without characters that XML does not allow even when escaped."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
