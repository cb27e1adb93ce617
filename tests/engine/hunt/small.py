"""A pool of a few fragments, for hunts of seconds; workers import it by name."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from onnx import helper

from optvet.engine.discovery import Plugins
from optvet.plugin import Fragment, Pattern, PoolRequest, Traits
from optvet.testing import Planted

NUMBERS = np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)


class SmallPool:
    """Relu, Neg, Add and MatMul."""

    name = "small"
    needs_argument = False

    def fragments(self, request: PoolRequest) -> Iterable[Fragment | Pattern]:
        """One fragment for each operator."""
        outputs = {"y": NUMBERS}
        for kind in ("Relu", "Neg", "Exp"):
            yield _fragment(kind, {"x": NUMBERS}, outputs)
        yield _fragment("Add", {"x": NUMBERS, "b": NUMBERS[:1]}, outputs)
        square = {"y": NUMBERS[:, :2]}
        yield _fragment("MatMul", {"x": NUMBERS, "w": NUMBERS.T.copy()[:, :2]}, square)
        yield Pattern(("Neg", "Relu"), "drop_relu")


def _fragment(kind: str, inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> Fragment:
    node = helper.make_node(kind, list(inputs), ["y"])
    return Fragment(kind, (node,), inputs, outputs, {"ai.onnx": 17})


def plugins_with(*passes: str, repeatable: bool = True) -> Plugins:
    """All plugins, the pool, and a planted optimizer with these passes."""
    traits = Traits(repeatable=repeatable)
    planted = Planted(default=passes, offered=passes, traits=traits)
    return Plugins().register("generator", SmallPool()).register("optimizer", planted)
