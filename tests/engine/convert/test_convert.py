"""Conversions of sources of a framework that is made up: each fault is planted in a known stage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.convert import plain

from optvet import NothingTested, OptvetError, UsageError
from optvet.engine.convert.chain import links_of
from optvet.engine.convert.default_chain import choose_converter, explain_choice
from optvet.engine.convert.run import convert_model
from optvet.engine.convert.worker_steps import _refusal
from optvet.engine.discovery import Plugins
from optvet.engine.work.sandbox import keep_servers
from optvet.spec.convert import ConvertRequest
from optvet.spec.records.convert import ConversionResult

GOOD = "g (float[n,3] x) => (float[n,3] y) { y = Relu(x) }"
BAD = "g (float[n,3] x) => (float[n,3] y) { y = Abs(x) }"
RELU = "lambda x: np.maximum(x, 0)"
EXAMPLE = "(np.array([[1.5, -2, 3], [-4, 5, -6]], np.float32),)"
Convert = Callable[..., ConversionResult]


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    keep_servers()
    return plain.plugins()


@pytest.fixture
def convert(tmp_path: Path, plugins: Plugins) -> Convert:
    """Convert a function, given what its converter makes of it, stage by stage."""

    def convert(
        *stages: str,
        function: str = RELU,
        inputs: str = EXAMPLE,
        beside: str = "",
        **options: Any,
    ) -> ConversionResult:
        file = tmp_path / "source.py"
        file.write_text(
            "import numpy as np\nfrom tests.engine.convert.plain import Net\n\n"
            f"example_inputs = {inputs}\n{beside}\n\n"
            f"def net():\n    return Net({function}, {stages!r})\n"
        )
        given = {"model": f"{file}:net", "via": ("plain_to_onnx",), **options}
        return convert_model(ConvertRequest.model_validate(given), plugins)

    return convert


def told(result: ConversionResult) -> list[tuple[str, str, tuple[str, ...]]]:
    stages = [tuple(s.partition("/")[2] for s in f.stages) for f in result.findings]
    return [(f.symptom, f.kind, s) for f, s in zip(result.findings, stages, strict=True)]


def test_a_right_conversion_has_no_finding(convert: Convert) -> None:
    result = convert(GOOD, beside='dynamic_axes = {"input_0": {0: "n"}}')
    assert (result.verdict, result.findings) == ("right", [])
    assert [s.state for s in result.stages] == ["same"] * 3
    assert result.samples > 8


@pytest.mark.parametrize(
    ("stages", "kind", "blamed"),
    [
        ((BAD,), "load", ("read",)),
        ((GOOD, BAD), "convert", ("rewrite",)),
        ((GOOD, GOOD, BAD), "optimize", ("simplify",)),
        (("hidden", BAD), "load", ("read", "rewrite")),
        ((GOOD, "hidden", BAD), "convert", ("rewrite", "simplify")),
    ],
)
def test_the_first_stage_that_stays_wrong_is_blamed(
    convert: Convert, stages: tuple[str, ...], kind: str, blamed: tuple[str, ...]
) -> None:
    result = convert(*stages)
    assert result.verdict == "faulty"
    assert told(result) == [("wrong-output", kind, blamed)]
    (finding,) = result.findings
    assert finding.confirmed
    assert finding.witness is not None
    assert finding.witness.origin == "example"
    assert [c.outcome for c in finding.cross_check] == ["fault"]


def test_a_stage_whose_fault_a_later_one_mends_is_not_blamed(convert: Convert) -> None:
    result = convert(GOOD, BAD, GOOD)
    assert result.verdict == "right"
    assert [s.state for s in result.stages] == ["same", "fault", "same"]


def test_the_cause_of_a_refusal_stands_before_a_message_of_many_lines() -> None:
    advice = RuntimeError("the export failed\nNext steps:\n- Open an issue.")
    advice.__cause__ = KeyError("Frobnicate")
    assert _refusal(advice).message.startswith("KeyError: 'Frobnicate'\nreported as RuntimeError")
    plain = RuntimeError("no rule for Frobnicate")
    plain.__cause__ = KeyError("Frobnicate")
    assert _refusal(plain).message.startswith("RuntimeError: no rule for Frobnicate\ncaused by Key")


def test_a_refusal_is_no_fault_and_names_the_stage_and_the_cause(convert: Convert) -> None:
    result = convert(GOOD, "refuse")
    assert result.verdict == "refused"
    assert told(result) == [("refused", "convert", ("rewrite",))]
    assert "no rule for Frobnicate" in result.findings[0].message
    assert "KeyError: 'Frobnicate'" in result.findings[0].message
    assert [s.state for s in result.stages] == ["same", "not-reached", "not-reached"]


def test_what_one_converter_breaks_is_told_though_the_next_refuses_it(convert: Convert) -> None:
    result = convert(GOOD, BAD, via=("plain_to_onnx", "refusing"))
    assert result.verdict == "faulty"
    broken, refused = result.findings
    assert (broken.symptom, broken.stages) == ("wrong-output", ["plain_to_onnx/rewrite"])
    assert broken.confirmed
    assert (refused.symptom, refused.stages) == ("refused", ["refusing/import"])
    assert convert(GOOD, via=("plain_to_onnx", "refusing")).verdict == "refused"


def test_a_converter_that_aborts_is_a_fault(convert: Convert) -> None:
    result = convert("abort")
    assert result.verdict == "faulty"
    assert told(result) == [("crash", "load", ("read",))]


@pytest.mark.parametrize(
    ("text", "symptom"),
    [
        ("g (float[n,3] x) => (float[n,3] y) { y = Frobnicate(x) }", "invalid-model"),
        ("g (float[n,3] x) => (float[n] y) { y = ReduceSum <keepdims=0> (x) }", "interface-change"),
        ("g (float[n,3] x) => (int64[n,3] y) { y = Cast <to=7> (x) }", "interface-change"),
        ("g (float[n,3] x, float[3] z) => (float[n,3] y) { y = Add(x, z) }", "interface-change"),
        (
            "g (float[n,3] x) => (float[n,3] y) <int64[1] i = {7}> { y = Gather(x, i) }",
            "run-failure",
        ),
    ],
)
def test_each_symptom_is_told_from_the_others(convert: Convert, text: str, symptom: str) -> None:
    result = convert(text, edges=False)
    assert {f.symptom for f in result.findings} == {symptom}


def test_a_width_of_integers_is_a_note(convert: Convert) -> None:
    text = "g (float[n,3] x) => (int32[n,3] y) { y = Cast <to=6> (x) }"
    result = convert(text, function="lambda x: x.astype(np.int64)", edges=False)
    assert result.verdict == "right"
    assert result.notes == ["output_0: int64 became int32"]


def test_rounding_is_no_fault_and_what_is_a_little_more_is(convert: Convert) -> None:
    scaled = "g (float[n,3] x) => (float[n,3] y) <float k = {FACTOR}> { y = Mul(x, k) }"
    thrice = "lambda x: x / np.float32(3)"
    right = convert(scaled.replace("FACTOR", "0.33333334"), function=thrice)
    wrong = convert(scaled.replace("FACTOR", "0.33334"), function=thrice)
    assert (right.verdict, wrong.verdict) == ("right", "faulty")


def test_an_edge_value_alone_is_the_witness(convert: Convert) -> None:
    text = "g (float[n,3] x) => (float[n,3] y) { y = Identity(x) }"
    positive = "(np.array([[1.5, 2, 3]], np.float32),)"
    (finding,) = convert(text, inputs=positive).findings
    assert finding.witness is not None
    assert (finding.witness.origin, finding.witness.about) == ("edge", "input_0: all negative")
    assert convert(text, inputs=positive, edges=False).verdict == "right"


def test_a_fault_on_nan_that_nobody_gave_is_a_note(convert: Convert) -> None:
    function = "lambda x: np.where(np.isnan(x), 0, x).astype(np.float32)"
    same = "g (float[n,3] x) => (float[n,3] y) { y = Identity(x) }"
    outside_domain = convert(same, function=function)
    assert outside_domain.verdict == "right"
    assert [f.severity for f in outside_domain.findings] == ["note"]
    assert {s.state for s in outside_domain.stages} == {"same"}
    nan = "more_inputs = [(np.full((1, 3), np.nan, np.float32),)]"
    given = convert(same, function=function, beside=nan)
    assert given.verdict == "faulty"
    assert given.findings[0].severity == "fault"


def test_another_size_of_a_dynamic_axis_is_the_witness(convert: Convert) -> None:
    text = """g (float[n,3] x) => (float[n,3] y) <int64[2] s = {2, 3}, float z = {0}>
    { r = Relu(x)  e = Expand(z, s)  y = Add(r, e) }"""
    axes = 'dynamic_axes = {"input_0": {0: "rows"}}'
    (finding, *_) = convert(text, beside=axes).findings
    assert finding.witness is not None
    assert (finding.witness.origin, finding.witness.about) == ("size", "rows=1")
    assert convert(text).verdict == "right"


def test_a_runtime_that_alone_is_wrong_is_to_blame(convert: Convert) -> None:
    result = convert(GOOD, runtime="wrong")
    assert result.verdict == "faulty"
    (finding,) = result.findings
    assert (finding.kind, finding.culprit) == ("target-runtime", "wrong")
    assert [c.outcome for c in finding.cross_check] == ["no-fault"]


CONTRADICTS = """g (float[n,3] x) => (float[n,4] y) <bool[3] c = {1, 1, 1}>
{ r = Relu(x)  y = Compress <axis=1> (r, c) }"""


@pytest.mark.parametrize(
    ("text", "blamed"),
    [(GOOD, "wrong_failing"), (BAD, "optimize"), (CONTRADICTS, "optimize")],
)
def test_a_runtime_that_fails_is_to_blame_for_what_is_right_elsewhere(
    convert: Convert, text: str, blamed: str
) -> None:
    result = convert(GOOD, text, runtime="wrong_failing", edges=False)
    finding = next(f for f in result.findings if f.symptom == "run-failure")
    assert blamed in (finding.culprit, finding.kind)


def test_no_runtime_is_to_blame_where_the_standard_has_no_answer(convert: Convert) -> None:
    text = """g (float[n,3] x) => (int32[n,3] y) <float k = {1e20}>
    { m = Mul(x, k)  y = Cast <to=6> (m) }"""
    least = "lambda x: np.full(x.shape, -2**31, np.int32)"
    result = convert(text, function=least, runtime="wrong", edges=False)
    assert (result.verdict, result.findings) == ("undecided", [])
    assert "Cast" in result.skipped[0].reason


def test_no_runtime_is_to_blame_whose_operators_are_each_as_exact_as_they_can_be(
    convert: Convert,
) -> None:
    """ONNX Runtime's Sigmoid is 0 below -18."""
    text = "g (float[n,3] x) => (float[n,3] y) { s = Sigmoid(x)  y = Mul(x, s) }"
    low = "(np.array([[-39, -41, -40]], np.float32),)"
    swish = "lambda x: (x / (1 + np.exp(-x.astype(float)))).astype(np.float32)"
    result = convert(text, function=swish, inputs=low, edges=False, random=0)
    assert (result.verdict, result.findings) == ("undecided", [])
    assert "onnxruntime computes each operator as exactly" in result.reason


def test_outputs_that_are_random_are_not_compared(convert: Convert) -> None:
    random = "lambda x: (np.maximum(x, 0), np.random.default_rng().random(3, np.float32))"
    text = """g (float[n,3] x) => (float[n,3] y, float[3] z) <float[3] c = {0, 0, 0}>
    { y = Relu(x)  z = Identity(c) }"""
    result = convert(text, function=random)
    assert result.verdict == "right"
    assert next((c.name, c.state) for c in result.controls) == ("source against itself", "limited")
    with pytest.raises(NothingTested, match="every output differs between two runs"):
        convert(GOOD, function="lambda x: np.random.default_rng().random((2, 3), np.float32)")


def test_a_source_that_seldom_draws_another_number_is_random(convert: Convert) -> None:
    rare = "lambda x: np.where(np.random.default_rng().random(x.shape) < 0.005, 1, 0) + 0 * x"
    text = """g (float[n,3] x) => (float[n,3] y) <float k = {0}>
    { z = Mul(x, k)  r = Bernoulli(z)  o = RandomUniformLike(x)  y = Add(r, o) }"""
    with pytest.raises(NothingTested, match="every output differs between two runs"):
        convert(text, function=rare, edges=False)


@pytest.mark.parametrize("function", ["lambda x: 0 * x", "lambda x: x"])
def test_a_model_that_draws_where_the_source_does_not_is_wrong(
    convert: Convert, function: str
) -> None:
    text = """g (float[n,3] x) => (float[n,3] y)
    { o = RandomUniformLike(x)  y = Add(x, o) }"""
    result = convert(text, function=function, edges=False)
    assert [f.symptom for f in result.findings] == ["wrong-output"]


def test_inputs_that_the_source_refuses_are_left_out(convert: Convert) -> None:
    strict = "lambda x: np.maximum(x, 0) if x.min() >= 0 else np.log([])[0]"
    result = convert(GOOD, function=strict, inputs="(np.ones((2, 3), np.float32),)")
    assert result.verdict == "right"
    assert any("IndexError" in s.reason for s in result.skipped)


def test_artifacts_are_kept_where_asked(convert: Convert, tmp_path: Path) -> None:
    result = convert(GOOD, BAD, out=tmp_path / "kept")
    files = [s.file for s in result.stages]
    assert files[1] == "2-plain_to_onnx-rewrite.onnx"
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == sorted(map(str, files))


BROKEN = {
    "raises": ("def net():\n    raise ValueError('no weights')", r"net\(\) fails: ValueError"),
    "asks": ("def net(size):\n    return size", r"needs arguments \(size\)"),
    "no function": ("def other():\n    return 1", "there is no function 'net'; it has other"),
    "no Python": ("def net(:\n", "cannot be executed: SyntaxError"),
    "none": ("def net():\n    pass", "returned None"),
    "no inputs": ("def net():\n    return 1", "has no example inputs"),
    "axes": (
        "import numpy as np\nexample_inputs = (np.ones(2),)\ndynamic_axes = {'z': {0: 'n'}}\n"
        "def net():\n    return 1",
        "dynamic_axes names 'z'; the inputs are input_0",
    ),
}


def test_a_model_by_its_name_is_a_source(plugins: Plugins) -> None:
    request = ConvertRequest(model="zoo:digits-mlp", via=("onnx_version",), random=1, edges=False)
    assert convert_model(request, plugins).verdict == "right"


@pytest.mark.parametrize("name", BROKEN)
def test_a_source_that_cannot_be_used_is_told_in_one_message(
    name: str, tmp_path: Path, plugins: Plugins
) -> None:
    text, message = BROKEN[name]
    (tmp_path / "source.py").write_text(text)
    request = ConvertRequest(model=f"{tmp_path}/source.py:net", via=("plain_to_onnx",))
    with pytest.raises(UsageError, match=message):
        convert_model(request, plugins)


@pytest.mark.parametrize(
    ("model", "via", "message"),
    [
        ("gone.py:net", ["plain_to_onnx"], "gone.py: there is no such file"),
        ("gone.py:net", [], "gone.py: there is no such file"),
        ("source.py", ["plain_to_onnx"], "say which function makes the model"),
        ("model.onnx", [], "choose one: .*optvet convert model.onnx --via onnx_version; "),
        ("zoo:digits-nlp", ["onnx_version"], "did you mean 'digits-mlp'"),
        ("source.py:net", ["nope"], "unknown converter 'nope'"),
        ("source.py:net", ["plain_to_onnx", "plain_to_onnx"], "plain_to_onnx makes onnx, but"),
        ("model.onnx", ["plain_to_onnx"], "converter 'plain_to_onnx' takes .py"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(
    model: str,
    via: list[str],
    message: str,
    tmp_path: Path,
    plugins: Plugins,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("source.py", "model.onnx"):
        Path(name).write_text("")
    with pytest.raises(UsageError, match=message):
        convert_model(ConvertRequest(model=model, via=tuple(via)), plugins)


def test_a_source_that_only_one_converter_takes_to_onnx_needs_no_chain() -> None:
    plugins = Plugins()
    if "torch_dynamo" not in plugins.names("converter"):
        pytest.skip("needs torch")
    (link,) = links_of(ConvertRequest(model="net.pt2"), plugins)
    assert link.converter.name == "torch_dynamo"


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("import torch.nn as nn", "torch_dynamo"),
        ("def net():\n    from torch import nn", "torch_dynamo"),
        ("from sklearn.svm import SVC", "skl2onnx"),
        ("import sklearn, lightgbm", "onnxmltools"),
    ],
)
def test_the_converter_of_the_library_that_a_file_imports_is_taken(
    text: str, chosen: str, tmp_path: Path
) -> None:
    plugins = Plugins()
    if chosen not in plugins.names("converter"):
        pytest.skip(f"needs {chosen}")
    (tmp_path / "net.py").write_text(text)
    source = f"{tmp_path}/net.py:net"
    assert choose_converter(source, plugins) == (chosen,)
    assert explain_choice(source, plugins, chosen).startswith(f"{chosen} was taken, since --via")


@pytest.mark.parametrize("text", ["import numpy", "def net(:", "from . import torch"])
def test_where_a_file_says_nothing_there_is_a_command_for_each_converter(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(text)
    other = plain.PlainConverter()
    other.name = "other_to_onnx"
    words = "several converters fit; choose one: .*--via other_to_onnx; .*--via plain_to_onnx"
    with pytest.raises(UsageError, match=words):
        choose_converter(f"{tmp_path}/net.py:net", plain.plugins().register("converter", other))


def test_where_no_converter_takes_the_file_the_message_says_what_is_at_hand(tmp_path: Path) -> None:
    words = "no converter at hand takes .*/net.h5; at hand: .*onnx_version.*: optvet plugins"
    with pytest.raises(UsageError, match=words):
        choose_converter(f"{tmp_path}/net.h5", Plugins())


def test_the_answer_says_which_converter_was_taken(tmp_path: Path) -> None:
    plugins = Plugins()
    if "skl2onnx" not in plugins.names("converter"):
        pytest.skip("needs skl2onnx")
    (tmp_path / "line.py").write_text(
        "import numpy as np\nfrom sklearn.linear_model import LinearRegression\n"
        "example_inputs = (np.eye(3, dtype=np.float32),)\n"
        "def net():\n    return LinearRegression().fit(np.eye(3), np.arange(3.0))\n"
    )
    request = ConvertRequest(model=f"{tmp_path}/line.py:net", random=1, edges=False)
    result = convert_model(request, plugins)
    assert [c.name for c in result.converters] == ["skl2onnx"]
    assert result.notes[0].startswith("skl2onnx was taken")
    assert "--via onnxmltools" in result.notes[0]


def test_a_wrong_option_names_the_right_ones(convert: Convert) -> None:
    with pytest.raises(UsageError, match=r"unknown option of plain_to_onnx 'strikt'.*'strict'"):
        convert(GOOD, converter_options={"strikt": True})


def test_an_error_about_the_use_of_a_converter_is_no_finding(convert: Convert) -> None:
    with pytest.raises(OptvetError, match="give it something else"):
        convert("misuse")


def test_the_document_is_plain_json(convert: Convert) -> None:
    document = json.loads(convert(GOOD, BAD).to_json())
    assert document["schema"] == "optvet.convert/1"
    assert ConversionResult.model_validate(document).verdict == "faulty"
    assert np.isfinite(document["wall_s"])


@pytest.mark.parametrize(
    "made",
    [
        "g () => (float[2,3] y) <float[2,3] c = {1, 0, 3, 0, 5, 0}> { y = Relu(c) }",
        "g (float[2,3] x, float[2,3] k) => (float[2,3] y) { y = Relu(x) }",
        "g (float[1,3] x) => (float[1,3] y) { y = Relu(x) }",
    ],
)
def test_what_cannot_be_called_as_its_source_is_has_another_interface(
    convert: Convert, made: str
) -> None:
    result = convert(GOOD, made)
    assert result.verdict == "faulty"
    assert told(result) == [("interface-change", "convert", ("rewrite",))]


def test_a_failure_behind_wrong_values_is_the_later_stages_own_fault(convert: Convert) -> None:
    broken = "g (float[n,3] x) => (float[n,3] y) { y = Nowhere(x) }"
    result = convert(BAD, broken)
    assert [(s, at) for s, _, at in told(result)] == [
        ("wrong-output", ("read",)),
        ("invalid-model", ("rewrite",)),
    ]


def test_nan_in_place_of_numbers_has_no_size(convert: Convert) -> None:
    lost = "g (float[n,3] x) => (float[n,3] y) { a = Sqrt(x) y = Mul(a, a) }"
    result = convert(lost, function="lambda x: x")
    stage = result.stages[-1]
    assert stage.state == "fault"
    assert (stage.places, stage.error, stage.noise) == (True, None, None)
    assert [(f.error, f.noise) for f in result.findings] == [(None, None)]
