"""Faults planted into converted models are repaired, and what is no repair is not taken for one."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.commands import Run, run
from tests.engine.repair import planted
from tests.engine.repair.lossy import Lossy

from optvet import UsageError
from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.repair import run as run_of_repair
from optvet.engine.repair.candidates import attribute, propose
from optvet.engine.repair.propose.rank import RankedCandidates
from optvet.engine.repair.run import repair_model
from optvet.engine.work.sandbox import keep_servers
from optvet.plugin import Artifact
from optvet.spec.convert import ConvertRequest
from optvet.spec.records.repair import Patch, RepairResult
from optvet.spec.repair import RepairRequest

__all__ = ["run"]

HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'
GOOD = (
    HEAD
    + """g (float[n, 3] x) => (float[n, 3] y)
<float[3] w = {1, 2, 3}, float[3, 3] m = {1, 2, 0, -1, 3, 1, 0.5, 1, -2}> {
    a = Mul(x, w)
    b = MatMul(a, m)
    c = LeakyRelu<alpha = 0.2>(b)
    d = Softmax<axis = 1>(c)
    y = Sub(d, a)
}"""
)
Repair = Callable[..., RepairResult]


@pytest.fixture(scope="module", autouse=True)
def _servers() -> None:
    keep_servers()


@pytest.fixture
def repair(tmp_path: Path) -> Repair:
    """Repair the text of one model so that it computes what the text of another does."""

    def repair(faulty: str, good: str = GOOD, **options: object) -> RepairResult:
        for name, text in (("good", good), ("faulty", faulty)):
            onnx.save(onnx.parser.parse_model(text), tmp_path / f"{name}.onnx")
        given = {
            "model": str(tmp_path / "good.onnx"),
            "converted": tmp_path / "faulty.onnx",
            "out": tmp_path / "repaired",
            "cross_check": ("onnx_reference",),  # others import their libraries first
            **options,
        }
        return repair_model(RepairRequest.model_validate(given), Plugins())

    return repair


FAULTS = {
    "a weight": ("w = {1, 2, 3}", "w = {1, 2, 4}", "parameter"),
    "an attribute": ("alpha = 0.2", "alpha = 0.1", "attribute"),
    "an axis": ("axis = 1", "axis = 0", "attribute"),
    "a node too many": ("MatMul(a, m)", "MatMul(a, m)\n e = Abs(b)", "removal"),
    "a missing node": ("c = LeakyRelu<alpha = 0.2>(b)", "c = Identity(b)", "operator"),
    "inputs exchanged": ("Sub(d, a)", "Sub(a, d)", "inputs"),
    "a wrong edge": ("Sub(d, a)", "Sub(d, b)", "inputs"),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.long if kind == "inputs" else ())
        for n, (*_, kind) in FAULTS.items()
    ],
)
def test_a_fault_is_repaired_by_the_edit_of_its_kind(name: str, repair: Repair) -> None:
    old, new, kind = FAULTS[name]
    faulty = GOOD.replace(old, new)
    if kind == "removal":
        faulty = faulty.replace("0.2>(b)", "0.2>(e)")
    result = repair(faulty)
    assert result.verdict == "repaired"
    assert [e.kind for e in result.edits] == [kind]
    assert result.before["witnesses"].wrong == result.before["witnesses"].inputs > 0
    assert {part: n.wrong for part, n in result.after.items()} == dict.fromkeys(result.after, 0)


@pytest.mark.parametrize("first", ["right", "wrong"])
def test_other_edits_are_sought_only_if_the_first_that_explains_is_no_repair(
    first: str, repair: Repair, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    seek = run_of_repair._Repair._proposals

    def proposals(self: Any, *about: Any, others: bool) -> RankedCandidates:
        asked.append(others)
        ranked = seek(self, *about, others=others)
        if first == "right" or others:
            return ranked
        return RankedCandidates([propose("attribute", "", attribute("c", "alpha", 7.0))], False)

    monkeypatch.setattr(run_of_repair._Repair, "_proposals", proposals)
    old, new, kind = FAULTS["an attribute"]
    result = repair(GOOD.replace(old, new))
    assert (result.verdict, [e.kind for e in result.edits]) == ("repaired", [kind])
    assert result.edits[0].about == "LeakyRelu.alpha = 0.2 at c"
    assert asked == ([False] if first == "right" else [False, True])


def test_a_cast_that_is_missing_is_inserted_at_the_output(repair: Repair) -> None:
    text = "g (int64[n, 3] x) => ({} y) {{ f = Cast<to = 1>(x) s = Mul(f, f) {} }}"
    good = text.format("int64[n, 3]", "y = Cast<to = 7>(s)")
    result = repair(HEAD + text.format("float[n, 3]", "y = Identity(s)"), HEAD + good)
    assert result.verdict == "repaired"
    assert "Cast" in result.edits[0].about


@pytest.mark.long
def test_two_faults_that_hide_each_other_take_two_edits(repair: Repair) -> None:
    faulty = GOOD.replace("alpha = 0.2", "alpha = 0.1").replace("w = {1, 2, 3}", "w = {1, 2, 4}")
    result = repair(faulty)
    assert result.verdict == "repaired"
    assert sorted(e.kind for e in result.edits) == ["attribute", "parameter"]


def test_a_right_model_is_left_alone(repair: Repair, tmp_path: Path) -> None:
    result = repair(GOOD)
    assert (result.verdict, result.edits, result.tried) == ("right", [], 0)
    assert not (tmp_path / "repaired").exists()


def test_what_no_edit_mends_is_not_repaired_and_nothing_is_written(
    repair: Repair, tmp_path: Path
) -> None:
    one = "g (float[n, 3] x) => (float[n, 3] y) { a = Exp(x) b = Sin(a) y = Mul(b, x) }"
    other = "g (float[n, 3] x) => (float[n, 3] y) { y = Atan(x) }"
    result = repair(HEAD + other, HEAD + one)
    assert result.verdict == "not-repaired"
    assert "no tried edit" in result.reason
    assert not (tmp_path / "repaired").exists()


def test_a_size_that_was_baked_in_is_opened_and_not_only_set_for_the_witness(
    repair: Repair,
) -> None:
    text = (
        "g (float[n, 2, 3] x) => (float[n, 6] y) <int64[2] s = {{{}}}> "
        "{{ a = Reshape(x, s) y = Relu(a) }}"
    )
    right = text.format("0, 6").replace("s =", "r =").replace("x, s", "x, r")
    result = repair(HEAD + text.format("2, 6"), HEAD + right)
    assert result.verdict == "repaired"
    assert [e.kind for e in result.edits] == ["constant"]


def test_a_patch_replays_to_the_same_model(repair: Repair, run: Run, tmp_path: Path) -> None:
    old, new, _ = FAULTS["a missing node"]
    result = repair(GOOD.replace(old, new))
    assert result.files == ["repaired.onnx", "patch.json"]
    patch = tmp_path / "repaired" / "patch.json"
    assert Patch.model_validate_json(patch.read_bytes()).edits == result.edits
    done = run("repair", tmp_path / "faulty.onnx", "--apply", patch, "--out", tmp_path / "again")
    assert done.code == 0
    once = (tmp_path / "repaired" / "repaired.onnx").read_bytes()
    assert (tmp_path / "again" / "repaired.onnx").read_bytes() == once


def test_a_patch_for_another_model_is_refused(repair: Repair, run: Run, tmp_path: Path) -> None:
    old, new, _ = FAULTS["an attribute"]
    repair(GOOD.replace(old, new))
    other = HEAD + "g (float[n, 3] x) => (float[n, 3] y) { y = Relu(x) }"
    onnx.save(onnx.parser.parse_model(other), tmp_path / "other.onnx")
    patch = tmp_path / "repaired" / "patch.json"
    done = run("repair", tmp_path / "other.onnx", "--apply", patch, "--out", tmp_path / "again")
    assert done.code == 2
    assert "no node of the model makes 'c'" in done.err
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("text", ["{}", "no JSON", '{"schema": "optvet.patch/2"}'])
def test_a_file_that_is_no_patch_is_refused(text: str, run: Run, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(GOOD), tmp_path / "good.onnx")
    (tmp_path / "patch.json").write_text(text)
    done = run("repair", tmp_path / "good.onnx", "--apply", tmp_path / "patch.json")
    assert done.code == 2
    assert "is no patch" in done.err


def test_the_command_shows_edits_and_numbers_and_writes_the_document(
    run: Run, tmp_path: Path
) -> None:
    for name, text in (("good", GOOD), ("faulty", GOOD.replace("= 0.2", "= 0.1"))):
        onnx.save(onnx.parser.parse_model(text), tmp_path / f"{name}.onnx")
    done = run(
        *("repair", tmp_path / "good.onnx", "--converted", tmp_path / "faulty.onnx"),
        *("--out", tmp_path / "out", "--json", tmp_path / "answer.json"),
    )
    assert done.code == 0
    assert "REPAIRED" in done.out
    assert "LeakyRelu.alpha = 0.2 at c" in done.out
    assert "held out" in done.out
    document = json.loads((tmp_path / "answer.json").read_text())
    assert RepairResult.model_validate(document).verdict == "repaired"


def test_a_file_that_is_missing_or_a_chain_beside_it_is_refused(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(GOOD), tmp_path / "good.onnx")
    given = {"model": str(tmp_path / "good.onnx"), "converted": tmp_path / "none.onnx"}
    with pytest.raises(UsageError, match="no such file"):
        repair_model(RepairRequest.model_validate(given), Plugins())
    with pytest.raises(UsageError, match="leave out --via"):
        repair_model(RepairRequest.model_validate({**given, "via": "x"}), Plugins())
    (tmp_path / "none.onnx").write_bytes(b"no model")
    with pytest.raises(UsageError, match="cannot be read as an ONNX model"):
        repair_model(RepairRequest.model_validate(given), Plugins())


def test_what_an_optimizer_breaks_is_repaired(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(GOOD), tmp_path / "good.onnx")
    given = {"model": str(tmp_path / "good.onnx"), "optimizer": "lossy", "out": tmp_path / "out"}
    plugins = Plugins().register("optimizer", Lossy())
    result = repair_model(RepairRequest.model_validate(given), plugins)
    assert result.verdict == "repaired"
    assert sorted(e.kind for e in result.edits) == ["attribute", "parameter"]
    given["pipeline"] = "lose"
    result = repair_model(RepairRequest.model_validate(given), plugins)
    assert [e.about for e in result.edits] == ["LeakyRelu.alpha = 0.2 at c"]
    with pytest.raises(UsageError, match="leave out --via and --converted"):
        repair_model(RepairRequest.model_validate({**given, "via": "lossy"}), plugins)


PLANTED = {
    "weights rounded": "onnx",
    "kernel transposed": "torch",
    "pads of a convolution": "onnx",
    "resize": "onnx",
    "extra Pad": "onnx",
    "Transpose missing": "torch",
    "mean not subtracted": "onnx",
    "biases crossed": "onnx",
    "three faults": "torch",
}
"""Faults, with the format of the source that tells what is right."""


@pytest.mark.long
@pytest.mark.skipif(find_spec("torch") is None, reason="needs optvet[torch]")
@pytest.mark.parametrize(
    ("name", "source"),
    [
        pytest.param(n, s, marks=[pytest.mark.release] * (s == "torch" and n != "three faults"))
        for n, s in PLANTED.items()
    ],
)
def test_a_fault_of_a_converted_network_is_repaired_to_the_right_model(
    name: str, source: str, tmp_path: Path
) -> None:
    (tmp_path / "source.py").write_text(planted.SOURCE)
    onnx.save(planted.converted(), tmp_path / "source.onnx")
    onnx.save(planted.build(name), tmp_path / "faulty.onnx")
    request = RepairRequest(
        model=f"{tmp_path}/source.{'onnx' if source == 'onnx' else 'py:source'}",
        converted=tmp_path / "faulty.onnx",
        out=tmp_path / "repaired",
        cross_check=("onnx_reference",),
    )
    result = repair_model(request, Plugins())
    assert result.verdict == "repaired"
    assert result.verdict_after == "right"
    assert all(n.wrong == 0 for n in result.after.values())
    x = np.random.default_rng(7).normal(size=(3, 4, 9, 8)).astype(np.float32)
    runtime = Plugins().reference_runtime()
    outputs = []
    for model in (planted.converted(), onnx.load(tmp_path / "repaired" / "repaired.onnx")):
        session = runtime.load(Artifact("onnx", model.SerializeToString()), runtime.options)
        outputs.append(next(iter(session.run({"x": x}).values())))
    assert np.abs(outputs[0] - outputs[1]).max() < 1e-6


SOFTPLUS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return torch.relu(self.b(nn.functional.softplus(self.a(x), beta=2.0, threshold=1.0)))


def net():
    return Net()


net.example_inputs = (torch.linspace(-3, 3, 20).reshape(5, 4),)
"""


@pytest.mark.release
def test_a_wrong_operator_of_a_framework_is_written_anew(tmp_path: Path) -> None:
    for module in ("torch", "onnxscript"):
        pytest.importorskip(module, reason=f"needs {module}")
    (tmp_path / "net.py").write_text(SOFTPLUS)
    out = tmp_path / "repaired"
    given = {"model": f"{tmp_path / 'net.py'}:net", "via": ("torch_script",), "out": out}
    result = repair_model(RepairRequest.model_validate(given), Plugins())
    assert (result.verdict, [e.kind for e in result.edits]) == ("repaired", ["template"])
    assert "softplus" in result.edits[0].about.lower()
    kinds = [n.op_type for n in onnx.load(out / "repaired.onnx").graph.node]
    assert "Where" in kinds
    assert kinds.count("Gemm") == 2


UPSAMPLED = """
import torch


def net():
    return torch.nn.ConvTranspose2d(2, 3, 3, 2, 1, output_padding=1)


net.example_inputs = (torch.linspace(-3, 3, 50).reshape(1, 2, 5, 5),)
"""


@pytest.mark.release
def test_an_edit_that_changes_the_size_of_an_output_declares_it(tmp_path: Path) -> None:
    for module in ("torch", "onnxscript"):
        pytest.importorskip(module, reason=f"needs {module}")
    (tmp_path / "net.py").write_text(UPSAMPLED)
    source, kept = f"{tmp_path / 'net.py'}:net", tmp_path / "kept"
    convert_model(ConvertRequest(model=source, via=("torch_script",), out=kept), Plugins())
    (file,) = kept.glob("*fold.onnx")
    model = onnx.load(file)
    (node,) = (n for n in model.graph.node if n.op_type == "ConvTranspose")
    left = [a for a in node.attribute if a.name != "output_padding"]
    del node.attribute[:]
    node.attribute.extend(left)
    for axis in (2, 3):
        model.graph.output[0].type.tensor_type.shape.dim[axis].dim_value = 9
    onnx.save(model, tmp_path / "wrong.onnx")
    given = {"model": source, "converted": tmp_path / "wrong.onnx", "out": tmp_path / "repaired"}
    result = repair_model(RepairRequest.model_validate(given), Plugins())
    assert (result.verdict, [e.kind for e in result.edits]) == ("repaired", ["attribute"])
    assert "output_padding" in result.edits[0].about
