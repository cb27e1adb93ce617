"""skl2onnx for scikit-learn's estimators, onnxmltools for those of XGBoost and LightGBM."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    Artifact,
    ConversionStage,
    Converter,
    Unsupported,
    hookimpl,
    load_factory,
    version_of,
)

_STAGES = (ConversionStage("convert", "convert", "onnx"),)
_EXTRA = "optvet[estimators]"


class SklOptions(BaseModel):
    """How ``skl2onnx.convert_sklearn`` is called."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    opset: int | None = Field(default=None, ge=7)
    """ONNX's operator set; by default the latest that skl2onnx knows."""
    ml_opset: int | None = Field(default=None, ge=1)
    """Operator set of ``ai.onnx.ml``."""
    target_opset: int | dict[str, int] | None = None
    """Both, as skl2onnx takes them: a number, or one for each domain."""
    zipmap: bool = False
    """Give probabilities as maps by class, not as a matrix."""


class MlOptions(BaseModel):
    """How ``onnxmltools`` is called."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    opset: int | None = Field(default=None, ge=7)
    """ONNX's operator set; by default the latest that onnxmltools knows."""
    target_opset: int | None = Field(default=None, ge=7)
    """The same."""


class Skl2Onnx:
    """One ONNX operator or a few for each estimator of a pipeline."""

    name = "skl2onnx"
    preference = 100
    consumes = frozenset({"estimator"})
    produces = "onnx"
    preload: Sequence[str] = ("skl2onnx",)
    libraries: Mapping[str, str] = {"skl2onnx": "skl2onnx"}
    options: SklOptions = SklOptions()
    registers = "skl2onnx.update_registered_converter"

    def version(self) -> str:
        """Version of skl2onnx."""
        return version_of("skl2onnx", extra=_EXTRA)

    def stages(self, options: SklOptions) -> Sequence[ConversionStage]:
        """One stage."""
        return _STAGES

    def taken_operators(self) -> Collection[str]:
        """Classes with a converter or a parser of their own."""
        from skl2onnx._parse import sklearn_parsers_map
        from skl2onnx._supported_operators import sklearn_operator_name_map

        return {kind.__name__ for kind in [*sklearn_operator_name_map, *sklearn_parsers_map]}

    def convert(self, source: Artifact, options: SklOptions, folder: Path) -> Iterator[Artifact]:
        """The model in ONNX, with inputs of the example's types and any number of rows."""
        from skl2onnx import convert_sklearn
        from skl2onnx.common import data_types

        code = load_factory(source)
        settings: dict[str, Any] = {}
        if opsets := options.target_opset or _opsets(options):
            settings["target_opset"] = opsets
        types = _types(code.facts.inputs, data_types)
        for wanted in _wishes(code.model, options):
            extra = {"options": wanted} if wanted else {}
            # A converter without such an option raises a NameError; the last wish has none.
            with contextlib.suppress(*([NameError] if wanted else [])):
                proto = convert_sklearn(code.model, initial_types=types, **settings, **extra)
                break
        yield Artifact("onnx", proto.SerializeToString())


class OnnxMlTools:
    """The ensembles of XGBoost and LightGBM as trees of ``ai.onnx.ml``."""

    name = "onnxmltools"
    consumes = frozenset({"estimator"})
    produces = "onnx"
    preload: Sequence[str] = ("onnxmltools",)
    libraries: Mapping[str, str] = {
        "onnxmltools": "onnxmltools",
        "xgboost": "xgboost",
        "lightgbm": "lightgbm",
    }
    options: MlOptions = MlOptions()

    def version(self) -> str:
        """Version of onnxmltools."""
        return version_of("onnxmltools", extra=_EXTRA)

    def stages(self, options: MlOptions) -> Sequence[ConversionStage]:
        """One stage."""
        return _STAGES

    def taken_operators(self) -> Collection[str]:
        """Classes of both libraries that have a converter."""
        from onnxmltools.convert.lightgbm._parse import lightgbm_operator_name_map
        from onnxmltools.convert.xgboost._parse import xgboost_operator_name_map

        return {kind.__name__ for kind in [*lightgbm_operator_name_map, *xgboost_operator_name_map]}

    def convert(self, source: Artifact, options: MlOptions, folder: Path) -> Iterator[Artifact]:
        """The model in ONNX; Unsupported for an estimator of another library."""
        import onnxmltools
        from onnxmltools.convert.common import data_types

        code = load_factory(source)
        opset = options.target_opset or options.opset
        settings: dict[str, Any] = {"target_opset": opset} if opset else {}
        types = _types(code.facts.inputs, data_types)
        library = type(code.model).__module__.partition(".")[0]
        if library == "lightgbm":
            if hasattr(code.model, "predict_proba"):
                settings["zipmap"] = False
            proto = onnxmltools.convert_lightgbm(code.model, initial_types=types, **settings)
        elif library == "xgboost":
            proto = onnxmltools.convert_xgboost(code.model, initial_types=types, **settings)
        else:
            raise Unsupported(
                f"{type(code.model).__name__} is of {library}, expected xgboost or lightgbm"
            )
        yield Artifact("onnx", proto.SerializeToString())


def _wishes(model: Any, options: SklOptions) -> list[dict[int, dict[str, bool]]]:
    """Options of skl2onnx by estimator, the most telling first: one array of probabilities.

    Without ``raw_scores`` a classifier that has scores alone gets probabilities made of them. In a
    pipeline that is an option of the last step.
    """
    plain = {id(model): {"zipmap": options.zipmap}}
    if hasattr(model, "predict_proba"):
        return [plain, {}]
    if not hasattr(model, "decision_function"):
        return [{}]
    last = id(model.steps[-1][1]) if hasattr(model, "steps") else id(model)
    scores = {last: {"raw_scores": True}}
    return [{**plain, last: {**plain.get(last, {}), **scores[last]}}, scores, plain, {}]


def _opsets(options: SklOptions) -> dict[str, int]:
    from skl2onnx import __max_supported_opset__

    opset = options.opset
    if options.ml_opset is not None and opset is None:
        opset = __max_supported_opset__  # Converters that are registered read both.
    versions = {"": opset, "ai.onnx.ml": options.ml_opset}
    return {domain: version for domain, version in versions.items() if version is not None}


_TYPES = {
    "float32": "FloatTensorType",
    "float64": "DoubleTensorType",
    "int64": "Int64TensorType",
    "int32": "Int32TensorType",
    "bool": "BooleanTensorType",
}


def _types(inputs: Mapping[str, Any], data_types: Any) -> list[tuple[str, Any]]:
    """Declared types of the inputs; the number of rows is left open."""
    found = []
    for name, value in inputs.items():
        kind = "StringTensorType" if value.dtype.kind in "OSU" else _TYPES[value.dtype.name]
        found.append((name, getattr(data_types, kind)([None, *value.shape[1:]])))
    return found


@hookimpl
def optvet_converters() -> Iterable[Converter]:
    """Converters of estimators."""
    return [Skl2Onnx(), OnnxMlTools()]
