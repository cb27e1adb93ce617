"""The findings of a hunt as a document for the maintainers of the optimizer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from optvet.engine.bundle.files import read_record
from optvet.engine.hunt.run import SUMMARY
from optvet.spec.errors import InputError, UsageError
from optvet.spec.parsing import read_json
from optvet.spec.records import HuntFinding, HuntSummary
from optvet.spec.records.reading import read_document
from optvet.spec.words import printable

ROUND_TRIP = "import and export"


def read_summary(folder: Path) -> HuntSummary:
    """``hunt.json`` of a hunt.

    Raises:
        InputError: There is none, or it is damaged.
    """
    path = folder / SUMMARY
    if not path.is_file():
        raise InputError(f"{folder} holds no {SUMMARY}; give the --out of a hunt")
    document = read_json(path, "listing")
    try:
        if not isinstance(document, dict):
            raise InputError(f"{path} is no summary of a hunt: expected an object")
        return read_document(HuntSummary, document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(f"{path} is no summary of a hunt: {place}: {first['msg']}") from error


def report_of(summary: HuntSummary, folder: Path) -> str:
    """Markdown: the findings by pass, each with its smallest model and where its bundle is."""
    faults = [f for f in summary.findings if f.severity == "fault"]
    notes = [f for f in summary.findings if f.severity != "fault"]
    lines = [
        f"# {summary.optimizer} {summary.version}: {len(faults)} faults, {len(notes)} notes",
        "",
        f"{summary.candidates:,} models, {summary.valid:,} of them valid; seed {summary.seed}. "
        "Each finding was confirmed in processes of its own; `repro.py` in its folder exits with 1 "
        "while it is there.",
        "",
    ]
    for title, found in (("Faults", faults), ("Notes", notes)):
        if found:
            lines += [f"## {title}", ""]
            lines += list(_by_pass(found, folder))
    if summary.unfired:
        names = ", ".join(f"`{name}`" for name in summary.unfired)
        lines += ["## Passes that changed no model", "", names, ""]
    return "\n".join(lines)


def _by_pass(findings: list[HuntFinding], folder: Path) -> Iterator[str]:
    def culprit(finding: HuntFinding) -> str:
        return ", ".join(finding.culprit) or ROUND_TRIP

    for name, group in itertools.groupby(sorted(findings, key=culprit), culprit):
        yield f"### {name}"
        yield ""
        for finding in group:
            yield from _finding(finding, folder)


def _finding(finding: HuntFinding, folder: Path) -> Iterator[str]:
    message = " ".join(printable(finding.message).split())[:300].replace("`", "'")
    yield f"**{finding.symptom}**, {finding.nodes} nodes, `{finding.bundle}`: `{message}`"
    yield ""
    place = folder / finding.bundle
    try:
        record = read_record(place)
    except UsageError:
        yield "(its bundle is gone)"
        yield ""
        return
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    yield f"Shown with {versions}; by {finding.models:,} models of the hunt."
    yield ""
    text = place / "model.txt"
    if text.is_file():
        yield "```"
        yield printable(text.read_text("utf-8").strip())
        yield "```"
        yield ""
