"""Models that are damaged by chance, or made to do harm."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.assault import mutants
from tests.assault.harness import LONG, OWN_FAULT, SLACK_S, Place, Ran

pytestmark = pytest.mark.long
LIMIT_S = 5.0
LIMITS = ("--timeout", LIMIT_S, "--memory", "512M", "--limit", 2, "--no-cache")
BATCH = 8
MUTANTS = 200 if LONG else BATCH


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "place")
    yield made
    made.end_orphans()


def is_contained(ran: Ran) -> list[str]:
    """What is wrong with how a command ended; nothing, as it should be."""
    wrong = []
    if ran.code not in (0, 1, 2, 4, 5):
        wrong.append(f"exit code {ran.code}: {ran.said[-300:]}")
    if OWN_FAULT in ran.said or "Traceback (most recent call last)" in ran.said:
        wrong.append(ran.said[-300:])
    if len(ran.said) > 20_000:
        wrong.append(f"{len(ran.said)} characters on the screen")
    if any(c in ran.said for c in "\x1b\x07\0"):
        wrong.append("bytes that steer the terminal")
    # The first look, the runs that hang once more alone, and their like for the original.
    if ran.seconds > 4 * LIMIT_S + SLACK_S:
        wrong.append(f"{ran.seconds:.0f} s")
    return wrong


@pytest.mark.parametrize("first", range(0, MUTANTS, BATCH))
def test_a_damaged_model_never_makes_an_innocent_pass_guilty(place: Place, first: int) -> None:
    commands: list[list[object]] = []
    for seed in range(first, first + BATCH):
        path = place.root / f"mutant-{seed}.onnx"
        path.write_bytes(mutants.mutant(seed))
        commands.append(["vet", path, *LIMITS])
        commands.append(["vet", path, *LIMITS, "--optimizer", "evil", "--pipeline", "keep_a"])
    answers = place.run_together(*commands, timeout_s=900)
    assert place.orphans() == {}
    wrong = {}
    for number, (real, innocent) in enumerate(zip(answers[::2], answers[1::2], strict=True)):
        problems = is_contained(real) + is_contained(innocent)
        if innocent.code == 1:
            problems.append(f"an innocent pass was blamed: {innocent.said[:1500]}")
        if problems:
            wrong[first + number] = problems
    assert wrong == {}
    assert place.litter() == []


def test_what_nobody_can_run_is_refused_with_a_reason(place: Place) -> None:
    paths = [mutants.write(place.root, make.__name__, make()) for make in mutants.BAD]
    answers = place.run_together(*(["vet", p, *LIMITS] for p in paths), timeout_s=600)
    assert place.orphans() == {}
    wrong = {}
    for path, ran in zip(paths, answers, strict=True):
        problems = is_contained(ran)
        if ran.code not in (2, 5):
            problems.append(f"exit code {ran.code}: {ran.said[:500]}")
        if not ran.err.startswith("error: "):
            problems.append(f"no reason: {ran.err[:300]}")
        if len(ran.said) > 4000:
            problems.append(f"{len(ran.said)} characters for one error")
        if problems:
            wrong[path.stem] = problems
    assert wrong == {}
    assert place.litter() == []


def test_odd_models_are_answered_in_bounds(place: Place) -> None:
    paths = [mutants.write(place.root, make.__name__, make()) for make in mutants.ODD]
    answers = place.run_together(*(["vet", p, *LIMITS] for p in paths), timeout_s=600)
    assert place.orphans() == {}
    problems = {p.stem: is_contained(r) for p, r in zip(paths, answers, strict=True)}
    assert {name: found for name, found in problems.items() if found} == {}


RECORDS = {
    "deep lists": "a = " + "[" * 5000 + "]" * 5000,
    "deep tables": "[" + ".".join("a" * 3000) + "]",
    "number": "task = 7",
    "device": 'dataset = "files:/dev/zero"\ntask = "\\u001b[2J"',
    "huge": "task = '" + "x" * (20 << 20) + "'",
    "noise": "\0\0\0",
}


def test_an_evil_record_beside_the_model_is_refused(place: Place) -> None:
    commands: list[list[object]] = []
    for name, record in RECORDS.items():
        model = place.root / f"{name}.onnx"
        shutil.copy(place.model, model)
        model.with_suffix(".toml").write_text(record)
        commands.append(["vet", model, *LIMITS])
    answers = place.run_together(*commands, timeout_s=120 * len(RECORDS))
    for name, ran in zip(RECORDS, answers, strict=True):
        assert is_contained(ran) == [], name
        assert ran.code == 2, (name, ran.said)
        assert len(ran.said) < 4000, name
