"""A known fault: document ``optvet.known/1``, a TOML file of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field, field_validator

from optvet.spec.records.base import Record, Result
from optvet.spec.symptoms import Symptom


class AffectedRange(Record):
    """Releases that show a fault: from ``introduced`` on, up to ``fixed``, which does not.

    Without ``introduced`` the oldest release that was tried shows it, without ``fixed`` the newest.
    ``good_before`` is the last release before it that was tried; those between may show it too.
    """

    introduced: str | None = None
    good_before: str | None = None
    fixed: str | None = None

    def covers(self, version: Version) -> bool:
        """Whether the release is one of them."""
        if self.good_before is not None:
            after = Version(self.good_before) < version
        else:
            after = self.introduced is None or Version(self.introduced) <= version
        return after and (self.fixed is None or version < Version(self.fixed))


def _are_ranges(value: list[AffectedRange]) -> list[AffectedRange]:
    for one in value:
        ends = (one.good_before, one.introduced, one.fixed)
        known = [_version(v) for v in ends if v is not None]
        if known != sorted(set(known)):
            raise ValueError(f"expected good_before < introduced < fixed, got {ends}")
        if one.good_before is not None and one.introduced is None:
            raise ValueError("good_before stands beside introduced")
    return value


Ranges = Annotated[list[AffectedRange], AfterValidator(_are_ranges)]


class FaultForm(Record):
    """Another form of what triggers a fault, with a model that has it and its own releases.

    ``affected`` is empty if no release that was tried shows the fault in this form.
    """

    model: str
    affected: Ranges = Field(default_factory=list)


class KnownFault(Record):
    """One cause of wrong models: where it is, which releases have it, what triggers it.

    ``package`` is a distribution, ``optimizer`` the plugin that runs it, and ``passes`` what is at
    fault there: each alone, or in ``pipeline`` together; no pass means import and export alone.
    ``also_shows`` are other symptoms that it has in some releases.
    ``oldest`` and ``newest`` are the releases between which ``affected`` was found, on ``checked``.
    ``model`` is the smallest model known, as ONNX text, and ``trigger`` the pattern of nodes that a
    model must have to be affected. ``edit`` says how to change a model so that it is not.
    ``affected`` is about the form of the trigger that ``model`` has; ``forms`` has other forms.
    """

    schema_: Literal["optvet.known/1"] = Field("optvet.known/1", alias="schema")
    id: str
    title: str
    package: str
    optimizer: str
    passes: list[str] = Field(default_factory=list)
    pipeline: list[str] = Field(default_factory=list)
    symptom: Symptom
    also_shows: list[Symptom] = Field(default_factory=list)
    severity: Literal["fault", "note"] = "fault"
    affected: Ranges
    oldest: str
    newest: str
    checked: str
    trigger: str
    edit: str = ""
    upstream: list[str] = Field(default_factory=list)
    fingerprints: list[str] = Field(default_factory=list)
    model: str
    forms: list[FaultForm] = Field(default_factory=list)

    @field_validator("id")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if not re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", value):
            raise ValueError("write it in lower case with hyphens, such as acme-pad-axes")
        return value

    @field_validator("checked")
    @classmethod
    def _is_a_day(cls, value: str) -> str:
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", value):
            raise ValueError("write it as 2026-01-31")
        return value

    @field_validator("oldest", "newest")
    @classmethod
    def _is_a_version(cls, value: str) -> str:
        _version(value)
        return value

    @field_validator("affected")
    @classmethod
    def _is_shown(cls, value: list[AffectedRange]) -> list[AffectedRange]:
        if not value:
            raise ValueError("name the releases that show it")
        return value

    def affects(self, version: str) -> bool:
        """Whether a release shows it in some form."""
        return any(is_affected(form.affected, version) for form in self.every_form)

    @property
    def every_form(self) -> list[FaultForm]:
        """All forms that were dated, that of ``model`` first."""
        return [FaultForm(model=self.model, affected=self.affected), *self.forms]

    @property
    def symptoms(self) -> set[Symptom]:
        """All symptoms that it has in some release."""
        return {self.symptom, *self.also_shows}

    @property
    def when(self) -> str:
        """The affected releases in words, of each form that has others."""
        every = dict.fromkeys(self.when_of(form.affected) for form in self.every_form)
        return "; in another form ".join(every)

    def when_of(self, affected: Sequence[AffectedRange]) -> str:
        """The affected releases of one form in words."""
        words = "; again ".join(_words(one, self.oldest, self.newest) for one in affected)
        return words or f"in no release from {self.oldest} to {self.newest}"

    @property
    def applied(self) -> list[str]:
        """The passes that show it: all of ``pipeline``, else the first of ``passes``."""
        return self.pipeline or self.passes[:1]


def is_affected(ranges: Sequence[AffectedRange], version: str) -> bool:
    """Whether a release is in some range; one newer than all that were tried if the newest is.

    Some optimizers name a second library behind their version: "0.7.2 (acme_ir 0.1)".
    """
    number = _version(version.split()[0])
    return any(one.covers(number) for one in ranges)


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise ValueError(f"{text!r} is no version") from None


def _words(one: AffectedRange, oldest: str, newest: str) -> str:
    since = f"since {one.introduced}" if one.introduced else f"since {oldest} or earlier"
    since += f" ({one.good_before} is right)" if one.good_before else ""
    return f"{since}, fixed in {one.fixed}" if one.fixed else f"{since}, still in {newest}"


class KnownFaults(Result):
    """Known faults: what ``optvet known list --json`` writes."""

    schema_: Literal["optvet.known-faults/1"] = Field("optvet.known-faults/1", alias="schema")
    faults: list[KnownFault]

    def headline(self) -> str:
        """The number of faults, and the packages."""
        packages = ", ".join(dict.fromkeys(fault.package for fault in self.faults))
        several = "" if len(self.faults) == 1 else "s"
        return f"{len(self.faults)} known fault{several} of {packages or 'no package'}"

    def rows(self) -> list[dict[str, Any]]:
        """One row per fault."""
        return [
            {
                "fault": one.id,
                "package": one.package,
                "passes": " then ".join(one.pipeline) or ", ".join(one.passes),
                "symptom": one.symptom,
                "releases": one.when,
            }
            for one in self.faults
        ]


class Advised(Record):
    """A known fault that a model may trigger.

    ``places`` names the nodes of each place, or their results; ``certain`` is False if something
    that the trigger asks for is not known before the model runs. ``avoid`` says what may avoid it,
    and ``tried`` what came of each of these on this model, or why it was not tried.
    ``confirmed`` says whether the passes alone show it; None if that was not tried, or cannot
    be judged for the reason in ``note``. ``dated`` is False if the place has a form of the trigger
    of which nobody tried the releases.
    """

    fault: str
    title: str
    package: str
    version: str
    passes: list[str]
    symptom: Symptom
    places: list[list[str]]
    certain: bool
    avoid: list[str]
    tried: dict[str, str] = Field(default_factory=dict)
    dated: bool = True
    confirmed: bool | None = None
    note: str = ""


class AdviceResult(Result):
    """Known faults that a model may trigger under some versions: what ``optvet advise`` writes.

    ``looked_for`` counts the faults that these versions have. ``unfinished`` are those of them
    whose search ran out of steps on this model: places of them may be missing.
    """

    schema_: Literal["optvet.advice/1"] = Field("optvet.advice/1", alias="schema")
    model: str
    versions: dict[str, str]
    looked_for: int
    unfinished: list[str] = Field(default_factory=list)
    advice: list[Advised]

    def headline(self) -> str:
        """The answer on one line."""
        names = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        found = [one.fault for one in self.advice if one.confirmed is not False]
        words = ", ".join(found) or "none"
        if self.unfinished:
            words += f" (not looked at fully: {', '.join(self.unfinished)})"
        return f"{self.model}: known faults that it may trigger under {names}: {words}"

    def rows(self) -> list[dict[str, Any]]:
        """One row per known fault."""
        return [
            {
                "fault": one.fault,
                "package": f"{one.package} {one.version}",
                "passes": ", ".join(one.passes),
                "places": len(one.places),
                "confirmed": one.confirmed,
                "avoid": "; ".join(one.avoid),
            }
            for one in self.advice
        ]
