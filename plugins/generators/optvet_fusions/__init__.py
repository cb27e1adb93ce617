"""Patterns that optimizers look for: fusions, cancelling operators, operators that do nothing.

One or two small models per family, as frameworks export them. Optimizers are alike in what they
rewrite, and random models hardly ever hold a pattern of several operators. Each comes three times:
alone; between other operators, since what makes an output of the model is often left as it is; and
in equal sizes, where operands, axes and letters can be swapped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import onnx.parser
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

from optvet.graph import ONNX_DOMAIN, Typed, candidate_of, rename_node_values, types_of
from optvet.plugin import Fragment, Pattern, Pool, PoolRequest, hookimpl

_FILE = Path(__file__).parent / "patterns.txt"
_ML_DOMAIN, _ML_VERSION = "ai.onnx.ml", 4
_SIZES = {"N": 1, "S": 3}
"""Of dimensions that a pattern leaves open."""


class Fusions:
    """Families of patterns, each with its weights as weights."""

    name = "fusions"
    needs_argument = False

    def fragments(self, request: PoolRequest) -> Iterable[Fragment | Pattern]:
        """Two or three fragments per pattern; they are the same whatever the passes are."""
        generator = np.random.default_rng(request.seed)
        written = _parse_patterns(_FILE.read_text())
        fragments = (_fragment(n, *pattern, generator) for n, pattern in enumerate(written))
        return itertools.islice(
            itertools.chain.from_iterable(map(_variants, fragments)), request.limit
        )


def _parse_patterns(text: str) -> Iterator[tuple[int, str]]:
    """Version of the operator set, and text, of each pattern: those of a line ``opset N``."""
    version = 0
    for line in text.splitlines():
        words = line.split("#")[0].strip()
        if words.startswith("opset "):
            version = int(words.split()[1])
        elif words:
            yield version, words


def _fragment(number: int, version: int, text: str, generator: np.random.Generator) -> Fragment:
    inputs_text, _, rest = text.partition("->")
    outputs_text, _, body = rest.partition("{")
    inputs, _, weights = inputs_text.partition("|")
    fixed = f"<{weights.strip()}>" if weights.strip() else ""
    source = (
        f'<ir_version: 8, opset_import: ["" : {version}, "{_ML_DOMAIN}" : {_ML_VERSION}]> '
        f"hunted ({inputs.strip()}) => ({outputs_text.strip()}) {fixed} {{{body}"
    )
    graph = onnx.parser.parse_model(source).graph
    values = {v.name: _value(v, generator) for v in graph.input}
    known = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    trained = {name for name in values if name[0].isupper()}
    sizes = {v.name: _open_sizes(v) for v in graph.input}
    name = f"fusions/{number}-{'-'.join(n.op_type for n in graph.node)}"
    outputs = {o.name: np.zeros(0, np.float32) for o in graph.output}
    return Fragment(
        name,
        tuple(graph.node),
        values | known,
        outputs,
        {ONNX_DOMAIN: version} | {n.domain: _ML_VERSION for n in graph.node if n.domain},
        weights=frozenset(trained | known.keys()),
        open_sizes={name: axes for name, axes in sizes.items() if axes},
    )


def _open_sizes(info: ValueInfoProto) -> dict[int, str]:
    dims = enumerate(info.type.tensor_type.shape.dim)
    return {axis: d.dim_param for axis, d in dims if d.HasField("dim_param")}


def _variants(fragment: Fragment) -> Iterator[Fragment]:
    yield _between(fragment)
    yield fragment
    if any(size > 2 for value in fragment.inputs.values() for size in value.shape):
        yield _between(_of_equal_sizes(fragment))


def _of_equal_sizes(fragment: Fragment) -> Fragment:
    """``fragment`` with sizes of 2 where they were larger; some do not fit its constants then."""
    shapes = {n: tuple(min(size, 2) for size in v.shape) for n, v in fragment.inputs.items()}
    inputs = {
        n: v if v.dtype.kind in "iu" and n in fragment.weights else np.resize(v, shapes[n])
        for n, v in fragment.inputs.items()
    }
    return replace(fragment, name=f"{fragment.name}-equal", inputs=inputs)


def _between(fragment: Fragment) -> Fragment:
    """``fragment`` behind operators that make what it reads, and before ones that read its outputs.

    Constants stay what they are.
    """
    typed = types_of(candidate_of(fragment, Random(0)).model)
    inner = {o for node in fragment.nodes for o in node.output}
    inputs = [n for n in fragment.inputs if n not in fragment.weights]
    names = {n: f"{n}_given" for n in inputs if _operator(n, typed)}
    names |= {n: f"{n}_made" for n in fragment.outputs if n in inner and _operator(n, typed)}
    before = [helper.make_node(_operator(n, typed), [n], [names[n]]) for n in inputs if n in names]
    after = [
        helper.make_node(_operator(n, typed), [names[n]], [n])
        for n in fragment.outputs
        if n in names
    ]
    nodes = (*before, *(rename_node_values(node, names) for node in fragment.nodes), *after)
    return replace(fragment, name=f"{fragment.name}-between", nodes=nodes)


def _operator(name: str, typed: Typed) -> str:
    """One that keeps type and shape of a value; none where its type is not known."""
    element = typed[name][0] if name in typed else 0
    if element == TensorProto.BOOL:
        return "Not"
    signed = (TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32)
    return "Neg" if element in signed else ""


def _value(info: ValueInfoProto, generator: np.random.Generator) -> np.ndarray:
    """Positive numbers for weights, among which are variances; else of both signs."""
    tensor = info.type.tensor_type
    kind = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    shape = [
        _SIZES[d.dim_param] if d.HasField("dim_param") else d.dim_value for d in tensor.shape.dim
    ]
    if kind.kind == "b":
        return np.asarray(generator.integers(0, 2, size=shape)).astype(kind)
    if kind.kind in "iu":
        return np.asarray(generator.integers(0, 3, size=shape)).astype(kind)
    drawn = generator.normal(size=shape)
    return np.asarray(np.abs(drawn) + 0.5 if info.name[0].isupper() else drawn).astype(kind)


@hookimpl
def optvet_generators() -> Iterable[Pool]:
    """The pool of patterns."""
    return [Fusions()]
