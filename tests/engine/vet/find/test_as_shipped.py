"""The optimized model as its users run it, beside the original in the clean room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from pydantic import BaseModel
from tests.answers import detail

import optvet
from optvet import VetResult
from optvet.engine.discovery import Plugins
from optvet.engine.judge.judgement import Judgement
from optvet.engine.models.opening import open_model
from optvet.engine.vet.find.as_shipped import _unexplained
from optvet.engine.vet.observe.observation import Examination
from optvet.engine.vet.run import vet_model
from optvet.spec.request import VetRequest
from optvet.spec.types import Artifact
from optvet.testing import Planted

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
INTEGERS = "g (int32[4] a, int32[4] b) => (int32[4] y) <int32 one = {1}> "
FUSED = HEAD + INTEGERS + "{ d = Div(one, a)  y = Mul(d, b) }"
"""ONNX Runtime makes one division of it by default, which is another number."""
APART = HEAD + INTEGERS + "{ d = Div(one, a)  m = Max(d)  y = Mul(m, b) }"
"""It does not where another operator stands between the two."""


@dataclass
class Tidying(Planted):
    """Removes Max of one value, which is right."""

    name: str = "tidying"
    preload: Sequence[str] = ("onnx", __name__)

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        model = onnx.load_from_string(source.data)
        if "heal" in passes:
            (found,) = (n for n in model.graph.node if n.op_type == "Max")
            model.graph.node.remove(found)
            for node in model.graph.node:
                node.input[:] = [found.input[0] if i == found.output[0] else i for i in node.input]
        return Artifact("onnx", model.SerializeToString())


def vet(text: str, optimizer: Planted, place: Path, **more: Any) -> VetResult:
    path = place / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    plugins = Plugins().register("optimizer", optimizer)
    asked: dict[str, Any] = {"limit": 3, "optimizer": optimizer.name, "cache_dir": place / "cache"}
    request = VetRequest(model=str(path), **asked, **more)
    return vet_model(open_model(path, str(path), place / "cache"), request, plugins)


def test_a_pass_after_which_the_runtime_is_wrong_is_named(tmp_path: Path) -> None:
    passes = ("identity", "heal")
    result = vet(APART, Tidying(default=passes, offered=passes), tmp_path)
    assert result.verdict == "faulty"
    (found,) = [f for f in result.findings if f.severity == "fault"]
    assert (found.culprit, found.as_deployed) == (["heal"], True)
    assert found.runtime_parts == ["optimization=all", "DivMulFusion"]
    assert result.safe_pipeline == ["identity"]


def test_a_runtime_that_is_wrong_on_the_original_too_is_blamed_itself(tmp_path: Path) -> None:
    result = vet(FUSED, Planted(default=("identity",)), tmp_path)
    assert "the runtime is wrong on the original too" in detail(result, "as shipped")
    (found,) = [f for f in result.findings if f.severity == "fault"]
    assert (found.culprit, found.runtime_parts) == ([], ["optimization=all", "DivMulFusion"])
    assert found.blamed() == "the runtime: optimization=all, DivMulFusion"
    assert result.safe_pipeline == ["identity"]


def test_a_clean_room_alone_is_judged_if_that_is_asked(tmp_path: Path) -> None:
    result = vet(FUSED, Planted(default=("identity",)), tmp_path, clean=True)
    assert result.verdict == "clean"
    assert result.control("as shipped") is None


def test_options_of_the_users_session_do_not_hold_for_the_original(tmp_path: Path) -> None:
    given = {"optimization": "extended", "exact_int8": True}
    result = vet(FUSED, Planted(default=("identity",)), tmp_path, runtime_options=given)
    (found,) = [f for f in result.findings if f.severity == "fault"]
    assert found.runtime_parts == ["optimization=extended", "DivMulFusion"]


def test_options_of_the_users_session_hold_for_both_in_a_clean_room_alone(tmp_path: Path) -> None:
    given = {"optimization": "extended"}
    planted = Planted(default=("identity",))
    result = vet(FUSED, planted, tmp_path, runtime_options=given, clean=True)
    assert result.verdict == "clean"


def test_the_level_of_a_session_that_is_vetted_itself_is_its_pipeline(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(FUSED), path)
    with pytest.raises(optvet.UsageError, match="write --pipeline all"):
        optvet.vet(path, optimizer="onnxruntime", runtime_options={"optimization": "all"})


@pytest.mark.parametrize(("error", "told"), [(0.15, ""), (0.9, "explains no difference")])
def test_an_error_of_the_runtime_explains_no_larger_one(error: float, told: str) -> None:
    def judged(size: float) -> Examination:
        return Examination(judgements={"y": Judgement("y", "fault", size)})

    words = _unexplained(judged(error), judged(0.1))
    assert bool(words) == bool(told)
    if told:
        assert told in words
        assert words.endswith("'y': off by 0.9 of its largest value, on the original by 0.1")


def int4(place: Path) -> Path:
    """4-bit weights that a session multiplies in 8 bits, which only packed kernels do."""
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    g (float[8,64] x) => (float[8,4] y) <uint4[64,4] w, float[2,4] s, uint4[2,4] z>
    { d = DequantizeLinear<axis = 0, block_size = 32>(w, s, z)  y = MatMul(x, d) }
    """
    model = onnx.parser.parse_model(
        text.replace(" <uint4[64,4] w, float[2,4] s, uint4[2,4] z>", "")
    )
    values = [(i * 7 + 3) % 16 for i in range(64 * 4)]
    packed = bytes(a | b << 4 for a, b in zip(values[::2], values[1::2], strict=True))
    for name, dims, raw in (("w", (64, 4), packed), ("z", (2, 4), b"\x88" * 4)):
        model.graph.initializer.add(
            name=name, data_type=onnx.TensorProto.UINT4, dims=dims, raw_data=raw
        )
    scales = onnx.helper.make_tensor(
        "s", onnx.TensorProto.FLOAT, (2, 4), [0.013 * i for i in range(1, 9)]
    )
    model.graph.initializer.append(scales)
    path = place / "int4.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("packs", [True, False])
def test_a_session_that_optimizes_packs_weights_as_it_does_by_default(
    tmp_path: Path, packs: bool
) -> None:
    result = optvet.vet(
        int4(tmp_path),
        optimizer="onnxruntime",
        optimizer_options={} if packs else {"prepacking": False},
        limit=2,
        cache_dir=tmp_path / "cache",
    )
    blamed = [f.culprit for f in result.findings if f.severity == "fault"]
    assert blamed == ([["QDQSelectorActionTransformer"]] if packs else [])


def test_a_saved_model_is_judged_in_a_session_that_packs_its_weights(tmp_path: Path) -> None:
    result = optvet.vet(
        int4(tmp_path),
        optimizer="onnxruntime",
        optimizer_options={"mode": "offline"},
        limit=2,
        cache_dir=tmp_path / "cache",
    )
    (found,) = [f for f in result.findings if f.severity == "fault"]
    assert (found.culprit, found.as_deployed) == (["QDQSelectorActionTransformer"], True)
    assert found.runtime_parts == ["prepacking=True"]


def test_the_option_that_makes_random_outputs_constant_is_named(tmp_path: Path) -> None:
    text = (
        HEAD
        + """g (float[64] x) => (float[64] y) <bool yes = {1}> {
        a = Abs(x)  d = Dropout(a, , yes)  y = Neg(d) }"""
    )
    result = vet(text, Planted(default=("identity",)), tmp_path)
    (found,) = [f for f in result.findings if f.severity == "fault"]
    assert (found.culprit, found.runtime_parts) == ([], ["optimization=all", "EliminateDropout"])


def test_requirements_are_measured_as_shipped_too(tmp_path: Path) -> None:
    floats = FUSED.replace("int32", "float").replace("{1}", "{1.0}")
    planted = Planted(default=("identity",))
    bound = vet(floats, planted, tmp_path, require=("max_change<=1e-9",))
    (record,) = bound.requirements
    assert record.met is False
    assert "as shipped; max_change is 0 in the clean room" in record.detail
    (found,) = [f for f in bound.findings if f.severity == "requirement"]
    assert (found.culprit, found.as_deployed) == ([], True)
    (record,) = vet(floats, planted, tmp_path, require=("max_change<=1e-5",)).requirements
    assert record.met is True
