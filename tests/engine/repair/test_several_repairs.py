"""Edits compose; every fault is named, mended or not; where no edit is known, that is said."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from optvet.engine.discovery import Plugins
from optvet.engine.repair.run import repair_model
from optvet.engine.work.sandbox import keep_servers
from optvet.spec.records.repair import RepairResult
from optvet.spec.repair import RepairRequest

HEAD = '<ir_version: 10, opset_import: ["" : 20]> m (float[3,4] x) => (float[3,4] y)'
RIGHT = "a = LeakyRelu<alpha=0.3>(x) b = Elu<alpha=0.5>(a) c = Sin(b) y = Celu<alpha=0.7>(c)"


def repaired(tmp_path: Path, wrong: str, right: str = RIGHT, head: str = HEAD) -> RepairResult:
    keep_servers()
    for name, body in (("right", right), ("wrong", wrong)):
        model = onnx.parser.parse_model(f"{head} {{ {body} }}")
        (tmp_path / f"{name}.onnx").write_bytes(model.SerializeToString())
    asked = RepairRequest(
        model=str(tmp_path / "right.onnx"),
        converted=tmp_path / "wrong.onnx",
        out=tmp_path / "out",
        jobs=1,
    )
    return repair_model(asked, Plugins())


@pytest.mark.long
def test_three_faults_are_named_and_mended(tmp_path: Path) -> None:
    wrong = RIGHT.replace("0.3", "0.1").replace("0.5", "0.9").replace("0.7", "0.2")
    result = repaired(tmp_path, wrong)
    named = [place.words() for place in result.places]
    assert named == ["LeakyRelu.alpha", "Elu.alpha", "Celu.alpha"]
    assert (result.verdict, [e.kind for e in result.edits]) == ("repaired", ["attribute"] * 3)


def test_a_node_that_cannot_run_hides_no_other_fault(tmp_path: Path) -> None:
    head = HEAD.replace("(float[3,4] y)", "(float[3,4] y, int64[3,4] n)")
    zeros = "z = Constant<value = float {0.0}>() i = Constant<value = int64 {0}>()"
    right = f"{zeros} b = Greater(x, z) c = Cast<to=7>(b) n = CumSum(c, i) y = Elu<alpha=0.5>(x)"
    wrong = f"{zeros} b = Greater(x, z) n = CumSum(b, i) y = Elu<alpha=0.9>(x)"
    result = repaired(tmp_path, wrong, right, head)
    assert result.verdict == "repaired", result.reason
    assert len(result.edits) == 2


def test_what_stops_a_model_is_mended_first(tmp_path: Path) -> None:
    wrong = RIGHT.replace("Elu<alpha=0.5>(a)", "EluV2(a)").replace("0.7", "0.2")
    result = repaired(tmp_path, wrong)
    assert [place.words() for place in result.places] == ["Elu → EluV2", "Celu.alpha"]
    assert (result.verdict, len(result.edits)) == ("repaired", 2)


FOREST = """
import numpy as np

rng = np.random.default_rng(0)
X = rng.normal(size=(200, 4)).astype(np.float32)
missing = np.where(rng.random(X.shape) < 0.2, np.float32("nan"), X)
example_inputs = (X[:20],)
more_inputs = [(missing[:40],)]


def forest():
    from sklearn.ensemble import RandomForestClassifier

    y = (X[:, 0] > 0).astype(int)
    return RandomForestClassifier(3, max_depth=4, random_state=0).fit(missing, y)
"""


@pytest.mark.long
def test_a_list_is_set_to_what_an_estimator_was_fitted_to(tmp_path: Path) -> None:
    pytest.importorskip("skl2onnx", reason="needs skl2onnx")
    keep_servers()
    (tmp_path / "net.py").write_text(FOREST)
    asked = RepairRequest(
        model=f"{tmp_path / 'net.py'}:forest", via=("skl2onnx",), out=tmp_path / "out"
    )
    result = repair_model(asked, Plugins())
    assert (result.verdict, [e.kind for e in result.edits]) == ("repaired", ["attribute"])
    assert "nodes_missing_value_tracks_true = tree_.missing_go_to_left" in result.edits[0].about
