"""Exports a campaign: as JSON with every answer, as tables, or as bundles."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from optvet.engine.campaign.artifacts import artifacts, write_bundle
from optvet.engine.campaign.baseline import baseline_of
from optvet.engine.campaign.damage import damage_error
from optvet.engine.campaign.documents import summary_of
from optvet.engine.campaign.precision_findings import findings_of_search
from optvet.engine.campaign.results import JobResult, StoredCampaign, findings, metrics, trials
from optvet.engine.campaign.store import CampaignStore
from optvet.spec.errors import InfrastructureError, MissingLibrary
from optvet.spec.files import replacing, write_file
from optvet.spec.records.campaign import CampaignExport, TrialExport
from optvet.spec.words import csv_cell

Row = Mapping[str, Any]

COLUMNS: Mapping[str, Mapping[str, type]] = {
    "trials": {
        "key": str,
        "kind": str,
        "campaign": str,
        "model": str,
        "model_digest": str,
        "optimizer": str,
        "optimizer_version": str,
        "pipeline": str,
        "dataset": str,
        "runtime": str,
        "comparator": str,
        "state": str,
        "verdict": str,
        "exit_code": int,
        "error": str,
        "faults": int,
        "notes": int,
        "samples": int,
        "wall_s": float,
        "attempts": int,
        "finished": float,
    },
    "findings": {
        "trial": str,
        "number": int,
        "fingerprint": str,
        "model": str,
        "optimizer": str,
        "pipeline": str,
        "runtime": str,
        "symptom": str,
        "severity": str,
        "stage": str,
        "culprit": str,
        "confirmed": bool,
        "error": float,
        "noise_floor": float,
        "message": str,
    },
    "metrics": {"trial": str, "kind": str, "name": str, "value": float},
}
"""Tables of an export, their columns and types; every cell may be empty."""


def export(store: CampaignStore, campaign: StoredCampaign, format: str, out: Path) -> list[Path]:
    """Write a campaign as ``format`` to ``out``; returns the written files or folders.

    Args:
        store: The store.
        campaign: The campaign.
        format: "json" or "baseline", which are one file; "csv" or "parquet", a file per table;
            "bundles", a folder per finding.
        out: The file or the folder.

    Raises:
        MissingLibrary: A library is missing.
        InfrastructureError: A file cannot be written.
    """
    if format == "csv":
        return write_csv(store, campaign, out)
    if format == "parquet":
        return write_parquet(store, campaign, out)
    if format == "bundles":
        return write_bundles(store, campaign, out)
    if format == "baseline":
        text = baseline_of(summary_of(store, campaign)).to_json()
        write_file(out, f"{text}\n", advice="choose another file")
    else:
        write_json(store, campaign, out)
    return [out]


def write_bundles(store: CampaignStore, campaign: StoredCampaign, folder: Path) -> list[Path]:
    """A folder per fingerprint that has a bundle, as ``optvet replay`` takes it."""
    written: dict[str, Path] = {}
    for row in findings(store, campaign):
        files = artifacts(store, row.trial, row.number)
        if files and row.fingerprint not in written:
            name = row.finding.bundle or row.fingerprint
            if name in ("", ".", "..") or "\0" in name or Path(name).name != name:
                raise damage_error(store.path, f"a bundle is called {name[:80]!r}")
            target = folder / name
            write_bundle(files, target)
            written[row.fingerprint] = target
    return list(written.values())


def table_rows(store: CampaignStore, campaign: StoredCampaign, table: str) -> Iterator[Row]:
    """The rows of one table of ``COLUMNS``."""
    makers: Mapping[str, Callable[[CampaignStore, StoredCampaign], Iterator[Row]]] = {
        "trials": _trial_rows,
        "findings": _finding_rows,
        "metrics": _metric_rows,
    }
    return makers[table](store, campaign)


def write_json(store: CampaignStore, campaign: StoredCampaign, path: Path) -> None:
    """A ``CampaignExport`` as the file ``path``; one answer is in memory at a time.

    Raises:
        InfrastructureError: It cannot be written.
    """
    whole = CampaignExport(
        schema="optvet.campaign-export/1",
        name=campaign.name,
        number=campaign.id,
        created=campaign.created,
        finished=campaign.finished,
        source=campaign.source,
        trials=[],
    )
    head = json.dumps(json.loads(whole.to_json()))
    try:
        with replacing(path) as file:
            file.write(head.removesuffix("]}").encode())
            for number, trial in enumerate(trials(store, campaign)):
                file.write(f"{',' if number else ''}\n{_export(trial).to_json()}".encode())
            file.write(b"\n]}\n")
    except OSError as error:
        words = error.strerror or error
        raise InfrastructureError(f"cannot write {path}: {words}; choose another file") from error


def _export(trial: JobResult) -> TrialExport:
    return TrialExport(
        key=trial.key,
        cell=trial.cell,
        model_digest=trial.model_digest,
        versions=dict(trial.versions),
        state=trial.state,
        attempts=trial.attempts,
        wall_s=trial.wall_s,
        request=trial.request,
        answer=trial.answer,
    )


def write_csv(store: CampaignStore, campaign: StoredCampaign, folder: Path) -> list[Path]:
    """A file per table below ``folder``.

    Raises:
        InfrastructureError: One cannot be written.
    """
    written = []
    for table, columns in COLUMNS.items():
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        for row in table_rows(store, campaign, table):
            writer.writerow({n: csv_cell(v) if isinstance(v, str) else v for n, v in row.items()})
        path = folder / f"{table}.csv"
        write_file(path, text.getvalue(), advice="choose another folder")
        written.append(path)
    return written


def write_parquet(store: CampaignStore, campaign: StoredCampaign, folder: Path) -> list[Path]:
    """A Parquet file per table below ``folder``.

    Raises:
        MissingLibrary: pyarrow is not installed.
        InfrastructureError: A file cannot be written.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingLibrary("pyarrow", "optvet[parquet]", who="Parquet") from error
    types = {
        str: pyarrow.string(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        bool: pyarrow.bool_(),
    }
    written = []
    for table, columns in COLUMNS.items():
        schema = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
        rows = [dict(row) for row in table_rows(store, campaign, table)]
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema), buffer)
        path = folder / f"{table}.parquet"
        write_file(path, buffer.getvalue(), advice="choose another folder")
        written.append(path)
    return written


def _trial_rows(store: CampaignStore, campaign: StoredCampaign) -> Iterator[Row]:
    for trial in trials(store, campaign):
        result, error = trial.result or trial.conversion, trial.error
        severities: Sequence[str] = [f.severity for f in result.findings] if result else []
        if (search := trial.precision) is not None:
            severities = [f.severity for f in findings_of_search(search)]
        row = {name: getattr(trial, name, None) for name in COLUMNS["trials"]}
        yield row | {
            "campaign": campaign.name,
            "optimizer_version": search.optimizer.version
            if search is not None
            else trial.versions.get(trial.optimizer, ""),
            "error": error.message if error else "",
            "faults": sum(s not in ("note", "refusal") for s in severities),
            "notes": sum(s == "note" for s in severities),
            "samples": answer.samples if (answer := result or search) else None,
        }


def _finding_rows(store: CampaignStore, campaign: StoredCampaign) -> Iterator[Row]:
    for row in findings(store, campaign):
        about = row.finding
        known = {name: getattr(about, name, None) for name in COLUMNS["findings"]}
        yield known | {
            "trial": row.trial,
            "number": row.number,
            "fingerprint": row.fingerprint,
            "model": row.model,
            "optimizer": row.optimizer,
            "pipeline": row.pipeline,
            "runtime": row.runtime,
            "symptom": str(about.symptom),
            "culprit": about.blamed() if about.culprit else "",
        }


def _metric_rows(store: CampaignStore, campaign: StoredCampaign) -> Iterator[Row]:
    for metric in metrics(store, campaign):
        yield {
            "trial": metric.trial,
            "kind": metric.kind,
            "name": metric.name,
            "value": metric.value,
        }
