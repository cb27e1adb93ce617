"""Bloat is blamed on the pass that alone causes it, with few applications where a name tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import optvet
from optvet.engine.vet.properties import Bloat
from optvet.engine.work.trials.trial_results import Build, Trial
from optvet.graph.digest import UNKNOWN
from optvet.graph.structure import Facts
from optvet.spec.symptoms import Symptom


def normalized(path: Path, layers: int) -> Path:
    """Convolutions, each with a BatchNormalization behind it."""
    nodes, weights = [], []
    for i in range(layers):
        weights.append(numpy_helper.from_array(np.ones((2, 2, 1, 1), np.float32), f"w{i}"))
        names = [f"{kind}{i}" for kind in ("scale", "shift", "mean", "variance")]
        weights += [numpy_helper.from_array(np.ones(2, np.float32), name) for name in names]
        nodes.append(helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"c{i}"]))
        nodes.append(helper.make_node("BatchNormalization", [f"c{i}", *names], [f"x{i + 1}"]))
    values = [helper.make_tensor_value_info(n, 1, [1, 2, 3, 3]) for n in ("x0", f"x{layers}")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    onnx.save(
        helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path
    )
    return path


def test_the_pass_that_is_named_after_what_is_gone_is_tried_first(tmp_path: Path) -> None:
    path = normalized(tmp_path / "m.onnx", 8)
    result = optvet.vet(path, optimizer="onnxoptimizer", limit=1, cache_dir=tmp_path / "cache")
    (note,) = [f for f in result.findings if f.symptom == Symptom.BLOAT]
    assert note.culprit == ["fuse_bn_into_conv"]
    # The whole pipeline, the empty one, and the culprit; the whole as shipped, and for what no
    # input reached.
    assert result.cost.applications == 5
    walked = optvet.vet(
        path,
        optimizer="onnxoptimizer",
        limit=1,
        strategy="walk",
        cache_dir=tmp_path / "other",
    )
    assert [f.culprit for f in walked.findings] == [note.culprit]
    assert walked.cost.applications > 5


def test_a_study_of_each_pass_walks_no_pipeline_for_a_name_that_tells(tmp_path: Path) -> None:
    path = normalized(tmp_path / "m.onnx", 8)
    result = optvet.vet(
        path,
        optimizer="onnxoptimizer",
        strategy="each",
        pairs=False,
        limit=1,
        cache_dir=tmp_path / "cache",
    )
    assert [f.culprit for f in result.findings if f.symptom == Symptom.BLOAT] == [
        ["fuse_bn_into_conv"]
    ]
    spent = {name: cost.applications for name, cost in result.cost.by_purpose.items()}
    # The pass alone is one of those that are tried in any case.
    assert spent.pop("each") <= len(result.passes_alone)
    # Detected in the clean room, and as shipped.
    assert {name: count for name, count in spent.items() if count} == {
        "detect": 2,
        "control": 1,
        "exercise": 1,
    }


def of(passes: tuple[str, ...], before: dict[str, int], after: dict[str, int]) -> list[str]:
    facts = [Facts((), (), {}, ops, sum(ops.values()), 0) for ops in (before, after)]
    whole = Trial(passes, Build("", UNKNOWN, facts=facts[1]), None, {})
    return list(Bloat(facts[0]).likely(whole))


def test_names_that_tell_nothing_lead_to_no_trial() -> None:
    assert of(("fuse_all", "nop"), {"Conv": 3}, {"Conv": 3, "Add": 90}) == []
    assert of(("level1", "eliminate_nop_pad"), {"Conv": 3, "Pad": 1}, {"Add": 90}) == [
        "eliminate_nop_pad"
    ]
    assert of(("a_pad", "b_conv", "c_relu"), {"Conv": 3, "Pad": 1, "Relu": 2}, {"Add": 90}) == [
        "b_conv",
        "c_relu",
    ]


def test_a_weight_that_is_folded_makes_a_larger_file(tmp_path: Path) -> None:
    pytest.importorskip("onnxslim")
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1] x) => (float[600,600] y) <int64[2] s = {600, 600}> {
        c = ConstantOfShape(s)
        y = Add(c, x)
    }"""
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    result = optvet.vet(path, optimizer="onnxslim", limit=1, cache_dir=tmp_path / "cache")
    (note,) = [f for f in result.findings if f.symptom == Symptom.LARGER_FILE]
    assert note.culprit == ["constant_folding"]
    assert note.message == "113 bytes became 1.37 MiB"
    assert result.verdict == "clean"
