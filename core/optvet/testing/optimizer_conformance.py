"""Does an optimizer keep the contract that the engine relies on?"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

import onnx
import onnx.checker
import onnx.parser

from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.trials.server_modules import preload_for
from optvet.spec.errors import Unsupported
from optvet.spec.extras import extras, given
from optvet.spec.optimizer_protocols import Optimizer, OptimizerExtras
from optvet.spec.types import Artifact, Pass
from optvet.testing.conformance import FEEDS, LIMITS, check_common, require, tiny_models, value_of

UNKNOWN_PASS = "no_such_pass_of_any_optimizer"


def check_optimizer(optimizer: Optimizer) -> None:
    """Check that ``optimizer`` keeps the contract; raises AssertionError where it does not."""
    check_common(optimizer, Optimizer, "an optimizer")
    optimizer = extras(optimizer, OptimizerExtras).configured(optimizer.options)
    require(
        optimizer,
        optimizer.traits.consumes == "onnx",
        f"takes {optimizer.traits.consumes}; this suite has models in ONNX alone",
    )
    passes = optimizer.passes()
    _check_passes(optimizer, passes)
    _check_pipelines(optimizer, passes)
    preload = (*preload_for(optimizer), __name__)
    with Sandbox(jobs=1, limits=LIMITS, preload=preload) as sandbox:
        _check_application(optimizer, sandbox)


def _check_passes(optimizer: Optimizer, passes: Sequence[Pass]) -> None:
    twice = sorted(n for n, count in Counter(p.name for p in passes).items() if count > 1)
    require(optimizer, not twice, f"pass names must be unique; {twice} are not")
    for p in passes:
        require(
            optimizer,
            p.name == p.name.strip() != "" and "," not in p.name,
            f"pass name {p.name!r} must have no blanks around it and no comma",
        )
        require(
            optimizer,
            p.lossy == (p.tolerance is not None),
            f"pass {p.name!r}: a lossy pass declares a tolerance, and no other pass does",
        )
    again = [p.name for p in optimizer.passes()]
    require(optimizer, again == [p.name for p in passes], "passes() must not change between calls")


def _check_pipelines(optimizer: Optimizer, passes: Sequence[Pass]) -> None:
    pipelines = optimizer.pipelines()
    require(optimizer, "default" in pipelines, 'one of pipelines() must be named "default"')
    known = {p.name for p in passes}
    required = {p.name for p in passes if p.required}
    for name, pipeline in pipelines.items():
        foreign = sorted(set(pipeline) - known)
        require(optimizer, not foreign, f"pipeline {name!r} has passes it does not list: {foreign}")
        missing = sorted(required - set(pipeline))
        require(optimizer, not missing, f"pipeline {name!r} lacks the required {missing}")
        twice = sorted(n for n, count in Counter(pipeline).items() if count > 1)
        require(
            optimizer,
            not twice or optimizer.traits.repeatable,
            f"pipeline {name!r} lists {twice} twice, but traits.repeatable is False",
        )
    default, flagged = set(pipelines["default"]), {p.name for p in passes if p.default}
    require(
        optimizer,
        default == flagged,
        "Pass.default must say what the default pipeline has; they differ in "
        f"{sorted(default ^ flagged)}",
    )


def _check_application(optimizer: Optimizer, sandbox: Sandbox) -> None:
    required = tuple(p.name for p in optimizer.passes() if p.required)
    default = tuple(optimizer.pipelines()["default"])
    for model, data in tiny_models().items():
        for what, passes in (("no optional pass", required), ("the default pipeline", default)):
            title = f"apply(model {model!r}, {what})"
            first = value_of(
                optimizer, title, sandbox.call(_apply_twice, optimizer, data, passes, fresh=True)
            )
            other = value_of(
                optimizer, title, sandbox.call(_apply_twice, optimizer, data, passes, fresh=True)
            )
            _check_artifacts(optimizer, title, [*first, *other])
    data = tiny_models()["affine"]
    if given(optimizer, OptimizerExtras.snippet):
        _check_snippets(optimizer, data, sandbox)
    outcome = sandbox.call(_apply_twice, optimizer, data, (*required, UNKNOWN_PASS))
    require(
        optimizer,
        outcome.failure is not None,
        f"apply ignores the unknown pass {UNKNOWN_PASS!r} without a word; raise an exception, "
        "else a misspelt pass is vetted as harmless",
    )


def _check_snippets(optimizer: Optimizer, data: bytes, sandbox: Sandbox) -> None:
    for_model = extras(optimizer, OptimizerExtras).for_model
    optimizer = for_model(Artifact("onnx", data), optimizer.options)
    required = tuple(p.name for p in optimizer.passes() if p.required)
    for passes in (required, tuple(optimizer.pipelines()["default"])):
        _check_snippet(optimizer, data, passes, sandbox)


def _check_snippet(
    optimizer: Optimizer, data: bytes, passes: Sequence[str], sandbox: Sandbox
) -> None:
    may = extras(optimizer, OptimizerExtras)
    title = f"snippet({list(passes)})"
    code = may.snippet(passes, optimizer.options)
    require(
        optimizer,
        "optvet" not in code,
        f"{title} uses optvet; it is for people who have the optimizer's own library alone",
    )
    applied = sandbox.call(_apply_twice, optimizer, data, passes, fresh=True)
    if applied.failure is not None and applied.failure.error_type.endswith(
        f".{Unsupported.__name__}"
    ):
        return  # An option that has no default is needed: neither can be run without it.
    again = value_of(optimizer, title, sandbox.call(_run_snippet, code, data, fresh=True))
    if optimizer.traits.produces == "onnx":
        title = f"{title} and apply"
        (artifact, _) = value_of(optimizer, title, applied)
        same = _with_sorted_nodes(again) == _with_sorted_nodes(artifact.data)
        require(optimizer, same, f"{title} make different models; the snippet must do the same")
    for code in may.simple_snippets(passes, optimizer.options):
        what = f"simple_snippets({list(passes)}): {code!r}"
        value_of(optimizer, what, sandbox.call(_run_snippet, code, data, fresh=True))
    for code in may.run_snippets(passes, optimizer.options):
        what = f"run_snippets({list(passes)}): {code!r}"
        calls = (sandbox.call(_run_as, code, data, value, fresh=True) for value in (False, True))
        original, optimized = (value_of(optimizer, what, call) for call in calls)
        require(
            optimizer,
            original == optimized == ["y", "z"],
            f"{what}: outputs {original}, optimized {optimized}; expected ['y', 'z'] of both",
        )


def _with_sorted_nodes(data: bytes) -> onnx.ModelProto:
    """Tools that convert nodes add casts, in whatever order keeps them before their readers."""
    model = onnx.load_from_string(data)
    nodes = sorted(model.graph.node, key=lambda n: (*n.output, *n.input, n.name))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _run_as(code: str, data: bytes, optimized: bool) -> list[str]:
    """The names of the outputs that a snippet gives for the model ``affine``."""
    space: dict[str, Any] = {}
    head = "def run(model, feeds, optimized):"
    exec(f"{head}\n{textwrap.indent(textwrap.dedent(code), '    ')}", space)
    return list(space["run"](onnx.load_from_string(data), FEEDS["affine"], optimized))


def _run_snippet(code: str, data: bytes) -> bytes:
    """The serialized model that a snippet makes of ``data``; empty if it is of another type."""
    space: dict[str, Any] = {}
    exec(f"def optimize(model):\n{textwrap.indent(textwrap.dedent(code), '    ')}", space)
    model = space["optimize"](onnx.load_from_string(data))
    model = onnx.load_from_string(model) if isinstance(model, bytes) else model
    known = isinstance(model, onnx.ModelProto)
    return bytes(model.SerializeToString(deterministic=True)) if known else b""


def _check_artifacts(optimizer: Optimizer, title: str, artifacts: Sequence[Artifact]) -> None:
    for artifact in artifacts:
        require(
            optimizer,
            bool(artifact.data or artifact.fingerprint),
            f"{title}: the artifact has neither data nor a fingerprint",
        )
        require(
            optimizer,
            artifact.format == optimizer.traits.produces,
            f"{title}: the artifact is of format {artifact.format!r}, but traits.produces is "
            f"{optimizer.traits.produces!r}",
        )
    digests = {a.fingerprint or a.data for a in artifacts}
    require(
        optimizer,
        len(digests) == 1,
        f"{title}: the same call gave {len(digests)} different artifacts in {len(artifacts)} "
        "applications; results must not depend on chance or on earlier calls",
    )
    if artifacts[0].format == "onnx":
        try:
            onnx.checker.check_model(onnx.load_from_string(artifacts[0].data))
        except Exception as error:
            raise AssertionError(
                f"{optimizer.name}: {title}: the result is no valid ONNX model: {error}"
            ) from error


def _apply_twice(optimizer: Optimizer, data: bytes, passes: Sequence[str]) -> list[Artifact]:
    copy = bytes(bytearray(data))
    both = []
    for _ in range(2):
        artifact = optimizer.apply(Artifact("onnx", copy), list(passes), optimizer.options)
        if copy != data:
            raise AssertionError("apply changed the bytes that it was given")
        # The handle never leaves its process.
        both.append(Artifact(artifact.format, bytes(artifact.data), None, artifact.fingerprint))
    return both
