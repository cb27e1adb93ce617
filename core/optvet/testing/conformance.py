"""Conformance suites for plugin authors: does a plugin keep the contract that the engine relies on?

Each suite raises an AssertionError that says what was expected and what was seen. Whatever calls
the plugin's library runs in a sandboxed worker, so a crash is a message too::

    def test_my_optimizer() -> None:
        check_optimizer(MyOptimizer())
"""

from __future__ import annotations

import pickle
from typing import Any, NoReturn

import numpy as np
import onnx
import onnx.checker
import onnx.parser
from pydantic import BaseModel

from optvet.engine.plugin_entries import set_environment
from optvet.engine.work.sandbox import Limits, Outcome
from optvet.spec.sensitive import unmarked_options

LIMITS = Limits(timeout_s=60.0, memory_bytes=8 << 30)

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


MATRIX = np.array([[1, 2, 3], [-1, 0, 1]], dtype=np.float32)
FEEDS: dict[str, dict[str, np.ndarray]] = {
    "affine": {"x": MATRIX},
    "counting": {"i": np.array([1, -2, 3]), "keep": np.array([True, False, True])},
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
        check_options(plugin, "options")
    _check_pickle(plugin)


def check_common(plugin: Any, protocol: type, what: str) -> None:
    """Check what optimizers and runtimes have in common."""
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


def check_options(plugin: Any, attribute: str) -> None:
    """Check the options that ``plugin`` has as its ``attribute``."""
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


def value_of(plugin: Any, what: str, outcome: Outcome[Any]) -> Any:
    """The value of a call in a worker, which must not fail."""
    if outcome.failure is not None:
        f = outcome.failure
        how = f.signal or f.error_type or f.kind
        _fail(plugin, f"{what}: {f.kind} in stage {f.stage}: {how}: {f.message}")
    return outcome.value
