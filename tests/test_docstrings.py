"""Every example in a docstring gives what it shows."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = [
    path.relative_to(ROOT)
    for folder in ("core", "plugins")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_examples_give_what_they_show(path: Path) -> None:
    below = 1 if path.parts[0] == "core" else 2  # plugins/FAMILY
    name = ".".join(path.with_suffix("").parts[below:]).removesuffix(".__init__")
    ran = doctest.testmod(importlib.import_module(name))
    assert ran.attempted
    assert not ran.failed
