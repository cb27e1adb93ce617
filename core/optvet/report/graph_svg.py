"""A graph as a self-contained SVG picture, without scripts or fonts; names are escaped.

Operators are boxes from top to bottom, with their attributes and weights; edges have the name of
the value and its shape. Rewritten nodes are amber, the first wrong value is red. The layout is made
by graphlay, a layered layout (Sugiyama, Tagawa and Toda 1981).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from onnx import ModelProto

from optvet.report.graph_scene import (
    CHANGED,
    CHARACTER_WIDTH,
    LINE_HEIGHT,
    PADDING,
    SMALL_SIZE,
    TEXT_SIZE,
    Box,
    Edge,
    Point,
    label_size,
    scene_of,
)

MAX_NODES = 60
"""Of larger graphs only the surroundings of rewritten nodes are drawn."""
_AROUND = 2
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

_INK, _DIM, _LINE, _RED = "#1f2328", "#59636e", "#8c959f", "#cf222e"


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
    boxes, edges = scene_of(model, chosen, set(changed), wrong)
    places, routes, size = _laid_out(boxes, edges)
    left_out = len(model.graph.node) - len(chosen)
    words = f"{title} ({left_out} more nodes are left out)" if left_out else title
    marks = [(CHANGED[1], "rewritten by the pass")] if changed else []
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


# --- where it goes --------------------------------------------------------------------------------


def _laid_out(
    boxes: Sequence[Box], edges: Sequence[Edge]
) -> tuple[list[Point], list[tuple[list[Point], Point | None]], tuple[float, float, float, float]]:
    """Centres of boxes; points of edges and centres of their labels; and the bounds of it all."""
    import graphlay

    graph: Any = graphlay.Graph()
    for box in boxes:
        graph.node(width=box.room[0], height=box.room[1])
    for each in edges:
        wide, high = label_size(each.lines)
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


# --- the document ---------------------------------------------------------------------------------


def _document(
    title: str,
    marks: Sequence[tuple[str, str]],
    boxes: Sequence[Box],
    edges: Sequence[Edge],
    places: Sequence[Point],
    routes: Sequence[tuple[list[Point], Point | None]],
    size: tuple[float, float, float, float],
) -> str:
    left, top, right, bottom = _grow(size, edges, routes)
    head = 62.0 if marks else 44.0
    legend = "   ".join(words for _, words in marks)
    longest = max(len(title) * TEXT_SIZE, (len(legend) + 4) * SMALL_SIZE) * CHARACTER_WIDTH
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
    _text(root, title, x + 24, y + 26, TEXT_SIZE, _DIM, anchor="start")
    at = x + 24
    for colour, words in marks:
        spot = {"x": f"{at:.1f}", "y": f"{y + 37:.1f}", "width": "9", "height": "9", "rx": "2"}
        ET.SubElement(root, "rect", {**spot, "fill": colour})
        _text(root, words, at + 14, y + 45.5, SMALL_SIZE, _DIM, anchor="start")
        at += 14 + (len(words) + 2) * SMALL_SIZE * CHARACTER_WIDTH
    for each, (points, _) in zip(edges, routes, strict=True):
        _draw_edge(root, each, points)
    for box, centre in zip(boxes, places, strict=True):
        _draw_box(root, box, centre)
    for box, (u, v) in zip(boxes, places, strict=True):
        high = label_size(box.label)[1]
        middle = (u, v + (box.room[1] - high) / 2)
        _draw_label(root, box.label, box.label_tip, box.wrong, middle)
    for each, (_, anchor) in zip(edges, routes, strict=True):
        if anchor is not None:
            _draw_label(root, each.lines, each.tip, each.wrong, anchor)
    ET.indent(root)
    return f"{ET.tostring(root, encoding='unicode')}\n"


def _grow(
    size: tuple[float, float, float, float],
    edges: Sequence[Edge],
    routes: Sequence[tuple[list[Point], Point | None]],
) -> tuple[float, float, float, float]:
    """The bounds with all labels within."""
    left, top, right, bottom = size
    for each, (_, anchor) in zip(edges, routes, strict=True):
        if anchor is not None and each.lines:
            half = label_size(each.lines)[0] / 2
            left, right = min(left, anchor[0] - half), max(right, anchor[0] + half)
    return left, top, right, bottom


def _draw_edge(root: ET.Element, edge: Edge, points: Sequence[Point]) -> None:
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


def _draw_box(root: ET.Element, box: Box, centre: Point) -> None:
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
        "stroke-width": "1.6" if box.colours == CHANGED else "1.2",
    }
    if box.dashed:
        shape["stroke-dasharray"] = "3 3"
    ET.SubElement(group, "rect", shape)
    line = y + 0.6 * PADDING + TEXT_SIZE * 0.85
    weight = "400" if box.round else "700"
    _text(group, box.head, centre[0], line, TEXT_SIZE, _INK, weight=weight)
    for i, words in enumerate(box.lines, 1):
        _text(group, words, centre[0], line + i * LINE_HEIGHT, SMALL_SIZE, _DIM)


def _draw_label(
    root: ET.Element, lines: Sequence[str], tip: str, wrong: bool, centre: Point
) -> None:
    if not lines:
        return
    wide, high = label_size(lines)
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
        _text(group, words, centre[0], y + 11.5 + 13 * i, SMALL_SIZE, colour)


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
