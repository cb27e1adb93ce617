import contextlib
import enum
import errno
import hashlib
import os
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pydantic import BaseModel
from tests.databases import ENDLESS, hot_journal

from optvet.engine.work.cache.array_bytes import dump_arrays, load_arrays
from optvet.engine.work.cache.cache_key import key
from optvet.engine.work.cache.disk import Cache, cache_root
from optvet.spec.foreign import open_file

SMALL = b"small"
LARGE = bytes(range(256)) * 1024  # 256 KiB: a file
VALUES = pytest.mark.parametrize("value", [b"", SMALL, LARGE], ids=["empty", "small", "large"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def blobs(root: Path) -> list[Path]:
    return sorted((root / "blobs").iterdir())


def index(root: Path) -> Path:
    (path,) = root.glob("index-*.sqlite3")
    return path


def run(code: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    return output


@VALUES
def test_a_value_comes_back_in_another_process_of_the_same_root(root: Path, value: bytes) -> None:
    with Cache(root) as cache:
        cache.put("k", "trial", value)
        assert cache.get("k") == value
    with Cache(root) as again:
        assert again.get("k") == value
        assert again.get("other") is None


def test_without_a_root_every_get_misses() -> None:
    with Cache(None) as cache:
        cache.put("k", "trial", SMALL)
        assert cache.get("k") is None
        assert cache.info().path is None
        assert cache.info().entries == cache.clear() == 0
        assert cache.degraded is None


@VALUES
def test_put_replaces_and_leaves_no_file_behind(root: Path, value: bytes) -> None:
    with Cache(root) as cache:
        cache.put("k", "trial", LARGE + b"old")
        cache.put("k", "trial", value)
        assert cache.get("k") == value
        assert len(blobs(root)) == (1 if value == LARGE else 0)


def test_info_counts_by_kind_and_clear_tells_what_it_freed(root: Path) -> None:
    with Cache(root) as cache:
        cache.put("a", "trial", b"12")
        cache.put("b", "trial", b"345")
        cache.put("c", "artifact", LARGE)
        info = cache.info()
        assert info.path == root
        assert {name: (k.entries, k.size_bytes) for name, k in info.kinds.items()} == {
            "artifact": (1, len(LARGE)),
            "trial": (2, 5),
        }
        assert cache.clear() == len(LARGE) + 5
        assert cache.info().entries == 0
        assert blobs(root) == []
        assert cache.get("a") is None


def test_a_new_root_is_for_the_user_alone(root: Path) -> None:
    with Cache(root):
        assert root.stat().st_mode & 0o777 == 0o700


def test_the_cache_is_the_users_or_the_one_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPTVET_CACHE", raising=False)
    assert cache_root().name == "optvet"
    monkeypatch.setenv("OPTVET_CACHE", "elsewhere")
    assert cache_root() == Path("elsewhere")


def test_what_was_unused_for_longest_is_dropped_first(root: Path) -> None:
    now = 0.0
    with Cache(root, max_bytes=10 * len(LARGE), clock=lambda: now) as cache:
        for number in range(10):
            now += 1000.0
            cache.put(f"k{number}", "trial", LARGE)
        now += 1000.0
        assert cache.get("k0") == LARGE
        cache.put("new", "trial", LARGE)
        kept = [name for name in [*(f"k{n}" for n in range(10)), "new"] if cache.get(name)]
        assert kept == ["k0", *(f"k{n}" for n in range(3, 10)), "new"]
        assert len(blobs(root)) == len(kept)


def test_a_value_larger_than_the_bound_is_not_stored(root: Path) -> None:
    with Cache(root, max_bytes=10) as cache:
        cache.put("k", "trial", b"x" * 11)
        assert cache.get("k") is None


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_a_damaged_file_is_a_miss_and_is_replaced(root: Path, damage: str) -> None:
    with Cache(root) as cache:
        cache.put("k", "trial", LARGE)
        (blob,) = blobs(root)
        if damage == "missing":
            blob.unlink()
        elif damage == "truncated":
            os.truncate(blob, 1000)
        else:
            blob.write_bytes(b"!" + LARGE[1:])
        assert cache.get("k") is None
        assert cache.info().entries == 0
        cache.put("k", "trial", LARGE)
        assert cache.get("k") == LARGE


def test_a_flipped_bit_of_an_inline_value_is_a_miss(root: Path) -> None:
    with Cache(root) as cache:
        cache.put("k", "trial", SMALL)
    with sqlite3.connect(index(root)) as database:
        database.execute("UPDATE entries SET value = ?", (b"smalk",))
    database.close()
    with Cache(root) as cache:
        assert cache.get("k") is None
        cache.put("k", "trial", SMALL)
        assert cache.get("k") == SMALL


def test_the_value_of_another_key_is_a_miss(root: Path) -> None:
    with Cache(root) as cache:
        cache.put("k", "trial", SMALL)
        cache.put("other", "trial", b"x")
    with sqlite3.connect(index(root)) as database:
        swap = {"k": "swapped", "other": "k", "swapped": "other"}
        for old, new in swap.items():
            database.execute("UPDATE entries SET key = ? WHERE key = ?", (new, old))
    database.close()
    with Cache(root) as cache:
        assert (cache.get("k"), cache.get("other")) == (None, None)


@pytest.mark.parametrize("damage", ["garbage", "truncated", "empty", "pages", "foreign"])
def test_a_damaged_database_is_replaced(root: Path, damage: str) -> None:
    with Cache(root) as cache:
        for number in range(100):
            cache.put(f"k{number}", "trial", b"x" * 1000)
    path = index(root)
    whole = path.read_bytes()
    if damage == "foreign":
        path.unlink()
        database = sqlite3.connect(path)
        database.execute("CREATE TABLE entries (something TEXT)")
        database.close()
    else:
        path.write_bytes(
            {
                "garbage": b"not a database" * 1000,
                "truncated": whole[: len(whole) // 2],
                "empty": b"",
                "pages": whole[:4096] + b"\xff" * (len(whole) - 4096),
            }[damage]
        )
    with Cache(root) as cache:
        for number in range(100):
            assert cache.get(f"k{number}") in (None, b"x" * 1000)
            cache.put(f"k{number}", "trial", b"y")
        assert cache.degraded is None
    with Cache(root) as cache:
        assert [cache.get(f"k{number}") for number in range(100)] == [b"y"] * 100


def test_a_foreign_journal_deletes_nothing(root: Path, tmp_path: Path) -> None:
    with Cache(root) as cache:
        cache.put("k", "trial", SMALL)
    mine = tmp_path / "mine"
    mine.write_text("mine")
    hot_journal(index(root), mine)
    with Cache(root) as cache:
        assert cache.get("k") is None  # All of it is foreign now.
        assert cache.info().entries == 0
        cache.put("k", "trial", SMALL)
        assert (cache.degraded, cache.get("k")) == (None, SMALL)
    assert mine.read_text() == "mine"
    assert len(list(root.glob("index-*"))) == 1


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE entries", ENDLESS.format("entries")],
        ["CREATE TRIGGER t AFTER INSERT ON entries BEGIN DELETE FROM entries; END"],
        ["INSERT INTO entries VALUES ('a', x'00', 'b', x'00', NULL, NULL, 'c')"],
    ],
    ids=["an endless view", "a trigger", "other types"],
)
def test_what_others_made_in_the_database_is_not_run(root: Path, statements: list[str]) -> None:
    with Cache(root) as cache:
        cache.put("k", "trial", SMALL)
    with contextlib.closing(sqlite3.connect(index(root))) as database, database:
        for statement in statements:
            database.execute(statement)
    with Cache(root) as cache:
        cache.put("new", "trial", SMALL)
        assert (cache.degraded, cache.get("new")) == (None, SMALL)
        assert cache.info().kinds["trial"].entries in (1, 2)


def test_a_database_damaged_while_open_never_raises(root: Path) -> None:
    with Cache(root) as cache:
        for number in range(100):
            cache.put(f"k{number}", "trial", b"x" * 1000)
        assert cache._database is not None
        cache._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = index(root).stat().st_size
        with open(index(root), "r+b") as file:
            file.write(b"\xff" * size)
        with Cache(root) as other:
            other.put("k0", "trial", b"z")
            assert other.get("k0") == b"z"
        for number in range(100):
            assert cache.get(f"k{number}") in (None, b"x" * 1000, b"z")
            cache.put(f"k{number}", "trial", b"y")
        assert cache.degraded is None


WRITER = """
import sys
from pathlib import Path
from optvet.engine.work.cache.disk import Cache
with Cache(Path(sys.argv[1]), max_bytes=20 << 20) as cache:
    for number in range(150):
        size = (number % 4) * 40_000
        text = f"{number % 40}-{sys.argv[2]}-".encode()
        cache.put(f"k{number % 40}", "trial", text + bytes(size))
        found = cache.get(f"k{(number * 7) % 40}")
        assert found is None or found.startswith(b"%d-" % ((number * 7) % 40)), found[:20]
    assert cache.degraded is None, cache.degraded
"""


def test_writers_at_once_neither_mix_their_values_nor_wait_for_ever(root: Path) -> None:
    for process in [run(WRITER, root, name) for name in range(4)]:
        finish(process)
    with Cache(root) as cache:
        for number in range(40):
            value = cache.get(f"k{number}")
            assert value is None or value.startswith(b"%d-" % number)
    database = sqlite3.connect(index(root))
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    named = {f for (f,) in database.execute("SELECT file FROM entries WHERE file NOT NULL")}
    database.close()
    assert {path.name for path in blobs(root)} >= named


FULL = """
import resource, sys
from pathlib import Path
from optvet.engine.work.cache.disk import Cache
root = Path(sys.argv[1])
with Cache(root) as cache:
    cache.put("before", "trial", b"fine")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    size = int(sys.argv[2])
    for number in range(200):
        cache.put(f"k{number}", "trial", bytes(size))
    assert "no longer written" in cache.degraded, cache.degraded
    assert cache.get("before") == b"fine"
    print(cache.degraded)
"""


@pytest.mark.parametrize("size", [20_000, 200_000], ids=["database", "file"])
def test_a_full_disk_stops_the_writing_and_nothing_else(root: Path, size: int) -> None:
    output = finish(run(FULL, root, size))
    assert "no longer written" in output
    assert [path for path in blobs(root) if path.stat().st_size != size] == []
    with Cache(root) as cache:
        assert cache.get("before") == b"fine"
        assert cache.degraded is None


def test_an_index_that_the_machine_cannot_open_is_kept(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]

    def fail_once(path: Path) -> BinaryIO:
        if failures:
            raise failures.pop()
        return open_file(path)

    with Cache(root) as cache:
        cache.put("before", "trial", b"fine")
    monkeypatch.setattr("optvet.engine.database.open_file", fail_once)
    with Cache(root) as cache:
        assert cache.degraded is not None
    with Cache(root) as cache:
        assert cache.get("before") == b"fine"


def test_a_root_that_cannot_be_made_degrades(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Cache(tmp_path / "file" / "cache") as cache:
        cache.put("k", "trial", SMALL)
        assert cache.get("k") is None
        assert cache.clear() == 0
        assert "no longer written" in str(cache.degraded)


def test_a_closed_cache_misses(root: Path) -> None:
    cache = Cache(root)
    cache.put("k", "trial", SMALL)
    cache.close()
    cache.close()
    assert cache.get("k") is None


# Keys


class Colour(enum.StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Point:
    x: object
    y: object = 0


class Options(BaseModel):
    level: int = 1
    where: Path = Path("a")


DIFFERENT = [
    (),
    (None,),
    (1,),
    (1.0,),
    (True,),
    ("1",),
    (b"1",),
    ("a", "b"),
    (["a", "b"],),
    ("ab",),
    ({"a": 1},),
    ({"a": {"b": 1}},),
    ({"mapping": [["a", 1]]},),
    ({1: "a"},),
    ({"1": "a"},),
    (frozenset({"a"}),),
    (0.0,),
    (-0.0,),
    (float("nan"),),
    ("red",),
    (Colour.RED,),
    (Point(1),),
    (Point(1.0),),
    (Options(),),
    (Options(level=2),),
    (Path("a"),),
    (np.zeros(2, np.float32),),
    (np.zeros(2, np.int32),),
    (np.zeros((2, 1), np.float32),),
    (np.zeros(2, ml_dtypes.bfloat16),),
    (np.zeros(2, np.float16),),
    (np.array(["0", "0"], dtype=object),),
    (np.zeros(0, np.float32),),
    ("\ud800",),
]


def test_different_parts_have_different_keys() -> None:
    assert len({key(*parts) for parts in DIFFERENT}) == len(DIFFERENT)


def test_equal_parts_have_equal_keys() -> None:
    assert key({"a": 1, "b": 2}) == key({"b": 2, "a": 1})
    assert key({"x", "y", "z"}) == key({"z", "y", "x"})
    assert key((1, 2)) == key([1, 2])
    assert key(b"ab") == key(bytearray(b"ab")) == key(memoryview(b"ab"))
    assert key(np.arange(3, dtype=">i4")) == key(np.arange(3, dtype="<i4"))
    assert key(np.arange(6).reshape(2, 3).T) == key(np.arange(6).reshape(2, 3).T.copy())


def test_a_key_stays_what_it_was() -> None:
    expected = hashlib.sha256(
        b'["trial",1,{"bytes":"%s"}]' % hashlib.sha256(b"x").hexdigest().encode()
    )
    assert key("trial", 1, b"x") == expected.hexdigest()


def test_a_part_of_unknown_equality_is_refused() -> None:
    with pytest.raises(TypeError, match="object cannot be part of a cache key; give its fields"):
        key(object())


# Arrays


def assert_same_bits(left: np.ndarray, right: np.ndarray) -> None:
    assert (left.dtype, left.shape) == (right.dtype, right.shape)
    if left.dtype.hasobject:
        assert left.tolist() == right.tolist()
    else:
        assert left.tobytes() == right.tobytes()


NUMBERS = st.sampled_from(
    "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 "
    "complex64 complex128".split()
)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@given(st.dictionaries(st.text(), hnp.arrays(NUMBERS, SHAPES), max_size=3))
def test_arrays_come_back_bit_by_bit(arrays: dict[str, np.ndarray]) -> None:
    loaded, meta = load_arrays(dump_arrays(arrays, {"a": [1, None, "é"]}))
    assert meta == {"a": [1, None, "é"]}
    assert list(loaded) == list(arrays)
    for name, array in arrays.items():
        assert_same_bits(loaded[name], array)
        assert loaded[name].flags.writeable


@given(hnp.arrays(object, SHAPES, elements=st.text() | st.binary(), fill=st.nothing()))
def test_strings_come_back(array: np.ndarray) -> None:
    assert_same_bits(load_arrays(dump_arrays({"s": array}, None))[0]["s"], array)


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4", "float4_e2m1fn"]
)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_narrow_types_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, getattr(ml_dtypes, dtype))
    assert_same_bits(load_arrays(dump_arrays({"x": array}, None))[0]["x"], array)


def test_the_payload_and_sign_of_a_nan_survive() -> None:
    bits = np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000], np.uint32)
    loaded, _ = load_arrays(dump_arrays({"x": bits.view(np.float32)}, None))
    assert loaded["x"].view(np.uint32).tolist() == bits.tolist()


def test_order_in_memory_and_byte_order_do_not_matter() -> None:
    array = np.arange(6, dtype=">f4").reshape(2, 3)
    for given_ in (array, np.asfortranarray(array), array[:, ::-1]):
        loaded, _ = load_arrays(dump_arrays({"x": given_}, None))
        assert loaded["x"].dtype == np.float32
        assert loaded["x"].tolist() == given_.tolist()


def test_other_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="array 'x' holds an object of type NoneType; expected"):
        dump_arrays({"x": np.array([None])}, None)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x80\x05N."])
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not arrays written by dump_arrays"):
        load_arrays(data)
