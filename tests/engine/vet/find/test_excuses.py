"""What is undefined or a runtime's own is no optimizer's fault; nothing else is excused."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper
from pydantic import BaseModel
from tests.preload import TRIALS

import optvet
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.find.excuses import excused_passes
from optvet.engine.vet.ledger import FindingsLedger
from optvet.engine.vet.run import vet_model
from optvet.engine.vetting import GivenInputs
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.graph.walk import nodes_of
from optvet.spec.records import Finding, VetResult
from optvet.spec.request import Strategy, VetRequest
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Artifact, Pass, Traits

PRELOAD = (*TRIALS, __name__)


class NoOptions(BaseModel):
    """There are none."""


class CastsByWords:
    """An optimizer that casts floats to integers by another way, and one that drops a Relu."""

    name = "casts"
    preload = ("onnx", "optvet.engine.work.trials.preload", __name__)
    options = NoOptions()
    traits = Traits(repeatable=True)

    def version(self) -> str:
        return "1"

    def passes(self) -> Sequence[Pass]:
        return [
            Pass("clip_cast", "rewrite", default=True),
            Pass("clip_hard", "rewrite"),
            Pass("drop_relu", "rewrite"),
            Pass("largest_number", "rewrite"),
            Pass("smallest_number", "rewrite"),
        ]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        return {
            "default": ("clip_cast",),
            "both": ("clip_cast", "drop_relu"),
            "hard": ("clip_hard",),
            "relu": ("drop_relu",),
            "largest": ("largest_number",),
            "smallest": ("smallest_number",),
        }

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        model = onnx.load_from_string(source.data)
        nodes = []
        for node in model.graph.node:
            clips = {"clip_cast", "clip_hard"} & {*passes}
            if node.op_type == "Cast" and node.attribute[0].i == 6 and clips:
                top = 2.0 if "clip_hard" in passes else 2147483520.0
                bounds = {"low": -2147483648.0, "high": top}
                for name, value in bounds.items():
                    tensor = helper.make_tensor(f"{node.name}{name}", 1, [], [value])
                    model.graph.initializer.append(tensor)
                clipped = [node.input[0], f"{node.name}low", f"{node.name}high"]
                nodes.append(helper.make_node("Clip", clipped, ["clipped"]))
                node.input[0] = "clipped"
            numbers = {"largest_number", "smallest_number"} & {*passes}
            if node.op_type == "MaxPool" and numbers:
                sign = 1.0 if "largest_number" in passes else -1.0
                lowest = -1e9 * sign
                for name, value in (("sign", sign), ("lowest", lowest)):
                    model.graph.initializer.append(helper.make_tensor(name, 1, [], [value]))
                nodes.append(helper.make_node("IsNaN", ["x"], ["nan"]))
                nodes.append(helper.make_node("Where", ["nan", "lowest", "x"], ["number"]))
                nodes.append(helper.make_node("Mul", ["number", "sign"], ["signed"]))
                node.input[0], node.output[0] = "signed", "pooled"
                nodes.append(node)
                node = helper.make_node("Mul", ["pooled", "sign"], ["y"])
            if node.op_type == "Relu" and "drop_relu" in passes:
                node.op_type = "Identity"
            if node.op_type == "BatchNormalization" and "drop_relu" in passes:
                node.input[1] = node.input[4]
            nodes.append(node)
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del model.graph.node[:]
        model.graph.node.extend(kept)
        return Artifact("onnx", model.SerializeToString())


NET = """<ir_version: 8, opset_import: ["" : 17]>
g (float[4] x, float[4] s) => (float[4] y, float[4] z)
{ i = Cast<to = 6>(x) y = Cast<to = 1>(i) z = Relu(s) }"""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=1, limits=Limits(60, 1 << 30), preload=PRELOAD) as shared:
        yield shared


def vet(folder: Path, sandbox: Sandbox, large: float, pipeline: str) -> VetResult:
    s = np.array([1, -2, 3, -4], np.float32)
    feeds = {"x": np.array([1, -2, large, 4], np.float32), "s": s}
    return vet_on(folder, sandbox, onnx.parser.parse_model(NET), pipeline, feeds)


def vet_on(
    folder: Path,
    sandbox: Sandbox,
    model: onnx.ModelProto,
    pipeline: str,
    *feeds: dict[str, np.ndarray],
    strategy: Strategy = "auto",
) -> VetResult:
    path = folder / "model.onnx"
    onnx.save(model, path)
    plugins = Plugins()
    plugins.register("optimizer", CastsByWords())
    plugins.register("dataset", inputs := GivenInputs(feeds))
    request = VetRequest(
        model="model",
        optimizer="casts",
        pipeline=pipeline,
        strategy=strategy,
        dataset=(inputs.name,),
        cache_dir=folder / "cache",
    )
    return vet_model(open_model(path, "model", folder / "cache"), request, plugins, sandbox=sandbox)


def test_other_kernels_may_answer_otherwise_what_has_no_answer(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    assert vet(tmp_path, sandbox, 3.0, "default").verdict in ("clean", "drift")
    result = vet(tmp_path, sandbox, 3e9, "default")
    assert result.verdict == "undecided"
    assert "undefined by the ONNX standard: Cast" in result.reason
    assert [f.severity for f in result.findings] == ["note"]
    assert result.safe_pipeline == ["clip_cast"]


def test_what_has_no_answer_excuses_no_fault_elsewhere(tmp_path: Path, sandbox: Sandbox) -> None:
    result = vet(tmp_path, sandbox, 3e9, "both")
    assert result.verdict == "faulty"
    wrong = [f for f in result.findings if f.severity == "fault"]
    assert [(f.culprit, f.outputs) for f in wrong] == [(["drop_relu"], ["z"])]
    assert result.safe_pipeline == ["clip_cast"]


HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
DECLARED = """g (float[n,4] x) => (float[n,4] y, float z) <int64[1] one = {1}> {
    s = Shape(x) d = Add(s, one) f = Cast<to = 1>(d) z = ReduceSum<keepdims = 0>(f) y = Relu(x) }"""
NORMED = """g (float[2,4] x) => (float[2,4] y)
<float[4] s = {1, 2, 3, 4}, float[4] b = {0, 1, 0, 1}, float[4] m = {0, 0, 0, 0},
float[4] v = {1, 2, 1, 2}> { y = BatchNormalization<epsilon = 0.0>(x, s, b, m, v) }"""


@pytest.mark.parametrize(("text", "batch"), [(DECLARED, 1), (DECLARED, -1), (NORMED, 2)])
def test_what_is_declared_wrongly_or_an_epsilon_of_0_excuses_no_wrong_value(
    text: str, batch: int, tmp_path: Path, sandbox: Sandbox
) -> None:
    proto = onnx.parser.parse_model(HEAD + text)
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_value = batch
    feeds = {"x": np.array([[1, -2, 3, 4], [1, -20, 3, -4]], np.float32)}
    result = vet_on(tmp_path, sandbox, proto, "relu", feeds)
    assert result.verdict == "faulty"
    assert [f.culprit for f in result.findings] == [["drop_relu"]]


@pytest.mark.parametrize("places", [(0,), (0, 1), (1, 0), (1,)])
def test_a_fault_that_defined_inputs_or_elements_show_is_not_excused_by_others(
    places: Sequence[int], tmp_path: Path, sandbox: Sandbox
) -> None:
    """The last element of both samples has an answer, and the pass gives another."""
    s = np.array([1, -2, 3, -4], np.float32)
    x = [np.array([1, -2, large, 4], np.float32) for large in (3, 3e9)]
    feeds = [{"x": x[i], "s": s} for i in places]
    result = vet_on(tmp_path, sandbox, onnx.parser.parse_model(NET), "hard", *feeds)
    assert result.verdict == "faulty"
    assert [f.culprit for f in result.findings if f.severity == "fault"] == [["clip_hard"]]


POOL = """g (float[1,1,4,4] x) => (float[1,1,3,3] y) { y = MaxPool<kernel_shape = [2, 2]>(x) }"""


@pytest.mark.parametrize(("pipeline", "place"), [("largest", (2, 1)), ("smallest", (1, 1))])
def test_of_numbers_with_nan_among_them_the_largest_is_nan_or_that_of_the_numbers(
    pipeline: str, place: tuple[int, int], tmp_path: Path, sandbox: Sandbox
) -> None:
    """A kernel that forgets numbers before NaN gives neither, as one of ONNX Runtime does."""
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    x[0, 0, *place] = np.nan
    net = onnx.parser.parse_model(HEAD + POOL)
    result = vet_on(tmp_path, sandbox, net, pipeline, {"x": x})
    if pipeline == "largest":
        assert result.verdict == "undecided"
        assert "4 of 9 elements of 'y' depend on it" in result.reason
    else:
        assert result.verdict == "faulty"


MIXED = """g (float[4] x, float[4] s) => (float[4] y)
{ i = Cast<to = 6>(x) f = Cast<to = 1>(i) r = Relu(s) y = Add(f, r) }"""
IN_A_BODY = """g (float[4] x, float[4] s, bool c) => (float[4] y)
{
  f = If (c) <then_branch = t () => (a) { i = Cast<to = 6>(x) a = Cast<to = 1>(i) },
              else_branch = e () => (b) { b = Identity(x) }>
  r = Relu(s) y = Add(f, r)
}"""
BACK = """<ir_version: 5, opset_import: ["" : 9]>
g (float[2,4] x, float[2,4] s) => (float[2] y)
{ r = Relu(s) a = Add(x, r) y = ReduceSum<axes = [-1], keepdims = 0>(a) }"""


@pytest.mark.parametrize("strategy", ["auto", "none"])
@pytest.mark.parametrize("body", [MIXED, IN_A_BODY])
def test_an_open_answer_on_the_way_excuses_only_what_arises_there(
    body: str, strategy: Strategy, tmp_path: Path, sandbox: Sandbox
) -> None:
    """With ``none`` nobody looked where in the graph the values part."""
    net = onnx.parser.parse_model(HEAD + body)
    s = np.array([1e9, -2e9, 3e9, -4e9], np.float32)
    feeds = {"x": np.array([1, -2, 3e9, 4], np.float32), "s": s}
    if body is IN_A_BODY:
        feeds["c"] = np.array(True)
    wrong = vet_on(tmp_path, sandbox, net, "relu", feeds, strategy=strategy)
    assert (wrong.verdict, wrong.reason) == ("faulty", "")
    if body is MIXED:  # where the pass looks for casts
        legal = vet_on(tmp_path, sandbox, net, "default", feeds, strategy=strategy)
        assert legal.verdict == "undecided"


def test_what_all_kernels_do_alike_excuses_nothing(tmp_path: Path, sandbox: Sandbox) -> None:
    """Operator set 9 has no axes that are counted from the back, and every runtime takes them."""
    x, s = np.ones((2, 4), np.float32), np.array([[1, -2, 3, -4]] * 2, np.float32)
    net = onnx.parser.parse_model(BACK)
    found = vet_on(tmp_path, sandbox, net, "relu", {"x": x, "s": s}, strategy="none")
    assert found.verdict == "faulty"


EQUAL_WEIGHTS = """<ir_version: 8, opset_import: ["" : 17]>
g (float[4,2,3] x) => (float[4,2,3] y)
<float[2] s = {1,1}, float[2] b = {0,0}, float[2] m = {0,0}, float[2] v = {1,1}>
{ y, rm, rv = BatchNormalization <training_mode: int = 1> (x, s, b, m, v) }"""


def test_who_shares_equal_weights_is_not_blamed_for_a_kernel_that_overwrites_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "training.onnx"
    onnx.save(onnx.parser.parse_model(EQUAL_WEIGHTS), path)
    result = optvet.vet(path, optimizer="onnxoptimizer", cache_dir=tmp_path / "cache", clean=True)
    assert result.verdict == "undecided"
    assert "onnx_reference computes of the optimized model what the original" in result.reason
    (finding,) = [f for f in result.findings if f.symptom == Symptom.WRONG_OUTPUT]
    assert finding.severity == "note"
    assert "eliminate_duplicate_initializer" not in result.safe_pipeline


class Folds(CastsByWords):
    """Passes that write the shape of a Reshape as a weight, right or wrong, or drop an Abs."""

    name = "folds"

    def passes(self) -> Sequence[Pass]:
        names = ("fold", "fold_wrong", "drop_abs")
        return [Pass(name, "rewrite", default=name == "fold") for name in names]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        return {"default": ("fold",), "all": ("fold", "drop_abs")}

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        model = onnx.load_from_string(source.data)
        folded = [3, 2] if "fold_wrong" in passes else [2, 3]
        for node in nodes_of(model.graph):
            if node.op_type == "Reshape" and {"fold", "fold_wrong"} & {*passes}:
                node.input[1] = "folded"
                model.graph.initializer.append(helper.make_tensor("folded", 7, [2], folded))
            if node.op_type == "Abs" and "drop_abs" in passes:
                node.op_type = "Identity"
        return Artifact("onnx", model.SerializeToString())


def vetted_folds(folder: Path, sandbox: Sandbox, pipeline: str) -> VetResult:
    plugins = Plugins()
    plugins.register("optimizer", Folds())
    path = folder / "model.onnx"
    asked = VetRequest(
        model="model", optimizer="folds", pipeline=pipeline, cache_dir=folder / "cache"
    )
    opened = open_model(path, str(path), folder / "cache")
    return vet_model(opened, asked, plugins, sandbox=sandbox)


def test_a_wrong_shape_that_the_original_declares_is_a_note(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[6] x) => (float[A,B] y) <int64[2] w = {-2, -3}>
    { s = Neg(w)  t = Reshape(x, s)  y = Abs(t) }""")
    model.graph.value_info.append(helper.make_tensor_value_info("t", 1, [3, 2]))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, tmp_path / "model.onnx")
    folded = vetted_folds(tmp_path, sandbox, "default")
    # The model runs: strict shape inference alone says that something is wrong.
    assert folded.verdict == "clean"
    assert [(f.symptom, f.severity, f.culprit) for f in folded.findings] == [
        (Symptom.INVALID_MODEL, "note", ["fold"])
    ]
    dropped = vetted_folds(tmp_path, sandbox, "drop_abs")
    assert dropped.verdict == "faulty"
    assert [(f.symptom, f.culprit) for f in dropped.findings] == [
        (Symptom.WRONG_OUTPUT, ["drop_abs"])
    ]


@pytest.mark.parametrize(
    ("declared", "pipeline", "verdict"),
    [("3,2", "fold", "clean"), ("2,3", "fold_wrong", "clean"), ("3,2", "drop_abs", "faulty")],
)
def test_a_wrong_shape_in_a_branch_that_is_not_taken_is_a_note(
    sandbox: Sandbox, tmp_path: Path, declared: str, pipeline: str, verdict: str
) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[6] x) => (float[A,B] y)
    <int64[2] w = {{-2, -3}}, bool yes = {{1}}, int64[1] zero = {{0}}>
    {{
        s = Neg(w)
        r = Reshape(x, s)
        f = Unsqueeze(x, zero)
        y = If(yes) <
            then_branch = then() => (float[1,6] a) {{ a = Abs(f) }},
            else_branch = else() => (float[{declared}] b) {{ b = Identity(r) }}
        >
    }}""")
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, tmp_path / "model.onnx")
    result = vetted_folds(tmp_path, sandbox, pipeline)
    assert result.verdict == verdict
    if verdict == "clean":
        assert [(f.symptom, f.severity) for f in result.findings] == [
            (Symptom.INVALID_MODEL, "note")
        ]
    else:
        assert [f.culprit for f in result.findings if f.severity == "fault"] == [[pipeline]]


class Fuses(CastsByWords):
    """Passes that multiply by one weight in place of two: by their product, or by their sum."""

    name = "fuses"

    def passes(self) -> Sequence[Pass]:
        return [Pass("product", "fuse", default=True), Pass("sum", "fuse")]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        return {"default": ("product",), "all": ("product", "sum")}

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        model = onnx.load_from_string(source.data)
        if passes:
            a, b = (numpy_helper.to_array(t) for t in model.graph.initializer)
            fused = np.asarray(a * b if "product" in passes else a + b)
            model.graph.initializer[0].CopyFrom(numpy_helper.from_array(fused, "a"))
            model.graph.node[0].output[0] = model.graph.node[1].output[0]
            del model.graph.node[1], model.graph.initializer[1]
        return Artifact("onnx", model.SerializeToString())


@pytest.mark.parametrize(
    ("a", "b", "pipeline", "verdict"),
    [
        (1e-29, 3e-29, "product", "undecided"),
        (1e-29, 3e-29, "sum", "faulty"),
        (1e-15, 3e-15, "sum", "faulty"),
    ],
)
def test_weights_of_which_no_two_may_be_multiplied_accuse_no_pass_that_does(
    tmp_path: Path, sandbox: Sandbox, a: float, b: float, pipeline: str, verdict: str
) -> None:
    model = onnx.parser.parse_model(f"""{HEAD}g (float[2] x) => (float[2] y)
    <float a = {{{a}}}, float b = {{{b}}}> {{ t = Mul(x, a)  y = Mul(t, b) }}""")
    onnx.save(model, tmp_path / "model.onnx")
    plugins = Plugins()
    plugins.register("optimizer", Fuses())
    feeds = {"x": np.array([3e28, -1e28], np.float32)}
    plugins.register("dataset", inputs := GivenInputs((feeds,)))
    asked = VetRequest(
        model="model",
        optimizer="fuses",
        pipeline=pipeline,
        dataset=(inputs.name,),
        cache_dir=tmp_path / "cache",
    )
    opened = open_model(tmp_path / "model.onnx", "model", tmp_path / "cache")
    result = vet_model(opened, asked, plugins, sandbox=sandbox)
    assert result.verdict == verdict
    assert ("product of the weights 'a' and 'b'" in result.reason) is (verdict == "undecided")


@pytest.mark.parametrize(("also", "kept"), [("", {"fuse", "fold"}), ("fold", {"fuse"})])
def test_a_pass_is_kept_if_all_that_it_is_blamed_for_is_excused(also: str, kept: set[str]) -> None:
    def blamed(passes: list[str], severity: Literal["fault", "note"], output: str) -> Finding:
        seen = Symptom.WRONG_OUTPUT
        return Finding(
            symptom=seen,
            severity=severity,
            stage="compare",
            culprit=passes,
            confirmed=True,
            outputs=[output],
        )

    ledger, excused = FindingsLedger(), blamed(["fuse", "fold"], "note", "y")
    ledger.add(blamed(["fuse"], "fault", "x"))  # of before, which is no reason here
    ledger.add(excused)
    if also:
        ledger.add(blamed([also], "fault", "z"))
    assert excused_passes(ledger, [excused], 1) == kept
