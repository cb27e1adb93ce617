"""Takes frozen graphs apart: any operators of one, with what they were given."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from optvet.plugin import Artifact, Feeds, InputError, PartScript, SourceOperator
from optvet_tensorflow.frozen import Frozen, GraphSession
from optvet_tensorflow.program import program_of, tensorflow

_SOURCE = '''\
"""A part of a graph of TensorFlow, and what it was called with."""

from pathlib import Path

import numpy as np
import tensorflow as tf

HERE = Path(__file__).resolve().parent
INPUTS = {inputs}
OUTPUTS = {outputs}
with np.load(HERE / "inputs.npz") as kept:
    example_inputs = tuple(kept[f"arr_{{i}}"] for i in range(len(kept.files)))


def part():
    graph = tf.compat.v1.GraphDef.FromString((HERE / "part.pb").read_bytes())
    whole = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph, name=""), [])
    tensor = whole.graph.get_tensor_by_name
    function = whole.prune([tensor(n) for n in INPUTS], [tensor(n) for n in OUTPUTS])
    return lambda *values: function(*values)
'''
_EXPECTED = """\
model, given = part(), list(example_inputs)
returned = model(*map(tf.constant, given))
expected = [np.asarray(value) for value in tf.nest.flatten(returned)]
specs = [tf.TensorSpec(v.shape, v.dtype, name=f"input_{i}") for i, v in enumerate(given)]
function = tf.function(lambda *values: model(*values), input_signature=specs)"""
_IMPORTS = "import numpy as np\nimport tensorflow as tf\nimport tf2onnx.convert"
_NEEDS = ("tensorflow", "tf2onnx", "onnx", "onnxruntime or else onnx's own evaluator")
_GIVEN = frozenset({"Const", "Placeholder", "NoOp"})
"""What is no operator of a part: it comes along, is an input, or does nothing."""
_HIDDEN = frozenset({"resource", "variant", "string"})
"""Types of tensors that cannot be inputs."""


@dataclass(frozen=True)
class _Opened:
    """A graph that is ready to be run, and its operators."""

    session: GraphSession
    library: Any
    operators: Sequence[Any]


_OPENED: dict[tuple[object, ...], _Opened] = {}
"""The last one: many parts of one source are written, and freezing it takes the longest."""


def _opened(artifact: Artifact) -> _Opened:
    key = (artifact.path, artifact.handle)
    if key not in _OPENED:
        _OPENED.clear()
        frozen = Frozen.made_from(program_of(artifact))
        session = frozen.loaded()
        listed = [op for op in session.graph.get_operations() if op.type not in _GIVEN]
        _OPENED[key] = _Opened(session, frozen.graph, listed)
    return _OPENED[key]


def graph_operators(artifact: Artifact) -> list[SourceOperator]:
    """The operators of the graph of a function; of a Keras model none, which has layers."""
    if program_of(artifact).is_keras:
        return []
    operators = _opened(artifact).operators
    places = {op.name: i for i, op in enumerate(operators)}
    return [
        SourceOperator(
            op.type,
            "",
            tuple(dict.fromkeys(places[t.op.name] for t in op.inputs if t.op.name in places)),
        )
        for op in operators
    ]


def write_graph(artifact: Artifact, feeds: Feeds, kept: Collection[int], folder: Path) -> str:
    """Write operators of the graph of a function as ``part.py``, with the graph beside it.

    Raises:
        InputError: They read or give what cannot be an input or an output.
    """
    tf = tensorflow()
    opened = _opened(artifact)
    inside = [op for i, op in enumerate(opened.operators) if i in kept]
    names = {op.name for op in inside}
    graph = tf.compat.v1.GraphDef()
    graph.CopyFrom(opened.library)
    del graph.node[:]
    read = {t.name: t for op in inside for t in op.inputs if t.op.name not in names}
    given = {name: t for name, t in read.items() if t.op.type != "Const"}
    for tensor in read.values():
        if tensor.op.type == "Const":
            graph.node.append(_alone(tensor.op, names, {}))
    values = _values(opened.session, feeds, given)
    holders = {name: f"part_input_{i}" for i, name in enumerate(given)}
    for name, value in values.items():
        node = graph.node.add(name=holders[name], op="Placeholder")
        node.attr["dtype"].type = given[name].dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(tf.TensorShape(value.shape).as_proto())
    for op in inside:
        graph.node.append(_alone(op, names, holders))
    outputs = _outputs(opened, inside)
    (folder / "part.pb").write_bytes(graph.SerializeToString())
    np.savez(folder / "inputs.npz", *values.values())
    listing = [f"{holder}:0" for holder in holders.values()]
    (folder / "part.py").write_text(_SOURCE.format(inputs=listing, outputs=outputs))
    return "part.py"


def graph_script_for(converter: str, options: Mapping[str, object]) -> PartScript | None:
    """A script that converts by tf2onnx itself; None for other converters."""
    if converter != "tf2onnx":
        return None
    opset = f", opset={options['opset']}" if options.get("opset") else ""
    call = f"tf2onnx.convert.from_function(function, specs{opset}, output_path=str(target))"
    return PartScript("tf2onnx", _NEEDS, _IMPORTS, _EXPECTED, call)


def _alone(op: Any, kept: Collection[str], holders: Mapping[str, str]) -> Any:
    """The node of an operator that waits for others in the part alone."""
    node = tensorflow().compat.v1.NodeDef()
    node.CopyFrom(op.node_def)
    del node.input[:]
    node.input.extend(holders.get(t.name, t.name) for t in op.inputs)
    node.input.extend(f"^{c.name}" for c in op.control_inputs if c.name in kept)
    return node


def _values(session: GraphSession, feeds: Feeds, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    if not given:
        raise InputError("these operators read no input")
    for tensor in given.values():
        _refuse_hidden(tensor)
    values = session.fetched(feeds, list(given))
    return {name: np.asarray(v) for name, v in zip(given, values, strict=True)}


def _outputs(opened: _Opened, inside: Sequence[Any]) -> list[str]:
    """What others read of these operators, in the order of the graph's outputs first."""
    made = {t.name: t for op in inside for t in op.outputs}
    names = {op.name for op in inside}
    outside = [op for op in opened.operators if op.name not in names]
    wanted = [*opened.session.outputs, *(t.name for op in outside for t in op.inputs)]
    found = [name for name in dict.fromkeys(wanted) if name in made]
    for name in found:
        _refuse_hidden(made[name])
    if not found:
        raise InputError("nothing reads what these operators give")
    return found


def _refuse_hidden(tensor: Any) -> None:
    if tensor.dtype.name in _HIDDEN:
        raise InputError(f"a tensor of {tensor.dtype.name} cannot be an input or an output")
