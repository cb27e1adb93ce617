"""Which artifacts are recognized without a copy."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from optvet.engine.work.trials.artifact_graph import find_equal, identify

SIZE = 700_001
KNOWN = bytes(range(256)) * 3000


@pytest.fixture
def file() -> Iterator[int]:
    """A memory file with what ``identify`` was asked about."""
    identify(KNOWN[:SIZE])
    fd = os.memfd_create("artifact")
    os.write(fd, KNOWN[:SIZE])
    yield fd
    os.close(fd)


def test_the_bytes_of_an_artifact_seen_before_are_found(file: int) -> None:
    assert find_equal(file, SIZE) == KNOWN[:SIZE]


@pytest.mark.parametrize("at", [0, 1 << 18, SIZE - 1])
def test_one_other_byte_is_another_artifact(file: int, at: int) -> None:
    os.pwrite(file, b"\xff" if KNOWN[at] != 0xFF else b"\x00", at)
    assert find_equal(file, SIZE) is None


@pytest.mark.parametrize("size", [0, SIZE - 1, SIZE + 1])
def test_another_size_is_another_artifact(file: int, size: int) -> None:
    os.ftruncate(file, size)
    assert find_equal(file, size) is None


def test_a_file_that_became_shorter_than_it_was_said_to_be_is_another(file: int) -> None:
    os.ftruncate(file, 1 << 18)
    assert find_equal(file, SIZE) is None
