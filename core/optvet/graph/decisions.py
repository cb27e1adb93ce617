"""Decisions inside a graph, and which of their sides the values of a run took.

An operator that decides (Relu, Where, TopK, a Gather of a table, If …) has sides. If every sample
takes the same one, nothing is known of the other: a rewrite may have changed it. ``DECISIONS`` says
of each operator which value tells the side. A region that was rewritten also decides where it gives
0 alone, and where rows of a table changed that nothing reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
)

from optvet.graph.digest import tensor_digest
from optvet.graph.interface import graph_inputs
from optvet.graph.sites import Site, attributes_of, find_rewrites
from optvet.graph.trees import ENSEMBLES, Forest, as_listed
from optvet.graph.walk import attribute_of, bodies_of, operator_of, opset_versions, reads
from optvet.graph.weights import constants_of, held_tensor

Sides = frozenset[Hashable]
Seen = Callable[[np.ndarray], Collection[Hashable]]
Words = Callable[[Collection[Hashable]], str]


@dataclass(frozen=True)
class Decision:
    """What ``value`` shows about a node: the ``sides`` that there are, those ``seen`` in an array.

    ``words`` says what it means that some were never seen, given those; ``node`` is the operator
    and the name of the node.
    """

    node: str
    value: str
    sides: Sides
    seen: Seen
    words: Words


@dataclass(frozen=True)
class Region:
    """One place that was rewritten: its nodes in the graph before, and what is decided there.

    ``results`` are the values that others read, that depend on data, and that should be as before;
    with the indices of the nodes that make them. ``relearned``: some node reads other numbers or
    words than before.
    """

    nodes: tuple[int, ...]
    decisions: tuple[Decision, ...]
    results: tuple[tuple[int, str], ...]
    relearned: bool


def rewritten_regions(before: ModelProto, after: ModelProto) -> list[Region]:
    """The regions of ``before`` that ``after`` has otherwise, with decisions that data may turn.

    Nodes that depend on sizes alone decide nothing. To nodes that depend on no input, as those of
    packed weights, belong those that read them. Values inside of nested graphs are not looked at.
    """
    graphs = _Graphs(before, after)
    regions = []
    sites = find_rewrites(before, after)
    for site in [*sites, *graphs.captured({i for s in sites for i in s.before})]:
        nodes = graphs.reached(site.before)
        if nodes:
            twins = graphs.twins(nodes, site.after)
            decisions = tuple(graphs.decisions(nodes, twins))
            relearned = any(_relearned(*pair, graphs.constants) for pair in twins.values())
            # Before a quantizer that moved to the front values are others, and shall be.
            quantized = _quantizers(after, site.after) > _quantizers(before, nodes)
            results = () if quantized else tuple(graphs.results(nodes))
            regions.append(Region(nodes, decisions, results, relearned))
    return regions


# --- sides ----------------------------------------------------------------------------------------


def _around(low: float | None, high: float | None) -> tuple[Sides, Seen]:
    """Below a lower and above an upper bound, where there are such, and between them."""
    tests: dict[Hashable, Callable[[np.ndarray], np.ndarray]] = {}
    if low is not None:
        tests[f"below {low:g}"] = partial(np.greater, low)
    if high is not None:
        tests[f"above {high:g}"] = partial(np.less, high)
    least, most = -np.inf if low is None else low, np.inf if high is None else high
    tests["within bounds"] = lambda x: (x >= least) & (x <= most)
    return frozenset(tests), lambda x: {side for side, test in tests.items() if test(x).any()}


def _signs(x: np.ndarray) -> set[str]:
    return {words for words, side in (("below 0", x < 0), ("above 0", x > 0)) if side.any()}


def _truth(x: np.ndarray) -> set[str]:
    flags = x.astype(bool)
    return {word for word, some in (("true", flags.any()), ("false", (~flags).any())) if some}


def _values(x: np.ndarray) -> set[Hashable]:
    """The first two of the different values."""
    return set(np.unique(x)[:2].tolist())


def _never(sides: Collection[Hashable]) -> str:
    return f"never {' or '.join(sorted(map(str, sides)))}"


_FIRST, _OUTPUT, _SECOND_OUTPUT = ("input", 0), ("output", 0), ("output", 1)
Told = tuple[tuple[str, int], Sides, Seen, Words]
_SIGNS, _TRUTH = (frozenset[Hashable](s) for s in (("below 0", "above 0"), ("true", "false")))
_KINKED = ("Relu", "LeakyRelu", "PRelu", "Elu", "Selu", "Celu", "Abs", "Sign")
_LOGIC = (
    *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "Not", "And", "Or", "Xor"),
    *("IsNaN", "IsInf"),
)
_OTHER_THAN_0: Sides = frozenset({"other than 0"})
SEVERAL: Sides = frozenset({"several"})
"""The side of a decision that samples show once they give two different values."""
DECISIONS: Mapping[str, Told] = {
    **dict.fromkeys(_KINKED, (_FIRST, _SIGNS, _signs, _never)),
    **dict.fromkeys(_LOGIC, (_OUTPUT, _TRUTH, _truth, _never)),
    "Where": (_FIRST, _TRUTH, _truth, _never),
    "ArgMax": (_OUTPUT, SEVERAL, _values, lambda s: "always the same index"),
    "ArgMin": (_OUTPUT, SEVERAL, _values, lambda s: "always the same index"),
    "TopK": (_SECOND_OUTPUT, SEVERAL, _values, lambda s: "always the same index"),
    "QuantizeLinear": (_OUTPUT, SEVERAL, _values, lambda s: "always the same number"),
    "NonMaxSuppression": (
        _OUTPUT,
        frozenset({"a box"}),
        lambda x: {"a box"} if x.size else set(),
        _never,
    ),
    "HardSwish": (_FIRST, *_around(-3.0, 3.0), _never),
}
"""By operator: the operand or result that tells the side, the sides, and how they are seen."""


def unseen(decision: Decision, seen: Collection[Hashable]) -> Sides:
    """The sides that are not among those ``seen`` on all samples."""
    if decision.sides is SEVERAL:
        return frozenset() if len(seen) > 1 else SEVERAL
    return decision.sides.difference(seen)


_FLOAT_MAX = 3e38
_BRANCHES: Mapping[Hashable, str] = {"true": "then_branch", "false": "else_branch"}
_MEANT = (
    *(AttributeProto.FLOAT, AttributeProto.FLOATS, AttributeProto.STRING),
    AttributeProto.STRINGS,
)
"""Attributes that say what is computed; those of integers have several forms of the same."""
_SHAPES = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
_PLACED = ("Slice", "Gather", "GatherND", "GatherElements", "ArrayFeatureExtractor")
"""Operators of which constants of integers are positions."""
_READERS = ("Gather", "GatherND", "GatherElements", "ArrayFeatureExtractor")
"""Operators that read rows of their first operand by the indices of their second."""
_COMPARERS = ("Sub", "CDist", "MatMul", "Gemm", "Scan")
"""Operators that compare inputs with all rows of a constant, where the nearest is then chosen."""
_DISTANCE = frozenset(
    "Add Sub Mul Div Sqrt Neg Max Relu Clip Transpose Reshape Squeeze Unsqueeze Cast Pow Sum Abs "
    "ReduceSum ReduceSumSquare ReduceL1 ReduceL2 Identity Exp Log Flatten".split()
)
_HOPS = 12


@dataclass(frozen=True)
class _Graphs:
    """A graph before and after its rewrite."""

    before: ModelProto
    after: ModelProto

    @cached_property
    def known(self) -> set[str]:
        """Values of the graph before that depend on what inputs hold, not on sizes alone."""
        return self._depending(("Shape", "Size"))

    @cached_property
    def variable(self) -> set[str]:
        """Values of the graph before that depend on inputs in any way."""
        return self._depending(())

    def _depending(self, barriers: Collection[str]) -> set[str]:
        found = {i.name for i in graph_inputs(self.before)}
        for node in self.before.graph.node:
            if node.op_type not in barriers and not found.isdisjoint(reads(node)):
                found.update(name for name in node.output if name)
        return found

    def reached(self, site: Sequence[int]) -> tuple[int, ...]:
        """The nodes of a site, with what reads it until data come in; none where none ever do."""
        found, nodes = set(site), self.before.graph.node
        while made := {name for i in found for name in nodes[i].output}:
            if not made.isdisjoint(self.known):
                return tuple(sorted(found))
            readers = {i for name in made for i in self.readers.get(name, ())}
            if not made.isdisjoint(self.variable) or readers <= found:
                return ()
            found |= readers
        return ()

    @cached_property
    def constants(self) -> _Constants:
        versions = opset_versions(self.before)
        return _Constants(constants_of(self.before), constants_of(self.after), versions)

    @cached_property
    def readers(self) -> Mapping[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for i, node in enumerate(self.before.graph.node):
            for name in reads(node):
                found[name].append(i)
        return found

    def twins(
        self, region: Sequence[int], others: Sequence[int]
    ) -> dict[int, tuple[NodeProto, NodeProto]]:
        """Nodes of the region, by index, with those of the other graph that take their place."""
        made = {n.output[0]: n for n in (self.after.graph.node[i] for i in others) if n.output}
        nodes = {i: self.before.graph.node[i] for i in region}
        pairs = {i: (n, made[n.output[0]]) for i, n in nodes.items() if {*n.output[:1]} & {*made}}
        return {i: p for i, p in pairs.items() if operator_of(p[0]) == operator_of(p[1])}

    def captured(self, rest: Collection[int]) -> Iterator[Site]:
        """Nodes that are as before but for the numbers that their nested graphs read outside."""
        nodes = {i: n for i, n in enumerate(self.before.graph.node) if i not in rest}
        nested = [i for i, n in nodes.items() if any(True for _ in bodies_of(n))]
        places = {n.output[0]: i for i, n in enumerate(self.after.graph.node) if n.output}
        for i in nested:
            other = places.get(nodes[i].output[0])
            if other is not None and self.twins((i,), (other,)):
                if _relearned(nodes[i], self.after.graph.node[other], self.constants):
                    yield Site((i,), (other,))

    def decisions(
        self, region: Sequence[int], twins: Mapping[int, tuple[NodeProto, NodeProto]]
    ) -> Iterator[Decision]:
        for index in region:
            node, twin = twins.get(index, (self.before.graph.node[index], None))
            found = [*self._sides(node, twin), *self._rows(node, twin), *_leaves(node, twin)]
            found += self._added(node, twin)
            yield from (d for d in found if d.value in self.known and d.sides)
        for index, name in self.results(region):
            node = self.before.graph.node[index]
            if node.op_type not in _LOGIC:
                yield Decision(name_of(node), name, _OTHER_THAN_0, _not_zero, _never)

    def _sides(self, node: NodeProto, twin: NodeProto | None) -> Iterator[Decision]:
        told = self._bounded(node) or DECISIONS.get(node.op_type)
        if told is not None:
            (side, place), sides, seen, words = told
            names = node.input if side == "input" else node.output
            if place < len(names) and names[place]:
                yield Decision(name_of(node), names[place], sides, seen, words)
        if node.op_type == "If":
            changed = {
                side: branch
                for side, branch in _BRANCHES.items()
                if twin is None or attribute_of(node, branch) != attribute_of(twin, branch)
            }
            yield Decision(
                name_of(node),
                node.input[0],
                frozenset(changed or _BRANCHES),
                _truth,
                lambda sides: f"{' and '.join(sorted(_BRANCHES[s] for s in sides))} never taken",
            )

    def _added(self, node: NodeProto, twin: NodeProto | None) -> Iterator[Decision]:
        """Whether an added number, such as an epsilon, meets values of about its own size.

        Where all are far larger, another number makes next to no difference.
        """
        if node.op_type != "Add" or twin is None or len(twin.input) != 2:
            return
        for place, other in ((0, 1), (1, 0)):
            was = self._number(node, place)
            now = _number_of(self.constants.now.get(twin.input[place]))
            if was is not None and now is not None and was != now:
                far = _FAR * max(abs(was), abs(now))
                told = (_NEAR, partial(_near, far), partial(_never_near, far))
                yield Decision(name_of(node), node.input[other], *told)

    def _bounded(self, node: NodeProto) -> Told | None:
        """The sides of bounds that are given by attributes or constants."""
        low: float | None = None
        high: float | None = None
        place = 0
        match node.op_type:
            case "HardSigmoid":
                alpha, beta = attribute_of(node, "alpha", 0.2), attribute_of(node, "beta", 0.5)
                low, high = -beta / alpha, (1 - beta) / alpha
            case "ThresholdedRelu":
                high = attribute_of(node, "alpha", 1.0)
            case "Binarizer":
                high = attribute_of(node, "threshold", 0.0)
            case "Shrink":
                high = attribute_of(node, "lambd", 0.5)
                low = -high
            case "Clip":
                low, high = (
                    attribute_of(node, name, self._number(node, i))
                    for i, name in ((1, "min"), (2, "max"))
                )
            case "Max" | "Min" if len(node.input) == 2:
                numbers = [self._number(node, i) for i in (0, 1)]
                place = 0 if numbers[0] is None else 1
                low = high = numbers[1 - place]
                if low is None:
                    return None
                low, high = (low, None) if node.op_type == "Max" else (None, high)
            case _:
                return None
        # A bound that no value of the type exceeds is none.
        low, high = (None if b is None or abs(b) >= _FLOAT_MAX else b for b in (low, high))
        return (("input", place), *_around(low, high), _never)

    def _number(self, node: NodeProto, index: int) -> float | None:
        """A constant operand that is one number; None if it is none."""
        name = node.input[index] if index < len(node.input) else ""
        return _number_of(self.constants.was.get(name))

    def _rows(self, node: NodeProto, twin: NodeProto | None) -> Iterator[Decision]:
        """Rows of tables and stored points: those that changed, else two of them."""
        table = node.op_type in _READERS
        if not table and node.op_type not in _COMPARERS:
            return
        for place, name in enumerate(node.input):
            if name not in self.constants.was or (table and place):
                continue
            changed = self._changed(node, twin, place)
            value = node.input[1] if table else self._chosen(node)
            if value is None or (not table and not changed.any()):
                continue
            if not changed.any():
                yield Decision(name_of(node), value, SEVERAL, _values, _same_row)
                continue
            rows = np.flatnonzero(changed).tolist()
            verb = "read" if table else "among the nearest"
            yield Decision(
                name_of(node),
                value,
                frozenset(rows),
                partial(_indices, len(changed)),
                partial(_unread, name, len(rows), verb),
            )

    def _changed(self, node: NodeProto, twin: NodeProto | None, place: int) -> np.ndarray:
        """Which rows of a constant operand the other graph has otherwise."""
        was = self.constants.was[node.input[place]]
        now = None
        if twin is not None and place < len(twin.input):
            now = self.constants.now.get(twin.input[place])
        rows = _as_rows(node, numpy_helper.to_array(was))
        if now is None or (now.dims, now.data_type) != (was.dims, was.data_type):
            return np.zeros(len(rows), bool)
        other = _as_rows(node, numpy_helper.to_array(now))
        differs: np.ndarray = (rows != other).reshape(len(rows), -1).any(1)
        return differs

    def _chosen(self, node: NodeProto) -> str | None:
        """Indices of the best of the distances that a node computes; empty if none are chosen."""
        names = [o for o in node.output if o]
        for _ in range(_HOPS):
            indices = {i for name in names for i in self.readers.get(name, ())}
            following = [self.before.graph.node[i] for i in sorted(indices)]
            for reader in following:
                if reader.op_type in ("ArgMin", "ArgMax", "TopK"):
                    return str(reader.output[1 if reader.op_type == "TopK" else 0])
            names = [o for n in following if n.op_type in _DISTANCE for o in n.output]
        return None

    def results(self, region: Collection[int]) -> Iterator[tuple[int, str]]:
        """What leaves the region and depends on data."""
        outputs = {o.name for o in self.before.graph.output}
        for index in region:
            for name in self.before.graph.node[index].output:
                leaves = name in outputs or not set(self.readers.get(name, ())).issubset(region)
                if leaves and name in self.known:
                    yield index, name


@dataclass(frozen=True)
class _Constants:
    """Constants of the graph before and after, by name, and what versions its operators are of."""

    was: Mapping[str, TensorProto]
    now: Mapping[str, TensorProto]
    versions: Mapping[str, int]


_FAR = 1000.0
"""So many times a number that is added are values of another size."""
_NEAR: Sides = frozenset({"near"})


def _near(far: float, x: np.ndarray) -> set[str]:
    return {"near"} if (np.abs(x) <= far).any() else set()


def _never_near(far: float, sides: Collection[Hashable]) -> str:
    return f"never added to less than {far:g}"


def _number_of(tensor: TensorProto | None) -> float | None:
    """The number that a constant is; None if it is none."""
    value = None if tensor is None else numpy_helper.to_array(tensor)
    return float(value.astype(np.float64).item()) if value is not None and value.size == 1 else None


def _relearned(node: NodeProto, twin: NodeProto, constants: _Constants) -> bool:
    """Whether a node, or one nested in it, reads other numbers or words than its twin.

    Not such as have several forms of the same, as shapes and axes.
    """
    lists = node.domain == "ai.onnx.ml" or node.op_type == "TfIdfVectorizer"
    meant = {a.name for n in (node, twin) for a in n.attribute if lists or a.type in _MEANT}
    was, now = (attributes_of(n, constants.versions) for n in (node, twin))
    pairs = zip(node.input, twin.input, strict=False)
    both = [(constants.was.get(a), constants.now.get(b)) for a, b in pairs]
    return (
        any(was.get(name) != now.get(name) for name in meant - {"auto_pad"})
        or any(a and b and _differ(a, b, node.op_type in _PLACED) for a, b in both)
        or any(_relearned_inside(*bodies, constants) for bodies in _paired_bodies(node, twin))
    )


def _differ(a: TensorProto, b: TensorProto, placed: bool) -> bool:
    if (a.dims, a.data_type) != (b.dims, b.data_type) or (a.data_type in _SHAPES and not placed):
        return False
    return tensor_digest(a) != tensor_digest(b)


def _paired_bodies(node: NodeProto, twin: NodeProto) -> Iterator[tuple[GraphProto, GraphProto]]:
    return zip(bodies_of(node), bodies_of(twin), strict=False)


def _relearned_inside(before: GraphProto, after: GraphProto, outer: _Constants) -> bool:
    was, now = (
        {
            **known,
            **{t.name: t for t in body.initializer},
            **{n.output[0]: t for n in body.node if (t := held_tensor(n)) is not None},
        }
        for known, body in ((outer.was, before), (outer.now, after))
    )
    made = {n.output[0]: n for n in after.node if n.output}
    pairs = [(n, made[n.output[0]]) for n in before.node if n.output and n.output[0] in made]
    return any(
        operator_of(n) == operator_of(other)
        and _relearned(n, other, _Constants(was, now, outer.versions))
        for n, other in pairs
        if held_tensor(n) is None
    )


def _quantizers(model: ModelProto, nodes: Sequence[int]) -> int:
    return sum(model.graph.node[i].op_type == "QuantizeLinear" for i in nodes)


def name_of(node: NodeProto) -> str:
    """A node in words: its operator, and its name or that of its first output."""
    return f"{node.op_type} {node.name or node.output[0]}"


def _leaves(node: NodeProto, twin: NodeProto | None) -> Iterator[Decision]:
    """Nodes of trees that rows come to: those that changed and what follows them, else leaves."""
    if node.op_type not in ENSEMBLES:
        return
    was, now = _listed(node), {} if twin is None else _listed(twin)
    if not {"nodes_treeids", "nodes_nodeids", "nodes_values"} <= was.keys():
        return  # thresholds in double precision, or tests for members of sets
    forest = Forest(was)
    differ = {row[:2] for row in {*_rows_of(was)} ^ {*_rows_of(now)}} if now else set()
    wanted = {forest.place[key] for key in differ if key in forest.place}
    for inner in wanted.difference(forest.leaves):
        wanted.update(follows[inner] for follows in forest.children.values())
    kind = "changed nodes" if wanted else "leaves"
    sides = frozenset[Hashable](wanted or forest.leaves)
    words = partial(_unreached, len(sides), kind)
    yield Decision(name_of(node), node.input[0], sides, partial(_visited, forest), words)


def _listed(node: NodeProto) -> dict[str, Any]:
    found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    try:
        return as_listed(found) if node.op_type == "TreeEnsemble" else found
    except KeyError:
        return {}


def _rows_of(ensemble: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """What is said of each node of each tree: its tree, its number, and the rest."""
    for prefix in ("nodes", "class", "target"):
        columns = {n: v for n, v in ensemble.items() if n.startswith(f"{prefix}_")}
        first = [columns.pop(f"{prefix}_{n}", ()) for n in ("treeids", "nodeids")]
        same = [v for _, v in sorted(columns.items()) if len(v) == len(first[0])]
        yield from zip(*first, *same, strict=True)


def _visited(forest: Forest, x: np.ndarray) -> set[Hashable]:
    table = np.asarray(x).reshape(len(x), -1) if np.ndim(x) > 1 else np.reshape(x, (1, -1))
    return {index for index, rows in forest.visits(table) if len(rows)}


def _unreached(count: int, kind: str, sides: Collection[Hashable]) -> str:
    return f"{len(sides)} of {count} {kind} never reached"


def _as_rows(node: NodeProto, constant: np.ndarray) -> np.ndarray:
    """A table, or points that are compared with, with the axis of its rows in front."""
    flipped = node.op_type == "Gemm" and not attribute_of(node, "transB", 0)
    axis = 0
    if node.op_type in ("Gather", "GatherElements"):
        axis = attribute_of(node, "axis", 0)
    elif node.op_type in ("ArrayFeatureExtractor", "MatMul") or flipped:
        axis = -1
    elif node.op_type == "Sub":
        axis = max(0, constant.ndim - 2)
    return np.moveaxis(np.atleast_1d(constant), axis, 0)


def _not_zero(x: np.ndarray) -> set[str]:
    shows = x.dtype.kind not in "fiubc" or bool((x != 0).any())
    return {"other than 0"} if shows else set()


def _indices(count: int, x: np.ndarray) -> set[Hashable]:
    return set((np.unique(x.astype(np.int64)) % count).tolist())


def _same_row(_: Collection[Hashable]) -> str:
    return "always the same row"


def _unread(name: str, count: int, verb: str, sides: Collection[Hashable]) -> str:
    return f"{len(sides)} of {count} changed rows of {name} never {verb}"
