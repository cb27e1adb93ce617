"""What a candidate explains is kept, and one that ends its worker is not tried again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from optvet.engine.repair.candidates import RepairCandidate, attribute, propose
from optvet.engine.repair.propose.tried_candidates import TriedCandidates, count_worker_deaths
from optvet.engine.work.sandbox import Sandbox


def candidate(value: int) -> RepairCandidate:
    return propose("attribute", "", attribute("y", "axis", value))


def tried(file: Path, values: list[int]) -> list[int]:
    """Depths of candidates; the one of 3 stands still."""
    trials = TriedCandidates(file, standstill_s=0.3)

    def depth(each: RepairCandidate) -> int:
        value = each.edits[0].operations[0].value  # type: ignore[union-attr]
        if value == 3:
            time.sleep(60)
        assert isinstance(value, int)
        return value

    return [trials.depth(candidate(value), depth) for value in values]


def test_a_candidate_that_stands_still_ends_its_worker_and_is_left_out_then(tmp_path: Path) -> None:
    file = tmp_path / "tried"
    with Sandbox(jobs=1) as sandbox:
        first = sandbox.call(tried, file, [1, 3, 5])
        assert first.failure is not None
        assert first.failure.signal == "SIGALRM"
        assert count_worker_deaths(file) == 1
        assert sandbox.call(tried, file, [1, 3, 5]).value == [1, -1, 5]
    assert count_worker_deaths(file) == 1


def test_what_was_tried_is_not_tried_again(tmp_path: Path) -> None:
    def never(each: RepairCandidate) -> int:
        pytest.fail("tried twice")

    TriedCandidates(tmp_path / "tried").depth(candidate(7), lambda each: 2)
    assert TriedCandidates(tmp_path / "tried").depth(candidate(7), never) == 2
