"""Synthetic models and what they cover: document ``optvet.generated/1``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from optvet.spec.records.base import Record


class SyntheticModel(Record):
    """One model: its file below the folder, and the folder of inputs on which it ran there."""

    file: str
    inputs: str
    sha256: str
    size_bytes: int
    nodes: int


class OperatorSequence(Record):
    """Operators each of which reads what the one before makes, and in how many models they do."""

    operators: list[str]
    models: int


class Coverage(Record):
    """What models have of an operator set.

    ``operators`` counts models by operator, and ``missing`` tells why each other operator of the
    operator set is in none. ``older`` has the operators that are only in models of an older
    version of the operator set, with the newest such version. ``attributes`` counts nodes by
    operator, attribute and value; large values are told by their type. ``pairs`` and ``triples``
    are sequences along the edges, the most frequent first. ``sequences`` is how many different
    sequences of two to five operators there are, by their length.
    """

    opset: int
    operators: dict[str, int]
    missing: dict[str, str]
    older: dict[str, int] = Field(default_factory=dict)
    attributes: dict[str, dict[str, dict[str, int]]]
    pairs: list[OperatorSequence]
    triples: list[OperatorSequence]
    sequences: dict[str, int] = Field(default_factory=dict)


class GeneratedModels(Record):
    """Synthetic models, each of which passed the checker and ran twice alike.

    ``runtime`` and ``version`` ran them. ``dropped`` counts candidates that were no model at the
    end, and ``killed`` those of them that ended their worker; ``deaths`` has these by the operator
    that was being tried. ``seconds`` is CPU time of workers.
    """

    schema_: Literal["optvet.generated/1"] = Field("optvet.generated/1", alias="schema")
    folder: str
    seed: int
    runtime: str
    version: str
    dropped: int
    killed: int
    deaths: dict[str, int]
    seconds: float
    models: list[SyntheticModel]
    coverage: Coverage
