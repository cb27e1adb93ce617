"""Times of nodes, out of the profile that a session writes."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from optvet.plugin import NodeTime, Unsupported

_KERNEL = "_kernel_time"


def node_times(events: Any, skip: int) -> tuple[NodeTime, ...]:
    """Nodes of a profile, which is a list of trace events, without the first ``skip`` runs.

    Raises:
        Unsupported: The profile is not of the form that is known.
    """
    try:
        starts = sorted(e["ts"] for e in events if e["name"] == "model_run")[skip:]
        begin = starts[0]
        kernels = [
            e
            for e in events
            if e["cat"] == "Node" and e["name"].endswith(_KERNEL) and e["ts"] >= begin
        ]
        times: dict[tuple[str, str, str, str], list[float]] = {}
        calls = Counter[tuple[str, str, str, str]]()
        for event, own_us in _without_inner(kernels):
            about = event["args"]
            name = str(event["name"]).removesuffix(_KERNEL)
            key = (name, str(about["op_name"]), str(about["provider"]), str(about["node_index"]))
            calls[key] += 1
            # By run; a node in a loop is executed several times in one.
            by_run = times.setdefault(key, [0.0] * len(starts))
            by_run[bisect_right(starts, event["ts"]) - 1] += own_us / 1e6
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise Unsupported(
            f"ONNX Runtime's profile cannot be read: {type(error).__name__} {error}"
        ) from error
    return tuple(
        NodeTime(*key[:3], calls[key] / len(starts), median(by_run))
        for key, by_run in times.items()
    )


def _without_inner(kernels: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], float]]:
    """Each event with its time without that of events inside it: nodes in the graph of a Loop."""
    own: list[tuple[Mapping[str, Any], float]] = []
    open_: dict[Any, list[tuple[float, int]]] = {}  # by thread: ends, and places in ``own``
    for event in sorted(kernels, key=lambda e: (e["ts"], -e["dur"])):
        around = open_.setdefault(event["tid"], [])
        end = event["ts"] + event["dur"]
        while around and around[-1][0] < max(end, event["ts"] + 1):
            around.pop()
        if around:
            outer, left = own[around[-1][1]]
            own[around[-1][1]] = (outer, max(left - event["dur"], 0.0))
        around.append((end, len(own)))
        own.append((event, float(event["dur"])))
    return own
