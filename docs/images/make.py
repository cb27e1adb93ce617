# ruff: noqa: INP001 -- a script, in no package
"""Makes docs/images/vet.svg: the screen of one real run.

Run it again whenever the screen changes: python docs/images/make.py

The model is a small one with two real bugs of ONNX Optimizer 0.4.2: it folds a Pad into the Conv
that follows without regard to ``axes``, and it expects every Transpose before a Gemm to have a
``perm``.
"""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path

import onnx.parser
from rich.console import Console
from rich.text import Text

import optvet
from optvet import VetRequest
from optvet.cli import render

MODEL = """
<ir_version: 8, opset_import: ["" : 18]>
detector (float[1,2,6,6] image, float[1,3] embedding) => (float[1,2,7,7] map, float[3,4] scores)
<int64[8] pads = {0,0,1,0,0,0,0,1}, int64[4] axes = {0,1,3,2}, float zero = {0}>
{
  padded = Pad(image, pads, zero, axes)
  weights = Constant<value = float[2,2,1,1] {1, 2, 3, 4}>()
  map = Conv(padded, weights)
  column = Transpose(embedding)
  row = Constant<value = float[1,4] {1, 2, 3, 4}>()
  scores = Gemm(column, row)
}
"""


def main() -> None:
    """Vet the model and write the picture of what the terminal shows."""
    picture = Path(__file__).with_name("vet.svg").resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        onnx.save(onnx.parser.parse_model(MODEL), "detector.onnx")
        result = optvet.vet("detector.onnx", cache=False, cache_dir=folder)
    console = Console(
        file=io.StringIO(), record=True, width=80, force_terminal=True, color_system="truecolor"
    )
    asked = VetRequest(model="detector.onnx")
    console.print(Text("$ optvet vet detector.onnx"))
    for part in (
        render.headline(result),
        *render.screen(result, asked),
        render.next_command(result, asked),
    ):
        console.print(part, highlight=False, soft_wrap=isinstance(part, Text))
    console.save_svg(str(picture), title="optvet vet", unique_id="optvet")


if __name__ == "__main__":
    main()
