"""The findings of a hunt as a document for the maintainers of the optimizer."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from optvet.engine.bundle.folder import read_record
from optvet.engine.bundle.layout import SCRIPT, TEXT
from optvet.engine.hunt.probable_causes import ROUND_TRIP, probable_causes
from optvet.engine.hunt.summary import SUMMARY
from optvet.engine.hunt.versions import Environment, shown_in
from optvet.engine.scripts.parts import PART, PART_SCRIPT, VERSIONS
from optvet.spec.errors import InputError, UsageError
from optvet.spec.foreign import read_text
from optvet.spec.hunt import CONVERTER
from optvet.spec.parsing import read_json
from optvet.spec.records import HuntFinding, HuntSummary
from optvet.spec.records.reading import read_document
from optvet.spec.validation_words import words_of
from optvet.spec.words import markdown_block, markdown_code, markdown_text


def read_summary(folder: Path) -> HuntSummary:
    """``hunt.json`` of a hunt.

    Raises:
        InputError: There is none, or it is damaged.
    """
    path = folder / SUMMARY
    if not os.path.isfile(path):
        raise InputError(f"{folder} holds no {SUMMARY}; give the --out of a hunt")
    document = read_json(path, "listing")
    try:
        if not isinstance(document, dict):
            raise InputError(f"{path} is no summary of a hunt: expected an object")
        return read_document(HuntSummary, document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(f"{path} is no summary of a hunt: {place}: {words_of(first)}") from error


def report_of(summary: HuntSummary, folder: Path, environments: Sequence[Environment] = ()) -> str:
    """Markdown: the findings by probable cause, each with its smallest model and its bundle.

    Causes that several passes share come first, then those of each pass.

    With ``environments`` the scripts of the bundles are run there; a table says where each shows.
    """
    faults = [f for f in summary.findings if f.severity == "fault"]
    notes = [f for f in summary.findings if f.severity != "fault"]
    causes = len(probable_causes(faults))
    made = "sources" if summary.optimizer.startswith(CONVERTER) else "models"
    script = PART_SCRIPT if made == "sources" else SCRIPT
    lines = [
        f"# {markdown_text(f'{summary.optimizer} {summary.version}')}: {len(faults)} faults, "
        f"{len(notes)} notes",
        "",
        f"The faults probably have {causes} {'cause' if causes == 1 else 'causes'}. "
        f"{summary.candidates:,} {made}, {summary.valid:,} of them valid; seed {summary.seed}. "
        f"Each finding was confirmed in processes of its own; `{script}` in its folder exits with "
        "1 while it shows.",
        "",
    ]
    if environments:
        lines += list(_by_version(summary, folder, environments))
    plausible = [f for f in faults if not f.contrived]
    contrived = [f for f in faults if f.contrived]
    parts = (("Faults", plausible), ("Faults of contrived models", contrived), ("Notes", notes))
    for title, found in parts:
        if found:
            lines += [f"## {title}", ""]
            lines += list(_by_cause(found, folder))
    if summary.unfired:
        names = ", ".join(map(markdown_code, summary.unfired))
        title = "Operators not converted" if made == "sources" else "Passes that changed no model"
        lines += [f"## {title}", "", names, ""]
    return "\n".join(lines)


def packages_of(summary: HuntSummary, folder: Path) -> set[str]:
    """Names of the packages whose versions the bundles tell."""
    found: set[str] = set()
    for finding in summary.findings:
        found.update(_versions_in(folder / finding.bundle))
    return found


def _versions_in(bundle: Path) -> Mapping[str, str]:
    """Versions of packages that a bundle tells; none if it is gone."""
    path = bundle / VERSIONS
    if path.is_file():
        versions = read_json(path, "listing")
        if not isinstance(versions, dict):
            raise InputError(f"{path} is no object of versions")
        return {str(name): str(version) for name, version in versions.items()}
    try:
        return read_record(bundle).versions
    except UsageError:
        return {}


def _by_version(
    summary: HuntSummary, folder: Path, environments: Sequence[Environment]
) -> Iterator[str]:
    """A table: a line for each finding, a column for each environment."""
    yield "## Where they show"
    yield ""
    for number, environment in enumerate(environments, 1):
        yield f"{number}. {markdown_text(environment.label)}"
    yield ""
    numbers = [str(number) for number in range(1, len(environments) + 1)]
    yield f"| finding | when hunted | {' | '.join(numbers)} |"
    yield "|---" * (len(environments) + 2) + "|"
    for finding in summary.findings:
        cells = [shown_in(folder / finding.bundle, e) for e in environments]
        yield f"| {markdown_code(finding.bundle)} | shows | {' | '.join(cells)} |"
    yield ""


def _by_cause(findings: list[HuntFinding], folder: Path) -> Iterator[str]:
    by_fingerprint = {f.fingerprint: f for f in findings}
    causes = [(c, [by_fingerprint[p] for p in c.fingerprints]) for c in probable_causes(findings)]

    def passes(group: list[HuntFinding]) -> str:
        return " · ".join(sorted({_culprit(f) for f in group}))

    shared = [(c, g) for c, g in causes if len({_culprit(f) for f in g}) > 1]
    for cause, group in shared:
        yield f"### Several passes: {markdown_text(cause.title)}"
        yield ""
        yield f"Probably one cause: {markdown_text(cause.why)}. Passes: {passes(group)}."
        yield ""
        for finding in sorted(group, key=_culprit):
            yield from _finding(finding, folder, named=True)
    alone = sorted(((c, g) for c, g in causes if (c, g) not in shared), key=lambda c: passes(c[1]))
    for name, group_of_pass in itertools.groupby(alone, lambda c: passes(c[1])):
        yield f"### {name}"
        yield ""
        for cause, group in group_of_pass:
            if len(group) > 1:
                yield f"Probably one cause, {len(group)} findings: {markdown_text(cause.why)}."
                yield ""
            for finding in group:
                yield from _finding(finding, folder)


def _culprit(finding: HuntFinding) -> str:
    return ", ".join(map(markdown_text, finding.culprit)) or ROUND_TRIP


def _finding(finding: HuntFinding, folder: Path, *, named: bool = False) -> Iterator[str]:
    message = markdown_code(" ".join(finding.message.split())[:300])
    of = f" of {_culprit(finding)}" if named else ""
    where = markdown_code(finding.bundle)
    yield f"**{finding.symptom}**{of}, {_count(finding.nodes, 'node')}, {where}: {message}"
    yield ""
    place = folder / finding.bundle
    versions_by_name = _versions_in(place)
    if not versions_by_name:
        yield "(its bundle is gone)"
        yield ""
        return
    versions = ", ".join(
        f"{markdown_text(name)} {markdown_text(version)}"
        for name, version in versions_by_name.items()
    )
    yield f"{markdown_text(finding.gravity_in_words()).capitalize()}."
    yield f"Shown with {versions}; in {_count(finding.models, 'model')} of the hunt."
    if finding.needs:
        yield f"It does not show without {', '.join(map(markdown_text, finding.needs))}."
    yield ""
    for text in (place / TEXT, place / PART):
        if text.is_file():
            yield markdown_block(read_text(text).strip())


def _count(amount: int, noun: str) -> str:
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"
