"""Scripts that convert a written estimator by the library itself."""

from __future__ import annotations

from collections.abc import Mapping

from optvet.plugin import PartScript

_EXPECTED = """\
def dense(value):
    return np.asarray(value.toarray() if hasattr(value, "toarray") else value)


model = part()
(x,) = given = list(example_inputs.values())
last = model.steps[-1][1] if hasattr(model, "steps") else model
wishes = [{}]
if hasattr(model, "predict_proba"):
    names = ["predict", "predict_proba"]
    wishes = [{id(model): {"zipmap": False}}, {}]
elif is_clusterer(model) and hasattr(model, "transform"):
    names = ["predict", "transform"]
elif hasattr(model, "decision_function"):
    names = ["predict", "decision_function"]
    scores = {"raw_scores": True}
    wishes = [{id(last): {"zipmap": False, **scores}}, {id(last): scores}, {}]
elif is_classifier(model) and hasattr(model, "predict"):
    names = ["predict"]
elif hasattr(model, "predict") and (is_regressor(model) or not hasattr(model, "transform")):
    names = ["predict"]
else:
    names = ["transform"]
expected = [dense(getattr(model, name)(x)) for name in names]
if "decision_function" in names and is_classifier(model) and expected[1].ndim == 1:
    expected[1] = np.stack([-expected[1], expected[1]], axis=1)"""
_BASE = "from sklearn.base import is_classifier, is_clusterer, is_outlier_detector, is_regressor"
_SKL = """\
for wish in wishes:
    try:
        made = to_onnx(model, x[:1], options=wish{settings})
        break
    except NameError:  # an estimator without such an option
        if not wish:
            raise
if names == ["predict"] and is_classifier(model):
    del made.graph.output[1:]  # it has no probabilities
target.write_bytes(made.SerializeToString())"""
_TREES = """\
kinds = {{"float32": "Float", "float64": "Double", "int64": "Int64"}}
kind = getattr(data_types, kinds[x.dtype.name] + "TensorType")
lightgbm = type(model).__module__.startswith("lightgbm")
options = {{"zipmap": False}} if lightgbm and "predict_proba" in names else {{}}
convert = onnxmltools.convert_lightgbm if lightgbm else onnxmltools.convert_xgboost
made = convert(model, initial_types=[("x", kind([None, x.shape[1]]))]{settings}, **options)
target.write_bytes(made.SerializeToString())"""


def script_for(converter: str, options: Mapping[str, object]) -> PartScript | None:
    """The script of a converter; None for others."""
    if converter == "skl2onnx":
        versions = {"": options.get("opset"), "ai.onnx.ml": options.get("ml_opset")}
        each = {domain: version for domain, version in versions.items() if version}
        opsets = options.get("target_opset") or each
        settings = f", target_opset={opsets!r}" if opsets else ""
        imports = f"import numpy as np\nfrom skl2onnx import to_onnx\n{_BASE}"
        needs = ["scikit-learn", "skl2onnx", "onnxruntime"]
        call = _SKL.format(settings=settings)
    elif converter == "onnxmltools":
        opset = options.get("target_opset") or options.get("opset")
        settings = f", target_opset={opset}" if opset else ""
        imports = (
            "import numpy as np\nimport onnxmltools\n"
            f"from onnxmltools.convert.common import data_types\n{_BASE}"
        )
        needs = ["onnxmltools", "scikit-learn", "xgboost", "lightgbm", "onnxruntime"]
        call = _TREES.format(settings=settings)
    else:
        return None
    return PartScript(converter, needs, imports, _EXPECTED, call, flat=True)
