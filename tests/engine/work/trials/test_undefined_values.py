"""What the standard leaves open, by the values of a run."""

from collections.abc import Callable

import numpy as np
import onnx.parser
import pytest

from optvet.engine.discovery import Plugins
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.undefined_values import refusable, unanswered, undefined_on

_LOOP = """<ir_version: 8, opset_import: ["" : 17]>
g (int32 x, int32 n) => (int32 y) <int64 count = {{3}}, bool yes = {{1}}, int32 one = {{1}}> {{
    y, rest = Loop(count, yes, x, n) <body = b(int64 i, bool c, int32 a, int32 k)
        => (bool again, int32 r, int32 less) {{
        again = Identity(c)
        r = {}(a, k)
        less = Sub(k, one)
    }}>
}}"""

_SCAN = """<ir_version: 8, opset_import: ["" : 17]>
g (uint32 x, uint32[3] d) => (uint32 y, uint32[3] all) {{
    y, all = Scan<num_scan_inputs = 1{}, body = b(uint32 a, uint32 k) => (uint32 r, uint32 s) {{
        m = Add(k, k)
        r = BitShift<direction = "LEFT">(a, m)
        s = Identity(r)
    }}>(x, d)
}}"""


def _config(name: str) -> RuntimeConfig:
    runtime = Plugins().runtime(name)
    return RuntimeConfig(runtime, runtime.options)


@pytest.mark.parametrize(("divisor", "words"), [(2, "Div 'r': integers divided by 0"), (3, "")])
@pytest.mark.parametrize("question", [refusable, unanswered])
def test_a_division_inside_of_a_loop_is_open_where_a_divisor_is_0(
    question: Callable[..., str], divisor: int, words: str
) -> None:
    # 2, 1, 0 are the divisors, or 3, 2, 1.
    data = onnx.parser.parse_model(_LOOP.format("Div")).SerializeToString()
    feeds = {"x": np.array(7, np.int32), "n": np.array(divisor, np.int32)}
    assert question(data, feeds, _config("onnx_reference")) == words


@pytest.mark.parametrize(("bits", "found"), [(32, 1), (31, 0)])
@pytest.mark.parametrize("runtime", ["onnx_reference", "onnxruntime"])
def test_values_in_a_loop_that_runs_are_looked_at(runtime: str, bits: int, found: int) -> None:
    text = _LOOP.format('BitShift<direction = "LEFT">').replace("int32", "uint32")
    feeds = {"x": np.array(7, np.uint32), "n": np.array(bits, np.uint32)}
    assert len(undefined_on(_config(runtime), onnx.parser.parse_model(text), feeds)) == found


@pytest.mark.parametrize(
    ("runtime", "how"),
    [
        ("onnx_reference", ""),
        ("onnxruntime", ""),
        ("onnxruntime", ", scan_output_axes = [0], scan_output_directions = [1]"),
    ],
)
@pytest.mark.parametrize(("last", "found"), [(16, 1), (15, 0)])
def test_values_in_a_scan_are_looked_at(runtime: str, how: str, last: int, found: int) -> None:
    model = onnx.parser.parse_model(_SCAN.format(how))
    feeds = {"x": np.array(7, np.uint32), "d": np.array([1, 2, last], np.uint32)}
    assert len(undefined_on(_config(runtime), model, feeds)) == found
