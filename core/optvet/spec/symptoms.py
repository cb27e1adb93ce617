"""What can go wrong, where in a trial, and all that follows from which of them it is.

``SYMPTOMS`` is the one table: who can be blamed, how severe it is, how it is reduced, what a script
checks, which words are shown. A new symptom is a member, an entry, and the code that detects it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Stage = Literal["build", "check", "load", "run", "compare"]
"""Where in a trial something happened, in the order in which a trial goes through them."""


class Symptom(StrEnum):
    """What went wrong. Members are ordered from the earliest stage to the latest."""

    REFUSED = "refused"
    OPTIMIZER_ERROR = "optimizer-error"
    OPTIMIZER_ABORT = "optimizer-abort"
    CRASH = "crash"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out-of-memory"
    INVALID_MODEL = "invalid-model"
    LOAD_FAILURE = "load-failure"
    RUN_FAILURE = "run-failure"
    INTERFACE_CHANGE = "interface-change"
    WRONG_OUTPUT = "wrong-output"
    REQUIREMENT = "requirement"
    SENSITIVITY = "sensitivity"
    SLOWDOWN = "slowdown"
    BLOAT = "bloat"
    LARGER_FILE = "larger-file"
    METADATA_CHANGE = "metadata-change"
    PORTABILITY = "portability"

    @property
    def info(self) -> SymptomInfo:
        """The entry of the table."""
        return SYMPTOMS[self]


class ScriptCheck(StrEnum):
    """What a script of a bundle looks at, to tell whether a finding is still there."""

    ERROR = "error"
    """Whether a step raises an error."""
    DEATH = "death"
    """Whether a process ends by itself, with code 0."""
    INTERFACE = "interface"
    """Names and types of inputs and outputs."""
    OUTPUTS = "outputs"
    """The values of outputs."""
    NODES = "nodes"
    """How many nodes there are."""
    METADATA = "metadata"
    """What the model says about itself."""
    NOTHING = "nothing"
    """There is no script."""

    @property
    def info(self) -> CheckInfo:
        """The entry of the table."""
        return CHECKS[self]


Party = Literal["pass", "round trip", "lowering", "conversion", "runtime"]
"""Who can be blamed: a pass; import and export alone; what makes an executable of the result; a
stage of a converter; or the runtime that executes the result."""
Severity = Literal["fault", "note", "requirement", "refusal"]
Harm = Literal["silent", "death", "unusable", "refused", "remark"]
HARMS: Mapping[Harm, str] = {
    "silent": "wrong without an error",
    "death": "ends the process",
    "unusable": "a model that cannot be used",
    "refused": "an error of the optimizer",
    "remark": "no fault",
}
"""What a symptom does to whoever deploys the model, in words; the gravest first."""
Identity = Literal["place", "words", "metadata", "culprit"]
"""What tells two findings of one culprit apart: the place in the graph that was rewritten, else the
words of a failure, else the structure of the model; always the words; the names of the metadata
that changed; or nothing but the place, where one is known."""


@dataclass(frozen=True)
class CheckInfo:
    """All that follows from what a script looks at.

    Attributes:
        harm: What a fault of this kind does to whoever deploys the model.
        fails: Whether a step fails, so that there is nothing to compare.
        wrong: For scripts that compare facts of the two models: how those of the optimized one
            stand to those of the original where it is wrong. A macro in ``facts.py.jinja`` that is
            called like the check reads the facts.
        runs: Whether the script runs the optimized model, unless it fails before.
        names_only: Whether the words of a finding are names and shapes of its model.
    """

    harm: Harm = "silent"
    fails: bool = False
    wrong: Literal["!=", ">", ""] = ""
    runs: bool = True
    names_only: bool = False


CHECKS: Mapping[ScriptCheck, CheckInfo] = {
    ScriptCheck.ERROR: CheckInfo("unusable", fails=True),
    ScriptCheck.DEATH: CheckInfo("death", fails=True),
    ScriptCheck.INTERFACE: CheckInfo(wrong="!=", names_only=True),
    ScriptCheck.OUTPUTS: CheckInfo(),
    ScriptCheck.NODES: CheckInfo(wrong=">", runs=False),
    ScriptCheck.METADATA: CheckInfo(wrong="!=", runs=False),
    ScriptCheck.NOTHING: CheckInfo(),
}


@dataclass(frozen=True)
class SymptomInfo:
    """All that follows from what is wrong.

    Attributes:
        stages: Where it shows, the usual one last; more than one if any step can show it.
        blames: Who can be at fault.
        severity: What it counts as, unless a pass documents it or the user asked for it.
        check: What a script looks at; see ``failed`` and ``structural``.
        headline: What is wrong, as a clause.
        expected: What should be, as a sentence.
        reducible: Whether a smaller model can show it.
        located: Whether the place in the graph can be looked for.
        limit: The limit that was reached, if any: it is shown again only under one.
        identity: What tells two findings apart.
        examples: How many models with the same words a hunt verifies. The words of an error tell
            causes apart; wrong values and deaths have none that do.
    """

    stages: tuple[Stage, ...]
    blames: frozenset[Party]
    severity: Severity
    check: ScriptCheck
    headline: str
    expected: str
    reducible: bool = True
    located: bool = False
    limit: Literal["time", "memory"] | None = None
    identity: Identity = "place"
    examples: int = 1

    @property
    def failed(self) -> bool:
        """Whether a step failed, so that there is nothing to compare."""
        return self.check.info.fails

    @property
    def of_values(self) -> bool:
        """Whether outputs came, and their values are wrong."""
        return self.check is ScriptCheck.OUTPUTS and self.severity == "fault"

    @property
    def harm(self) -> Harm:
        """What it does to whoever deploys the model."""
        if self.severity != "fault":
            return "remark"
        harm = self.check.info.harm
        return "refused" if harm == "unusable" and self.stages == ("build",) else harm

    @property
    def structural(self) -> bool:
        """Whether the structure alone shows it: nothing has to be run."""
        return not self.check.info.runs


_MAKERS: frozenset[Party] = frozenset({"pass", "round trip"})
_CONVERTERS: frozenset[Party] = frozenset({"conversion", "runtime"})
_EVERYONE: frozenset[Party] = _MAKERS | _CONVERTERS | {"lowering"}
_ANY: tuple[Stage, ...] = ("check", "load", "run", "build")
_EQUAL = "The optimized model computes the same as the original, up to rounding."

SYMPTOMS: Mapping[Symptom, SymptomInfo] = {
    Symptom.REFUSED: SymptomInfo(
        ("build",),
        frozenset({"conversion"}),
        "refusal",
        ScriptCheck.ERROR,
        "the program does not support the model",
        "The program supports the model.",
    ),
    Symptom.OPTIMIZER_ERROR: SymptomInfo(
        ("build",),
        _MAKERS,
        "fault",
        ScriptCheck.ERROR,
        "the optimizer raises an error",
        "The optimizer skips what it does not support.",
    ),
    Symptom.OPTIMIZER_ABORT: SymptomInfo(
        ("load", "build"),
        _MAKERS,
        "fault",
        ScriptCheck.DEATH,
        "the optimizer crashes",
        "The optimizer never ends the process that uses it.",
        examples=2,
    ),
    Symptom.CRASH: SymptomInfo(
        _ANY,
        _CONVERTERS,
        "fault",
        ScriptCheck.DEATH,
        "a signal kills the process",
        "The process does not crash.",
    ),
    Symptom.TIMEOUT: SymptomInfo(
        _ANY,
        _EVERYONE,
        "fault",
        ScriptCheck.DEATH,
        "the time limit is exceeded",
        "The optimizer finishes.",
        limit="time",
    ),
    Symptom.OUT_OF_MEMORY: SymptomInfo(
        _ANY,
        _EVERYONE,
        "fault",
        ScriptCheck.DEATH,
        "the memory limit is exceeded",
        "The optimizer needs about as much memory as the model does.",
        limit="memory",
    ),
    Symptom.INVALID_MODEL: SymptomInfo(
        ("check",),
        _MAKERS | {"conversion"},
        "fault",
        ScriptCheck.ERROR,
        "the optimized model is invalid",
        "The optimized model is valid, as the original is.",
        located=True,
        # What the checker says of a type that no longer fits tells causes apart only in part.
        examples=2,
    ),
    Symptom.LOAD_FAILURE: SymptomInfo(
        ("load",),
        _EVERYONE,
        "fault",
        ScriptCheck.ERROR,
        "the optimized model cannot be loaded",
        "The optimized model loads, as the original does.",
        located=True,
    ),
    Symptom.RUN_FAILURE: SymptomInfo(
        ("run",),
        _EVERYONE,
        "fault",
        ScriptCheck.ERROR,
        "the optimized model cannot be run",
        "The optimized model runs on these inputs, as the original does.",
        located=True,
    ),
    Symptom.INTERFACE_CHANGE: SymptomInfo(
        ("build", "check", "compare"),
        _EVERYONE,
        "fault",
        ScriptCheck.INTERFACE,
        "inputs or outputs of the model change",
        "The optimized model has the same inputs and outputs.",
        identity="words",
    ),
    Symptom.WRONG_OUTPUT: SymptomInfo(
        ("compare",),
        _EVERYONE,
        "fault",
        ScriptCheck.OUTPUTS,
        "the optimized model computes something else",
        _EQUAL,
        located=True,
        examples=3,
    ),
    Symptom.REQUIREMENT: SymptomInfo(
        ("compare",),
        _EVERYONE,
        "requirement",
        ScriptCheck.OUTPUTS,
        "the optimized model does not meet the requirement",
        "The optimized model meets the requirement, as the original does.",
    ),
    Symptom.SENSITIVITY: SymptomInfo(
        ("compare",),
        _MAKERS | {"lowering"},
        "note",
        ScriptCheck.OUTPUTS,
        "an output flips by rounding alone",
        "The same, or this: here the output depends on rounding.",
        identity="culprit",
    ),
    Symptom.SLOWDOWN: SymptomInfo(
        ("run",),
        _MAKERS,
        "note",
        ScriptCheck.NOTHING,
        "the optimized model is slower",
        "The optimized model is no slower than the original.",
        reducible=False,
        identity="culprit",
    ),
    Symptom.BLOAT: SymptomInfo(
        ("build",),
        _MAKERS,
        "note",
        ScriptCheck.NODES,
        "the optimized model has more nodes",
        "The optimized model has no more nodes than the original.",
        identity="words",
    ),
    Symptom.LARGER_FILE: SymptomInfo(
        ("build",),
        _MAKERS,
        "note",
        ScriptCheck.NOTHING,
        "the file of the optimized model is larger",
        "The optimized model takes no more space than the original.",
        reducible=False,
        identity="culprit",
    ),
    Symptom.METADATA_CHANGE: SymptomInfo(
        ("build",),
        _MAKERS,
        "note",
        ScriptCheck.METADATA,
        "the metadata of the optimized model changes",
        "The optimized model keeps the metadata of the original.",
        identity="metadata",
    ),
    Symptom.PORTABILITY: SymptomInfo(
        ("build",),
        _MAKERS,
        "note",
        ScriptCheck.NOTHING,
        "the optimized model has operators that ONNX does not define",
        "The optimized model only has operators of ONNX.",
        reducible=False,
        identity="words",
    ),
}

NOTES = frozenset(s for s, info in SYMPTOMS.items() if info.severity == "note")
"""Symptoms that are reported but do not make the verdict "faulty"."""
