"""JUnit XML, which CI systems show as tests: a suite per model, a case per job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from optvet.plugin import Reporter, hookimpl, printable

if TYPE_CHECKING:
    from optvet.plugin import CampaignReport, FindingFiles, ReportedFinding, ReportedTrial


class JUnitReporter:
    """Findings are failures, jobs without a verdict errors; jobs that did not run are skipped."""

    name = "junit"
    suffix = ".xml"

    def render(self, report: CampaignReport, files: FindingFiles) -> str:
        """The document."""
        root = ET.Element("testsuites", {"name": report.name})
        models: dict[str, list[ReportedTrial]] = {}
        for trial in report.trials:
            models.setdefault(trial.short_name, []).append(trial)
        began = datetime.fromtimestamp(report.created, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        for model, trials in models.items():
            suite = ET.SubElement(root, "testsuite", {"name": model, "timestamp": began})
            for trial in trials:
                suite.append(_case(trial, list(report.findings_of(trial.key))))
            _count(suite)
            suite.set("time", f"{sum(t.wall_s or 0.0 for t in trials):.3f}")
        _count(root)
        ET.indent(root)
        text = printable(ET.tostring(root, encoding="unicode"))
        return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _count(parent: ET.Element) -> None:
    parent.set("tests", str(len(list(parent.iter("testcase")))))
    for name, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        parent.set(name, str(len(list(parent.iter(kind)))))


def _case(trial: ReportedTrial, findings: Sequence[ReportedFinding]) -> ET.Element:
    runtime = trial.judged_by.partition(" ")[0] or trial.runtime
    name = f"{trial.question}, on {runtime}" if runtime else trial.question
    case = ET.Element("testcase", {"classname": trial.short_name, "name": name})
    case.set("time", f"{trial.wall_s or 0.0:.3f}")
    counted = [f for f in findings if f.counts]
    if counted:
        kinds = " ".join(dict.fromkeys(f.symptom for f in counted))
        _add_outcome(
            case, "failure", kinds, "; ".join(f.title for f in counted), _texts(trial, counted)
        )
    elif trial.status in ("error", "failed"):
        _add_outcome(case, "error", trial.status, trial.why, trial.error)
    elif trial.status == "refused":
        # The converter does not take the source: that is no fault of either.
        ET.SubElement(case, "skipped", {"message": trial.why})
    elif trial.status == "undecided":
        _add_outcome(case, "error", "undecided", trial.reason, trial.reason)
    elif trial.status in ("queued", "running"):
        ET.SubElement(case, "skipped", {"message": f"{trial.status}; there is no answer yet"})
    ET.SubElement(case, "system-out").text = _out(trial, [f for f in findings if not f.counts])
    return case


def _add_outcome(case: ET.Element, kind: str, type_: str, message: str, text: str) -> None:
    ET.SubElement(case, kind, {"type": type_, "message": message}).text = text


def _texts(trial: ReportedTrial, findings: Sequence[ReportedFinding]) -> str:
    found = [f"{f.title}\n{f.message}\nfingerprint {f.fingerprint}" for f in findings]
    return "\n\n".join(["\n".join(trial.verified.lines()), *found]).lstrip("\n")


def _out(trial: ReportedTrial, others: Sequence[ReportedFinding]) -> str:
    lines = [trial.command, f"verdict: {trial.status}"]
    lines += trial.verified.lines()
    lines += [f"judged by {trial.judged_by}"] if trial.judged_by else []
    for each in others:
        lines.append(f"{'known' if each.known else each.severity}: {each.title}: {each.message}")
    return "\n".join(lines)


@hookimpl
def optvet_reporters() -> Iterable[Reporter]:
    """The reporter of this module."""
    return [JUnitReporter()]
