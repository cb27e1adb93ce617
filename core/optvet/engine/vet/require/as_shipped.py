"""Requirements of the user in a session as its users have it."""

from __future__ import annotations

from optvet.engine.vet.require.metrics import RequirementMeter
from optvet.engine.vet.require.unmet import UnmetRequirement
from optvet.engine.vet.session import VetSession


def require_as_shipped(session: VetSession, meter: RequirementMeter, safe: tuple[str, ...]) -> None:
    """Measure each met requirement again in the shipped session, which ``session`` runs."""
    ledger = session.ledger
    for i, (required, record) in enumerate(zip(meter.required, ledger.requirements, strict=True)):
        unmet = UnmetRequirement(meter, required)
        if not record.met or unmet.read(safe).met is not False:
            continue
        reading = unmet.read(safe, fresh=True)
        if reading.met is not False:
            continue
        found = unmet.describe(session.runner.trial(safe, unmet.samples, "confirm"), ())
        witness = session.witness(reading.witness)
        ledger.add(found.model_copy(update={"as_deployed": True, "witness": witness}))
        detail = f"{reading.words} as shipped; {record.detail} in the clean room"
        changes = {"met": False, "measured": found.measured, "detail": detail}
        ledger.requirements[i] = record.model_copy(update=changes)
