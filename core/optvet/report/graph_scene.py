"""What a picture of a graph shows: boxes with their texts, and the edges between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, TypeProto

from optvet.graph.text import attribute_text, value_text
from optvet.graph.types import dtype_name
from optvet.graph.walk import is_onnx, qualified_name, reads
from optvet.graph.weights import constants_of

_LINES = 6
_CHARS = 34
_EDGE_CHARS = 28
_SHOWN = 6
TEXT_SIZE, SMALL_SIZE = 13.0, 11.0
CHARACTER_WIDTH = 0.602
"""Width of a character of a monospaced font, in units of its size."""
PADDING, LINE_HEIGHT = 10.0, 15.0
_PLAIN = ("#f6f8fa", "#8c959f")
CHANGED = ("#fff4d1", "#bf8700")
_PORT = ("#ddf4ff", "#54aeff")
_CUT = ("#ffffff", "#8c959f")


@dataclass
class Box:
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
        """Width without the label."""
        head = len(self.head) * TEXT_SIZE * CHARACTER_WIDTH
        return (
            max([head, *(len(t) * SMALL_SIZE * CHARACTER_WIDTH for t in self.lines), 28.0])
            + 2 * PADDING
        )

    @property
    def height(self) -> float:
        """Height without the label."""
        return (
            LINE_HEIGHT * len(self.lines)
            + TEXT_SIZE
            + (1.4 * PADDING if self.lines else 1.2 * PADDING)
        )

    @property
    def room(self) -> tuple[float, float]:
        """Width and height with the label."""
        wide, high = label_size(self.label)
        return max(self.width, wide), self.height + high


@dataclass(frozen=True)
class Edge:
    """A value between two boxes, by their indices."""

    source: int
    target: int
    lines: tuple[str, ...]
    tip: str
    wrong: bool = False


def scene_of(
    model: ModelProto, chosen: Sequence[int], changed: set[int], wrong: str | None
) -> tuple[list[Box], list[Edge]]:
    """The boxes and edges of the nodes with the indices ``chosen``."""
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
    edges: list[Edge] = []
    labelled: set[str] = set()

    def edge(name: str, source: int, target: int) -> None:
        first = name not in labelled
        labelled.add(name)
        lines = _label(name, types) if first and not boxes[source].label else ()
        if boxes[source].round and not boxes[source].dashed:
            lines = ()  # the box of the input has name and shape already
        edges.append(Edge(source, target, lines, _tip(name, types), name == wrong))

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


def _mark(box: Box, name: str, types: Mapping[str, TypeProto], wrong: str | None) -> None:
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
) -> Box:
    lines = [f"{a.name} = {_value(a)}" for a in node.attribute]
    lines += [_weight(n, weights[n]) for n in node.input if n in weights]
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 1], f"… {len(lines) - _LINES + 1} more"]
    operator = qualified_name(node.domain, node.op_type, ".")
    name = [node.name] if node.name and node.name not in node.output else []
    return Box(
        _cut(node.op_type, _CHARS),
        [_cut(line, _CHARS) for line in (*name, *lines)],
        "\n".join([f"{operator} {node.name}", *_full(node, weights)]),
        CHANGED if changed else _PLAIN,
    )


def _full(node: NodeProto, weights: Mapping[str, TensorProto | None]) -> Iterator[str]:
    yield from (f"{a.name} = {_value(a)}" for a in node.attribute)
    for name in node.input:
        yield _weight(name, weights[name]) if name in weights else name or "(absent)"
    yield f"→ {', '.join(node.output)}"


def _outer_box(name: str, port: bool) -> Box:
    """The box of a graph input or output; or, dashed, of a value from outside the picture."""
    if port:
        return Box(_cut(name, _CHARS), tip=name, colours=_PORT, round=True)
    return Box("…", tip=name, colours=_CUT, round=True, dashed=True)


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


Point = tuple[float, float]


def label_size(lines: Sequence[str]) -> Point:
    """Width and height of a label; 0 where it has no lines."""
    if not lines:
        return 0.0, 0.0
    return max(len(line) for line in lines) * SMALL_SIZE * CHARACTER_WIDTH + 8, 13.0 * len(
        lines
    ) + 4
