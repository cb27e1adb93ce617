"""What a hunt in a converter has learned: a document beside ``hunt.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from optvet.engine.hunt.sources.plan import SourceRecipe
from optvet.engine.hunt.sources.steps import SourceOutcome
from optvet.spec.errors import InputError, UsageError
from optvet.spec.files import folder_without_links, replacing
from optvet.spec.foreign import read_text
from optvet.spec.records.base import Record
from optvet.spec.records.hunt import HuntFinding

NAME = "sources.json"
_TRIES = 2
"""Sources of one key that are vetted, unless the first one is a finding."""


class SourceHuntState(Record):
    """What was learned; fields are those of ``HuntSummary``, or counts by key of a suspicion."""

    schema_: Literal["optvet.hunt.sources/1"] = Field("optvet.hunt.sources/1", alias="schema")
    identity: dict[str, Any]
    number: int = 0
    valid: int = 0
    refused: int = 0
    deaths: int = 0
    refuted: int = 0
    seconds: float = 0.0
    vetting_seconds: float = 0.0
    converted: list[str] = Field(default_factory=list)
    seen: dict[str, int] = Field(default_factory=dict)
    vetted: dict[str, int] = Field(default_factory=dict)
    found: dict[str, str] = Field(default_factory=dict)
    complaints: list[str] = Field(default_factory=list)
    findings: list[HuntFinding] = Field(default_factory=list)

    def save(self, folder: Path) -> None:
        """Write it, whole or not at all."""
        with replacing(folder / NAME) as file:
            file.write(self.to_json().encode())


def key_of(names: tuple[str, ...], outcome: SourceOutcome) -> str:
    """Equal for suspicions that are probably of one cause; ``names`` are those of a recipe."""
    return "|".join((" ".join(names), outcome.symptom, outcome.words))


def is_needless(state: SourceHuntState, recipe: SourceRecipe, outcome: SourceOutcome) -> bool:
    """Whether a suspicion need not be vetted: enough like it were, or an operator explains it."""
    key = key_of(recipe.names, outcome)
    if key in state.found or state.vetted.get(key, 0) >= _TRIES:
        return True
    alone = (key_of((name,), outcome) for name in recipe.names)
    return len(recipe.steps) > 1 and any(each in state.found for each in alone)


def open_state(folder: Path, identity: dict[str, Any], *, resume: bool) -> SourceHuntState:
    """The state of a hunt that begins, or goes on.

    Raises:
        UsageError: The folder holds another hunt, or one that is not to be resumed.
    """
    path = folder / NAME
    if not path.exists():
        if resume:
            raise UsageError(f"--resume: {folder} holds no hunt; leave --resume out to begin one")
        if (folder / "hunt.json").exists():
            raise UsageError(f"{folder} holds a hunt of another kind; give another --out")
        folder_without_links(folder)
        return SourceHuntState(schema="optvet.hunt.sources/1", identity=identity)
    if not resume:
        raise UsageError(
            f"{folder} holds a hunt already; say --resume to continue it, or another --out"
        )
    folder_without_links(folder)
    try:
        state = SourceHuntState.model_validate_json(read_text(path))
    except ValidationError as error:
        raise InputError(f"{path} is damaged; give another --out") from error
    changed = sorted(k for k in identity if state.identity.get(k) != identity[k])
    if changed:
        raise UsageError(
            f"--resume: {folder} holds a hunt with another {', '.join(changed)}; use the same "
            "options, or give another --out"
        )
    return state
