"""Models on disk: what a path names, and what is said when it names nothing."""

import os
import re
from pathlib import Path

import pytest

import optvet_local
from optvet import InputError, UsageError
from optvet.plugin import ModelSource


def fetch(reference: object, cache: Path = Path("unused")) -> list[Path]:
    return list(optvet_local.LocalSource().fetch(str(reference), cache))


def write(path: Path, data: bytes = b"\x08\x08") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_the_source_keeps_the_protocol() -> None:
    assert isinstance(optvet_local.LocalSource(), ModelSource)
    assert [source.name for source in optvet_local.optvet_model_sources()] == ["local"]
    assert list(optvet_local.LocalSource().models()) == []


def test_a_file_is_itself_whatever_its_suffix(tmp_path: Path) -> None:
    assert fetch(write(tmp_path / "model.bin")) == [tmp_path / "model.bin"]


def test_a_folder_gives_its_models_sorted(tmp_path: Path) -> None:
    for name in ("b.onnx", "a.onnx", "a.pb", "notes.txt"):
        write(tmp_path / name)
    assert fetch(tmp_path) == [tmp_path / "a.onnx", tmp_path / "b.onnx"]


def test_a_folder_is_not_searched_deeper(tmp_path: Path) -> None:
    write(tmp_path / "model.onnx")
    write(tmp_path / "test_data_set_0" / "other.onnx")
    assert fetch(tmp_path) == [tmp_path / "model.onnx"]


def test_near_names_are_suggested(tmp_path: Path) -> None:
    write(tmp_path / "resnet50.onnx")
    with pytest.raises(UsageError, match=r"no such file: .*did you mean 'resnet50.onnx'\?"):
        fetch(tmp_path / "resnet5.onnx")


def test_without_a_near_name_the_models_of_the_folder_are_listed(tmp_path: Path) -> None:
    write(tmp_path / "zz.onnx")
    with pytest.raises(UsageError, match=r"no such file: .*has zz\.onnx"):
        fetch(tmp_path / "completely-different")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    gone = re.escape(str(tmp_path / "gone"))
    with pytest.raises(UsageError, match=rf"its folder {gone} does not exist either"):
        fetch(tmp_path / "gone" / "model.onnx")


def test_an_empty_reference_is_refused() -> None:
    with pytest.raises(UsageError, match="model path is empty; give a file"):
        fetch("")


def test_a_folder_without_models_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "model.pb")
    with pytest.raises(InputError, match=r"has no .onnx file; give a folder that has one"):
        fetch(tmp_path)


def test_models_one_level_deeper_are_pointed_to(tmp_path: Path) -> None:
    write(tmp_path / "inner" / "model.onnx")
    with pytest.raises(InputError, match=r"not searched deeper; did you mean .*inner\?"):
        fetch(tmp_path)


def test_a_directory_called_like_a_model_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "net.onnx" / "model.onnx")
    with pytest.raises(InputError, match=r"net.onnx is a directory, .*give .*model\.onnx"):
        fetch(tmp_path / "net.onnx")


@pytest.mark.parametrize("folder", [True, False])
def test_an_empty_file_is_refused(tmp_path: Path, folder: bool) -> None:
    path = write(tmp_path / "model.onnx", b"")
    with pytest.raises(InputError, match=r"model\.onnx is empty, expected an ONNX file"):
        fetch(tmp_path if folder else path)


def test_of_several_files_those_that_cannot_be_used_are_told_one_by_one(tmp_path: Path) -> None:
    good, empty = write(tmp_path / "a.onnx"), write(tmp_path / "b.onnx", b"")
    dead = tmp_path / "c.onnx"
    dead.symlink_to("nowhere.onnx")
    assert fetch(tmp_path) == [good, empty, dead]
    with pytest.raises(InputError, match=r"b\.onnx is empty"):
        fetch(empty)
    with pytest.raises(UsageError, match=r"c\.onnx is a link to nowhere\.onnx, which does not"):
        fetch(dead)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.onnx")
    with pytest.raises(InputError, match="not a regular file"):
        fetch(tmp_path / "model.onnx")


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "model.onnx")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(InputError, match=r"model\.onnx cannot be read: Permission denied"):
        fetch(path)


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no such file|cannot be read"):
        fetch(tmp_path / ("x" * 5000))
