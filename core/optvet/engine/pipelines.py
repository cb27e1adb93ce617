"""The notation of pipelines: names, lists, and passes to leave out.

::

    default                  a named pipeline
    a,b                      passes in order
    default,-a               a named pipeline without a pass
    -a                       the default pipeline without a pass
    none                     import and export alone
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from optvet.spec.errors import UnknownName, UsageError
from optvet.spec.optimizer_protocols import Optimizer

NONE = "none"
"""Stands for no pass but the required ones."""


def parse_pipeline(text: str, optimizer: Optimizer, exclude: Iterable[str] = ()) -> tuple[str, ...]:
    """The passes of ``text`` in order.

    If the list has no required pass, all required passes are added; else it is used as it is.

    Args:
        text: A pipeline in the notation of this module.
        optimizer: The optimizer of the passes.
        exclude: Passes to leave out.

    Raises:
        UnknownName: There is no such pass or pipeline.
        UsageError: No pass is left, or a pass that can be applied only once is listed twice.
    """
    pipelines, known = optimizer.pipelines(), {p.name: p for p in optimizer.passes()}
    terms = [term.strip() for term in text.split(",") if term.strip()]
    removed = [term.removeprefix("-") for term in terms if term.startswith("-")] + list(exclude)
    added = [term for term in terms if not term.startswith("-")]
    if terms and not added:
        added = ["default"]
    required = [name for name, p in known.items() if p.required]
    if terms == [NONE] and NONE not in known and NONE not in pipelines:
        return tuple(required)
    names: list[str] = []
    for term in added:
        if term not in known and term not in pipelines:
            raise _unknown_pass(optimizer, term, known, pipelines if len(added) == 1 else ())
        names += [term] if term in known else pipelines[term]
    for name in removed:
        if name not in known:
            raise _unknown_pass(optimizer, name, known)
        if known[name].required:
            raise UsageError(f"{optimizer.name} cannot do without the pass {name!r}")
    names = [name for name in names if name not in removed]
    if not names:
        raise UsageError("the pipeline is empty; name at least one pass, or a pipeline")
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    # A named pipeline may list a pass twice.
    if twice and not optimizer.traits.repeatable and names_passes(text, optimizer):
        raise UsageError(f"{optimizer.name} takes each pass once; {twice[0]!r} is listed twice")
    if set(names).isdisjoint(required):
        return complete(names, list(known), required)
    return tuple(names)


def complete(
    names: Sequence[str], order: Sequence[str], required: Collection[str]
) -> tuple[str, ...]:
    """``names`` in their order, with required passes inserted before those they precede."""
    place = {name: i for i, name in enumerate(order)}
    missing = [n for n in order if n in required and n not in names]
    result: list[str] = []
    for name in names:
        while missing and place[missing[0]] < place[name]:
            result.append(missing.pop(0))
        result.append(name)
    return (*result, *missing)


def _unknown_pass(
    optimizer: Optimizer, name: str, known: Iterable[str], pipelines: Collection[str] = ()
) -> UnknownName:
    hint = f"(see: optvet plugins show {optimizer.name})"
    if not pipelines:
        return UnknownName(f"pass of {optimizer.name}", name, known, hint)
    named = f"(pipelines: {', '.join(sorted(pipelines))}; passes: optvet plugins show "
    kind = f"pipeline or pass of {optimizer.name}"
    return UnknownName(kind, name, {*known, *pipelines}, f"{named}{optimizer.name})")


def names_passes(text: str, optimizer: Optimizer) -> bool:
    """Whether ``text`` has names of passes, not only names of pipelines."""
    pipelines = optimizer.pipelines()
    terms = (term.strip() for term in text.split(","))
    return any(t and not t.startswith("-") and t not in pipelines for t in terms)


def format_pipeline(passes: Sequence[str], requested: str, optimizer: Optimizer) -> str:
    """``passes`` as a value of ``--pipeline``: ``requested`` without some passes, if possible."""
    if not passes or names_passes(requested, optimizer):
        return ",".join(passes)
    whole = parse_pipeline(requested, optimizer)
    gone = [name for name in dict.fromkeys(whole) if name not in passes]
    if tuple(name for name in whole if name not in gone) != tuple(passes):
        return ",".join(passes)
    return ",".join([requested, *(f"-{name}" for name in gone)])
