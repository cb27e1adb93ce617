"""Values and types of all tensors inside a model. Called in workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx
from onnx import ModelProto, TypeProto, ValueInfoProto, helper

from optvet.engine.standard.rules import wanted_values
from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.graph.types import element_types, inferred_types
from optvet.graph.unfold import Unfolded, has_control_flow, unfold
from optvet.graph.walk import LOOPS, bodies_of, local_names
from optvet.spec.runtime_protocols import Session
from optvet.spec.types import Artifact


def record_values(
    data: bytes, feeds: Mapping[str, np.ndarray], config: RuntimeConfig
) -> dict[str, np.ndarray]:
    """All array values of a model in one run, by name. Called in a worker."""
    enter("load")
    proto = onnx.load_from_string(data)
    try:
        values = _run_with_all(proto, None, feeds, config)
    except Exception:  # the runtime cannot return some value: ask for plain tensors only
        known = inferred_types(proto, strict=False) or {}
        plain = {n for n, k in known.items() if k.WhichOneof("value") == "tensor_type"}
        values = _run_with_all(proto, plain, feeds, config)
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def _run_with_all(
    proto: ModelProto, only: set[str] | None, feeds: Mapping[str, np.ndarray], config: RuntimeConfig
) -> dict[str, np.ndarray]:
    names = {o for node in proto.graph.node for o in node.output if o}
    session = session_with(proto, names if only is None else names & only, config)
    return session.run(feeds)


def session_with(proto: ModelProto, names: Collection[str], config: RuntimeConfig) -> Session:
    """A session of the model whose outputs are also the values ``names``. Called in a worker."""
    model = ModelProto()
    model.CopyFrom(proto)
    graph = model.graph
    outputs = {o.name: o for o in proto.graph.output}
    del graph.output[:]
    computed = [o for node in graph.node for o in node.output if o]
    for name in dict.fromkeys((*computed, *outputs)):
        # Without a type: the declared type of an output may be wrong.
        if name in names or name in outputs:
            graph.output.append(ValueInfoProto(name=name))
    artifact = Artifact("onnx", model.SerializeToString())
    return config.runtime.load(artifact, config.options)


def unfold_run(
    model: ModelProto, feeds: Mapping[str, np.ndarray], config: RuntimeConfig, other: str = ""
) -> Unfolded:
    """The model with the branches and iterations of one run as plain nodes. Called in a worker.

    The ``If`` that gives ``other`` takes its other branch. A model that does not run, or does not
    run when it is flat, stays as it is.
    """
    if not has_control_flow(model):
        return Unfolded(model)

    def evaluate(asked: ModelProto) -> Mapping[str, np.ndarray]:
        artifact = Artifact("onnx", asked.SerializeToString())
        found = config.runtime.load(artifact, config.options).run(feeds)
        return {name: np.asarray(value) for name, value in found.items()}

    enter("load")
    try:
        flat = unfold(model, evaluate, other)
        evaluate(flat.model)
    except Exception:  # whatever a runtime raises
        return Unfolded(model)
    return flat


def record_in_loops(
    model: ModelProto, feeds: Mapping[str, np.ndarray], config: RuntimeConfig
) -> dict[str, np.ndarray]:
    """Values in the bodies of Loops and Scans of the graph; the first axis is the iteration.

    Those alone on which a rule about what the standard defines may depend. Called in a worker.
    """
    if not any(node.op_type in LOOPS for node in model.graph.node):
        return {}
    enter("load")
    shown = ModelProto()
    shown.CopyFrom(model)
    del shown.graph.output[:]
    types, names = element_types(model), dict[str, str]()
    for number, node in enumerate(shown.graph.node):
        for body in bodies_of(node) if node.op_type in LOOPS else ():
            wanted = {name for inner in body.node for name in wanted_values(inner, types)}
            for place, name in enumerate(sorted(wanted & local_names(body))):
                output = f"optvet_loop_{number}_{place}"
                names[output] = name
                body.node.append(helper.make_node("Identity", [name], [f"{output}_in"]))
                body.output.append(ValueInfoProto(name=f"{output}_in"))
                node.output.append(output)
                for attribute in node.attribute:
                    if attribute.name in ("scan_output_axes", "scan_output_directions"):
                        attribute.ints.append(0)
                shown.graph.output.append(ValueInfoProto(name=output))
    if not names:
        return {}
    artifact = Artifact("onnx", shown.SerializeToString())
    values = config.runtime.load(artifact, config.options).run(feeds)
    return {names[output]: np.asarray(value) for output, value in values.items()}


def inferred_types_of(model: ModelProto, strict: bool) -> dict[str, TypeProto] | None:
    """``inferred_types``. Called in a worker: shape inference may crash."""
    return inferred_types(model, strict=strict)


def infer(data: bytes, partial: bool = False) -> dict[str, bytes]:
    """Serialized types of inner values. Called in a worker: shape inference may crash.

    With ``partial``, also of values in nested graphs and of unknown rank.
    """
    enter("check")
    proto = onnx.load_from_string(data)
    types = (
        inferred_types(proto, partial=partial)
        or inferred_types(proto, strict=False, partial=partial)
        or {}
    )
    return {name: bytes(kind.SerializeToString()) for name, kind in types.items()}
