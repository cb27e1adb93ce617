"""Native code of onnx reads no foreign model in the process of a command: a model may crash it."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import onnx
import onnx.onnx_cpp2py_export as native
import onnx.parser
import pytest
from tests.assault.harness import NET, numbers
from tests.commands import FAULTY, Run, run

from optvet.engine.known.documents import shipped

__all__ = ["run"]
MODULES = ("checker", "inliner", "parser", "printer", "shape_inference", "version_converter")
CALLED = f"""<ir_version: 8, opset_import: ["": 17, "d": 1]>
g (float[4,8] x) => (float[4,3] y)
<float[8,5] w = {numbers(8, 5)}, float[5,3] v = {numbers(5, 3, seed=1)}>
{{ h = MatMul(x, w)  r = d.F(h)  y = MatMul(r, v) }}
<domain: "d", opset_import: ["" : 17]> F (p) => (q) {{ q = Relu(p) }}"""
"""A model with a function, which some readers inline."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with models."""
    monkeypatch.chdir(tmp_path)
    for name, text in {"net": NET, "called": CALLED, "faulty": FAULTY}.items():
        onnx.save(onnx.parser.parse_model(text), tmp_path / f"{name}.onnx")
    edit = {"operation": "set-input", "node": "y", "index": 0, "value": "hidden"}
    edits = [{"kind": "parameter", "about": "y", "operations": [edit]}]
    patch = {"schema": "optvet.patch/1", "digest": "", "edits": edits}
    (tmp_path / "patch.json").write_text(json.dumps(patch))
    return tmp_path


@pytest.fixture
def calls(place: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls of native code in this process, with where they come from; workers have their own."""
    shipped()  # Documents that come with optvet are read here, and once.
    found: list[str] = []

    def watched(name: str, function: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            frames = [f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_stack()[-6:-1]]
            found.append("\n".join([name, *frames]))
            return function(*given, **named)

        return call

    for module in MODULES:
        space = getattr(native, module)
        for name, function in list(vars(space).items()):
            if callable(function) and not isinstance(function, type):
                monkeypatch.setattr(space, name, watched(f"{module}.{name}", function))
    return found


def test_a_call_is_noticed(calls: list[str]) -> None:
    onnx.checker.check_model(onnx.load("net.onnx"))
    onnx.shape_inference.infer_shapes(onnx.load("net.onnx"))
    assert [call.partition("\n")[0] for call in calls] == [
        "checker.check_model",
        "shape_inference.infer_shapes",
    ]


VET = ("vet", "--limit", 1, "--quiet")


@pytest.mark.parametrize(
    "commands",
    [
        [(*VET, "called.onnx", "--explain", "--structure", "--save", "safe.onnx")],
        [(*VET, "called.onnx", "--optimizer", "ort_fp16", "--save", "safe.onnx")],
        [(*VET, "faulty.onnx", "--reduce", "--out", "b"), ("replay", "b")],
        [("precision", "net.onnx", "--to", "fp16", "--limit", 1, "--out", "half.onnx")],
        [("precision", "net.onnx", "--to", "int8", "--limit", 1)],
        [("reduce", "called.onnx", "--check", "test -f {model}", "--out", "small.onnx")],
        [("compare", "net.onnx", "called.onnx", "--limit", 1)],
        [("advise", "called.onnx"), ("models", "show", "./called.onnx")],
        [("models", "pull", "./called.onnx")],
        [("repair", "net.onnx", "--apply", "patch.json", "--out", "r")],
        [("repair", "net.onnx", "--via", "onnx_version", "--out", "r")],
        [("convert", "called.onnx", "--via", "onnx_version", "--reduce", "r")],
        [("bench", "called.onnx", "--repeats", 5)],
    ],
    ids=lambda commands: " ".join(map(str, commands[0][:6])),
)
def test_no_command_lets_native_code_read_a_model(
    run: Run, calls: list[str], commands: list[tuple[object, ...]]
) -> None:
    for words in commands:
        ran = run(*words)
        assert ran.code in (0, 1), (ran.out, ran.err)
    assert calls == []
