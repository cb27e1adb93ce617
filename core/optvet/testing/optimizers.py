"""A planted optimizer: passes in plain Python with known faults and culprits.

Its passes rewrite certain patterns, so most of them do not change most models, as real ones::

    planted = Planted(default=("keep_00", "drop_relu", "keep_01"))
    plugins.register("optimizer", planted)

Passes that kill their process do so when applied: call them through the sandbox only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, numpy_helper
from pydantic import BaseModel, ConfigDict

from optvet.graph.walk import nodes_of
from optvet.spec.types import Artifact, InterfaceChange, Pass, Traits


def raise_error(text: str) -> NoReturn:
    """Raise a ValueError that says ``text``."""
    raise ValueError(text)


def abort(message: str = "") -> NoReturn:
    """Write ``message`` to file descriptor 2, as native code does, and abort."""
    os.write(2, message.encode())
    os.abort()


def segfault() -> None:
    """Read address 0."""
    ctypes.string_at(0)


def hog_memory(size_bytes: int = 1 << 62) -> int:
    """Allocate and fill blocks until ``size_bytes`` are reached or memory ends."""
    blocks: list[bytes] = []
    while len(blocks) << 24 < size_bytes:
        blocks.append(b"x" * (1 << 24))
    return len(blocks) << 24


class PlantedOptions(BaseModel):
    """How strong the planted faults are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    factor: float = 1.01
    """What ``scale_weight`` multiplies by."""
    hang_s: float = 3600.0
    """How long ``hang`` sleeps."""
    state: str = ""
    """A file in which ``break_once`` records that it broke a model; it needs one to do so."""


Rewrite = Callable[[ModelProto, PlantedOptions], None]


def _identity(model: ModelProto, options: PlantedOptions) -> None:
    """X → x."""


def _turn(model: ModelProto, was: str, now: str) -> None:
    for node in model.graph.node:
        if node.op_type == was:
            node.op_type = now


def _drop_relu(model: ModelProto, options: PlantedOptions) -> None:
    """Relu(x) → Identity(x); wrong wherever x < 0."""
    _turn(model, "Relu", "Identity")


def _heal(model: ModelProto, options: PlantedOptions) -> None:
    """Identity(x) → Relu(x); undoes ``drop_relu`` on models that had no Identity."""
    _turn(model, "Identity", "Relu")


def _gelu_for_relu(model: ModelProto, options: PlantedOptions) -> None:
    """Relu(x) → x * (1 + Erf(x / √2)) / 2; off by at most 0.17."""
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        nodes += _gelu(node) if node.op_type == "Relu" else [node]
    if len(nodes) == len(model.graph.node):
        return
    nodes = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
    constants = {"gelu_half": 0.5, "gelu_one": 1.0, "gelu_root": 2**-0.5}
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), name))
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _gelu(relu: NodeProto) -> list[NodeProto]:
    x, y = relu.input[0], relu.output[0]
    return [
        helper.make_node("Mul", [x, "gelu_root"], [f"{y}_scaled"]),
        helper.make_node("Erf", [f"{y}_scaled"], [f"{y}_erf"]),
        helper.make_node("Add", [f"{y}_erf", "gelu_one"], [f"{y}_gate"]),
        helper.make_node("Mul", [x, "gelu_half"], [f"{y}_half"]),
        helper.make_node("Mul", [f"{y}_half", f"{y}_gate"], [y]),
    ]


def _scale(model: ModelProto, factor: float) -> None:
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            scaled = numpy_helper.to_array(tensor) * np.float32(factor)
            tensor.CopyFrom(numpy_helper.from_array(scaled, tensor.name))
            return


def _scale_weight(model: ModelProto, options: PlantedOptions) -> None:
    """W → factor * W, for the first float initializer."""
    _scale(model, options.factor)


def _random_flaky(model: ModelProto, options: PlantedOptions) -> None:
    """W → r * W with another r between 1.5 and 3 at each application."""
    _scale(model, 1.5 + 1.5 * int.from_bytes(os.urandom(4)) / 2**32)


def _break_once(model: ModelProto, options: PlantedOptions) -> None:
    """Relu(x) → Identity(x) at the first application, and never again."""
    if options.state and not Path(options.state).exists():
        Path(options.state).touch()
        _drop_relu(model, options)


def _raise_error(model: ModelProto, options: PlantedOptions) -> None:
    """Raise a ValueError."""
    raise_error("planted: no rule for this model")


def _abort(model: ModelProto, options: PlantedOptions) -> None:
    """Abort the process."""
    abort("planted: assertion failed\n")


def _segfault(model: ModelProto, options: PlantedOptions) -> None:
    """Read address 0."""
    segfault()


def _kill_self(model: ModelProto, options: PlantedOptions) -> None:
    """Kill the process by SIGKILL, as an administrator might."""
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_parent(model: ModelProto, options: PlantedOptions) -> None:
    """Kill the process that started this one."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(options.hang_s)


def _hang(model: ModelProto, options: PlantedOptions) -> None:
    """Sleep for ``hang_s``."""
    time.sleep(options.hang_s)


def _eat_memory(model: ModelProto, options: PlantedOptions) -> None:
    """Allocate until memory ends."""
    hog_memory()


def _invalid_model(model: ModelProto, options: PlantedOptions) -> None:
    """f(x) → f(nowhere), for the first node; no value has that name."""
    model.graph.node[0].input[0] = "nowhere"


def _unlist_weights(model: ModelProto, options: PlantedOptions) -> None:
    """IR version 3, whose weights must be inputs, without these inputs."""
    model.ir_version = 3
    weights = {t.name for t in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(kept)


def _rename_weight(model: ModelProto, options: PlantedOptions) -> None:
    """W → planted/W_0, for the first initializer."""
    weight = model.graph.initializer[0]
    name, weight.name = weight.name, f"planted/{weight.name}_0"
    for node in model.graph.node:
        node.input[:] = [weight.name if n == name else n for n in node.input]


def _foreign_operator(model: ModelProto, options: PlantedOptions) -> None:
    """f(x) → g(x), for the last node; the checker knows no such g, and no runtime does."""
    node = model.graph.node[-1]
    node.op_type, node.domain = "Planted", "org.example.planted"
    model.opset_import.append(helper.make_opsetid(node.domain, 1))


def _index_out_of_range(model: ModelProto, options: PlantedOptions) -> None:
    """W → Gather(W, rows that it does not have), for the first float initializer."""
    weight = next(t for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT)
    rows = np.full(weight.dims[0], 1 << 20)
    model.graph.initializer.append(numpy_helper.from_array(rows, "planted_rows"))
    for node in model.graph.node:
        node.input[:] = ["planted_weight" if n == weight.name else n for n in node.input]
    gather = helper.make_node("Gather", [weight.name, "planted_rows"], ["planted_weight"])
    model.graph.node.insert(0, gather)


def _spin_at_run(model: ModelProto, options: PlantedOptions) -> None:
    """W → W + Loop(2⁶² times nothing), for the first float initializer; it loads, and hangs."""
    weight = next(t for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT)
    scalar = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    truth = helper.make_tensor_type_proto(onnx.TensorProto.BOOL, [])
    count = helper.make_tensor_type_proto(onnx.TensorProto.INT64, [])
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["still"]),
            helper.make_node("Identity", ["carried"], ["passed_on"]),
        ],
        "body",
        [
            helper.make_value_info("turn", count),
            helper.make_value_info("go_on", truth),
            helper.make_value_info("carried", scalar),
        ],
        [helper.make_value_info("still", truth), helper.make_value_info("passed_on", scalar)],
    )
    constants = {
        "planted_turns": np.array(1 << 62),
        "planted_yes": np.array(True),
        "planted_zero": np.array(0, np.float32),
    }
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    for node in model.graph.node:
        node.input[:] = ["planted_weight" if n == weight.name else n for n in node.input]
    model.graph.node.insert(0, helper.make_node("Loop", [*constants], ["planted_end"], body=body))
    sums = helper.make_node("Add", [weight.name, "planted_end"], ["planted_weight"])
    model.graph.node.insert(1, sums)


def _rename_outputs(model: ModelProto, options: PlantedOptions) -> None:
    """Graph output y → renamed_y, if a node makes it."""
    computed = {name for node in model.graph.node for name in node.output}
    for output in [o for o in model.graph.output if o.name in computed]:
        name = output.name
        for node in nodes_of(model.graph):
            node.input[:] = [f"renamed_{name}" if n == name else n for n in node.input]
            node.output[:] = [f"renamed_{name}" if n == name else n for n in node.output]
        output.name = f"renamed_{name}"


def _reorder_outputs(model: ModelProto, options: PlantedOptions) -> None:
    """Graph outputs (a, b, …) → (…, b, a)."""
    outputs = list(model.graph.output)[::-1]
    del model.graph.output[:]
    model.graph.output.extend(outputs)


def _mark(model: ModelProto, options: PlantedOptions) -> None:
    """Leave a note in the graph that only ``exploit`` reads."""
    model.graph.doc_string = "marked"


def _exploit(model: ModelProto, options: PlantedOptions) -> None:
    """Relu(x) → Identity(x), but only after ``mark``."""
    if model.graph.doc_string:
        _drop_relu(model, options)


def _mark_again(model: ModelProto, options: PlantedOptions) -> None:
    """Extend the note, if ``mark`` left one."""
    if model.graph.doc_string:
        model.graph.doc_string = "marked twice"


def _exploit_twice(model: ModelProto, options: PlantedOptions) -> None:
    """Relu(x) → Identity(x), but only after ``mark`` and ``mark_again``, in this order."""
    if model.graph.doc_string == "marked twice":
        _drop_relu(model, options)


def _drop_metadata(model: ModelProto, options: PlantedOptions) -> None:
    """Lose the model's metadata properties and documentation."""
    del model.metadata_props[:]
    model.doc_string = ""


def _benign_reassociate(model: ModelProto, options: PlantedOptions) -> None:
    """MatMul(x, W) → MatMul(x[..., p], W[p]) for a permutation p: the same sums, re-ordered."""
    weights = {t.name: t for t in model.graph.initializer}
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        weight = weights.get(node.input[1]) if node.op_type == "MatMul" else None
        if weight is not None and len(weight.dims) == 2:
            x, name = node.input[0], node.output[0]
            values = numpy_helper.to_array(weight)
            order = np.random.default_rng(0).permutation(len(values))
            extra = {f"{name}_order": order, f"{name}_weight": values[order]}
            model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in extra.items())
            if model.ir_version < 4:  # in which weights are inputs too
                for tensor in model.graph.initializer[-len(extra) :]:
                    kind = (tensor.data_type, tensor.dims)
                    model.graph.input.append(helper.make_tensor_value_info(tensor.name, *kind))
            nodes.append(
                helper.make_node("Gather", [x, f"{name}_order"], [f"{name}_permuted"], axis=-1)
            )
            node.input[:] = [f"{name}_permuted", f"{name}_weight"]
        nodes.append(node)
    copies = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def _round_weights(model: ModelProto, options: PlantedOptions) -> None:
    """W → float32(float16(W)); a lossy pass that stays within its declared tolerance."""
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            rounded = numpy_helper.to_array(tensor).astype(np.float16).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))


def _rename_and_declare_outputs(model: ModelProto, options: PlantedOptions) -> None:
    """``rename_outputs``, but declared."""
    _rename_outputs(model, options)


def _add_to_sub(model: ModelProto, options: PlantedOptions) -> None:
    """Add(x, c) → Sub(x, -c) for a constant c; Add(x, y) → Sub(x, y) for others, which is wrong."""
    weights = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Add":
            node.op_type = "Sub"
            if node.input[1] in weights:
                values = -numpy_helper.to_array(weights[node.input[1]])
                node.input[1] = f"{node.output[0]}_negated"
                model.graph.initializer.append(numpy_helper.from_array(values, node.input[1]))


def _forget_shapes(model: ModelProto, options: PlantedOptions) -> None:
    """Remove the shapes of outputs, which the checker refuses and ONNX Runtime accepts."""
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")


def _misdeclare(model: ModelProto, options: PlantedOptions) -> None:
    """Declare a shape of the first node's result that it does not have."""
    name = model.graph.node[0].output[0]
    model.graph.value_info.append(
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 2, 3])
    )


def _lose_type(model: ModelProto, options: PlantedOptions) -> None:
    """Lose the type of the last output, as importers do that know tensors only."""
    model.graph.output[-1].ClearField("type")


def _fold_norm_too_far(model: ModelProto, options: PlantedOptions) -> None:
    """BN(Transpose(x W)) → Transpose(x W' + c): scale and shift of the wrong axis."""
    nodes = model.graph.node
    norm = next((n for n in nodes if n.op_type == "BatchNormalization"), None)
    product = next((n for n in nodes if n.op_type == "MatMul"), None)
    if norm is None or product is None:
        return
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    scale, shift, mean, variance = (values[n] for n in norm.input[1:])
    factor = scale / np.sqrt(variance + np.float32(1e-5))
    for name, value in (
        ("planted_weight", values[product.input[1]] * factor),
        ("planted_shift", shift - mean * factor),
    ):
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    inputs = [product.input[0], "planted_weight", "planted_shift"]
    product.CopyFrom(helper.make_node("Gemm", inputs, list(product.output)))
    last = next(n for n in nodes if norm.input[0] in n.output)
    last.output[0] = norm.output[0]
    nodes.remove(norm)


FILLERS = tuple(f"keep_{i:02}" for i in range(40))
"""Passes that do nothing, to make pipelines long."""

_REWRITES: dict[str, Rewrite] = {
    "lower": _identity,
    "mark": _mark,
    "mark_again": _mark_again,
    "exploit": _exploit,
    "exploit_twice": _exploit_twice,
    "identity": _identity,
    "drop_relu": _drop_relu,
    "heal": _heal,
    "gelu_for_relu": _gelu_for_relu,
    "scale_weight": _scale_weight,
    "random_flaky": _random_flaky,
    "break_once": _break_once,
    "raise_error": _raise_error,
    "abort": _abort,
    "segfault": _segfault,
    "kill_self": _kill_self,
    "kill_parent": _kill_parent,
    "hang": _hang,
    "eat_memory": _eat_memory,
    "invalid_model": _invalid_model,
    "unlist_weights": _unlist_weights,
    "rename_weight": _rename_weight,
    "foreign_operator": _foreign_operator,
    "index_out_of_range": _index_out_of_range,
    "spin_at_run": _spin_at_run,
    "rename_outputs": _rename_outputs,
    "rename_declared": _rename_and_declare_outputs,
    "reorder_outputs": _reorder_outputs,
    "drop_metadata": _drop_metadata,
    "benign_reassociate": _benign_reassociate,
    "round_weights": _round_weights,
    "add_to_sub": _add_to_sub,
    "forget_shapes": _forget_shapes,
    "lose_type": _lose_type,
    "misdeclare": _misdeclare,
    "fold_norm_too_far": _fold_norm_too_far,
    **dict.fromkeys(FILLERS, _identity),
}

_INTERFACE: dict[str, frozenset[InterfaceChange]] = {"rename_declared": frozenset({"names"})}
_TOLERANCE = {"round_weights": 1e-2}


@dataclass
class Planted:
    """An optimizer with known faults.

    Attributes:
        default: The default pipeline.
        offered: Passes that it has; None for all.
        round_trip: Passes that are always applied, even for the empty pipeline.
        required: Passes without which it refuses to build anything.
        traits: If not ordered, passes run in the order of the table of passes.
    """

    default: tuple[str, ...] = ("identity",)
    offered: tuple[str, ...] | None = None
    round_trip: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    name: str = "planted"
    preload: Sequence[str] = ("onnx", "optvet.testing.optimizers")
    options: BaseModel = field(default_factory=PlantedOptions)
    traits: Traits = field(default_factory=lambda: Traits(repeatable=True))

    def version(self) -> str:
        """Version of the planted faults."""
        return "1"

    def passes(self) -> Sequence[Pass]:
        """All passes, or those in ``offered``."""
        return [
            Pass(
                name,
                kind="planted",
                default=name in self.default,
                required=name in self.required,
                lossy=name in _TOLERANCE,
                tolerance=_TOLERANCE.get(name),
                interface=_INTERFACE.get(name, frozenset()),
                description=(_REWRITES[name].__doc__ or "").strip(),
            )
            for name in (_REWRITES if self.offered is None else self.offered)
        ]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """The default pipeline and, as "all", every pass that it has."""
        return {"default": self.default, "all": tuple(p.name for p in self.passes())}

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        """Apply ``passes`` to a copy of the model."""
        assert isinstance(options, PlantedOptions)
        unknown = [n for n in passes if n not in _REWRITES]
        if unknown:
            raise ValueError(f"planted: there is no pass {unknown[0]!r}")
        missing = [n for n in self.required if n not in passes]
        if missing:
            raise ValueError(f"planted: nothing can be built without {missing[0]!r}")
        if not self.traits.ordered:
            passes = [n for n in _REWRITES if n in passes]
        proto = onnx.load_from_string(source.data)
        for name in (*self.round_trip, *passes):
            _REWRITES[name](proto, options)
        return Artifact("onnx", proto.SerializeToString(deterministic=True))
