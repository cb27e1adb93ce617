"""Properties of a pass sequence; ``blame`` finds the culprit of each in the same way."""

from optvet.engine.vet.properties.base import Property
from optvet.engine.vet.properties.fails_inference import FailsInference
from optvet.engine.vet.properties.fault import Fault
from optvet.engine.vet.properties.noted_value import NotedValue
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
    "FailsInference",
    "Fault",
    "LostInputs",
    "LostMetadata",
    "NotedValue",
    "OtherShapes",
    "Portability",
    "Property",
]
