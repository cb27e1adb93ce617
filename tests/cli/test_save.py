"""``--save``: what is written is right as it lies there, and what is not right is not written."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.commands import WRITER, Run

onnxruntime = pytest.importorskip("onnxruntime", reason="needs optvet[onnxruntime]")

_FUSED_AGAIN = """<ir_version: 8, opset_import: ["" : 17]>
norm (float[4,4] x) => (float[4,4] y)
<float two = {2}, float eps = {1e-05}, float[4] g = {-1.8786819,-0.7904911,1.7142406,-0.156328}>
{
   m = ReduceMean <axes = [-1], keepdims = 0> (x)
   d = Sub (x, m)
   p = Pow (d, two)
   v = ReduceMean <axes = [-1], keepdims = 0> (p)
   ve = Add (v, eps)
   s = Sqrt (ve)
   q = Div (d, s)
   y = Mul (q, g)
}"""
"""ONNX Runtime takes this for a normalization over the last axis, in every default session."""


def saved(run: Run, *arguments: object, code: int) -> dict[str, Any]:
    done = run("vet", *arguments, "--json", "-")
    assert done.code == code, done.err
    found: dict[str, Any] = json.loads(done.out)["saved"]
    return found


def outputs(path: Path, **feeds: np.ndarray) -> list[np.ndarray]:
    """What a plain user gets of the file."""
    found: list[np.ndarray] = onnxruntime.InferenceSession(str(path)).run(None, feeds)
    return found


def test_the_verified_model_is_written_with_its_digest_and_how_to_make_it_again(
    run: Run, faulty: Path, tmp_path: Path
) -> None:
    target = tmp_path / "safe.onnx"
    told = saved(run, faulty, "--save", target, code=1)
    assert told["path"] == str(target)
    assert told["digest"] == hashlib.sha256(target.read_bytes()).hexdigest()
    model = onnx.load(faulty)
    feeds = {
        v.name: np.random.default_rng(0)
        .normal(size=[d.dim_value or 1 for d in v.type.tensor_type.shape.dim])
        .astype(np.float32)
        for v in model.graph.input
    }
    for ours, theirs in zip(outputs(target, **feeds), outputs(faulty, **feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    scope: dict[str, Any] = {}
    body = "\n".join(f"    {line}" for line in told["code"].splitlines())
    exec(f"def optimize(model):\n{body}", scope)
    assert scope["optimize"](model).graph == onnx.load(target).graph
    shown = run("vet", faulty, "--save", target)
    lines = shown.out.splitlines()
    assert lines.index(next(x for x in lines if x.startswith("verified"))) < 4
    assert any(line.startswith(f"saved     {target}, ") for line in lines)
    assert any(line.startswith("again     optvet vet") for line in lines)


def test_no_code_takes_a_model_that_is_no_message(
    run: Run, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def code() -> str:
        return str(json.loads(run("vet", clean, "--no-cache", "--json", "-").out)["safe_code"])

    assert "onnxoptimizer.optimize(model" in code()
    monkeypatch.setattr("optvet.engine.models.large.PROTOBUF_LIMIT", 10)
    assert code() == ""


def test_weights_lie_beside_the_model_where_they_do_in_the_original(
    run: Run, clean: Path, tmp_path: Path
) -> None:
    model = onnx.load(clean)
    big = np.random.default_rng(0).normal(size=(512,)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(big, "big"))
    model.graph.node.add(op_type="Identity", input=["big"], output=["kept"])
    model.graph.output.append(onnx.helper.make_tensor_value_info("kept", 1, [512]))
    source = tmp_path / "in" / "model.onnx"
    source.parent.mkdir()
    onnx.save(model, source, save_as_external_data=True, location="weights", size_threshold=64)
    target = tmp_path / "safe.onnx"
    told = saved(run, source, "--save", target, code=0)
    (beside,) = told["beside"]
    assert beside["path"] == f"{target}.data"
    assert beside["digest"] == hashlib.sha256(Path(beside["path"]).read_bytes()).hexdigest()
    assert any(
        t.external_data for t in onnx.load(target, load_external_data=False).graph.initializer
    )
    assert {p.name for p in tmp_path.glob("*safe*")} == {"safe.onnx", "safe.onnx.data"}


def test_a_model_that_a_default_session_breaks_again_is_not_left_behind(
    run: Run, tmp_path: Path
) -> None:
    source = tmp_path / "norm.onnx"
    onnx.save(onnx.parser.parse_model(_FUSED_AGAIN), source)
    x = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    exact = onnxruntime.InferenceSession(str(source), options).run(None, {"x": x})[0]
    if np.abs(outputs(source, x=x)[0] - exact).max() < 0.1:
        pytest.skip("this release of ONNX Runtime does not fuse it wrongly")
    target = tmp_path / "safe.onnx"
    told = saved(run, source, "--optimizer", "onnxruntime", "--save", target, code=1)
    assert told["path"] == ""
    assert "with its defaults it shows wrong-output" in told["reason"]
    assert not list(tmp_path.glob("*safe*"))
    # The optimizer keeps the model intact, but what it makes is wrong as users run it.
    kept = tmp_path / "kept.onnx"
    told = saved(run, source, "--pipeline", "eliminate_identity", "--save", kept, code=1)
    assert told["path"] == ""
    assert not kept.exists()


@pytest.mark.parametrize("which", ["input", "weights", "link", "folder", "several", "-"])
def test_a_target_that_would_lose_something_is_refused_before_the_work(
    which: str, run: Run, faulty: Path, tmp_path: Path
) -> None:
    source, models = tmp_path / "model.onnx", [tmp_path / "model.onnx"]
    model = onnx.parser.parse_model(WRITER)
    for name, value in (("e", np.ones((3, 2))), ("w", np.ones((2, 3)))):
        weight = next(t for t in model.graph.initializer if t.name == name)
        weight.CopyFrom(onnx.numpy_helper.from_array(value.astype(np.float32), name))
    onnx.save(model, source, save_as_external_data=True, location="w.onnx.data", size_threshold=0)
    target: Path | str = tmp_path / "safe.onnx"
    if which == "input":
        target = source
    elif which == "weights":
        target = tmp_path / "w.onnx"
    elif which == "link":
        Path(target).symlink_to(faulty)
    elif which == "folder":
        Path(target).mkdir()
    elif which == "several":
        models.append(faulty)
    else:
        target = "-"
    before = {p: p.read_bytes() for p in tmp_path.glob("*") if p.is_file()}
    done = run("vet", *models, "--save", target)
    assert done.code == 2, done.out
    assert "--save" in done.err
    assert {p: p.read_bytes() for p in tmp_path.glob("*") if p.is_file()} == before
