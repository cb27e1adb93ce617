"""Nothing is written through a link: not where a file is named, nor inside an ``--out`` folder."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.parser
import pytest
from tests.commands import CLEAN, FAULTY, Run, run

from optvet.engine.convert.answer import _write
from optvet.spec.errors import InfrastructureError, UsageError
from optvet.spec.files import folder_without_links, refuse_links_of_others, write_file
from optvet.spec.types import Artifact

__all__ = ["run"]
KEPT = "mine\n"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of the user, to which links lead, and a current folder with two models."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    onnx.save(onnx.parser.parse_model(CLEAN), "clean.onnx")
    onnx.save(onnx.parser.parse_model(FAULTY), "faulty.onnx")
    file = tmp_path / "home" / "profile"
    file.parent.mkdir()
    file.write_text(KEPT)
    return file


def is_untouched(mine: Path) -> bool:
    return mine.read_text() == KEPT and os.listdir(mine.parent) == [mine.name]


FILES: dict[str, tuple[str, ...]] = {
    "json": ("vet", "clean.onnx", "--optimizer", "onnxoptimizer", "--json", "LINK"),
    "models": ("models", "list", "--json", "LINK"),
    "reduce": ("reduce", "clean.onnx", "--check", "test {model}", "--out", "LINK"),
    "page": ("known", "page", "--out", "LINK"),
    "campaign": ("campaign", "init", "LINK"),
    "precision": ("precision", "clean.onnx", "--out", "LINK"),
    "picture": ("precision", "clean.onnx", "--plot", "LINK"),
}


@pytest.mark.parametrize("there", [True, False], ids=["file", "dangling"])
@pytest.mark.parametrize("kind", FILES)
def test_a_link_in_place_of_a_file_is_refused(run: Run, mine: Path, kind: str, there: bool) -> None:
    if kind == "picture":
        pytest.importorskip("matplotlib", reason="needs optvet[plots]")
    link = Path("out.svg" if kind == "picture" else "out")
    link.symlink_to(mine if there else mine.with_name("new"))
    done = run(*(str(link) if word == "LINK" else word for word in FILES[kind]))
    assert done.code in (2, 3), (done.out, done.err)
    assert "is a link" in " ".join(done.err.split()) or "exists" in done.err
    assert is_untouched(mine)
    assert link.is_symlink()


def test_a_link_of_the_system_is_followed(tmp_path: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=tmp_path) as file:
        write_file(Path(f"/proc/self/fd/{file.fileno()}"), KEPT)
        assert Path(file.name).read_text() == KEPT


def test_an_out_folder_may_be_a_link_of_the_users(run: Run, mine: Path) -> None:
    Path("elsewhere").mkdir()
    Path("out").symlink_to("elsewhere")
    done = run("vet", "faulty.onnx", "--optimizer", "onnxoptimizer", "--limit", "1", "--out", "out")
    assert done.code == 1, done.err
    (bundle,) = Path("elsewhere").iterdir()
    # The bundle's own name leads elsewhere in the next run: it is neither read nor written.
    bundle.rename(mine.parent / "bundle")
    bundle.symlink_to(mine.parent / "empty")
    done = run("vet", "faulty.onnx", "--optimizer", "onnxoptimizer", "--limit", "1", "--out", "out")
    assert done.code == 3, (done.out, done.err)
    assert "is a link, which is not followed" in " ".join(done.err.split())
    assert sorted(os.listdir(mine.parent)) == ["bundle", mine.name]


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes links of others")
@pytest.mark.parametrize("mode", [0o1777, 0o755])
def test_an_out_folder_behind_a_link_of_others_is_refused(
    run: Run, mine: Path, tmp_path: Path, mode: int
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    (shared / "link").symlink_to(mine.parent)
    os.lchown(shared / "link", 12345, 12345)
    if mode == 0o755:
        refuse_links_of_others(shared / "link" / "out")
        return
    for out in (shared / "link", shared / "link" / "out"):
        done = run("vet", "clean.onnx", "--optimizer", "onnxoptimizer", "--out", out)
        assert done.code == 2
        assert "a link that another user made" in " ".join(done.err.split())
    done = run("models", "list", "--json", shared / "link" / "file")
    assert done.code == 2
    assert is_untouched(mine)


def test_a_repair_writes_through_no_link_in_its_folder(run: Run, mine: Path) -> None:
    patch = {"schema": "optvet.patch/1", "digest": "", "edits": []}
    Path("patch.json").write_text(json.dumps(patch))
    Path("repaired").mkdir()
    Path("repaired/repaired.onnx").symlink_to(mine)
    done = run("repair", "clean.onnx", "--apply", "patch.json")
    assert done.code == 2, (done.out, done.err)
    assert "link" in done.err
    assert is_untouched(mine)


def test_a_hunt_writes_through_no_link_in_its_folder(run: Run, mine: Path) -> None:
    for name in ("findings", "hunt.json", "campaign.toml"):
        folder = Path("hunt of " + name)
        folder.mkdir()
        (folder / name).symlink_to(mine.parent)
        done = run("hunt", "--optimizer", "onnxoptimizer", "--budget", "1", "--out", folder)
        assert done.code == 2, (done.out, done.err)
        assert "link" in done.err
    assert is_untouched(mine)


def folder_with(name: str) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        (place / name).parent.mkdir(parents=True)
        (place / name).write_text("new")
        return place

    return make


@pytest.mark.parametrize("link", ["target", "target/below", "target/below/profile"])
def test_an_artifact_that_is_a_folder_is_copied_through_no_link(
    mine: Path, tmp_path: Path, link: str
) -> None:
    made = folder_with("below/profile")(tmp_path / "made.folder")
    place = tmp_path / link
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(mine if link.endswith("profile") else mine.parent)
    with pytest.raises(OSError, match="it is a link, which is not followed") as caught:
        _write(Artifact("folder", b"", path=made), tmp_path / "target")
    assert caught.value.errno == errno.ELOOP
    assert is_untouched(mine)


def test_an_artifact_that_is_a_file_is_copied_through_no_link(mine: Path, tmp_path: Path) -> None:
    made = folder_with("file")(tmp_path / "made") / "file"
    target = tmp_path / "target"
    target.symlink_to(mine)
    for artifact in (Artifact("file", b"", path=made), Artifact("file", b"new")):
        with pytest.raises((OSError, InfrastructureError), match="link, which is not followed"):
            _write(artifact, target)
    assert is_untouched(mine)
    target.unlink()
    _write(Artifact("file", b"", path=made), target)
    assert target.read_text() == "new"


def test_a_folder_of_optvet_alone_has_no_links(tmp_path: Path) -> None:
    folder_without_links(tmp_path / "a" / "b")
    (tmp_path / "a" / "link").symlink_to("nowhere")
    folder_without_links(tmp_path / "a" / "b")
    with pytest.raises(UsageError, match="link"):
        folder_without_links(tmp_path / "a")
    os.mkfifo(tmp_path / "a" / "b" / "0-0.journal")
    with pytest.raises(UsageError, match=r"0-0\.journal: it is neither a file nor a folder"):
        folder_without_links(tmp_path / "a" / "b")


def test_a_pipe_that_nobody_reads_is_refused_and_not_waited_for(run: Run, mine: Path) -> None:
    os.mkfifo("answer.json")
    done = run("models", "list", "--json", "answer.json")
    assert done.code == 3, done.out
    assert "cannot write answer.json: it is a pipe that nobody reads" in " ".join(done.err.split())


def test_a_pipe_that_somebody_reads_is_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_file(tmp_path / "pipe", KEPT)
    assert os.read(reader, 100).decode() == KEPT
    os.close(reader)


@pytest.mark.parametrize("place", ["target", "target/below/pipe"])
def test_an_artifact_is_copied_into_no_pipe(mine: Path, tmp_path: Path, place: str) -> None:
    made = folder_with("below/pipe")(tmp_path / "made.folder")
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(tmp_path / place)
    with pytest.raises(OSError, match="neither a file nor a folder"):
        _write(Artifact("folder", b"", path=made), tmp_path / "target")
