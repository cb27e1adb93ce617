"""Notes: changes that a user may want to know of but that are not faults."""

from __future__ import annotations

from optvet.engine.vet.find.confirm import note
from optvet.engine.vet.find.detect import Detected
from optvet.engine.vet.observe.observation import first_notes
from optvet.engine.vet.properties import (
    GROWN,
    FailsInference,
    LostInputs,
    LostMetadata,
    NotedValue,
    OtherShapes,
    Portability,
)
from optvet.engine.vet.session import VetSession
from optvet.graph import structure
from optvet.graph.interface import lost_inputs, shape_changes
from optvet.graph.structure import Facts


def take_notes(session: VetSession, detected: Detected) -> None:
    """Add a note for each such change that the whole pipeline makes."""
    runner, samples, table = session.runner, detected.samples, session.case.passes
    original = runner.reference(samples).build.facts
    result = runner.trial(table.pipeline, samples, "detect").build.facts
    if original is not None and result is not None:
        _note_metadata(session, original, result)
        _note_interface(session, original, result)
        for domain, operators in structure.gained_operators(original, result).items():
            note(session, Portability(original, domain, operators, table.passes))
        for grown in (of(original) for of in GROWN):
            if grown.shows(result):
                note(session, grown)
    strict = runner.trial(table.pipeline, samples, "detect").build.strict
    if strict is not None:
        note(session, FailsInference(strict))
    for sample, noted in first_notes(detected.found.notes):
        note(session, NotedValue(detected.examiner, sample, noted))


def _note_interface(session: VetSession, original: Facts, result: Facts) -> None:
    """Notes on changed declared shapes, and on weights that can no longer be fed."""
    passes = session.case.passes
    if "names" in passes.interface(passes.pipeline):
        return
    changes = shape_changes(original, result)
    moved = any(changes.values())
    # The empty pipeline is built only if there is something that it may have done.
    empty = session.runner.trial(passes.base, (), "control").build.facts if moved else None
    inherited = shape_changes(original, empty) if empty else {}
    for direction, shapes in changes.items():
        known = {k: v for k, v in shapes.items() if k in inherited.get(direction, {})}
        for changed in ({k: v for k, v in shapes.items() if k not in known}, known):
            if changed:
                note(session, OtherShapes(original, direction, changed))
    lost = lost_inputs(original, result) if original.lists_weights else ()
    if lost:
        note(session, LostInputs(original, lost))


def _note_metadata(session: VetSession, original: Facts, result: Facts) -> None:
    """One note on metadata that passes change, and one on what import and export alone change."""
    lost = structure.lost_metadata(original, result)
    if not lost:
        return
    empty = session.runner.trial(session.case.passes.base, (), "control").build.facts
    inherited = structure.lost_metadata(original, empty) if empty else {}
    by_passes = {k: v for k, v in lost.items() if k not in inherited}
    for changed in (by_passes, inherited):
        if changed:
            note(session, LostMetadata(original, changed))
