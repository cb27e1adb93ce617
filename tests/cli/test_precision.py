"""``optvet precision``: what is shown, written and refused."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest
from tests.commands import HEAD, Run

pytest.importorskip("onnxruntime", reason="needs optvet[onnxruntime]")

OVERFLOW = (
    HEAD
    + """g (float[1,8] x) => (float[1,8] y)
<float big = {2000}>
{ a = Tanh(x)  b = Mul(a, big)  c = Mul(b, b)  d = Sqrt(c)  e = Div(d, big)  y = Add(e, a) }"""
)
Write = Callable[[str, str], Path]


def test_the_answer_is_shown_written_and_replayed(
    run: Run, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write("model.onnx", OVERFLOW)
    ran = run("precision", "model.onnx", "--limit", "4", "--out", "mixed.onnx", "--json", "a.json")
    assert ran.code == 0, ran.err
    assert "KEEP 2 OF 6" in ran.out
    assert "rounding is emulated" in " ".join(ran.out.split())
    assert "node_block_list=['Mul_1', 'Sqrt_0']" in ran.out
    answer = json.loads(Path("a.json").read_text())
    assert [part["name"] for part in answer["kept"]] != []
    assert [point["kept"] for point in answer["curve"]] == [0, 1, 2, 6]
    onnx.checker.check_model(onnx.load("mixed.onnx"), full_check=True)
    picture = ("--plot", "curve.svg") if find_spec("matplotlib") is not None else ()
    again = run("precision", "model.onnx", *picture, "--config", "precision.toml")
    assert again.code == 0, again.err
    assert "KEEP 2 OF 6" in again.out
    if picture:
        drawn = Path("curve.svg").read_text()
        assert "2 of 6 kept" in drawn
        assert "max_change" in drawn
    less = run("precision", "model.onnx", "--limit", "4", "--keep", "Mul_1")
    assert less.code == 1
    assert "NOT MET" in less.out


@pytest.mark.long
def test_a_form_for_another_tool_is_all_that_is_printed(run: Run, write: Write) -> None:
    model = write("model.onnx", OVERFLOW)
    ran = run("precision", model, "--limit", "4", "--recipe", "polygraphy")
    assert ran.code == 0, ran.err
    assert "'Mul_1'" in ran.out
    compile(ran.out, "postprocess.py", "exec")
    sound = write("sound.onnx", HEAD + "g (float[1,8] x) => (float[1,8] y) { y = Tanh(x) }")
    ran = run("precision", sound, "--limit", "4", "--recipe", "autocast")
    assert (ran.code, ran.out) == (0, "")
    assert "all 1 can be converted" in ran.err


@pytest.mark.long
def test_sums_are_accumulated_as_asked(run: Run, write: Write) -> None:
    text = (
        HEAD + "g (float[1,4096] x) => (float[1,1] y) { a = Exp(x)  b = Sign(a)  y = ReduceSum(b) }"
    )
    model = write("sum.onnx", text)
    ran = run("precision", model, "--limit", "1")
    assert ran.code == 0, ran.err
    assert "KEEP NOTHING" in ran.out
    ran = run("precision", model, "--limit", "1", "--accumulate", "fp16", "--sum-block", "1")
    assert ran.code == 0, ran.err
    assert "KEEP 1 OF 3" in ran.out
    said = " ".join(ran.out.split())
    assert "sums of 1 ReduceSum are rounded to fp16 after each product" in said


@pytest.mark.long
def test_a_vet_of_a_quantizer_shows_few_lists_and_leads_to_this_command(
    run: Run, write: Write
) -> None:
    weights = ", ".join(
        f"float[4,2] w{i} = {{{', '.join('1.1 -0.7'.split() * 4)}}}" for i in range(5)
    )
    nodes = "  ".join(f"y{i} = MatMul(x, w{i})" for i in range(5))
    outputs = ", ".join(f"float[1,2] y{i}" for i in range(5))
    model = write("five.onnx", HEAD + f"g (float[1,4] x) => ({outputs}) <{weights}> {{ {nodes} }}")
    options = ("--optimizer", "ort_dynamic_quantizer", "--option", "tolerance=0.000001")
    ran = run("vet", model, *options)
    assert ran.code == 1, ran.err
    assert "… 2 more lists of nodes that are too much to convert" in ran.out
    assert ran.out.count("wrong-output") == 3
    (line,) = [line for line in ran.out.splitlines() if line.startswith("next")]
    words = f"optvet precision {model} --to int8-dynamic --optimizer ort_dynamic_quantizer"
    assert line.split(maxsplit=1)[1].startswith(words)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--to", "fp15"), "unknown precision for --to 'fp15'"),
        (("--keep", "no_such"), "no_such"),
        (("--require", "bogus>=1"), "there is no metric 'bogus'"),
        (("--optimizer", "onnxoptimizer"), "converts to no other precision"),
        (("--optimizer-option", "by=colour"), "by"),
        (("--to", "int8", "--option", "inputs=no.npz"), "No such file"),
        (("--out", "no/such/folder.onnx"), "does not exist"),
        (("--accumulate", "bf16"), "--accumulate bf16, where --to is fp16: give fp32 or fp16"),
        (("--to", "int8", "--accumulate", "int8"), "its sums are not of a half type"),
        (("--recipe", "none"), "known: autocast, node_block_list, polygraphy"),
    ],
)
def test_what_is_wrong_is_refused_before_the_work(
    run: Run, write: Write, arguments: tuple[str, ...], says: str
) -> None:
    ran = run("precision", write("model.onnx", OVERFLOW), *arguments)
    assert ran.code == 2
    assert says in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_a_model_without_floats_is_refused(run: Run, write: Write) -> None:
    text = HEAD + "g (int64[2] x) => (int64[2] y) { y = Add(x, x) }"
    ran = run("precision", write("whole.onnx", text))
    assert ran.code == 2
    assert "can convert no node of it to fp16" in ran.err


def test_the_list_is_python_at_any_width_and_made_up_inputs_are_told(
    run: Run, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("model.onnx", OVERFLOW)
    model = onnx.load(path)
    for node in model.graph.node:
        node.name = f"features/block 3;{'batch_normalization/' * 4}{node.op_type}_{node.output[0]}"
    onnx.save(model, path)
    monkeypatch.setenv("COLUMNS", "60")
    ran = run("precision", path, "--limit", "4")
    assert ran.code == 0, ran.err
    listed, bracket, _ = ran.out.partition("node_block_list=")[2].partition("\n]")
    pasted = ast.literal_eval(listed + bracket)
    assert len(pasted) == 2
    assert set(pasted) < {node.name for node in model.graph.node}
    assert "random noise, no data of the task: give yours with --dataset" in " ".join(
        ran.out.split()
    )
