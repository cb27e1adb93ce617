from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from optvet.spec import files
from optvet.spec.files import file_sha256


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_file_that_changed_is_hashed_again_whatever_its_time_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_SETTLED_NS", -1)
    path = tmp_path / "model"
    path.write_bytes(b"first")
    before = path.stat()
    assert file_sha256(path) == sha256(b"first")
    for content in (b"other", b"third"):
        with path.open("r+b") as file:
            file.write(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        os.chmod(path, 0o600)  # ticks of the clock of files are some milliseconds
        while path.stat().st_ctime_ns == before.st_ctime_ns:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert file_sha256(path) == sha256(content)
        before = path.stat()


def test_a_file_that_lies_still_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_SETTLED_NS", -1)
    path = tmp_path / "model"
    path.write_bytes(b"still")
    assert file_sha256(path) == sha256(b"still")
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert file_sha256(path) == sha256(b"still")


def test_a_file_that_changed_just_now_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"young")
    assert file_sha256(path) == sha256(b"young")
    monkeypatch.setattr(hashlib, "file_digest", None)
    with pytest.raises(TypeError):
        file_sha256(path)
