"""Every JSON document that optvet writes: one pydantic model each, versioned by its key ``schema``.

A document of an earlier version is read by ``reading.read_document``, which brings it up to date.
"""

from optvet.spec.records.base import Record
from optvet.spec.records.bundle import Outcome, Replayed, Reproduction
from optvet.spec.records.compare import Activation, Comparison, Layer, Parameter
from optvet.spec.records.doctor import STATUSES, Check, Diagnosis, Status
from optvet.spec.records.error import ErrorRecord
from optvet.spec.records.vet import (
    ComparisonRecord,
    Control,
    ControlState,
    Cost,
    CrossCheck,
    DatasetRecord,
    Divergence,
    Finding,
    Impact,
    ModelRecord,
    OptimizerRecord,
    OutputRecord,
    PassRecord,
    RewriteSite,
    RuntimeRecord,
    Skipped,
    StageCost,
    Verdict,
    VetResult,
    Witness,
)

DOCUMENTS: dict[str, type[Record]] = {
    "vet": VetResult,
    "finding": Reproduction,
    "replay": Replayed,
    "compare": Comparison,
    "doctor": Diagnosis,
    "error": ErrorRecord,
}
"""Documents by the name that ``optvet schema`` takes."""

__all__ = [
    "DOCUMENTS",
    "STATUSES",
    "Activation",
    "Check",
    "Comparison",
    "ComparisonRecord",
    "Control",
    "ControlState",
    "Cost",
    "CrossCheck",
    "DatasetRecord",
    "Diagnosis",
    "Divergence",
    "ErrorRecord",
    "Finding",
    "Impact",
    "Layer",
    "ModelRecord",
    "OptimizerRecord",
    "Outcome",
    "OutputRecord",
    "Parameter",
    "PassRecord",
    "Record",
    "Replayed",
    "Reproduction",
    "RewriteSite",
    "RuntimeRecord",
    "Skipped",
    "StageCost",
    "Status",
    "Verdict",
    "VetResult",
    "Witness",
]
