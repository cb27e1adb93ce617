from pathlib import Path

import onnx
import onnx.parser
import pytest
from tests.needs import needs
from tests.optimizers.small_network import as_artifact

import optvet
from optvet.spec.errors import UnknownName, Unsupported
from optvet.spec.records import VetResult
from optvet_version_converters import (
    OnnxConverter,
    OnnxConverterOptions,
    OnnxscriptConverter,
    OnnxscriptConverterOptions,
)

ONNX = OnnxConverter()


def text(node: str, opset: int, shape: str = "2,3,4", result: str = "") -> str:
    return f"""
    <ir_version: 8, opset_import: ["" : {opset}]>
    g (float[{shape}] x) => (float[{result or shape}] y) {{ y = {node} }}
    """


def opset_after(opset: int, *passes: str) -> int:
    artifact = ONNX.apply(as_artifact(text("Sin(x)", opset)), passes, ONNX.options)
    return int(onnx.load_from_string(artifact.data).opset_import[0].version)


@pytest.mark.parametrize(
    ("opset", "passes", "after"),
    [
        (12, ("12_13",), 13),
        (12, ("12_13", "13_14", "14_15"), 15),
        (13, ("12_13", "13_14"), 14),
        (15, ("12_13", "13_14"), 15),
        # The first steps begin ahead of the model, which is converted up to them.
        (12, ("14_15",), 15),
        # The first steps lie behind the model, so that there is a gap before the others.
        (12, ("10_11", "11_12", "13_14"), 12),
        (12, ("10_11", "12_13"), 13),
        (13, ("13_12",), 12),
        (13, ("12_11",), 11),
        (13, ("15_14", "14_13", "12_11"), 13),
        (13, (), 13),
    ],
)
def test_steps_lead_as_far_as_they_have_no_gap(
    opset: int, passes: tuple[str, ...], after: int
) -> None:
    assert opset_after(opset, *passes) == after


@pytest.mark.parametrize("opset", [7, 12, 18])
def test_the_default_pipeline_leads_to_the_operator_set_of_the_options(opset: int) -> None:
    configured = ONNX.configured(OnnxConverterOptions(opset=12))
    assert opset_after(opset, *configured.pipelines()["default"]) == 12


@pytest.mark.parametrize(
    ("opset", "passes"),
    [
        (7, ONNX.pipelines()["default"]),
        (24, ONNX.pipelines()["default"]),
        (12, ("10_11", "11_12", "13_14")),
        (14, ("15_14", "13_12")),
        (15, ("15_14", "13_12")),
        (13, ("16_17",)),
        (9, ()),
    ],
)
def test_the_snippet_does_what_the_plugin_does(opset: int, passes: tuple[str, ...]) -> None:
    lines = ONNX.snippet(passes, ONNX.options).splitlines()
    code = "def optimize(model):\n" + "\n".join(f"    {line}" for line in lines)
    names: dict[str, object] = {}
    exec(code, names)
    model = onnx.parser.parse_model(text("Sin(x)", opset))
    assert names["optimize"](model).opset_import[0].version == opset_after(opset, *passes)  # type: ignore[operator]


def test_a_step_that_it_does_not_know_is_refused() -> None:
    with pytest.raises(UnknownName):
        opset_after(12, "12_14")


def test_what_the_older_operator_set_lacks_is_refused_and_a_missing_adapter_is_not() -> None:
    new = as_artifact(text("Gelu(x)", 20))
    with pytest.raises(Unsupported, match="No Previous Version of Gelu"):
        ONNX.apply(new, ["20_19"], ONNX.options)
    unadapted = as_artifact(text("LSTM<hidden_size=2>(x, x, x)", 6))
    with pytest.raises(RuntimeError, match="No Adapter"):
        ONNX.apply(unadapted, ["6_7"], ONNX.options)


def vetted(folder: Path, model: str, opset: int) -> VetResult:
    onnx.save(onnx.parser.parse_model(model), folder / "model.onnx")
    return optvet.vet(
        str(folder / "model.onnx"),
        optimizer="onnx_version_converter",
        optimizer_options={"opset": opset},
        limit=2,
        jobs=1,
        cache_dir=folder,
    )


def test_one_step_is_blamed_for_what_it_does_to_an_operator(tmp_path: Path) -> None:
    result = vetted(tmp_path, text("Softmax<axis=1>(x)", 14), 10)
    (finding,) = [f for f in result.findings if f.symptom == "wrong-output"]
    assert finding.culprit == ["13_12"]
    assert "13_12" not in result.safe_pipeline


def test_steps_behind_a_faulty_one_are_not_blamed(tmp_path: Path) -> None:
    model = "g (float[2] x, float[2] u) => (float[2] y) { y = Add(x, u) }"
    result = vetted(tmp_path, f'<ir_version: 8, opset_import: ["" : 13]> {model}', 9)
    faults = [f for f in result.findings if f.symptom != "metadata-change"]
    assert [f.culprit for f in faults] == [["13_12"]]


def test_a_sound_conversion_is_clean(tmp_path: Path) -> None:
    node = "ReduceMax<axes=[1], keepdims=0>(x)"
    result = vetted(tmp_path, text(node, 11, result="2,4"), 18)
    assert result.verdict == "clean"


def test_onnxscript_leaves_an_operator_set_that_it_does_not_take() -> None:
    needs("onnxscript", reason="needs onnxscript; install optvet[onnxscript]")
    converter = OnnxscriptConverter()
    source = as_artifact(text("Sin(x)", 13))
    artifact = converter.apply(source, (), converter.options)
    assert onnx.load_from_string(artifact.data).opset_import[0].version == 13
    lines = converter.snippet((), converter.options).splitlines()
    names: dict[str, object] = {}
    exec("def optimize(model):\n" + "\n".join(f"    {line}" for line in lines), names)
    made = names["optimize"](onnx.load_from_string(source.data))  # type: ignore[operator]
    assert made.opset_import[0].version == 13


@pytest.mark.parametrize("form", ["graph", "message"])
def test_onnxscript_converts_a_graph_and_a_message(form: str) -> None:
    needs("onnxscript", reason="needs onnxscript; install optvet[onnxscript]")
    converter = OnnxscriptConverter()
    options = OnnxscriptConverterOptions(opset=21, form=form)  # type: ignore[arg-type]
    source = as_artifact(text("DFT<axis=1>(x)", 19, shape="1,8,2"))
    artifact = converter.apply(source, ["19_20"], options)
    nodes = onnx.load_from_string(artifact.data).graph.node
    assert [n.op_type for n in nodes] == ["Constant", "DFT"]
    code = "def optimize(model):\n" + "\n".join(
        f"    {line}" for line in converter.snippet(["19_20"], options).splitlines()
    )
    names: dict[str, object] = {}
    exec(code, names)
    made = names["optimize"](onnx.load_from_string(source.data))  # type: ignore[operator]
    assert made.SerializeToString(deterministic=True) == artifact.data
