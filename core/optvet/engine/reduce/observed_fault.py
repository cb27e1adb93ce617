"""A fault as a reduction keeps it: what is sought, and the signature of what was observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from optvet.engine.judge.judgement import OTHER_PLACES
from optvet.engine.vet.observe.examine import Examiner
from optvet.engine.vet.observe.observation import Examination, Observation
from optvet.engine.vet.require.gauges import RequirementReading
from optvet.engine.vet.require.portable import PortableRequirement
from optvet.engine.work.trials.trial_results import Trial
from optvet.graph import structure
from optvet.graph.interface import shape_changes
from optvet.graph.structure import Facts
from optvet.spec.requirement import Required
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Sample


@dataclass(frozen=True)
class ChangedMetadata:
    """A note on metadata: the names of what changed; any change where there are none."""

    names: tuple[str, ...]


Sought = Symptom | ChangedMetadata | PortableRequirement | None
"""The note or unmet requirement to look for; None for faults."""


@dataclass(frozen=True)
class Signature:
    """What two observations of one fault share.

    ``kind`` of wrong output is "form"; "value"; "places" where NaN or infinity is in other places,
    since a wrong number must not be reduced to one that is none; "layer" where a layer of a
    quantized model is wrong on its own inputs; or "random" where distributions differ.
    """

    symptom: Symptom
    stage: str
    words: str = ""
    kind: str = ""


def is_structural(sought: Sought) -> bool:
    """Whether what is sought shows in the structure, so that nothing has to be run."""
    noted = isinstance(sought, Symptom) and sought.info.structural
    return noted or isinstance(sought, ChangedMetadata)


@dataclass(frozen=True)
class ObservedFault:
    """The observation of a fault, and its signature, which a reduction keeps.

    ``random`` are the random outputs, if their distribution differs; ``reading`` is of a
    requirement.
    """

    observation: Observation
    signature: Signature
    random: tuple[str, ...] = ()
    reading: RequirementReading | None = None


def find_first_fault(
    examiner: Examiner,
    reference: Trial,
    trial: Trial,
    samples: Sequence[Sample],
    sought: Sought = None,
) -> ObservedFault | None:
    """The first fault of ``trial``, or what is sought in its place.

    Args:
        examiner: Knows the reference's outputs.
        reference: The original's trial.
        trial: The candidate's.
        samples: The samples of both trials.
        sought: See ``Sought``.
    """
    if isinstance(sought, ChangedMetadata):
        return _find_metadata_change(sought, reference, trial)
    if isinstance(sought, Symptom) and sought.info.structural:
        return _find_bloat(sought, reference, trial)
    found = examiner.examine(trial, samples)
    if isinstance(sought, PortableRequirement):
        return _unmet(found, sought.required, sought.read(examiner, trial, samples))
    if sought is not None:
        return _noted(found, sought)
    observation = found.observation
    if observation is None:
        return None
    signature = _signature(observation)
    # All of them: one may depend on another.
    random = tuple(sorted(examiner.random)) if examiner.random & {*observation.outputs} else ()
    signature = replace(signature, kind="random") if random else signature
    return ObservedFault(observation, signature, random)


def _signature(observation: Observation) -> Signature:
    symptom, words = observation.signature
    kind = ""
    if observation.stage == "compare":
        places = any(j.detail == OTHER_PLACES for j in observation.faults)
        kind = "form" if observation.wrong_form else "places" if places else "value"
        if any(j.layered for j in observation.faults):
            # The whole run alone would no longer tell a wrong layer from one that nothing defines.
            kind = "layer"
    if Symptom(symptom).info.check.info.names_only:
        words = ""
    return Signature(Symptom(symptom), observation.stage, words, kind)


def _noted(found: Examination, symptom: Symptom) -> ObservedFault | None:
    """The note on values that is sought, where nothing is wrong."""
    notes = [n for _, n in found.notes if n.symptom == symptom]
    if found.observation is not None or not notes:
        return None
    first, outputs = notes[0], tuple(dict.fromkeys(n.output for n in notes))
    message = f"output {first.output!r}: {first.detail}"
    observation = Observation(
        "sensitivity", symptom, "compare", message, outputs, first.error, first.noise
    )
    return ObservedFault(observation, Signature(symptom, "compare"))


def _unmet(
    found: Examination, required: Required, reading: RequirementReading
) -> ObservedFault | None:
    if reading.met is not False:
        return None
    kind = "" if found.observation is None else _signature(found.observation).kind
    outputs = reading.outputs or (() if required.output is None else (required.output,))
    message = f"{required} is required; {reading.words}"
    observation = Observation("fault", Symptom.REQUIREMENT, "compare", message, outputs)
    signature = Signature(Symptom.REQUIREMENT, "compare", kind=kind)
    return ObservedFault(observation, signature, reading=reading)


def _find_bloat(note: Symptom, reference: Trial, trial: Trial) -> ObservedFault | None:
    """Additional nodes; the threshold of a vet depends on the model's size, here any count."""
    before, after = reference.build.facts, trial.build.facts
    if before is None or after is None or after.nodes <= before.nodes:
        return None
    observation = Observation("fault", note, "build", structure.growth(before, after))
    return ObservedFault(observation, Signature(note, "build"))


def _find_metadata_change(
    sought: ChangedMetadata, reference: Trial, trial: Trial
) -> ObservedFault | None:
    before, after = reference.build.facts, trial.build.facts
    if before is None or after is None:
        return None
    found = structure.lost_metadata(before, after) | _other_shapes(before, after)
    names = sought.names or tuple(found)
    if not names or not found.keys() >= set(names):
        return None
    words = structure.in_words({name: found[name] for name in names})
    observation = Observation("fault", Symptom.METADATA_CHANGE, "build", words)
    return ObservedFault(observation, Signature(Symptom.METADATA_CHANGE, "build"))


def _other_shapes(before: Facts, after: Facts) -> dict[str, tuple[str, str]]:
    """Declared shapes of inputs and outputs that say less, or more, as changed metadata."""
    found = {}
    for direction, changed in shape_changes(before, after).items():
        if changed:
            was = "; ".join(f"{what} {old}" for what, (old, _) in changed.items())
            found[f"{direction} shapes"] = (was, "; ".join(new for _, new in changed.values()))
    return found
