"""What a node lost, against the same operator of an ONNX source, is named and put back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from optvet.engine.discovery import Plugins
from optvet.engine.repair.run import repair_model
from optvet.engine.work.sandbox import keep_servers
from optvet.spec.records.repair import RepairResult
from optvet.spec.repair import RepairRequest

HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'
CLIP = (
    HEAD
    + """g (float[3, 2] x, float[1, 2] b) => (float[3, 2] y)
<float low = {-0.5}, float high = {0.4}, float[2, 2] w = {1, -1, 0.5, 2}> {
    m = MatMul(x, w)
    c = Clip(m, low, high)
    y = Add(c, b)
}"""
)
GRU = (
    HEAD
    + """g (float[5, 3, 1] x, float[3, 2] h) => (float[1, 3, 2] y)
<float[1, 6, 1] w = {1, 2, -1, 0.5, 0.3, -2}, float[1, 6, 2] r = {1, 0.2, -1, 0.5, 0.3, -2, 1, 2,
    -0.1, 0.5, 0.7, -1}, int64[1] zero = {0}, float two = {2}> {
    t = Mul(h, two)
    u = Unsqueeze(t, zero)
    s, y = GRU <hidden_size = 2> (x, w, r, "", "", u)
}""".replace('""', "")
)
LSTM = (
    HEAD
    + """g (float[5, 3, 1] x) => (float[1, 3, 1] y)
<float[1, 4, 1] w = {1, 2, -1, 0.5}, float[1, 4, 1] r = {1, 0.2, -1, 0.5}> {
    s, h, c = LSTM <hidden_size = 1> (x, w, r)
    y = Tanh(c)
}"""
)
LOST = {
    "an optional input": (CLIP, "m, low, high", "m, low", "Clip: input max is gone"),
    "an input as a constant": (CLIP, "Add(c, b)", "Add(c, low)", "Add: input B became a constant"),
    "an input too many": (CLIP, "m, low, high)", "m, low, low)", None),
    "an output": (
        LSTM,
        "s, h, c = LSTM <hidden_size = 1> (x, w, r)\n    y = Tanh(c)",
        "s, h = LSTM <hidden_size = 1> (x, w, r)\n    y = Tanh(h)",
        "LSTM: output Y_c is gone",
    ),
    "an input with what computes it": (
        GRU,
        "r, , , u)",
        "r)",
        "GRU: input initial_h is gone",
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _servers() -> None:
    keep_servers()


def repair(folder: Path, good: str, faulty: str) -> RepairResult:
    for name, text in (("good", good), ("faulty", faulty)):
        model = onnx.parser.parse_model(text)
        used = {name for node in model.graph.node for name in node.input}
        kept = [n for n in model.graph.node if set(n.output) & (used | {"y"})]
        del model.graph.node[:]
        model.graph.node.extend(kept)
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, folder / f"{name}.onnx")
    given = {
        "model": str(folder / "good.onnx"),
        "converted": folder / "faulty.onnx",
        "out": folder / "repaired",
        "cross_check": ("onnx_reference",),
    }
    return repair_model(RepairRequest.model_validate(given), Plugins())


@pytest.mark.parametrize(("good", "now", "then", "words"), LOST.values(), ids=LOST.keys())
def test_what_is_lost_is_named_and_put_back(
    tmp_path: Path, good: str, now: str, then: str, words: str | None
) -> None:
    assert now in good
    result = repair(tmp_path, good, good.replace(now, then))
    assert result.place is not None
    if words is not None:
        assert result.place.words() == words
    assert result.verdict == "repaired"
    assert len(result.edits) == 1
    repaired = onnx.load(tmp_path / "repaired" / "repaired.onnx")
    feeds = {
        i.name: np.ones([d.dim_value for d in i.type.tensor_type.shape.dim], np.float32)
        for i in repaired.graph.input
    }
    from onnx.reference import ReferenceEvaluator

    outputs = [
        next(iter(ReferenceEvaluator(model).run(None, feeds)))
        for model in (onnx.load(tmp_path / "good.onnx"), repaired)
    ]
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-6)
