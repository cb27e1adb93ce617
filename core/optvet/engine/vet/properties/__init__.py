"""Properties of a pass sequence; ``blame`` finds the culprit of each in the same way."""

from optvet.engine.vet.properties.base import Property
from optvet.engine.vet.properties.fault import Fault
from optvet.engine.vet.properties.sensitivity import Sensitivity
from optvet.engine.vet.properties.structural import (
    GROWN,
    Bloat,
    LostInputs,
    LostMetadata,
    OtherShapes,
    Portability,
)

__all__ = [
    "GROWN",
    "Bloat",
    "Fault",
    "LostInputs",
    "LostMetadata",
    "OtherShapes",
    "Portability",
    "Property",
    "Sensitivity",
]
