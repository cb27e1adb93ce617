"""The answer of ``bisect``: document ``optvet.bisect/1``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from optvet.spec.records.base import Record, Result
from optvet.spec.records.vet import Finding, blamed

ReleaseState = Literal["good", "bad", "skipped", "not tried"]
Shown = Literal["shows", "gone", "changed", "no such pass", "not judged"]


class TriedRelease(Record):
    """What one release of the package does.

    ``reason`` says why a release was skipped. ``findings`` are symptoms with culprits, in words.
    ``bundles`` says for each bundle of the answer whether it shows its finding there; empty where
    it was not replayed. ``runs`` counts how often the question was asked of the release.
    """

    version: str
    state: ReleaseState = "not tried"
    reason: str = ""
    verdict: str | None = None
    findings: list[str] = Field(default_factory=list)
    bundles: list[Shown] = Field(default_factory=list)
    runs: int = 0


class ReleaseChange(Record):
    """``last`` is the last release of the old answer, ``first`` the first of the new one.

    ``between`` are releases that were skipped: the change may be in any of them.
    """

    last: str
    first: str
    to: Literal["good", "bad"]
    between: list[str] = Field(default_factory=list)


class ReleaseAtFault(Record):
    """The findings of a bad release, and the names of their bundles; ``note`` says what is not."""

    version: str
    findings: list[Finding] = Field(default_factory=list)
    bundles: list[str] = Field(default_factory=list)
    note: str = ""


class BisectResult(Result):
    """Which releases of a package are bad, and which pass of the first bad one is at fault.

    ``predicate`` is what makes a release bad, in words. ``changes`` are in order of the releases;
    one alone is a monotone range. ``stable`` is False if a repeated release gave another answer.
    """

    schema_: Literal["optvet.bisect/1"] = Field("optvet.bisect/1", alias="schema")
    model: str
    package: str
    optimizer: str
    predicate: str
    releases: list[TriedRelease]
    changes: list[ReleaseChange] = Field(default_factory=list)
    stable: bool = True
    at_fault: ReleaseAtFault | None = None
    installed: int
    runs: int
    seconds: float

    @property
    def tried(self) -> list[TriedRelease]:
        """Releases that were tried, oldest first."""
        return [release for release in self.releases if release.state != "not tried"]

    @property
    def has_several_faults(self) -> bool:
        """Whether no pass is blamed in all bad releases; not of a command, which blames none."""
        if self.at_fault is None or not self.at_fault.findings:
            return False
        bad = [
            {words.partition(": ")[2] for words in r.findings}
            for r in self.releases
            if r.state == "bad"
        ]
        return len(bad) > 1 and not set.intersection(*bad)

    def headline(self) -> str:
        """The answer on one line."""
        name = self.package
        if not self.changes:
            decided = [r for r in self.tried if r.state != "skipped"]
            states = sorted({r.state for r in decided})
            span = " … ".join(dict.fromkeys((decided[0].version, decided[-1].version)))
            return f"{name}: {' and '.join(states)} in all that were tried, {span}"
        words = [
            f"{'bad' if c.to == 'bad' else 'good again'} since {c.first} (not yet in {c.last})"
            for c in self.changes
        ]
        findings = self.at_fault.findings if self.at_fault else []
        culprits = sorted({blamed(f.culprit) for f in findings})
        blame = f": {', '.join(culprits)}" if culprits else ""
        return f"{name}: {', '.join(words)}{blame}"

    def rows(self) -> list[dict[str, Any]]:
        """One row per release that was tried."""
        return [
            {
                "release": r.version,
                "state": r.state,
                "verdict": r.verdict,
                "findings": "; ".join(r.findings),
                "bundles": ", ".join(r.bundles),
                "reason": r.reason,
            }
            for r in self.tried
        ]
