"""optvet vets the optimizers that rewrite machine-learning models.

Here is what a Python program that uses optvet imports; authors of plugins import from
``optvet.plugin``.
"""

import warnings
from typing import TYPE_CHECKING, Any

from optvet.names import find
from optvet.spec.keyword_help import describe_keywords

if TYPE_CHECKING:
    from optvet.api import (
        Data,
        Progress,
        Source,
        advise,
        bench,
        bisect,
        compare,
        convert,
        hunt,
        known,
        precision,
        reduce,
        repair,
        replay,
        vet,
        write_bundles,
    )
    from optvet.campaigns import Campaign
    from optvet.engine.numerics.float64 import evaluator as reference_evaluator
    from optvet.spec.bench import BenchRequest
    from optvet.spec.bisect import BisectRequest
    from optvet.spec.convert import ConvertRequest
    from optvet.spec.errors import (
        ContractError,
        InfrastructureError,
        InputError,
        NothingTested,
        OptvetError,
        PluginError,
        UnknownName,
        Unsupported,
        UsageError,
    )
    from optvet.spec.hunt import HuntRequest
    from optvet.spec.precision import PrecisionRequest
    from optvet.spec.records.bench import BenchResult
    from optvet.spec.records.bisect import BisectResult
    from optvet.spec.records.bundle import Replayed
    from optvet.spec.records.campaign import CampaignSummary
    from optvet.spec.records.compare import ModelComparison
    from optvet.spec.records.convert import ConversionResult
    from optvet.spec.records.hunt import HuntSummary
    from optvet.spec.records.known import AdviceResult, KnownFault, KnownFaults
    from optvet.spec.records.precision import PrecisionResult
    from optvet.spec.records.repair import RepairResult
    from optvet.spec.records.report import CampaignReport
    from optvet.spec.records.vet import Finding, VetResult
    from optvet.spec.repair import RepairRequest
    from optvet.spec.request import VetRequest
    from optvet.spec.symptoms import NOTES, Symptom
    from optvet.spec.types import Failure, Sample

__version__ = "0.1.0"

__all__ = [
    "NOTES",
    "AdviceResult",
    "BenchRequest",
    "BenchResult",
    "BisectRequest",
    "BisectResult",
    "Campaign",
    "CampaignReport",
    "CampaignSummary",
    "ContractError",
    "ConversionResult",
    "ConvertRequest",
    "Data",
    "Failure",
    "Finding",
    "HuntRequest",
    "HuntSummary",
    "InfrastructureError",
    "InputError",
    "KnownFault",
    "KnownFaults",
    "ModelComparison",
    "NothingTested",
    "OptvetError",
    "PluginError",
    "PrecisionRequest",
    "PrecisionResult",
    "Progress",
    "RepairRequest",
    "RepairResult",
    "Replayed",
    "Sample",
    "Source",
    "Symptom",
    "UnknownName",
    "Unsupported",
    "UsageError",
    "VetRequest",
    "VetResult",
    "__version__",
    "advise",
    "bench",
    "bisect",
    "compare",
    "convert",
    "hunt",
    "known",
    "precision",
    "reduce",
    "reference_evaluator",
    "repair",
    "replay",
    "vet",
    "write_bundles",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        globals()[name] = describe_keywords(find(name))
        return globals()[name]
    try:
        found = find(name)
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    warnings.warn(
        f"optvet.{name} is for authors of plugins: import it from optvet.plugin, for optvet itself "
        "will not have it from 0.3 on",
        DeprecationWarning,
        stacklevel=2,
    )
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
