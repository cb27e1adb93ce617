"""Small encoder-decoders and decoders in ONNX, with a fault planted in one file.

An encoder and two decoders (one reads a cache), or a decoder alone; two layers, random weights from
a seed, rotary positions. Names of files, inputs and outputs are those of Hugging Face's exports.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADS, WIDTH, VOCABULARY, LAYERS, POSITIONS = 2, 4, 23, 2, 64
SIZE = HEADS * WIDTH


@dataclass(frozen=True)
class Fault:
    """A fault in one file, and the answer that is expected.

    ``token`` is the first wrong token. ``place`` is a prefix of the name of the first shared value
    that differs. ``entries`` are the differing cache entries of a fault in the cache.
    """

    name: str
    file: str
    token: int
    place: str
    entries: tuple[str, ...] = ()


@dataclass
class Graph:
    """A graph under construction."""

    rng: np.random.Generator
    scope: str = ""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def node(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its output."""
        # Numbered by scope and operator, so that an added node changes few names.
        kind = f"{self.scope}/{operator}"
        made = name or f"{kind}_{sum(n.output[0].startswith(f'{kind}_') for n in self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [made], **attributes))
        return made

    def constant(self, value: object, dtype: type = np.int64) -> str:
        """Add a weight, and return its name."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def matrix(self, rows: int, columns: int) -> str:
        """Add a random matrix, and return its name."""
        drawn = self.rng.normal(size=(rows, columns)) / np.sqrt(rows)
        return self.constant(drawn, np.float32)

    def save(
        self, file: Path, inputs: dict[str, tuple[int, list[str | int | None]]], outputs: list[str]
    ) -> None:
        """Write the model; an input is an element type and a shape."""
        given = [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()]
        made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
        graph = helper.make_graph(self.nodes, "g", given, made, self.weights)
        opset = helper.make_opsetid("", 17)
        onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), file)


def rotary(base: float) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines by position, (positions, width)."""
    angles = np.arange(POSITIONS)[:, None] * base ** (-np.arange(WIDTH // 2) * 2 / WIDTH)
    both = np.concatenate([angles, angles], 1)
    return np.cos(both), np.sin(both)


def split(g: Graph, x: str) -> str:
    """(batch, length, size) → (batch, heads, length, width)."""
    return g.node(
        "Transpose", g.node("Reshape", x, g.constant([0, 0, HEADS, WIDTH])), perm=[0, 2, 1, 3]
    )


def attend(g: Graph, q: str, k: str, v: str, bias: str) -> str:
    """Attention; ``bias`` is added to the scores."""
    scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.node("Mul", scores, g.constant(WIDTH**-0.5, np.float32))
    weights = g.node("Softmax", g.node("Add", scores, bias), axis=-1)
    mixed = g.node("Transpose", g.node("MatMul", weights, v), perm=[0, 2, 1, 3])
    return g.node("Reshape", mixed, g.constant([0, 0, SIZE]))


def turn(g: Graph, x: str, positions: str, base: float) -> str:
    """Rotary positions of (batch, heads, length, width)."""
    cos, sin = (
        g.node("Unsqueeze", g.node("Gather", g.constant(t, np.float32), positions), g.constant([1]))
        for t in rotary(base)
    )
    left = g.node("Slice", x, g.constant([0]), g.constant([WIDTH // 2]), g.constant([3]))
    right = g.node("Slice", x, g.constant([WIDTH // 2]), g.constant([WIDTH]), g.constant([3]))
    turned = g.node("Concat", g.node("Neg", right), left, axis=-1)
    return g.node("Add", g.node("Mul", x, cos), g.node("Mul", turned, sin))


def unread(g: Graph, mask: str, lost: bool) -> str:
    """Bias of (batch, 1, 1, length): very negative where ``mask`` is 0."""
    value = g.node("Cast", mask, to=TensorProto.FLOAT)
    if lost:
        value = g.node(
            "Add", g.node("Mul", value, g.constant(0, np.float32)), g.constant(1, np.float32)
        )
    missing = g.node("Sub", g.constant(1, np.float32), value)
    return g.node(
        "Unsqueeze", g.node("Mul", missing, g.constant(-1e4, np.float32)), g.constant([1, 2])
    )


def size_of(g: Graph, x: str, axis: int) -> str:
    """One dimension of a value, of shape (1,)."""
    return g.node("Gather", g.node("Shape", x), g.constant([axis]))


def feed_forward(g: Graph, x: str) -> str:
    """A residual block of two matrices around a Relu."""
    wide = g.node("Relu", g.node("MatMul", x, g.matrix(SIZE, 2 * SIZE)))
    return g.node("Add", x, g.node("MatMul", wide, g.matrix(2 * SIZE, SIZE)))


def encoder(file: Path, seed: int, fault: str) -> None:
    """Write an encoder; plant ``fault`` unless it is empty."""
    g = Graph(np.random.default_rng(seed), "read")
    x = g.node("Gather", g.matrix(VOCABULARY, SIZE), "input_ids")
    bias = unread(g, "attention_mask", fault == "encoder mask lost")
    for layer in range(LAYERS):
        g.scope = f"layers.{layer}"
        q, k, v = (split(g, g.node("MatMul", x, g.matrix(SIZE, SIZE))) for _ in range(3))
        mixed = g.node("MatMul", attend(g, q, k, v, bias), g.matrix(SIZE, SIZE))
        x = feed_forward(g, g.node("Add", x, mixed))
    g.scope = "head"
    if fault == "encoder layer scaled":
        x = g.node("Mul", x, g.constant(1.01, np.float32))
    g.node("Identity", x, name="last_hidden_state")
    ids: tuple[int, list[str | int | None]] = (TensorProto.INT64, ["batch", "length"])
    g.save(file, {"input_ids": ids, "attention_mask": ids}, ["last_hidden_state"])


def decoder(file: Path, seed: int, fault: str, *, cached: bool, crosses: bool) -> None:
    """Write a decoder; plant ``fault`` unless it is empty.

    If ``cached``, it reads a cache; if ``crosses``, it attends to the output of an encoder.
    """
    g = Graph(np.random.default_rng(seed + 1), "read")
    x = g.node("Gather", g.matrix(VOCABULARY, SIZE), "input_ids")
    ids: tuple[int, list[str | int | None]] = (TensorProto.INT64, ["batch", "length"])
    inputs: dict[str, tuple[int, list[str | int | None]]] = {"input_ids": ids}
    outputs = ["logits"]
    base = 1000.0 if fault == "rotary base changed" else 100.0
    entry: tuple[int, list[str | int | None]] = (TensorProto.FLOAT, ["batch", HEADS, "past", WIDTH])
    infix = ".decoder" if crosses else ""
    past = g.constant([0])
    if cached:
        past = size_of(g, f"past_key_values.0{infix}.key", 2)
    length = size_of(g, "input_ids", 1)
    total = g.node("Add", past, length)
    zero, one = g.constant(0), g.constant(1)
    flat = g.constant([], np.int64)
    start, end = g.node("Reshape", past, flat), g.node("Reshape", total, flat)
    rows = g.node("Range", start, end, one)
    positions = g.node("Unsqueeze", rows, g.constant([0]))
    if fault == "positions off by one":
        positions = g.node("Add", positions, one, name="read/moved")
    columns = g.node("Range", zero, end, one)
    later = g.node("Greater", columns, g.node("Unsqueeze", rows, g.constant([1])))
    bias = g.node("Mul", g.node("Cast", later, to=TensorProto.FLOAT), g.constant(-1e4, np.float32))
    if fault == "causal mask lost":
        bias = g.node("Mul", bias, g.constant(0, np.float32))
    if not crosses:
        inputs["attention_mask"] = (TensorProto.INT64, ["batch", "total"])
        bias = g.node("Add", bias, unread(g, "attention_mask", fault == "mask of the past lost"))
    else:
        inputs["encoder_attention_mask"] = (TensorProto.INT64, ["batch", "read"])
        read = unread(g, "encoder_attention_mask", fault == "mask of the past lost")
        if not cached:
            inputs["encoder_hidden_states"] = (TensorProto.FLOAT, ["batch", "read", SIZE])
    for layer in range(LAYERS):
        g.scope = f"layers.{layer}.self"
        q, k, v = (split(g, g.node("MatMul", x, g.matrix(SIZE, SIZE))) for _ in range(3))
        q, k = turn(g, q, positions, base), turn(g, k, positions, base)
        names = [f"{layer}{infix}.{kind}" for kind in ("key", "value")]
        wrong = layer == LAYERS - 1
        for i, new in enumerate((k, v)):
            whole, old = new, f"past_key_values.{names[i]}"
            if cached:
                inputs[old] = entry
                order = [new, old] if fault == "cache in the wrong order" and wrong else [old, new]
                whole = g.node("Concat", *order, axis=2)
            shown = whole
            if cached and fault == "cache not shifted" and wrong:
                # The entry of the token before stands where the newest one belongs.
                kept, second = (
                    g.node(
                        "Slice", whole, g.constant([f]), g.constant([-1]), g.constant([2]), name=n
                    )
                    for f, n in ((0, f"{g.scope}/kept_{i}"), (-2, f"{g.scope}/second_{i}"))
                )
                shown = g.node("Concat", kept, second, axis=2, name=f"{g.scope}/window_{i}")
            if fault == "cache exchanged" and wrong:
                shown = ""
            if i == 0:
                k = whole
            else:
                v = whole
            if shown:
                g.node("Identity", shown, name=f"present.{names[i]}")
            outputs.append(f"present.{names[i]}")
        if fault == "cache exchanged" and wrong:
            g.node("Identity", v, name=f"present.{names[0]}")
            g.node("Identity", k, name=f"present.{names[1]}")
        mixed = g.node("MatMul", attend(g, q, k, v, bias), g.matrix(SIZE, SIZE))
        x = g.node("Add", x, mixed)
        if crosses:
            g.scope = f"layers.{layer}.cross"
            q = split(g, g.node("MatMul", x, g.matrix(SIZE, SIZE)))
            of_keys, of_values = g.matrix(SIZE, SIZE), g.matrix(SIZE, SIZE)
            both = []
            for kind, weight in (("key", of_keys), ("value", of_values)):
                name = f"{layer}.encoder.{kind}"
                if cached:
                    inputs[f"past_key_values.{name}"] = entry
                    both.append(f"past_key_values.{name}")
                else:
                    made = split(g, g.node("MatMul", "encoder_hidden_states", weight))
                    both.append(g.node("Identity", made, name=f"present.{name}"))
                    outputs.append(f"present.{name}")
            mixed = g.node("MatMul", attend(g, q, both[0], both[1], read), g.matrix(SIZE, SIZE))
            x = g.node("Add", x, mixed)
        g.scope = f"layers.{layer}.feed"
        x = feed_forward(g, x)
    g.scope = "head"
    if fault == "a layer scaled":
        x = g.node("Mul", x, g.constant(1.01, np.float32))
    g.node("MatMul", x, g.matrix(SIZE, VOCABULARY), name="logits")
    g.save(file, inputs, outputs)


def write_model(folder: Path, seed: int, *, crosses: bool, fault: Fault | None = None) -> Path:
    """Write all files of a model to ``folder``, and plant ``fault`` in its file."""
    folder.mkdir(parents=True)

    def wrong(file: str) -> str:
        return fault.name if fault is not None and fault.file == file else ""

    if crosses:
        encoder(folder / "encoder_model.onnx", seed, wrong("encoder_model.onnx"))
        for name, cached in (("decoder_model.onnx", False), ("decoder_with_past_model.onnx", True)):
            decoder(folder / name, seed, wrong(name), cached=cached, crosses=True)
    else:
        decoder(folder / "model.onnx", seed, wrong("model.onnx"), cached=True, crosses=False)
    return folder


_OWN = tuple(f"present.{LAYERS - 1}.decoder.{kind}" for kind in ("key", "value"))
_ALONE = tuple(f"present.{LAYERS - 1}.{kind}" for kind in ("key", "value"))
_LAST = f"layers.{LAYERS - 1}.self"
_READ, _FIRST, _CACHED = "encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx"
_ONE = "model.onnx"
FAULTS: dict[bool, tuple[Fault, ...]] = {
    True: (
        Fault("encoder mask lost", _READ, 1, "read"),
        Fault("encoder layer scaled", _READ, 1, "last_hidden_state"),
        Fault("mask of the past lost", _FIRST, 1, "read"),
        Fault("mask of the past lost", _CACHED, 2, "read"),
        Fault("positions off by one", _FIRST, 1, "layers.0.self"),
        Fault("positions off by one", _CACHED, 2, "layers.0.self"),
        Fault("rotary base changed", _CACHED, 2, "layers.0.self"),
        Fault("cache not shifted", _CACHED, 2, "present.", _OWN),
        Fault("cache in the wrong order", _CACHED, 2, _LAST, _OWN),
        Fault("cache exchanged", _FIRST, 1, "present.", _OWN),
        Fault("cache exchanged", _CACHED, 2, "present.", _OWN),
        Fault("a layer scaled", _FIRST, 1, "logits"),
        Fault("a layer scaled", _CACHED, 2, "logits"),
    ),
    False: (
        Fault("mask of the past lost", _ONE, 1, "read"),
        Fault("causal mask lost", _ONE, 1, "read"),
        Fault("positions off by one", _ONE, 1, "layers.0.self"),
        Fault("rotary base changed", _ONE, 1, "layers.0.self"),
        Fault("cache not shifted", _ONE, 1, "present.", _ALONE),
        Fault("cache in the wrong order", _ONE, 2, _LAST, _ALONE),
        Fault("cache exchanged", _ONE, 1, "present.", _ALONE),
        Fault("a layer scaled", _ONE, 1, "logits"),
    ),
}
"""The faults of models with an encoder (True) and without."""
