"""Each layer of a quantized model, on the integers that ONNX Runtime's optimized model computes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, ValueInfoProto
from tests.quantized.models import quantized_model
from tests.quantized.rewrites import QUANTIZED_BENIGN, QUANTIZED_FAULTS

from optvet.engine.judge.known_noise import Noise
from optvet.engine.judge.layer_checks import check
from optvet.engine.judge.layer_judgement import LayerJudgement, LocalAnswer
from optvet.engine.numerics.forced import cut, plain, regions
from optvet.engine.numerics.matching import InnerValues, Values, match
from optvet.graph.quantized import integer_tensors, quantizers, to_qdq

Plant = Callable[[ModelProto, float], None]
MODELS: dict[str, dict[str, Any]] = {
    "unsigned": {"seed": 1},
    "signed, per channel": {"seed": 2, "signed": True, "per_channel": True},
    "softmax": {"seed": 3, "per_channel": True, "softmax": True},
}
PLACES = (0.0, 0.25, 0.5, 0.75, 1.0)


def session(
    model: ModelProto, level: str = "DISABLE_ALL", save: Path | None = None, **config: str
) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.add_session_config_entry("session.disable_prepacking", "1")
    for key, value in config.items():
        options.add_session_config_entry(f"session.{key}", value)
    if save is not None:
        options.optimized_model_filepath = str(save)
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def run(model: ModelProto, feeds: Sequence[Values]) -> Iterator[dict[str, np.ndarray]]:
    loaded = session(model)
    names = {i.name for i in loaded.get_inputs()}
    for each in feeds:
        values = loaded.run(None, {n: v for n, v in each.items() if n in names})
        yield dict(zip([o.name for o in loaded.get_outputs()], values, strict=True))


@functools.cache
def made(name: str) -> ModelProto:
    """A model that tests share and do not change."""
    return quantized_model(**MODELS[name])


def images(count: int, seed: int = 0) -> list[Values]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(size=(1, 4, 12, 12)).astype(np.float32)} for _ in range(count)]


@dataclass(frozen=True)
class Compared:
    """What came of an optimized model: its layers, and whether its outputs differ at all."""

    answer: LocalAnswer
    differs: bool

    @property
    def layers(self) -> list[LayerJudgement]:
        return [*self.answer.layers, *self.answer.ends]

    def names(self, *outcomes: str) -> list[str]:
        return [each.name for each in self.layers if each.outcome in outcomes]


def compared(
    original: ModelProto,
    candidate: ModelProto,
    folder: Path,
    feeds: Sequence[Values],
    level: str = "ENABLE_ALL",
    **config: str,
) -> Compared:
    """``original`` with ``candidate`` as ONNX Runtime optimizes it."""
    saved = folder / "optimized.onnx"
    session(candidate, level, saved, **config)
    optimized = onnx.load(saved)
    grids = integer_tensors(optimized)
    known = {o.name for o in optimized.graph.output}
    optimized.graph.output.extend(ValueInfoProto(name=n) for n in grids if n not in known)
    names = [o.name for o in original.graph.output]
    seen = list(run(optimized, feeds))
    inner = [InnerValues({n: v[n] for n in grids}, {n: v[n] for n in names}) for v in seen]
    ours = plain(original)
    matches = match(ours, run, feeds[0], inner[0], grids)
    answer = check(ours, run, feeds, inner, matches, Noise(measured=False))
    expected = run(original, feeds)
    differs = any(
        not np.array_equal(e[n], i.outputs[n])
        for e, i in zip(expected, inner, strict=True)
        for n in names
    )
    return Compared(answer, differs)


def copy_of(model: ModelProto) -> ModelProto:
    other = ModelProto()
    other.CopyFrom(model)
    return other


def changed(model: ModelProto, plant: Plant, where: float) -> ModelProto | None:
    """A copy of ``model`` after ``plant``; None if it has no such place."""
    other = copy_of(model)
    try:
        plant(other, where)
    except ValueError:
        return None
    return other


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("level", ["ENABLE_BASIC", "ENABLE_ALL"])
def test_every_layer_is_found_again_and_right(tmp_path: Path, name: str, level: str) -> None:
    model = made(name)
    found = compared(model, model, tmp_path, images(3), level)
    assert len(found.answer.layers) == found.answer.quantizers
    assert {layer.outcome for layer in found.layers} == {"sound"}
    assert max(layer.steps for layer in found.answer.layers) < 0.501


@pytest.mark.long
@pytest.mark.parametrize("fault", QUANTIZED_FAULTS)
def test_planted_faults_that_reach_the_output_are_found_behind_every_optimization(
    tmp_path: Path, fault: str
) -> None:
    tried = 0
    for name in MODELS:
        model = made(name)
        for where in (0.0, 0.5, 1.0):
            wrong = changed(model, QUANTIZED_FAULTS[fault], where)
            if wrong is None:
                continue
            found = compared(model, wrong, tmp_path, images(4))
            tried += found.differs
            assert found.names("fault", "saturation") or not found.differs, (name, where)
    assert tried


@pytest.mark.parametrize("rewrite", QUANTIZED_BENIGN)
def test_what_merely_rounds_otherwise_is_right(tmp_path: Path, rewrite: str) -> None:
    for name in MODELS:
        model = made(name)
        for where in PLACES:
            other = changed(model, QUANTIZED_BENIGN[rewrite], where)
            assert other is not None
            found = compared(model, other, tmp_path, images(3))
            assert set(found.names("fault", "saturation", "open", "noise")) == set()


def test_ties_move_the_output_and_are_no_fault(tmp_path: Path) -> None:
    model = made("unsigned")
    other = changed(model, QUANTIZED_BENIGN["ties_up"], 0.5)
    assert other is not None
    found = compared(model, other, tmp_path, images(6))
    assert found.differs
    assert {layer.outcome for layer in found.layers} == {"sound"}


def test_a_rounding_left_out_is_told_apart_from_one_that_also_cut_values_off(
    tmp_path: Path,
) -> None:
    model = made("unsigned")
    less = changed(model, QUANTIZED_BENIGN["rounding_skipped"], 0.5)
    lost = changed(model, QUANTIZED_FAULTS["saturation_dropped"], 0.0)
    assert less is not None
    assert lost is not None
    assert compared(model, less, tmp_path, images(3)).names("skipped")
    assert compared(model, lost, tmp_path, images(3)).names("saturation")


def test_the_cleanup_of_pairs_that_stand_for_relu_loses_saturation(tmp_path: Path) -> None:
    model = made("signed, per channel")
    found = compared(model, model, tmp_path, images(3), enable_quant_qdq_cleanup="1")
    assert found.differs
    assert found.names("saturation")


def test_a_softmax_on_integers_with_a_step_of_1_255_is_a_fault_of_that_layer(
    tmp_path: Path,
) -> None:
    """ONNX Runtime multiplies by the reciprocal of the step, rounded down: 254."""
    model = quantized_model(3, softmax=True)
    (scale,) = [t for t in model.graph.initializer if t.name.startswith("Softmax")][:1]
    scale.CopyFrom(onnx.numpy_helper.from_array(np.array(1 / 255, np.float32), scale.name))
    found = compared(model, model, tmp_path, images(4))
    (wrong,) = [layer for layer in found.layers if layer.outcome == "fault"]
    assert wrong.operators == ("Softmax",)
    assert wrong.steps > 0.6


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10_000), signed=st.booleans(), per_channel=st.booleans())
def test_a_cut_model_fed_with_its_own_integers_computes_what_it_did(
    seed: int, signed: bool, per_channel: bool
) -> None:
    model = quantized_model(seed, signed=signed, per_channel=per_channel)
    original, (feeds,) = plain(model), images(1, seed)
    (whole,) = run(cut(original, ()), [feeds])
    own = {}
    for q in original.quantizers:
        # In float32, as the runtime does it: a tie is one only there.
        units = np.rint((whole | dict(feeds))[q.source] / q.grid.scale) + q.grid.zero
        own[q.name] = np.clip(units, *q.grid.range).astype(q.grid.zero.dtype)
    (again,) = run(cut(original, own), [{**feeds, **own}])
    assert all(np.array_equal(whole[n], v) for n, v in again.items())


def test_operators_on_integers_are_the_plain_ones_between_quantizers(tmp_path: Path) -> None:
    model = quantized_model(5, per_channel=True)
    fused = changed(model, QUANTIZED_BENIGN["integer_convolution"], 0.5)
    assert fused is not None
    again = to_qdq(fused)
    assert "QLinearConv" in {n.op_type for n in fused.graph.node}
    assert "QLinearConv" not in {n.op_type for n in again.graph.node}
    assert len(quantizers(again)) == len(quantizers(model))
    (feeds,) = images(1)
    (one,), (other,) = run(fused, [feeds]), run(again, [feeds])
    assert np.array_equal(one["y"], other["y"])


def test_a_node_without_a_name_is_called_by_the_value_of_the_original() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (uint8[1,8] a, uint8[1,8] b) => (uint8[1,8] sum)
    <float s = {0.5}, uint8 z = {128}>
    { sum = com.microsoft.QLinearAdd(a, s, z, b, s, z, s, z) }
    """
    found = regions(plain(onnx.parser.parse_model(text)), ())
    assert {region.node for region in found.values()} == {"sum"}


SCALES = "<float s = {0.05}, float t = {0.03}, float a = {0.7}, float b = {1.3}, uint8 z = {128}>"
READ_TWICE = f"""
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,64] x) => (float[1,64] y, float[1,64] w) {SCALES}
{{
  q0 = QuantizeLinear(x, s, z)  d0 = DequantizeLinear(q0, s, z)
  m1 = Mul(d0, a)  q1 = QuantizeLinear(m1, t, z)  d1 = DequantizeLinear(q1, t, z)
  a1 = Add(d0, d1)  q2 = QuantizeLinear(a1, s, z)  d2 = DequantizeLinear(q2, s, z)
  m2 = Mul(d2, b)  q3 = QuantizeLinear(m2, t, z)  d3 = DequantizeLinear(q3, t, z)
  a2 = Add(d2, d3)  q4 = QuantizeLinear(a2, s, z)  y = DequantizeLinear(q4, s, z)
  m3 = Mul(d2, a)  q5 = QuantizeLinear(m3, t, z)  w = DequantizeLinear(q5, t, z)
}}
"""
"""Two additions; what is between them is read by a product and by the second addition."""


def without_rounding(model: ModelProto, name: str) -> None:
    """Leave a rounding out, but not its limits, as fusing a product with an addition does."""
    (node,) = [n for n in model.graph.node if name in n.output]
    (reader,) = [n for n in model.graph.node if name in n.input]
    scale = 0.05 if "s" in node.input else 0.03
    for word, units in (("low", -128), ("high", 127)):
        array = np.array(units * scale, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, f"{name}.{word}"))
    made = onnx.helper.make_node(
        "Clip", [node.input[0], f"{name}.low", f"{name}.high"], list(reader.output)
    )
    reader.CopyFrom(made)
    model.graph.node.remove(node)


@pytest.mark.parametrize("wrong", [False, True])
def test_parts_that_share_hidden_tensors_are_explained_each_for_itself(wrong: bool) -> None:
    """What is tried for the longer part must not stand in the way of the shorter one."""
    ours = plain(onnx.parser.parse_model(READ_TWICE))
    made = onnx.parser.parse_model(READ_TWICE)
    without_rounding(made, "q1")
    without_rounding(made, "q3")
    if wrong:
        (factor,) = [t for t in made.graph.initializer if t.name == "b"]
        factor.CopyFrom(onnx.numpy_helper.from_array(np.array(1.2, np.float32), "b"))
    made.graph.output.extend(ValueInfoProto(name=n) for n in ("q4", "q5"))
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(0, 1, (1, 64)).astype(np.float32)} for _ in range(3)]
    grids = {q.name: q.grid for q in ours.quantizers if q.name in ("q4", "q5")}
    inner = [
        InnerValues({n: v[n] for n in grids}, {n: v[n] for n in "yw"}) for v in run(made, feeds)
    ]
    matches = match(ours, run, feeds[0], inner[0], grids, named=True)
    answer = check(ours, run, feeds, inner, matches, Noise(measured=False))
    found = {layer.name: (layer.outcome, set(layer.skipped)) for layer in answer.layers}
    assert found["q5"] == ("skipped", {"q1"})
    if wrong:
        assert found["q4"][0] not in ("sound", "skipped")
    else:
        assert found["q4"] == ("skipped", {"q1", "q3"})


def test_a_tensor_stands_for_the_quantizer_that_it_fits_best() -> None:
    """Most values are positive, so that the Relu hardly shows; both have one scale."""
    text = f"""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[1,64] x) => (float[1,64] y) {SCALES}
    {{
      m = Mul(x, a)  p = QuantizeLinear(m, s, z)  d = DequantizeLinear(p, s, z)
      r = Relu(d)  q = QuantizeLinear(r, s, z)  y = DequantizeLinear(q, s, z)
    }}
    """
    ours = plain(onnx.parser.parse_model(text))
    feeds = {"x": np.linspace(-1, 4, 64, dtype=np.float32).reshape(1, 64)}
    (values,) = run(cut(ours, ()), [feeds])
    (grid,) = (q.grid for q in ours.quantizers if q.name == "p")
    seen = np.rint(grid.unrounded_steps(values["m"])).astype(np.uint8)
    inner = InnerValues({"of another name": seen}, {})
    assert set(match(ours, run, feeds, inner, {"of another name": grid})) == {"p"}
