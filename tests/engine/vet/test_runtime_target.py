"""A runtime under test: ``--optimizer runtime:NAME``."""

from pathlib import Path

import onnx
import onnx.parser
import pytest

from optvet.engine.discovery import Plugins
from optvet.engine.models.sources import resolve_model
from optvet.engine.runtime_target import lacks_kernel
from optvet.engine.vet.run import vet_model
from optvet.spec.errors import NothingTested, OptvetError, UsageError
from optvet.spec.records import VetResult
from optvet.spec.request import VetRequest
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Artifact
from optvet_onnxruntime.runtime import OrtOptions, OrtRuntime

NET = """<ir_version: 8, opset_import: ["" : 18]>
g (float[2,4] x) => (float[2,4] y) { a = Neg(x)  b = Relu(a)  y = Exp(b) }"""
OLD = """<ir_version: 3, opset_import: ["" : 6]>
g (float[2,4] x) => (float[2,4] y) { y = Mul(x, x) }"""


class Careless(OrtRuntime):
    """A runtime that overlooks Relu."""

    name = "careless"
    preference = 0

    def load(self, artifact: Artifact, options: OrtOptions) -> object:  # type: ignore[override]
        model = onnx.load_from_string(artifact.data)
        for node in model.graph.node:
            node.op_type = {"Relu": "Identity"}.get(node.op_type, node.op_type)
        return super().load(Artifact("onnx", model.SerializeToString()), options)


class CarelessOnRequest(OrtRuntime):
    """A runtime that overlooks Relu, or refuses everything, if it has more than one thread."""

    name = "on_request"
    preference = 0

    def load(self, artifact: Artifact, options: OrtOptions) -> object:  # type: ignore[override]
        if options.threads == 3:
            raise ValueError("this is no model")
        runtime = OrtRuntime() if options.threads == 1 else Careless()
        return runtime.load(artifact, options)


class Lenient(OrtRuntime):
    """The runtime that judges, and runs anything: it gives what ONNX Runtime gives of Exp."""

    name = "lenient"
    preference = 1000

    def load(self, artifact: Artifact, options: OrtOptions) -> object:  # type: ignore[override]
        model = onnx.load_from_string(artifact.data)
        for node in model.graph.node:
            node.name = ""
        last = model.graph.node[-1]
        last.op_type = "Exp"
        del last.input[1:]
        return super().load(Artifact("onnx", model.SerializeToString()), options)


class Refusing(OrtRuntime):
    """A runtime that takes nothing."""

    name = "refusing"
    preference = 0

    def load(self, artifact: Artifact, options: OrtOptions) -> object:  # type: ignore[override]
        raise ValueError("this is no model")


class Trusted(OrtRuntime):
    """The runtime that everybody takes for right gives the largest number in place of all."""

    name = "trusted"
    preference = 1000

    def load(self, artifact: Artifact, options: OrtOptions) -> object:  # type: ignore[override]
        model = onnx.load_from_string(artifact.data)
        model.graph.node[-1].op_type = "ReduceMax"
        model.graph.output[0].type.tensor_type.ClearField("shape")
        return super().load(Artifact("onnx", model.SerializeToString()), options)


class TrustedNumbers(Careless):
    """The runtime that everybody takes for right overlooks Relu."""

    name = "trusted"
    preference = 1000


class Elsewhere(OrtRuntime):
    """A runtime of another format."""

    name = "elsewhere"
    accepts = frozenset({"acme"})
    preference = 0


def vet(
    folder: Path, optimizer: str, plugins: Plugins, text: str = NET, **options: int
) -> VetResult:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    request = VetRequest(
        model=str(path),
        optimizer=optimizer,
        runtime_options=options,
        cache_dir=folder / "cache",
        limit=2,
        jobs=1,
    )
    (model,) = resolve_model(str(path), plugins, folder / "cache")
    return vet_model(model, request, plugins)


def with_runtimes(*runtimes: OrtRuntime) -> Plugins:
    plugins = Plugins()
    for runtime in runtimes:
        plugins.register("runtime", runtime)
    return plugins


def test_a_runtime_that_computes_right_is_intact(tmp_path: Path) -> None:
    result = vet(tmp_path, "runtime:onnxruntime", Plugins())
    assert result.verdict in ("clean", "drift")
    assert not result.findings
    assert result.judge is not None
    assert result.judge.name == "onnx_reference"
    assert result.runtime.name == "onnxruntime"


def test_a_faulty_runtime_is_accused_where_a_third_agrees_with_the_judge(tmp_path: Path) -> None:
    result = vet(tmp_path, "runtime:careless", with_runtimes(Careless()))
    (finding,) = [f for f in result.findings if f.severity == "fault"]
    assert result.verdict == "faulty"
    assert (finding.symptom, finding.culprit) == (Symptom.WRONG_OUTPUT, [])
    assert result.judge is not None
    assert result.judge.name == "onnxruntime"
    assert finding.location.startswith("in careless: ")
    assert finding.location.endswith("and onnxruntime agree")
    assert finding.divergence is not None
    assert (finding.divergence.value, finding.divergence.agreeing) == ("b", ["a"])


ALONE = """<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>
g (float[2,4] x) => (float[2,2] y) {
    a = Relu(x)  y = com.microsoft.CDist<metric="euclidean">(a, a)
}"""
"""A model that no other runtime than ONNX Runtime takes."""


@pytest.mark.parametrize("threads", [2, 3])
def test_the_runtime_under_test_supports_the_judge_by_its_default_options(
    threads: int, tmp_path: Path
) -> None:
    plugins = with_runtimes(CarelessOnRequest())
    result = vet(tmp_path, "runtime:on_request", plugins, ALONE, threads=threads)
    (finding,) = [f for f in result.findings if f.severity == "fault"]
    assert result.verdict == "faulty"
    assert finding.location == (
        "in on_request: on_request with its default options and onnxruntime agree"
    )


@pytest.mark.release
def test_what_a_runtime_does_wrong_under_all_options_says_nothing_of_the_judge(
    tmp_path: Path,
) -> None:
    plugins = with_runtimes(Careless())
    result = vet(tmp_path, "runtime:careless", plugins, ALONE, threads=2)
    (finding,) = [f for f in result.findings if f.severity == "fault"]
    assert "onnxruntime alone says so" in finding.location


LOW = """<ir_version: 8, opset_import: ["" : 18]>
g (float[2,4] x) => (float[2,4] y, float[2,4] z) <float k = {-1000}, float top = {-20}> {
    z = Relu(x)  a = Abs(x)  t = Mul(a, k)  l = Clip(t, , top)  s = Sigmoid(l)  y = Mul(s, l)
}"""
"""ONNX Runtime's Sigmoid is 0 below -18."""


def test_a_runtime_that_is_wrong_in_no_operator_is_not_accused(tmp_path: Path) -> None:
    result = vet(tmp_path, "runtime:onnxruntime", Plugins(), LOW)
    assert "onnxruntime computes each operator as exactly" in result.reason
    assert (result.verdict, [f.severity for f in result.findings]) == ("undecided", ["note"])
    careless = vet(tmp_path, "runtime:careless", with_runtimes(Careless()), LOW)
    assert careless.verdict == "faulty"


def test_where_the_judge_itself_is_wrong_nobody_is_accused(tmp_path: Path) -> None:
    result = vet(tmp_path, "runtime:onnxruntime", with_runtimes(Trusted()))
    assert result.judge is not None
    assert result.judge.name == "trusted"
    assert result.verdict == "undecided"
    assert "trusted may be wrong itself: " in result.reason
    assert {f.severity for f in result.findings} == {"note"}


def test_where_the_exact_result_says_that_the_judge_is_wrong_all_is_well(tmp_path: Path) -> None:
    result = vet(tmp_path, "runtime:onnxruntime", with_runtimes(TrustedNumbers()))
    assert result.verdict == "clean"
    assert "exact result" in {c.name for c in result.controls}


def test_a_missing_kernel_is_no_fault(tmp_path: Path) -> None:
    with pytest.raises(NothingTested, match=r"onnxruntime does not take the model: .*Mul\(6\)"):
        vet(tmp_path, "runtime:onnxruntime", Plugins(), OLD)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ("Clip(b, , x)", "the standard wants a scalar as input 2, which has the shape [2, 4]"),
        ("Gather(b, i)", "an index is outside of the data"),
        ("Exp(b) [n] c = Neg(b) [n] d = Neg(b)", "2 nodes of a graph have the name 'n'"),
    ],
)
def test_a_runtime_may_refuse_what_the_standard_does_not_allow(
    tmp_path: Path, node: str, why: str
) -> None:
    text = NET.replace("y = Exp(b)", f"i = Constant<value_ints = [0, 2]>() y = {node}")
    result = vet(tmp_path, "runtime:refusing", with_runtimes(Refusing(), Lenient()), text)
    assert result.verdict == "undecided"
    assert why in result.reason


@pytest.mark.release
def test_a_runtime_that_refuses_is_accused_where_two_others_run_the_model(tmp_path: Path) -> None:
    plugins = with_runtimes(Refusing())
    assert vet(tmp_path, "runtime:refusing", plugins).verdict == "faulty"
    (tmp_path / "alone").mkdir()
    result = vet(tmp_path / "alone", "runtime:refusing", plugins, ALONE)
    assert result.verdict == "undecided"
    assert "onnxruntime alone runs the model" in result.reason


class Strict(OrtRuntime):
    """A runtime that takes no Abs, and says that it checked the operands, or that it lacks it."""

    name = "strict"
    preference = 0

    def __init__(self, words: str) -> None:
        self.words = words

    def load(self, artifact: Artifact, options: OrtOptions) -> object:  # type: ignore[override]
        raise ValueError(self.words)

    def refuses_operands(self, message: str) -> bool:
        return "operand" in message


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ("operand 0 is negative", "operand 0 is below 0", "undecided"),
        ("operand 0 is negative", "out of luck", "faulty"),
        ("operand 0 is negative", "operand 0: type not supported", "faulty"),
        ("out of luck", "operand 0 is negative", "faulty"),
    ],
)
def test_operands_that_two_runtimes_refuse_may_be_wrong(
    first: str, second: str, verdict: str, tmp_path: Path
) -> None:
    other = Strict(second)
    other.name = "another"  # asked before OpenVINO
    plugins = with_runtimes(Strict(first), other)
    result = vet(tmp_path, "runtime:strict", plugins)
    assert result.verdict == verdict
    assert ("another refuses it too" in result.reason) == (verdict == "undecided")


UNEVEN = """<ir_version: 8, opset_import: ["" : 22]>
g (float[2,4] x) => (float[2,4] y) { a = Abs(x)  y = LpNormalization<p = 3>(a) }"""
"""The standard has norms of the orders 1 and 2."""


def test_onnx_runtime_and_openvino_say_which_operands_they_refuse(tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="needs openvino: pip install 'optvet[openvino]'")
    result = vet(tmp_path, "runtime:onnxruntime", Plugins(), UNEVEN)
    assert result.verdict == "undecided"


@pytest.mark.parametrize(
    ("optimizer", "runtime", "kind", "words"),
    [
        ("runtime:onxruntime", None, OptvetError, "unknown runtime 'onxruntime'; did you mean"),
        ("runtime:", None, OptvetError, "unknown runtime ''"),
        ("runtime:elsewhere", None, UsageError, "it runs acme, and no onnx; these do: .*onnx"),
        ("runtime:onnxruntime", "onnx_reference", UsageError, "is itself the runtime under test"),
    ],
)
def test_what_cannot_be_tested_is_refused(
    optimizer: str, runtime: str | None, kind: type[Exception], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    (model,) = resolve_model(str(path), Plugins(), tmp_path / "cache")
    request = VetRequest(
        model=str(path), optimizer=optimizer, runtime=runtime, cache_dir=tmp_path / "cache"
    )
    with pytest.raises(kind, match=words):
        vet_model(model, request, with_runtimes(Elsewhere()))


@pytest.mark.parametrize(
    ("message", "lacks"),
    [
        ("Could not find an implementation: NOT_IMPLEMENTED", True),
        ("No corresponding Numpy type for Tensor Type. bfloat16", True),
        ("Resize: 'Linear' mode only supports 2-D inputs", True),
        ("The implementation does not support past_key without present_key.", True),
        ("Provider type for Max node with name '' is not set.", True),
        ("Opset 27 is under development. Support for domain ai.onnx is till opset 26.", True),
        ("index is out of range", False),
    ],
)
def test_a_runtime_that_says_what_it_lacks_is_understood(message: str, lacks: bool) -> None:
    assert lacks_kernel("RuntimeError", message) is lacks
