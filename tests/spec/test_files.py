from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from optvet import InfrastructureError
from optvet.plugin import file_sha256, write_file
from optvet.spec.files import replacing


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_written_with_its_folders_and_its_digest_is_known(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "file"
    write_file(target, "äöü")
    assert target.read_bytes() == "äöü".encode()
    write_file(target, b"abc")
    # NIST's example of SHA-256.
    assert file_sha256(target).startswith("ba7816bf8f01cfea414140de5dae2223")
    assert os.listdir(target.parent) == ["file"]


def test_an_error_while_writing_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("before")
    with suppress(KeyboardInterrupt), replacing(target) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert target.read_text() == "before"
    assert os.listdir(tmp_path) == ["file"]


def test_permissions_are_those_of_the_replaced_file_or_of_a_new_one(tmp_path: Path) -> None:
    old, new, private, plain = (tmp_path / n for n in ("old", "new", "private", "plain"))
    old.touch()
    old.chmod(0o640)
    plain.touch()
    for path in (old, new):
        write_file(path, b"")
    write_file(private, b"", private=True)
    assert (mode(old), mode(new), mode(private)) == (0o640, mode(plain), 0o600)


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_not_followed_and_stays(tmp_path: Path, there: bool) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    if there:
        target.touch()
    link.symlink_to(target)
    with pytest.raises(InfrastructureError, match="it is a link, which is not followed"):
        write_file(link, b"new")
    assert link.is_symlink()
    assert target.exists() == there
    assert not there or target.read_bytes() == b""


def test_a_special_file_is_written_to_and_stays_what_it_is() -> None:
    with pytest.raises(InfrastructureError, match="cannot write /dev/full: No space left on dev"):
        write_file(Path("/dev/full"), b"x")
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_what_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InfrastructureError, match=r"cannot write .*; choose another place"):
        write_file(tmp_path / "file" / "below", b"", advice="choose another place")
