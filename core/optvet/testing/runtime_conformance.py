"""Does a runtime keep the contract that the engine relies on?"""

from __future__ import annotations

import tempfile
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.parser
from pydantic import BaseModel

from optvet.engine.contract import runtime_returns
from optvet.engine.work.sandbox import Outcome, Sandbox
from optvet.engine.work.trials.server_modules import preload_for
from optvet.spec.extras import extras, given
from optvet.spec.runtime_protocols import Runtime, RuntimeExtras
from optvet.spec.types import Artifact, Profile
from optvet.testing.conformance import (
    FEEDS,
    LIMITS,
    MATRIX,
    check_common,
    check_options,
    require,
    tiny_models,
    value_of,
)

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


def check_runtime(
    runtime: Runtime, *, artifact_from_onnx: Callable[[bytes], Artifact] | None = None
) -> None:
    """Check that ``runtime`` keeps the contract; raises AssertionError where it does not.

    Args:
        runtime: The runtime.
        artifact_from_onnx: Makes an artifact that it accepts from a serialized ONNX model; needed
            if it does not accept "onnx", and importable by name, since a worker calls it.
    """
    check_common(runtime, Runtime, "a runtime")
    check_options(runtime, "deployed")
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
    preload = (*preload_for(None, runtime), __name__)
    with Sandbox(jobs=1, limits=LIMITS, preload=preload) as sandbox:
        for options in (runtime.options, runtime.deployed):
            for model in FEEDS:
                _check_runs(runtime, options, convert, model, sandbox)
            _check_refusals(runtime, options, convert, sandbox)
            if given(runtime, RuntimeExtras.snippet) and "onnx" in accepts:
                _check_runtime_snippet(runtime, options, sandbox)
            if given(runtime, RuntimeExtras.profile) and "onnx" in accepts:
                _check_profile(runtime, options, sandbox)


def _check_profile(runtime: Runtime, options: BaseModel, sandbox: Sandbox) -> None:
    for model, feeds in FEEDS.items():
        title = f"profile() under {options!r} on model {model!r}"
        found = value_of(runtime, title, sandbox.call(_profile, runtime, options, model, feeds))
        require(runtime, found.runs == 2, f"{title}: 2 runs are told as {found.runs}")
        require(runtime, len(found.nodes) > 0, f"{title}: there is no node")
        for node in found.nodes:
            plausible = node.calls > 0 and 0 <= node.seconds < LIMITS.timeout_s
            require(runtime, plausible, f"{title}: {node!r} cannot be")


def _profile(
    runtime: Runtime, options: BaseModel, model: str, feeds: Mapping[str, np.ndarray]
) -> Profile:
    with tempfile.TemporaryDirectory() as folder:
        artifact = Artifact("onnx", tiny_models()[model])
        found = extras(runtime, RuntimeExtras).profile(
            artifact, [feeds, feeds], options, Path(folder)
        )
    return runtime_returns.profile(runtime, found)


def _check_runtime_snippet(runtime: Runtime, options: BaseModel, sandbox: Sandbox) -> None:
    code = extras(runtime, RuntimeExtras).snippet(options)
    for model, expected in _EXPECTED.items():
        title = f"snippet({options!r}) on model {model!r}"
        outcome = sandbox.call(_run_by, code, tiny_models()[model], FEEDS[model], fresh=True)
        run = value_of(runtime, title, outcome)
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
    data, feeds = tiny_models()[model], FEEDS[model]
    outcome = sandbox.call(_run_thrice, runtime, options, convert, data, feeds)
    runs = value_of(runtime, title, outcome)
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
        "with float64 for float32": {"x": MATRIX.astype(np.float64)},
        "with another rank": {"x": MATRIX[0]},
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
