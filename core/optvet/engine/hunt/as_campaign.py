"""The findings of a hunt as a campaign: asked again with another version, stored and reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from optvet.engine.bundle.folder import read_record
from optvet.engine.bundle.layout import INPUTS, MODEL
from optvet.engine.pipelines import NONE
from optvet.spec.errors import UsageError
from optvet.spec.files import replacing
from optvet.spec.records import HuntFinding, HuntSummary
from optvet.spec.words import toml_value

CAMPAIGN = "campaign.toml"


def write_campaign(summary: HuntSummary, folder: Path, rare: Mapping[str, Any]) -> None:
    """Write the file that asks for each finding of ``summary`` once; nothing if there is none.

    ``rare`` are the options under which some of them may have been found.
    """
    tables = [
        table
        for found in summary.findings
        for table in _write_job_set(found, summary, folder, rare)
    ]
    if tables:
        head = [f"name = {toml_value(f'hunted-{summary.optimizer}')}", "bundles = true"]
        with replacing(folder / CAMPAIGN) as file:
            file.write("\n".join([*head, *tables, ""]).encode())


def _write_job_set(
    found: HuntFinding, summary: HuntSummary, folder: Path, rare: Mapping[str, Any]
) -> Iterator[str]:
    """The set of jobs for one finding, unless its bundle is gone."""
    try:
        record = read_record(folder / found.bundle)
    except UsageError:
        return
    values: dict[str, object] = {
        "models": [f"{found.bundle}/{MODEL}"],
        "optimizers": [summary.optimizer],
        "datasets": [f"files:{found.bundle}/{INPUTS}"],
        # Passes may hide what import and export alone show: they drop what nothing reads.
        "pipelines": [",".join(record.passes) or NONE],
    }
    yield "\n[[jobs]]"
    yield from (f"{key} = {toml_value(value)}" for key, value in values.items())
    under_rare = record.optimizer_options.items() >= rare.items()
    options = {
        "optimizer_options": {**summary.optimizer_options, **(rare if under_rare else {})},
        "runtime_options": summary.runtime_options,
    }
    for table, given in options.items():
        if given:
            yield f"[jobs.vet.{table}]"
            yield from (f"{k} = {toml_value(v)}" for k, v in given.items())
