from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Run = Callable[..., Any]
Write = Callable[[str, str], Path]

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
NAME = "block/" * 20 + "relu"
NET = f"""g (float[2,3] x) => (float[2,2] y) <float[3,2] w = {{1, 2, 3, 4, 5, 6}}> {{
    "{NAME}" = Relu(x)  h = MatMul("{NAME}", w)  y = Softmax <axis = 1> (h) }}"""


@pytest.fixture
def net(write: Write) -> Path:
    return write("a.onnx", HEAD + NET)


def test_equal_models_do_not_differ(run: Run, net: Path) -> None:
    ran = run("compare", net, net)
    assert ran.code == 0
    assert "no value differs by more than rounding" in ran.out


def test_another_weight_is_named_where_it_first_shows(run: Run, net: Path, write: Write) -> None:
    other = write("b.onnx", HEAD + NET.replace("{1, 2, 3", "{1, 2, 9"))
    ran = run("compare", net, other)
    assert ran.code == 1
    assert "first difference at h\n" in ran.out
    assert "weight w: 1, mean absolute difference 1 " in " ".join(ran.out.split())


def test_another_attribute_is_told_as_it_was_and_is(run: Run, net: Path, write: Write) -> None:
    ran = run("compare", net, write("b.onnx", HEAD + NET.replace("axis = 1", "axis = 0")))
    assert ran.code == 1
    assert "attribute axis: 1 → 0" in ran.out


def test_the_table_of_layers_fits_the_screen_whatever_the_names(
    run: Run, net: Path, write: Write
) -> None:
    other = write("b.onnx", HEAD + NET.replace("{1, 2, 3", "{1, 2, 9").replace("block/", "bl/"))
    ran = run("compare", net, other, "--layers")
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["value", "operator", "error", "noise", "rms", "cosine"]
    assert sum("Softmax" in line for line in lines) == 2, "of the value, and of the operator"


FUSED = (
    HEAD
    + """g (int32[4] a, int32[4] b) => (int32[4] y) <int32 one = {1}> {
    d = Div(one, a)  y = Mul(d, b) }"""
)
"""ONNX Runtime makes one division of it by default, which is another number."""
APART = FUSED.replace("y = Mul(d, b)", "m = Max(d)  y = Mul(m, b)")
"""It does not where another operator stands between the two."""


def test_a_model_that_the_runtime_alone_makes_wrong_differs_as_shipped(
    run: Run, write: Write
) -> None:
    apart, fused = write("a.onnx", APART), write("b.onnx", FUSED)
    ran = run("compare", apart, fused, "--layers", "--json", "-")
    found = json.loads(ran.out)
    assert (ran.code, found["diverges_at"]) == (1, None)
    shipped = found["as_shipped"]
    assert (shipped["verdict"], shipped["blamed"], shipped["outputs"]) == ("differs", "both", ["y"])
    assert shipped["runtime_parts"] == ["optimization=all", "DivMulFusion"]
    shown = run("compare", apart, fused, "--layers").out
    assert "no value differs by more than rounding in the clean room\nB differs as shipped" in shown
    assert "the session's part: optimization=all, DivMulFusion" in shown


def test_a_runtime_that_is_wrong_on_the_first_model_too_is_blamed(run: Run, write: Write) -> None:
    fused = write("b.onnx", FUSED)
    ran = run("compare", fused, fused)
    assert ran.code == 1
    assert "to blame: the runtime: its defaults are wrong on an unchanged model too" in ran.out


def test_options_of_the_session_are_those_of_the_user(run: Run, write: Write) -> None:
    fused = write("b.onnx", FUSED)
    off = ("--runtime-option", "optimization=disable_all")
    ran = run("compare", fused, fused, *off)
    assert ran.code == 0
    assert "nor does B as shipped" in ran.out


def test_the_clean_room_alone_is_compared_if_that_is_asked(run: Run, write: Write) -> None:
    fused = write("b.onnx", FUSED)
    ran = run("compare", fused, fused, "--clean", "--json", "-")
    assert (ran.code, json.loads(ran.out)["as_shipped"]) == (0, None)


def test_options_hold_for_both_models_in_the_clean_room(run: Run, net: Path) -> None:
    ran = run("compare", net, net, "--clean", "--runtime-option", "providers=NoneProvider")
    assert ran.code == 2
    assert "NoneProvider" in ran.err


def test_what_differs_in_the_clean_room_is_not_asked_as_shipped(
    run: Run, net: Path, write: Write
) -> None:
    other = write("b.onnx", HEAD + NET.replace("{1, 2, 3", "{1, 2, 9"))
    ran = run("compare", net, other, "--json", "-")
    assert (ran.code, json.loads(ran.out)["as_shipped"]) == (1, None)


@pytest.mark.parametrize("room", [(), ("--clean",)])
def test_an_option_that_the_runtime_lacks_is_refused(
    run: Run, net: Path, room: tuple[str, ...]
) -> None:
    ran = run("compare", net, net, "--runtime-option", "optimisation=all", *room)
    assert ran.code == 2
    assert "optimisation" in ran.err
    assert "optimization" in ran.err


CLIPS = (
    HEAD
    + """g (float[1,4] x) => (float[1,4] y) <float[4,4] w = {
    3, 0, 0, 0,  0, 3, 0, 0,  0, 0, 3, 0,  0, 0, 0, 3}, float top = {100.0}, float low = {0.0}> {
    a = Neg(x)  b = Neg(a)  h = MatMul(b, w)  c = Clip(h, low, top)  y = Softmax(c) }"""
)


def test_samples_with_another_answer_show_the_layer_that_makes_it_other(
    run: Run, write: Write, tmp_path: Path
) -> None:
    # The second model caps values at 2: an answer differs where a larger one is not the first.
    a, b = write("a.onnx", CLIPS), write("b.onnx", CLIPS.replace("100.0", "2.0"))
    small = [[0.1 + k / 100, 0.2, 0.3, 0.4] for k in range(5)]
    large = [[0.7, 0.8 + k / 10, 0.9, 2.0] for k in range(5)]
    for number, values in enumerate([*small, *large]):
        np.savez(tmp_path / f"{number}.npz", x=np.array([values], np.float32))
    ran = run(
        *("compare", a, b, "--dataset", f"files:{tmp_path}", "--limit", 10),
        *("--comparator", "classification", "--layers", "--json", tmp_path / "found.json"),
    )
    assert ran.code == 0, "the first sample shows nothing"
    assert "10 samples, by classification: 5 with the same answer, 5 with another" in ran.out
    found = json.loads((tmp_path / "found.json").read_text())["contrast"]
    first, *others = found["layers"]
    assert first["name"] in ("c", "y")
    assert first["p"] < 1e-3
    assert first["rank_p"] < 0.01
    assert first["similar"] == 0.0 < first["dissimilar"]
    untouched = [la for la in others if la["name"] in ("a", "b", "h")]
    assert {(la["dissimilar"], la["p"]) for la in untouched} == {(0.0, 1.0)}


def test_layers_are_summed_up_by_operator_and_by_type(run: Run, write: Write) -> None:
    a, b = write("a.onnx", CLIPS), write("b.onnx", CLIPS.replace("100.0", "0.25"))
    ran = run("compare", a, b, "--layers", "--seed", 3, "--json", "-")
    found = json.loads(ran.out)
    sums = {each["key"]: (each["layers"], each["differing"]) for each in found["operators"]}
    assert sums == {"Neg": (2, 0), "MatMul": (1, 0), "Clip": (1, 1), "Softmax": (1, 1)}
    assert [(t["key"], t["layers"]) for t in found["dtypes"]] == [("float32", 5)]


def test_json_has_the_statistics_of_every_layer(run: Run, net: Path, write: Write) -> None:
    other = write("b.onnx", HEAD + NET.replace("{1, 2, 3", "{1, 2, 9"))
    ran = run("compare", net, other, "--json", "-")
    found = json.loads(ran.out)
    assert (ran.code, found["schema"], found["diverges_at"]) == (1, "optvet.compare/1", "h")
    (layer,) = (la for la in found["layers"] if la["name"] == "h")
    (weight,) = layer["parameters"]
    assert (weight["name"], weight["max_difference"]) == ("w", 1.0)
    assert layer["activation"]["mean"][0] != layer["activation"]["mean"][1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no model", "is no ONNX file"),
        (HEAD + "g (float[2] p, float[2] q) => (float[2] y) { y = Add(p, q) }", "the inputs x"),
        (HEAD + "g (float[2,3,4] x) => (float[2,3,4] y) { y = Relu(x) }", "does not run"),
        (
            HEAD + "g (int8[2,3] x) => (int8[2,3] y) { y = Identity(x) }",
            "input 'x' is float in the first model, 'x' is int8 in the second",
        ),
    ],
    ids=["garbage", "other-inputs", "other-rank", "other-type"],
)
def test_what_cannot_be_compared_is_refused(
    run: Run, net: Path, write: Write, tmp_path: Path, text: str, words: str
) -> None:
    if text.startswith("<"):
        other = write("b.onnx", text)
    else:
        other = tmp_path / "b.onnx"
        other.write_text(text)
    ran = run("compare", net, other)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
    assert ran.err.count("\n") == 1


@pytest.fixture
def ir(net: Path, tmp_path: Path) -> Path:
    openvino = pytest.importorskip("openvino", reason="needs optvet[openvino]")
    model = openvino.convert_model(net)
    openvino.save_model(model, tmp_path / "b.xml", compress_to_fp16=False)
    return tmp_path / "b.xml"


def test_a_model_of_another_format_is_compared_by_the_values_inside(
    run: Run, net: Path, ir: Path
) -> None:
    ran = run("compare", net, ir, "--json", "-")
    found = json.loads(ran.out)
    assert ran.code == 0
    assert [la["name"] for la in found["layers"]] == [NAME, "h", "y"]
    assert found["diverges_at"] is None


def test_a_difference_inside_of_another_format_is_found(run: Run, write: Write, ir: Path) -> None:
    ran = run("compare", write("c.onnx", HEAD + NET.replace("{1, 2, 3", "{1, 2, 9")), ir)
    assert ran.code == 1
    assert "first difference at h\n" in ran.out


def test_another_format_comes_second(run: Run, net: Path, ir: Path) -> None:
    ran = run("compare", ir, net)
    assert (ran.code, ran.out) == (2, "")
    assert "the first model must be ONNX" in ran.err


def test_a_broken_file_of_another_format_is_refused(run: Run, net: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="needs optvet[openvino]")
    (tmp_path / "b.xml").write_text("<net/>")
    ran = run("compare", net, tmp_path / "b.xml")
    assert (ran.code, ran.out) == (2, "")
    assert "b.xml cannot be compared" in ran.err
