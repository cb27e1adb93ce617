"""Stores that are damaged, forged, locked or read-only; none of them is a bug in optvet."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import onnx
import onnx.parser
import pytest
from tests.assault.harness import LONG
from tests.commands import CLEAN, Run

from optvet import InfrastructureError, InputError, UsageError
from optvet.engine.campaign import find_campaign, findings, open_store, summary_of, trials
from optvet.engine.campaign import store as opening
from optvet.engine.campaign.artifacts import collect_garbage
from optvet.engine.campaign.documents import status_of
from optvet.engine.campaign.export import export
from optvet.engine.campaign.store import DATABASE

STORED = (Path(__file__).parent / "store-1.sql").read_text()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else has the stores of these tests: what looks locked stays so."""
    monkeypatch.setattr(opening, "BUSY_S", 0.1)


@pytest.fixture
def old(place: Path) -> Path:
    """A store with one answer and one finding, of the current version."""
    folder = place / "s"
    folder.mkdir()
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        database.executescript(STORED)
    open_store(folder).close()
    return folder


def change(*statements: str) -> Callable[[Path], None]:
    def act(store: Path) -> None:
        with closing(sqlite3.connect(store / DATABASE, isolation_level=None)) as database:
            for statement in ("PRAGMA ignore_check_constraints=ON", *statements):
                database.execute(statement)

    return act


def answer_is(compressed: bytes) -> Callable[[Path], None]:
    return change(f"UPDATE jobs SET document = x'{compressed.hex()}'")


def schema(*statements: str) -> Callable[[Path], None]:
    return change("PRAGMA writable_schema=ON", *statements)


def beside(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def act(store: Path) -> None:
        (store / name).unlink(missing_ok=True)
        make(store / name)

    return act


def files(content: bytes) -> Callable[[Path], None]:
    return beside(DATABASE, lambda file: file.write_bytes(content))


def page(number: int) -> Callable[[Path], None]:
    def act(store: Path) -> None:
        data = bytearray((store / DATABASE).read_bytes())
        begin = number % (len(data) // 4096) * 4096
        data[begin : begin + 4096] = random.Random(number).randbytes(4096)
        (store / DATABASE).write_bytes(data)

    return act


def bomb(store: Path) -> None:
    answer_is(zlib.compress(bytes(200 << 20)))(store)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "garbage": files(random.Random(0).randbytes(9000)),
    "an object": files(b"{}"),
    "nothing": files(b""),
    "half": lambda s: os.truncate(s / DATABASE, 9000),
    "first page": page(0),
    "pipe": beside(DATABASE, os.mkfifo),
    "device": beside(DATABASE, lambda file: file.symlink_to("/dev/zero")),
    "folder": beside(DATABASE, Path.mkdir),
    "journal": beside(f"{DATABASE}-journal", lambda file: file.write_bytes(b"/etc/passwd")),
    "link as memory": beside(f"{DATABASE}-shm", lambda file: file.symlink_to("target")),
    "pipe as log": beside(f"{DATABASE}-wal", os.mkfifo),
    "linked files": beside("artifacts", lambda file: file.symlink_to("/tmp")),
    "bomb": bomb,
    "no stream": answer_is(b"no stream"),
    "cut answer": answer_is(zlib.compress(b"{}")[:-3]),
    "no JSON": answer_is(zlib.compress(b"no JSON")),
    "list": answer_is(zlib.compress(b"[]")),
    "empty object": answer_is(zlib.compress(b"{}")),
    "nested answer": answer_is(zlib.compress(b"[" * 100_000)),
    "no text": answer_is(zlib.compress(b"\xff\xfe")),
    "other verdict": change("UPDATE jobs SET verdict = 'clean'"),
    "negative version": change("PRAGMA user_version = -7"),
    "earlier version": change("PRAGMA user_version = 1"),
    "no version": change("PRAGMA user_version = 0"),
    "missing table": change("DROP TABLE findings"),
    "missing column": change("ALTER TABLE jobs DROP COLUMN verdict"),
    "trigger": change("CREATE TRIGGER t AFTER UPDATE ON jobs BEGIN DELETE FROM jobs; END"),
    "view": change(
        "ALTER TABLE metrics RENAME TO m",
        "CREATE VIEW metrics AS WITH RECURSIVE e(job, kind, name, value) AS "
        "(SELECT '', '', '', 1 UNION ALL SELECT job, kind, name, value + 1 FROM e) SELECT * FROM e",
    ),
    "schema that is none": schema("UPDATE sqlite_master SET sql = 'x' WHERE name = 'jobs'"),
    "a text as a time": change("UPDATE campaigns SET created = 'soon'"),
    "an endless time": change("UPDATE campaigns SET created = 9e999"),
    "a number as a key": change("UPDATE jobs SET versions = x'00'"),
    "a text that is none": change("UPDATE jobs SET model = CAST(x'ff' AS TEXT)"),
    "a huge text": change("UPDATE jobs SET versions = printf('%.*c', 90000000, 'x')"),
    "state": change("UPDATE jobs SET state = 'evil'"),
    "kind": change("UPDATE jobs SET kind = 'evil'"),
    "request": change("UPDATE jobs SET request = '[[['"),
    "request of another shape": change("UPDATE jobs SET request = '{\"model\": 7}'"),
    "versions": change("UPDATE jobs SET versions = '[1]'"),
    "settings": change("UPDATE campaigns SET settings = '[]'"),
    "baseline": change("UPDATE campaigns SET settings = '{\"baseline\": {}}'"),
    "size": change('UPDATE campaigns SET settings = \'{"store_size": "x"}\''),
    "finding": change("UPDATE findings SET document = '{}'"),
}
COMMANDS = (
    ("show", "s"),
    ("status", "s"),
    ("export", "s", "--out", "out.json"),
    ("tables", "s"),
    ("resume", "s"),
    ("gc", "s"),
)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_store_is_one_message_with_what_to_do(run: Run, old: Path, name: str) -> None:
    DAMAGE[name](old)
    refused = 0
    for command in COMMANDS:
        ran = run("campaign", *command)
        assert "bug in optvet" not in ran.err, (command, ran.err)
        assert ran.code in (0, 1, 2), (command, ran.err)
        if ran.code == 2:
            refused += 1
            assert "is damaged" in ran.err, (command, ran.err)
            assert "optvet campaign repair" in ran.err, (command, ran.err)
            assert len(ran.err) < 1500, (command, ran.err)
    # What a command has no need of, it does not read.
    assert refused >= 1
    assert not (old / "target").exists()


@pytest.mark.parametrize("number", range(1, 24, 1 if LONG else 3))
def test_a_page_that_was_overwritten_never_ends_in_a_traceback(
    run: Run, old: Path, number: int
) -> None:
    page(number)(old)
    for command in COMMANDS[:4]:
        ran = run("campaign", *command)
        assert ran.code in (0, 1, 2), ran.err
        assert "bug in optvet" not in ran.err, ran.err
    ran = run("campaign", "repair", "s", "--out", "new")
    assert ran.code in (0, 2), ran.err
    if ran.code == 0:
        shown = run("campaign", "show", "new")
        assert shown.code in (0, 1) or "has no campaign" in shown.err, shown.err


# --- repair --------------------------------------------------------------------------------------


def test_a_store_in_order_is_repaired_to_its_equal(run: Run, old: Path) -> None:
    ran = run("campaign", "repair", "s")
    assert ran.code == 0, ran.err
    assert "1 campaigns, 1 jobs, 1 of them answered" in ran.out
    assert "nothing was lost" in ran.out
    with open_store(old) as before, open_store(Path("s.repaired")) as after:
        (one, other) = (list(trials(s, find_campaign(s))) for s in (before, after))
        assert [t.answer for t in one] == [t.answer for t in other]
        (one_f, other_f) = (list(findings(s, find_campaign(s))) for s in (before, after))
        assert [f.finding for f in one_f] == [f.finding for f in other_f]
    again = run("campaign", "repair", "s")
    assert again.code == 2
    assert "exists already" in again.err


@pytest.mark.parametrize("table", ["jobs", "campaigns"])
def test_a_column_whose_name_is_damaged_loses_its_values_alone(
    run: Run, old: Path, table: str
) -> None:
    change(f"ALTER TABLE {table} RENAME COLUMN finished TO NaNished")(old)
    ran = run("campaign", "repair", "s", "--out", "new")
    assert "Traceback" not in ran.err, ran.err
    assert ran.code in (0, 1), ran.err
    with open_store(Path("new")) as store:
        (trial,) = trials(store, find_campaign(store))
        assert trial.answer is not None


def test_a_lost_answer_is_asked_again(run: Run, old: Path) -> None:
    before = (old / DATABASE).read_bytes()
    DAMAGE["no JSON"](old)
    ran = run("campaign", "repair", "s", "--out", "new")
    assert ran.code == 0, ran.err
    assert "1 jobs have lost their answer, and wait to be run again" in ran.out
    assert (old / DATABASE).read_bytes() != before
    with open_store(Path("new")) as store:
        (trial,) = trials(store, find_campaign(store))
        assert (trial.state, trial.answer) == ("queued", None)
        assert find_campaign(store).finished is None


def test_a_campaign_without_all_its_jobs_is_not_taken_for_whole(run: Run, old: Path) -> None:
    change("UPDATE campaigns SET plan = 'of more jobs'")(old)
    ran = run("campaign", "repair", "s", "--out", "new")
    assert ran.code == 0, ran.err
    assert "0 campaigns, 1 jobs" in ran.out
    assert "run their files again with --store new" in ran.out
    with open_store(Path("new")) as store:
        assert store.database.execute("SELECT count(*) FROM jobs").fetchone()[0] == 1


@pytest.mark.parametrize("name", ["garbage", "an object", "nothing", "first page"])
def test_of_what_cannot_be_read_nothing_is_made(run: Run, old: Path, name: str) -> None:
    DAMAGE[name](old)
    ran = run("campaign", "repair", "s", "--out", "new")
    assert ran.code == 2
    assert "nothing can be read" in ran.err
    assert "start a new store" in ran.err
    assert sorted(p.name for p in old.parent.iterdir() if p.name[0] != ".") == ["s"]


# --- what is executed ----------------------------------------------------------------------------


@pytest.mark.long
def test_what_is_run_is_what_the_file_says(run: Run, place: Path) -> None:
    (place / "models").mkdir()
    onnx.save(onnx.parser.parse_model(CLEAN), place / "models" / "clean.onnx")
    (place / "c.toml").write_text('models = ["models/"]\n[vet]\nlimit = 1\n')
    assert run("campaign", "run", "c.toml", "--store", "s").code == 0
    evil = json.dumps({"model": "evil.onnx", "trust": True, "cache_dir": str(place / "evil-cache")})
    change(
        f"UPDATE jobs SET state = 'queued', document = NULL, verdict = NULL, request = '{evil}'",
        "INSERT INTO jobs SELECT 'evil', cell, request, versions, model, model_digest, optimizer, "
        "pipeline, dataset, runtime, comparator, bundles, 'queued', NULL, NULL, NULL, NULL, NULL, "
        "NULL, 0, kind FROM jobs",
        "INSERT INTO campaign_jobs VALUES (1, 1, 'evil')",
    )(place / "s")
    refused = run("campaign", "resume", "s")
    assert refused.code == 2
    assert "only the command line grants trust" in refused.err
    ran = run("campaign", "run", "c.toml", "--store", "s")
    assert ran.code == 0, ran.err
    with open_store(place / "s") as store:
        (trial,) = trials(store, find_campaign(store))
        assert trial.result is not None
        assert trial.result.model.source.endswith("clean.onnx")
        assert trial.request.model.endswith("clean.onnx")
        query = "SELECT state FROM jobs WHERE key = 'evil'"
        assert store.database.execute(query).fetchone()[0] == "queued"
    assert not (place / "evil-cache").exists()


@pytest.mark.long
def test_a_resumed_store_does_not_say_where_is_written(run: Run, models: Path, place: Path) -> None:
    (place / "c.toml").write_text('models = ["models/clean.onnx"]\n[vet]\nlimit = 1\n')
    assert run("campaign", "run", "c.toml", "--store", "s").code == 0
    there = place / "elsewhere"
    change(
        "UPDATE jobs SET state = 'queued', document = NULL, verdict = NULL, "
        f"request = json_set(request, '$.cache_dir', '{there}', '$.out', '{there}')"
    )(place / "s")
    assert run("campaign", "resume", "s").code == 0
    assert not there.exists()


def test_removing_files_stays_within_the_store(old: Path, place: Path) -> None:
    mine = place / "mine"
    mine.write_text("mine")
    os.utime(mine, (0, 0))
    change(f"INSERT INTO artifacts VALUES ('{mine}', 1, 0)")(old)
    with open_store(old) as store, pytest.raises(InputError, match="no digest of a file"):
        collect_garbage(store, 0)
    change("DELETE FROM artifacts")(old)
    (old / "artifacts").mkdir()
    (old / "artifacts" / "ab").symlink_to(place)
    (old / "artifacts" / "notes").write_text("of the user")
    os.utime(old / "artifacts" / "notes", (0, 0))
    with open_store(old) as store:
        assert collect_garbage(store, 0) == 0
    assert mine.exists()
    assert (old / "artifacts" / "notes").exists()


def test_a_bundle_is_written_below_the_folder_that_was_named(old: Path, place: Path) -> None:
    digest = "0" * 64
    change(
        f"INSERT INTO artifacts VALUES ('{digest}', 1, 0)",
        f"INSERT INTO finding_artifacts SELECT job, number, 'x', '{digest}' FROM findings",
        "UPDATE findings SET document = json_set(document, '$.bundle', '../../elsewhere')",
    )(old)
    with open_store(old) as store, pytest.raises(InputError, match="a bundle is called"):
        export(store, find_campaign(store), "bundles", place / "out")


# --- locks, media, disks -------------------------------------------------------------------------


@pytest.mark.usefixtures("impatient")
def test_a_lock_is_told_as_a_lock(run: Run, old: Path) -> None:
    with closing(sqlite3.connect(old / DATABASE, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        for command in COMMANDS:
            ran = run("campaign", *command)
            assert ran.code == 3, ran.err
            assert "locked by another process" in ran.err
            assert "repair" not in ran.err


def test_a_full_disk_is_told_as_one(old: Path) -> None:
    with open_store(old) as store:
        pages = store.database.execute("PRAGMA page_count").fetchone()[0]
        store.database.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(InfrastructureError, match="is full; make room, then continue"):
            with store.transaction() as database:
                database.execute("UPDATE jobs SET request = printf('%.*c', 99999, 'x')")


@contextmanager
def nobody() -> Iterator[None]:
    """Without the rights of root, which may write everywhere."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture
def everyones(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that every user can reach and write."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("left", ["in order", "by a killed process", "by an earlier version"])
def test_a_store_that_cannot_be_written_is_read(old: Path, everyones: Path, left: str) -> None:
    folder = everyones / "m"
    if left == "by an earlier version":
        folder.mkdir()
        with closing(sqlite3.connect(folder / DATABASE)) as database:
            database.executescript(STORED)
    elif left == "by a killed process":
        with closing(sqlite3.connect(old / DATABASE, isolation_level=None)) as database:
            database.execute("UPDATE campaigns SET name = 'from the log'")
            shutil.copytree(old, folder)
        (folder / f"{DATABASE}-shm").unlink()
        assert (folder / f"{DATABASE}-wal").stat().st_size
    else:
        shutil.copytree(old, folder)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    with nobody():
        with open_store(folder, to_read=True) as store:
            campaign = find_campaign(store)
            assert (campaign.name == "from the log") == (left == "by a killed process")
            assert len(summary_of(store, campaign).findings) == 1
            assert status_of(store).campaigns[0].done == 1
            export(store, campaign, "json", everyones / "out.json")
            # While it is open, too, nothing is beside it.
            assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
        with pytest.raises(UsageError, match=r"is read-only.*; copy it to where you may write"):
            open_store(folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    folder.chmod(0o755)


def test_a_command_that_writes_says_that_the_store_is_read_only(
    run: Run, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "is_writable", lambda path: False)
    for command in COMMANDS:
        ran = run("campaign", *command)
        expected = 2 if command[0] in ("resume", "gc") else (0, 1)
        assert ran.code == expected or ran.code in (0, 1), ran.err
        assert ("is read-only" in ran.err) == (command[0] in ("resume", "gc"))
