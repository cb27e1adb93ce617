"""SARIF 2.1.0, for code scanning: one result per finding and model.

Source: OASIS, "Static Analysis Results Interchange Format (SARIF) Version 2.1.0", 2020.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from optvet.plugin import Reporter, hookimpl

if TYPE_CHECKING:
    from optvet.plugin import CampaignReport, FindingFiles, ReportedFinding, ReportedTrial, Sighting

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_HOME = "https://pypi.org/project/optvet/"


class SarifReporter:
    """Symptoms become rules, and fingerprints SARIF's fingerprints."""

    name = "sarif"
    suffix = ".sarif"

    def render(self, report: CampaignReport, files: FindingFiles) -> str:
        """The document."""
        trials = {trial.key: trial for trial in report.trials}
        rules = list(dict.fromkeys(str(f.symptom) for f in report.findings))
        run = {
            "tool": {
                "driver": {
                    "name": "optvet",
                    "version": report.optvet,
                    "informationUri": _HOME,
                    "rules": [_rule(name) for name in rules],
                }
            },
            "automationDetails": {"id": f"optvet/{report.name}/"},
            "invocations": [_invocation(report)],
            "columnKind": "unicodeCodePoints",
            "results": [
                _result(finding, sighting, rules.index(str(finding.symptom)), trials)
                for finding in report.findings
                for sighting in _once_per_model(finding)
            ],
        }
        document = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
        return f"{json.dumps(document, indent=2)}\n"


def _rule(symptom: str) -> dict[str, Any]:
    words = symptom.replace("-", " ")
    name = "".join(part.capitalize() for part in symptom.split("-"))
    text = f"An optimizer caused: {words}"
    return {"id": symptom, "name": name, "shortDescription": {"text": text}}


def _invocation(report: CampaignReport) -> dict[str, Any]:
    unfinished = [t for t in report.trials if t.status in _WITHOUT_VERDICT]
    invocation: dict[str, Any] = {
        "executionSuccessful": not unfinished,
        "startTimeUtc": _time(report.created),
        "toolExecutionNotifications": [_notification(t) for t in unfinished],
    }
    if report.finished is not None:
        invocation["endTimeUtc"] = _time(report.finished)
    return invocation


_WITHOUT_VERDICT = ("error", "failed", "undecided", "queued", "running")


def _notification(trial: ReportedTrial) -> dict[str, Any]:
    why = trial.why or trial.status
    return {
        "level": "error" if trial.status in ("error", "failed") else "warning",
        "message": _message(f"{trial.model}: {trial.question}: {trial.status}: {why}"),
        "locations": [_location(trial.model)],
    }


def _once_per_model(finding: ReportedFinding) -> Iterator[Sighting]:
    yield from {s.model: s for s in reversed(finding.sightings)}.values()


def _result(
    finding: ReportedFinding, sighting: Sighting, rule: int, trials: Mapping[str, ReportedTrial]
) -> dict[str, Any]:
    message = f"{sighting.question}: {finding.title}: {sighting.message or finding.message}"
    verified = trials[sighting.trial].verified
    if finding.severity != "note" and verified.words:
        message = f"{message}; verified: {verified.words}"
    result: dict[str, Any] = {
        "ruleId": str(finding.symptom),
        "ruleIndex": rule,
        "level": _level(finding),
        "message": _message(message),
        "locations": [_location(sighting.model)],
        "partialFingerprints": {"optvet/v1": finding.fingerprint},
        "properties": {
            "optimizer": finding.optimizer,
            "culprit": finding.culprit,
            "stage": finding.stage,
            "error": _finite(sighting.error),
            "noiseFloor": _finite(sighting.noise_floor),
            "command": sighting.command,
            "verified": verified.words,
            "code": verified.code,
        },
    }
    if finding.known:
        result["baselineState"] = "unchanged"
    return result


def _message(text: str) -> dict[str, str]:
    """A plain text; section 3.11.6 of the standard makes links of ``[text](target)``."""
    return {"text": re.sub(r"([\\\[\]])", r"\\\1", text)}


def _level(finding: ReportedFinding) -> str:
    if finding.counts:
        return "error"
    return "note" if finding.severity == "note" else "warning"


def _finite(value: float | None) -> float | str | None:
    """``value``; None for infinity and NaN, which JSON does not have."""
    if value is None or abs(value) < float("inf"):
        return value
    return str(value)


def _location(model: str) -> dict[str, Any]:
    place = {"artifactLocation": {"uri": quote(model, safe="/:@,")}, "region": {"startLine": 1}}
    return {"physicalLocation": place}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@hookimpl
def optvet_reporters() -> Iterable[Reporter]:
    """The reporter of this module."""
    return [SarifReporter()]
