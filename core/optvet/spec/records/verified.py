"""What to use in place of what was vetted: the same facts for every screen and report."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from optvet.spec.records.base import Record
from optvet.spec.records.saved import Saved

if TYPE_CHECKING:
    from optvet.spec.records.precision import PrecisionResult
    from optvet.spec.records.vet import VetResult


class Verified(Record):
    """The verified pipeline, as a report states it first after the verdict.

    ``words`` are a value of ``--pipeline``, that all of it is right, or why there is none; ``code``
    is a Python function that does the same to a model by the optimizer's own library, where that
    differs from what was vetted; ``saved`` is the file that was written, if one was asked for.
    """

    words: str = ""
    code: str = ""
    saved: Saved | None = None

    def lines(self) -> list[str]:
        """All of it as text, for formats that have no other form for it; nothing of nothing."""
        saved = [f"saved: {line}" for line in (self.saved.lines() if self.saved else [])]
        words = [f"verified: {self.words}"] if self.words else []
        return [*words, *saved, *self.code.splitlines()]


def verified_of(result: VetResult, requested: str) -> Verified:
    """What a vet verified; ``requested`` is the pipeline that it was asked about."""
    whole, safe = result.optimizer.pipeline, result.safe_pipeline
    return Verified(
        words=_words(result, requested),
        code="" if safe == whole and result.saved is None else function_of(result.safe_code),
        saved=result.saved,
    )


def verified_parts(result: PrecisionResult) -> Verified:
    """What a search for precision verified: the parts to keep."""
    if result.verdict == "nothing-to-keep":
        words = f"all {result.parts} parts in {result.precision}"
    elif result.verdict == "found":
        words = f"{result.precision}, but for {len(result.kept)} of {result.parts} parts"
    else:
        words = "No list of parts to keep."
    wrong = result.saved is not None and not result.saved.path
    return Verified(words=words, code="" if wrong else function_of(result.code), saved=result.saved)


def function_of(body: str) -> str:
    """``def optimize(model):`` with this body; empty without one."""
    lines = "\n".join(line for line in body.splitlines() if line.strip())
    return f"def optimize(model):\n{textwrap.indent(lines, '    ')}" if lines else ""


def is_named(result: VetResult, requested: str) -> bool:
    """Whether the pipeline was asked for by name, not as a list of passes."""
    return "," not in requested and [requested] != result.optimizer.pipeline


def _words(result: VetResult, requested: str) -> str:
    """The vetted safe pipeline, as ``--pipeline`` takes it."""
    whole, safe = result.optimizer.pipeline, result.safe_pipeline
    name = f"the pipeline {requested!r}" if is_named(result, requested) else "the pipeline"
    if safe == whole and (safe or result.verdict != "faulty"):
        unless = " (no fault was found)" if result.verdict == "undecided" else ""
        return f"all of {name}{unless}{_but_for(result)}"
    if not safe:
        if result.control("budget") is not None:
            return "nothing: the time of --budget was over before that"
        if any(not f.localized for f in result.findings):
            return "not searched: --strategy is none"
        if result.verdict != "faulty" and any(r.met is False for r in result.requirements):
            return "No pipeline meets the requirements."
        return "No safe pipeline."
    return f"--pipeline {result.safe_option}{_but_for(result)}"


def _but_for(result: VetResult) -> str:
    """The fault that stays in whatever pipeline is left, if there is one, and whose it is."""
    if result.runtime_is_wrong:
        return "  (in the clean room; as shipped, the runtime is wrong)"
    stays = any(f.set_aside and not f.culprit for f in result.findings)
    return "  (but for the fault of the round trip, which stays)" if stays else ""
