"""What a search for precision is about: sessions, measures and samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from optvet.engine.precision.emulation import count_half_sums, rounds
from optvet.engine.precision.measure import Measure
from optvet.engine.vet.find.detect import detect
from optvet.engine.vet.impact.assess import Assessor
from optvet.engine.vet.require.metrics import RequirementMeter
from optvet.engine.vet.session import VetSession
from optvet.engine.work.trials.case import Case
from optvet.engine.work.trials.trial_runner import Progress
from optvet.spec.optimizer_protocols import LowersPrecision
from optvet.spec.records import DatasetRecord
from optvet.spec.request import VetRequest
from optvet.spec.types import Sample


@dataclass(frozen=True)
class PrecisionSetting:
    """What a search is about.

    Attributes:
        session: Makes trials; of a model that rounds as the type does.
        plain: The same with the optimizer's own result.
        plain_meter: Measures the requirements on that.
        measure: Measures the requirements.
        samples: The samples that are kept in memory.
        judged: Number of all samples.
        datasets: The datasets that they came from.
        emulated: Whether the type is emulated.
        sum_block: Products that are added in float32 before a sum is rounded; None if all are.
        sums: Nodes by operator whose sums are rounded so, and are not; None without ``sum_block``.
    """

    session: VetSession
    plain: VetSession
    plain_meter: RequirementMeter
    measure: Measure
    samples: Sequence[Sample]
    judged: int
    datasets: Sequence[DatasetRecord]
    emulated: bool
    sum_block: int | None
    sums: tuple[dict[str, int], dict[str, int]] | None

    @property
    def case(self) -> Case:
        """The case that is searched."""
        return self.session.case


def set_up(
    session: VetSession, asked: VetRequest, sum_block: int | None, progress: Progress
) -> PrecisionSetting:
    """Detect with all nodes converted, where it is due in a model that rounds as the type does.

    With ``sum_block``, sums are rounded after each block of so many products, which no runtime is
    known to do: they are emulated in any case.
    """
    case = session.case
    optimizer, options = case.optimizer, case.options
    assert isinstance(optimizer, LowersPrecision)
    plain, inputs = session, session.inputs()
    emulated = optimizer.emulated(options, sum_block)
    emulates = emulated is not None and (
        sum_block is not None
        or not rounds(session.runner.sandbox, case.candidate, optimizer.precision)
    )
    session = session if emulated is None or not emulates else session.with_options(emulated)
    detected = detect(session, inputs, Assessor(session, inputs))
    session = session.at(detected.runner)
    meter = RequirementMeter(session, detected, inputs)
    measure = Measure(
        session.case.passes.pipeline,
        meter,
        most=1,
        progress=lambda tried: progress("trying lists", tried, None),
    )
    checks = session.case.checks
    plain = plain.at(plain.runner.on(replace(plain.case, checks=checks)))
    own = meter.at(plain)
    records = inputs.records()
    sums = None if sum_block is None else count_half_sums(plain.runner.sandbox, plain.case)
    return PrecisionSetting(
        session,
        plain,
        own,
        measure,
        detected.samples,
        detected.judged,
        records,
        emulates,
        sum_block,
        sums,
    )
