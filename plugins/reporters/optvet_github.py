"""Annotations of a GitHub Actions job: workflow commands, for stdout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from optvet.plugin import Reporter, hookimpl

if TYPE_CHECKING:
    from optvet.plugin import CampaignReport, FindingFiles, ReportedFinding, ReportedTrial

_MODELS = 5


class GitHubReporter:
    """Counted findings are errors, jobs without a verdict warnings, other findings notices.

    GitHub shows the first ten of each kind.
    """

    name = "github"
    suffix = ""

    def render(self, report: CampaignReport, files: FindingFiles) -> str:
        """One line per annotation."""
        return "".join(f"{line}\n" for line in _lines(report))


def _lines(report: CampaignReport) -> Iterator[str]:
    trials = {trial.key: trial for trial in report.trials}
    for finding in report.findings:
        yield _of_finding(finding, trials[finding.sightings[0].trial])
    for trial in report.trials:
        if trial.status in ("undecided", "error", "failed"):
            yield _without(trial)
    for known in report.fixed:
        title = f"fixed: {known.symptom}: {' → '.join(known.culprit)}"
        yield _command("notice", title, f"{known.optimizer}; {', '.join(known.models)}")


def _of_finding(finding: ReportedFinding, trial: ReportedTrial) -> str:
    """A finding, with what to use instead on the first model that has it."""
    models = [f"{s.short_name} ({s.question})" for s in finding.sightings]
    more = [f"and {len(models) - _MODELS} more"] if len(models) > _MODELS else []
    kind = "known: " if finding.known else ""
    instead = trial.verified.lines() if finding.severity != "note" else []
    lines = [finding.message, *instead, *models[:_MODELS], *more, finding.sightings[0].command]
    text = "\n".join(lines)
    level = "error" if finding.counts else "notice"
    return _command(level, f"{kind}{finding.title}", text, trial.model)


def _without(trial: ReportedTrial) -> str:
    title = f"{trial.status}: {trial.short_name} ({trial.question})"
    return _command("warning", title, trial.why or trial.command, trial.model)


def _command(kind: str, title: str, text: str, model: str = "") -> str:
    """A workflow command on one line, at the file of ``model`` if it is one of the checkout."""
    path = PurePosixPath(model)
    is_file = bool(path.suffix) and ":" not in model and not path.is_absolute()
    of_checkout = is_file and ".." not in path.parts
    place = f"file={_property(str(path))}," if of_checkout else ""
    return f"::{kind} {place}title={_property(title)}::{_escape(text)}"


def _property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


@hookimpl
def optvet_reporters() -> Iterable[Reporter]:
    """The reporter of this module."""
    return [GitHubReporter()]
