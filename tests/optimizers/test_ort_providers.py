"""Execution providers as programs under test: cut models compute the same."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from tests.commands import Run, run
from tests.needs import needs

needs("onnxruntime", reason="needs optvet[onnxruntime]")

from optvet_onnxruntime.cut_model import CutModel, runs_of  # noqa: E402
from optvet_onnxruntime.provider_optimizer import OrtProvider  # noqa: E402
from optvet_onnxruntime.provider_sessions import named  # noqa: E402

__all__ = ["run"]

ort: Any = pytest.importorskip("onnxruntime")

qnn = pytest.mark.skipif(
    find_spec("onnxruntime_qnn") is None, reason="needs onnxruntime-qnn, which has an emulator"
)

NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N,4] x, bool c) => (float[N,4] y, float[N,4] z, int64[2] s)
<float[4,4] W = {1,2,0,-1, 0,1,1,0, -2,0,1,1, 1,1,0,0.5}, float[4] b = {0.5,-1,0,2}>
{
   half = Constant<value = float {0.5}>()
   a = MatMul(x, W)
   d = Add(a, b)
   e = Relu(d)
   t = If(c) <then_branch = yes () => (float[N,4] u) { u = Mul(e, half) },
              else_branch = no () => (float[N,4] v) { v = Sub(e, b) }>
   y = Add(t, a)
   z = Tanh(d)
   s = Shape(y)
}"""


def session_of(data: bytes, *, on_device: bool, wrong: str = "") -> Any:
    """A session on the CPU; on the "device" with 1 added to what an operator gives."""
    model = onnx.load_from_string(data)
    if on_device and wrong:
        for node in [n for n in model.graph.node if n.op_type == wrong]:
            place = list(model.graph.node).index(node)
            output, node.output[0] = node.output[0], f"{node.output[0]}.right"
            one = numpy_helper.from_array(np.array(1, np.float32), f"{output}.one")
            model.graph.initializer.append(one)
            add = onnx.helper.make_node("Add", [node.output[0], one.name], [output], output)
            model.graph.node.insert(place + 1, add)
    given = ort.SessionOptions()
    given.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), given, ["CPUExecutionProvider"])


def feeds(rows: int, *, choice: bool) -> dict[str, np.ndarray]:
    x = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
    return {"x": x, "c": np.array(choice)}


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_model_cut_anywhere_computes_what_the_whole_computes(data: st.DataObject) -> None:
    model = named(onnx.parser.parse_model(NET).SerializeToString())
    names = [n.name for n in model.graph.node if n.op_type != "Constant"]
    chosen = data.draw(st.sets(st.sampled_from(names)))
    whole = session_of(model.SerializeToString(), on_device=False)
    cut = CutModel(model, lambda d, there: session_of(d, on_device=there), chosen)
    # Another shape is another cut of the same session.
    for fed in (feeds(3, choice=True), feeds(1, choice=False)):
        expected = dict(
            zip([o.name for o in whole.get_outputs()], whole.run(None, fed), strict=True)
        )
        for name, value in zip(expected, cut.run(None, fed), strict=True):
            np.testing.assert_array_equal(value, expected[name])


def test_what_is_computed_on_the_device_are_the_chosen_nodes_alone() -> None:
    model = named(onnx.parser.parse_model(NET).SerializeToString())
    fed = feeds(2, choice=True)
    right = session_of(model.SerializeToString(), on_device=False).run(["z"], fed)[0]

    def z_with(chosen: set[str]) -> np.ndarray:
        def make(data: bytes, on_device: bool) -> Any:
            return session_of(data, on_device=on_device, wrong="Tanh")

        (z,) = CutModel(model, make, chosen).run(["z"], fed)
        return np.asarray(z)

    names = {n.op_type: n.name for n in model.graph.node}
    np.testing.assert_array_equal(z_with({names["MatMul"], names["Add"]}), right)
    np.testing.assert_allclose(z_with({names["Tanh"]}), right + 1)


def test_runs_alternate_and_each_takes_what_it_can() -> None:
    model = named(onnx.parser.parse_model(NET).SerializeToString())
    names = {n.output[0]: n.name for n in model.graph.node}
    first, second = runs_of(model.graph, {names["a"], names["d"], names["z"]})
    assert (first[1], second[1]) == (True, False)
    assert {n.output[0] for n in first[0]} == set(first[3]) == {"a", "d", "z"}
    assert "half" in {n.output[0] for n in second[0]}  # a constant goes along


def test_the_passes_are_the_nodes_and_none_of_them_is_the_cpu() -> None:
    from optvet.plugin import Artifact

    source = Artifact("onnx", onnx.parser.parse_model(NET).SerializeToString())
    options = OrtProvider.options.model_copy(update={"by": "operator"})
    by_operator = OrtProvider("qnn").for_model(source, options)
    assert [p.name for p in by_operator.passes()] == "MatMul Add Relu If Tanh Shape".split()
    fitted = OrtProvider("qnn").for_model(source, OrtProvider.options)
    assert fitted.apply(source, (), OrtProvider.options).handle == {}
    every = fitted.apply(source, fitted.pipelines()["default"], OrtProvider.options)
    assert every.handle["nodes"] is None
    some = fitted.apply(source, [fitted.passes()[0].name], OrtProvider.options)
    assert some.handle["nodes"] == [fitted.passes()[0].name]
    assert len({a.fingerprint for a in (every, some)}) == 2


@qnn
def test_a_provider_that_rounds_is_no_fault_and_one_that_takes_nothing_was_not_tested(
    run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "net.onnx"
    onnx.save(
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        net (float[1,4] x) => (float[1,4] y)
        <float[4,4] W = {1,2,0,-1, 0,1,1,0, -2,0,1,1, 1,1,0,0.5}>
        { a = MatMul(x, W)  y = Relu(a) }"""),
        file,
    )
    done = run("vet", file, "--optimizer", "qnn", "--limit", 2, "--json", "-")
    assert done.code == 0, done.err
    assert json.loads(done.out)["verdict"] in ("clean", "drift")
    onnx.save(
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        net (string[2] x) => (string[2] y) { y = Identity(x) }"""),
        file,
    )
    none = run("vet", file, "--optimizer", "qnn", "--limit", 2)
    assert none.code == 5, (none.out, none.err)
    assert "no node of this model runs on qnn" in " ".join(none.err.split())


@qnn
def test_the_code_of_some_nodes_cuts_the_model_without_optvet(tmp_path: Path) -> None:
    from optvet.plugin import Artifact

    model = onnx.parser.parse_model(NET)
    fitted = OrtProvider("qnn").for_model(
        Artifact("onnx", model.SerializeToString()), OrtProvider.options
    )
    code = fitted.snippet([fitted.passes()[0].name, "Tanh_0"], OrtProvider.options)
    assert "optvet" not in code
    script = f"""import numpy as np
import onnx
def optimize(model):
{textwrap.indent(code, "    ")}
x = np.load("x.npy")
print(optimize(onnx.load("net.onnx")).run(["z"], {{"x": x, "c": np.array(True)}})[0].tolist())
"""
    fed = feeds(2, choice=True)
    onnx.save(model, tmp_path / "net.onnx")
    np.save(tmp_path / "x.npy", fed["x"])
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    right = session_of(model.SerializeToString(), on_device=False).run(["z"], fed)[0]
    found = json.loads(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(found, right, atol=1e-5)
