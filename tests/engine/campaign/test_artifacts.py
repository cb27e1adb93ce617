from __future__ import annotations

from pathlib import Path

import pytest
from tests.commands import Run
from tests.engine.campaign.test_store import plan_of

from optvet import InputError
from optvet.engine.bundle.folder import read_record
from optvet.engine.campaign import (
    CampaignStore,
    add_campaign,
    artifacts,
    collect_garbage,
    find_campaign,
    findings,
    open_store,
    write_bundle,
)
from optvet.engine.campaign.artifacts import NewArtifact, add_artifacts, folder_of, keep
from optvet.engine.campaign.schema import MIGRATIONS
from optvet.engine.campaign.store import DATABASE
from optvet.spec.executor import WorkerLost


def add(store: CampaignStore, job: str, number: int, content: bytes, born: float) -> None:
    digest = keep(folder_of(store), content)
    with store.transaction():
        file = NewArtifact(number, "model.onnx", digest, len(content))
        add_artifacts(store, job, [file], clock=lambda: born)


def test_equal_files_are_kept_once_and_go_with_the_last_that_names_them(
    store: CampaignStore,
) -> None:
    add_campaign(store, plan_of(3))
    add(store, "c000", 0, b"a" * 100, born=1.0)
    add(store, "c001", 0, b"a" * 100, born=1.0)
    add(store, "c002", 0, b"b" * 100, born=2.0)
    assert len(list(folder_of(store).rglob("*/*"))) == 2
    assert collect_garbage(store, 200) == 0
    assert collect_garbage(store, 100) == 100
    assert [len(artifacts(store, job, 0)) for job in ("c000", "c001", "c002")] == [0, 0, 1]
    assert [a.path.read_bytes() for a in artifacts(store, "c002", 0)] == [b"b" * 100]


def test_a_file_of_a_killed_job_is_swept_when_it_is_old(store: CampaignStore) -> None:
    keep(folder_of(store), b"orphan")
    assert collect_garbage(store, 1000) == 0
    assert collect_garbage(store, 1000, clock=lambda: 4e9) == len(b"orphan")


def test_an_answer_whose_file_was_removed_meanwhile_is_not_stored(store: CampaignStore) -> None:
    add_campaign(store, plan_of(1))
    with pytest.raises(WorkerLost, match="removed to make room"), store.transaction():
        add_artifacts(store, "c000", [NewArtifact(0, "model.onnx", "ab" * 32, 1)])
    assert artifacts(store, "c000", 0) == []


def test_a_damaged_file_is_no_bundle(store: CampaignStore, tmp_path: Path) -> None:
    add_campaign(store, plan_of(1))
    add(store, "c000", 0, b"a" * 100, born=1.0)
    (file,) = artifacts(store, "c000", 0)
    file.path.write_bytes(b"b" * 100)
    with pytest.raises(InputError, match=r"was changed; the store is damaged"):
        write_bundle([file], tmp_path / "out")


def test_a_store_of_the_version_before_opens_with_all_that_it_had(tmp_path: Path) -> None:
    # As optvet wrote it when a store had no artifacts: dumped, so that no code of today made it.
    import sqlite3

    database = sqlite3.connect(tmp_path / DATABASE)
    database.executescript((Path(__file__).parent / "store-1.sql").read_text())
    assert database.execute("PRAGMA user_version").fetchone()[0] == 1
    database.close()
    with open_store(tmp_path) as store:
        assert store.database.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
        campaign = find_campaign(store)
        rows = list(findings(store, campaign))
        assert [row.finding.culprit for row in rows] == [["fuse_transpose_into_gemm"]]
        assert artifacts(store, rows[0].trial, rows[0].number) == []
        add(store, rows[0].trial, 0, b"new", born=1.0)
        assert len(artifacts(store, rows[0].trial, 0)) == 1


@pytest.mark.long
def test_findings_of_a_campaign_are_reduced_and_kept_as_bundles(
    run: Run, models: Path, place: Path
) -> None:
    (place / "c.toml").write_text('models = ["models/faulty.onnx"]\n[vet]\nreduce = true\n')
    assert run("campaign", "run", "c.toml").code == 1
    with open_store(place / "c.store") as store:
        (row,) = findings(store, find_campaign(store))
        files = artifacts(store, row.trial, row.number)
        assert {"model.onnx", "finding.json", "repro.py", "before.svg"} <= {f.name for f in files}
        write_bundle(files, place / "bundle")
    record = read_record(place / "bundle")
    assert record.fingerprint == row.fingerprint == row.finding.fingerprint
    assert run("replay", "bundle").code == 1
