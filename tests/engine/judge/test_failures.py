"""What failures are called."""

from __future__ import annotations

import pytest

from optvet.engine.judge.failures import (
    CONVERTER,
    OPTIMIZER,
    OPTIMIZER_ON_LOAD,
    Producer,
    symptom_of,
)
from optvet.engine.judge.sample import judge_failure
from optvet.spec.symptoms import Stage
from optvet.spec.types import Failure, FailureKind


@pytest.mark.parametrize(
    ("maker", "stage", "error", "death"),
    [
        (OPTIMIZER, "build", "optimizer-error", "optimizer-abort"),
        (OPTIMIZER, "check", "invalid-model", "invalid-model"),
        (OPTIMIZER, "load", "load-failure", "load-failure"),
        (OPTIMIZER, "run", "run-failure", "run-failure"),
        (OPTIMIZER_ON_LOAD, "load", "load-failure", "optimizer-abort"),
        (OPTIMIZER_ON_LOAD, "run", "run-failure", "run-failure"),
        (CONVERTER, "build", "refused", "crash"),
        (CONVERTER, "check", "invalid-model", "crash"),
        (CONVERTER, "run", "run-failure", "crash"),
    ],
)
def test_a_failure_is_called_after_where_and_how_it_ended(
    maker: Producer, stage: Stage, error: str, death: str
) -> None:
    assert symptom_of(Failure("error", stage, "no"), maker) == error
    assert symptom_of(Failure("abort", stage, "", signal="SIGSEGV"), maker) == death
    assert symptom_of(Failure("timeout", stage, ""), maker) == "timeout"
    assert symptom_of(Failure("out-of-memory", stage, ""), maker) == "out-of-memory"


def test_what_fails_elsewhere_than_it_counts_is_called_after_where_it_counts() -> None:
    refused_by_both = Failure("error", "load", "no kernel")
    assert symptom_of(refused_by_both, CONVERTER, "check") == "invalid-model"


@pytest.mark.parametrize(
    ("kind", "state"), [("killed", "undecided"), ("abort", "fault"), ("timeout", "fault")]
)
def test_a_process_that_another_may_have_killed_is_no_fault(kind: FailureKind, state: str) -> None:
    verdict = judge_failure(Failure(kind, "run", "it ended", signal="SIGKILL"))
    assert verdict.state == state
    assert verdict.unexplained == (kind == "killed")
    assert verdict.message == "SIGKILL: it ended"
