"""Operators and placement of the optimized model under the runtime's defaults."""

from __future__ import annotations

from collections.abc import Sequence

from optvet.engine.vet.session import VetSession
from optvet.engine.work.trials.node_counts import take_inventory
from optvet.engine.work.trials.placement import find_placement
from optvet.spec.records import VetResult
from optvet.spec.records.placement import Placement, Placements
from optvet.spec.records.structure import Inventory, Structures
from optvet.spec.types import Sample


def with_structure(session: VetSession, result: VetResult, samples: Sequence[Sample]) -> VetResult:
    """``result`` with inventories of both models and with their placements, of the whole pipeline.

    What cannot be had leaves ``structures`` as it is, and a reason in ``placements``.
    """
    case = session.case.both_shipped(session.request.runtime_options)
    runner, passes = session.runner.on(case), case.passes.pipeline
    runner.progress("structure and placement", 0, None)
    before, after = (take_inventory(runner, p, samples[0]) for p in (None, passes))
    structures = result.structures
    if isinstance(before, Inventory) and isinstance(after, Inventory):
        structures = Structures(original=before, optimized=after)
    first = case.passes.base if case.lowers or case.optimizer.traits.optimizes_on_load else None
    reference, optimized = (find_placement(runner, p, samples) for p in (first, passes))
    reasons = dict.fromkeys(each for each in (reference, optimized) if isinstance(each, str))
    placements = Placements(
        reference=reference if isinstance(reference, Placement) else None,
        optimized=optimized if isinstance(optimized, Placement) else None,
        unknown="; ".join(reasons),
    )
    return result.model_copy(update={"structures": structures, "placements": placements})
