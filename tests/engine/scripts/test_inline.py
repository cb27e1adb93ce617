"""Short scripts of issues: which of them show a finding."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from optvet.engine.scripts.context import ReproContext
from optvet.engine.scripts.inline import _try_script
from optvet.spec.symptoms import Symptom

TRY = """import sys
try:
    {call}
except Exception as error:
    print(f"actual: {{type(error).__name__}}: {{error}}")
    sys.exit(1)
"""


@pytest.mark.parametrize(
    ("call", "shows"),
    [
        ("raise RuntimeError('no kernel')", True),
        ("raise ImportError('the session runs without a GPU')", False),
        ("import a_library_that_is_missing", False),
        ("sys.exit(1)", False),
        ("pass", False),
    ],
)
def test_a_script_whose_library_is_missing_shows_nothing(call: str, shows: bool) -> None:
    context = cast(ReproContext, SimpleNamespace(symptom=Symptom.LOAD_FAILURE, timeout_s=1.0))
    assert (_try_script(TRY.format(call=call), context) is not None) is shows
