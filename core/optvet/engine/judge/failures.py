"""Names failures by how a step ended, at which stage, and what ran there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from optvet.spec.symptoms import Stage, Symptom
from optvet.spec.types import Failure


@dataclass(frozen=True)
class Producer:
    """The producer of the models under test: an optimizer or a chain of converters.

    Attributes:
        error: Symptom of an error that it raises while it makes a model.
        death: Symptom of the death of its process.
        lives: The stages at which its code runs, so that a death is its own.
    """

    error: Symptom
    death: Symptom
    lives: frozenset[Stage]


OPTIMIZER = Producer(Symptom.OPTIMIZER_ERROR, Symptom.OPTIMIZER_ABORT, frozenset({"build"}))
OPTIMIZER_ON_LOAD = Producer(OPTIMIZER.error, OPTIMIZER.death, frozenset({"build", "load"}))
"""An optimizer that does its work when a runtime loads the result."""
CONVERTER = Producer(Symptom.REFUSED, Symptom.CRASH, frozenset(get_args(Stage)))
"""A chain of converters; the stage of the chain distinguishes deaths of its models."""

_LIMITS: Mapping[str, Symptom] = {
    "timeout": Symptom.TIMEOUT,
    "out-of-memory": Symptom.OUT_OF_MEMORY,
}
_ERRORS: Mapping[Stage, Symptom] = {
    "check": Symptom.INVALID_MODEL,
    "load": Symptom.LOAD_FAILURE,
    "run": Symptom.RUN_FAILURE,
}


def symptom_of(
    failure: Failure, maker: Producer = OPTIMIZER, stage: Stage | None = None
) -> Symptom:
    """The symptom of a failed step.

    Args:
        failure: How it failed.
        maker: What made the model.
        stage: Where it counts as failed, if that is not where it was noticed.
    """
    if failure.kind in _LIMITS:
        return _LIMITS[failure.kind]
    at = stage or failure.stage
    if failure.kind != "error" and at in maker.lives:
        return maker.death
    return _ERRORS.get(at, maker.error)


def in_words(failure: Failure) -> str:
    """One failure in words: how a step failed, and its message.

    The type of an error that optvet itself raised says nothing beside its message.
    """
    own = failure.error_type.startswith("optvet.")
    how = failure.signal or ("" if own else failure.error_type)
    text = failure.message.strip()
    if how and text and not text.startswith(how):
        return f"{how}: {text}"
    return text or how
