"""Models and arrays as Python code that makes them, bit for bit."""

from __future__ import annotations

import base64
import re
import textwrap
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnx.parser
from google.protobuf.message import Message  # type: ignore[import-untyped]  # ships no types
from onnx import GraphProto, ModelProto, TensorProto, numpy_helper

_WIDTH = 96


def model_code(model: ModelProto) -> str:
    """Statements that make ``model``: from ONNX text where that holds all of it, else from bytes.

    ``base64`` and ``onnx`` with ``onnx.parser`` have to be imported where they are named.
    """
    text = _text_of(model)
    if text is not None:
        return f'model = onnx.parser.parse_model("""\n{text}\n""")'
    return code_with_bytes(model)


def code_of_bytes(data: bytes) -> str:
    """``model_code`` of a serialized model. Called in a worker."""
    return model_code(onnx.load_from_string(data))


def code_with_bytes(model: ModelProto) -> str:
    """Statements that make ``model`` from its bytes."""
    data = base64.b64encode(model.SerializeToString(deterministic=True)).decode()
    lines = "\n".join(textwrap.wrap(data, _WIDTH))
    call = f'model = onnx.load_from_string(base64.b64decode("""\n{lines}\n"""))'
    return f"# ONNX text cannot express this model.\n{call}"


def _text_of(model: ModelProto) -> str | None:
    """ONNX text that is parsed to the same model, and may stand in a string; else None."""
    try:
        text = str(onnx.printer.to_text(model)).strip()
    except Exception:  # of any kind: there are models that the printer does not know
        return None
    if '"""' in text or "\\" in text:
        return None
    return next((t for t in (_compact(text), text) if _is_of(t, model)), None)


def _is_of(text: str, model: ModelProto) -> bool:
    try:
        return _plain(onnx.parser.parse_model(text)) == _plain(model)
    except Exception:  # of any kind: the printer writes what the parser does not know
        return False


def _compact(text: str) -> str:
    """ONNX text with the model's header on one line, and the graph's, if it fits."""
    text = re.sub(r"\A<\s*(.*?)\s*>\n", _header, text, count=1, flags=re.DOTALL)
    text = re.sub(r"^\w+ \(.*?\{$", _header_of_graph, text, count=1, flags=re.DOTALL | re.MULTILINE)
    return "\n".join(line.rstrip() for line in text.split("\n"))


def _header(match: re.Match[str]) -> str:
    return f"<{' '.join(match[1].split())}>\n"


def _header_of_graph(match: re.Match[str]) -> str:
    joined = " ".join(match[0].split())
    return joined if len(joined) <= _WIDTH else match[0]


def _plain(model: ModelProto) -> bytes:
    """``model`` serialized, with all that may be stored in several ways stored in one."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for tensor in _tensors(copy.graph):
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    _clear_empty_texts(copy)
    return bytes(copy.SerializeToString(deterministic=True))


def _clear_empty_texts(message: Message) -> None:
    """Unset texts that are empty, such as domains: both mean that there is none."""
    for field, value in message.ListFields():
        if isinstance(value, Message):
            _clear_empty_texts(value)
        elif field.type == field.TYPE_MESSAGE:
            for part in value:
                _clear_empty_texts(part)
        elif value == "" and field.containing_oneof is None:
            message.ClearField(field.name)


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _tensors(inner)


def arrays_code(arrays: Mapping[str, np.ndarray], before: str = "") -> str:
    """An expression that makes ``arrays`` by name; ``np`` has to be imported.

    It is on one line if there is room for it behind ``before``.

    Raises:
        ValueError: One is of a type that numpy alone does not have.
    """
    items = [f"{name_code(name)}: {array_code(value)}" for name, value in arrays.items()]
    joined, inside = f"{{{', '.join(items)}}}", ",\n".join(items)
    if "\n" not in joined and len(before) + len(joined) <= _WIDTH:
        return joined
    return f"{{\n{textwrap.indent(inside, '    ')},\n}}"


def name_code(name: str) -> str:
    """A literal of ``name``, in double quotes where that needs no other escapes."""
    literal = repr(name)
    return literal if '"' in literal else f'"{literal[1:-1]}"'


def array_code(array: np.ndarray) -> str:
    """An expression that makes ``array``; see ``arrays_code``."""
    kind = array.dtype.kind
    if kind not in "OU" and not (kind in "fiubc" and hasattr(np, array.dtype.name)):
        raise ValueError(f"arrays of {array.dtype} cannot be written in numpy's terms")
    dtype = {"b": "bool", "O": "object", "U": "object"}.get(kind, f"np.{array.dtype.name}")
    if array.size == 0:
        return f"np.zeros({array.shape}, {dtype})"
    if kind not in "OU" and array.size > 1 and len({v.tobytes() for v in array.ravel()}) == 1:
        return f"np.full({array.shape}, {_number(array.ravel()[0])}, {dtype})"
    text = f"np.array({_nest(array)}, {dtype})"
    if array.dtype.names or len(text) < _WIDTH:
        return text
    return "\n".join(textwrap.wrap(text, _WIDTH, subsequent_indent=" " * 4, break_long_words=False))


def _nest(array: object) -> str:
    if not isinstance(array, np.ndarray):  # an element of a row
        return _number(array)
    if array.ndim == 0:
        return _number(array[()])
    return f"[{', '.join(_nest(part) for part in array)}]"


def _number(value: object) -> str:
    """The shortest literal that is read as ``value`` again."""
    if isinstance(value, np.floating):
        if np.isnan(value):
            return "np.nan"
        if np.isinf(value):
            return "np.inf" if value > 0 else "-np.inf"
        return str(value)
    if isinstance(value, np.complexfloating):
        return f"complex({_number(value.real)}, {_number(value.imag)})"  # a literal loses -0.0
    return repr(value.item()) if isinstance(value, np.generic) else repr(value)
