"""Branches of an ``If`` that were exchanged."""

from __future__ import annotations

from collections.abc import Iterator

from optvet.engine.repair.aligned_run import AlignedRun
from optvet.engine.repair.candidates import RepairCandidate, insert_operator
from optvet.spec.records.repair import Edit

_MOST = 4


def branches(aligned: AlignedRun, nodes: tuple[int, ...]) -> Iterator[RepairCandidate]:
    """The condition of each ``If`` behind the fault negated, which takes the other branch."""
    joints = aligned.unfolded.joints
    passed = (name for i in aligned.region.nodes for name in aligned.node_of(i).output)
    found = dict.fromkeys(name for name in passed if name in joints and joints[name].condition)
    for name in list(found)[:_MOST]:
        edit = Edit(
            kind="inputs",
            about=f"branches of If {aligned.unfolded.name_of(name)} exchanged",
            operations=insert_operator(aligned, name, 0, "Not"),
        )
        # It takes the branch that this run does not show: only the whole model can tell.
        yield RepairCandidate((edit,), explains=False)
