"""Releases in folders of their own: which there are, how they are installed, kept and removed."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.wheels import library, write_wheel

from optvet.engine.environment import package_index
from optvet.engine.environment.child_process import ChildEnd, run_below
from optvet.engine.environment.package_index import (
    NotInstallable,
    PackageIndex,
    available,
    choose,
    find,
    in_order,
    install,
)
from optvet.engine.environment.releases import ReleaseStore
from optvet.spec.errors import InfrastructureError, UsageError


@pytest.fixture
def wheels(tmp_path: Path) -> PackageIndex:
    folder = tmp_path / "wheels"
    folder.mkdir()
    for version in ("1.9", "1.10", "2.0rc1"):
        write_wheel(folder, version, library(version, faulty=False))
    write_wheel(folder, "3.0", library("3.0", faulty=False), tag="cp27-cp27m-win32")
    return PackageIndex(folder)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")}


def test_releases_with_a_wheel_that_fits_are_listed_in_order(wheels: PackageIndex) -> None:
    assert available("acme-opt", wheels) == ["1.9", "1.10"]
    assert available("acme-opt", wheels, pre=True) == ["1.9", "1.10", "2.0rc1"]


def test_pip_is_given_nothing_but_regular_files_of_a_folder(
    wheels: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wheels.folder is not None
    os.mkfifo(wheels.folder / "acme_opt-4.0-py3-none-any.whl")
    os.mkfifo(wheels.folder / "page.html")
    (wheels.folder / "acme_opt-5.0-py3-none-any.whl").mkdir()
    (wheels.folder / "acme_opt-6.0-py3-none-any.whl").symlink_to("/dev/zero")
    monkeypatch.setattr(package_index, "_LIST_S", 20.0)  # Not for ever where it waits.
    assert available("acme-opt", wheels) == ["1.9", "1.10"]
    assert wheels.build_of("acme-opt", "4.0") == ()
    install("acme-opt", "1.10", tmp_path / "target", wheels)
    assert (tmp_path / "target" / "acme_opt.py").is_file()
    with pytest.raises(NotInstallable):
        install("acme-opt", "4.0", tmp_path / "other", wheels)


def test_a_package_without_a_wheel_is_an_error_of_usage(wheels: PackageIndex) -> None:
    with pytest.raises(UsageError, match=r"'acme-none': .*wheels has no wheel of it for Python 3"):
        available("acme-none", wheels)
    assert wheels.folder is not None
    (wheels.folder / "acme_odd-x.y-py3-none-any.whl").touch()  # of a version that is none
    with pytest.raises(UsageError, match=r"'acme-odd': .*wheels has no wheel of it"):
        available("acme-odd", wheels)
    with pytest.raises(UsageError, match="expected a folder of wheels"):
        available("acme-opt", PackageIndex(Path("no-such-folder")))


def test_an_index_out_of_reach_is_no_package_without_releases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(InfrastructureError, match=r"cannot be reached .*refused.*--index"):
        available("acme-opt", PackageIndex())


def test_versions_are_chosen_by_name_or_by_bounds() -> None:
    known = in_order(["1.10", "1.9", "2.0", "1.2.1", "no version"])
    assert known == ["1.2.1", "1.9", "1.10", "2.0"]
    assert choose(known, ">=1.9,<2") == ["1.9", "1.10"]
    assert choose(known, "2.0, 1.9") == ["1.9", "2.0"]
    assert find(known, "1.9.0", "--good") == "1.9"
    with pytest.raises(
        UsageError, match=r"--good 1\.2: there is no such release; there is 1\.2\.1"
    ):
        find(known, "1.2", "--good")
    with pytest.raises(UsageError, match="--bad 'new' is no version"):
        find(known, "new", "--bad")
    with pytest.raises(UsageError, match=r"none of 1\.2\.1 … 2\.0 is one of them"):
        choose(known, ">3")
    with pytest.raises(UsageError, match="such as"):
        choose(known, ">>3")


def test_a_release_is_installed_once_and_kept(wheels: PackageIndex, tmp_path: Path) -> None:
    store, said = ReleaseStore(tmp_path / "kept"), list[str]()
    for _ in range(2):
        with store.using("acme-opt", "1.10", wheels, said.append) as folder:
            assert '"1.10"' in (folder / "acme_opt.py").read_text()
    assert said == ["installing acme-opt 1.10"]
    (release,) = store.kept()
    assert (release.package, release.version) == ("acme-opt", "1.10")
    assert store.remove(release)
    assert store.kept() == []


@pytest.mark.long
def test_a_wheel_that_was_built_anew_is_another_release(
    wheels: PackageIndex, tmp_path: Path
) -> None:
    store = ReleaseStore(tmp_path / "kept")
    with store.using("acme-opt", "1.9", wheels):
        pass
    assert wheels.folder is not None
    write_wheel(wheels.folder, "1.9", library("1.9", faulty=True))
    with store.using("acme-opt", "1.9", wheels) as folder:
        assert "if True and" in (folder / "acme_opt.py").read_text()


@pytest.mark.long
def test_the_longest_unused_release_goes_when_there_is_no_room(
    wheels: PackageIndex, tmp_path: Path
) -> None:
    store = ReleaseStore(tmp_path / "kept", most_bytes=1)
    with store.using("acme-opt", "1.9", wheels):
        with store.using("acme-opt", "1.10", wheels):
            # In use, both stay.
            assert [r.version for r in store.kept()] == ["1.10", "1.9"]
            assert not any(store.remove(r) for r in store.kept())
    with store.using("acme-opt", "1.10", wheels):
        assert [r.version for r in store.kept()] == ["1.10"]


def test_a_broken_wheel_is_skipped_and_leaves_nothing(wheels: PackageIndex, tmp_path: Path) -> None:
    assert wheels.folder is not None
    (wheels.folder / "acme_opt-1.9-py3-none-any.whl").write_bytes(b"no archive")
    store = ReleaseStore(tmp_path / "kept")
    with pytest.raises(NotInstallable, match="acme_opt"), store.using("acme-opt", "1.9", wheels):
        pass
    assert names(store.root) == set()


def test_a_full_disk_is_told_and_leaves_nothing(wheels: PackageIndex, tmp_path: Path) -> None:
    assert wheels.folder is not None
    big = library("1.9", faulty=False) + f"# {'x' * 200_000}"
    write_wheel(wheels.folder, "1.9", big)
    store = ReleaseStore(tmp_path / "kept")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(InfrastructureError, match="no space left; make room"):
            with store.using("acme-opt", "1.9", wheels):
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert names(store.root) == set()


def test_a_killed_installation_leaves_nothing_for_long(
    wheels: PackageIndex, tmp_path: Path
) -> None:
    code = (
        "import pathlib, sys, time; from optvet.engine.environment import releases as r\n"
        "r.install = lambda *given: (given[2].mkdir(), print('half', flush=True), time.sleep(60))\n"
        "index = r.PackageIndex(pathlib.Path(sys.argv[1]))\n"
        "with r.ReleaseStore(pathlib.Path(sys.argv[2])).using('acme-opt', '1.9', index): pass\n"
    )
    root = tmp_path / "kept"
    command = [sys.executable, "-c", code, str(wheels.folder), str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        assert len(names(root)) == 1
        process.kill()
    store = ReleaseStore(root)
    assert store.kept() == []
    with store.using("acme-opt", "1.9", wheels) as folder:
        assert names(root) == {folder.name}


def test_a_command_ends_with_the_process_that_called_it() -> None:
    code = (
        "import pathlib, sys; from optvet.engine.environment.child_process import run_below\n"
        "run_below(['sleep', '61.25'], {'PATH': '/usr/bin:/bin'})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 20
    while not _sleepers() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _sleepers()
    process.kill()
    process.wait()
    while _sleepers() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _sleepers()


def _sleepers() -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if file.read_bytes() == b"sleep\x0061.25\x00":
                found.append(file.parent.name)
        except OSError:
            continue
    return found


def test_install_names_what_pip_says(wheels: PackageIndex, tmp_path: Path) -> None:
    with pytest.raises(NotInstallable, match="No matching distribution"):
        install("acme-opt", "9.9", tmp_path / "nowhere", wheels)


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EROFS])
def test_a_fault_of_the_machine_makes_no_release_unfit(
    wheels: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    words = f"ERROR: Could not install packages due to an OSError: {OSError(number, 'why', 'f')}"
    monkeypatch.setattr(package_index, "_pip", lambda *_: ChildEnd(1, "", words))
    with pytest.raises(InfrastructureError, match=rf"cannot be installed: .*\[Errno {number}\]"):
        install("acme-opt", "1.0", tmp_path / "kept", wheels)


@pytest.mark.parametrize("whom", ["$$", "$PPID"])
def test_a_signal_is_told_whether_it_ends_the_command_or_its_guard(whom: str) -> None:
    killed = run_below(["sh", "-c", f"kill -KILL {whom}; sleep 1"], {"PATH": "/usr/bin:/bin"})
    assert killed.status == 128 + signal.SIGKILL
