"""The rewrite rules and transformers that the installed ONNX Runtime has, with their levels."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from onnx import TensorProto, helper

from optvet_onnxruntime.pass_log import TRANSFORMER_DONE, optimization_log
from optvet_onnxruntime.pass_names import MANDATORY_PASSES, RULE_SETS, TRANSFORMERS

_LEVEL = re.compile(r"Applying \d+ graph transformer\(s\) for level (\d+)")

PassRow = tuple[str, int, str]
"""Name and level of a pass, and "rule" or "transformer"."""


@functools.lru_cache(maxsize=1)
def list_installed() -> tuple[PassRow, ...]:
    """A row for every pass of the installed binary."""
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Identity", ["x"], ["y"])],
            "tiny",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        ),
        ir_version=7,
        opset_imports=[helper.make_opsetid("", 13)],
    )
    found: dict[str, PassRow] = {}
    level = 0
    everything = {"level": 4, "disabled": [], "config": {}}
    for line in optimization_log(model.SerializeToString(), everything).splitlines():
        if begins := _LEVEL.search(line):
            level = int(begins[1])
        elif (done := TRANSFORMER_DONE.search(line)) and level:
            _add(found, done[1], level)
    logged = bool(found)
    if not logged:
        # Before 1.17 the log names nothing: the table, as far as the binary knows its names.
        for number, names in TRANSFORMERS.items():
            for name in (f"Level{number}_RuleBasedTransformer", *names):
                _add(found, name, number)
    binary = _binary()
    return tuple(
        p for p in found.values() if (logged and p[2] != "rule") or p[0].encode() in binary
    )


def _add(found: dict[str, PassRow], name: str, level: int) -> None:
    if name in RULE_SETS:
        for rule in RULE_SETS[name]:
            found.setdefault(rule, (rule, level, "rule"))
    elif name not in MANDATORY_PASSES and "_RuleBasedTransformer" not in name:
        found.setdefault(name, (name, level, "transformer"))


def _binary() -> bytes:
    import onnxruntime

    folder = Path(onnxruntime.__file__).parent / "capi"
    return b"".join(p.read_bytes() for p in folder.glob("onnxruntime_pybind11_state*.so"))
