from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from optvet.spec.removal import remove_folder

DEEP = 3000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "left"
    made.mkdir()
    return made


def nest(folder: Path, depth: int = DEEP) -> None:
    """Folders in ``folder``, each within the one before, with a file and a link in each."""
    held = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=held)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=held))
        os.symlink("/", "l", dir_fd=held)
        below = os.open("d", os.O_RDONLY, dir_fd=held)
        os.close(held)
        held = below
    os.close(held)


def test_folders_within_folders_thousands_deep_are_removed(folder: Path) -> None:
    nest(folder)
    assert remove_folder(folder)
    assert not folder.exists()


def test_what_is_not_there_is_gone(folder: Path) -> None:
    assert remove_folder(folder / "nothing")


def test_no_link_is_followed(folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("mine")
    (folder / "to_folder").symlink_to(kept)
    (folder / "to_file").symlink_to(kept / "file")
    assert remove_folder(folder)
    (tmp_path / "link").symlink_to(kept)
    assert not remove_folder(tmp_path / "link")
    assert (kept / "file").read_text() == "mine"


def test_at_most_so_many_entries_are_removed_at_once(folder: Path) -> None:
    nest(folder, 50)
    assert not remove_folder(folder, most=60)
    for _ in range(5):
        gone = remove_folder(folder, most=60)
    assert gone


def test_names_of_any_bytes_and_special_files_are_removed(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    os.mkdir(os.fsencode(folder) + b"/\xff\xfe\n")
    (folder / ("n" * 255)).touch()
    assert remove_folder(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user, which only root can")
def test_folders_without_permissions_are_removed_by_their_owner(tmp_path: Path) -> None:
    folder = tmp_path / "left"
    (folder / "a" / "b" / "c").mkdir(parents=True)
    for each in ("a/b/c", "a/b", "a", "."):
        os.chown(folder / each, 65534, 65534)
        (folder / each).chmod(0)
    tmp_path.chmod(0o777)
    code = (
        "import os, sys; from optvet.spec.removal import remove_folder; os.setuid(65534); "
        "sys.exit(0 if remove_folder('left') else 1)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0
