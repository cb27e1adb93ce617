import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from pydantic import ValidationError

from optvet import Symptom, VetResult
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.plugin import Artifact
from optvet.spec.request import VetRequest
from optvet_onnxoptimizer import OnnxOptimizer, OnnxOptimizerOptions

NET = """
<ir_version: 8, opset_import: ["" : 13]>
net (float[2,3] x) => (float[2,2] y)
<float[3,2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {7, -8}>
{
    i = Identity(x)
    m = MatMul(i, w)
    a = Add(m, b)
    y = Relu(a)
}
"""

# Nothing but names and types: no pass has a reason to touch the sums.
LOOKUP = """
<ir_version: 8, opset_import: ["" : 13]>
lookup (int64[2] rows) => (float[2,2] picked)
<float[3,2] table = {1, 2, 3, 4, 5, 6}>
{
    picked = Gather <axis: int = 0> (table, rows)
}
"""

onnxoptimizer = pytest.importorskip("onnxoptimizer")

LIMITED = {"split_init", "split_predict", "lift_lexical_references"}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    preload = ("numpy", "onnx", "onnx.checker", "onnxruntime", "onnxoptimizer")
    with Sandbox(jobs=2, limits=Limits(60, 1 << 30), preload=preload) as shared:
        yield shared


Vet = Callable[..., VetResult]


@pytest.fixture
def vet(tmp_path: Path, sandbox: Sandbox) -> Vet:
    plugins = Plugins()

    def run(text: str | onnx.ModelProto, pipeline: str, **more: Any) -> VetResult:
        path = tmp_path / "model.onnx"
        onnx.save(onnx.parser.parse_model(text) if isinstance(text, str) else text, path)
        settings = VetRequest(
            model="model", pipeline=pipeline, limit=3, cache_dir=tmp_path / "cache", **more
        )
        return vet_model(open_model(path, str(path), tmp_path), settings, plugins, sandbox=sandbox)

    return run


def applied(text: str, *passes: str) -> onnx.ModelProto:
    source = Artifact("onnx", onnx.parser.parse_model(text).SerializeToString())
    artifact = OnnxOptimizer().apply(source, passes, OnnxOptimizerOptions())
    assert artifact.format == "onnx"
    return onnx.load_from_string(artifact.data)


def with_raw_weights(text: str) -> onnx.ModelProto:
    """A model whose weights can be in a file of their own."""
    model = onnx.parser.parse_model(text)
    for tensor in model.graph.initializer:
        value = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    return model


# Passes and pipelines


def test_the_passes_are_those_of_the_installed_library_in_its_order() -> None:
    names = [p.name for p in OnnxOptimizer().passes()]
    assert names == list(onnxoptimizer.get_available_passes())
    assert len(names) > 40


def test_the_version_is_the_librarys() -> None:
    assert OnnxOptimizer().version() == onnxoptimizer.__version__


def test_the_default_pipeline_is_the_librarys() -> None:
    optimizer = OnnxOptimizer()
    default = optimizer.pipelines()["default"]
    assert list(default) == list(onnxoptimizer.get_fuse_and_elimination_passes())
    assert {p.name for p in optimizer.passes() if p.default} == set(default)


def test_all_leaves_out_what_does_not_yield_a_whole_model() -> None:
    optimizer = OnnxOptimizer()
    known = {p.name for p in optimizer.passes()}
    assert set(optimizer.pipelines()["all"]) == known - LIMITED


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fuse_bn_into_conv", "fuse"),
        ("eliminate_identity", "eliminate"),
        ("rewrite_where", "rewrite"),
        ("split_init", "split"),
        ("rename_input_output", "rename"),
        ("nop", "rewrite"),
    ],
)
def test_the_kind_of_a_pass_is_read_off_its_name(name: str, kind: str) -> None:
    assert {p.name: p.kind for p in OnnxOptimizer().passes()}[name] == kind


def test_known_limits_are_marked_with_their_reason() -> None:
    limits = {p.name: p.known_limits for p in OnnxOptimizer().passes() if p.known_limits}
    assert set(limits) == LIMITED
    for (limit,) in limits.values():
        assert Symptom.WRONG_OUTPUT in limit.symptoms
        # Nothing excuses a crash.
        assert not {Symptom.OPTIMIZER_ABORT, Symptom.TIMEOUT} & limit.symptoms
        assert limit.reason


def test_legal_changes_of_the_interface_are_marked() -> None:
    interface = {p.name: p.interface for p in OnnxOptimizer().passes() if p.interface}
    assert interface == {"rename_input_output": {"names"}, "rewrite_input_dtype": {"input-dtypes"}}


def test_no_pass_is_lossy_or_required() -> None:
    assert not [p.name for p in OnnxOptimizer().passes() if p.lossy or p.required]


# Application


def test_no_passes_mean_import_and_export_alone() -> None:
    assert [n.op_type for n in applied(NET).graph.node] == ["Identity", "MatMul", "Add", "Relu"]


def test_exactly_the_given_passes_are_applied() -> None:
    operators = [n.op_type for n in applied(NET, "eliminate_identity").graph.node]
    assert operators == ["MatMul", "Add", "Relu"]
    three = ("eliminate_identity", "fuse_matmul_add_bias_into_gemm", "eliminate_deadend")
    assert [n.op_type for n in applied(NET, *three).graph.node] == ["Gemm", "Relu"]


def test_an_unknown_pass_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no_such_pass"):
        applied(NET, "no_such_pass")


def test_options_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        OnnxOptimizerOptions(fixpoint=True)  # type: ignore[call-arg]


@pytest.mark.parametrize("fixed_point", [False, True])
def test_an_application_gives_what_the_public_function_of_the_library_gives(
    fixed_point: bool,
) -> None:
    passes = ("eliminate_identity", "fuse_matmul_add_bias_into_gemm")
    model = onnx.parser.parse_model(NET)
    options = OnnxOptimizerOptions(fixed_point=fixed_point)
    artifact = OnnxOptimizer().apply(Artifact("onnx", model.SerializeToString()), passes, options)
    expected = onnxoptimizer.optimize(model, list(passes), fixed_point)
    assert onnx.load_from_string(artifact.data) == expected


@pytest.mark.parametrize("fixed_point", [False, True])
def test_weights_beside_the_model_are_optimized_alike_by_plugin_and_snippet(
    fixed_point: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnxoptimizer import onnx_opt_cpp2py_export as native

    outside: list[bool] = []
    options = OnnxOptimizerOptions(fixed_point=fixed_point, weights="beside")
    name = "optimize_fixedpoint_from_path" if fixed_point else "optimize_from_path"
    optimize = getattr(native, name)

    def noting(path: str, *rest: object) -> object:
        graph = onnx.load(path, load_external_data=False).graph
        outside.extend(t.data_location == t.EXTERNAL for t in graph.initializer)
        return optimize(path, *rest)

    monkeypatch.setattr(native, name, noting)
    model = with_raw_weights(NET)
    passes = ("eliminate_identity", "fuse_matmul_add_bias_into_gemm")
    source = Artifact("onnx", model.SerializeToString())
    made = onnx.load_from_string(OnnxOptimizer().apply(source, passes, options).data)
    assert outside == [True] * len(model.graph.initializer)
    inside = onnx.load_from_string(
        OnnxOptimizer().apply(source, passes, OnnxOptimizerOptions()).data
    )
    assert made.graph.node == inside.graph.node
    values = [
        [onnx.numpy_helper.to_array(t).tolist() for t in m.graph.initializer]
        for m in (made, inside)
    ]
    assert values[0] == values[1]
    body = textwrap.indent(OnnxOptimizer().snippet(passes, options), "    ")
    scope: dict[str, Any] = {}
    exec(f"def optimize(model):\n{body}", scope)
    assert scope["optimize"](model) == made


@pytest.mark.long
def test_what_only_weights_beside_the_model_break_is_found(vet: Vet) -> None:
    # The library reads a weight without elements as all of the file.
    model = with_raw_weights(
        """<ir_version: 8, opset_import: ["" : 17]> g () => (float[0] a, float[0] b)
        <float[0] e = {}, int64[2] s = {0, 0}> { a, b = Split(e, s) }"""
    )
    assert vet(model, "default").verdict == "clean"
    result = vet(model, "default", optimizer_options={"weights": "beside"})
    if result.verdict == "clean":
        pytest.skip("this release reads it rightly")
    assert result.findings[0].symptom in ("optimizer-error", "invalid-model")


def test_an_application_leaves_the_callers_bytes_alone() -> None:
    model = onnx.parser.parse_model(NET)
    data = model.SerializeToString()
    kept = bytes(bytearray(data))
    OnnxOptimizer().apply(Artifact("onnx", data), ("eliminate_identity",), OnnxOptimizerOptions())
    assert data == kept
    assert np.array_equal(onnx.numpy_helper.to_array(model.graph.initializer[1]), [7, -8])


# Vetted


def test_a_healthy_model_is_not_blamed(vet: Vet) -> None:
    result = vet(NET, "default")
    assert result.verdict in ("clean", "drift")
    assert [f for f in result.findings if f.severity == "fault"] == []


@pytest.mark.parametrize("text", [NET, LOOKUP], ids=["net", "lookup"])
@pytest.mark.parametrize("name", ["rename_input_output", "rewrite_input_dtype"])
def test_a_legal_change_of_the_interface_is_mapped_and_no_finding(
    vet: Vet, name: str, text: str
) -> None:
    result = vet(text, name)
    assert result.findings == []
    assert result.verdict == "clean"
    assert result.safe_pipeline == [name]


def test_the_interface_really_changed() -> None:
    (renamed,) = applied(NET, "rename_input_output").graph.input
    assert renamed.name != "x"
    (narrowed,) = applied(LOOKUP, "rewrite_input_dtype").graph.input
    assert narrowed.type.tensor_type.elem_type == onnx.TensorProto.INT32


def test_a_documented_limit_is_a_note_when_the_pass_is_asked_for(vet: Vet) -> None:
    text = NET.replace("m = MatMul(i, w)", "v = Neg(w)  m = MatMul(i, v)")
    result = vet(text, "split_predict")
    assert {f.severity for f in result.findings} <= {"note"}
    assert result.verdict != "faulty"
    for finding in result.findings:
        assert (finding.known_limit or "").startswith("documented limit of split_predict: ")


def test_a_model_of_which_nothing_was_judged_is_not_clean(vet: Vet) -> None:
    text = """
    <ir_version: 3, opset_import: ["" : 9]>
    g (float[2,4] x, float[4,1] w) => (float[2,1] y) <float[4,1] w = {1, 2, 3, 4}>
    { y = MatMul(x, w) }
    """
    result = vet(text, "split_init")
    assert (result.verdict, [o.verdict for o in result.outputs]) == ("undecided", ["not-judged"])
    assert result.reason.startswith("no output was judged: documented limit of split_init: keeps")


def test_what_remains_without_a_documented_limit_is_judged(vet: Vet) -> None:
    text = NET.replace("m = MatMul(i, w)", "v = Neg(w)  m = MatMul(i, v)")
    result = vet(text, "split_predict,eliminate_nop_pad")
    assert [o.verdict for o in result.outputs] == ["same"]
    control = result.control("documented limits")
    assert control is not None
    assert (
        control.detail == "outputs were judged without passes of documented limits: split_predict"
    )


def test_all_does_not_blame_a_healthy_model_for_passes_with_known_limits(vet: Vet) -> None:
    result = vet(NET, "all")
    assert [f.culprit for f in result.findings if f.severity == "fault"] == []
    assert {r.name for r in result.passes if r.known_limit} == LIMITED


def test_code_names_only_the_passes_of_the_default_that_are_off() -> None:
    optimizer = OnnxOptimizer()
    default = optimizer.pipelines()["default"]
    most = [name for name in default if name != "fuse_bn_into_conv"]
    code = optimizer.snippet(most, optimizer.options)
    assert "off = ['fuse_bn_into_conv']" in code
    assert not [name for name in most if repr(name) in code]
    import onnxoptimizer

    taken: list[list[str]] = []
    scope: dict[str, Any] = {}
    exec(f"def optimize(model):\n{textwrap.indent(code, '    ')}", scope)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnxoptimizer, "optimize", lambda _, names: taken.append(names))
        scope["optimize"](None)
    assert taken == [most]
    few = optimizer.snippet(["fuse_bn_into_conv", "eliminate_deadend"], optimizer.options)
    assert "['fuse_bn_into_conv', 'eliminate_deadend']" in few


SHAPES = """
<ir_version: 8, opset_import: ["" : 17]>
shapes (float[2,3] x, float[2,3] z) => (float[3,2] y, int64[2] s, float[2,6] c)
<float[2,3] unused = {1, 2, 3, 4, 5, 6}, float zero = {0}>
{
    a = Transpose <perm = [1, 0]> (x)
    b = Transpose <perm = [1, 0]> (a)
    t = Transpose <perm = [1, 0]> (b)
    n = Add(t, zero)
    y = Relu(n)
    dead = Neg(x)
    s = Shape(z)
    one = Exp(z)
    again = Exp(z)
    c = Concat <axis: int = 1> (one, again)
}
"""


def undone(model: str, seed: int) -> list[list[str]]:
    """Groups of passes that leave a model as it is, but of which one alone does not."""
    data = onnx.parser.parse_model(model).SerializeToString()
    optimizer, options = OnnxOptimizer(), OnnxOptimizerOptions()

    def after(*passes: str) -> bytes:
        return optimizer.apply(Artifact("onnx", data), passes, options).data

    names = sorted(p.name for p in optimizer.passes() if not (p.known_limits or p.interface))
    same = {name for name in names if after(name) == after()}
    rng = np.random.default_rng(seed)
    groups = [rng.permutation(names)[: rng.integers(2, len(names))].tolist() for _ in range(200)]
    # Groups of passes of which few change the model are those that may restore it.
    few = [[n for n in g if n in same or rng.random() < 0.5] for g in groups]
    return [g for g in few if not same.issuperset(g) and after(*g) == after()]


@pytest.mark.parametrize("model", [NET, LOOKUP, SHAPES])
def test_no_pass_restores_what_others_have_changed(model: str, sandbox: Sandbox) -> None:
    assert OnnxOptimizer().traits.one_way
    assert sandbox.call(undone, model, 0).value == []
