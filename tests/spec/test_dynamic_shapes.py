"""Sizes that may change, as PyTorch's exporter takes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from optvet.plugin import Artifact, Factory, load_factory

SOURCE = """
import enum
import numpy as np


class Dim:
    def __init__(self, name):
        self.__name__ = name


class Hint(enum.Enum):
    AUTO = 1
    STATIC = 2


def model():
    return lambda x, y: x


example_inputs = (np.ones((2, 3)), np.ones((2, 4)))
dynamic_shapes = {shapes}
"""


@pytest.mark.parametrize(
    ("shapes", "dynamic"),
    [
        ('{"x": {0: Dim("batch")}, "y": {0: "batch"}}', {"x": {0: "batch"}, "y": {0: "batch"}}),
        ("({0: Hint.AUTO, 1: Hint.STATIC}, None)", {"x": {0: "x_0"}}),
        ('{"y": (None, Dim("n"))}', {"y": {1: "n"}}),
        ("None", {}),
    ],
)
def test_axes(tmp_path: Path, shapes: str, dynamic: dict[str, dict[int, str]]) -> None:
    file = tmp_path / "net.py"
    file.write_text(SOURCE.replace("{shapes}", shapes))
    artifact = Artifact("any", path=file, handle=Factory("model"))
    assert load_factory(artifact).facts.dynamic == dynamic
