"""What the server of a sandbox imports for a vet, and what it leaves to its caller."""

from __future__ import annotations

import subprocess
import sys

from optvet.engine.discovery import Plugins
from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.trials.server_modules import preload_for

_FOR_CALLERS = ("optvet.spec.hooks", "optvet.spec.studies", "optvet.cli")
_FOR_SERVERS = "optvet.engine.work.trials.preload"


_LIST = "list(__import__('sys').modules)"
"""A function of this module would import what the module imports."""


def test_a_server_imports_tasks_and_plugins_but_no_hook_specification() -> None:
    plugins = Plugins()
    preload = preload_for(plugins.optimizer("onnxoptimizer"), plugins.reference_runtime())
    with Sandbox(jobs=1, preload=preload) as sandbox:
        found = sandbox.call(eval, _LIST).value
    assert found is not None
    assert {_FOR_SERVERS, "optvet_onnxoptimizer", "onnxruntime"} <= set(found)
    assert [name for name in found if name.startswith(_FOR_CALLERS)] == []


def test_who_asks_for_the_names_imports_none_of_the_modules() -> None:
    code = (
        f"import sys; import optvet.engine.vet.session; sys.exit({_FOR_SERVERS!r} in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
