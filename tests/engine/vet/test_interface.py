"""Optional inputs and declared shapes: what an optimizer does to them is told, with the pass."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import ModelProto
from pydantic import BaseModel, ConfigDict

from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.spec.records import Finding, VetResult
from optvet.spec.request import VetRequest
from optvet.spec.types import Artifact, Pass, Traits

OPTIONAL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,4] x, float[4] w) => (float[2,4] y)
<float[4] w = {1, 2, 3, 4}, float[4] v = {1, 1, 1, 1}>
{ s = Add(w, v)
  y = Mul(x, s) }
"""


class NoOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Shaper:
    """Passes that change declared shapes, forget optional inputs, or do nothing."""

    name = "shaper"
    preload: Sequence[str] = ()
    options: BaseModel = NoOptions()
    traits = Traits()

    def version(self) -> str:
        return "1"

    def passes(self) -> Sequence[Pass]:
        return [Pass(n) for n in ("nothing", "weaken", "strengthen", "forget", "again")]

    def pipelines(self) -> dict[str, tuple[str, ...]]:
        return {"default": tuple(p.name for p in self.passes())}

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        model = onnx.load_from_string(source.data)
        y = model.graph.output[0].type.tensor_type.shape
        if "weaken" in passes:
            y.dim[0].dim_param = "M"
        if "strengthen" in passes:
            y.dim[1].dim_value = 4
        if "forget" in passes:
            weights = {t.name for t in model.graph.initializer}
            kept = [i for i in model.graph.input if i.name not in weights]
            del model.graph.input[:]
            model.graph.input.extend(kept)
        return Artifact("onnx", model.SerializeToString())


def vetted(tmp_path: Path, model: str | ModelProto, optimizer: Any, **more: Any) -> VetResult:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(model) if isinstance(model, str) else model, path)
    plugins = Plugins()
    if isinstance(optimizer, str):
        optimizer = plugins.optimizer(optimizer)
    else:
        plugins.register("optimizer", optimizer)
    asked = {"limit": 2, "optimizer": optimizer.name, "cache_dir": tmp_path / "cache"} | more
    opened = open_model(path, str(path), tmp_path / "cache")
    return vet_model(opened, VetRequest(model="model", **asked), plugins)


def told(result: VetResult) -> list[tuple[str, str, list[str]]]:
    return [(f.symptom, f.severity, f.culprit) for f in result.findings]


def of(result: VetResult, symptom: str) -> Finding:
    (finding,) = [f for f in result.findings if f.symptom == symptom]
    return finding


def fed(tmp_path: Path) -> tuple[str, ...]:
    x, w = np.ones((2, 4), np.float32), np.array([5, 6, 7, 8], np.float32)
    np.savez(tmp_path / "given.npz", x=x, w=w)
    return (f"files:{tmp_path / 'given.npz'}",)


def test_an_optional_input_may_be_fed_and_changes_the_result(tmp_path: Path) -> None:
    # Folding the default would show in what is computed from the fed value.
    result = vetted(tmp_path, OPTIONAL, "onnxoptimizer", dataset=fed(tmp_path))
    assert (result.verdict, result.samples) == ("clean", 1)


def test_an_optional_input_that_is_gone_is_an_interface_change_of_its_pass(tmp_path: Path) -> None:
    result = vetted(tmp_path, OPTIONAL, Shaper())
    finding = of(result, "interface-change")
    assert (finding.severity, finding.culprit, finding.confirmed) == ("fault", ["forget"], True)
    assert finding.message == (
        "optional input 'w' is gone: a caller can no longer replace the default"
    )
    assert result.verdict == "faulty"
    assert "forget" not in result.safe_pipeline
    assert [(o.name, o.verdict) for o in result.outputs] == [("y", "same")]


def test_an_optional_input_that_is_gone_while_a_sample_feeds_it_is_told_so(tmp_path: Path) -> None:
    finding = of(vetted(tmp_path, OPTIONAL, Shaper(), dataset=fed(tmp_path)), "interface-change")
    assert (finding.severity, finding.culprit) == ("fault", ["forget"])
    assert finding.message == "optional input 'w' is gone, which the sample feeds"


def test_a_round_trip_that_forgets_an_optional_input_does_not_hide_what_passes_do(
    tmp_path: Path,
) -> None:
    pytest.importorskip("onnxslim")
    result = vetted(tmp_path, OPTIONAL, "onnxslim")
    finding = of(result, "interface-change")
    assert (finding.culprit, result.safe_pipeline) == ([], result.optimizer.pipeline)
    assert finding.set_aside == "passes were judged without w"
    assert [o.verdict for o in result.outputs] == ["same"]


def test_weights_that_a_model_lists_by_habit_are_a_note_when_they_are_gone(tmp_path: Path) -> None:
    listed = ", ".join(f"float[4] w{i}" for i in range(5))
    values = ", ".join(f"float[4] w{i} = {{1, 2, 3, 4}}" for i in range(5))
    steps = "\n".join(f"h{i + 1} = Add(h{i}, w{i})" for i in range(5))
    result = vetted(
        tmp_path,
        f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2,4] h0, {listed}) => (float[2,4] h5) <{values}> {{ {steps} }}
        """,
        Shaper(),
        pipeline="nothing,forget",
    )
    assert told(result) == [("interface-change", "note", ["forget"])]
    assert "5 weights are no longer among the inputs, such as 'w0'" in result.findings[0].message
    assert result.verdict == "clean"


def test_shapes_that_say_less_or_more_are_notes_with_the_pass(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[2,C] x) => (float[2,C] y) { y = Relu(x) }
    """
    result = vetted(tmp_path, text, Shaper(), dataset=only_x(tmp_path))
    assert told(result) == [
        ("metadata-change", "note", ["weaken"]),
        ("metadata-change", "note", ["strengthen"]),
    ]
    assert [f.message for f in result.findings] == [
        "declared shapes became less specific: output 'y' [2, C] became [M, 4]",
        "declared shapes became more specific: output 'y' [2, C] became [M, 4]",
    ]
    assert result.verdict == "clean"


def only_x(tmp_path: Path) -> tuple[str, ...]:
    np.savez(tmp_path / "x.npz", x=np.ones((2, 4), np.float32))
    return (f"files:{tmp_path / 'x.npz'}",)


def test_before_ir_version_4_a_listed_weight_is_no_optional_input(tmp_path: Path) -> None:
    text = OPTIONAL.replace("ir_version: 8", "ir_version: 3").replace(": 17", ": 9")
    text = text.replace("float[4] w)", "float[4] w, float[4] v)")
    result = vetted(tmp_path, text, "onnxoptimizer")
    assert "interface-change" not in {f.symptom for f in result.findings}
    opened = open_model(tmp_path / "model.onnx", "model", tmp_path / "cache")
    assert ([i.name for i in opened.inputs], opened.optional) == (["x"], ())


class Declarer(Shaper):
    """Declares for ``y`` the shape that it has, or another one."""

    name = "declarer"

    def passes(self) -> Sequence[Pass]:
        return [Pass(n) for n in ("correct", "falsify")]

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        model = onnx.load_from_string(source.data)
        (y,) = model.graph.output
        if passes:
            shape = [2, 3] if "correct" in passes else [3, 2]
            y.CopyFrom(onnx.helper.make_tensor_value_info("y", 1, shape))
        return Artifact("onnx", model.SerializeToString())


@pytest.mark.parametrize("declared", ["float y", "float[3] y", "float[4,3] y"])
def test_a_declaration_that_the_original_does_not_keep_is_corrected_without_blame(
    tmp_path: Path, declared: str
) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => ({declared})'
    model = text + " { y = Relu(x) }"
    right = vetted(tmp_path, model, Declarer(), pipeline="correct")
    assert (right.verdict, told(right)) == ("clean", [("metadata-change", "note", ["correct"])])
    wrong = vetted(tmp_path, model, Declarer(), pipeline="falsify")
    assert ("interface-change", "fault", ["falsify"]) in told(wrong)


def test_a_model_that_lists_an_output_twice_keeps_its_interface(tmp_path: Path) -> None:
    model = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2,3] x) => (float[2,3] y, float[2,3] y) { y = Relu(x) }"""
    assert vetted(tmp_path, model, Shaper(), pipeline="nothing").verdict == "clean"


class Patcher(Shaper):
    """A pass that breaks the checker of its process, and one that is wrong."""

    name = "patcher"

    def passes(self) -> Sequence[Pass]:
        return [Pass(n) for n in ("nothing", "patch", "tanh")]

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        model = onnx.load_from_string(source.data)
        if "patch" in passes:
            onnx.checker.check_model = _refuse
        if "tanh" in passes:
            model.graph.node[0].op_type = "Tanh"
        return Artifact("onnx", model.SerializeToString())


def _refuse(*args: Any, **more: Any) -> None:
    raise ValueError("no model is valid here")


def test_a_suspicion_in_a_spoilt_process_is_looked_at_again_in_one_of_its_own(
    tmp_path: Path,
) -> None:
    model = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"""
    options = {"pipeline": "nothing", "strategy": "each", "pairs": False, "jobs": 1}
    result = vetted(tmp_path, model, Patcher(), **options)
    assert ("wrong-output", "fault", ["tanh"]) in told(result)
    assert {p.name: p.effect for p in result.passes}["tanh"] == "failed"


def test_a_note_on_shapes_has_the_same_fingerprint_whatever_the_model_calls_its_values(
    tmp_path: Path,
) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[2,C] x) => (float[2,C] y) { y = Relu(x) }
    """
    other = text.replace(" y", " z").replace("Relu", "Neg")
    notes = [
        of_pass(vetted(tmp_path, t, Shaper(), dataset=only_x(tmp_path)), "weaken")
        for t in (text, other)
    ]
    assert [note.changed for note in notes] == [["weaker shapes"]] * 2
    assert notes[0].fingerprint == notes[1].fingerprint


def of_pass(result: VetResult, name: str) -> Finding:
    (finding,) = [f for f in result.findings if f.culprit == [name]]
    return finding


class Fixing(Shaper):
    """One pass, which fixes a size of the input."""

    def __init__(self, axis: int, size: int) -> None:
        self.axis, self.size = axis, size

    def passes(self) -> Sequence[Pass]:
        return [Pass("nothing"), Pass("fix")]

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        model = onnx.load_from_string(source.data)
        if "fix" in passes:
            shape = model.graph.input[0].type.tensor_type.shape
            shape.dim[self.axis].dim_value = self.size
        return Artifact("onnx", model.SerializeToString())


PRODUCT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N,K] x) => (float[N,2] y) <float[3,2] w = {1, 2, 3, 4, 5, 6}>
{ t = Relu(x)  y = MatMul(t, w) }
"""
BROADCAST = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N,K] x) => (float[N,3] y) <float[3] w = {1, 2, 3}>
{ t = Relu(x)  y = Add(t, w) }
"""


@pytest.mark.parametrize(
    ("model", "axis", "size", "verdict"),
    [(PRODUCT, 1, 3, "clean"), (PRODUCT, 0, 1, "faulty"), (BROADCAST, 1, 3, "faulty")],
)
def test_fixing_a_size_harms_callers_if_the_original_computes_with_another(
    model: str, axis: int, size: int, verdict: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "given.npz", x=np.ones((1, 3), np.float32))
    dataset = (f"files:{tmp_path / 'given.npz'}",)
    result = vetted(tmp_path, model, Fixing(axis, size), dataset=dataset)
    assert result.verdict == verdict
    if verdict == "faulty":
        assert of(result, "interface-change").culprit == ["fix"]
    else:
        assert [f.severity for f in result.findings] == []
