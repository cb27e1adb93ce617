"""How far undefined operations of a model reach: which elements of its outputs depend on them.

The elements that the standard leaves open get other values, and what follows is run again. What
does not move then has an answer, and no undefined operation excuses a wrong value of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from optvet.engine.judge.sample import magnitude
from optvet.engine.judge.sizes import differing
from optvet.engine.numerics.floats import is_float
from optvet.engine.standard.elements import (
    largest_of_numbers,
    may_be_largest,
    open_elements,
)
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inner_values import record_values
from optvet.engine.work.trials.undefined_values import fed_with, region_of, undefined_on
from optvet.graph.functions import without_functions
from optvet.graph.walk import domain_of, opset_versions
from optvet.spec.runtime_protocols import Session
from optvet.spec.types import Artifact

Values = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Reach:
    """What is undefined in a region of a model, and how far that reaches.

    Attributes:
        words: What is undefined, and why.
        elements: Elements of outputs that depend on it, by output; an output without is reached by
            nothing. None: it is not known, since the operation is inside of a body.
        numbers: Of an output that is a largest number among NaN, the largest without them.
    """

    words: str
    elements: Mapping[str, np.ndarray] | None = None
    numbers: Mapping[str, tuple[NodeProto, np.ndarray]] = field(default_factory=dict)

    def excuses(self, output: str, ref: np.ndarray, came: np.ndarray, share: float) -> bool:
        """Whether an output is wrong only as kernels may be that answer the undefined otherwise.

        Where the reference takes another number for the largest itself, nobody is accused.

        Args:
            output: Its name.
            ref: What the original gives.
            came: What the optimized model gives, of the same shape.
            share: How far what has an answer may be off, by its largest magnitude.
        """
        if self.elements is None:
            return True
        reached = self.elements.get(output)
        if reached is None or reached.shape != ref.shape:
            return reached is not None
        if np.any(differing(ref[~reached], came[~reached], share * magnitude(ref[~reached]))):
            return False
        if output not in self.numbers:
            return True
        node, numbers = self.numbers[output]
        size = share * magnitude(numbers)
        right, given = (may_be_largest(node, v, numbers, size) for v in (ref, came))
        return not np.any(reached & right & ~given)

    def told(self, output: str) -> str:
        """The words, and how many elements of an output depend on what is undefined."""
        reached = None if self.elements is None else self.elements.get(output)
        if self.elements is None:
            return f"{self.words}; how far that reaches is not known"
        if reached is None:
            return self.words
        share = f"{int(reached.sum())} of {reached.size} elements of {output!r} depend on it"
        return f"{self.words}; {share}"


def reach_of_undefined(
    data: bytes,
    feeds: Values,
    config: RuntimeConfig,
    begins: Collection[str],
    ends: Collection[str],
) -> Reach | None:
    """What is undefined between values of a model; None if nothing is. Called in a worker.

    Args:
        data: The model.
        feeds: Its inputs.
        config: What runs it.
        begins: Values at which the region begins, which belong to it no more.
        ends: Values that are computed in it.
    """
    model = without_functions(ModelProto.FromString(data))
    found = undefined_on(config, model, feeds)
    region = region_of(model, begins, ends) if found else set()
    inside = [u for u in found if region & {*u.values}]
    if not inside:
        return None
    words = inside[0].words()
    try:
        return _measure(model, feeds, config, words, {v for u in inside for v in u.values})
    except Exception as error:  # runtimes raise what they like of a model with more inputs
        if isinstance(error, MemoryError):
            raise
        return Reach(words)


def _measure(
    model: ModelProto, feeds: Values, config: RuntimeConfig, words: str, names: set[str]
) -> Reach:
    values = {**feeds, **record_values(model.SerializeToString(), feeds, config)}
    values |= {t.name: _array(t) for t in model.graph.initializer}
    makers = {o: n for n in model.graph.node for o in n.output}
    if not names <= makers.keys() & values.keys():
        return Reach(words)
    versions = opset_versions(model)
    open_ = {n: open_elements(makers[n], n, values, versions[domain_of(makers[n])]) for n in names}
    reached = {o.name: open_[o.name] for o in model.graph.output if o.name in names}
    numbers = {
        name: (makers[name], largest)
        for name in reached
        if (largest := _largest_without_nan(makers[name], name, values, model, config)) is not None
    }
    added = fed_with(model, names, values)
    if added:
        session = config.runtime.load(Artifact("onnx", model.SerializeToString()), config.options)
        taken = {i.name for i in model.graph.input}
        given = {n: v for n, v in values.items() if n in taken}
        base = session.run(given)
        answers = list(_other_answers({n: (values[n], open_[n]) for n in added}))
        runs = [r for a in answers if (r := _run(session, {**given, **a})) is not None]
        if not runs:
            return Reach(words)
        for name, value in base.items():
            moved = [_differ(value, run[name]) for run in runs]
            reached[name] = np.logical_or.reduce([*moved, np.zeros(np.shape(value), bool)])
    return Reach(words, reached, numbers)


def _run(session: Session, feeds: Values) -> Values | None:
    """Outputs; None where a runtime refuses other values, such as a place outside of the data."""
    try:
        return session.run(dict(feeds))
    except Exception as error:
        if isinstance(error, MemoryError):
            raise
        return None


def _array(tensor: TensorProto) -> np.ndarray:
    return np.asarray(numpy_helper.to_array(tensor))


def _other_answers(given: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Iterator[Values]:
    """The values with others in place of those that are open: plain ones, and some of the rest."""
    rng = np.random.default_rng(0)
    for kind in range(4):
        changed = {}
        for name, (value, open_) in given.items():
            other = np.full(value.shape, kind, value.dtype)
            if kind > 1 and value.dtype.kind in "iu":
                other = rng.permutation(value.ravel()).reshape(value.shape)
            elif kind > 1 and is_float(value.dtype):
                usual = np.nan_to_num(value.astype(np.float64), posinf=1.0, neginf=-1.0)
                other = ((1 - kind) * (1 + rng.permutation(usual.ravel()))).reshape(value.shape)
            changed[name] = np.where(open_, other.astype(value.dtype), value)
        yield changed


def _differ(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Where two results are not equal; everywhere if their shapes are not."""
    if np.shape(one) != np.shape(other):
        return np.ones(np.shape(one), bool)
    same = one == other
    return np.asarray(~(same | ((one != one) & (other != other))))


def _largest_without_nan(
    node: NodeProto, name: str, values: Values, model: ModelProto, config: RuntimeConfig
) -> np.ndarray | None:
    """What a node gives of numbers alone, if it takes the largest of several; else None."""
    operand = values.get(node.input[0]) if node.input and name == node.output[0] else None
    numbers = None if operand is None else largest_of_numbers(node, operand)
    if numbers is None:
        return None
    fed = {n: values[n] for n in node.input if n} | {node.input[0]: numbers}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in fed.items()
    ]
    graph = helper.make_graph([node], "largest", infos, [ValueInfoProto(name=name)])
    single = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    artifact = Artifact("onnx", single.SerializeToString())
    return config.runtime.load(artifact, config.options).run(fed)[name]
