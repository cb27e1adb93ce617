"""What runtimes return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optvet.engine.contract.checked_calls import blame, mismatch, plain_text
from optvet.spec.converters import SourceFacts
from optvet.spec.runtime_protocols import Runtime, Session
from optvet.spec.types import NodeTime, Profile


def session(runtime: Runtime, value: Any) -> Session:
    """``value``, which ``load`` gave; ContractError if it cannot be run."""
    wrong = mismatch("load()", value, Session, "a session, which has a method run")
    if wrong is not None:
        raise blame("runtime", runtime, wrong)
    return value  # type: ignore[no-any-return]  # checked above


def outputs(runtime: Runtime, value: Any) -> Mapping[str, Any]:
    """``value``, which the ``run`` of a session gave; ContractError if it is no outputs by name."""
    wrong = mismatch("run() of a session", value, Mapping, "outputs by name")
    names = value if wrong is None else ()
    wrong = wrong or next(
        (w for n in names if (w := mismatch("run() of a session", n, str, "names as texts"))), None
    )
    if wrong is not None:
        raise blame("runtime", runtime, wrong)
    return value  # type: ignore[no-any-return]  # checked above


def arrays(runtime: Runtime, flat: Mapping[str, Any]) -> None:
    """Check outputs as arrays; ContractError if one holds neither numbers nor texts."""
    for name, array in flat.items():
        items = array.flat if array.dtype == object else ()
        for item in items:
            if wrong := mismatch(f"output {name!r}", item, (str, bytes), "numbers or texts"):
                raise blame("runtime", runtime, wrong)


def profile(runtime: Any, value: Any) -> Profile:
    """``value``, which ``profile`` gave; ContractError if it is no Profile of whole parts."""
    wrong = mismatch("profile()", value, Profile, "a Profile")
    wrong = wrong or mismatch("profile()", value.wanted, str, "a text as what was wanted")
    wrong = wrong or mismatch("profile()", value.runs, int, "a whole number of runs")
    nodes: list[Any] = []
    if wrong is None:
        wrong = mismatch("profile()", value.nodes, (list, tuple), "a list of NodeTime")
        nodes = list(value.nodes) if wrong is None else []
    for node in nodes:
        wrong = wrong or mismatch("profile()", node, NodeTime, "NodeTime as nodes")
        for name, kind, words in _NODE_TIME:
            wrong = wrong or mismatch(
                f"profile(), {name} of a node,", getattr(node, name), kind, words
            )
    if wrong is not None:
        raise blame("runtime", runtime, wrong)
    plain = tuple(
        NodeTime(
            plain_text(n.name),
            plain_text(n.operator),
            plain_text(n.provider),
            float(n.calls),
            float(n.seconds),
        )
        for n in nodes
    )
    return Profile(plain_text(value.wanted), value.runs, plain)


_NODE_TIME: tuple[tuple[str, type | tuple[type, ...], str], ...] = (
    ("name", str, "a text"),
    ("operator", str, "a text"),
    ("provider", str, "a text"),
    ("calls", (int, float), "a number"),
    ("seconds", (int, float), "a number"),
)


def check_facts(runtime: Any, value: Any) -> SourceFacts:
    """``value``, which ``source_facts`` gave; ContractError if it is none."""
    if wrong := mismatch("source_facts()", value, SourceFacts, "SourceFacts"):
        raise blame("runtime", runtime, wrong)
    return value  # type: ignore[no-any-return]  # checked above
