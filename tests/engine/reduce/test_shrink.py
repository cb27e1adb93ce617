import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import ModelProto
from tests.preload import TRIALS

from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.reduce.graph import Graph
from optvet.engine.reduce.oracle import ReductionOracle, Shrunk, reduce_finding
from optvet.engine.reduce.reduction_order import Budget, ReductionCandidate
from optvet.engine.standard.defined import undefined_in
from optvet.engine.vet.run import vet_model
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.trials.case import Case, PassTable
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.trial_results import Ledger
from optvet.spec.errors import UsageError
from optvet.spec.protocols import Feeds
from optvet.spec.request import VetRequest
from optvet.spec.runtime_protocols import Session
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Artifact, Model, Sample
from optvet.testing import Planted
from optvet_onnxoptimizer import OnnxOptimizer
from optvet_onnxruntime.runtime import OrtOptions, OrtRuntime

PRELOAD = (*TRIALS, __name__)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=2, limits=Limits(60, 2 << 30), preload=PRELOAD) as shared:
        yield shared


@dataclass(frozen=True)
class Accused:
    """A culprit of an optimizer."""

    optimizer: Any
    culprit: tuple[str, ...]

    def case(self, model: Model) -> Case:
        judge = RuntimeConfig(OrtRuntime(), OrtRuntime().options)
        passes = PassTable.of(self.optimizer, self.culprit)
        return Case(model, self.optimizer, self.optimizer.options, judge, judge, passes)


def accused(optimizer: Any, *culprit: str) -> Accused:
    return Accused(optimizer, culprit)


def opened(proto: ModelProto, folder: Path) -> Model:
    path = folder / "model.onnx"
    onnx.save(proto, path)
    return open_model(path, "model", folder)


def numbers(*shape: int, seed: int = 0) -> str:
    values = np.random.default_rng(seed).normal(size=shape).ravel() * 0.3
    return "{" + ", ".join(f"{v:.4f}" for v in values) + "}"


def network(
    tail: str, weights: str, outputs: str, *, middle: str = "", opset: int = 18
) -> ModelProto:
    """A convolutional network of about 40 nodes; ``middle`` reads m and makes n, ``tail`` reads f.

    Every block is a residual one: Conv, Relu, Conv, Add, Relu, with a Mul and a Sigmoid beside it.
    """
    lines, initializers = ["v0 = Conv <pads = [1, 1, 1, 1]> (x, first)"], []
    for i in range(5):
        lines += [
            f"a{i} = Conv <pads = [1, 1, 1, 1]> (v{i}, w{i})",
            f"b{i} = Relu(a{i})",
            f"c{i} = Sigmoid(b{i})",
            f"d{i} = Mul(b{i}, c{i})",
            f"e{i} = Conv(d{i}, u{i})",
            f"s{i} = Add(e{i}, v{i})",
            f"v{i + 1} = Relu(s{i})",
        ]
        initializers.append(f"float[4,4,3,3] w{i} = {numbers(4, 4, 3, 3, seed=i)}")
        initializers.append(f"float[4,4,1,1] u{i} = {numbers(4, 4, 1, 1, seed=10 + i)}")
        if i == 2 and middle:
            lines[-1] = f"m = Relu(s{i})"
            lines += middle.strip().splitlines()
            lines.append(f"v{i + 1} = Tanh(n)")
    initializers.append(f"float[4,3,3,3] first = {numbers(4, 3, 3, 3, seed=20)}")
    initializers += [w for w in [weights] if w]
    body = "\n".join(lines)
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
    net (float[1,3,8,8] x) => ({outputs}) <{", ".join(initializers)}> {{
        {body}
        p = GlobalAveragePool(v5)
        f = Flatten(p)
        {tail}
    }}"""
    return onnx.parser.parse_model(text)


def sample(proto: ModelProto, seed: int = 0) -> Sample:
    rng = np.random.default_rng(seed)
    feeds = {
        i.name: rng.normal(size=[d.dim_value or 1 for d in i.type.tensor_type.shape.dim])
        for i in proto.graph.input
    }
    return Sample("witness", {n: a.astype(np.float32) for n, a in feeds.items()})


def shrunk(
    proto: ModelProto, who: Accused, folder: Path, sandbox: Sandbox, **options: Any
) -> Shrunk:
    case = who.case(opened(proto, folder))
    return reduce_finding(case, who.culprit, sample(proto), sandbox=sandbox, **options)


def types_of(result: Shrunk) -> list[str]:
    return [n.op_type for n in result.reduction.model.graph.node]


def vetted_culprits(result: Shrunk, who: Accused, folder: Path, sandbox: Sandbox) -> list[Any]:
    """What ``vet`` blames on the reduced model, with the passes of the culprit as pipeline."""
    path = folder / "reduced.onnx"
    onnx.save(result.reduction.model, path)
    feeds: dict[str, Any] = dict(result.reduction.feeds or {})
    np.savez(folder / "feeds.npz", **feeds)
    settings = VetRequest(
        model="model",
        optimizer=who.optimizer.name,
        pipeline=",".join(who.culprit),
        dataset=(f"files:{folder / 'feeds.npz'}",),
        cache_dir=folder / "cache",
    )
    answer = vet_model(open_model(path, "reduced", folder), settings, Plugins(), sandbox=sandbox)
    return [(str(f.symptom), tuple(f.culprit)) for f in answer.findings if f.severity == "fault"]


CRASH = """
    t = Transpose(f)
    g = Gemm <transA = 1> (t, k)
    y = Softmax(g)
"""


def test_a_crash_of_the_optimizer_is_reduced_to_two_nodes(tmp_path: Path, sandbox: Sandbox) -> None:
    proto = network(CRASH, f"float[4,6] k = {numbers(4, 6)}", "float[1,6] y")
    assert len(proto.graph.node) >= 40
    who = accused(OnnxOptimizer(), "fuse_transpose_into_gemm")
    result = shrunk(proto, who, tmp_path, sandbox)
    assert types_of(result) == ["Transpose", "Gemm"]
    assert result.signature.symptom == Symptom.OPTIMIZER_ERROR
    assert "undefined attribute" in result.signature.words
    assert sum(a.size for a in (result.reduction.feeds or {}).values()) <= 4
    found = vetted_culprits(result, who, tmp_path, sandbox)
    assert found == [("optimizer-error", ("fuse_transpose_into_gemm",))]


PAD = """
    q = Pad <mode = "constant"> (m, pads, zero, axes)
    n = Conv(q, r)
"""


@pytest.mark.long
def test_a_wrong_output_is_reduced_to_two_nodes(tmp_path: Path, sandbox: Sandbox) -> None:
    weights = (
        "int64[8] pads = {0, 0, 0, 2, 0, 0, 2, 0}, float zero = {0}, int64[4] axes = {0, 1, 3, 2}, "
        f"float[4,4,3,3] r = {numbers(4, 4, 3, 3, seed=30)}"
    )
    proto = network("y = Softmax(f)", weights, "float[1,4] y", middle=PAD)
    who = accused(OnnxOptimizer(), "fuse_pad_into_conv")
    result = shrunk(proto, who, tmp_path, sandbox)
    assert types_of(result) == ["Pad", "Conv"]
    assert (result.signature.symptom, result.signature.kind) == (Symptom.WRONG_OUTPUT, "value")
    assert len(result.reduction.model.SerializeToString()) < 1000
    found = vetted_culprits(result, who, tmp_path, sandbox)
    assert found == [("wrong-output", ("fuse_pad_into_conv",))]


PAIR = """
    h = MatMul(f, k)
    g = Add(h, bias)
    s = Shape(g)
    y = Cast <to = 1> (s)
"""


def test_a_pair_of_passes_stays_a_pair(tmp_path: Path, sandbox: Sandbox) -> None:
    weights = f"float[1,4] f, float[4,6] k = {numbers(4, 6)}, float[6] bias = {numbers(6)}"
    proto = network(PAIR, weights, "float[?] y", opset=13)
    who = accused(OnnxOptimizer(), "fuse_matmul_add_bias_into_gemm", "eliminate_shape_op")
    result = shrunk(proto, who, tmp_path, sandbox)
    assert types_of(result) == ["MatMul", "Add", "Shape"]
    assert (result.signature.symptom, result.signature.kind) == (Symptom.WRONG_OUTPUT, "form")
    found = vetted_culprits(result, who, tmp_path, sandbox)
    assert found == [("wrong-output", who.culprit)]


@pytest.mark.long
def test_what_only_some_inputs_show_keeps_an_input_that_shows_it(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    proto = network("y = Softmax(f)", "", "float[1,4] y")
    who = accused(Planted(), "drop_relu")
    result = shrunk(proto, who, tmp_path, sandbox)
    assert types_of(result) == ["Relu"]
    (value,) = (result.reduction.feeds or {}).values()
    assert value.shape == (1, 1, 1, 1)
    assert value.item() < 0


def test_import_and_export_alone_can_be_the_culprit(tmp_path: Path, sandbox: Sandbox) -> None:
    text = """<ir_version: 7, opset_import: ["" : 14]>
    g (float[4,2] x) => (seq(float[2,2]) y) <int64 two = {2}> {
        a = Relu(x)
        b = Neg(a)
        s = SplitToSequence <axis = 0> (b, two)
        y = Identity(s)
    }"""
    proto = onnx.parser.parse_model(text)
    result = shrunk(proto, accused(OnnxOptimizer()), tmp_path, sandbox)
    assert result.signature.symptom == Symptom.INVALID_MODEL
    assert len(types_of(result)) <= 2


def test_bloat_is_reduced_to_the_nodes_that_grow(tmp_path: Path, sandbox: Sandbox) -> None:
    weights = ", ".join(f"float[4] {n} = {{1, 2, 3, 4}}" for n in ("scale", "shift", "mean", "var"))
    middle = """
    o = Conv(m, u0)
    n = BatchNormalization(o, scale, shift, mean, var)
    """
    proto = network("y = Softmax(f)", weights, "float[1,4] y", middle=middle, opset=13)
    who = accused(OnnxOptimizer(), "fuse_bn_into_conv")
    result = shrunk(proto, who, tmp_path, sandbox, sought=Symptom.BLOAT)
    assert types_of(result) == ["Conv", "BatchNormalization"]


def test_a_crash_of_the_process_is_reduced(tmp_path: Path, sandbox: Sandbox) -> None:
    proto = network("y = Softmax(f)", "", "float[1,4] y")
    result = shrunk(proto, accused(Planted(), "abort"), tmp_path, sandbox)
    assert len(types_of(result)) == 1
    assert result.signature.symptom == Symptom.OPTIMIZER_ABORT


def test_a_budget_leaves_a_model_that_still_shows_it(tmp_path: Path, sandbox: Sandbox) -> None:
    proto = network(CRASH, f"float[4,6] k = {numbers(4, 6)}", "float[1,6] y")
    who = accused(OnnxOptimizer(), "fuse_transpose_into_gemm")
    result = shrunk(proto, who, tmp_path, sandbox, budget=Budget(checks=9))
    assert not result.reduction.complete
    assert result.reduction.nodes[1] < result.reduction.nodes[0]
    found = vetted_culprits(result, who, tmp_path, sandbox)
    assert found == [("optimizer-error", ("fuse_transpose_into_gemm",))]


@pytest.mark.long
def test_equal_findings_give_equal_models(tmp_path: Path, sandbox: Sandbox) -> None:
    proto = network(CRASH, f"float[4,6] k = {numbers(4, 6)}", "float[1,6] y")
    who = accused(OnnxOptimizer(), "fuse_transpose_into_gemm")
    first, second = (shrunk(proto, who, tmp_path, sandbox) for _ in range(2))
    assert first.reduction.model == second.reduction.model
    assert first.reduction.checks == second.reduction.checks


def test_an_innocent_pass_is_refused(tmp_path: Path, sandbox: Sandbox) -> None:
    proto = network("y = Softmax(f)", "", "float[1,4] y")
    who = accused(OnnxOptimizer(), "eliminate_identity")
    with pytest.raises(UsageError, match=re.escape("eliminate_identity shows no fault")):
        shrunk(proto, who, tmp_path, sandbox)


def test_a_pair_of_which_one_pass_is_enough_is_refused(tmp_path: Path, sandbox: Sandbox) -> None:
    proto = network(CRASH, f"float[4,6] k = {numbers(4, 6)}", "float[1,6] y")
    who = accused(OnnxOptimizer(), "eliminate_identity", "fuse_transpose_into_gemm")
    with pytest.raises(UsageError, match="does not satisfy the condition"):
        shrunk(proto, who, tmp_path, sandbox)


QUANTIZED = """<ir_version: 8, opset_import: ["" : 17]>
net (float[1,4] x) => (float[1,4] y)
<float scale = {0.05}, uint8 zero = {128}, float bias = {-0.3}> {
    moved = Add(x, bias)
    whole = QuantizeLinear(moved, scale, zero)
    back = DequantizeLinear(whole, scale, zero)
    y = Relu(back)
}"""
DIVIDED = """<ir_version: 8, opset_import: ["" : 17]>
net (float[1,4] x) => (float[1,4] y) <int32[4] five = {5, 6, 7, 8}, int32[4] nine = {9, 9, 9, 9}> {
    ratio = Div(nine, five)
    floats = Cast<to = 1>(ratio)
    both = Mul(floats, x)
    y = Relu(both)
}"""


@pytest.mark.long
@pytest.mark.parametrize("text", [QUANTIZED, DIVIDED])
def test_the_standard_has_an_answer_for_what_a_reduction_leaves(
    text: str, tmp_path: Path, sandbox: Sandbox
) -> None:
    who = accused(Planted(default=("drop_relu",)), "drop_relu")
    result = shrunk(onnx.parser.parse_model(text), who, tmp_path, sandbox)
    model, feeds = result.reduction.model, result.reduction.feeds
    assert feeds is not None
    assert undefined_in(model, feeds) == []
    assert result.signature.kind in ("value", "layer")
    assert all(np.isfinite(value).all() for value in feeds.values())


CUT = """<ir_version: 7, opset_import: ["" : 13]>
net (float[4,10,5] x) => (float[4,9,5] y)
<int64[1] low = {0}, int64[1] high = {9}, int64[1] axis = {1}, int64[1] one = {1}, bool yes = {1}> {
    y = If (yes) <
        then_branch = then () => (float[4,9,5] a) { a = Slice(x, low, high, axis, one) },
        else_branch = other () => (float[4,9,5] b) { b = Slice(x, low, high, axis, one) }
    >
}"""


def test_a_reduction_computes_the_shapes_that_it_declares(tmp_path: Path, sandbox: Sandbox) -> None:
    who = accused(
        OnnxOptimizer(), "eliminate_if_with_const_cond", "eliminate_duplicate_initializer"
    )
    result = shrunk(onnx.parser.parse_model(CUT), who, tmp_path, sandbox)
    model, feeds = result.reduction.model, result.reduction.feeds
    assert feeds is not None
    assert result.signature.stage == "check"
    session = OrtRuntime().load(Artifact("onnx", model.SerializeToString()), OrtRuntime().options)
    (found,) = session.run(feeds).values()
    declared = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    assert [*found.shape] == declared


class CoarseSession:
    """Gives multiples of 2e-6."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        outputs = self.session.run(feeds).items()
        return {n: (np.round(v / 2e-6) * 2e-6).astype(v.dtype) for n, v in outputs}


class Coarse(OrtRuntime):
    """Computes exactly enough where values are about 1, and tiny ones wrongly."""

    def load(self, artifact: Artifact, options: OrtOptions) -> Session:
        return CoarseSession(super().load(artifact, options))


def test_a_reduction_goes_nowhere_where_evaluators_of_the_original_disagree(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    proto = onnx.parser.parse_model(text)
    judge = RuntimeConfig(Coarse(), OrtOptions())
    planted = Planted(default=("drop_relu",))
    passes = PassTable.of(planted, ("drop_relu",))
    case = Case(opened(proto, tmp_path), planted, planted.options, judge, judge, passes)
    oracle = ReductionOracle(case, ("drop_relu",), sandbox, tmp_path, 1, None, Ledger())
    with oracle:
        oracle.open(proto, {"x": np.array([1, -1], np.float32)})
        for size, kept in ((0.5, True), (1.1e-6, False)):
            feeds = {"x": np.array([size, -size], np.float32)}
            candidate = ReductionCandidate(Graph.of_model(proto, feeds))
            assert oracle.is_interesting(candidate) is kept


IN_FUNCTION = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
net (float[4] x) => (float[4] y) <float scale = {%s}, uint8 zero = {128}> {
    kept = Relu(x)
    y = local.rounded(kept, scale, zero)
}
<domain: "local", opset_import: ["" : 17]>
rounded (given, scale, zero) => (back) {
    whole = QuantizeLinear(given, scale, zero)
    back = DequantizeLinear(whole, scale, zero)
}"""


@pytest.mark.parametrize("sought", [None, Symptom.BLOAT, Symptom.SENSITIVITY])
def test_no_reduction_of_a_fault_or_a_note_leaves_what_has_no_answer(
    sought: Symptom | None, tmp_path: Path, sandbox: Sandbox
) -> None:
    who = accused(Planted(default=("gelu_for_relu",)), "gelu_for_relu")
    valid = onnx.parser.parse_model(IN_FUNCTION % 0.05)
    case, feeds = who.case(opened(valid, tmp_path)), {"x": np.array([-2, -1, 1, 2], np.float32)}
    with ReductionOracle(case, who.culprit, sandbox, tmp_path, 1, sought, Ledger()) as oracle:
        if sought is not Symptom.SENSITIVITY:
            oracle.open(valid, feeds)
            assert oracle.is_interesting(ReductionCandidate(Graph.of_model(valid, feeds)))
        for scale in (0, -0.05):
            model = onnx.parser.parse_model(IN_FUNCTION % scale)
            assert not oracle.is_interesting(ReductionCandidate(Graph.of_model(model, feeds)))
