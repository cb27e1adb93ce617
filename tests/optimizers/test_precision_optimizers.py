"""Optimizers whose passes are the nodes of a model: converters to float16, and quantizers."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import types
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.parser
import pytest

import optvet
from optvet.engine.discovery import Plugins
from optvet.engine.options import parse_options
from optvet.engine.work.trials.calibration import write_inputs
from optvet.plugin import Artifact, LowersPrecision, Optimizer, Unsupported, UsageError
from optvet.spec.extras import extras
from optvet.spec.optimizer_protocols import OptimizerExtras
from optvet.spec.records.verified import function_of

onnxruntime = pytest.importorskip("onnxruntime", reason="needs optvet[onnxruntime]")

HALF = ["ort_fp16", "onnxconverter_fp16", "autocast_fp16"]
QUANTIZERS = ["ort_static_quantizer", "ort_dynamic_quantizer", "ort_matmul_4bits"]
HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
TEXT = (
    HEAD
    + """g (float[2,32] x) => (float[2,4] y)
<float[32,32] w, float[32,4] v>
{ a = MatMul(x, w)  b = Relu(a)  c = MatMul(b, w)  d = Softmax(c)  y = MatMul(d, v) }"""
)


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return Plugins()


@pytest.fixture
def model() -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT)
    del model.graph.value_info[:]  # it has the weights, which the text cannot give values
    rng = np.random.default_rng(0)
    for name, shape in (("w", (32, 32)), ("v", (32, 4))):
        value = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


def fitted(plugins: Plugins, name: str, model: onnx.ModelProto, **options: object) -> Optimizer:
    if name == "onnxconverter_fp16" and find_spec("onnxconverter_common") is None:
        pytest.skip("needs optvet[half]")
    if name == "autocast_fp16" and find_spec("modelopt") is None:
        pytest.skip("needs optvet[autocast]")
    optimizer = plugins.optimizer(name)
    source = Artifact("onnx", model.SerializeToString())
    return extras(optimizer, OptimizerExtras).for_model(
        source, parse_options(name, optimizer.options, options)
    )


def applied(
    optimizer: Optimizer, model: onnx.ModelProto, passes: list[str], **options: object
) -> onnx.ModelProto:
    source = Artifact("onnx", model.SerializeToString())
    chosen = parse_options(optimizer.name, optimizer.options, options)
    return onnx.load_from_string(optimizer.apply(source, passes, chosen).data)


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize("name", HALF)
def test_exactly_the_nodes_of_the_passes_become_half(
    name: str, plugins: Plugins, model: onnx.ModelProto
) -> None:
    optimizer = fitted(plugins, name, model)
    names = [p.name for p in optimizer.passes()]
    assert names == ["MatMul_0", "Relu_0", "MatMul_1", "Softmax_0", "MatMul_2"]
    half = applied(optimizer, model, ["Softmax_0"])
    onnx.checker.check_model(half, full_check=True)
    if name == "ort_fp16":  # the other rounds all weights
        assert not [t for t in half.graph.initializer if t.data_type == onnx.TensorProto.FLOAT16]
    whole = applied(optimizer, model, names)
    onnx.checker.check_model(whole, full_check=True)
    assert all(t.data_type == onnx.TensorProto.FLOAT16 for t in whole.graph.initializer)
    plain = applied(optimizer, model, [])
    assert [n.op_type for n in plain.graph.node] == [n.op_type for n in model.graph.node]


@pytest.mark.parametrize("name", HALF)
def test_an_emulated_model_has_no_half_values_between_its_nodes(
    name: str, plugins: Plugins, model: onnx.ModelProto
) -> None:
    optimizer = fitted(plugins, name, model)
    names = [p.name for p in optimizer.passes()]
    x = np.random.default_rng(1).normal(size=(2, 32)).astype(np.float32)
    emulated = applied(optimizer, model, names, emulated=True)
    onnx.checker.check_model(emulated, full_check=True)
    error = np.abs(run(emulated, x) - run(model, x)).max() / np.abs(run(model, x)).max()
    assert 1e-5 < error < 1e-2


@pytest.mark.parametrize("name", QUANTIZERS)
def test_exactly_the_nodes_of_the_passes_are_quantized(
    name: str, plugins: Plugins, model: onnx.ModelProto, tmp_path: Path
) -> None:
    if name == "ort_matmul_4bits":
        pytest.importorskip("onnx_ir", reason="its quantizer needs onnx_ir: optvet[onnxscript]")
    x = np.random.default_rng(1).normal(size=(2, 32)).astype(np.float32)
    file = write_inputs(tmp_path, [{"x": x}])
    options = {}
    if name == "ort_static_quantizer":
        options = {"inputs": str(file)}
    optimizer = fitted(plugins, name, model, **options)
    names = [p.name for p in optimizer.passes() if p.name.startswith("MatMul")]
    assert names == ["MatMul_0", "MatMul_1", "MatMul_2"]
    one = applied(optimizer, model, ["MatMul_0"], **options)
    every = applied(optimizer, model, names, **options)
    expected = run(model, x)
    errors = [np.abs(run(each, x) - expected).max() for each in (one, every)]
    assert 0 < errors[0]
    assert 0 < errors[1]
    plain = [n.name for n in one.graph.node if n.op_type == "MatMul"]
    assert {"MatMul_1", "MatMul_2"} <= set(plain)
    again = applied(optimizer, model, ["MatMul_0"], **options)
    assert again.SerializeToString() == one.SerializeToString()
    assert isinstance(optimizer, LowersPrecision)
    source = Artifact("onnx", model.SerializeToString())
    recipes = optimizer.recipes(source, ["MatMul_1"], optimizer.options)
    assert recipes == {"nodes_to_exclude": "['MatMul_1']"}


@pytest.mark.parametrize("name", ["ort_fp16", "ort_bf16"])
def test_lists_for_other_tools_name_exactly_the_kept_nodes(name: str, plugins: Plugins) -> None:
    text = (
        "g (float[4] x) => (float[4] y) { a = Exp(x)  b = Mul(a, a)  c = Mul(b, b)  y = Tanh(c) }"
    )
    model = onnx.parser.parse_model(HEAD + text)
    names = ["net/a.b", "net/a_b", "net/a_b2", "it's (1)"]
    for node, node_name in zip(model.graph.node, names, strict=True):
        node.name = node_name
    optimizer = fitted(plugins, name, model)
    assert isinstance(optimizer, LowersPrecision)
    source, kept = Artifact("onnx", model.SerializeToString()), [names[0], names[3]]
    recipes = optimizer.recipes(source, kept, optimizer.options)
    words = shlex.split(recipes["autocast"])
    patterns = words[words.index("--nodes_to_exclude") + 1 :]
    assert words[words.index("--low_precision_type") + 1] == optimizer.precision
    # ModelOpt's NodeClassifier calls re.match.
    assert [n for n in names if any(re.match(p, n) for p in patterns)] == kept
    assert layers_kept_by(recipes["polygraphy"], names) == kept
    assert (
        layers_kept_by(optimizer.recipes(source, [], optimizer.options)["polygraphy"], names) == []
    )


def layers_kept_by(script: str, names: list[str]) -> list[str]:
    """Layers that the script sets to float32, of a network in place of TensorRT's."""
    float32, module = object(), types.ModuleType("tensorrt")
    module.__dict__["float32"] = float32

    class Layer:
        num_outputs, precision = 1, None

        def __init__(self, name: str, metadata: str) -> None:
            self.name, self.metadata, self.outputs = name, metadata, dict[int, object]()

        def get_output(self, index: int) -> types.SimpleNamespace:
            return types.SimpleNamespace(dtype=float32)

        def set_output_type(self, index: int, kind: object) -> None:
            self.outputs[index] = kind

    layers = [Layer(n if i else f"{n}_cast", f"[ONNX Layer: {n}]") for i, n in enumerate(names)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tensorrt", module)
        space: dict[str, Any] = {}
        exec(compile(script, "postprocess.py", "exec"), space)  # what is tested
        space["postprocess"](network=layers)
    chosen = [layer for layer in layers if layer.precision is float32]
    assert all(layer.outputs == {0: float32} for layer in chosen)
    return [names[layers.index(layer)] for layer in chosen]


@pytest.mark.parametrize(
    ("content", "words"), [(b"garbage", "it is no .npz file"), (None, "array 'x' is not named")]
)
def test_a_file_of_inputs_that_is_none_is_a_usage_error(
    content: bytes | None, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "inputs.npz"
    if content is None:
        np.savez(file, x=np.zeros(1))
    else:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=words):
        optvet.vet(
            "zoo:digits-cnn",
            optimizer="ort_static_quantizer",
            optimizer_options={"inputs": str(file)},
        )


def test_ranges_need_inputs(plugins: Plugins, model: onnx.ModelProto) -> None:
    optimizer = fitted(plugins, "ort_static_quantizer", model)
    with pytest.raises(Unsupported, match="needs inputs"):
        applied(optimizer, model, ["MatMul_0"])


def test_the_layer_that_must_not_be_quantized_is_found(tmp_path: Path) -> None:
    """One column of the weights is 1,000 times larger: one scale leaves the others nothing."""
    model = onnx.parser.parse_model(
        HEAD
        + """g (float[1,16] x) => (float[1,8] y)
<float[16,16] w, float[16,8] v>
{ a = MatMul(x, w)  b = Tanh(a)  y = MatMul(b, v) }"""
    )
    rng = np.random.default_rng(0)
    w, v = rng.normal(size=(16, 16)) / 10, rng.normal(size=(16, 8))
    w[:, 0] *= 1000
    for name, value in (("w", w), ("v", v)):
        tensor = onnx.numpy_helper.from_array(value.astype(np.float32), name)
        model.graph.initializer.append(tensor)
    feeds = [{"x": rng.normal(size=(1, 16)).astype(np.float32)} for _ in range(8)]
    result = optvet.precision(
        model, dataset=feeds, to="int8", rank=True, jobs=1, cache_dir=tmp_path
    )
    assert [part.name for part in result.kept] == ["MatMul_0"]
    assert result.ranking[0].name == "MatMul_0"
    assert not result.emulated
    assert result.recipes == {"nodes_to_exclude": "['MatMul_0']"}


@pytest.mark.long
def test_vet_measures_ranges_on_the_samples_and_its_bundles_carry_them(tmp_path: Path) -> None:
    cache, moved = tmp_path / "cache", tmp_path / "moved"
    result = optvet.vet(
        "zoo:digits-cnn",
        optimizer="ort_static_quantizer",
        pipeline=["Conv_0"],
        require=["max_change<=0.001"],
        out=tmp_path / "out",
        jobs=1,
        cache_dir=cache,
    )
    assert result.verdict == "faulty"
    (tmp_path / "out").rename(moved)
    shutil.rmtree(cache)
    bundles = sorted(moved.iterdir())
    assert bundles
    assert {optvet.replay(bundle).outcome for bundle in bundles} == {"still there"}


@pytest.mark.long
def test_a_file_of_inputs_that_changes_is_measured_again(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    file, sizes = tmp_path / "inputs.npz", []
    for scale in (0.01, 1.0):
        arrays = {"0/image": scale * rng.random((8, 1, 8, 8), dtype=np.float32)}
        np.savez(file, **arrays)  # type: ignore[arg-type]  # names of arrays, no other keyword
        result = optvet.vet(
            "zoo:digits-cnn",
            optimizer="ort_static_quantizer",
            optimizer_options={"inputs": str(file)},
            pipeline=["Conv_0"],
            require=["max_change<=1e-9"],
            jobs=1,
            cache_dir=tmp_path / "cache",
        )
        sizes.append(next(f.measured for f in result.findings if f.measured is not None))
    assert sizes[0] != sizes[1]


_UNNAMED = (
    HEAD
    + """maskcast (int64[2,6] ids, float[2,6,4] h) => (float[2,4] y)
<int64 pad = {0}, int64[1] ax = {2}, int64[1] ax1 = {1}, float[4,4] w =
{1.5,-2,0.5,1,0.25,3,-1,2,1,0.125,-0.5,1,2,-1,0.75,1}>
{ e = Equal(ids, pad)  k = Not(e)  kf = Cast<to = 1>(k)  ku = Unsqueeze(kf, ax)  hm = Mul(h, ku)
  total = ReduceSum<keepdims = 0>(hm, ax1)  count = ReduceSum<keepdims = 0>(ku, ax1)
  pool = Div(total, count)  y = MatMul(pool, w) }"""
)
"""No node has a name: those that an answer speaks of are optvet's."""


@pytest.mark.parametrize("name", ["onnxconverter_fp16", "ort_fp16", "ort_dynamic_quantizer"])
def test_pasted_code_keeps_unnamed_nodes_in_a_process_without_optvet(
    name: str, plugins: Plugins, tmp_path: Path
) -> None:
    model = onnx.parser.parse_model(_UNNAMED)
    onnx.save(model, tmp_path / "model.onnx")
    optimizer = fitted(plugins, name, model)
    options = parse_options(name, optimizer.options, {})
    every = [p.name for p in optimizer.passes()]
    left_out = {"Cast_0", "Mul_0", "MatMul_0"}
    passes = [p for p in every if p not in left_out] or every
    if name == "onnxconverter_fp16":
        passes = [p for p in every if p != "Cast_0"]  # what a vet of this model verifies
    code = function_of(extras(optimizer, OptimizerExtras).snippet(passes, options))
    script = tmp_path / "script.py"
    paths = [p for p in sys.path if p and (Path(p) / "onnx").is_dir()]
    script.write_text(
        f"import sys\nsys.path += {paths!r}\nimport onnx\n{code}\n"
        f"onnx.save(optimize(onnx.load({str(tmp_path / 'model.onnx')!r})), "
        f"{str(tmp_path / 'made.onnx')!r})\n"
        "assert not any(name.startswith('optvet') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-I", str(script)], check=True, cwd=tmp_path)
    feeds = {
        "ids": np.array([[1, 2, 3, 0, 0, 0], [4, 5, 6, 7, 0, 0]], np.int64),
        "h": np.random.default_rng(0).normal(size=(2, 6, 4)).astype(np.float32),
    }
    exact = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    got = onnxruntime.InferenceSession(str(tmp_path / "made.onnx")).run(None, feeds)[0]
    np.testing.assert_allclose(got, exact, rtol=0.05, atol=0.05)
    judged = applied(optimizer, model, passes)
    same = onnxruntime.InferenceSession(judged.SerializeToString()).run(None, feeds)[0]
    np.testing.assert_array_equal(got, same)
