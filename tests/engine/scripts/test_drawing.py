"""Scripts that compare the distributions of random outputs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from optvet.engine.scripts.drawing import seeded

SCRIPT = """
import random, sys
import numpy as np
from optvet.engine.scripts.drawing import find_difference, save_draw

if sys.argv[1:2] == ["draw"]:
    side, file = sys.argv[2:]
    value = {original} if side == "original" else 0.5
    sys.exit(save_draw(file, {{"y": np.array([value])}}, ["y"]))
print(find_difference({{"original": None, "optimized": None}}, None, ["y"], [(4, 0.1)]))
"""


@pytest.mark.parametrize(
    ("original", "words"),
    # All numbers are above the 0.5 of the other model, so that chance does not choose the words.
    [
        ("random.uniform(0.6, 1)", "'y': its share of values up to 0.5 has another distribution"),
        pytest.param("0.5", "", marks=pytest.mark.long),
    ],
)
def test_models_that_take_no_seeds_are_run_in_new_processes(
    tmp_path: Path, original: str, words: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(original=original))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.strip().startswith(words)
    assert bool(done.stdout.strip()) == bool(words)


def test_operators_that_share_a_seed_share_one_in_the_copy() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x, bool c) => (float[2] y, float[2] z) {
            a = RandomNormalLike <seed = 3.0> (x)
            b = RandomNormalLike <seed = 3.0> (x)
            d = RandomNormalLike (x)
            y = Sub(a, b)
            e = If (c) <
                then_branch = t () => (float[2] u) { u = Bernoulli(x) },
                else_branch = f () => (float[2] v) { v = Identity(x) }
            >
            z = Sum(d, e)
        }""")
    copy = seeded(model, 1)
    assert copy is not None
    nodes = [n for n in copy.graph.node if n.op_type.startswith("Random")]
    (branch,) = (n for n in copy.graph.node if n.op_type == "If")
    inner = branch.attribute[0].g.node[0]
    first, second, third = (onnx.helper.get_node_attr_value(n, "seed") for n in nodes)
    assert first == second != third
    assert onnx.helper.get_node_attr_value(inner, "seed") not in (0, first, third)
    other = seeded(model, 2)
    assert other is not None
    assert onnx.helper.get_node_attr_value(other.graph.node[0], "seed") != first
