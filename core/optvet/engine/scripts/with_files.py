"""``repro.py`` of a bundle: a script that reproduces the finding from the files of its folder.

The script is meant to be read: it contains the call that fails.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from optvet.engine.judge import dependence, distribution
from optvet.engine.judge.random_outputs import PROOF
from optvet.engine.scripts import drawing
from optvet.engine.scripts.context import ReproContext
from optvet.engine.scripts.rendering import render
from optvet.engine.work.trials.inference import graph_output_of
from optvet.spec.extras import PluginExtras, extras, given
from optvet.spec.requirement import Requirement
from optvet.spec.runtime_protocols import RuntimeExtras

_IMPORT = re.compile(r"^from optvet\.engine\.judge\.(?=distribution |dependence )", re.MULTILINE)
_TEST_MODULES = (drawing, distribution, dependence)
"""What lies beside a script that compares distributions."""


def modules_beside(context: ReproContext) -> Mapping[str, str]:
    """Texts of the modules that ``repro.py`` imports from its folder, by file name."""
    if not context.random:
        return {}
    files = [Path(module.__file__ or "") for module in _TEST_MODULES]
    return {f.name: _IMPORT.sub("from ", f.read_text("utf-8")) for f in files}


def script(context: ReproContext) -> str:
    """The text of ``repro.py``."""
    plugins = (context.optimizer, context.runtime)
    wanted = [extras(p, PluginExtras).environment for p in plugins]
    run = given(context.runtime, RuntimeExtras.snippet)
    return render(
        "repro.py",
        context=context,
        environment=sorted({k: v for each in wanted for k, v in each.items()}.items()),
        run=run(context.runtime_options)
        if run and context.is_explained
        else _run_by_plugin(context),
        looks=PROOF,
        metric=isinstance(context.required, Requirement),
        in_parts=any(graph_output_of(name) != name for name in context.outputs),
    )


def _run_by_plugin(context: ReproContext) -> str:
    options = context.runtime_options.model_dump(mode="json")
    return f"""
from optvet.plugin import Artifact
from optvet.engine.discovery import Plugins

if not isinstance(model, Artifact):
    data = model if isinstance(model, bytes) else model.SerializeToString()
    model = Artifact("onnx", data)
runtime = Plugins().runtime({context.runtime.name!r})
options = type(runtime.options).model_validate({options!r})
return runtime.load(model, options).run(feeds)
"""
