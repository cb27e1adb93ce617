"""The user's files of a model, which no optimizer may change."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from optvet.engine.vet.ledger import FindingsLedger
from optvet.graph.outline import is_outside, location_of
from optvet.graph.weights import tensors_of
from optvet.spec.foreign import load_model
from optvet.spec.types import Model

State = tuple[int, int, int, int] | None
"""File number, size in bytes, time of the last change in ns, and mode; None where there is none."""


def files_of(model: Model) -> list[Path]:
    """Paths of the model, its sidecar and its external data, whether they exist or not."""
    path = model.path
    found = [path, path.with_suffix(".toml")]
    if model.blob == path and path.is_file() and path.stat().st_size == model.size_bytes:
        return found
    outline = load_model(path, weights=False)
    places = {location_of(tensor) for tensor in tensors_of(outline) if is_outside(tensor)}
    return [*found, *sorted(path.parent / place for place in places if place)]


def states_of(model: Model) -> dict[Path, State]:
    """The state of each file of a model now."""
    return {file: _state(file) for file in files_of(model)}


def note_changes(ledger: FindingsLedger, before: Mapping[Path, State]) -> None:
    """Make the verdict undecided if files of the model changed.

    A fault may then come from the changed or unreadable file, so no fault stays confirmed.
    """
    for file, was in before.items():
        now = _state(file)
        if was == now:
            continue
        ledger.add_undecided_reason(_words(file, was, now))
        if was is None or now is None or was[:3] != now[:3] or not os.access(file, os.R_OK):
            ledger.withdraw_faults()


def _state(file: Path) -> State:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode


def _words(file: Path, was: State, now: State) -> str:
    if was is None or now is None:
        what = "created" if was is None else "deleted"
    elif was[:3] == now[:3]:
        what = f"given the mode {now[3] & 0o7777:o} in place of {was[3] & 0o7777:o}"
    else:
        what = "changed"
    return (
        f"{file} was {what} during the vet, which optvet never does; either the "
        "optimizer did it or another process on this machine"
    )
