"""What the variants of a bench are made of, and where they are executed, beside the original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from optvet.engine.work.case import Case
from optvet.engine.work.inventory import take_inventory
from optvet.engine.work.lab import Lab
from optvet.engine.work.placement import find_placement
from optvet.graph.inventory import change_of
from optvet.spec.records.bench import BenchVariant
from optvet.spec.records.placement import Placement
from optvet.spec.records.structure import Inventory
from optvet.spec.types import Sample


@dataclass
class Inspector:
    """Looks at variants one after the other, and at what each is compared with once.

    Attributes:
        original: What the original is made of; None before the first variant, or if not known.
        placements: Where what variants are compared with is executed, by what that is.
    """

    original: Inventory | None = None
    placements: dict[str, Placement] = field(default_factory=dict)

    def inspected(
        self, lab: Lab, case: Case, samples: Sequence[Sample], row: BenchVariant
    ) -> BenchVariant:
        """``row`` with inventory and placement; or with the reasons why there is none.

        Args:
            lab: The lab of the variant, of which sandbox and counts are used.
            case: The case that was timed.
            samples: What was run.
            row: The variant as it was timed.
        """
        lab, passes = lab.on(case), case.passes.pipeline
        if self.original is None:
            found = take_inventory(lab, None, samples[0])
            self.original = found if isinstance(found, Inventory) else None
        if row.failure is not None and row.failure.stage == "build":
            return row
        about: dict[str, Any] = {}
        unknown: dict[str, str] = {}
        inventory = take_inventory(lab, passes, samples[0])
        if isinstance(inventory, str):
            unknown["inventory"] = inventory
        else:
            about["inventory"] = inventory
            about["change"] = change_of(self.original, inventory) if self.original else None
        if row.failure is None:
            self._place_reference(lab, row, samples)
            placement = find_placement(lab, passes, samples)
            if isinstance(placement, str):
                unknown["placement"] = placement
            else:
                about["placement"] = placement
        return row.model_copy(update={**about, "unknown": unknown})

    def _place_reference(self, lab: Lab, row: BenchVariant, samples: Sequence[Sample]) -> None:
        """Place what ``row`` is compared with, if that is not known yet."""
        original = row.timing is None or row.timing.baseline == "original"
        who = lab.case.reference.runtime.name if original else lab.case.optimizer.name
        name = f"original on {who}" if original else f"{who} without passes"
        if name not in self.placements:
            found = find_placement(lab, None if original else lab.case.passes.base, samples)
            if isinstance(found, Placement):
                self.placements[name] = found
