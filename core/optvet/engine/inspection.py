"""What the variants of a bench are made of, and where they are executed, beside the original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.timing.device_readings import ask_meter, find_kernels, find_use
from optvet.engine.work.timing.token_rate import Writer, find_pace
from optvet.engine.work.trials.case import Case
from optvet.engine.work.trials.node_counts import take_inventory
from optvet.engine.work.trials.placement import find_placement
from optvet.engine.work.trials.trial_runner import TrialRunner, refuse_misuse
from optvet.graph.inventory import change_of
from optvet.spec.devices import Meter
from optvet.spec.records.bench import BenchVariant, Part
from optvet.spec.records.devices import DeviceUse, KernelProfile
from optvet.spec.records.placement import Placement
from optvet.spec.records.structure import Inventory
from optvet.spec.records.timing import Pace
from optvet.spec.types import Sample


@dataclass
class Inspector:
    """Looks at variants one after the other, and at what each is compared with once.

    Attributes:
        ncu: Whether kernels are profiled too.
        seed: Chooses the samples whose kernels are.
        original: What the original is made of; None before the first variant, or if not known.
        placements: Where what variants are compared with is executed, by what that is.
        paces: How fast that writes text.
        devices: What the device does while that runs.
        kernels: The kernels that run on it then.
        skipped: Why something was not measured of any variant, in one line each.
    """

    ncu: bool = False
    seed: int = 0
    original: Inventory | None = None
    placements: dict[str, Placement] = field(default_factory=dict)
    paces: dict[str, Pace] = field(default_factory=dict)
    devices: dict[str, DeviceUse] = field(default_factory=dict)
    kernels: dict[str, KernelProfile] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    def inspect(
        self,
        runner: TrialRunner,
        case: Case,
        samples: Sequence[Sample],
        row: BenchVariant,
        writer: Writer | None = None,
    ) -> BenchVariant:
        """``row`` with inventory and placement; or with the reasons why there is none.

        Args:
            runner: The trial runner of the variant, of which sandbox and counts are used.
            case: The case that was timed.
            samples: What was run.
            row: The variant as it was timed.
            writer: What writes text with the model; None if it does not write any.
        """
        runner, passes = runner.on(case), case.passes.pipeline
        if self.original is None:
            found = take_inventory(runner, None, samples[0])
            self.original = found if isinstance(found, Inventory) else None
        if row.failure is not None and row.failure.stage == "build":
            return row
        parts: dict[Part, Any] = {"inventory": take_inventory(runner, passes, samples[0])}
        if row.failure is None:
            self._look_at_reference(runner, row, samples, writer)
            parts["placement"] = find_placement(runner, passes, samples)
            if writer is not None:
                parts["pace"] = find_pace(runner, passes, samples, writer)
            if (meter := self._meter(runner)) is not None:
                parts["device"] = find_use(runner, passes, samples, meter)
            if self.ncu:
                parts["kernels"] = find_kernels(runner, passes, samples, self.seed)
                if isinstance(parts["kernels"], KernelProfile):
                    self._profile_reference(runner, row, samples)
        known: dict[str, Any] = {
            part: what for part, what in parts.items() if not isinstance(what, str)
        }
        change = None
        if self.original is not None and "inventory" in known:
            change = change_of(self.original, known["inventory"])
        unknown = {p: why for p, why in parts.items() if isinstance(why, str)}
        return row.model_copy(update={**known, "change": change, "unknown": unknown})

    def _look_at_reference(
        self,
        runner: TrialRunner,
        row: BenchVariant,
        samples: Sequence[Sample],
        writer: Writer | None,
    ) -> None:
        """Placement, pace and device use of what ``row`` is compared with, unless known already."""
        name, passes = _reference_of(runner, row)
        if name in self.placements:
            return
        found = find_placement(runner, passes, samples)
        if isinstance(found, Placement):
            self.placements[name] = found
        if writer is not None:
            pace = find_pace(runner, passes, samples, writer)
            if isinstance(pace, Pace):
                self.paces[name] = pace
        if (meter := self._meter(runner)) is not None:
            use = find_use(runner, passes, samples, meter)
            if isinstance(use, DeviceUse):
                self.devices[name] = use

    def _profile_reference(
        self, runner: TrialRunner, row: BenchVariant, samples: Sequence[Sample]
    ) -> None:
        """Kernels of what ``row`` is compared with; where its own can be had and these not, why."""
        name, passes = _reference_of(runner, row)
        if name in self.kernels:
            return
        found = find_kernels(runner, passes, samples, self.seed)
        if isinstance(found, KernelProfile):
            self.kernels[name] = found
        else:
            self.skipped.append(f"kernels of {name}: {found}")

    def _meter(self, runner: TrialRunner) -> Meter | None:
        """The meter of the device; where there should be one and is none, that is noted once."""
        outcome = runner.sandbox.call(ask_meter, runner.case.candidate)
        refuse_misuse(outcome.failure)
        found = outcome.value
        if found is None and outcome.failure is not None:
            found = f"the device is not metered: {describe(outcome.failure)}"
        if found and isinstance(found, str) and found not in self.skipped:
            self.skipped.append(found)
        return None if found is None or isinstance(found, str) else found


def _reference_of(runner: TrialRunner, row: BenchVariant) -> tuple[str, Sequence[str] | None]:
    """What ``row`` is compared with, in words, and its passes; None for the original."""
    if row.timing is None or row.timing.baseline == "original":
        return f"original on {runner.case.reference.runtime.name}", None
    return f"{runner.case.optimizer.name} without passes", runner.case.passes.base
