"""What a server of a sandbox imports last: the tasks of trials, and ONNX's table of operators."""

from __future__ import annotations

import onnx.defs

import optvet.engine.work.trials.candidate
import optvet.engine.work.trials.trial  # noqa: F401  (tasks are functions of these two)

# ONNX registers its operators when it is first asked for one: 20 ms that every worker would take.
onnx.defs.has("Identity")
