"""Frozen graphs: what TensorFlow's functions become before they are converted.

A graph is kept as a ``MetaGraphDef`` whose signature names its inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from optvet.plugin import (
    KEPT_BITS,
    Artifact,
    SourceInside,
    SourceOperand,
    SourceValue,
    may_be_rounded,
)
from optvet_tensorflow.alike import alike_in_onnx
from optvet_tensorflow.program import TensorFlowProgram, tensorflow

GRAPH = "tf-graph"
_SIGNATURE = "serving_default"
_HIDDEN = frozenset({"resource", "variant", "string"})
_KEPT = frozenset({"Const", "Placeholder", "Identity", "NoOp", "RandomUniform"})
"""Operators whose results are exact."""


@dataclass(frozen=True)
class Frozen:
    """A graph without variables.

    Attributes:
        graph: The ``GraphDef``.
        inputs: Its tensors that are fed, by the names of the source's inputs.
        outputs: Its tensors that are fetched, in order.
    """

    graph: Any
    inputs: Mapping[str, str]
    outputs: Sequence[str]

    def artifact(self) -> Artifact:
        """The graph with its signature, as bytes."""
        tf = tensorflow()
        meta = tf.compat.v1.MetaGraphDef()
        meta.graph_def.CopyFrom(self.graph)
        signature = meta.signature_def[_SIGNATURE]
        for name, tensor in self.inputs.items():
            signature.inputs[name].name = tensor
        for i, tensor in enumerate(self.outputs):
            signature.outputs[f"output_{i:06}"].name = tensor
        return Artifact(GRAPH, meta.SerializeToString())

    @classmethod
    def of(cls, artifact: Artifact) -> Frozen:
        """The graph that ``artifact`` gave."""
        meta = tensorflow().compat.v1.MetaGraphDef.FromString(artifact.data)
        signature = meta.signature_def[_SIGNATURE]
        inputs = {name: info.name for name, info in signature.inputs.items()}
        outputs = [info.name for _, info in sorted(signature.outputs.items())]
        return cls(meta.graph_def, inputs, outputs)

    @classmethod
    def made_from(cls, program: TensorFlowProgram) -> Frozen:
        """The graph of a model, frozen by TensorFlow itself."""
        tensorflow()
        from tensorflow.python.framework import convert_to_constants

        concrete = program.function.get_concrete_function()
        frozen = convert_to_constants.convert_variables_to_constants_v2(
            concrete, lower_control_flow=False
        )
        names = [spec.name for spec in program.specs]
        fed = dict(zip(names, [t.name for t in frozen.inputs], strict=False))
        return cls(frozen.graph.as_graph_def(), fed, [t.name for t in frozen.outputs])

    def loaded(self) -> GraphSession:
        """The graph, ready to be run."""
        graph = tensorflow().Graph()
        with graph.as_default():
            tensorflow().import_graph_def(self.graph, name="")
        return GraphSession(graph, self.inputs, self.outputs)

    def moved(self, seed: int, inside: bool) -> GraphSession:
        """The graph with its weights moved by a roundoff, or with every result moved by its own."""
        plain = self.loaded()
        mover = _noisy(seed) if inside else _weights_moved(seed)
        return _rebuilt(plain, mover)


class GraphSession:
    """A graph that is run."""

    def __init__(self, graph: Any, inputs: Mapping[str, str], outputs: Sequence[str]) -> None:
        self.graph, self.inputs, self.outputs = graph, inputs, outputs
        self._session = tensorflow().compat.v1.Session(graph=graph)

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs in order, with numbers for names."""
        if unknown := sorted(self.inputs.keys() - feeds.keys()):
            raise ValueError(
                f"the graph asks for {', '.join(unknown)}, which the source does not have"
            )
        values = self.fetched(feeds, list(self.outputs))
        return {f"output_{i}": np.asarray(v) for i, v in enumerate(values)}

    def fetched(self, feeds: Mapping[str, np.ndarray], names: Sequence[str]) -> list[Any]:
        """The values of tensors."""
        fed = {self.inputs[name]: value for name, value in feeds.items() if name in self.inputs}
        return list(self._session.run(list(names), fed))


Mover = Callable[[Any, Sequence[Any]], Sequence[Any]]


def _rebuilt(session: GraphSession, mover: Mover) -> GraphSession:
    """The graph built anew, with the results of each operator as ``mover`` changes them."""
    tf = tensorflow()
    old, new = session.graph, tf.Graph()
    bare = old.as_graph_def()
    del bare.node[:]
    tensors: dict[str, Any] = {}
    operators: dict[str, Any] = {}
    with new.as_default():
        tf.import_graph_def(bare, name="")  # Its functions.
        for op in old.get_operations():
            waited = [operators[c.name] for c in op.control_inputs if c.name in operators]
            with new.control_dependencies(waited):
                operation = new._create_op_internal(
                    op.type,
                    [tensors[t.name] for t in op.inputs],
                    [t.dtype for t in op.outputs],
                    name=op.name,
                    attrs=dict(op.node_def.attr),
                    op_def=op.op_def,
                )
            operators[op.name] = operation
            for before, after in zip(op.outputs, mover(op, operation.outputs), strict=True):
                tensors[before.name] = after
    inputs = {name: tensors[t].name for name, t in session.inputs.items() if t in tensors}
    return GraphSession(new, inputs, [tensors[t].name for t in session.outputs])


def _is_float(tensor: Any) -> bool:
    return bool(tensor.dtype.name in ("float32", "float64"))


def _weights_moved(seed: int) -> Mover:
    tf, rng = tensorflow(), np.random.default_rng(seed)

    def move(op: Any, outputs: Sequence[Any]) -> Sequence[Any]:
        if op.type != "Const" or not _is_float(op.outputs[0]) or not op.outputs[0].shape.rank:
            return outputs
        value = tf.make_ndarray(op.node_def.attr["value"].tensor)
        step = value.dtype.type(np.finfo(value.dtype).eps)
        sign = rng.integers(-1, 2, value.shape) * may_be_rounded(value)
        moved = value * (1 + step * sign.astype(value.dtype))
        return [tf.constant(moved.astype(value.dtype))]

    return move


def _noisy(seed: int) -> Mover:
    tf = tensorflow()

    def move(op: Any, outputs: Sequence[Any]) -> Sequence[Any]:
        if op.type in _KEPT:
            return outputs
        return [_move(t, tf, seed + 1) if _is_float(t) else t for t in outputs]

    return move


def _move(tensor: Any, tf: Any, seed: int) -> Any:
    """A tensor, each element that may be rounded moved up or down by a roundoff."""
    step = float(np.finfo(tensor.dtype.as_numpy_dtype).eps)
    sign = tf.where(tf.random.uniform(tf.shape(tensor), seed=seed) < 0.5, -step, step)
    wide = tf.cast(tensor, tf.float64)
    scaled = wide * (2.0 ** (53 - KEPT_BITS[tensor.dtype.name]) + 1)
    rounded = tf.not_equal(scaled - (scaled - wide), wide)  # as optvet.may_be_rounded
    return tf.where(rounded, tensor * (1 + tf.cast(sign, tensor.dtype)), tensor)


def values_of(
    frozen: Frozen, feeds: Mapping[str, np.ndarray], seed: int | None = None
) -> SourceInside:
    """What every operator of the graph computes."""
    plain = frozen.loaded()
    session = plain if seed is None else _rebuilt(plain, _noisy(seed))
    shown = [
        t
        for op in plain.graph.get_operations()
        for t in op.outputs
        if t.dtype.name not in _HIDDEN and op.type != "Placeholder"
    ]
    # Rebuilt operators keep their names, and what they compute comes before it is moved.
    values = session.fetched(feeds, [t.name for t in shown])
    places = {t.name: i for i, t in enumerate(shown)}
    fed = set(frozen.inputs.values())
    varies: dict[str, bool] = {}
    for op in plain.graph.get_operations():
        depends = any(varies.get(t.name, False) for t in op.inputs)
        for t in op.outputs:
            varies[t.name] = depends or t.name in fed or op.type == "Placeholder"
    names = {tensor: name for name, tensor in frozen.inputs.items()}
    every = tuple(
        SourceValue(
            t.op.type,
            np.asarray(value),
            tuple(places[i.name] for i in t.op.inputs if i.name in places),
            constant=not varies[t.name],
            module=t.op.name.rpartition("/")[0],
            alike=alike[0],
            attributes=alike[1],
            inputs=tuple(str(i) for i in range(len(t.op.inputs))) if alike[0] else (),
            operands=tuple(
                SourceOperand(str(i), places.get(read.name), names.get(read.name, ""))
                for i, read in enumerate(t.op.inputs)
            ),
            settings=_settings(t.op),
        )
        for t, value in zip(shown, values, strict=True)
        for alike in (alike_in_onnx(t.op),)
    )
    outputs = tuple(places.get(name) for name in frozen.outputs)
    return SourceInside(every, outputs)


def _settings(op: Any) -> dict[str, object]:
    """Attributes of an operator that are not the default ones, but for types."""
    found = {}
    for attribute in op.op_def.attr:
        now = op.node_def.attr[attribute.name]
        if attribute.type in _PLAIN and now != attribute.default_value:
            found[attribute.name] = op.get_attr(attribute.name)
    return found


_PLAIN = frozenset({"string", "bool", "int", "float", "list(int)", "list(float)"})
