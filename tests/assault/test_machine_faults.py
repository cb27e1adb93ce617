"""The machine fails: a full disk, no memory, no process, a file that cannot be opened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.assault.harness import LONG, Place
from tests.assault.machine_faults import (
    CALLS,
    COMPILER,
    SHORT,
    Fault,
    Job,
    faults,
    run,
    undisturbed,
    wrongs,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(COMPILER is None, reason="needs a C compiler (cc or gcc)"),
]
NUMBERS = range(1, 8) if LONG else (1, 3)
SAMPLE = {
    "vet": [
        Fault("write", SHORT, 1),
        Fault("rename", 28, 1, everywhere=True),
        Fault("fork", 11, 1),
        Fault("open", 24, 3),
    ],
    "campaign": [Fault("write", 28, 2), Fault("fsync", 5, 1), Fault("mmap", 12, 1)],
}
"""Of the hundreds that benchmarks/machine_faults.py tries."""


@pytest.fixture(scope="module", params=sorted(SAMPLE))
def prepared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Place, Job]]:
    """A command in a place of its own, with its answer on a sound machine."""
    place = Place(tmp_path_factory.mktemp("faults") / "place")
    yield request.param, place, undisturbed(place, request.param)
    place.end_orphans()


def test_no_fault_of_the_machine_makes_an_answer_wrong(prepared: tuple[str, Place, Job]) -> None:
    name, place, job = prepared
    asked = SAMPLE[name]
    if LONG:
        asked = [fault for call in CALLS for fault in faults(call, NUMBERS)]
    found = {str(fault): wrongs(place, job, fault) for fault in asked}
    assert {fault: wrong for fault, (wrong, _) in found.items() if wrong} == {}
    assert any(happened for _, happened in found.values())


def test_a_fault_happens_in_the_command_and_is_noticed(prepared: tuple[str, Place, Job]) -> None:
    _, place, job = prepared
    ran, happened = run(place, job.words, Fault("write", 28, 1))
    assert happened
    # A full disk keeps the answer from its file, or what is computed from the cache.
    assert ran.code in (job.code, 3)
