"""Datasets, caches and bundles that are damaged, forged, or made to do harm."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import sqlite3
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.assault.evil import PLAIN_FAULT
from tests.assault.harness import LONG, SLACK_S, Place, answer, some
from tests.assault.test_evil_models import is_contained

pytestmark = pytest.mark.long
LIMITS = ("--timeout", 5, "--memory", "256M", "--limit", 2)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "place")
    yield made
    made.end_orphans()
    shutil.rmtree(made.root, ignore_errors=True)


# --- datasets ------------------------------------------------------------------------------------


class Payload:
    """Makes a file where it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.target),)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def npz(path: Path, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def header(shape: str, descr: str = "'<f4'") -> bytes:
    """A .npy that announces a shape and has no data."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text


GOOD = npy(np.ones((4, 8), np.float32))


@cache
def bombed() -> bytes:
    """Three megabytes that unpack to 600."""
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w", force_zip64=True) as member,
    ):
        member.write(header("(18750000, 8)"))
        for _ in range(600):
            member.write(bytes(1 << 20))
    return packed.getvalue()


def bomb(path: Path) -> None:
    path.write_bytes(bombed())


def long_header(path: Path) -> None:
    text = b" " * (64 << 20)
    npz(path, **{"x.npy": b"\x93NUMPY\x02\0" + len(text).to_bytes(4, "little") + text})


def nested_header(path: Path) -> None:
    npz(path, **{"x.npy": header("(" * 5000 + ")" * 5000)})


def pickled(path: Path) -> None:
    target = path.with_name("payload-ran")
    npz(path, **{"x.npy": npy(np.array([Payload(target)], object))})


def half(path: Path) -> None:
    npz(path, **{"x.npy": GOOD})
    path.write_bytes(path.read_bytes()[:90])


DATASETS: dict[str, Callable[[Path], object]] = {
    "bomb": bomb,
    "long header": long_header,
    "nested header": nested_header,
    "pickled objects": pickled,
    "announced": lambda p: npz(p, **{"x.npy": header("(4611686018427387904, 8)")}),
    "negative": lambda p: npz(p, **{"x.npy": header("(-4, 8)")}),
    "odd type": lambda p: npz(p, **{"x.npy": header("(4, 8)", "[('a', '<f4', (99999999,))]")}),
    "texts": lambda p: npz(p, **{"x.npy": npy(np.array([["text"] * 8] * 4))}),
    "complex": lambda p: npz(p, **{"x.npy": npy(np.ones((4, 8), complex))}),
    "dates": lambda p: npz(p, **{"x.npy": npy(np.zeros((4, 8), "M8[s]"))}),
    "odd names": lambda p: npz(
        p, **{"../../x.npy": GOOD, "nan.npy": GOOD, "\x1b[2J\x07.npy": GOOD}
    ),
    "many names": lambda p: npz(p, **{f"{'n' * 200}{i}.npy": GOOD for i in range(3000)}),
    "half": lambda p: half(p),
    "noise": lambda p: p.write_bytes(random.Random(0).randbytes(9999)),
    "empty": lambda p: p.touch(),
    "folder": lambda p: p.mkdir(),
    "pipe": lambda p: os.mkfifo(p),
    "endless": lambda p: p.symlink_to("/dev/zero"),
    "loop": lambda p: p.symlink_to(p),
}


def test_evil_data_is_refused_within_the_limits(place: Place) -> None:
    names = some(list(DATASETS), 8)
    commands: list[list[object]] = []
    for number, name in enumerate(names):
        path = place.root / f"data-{number}.npz"
        DATASETS[name](path)
        commands.append(["vet", place.model, *LIMITS, "--dataset", f"files:{path}", "--no-cache"])
    answers = place.run_together(*commands, timeout_s=5 * len(names) + 4 * SLACK_S)
    for name, ran in zip(names, answers, strict=True):
        assert ran.code == 2, (name, ran.said)
        assert ran.err.startswith("error: "), (name, ran.err)
        assert len(ran.said) < 4000, name
        assert not any(c in ran.said for c in "\x1b\x07\0"), name
        assert ran.seconds < 5 + SLACK_S, name
    assert not (place.root / "payload-ran").exists()
    assert place.orphans() == {}


def test_a_bomb_does_not_unfold_beyond_the_limit(place: Place) -> None:
    path = place.root / "data.npz"
    bomb(path)
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:]); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    import sys

    command = ["vet", place.model, *LIMITS, "--dataset", f"files:{path}", "--no-cache", "-q"]
    words = [sys.executable, "-c", code, sys.executable, "-m", "optvet_start", *map(str, command)]
    done = subprocess.run(
        words, capture_output=True, text=True, env=place.environment, cwd=place.work, timeout=120
    )
    peak_bytes = int(done.stdout.split()[-1]) << 10
    # What the libraries take, and the limit.
    assert peak_bytes < (250 << 20) + (256 << 20)


# --- caches --------------------------------------------------------------------------------------


def vet(place: Place, to: Path) -> list[object]:
    pipeline = f"keep_a,{PLAIN_FAULT},keep_b"
    words = ["vet", place.model, "--optimizer", "evil", "--pipeline", pipeline]
    return [*words, "--limit", 2, "--json", to]


def files_of(cache: Path) -> list[Path]:
    return sorted(p for p in cache.rglob("*") if p.is_file())


def cut(cache: Path) -> None:
    for file in files_of(cache):
        os.truncate(file, file.stat().st_size // 2)


def flip(cache: Path) -> None:
    for file in files_of(cache):
        data = bytearray(file.read_bytes())
        for i in range(0, len(data), 500):
            data[i] ^= 0x10
        file.write_bytes(data)


def forge(cache: Path) -> None:
    """Other values, with digests that fit them."""
    chance = random.Random(0)
    for file in files_of(cache):
        if not file.read_bytes().startswith(b"SQLite format 3"):
            continue
        with sqlite3.connect(file) as database:
            for (key,) in database.execute("SELECT key FROM entries").fetchall():
                value = chance.choice([b"", b"null", b"{}", b"[" * 9000, b'{"digest": 7}', b"\xff"])
                digest = hashlib.sha256(value).digest()
                database.execute(
                    "UPDATE entries SET value = ?, digest = ?, size = ? WHERE key = ?",
                    (value, digest, len(value), key),
                )
        database.close()


def turn_files_into_folders(cache: Path) -> None:
    for file in files_of(cache):
        file.unlink()
        file.mkdir()


def turn_into_a_file(cache: Path) -> None:
    shutil.rmtree(cache)
    cache.write_text("here was a cache")


def point_nowhere(cache: Path) -> None:
    shutil.rmtree(cache)
    cache.symlink_to("/nowhere/at/all")


def protect(cache: Path) -> None:
    for path in [cache, *cache.rglob("*")]:
        path.chmod(0o500 if path.is_dir() else 0o400)


CACHES = {
    "cut": cut,
    "flip": flip,
    "forge": forge,
    "folders": turn_files_into_folders,
    "file": turn_into_a_file,
    "nowhere": point_nowhere,
    "read-only": protect,
}


def test_a_damaged_cache_changes_no_answer(place: Place) -> None:
    before = place.root / "before.json"
    (first,) = place.run_together(vet(place, before), timeout_s=120)
    assert first.code == 1, first.said
    names = some(list(CACHES), 3)
    commands: list[list[object]] = []
    for name in names:
        cache = place.root / f"cache {name}"
        shutil.copytree(place.cache, cache)
        CACHES[name](cache)
        command = [*vet(place, place.root / f"{name}.json"), "--cache-dir", cache]
        commands += [command, command]
    for ran in place.run_together(*commands, timeout_s=180 * len(names)):
        assert is_contained(ran) == []
        assert ran.code == 1, ran.said
    for name in names:
        assert answer(place.root / f"{name}.json") == answer(before), name


# --- bundles -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = Place(tmp_path_factory.mktemp("bundle") / "place")
    (ran,) = place.run_together([*vet(place, place.root / "a"), "--out", "out"], timeout_s=180)
    assert ran.code == 1, ran.said
    (made,) = (place.work / "out").iterdir()
    return made


def record(bundle: Path, change: Callable[[Any], object]) -> None:
    path = bundle / "finding.json"
    data = json.loads(path.read_text())
    changed = change(data)
    path.write_text(json.dumps(data if changed is None else changed))


def paths_in(data: Any) -> Any:
    """Every text of the record becomes a path that leads elsewhere."""
    if isinstance(data, dict):
        return {k: paths_in(v) if k != "schema" else v for k, v in data.items()}
    if isinstance(data, list):
        return [paths_in(v) for v in data]
    return "../../../../etc/passwd" if isinstance(data, str) else data


def payload(bundle: Path) -> None:
    (bundle / "payload.py").write_text(
        f"import os\nos.mkdir({str(bundle / 'payload-ran')!r})\ndef f(*a, **k): pass\n"
    )

    def change(data: Any) -> None:
        for where in (data, data.get("optimizer")):
            if isinstance(where, dict):
                if "optimizer" in where and isinstance(where["optimizer"], str):
                    where["optimizer"] = "tvm"
                for key in [k for k in where if "options" in k]:
                    where[key] = {"extra_passes": [f"x={bundle}/payload.py:f"]}
                if "name" in where:
                    where["name"] = "tvm"

    record(bundle, change)


def replace_all(bundle: Path, put: Callable[[Path], object]) -> None:
    for file in [f for f in bundle.rglob("*") if f.is_file()]:
        if file.suffix in (".onnx", ".npz", ".pb"):
            file.unlink()
            put(file)


def link_record(bundle: Path) -> None:
    (bundle / "finding.json").unlink()
    (bundle / "finding.json").symlink_to("/dev/zero")


BUNDLES: dict[str, Callable[[Path], object]] = {
    "payload": payload,
    "paths": lambda b: record(b, paths_in),
    "list": lambda b: record(b, lambda d: [d]),
    "empty": lambda b: record(b, lambda d: d.clear()),
    "numbers": lambda b: record(b, lambda d: dict.fromkeys(d, 7)),
    "deep": lambda b: (b / "finding.json").write_text('{"a":' * 90_000 + "1" + "}" * 90_000),
    "deep lists": lambda b: (b / "finding.json").write_text("[" * 90_000 + "]" * 90_000),
    "huge number": lambda b: (b / "finding.json").write_text('{"schema": ' + "9" * 9000 + "}"),
    "noise": lambda b: (b / "finding.json").write_bytes(random.Random(1).randbytes(5000)),
    "link": lambda b: link_record(b),
    "bomb": lambda b: replace_all(b, bomb),
    "links": lambda b: replace_all(b, lambda f: f.symlink_to("/etc/passwd")),
    "devices": lambda b: replace_all(b, lambda f: f.symlink_to("/dev/zero")),
    "pipes": lambda b: replace_all(b, os.mkfifo),
    "folders": lambda b: replace_all(b, Path.mkdir),
    "nothing": lambda b: replace_all(b, lambda f: None),
}


def test_an_evil_bundle_is_refused_and_runs_nothing(place: Place, bundle: Path) -> None:
    names = some(list(BUNDLES), 6)
    bundles = [place.root / f"bundle-{number}" for number in range(len(names))]
    for name, own in zip(names, bundles, strict=True):
        shutil.copytree(bundle, own)
        BUNDLES[name](own)
    commands = [["replay", own] for own in bundles]
    answers = place.run_together(*commands, timeout_s=5 * len(names) + 4 * SLACK_S)
    for name, own, ran in zip(names, bundles, answers, strict=True):
        assert is_contained(ran) == [], name
        assert ran.code in (2, 5), (name, ran.said)
        assert len(ran.said) < 4000, name
        assert not (own / "payload-ran").exists(), name
    assert place.orphans() == {}


def test_a_bundle_with_a_flipped_byte_anywhere_is_contained(place: Place, bundle: Path) -> None:
    chance = random.Random(7)
    commands: list[list[object]] = []
    for number in range(40 if LONG else 4):
        own = place.root / f"bundle-{number}"
        shutil.copytree(bundle, own)
        file = chance.choice([own / "finding.json", *own.glob("*.onnx"), *own.rglob("*.npz")])
        data = bytearray(file.read_bytes())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        file.write_bytes(data)
        commands.append(["replay", own])
    answers = place.run_together(*commands, timeout_s=600)
    assert [is_contained(ran) for ran in answers] == [[]] * len(commands)
    assert place.orphans() == {}
