"""Which suspects are vetted, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence, Set

from onnx import ModelProto

from optvet.engine.hunt.state import HuntState, Sign, Suspect
from optvet.engine.hunt.suspicions import ANY, SuspicionKey
from optvet.engine.hunt.triggers import Trigger, explained, texts_of
from optvet.spec.records.hunt import HuntFinding
from optvet.spec.symptoms import Symptom

_TRIES = 2


def is_settled(key: SuspicionKey, sign: Sign) -> bool:
    """Whether enough models of this key were vetted."""
    examples = key.symptom.info.examples
    if examples > 1:
        return sign.vetted >= examples
    return bool(sign.fingerprints) or sign.vetted >= _TRIES


def settled_keys(state: HuntState) -> frozenset[SuspicionKey]:
    """Keys of which no further example is needed."""
    return frozenset(
        key
        for key, sign in state.signs.items()
        if is_settled(key, sign) or is_unproductive(state, key)
    )


_UNPRODUCTIVE = 4
"""Models of one pass and symptom that may bring nothing new, besides one for each that did."""
_UNPRODUCTIVE_EDITS = 12
"""As many, of edits of models that did not show it."""


def is_needless(state: HuntState, suspect: Suspect) -> bool:
    """Whether a suspect need not be vetted.

    A known fault explains it, its edit was vetted, or enough like it were. An edit that turns a
    right model into a wrong one points to the cause, and counts as one that is not known yet.
    """
    key, edit = suspect.key, suspect.edit
    sign = state.signs.get(key, Sign())
    # Each edit of a right model is asked about once, though its key may be settled already.
    if edit in sign.edits if edit else is_settled(key, sign):
        return True
    if is_unproductive(state, key, edited=bool(edit)):
        return True
    present = texts_of(ModelProto.FromString(suspect.model))
    return explained(state.triggers, key, present, edit)


def is_unproductive(state: HuntState, key: SuspicionKey, *, edited: bool = False) -> bool:
    """Whether most models of the pass and symptom of the key were vetted in vain.

    What a pass does wrong shows in many ways, by the operators around it, and each is a key of its
    own. Not asked of import and export, where each operator may be a fault of its own.
    """
    passes, symptom = key.place
    if passes in ((), (ANY,)):
        return False
    # A pair whose passes are wrong alone mostly shows that.
    each = [_find_confirmed(state, (name,), symptom) for name in passes]
    if len(passes) > 1 and any(len(confirmed) >= _KNOWN for confirmed in each):
        return True
    # What brought something new earns the next ones.
    new = len(_find_confirmed(state, passes, symptom))
    vetted = sum(sign.vetted for k, sign in state.signs.items() if k.place == key.place)
    return vetted >= (_UNPRODUCTIVE_EDITS if edited else _UNPRODUCTIVE) + 2 * new


_KNOWN = 3
"""Faults of one pass alone, of one symptom: what it shows with another pass is mostly these."""


def _find_confirmed(state: HuntState, passes: tuple[str, ...], symptom: Symptom) -> set[str]:
    """Fingerprints of what was confirmed of passes and a symptom."""
    signs = (s for k, s in state.signs.items() if k.place == (passes, symptom))
    return {fingerprint for s in signs for fingerprint in s.fingerprints}


def of_one_pass(state: HuntState, key: SuspicionKey) -> SuspicionKey:
    """The key of one pass of a pair, where that alone was confirmed with the same words."""
    alone = (key._replace(passes=(name,)) for name in key.passes)
    return next((k for k in alone if k in state.signs and state.signs[k].fingerprints), key)


def take_findings(
    state: HuntState, suspect: Suspect, findings: Sequence[HuntFinding], known: Set[str]
) -> list[HuntFinding]:
    """Take what vetting the first of the suspects gave; returns those that were not known."""
    state.suspects.remove(suspect)
    sign = state.signs.setdefault(suspect.key, Sign())
    sign.vetted += 1
    if suspect.edit:
        sign.edits.append(suspect.edit)
    state.refuted += not findings
    new = []
    # Of a source it is not known what it has in common with others: its key says what it is.
    present = texts_of(ModelProto.FromString(suspect.model)) if suspect.source is None else None
    for finding in findings:
        if present is not None:
            _learn_trigger(state, suspect.key, finding, present)
        # A finding counts for each key that leads to it, and is reported once.
        if finding.fingerprint not in sign.fingerprints:
            sign.fingerprints.append(finding.fingerprint)
        if finding.fingerprint in known:
            if finding.fingerprint not in state.met:
                state.met.append(finding.fingerprint)
        elif all(f.fingerprint != finding.fingerprint for f in state.findings):
            state.findings.append(finding)
            new.append(finding)
    return new


def _learn_trigger(
    state: HuntState, key: SuspicionKey, finding: HuntFinding, present: Set[str]
) -> None:
    """Learn what makes a finding show, from one more model that led to it."""
    for number, known in enumerate(state.triggers):
        if (known.fingerprint, known.place) == (finding.fingerprint, key.place):
            if known.words == key.words:
                state.triggers[number] = known.narrowed(present)
                return
    needed = frozenset(finding.features)
    state.triggers.append(Trigger(finding.fingerprint, key.place, key.words, needed))


def with_counts(state: HuntState) -> list[HuntFinding]:
    """The findings with the keys that lead to them, and how many models showed these.

    The gravest come first.
    """
    counted = []
    for finding in state.findings:
        keys = [k for k, sign in state.signs.items() if finding.fingerprint in sign.fingerprints]
        models = max((state.signs[k].seen for k in keys), default=1)
        words = sorted(map(str, keys))
        counted.append(finding.model_copy(update={"keys": words, "models": models}))
    return sorted(counted, key=lambda finding: finding.gravity)
