"""Which nodes must keep their precision: on small networks with one fault of a half type each."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import optvet
from optvet import PrecisionResult
from optvet.engine.discovery import Plugins
from optvet.engine.precision.suspects import suspects
from optvet.engine.work.trials.inference import RuntimeConfig

pytest.importorskip("onnxruntime", reason="needs optvet[onnxruntime]")

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
OVERFLOW = (
    HEAD
    + """g (float[1,8] x) => (float[1,8] y)
<float big = {2000}>
{ a = Tanh(x)  b = Mul(a, big)  c = Mul(b, b)  d = Sqrt(c)  e = Div(d, big)  y = Add(e, a) }"""
)
"""The square of 2,000 is beyond float16."""
EPSILON = (
    HEAD
    + """g (float[1,8] x) => (float[1,8] y)
<float eps = {0.000000001}, float tiny = {0.00001}, float scale = {0.00003}>
{ a = Tanh(x)  b = Mul(a, tiny)  c = Mul(b, b)  d = Add(c, eps)  e = Sqrt(d)  y = Div(e, scale) }"""
)
ABSORBED = (
    HEAD
    + """g (float[1,8] x) => (float[1,8] y)
<float offset = {3000}>
{ a = Tanh(x)  b = Add(a, offset)  c = Sub(b, offset)  y = Relu(c) }"""
)
SOUND = HEAD + "g (float[1,8] x) => (float[1,8] y) { a = Tanh(x)  y = Relu(a) }"
HOPELESS = HEAD + "g (float[1,8] x) => (float[1,8] y) { a = RandomNormalLike(x)  y = Add(a, x) }"
DETECTOR = (
    HEAD
    + """g (float[1,3,32] image) => (float[1,7,32] pred)
<float[4,3,1] k, float size = {600}, float[3,3,1] c>
{ b = Conv(image, k)  box = Sigmoid(b)  pixels = Mul(box, size)
  s = Conv(image, c)  scores = Sigmoid(s)  pred = Concat<axis = 1>(pixels, scores) }"""
)
"""Boxes of up to 600 pixels and scores below 1 in one tensor: int8 makes each score 0."""
FEEDS = [{"x": np.linspace(-2, 2, 8, dtype=np.float32)[None] + i / 7} for i in range(3)]


def precision(text: str, tmp_path: Path, **options: object) -> PrecisionResult:
    model = onnx.parser.parse_model(text)
    options = {"cache_dir": tmp_path / "cache", "jobs": 1, "dataset": FEEDS, **options}
    return optvet.precision(model, **options)  # type: ignore[arg-type]


def kept(result: PrecisionResult) -> set[str]:
    return {part.name for part in result.kept}


@pytest.mark.parametrize(
    ("text", "names", "says"),
    [
        (OVERFLOW, {"Mul_1", "Sqrt_0"}, "beyond 65,504"),
        (EPSILON, {"Mul_1", "Add_0", "Sqrt_0"}, "become 0"),
        (ABSORBED, {"Add_0", "Sub_0"}, "changes nothing"),
    ],
    ids=["overflow", "epsilon", "absorption"],
)
def test_a_planted_fault_is_found_and_explained(
    text: str, names: set[str], says: str, tmp_path: Path
) -> None:
    result = precision(text, tmp_path)
    assert result.verdict == "found"
    assert kept(result) == names
    assert result.minimal
    assert result.emulated, "the runtime of these tests computes float16 in float32"
    assert says in " ".join(part.reason for part in result.kept)
    assert all(r.met for r in result.chosen)
    assert not all(r.met for r in result.whole)
    for part in result.kept:
        assert not all(r.met for r in part.without), part.name


@pytest.mark.long
def test_a_runtime_that_rounds_each_value_gives_the_same_list(tmp_path: Path) -> None:
    emulated = precision(OVERFLOW, tmp_path)
    native = precision(OVERFLOW, tmp_path, runtime="onnx_reference")
    assert emulated.emulated
    assert not native.emulated
    assert kept(native) == kept(emulated)


def test_bfloat16_has_the_range_and_lacks_the_digits(tmp_path: Path) -> None:
    assert precision(OVERFLOW, tmp_path, to="bf16").verdict == "nothing-to-keep"
    absorbed = precision(ABSORBED, tmp_path, to="bf16")
    assert kept(absorbed) == {"Add_0", "Sub_0"}


@pytest.mark.long
def test_the_list_is_as_short_as_the_shortest_of_all(tmp_path: Path) -> None:
    result = precision(OVERFLOW, tmp_path, rank=True)
    names = [part.name for part in result.ranking]
    assert len(names) == result.parts == 6
    for size in range(len(result.kept)):
        for few in itertools.combinations(names, size):
            shorter = precision(OVERFLOW, tmp_path, keep=few) if few else result
            if few:
                assert shorter.verdict == "unmet", few
                assert not all(r.met for r in shorter.chosen)


def test_nothing_is_kept_where_nothing_has_to_be(tmp_path: Path) -> None:
    result = precision(SOUND, tmp_path)
    assert (result.verdict, result.kept) == ("nothing-to-keep", [])
    assert result.whole[0].met
    assert "all 2 can be converted" in result.headline()


def test_no_list_helps_where_the_requirement_is_beyond_reach(tmp_path: Path) -> None:
    result = precision(SOUND, tmp_path, require="max_change>=1")
    assert result.verdict in ("unmet", "undecided")
    assert result.kept == []


def test_a_list_of_all_nodes_converts_nothing_and_says_so(tmp_path: Path) -> None:
    result = precision(SOUND, tmp_path, require="max_change<=0")
    assert result.verdict == "unmet"
    assert len(result.kept) == result.parts == 2
    assert "nothing is converted" in result.reason


def test_an_original_that_does_not_repeat_itself_is_undecided(tmp_path: Path) -> None:
    result = precision(HOPELESS, tmp_path)
    assert result.verdict == "undecided"


def detector() -> tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]:
    model, rng = onnx.parser.parse_model(DETECTOR), np.random.default_rng(0)
    for name, shape in (("k", (4, 3, 1)), ("c", (3, 3, 1))):
        weights = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    return model, [{"image": rng.normal(size=(1, 3, 32)).astype(np.float32)} for _ in range(3)]


def test_each_part_of_an_output_counts(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime.quantization")
    model, feeds = detector()
    options = {"to": "int8", "cache_dir": tmp_path / "cache", "jobs": 1, "dataset": feeds}
    result = optvet.precision(model, **options)  # type: ignore[arg-type]
    assert (result.verdict, kept(result)) == ("found", {"Concat_0"})
    (concat,) = result.kept
    assert "max_change is " in concat.reason
    assert "pred[:, 4:7] became constant: 0 where it was" in concat.reason
    boxes = optvet.precision(model, require="pred[:, :4]:max_change<=0.1", **options)  # type: ignore[arg-type]
    assert boxes.verdict == "nothing-to-keep"
    assert "pred[:, 4:7] became constant" in " ".join(r.detail for r in boxes.whole)


@pytest.mark.long
def test_any_requirement_bounds_the_search(tmp_path: Path) -> None:
    loose = precision(ABSORBED, tmp_path, require="max_change<=0.9")
    tight = precision(ABSORBED, tmp_path, atol=1e-6)
    assert loose.verdict == "nothing-to-keep" or len(loose.kept) <= 2
    assert len(tight.kept) > 2


def test_a_search_that_may_try_no_more_says_so(tmp_path: Path) -> None:
    result = precision(EPSILON, tmp_path, max_trials=4)
    assert result.trials <= 4
    if result.verdict == "undecided":
        assert "no shorter one was found" in result.reason
        assert result.kept == []
    else:
        assert result.verdict == "found"
        assert 3 <= len(result.kept) < result.parts


def test_groups_are_kept_whole(tmp_path: Path) -> None:
    result = precision(OVERFLOW, tmp_path, optimizer_options={"by": "operator"})
    assert kept(result) == {"Mul", "Sqrt"}
    assert {part.name: part.nodes for part in result.kept} == {"Mul": 2, "Sqrt": 1}
    assert "op_block_list" in result.recipes


def test_what_is_pasted_makes_the_mixed_model(tmp_path: Path) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    out = tmp_path / "mixed.onnx"
    result = precision(OVERFLOW, tmp_path, out=out)
    model = onnx.parser.parse_model(OVERFLOW)
    counts: dict[str, int] = {}
    for node in model.graph.node:
        node.name = f"{node.op_type}_{counts.setdefault(node.op_type, 0)}"
        counts[node.op_type] += 1
    listed = eval(result.recipes["node_block_list"])
    half = convert_float_to_float16(model, keep_io_types=True, node_block_list=listed)
    pasted = OnnxModel(half)
    pasted.topological_sort()
    pasted.remove_cascaded_cast_nodes()
    mixed = onnx.load(out)
    for each in (mixed, pasted.model):
        onnx.checker.check_model(each, full_check=True)
    assert sorted(n.op_type for n in mixed.graph.node if n.op_type != "Cast") == sorted(
        n.op_type for n in pasted.model.graph.node if n.op_type != "Cast"
    )
    assert result.files == [str(out), str(tmp_path / "precision.toml")]
    assert result.mixed_size_bytes == out.stat().st_size


def test_values_that_cannot_be_observed_leave_what_the_graph_says() -> None:
    plugins = Plugins()
    runtime = plugins.reference_runtime()
    config = RuntimeConfig(runtime, runtime.options)
    data = onnx.parser.parse_model(
        HEAD + "g (float[4] x) => (float[4] y) <float m = {-1000000000}> { y = Mul(x, m) }"
    ).SerializeToString()
    found = suspects(data, [], config, "fp16")
    assert [s.kind for s in found["Mul_0"]] == ["constant"]
    assert suspects(data, [], config, "int8") == {}
