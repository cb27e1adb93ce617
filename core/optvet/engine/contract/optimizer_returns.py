"""What optimizers return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from optvet.engine.contract.checked_calls import ask, blame, kind_of, mismatch, plain_text
from optvet.spec.errors import ContractError
from optvet.spec.extras import extras
from optvet.spec.optimizer_protocols import Optimizer, OptimizerExtras
from optvet.spec.types import Artifact, Pass


def check_passes(optimizer: Optimizer, origin: str | None = None) -> None:
    """Refuse an optimizer whose passes and pipelines do not fit together.

    Raises:
        ContractError: ``passes`` or ``pipelines`` raised, or gave what they must not.
    """

    def refuse(method: str, got: str, expected: str) -> ContractError:
        words = f"{method}() gave {got}, expected {expected}"
        return blame("optimizer", optimizer, words, origin)

    expected = "a list of Pass"
    passes = ask(
        "optimizer", optimizer, "passes", optimizer.passes, (list, tuple), expected, origin
    )
    for item in passes:
        if not isinstance(item, Pass):
            raise refuse("passes", f"an item that is {kind_of(item)}", expected)
    names = [p.name for p in passes]
    expected = "a mapping of names to lists of passes"
    pipelines = ask(
        "optimizer", optimizer, "pipelines", optimizer.pipelines, Mapping, expected, origin
    )
    if "default" not in pipelines:
        raise refuse("pipelines", f"{sorted(map(str, pipelines))}", "'default' among them")
    for name, members in pipelines.items():
        if isinstance(members, str) or not isinstance(members, Sequence):
            raise refuse("pipelines", f"{kind_of(members)} for {name!r}", expected)
        unknown = [m for m in members if m not in names]
        if unknown:
            raise refuse("pipelines", f"{name!r} with {unknown[0]!r}", "names that passes() has")


def artifact(optimizer: Optimizer, value: Any) -> Artifact:
    """``value``, which ``apply`` gave; ContractError if it is no Artifact of the right parts."""
    wrong = mismatch("apply()", value, Artifact, "an Artifact")
    wrong = wrong or mismatch("apply()", value.format, str, "a text as the Artifact's format")
    if wrong is None and plain_text(value.format) != optimizer.traits.produces:
        got, promised = value.format, optimizer.traits.produces
        wrong = (
            f"apply() gave an Artifact of format {got!r}, expected {promised!r}, as its traits say"
        )
    wrong = wrong or mismatch("apply()", value.data, bytes, "bytes as the Artifact's data")
    wrong = wrong or mismatch(
        "apply()", value.fingerprint, (str, _NONE), "a text or None as the Artifact's fingerprint"
    )
    wrong = wrong or mismatch(
        "apply()", value.path, (Path, _NONE), "a Path or None as the Artifact's path"
    )
    wrong = wrong or _names("apply()", value.changing_passes, " as the Artifact's changing_passes")
    if wrong is not None:
        raise blame("optimizer", optimizer, wrong)
    # Plain str, bytes and Path: subclasses may be unknown in the receiving process, and may have
    # methods of their own for length and equality.
    names = (
        None
        if value.changing_passes is None
        else tuple(plain_text(n) for n in value.changing_passes)
    )
    fingerprint = None if value.fingerprint is None else plain_text(value.fingerprint)
    data = value.data if type(value.data) is bytes else memoryview(value.data).tobytes()
    path = None if value.path is None else Path(value.path)
    return Artifact(plain_text(value.format), data, value.handle, fingerprint, names, path)


def changing_passes(optimizer: Optimizer, value: Any) -> tuple[str, ...]:
    """``value``, which ``changing_passes`` gave; ContractError if these are no names."""
    wrong = _names("changing_passes()", value, "")
    if wrong is not None:
        raise blame("optimizer", optimizer, wrong)
    return tuple(value)


def modules_of(optimizer: Optimizer, name: str, options: Any) -> tuple[str, ...]:
    """What ``code_of`` gives for a pass; ContractError if these are no names of modules."""
    expected = "names of modules"
    call = partial(extras(optimizer, OptimizerExtras).code_of, name, options)
    value = ask("optimizer", optimizer, "code_of", call, (list, tuple), expected)
    for item in value:
        if wrong := mismatch("code_of()", item, str, expected):
            raise blame("optimizer", optimizer, wrong)
    return tuple(value)


def check_saved(optimizer: Optimizer, value: Any) -> Artifact:
    """``value``, which ``saved`` gave; ContractError if it is no model in ONNX."""
    wrong = mismatch("saved()", value, Artifact, "an Artifact")
    wrong = wrong or mismatch("saved()", value.data, bytes, "bytes as the Artifact's data")
    if wrong is None and value.format != "onnx":
        wrong = f"saved() gave an Artifact of format {value.format!r}, expected 'onnx'"
    if wrong is not None:
        raise blame("optimizer", optimizer, wrong)
    return value  # type: ignore[no-any-return]  # checked above


_NONE = type(None)


def _names(method: str, value: Any, suffix: str) -> str | None:
    words = f"names of passes, or None{suffix}"
    wrong = mismatch(method, value, (list, tuple, _NONE), words)
    if wrong is not None or value is None:
        return wrong
    return next((w for n in value if (w := mismatch(method, n, str, words))), None)
