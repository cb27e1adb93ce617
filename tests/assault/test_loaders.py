"""Loaders keep within bounds on what is almost right; ``fuzz_loaders`` is the long form."""

import json
from typing import Any

import pytest
from tests.assault.fuzz_loaders import TARGETS, fuzz, load


def npy(header: bytes) -> bytes:
    """An npy file of format 1.0 with this header, and no data."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


def other(name: str, *path: str | int, to: Any) -> tuple[str, bytes]:
    """The first document of a target with another value at ``path``."""
    tree = json.loads(TARGETS[name].seeds()[0])
    place = tree
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return name, json.dumps(tree).encode()


NINES = b"9" * 5000
FOUND = [
    ("model", b""),
    ("record", b"a = \x00"),
    ("record", NINES + b" = 1"),  # a message as long as the key
    ("record", b"[inputs.x]\nkind = '%s'\n" % NINES),  # pydantic quotes it whole
    ("catalogue", b'[{"file": "net.onnx", "preprocessing": "%s"}]' % NINES),  # cubic time
    ("catalogue", b'[{"file": "net.onnx", "preprocessing": "x/0"}]'),
    ("bundle", b"[" * 100_000),
    ("bundle-arrays", b""),
    ("cache", b""),
    ("npy", npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (2")),  # tokenize.TokenError
    ("npy", npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (%s,), }\n" % NINES[:30])),
    ("npy", npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (0, %s), }\n" % NINES[:30])),
    ("release", b"[" * 100_000),
    other("release", "size_bytes", to=float("inf")),
    other("hunt", "facts", "plain", "seconds", to=5e-324),  # the next round would be endless
    other("hunt", "facts", "edited", to=[[0, [10**400]]]),
    other("hunt", "feeds", "type", to=999),
    other("hunt", "model", to="07"),
    other("options", "project", "tool", to="optvet"),
    other("options", "project", "tool", "optvet", to=[1]),
]
"""Inputs that once went wrong, or nearly."""


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_a_file_holds_it_is_read_or_refused_in_words(name: str) -> None:
    if name in ("image", "annotations"):
        pytest.importorskip("PIL", reason="needs the extra images")
    fuzz(name, number=7, examples=15 if name == "options" else 60)


@pytest.mark.parametrize("name", TARGETS)
def test_well_formed_inputs_are_loaded(name: str) -> None:
    if name in ("image", "annotations"):
        pytest.importorskip("PIL", reason="needs the extra images")
    for data in TARGETS[name].seeds():
        load(name, data)


IDS = [f"{name}-{i}" for i, (name, _) in enumerate(FOUND)]


@pytest.mark.parametrize(("name", "data"), FOUND, ids=IDS)
def test_what_once_went_wrong_is_refused_in_words(name: str, data: bytes) -> None:
    load(name, data)
