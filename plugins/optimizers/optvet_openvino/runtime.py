"""OpenVINO on CPU, in float32: left to itself it computes in bfloat16 where the processor can.

What an importer does to names is undone here. Import drops inputs that nothing uses, and may give
an input the name of what an eliminated node made of it (``Identity``, ``Dropout``), so inputs are
matched by name first and by position then; outputs keep their positions.

Two types are not what they seem. A double is computed in float32, so models with such inputs or
outputs are refused: no tolerance for doubles could be kept. Integers of more than 32 bits are
computed in 32, so inputs beyond that range are refused rather than wrapped.
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import onnx
from pydantic import BaseModel, ConfigDict, Field

from optvet.graph import RANDOM_OPERATORS, is_onnx, nodes_of, values_outside
from optvet.plugin import (
    MODEL_PARTS,
    Artifact,
    Feeds,
    Inner,
    NodeTime,
    Profile,
    Session,
    Unsupported,
    version_of,
)

_SUPPORTED = frozenset(
    "FLOAT FLOAT16 BFLOAT16 BOOL INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64".split()
)
_INT32 = np.iinfo(np.int32)


class OpenVinoOptions(BaseModel):
    """Properties of the compiled model that decide what is computed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    precision: Literal["f32", "bf16", "f16", "device"] = "f32"
    """Inference precision; "device" leaves it to OpenVINO, which may choose bfloat16."""
    mode: Literal["accuracy", "performance"] = "accuracy"
    """Execution mode; "performance" also allows dynamic quantization."""
    low_precision: bool = False
    """Run quantized models on integers, not on dequantized floats."""
    snippets: bool = False
    """Fuse chains of elementwise and attention operators into generated kernels."""
    threads: int = Field(default=1, ge=0)
    """Threads of one inference; 0 lets OpenVINO choose."""


class OpenVinoRuntime:
    """The ``openvino`` package on CPU."""

    name = "openvino"
    # "openvino-model": an ONNX model and, in its handle, {"model": what became of it (an
    # openvino.Model), "properties": the compilation properties that go before the options}.
    accepts = frozenset({"onnx", "openvino-model"})
    # In the server that forks, which does not import this module, its telemetry would start.
    preload: Sequence[str] = ()
    libraries: Mapping[str, str] = {"openvino": "openvino"}
    reads = MODEL_PARTS - {"metadata"}
    options: OpenVinoOptions = OpenVinoOptions()
    deployed: OpenVinoOptions = OpenVinoOptions(
        precision="device", mode="performance", low_precision=True, snippets=True, threads=0
    )

    def version(self) -> str:
        """Version of the installed package."""
        return version_of("openvino", extra="optvet[openvino]")

    def declared_loss(self, options: OpenVinoOptions) -> float | None:
        """5 %, as of the pass that asks for bfloat16, where that is asked for or may be chosen.

        OpenVINO documents its default: bfloat16 on processors that have it.
        """
        return None if options.precision == "f32" else 5e-2

    def load(self, artifact: Artifact, options: OpenVinoOptions) -> Session:
        """Import where that has not been done, and compile; import alone runs no transformation."""
        return self._load(artifact, options, {})

    def refuses_operands(self, message: str) -> bool:
        """Whether a check of its own failed, of which it tells the place."""
        return _FAILED_CHECK.search(message) is not None

    def profile(
        self, artifact: Artifact, feeds: Sequence[Feeds], options: OpenVinoOptions, folder: Path
    ) -> Profile:
        """The counters of the compiled model's nodes, without those that were optimized away."""
        session = self._load(artifact, options, {"PERF_COUNT": True})
        times: dict[tuple[str, str], list[float]] = {}
        for number, each in enumerate((feeds[0], *feeds)):
            session.run(each)
            for name, operator, seconds in session.node_times() if number else ():
                times.setdefault((name, operator), []).append(seconds)
        nodes = [
            NodeTime(*key, "CPU", len(each) / len(feeds), median(each))
            for key, each in times.items()
        ]
        return Profile("CPU", len(feeds), tuple(nodes))

    def _load(
        self, artifact: Artifact, options: OpenVinoOptions, more: Mapping[str, Any]
    ) -> OpenVinoSession:
        source = onnx.load_from_string(artifact.data)
        _refuse_types(source.graph)
        _refuse_random(source.graph)
        if artifact.format == "openvino-model":
            model, properties = artifact.handle["model"], artifact.handle["properties"]
        else:
            model, properties = _core().read_model(artifact.data), {}
        settings = {**_properties(options), **properties, **more}
        try:
            compiled = _core().compile_model(model, "CPU", settings)
        except RuntimeError as error:
            words = _told_limit(error)
            # A pass that makes what cannot be compiled is at fault.
            made = artifact.format != "onnx"
            if not (made and words and words == _limit_of_plain(artifact.data, options)):
                raise
            raise Unsupported(words) from error
        return OpenVinoSession(compiled, source.graph, model)

    def snippet(self, options: OpenVinoOptions) -> str:
        """A model is compiled with the same options; a compiled one is taken as it is."""
        properties = f'"CPU", {_properties(options)!r})'
        return "\n".join(
            (
                "import sys\n",
                "sys.modules.setdefault('openvino_telemetry', None)  # or an import sends an event",
                "import openvino\n",
                "if not isinstance(model, openvino.CompiledModel):",
                "    data = model if isinstance(model, bytes) else model.SerializeToString()",
                "    core = openvino.Core()",
                *textwrap.wrap(
                    f"model = core.compile_model(core.read_model(data), {properties}",
                    88,
                    initial_indent=" " * 4,
                    subsequent_indent=" " * 8,
                ),
                *_RUN_COMPILED,
            )
        )

    def simple_snippets(self, options: OpenVinoOptions) -> Sequence[str]:
        """For a compiled model whose inputs kept their names."""
        return ["\n".join(_RUN_BY_NAME), "\n".join(_RUN_COMPILED)]

    suffixes = frozenset({".xml"})

    def inner_values(self, file: Path, feeds: Feeds, options: OpenVinoOptions) -> Sequence[Inner]:
        """Values of an IR file (its weights lie beside it), all of them made outputs."""
        return _inner_values(_core().read_model(file), feeds, _properties(options))

    def artifact_values(
        self, artifact: Artifact, feeds: Feeds, options: OpenVinoOptions
    ) -> Sequence[Inner]:
        """Values of what the optimizer made, all of them made outputs of a copy."""
        if artifact.format != "openvino-model":
            return _inner_values(_core().read_model(artifact.data), feeds, _properties(options))
        properties = {**_properties(options), **artifact.handle["properties"]}
        return _inner_values(artifact.handle["model"].clone(), feeds, properties)


def _inner_values(model: Any, feeds: Feeds, properties: Mapping[str, Any]) -> list[Inner]:
    """All values of ``model``, which becomes one that has them as outputs."""
    fed = _order_feeds(model, feeds)
    places = {_key(r.input_value(0)): i for i, r in enumerate(model.get_results())}
    ports = [p for op in _operations(model) for p in op.outputs() if _is_readable(p)]
    # Before they become outputs, which gives names to those that have none.
    inner = [(_key(p), _names(p), p.get_node().get_type_name(), _reads(p)) for p in ports]
    model.add_outputs(ports)
    index = {_key(r.input_value(0)): i for i, r in enumerate(model.get_results())}
    request = _core().compile_model(model, "CPU", properties).create_infer_request()
    for at, value in enumerate(fed):
        request.set_input_tensor(at, _tensor(value))
    request.infer()
    _require_memory(model, request, fed)
    values = {k: np.array(request.get_output_tensor(i).data) for k, i in index.items()}
    return [Inner(names, op, reads, values[k], places.get(k)) for k, names, op, reads in inner]


_RUN_BY_NAME = (
    "values = model(feeds)",
    "return {name: values[port] for port in model.outputs for name in port.get_names()}",
)
# Import may give an input the name of what an eliminated node made of it.
_RUN_COMPILED = (
    "names = [next((n for n in p.get_names() if n in feeds), None) for p in model.inputs]",
    "rest = [name for name in feeds if name not in names]",
    "values = model([feeds[name or rest.pop(0)] for name in names])",
    "return {name: values[port] for port in model.outputs for name in port.get_names()}",
)


class OpenVinoSession:
    """A compiled model."""

    def __init__(self, compiled: Any, graph: onnx.GraphProto, model: Any) -> None:
        weights = {t.name for t in graph.initializer}
        inputs = [i for i in graph.input if i.name not in weights]
        self._dtypes = {i.name: _dtype(i) for i in inputs}
        self._ranks = {i.name: _rank(i) for i in inputs}
        self._order = _match([p.get_names() for p in compiled.inputs], graph, list(self._dtypes))
        # By position: a model may list one output twice.
        self._outputs = [(o.name, _dtype(o)) for o in graph.output]
        if len(compiled.outputs) != len(self._outputs):
            raise ValueError(
                f"the model has {len(self._outputs)} outputs; OpenVINO's import of it has "
                f"{len(compiled.outputs)}"
            )
        self._request = compiled.create_infer_request()
        self._model = model

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Outputs by name, in the graph's order."""
        self._check(feeds)
        fed = [feeds[name] for name in self._order]
        for index, value in enumerate(fed):
            self._request.set_input_tensor(index, _tensor(value))
        self._request.infer()
        _require_memory(self._model, self._request, fed)
        return {
            name: _array(self._request.get_output_tensor(i), dtype)
            for i, (name, dtype) in enumerate(self._outputs)
        }

    def node_times(self) -> list[tuple[str, str, float]]:
        """Name, operator and seconds of each node that the last run executed."""
        return [
            (counter.node_name, counter.node_type, counter.real_time.total_seconds())
            for counter in self._request.get_profiling_info()
            if counter.status.name == "EXECUTED"
        ]

    def _check(self, feeds: Feeds) -> None:
        for name, dtype in self._dtypes.items():
            if name not in feeds:
                raise ValueError(f"input {name!r} is missing")
            value, rank = feeds[name], self._ranks[name]
            if value.dtype != dtype:
                raise TypeError(f"input {name!r} is {value.dtype}, expected {dtype}")
            if rank is not None and value.ndim != rank:
                raise ValueError(f"input {name!r} has rank {value.ndim}, expected {rank}")
            if value.dtype.kind in "iu" and value.dtype.itemsize >= 4 and value.size:
                if value.min() < _INT32.min or value.max() > _INT32.max:
                    raise Unsupported(
                        f"input {name!r} does not fit int32, in which OpenVINO computes integers"
                    )


def _require_memory(model: Any, request: Any, fed: Sequence[np.ndarray]) -> None:
    """Tell a result that is empty from one that there was no memory for.

    OpenVINO gives an empty tensor, and no error, where it cannot allocate a result whose shape the
    model leaves open.

    Raises:
        MemoryError: A result is empty, and its shape for these inputs is not.
    """
    results = range(len(model.outputs))
    empty = [i for i in results if 0 in tuple(request.get_output_tensor(i).shape)]
    if not empty:
        return
    sized = model.clone()
    sized.reshape({at: list(value.shape) for at, value in enumerate(fed)})
    for index in empty:
        shape = sized.outputs[index].get_partial_shape()
        if shape.is_static and 0 not in tuple(shape.to_shape()):
            raise MemoryError(f"OpenVINO had no memory for a result of shape {shape.to_shape()}")


def _told_limit(error: RuntimeError) -> str:
    """What OpenVINO says that it does not implement for processors; empty if it fails otherwise."""
    told = re.search(r"Unsupported operation of type: (\S+) .*?Details:(.*)", str(error), re.S)
    reasons = re.split(r"Exception from [^\n]*\n", told[2])[1:] if told else []
    if told is None or not all(reason.startswith("Not Implemented") for reason in reasons):
        return ""
    why = " ".join(reasons[0].partition(":")[2].split()) if reasons else ""
    return f"OpenVINO does not implement {told[1]} for processors: {why}".removesuffix(": ")


def _limit_of_plain(model: bytes, options: OpenVinoOptions) -> str:
    """What it says of the model as it is, without passes."""
    try:
        _core().compile_model(_core().read_model(model), "CPU", _properties(options))
    except RuntimeError as error:
        return _told_limit(error)
    return ""


_FAILED_CHECK = re.compile(r"\bCheck '[^\n]+' failed at \S+(?<!unconverted_ops_report\.cpp):\d+")
"""But for the check that all operators were converted."""
_READABLE = frozenset("f16 f32 f64 i8 i16 i32 i64 u8 u16 u32 u64 boolean".split())


def _operations(model: Any) -> list[Any]:
    leaves = ("Parameter", "Result", "Constant")
    return [op for op in model.get_ordered_ops() if op.get_type_name() not in leaves]


def _is_readable(port: Any) -> bool:
    return port.get_element_type().get_type_name() in _READABLE


def _key(port: Any) -> tuple[str, int]:
    return port.get_node().get_name(), port.get_index()


def _names(port: Any) -> tuple[str, ...]:
    """Tensor names, which import keeps; where there is none, what the operation is called."""
    own = tuple(sorted(port.get_names()))
    return own or (f"{port.get_node().get_friendly_name()}.{port.get_index()}",)


def _reads(port: Any) -> tuple[str, ...]:
    sources = [i.get_source_output() for i in port.get_node().inputs()]
    kept = [s for s in sources if s.get_node().get_type_name() != "Constant"]
    return tuple(_names(s)[0] for s in kept)


def _order_feeds(model: Any, feeds: Feeds) -> list[np.ndarray]:
    """A value per input of the model: by name, those left over by position."""
    names = [next((n for n in p.get_names() if n in feeds), None) for p in model.inputs]
    rest = [n for n in feeds if n not in names]
    if names.count(None) > len(rest):
        wanted = [sorted(p.get_names()) for p in model.inputs]
        raise ValueError(f"its inputs {wanted} cannot be matched with {list(feeds)}")
    left = iter(rest)
    return [feeds[next(left) if name is None else name] for name in names]


def _properties(options: OpenVinoOptions) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "EXECUTION_MODE_HINT": options.mode.upper(),
        "LP_TRANSFORMS_MODE": options.low_precision,
        "SNIPPETS_MODE": "ENABLE" if options.snippets else "DISABLE",
    }
    if options.precision != "device":
        properties["INFERENCE_PRECISION_HINT"] = options.precision
    if options.threads:
        properties |= {"INFERENCE_NUM_THREADS": options.threads, "NUM_STREAMS": 1}
    return properties


@functools.cache
def _core() -> Any:
    return _openvino().Core()


def _openvino() -> Any:
    import openvino

    return openvino


def _refuse_types(graph: onnx.GraphProto) -> None:
    for name, kind, what in values_outside((*graph.input, *graph.output), _SUPPORTED):
        why = " (it would be computed in float32)" if kind == "DOUBLE" else ""
        raise Unsupported(
            f"{name!r} is {what}, which OpenVINO cannot be judged on{why}; choose another runtime"
        )


def _refuse_random(graph: onnx.GraphProto) -> None:
    """Seeds are taken from the clock once per session, two operators' close to each other."""
    for node in nodes_of(graph):
        if is_onnx(node) and node.op_type in RANDOM_OPERATORS:
            raise Unsupported(
                f"operator {node.op_type} {node.name!r} draws random numbers whose distribution "
                "depends on the session in OpenVINO; choose another runtime"
            )


def _match(names: Sequence[set[str]], graph: onnx.GraphProto, inputs: Sequence[str]) -> list[str]:
    """The graph's input behind each compiled input: by name, those left over by position."""
    matched = [next((i for i in inputs if i in each), None) for each in names]
    used = {o.name for o in graph.output}.union(*(n.input for n in nodes_of(graph)))
    rest = [i for i in inputs if i not in matched and i in used]
    if len(rest) != matched.count(None):
        seen = [sorted(each) for each in names]
        raise ValueError(f"OpenVINO's inputs {seen} cannot be matched with {list(inputs)}")
    left = iter(rest)
    return [next(left) if name is None else name for name in matched]


def _dtype(value: onnx.ValueInfoProto) -> np.dtype[Any]:
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))


def _rank(value: onnx.ValueInfoProto) -> int | None:
    kind = value.type.tensor_type
    return len(kind.shape.dim) if kind.HasField("shape") else None


def _tensor(value: np.ndarray) -> Any:
    openvino = _openvino()
    if value.dtype.name == "bfloat16":
        tensor = openvino.Tensor(openvino.Type.bf16, list(value.shape))
        tensor.data[...] = value.view(tensor.data.dtype)  # the bits, in a type that numpy has
        return tensor
    return openvino.Tensor(np.array(value, order="C", copy=True))


def _array(tensor: Any, dtype: np.dtype[Any]) -> np.ndarray:
    value = np.array(tensor.data, copy=True)
    return value.view(dtype) if dtype.name == "bfloat16" else value
