from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from pydantic import BaseModel

import optvet
from optvet.engine.bundle import (
    Bundle,
    BundlesInterrupted,
    is_written,
    read_arrays,
    read_record,
    replay_bundle,
    write_arrays,
    write_bundles,
)
from optvet.engine.bundle.issue import without_folders
from optvet.engine.discovery import Plugins
from optvet.engine.models.sources import resolve_model
from optvet.engine.vet.explain.fingerprints import fingerprint
from optvet.engine.vet.run import vet_model
from optvet.engine.work.trials.trial_runner import Progress
from optvet.graph.identity import structure_of
from optvet.report.graph_svg import draw
from optvet.spec.errors import InputError, UsageError
from optvet.spec.records import Finding, VetResult
from optvet.spec.request import VetRequest
from optvet.spec.symptoms import Symptom
from optvet.spec.words import markdown_block
from optvet.testing import Planted

HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'
CRASH = (
    HEAD
    + """g (float[3,2] a, float[3,4] b) => (float[2,4] y) {
    r = Relu(a)  t = Transpose(r)  z = Gemm(t, b)  y = Sigmoid(z) }"""
)
# The axes of Pad are not in order, which fuse_pad_into_conv takes them to be.
WRONG = (
    HEAD
    + """g (float[1,1,4,4] x) => (float[1,1,6,6] z)
    <float[1,1,1,1] w = {1.5}, int64[8] pads = {0, 0, 0, 2, 0, 0, 2, 0}, float zero = {0},
     int64[4] axes = {0, 1, 3, 2}> {
    r = Relu(x)  q = Pad <mode = "constant"> (r, pads, zero, axes)
    y = Conv(q, w)  z = Sigmoid(y) }"""
)


# DivMulFusion makes x / x of it, which is 1; integer division makes 0 of 1 / 3.
DIVIDED = (
    HEAD
    + """g (int32[2] x) => (int32[2] y) <int32[1] one = {1}> {
    a = Identity(x)  d = Div(one, a)  y = Mul(d, a) }"""
)


# The weights are listed among the inputs, as IR version 3 asks for.
LISTED = """<ir_version: 3, opset_import: ["" : 9]>
g (float[2,2] x, float[2,2] w) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}> {
    a = Abs(x)  y = %s(a, w) }"""
NORMALIZED = (
    '<ir_version: 8, opset_import: ["" : 9]>'
    + """g (float[1,1,4,4] x) => (float[1,1,4,4] y)
    <float[1,1,1,1] w = {1.5}, float[1] s = {0.5}, float[1] m = {0.1}, float[1] v = {0.7}> {
    a = Conv(x, w)  b = BatchNormalization(a, s, s, m, v)  c = Relu(b)
    d = Conv(c, w)  e = BatchNormalization(d, s, s, m, v)  f = Abs(e)
    g = Conv(f, w)  h = BatchNormalization(g, s, s, m, v)  y = Relu(h) }"""
)


def bundles(
    text: str,
    folder: Path,
    progress: Progress = lambda text, done, total: None,
    plugins: Plugins | None = None,
    reduce: bool = True,
    kept: Callable[[VetResult], VetResult] = lambda result: result,
    **settings: object,
) -> list[Bundle]:
    """Bundles of what ``kept`` leaves of the answer on a model."""
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    asked = VetRequest(
        model=str(path),
        cache_dir=folder / "cache",
        reduce=reduce,
        **settings,  # type: ignore[arg-type]
    )
    plugins = plugins or Plugins()
    (model,) = resolve_model(str(path), plugins, folder / "cache")
    result = kept(vet_model(model, asked, plugins))
    return write_bundles(result, asked, folder / "out", plugins, progress=progress)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bundle]:
    """The only bundle of a model, written once for all tests of this file."""

    @cache
    def original(text: str) -> Bundle:
        (bundle,) = bundles(text, tmp_path_factory.mktemp("original"))
        return bundle

    return original


@pytest.fixture
def copied(originals: Callable[[str], Bundle], tmp_path: Path) -> Callable[[str], Bundle]:
    """A test's own copy of the only bundle of a model."""

    def copy(text: str) -> Bundle:
        bundle = originals(text)
        return replace(bundle, path=Path(shutil.copytree(bundle.path, tmp_path / bundle.path.name)))

    return copy


def run_script(bundle: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(bundle / "repro.py")]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def script_exit(bundle: Path) -> int:
    return run_script(bundle).returncode


@pytest.mark.parametrize(
    ("text", "culprit", "symptom"),
    [
        (CRASH, "fuse_transpose_into_gemm", Symptom.OPTIMIZER_ERROR),
        pytest.param(WRONG, "fuse_pad_into_conv", Symptom.WRONG_OUTPUT, marks=pytest.mark.long),
    ],
)
def test_the_script_of_a_fault_exits_1_and_0_without_the_culprit(
    text: str,
    culprit: str,
    symptom: Symptom,
    tmp_path: Path,
    copied: Callable[[str], Bundle],
) -> None:
    bundle = copied(text)
    assert bundle.note == ""
    assert bundle.record.nodes == (4, 2)
    assert (bundle.record.finding.symptom, bundle.record.finding.culprit) == (symptom, [culprit])
    assert script_exit(bundle.path) == 1
    script = bundle.path / "repro.py"
    assert "optvet" not in script.read_text()
    script.write_text(script.read_text().replace(repr([culprit]), "['nop']"))
    assert script_exit(bundle.path) == 0
    _check_issue(bundle, tmp_path / "empty")


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        pytest.param("seq(int32[2])", "y = SequenceConstruct(m, a)", marks=pytest.mark.long),
        pytest.param("optional(int32[2])", "y = Optional(m)", marks=pytest.mark.long),
        ("optional(seq(int32[2]))", "s = SequenceConstruct(m)  y = Optional(s)"),
    ],
)
def test_scripts_compare_what_sequences_and_optional_values_hold(
    kind: str, end: str, tmp_path: Path
) -> None:
    text = DIVIDED.replace("int32[2] y", f"{kind} y").replace(
        "y = Mul(d, a)", f"m = Mul(d, a) {end}"
    )
    (bundle,) = bundles(text, tmp_path, reduce=False, optimizer="onnxruntime")
    assert bundle.record.finding.symptom == Symptom.WRONG_OUTPUT
    assert script_exit(bundle.path) == 1
    script = bundle.path / "repro.py"
    begin = "def optimize(model):\n"
    script.write_text(script.read_text().replace(begin, f"{begin}    return model\n"))
    assert run_script(bundle.path).stdout == "gone: the optimized model is as it should be\n"


def _check_issue(bundle: Bundle, folder: Path) -> None:
    """The script in the text of the issue shows the fault by itself, with the library's default."""
    code = issue_script(bundle)
    assert "optvet" not in code
    assert "onnxoptimizer.optimize(model)" in code  # the shortest call that shows it
    assert len(code.splitlines()) <= 35
    done = alone(code, folder)
    assert done.returncode == 1
    assert re.search("^expected.*^actual", done.stdout, re.MULTILINE | re.DOTALL)
    innocent = code.replace("optimizer.optimize(model)", "optimizer.optimize(model, ['nop'])")
    assert alone(innocent, folder).returncode == 0


def issue_script(bundle: Bundle) -> str:
    issue = (bundle.path / "ISSUE.md").read_text("utf-8")
    return issue.partition("```python\n")[2].partition("```")[0]


def alone(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What a script does in a folder that holds nothing else."""
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(code)
    command = [sys.executable, "script.py"]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.release
def test_an_optional_input_that_is_gone_is_shown_by_both_scripts(tmp_path: Path) -> None:
    pytest.importorskip("onnxslim")
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(OPTIONAL), path)
    request = VetRequest(model=str(path), optimizer="onnxslim", limit=1, jobs=1, reduce=True)
    result = optvet.vet(path, optimizer="onnxslim", limit=1, jobs=1)
    if result.verdict == "clean":
        pytest.skip("this release keeps inputs that have a default")
    (bundle,) = optvet.write_bundles(result, request, tmp_path / "bundles")
    assert (bundle.note, script_exit(bundle.path)) == ("", 1)
    done = alone(issue_script(bundle), tmp_path / "empty")
    assert (done.returncode, done.stdout.split("\n")[1][:8]) == (1, "actual: ")


OPTIONAL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,4] x, float[4] w) => (float[2,4] y) <float[4] w = {1, 2, 3, 4}> { y = Mul(x, w) }
"""


@pytest.mark.release
def test_a_model_that_grows_is_reduced_to_what_grows(tmp_path: Path) -> None:
    (bundle,) = bundles(NORMALIZED, tmp_path, pipeline="fuse_bn_into_conv")
    record = bundle.record
    assert (record.finding.symptom, record.nodes) == (Symptom.BLOAT, (9, 2))
    assert "2 nodes became" in record.finding.message
    assert "-1 BatchNormalization" in record.finding.message
    assert script_exit(bundle.path) == 1
    assert replay_bundle(bundle.path, Plugins()).outcome == "still there"
    script = bundle.path / "repro.py"
    script.write_text(script.read_text().replace("'fuse_bn_into_conv'", "'nop'"))
    assert script_exit(bundle.path) == 0


@pytest.mark.release
def test_two_random_draws_that_become_one_are_reduced(tmp_path: Path) -> None:
    text = (
        HEAD
        + """g (float[8] x) => (float[8] y) {
        a = RandomUniformLike(x)  b = RandomUniformLike(x)  c = Sub(a, b)  y = Neg(c) }"""
    )
    culprit = "eliminate_common_subexpression"
    (bundle,) = bundles(text, tmp_path, pipeline=culprit, limit=2)
    assert bundle.record.finding.culprit == [culprit]
    assert bundle.record.finding.symptom == Symptom.WRONG_OUTPUT
    assert replay_bundle(bundle.path, Plugins()).outcome == "still there"


@pytest.mark.long
def test_the_script_of_a_random_output_compares_distributions(tmp_path: Path) -> None:
    # One draw tells nothing: both models give zeros and ones.
    (bundle,) = bundles(
        HEAD
        + """g (float[4,4] x) => (float[4,4] y) <float half = {0.5}, bool train = {1}> {
        a = Dropout(x, half, train)  b = Dropout(x, half, train)  y = Sub(a, b) }""",
        tmp_path,
        pipeline="eliminate_common_subexpression",
        limit=2,
    )
    assert bundle.record.finding.symptom == Symptom.WRONG_OUTPUT
    assert bundle.note == ""
    assert [script_exit(bundle.path) for _ in range(2)] == [1, 1]
    assert "Run `python repro.py`" in (bundle.path / "ISSUE.md").read_text()
    assert not [f for f in bundle.path.glob("*.py") if "import optvet" in f.read_text()]
    script = bundle.path / "repro.py"
    script.write_text(script.read_text().replace("'eliminate_common_subexpression'", "'nop'"))
    assert script_exit(bundle.path) == 0


@pytest.mark.long
def test_the_script_compares_random_outputs_that_depend_on_each_other(tmp_path: Path) -> None:
    (bundle,) = bundles(
        HEAD
        + """g (float[8] x) => (float[8] c, float[8] d) {
        s = Sigmoid(x)  a = Bernoulli(s)  b = Bernoulli(s)  c = Add(a, x)  d = Mul(b, x) }""",
        tmp_path,
        pipeline="eliminate_common_subexpression",
        limit=1,
        reduce=False,
    )
    assert "relation" in bundle.record.finding.message
    assert script_exit(bundle.path) == 1


@pytest.mark.long
def test_weights_left_among_the_inputs_are_explained_and_one_finding(tmp_path: Path) -> None:
    (first,) = bundles(LISTED % "MatMul", tmp_path)
    assert first.record.finding.culprit == []
    words = (first.path / "ISSUE.md").read_text()
    assert "ir_version: 3 became 4; replaceable weights: 0 became 1" in words
    assert "take them out of the inputs" in " ".join(words.split())
    assert script_exit(first.path) == 1
    assert replay_bundle(first.path, Plugins()).outcome == "still there"
    (second,) = bundles(LISTED % "Add", tmp_path)
    assert (second.known, second.path) == (True, first.path)


@pytest.mark.long
def test_an_output_that_flips_by_rounding_is_reduced_with_the_values_that_flip_it(
    tmp_path: Path,
) -> None:
    text = f"""{HEAD} g (float[1,3] x) => (float[1,3] z) {{
        a = Identity(x)  s = Softmax <axis = 1> (a)  y = Log(s)  z = Neg(y) }}"""
    np.savez(tmp_path / "x.npz", x=np.array([[0, -170, 1]], np.float32))
    datasets = (f"files:{tmp_path / 'x.npz'}",)
    (bundle,) = bundles(text, tmp_path, pipeline="fuse_consecutive_log_softmax", dataset=datasets)
    record = bundle.record
    assert (record.finding.symptom, record.nodes) == (Symptom.SENSITIVITY, (4, 2))
    (values,) = read_arrays(bundle.path / "inputs.npz", record.inputs).values()
    assert -170 in values
    assert script_exit(bundle.path) == 1
    assert replay_bundle(bundle.path, Plugins()).outcome == "still there"


def test_ctrl_c_writes_the_smallest_model_so_far(tmp_path: Path) -> None:
    def press(text: str, done: int, total: int | None) -> None:
        if text != "making inputs" and done == 3:
            raise KeyboardInterrupt

    with pytest.raises(BundlesInterrupted) as caught:
        bundles(CRASH, tmp_path, progress=press)
    (bundle,) = caught.value.bundles
    assert "interrupted" in bundle.note
    assert bundle.record.finding.culprit == ["fuse_transpose_into_gemm"]
    assert script_exit(bundle.path) == 1


@pytest.mark.long
def test_ctrl_c_while_a_bundle_is_written_does_not_cost_what_was_reduced(tmp_path: Path) -> None:
    pressed: list[str] = []

    def press(text: str, done: int, total: int | None) -> None:
        if text == "writing the bundle" and not pressed:
            pressed.append(text)
            raise KeyboardInterrupt

    with pytest.raises(BundlesInterrupted) as caught:
        bundles(CRASH, tmp_path, progress=press)
    (bundle,) = caught.value.bundles
    assert (bundle.note, bundle.record.nodes) == ("", (4, 2))


def test_a_documented_limit_is_not_written_down() -> None:
    common: dict[str, Any] = {"stage": "build", "culprit": ["p"], "confirmed": True}
    limit = Finding(symptom=Symptom.INVALID_MODEL, severity="note", **common)
    fault = Finding(symptom=Symptom.INVALID_MODEL, severity="fault", **common)
    slower = Finding(symptom=Symptom.SLOWDOWN, severity="note", **common)
    assert [is_written(f) for f in (limit, fault, slower)] == [False, True, False]


class Explained(Planted):
    """Shows its call, as a plugin of a library would."""

    def snippet(self, passes: Sequence[str], options: BaseModel) -> str:
        return f"""
            from optvet.plugin import Artifact
            from optvet.testing import Planted
            planted = Planted()
            source = Artifact("onnx", model.SerializeToString())
            return planted.apply(source, {list(passes)!r}, planted.options).data
        """


class Slip(Explained):
    """Its code for scripts has a mistake."""

    def snippet(self, passes: Sequence[str], options: BaseModel) -> str:
        return "return no_such_name"


CHAIN = (
    HEAD
    + """g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}> {
    a = Abs(x)  b = MatMul(a, w)  y = Relu(b) }"""
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("culprit", "symptom", "step"),
    [
        ("abort", Symptom.OPTIMIZER_ABORT, "optimizing the model: signal 6"),
        pytest.param(
            "hang",
            Symptom.TIMEOUT,
            "optimizing the model: no end",
            marks=pytest.mark.release,
        ),
        pytest.param(
            "eat_memory",
            Symptom.OUT_OF_MEMORY,
            "optimizing the model: 1",
            marks=pytest.mark.release,
        ),
        ("invalid_model", Symptom.INVALID_MODEL, "checking the optimized model: 1"),
        ("foreign_operator", Symptom.LOAD_FAILURE, "running the optimized model: 1"),
        ("index_out_of_range", Symptom.RUN_FAILURE, "running the optimized model: 1"),
        ("rename_outputs", Symptom.INTERFACE_CHANGE, "comparing the two models"),
    ],
)
def test_whatever_goes_wrong_is_written_down_and_there_again(
    culprit: str, symptom: Symptom, step: str, tmp_path: Path
) -> None:
    planted = Explained(default=(culprit,))
    plugins = Plugins().register("optimizer", planted)
    limits: dict[str, Any] = {
        "timeout": 3.0 if culprit == "hang" else 60.0,
        "memory": 1 << (29 if culprit == "eat_memory" else 33),
    }
    # Each candidate would be waited for, or fill half a gigabyte.
    reduce = culprit not in ("hang", "eat_memory")
    written = bundles(
        CHAIN, tmp_path, plugins=plugins, optimizer="planted", reduce=reduce, **limits
    )
    (bundle,) = (b for b in written if b.record.finding.severity == "fault")
    record = bundle.record
    assert (record.finding.symptom, record.finding.culprit) == (symptom, [culprit])
    assert (bundle.note, record.nodes, record.script_exit) == ("", (3, 1 if reduce else 3), 1)
    assert replay_bundle(bundle.path, plugins).outcome == "still there"
    if culprit != "hang":  # was waited for already
        assert step in run_script(bundle.path).stdout.splitlines()[-1]


def test_a_bundle_holds_everything_and_nothing_of_this_machine(
    originals: Callable[[str], Bundle],
) -> None:
    bundle = originals(CRASH)
    files = {p.name for p in bundle.path.iterdir()}
    assert files == {
        "model.onnx",
        "model.txt",
        "inputs.npz",
        "expected.npz",
        "repro.py",
        "ISSUE.md",
        "finding.json",
    }
    for name in files:
        assert str(bundle.path.parents[1]).encode() not in (bundle.path / name).read_bytes()
    assert "Gemm" in (bundle.path / "ISSUE.md").read_text()
    assert [p for p in bundle.path.parent.iterdir() if p.name.startswith(".")] == []


def test_a_script_without_its_library_says_that_it_cannot_be_run(
    copied: Callable[[str], Bundle],
) -> None:
    bundle = copied(CRASH)
    script = bundle.path / "repro.py"
    script.write_text(script.read_text().replace("import onnxoptimizer", "import absent_library"))
    assert script_exit(bundle.path) == 2


@pytest.mark.long
def test_a_script_that_fails_by_another_error_than_the_optimizer_is_no_proof(
    tmp_path: Path,
) -> None:
    plugins = Plugins().register("optimizer", Slip(default=("raise_error",)))
    (bundle,) = bundles(CHAIN, tmp_path, plugins=plugins, optimizer="planted", reduce=False)
    assert bundle.record.script_exit == 1
    assert "by another error" in bundle.note
    assert "'no_such_name' is not defined" in bundle.note


@pytest.mark.long
def test_a_script_that_fails_before_the_fault_does_not_call_it_there(
    copied: Callable[[str], Bundle],
) -> None:
    bundle = copied(WRONG)
    script = bundle.path / "repro.py"
    script.write_text(script.read_text().replace("'fuse_pad_into_conv'", "'no_such_pass'"))
    assert script_exit(bundle.path) == 2


def test_replay_tells_still_there_from_fixed_and_changed(copied: Callable[[str], Bundle]) -> None:
    bundle = copied(CRASH)
    assert replay_bundle(bundle.path, Plugins()).outcome == "still there"
    model = onnx.load(bundle.path / "model.onnx")
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("perm", [1, 0]))
    onnx.save(model, bundle.path / "model.onnx")
    assert replay_bundle(bundle.path, Plugins()).outcome == "fixed"
    assert script_exit(bundle.path) == 0
    record = read_record(bundle.path)
    other = record.model_copy(update={"normalized_message": "something else"})
    (bundle.path / "finding.json").write_text(other.model_dump_json())
    model.graph.node[0].attribute.pop()
    onnx.save(model, bundle.path / "model.onnx")
    assert replay_bundle(bundle.path, Plugins()).outcome == "changed"


@pytest.mark.release
def test_a_note_on_a_model_that_the_checker_refuses_is_still_there(tmp_path: Path) -> None:
    # onnxslim takes weights out of the inputs, where IR version 3 wants them.
    pytest.importorskip("onnxslim")
    made = bundles(LISTED % "MatMul", tmp_path, optimizer="onnxslim", reduce=False)
    symptoms = {str(b.record.finding.symptom): b for b in made}
    assert set(symptoms) == {"invalid-model", "metadata-change"}
    for bundle in made:
        assert replay_bundle(bundle.path, Plugins()).outcome == "still there"
    note = symptoms["metadata-change"].path
    model = onnx.load(note / "model.onnx")
    model.ir_version = 4
    onnx.save(model, note / "model.onnx")
    assert replay_bundle(note, Plugins()).outcome == "fixed"


MEAN_OF_ALL = """<ir_version: 7, opset_import: ["" : 13]>
g (float[1,2,1] x) => (float[1,2,1] y)
<float[1] one = {1}, float two = {2}, float e = {0.00001}> {
    m = ReduceMean(x)  d = Sub(x, m)  p = Pow(d, two)  v = ReduceMean(p)  w = Add(v, e)
    s = Sqrt(w)  q = Div(d, s)  r = Mul(q, one)  y = Add(r, one) }"""


@pytest.mark.long
def test_what_only_one_runtime_knows_is_no_reason_to_leave_a_fault_unjudged(tmp_path: Path) -> None:
    # LayerNormalization under ONNX's name in operator set 13, over one axis instead of all.
    pytest.importorskip("sympy", reason="needs optvet[transformers]")
    (bundle,) = bundles(MEAN_OF_ALL, tmp_path, optimizer="ort_transformers", reduce=False)
    assert bundle.record.finding.symptom == Symptom.WRONG_OUTPUT
    assert (bundle.note, bundle.record.script_exit) == ("", 1)


UNMADE = """<ir_version: 7, opset_import: ["" : 13]>
g (float[1,1,1] x, float[1] w) => (float[1,1,1] p, float[1,1,1] q)
<float two = {2}, float e = {0.00001}, float zero = {0}> {
    p = Pow(x, two)  m = ReduceMean <axes = [-1], keepdims = 1> (p)  a = Add(m, e)  s = Sqrt(a)
    r = Reciprocal(s)  n = Mul(x, r)  z = Mul(n, w)  q = Add(x, w) }"""


@pytest.mark.long
def test_a_script_accepts_operators_of_the_runtime_that_the_optimizer_writes_for(
    tmp_path: Path,
) -> None:
    pytest.importorskip("sympy", reason="needs optvet[transformers]")
    (bundle,) = bundles(UNMADE, tmp_path, optimizer="ort_transformers", reduce=False)
    assert bundle.record.finding.symptom == Symptom.INVALID_MODEL
    assert (bundle.note, bundle.record.script_exit) == ("", 1)
    assert "check_model(in_plain_onnx(optimized)" in (bundle.path / "ISSUE.md").read_text()
    # The output is made apart, and SimplifiedLayerNormalization, under ONNX's name, is needed.
    mended = UNMADE.replace("(p)", "(t)").replace("p = Pow", "p = Mul(x, x)  t = Pow")
    mended = mended.replace("q = Add(x, w)", "u = Add(x, w)  v = Mul(z, zero)  q = Add(u, v)")
    onnx.save(onnx.parser.parse_model(mended), bundle.path / "model.onnx")
    ended = run_script(bundle.path)
    assert (ended.returncode, ended.stdout) == (0, "gone: the optimized model is as it should be\n")


def test_a_fault_of_onnx_runtime_is_shown_with_onnx_runtime_alone(tmp_path: Path) -> None:
    from optvet_onnxruntime.optimizer import OrtOptimizer
    from optvet_onnxruntime.runtime import OrtRuntime

    optimizer, runtime = OrtOptimizer(), OrtRuntime()
    code = optimizer.snippet(["EliminateIdentity"], optimizer.options)
    text = f"def optimize(model):\n{_indent(code)}\ndef run(model, feeds):\n"
    text += _indent(runtime.snippet(runtime.options))
    space: dict[str, object] = {}
    exec(text, space)
    model = onnx.parser.parse_model(HEAD + "g (float[2] x) => (float[2] y) { y = Identity(x) }")
    feeds = {"x": np.array([1, 2], np.float32)}
    session = space["optimize"](model)  # type: ignore[operator]
    assert space["run"](session, feeds)["y"].tolist() == [1, 2]  # type: ignore[operator]


@pytest.mark.release
def test_the_issue_of_a_session_compares_it_with_one_that_optimizes_nothing(
    tmp_path: Path,
) -> None:
    (bundle,) = bundles(DIVIDED, tmp_path, optimizer="onnxruntime")
    assert bundle.record.finding.culprit == ["DivMulFusion"]
    code = issue_script(bundle)
    assert len(code.splitlines()) <= 35
    assert max(map(len, code.splitlines())) <= 100
    assert "optimize(" not in code  # one function, called twice
    done = alone(code, tmp_path / "empty")
    assert done.returncode == 1
    assert re.search("^expected.*^actual", done.stdout, re.MULTILINE | re.DOTALL)
    innocent = code.replace("optimized=True", "optimized=False")
    assert alone(innocent, tmp_path / "empty").returncode == 0


def test_a_session_under_given_options_is_opened_by_the_plugins(tmp_path: Path) -> None:
    options = {"threads": 2}
    (bundle,) = bundles(
        DIVIDED, tmp_path, optimizer="onnxruntime", reduce=False, runtime_options=options
    )
    script = (bundle.path / "repro.py").read_text()
    assert "'threads': 2" in script
    assert "InferenceSession" not in script
    assert bundle.record.script_exit == 1


def _indent(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.splitlines())


def test_the_fingerprint_knows_structure_not_names_or_order() -> None:
    def of(body: str) -> list[str]:
        return structure_of(
            onnx.parser.parse_model(HEAD + f"g (float[2] x) => (float[2] y) {{ {body} }}")
        )

    same = of("a = Relu(x)  b = Abs(x)  y = Add(a, b)")
    assert of("q = Abs(x)  p = Relu(x)  y = Add(p, q)") == same
    assert of("q = Abs(x)  p = Relu(x)  y = Add(q, p)") != same
    finding = Finding(
        symptom=Symptom.BLOAT, severity="note", stage="build", culprit=["p"], confirmed=True
    )
    assert len(fingerprint("o", finding, same)) == 16
    assert fingerprint("o", finding, same) != fingerprint("other", finding, same)


@pytest.mark.long
def test_findings_of_one_fingerprint_share_a_bundle(tmp_path: Path) -> None:
    (first,) = bundles(CRASH, tmp_path)
    (second,) = bundles(CRASH.replace("Sigmoid", "Tanh"), tmp_path)
    assert (first.known, second.known) == (False, True)
    assert first.path == second.path


def test_arrays_come_back_under_names_that_no_file_could_have(tmp_path: Path) -> None:
    given = {
        "../x": np.array([1], np.float32),
        "file": np.array(["a"], object),
        "..": np.array(3, np.int64),
    }
    write_arrays(tmp_path / "a.npz", given)
    read = read_arrays(tmp_path / "a.npz", list(given))
    assert {n: (a.dtype, a.tolist()) for n, a in read.items()} == {
        n: (np.asarray(a).dtype, np.asarray(a).tolist()) for n, a in given.items()
    }
    with pytest.raises(InputError, match="3 arrays, expected 1"):
        read_arrays(tmp_path / "a.npz", ["x"])


def test_a_file_that_a_bundle_carries_is_called_by_its_name_in_an_issue() -> None:
    options = '{"extra_passes": ["mine=/home/me/work/passes.py:spoil@4", "/x/other.py:f"]}'
    told = without_folders(options, ["passes.py"])
    assert told == '{"extra_passes": ["mine=passes.py:spoil@4", "/x/other.py:f"]}'


def test_nothing_in_a_text_ends_its_code_block() -> None:
    assert markdown_block("a ``` b\x1b") == "````\na ``` b\N{REPLACEMENT CHARACTER}\n````\n"


def test_a_folder_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no bundle"):
        replay_bundle(tmp_path, Plugins())


def test_a_bundle_tells_where_in_the_graph_the_fault_is_and_shows_it(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(WRONG), path)
    asked = VetRequest(model=str(path), cache_dir=tmp_path / "cache", pipeline="fuse_pad_into_conv")
    plugins = Plugins()
    (model,) = resolve_model(str(path), plugins, tmp_path / "cache")
    result = vet_model(model, asked, plugins)
    (bundle,) = write_bundles(result, asked, tmp_path / "out", plugins, draw=draw)
    found = bundle.record.finding.divergence
    assert found is not None
    assert (found.value, found.agreeing) == ("y", ["r"])
    assert "First value that differs by more than its noise: y" in (
        bundle.path / "ISSUE.md"
    ).read_text("utf-8")
    before, after = ((bundle.path / f"{w}.svg").read_text("utf-8") for w in ("before", "after"))
    assert ">Pad<" in before
    assert ">Pad<" not in after
    assert ">first wrong value<" in before and ">first wrong value<" in after  # noqa: PT018


@pytest.mark.long
def test_a_picture_that_cannot_be_drawn_costs_no_bundle(tmp_path: Path) -> None:
    def fails(model: onnx.ModelProto, **_: object) -> str:
        raise ValueError("no room")

    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(WRONG), path)
    asked = VetRequest(model=str(path), cache_dir=tmp_path / "cache", pipeline="fuse_pad_into_conv")
    plugins = Plugins()
    (model,) = resolve_model(str(path), plugins, tmp_path / "cache")
    result = vet_model(model, asked, plugins)
    (bundle,) = write_bundles(result, asked, tmp_path / "out", plugins, draw=fails)
    assert bundle.note == "no pictures: ValueError: no room"
    assert script_exit(bundle.path) == 1
