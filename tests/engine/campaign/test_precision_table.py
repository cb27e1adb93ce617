"""The table of models × precisions, of answers in files."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import onnx
import onnx.parser
import pytest
from tests.commands import HEAD, Run

pytest.importorskip("onnxruntime", reason="needs optvet[onnxruntime]")

OVERFLOW = (
    HEAD
    + """g (float[1,8] x) => (float[1,8] y)
<float big = {2000}>
{ a = Tanh(x)  b = Mul(a, big)  c = Mul(b, b)  d = Sqrt(c)  e = Div(d, big)  y = Add(e, a) }"""
)


@pytest.mark.release
def test_answers_of_precision_are_rows(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(OVERFLOW), "model.onnx")
    Path("answers").mkdir()
    for precision, more in (("fp16", ["--measure"]), ("bf16", [])):
        options = ("--to", precision, "--limit", "2", "--json", f"answers/{precision}.json")
        ran = run("precision", "model.onnx", *options, *more)
        assert ran.code == 0, ran.err
    assert "time: " in run("precision", "model.onnx", "--limit", "2", "--measure").out
    answer = json.loads(Path("answers/fp16.json").read_text())
    assert answer["timing"]["ratio"] > 0
    ran = run("campaign", "tables", "answers", "--format", "csv")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("model,"))
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[start:]))))
    assert [(r["precision"], r["verdict"], r["kept"], r["of"]) for r in rows] == [
        ("bf16", "nothing-to-keep", "0", "6"),
        ("fp16", "found", "2", "6"),
    ]
    assert (float(rows[1]["time"]) > 0, rows[0]["time"]) == (True, "")
    assert float(rows[1]["list kept"]) <= 0.01
    assert all(float(row["size"]) > 0 for row in rows)
    told = run("campaign", "tables", "answers", "--json", "-")
    assert json.loads(told.out)["tables"][0]["title"] == "Models in each precision"
