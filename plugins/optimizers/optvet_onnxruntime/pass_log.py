"""Which passes changed a model: by the verbose log, and by comparisons where that says little."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optvet_onnxruntime.pass_names import RULE_SETS, UNNAMED_IN_LOG
from optvet_onnxruntime.sessions import create_session, save_optimized

TRANSFORMER_DONE = re.compile(r"GraphTransformer (\S+) modified: ([01]) with status")
_BEGUN = re.compile(r"Applying graph transformer (\S+) on step \d+\.")
_ABLATION = re.compile(
    r"^optvet: (?:without (\w+)|(\w+) alone): the model is another$", re.MULTILINE
)
_COMPARED = "optvet: compared"
_SMALL_BYTES = 1 << 20
"""Of models up to this size it is found out which rules of a set changed them."""


@dataclass(frozen=True)
class Ablations:
    """Settings without each pass in question, and with all passes off."""

    without: Mapping[str, Mapping[str, Any]]
    off: Mapping[str, Any]


def optimization_log(
    model: bytes, settings: Mapping[str, Any], others: Ablations | None = None
) -> str:
    """The verbose log of one optimization, made in a fork: it survives what kills the fork.

    Behind it comes a line for each pass in ``others`` that is seen to matter.
    """
    import onnxruntime  # noqa: F401  # loaded before the fork, which then only runs it

    with tempfile.TemporaryFile() as log:
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                os.dup2(log.fileno(), 2)
                with contextlib.suppress(Exception):  # what is refused was changed before
                    create_session(model, settings)
                if others and len(model) <= _SMALL_BYTES:
                    _log_ablations(model, settings, others, log.fileno())
            os._exit(0)
        os.waitpid(child, 0)
        log.seek(0)
        return log.read().decode("utf-8", "replace")


def changed_in_log(log: str) -> set[str] | None:
    """Passes of which a log says that they changed the model; None if it names no transformer."""
    begun, done = _BEGUN.findall(log), TRANSFORMER_DONE.findall(log)
    if not done and not begun:
        return None
    hits = [name for name, modified in done if modified == "1"]
    ended = [name for name, _ in done]
    if begun and ended.count(begun[-1]) < begun.count(begun[-1]):
        hits.append(begun[-1])  # it threw, or died, in this one
    telling, compared = {a or b for a, b in _ABLATION.findall(log)}, _COMPARED in log
    names: set[str] = set()
    for hit in hits:
        known = telling.intersection(UNNAMED_IN_LOG.get(hit, (hit,)))
        # Of two rules that do the same, leaving out one changes nothing.
        unknown = hit not in UNNAMED_IN_LOG or not compared or hit in RULE_SETS
        names |= known or (set(UNNAMED_IN_LOG.get(hit, (hit,))) if unknown else set())
    return names


def _log_ablations(model: bytes, settings: Mapping[str, Any], others: Ablations, log: int) -> None:
    """Write a line for each pass that is seen to change the model, of those that it may be.

    First for each with which alone its set does; where there is none, for each without which the
    model is another.
    """
    changed = [name for name in _find_changed(log, 0) if name in UNNAMED_IN_LOG]
    for name in changed:
        compared = [n for n in UNNAMED_IN_LOG[name] if n in others.without]
        words: list[str] = []
        if len(compared) > 1:
            change = functools.partial(_is_changed_by, model, others.off, name, log)
            words = [f"{n} alone" for n in _find_each(compared, change)]
        if not words:
            whole = _save_or_none(model, settings)
            left = {n: _save_or_none(model, others.without[n]) for n in compared}
            words = [f"without {n}" for n in compared if left[n] != whole]
        for telling in words:
            os.write(log, f"\noptvet: {telling}: the model is another\n".encode())
    os.write(log, f"\n{_COMPARED}\n".encode())


def _save_or_none(model: bytes, settings: Mapping[str, Any]) -> bytes | None:
    """The optimized model; None where the runtime refuses it."""
    try:
        return save_optimized(model, settings)
    except Exception:  # each kind of refusal has a class of its own
        return None


def _find_each(
    names: Sequence[str], change: Callable[[Sequence[str]], bool], *, known: bool = False
) -> Sequence[str]:
    """The names that change the model alone: few, so halves are tried first.

    ``known`` says that all together probably do.
    """
    if (not known or len(names) == 1) and not change(names):
        return []
    if len(names) == 1:
        return names
    half = len(names) // 2
    first = _find_each(names[:half], change)
    return [*first, *_find_each(names[half:], change, known=not first)]


def _find_changed(log: int, start: int) -> list[str]:
    """Transformers of which the log says, from ``start`` on, that they changed the model."""
    text = os.pread(log, os.fstat(log).st_size - start, start).decode("utf-8", "replace")
    return [name for name, modified in TRANSFORMER_DONE.findall(text) if modified == "1"]


def _is_changed_by(
    model: bytes, off: Mapping[str, Any], name: str, log: int, rules: Sequence[str]
) -> bool:
    """Whether the set of this name changes the model where only these rules are on."""
    start = os.fstat(log).st_size
    disabled = [n for n in off["disabled"] if n not in rules]
    # Later levels would only take time.
    with contextlib.suppress(Exception):
        create_session(model, {**off, "level": int(name[len("Level")]), "disabled": disabled})
    found = name in _find_changed(log, start)
    os.ftruncate(log, start)
    os.lseek(log, start, os.SEEK_SET)
    return found
