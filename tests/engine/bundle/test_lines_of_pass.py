"""The lines of a pass's code that an issue names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import onnx.parser
import pytest
from pydantic import BaseModel

from optvet.engine.bundle.lines_of_pass import MOST, suspected_lines
from optvet.engine.discovery import Plugins
from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.trials.building import BuildSpec
from optvet.spec.errors import ContractError
from optvet.spec.optimizer_protocols import Optimizer
from optvet.testing import Planted

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
CHAIN = f"{HEAD} g (float[2] x) => (float[2] y) {{ a = Relu(x) y = Abs(a) }}"
CAST = f"""{HEAD} g (int64[1] x) => (int64[n] y) {{
    t = ConstantOfShape<value: tensor = float[1] {{1}}>(x)  y = Cast<to = 7>(t) }}"""
CLIP = f"{HEAD} g (float[2] x) => (float[2] y) {{ a = Clip(x) y = Clip(a) }}"
DROPOUT = f"{HEAD} g (float[2] x) => (bool[2] m) {{ a = Abs(x) b, m = Dropout(a) }}"
GELU = f"""{HEAD} g (float[2,3] x) => (float[1,2,3] y)
    <float[1,1,1] r = {{1.4142135}}, float one = {{1}}, float half = {{0.5}}> {{
    a = Div(x, r)  b = Erf(a)  c = Add(b, one)  d = Mul(x, c)  y = Mul(d, half) }}"""


class Told(Planted):
    """Says where its passes are."""

    def code_of(self, name: str, options: BaseModel) -> Sequence[str]:
        return ["optvet.testing.optimizers"]


class Wrong(Planted):
    """Does not say so in the form of the protocol."""

    def code_of(self, name: str, options: BaseModel) -> Sequence[str]:
        return [3]  # type: ignore[list-item]  # the mistake


def lines(optimizer: Optimizer, name: str, text: str, folder: Path) -> str:
    data = onnx.parser.parse_model(text).SerializeToString()
    blob = folder / "model.onnx"
    blob.write_bytes(data)
    passes, digest = (name,), hashlib.sha256(data).hexdigest()
    build_spec = BuildSpec(blob, digest, optimizer, optimizer.options, passes)
    with Sandbox(jobs=1, preload=optimizer.preload) as sandbox:
        outcome = sandbox.call(suspected_lines, build_spec)
    if outcome.failure is not None:
        raise ContractError(outcome.failure.message)
    return outcome.value or ""


def test_the_lines_that_rewrite_are_told_with_file_and_number(tmp_path: Path) -> None:
    told = lines(Told(), "drop_relu", CHAIN, tmp_path)
    file, *rows = told.split("\n")
    assert file == "optvet/testing/optimizers.py"
    code = (Path(__file__).parents[3] / "core" / file).read_text().split("\n")
    numbered = [row for row in rows if "…" not in row]
    for row in numbered:
        number, text = re.fullmatch(r" *(\d+) ?(.*)", row).groups()  # type: ignore[union-attr]
        assert code[int(number) - 1] == text
    assert any(row.endswith("node.op_type = now") for row in numbered)


def test_a_pass_without_code_or_effect_has_no_lines(tmp_path: Path) -> None:
    assert lines(Planted(), "drop_relu", CHAIN, tmp_path) == ""
    with pytest.raises(ContractError, match="expected names of modules"):
        lines(Wrong(), "drop_relu", CHAIN, tmp_path)


@pytest.mark.parametrize(
    ("name", "rule", "text", "file", "line"),
    [
        (
            "onnxscript",
            "cast_constant_of_shape_without_value_rule",
            CAST,
            "onnxscript/rewriter/rules/common/_cast_constant_of_shape.py",
            "zero = ir.tensor([0]",
        ),
        # It raises an exception.
        (
            "onnxscript",
            "successive_clip_rule",
            CLIP,
            "onnxscript/rewriter/rules/common/_fuse_relus_clips.py",
            "self.extract_min_max(first_clip_node)",
        ),
        (
            "onnxslim",
            "dead_node_elimination",
            DROPOUT,
            "onnxslim/core/optimization/dead_node_elimination.py",
            "node.erase()",
        ),
        ("ort_transformers", "enable_gelu", GELU, "fusion_gelu.py", '"Gelu", inputs=['),
    ],
)
def test_libraries_in_python_are_told_apart_from_their_machinery(
    name: str, rule: str, text: str, file: str, line: str, tmp_path: Path
) -> None:
    pytest.importorskip("sympy" if name == "ort_transformers" else name)
    told = lines(Plugins().optimizer(name), rule, text, tmp_path)
    assert told.startswith(f"{file}\n")
    assert line in told
    assert len(told.split("\n")) <= MOST + 1
