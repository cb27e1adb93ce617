"""Optimizers that do their worst: in the sandbox alone, one by one, and all in one run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.assault.evil import KINDS, PLAIN_FAULT, optvet_optimizers
from tests.assault.evil_states import SACRIFICE
from tests.assault.harness import LONG, OWN_FAULT, SLACK_S, Place, Ran, answer

pytestmark = pytest.mark.long
LIMIT_S = 3.0
LIMITS = ("--timeout", LIMIT_S, "--memory", "512M", "--limit", 2)
SAMPLE = (
    "abort",
    "block_signals",
    "delete_its_folder",
    "hang_holding_the_interpreter",
    "kill_the_parent",
    "leave_a_daemon_and_die",
    "nest_folders_deeply",
    "patch_onnxruntime",
    "return_none",
    "touch_a_pass_that_kills_who_unpickles",
    "write_to_every_descriptor",
)
"""Those that harm what outlives a task, and one that is refused; the long form takes all.

All others are in the tests below, where they share one process and one run.
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "place", SACRIFICE)
    yield made
    made.end_orphans()
    shutil.rmtree(made.root, ignore_errors=True)


def vet(place: Place, *passes: str, to: Path) -> list[object]:
    words = ["vet", place.model, "--optimizer", "evil", "--pipeline", ",".join(passes)]
    return [*words, *LIMITS, "--json", to]


def plain(place: Place, to: Path) -> list[object]:
    """A vet with a fault and nothing evil."""
    return vet(place, "keep_a", PLAIN_FAULT, "keep_b", to=to)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = Place(tmp_path_factory.mktemp("undisturbed") / "place")
    target = place.root / "plain.json"
    (ran,) = place.run_together(plain(place, target), timeout_s=120, keep_servers=False)
    assert ran.code == 1, ran.said
    told = answer(target)
    assert [f["culprit"] for f in told["findings"]] == [[PLAIN_FAULT]]
    return without_place(told)


def without_place(told: dict[str, Any]) -> dict[str, Any]:
    """An answer without the name of the folder in which it was asked for."""
    return told | {"model": told["model"] | {"source": ""}}


def judge(name: str, ran: Ran, told: dict[str, Any], pipeline: list[str]) -> None:
    """The answer about an evil pass is true, and the rest of the pipeline is spared."""
    faults = [f for f in told["findings"] if f["severity"] == "fault"]
    if faults:
        assert [f["culprit"] for f in faults] == [[name]], faults
        assert {f["symptom"] for f in faults} <= KINDS[name].answers, faults
        assert (told["verdict"], ran.code) == ("faulty", 1)
        assert told["safe_pipeline"] == [p for p in pipeline if p != name]
    else:
        assert told["verdict"] in KINDS[name].answers, told["reason"] or "nothing was found"
        assert ran.code == (4 if told["verdict"] == "undecided" else 0)


@pytest.mark.parametrize(
    "names",
    [(name,) for name in sorted(KINDS)] if LONG else [SAMPLE[i::3] for i in range(3)],
    ids=",".join,
)
def test_an_evil_pass_is_told_for_what_it_is_and_leaves_no_trace(
    place: Place, undisturbed: dict[str, Any], names: tuple[str, ...]
) -> None:
    """One process vets one evil pass after the other, and then what is plain."""
    evil = {name: place.root / f"{name}.json" for name in names}
    after = place.root / "after.json"
    *told, last = place.run_together(
        *(vet(place, "keep_a", name, "keep_b", to=file) for name, file in evil.items()),
        plain(place, after),
        timeout_s=8 * LIMIT_S * len(names) + 90,
        keep_servers=False,
    )
    assert place.orphans() == {}
    for (name, file), ran in zip(evil.items(), told, strict=True):
        assert OWN_FAULT not in ran.said, ran.said
        if "refused" in KINDS[name].answers:
            assert ran.code in (2, 3), ran.said
            assert "optimizer 'evil'" in ran.err or "choose another with --runtime" in ran.err
        else:
            assert file.exists(), ran.said
            judge(name, ran, answer(file), ["keep_a", name, "keep_b"])
        assert len(ran.said) < 20_000
        assert ran.seconds < 4 * LIMIT_S + 2 + SLACK_S
    assert OWN_FAULT not in last.said, last.said
    assert last.code == 1, last.said
    assert without_place(answer(after)) == undisturbed
    assert place.litter() == []


TASKS = """
import json, sys, time
from pathlib import Path
from optvet.engine.work.sandbox import Limits, Sandbox
from tests.engine.work.faults import echo
from tests.assault.evil import KINDS, provoke

answers = {}
data = Path(sys.argv[1]).read_bytes()
limit_s = float(sys.argv[2])
with Sandbox(jobs=1, limits=Limits(limit_s, 512 << 20), preload=("tests.assault.evil",)) as sandbox:
    assert sandbox.call(echo, "ready").value == "ready"
    for name in sorted(KINDS):
        started = time.monotonic()
        try:
            outcome = sandbox.call(provoke, name, bytes(bytearray(data)))
            told = outcome.failure.kind if outcome.failure else "ok"
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"[:500]
        seconds = time.monotonic() - started
        try:
            following = sandbox.call(echo, name).value
        except BaseException as error:
            following = f"{type(error).__name__}: {error}"[:500]
        answers[name] = {"told": told, "seconds": seconds, "following": following}
        Path(sys.argv[3]).write_text(json.dumps(answers))
"""


def test_no_task_outlives_its_limit_nor_harms_the_next(place: Place) -> None:
    limit_s = 1.0
    target = place.root / "tasks.json"
    words = [sys.executable, "-c", TASKS, place.model, limit_s, target]
    waiting = sum(k.waits for k in KINDS.values()) * (limit_s + 2)
    try:
        done = subprocess.run(
            [str(w) for w in words],
            cwd=place.work,
            env=place.environment,
            capture_output=True,
            text=True,
            timeout=waiting + 120,
        )
    except subprocess.TimeoutExpired as error:
        place.end_orphans()
        told = json.loads(target.read_text())
        raise AssertionError(f"it hangs in the task after {list(told)[-1]!r}") from error
    assert place.orphans() == {}
    assert done.returncode == 0, done.stderr
    told = json.loads(target.read_text())
    assert set(told) == set(KINDS)
    assert {n: t for n, t in told.items() if t["following"] != n} == {}
    failed = {n: t["told"] for n, t in told.items() if ":" in t["told"]}
    assert failed == {}
    slow = {n: t["seconds"] for n, t in told.items() if t["seconds"] > limit_s + 2}
    assert slow == {}


def vet_each(place: Place, optimizer: str, timeout_s: float) -> tuple[Ran, dict[str, Any]]:
    """Every pass of an optimizer alone, in one run."""
    target = place.root / "each.json"
    words = ["vet", place.model, "--optimizer", optimizer, "--pipeline", "keep_a,keep_b"]
    words += ["--strategy", "each", "--no-pairs", "--timeout", timeout_s, "--memory", "512M"]
    words += ["--limit", 2, "--json", target]
    (ran,) = place.run_together(words, timeout_s=500, keep_servers=False)
    assert place.orphans() == {}
    assert OWN_FAULT not in ran.said, ran.said
    assert target.exists(), ran.said
    assert place.litter() == []
    return ran, answer(target)


def blamed(told: dict[str, Any]) -> dict[str, set[str]]:
    """The symptoms of each culprit, of which every one is a single pass."""
    found: dict[str, set[str]] = {}
    for finding in told["findings"]:
        if finding["severity"] == "fault":
            (culprit,) = finding["culprit"]
            found.setdefault(culprit, set()).add(finding["symptom"])
    return found


def test_all_evil_passes_in_one_run_are_told_apart(place: Place) -> None:
    (quick,) = (o for o in optvet_optimizers() if o.name == "evil_quick")
    kinds = {name: KINDS[name] for name in quick.evils}
    ran, told = vet_each(place, "evil_quick", 10.0)
    found = blamed(told)
    assert found.pop(PLAIN_FAULT) == {"wrong-output"}
    assert {n: s for n, s in found.items() if n not in kinds or not s <= kinds[n].answers} == {}
    innocent = {"clean", "drift", "undecided"}
    missed = {n for n, k in kinds.items() if n not in found and not k.answers & innocent}
    assert missed == set()
    assert (ran.code, told["safe_pipeline"]) == (1, ["keep_a", "keep_b"])


def test_passes_that_all_hang_cost_a_few_limits_and_the_answer_says_so(place: Place) -> None:
    ran, told = vet_each(place, "evil_slow", LIMIT_S)
    found = blamed(told)
    assert found.pop(PLAIN_FAULT) == {"wrong-output"}
    assert found
    assert {n: s for n, s in found.items() if not s <= KINDS[n].answers} == {}
    assert "time limit" in {c["name"] for c in told["controls"] if c["state"] == "limited"}
    assert ran.code == 1
    assert ran.seconds < 8 * LIMIT_S + 2 + SLACK_S
