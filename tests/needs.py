"""Libraries that tests need: looking for one is quicker than importing it in each worker."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(module: str, *, reason: str) -> None:
    """Skip the tests of the file that calls this unless there is ``module``."""
    if find_spec(module) is None:
        pytest.skip(reason, allow_module_level=True)
