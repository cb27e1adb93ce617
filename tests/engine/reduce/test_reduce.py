from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from optvet.engine.reduce.reduction_order import Budget, Reduction, ReductionCandidate, reduce_model
from optvet.spec.errors import UsageError

Feeds = Mapping[str, np.ndarray]
Predicate = Callable[[ModelProto, Feeds | None], bool]


def record(model: ModelProto, feeds: Feeds) -> dict[str, np.ndarray] | None:
    """All values, by onnx's own evaluator in Python; None for what the checker would refuse."""
    try:
        # The evaluator splits unevenly and broadcasts where no runtime would.
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        found: Any = ReferenceEvaluator(model).run(None, dict(feeds), intermediate=True)
    except Exception:
        return None
    return {
        n: np.asarray(v) for n, v in found.items() if n and isinstance(v, (np.ndarray, np.generic))
    }


class Asked:
    """A condition that checks what every candidate must be, and remembers what it answered."""

    def __init__(self, holds: Predicate, *, strict: bool = True, interrupt_at: int = 0) -> None:
        self.holds, self.strict, self.interrupt_at = holds, strict, interrupt_at
        self.interrupted = False
        self.accepted: list[ReductionCandidate] = []
        self.digests: list[bytes] = []

    def __call__(self, candidates: Sequence[ReductionCandidate]) -> Iterator[bool]:
        for candidate in candidates:
            if len(self.digests) + 1 == self.interrupt_at:
                self.interrupted = True
                raise KeyboardInterrupt
            self.digests.append(candidate.digest)
            onnx.checker.check_model(candidate.model, full_check=self.strict)
            self.check_feeds(candidate)
            if self.accepted:
                assert candidate.size < self.accepted[-1].size
            answer = self.holds(candidate.model, candidate.feeds)
            if answer:
                self.accepted.append(candidate)
            yield answer

    def check_feeds(self, candidate: ReductionCandidate) -> None:
        if candidate.feeds is None:
            return
        weights = {t.name for t in candidate.model.graph.initializer}
        inputs = [i for i in candidate.model.graph.input if i.name not in weights]
        assert {i.name for i in inputs} == candidate.feeds.keys()
        for value in inputs:
            array = candidate.feeds[value.name]
            dims = value.type.tensor_type.shape.dim
            assert len(dims) == array.ndim
            assert all(
                not d.dim_value or d.dim_value == n for d, n in zip(dims, array.shape, strict=True)
            )


def types_in(model: ModelProto) -> list[str]:
    found: list[str] = []
    pending = [*model.graph.node, *(n for f in model.functions for n in f.node)]
    while pending:
        node = pending.pop(0)
        found.append(node.op_type)
        for attribute in node.attribute:
            pending.extend(attribute.g.node)
    return found


def contains(*types: str) -> Predicate:
    return lambda model, feeds: set(types) <= set(types_in(model))


def reads(first: str, second: str) -> Predicate:
    """A node ``second`` reads directly what a node ``first`` made."""

    def holds(model: ModelProto, feeds: Feeds | None) -> bool:
        made = {o for n in model.graph.node if n.op_type == first for o in n.output}
        return any(n.op_type == second and made & set(n.input) for n in model.graph.node)

    return holds


def reduced(
    text: str | ModelProto, holds: Predicate, feeds: Feeds | None = None, **options: Any
) -> Reduction:
    model = onnx.parser.parse_model(text) if isinstance(text, str) else text
    onnx.checker.check_model(model, full_check=True)
    if feeds is None:
        rng = np.random.default_rng(0)
        weights = {t.name for t in model.graph.initializer}
        feeds = {
            i.name: rng.normal(
                size=[d.dim_value or 2 for d in i.type.tensor_type.shape.dim]
            ).astype(helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type))
            for i in model.graph.input
            if i.name not in weights
        }
    return reduce_model(model, feeds, Asked(holds), record=record, **options)


def types_of(reduction: Reduction) -> list[str]:
    return types_in(reduction.model)


HEAD = '<ir_version: 8, opset_import: ["" : 17]>'


# --- properties -----------------------------------------------------------------------------------

UNARY = ("Relu", "Neg", "Abs", "Sigmoid", "Identity")
BINARY = ("Add", "Mul", "Sub")


@st.composite
def models(draw: st.DrawFn) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """Graphs of up to 12 nodes over float[2,3], float[3,2], float[6] and int64[2] values."""
    shapes: dict[str, tuple[int, ...]] = {"a": (2, 3), "b": (2, 3), "w": (2, 3)}
    shape_values: list[str] = []
    nodes: list[NodeProto] = []
    for i in range(draw(st.integers(1, 12))):
        source = draw(st.sampled_from(sorted(shapes)))
        shape, out = shapes[source], f"v{i}"
        kind = draw(st.sampled_from(("unary", "binary", "transpose", "flat", "split", "shape")))
        if kind == "binary":
            other = draw(st.sampled_from([n for n in sorted(shapes) if shapes[n] == shape]))
            nodes.append(helper.make_node(draw(st.sampled_from(BINARY)), [source, other], [out]))
        elif kind == "transpose" and len(shape) == 2:
            nodes.append(helper.make_node("Transpose", [source], [out], perm=[1, 0]))
            shape = shape[::-1]
        elif kind == "flat":
            nodes.append(helper.make_node("Reshape", [source, "flat"], [out]))
            shape = (6,)
        elif kind == "split" and shape == (2, 3):
            nodes.append(helper.make_node("Split", [source], [out, f"{out}b"], axis=0))
            nodes.append(helper.make_node("Concat", [out, f"{out}b"], [f"{out}c"], axis=0))
            out = f"{out}c"
        elif kind == "shape" and shape == (2, 3):
            nodes.append(helper.make_node("Shape", [source], [f"{out}s"]))
            nodes.append(helper.make_node("Reshape", ["a", f"{out}s"], [out]))
            shape_values.append(f"{out}s")
        else:
            nodes.append(helper.make_node(draw(st.sampled_from(UNARY)), [source], [out]))
        shapes[out] = shape
    last = [n.output[0] for n in nodes[-1:]]
    extra = draw(st.lists(st.sampled_from([n for n in sorted(shapes) if n[0] == "v"]), max_size=2))
    outputs = list(dict.fromkeys([*last, *extra]))
    rng = np.random.default_rng(draw(st.integers(0, 3)))
    weight = rng.normal(size=(2, 3)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "random",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 3)) for n in "ab"],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shapes[n]) for n in outputs],
        [
            onnx.numpy_helper.from_array(weight, "w"),
            onnx.numpy_helper.from_array(np.array([-1]), "flat"),
        ],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    return model, {n: rng.normal(size=(2, 3)).astype(np.float32) for n in "ab"}


@st.composite
def predicates(draw: st.DrawFn, model: ModelProto) -> Predicate:
    """True of ``model``, and then of whatever still has some of what it has."""
    types = types_in(model)
    choice = draw(st.integers(0, 3))
    if choice == 0:
        chosen = draw(st.sets(st.sampled_from(sorted(set(types))), min_size=1, max_size=3))
        return contains(*sorted(chosen))
    if choice == 1:
        kind = draw(st.sampled_from(sorted(set(types))))
        count = draw(st.integers(1, types.count(kind)))
        return lambda m, f: types_in(m).count(kind) >= count
    if choice == 2:
        odd = len(model.graph.node) % 2
        return lambda m, f: len(m.graph.node) % 2 == odd
    named = sorted({a.name for n in model.graph.node for a in n.attribute})
    if not named:
        return lambda m, f: len(m.graph.node) > 0
    name = draw(st.sampled_from(named))
    return lambda m, f: any(a.name == name for n in m.graph.node for a in n.attribute)


@st.composite
def problems(draw: st.DrawFn) -> tuple[ModelProto, dict[str, np.ndarray], Predicate]:
    model, feeds = draw(models())
    return model, feeds, draw(predicates(model))


Problem = tuple[ModelProto, dict[str, np.ndarray], Predicate]
MANY = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@pytest.mark.long
@MANY
@given(problems())
def test_a_reduction_ends_stays_interesting_and_never_grows(problem: Problem) -> None:
    model, feeds, holds = problem
    asked = Asked(holds)
    before = model.SerializeToString()
    result = reduce_model(model, feeds, asked, record=record)
    assert result.complete
    assert holds(result.model, result.feeds)
    assert result.nodes[1] <= result.nodes[0]
    assert len(asked.digests) == len(set(asked.digests)) == result.checks
    assert model.SerializeToString() == before


@MANY
@given(problems())
def test_a_reduced_model_runs_on_its_feeds(problem: Problem) -> None:
    model, feeds, holds = problem
    result = reduce_model(model, feeds, Asked(holds), record=record)
    assert result.feeds is not None
    assert record(result.model, result.feeds) is not None


@pytest.mark.long
@settings(MANY, max_examples=15)
@given(problems())
def test_equal_calls_give_equal_reductions(problem: Problem) -> None:
    model, feeds, holds = problem
    first, second = (reduce_model(model, feeds, Asked(holds), record=record) for _ in range(2))
    assert first.model == second.model
    assert (first.checks, first.steps) == (second.checks, second.steps)


@settings(MANY, max_examples=25)
@given(problems(), st.integers(2, 20))
def test_an_interrupted_reduction_is_the_best_so_far(problem: Problem, at: int) -> None:
    model, feeds, holds = problem
    asked = Asked(holds, interrupt_at=at)
    result = reduce_model(model, feeds, asked, record=record)
    assert holds(result.model, result.feeds)
    assert result.model == asked.accepted[-1].model
    assert result.complete == (not asked.interrupted)


@settings(MANY, max_examples=25)
@given(problems())
def test_without_feeds_types_come_from_the_graph_alone(problem: Problem) -> None:
    model, _, holds = problem
    asked = Asked(holds)
    result = reduce_model(model, None, asked)
    assert holds(result.model, None)
    assert result.feeds is None


@pytest.mark.long
@settings(MANY, max_examples=25)
@given(problems(), st.integers(2, 4))
def test_wider_searches_keep_the_promises_too(problem: Problem, width: int) -> None:
    model, feeds, holds = problem
    result = reduce_model(model, feeds, Asked(holds), record=record, width=width)
    assert holds(result.model, result.feeds)


# --- results --------------------------------------------------------------------------------------


def test_one_node_is_left_of_a_chain() -> None:
    text = f"""{HEAD}
    g (float[2,3] x) => (float[2,3] y) {{
        a = Relu(x)
        b = Neg(a)
        c = Sigmoid(b)
        d = Abs(c)
        y = Neg(d)
    }}"""
    result = reduced(text, contains("Sigmoid"))
    assert types_of(result) == ["Sigmoid"]
    assert result.nodes == (5, 1)
    assert [list(a.shape) for a in (result.feeds or {}).values()] == [[1, 1]]


def test_a_node_between_is_rewired_and_not_only_cut_off() -> None:
    text = f"""{HEAD}
    g (float[2,3] x) => (float[2,3] y) {{
        a = Relu(x)
        b = Neg(a)
        c = Abs(b)
        y = Sigmoid(c)
    }}"""
    assert types_of(reduced(text, path("Relu", "Sigmoid"))) == ["Relu", "Sigmoid"]


def path(first: str, last: str) -> Predicate:
    """A node ``last`` depends on a node ``first``, through whatever is between."""

    def holds(model: ModelProto, feeds: Feeds | None) -> bool:
        after: set[str] = set()
        for node in model.graph.node:
            if after & set(node.input) and node.op_type == last:
                return True
            if after & set(node.input) or node.op_type == first:
                after.update(node.output)
        return False

    return holds


def test_a_pair_that_only_goes_together_goes_together() -> None:
    text = f"""{HEAD}
    g (float[2,3] x) => (float[2,3] y) {{
        a = Relu(x)
        b = Transpose <perm = [1, 0]> (a)
        c = Transpose <perm = [1, 0]> (b)
        y = Sigmoid(c)
    }}"""
    assert types_of(reduced(text, path("Relu", "Sigmoid"))) == ["Relu", "Sigmoid"]


def test_two_branches_are_kept_and_what_joins_them() -> None:
    text = f"""{HEAD}
    g (float[2,3] x) => (float[2,3] y, float[2,3] z) {{
        a = Relu(x)
        b = Neg(a)
        c = Sigmoid(a)
        d = Abs(b)
        e = Abs(c)
        f = Add(d, e)
        y = Neg(f)
        z = Abs(f)
    }}"""

    def joins(model: ModelProto, feeds: Feeds | None) -> bool:
        makers = {o: n.op_type for n in model.graph.node for o in n.output}
        sums = [n for n in model.graph.node if n.op_type == "Add"]
        return any([makers.get(i) for i in n.input] == ["Abs", "Abs"] for n in sums)

    result = reduced(text, joins)
    assert sorted(types_of(result)) in (["Abs", "Add"], ["Abs", "Abs", "Add"])
    assert len(result.model.graph.output) == 1


def test_a_cut_value_is_fed_what_was_recorded() -> None:
    text = f"""{HEAD}
    g (float[1] x) => (float[1] y) <float[1] w = {{3}}> {{
        a = Mul(x, w)
        b = Add(a, w)
        y = Neg(b)
    }}"""
    feeds = {"x": np.array([2], np.float32)}

    def exactly(model: ModelProto, given: Feeds | None) -> bool:
        found = record(model, given or {}) or {}
        return any(
            n.op_type == "Neg" and float(found[n.output[0]][0]) == -9 for n in model.graph.node
        )

    result = reduced(text, exactly, feeds)
    assert types_of(result) == ["Neg"]
    assert [a.tolist() for a in (result.feeds or {}).values()] == [[9]]


def test_a_constant_value_stays_a_constant_when_it_is_cut() -> None:
    text = f"""{HEAD}
    g (float[2,3] x) => (float[3,2] y) {{
        s = Constant <value_ints = [3, 2]> ()
        t = Identity(s)
        a = Relu(x)
        y = Reshape(a, t)
    }}"""
    result = reduced(text, contains("Reshape"))
    assert types_of(result) == ["Reshape"]
    assert len(result.model.graph.initializer) == 1


IF = f"""{HEAD}
g (float[2,3] x, bool[1] c) => (float[2,3] y) {{
    k = Squeeze(c)
    a = Relu(x)
    b = If (k) <
        then_branch = t () => (float[2,3] p) {{ q = Neg(a) p = Sigmoid(q) }},
        else_branch = e () => (float[2,3] r) {{ s = Abs(a) r = Exp(s) }}
    >
    y = Neg(b)
}}"""


def test_a_branch_of_an_if_is_inlined() -> None:
    feeds = {"x": np.ones((2, 3), np.float32), "c": np.array([True])}
    assert types_of(reduced(IF, contains("Exp"), feeds)) == ["Exp"]
    assert types_of(reduced(IF, contains("Sigmoid"), feeds)) == ["Sigmoid"]


def test_the_branches_of_an_if_that_has_to_stay_are_reduced() -> None:
    feeds = {"x": np.ones((2, 3), np.float32), "c": np.array([True])}
    result = reduced(IF, contains("If"), feeds)
    assert types_of(result)[0] == "If"
    assert result.nodes[1] <= 3


def test_one_turn_of_a_loop_is_inlined() -> None:
    text = f"""{HEAD}
    g (float[2] x) => (float[2] y) <int64 m = {{3}}, bool go = {{1}}> {{
        y = Loop (m, go, x) <
            body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) {{
                d = Identity(c)
                u = Neg(v)
                w = Sigmoid(u)
            }}
        >
    }}"""
    assert types_of(reduced(text, contains("Sigmoid"))) == ["Sigmoid"]


def test_a_function_is_inlined_and_dropped() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17, "my" : 1]>
    g (float[2,3] x) => (float[2,3] y) { a = Relu(x)  y = my.f <slope = 0.5> (a) }
    <opset_import: ["" : 17], domain: "my">
    f <slope> (a) => (b) { c = LeakyRelu <alpha: float = @slope> (a)  b = Sigmoid(c) }
    """
    result = reduced(text, contains("LeakyRelu"))
    assert types_of(result) == ["LeakyRelu"]
    assert not result.model.functions
    assert [o.domain for o in result.model.opset_import] == [""]


def test_optional_inputs_are_dropped_and_omitted_ones_survive() -> None:
    text = f"""{HEAD}
    g (float[2,3] x, float a, float b) => (float[2,3] y) {{
        c = Neg(x)
        d = Clip(c, a, b)
        e = Clip(d, "", b)
        y = Abs(e)
    }}"""
    feeds = {n: np.asarray(v, np.float32) for n, v in (("x", np.ones((2, 3))), ("a", 0), ("b", 1))}

    def holds(model: ModelProto, given: Feeds | None) -> bool:
        return any(n.op_type == "Clip" and len(n.input) == 3 for n in model.graph.node)

    result = reduced(text, holds, feeds)
    (clip,) = result.model.graph.node
    assert (clip.op_type, len(clip.input)) == ("Clip", 3)
    assert types_of(reduced(text, contains("Clip"), feeds)) == ["Clip"]
    assert len(reduced(text, contains("Clip"), feeds).model.graph.input) == 1


def test_a_sequence_is_never_cut() -> None:
    text = f"""{HEAD}
    g (float[4,3] x) => (float[2,3] y) <int64 zero = {{0}}, int64 two = {{2}}> {{
        a = Relu(x)
        s = SplitToSequence <axis = 0> (a, two)
        b = SequenceAt(s, zero)
        y = Neg(b)
    }}"""
    result = reduced(text, contains("SequenceAt"))
    assert types_of(result) == ["SplitToSequence", "SequenceAt"]


def test_shared_initializers_stay_shared() -> None:
    text = f"""{HEAD}
    g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {{1, 2, 3, 4}}> {{
        a = MatMul(x, w)
        b = Relu(a)
        y = MatMul(b, w)
    }}"""

    def holds(model: ModelProto, feeds: Feeds | None) -> bool:
        used = [n.input[1] for n in model.graph.node if n.op_type == "MatMul"]
        return len(used) == 2 and len(set(used)) == 1

    result = reduced(text, holds)
    assert types_of(result) == ["MatMul", "MatMul"]


def test_weights_among_the_inputs_of_ir_3_stay_among_them_until_it_is_a_later_one() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 8]>
        g (float[2,2] x, float[2,2] w) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}> {
            a = Relu(x)
            b = MatMul(a, w)
            y = Neg(b)
        }"""
    )
    model.ir_version = 3
    seen: list[bool] = []

    def holds(candidate: ModelProto, feeds: Feeds | None) -> bool:
        listed = {i.name for i in candidate.graph.input}
        if candidate.ir_version < 4:
            seen.append({t.name for t in candidate.graph.initializer} <= listed)
        return "MatMul" in types_in(candidate)

    result = reduced(model, holds)
    assert seen
    assert all(seen)
    assert result.model.ir_version == 8
    assert types_of(result) == ["MatMul"]


def test_what_is_no_computation_goes() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3],
       producer_name: "someone", doc_string: "a model", metadata_props: ["author": "me"]>
    g (float[2,3] features, float[2,3] unused) => (float[2,3] scores)
      <float[1] spare = {1}, float[2,3] inner> {
        [first] inner = Relu(features)
        [second] scores = Neg(inner)
    }"""
    model = reduced(text, contains("Relu")).model
    assert (model.producer_name, model.doc_string, len(model.metadata_props)) == ("", "", 0)
    assert [i.name for i in model.graph.input] == ["x0"]
    assert [o.name for o in model.graph.output] == ["y0"]
    assert not model.graph.initializer
    assert len(model.opset_import) == 1
    assert model.graph.node[0].name == ""


def test_of_what_a_model_says_only_what_matters_stays() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17], producer_name: "someone", doc_string: "long",
       metadata_props: ["author": "me", "license": "a long text", "date": "today"]>
    g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"""
    model = reduced(text, lambda model, feeds: len(model.metadata_props) > 0).model
    assert [(p.key, p.value) for p in model.metadata_props] == [("date", "")]
    assert (model.producer_name, model.doc_string) == ("", "")


def test_names_that_matter_stay() -> None:
    text = f"""{HEAD}
    g (float[2,3] x) => (float[2,3] y) {{ special = Relu(x)  y = Neg(special) }}"""

    def holds(model: ModelProto, feeds: Feeds | None) -> bool:
        return any("special" in n.output for n in model.graph.node)

    result = reduced(text, holds)
    assert [n.output[0] for n in result.model.graph.node] == ["special"]


def test_dimensions_shrink_together_with_weights_and_attributes() -> None:
    text = f"""{HEAD}
    g (float[N,8,6,6] x) => (float[N,8,6,6] y)
      <float[8,1,3,3] w = {{{", ".join("0.5" for _ in range(72))}}}> {{
        a = Relu(x)
        y = Conv <group = 8, pads = [1, 1, 1, 1]> (a, w)
    }}"""
    result = reduced(text, contains("Conv"))
    assert sum(a.size for a in (result.feeds or {}).values()) <= 2
    assert sum(int(np.prod(t.dims)) for t in result.model.graph.initializer) <= 1
    dims = result.model.graph.input[0].type.tensor_type.shape.dim
    assert all(d.HasField("dim_value") for d in dims)


def test_contents_that_matter_stay_and_others_become_plain() -> None:
    text = f"""{HEAD}
    g (float[2,3] x, float[2,3] z) => (float[2,3] y) {{ y = Mul(x, z) }}"""
    rng = np.random.default_rng(1)
    feeds = {n: rng.normal(size=(2, 3)).astype(np.float32) + 5 for n in "xz"}

    def holds(model: ModelProto, given: Feeds | None) -> bool:
        found = record(model, given or {}) or {}
        return any(
            n.op_type == "Mul" and bool((found[n.output[0]] > 10).any()) for n in model.graph.node
        )

    result = reduced(text, holds, feeds)
    assert all(np.array_equal(a, np.round(a)) for a in (result.feeds or {}).values())
    assert sum(a.size for a in (result.feeds or {}).values()) <= 2


# --- misuse, budgets, laziness --------------------------------------------------------------------

CHAIN = f"""{HEAD}
g (float[2,3] x) => (float[2,3] y) {{ a = Relu(x) b = Neg(a) c = Abs(b) y = Exp(c) }}"""


def test_a_model_that_is_not_interesting_is_refused() -> None:
    with pytest.raises(UsageError, match="does not satisfy the condition"):
        reduced(CHAIN, contains("Softmax"))


def test_a_budget_of_checks_ends_it_with_the_best_so_far() -> None:
    result = reduced(CHAIN, contains("Neg"), budget=Budget(checks=2))
    assert result.checks == 2
    assert not result.complete
    assert "Neg" in types_of(result)


def test_a_budget_of_time_ends_it() -> None:
    times = iter(range(1000))
    result = reduced(CHAIN, contains("Neg"), budget=Budget(seconds=4), clock=lambda: next(times))
    assert not result.complete


def test_answers_are_read_only_up_to_the_first_that_holds() -> None:
    judged: list[int] = []
    closed: list[bool] = []

    def interesting(candidates: Sequence[ReductionCandidate]) -> Iterator[bool]:
        try:
            for candidate in candidates:
                judged.append(candidate.nodes)
                yield "Neg" in types_in(candidate.model)
        finally:
            closed.append(True)

    model = onnx.parser.parse_model(CHAIN)
    result = reduce_model(model, {"x": np.ones((2, 3), np.float32)}, interesting, record=record)
    assert len(judged) == result.checks
    assert len(closed) > 1


def test_nodes_alone_cost_few_checks() -> None:
    nodes = "\n".join(f"v{i + 1} = {'Sigmoid' if i == 40 else 'Relu'}(v{i})" for i in range(100))
    text = f"{HEAD} g (float[2] v0) => (float[2] v100) {{ {nodes} }}"
    result = reduced(text, contains("Sigmoid"), effort="nodes")
    assert result.nodes == (100, 1)
    assert result.checks <= 16


# --- what is left matters -------------------------------------------------------------------------


def test_operators_that_do_not_matter_are_stood_in_for() -> None:
    """A fault of one operator gives one model, whatever was around it."""
    around = (
        "a = Sigmoid(x) b = Dropout(a) c, m = Dropout(b) y = Softmax(c)",
        "a = Mul(x, x) c, m = Dropout(a) y = Cast<to = 11>(c)",
        "a = Exp(x) c, m = Dropout(a) y = Shape(c)",
    )
    kinds = ("float", "double", "int64")
    shapes = ("[2,3]", "[2,3]", "[2]")
    found = set()
    for nodes, kind, shape in zip(around, kinds, shapes, strict=True):
        text = f"{HEAD} g (float[2,3] x) => ({kind}{shape} y) {{ {nodes} }}"

        def holds(model: ModelProto, feeds: Feeds | None) -> bool:
            # Such as a pass that skips inputs and outputs of the graph.
            made = {o for n in model.graph.node for o in n.output}
            outputs = {o.name for o in model.graph.output}
            return any(
                n.op_type == "Dropout" and n.input[0] in made and n.output[0] not in outputs
                for n in model.graph.node
            )

        found.add(tuple(types_of(reduced(text, holds))))
    assert found == {("Abs", "Dropout", "Abs")}


def test_of_several_names_the_one_that_matters_stays() -> None:
    text = f"{HEAD} g (float[2] left) => (float[2] right) {{ mid = Neg(left) right = Relu(mid) }}"

    def holds(model: ModelProto, feeds: Feeds | None) -> bool:
        return any("mid" in n.output for n in model.graph.node)

    graph = reduced(text, holds).model.graph
    assert [o for n in graph.node for o in n.output] == ["mid"]
    assert [i.name for i in graph.input] == ["x0"]


NAMESAKE = (
    '<ir_version: 8, opset_import: ["" : 17, "own" : 1]> g (float[2] x) => (float[2] y)'
    ' { y = own.Identity(x) } <domain: "own", opset_import: ["" : 17]>'
    " Identity (a) => (b) { b = Neg(a) }"
)


def test_a_function_keeps_the_name_of_an_operator_only_if_that_matters() -> None:
    def called(model: ModelProto, feeds: Feeds | None) -> bool:
        return any(n.domain == "own" for n in model.graph.node)

    def namesake(model: ModelProto, feeds: Feeds | None) -> bool:
        return any(n.op_type == "Identity" for n in model.graph.node)

    free, bound = reduced(NAMESAKE, called).model, reduced(NAMESAKE, namesake).model
    assert [n.op_type for n in free.graph.node] == [f.name for f in free.functions] == ["Identity_"]
    assert [f.name for f in bound.functions] == ["Identity"]


def test_a_model_has_the_usual_form_unless_another_matters() -> None:
    text = (
        '<ir_version: 8, opset_import: ["ai.onnx" : 17]> g (float[2] x) => (float[2] y) {y=Neg(x)}'
    )
    model = onnx.parser.parse_model(text)
    model.ir_version = 3

    def holds(candidate: ModelProto, feeds: Feeds | None) -> bool:
        return True

    def aliased(candidate: ModelProto, feeds: Feeds | None) -> bool:
        return any(o.domain == "ai.onnx" for o in candidate.opset_import)

    plain, odd = reduced(model, holds).model, reduced(model, aliased).model
    assert [o.domain for o in plain.opset_import] == [""]
    assert [o.domain for o in odd.opset_import] == ["ai.onnx"]
    assert (plain.ir_version, odd.ir_version) == (8, 8)
