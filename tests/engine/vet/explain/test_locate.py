from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from tests.preload import TRIALS

from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.explain.locate import divergence_text
from optvet.engine.vet.run import vet_model
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.spec.records import Divergence, VetResult
from optvet.spec.request import VetRequest
from optvet.testing import Planted

HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=1, limits=Limits(60, 2 << 30), preload=TRIALS) as shared:
        yield shared


def vetted(
    text: str, folder: Path, sandbox: Sandbox, optimizer: Any = None, **settings: Any
) -> VetResult:
    plugins = Plugins()
    if isinstance(optimizer, str):
        settings |= {"optimizer": optimizer}
    elif optimizer is not None:
        plugins.register("optimizer", optimizer)
        settings |= {"optimizer": optimizer.name}
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + text), path)
    model = open_model(path, str(path), folder / "cache")
    asked = VetRequest(model="model", limit=4, cache_dir=folder / "cache", **settings)
    return vet_model(model, asked, plugins, sandbox=sandbox)


def divergence(result: VetResult) -> Divergence:
    (finding,) = (f for f in result.findings if f.severity == "fault")
    assert finding.divergence is not None
    return finding.divergence


FIVE_ADDS = """g (float[4] x) => (float[4] y)
    <float[4] c = {1, 2, 3, 4}, float[4] d = {5, 1, 2, 1}> {
    a = Add(x, c)  r1 = Tanh(a)  b = Add(r1, d)  r2 = Tanh(b)  e = Add(r2, r1)
    r3 = Tanh(e)  f = Add(r3, c)  r4 = Tanh(f)  y = Add(r4, d) }"""


def test_the_wrong_one_of_several_sites_is_named_with_what_is_special_in_it(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    planted = Planted(default=("keep_00", "add_to_sub"))
    found = divergence(vetted(FIVE_ADDS, tmp_path, sandbox, planted))
    assert found.value == "e"
    assert found.agreeing == ["r1", "r2"]
    assert (found.before, found.after) == (["e = Add (r2, r1)"], ["e = Sub (r2, r1)"])
    assert (found.sites, found.tried) == (5, 5)
    (site,) = found.wrong
    assert (site.number, site.of, site.kind, site.node) == (3, 5, "Add", "e")
    assert found.distinction[0] == "B of Add: computed; right sites: constant"


PADS = """g (float[1,1,6,6] x) => (float[1,1,12,12] z)
    <float[1,1,1,1] w = {1.5}, int64[8] plain = {0, 0, 1, 1, 0, 0, 1, 1},
     int64[8] pads = {0, 0, 0, 2, 0, 0, 2, 0}, float zero = {0}, int64[4] axes = {0, 1, 3, 2}> {
    p1 = Pad <mode = "constant"> (x, plain, zero)  c1 = Conv(p1, w)  t1 = Tanh(c1)
    p2 = Pad <mode = "constant"> (t1, pads, zero, axes)  c2 = Conv(p2, w)  t2 = Tanh(c2)
    p3 = Pad <mode = "constant"> (t2, plain, zero)  c3 = Conv(p3, w)  z = Tanh(c3) }"""


def test_a_real_fault_is_traced_to_the_site_whose_property_breaks_the_pass(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    result = vetted(PADS, tmp_path, sandbox, pipeline="fuse_pad_into_conv")
    found = divergence(result)
    assert found.value == "c2"
    assert [(s.number, s.of, s.kind) for s in found.wrong] == [(2, 3, "Pad")]
    assert "axes of Pad: constant; right sites: absent" in found.distinction


def test_a_place_that_hangs_together_is_one_site(tmp_path: Path, sandbox: Sandbox) -> None:
    text = """g (float[4] x) => (float[4] y) {
        r = Relu(x)  s = Relu(r)  y = Neg(s) }"""
    found = divergence(vetted(text, tmp_path, sandbox, Planted(default=("gelu_for_relu",))))
    assert found.value == "r"
    assert found.before == ["r = Relu (x)"]
    assert len(found.after) == 5
    # Either is wrong alone; there is no right one to tell them from.
    assert [s.number for s in found.wrong] == [1, 2]
    assert found.distinction == []


def test_a_model_that_does_not_load_is_shown_with_the_place_that_does_it(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    found = divergence(vetted(FIVE_ADDS, tmp_path, sandbox, Planted(default=("foreign_operator",))))
    assert found.value is None
    assert found.after == ["y = org.example.planted.Planted (r4, d = [5, 1, 2, 1])"]


def test_a_sound_model_costs_no_explanation(tmp_path: Path, sandbox: Sandbox) -> None:
    result = vetted(FIVE_ADDS, tmp_path, sandbox, Planted(default=("keep_00",)))
    assert "explain" not in result.cost.by_purpose


def test_an_explanation_is_remembered(tmp_path: Path, sandbox: Sandbox) -> None:
    planted = Planted(default=("add_to_sub",))
    first = vetted(FIVE_ADDS, tmp_path, sandbox, planted)
    again = vetted(FIVE_ADDS, tmp_path, sandbox, planted)
    assert first.cost.by_purpose["explain"].inferences > 5
    assert "explain" not in again.cost.by_purpose
    assert first.findings == again.findings


def test_a_crash_of_the_optimizer_has_no_place_in_the_graph(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    result = vetted(FIVE_ADDS, tmp_path, sandbox, Planted(default=("raise_error",)))
    assert [f.divergence for f in result.findings] == [None]


def test_halves_of_one_rewrite_are_not_called_wrong_sites(tmp_path: Path, sandbox: Sandbox) -> None:
    # The normalization goes into the weights, beyond a transposition that swaps its channels.
    text = """g (float[4,3] x) => (float[4,4] y)
        <float[3,4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, float[4] s = {2, 3, 1, 4},
         float[4] b = {1, 2, 0, 1}, float[4] m = {0, 1, 2, 1}, float[4] v = {1, 4, 2, 3}> {
        a = MatMul(x, w)  t = Transpose <perm = [1, 0]> (a)
        y = BatchNormalization(t, s, b, m, v) }"""
    found = divergence(vetted(text, tmp_path, sandbox, Planted(default=("fold_norm_too_far",))))
    assert (found.sites, found.wrong, found.tried) == (2, [], 0)


def test_an_optimizer_that_saves_its_graph_is_explained_by_it(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    text = """g (int32[3] x) => (int32[3] y) <int32[1] one = {1}, int32[3] k = {7, 5, 9}> {
        d = Div(one, x)  y = Mul(d, k) }"""
    found = divergence(
        vetted(text, tmp_path, sandbox, "onnxruntime", pipeline="DivMulFusion", seed=1)
    )
    assert found.value == "y"
    assert [line.split(" = ")[1].split()[0] for line in found.before] == ["Div", "Mul"]
    assert [line.split(" = ")[1].split()[0] for line in found.after] == ["Div"]


def test_explaining_takes_no_more_inferences_than_detection_and_localization(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    adds = "".join(f"a{i + 1} = Add(t{i}, c)  t{i + 1} = Tanh(a{i + 1})  " for i in range(30))
    text = f"""g (float[4] t0) => (float[4] y) <float[4] c = {{1, 2, 3, 4}}> {{
        {adds} y = Add(t30, t0) }}"""
    result = vetted(text, tmp_path, sandbox, Planted(default=("add_to_sub",)))
    spent = {name: cost.inferences for name, cost in result.cost.by_purpose.items()}
    explaining = spent.pop("explain")
    spent.pop("noise")
    assert 6 < explaining <= sum(spent.values())
    found = divergence(result)
    assert (found.value, found.sites) == ("y", 31)
    assert 0 < found.tried < 31
    # There is no room for all of them, so the one that makes the first wrong value comes first.
    assert [site.node for site in found.wrong] == ["y"]


def test_a_divergence_without_nodes_says_nothing_of_nodes() -> None:
    assert divergence_text(Divergence(value="y")) == (
        "First value that differs by more than its noise: y"
    )
    assert divergence_text(Divergence(before=["y = Abs (x)"])) == (
        "Before:\n    y = Abs (x)\nAfter:\n    no node"
    )
