"""What another chain computes takes the place of what no template knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.engine.repair.shelf import Pack, Unpack
from tests.needs import needs

from optvet.engine.discovery import Plugins
from optvet.engine.repair.run import repair_model
from optvet.engine.work.sandbox import keep_servers
from optvet.plugin import Artifact
from optvet.spec.repair import RepairRequest

needs("sklearn", reason="needs optvet[estimators]")

SOURCE = """
import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32) * 3
example_inputs = (X[:20],)


class Spread(TransformerMixin, BaseEstimator):
    def fit(self, x, y=None):
        self.mix_ = np.float32([[1, -2], [0.5, 1], [3, 0.25]])
        return self

    def transform(self, x):
        h = x @ self.mix_
        return h / np.sqrt(1 + h * h)


def source():
    return make_pipeline(StandardScaler(), Spread()).fit(X)
"""
HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
MODEL = """g (float[n, 3] x) => (float[n, 2] y)
<float[3] middle = {{{middle}}}, float[3] scale = {{{scale}}},
 float[3, 2] mix = {{1, -2, 0.5, 1, 3, 0.25}}, float one = {{1}}> {{
    c = Sub(x, middle)  s = Div(c, scale)  {spread}
}}"""
RIGHT = "h = MatMul(s, mix)  q = Mul(h, h)  a = Add(one, q)  r = Sqrt(a)  y = Div(h, r)"
WRONG = "h = MatMul(s, mix)  y = Tanh(h)"


def model_text(spread: str) -> str:
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32) * 3
    numbers = {
        "middle": ", ".join(f"{v:.9g}" for v in x.mean(0, dtype=np.float64)),
        "scale": ", ".join(f"{v:.9g}" for v in x.std(0, dtype=np.float64)),
    }
    return HEAD + MODEL.format(spread=spread, **numbers)


@pytest.mark.long
@pytest.mark.parametrize("by_chain", [True, False])
def test_a_region_of_another_chain_mends_what_no_template_knows(
    tmp_path: Path, by_chain: bool
) -> None:
    keep_servers()
    (tmp_path / "net.py").write_text(SOURCE)
    (tmp_path / "net.txt").write_text(model_text(RIGHT))
    onnx.save(onnx.parser.parse_model(model_text(WRONG)), tmp_path / "wrong.onnx")
    plugins = Plugins()
    if by_chain:  # skl2onnx refuses the step, since it does not know it.
        plugins = plugins.register("converter", Pack()).register("converter", Unpack())
    request = RepairRequest(
        model=f"{tmp_path / 'net.py'}:source",
        converted=tmp_path / "wrong.onnx",
        out=tmp_path / "repaired",
    )
    result = repair_model(request, plugins)
    assert result.places[0].operator == "Spread"
    if not by_chain:
        assert result.verdict == "not-repaired"
        return
    assert (result.verdict, [e.kind for e in result.edits]) == ("repaired", ["region"])
    assert "as by shelf_pack,shelf_unpack: " in result.edits[0].about
    x = np.random.default_rng(9).normal(size=(7, 3)).astype(np.float32)
    runtime = Plugins().reference_runtime()
    outputs = []
    for made in (
        onnx.parser.parse_model(model_text(RIGHT)),
        onnx.load(tmp_path / "repaired" / "repaired.onnx"),
    ):
        session = runtime.load(Artifact("onnx", made.SerializeToString()), runtime.options)
        outputs.append(session.run({"x": x})["y"])
    assert outputs[1] == pytest.approx(outputs[0], abs=1e-6)
