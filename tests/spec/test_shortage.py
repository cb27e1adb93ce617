from __future__ import annotations

import errno
import os
import resource
import sqlite3
from pathlib import Path

import pytest

from optvet.spec.errors import InfrastructureError
from optvet.spec.foreign import NotReadable, read_file
from optvet.spec.shortage import shortage, shortage_in


def raised_from(error: BaseException) -> InfrastructureError:
    try:
        raise InfrastructureError("it failed") from error
    except InfrastructureError as found:
        return found


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EMFILE, f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]:,} files may be open"),
        (errno.ENFILE, "end other processes"),
        (errno.ENOSPC, "make room"),
        (errno.EDQUOT, "make room"),
        (errno.EFBIG, "file"),
    ],
)
def test_what_was_hit_is_told_of_an_error_its_cause_and_its_words(number: int, words: str) -> None:
    error = OSError(number, os.strerror(number))
    assert words in shortage(error)
    assert words in shortage(raised_from(error))
    assert words in shortage_in(f"OSError: {error}: '/d'")


def test_other_errors_lack_nothing() -> None:
    for error in (OSError(errno.EACCES, "denied"), ValueError("No space left"), OSError("?")):
        assert shortage(error) == ""
        assert shortage(raised_from(error)) == ""
    # It may have been heeded, and another one be the reason.
    assert shortage(raised_from(OSError(errno.EAGAIN, "again"))) == ""
    assert shortage_in("MatMul: File not found") == ""


def test_a_file_that_optvet_finds_too_large_is_no_limit_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"12")
    with pytest.raises(NotReadable) as caught:
        read_file(tmp_path / "large", 1)
    assert shortage(caught.value) == ""
    assert shortage(raised_from(caught.value)) == ""


def test_no_memory_is_told() -> None:
    assert "end other processes" in shortage(MemoryError())


def test_a_full_disk_is_told_of_a_database() -> None:
    with sqlite3.connect(":memory:") as database:
        database.execute("PRAGMA max_page_count = 1")
        with pytest.raises(sqlite3.OperationalError) as caught:
            database.execute("CREATE TABLE t (x)")
    assert "make room" in shortage(raised_from(caught.value))
