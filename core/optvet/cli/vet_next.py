"""The command that ``optvet vet`` proposes next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rich.text import Text

from optvet.cli.reduce import BUNDLES
from optvet.cli.render import LABEL_COLUMNS, text
from optvet.spec.precision import PrecisionRequest
from optvet.spec.records.vet import VetResult
from optvet.spec.request import VetRequest, arguments_of

_MORE = 4
"""Times the budget that did not suffice."""


def next_command(result: VetResult, request: VetRequest) -> Text:
    """The next command to type, on one line, so that it can be copied."""
    line = Text(f"{'next':<{LABEL_COLUMNS}}", style="dim")
    line.append_text(text(shlex.join(_next(result, request)), "not dim bold"))
    return line


def _next(result: VetResult, request: VetRequest) -> list[str]:
    """The first proposal that is not what was just run, or was but for the file that it saved."""
    request = request.model_copy(update={"save": None})
    just_run = request.arguments()
    for proposal in _proposals(result, request):
        if proposal != ["optvet", "vet", *just_run]:
            return proposal
    return ["optvet", "bench", request.model]


def _proposals(result: VetResult, request: VetRequest) -> Iterator[list[str]]:
    """Commands that lead on, the most telling one first."""
    blamed = next((f for f in result.findings if f.severity == "fault" and f.culprit), None)
    more: dict[str, object] = {}
    if blamed is not None and blamed.stage == "compare" and result.optimizer.precision:
        # That a part loses much is no fault of a pass: the question is which parts to keep.
        asked = PrecisionRequest.like(request, result.optimizer.precision)
        yield ["optvet", "precision", *arguments_of(asked, request.model)]
    if blamed is None and request.budget is not None and result.control("budget") is not None:
        more = {"budget": _MORE * request.budget}
    elif blamed is not None and not blamed.localized:
        more = {"strategy": "auto"}
    elif blamed is not None and not (request.reduce or request.out):
        # The passes by name: the shortest command that shows the same fault.
        request = request.with_pipeline(",".join(blamed.culprit))
        more = {"reduce": True}
        if blamed.witness is not None and request.dataset:
            more["dataset"] = (blamed.witness.dataset,)
    elif result.safe_pipeline and any(r.met is False for r in result.requirements):
        request = request.with_pipeline(result.safe_option)
    elif result.verdict == "faulty" and (request.reduce or request.out):
        yield ["optvet", "replay", str(request.out or BUNDLES)]
    elif result.verdict == "faulty":
        more = {"reduce": True}
    elif result.judge is not None:
        more = {"dataset": ("files:YOUR_INPUTS.npz",)}
    elif request.strategy != "each":
        more = {"strategy": "each"}
    elif not request.dataset:
        more = {"dataset": ("files:YOUR_INPUTS.npz",)}
    again = request.model_copy(update=more)
    leave_out = ("strategy", "pairs") if blamed is not None else ()
    yield ["optvet", "vet", *again.arguments(leave_out)]
