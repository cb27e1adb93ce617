"""What follows from a round, and from vetting a suspect."""

from __future__ import annotations

from collections.abc import Sequence, Set

from optvet.engine.hunt.batch import Crumb, Outcome
from optvet.engine.hunt.judge import Suspicion, label_of
from optvet.engine.hunt.state import Entry, Sign, State, Suspect
from optvet.spec.records.hunt import HuntFinding
from optvet.spec.types import Symptom

_EXAMPLES = {Symptom.WRONG_OUTPUT: 3, Symptom.OPTIMIZER_ABORT: 2}
"""How many models of one key are vetted. Of other symptoms one that is confirmed is enough: the
words of an error tell causes apart, which wrong values and deaths do not."""
_TRIES = 2
_DEADLY = 4
"""A pass that killed so many workers is tried seldom."""


def is_settled(key: str, sign: Sign) -> bool:
    """Whether enough models of this key were vetted."""
    symptom = Symptom(key.split("|")[1])
    if symptom in _EXAMPLES:
        return sign.vetted >= _EXAMPLES[symptom]
    return bool(sign.fingerprints) or sign.vetted >= _TRIES


def settled_keys(state: State) -> frozenset[str]:
    """Keys of which no further example is needed."""
    return frozenset(key for key, sign in state.signs.items() if is_settled(key, sign))


def avoided_passes(state: State) -> frozenset[str]:
    """Passes that are tried on few models, since they kill workers."""
    return frozenset(n for n, count in state.deaths.items() if count >= _DEADLY and n)


def learn(state: State, results: Sequence[Outcome | Crumb]) -> None:
    """Take the results of a round, in the order of the candidates."""
    found: dict[str, Suspect] = {}
    for result in results:
        state.number += 1
        if isinstance(result, Crumb):
            _take_death(state, result, found)
        else:
            _take(state, result, found)
    waiting = {s.key for s in state.suspects}
    state.suspects += [s for key, s in found.items() if key not in waiting]


def _take(state: State, outcome: Outcome, found: dict[str, Suspect]) -> None:
    examined, made = outcome.examined, outcome.made
    if outcome.complaint:
        kind = outcome.complaint.partition(": ")[0]
        state.complaints.setdefault(kind, outcome.complaint)
    if examined is None or not examined.valid:
        return
    state.valid += 1
    state.refused += examined.refused
    new = [f for f in examined.fired if f not in state.firings]
    state.firings.update(set(examined.fired))
    for suspicion in examined.suspicions:
        _suspect(state, suspicion, outcome, found)
    # A model with a fault would show the same one in all that is made of it.
    if new and made is not None and not examined.suspicions:
        state.entries.append(Entry(made.model, made.feeds, examined.fired))


def _take_death(state: State, crumb: Crumb, found: dict[str, Suspect]) -> None:
    if crumb.step not in ("optimize", "run"):
        state.deaths["reference"] += 1
        return
    state.valid += 1
    label = label_of(crumb.passes)
    state.deaths[label] += 1
    symptom = Symptom.OPTIMIZER_ABORT if crumb.step == "optimize" else Symptom.LOAD_FAILURE
    key = f"{label}|{symptom}|{crumb.signal}"
    suspicion = Suspicion(crumb.passes, str(symptom), crumb.signal, key)
    outcome = Outcome(crumb.number, "", crumb.made.mutators, None, crumb.made)
    _suspect(state, suspicion, outcome, found)


def _suspect(
    state: State, suspicion: Suspicion, outcome: Outcome, found: dict[str, Suspect]
) -> None:
    key, made = _of_one_pass(state, suspicion.key), outcome.made
    sign = state.signs.setdefault(key, Sign())
    sign.seen += 1
    if made is None or is_settled(key, sign):
        return
    other = found.get(key)
    # The smallest one of a round, which is quickest to reduce.
    if other is None or len(made.model) < len(other.model):
        found[key] = Suspect(
            outcome.number,
            made.model,
            made.feeds,
            suspicion.passes,
            suspicion.symptom,
            suspicion.message,
            key,
            made.mutators,
        )


def _of_one_pass(state: State, key: str) -> str:
    """The key of one pass of a pair, where that alone was confirmed with the same words."""
    label, _, rest = key.partition("|")
    alone = (f"{name}|{rest}" for name in label.split("+"))
    return next((k for k in alone if k in state.signs and state.signs[k].fingerprints), key)


def take_findings(
    state: State, suspect: Suspect, findings: Sequence[HuntFinding], known: Set[str]
) -> list[HuntFinding]:
    """Take what vetting the first of the suspects gave; returns those that were not known."""
    state.suspects.remove(suspect)
    sign = state.signs.setdefault(suspect.key, Sign())
    sign.vetted += 1
    state.refuted += not findings
    new = []
    for finding in findings:
        if finding.fingerprint not in sign.fingerprints:
            sign.fingerprints.append(finding.fingerprint)
        if finding.fingerprint in known:
            if finding.fingerprint not in state.met:
                state.met.append(finding.fingerprint)
        elif all(f.fingerprint != finding.fingerprint for f in state.findings):
            state.findings.append(finding)
            new.append(finding)
    return new


def with_counts(state: State) -> list[HuntFinding]:
    """The findings with the keys that lead to them, and how many models showed these."""
    counted = []
    for finding in state.findings:
        keys = [k for k, sign in state.signs.items() if finding.fingerprint in sign.fingerprints]
        models = max((state.signs[k].seen for k in keys), default=1)
        counted.append(finding.model_copy(update={"keys": sorted(keys), "models": models}))
    return counted
