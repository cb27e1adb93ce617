from collections.abc import Sequence

import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from tests.needs import needs
from tests.optimizers.small_network import BEFORE, NET, as_artifact, operators

from optvet.spec.errors import MissingLibrary, UnknownName
from optvet.spec.types import Artifact
from optvet_ort_tools import OrtTools, OrtToolsOptions

needs("sympy", reason="needs sympy, for ONNX Runtime's symbolic shape inference")

TOOLS = OrtTools()
DYNAMIC = """
<ir_version: 8, opset_import: ["" : 13]>
g (float[N,3] x) => (float[N,3] y) { a = Identity(x)  y = Sin(a) }
"""


def apply(text: str, *passes: str, dimensions: Sequence[str] = ()) -> onnx.ModelProto:
    options = OrtToolsOptions(dimensions=tuple(dimensions))
    return onnx.load_from_string(TOOLS.apply(as_artifact(text), passes, options).data)


def shapes(model: onnx.ModelProto) -> dict[str, list[int | str]]:
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    return {
        v.name: [d.dim_value or d.dim_param for d in v.type.tensor_type.shape.dim] for v in values
    }


def test_the_default_pipeline_is_what_quant_pre_process_does(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    from onnxruntime.quantization.shape_inference import quant_pre_process

    path = tmp_path_factory.mktemp("prepared") / "model.onnx"
    quant_pre_process(onnx.parser.parse_model(NET), path)
    ours = apply(NET, *TOOLS.pipelines()["default"])
    assert ours.graph == onnx.load(path).graph


def with_bytes(text: str) -> Artifact:
    """A model whose weights are bytes, as in files: the library optimizes no other message."""
    model = onnx.parser.parse_model(text)
    for weight in model.graph.initializer:
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight), weight.name))
    return Artifact("onnx", model.SerializeToString())


def test_each_step_does_its_own_work() -> None:
    net = with_bytes(NET)
    assert operators(TOOLS.apply(net, (), TOOLS.options)) == BEFORE
    assert operators(TOOLS.apply(net, ["symbolic_shape_infer"], TOOLS.options)) == BEFORE
    assert "BatchNormalization" not in operators(TOOLS.apply(net, ["optimize"], TOOLS.options))
    assert "a" not in shapes(apply(DYNAMIC))
    assert shapes(apply(DYNAMIC, "symbolic_shape_infer"))["a"] == ["N", 3]
    assert shapes(apply(DYNAMIC, "onnx_shape_infer"))["a"] == ["N", 3]


def test_dimensions_are_fixed_where_the_options_say_so() -> None:
    fixed = shapes(apply(DYNAMIC, "make_dynamic_shape_fixed", dimensions=["N=4"]))
    assert (fixed["x"], fixed["y"]) == ([4, 3], [4, 3])
    assert shapes(apply(DYNAMIC, "onnx_shape_infer", dimensions=["N=4"]))["x"] == ["N", 3]


def test_the_snippet_fixes_dimensions_too() -> None:
    passes, options = ["make_dynamic_shape_fixed"], OrtToolsOptions(dimensions=("N=4",))
    lines = TOOLS.snippet(passes, options).splitlines()
    names: dict[str, object] = {}
    exec("def optimize(model):\n" + "\n".join(f"    {line}" for line in lines), names)
    made = names["optimize"](onnx.parser.parse_model(DYNAMIC))  # type: ignore[operator]
    assert shapes(made)["y"] == [4, 3]


def test_a_pass_that_it_does_not_know_is_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean 'optimize'"):
        apply(NET, "optimise")


def test_without_sympy_it_is_absent_and_no_pass_of_it_is_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingLibrary, match="sympy"):
        OrtTools().version()
