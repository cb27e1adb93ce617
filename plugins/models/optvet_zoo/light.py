"""The published CNNs inside the onnx wheel, given weights that make their outputs depend on inputs.

onnx ships nine ImageNet classifiers whose weights are ``ConstantOfShape`` nodes: every class gets
(nearly) the same score whatever the image is, so no fault can show. Here these nodes become
seeded random weights, in bytes that are the same on every machine: they are made of PCG64's raw
stream, of a table of normal quantiles and of single IEEE operations, never of BLAS or libm. What
needs inference (the scale of each layer, the offset of the classes) was measured once by
``recipes/calibrate.py`` and is read from ``calibration.json``.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
from onnx import numpy_helper

from optvet.plugin import InputError

RECIPE = "1"
"""Changes whenever any byte of a made model would; names the folder in the cache."""

PUBLISHED = {
    "alexnet": "bvlc_alexnet",
    "densenet121": "densenet121",
    "inception_v1": "inception_v1",
    "inception_v2": "inception_v2",
    "resnet50": "resnet50",
    "shufflenet": "shufflenet",
    "squeezenet": "squeezenet",
    "vgg19": "vgg19",
    "zfnet512": "zfnet512",
}
"""Our name of each network, and onnx's."""

Contents = dict[str, Callable[[], Iterator[np.ndarray]]]
"""The values of each weight by its name, in pieces; computed anew by each call."""
Edition = Literal["modern", "ir3"]
Role = Literal["kernel", "bias", "scale", "shift", "mean", "variance"]

_ROLES: Mapping[str, Mapping[int, Role]] = {
    "Conv": {1: "kernel", 2: "bias"},
    "Gemm": {1: "kernel", 2: "bias"},
    "BatchNormalization": {1: "scale", 2: "shift", 3: "mean", 4: "variance"},
    # Caffe spells the affine half of a batch normalization as Mul and Add.
    "Mul": {1: "scale"},
    "Add": {1: "shift"},
}


@dataclass(frozen=True)
class Calibration:
    """What was measured of one network.

    Attributes:
        exponents: By weight name: the power of two by which He's scale is multiplied.
        offset: Bias of the last layer; float32, one number per class.
    """

    exponents: Mapping[str, int]
    offset: np.ndarray | None


def calibration_of(name: str) -> Calibration:
    """The recorded calibration of the network ``name``."""
    entry = json.loads(_calibration_file().read_text(encoding="utf-8"))[name]
    steps = np.frombuffer(base64.b64decode(entry["offset"]), dtype="<i2")
    offset = steps.astype(np.float32) * np.float32(2.0 ** entry["offset_exponent"])
    return Calibration(entry["exponents"], offset)


def make(name: str, edition: Edition) -> onnx.ModelProto:
    """The network ``name`` with its weights, as a model in memory.

    Raises:
        InputError: The installed onnx has no such network.
    """
    model, contents = sketch(name, edition)
    _fill(model.graph, contents)
    return model


def sketch(name: str, edition: Edition) -> tuple[onnx.ModelProto, Contents]:
    """The network ``name`` without the content of its weights, and that content.

    Raises:
        InputError: The installed onnx has no such network.
    """
    model = published(name)
    contents = declare(model.graph, name, calibration_of(name))
    if edition == "ir3":
        list_weights_as_inputs(model.graph)
    else:
        model.ir_version = 8
    return model, contents


def published(name: str) -> onnx.ModelProto:
    """The network as the onnx wheel has it, its constant weights made by nodes.

    Raises:
        InputError: The installed onnx does not have it.
    """
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    path = folder / f"light_{PUBLISHED[name]}.onnx"
    if not path.is_file():
        raise InputError(
            f"zoo model {name!r} is made from {path.name}, which the installed onnx "
            f"{onnx.__version__} does not ship; install another onnx (1.23 has it), "
            "or vet a model file of your own"
        )
    return onnx.load(str(path))


def fill(graph: onnx.GraphProto, name: str, calibration: Calibration) -> None:
    """``ConstantOfShape(s)`` → a random initializer; the trained leftovers are replaced too."""
    _fill(graph, declare(graph, name, calibration))


def _fill(graph: onnx.GraphProto, contents: Contents) -> None:
    for tensor in graph.initializer:
        if tensor.name in contents:
            pieces = contents[tensor.name]()
            tensor.raw_data = b"".join(p.astype("<f4", copy=False).tobytes() for p in pieces)


def declare(graph: onnx.GraphProto, name: str, calibration: Calibration) -> Contents:
    """As ``fill``, but the initializers have no content yet, which is returned.

    The few tensors that onnx left as they were trained (the first biases and statistics) do not
    fit random kernels: a running variance of 1e-14 behind one makes activations overflow.
    """
    roles = roles_of(graph)
    constants = {node.output[0]: node for node in graph.node if node.op_type == "ConstantOfShape"}
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    shapes = {
        out: tuple(numpy_helper.to_array(initializers[n.input[0]])) for out, n in constants.items()
    }
    shapes |= {n: tuple(t.dims) for n, t in initializers.items() if n in roles}
    kept = [
        t for t in graph.initializer if t.name not in roles and t.name not in _used_by(constants)
    ]
    nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    last = next(n for n in reversed(nodes) if n.op_type in ("Conv", "Gemm"))
    del graph.initializer[:], graph.node[:]
    graph.node.extend(nodes)
    contents: Contents = {}
    for tensor_name, shape in shapes.items():
        if tensor_name == last.input[2] and calibration.offset is not None:
            pieces = partial(iter, [calibration.offset.reshape(shape)])
        else:
            exponent = calibration.exponents.get(tensor_name, 0)
            about = (f"{name}/{tensor_name}", shape, roles[tensor_name], exponent)
            pieces = partial(_draw, *about)
        contents[tensor_name] = pieces
        tensor = graph.initializer.add(name=tensor_name, data_type=onnx.TensorProto.FLOAT)
        tensor.dims.extend(shape)
    graph.initializer.extend(kept)
    names = {tensor.name for tensor in graph.initializer} | _used_by(constants)
    fed = [value for value in graph.input if value.name not in names]
    del graph.input[:]
    graph.input.extend(fed)
    return contents


def serialized(model: onnx.ModelProto, contents: Contents) -> Iterator[bytes | memoryview]:
    """The message of ``model`` with ``contents``, in pieces: its weights are never all in memory.

    It is the message that ``SerializeToString`` makes of the model with these weights.
    """
    for part in _layout(model, contents):
        if isinstance(part, bytes):
            yield part
            continue
        for values in contents[part.name]():
            yield values.astype("<f4", copy=False).reshape(-1).view(np.uint8).data


def places(model: onnx.ModelProto, contents: Contents) -> dict[str, int]:
    """Where in the message of ``serialized`` the content of each weight begins."""
    found, at = {}, 0
    for part in _layout(model, contents):
        if isinstance(part, bytes):
            at += len(part)
        else:
            found[part.name] = at
            at += _size(part)
    return found


def _size(weight: onnx.TensorProto) -> int:
    return 4 * int(math.prod(weight.dims))


def _layout(model: onnx.ModelProto, contents: Contents) -> Iterator[bytes | onnx.TensorProto]:
    """The message in order: what is known of it, and in between the weights in ``contents``."""
    first, rest = onnx.GraphProto(), onnx.GraphProto()
    first.node.extend(model.graph.node)
    first.name = model.graph.name
    rest.CopyFrom(model.graph)
    for field in ("node", "name", "initializer"):
        rest.ClearField(field)
    heads = [t.SerializeToString(deterministic=True) for t in model.graph.initializer]
    sizes = [_size(t) if t.name in contents else 0 for t in model.graph.initializer]
    parts = [graph.SerializeToString(deterministic=True) for graph in (first, rest)]
    heads = [h + (_length(_RAW_DATA, n) if n else b"") for h, n in zip(heads, sizes, strict=True)]
    tensors = [len(head) + n for head, n in zip(heads, sizes, strict=True)]
    total = sum(map(len, parts)) + sum(len(_length(_INITIALIZER, n)) + n for n in tensors)
    before, after = onnx.ModelProto(), onnx.ModelProto()
    before.CopyFrom(model)
    before.ClearField("graph")
    for kind, _ in before.ListFields():
        if kind.number > _GRAPH:
            getattr(after, kind.name).MergeFrom(getattr(before, kind.name))
            before.ClearField(kind.name)
    yield before.SerializeToString(deterministic=True) + _length(_GRAPH, total) + parts[0]
    for tensor, head, size in zip(model.graph.initializer, heads, tensors, strict=True):
        yield _length(_INITIALIZER, size) + head
        if tensor.name in contents:
            yield tensor
    yield parts[1] + after.SerializeToString(deterministic=True)


_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
"""Numbers of fields in onnx.proto; no field of a weight has a larger number than its data."""


def _length(field: int, size: int) -> bytes:
    """The tag of a field that holds bytes, and their number."""
    encoded = bytearray([field << 3 | 2])
    while size > 0x7F:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*encoded, size])


def _used_by(producers: Mapping[str, onnx.NodeProto]) -> set[str]:
    return {node.input[0] for node in producers.values()}


def roles_of(graph: onnx.GraphProto) -> dict[str, Role]:
    """What each weight is for, told from the node that uses it (through Unsqueeze, Reshape)."""
    weights = {tensor.name for tensor in graph.initializer}
    weights |= {node.output[0] for node in graph.node if node.op_type == "ConstantOfShape"}
    origin = {name: name for name in weights}
    roles: dict[str, Role] = {}
    for node in graph.node:
        if node.op_type in ("Unsqueeze", "Reshape") and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        for index, role in _ROLES.get(node.op_type, {}).items():
            if index < len(node.input) and node.input[index] in origin:
                roles[origin[node.input[index]]] = role
    return roles


def draw(key: str, shape: tuple[int, ...], role: Role, exponent: int = 0) -> np.ndarray:
    """Random weights for ``role``; float32, the same bytes everywhere for the same ``key``."""
    return np.concatenate(list(_draw(key, shape, role, exponent))).reshape(shape)


def _draw(key: str, shape: tuple[int, ...], role: Role, exponent: int) -> Iterator[np.ndarray]:
    """What ``draw`` gives, in flat pieces that a processor's cache holds."""
    row = math.prod(shape[1:]) if role == "kernel" else 1
    # A word of the stream is four numbers, so no piece but the last may end within one.
    rows = max(4, _PIECE // row // 4 * 4)
    stream = _stream(key)
    for start in range(0, math.prod(shape), rows * row):
        bits = _numbers(stream, min(rows * row, math.prod(shape) - start))
        if role in ("scale", "variance"):  # U[.5, 1.5)
            yield bits.astype(np.float32) * np.float32(2**-16) + np.float32(0.5)
        elif role == "kernel":
            values = _half_centred(_normal_quantiles()[bits].reshape(-1, row))
            # He et al. 2015: sqrt(2 / fan in)
            values *= np.float32(math.sqrt(2 / row) * 2.0**exponent)
            yield values.reshape(-1)
        else:
            yield _normal_quantiles()[bits] * np.float32(0.125)


_PIECE = 1 << 17


def _half_centred(kernels: np.ndarray) -> np.ndarray:
    """Each row less half of its mean.

    Behind ReLUs all inputs look alike to plain He kernels (logits of two images differ by 1 %);
    to fully centred ones they do not, but rounding noise grows with each layer too. Half gives
    the most signal for the noise (measured: 0, 0.5, 1 on four of the networks).
    """
    # A float64 sum of multiples of 2**-12 is exact, so its order (SIMD width) cannot show.
    means = kernels.sum(axis=1, keepdims=True, dtype=np.float64) / kernels.shape[1]
    kernels -= (0.5 * means).astype(np.float32)
    return kernels


def raw_bits(key: str, count: int) -> np.ndarray:
    """``count`` random uint16. Of all of numpy's streams, only the raw one never changes."""
    return _numbers(_stream(key), count)


def _stream(key: str) -> np.random.PCG64:
    seed = int.from_bytes(hashlib.sha256(f"optvet-zoo/{RECIPE}/{key}".encode()).digest()[:8], "big")
    return np.random.PCG64(seed)


def _numbers(stream: np.random.PCG64, count: int) -> np.ndarray:
    words = stream.random_raw(-(-count // 4))
    return words.astype("<u8", copy=False).view("<u2")[:count]


@functools.cache
def _normal_quantiles() -> np.ndarray:
    """65,536 equally likely values of N(0, 1), float32.

    Multiples of 2**-12, so that a libm that is off by an ulp cannot show.
    """
    normal = statistics.NormalDist()
    half = [round(normal.inv_cdf((2 * i + 1) / 2**17) * 4096) / 4096 for i in range(2**15)]
    table = np.array(half, dtype=np.float32)
    return np.concatenate([table, -table[::-1]])


def list_weights_as_inputs(graph: onnx.GraphProto) -> None:
    """Lists each initializer among the graph's inputs, as IR 3 demands."""
    for tensor in graph.initializer:
        value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        graph.input.append(value)


def _calibration_file() -> Path:
    return Path(__file__).with_name("calibration.json")
