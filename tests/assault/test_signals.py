"""Signals and kills at random moments, many processes at once, and a disk that is full."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.assault.evil import PLAIN_FAULT
from tests.assault.harness import LONG, OWN_FAULT, Place, Ran, answer

pytestmark = pytest.mark.long
PATIENCE_S = 180.0
TIMES = 40 if LONG else 3
PIPELINE = ",".join(["keep_a", "slow", "keep_b", PLAIN_FAULT, "slow", "keep_c"])


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "place")
    (made.work / "out").mkdir()
    yield made
    made.end_orphans()


def vet(place: Place, to: Path) -> list[object]:
    words = ["vet", place.model, "--optimizer", "evil", "--pipeline", PIPELINE, "--limit", 2]
    return [*words, "--json", to]


def finished(process: subprocess.Popen[str]) -> Ran:
    started = time.monotonic()
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired as error:
        process.kill()
        raise AssertionError("the command hangs") from error
    return Ran(process.returncode, out, err, time.monotonic() - started)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], float]:
    """The answer, and how long it takes."""
    place = Place(tmp_path_factory.mktemp("undisturbed") / "place")
    target = place.work / "answer.json"
    ran = place.run(*vet(place, target), timeout_s=PATIENCE_S)
    assert ran.code == 1, ran.said
    told = without_place(answer(target))
    assert [f["culprit"] for f in told["findings"]] == [[PLAIN_FAULT]]
    return told, ran.seconds


def without_place(told: dict[str, Any]) -> dict[str, Any]:
    return told | {"model": told["model"] | {"source": ""}}


@pytest.mark.parametrize("number", range(TIMES))
def test_a_signal_at_any_moment_loses_nothing(
    place: Place, undisturbed: tuple[dict[str, Any], float], number: int
) -> None:
    told, seconds = undisturbed
    chance = random.Random(number)
    sent = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)[number % 3]
    target = place.work / "out" / "answer.json"
    process = place.start(*vet(place, target))
    time.sleep(chance.uniform(0.02, 1.1) * seconds)
    process.send_signal(sent)
    ran = finished(process)
    assert place.orphans() == {}
    # Before the interpreter has got to optvet's own code, the signal is Python's.
    expected = {signal.SIGINT: (130, -2), signal.SIGTERM: (143, -15), signal.SIGKILL: (-9,)}
    assert ran.code in (*expected[sent], 1), ran.said
    if ran.code in (130, 143):
        assert "Traceback" not in ran.err, ran.err
    if target.exists():
        assert without_place(answer(target)) == told
    assert [p.name for p in (place.work / "out").iterdir()] in ([], ["answer.json"])
    again = place.run(*vet(place, target), timeout_s=PATIENCE_S)
    assert again.code == 1, again.said
    assert without_place(answer(target)) == told
    assert place.orphans() == {}
    if sent != signal.SIGKILL:
        assert place.litter() == []


@pytest.fixture
def heeded() -> Iterator[None]:
    """What a shell lets its background ignore, and these tests inherit, is heeded for a while."""
    before = {s: signal.getsignal(s) for s in (signal.SIGHUP, signal.SIGQUIT)}
    for each in before:
        signal.signal(each, signal.SIG_DFL)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("name", ["TERM", "HUP", "QUIT", "ALRM", "USR1", "USR2", "XCPU", "PROF"])
def test_whatever_ends_a_command_leaves_no_worker_and_no_folder(
    place: Place, name: str, heeded: None
) -> None:
    sent = signal.Signals[f"SIG{name}"]
    process = place.start(*vet(place, place.work / "answer.json"))
    wait_for_workers(place)
    process.send_signal(sent)
    ran = finished(process)
    assert ran.code == 128 + sent
    assert "interrupted; what was computed is kept" in " ".join(ran.err.split())
    assert "Traceback" not in ran.err
    assert place.orphans() == {}
    assert place.litter() == []


def test_a_signal_that_is_ignored_stays_ignored(place: Place) -> None:
    target = place.work / "answer.json"
    words = [sys.executable, "-m", "optvet_start", *map(str, vet(place, target))]
    # As nohup does.
    process = subprocess.Popen(
        ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *words],
        cwd=place.work,
        env=place.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_workers(place)
    process.send_signal(signal.SIGHUP)
    assert finished(process).code == 1
    assert answer(target)["verdict"] == "faulty"


def wait_for_workers(place: Place) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(place.living()) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.mark.parametrize("number", range(TIMES))
def test_killed_workers_and_servers_change_no_answer(
    place: Place, undisturbed: tuple[dict[str, Any], float], number: int
) -> None:
    told, seconds = undisturbed
    chance = random.Random(1000 + number)
    target = place.work / "out" / "answer.json"
    process = place.start(*vet(place, target))
    time.sleep(chance.uniform(0.1, 0.9) * seconds)
    # Whoever is there at that moment; with an odd number the server, which is the oldest.
    others = sorted(set(place.living()) - {process.pid})
    if others:
        victim = others[0] if number % 2 else chance.choice(others)
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            pass
    ran = finished(process)
    assert place.orphans() == {}
    assert ran.code == 1, ran.said
    assert OWN_FAULT not in ran.said
    assert without_place(answer(target)) == told


@pytest.mark.parametrize("number", range(10 if LONG else 1))
def test_four_processes_on_a_cold_cache_agree(
    place: Place, undisturbed: tuple[dict[str, Any], float], number: int
) -> None:
    told, _ = undisturbed
    targets = [place.work / "out" / f"{i}.json" for i in range(4)]
    processes = [place.start(*vet(place, target)) for target in targets]
    answers = [finished(process) for process in processes]
    assert [ran.code for ran in answers] == [1] * 4, [ran.said for ran in answers]
    assert [without_place(answer(target)) for target in targets] == [told] * 4
    assert place.orphans() == {}
    assert place.litter() == []


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of its own that has 16 KiB left."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "optvet-assault", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        (folder / "filling").write_bytes(bytes(240 << 10))
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_under_the_cache_changes_no_answer(
    place: Place, undisturbed: tuple[dict[str, Any], float], full: Path
) -> None:
    target = place.work / "answer.json"
    ran = place.run(*vet(place, target), "--cache-dir", full, timeout_s=PATIENCE_S)
    assert ran.code == 1, ran.said
    assert without_place(answer(target)) == undisturbed[0]
    assert OWN_FAULT not in ran.said


def test_a_full_disk_under_temporary_files_changes_no_answer(
    place: Place, undisturbed: tuple[dict[str, Any], float], full: Path
) -> None:
    place.tmp = full
    target = place.work / "answer.json"
    ran = place.run(*vet(place, target), timeout_s=PATIENCE_S)
    assert ran.code == 1, ran.said
    assert without_place(answer(target)) == undisturbed[0]


def test_an_answer_that_finds_no_room_is_told_and_not_half_written(
    place: Place, full: Path
) -> None:
    (full / "filling").write_bytes(bytes(256 << 10))
    ran = place.run(*vet(place, full / "answer.json"), timeout_s=PATIENCE_S)
    assert ran.code == 3, ran.said
    assert "make room" in ran.err
    assert "Traceback" not in ran.err
    assert [p.name for p in full.iterdir()] == ["filling"]


def test_a_bundle_that_finds_no_room_is_told_and_not_half_written(place: Place, full: Path) -> None:
    command = [*vet(place, place.work / "answer.json"), "--out", full / "out"]
    ran = place.run(*command, timeout_s=PATIENCE_S)
    assert ran.code == 3, ran.said
    assert OWN_FAULT not in ran.said
    assert "Traceback" not in ran.err
    left = [p for p in full.rglob("finding.json")]
    assert all(json.loads(p.read_text()) for p in left)


def test_a_store_on_a_full_disk_is_called_that_and_can_still_be_shown(
    place: Place, full: Path
) -> None:
    (place.work / "c.toml").write_text(
        'models = ["zoo:digits-cnn"]\noptimizers = ["onnxoptimizer"]\n[vet]\nlimit = 1\n'
    )
    first = place.run("campaign", "run", "c.toml", "--quiet", timeout_s=PATIENCE_S)
    assert first.code == 0, first.said
    (full / "filling").unlink()
    shutil.copytree(place.work / "c.store", full / "c.store")
    with (full / "filling").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 10))
    (place.work / "c.toml").write_text((place.work / "c.toml").read_text().replace("1", "2"))
    ran = place.run("campaign", "run", "c.toml", "--store", full / "c.store", timeout_s=PATIENCE_S)
    assert ran.code == 3, ran.said
    assert "full; make room, then continue" in ran.err
    shown = place.run("campaign", "show", full / "c.store", timeout_s=PATIENCE_S)
    assert shown.code == 0, shown.said
