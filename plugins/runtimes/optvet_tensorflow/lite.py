"""TFLite models: how they are loaded, called and looked into."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from optvet.plugin import (
    Artifact,
    InputError,
    SourceFacts,
    SourceInside,
    SourceOperand,
    SourceValue,
    load_factory,
)

TFLITE = "tflite"
_NO_VALUES = ("DELEGATE", "VAR_HANDLE")
_ORDERS = frozenset(
    "ARG_MAX ARG_MIN MAXIMUM MAX_POOL_2D MINIMUM REDUCE_MAX REDUCE_MIN TOPK_V2".split()
)
"""Operators that tell which number is the largest or the smallest. TFLite's documentation does not
say what they do with NaN, and LiteRT's kernels differ: one that is optimized and the reference."""
_LISTED = 16
"""Numbers of an operand, such as axes or paddings, that are listed."""


def bytes_of(artifact: Artifact) -> bytes:
    """The model: of a converter, of a file, or what a factory returns.

    Raises:
        InputError: It is no model.
    """
    if artifact.data:
        return artifact.data
    assert artifact.path is not None
    if artifact.handle is None:
        return artifact.path.read_bytes()
    model = load_factory(artifact).model
    if not isinstance(model, bytes):
        raise InputError(
            f"{artifact.path.name}:{artifact.handle.name}() returned a {type(model).__name__}, "
            "expected the bytes of a TFLite model"
        )
    return model


def facts_of(artifact: Artifact) -> SourceFacts:
    """Inputs of the factory, or drawn ones, under the names that the model gives them."""
    details = _interpreter(bytes_of(artifact)).get_input_details()
    names = [d["name"] for d in details]
    if artifact.handle is None:
        return SourceFacts({d["name"]: _draw(d) for d in details})
    facts = load_factory(artifact).facts

    def under(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if len(inputs) != len(names):
            raise InputError(
                f"{len(inputs)} example inputs, but the model has {len(names)}: {', '.join(names)}"
            )
        by_name = inputs
        if set(inputs) != set(names):
            by_name = dict(zip(sorted(names, key=_natural), inputs.values(), strict=True))
        return {name: by_name[name] for name in names}

    dynamic = {
        d["name"]: {a: f"{d['name']}_{a}" for a, s in enumerate(d["shape_signature"]) if s < 0}
        for d in details
    }
    return SourceFacts(under(facts.inputs), tuple(under(o) for o in facts.others), dynamic)


def _draw(detail: Mapping[str, Any]) -> np.ndarray:
    rng, kind = np.random.default_rng(0), np.dtype(detail["dtype"])
    shape = tuple(int(size) for size in detail["shape"])
    if kind.kind == "f":
        return np.asarray(rng.normal(size=shape)).astype(kind)
    return rng.integers(0, 2, shape).astype(kind)


class LiteSession:
    """A TFLite model, whose inputs are resized to what it is given.

    Args:
        data: The model.
        as_declared: Give outputs in the order of the file; else in that of their names, which is
            the order of the source that a converter was given.
        plain: Use the reference kernels.
    """

    def __init__(self, data: bytes, *, as_declared: bool, plain: bool = False) -> None:
        self._interpreter = _interpreter(data, "BUILTIN_REF" if plain else "AUTO")
        details = self._interpreter.get_output_details()
        ordered = details if as_declared else sorted(details, key=lambda d: _natural(d["name"]))
        self._outputs = [d["index"] for d in ordered]

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs in order, with numbers for names."""
        _feed(self._interpreter, feeds)
        self._interpreter.invoke()
        details = {d["index"]: d for d in self._interpreter.get_output_details()}
        return {f"output_{i}": self._value(details[index]) for i, index in enumerate(self._outputs)}

    def _value(self, detail: Mapping[str, Any]) -> np.ndarray:
        """A tensor; LiteRT does not hand out one without elements."""
        if 0 in detail["shape"]:
            return np.zeros(detail["shape"], detail["dtype"])
        return np.array(self._interpreter.get_tensor(detail["index"]))


def inside_of(data: bytes, feeds: Mapping[str, np.ndarray], as_declared: bool) -> SourceInside:
    """What every operator of the model computes."""
    interpreter = _run_whole(data, feeds)
    fed = {d["index"]: str(d["name"]) for d in interpreter.get_input_details()}
    places: dict[int, int] = {}
    values: list[SourceValue] = []
    computed: set[int] = set(fed)
    handles: set[int] = set()
    for op in interpreter._get_ops_details():
        if op["op_name"] in _NO_VALUES:
            handles.update(int(i) for i in op["outputs"])
            continue
        reads = [int(i) for i in op["inputs"] if i >= 0]
        operands = tuple(
            SourceOperand(str(i))
            if int(read) in handles  # LiteRT crashes on reading one.
            else _operand(interpreter, str(i), int(read), places, fed)
            for i, read in enumerate(op["inputs"])
        )
        undefined = ""
        if op["op_name"] in _ORDERS and any(_holds_nan(interpreter, i) for i in reads):
            undefined = "the largest or smallest of numbers one of which is NaN"
        for index in map(int, op["outputs"]):
            name = _name_of(interpreter, index)
            try:
                value = np.array(interpreter.get_tensor(index))
            except ValueError:  # A temporary, or a state, of an operator.
                continue
            values.append(
                SourceValue(
                    f"TFL_{op['op_name']}",
                    value,
                    tuple(places[i] for i in reads if i in places),
                    constant=not computed.intersection(reads),
                    module=name,
                    operands=operands,
                    undefined=undefined,
                )
            )
            places[index] = len(values) - 1
        if computed.intersection(reads):
            computed.update(map(int, op["outputs"]))
    details = interpreter.get_output_details()
    ordered = details if as_declared else sorted(details, key=lambda d: _natural(d["name"]))
    return SourceInside(tuple(values), tuple(places.get(d["index"]) for d in ordered))


def _holds_nan(interpreter: Any, index: int) -> bool:
    try:
        value = np.array(interpreter.get_tensor(index))
    except ValueError:  # A temporary, or a state, of an operator.
        return False
    return value.dtype.kind == "f" and bool(np.isnan(value).any())


def _operand(
    interpreter: Any, name: str, index: int, places: Mapping[int, int], fed: Mapping[int, str]
) -> SourceOperand:
    """What an operator reads; numbers that are stored in the model as such."""
    if index in places or index in fed:
        return SourceOperand(name, places.get(index), fed.get(index, ""))
    try:
        value = np.array(interpreter.get_tensor(index)) if index >= 0 else np.zeros(0)
    except ValueError:  # A state of an operator.
        return SourceOperand(name)
    if value.dtype.kind not in "fiub":  # Such as a text.
        return SourceOperand(name)
    if value.size == 1:
        return SourceOperand(name, constant=value.reshape(-1)[0].item())
    few = value.ndim == 1 and 0 < value.size <= _LISTED
    return SourceOperand(name, constant=value.tolist() if few else None)


def _run_whole(data: bytes, feeds: Mapping[str, np.ndarray]) -> Any:
    """An interpreter that has kept all values of a run.

    Delegates hide what they compute; but what only they can run is shown as far as it is.
    """
    for kind in ("BUILTIN_WITHOUT_DEFAULT_DELEGATES", "AUTO"):
        interpreter = _interpreter(data, kind, whole=True)
        _feed(interpreter, feeds)
        try:
            interpreter.invoke()
        except RuntimeError as error:
            failure = error
        else:
            return interpreter
    raise failure


def _name_of(interpreter: Any, index: int) -> str:
    details = interpreter._get_tensor_details(index, 0)
    return str(details["name"]) if details else ""


def _interpreter(data: bytes, kernels: str = "AUTO", whole: bool = False) -> Any:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    with warnings.catch_warnings():
        # That keeping all tensors takes memory.
        warnings.simplefilter("ignore", UserWarning)
        return Interpreter(
            model_content=data,
            num_threads=1,
            experimental_op_resolver_type=OpResolverType[kernels],
            experimental_preserve_all_tensors=whole,
        )


def _feed(interpreter: Any, feeds: Mapping[str, np.ndarray]) -> None:
    by_index = _place_inputs(interpreter, feeds)
    for index, value in by_index.items():
        interpreter.resize_tensor_input(index, value.shape)
    interpreter.allocate_tensors()
    kinds = {d["index"]: d["dtype"] for d in interpreter.get_input_details()}
    for index, value in by_index.items():
        interpreter.set_tensor(index, _cast(value, np.dtype(kinds[index])))


def _cast(value: np.ndarray, kind: np.dtype[Any]) -> np.ndarray:
    """Another width of the same kind of number, as the model declares it."""
    same = value.dtype.kind == kind.kind or {value.dtype.kind, kind.kind} <= {"i", "u"}
    return value.astype(kind) if same and value.dtype.kind not in "OSU" else value


def _place_inputs(interpreter: Any, feeds: Mapping[str, np.ndarray]) -> dict[int, np.ndarray]:
    """The inputs by index: by name, by the name in the signature, or else in order of names."""
    details = interpreter.get_input_details()
    by_name = {d["name"]: d["index"] for d in details}
    if len(feeds) != len(details):
        names = ", ".join(by_name)
        raise ValueError(f"the model takes {len(details)} inputs ({names}), not {len(feeds)}")
    if set(by_name) == set(feeds):
        return {by_name[name]: value for name, value in feeds.items()}
    for signature in interpreter.get_signature_list():
        runner = interpreter.get_signature_runner(signature)
        known = {name: d["index"] for name, d in runner.get_input_details().items()}
        if set(known) == set(feeds):
            return {known[name]: value for name, value in feeds.items()}
    ordered: Sequence[str] = sorted(by_name, key=_natural)
    return {by_name[n]: v for n, v in zip(ordered, feeds.values(), strict=True)}


def names_in_order(data: bytes, feeds: Mapping[str, np.ndarray]) -> tuple[list[str], list[str]]:
    """Names of inputs and outputs in the order of the source that a converter was given."""
    interpreter = _interpreter(data)
    names = {d["index"]: str(d["name"]) for d in interpreter.get_input_details()}
    outputs = sorted((str(d["name"]) for d in interpreter.get_output_details()), key=_natural)
    return [names[index] for index in _place_inputs(interpreter, feeds)], outputs


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts ``output_2`` before ``output_10``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
