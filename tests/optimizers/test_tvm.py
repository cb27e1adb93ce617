"""TVM for real: its own faults, and a planted pass, in worker processes."""

import importlib.util
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.answers import detail

from optvet.engine.bundle import replay_bundle, write_bundles
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.spec.errors import Unsupported, UsageError
from optvet.spec.records import Finding, VetResult
from optvet.spec.request import VetRequest
from optvet.spec.sensitive import sensitive_options
from optvet.spec.types import Artifact
from optvet.testing import check_optimizer
from optvet_tvm.optimizer import TvmOptimizer
from optvet_tvm.options import TvmOptions
from optvet_tvm.passes import make_pass
from optvet_tvm.runtime import TvmRuntime

if importlib.util.find_spec("tvm") is None:
    pytest.skip("needs apache-tvm; install optvet[tvm]", allow_module_level=True)

PRELOAD = ("numpy", "onnx", "onnx.checker", "onnxruntime", *TvmOptimizer.preload)
REQUIRED = (
    "DispatchSampling DispatchSortScan LegalizeOps ToNonDataflow RemovePurityChecking "
    "CallTIRRewrite LowerAllocTensor LowerRuntimeBuiltin ComputePrimValue VMShapeLower "
    "AttachGlobalSymbol"
).split()


def numbers(*shape: int, seed: int = 0) -> str:
    values = np.random.default_rng(seed).normal(size=shape).ravel()
    return "{" + ", ".join(f"{v:.4f}" for v in values) + "}"


CONV = f"""
<ir_version: 8, opset_import: ["" : 17]>
conv (float[1,3,8,8] x) => (float[1,4,8,8] y)
<float[4,3,3,3] w = {numbers(4, 3, 3, 3)}, float[4] scale = {{1, 1.2, 0.8, 1.1}},
 float[4] bias = {{0.1, -0.2, 0.3, 0}}, float[4] mean = {{0.1, 0, 0.2, -0.1}},
 float[4] var = {{1, 0.5, 1.5, 0.7}}>
{{
    c = Conv<pads = [1, 1, 1, 1]>(x, w)
    n = BatchNormalization(c, scale, bias, mean, var)
    y = Relu(n)
}}
"""
RELU = """
<ir_version: 8, opset_import: ["" : 17]>
relu (float[N,4] x) => (float[N,4] y)
{
    y = Relu(x)
}
"""
EXPAND = """
<ir_version: 8, opset_import: ["" : 17]>
expand (float[1,3,1] x, int64[3] shape) => (float[a,b,c] y)
{
    y = Expand(x, shape)
}
"""
LOOP = """
<ir_version: 8, opset_import: ["" : 17]>
loop (float[2] x) => (float[2] y)
<int64 count = {3}, bool go = {1}>
{
    y = Loop(count, go, x) <body = body (int64 i, bool c, float[2] v) => (bool d, float[2] u) {
        d = Identity(c)
        u = Add(v, v)
    }>
}
"""


def gelu_for_relu() -> Any:
    """A pass with a fault: relu(x) → gelu(x)."""
    import tvm
    from tvm import relax
    from tvm.relax.expr_functor import PyExprMutator, mutator

    @mutator
    class Swap(PyExprMutator):  # type: ignore[misc]  # TVM ships no types
        def visit_call_(self, call: Any) -> Any:
            call = self.visit_expr_post_order(call)
            if isinstance(call.op, tvm.ir.Op) and call.op.name == "relax.nn.relu":
                return relax.op.nn.gelu(call.args[0])
            return call

    @tvm.transform.module_pass(opt_level=0, name="GeluForRelu")  # type: ignore[untyped-decorator]
    def swap(module: Any, context: Any) -> Any:
        visitor = Swap(module)
        for name, function in module.functions_items():
            if isinstance(function, relax.Function):
                visitor.builder_.update_func(name, visitor.visit_expr(function))
        return visitor.builder_.get()

    return swap


def spoils_in_place() -> Any:
    """The same fault in a pass that changes the module that it was given."""
    import tvm

    swap = gelu_for_relu()

    @tvm.transform.module_pass(opt_level=0, name="InPlace")  # type: ignore[untyped-decorator]
    def spoil(module: Any, context: Any) -> Any:
        for name, function in swap(module).functions_items():
            module[module.get_global_var(name.name_hint)] = function
        return module

    return spoil


def fails_to_apply() -> Any:
    """A pass that raises."""
    import tvm

    @tvm.transform.module_pass(opt_level=0, name="Fails")  # type: ignore[untyped-decorator]
    def fail(module: Any, context: Any) -> Any:
        raise ValueError("planted")

    return fail


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=1, limits=Limits(60, 4 << 30), preload=PRELOAD) as shared:
        yield shared


Vet = Callable[..., VetResult]


@pytest.fixture
def vet(tmp_path: Path, sandbox: Sandbox) -> Vet:
    def run(text: str, **settings: Any) -> VetResult:
        path = tmp_path / "model.onnx"
        onnx.save(onnx.parser.parse_model(text), path)
        chosen: dict[str, Any] = {
            "optimizer": "tvm",
            "limit": 2,
            "cache_dir": tmp_path / "cache",
        } | settings
        model = open_model(path, str(path), tmp_path / "cache")
        return vet_model(model, VetRequest(model="model", **chosen), Plugins(), sandbox=sandbox)

    return run


def faults(result: VetResult) -> list[Finding]:
    return [f for f in result.findings if f.severity == "fault"]


def run(artifact_of: Sequence[str], text: str, feeds: dict[str, np.ndarray]) -> Any:
    """Fingerprint, changed passes and outputs; called in a worker."""
    optimizer, runtime = TvmOptimizer(), TvmRuntime()
    source = Artifact("onnx", onnx.parser.parse_model(text).SerializeToString())
    artifact = optimizer.apply(source, artifact_of, optimizer.options)
    outputs = runtime.load(artifact, runtime.options).run(feeds)
    return artifact.fingerprint, artifact.changing_passes, outputs


# The list of passes


@pytest.mark.parametrize(
    ("target", "plain"),
    [
        ("llvm", True),
        ({"kind": "llvm", "mcpu": "x86-64-v3"}, True),
        ({"kind": "llvm", "cl-opt": ["-load=x.so"]}, False),
        ({"kind": "c"}, False),
        ("[1]", False),
        ("c", False),
    ],
)
def test_a_target_that_only_chooses_a_processor_needs_no_trust(target: object, plain: bool) -> None:
    mark = sensitive_options(TvmOptions)["target"]
    assert mark.unless(target) is plain
    assert mark.unless(TvmOptions.model_validate({"target": target}).target) is plain


def test_kernel_passes_are_listed_only_when_asked_for() -> None:
    plain, opened = TvmOptimizer(), TvmOptimizer(TvmOptions(tir=True))
    assert [p.name for p in plain.passes() if p.required] == REQUIRED
    assert {p.kind for p in plain.passes()} == {"graph", "lower"}
    more = [p for p in opened.passes() if p not in plain.passes()]
    assert {p.kind for p in more} == {"tir"}
    assert {"s_tir.LowerOpaqueBlock", "tirx.MakePackedAPI"} <= {p.name for p in more if p.required}


def test_tvms_own_pipeline_is_one_of_the_pipelines(sandbox: Sandbox) -> None:
    assert list(TvmOptimizer().pipelines()["cpu"]) == sandbox.call(own_pipeline).value


def own_pipeline() -> list[str]:
    import tvm
    from tvm.relax.backend.cpu_generic import pipeline

    target = tvm.target.Target("llvm")
    parts = (
        pipeline.library_dispatch_passes,
        pipeline.legalize_passes,
        pipeline.dataflow_lower_passes,
        pipeline.finalize_passes,
    )
    names = [p.info.name for part in parts for p in part(target)]
    return [f"{n}#2" if n == "FoldConstant" else n for n in names]


def test_the_pipeline_zero_is_tvms_own() -> None:
    optional = [n for n in TvmOptimizer().pipelines()["zero"] if n not in REQUIRED]
    assert optional == ["AnnotateTIROpPattern", "FoldConstant#2", "FuseOps", "FuseTIR"]


def test_every_pass_of_the_package_is_listed_if_asked_for() -> None:
    opened = TvmOptimizer(TvmOptions(package=True))
    more = [p for p in opened.passes() if p not in TvmOptimizer().passes()]
    assert {"ConvertToDataflow", "Normalize", "LambdaLift", "VMBuiltinLower"} <= {
        p.name for p in more
    }
    assert {(p.kind, p.default, p.required) for p in more} == {("graph", False, False)}
    place = [p.name for p in opened.passes()].index
    assert place("DeadCodeElimination") < place("Normalize") < place("DispatchSampling")
    from tvm import relax

    for one in more:
        assert callable(getattr(relax.transform, one.name)), one.name


def applied_at_level(level: int) -> list[str]:
    """The passes that change a module of a common subexpression, by the level of the context."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4] x) => (float[1,4] y)
    { a = Tanh(x)  b = Tanh(x)  y = Add(a, b) }"""
    model = onnx.parser.parse_model(text).SerializeToString()
    options = TvmOptions(opt_level=level)
    optimizer = TvmOptimizer(options)
    passes = ["EliminateCommonSubexpr", *REQUIRED]
    made = optimizer.apply(Artifact("onnx", model), passes, options)
    return list(made.changing_passes or ())


def test_a_pass_above_the_level_is_skipped_as_sequential_does(sandbox: Sandbox) -> None:
    zero, three = (sandbox.call(applied_at_level, n).value for n in (0, 3))
    assert zero is not None
    assert three is not None
    assert set(three) - set(zero) == {"EliminateCommonSubexpr"}


def test_only_approximate_passes_are_lossy_and_none_is_a_default() -> None:
    lossy = {p.name: p for p in TvmOptimizer().passes() if p.lossy}
    assert set(lossy) == {"FastMathTransform", "ToMixedPrecision"}
    assert not any(p.default for p in lossy.values())


def test_an_extra_pass_stands_where_it_was_put() -> None:
    options = TvmOptions(extra_passes=(f"mine={__file__}:gelu_for_relu@3", f"{__file__}:late"))
    names = [p.name for p in TvmOptimizer(options).passes()]
    assert names[3] == "mine"
    assert names.index("late") + 1 == names.index("DispatchSampling")


def test_an_edited_extra_pass_is_another_version(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    optimizer = TvmOptimizer(TvmOptions(extra_passes=(f"{file}:own",)))
    file.write_text("own = 1")
    before = optimizer.version()
    file.write_text("own = 2")
    assert optimizer.version() != before
    assert before.startswith(TvmOptimizer().version())


def test_the_code_of_a_users_pass_runs_beside_the_file_that_it_carries(tmp_path: Path) -> None:
    file = tmp_path / "my-passes.py"
    file.write_text(f"from typing import Any\n\n\n{inspect.getsource(gelu_for_relu)}")
    options = TvmOptions(extra_passes=(f"swap={file}:gelu_for_relu",))
    optimizer, runtime = TvmOptimizer(options), TvmRuntime()
    passes = [p.name for p in optimizer.passes() if p.required or p.name == "swap"]
    bodies = {
        "optimize(model)": optimizer.snippet(passes, options),
        "run(model, feeds)": runtime.simple_snippets(runtime.options)[0],
    }
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name, content in optimizer.carried(options).items():
        (folder / name).write_bytes(content)
    file.unlink()
    code = [f"def {head}:\n{textwrap.indent(body, '    ')}" for head, body in bodies.items()]
    code += ["import numpy as np, onnx.parser", f"model = onnx.parser.parse_model({RELU!r})"]
    code += ["feeds = {'x': np.full((1, 4), -1, np.float32)}"]
    code += ["print(run(optimize(model), feeds)['y'].round(4)[0, 0])"]
    (folder / "script.py").write_text("\n".join(code))
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("-0.1587", 0), done.stderr  # gelu(-1)
    assert "optvet" not in "".join(code)


def test_an_unreadable_extra_pass_is_refused(vet: Vet) -> None:
    with pytest.raises(UsageError, match=r"is not \[NAME=\]MODULE:FUNCTION"):
        vet(RELU, optimizer_options={"extra_passes": "nonsense"})


@pytest.mark.long
def test_kernel_passes_conform_too() -> None:
    check_optimizer(TvmOptimizer(TvmOptions(tir=True)))


# Executables


def test_the_order_within_the_lowering_is_tvms_own(sandbox: Sandbox) -> None:
    x = np.array([[-1, 2, 0, 3]], np.float32)
    shuffled = [*reversed(REQUIRED), "CanonicalizeBindings"]
    ours = sandbox.call(run, ["CanonicalizeBindings", *REQUIRED], RELU, {"x": x})
    theirs = sandbox.call(run, shuffled, RELU, {"x": x})
    assert ours.value is not None
    assert theirs.value is not None
    assert ours.value[0] == theirs.value[0]
    np.testing.assert_array_equal(ours.value[2]["y"], [[0, 2, 0, 3]])


TYPES = """
<ir_version: 8, opset_import: ["" : 17]>
types (int64[n] b, double[n] a, float s) => (double[n] total, bool[n] more, float twice)
{
    c = Cast<to = 11>(b)
    total = Add(a, c)
    more = Greater(a, c)
    twice = Add(s, s)
}
"""


SHAPES = """
<ir_version: 8, opset_import: ["" : 17]>
shapes (float[N,4] x) => (float[m] y)
<int64[1] flat = {-1}, int64[2] twos = {-1, 2}>
{
    a = Concat<axis = 0>(x, x)
    b = Reshape(a, twos)
    c = Concat<axis = 0>(b, b, b)
    d = Relu(c)
    y = Reshape(d, flat)
}
"""


def test_outputs_have_the_names_and_types_of_the_model(sandbox: Sandbox) -> None:
    feeds = {
        "a": np.array([1 / 3, 2, 3, 4])[::2],
        "b": np.array([1, 2]),
        "s": np.array(1.5, np.float32),
    }
    seen = sandbox.call(run, REQUIRED, TYPES, feeds)
    assert seen.value is not None, seen.failure
    outputs = seen.value[2]
    assert list(outputs) == ["total", "more", "twice"]
    np.testing.assert_array_equal(outputs["total"], np.array([1 / 3 + 1, 5]))
    np.testing.assert_array_equal(outputs["more"], np.array([False, True]))
    assert [v.dtype for v in outputs.values()] == [np.float64, np.bool_, np.float32]
    assert outputs["twice"] == 3
    assert outputs["twice"].shape == ()


def test_the_same_model_has_one_fingerprint_in_all_processes(sandbox: Sandbox) -> None:
    # Several symbolic shapes: TVM numbers them by address.
    feeds = {"x": np.ones((2, 4), np.float32)}
    pipeline = TvmOptimizer().pipelines()["default"]
    outcomes = [sandbox.call(run, pipeline, SHAPES, feeds, fresh=True) for _ in range(4)]
    values = [o.value for o in outcomes if o.value is not None]
    assert len(values) == len(outcomes)
    assert len({v[0] for v in values}) == 1


CHAIN = """
<ir_version: 8, opset_import: ["" : 17]>
chain (float[1,4] x) => (float[1,4] y)
{
    r = Relu(x)
    y = Neg(r)
}
"""


def compilations(pipelines: Sequence[Sequence[str]], tir: bool = False) -> list[tuple[int, Any]]:
    """For each pipeline, the kernels of CHAIN that were compiled until then, and its output."""
    import tvm

    runtime, optimizer = TvmRuntime(), TvmOptimizer(TvmOptions(tir=tir))
    source = Artifact("onnx", onnx.parser.parse_model(CHAIN).SerializeToString())
    compiled, found = 0, []
    compiler = tvm.get_global_func("target.build.llvm")

    def compile_and_count(module: Any, target: Any) -> Any:
        nonlocal compiled
        compiled += len(module.functions)
        return compiler(module, target)

    tvm.register_global_func("target.build.llvm", compile_and_count, override=True)
    for pipeline in pipelines:
        built = optimizer.apply(source, pipeline, optimizer.options)
        session = runtime.load(built, runtime.options)
        outputs = session.run({"x": np.array([[-1, 2, 0, 3]], np.float32)})
        found.append((compiled, outputs["y"].tolist()))
    return found


def test_a_kernel_that_a_pass_leaves_as_it_is_is_compiled_once(sandbox: Sandbox) -> None:
    told = "AnnotateTIROpPattern"
    fused = (told, "FuseOps", "FuseTIR")
    pipelines = [REQUIRED, [*REQUIRED, told], [*REQUIRED, *fused], REQUIRED]
    outcome = sandbox.call(compilations, pipelines, fresh=True)
    assert outcome.value is not None, outcome.failure
    assert outcome.value == [(n, [[0, -2, 0, -3]]) for n in (2, 2, 3, 3)]


def test_a_kernel_that_passes_over_its_loops_leave_otherwise_is_compiled_anew(
    sandbox: Sandbox,
) -> None:
    every = TvmOptimizer(TvmOptions(tir=True)).pipelines()["default"]
    left_out = ("s_tir.HoistIfThenElse", "tirx.StorageRewrite")
    pipelines = [every, *([n for n in every if n != name] for name in left_out)]
    outcome = sandbox.call(compilations, pipelines, True, fresh=True)
    assert outcome.value == [(n, [[0, -2, 0, -3]]) for n in (1, 1, 2)], outcome.failure


def compiled_together(second: str) -> list[list[str]]:
    """Names of the kernels that the compiler is given at a time.

    Args:
        second: The kernel behind one of the name ``first``.
    """
    import tvm
    from tvm.script import ir, tirx

    from optvet_tvm.kernels import build_executable

    source = f"""
@ir.ir_module
class Kernels:
    @tirx.prim_func(s_tir=True)
    def first(a: tirx.Buffer((2,), "float32")):
        a[1] = tirx.float32(1)

    @tirx.prim_func(s_tir=True)
    def second(a: tirx.Buffer((2,), "float32")):
        {second}
"""
    module = tvm.script.from_source(source, {"ir": ir, "tirx": tirx})
    together = []
    compiler = tvm.get_global_func("target.build.llvm")

    def compile_and_note(module: Any, target: Any) -> Any:
        together.append(sorted(v.name_hint for v in module.functions))
        return compiler(module, target)

    tvm.register_global_func("target.build.llvm", compile_and_note, override=True)
    build_executable(module, tvm.target.Target("llvm"), 3)
    return together


@pytest.mark.parametrize(
    ("second", "together"),
    [
        ("a[0] = tirx.float32(1)", [["first"], ["second"]]),
        ("Kernels.first(a.data)", [["first", "second"]]),
    ],
)
def test_kernels_that_call_each_other_are_compiled_together(
    sandbox: Sandbox, second: str, together: list[list[str]]
) -> None:
    outcome = sandbox.call(compiled_together, second, fresh=True)
    assert outcome.value == together, outcome.failure


def test_two_kernels_of_one_name_are_refused_as_tvm_does(sandbox: Sandbox) -> None:
    named = 'tirx.func_attr({"global_symbol": "first"}); a[0] = tirx.float32(1)'
    outcome = sandbox.call(compiled_together, named, fresh=True)
    assert outcome.failure is not None, outcome.value
    assert "Duplicate PrimFunc global_symbol 'first'" in outcome.failure.message


IDENTITY = """
<ir_version: 8, opset_import: ["" : 17]>
same (float[2] x) => (float[2] y)
{
    y = Identity(x)
}
"""


def run_without_other_programs() -> list[float]:
    """What a model without kernels gives where no program can be started."""
    with patch("subprocess.Popen", side_effect=AssertionError("a program was started")):
        outputs = run(REQUIRED, IDENTITY, {"x": np.array([1, 2], np.float32)})[2]
    return list(outputs["y"].tolist())


def test_no_compiler_is_started_for_a_model_without_kernels(sandbox: Sandbox) -> None:
    outcome = sandbox.call(run_without_other_programs, fresh=True)
    assert outcome.value == [1, 2], outcome.failure


# Passes that are applied once


def applications() -> tuple[int, list[str], list[Any]]:
    """Imports, passes that were applied, and outputs, of pipelines that share passes."""
    import tvm.relax.frontend.onnx as frontend

    applied = []

    def note(name: str) -> Any:
        applied.append(name)
        return make_pass(name)

    pipelines = [REQUIRED, [*REQUIRED, "CanonicalizeBindings"], [*REQUIRED, "FuseOps"], REQUIRED]
    x = np.array([[-1, 2, 0, 3]], np.float32)
    with (
        patch.object(frontend, "from_onnx", wraps=frontend.from_onnx) as imported,
        patch("optvet_tvm.optimizer.make_pass", note),
    ):
        outputs = [run(pipeline, RELU, {"x": x})[2]["y"].tolist() for pipeline in pipelines]
    return imported.call_count, applied, outputs


def test_a_pass_is_applied_to_a_module_once(sandbox: Sandbox) -> None:
    outcome = sandbox.call(applications, fresh=True)
    assert outcome.value is not None, outcome.failure
    imports, applied, outputs = outcome.value
    assert (imports, outputs) == (1, [[[0, 2, 0, 3]]] * 4)
    assert sorted(applied) == sorted([*REQUIRED, "CanonicalizeBindings", "FuseOps"])


def outputs_around_a_pass_that_spoils_its_module() -> list[Any]:
    """Of the required passes behind one that changes its module, and of the required alone."""
    spoiler = "CanonicalizeBindings"

    def spoil(name: str) -> Any:
        return spoils_in_place() if name == spoiler else make_pass(name)

    pipelines = [[spoiler, *REQUIRED], REQUIRED]
    x = np.full((1, 4), -1, np.float32)
    with patch("optvet_tvm.optimizer.make_pass", spoil):
        return [run(pipeline, RELU, {"x": x})[2]["y"].round(4)[0, 0] for pipeline in pipelines]


def test_a_pass_that_changes_its_module_in_place_spoils_no_other_pipeline(sandbox: Sandbox) -> None:
    outcome = sandbox.call(outputs_around_a_pass_that_spoils_its_module, fresh=True)
    assert outcome.value == pytest.approx([-0.1587, 0]), outcome.failure  # gelu(-1)


WEIGHT = """
<ir_version: 8, opset_import: ["" : 17]>
weight (float[2] x) => (float[2] y)
<float[2] w = {1, 2}>
{
    y = Add(x, w)
}
"""


def outputs_around_overwritten_weights() -> list[Any]:
    """Outputs before and after something has overwritten the weights, for each of two pipelines."""
    import tvm
    import tvm_ffi

    optimizer, runtime = TvmOptimizer(), TvmRuntime()
    source = Artifact("onnx", onnx.parser.parse_model(WEIGHT).SerializeToString())
    found = []
    for pipeline in (REQUIRED, [*REQUIRED, "KillAfterLastUse"]):
        built = optimizer.apply(source, pipeline, optimizer.options)
        session = runtime.load(built, runtime.options)
        found.append(session.run({"x": np.zeros(2, np.float32)})["y"].tolist())
        assert built.handle is not None
        weights: list[Any] = []
        main = built.handle["module"]["main"]
        tvm_ffi.structural_walk(main.body, (tvm.ir.GenericConst, weights.append))
        weights[0].value.copyfrom(np.full(2, 7, np.float32))
        found.append(session.run({"x": np.zeros(2, np.float32)})["y"].tolist())
    return found


def test_overwritten_weights_spoil_no_other_executable(sandbox: Sandbox) -> None:
    outcome = sandbox.call(outputs_around_overwritten_weights, fresh=True)
    assert outcome.value == [[1, 2]] * 4, outcome.failure


def test_an_executable_does_not_outlive_its_process() -> None:
    runtime = TvmRuntime()
    with pytest.raises(ValueError, match="lives in the process that built it"):
        runtime.load(Artifact("tvm-executable", b"elsewhere"), runtime.options)


# Vetting


def test_a_healthy_model_rounds_differently_at_most(vet: Vet) -> None:
    result = vet(CONV)
    assert result.verdict in ("clean", "drift")
    assert result.safe_pipeline == result.optimizer.pipeline
    control = result.control("empty pipeline")
    assert control is not None
    assert control.state == "passed"
    assert result.changing_passes is not None
    assert "FoldBatchnormToConv2D" in result.changing_passes
    assert "CombineParallelMatmul" not in result.changing_passes


@pytest.mark.long
@pytest.mark.parametrize("position", [0, 15])
def test_a_planted_pass_is_named_in_ten_builds(vet: Vet, position: int) -> None:
    options = {"extra_passes": f"{__file__}:gelu_for_relu@{position}"}
    result = vet(RELU, optimizer_options=options)
    (finding,) = faults(result)
    assert (finding.symptom, finding.culprit) == ("wrong-output", ["gelu_for_relu"])
    assert finding.confirmed
    assert result.cost.applications - result.cost.by_purpose["explain"].applications <= 10
    assert result.safe_pipeline == [n for n in result.optimizer.pipeline if n != "gelu_for_relu"]


@pytest.mark.long
def test_a_pass_that_changes_its_module_in_place_is_the_only_culprit(vet: Vet) -> None:
    options = {"extra_passes": f"{__file__}:spoils_in_place@4"}
    result = vet(RELU, optimizer_options=options)
    (finding,) = faults(result)
    assert (finding.culprit, finding.confirmed) == (["spoils_in_place"], True)
    assert result.safe_pipeline == [n for n in result.optimizer.pipeline if n != "spoils_in_place"]


def test_a_pass_that_raises_is_named(vet: Vet) -> None:
    options = {"extra_passes": f"{__file__}:fails_to_apply"}
    (finding,) = faults(vet(RELU, optimizer_options=options))
    assert (finding.symptom, finding.culprit) == ("optimizer-error", ["fails_to_apply"])
    assert "pass fails_to_apply: ValueError: planted" in finding.message


def test_half_precision_is_judged_by_what_it_declares(vet: Vet) -> None:
    result = vet(CONV, pipeline="ToMixedPrecision")
    assert result.optimizer.pipeline == ["ToMixedPrecision", *REQUIRED]
    assert result.verdict == "drift"
    (output,) = result.outputs
    assert output.error is not None
    assert output.error > 1e-5


@pytest.mark.release
def test_a_fault_of_the_importer_is_no_passes_fault(vet: Vet, tmp_path: Path) -> None:
    feeds = {"x": np.array([[[1], [2], [3]]], np.float32), "shape": np.array([3, 1, 3])}
    arrays: dict[str, Any] = dict(feeds)
    np.savez(tmp_path / "sample.npz", **arrays)
    result = vet(EXPAND, dataset=(f"files:{tmp_path / 'sample.npz'}",))
    (finding,) = faults(result)
    assert (finding.culprit, finding.confirmed) == ([], True)
    assert finding.symptom in ("wrong-output", "run-failure")
    assert "import and lowering" in detail(result, "empty pipeline")
    asked = VetRequest(
        model=str(tmp_path / "model.onnx"),
        optimizer="tvm",
        dataset=(f"files:{tmp_path / 'sample.npz'}",),
        cache_dir=tmp_path / "cache",
    )
    (bundle,) = write_bundles(result, asked, tmp_path / "out", Plugins())
    assert replay_bundle(bundle.path, Plugins()).outcome == "still there"


def test_an_operator_that_cannot_be_imported_is_no_passes_fault(vet: Vet) -> None:
    with pytest.raises(Unsupported, match=r"TVM's import from ONNX.*Loop.*nothing was tested"):
        vet(LOOP)


def test_a_sequence_of_tensors_is_an_output(vet: Vet) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (seq(float[2]) s) { y = Relu(x) s = SequenceConstruct(x, y) }"""
    assert vet(text).verdict == "clean"


def test_a_pipeline_without_a_required_pass_is_said_to_lack_it(vet: Vet) -> None:
    pipeline = ["FoldConstant", *REQUIRED]
    pipeline.remove("LegalizeOps")
    (finding,) = faults(vet(RELU, pipeline=",".join(pipeline)))
    assert (finding.symptom, finding.culprit) == ("optimizer-error", [])
    assert "lacks the required LegalizeOps" in finding.message


def test_a_kernel_pass_whose_absence_kills_takes_nothing_down(vet: Vet, sandbox: Sandbox) -> None:
    opened = TvmOptimizer(TvmOptions(tir=True))
    pipeline = [n for n in opened.pipelines()["default"] if n != "s_tir.LowerOpaqueBlock"]
    data = onnx.parser.parse_model(RELU).SerializeToString()
    outcome = sandbox.call(opened.apply, Artifact("onnx", data), pipeline, opened.options)
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.signal) == ("abort", "SIGSEGV")
    result = vet(RELU, pipeline=",".join(pipeline), optimizer_options={"tir": True})
    (finding,) = faults(result)
    assert finding.symptom in ("optimizer-error", "optimizer-abort")
    assert (finding.culprit, finding.confirmed) == ([], True)


def test_values_inside_of_an_executable_are_told_behind_fusions_too() -> None:
    model, optimizer, runtime = onnx.parser.parse_model(CONV), TvmOptimizer(), TvmRuntime()
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)}
    for pipeline in ("default", "lowering"):
        passes = optimizer.pipelines()[pipeline]
        made = optimizer.apply(
            Artifact("onnx", model.SerializeToString()), passes, optimizer.options
        )
        inside = runtime.artifact_values(made, feeds, runtime.options)
        (output,) = (i for i in inside if i.output == 0)
        assert output.names == ("y",)
        expected = runtime.load(made, runtime.options).run(feeds)["y"]
        np.testing.assert_array_equal(output.value, expected)
        known = {"x", *(i.names[0] for i in inside)}
        assert known.issuperset(name for i in inside for name in i.reads)
    # Unfused, the sum of products is a value of its own; ReLU is fused where passes fuse.
    assert [inside[0].operator, inside[-1].operator] == ["conv2d", "relu"]


KEPT = """<ir_version: 9, opset_import: ["" : 18]>
g (float[1] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}> {
    a, b = Split<axis: int = 0, num_outputs: int = 2>(w)
    s = Concat<axis: int = 0>(b, a)
    y = Add(s, x)
}"""


@pytest.mark.release
def test_an_executable_that_adds_to_its_own_constant_is_wrong_from_the_second_run_on(
    vet: Vet,
) -> None:
    """Each trial by itself is right on one sample, so the culprit needs one that ran before."""
    result = vet(KEPT, limit=3)
    assert result.verdict == "faulty"
    (finding,) = [f for f in result.findings if f.severity == "fault"]
    assert {"FoldConstant", "DataflowUseInplaceCalls"} <= {*finding.culprit}
    assert "right in the first run of a session, and wrong after others" in finding.message
