"""Conformance suites for plugin authors: does a plugin keep the contract that the engine relies on?

Each suite raises an AssertionError that says what was expected and what was seen. Whatever calls
the plugin's library runs in a sandboxed worker, so a crash is a message too::

    def test_my_optimizer() -> None:
        check_optimizer(MyOptimizer())
"""

from __future__ import annotations

import pickle
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
import onnx.checker
import onnx.parser
from pydantic import BaseModel

from optvet.engine.contract import runtime_returns
from optvet.engine.discovery import set_environment
from optvet.engine.work.sandbox import Limits, Outcome, Sandbox
from optvet.spec.protocols import (
    DependsOnOptions,
    Explains,
    ExplainsRuntime,
    ExplainsSimply,
    ExplainsTogether,
    Optimizer,
    Profiles,
    Runtime,
)
from optvet.spec.sensitive import unmarked_options
from optvet.spec.types import Artifact, Pass, Profile

LIMITS = Limits(timeout_s=60.0, memory_bytes=8 << 30)
UNKNOWN_PASS = "no_such_pass_of_any_optimizer"

AFFINE = """
<ir_version: 8, opset_import: ["" : 13]>
affine (float[2,3] x) => (float[2,2] y, float[2,2] z)
<float[3,2] w = {1, 0, 0, 1, 1, 1}, float[2] b = {0.5, -4}>
{
    m = MatMul(x, w)
    z = Add(m, b)
    y = Relu(z)
}
"""
"""Two outputs, of which the first is computed last."""

COUNTING = """
<ir_version: 8, opset_import: ["" : 13]>
counting (int64[n] i, bool[n] keep) => (int64[n] twice, bool[n] drop)
{
    twice = Add(i, i)
    drop = Not(keep)
}
"""
"""Integers and booleans, of any length."""


def tiny_models() -> dict[str, bytes]:
    """The models that the suites use, serialized, by name."""
    texts = {"affine": AFFINE, "counting": COUNTING}
    return {n: onnx.parser.parse_model(t).SerializeToString() for n, t in texts.items()}


_X = np.array([[1, 2, 3], [-1, 0, 1]], dtype=np.float32)
_FEEDS: dict[str, dict[str, np.ndarray]] = {
    "affine": {"x": _X},
    "counting": {"i": np.array([1, -2, 3]), "keep": np.array([True, False, True])},
}
_EXPECTED: dict[str, dict[str, np.ndarray]] = {
    "affine": {
        # x @ w = [[4, 5], [0, 1]]
        "y": np.array([[4.5, 1], [0.5, 0]], dtype=np.float32),
        "z": np.array([[4.5, 1], [0.5, -3]], dtype=np.float32),
    },
    "counting": {
        "twice": np.array([2, -4, 6]),
        "drop": np.array([False, True, False]),
    },
}


def _fail(plugin: Any, message: str) -> NoReturn:
    raise AssertionError(f"{getattr(plugin, 'name', type(plugin).__name__)}: {message}")


def require(plugin: Any, claim: bool, message: str) -> None:
    """Raise AssertionError with ``message`` about ``plugin`` unless ``claim`` holds."""
    if not claim:
        _fail(plugin, message)


def check_form(plugin: Any, protocol: type, what: str) -> None:
    """Raise AssertionError unless ``plugin`` has the members of ``protocol`` and can be pickled."""
    members = {*getattr(protocol, "__annotations__", {}), *vars(protocol)}
    missing = sorted(m for m in members if not m.startswith("_") and not hasattr(plugin, m))
    require(plugin, not missing, f"does not provide {', '.join(missing)}")
    require(
        plugin,
        isinstance(plugin.name, str) and plugin.name == plugin.name.strip() != "",
        f"the name of {what} must be a string without blanks around it, not {plugin.name!r}",
    )
    if "options" in members:
        _check_options(plugin, "options")
    _check_pickle(plugin)


def _check_common(plugin: Any, protocol: type, what: str) -> None:
    check_form(plugin, protocol, what)
    set_environment(plugin)
    version = plugin.version()
    require(
        plugin,
        isinstance(version, str) and version != "",
        f"version() must return a string, not {version!r}",
    )
    preload = plugin.preload
    require(
        plugin,
        not isinstance(preload, str) and all(isinstance(m, str) for m in preload),
        f"preload must be a sequence of module names, not {preload!r}",
    )


def _check_options(plugin: Any, attribute: str) -> None:
    options = getattr(plugin, attribute)
    require(plugin, isinstance(options, BaseModel), f"{attribute} must be a pydantic model")
    config = type(options).model_config
    name = type(options).__name__
    require(plugin, config.get("frozen") is True, f"{attribute}: {name} must be frozen")
    require(
        plugin,
        config.get("extra") == "forbid",
        f'{attribute}: {name} must refuse unknown keys; set extra="forbid"',
    )
    for option, looks in unmarked_options(type(options)).items():
        _fail(
            plugin,
            f"{attribute}: option {option!r} {looks}: it seems to name code, a command or a file; "
            "mark it Annotated[…, Sensitive('what a value does')], so that bundles and records may "
            "not set it unasked, or Harmless('why') if it names none (both of optvet.plugin)",
        )
    again = type(options).model_validate(options.model_dump(mode="json"))
    require(plugin, again == options, f"{attribute}: {name} does not survive a trip through JSON")


def _check_pickle(plugin: Any) -> None:
    try:
        copy = pickle.loads(pickle.dumps(plugin))
    except Exception as error:
        raise AssertionError(f"{plugin.name}: cannot be pickled: {error}") from error
    require(plugin, copy.name == plugin.name, "is another one after pickling")


def _value(plugin: Any, what: str, outcome: Outcome[Any]) -> Any:
    if outcome.failure is not None:
        f = outcome.failure
        how = f.signal or f.error_type or f.kind
        _fail(plugin, f"{what}: {f.kind} in stage {f.stage}: {how}: {f.message}")
    return outcome.value


# --- optimizers -----------------------------------------------------------------------------------


def check_optimizer(optimizer: Optimizer) -> None:
    """Check that ``optimizer`` keeps the contract; raises AssertionError where it does not."""
    _check_common(optimizer, Optimizer, "an optimizer")
    if isinstance(optimizer, DependsOnOptions):
        optimizer = optimizer.configured(optimizer.options)
    require(
        optimizer,
        optimizer.traits.consumes == "onnx",
        f"takes {optimizer.traits.consumes}; this suite has models in ONNX alone",
    )
    passes = optimizer.passes()
    _check_passes(optimizer, passes)
    _check_pipelines(optimizer, passes)
    preload = ("numpy", "onnx", *optimizer.preload)
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
            first = _value(
                optimizer, title, sandbox.call(_apply_twice, optimizer, data, passes, fresh=True)
            )
            other = _value(
                optimizer, title, sandbox.call(_apply_twice, optimizer, data, passes, fresh=True)
            )
            _check_artifacts(optimizer, title, [*first, *other])
    data = tiny_models()["affine"]
    if isinstance(optimizer, Explains):
        for passes in (required, default):
            _check_snippet(optimizer, data, passes, sandbox)
    outcome = sandbox.call(_apply_twice, optimizer, data, (*required, UNKNOWN_PASS))
    require(
        optimizer,
        outcome.failure is not None,
        f"apply ignores the unknown pass {UNKNOWN_PASS!r} without a word; raise an exception, "
        "else a misspelt pass is vetted as harmless",
    )


def _check_snippet(
    optimizer: Optimizer, data: bytes, passes: Sequence[str], sandbox: Sandbox
) -> None:
    assert isinstance(optimizer, Explains)
    title = f"snippet({list(passes)})"
    code = optimizer.snippet(passes, optimizer.options)
    require(
        optimizer,
        "optvet" not in code,
        f"{title} uses optvet; it is for people who have the optimizer's own library alone",
    )
    again = _value(optimizer, title, sandbox.call(_run_snippet, code, data, fresh=True))
    if optimizer.traits.produces == "onnx":
        title = f"{title} and apply"
        (applied, _) = _value(
            optimizer, title, sandbox.call(_apply_twice, optimizer, data, passes, fresh=True)
        )
        same = again == onnx.load_from_string(applied.data).SerializeToString(deterministic=True)
        require(optimizer, same, f"{title} make different models; the snippet must do the same")
    simple = optimizer.simple_snippets if isinstance(optimizer, ExplainsSimply) else None
    for code in simple(passes, optimizer.options) if simple else ():
        what = f"simple_snippets({list(passes)}): {code!r}"
        _value(optimizer, what, sandbox.call(_run_snippet, code, data, fresh=True))
    together = optimizer.run_snippets if isinstance(optimizer, ExplainsTogether) else None
    for code in together(passes, optimizer.options) if together else ():
        what = f"run_snippets({list(passes)}): {code!r}"
        calls = (sandbox.call(_run_as, code, data, value, fresh=True) for value in (False, True))
        original, optimized = (_value(optimizer, what, call) for call in calls)
        require(
            optimizer,
            original == optimized == ["y", "z"],
            f"{what}: outputs {original}, optimized {optimized}; expected ['y', 'z'] of both",
        )


def _run_as(code: str, data: bytes, optimized: bool) -> list[str]:
    """The names of the outputs that a snippet gives for the model ``affine``."""
    space: dict[str, Any] = {}
    head = "def run(model, feeds, optimized):"
    exec(f"{head}\n{textwrap.indent(textwrap.dedent(code), '    ')}", space)
    return list(space["run"](onnx.load_from_string(data), _FEEDS["affine"], optimized))


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


# --- runtimes -------------------------------------------------------------------------------------


def check_runtime(
    runtime: Runtime, *, artifact_from_onnx: Callable[[bytes], Artifact] | None = None
) -> None:
    """Check that ``runtime`` keeps the contract; raises AssertionError where it does not.

    Args:
        runtime: The runtime.
        artifact_from_onnx: Makes an artifact that it accepts from a serialized ONNX model; needed
            if it does not accept "onnx", and importable by name, since a worker calls it.
    """
    _check_common(runtime, Runtime, "a runtime")
    _check_options(runtime, "deployed")
    accepts = runtime.accepts
    require(
        runtime,
        isinstance(accepts, frozenset) and len(accepts) > 0,
        f"accepts must be a frozenset of formats, not {accepts!r}",
    )
    if artifact_from_onnx is None:
        require(
            runtime,
            "onnx" in accepts,
            f"accepts {sorted(accepts)}; give artifact_from_onnx to have it checked",
        )
    convert = artifact_from_onnx or _as_onnx
    preload = ("numpy", "onnx", *runtime.preload)
    with Sandbox(jobs=1, limits=LIMITS, preload=preload) as sandbox:
        for options in (runtime.options, runtime.deployed):
            for model in _FEEDS:
                _check_runs(runtime, options, convert, model, sandbox)
            _check_refusals(runtime, options, convert, sandbox)
            if isinstance(runtime, ExplainsRuntime) and "onnx" in accepts:
                _check_runtime_snippet(runtime, options, sandbox)
            if isinstance(runtime, Profiles) and "onnx" in accepts:
                _check_profile(runtime, options, sandbox)


def _check_profile(runtime: Runtime, options: BaseModel, sandbox: Sandbox) -> None:
    for model, feeds in _FEEDS.items():
        title = f"profile() under {options!r} on model {model!r}"
        found = _value(runtime, title, sandbox.call(_profile, runtime, options, model, feeds))
        require(runtime, found.runs == 2, f"{title}: 2 runs are told as {found.runs}")
        require(runtime, len(found.nodes) > 0, f"{title}: there is no node")
        for node in found.nodes:
            plausible = node.calls > 0 and 0 <= node.seconds < LIMITS.timeout_s
            require(runtime, plausible, f"{title}: {node!r} cannot be")


def _profile(
    runtime: Runtime, options: BaseModel, model: str, feeds: Mapping[str, np.ndarray]
) -> Profile:
    assert isinstance(runtime, Profiles)
    with tempfile.TemporaryDirectory() as folder:
        artifact = Artifact("onnx", tiny_models()[model])
        found = runtime.profile(artifact, [feeds, feeds], options, Path(folder))
    return runtime_returns.profile(runtime, found)


def _check_runtime_snippet(runtime: Runtime, options: BaseModel, sandbox: Sandbox) -> None:
    assert isinstance(runtime, ExplainsRuntime)
    code = runtime.snippet(options)
    for model, expected in _EXPECTED.items():
        title = f"snippet({options!r}) on model {model!r}"
        outcome = sandbox.call(_run_by, code, tiny_models()[model], _FEEDS[model], fresh=True)
        run = _value(runtime, title, outcome)
        missing = sorted(set(expected) - set(run))
        require(runtime, not missing, f"{title}: there is no output {missing}")
        for name, value in expected.items():
            _check_output(runtime, f"{title}: output {name!r}", run[name], value)


def _run_by(code: str, data: bytes, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    space: dict[str, Any] = {}
    exec(f"def run(model, feeds):\n{textwrap.indent(textwrap.dedent(code), '    ')}", space)
    return {n: np.asarray(v) for n, v in space["run"](onnx.load_from_string(data), feeds).items()}


def _as_onnx(data: bytes) -> Artifact:
    return Artifact("onnx", data)


def _check_runs(
    runtime: Runtime,
    options: BaseModel,
    convert: Callable[[bytes], Artifact],
    model: str,
    sandbox: Sandbox,
) -> None:
    title, expected = f"model {model!r}", _EXPECTED[model]
    data, feeds = tiny_models()[model], _FEEDS[model]
    outcome = sandbox.call(_run_thrice, runtime, options, convert, data, feeds)
    runs = _value(runtime, title, outcome)
    for run in runs:
        require(
            runtime,
            list(run) == list(expected),
            f"{title}: outputs are {list(run)}, expected {list(expected)}, in the graph's order",
        )
        for name, value in expected.items():
            _check_output(runtime, f"{title}: output {name!r}", run[name], value)


def _check_output(runtime: Runtime, title: str, seen: Any, expected: np.ndarray) -> None:
    require(runtime, isinstance(seen, np.ndarray), f"{title}: is no array but {type(seen)}")
    require(
        runtime,
        seen.dtype == expected.dtype,
        f"{title}: is of type {seen.dtype}, the model says {expected.dtype}",
    )
    require(
        runtime,
        np.array_equal(seen, expected),
        f"{title}: is {seen.tolist()}, expected {expected.tolist()}",
    )


def _check_refusals(
    runtime: Runtime,
    options: BaseModel,
    convert: Callable[[bytes], Artifact],
    sandbox: Sandbox,
) -> None:
    data = tiny_models()["affine"]
    bad: dict[str, Mapping[str, np.ndarray]] = {
        "without an input": {},
        "with float64 for float32": {"x": _X.astype(np.float64)},
        "with another rank": {"x": _X[0]},
    }
    for title, feeds in bad.items():
        outcome = sandbox.call(_run_thrice, runtime, options, convert, data, feeds)
        _check_refusal(runtime, f"a run {title}", outcome)
    for name in sorted(runtime.accepts):
        loaded = sandbox.call(_load_garbage, runtime, options, name)
        _check_refusal(runtime, f"loading bytes that are no {name} model", loaded)


def _check_refusal(runtime: Runtime, title: str, outcome: Outcome[Any]) -> None:
    require(runtime, outcome.failure is not None, f"{title} must raise an exception; it passed")
    assert outcome.failure is not None
    require(
        runtime,
        outcome.failure.kind == "error",
        f"{title} must raise an exception; it ended in {outcome.failure.kind} "
        f"({outcome.failure.signal}): {outcome.failure.message}",
    )


def _run_thrice(
    runtime: Runtime,
    options: BaseModel,
    convert: Callable[[bytes], Artifact],
    data: bytes,
    feeds: Mapping[str, np.ndarray],
) -> list[dict[str, np.ndarray]]:
    artifact = convert(data)
    session = runtime.load(artifact, options)
    runs = [session.run(feeds), session.run(feeds), runtime.load(artifact, options).run(feeds)]
    # Run other inputs at the end: if a session returns its own buffers, this overwrites ``runs``.
    session.run({name: np.zeros_like(value) for name, value in feeds.items()})
    return runs


def _load_garbage(runtime: Runtime, options: BaseModel, name: str) -> None:
    runtime.load(Artifact(name, b"\x07no model"), options)
