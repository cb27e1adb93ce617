"""Pipes, devices, endless and searched-for files where a file is expected: refused in time."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.assault.harness import LONG, SLACK_S, Place
from tests.assault.test_evil_models import is_contained

from optvet.engine.campaign.store import DATABASE, open_store

pytestmark = pytest.mark.long


STORED = Path(__file__).parents[1] / "engine" / "campaign" / "store-1.sql"
ENDLESS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "sparse": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 43),
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "place")
    yield made
    made.end_orphans()
    shutil.rmtree(made.root, ignore_errors=True)


def toml(place: Place, name: str, text: str) -> Path:
    file = place.root / f"{name}.toml"
    file.write_text(text)
    return file


def commands(place: Place, evil: Path) -> list[list[object]]:
    """Every way to name a file, with ``evil`` as that file."""
    model = place.model
    ask = ["vet", model, "--limit", 1, "--no-cache"]
    return [
        ["repair", model, "--apply", evil, "--out", "out"],
        ["repair", evil, "--apply", evil, "--out", "out"],
        ["campaign", "run", evil],
        ["campaign", "run", toml(place, "models", f'models = ["{evil}"]'), "--dry-run"],
        ["campaign", "run", toml(place, "known", f'models = ["{model}"]\nbaseline = "{evil}"')],
        ["campaign", "run", toml(place, "good", f'models = ["{model}"]'), "--baseline", evil],
        ["vet", evil],
        ["convert", model, "--via", "onnx_version", "--converted", evil],
        [*ask, "--dataset", f"files:{evil}"],
        [*ask, "--dataset", f"images:{evil}"],
        [*ask, "--dataset", f"audio:{evil}"],
        [*ask, "--dataset", f"text:{evil}"],
        ["replay", evil],
        ["campaign", "show", evil],
        ["models", "info", evil],
    ]


@pytest.mark.parametrize(
    "name",
    list(ENDLESS) if LONG else ["pipe", "device"],
)
def test_what_is_no_file_is_refused_by_every_reader(place: Place, name: str) -> None:
    evil = place.root / "evil.onnx"
    ENDLESS[name](evil)
    tried = commands(place, evil)
    for command, ran in zip(tried, place.run_together(*tried, timeout_s=300), strict=True):
        # A dry run lists models and opens none.
        expected = (0, 2) if "--dry-run" in command else (1, 2, 5)
        assert ran.code in expected, (command, ran.said[-500:])
        assert is_contained(ran) == [], (command, ran.said[-500:])
        assert ran.seconds < SLACK_S, command
    assert place.orphans() == {}


@pytest.mark.parametrize(
    "pattern",
    [
        "/proc/**/*.onnx",
        "/sys/**/*.onnx",
        "/**/*.onnx",
    ],
)
def test_a_pattern_over_everything_ends_and_says_so(place: Place, pattern: str) -> None:
    files = [toml(place, "vets", f'models = ["{pattern}"]')]
    files.append(toml(place, "conversions", f'models = ["{pattern}"]\nvia = ["onnx_version"]'))
    commands = [["campaign", "run", file, "--dry-run"] for file in files]
    for ran in place.run_together(*commands, timeout_s=120):
        assert "Traceback" not in ran.said, ran.said
        if not pattern.startswith("/**"):  # how much the machine holds, nobody knows
            assert ran.code == 2, ran.said
            assert "a folder of the kernel" in ran.err, ran.err


def test_a_hostile_store_is_told_in_every_command(place: Place) -> None:
    stores: dict[str, Callable[[Path], object]] = {
        "object": lambda s: (s / DATABASE).write_text("{}"),
        "bomb": lambda s: _change(s, document=zlib.compress(bytes(1 << 30))),
        "json": lambda s: _change(s, document=zlib.compress(b'{"a":' * 100_000)),
        "factory": lambda s: _change(
            s, state="queued", document=None, request=json.dumps({"model": "m", "trust": True})
        ),
    }
    tried: list[list[object]] = []
    for name, damage in stores.items():
        store = place.root / name
        store.mkdir()
        with closing(sqlite3.connect(store / DATABASE)) as database:
            database.executescript(STORED.read_text())
        open_store(store).close()
        damage(store)
        tried += [["campaign", "show", store], ["campaign", "resume", store]]
        tried += [["report", store], ["campaign", "repair", store]]
    for command, ran in zip(tried, place.run_together(*tried, timeout_s=300), strict=True):
        assert is_contained(ran) == [], (command, ran.said[-500:])
        assert ran.code in (0, 1, 2), (command, ran.said[-500:])


def _change(store: Path, **columns: object) -> None:
    with closing(sqlite3.connect(store / DATABASE, isolation_level=None)) as database:
        for name, value in columns.items():
            database.execute(f"UPDATE jobs SET {name} = ?", (value,))


def test_a_name_that_no_file_can_have_is_refused(place: Place) -> None:
    name = "a" * 300 + ".onnx"
    chain = toml(place, "chain", f'models = ["{name}"]\nvia = ["onnx_version"]')
    several = toml(place, "several", f'models = ["{name}*"]')
    tried = [
        ("vet", name),
        ("convert", name, "--via", "onnx_version"),
        ("compare", name, name),
        ("replay", name),
        ("campaign", "init", name),
        ("campaign", "run", chain),
        ("campaign", "run", several),
    ]
    for command, ran in zip(tried, place.run_together(*tried, timeout_s=300), strict=True):
        assert (ran.code, is_contained(ran)) == (2, []), command
