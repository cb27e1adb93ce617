"""Proposes the cause of a finding from its evidence.

The kinds are those that studies of failing model converters use. A kind is proposed only where the
evidence names one; where it names none, or several, the cause is "unclear".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from optvet.engine.campaign.conversion_findings import operators_of
from optvet.spec.records import Finding
from optvet.spec.records.convert import ConversionFinding
from optvet.spec.studies import Cause, CauseName

_WRAPPERS = re.compile(r"\b(?:Shape|Type)InferenceError\b|\[\w*Error\]")
"""Names of errors that say nothing: ONNX reports wrong types as ShapeInferenceError too."""


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_WORDS: Mapping[CauseName, re.Pattern[str]] = {
    "incompatibility": _any_of(
        r"not[ _]implemented",
        r"unsupported|not (?:yet )?supported",
        r"no (?:op|kernel|schema) registered|not a registered",
        r"find an implementation",
        r"no (?:\w+ )?(?:function|decompositions?) (?:found|registered)",
        r"neither a custom op nor a flex op|failed to legalize operation",
        r"(?:unknown|unrecogni[sz]ed) (?:operator|op|attribute)\b",
        r"\bopset|operator set|ir[_ ]version",
    ),
    "API misuse": _any_of(
        r"unexpected keyword argument|positional argument",
        r"has no attribute",
        r"no module named|cannot import name",
    ),
    "type": _any_of(r"\btypes?\b", r"\bdtype", r"elem(?:ent)?_type", r"TypeError"),
    "shape": _any_of(
        r"\bshapes?\b", r"\bdim(?:s|ensions?)?\b", r"\brank", r"broadcast", r"\baxis\b|\baxes\b"
    ),
}
_DECISIVE: tuple[CauseName, ...] = ("incompatibility", "API misuse")
"""Their findings have fixed phrases, so other words in a message do not matter."""


def cause_of(finding: Finding) -> Cause:
    """The proposed cause of ``finding``; "unclear" if the evidence names none or several."""
    if finding.symptom.info.limit == "memory":
        return Cause("other", "memory")
    if finding.stage == "compare" and finding.symptom.info.of_values:
        return _of_values(finding)
    return _of_words(finding.message)


def cause_of_conversion(finding: ConversionFinding) -> Cause:
    """The proposed cause of what is wrong with a conversion, likewise."""
    if finding.symptom.info.limit == "memory":
        return Cause("other", "memory")
    place = finding.place
    if finding.kind == "target-runtime" and finding.symptom.info.of_values:
        return Cause("incompatibility", f"no fault on {', '.join(_right_on(finding))}")
    if not finding.symptom.info.of_values or finding.error is None:
        return _of_words(finding.message)
    if place is None or not (place.nodes or place.parameters or place.attributes):
        return Cause("unclear")
    after = operators_of(place.nodes)
    if place.parameters:
        return Cause("algorithmic", f"weights differ: {place.words()}")
    if after and set(after) == {"Cast"}:
        return Cause("type", "only a Cast is where the values diverge")
    return Cause("algorithmic", place.words())


def _right_on(finding: ConversionFinding) -> list[str]:
    return [c.runtime for c in finding.cross_check if c.outcome == "no-fault"]


def _of_words(message: str) -> Cause:
    """The cause of a failure, proposed from its message."""
    text = _WRAPPERS.sub(" ", message)
    found = {n: match for n, words in _WORDS.items() if (match := words.search(text))}
    for name in _DECISIVE:
        if name in found:
            return Cause(name, found[name][0])
    if len(found) == 1:
        ((name, match),) = found.items()
        return Cause(name, match[0])
    return Cause("unclear", " and ".join(match[0] for match in found.values()))


def _of_values(finding: Finding) -> Cause:
    """The cause of wrong values, proposed from the operators that compute them first."""
    judged = [c for c in finding.cross_check if c.outcome in ("fault", "no-fault")]
    if judged and all(c.outcome == "no-fault" for c in judged):
        return Cause("incompatibility", f"no fault on {', '.join(c.runtime for c in judged)}")
    if finding.error is None:
        # No size: the outputs differ in form.
        return _of_words(finding.message)
    found = finding.divergence
    if finding.layer is not None:
        return Cause("algorithmic", "a layer is wrong on its own inputs")
    if found is None or found.value is None or not (found.before or found.after):
        return Cause("unclear")
    before, after = operators_of(found.before), operators_of(found.after)
    if "Cast" in {*before} ^ {*after} and {*before} - {"Cast"} == {*after} - {"Cast"}:
        return Cause("type", "only a Cast was added or removed where the values diverge")
    return Cause("algorithmic", f"{_join(before)} became {_join(after)}")


def _join(operators: list[str]) -> str:
    return " ".join(operators[:4]) + (" …" if len(operators) > 4 else "") or "nothing"
