"""A cache whose values have right digests and wrong contents costs time, and nothing else."""

import hashlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import optvet
from optvet.engine.work.cache.array_bytes import dump_arrays, load_arrays

# The axes of Pad are not in order, which fuse_pad_into_conv takes them to be.
WRONG = """<ir_version: 8, opset_import: ["" : 18]>
g (float[1,1,4,4] x) => (float[1,1,6,6] z)
<float[1,1,1,1] w = {1.5}, int64[8] pads = {0, 0, 0, 2, 0, 0, 2, 0}, float zero = {0},
 int64[4] axes = {0, 1, 3, 2}> {
r = Relu(x)  q = Pad <mode = "constant"> (r, pads, zero, axes)  y = Conv(q, w)  z = Sigmoid(y) }"""
Forge = Callable[[str, bytes], bytes]


def no_outputs(kind: str, value: bytes) -> bytes:
    return dump_arrays({}, {"failure": None}) if kind == "run" else b"[]"


def other_names(kind: str, value: bytes) -> bytes:
    if kind != "run":
        return b'{"no such field": 1}'
    arrays, meta = load_arrays(value)
    return dump_arrays({f"{n}\x1b": a for n, a in arrays.items()}, meta)


def other_types(kind: str, value: bytes) -> bytes:
    if kind != "run":
        return b'{"facts": {"inputs": 3}, "digest": [], "failure": {"kind": 0}}'
    arrays, meta = load_arrays(value)
    return dump_arrays({n: np.array([["a"]], object) for n in arrays}, meta)


def failures(kind: str, value: bytes) -> bytes:
    return dump_arrays({}, {"failure": {"kind": "no such kind", "stage": 7}})


def no_fields(kind: str, value: bytes) -> bytes:
    return b"{}"


def deep(kind: str, value: bytes) -> bytes:
    header = b"[" * 100_000
    return b"optvet-arrays-1\n" + len(header).to_bytes(8, "little") + header


def huge(kind: str, value: bytes) -> bytes:
    header = b'{"arrays": [{"name": "z", "shape": [4611686018427387904, 4], "dtype": "float32"}],'
    header += b' "meta": {"failure": null}}'
    return b"optvet-arrays-1\n" + len(header).to_bytes(8, "little") + header


FORGERIES: list[Forge] = [no_outputs, other_names, other_types, failures, no_fields, deep, huge]


@pytest.fixture(scope="module")
def vetted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("forged") / "model.onnx"
    onnx.save(onnx.parser.parse_model(WRONG), path)
    return path, told(path, path.parent / "plain")


def told(path: Path, cache: Path) -> str:
    result = optvet.vet(path, cache_dir=cache, limit=2, jobs=1)
    return result.model_copy(update={"seconds": 0.0}).model_dump_json(
        include={"verdict", "findings", "outputs", "safe_pipeline"}
    )


@pytest.mark.parametrize(
    "forge",
    [FORGERIES[0], *(pytest.param(f, marks=pytest.mark.long) for f in FORGERIES[1:])],
    ids=lambda forge: forge.__name__,
)
def test_a_forged_value_with_a_right_digest_changes_no_answer(
    vetted: tuple[Path, str], tmp_path: Path, forge: Forge
) -> None:
    path, expected = vetted
    cache = tmp_path / "cache"
    assert told(path, cache) == expected
    (index,) = cache.glob("index-*.sqlite3")
    with sqlite3.connect(index) as database:
        rows = database.execute("SELECT key, kind, value FROM entries WHERE value NOT NULL")
        for key, kind, value in rows.fetchall():
            forged = forge(kind, value)
            digest = hashlib.sha256(key.encode() + b"\0" + forged).digest()
            row = (forged, digest, key)
            database.execute("UPDATE entries SET value = ?, digest = ? WHERE key = ?", row)
    database.close()
    assert told(path, cache) == expected
    assert told(path, cache) == expected
