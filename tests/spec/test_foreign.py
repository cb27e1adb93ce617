from __future__ import annotations

import glob
import os
import pickle
import socket
import time
from pathlib import Path

import pytest

from optvet import InputError
from optvet.spec import foreign
from optvet.spec.foreign import NotReadable, files_in, matching, open_file, read_file, read_text


@pytest.fixture(params=["pipe", "device", "socket", "folder", "link to a device", "link to a pipe"])
def special(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    if request.param == "device":
        return "/dev/zero"
    if request.param == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("special")
    elif request.param == "folder":
        Path("special").mkdir()
    elif request.param == "link to a device":
        Path("special").symlink_to("/dev/zero")
    else:
        os.mkfifo("pipe")
        if request.param == "pipe":
            return "pipe"
        Path("special").symlink_to("pipe")
    return "special"


def test_what_is_no_regular_file_is_refused_at_once(special: str) -> None:
    began = time.monotonic()
    for read in (read_file, open_file, read_text):
        with pytest.raises(NotReadable, match="expected a regular file") as caught:
            read(special)
        # Readers that catch one of the two say the same.
        assert isinstance(caught.value, InputError)
        assert isinstance(caught.value, OSError)
        assert "expected a regular file" in str(caught.value.strerror)
    assert time.monotonic() - began < 5


def test_the_error_survives_the_way_out_of_a_worker() -> None:
    with pytest.raises(NotReadable) as caught:
        read_file("/dev/null")
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) == "/dev/null: it is a device, expected a regular file"


def test_a_file_is_read_up_to_its_limit_and_not_beyond(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_file(file, 5) == b"12345"
    with pytest.raises(NotReadable, match=r"more than 4 bytes.*; give a smaller one"):
        read_file(file, 4)


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "sparse"
    with file.open("wb") as made:
        made.truncate(1 << 42)
    with pytest.raises(NotReadable, match="more than"):
        read_file(file)


def test_a_file_of_the_kernel_without_a_size_is_read_up_to_the_limit() -> None:
    assert b"optvet" in read_file("/proc/self/environ", 1 << 20) or read_file("/proc/self/stat")
    with pytest.raises(NotReadable, match="more than 10 bytes"):
        read_file("/proc/self/status", 10)


def test_ends_of_lines_are_those_that_text_files_have(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"a\r\nb\rc\n")
    assert read_text(file) == file.read_text() == "a\nb\nc\n"


# --- searching -----------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a.onnx", "b.txt", ".h.onnx", "d/a.onnx", "d/e/a.onnx", ".hidden/a.onnx"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    return tmp_path


@pytest.mark.parametrize(
    "pattern",
    [
        "*.onnx",
        "**/*.onnx",
        "d/*",
        "d/**",
        "*/a.onnx",
        "**/e/*",
        "[ab].*",
        ".*",
        "none/*",
        "d/../*",
    ],
)
def test_a_pattern_matches_what_it_does_elsewhere(tree: Path, pattern: str) -> None:
    def files(found: list[str]) -> list[str]:
        return sorted({f for f in found if Path(f).is_file()})

    assert files(matching(pattern)) == files(glob.glob(pattern, recursive=True))
    whole = str(tree / pattern)
    assert files(matching(whole)) == files(glob.glob(whole, recursive=True))


def test_links_that_go_round_are_entered_once(tree: Path) -> None:
    for name in ("d/x", "d/y", "d/e/z"):
        Path(name).symlink_to(tree)
    assert matching("**/*.onnx") == ["a.onnx", "d/a.onnx", "d/e/a.onnx"]
    assert len(matching("**/b.txt")) == 1


@pytest.mark.parametrize("pattern", ["/proc/**/*.onnx", "/sys/*", "/dev/*", "link/**/*.onnx"])
def test_folders_of_the_kernel_are_not_searched(tree: Path, pattern: str) -> None:
    Path("link").symlink_to("/proc/self")
    with pytest.raises(InputError, match=r"is a folder of the kernel.*; name the folder"):
        matching(pattern)


def test_folders_of_the_kernel_below_are_left_out(tree: Path) -> None:
    Path("link").symlink_to("/proc")
    assert matching("**/*.onnx") == ["a.onnx", "d/a.onnx", "d/e/a.onnx"]


def test_a_search_ends_at_its_limits(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value, words in (
        ("MOST_ENTRIES", 3, "more than 3 entries"),
        ("MOST_LEVELS", 1, "more than 1 levels of folders"),
        ("MOST_S", -1.0, "takes more than -1 s"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(foreign, name, value)
            with pytest.raises(InputError, match=f"{words}; name the folder"):
                matching("**/*.onnx")
    monkeypatch.setattr(foreign, "MOST_FILES", 3)
    with pytest.raises(InputError, match="more than 3 entries"):
        files_in(tree)


def test_a_folder_gives_its_regular_files_and_follows_no_link_to_another(tree: Path) -> None:
    os.mkfifo("pipe.onnx")
    Path("d/round").symlink_to(tree)
    found = files_in(tree, lambda path: path.suffix == ".onnx")
    names = [".h.onnx", ".hidden/a.onnx", "a.onnx", "d/a.onnx", "d/e/a.onnx"]
    assert [f.relative_to(tree).as_posix() for f in found] == names
