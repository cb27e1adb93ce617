from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.databases import ENDLESS, hot_journal

from optvet.engine.database import ForeignDatabase, check_files, check_values, open_database

TABLES = (
    "CREATE TABLE IF NOT EXISTS word (name TEXT PRIMARY KEY, times INTEGER NOT NULL, note BLOB)",
    "CREATE INDEX IF NOT EXISTS by_times ON word (times)",
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database with a row."""
    made = tmp_path / "words.sqlite"
    with closing(open_database(made, TABLES, busy_s=1)) as database:
        database.execute("INSERT INTO word VALUES ('a', 1, NULL)")
    return made


def change(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        for statement in statements:
            database.execute(statement)


def test_what_was_written_is_read_again(file: Path) -> None:
    with closing(open_database(file, TABLES, busy_s=1)) as database:
        check_values(database, TABLES)
        assert database.execute("SELECT * FROM word").fetchall() == [("a", 1, None)]


def test_a_kill_while_tables_are_made_leaves_none_of_them(tmp_path: Path) -> None:
    killed = "CREATE TABLE IF NOT EXISTS late (name TEXT CHECK (no_such_function(name)))"
    made = tmp_path / "words.sqlite"
    with pytest.raises(sqlite3.OperationalError, match="no such function"):
        open_database(made, (TABLES[0], killed, TABLES[1]), busy_s=1)
    with closing(open_database(made, TABLES, busy_s=1)) as database:
        assert database.execute("SELECT * FROM word").fetchall() == []


def test_a_foreign_journal_deletes_nothing(file: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    hot_journal(file, mine)
    with pytest.raises(ForeignDatabase, match=r"words\.sqlite-journal is there"):
        open_database(file, TABLES, busy_s=1)
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("end", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_no_link_and_no_second_name_is_written_through(
    file: Path, tmp_path: Path, end: str, link: object
) -> None:
    mine = tmp_path / "mine"
    mine.write_bytes(b"m" * 40_000)
    if not end:
        file.unlink()
    assert callable(link)
    link(mine, f"{file}{end}")
    with pytest.raises(ForeignDatabase, match=r"no regular file|a file elsewhere"):
        open_database(file, TABLES, busy_s=1)
    assert mine.read_bytes() == b"m" * 40_000


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (["DROP TABLE word", ENDLESS.format("word")], "view 'word'"),
        (["CREATE VIEW more AS SELECT 1"], "view 'more'"),
        (["CREATE TRIGGER t AFTER INSERT ON word BEGIN DELETE FROM word; END"], "trigger 't'"),
        (["CREATE TABLE other (a)"], "table 'other'"),
        (["DROP INDEX by_times"], "index 'by_times' is missing"),
        (["ALTER TABLE word ADD COLUMN more TEXT"], "table 'word' is not as"),
    ],
)
def test_other_objects_are_refused_before_they_are_read(
    file: Path, statements: list[str], words: str
) -> None:
    change(file, *statements)
    with pytest.raises(ForeignDatabase, match=words):
        open_database(file, TABLES, busy_s=1)


@pytest.mark.parametrize("row", ["(NULL, 2, NULL)", "('b', 'many', NULL)", "('b', 1, 'text')"])
def test_values_of_other_types_are_refused(file: Path, row: str) -> None:
    change(file, f"INSERT INTO word VALUES {row}")
    with (
        closing(open_database(file, TABLES, busy_s=1)) as database,
        pytest.raises(ForeignDatabase, match="of a row of word is no value for it"),
    ):
        check_values(database, TABLES)


def test_a_pipe_and_a_text_are_no_databases(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("no database at all")
    for name in ("pipe", "text"):
        with pytest.raises(ForeignDatabase):
            check_files(tmp_path / name)
