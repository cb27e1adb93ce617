"""One folder per probable cause of a hunt's faults, each ready to be filed as an issue."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from optvet.engine.bundle.layout import ISSUE
from optvet.engine.hunt.probable_causes import probable_causes
from optvet.engine.hunt.versions import SHOWS, Environment, shown_in
from optvet.spec.errors import UsageError
from optvet.spec.records import HuntCause, HuntFinding, HuntSummary
from optvet.spec.scratch import made_beside
from optvet.spec.words import markdown_code, markdown_text

INDEX = "README.md"
_MOST_RELATED = 20

OnCause = Callable[[int, int], None]
"""Called before each cause with how many are done, and how many there are."""


@dataclass(frozen=True)
class FiledIssue:
    """A cause with the finding that stands for it.

    Attributes:
        cause: The probable cause.
        finding: The gravest of its findings, of these the smallest.
        shown: What its script says in each environment, in their order.
        folder: The name of the folder; empty if there is none, since no environment shows it.
    """

    cause: HuntCause
    finding: HuntFinding
    shown: tuple[str, ...] = ()
    folder: str = ""


def file_issues(
    summary: HuntSummary,
    hunted: Path,
    out: Path,
    environments: Sequence[Environment] = (),
    progress: OnCause = lambda done, total: None,
) -> list[FiledIssue]:
    """Write a folder for each cause, the gravest first, and an index of them.

    A cause whose script shows nothing in any of ``environments`` is left out.

    Args:
        summary: Of the hunt.
        hunted: The folder of the hunt.
        out: Is made; appears when it is whole.
        environments: Where the scripts are run; without any, all causes are written.
        progress: Is told how far it is.

    Raises:
        UsageError: ``out`` exists, or cannot be made.
    """
    if os.path.lexists(out):
        raise UsageError(f"--out {out}: it exists; give the name of a new folder")
    causes = list(_representatives(summary))
    filed: list[FiledIssue] = []
    try:
        with made_beside(out) as folder:
            for done, (cause, finding, others) in enumerate(causes):
                progress(done, len(causes))
                bundle = hunted / finding.bundle
                shown = tuple(shown_in(bundle, environment) for environment in environments)
                issue = FiledIssue(cause, finding, shown)
                if bundle.is_dir() and (not shown or SHOWS in shown):
                    number = sum(bool(i.folder) for i in filed) + 1
                    issue = FiledIssue(cause, finding, shown, f"{number:02}-{bundle.name}")
                    shutil.copytree(bundle, folder / issue.folder)
                    _complete_text(folder / issue.folder / ISSUE, finding, others)
                filed.append(issue)
            index = "\n".join(_index(summary, filed, environments))
            (folder / INDEX).write_text(index, "utf-8")
            folder.chmod(0o755)
            os.replace(folder, out)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}") from error
    return filed


def _representatives(
    summary: HuntSummary,
) -> Iterator[tuple[HuntCause, HuntFinding, list[HuntFinding]]]:
    """Each cause of faults, its gravest and smallest finding, and the others; in that order."""
    faults = [f for f in summary.findings if f.severity == "fault"]
    by_fingerprint = {f.fingerprint: f for f in faults}
    groups = []
    for cause in probable_causes(faults):
        group = [by_fingerprint[fingerprint] for fingerprint in cause.fingerprints]
        first, *others = sorted(group, key=lambda f: (f.gravity, f.nodes))
        groups.append((cause, first, others))
    yield from sorted(groups, key=lambda g: (g[1].gravity, g[1].nodes))


def _complete_text(path: Path, finding: HuntFinding, others: Sequence[HuntFinding]) -> None:
    """Add to the text of an issue how grave it is, and what else is probably of its cause."""
    lines = ["", "## Severity", "", f"{markdown_text(_capitalize(finding.gravity_in_words()))}."]
    if others:
        lines += ["", "Probably of the same cause:", ""]
        for other in others[:_MOST_RELATED]:
            passes = markdown_text(", ".join(other.culprit) or "import and export")
            lines.append(f"- {other.symptom} of {passes}: {markdown_code(_line(other.message))}")
        if len(others) > _MOST_RELATED:
            lines.append(f"- and {len(others) - _MOST_RELATED} more")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def _index(
    summary: HuntSummary, filed: Sequence[FiledIssue], environments: Sequence[Environment]
) -> Iterator[str]:
    yield f"# Issues of {markdown_text(f'{summary.optimizer} {summary.version}')}"
    yield ""
    for number, environment in enumerate(environments, 1):
        yield f"{number}. {markdown_text(environment.label)}"
    columns = [str(number) for number in range(1, len(environments) + 1)]
    yield ""
    yield f"| {' | '.join(['issue', 'symptom', 'passes', 'severity', *columns])} |"
    yield "|---" * (4 + len(columns)) + "|"
    for issue in filed:
        finding = issue.finding
        link = f"[{issue.folder[:2]}]({issue.folder}/{ISSUE})" if issue.folder else "not filed"
        passes = markdown_text(", ".join(finding.culprit) or "import and export")
        severity = markdown_text(finding.gravity_in_words())
        yield f"| {' | '.join([link, finding.symptom, passes, severity, *issue.shown])} |"
    yield ""


def _capitalize(words: str) -> str:
    return words[:1].upper() + words[1:]


def _line(message: str) -> str:
    return " ".join(message.split())[:200]
