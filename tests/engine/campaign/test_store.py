from __future__ import annotations

import itertools
import multiprocessing
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optvet import UsageError, VetRequest
from optvet.engine.campaign import CampaignStore, add_campaign, open_store, states, trials
from optvet.engine.campaign.leases import (
    SILENCE_S,
    Owner,
    claim,
    join,
    leave,
    release,
    running_jobs,
    take_back,
    this_process,
)
from optvet.engine.campaign.plan import Job, Plan
from optvet.engine.campaign.results import StoredCampaign, find_campaign
from optvet.engine.campaign.store import DATABASE
from optvet.engine.campaign.store_answers import record, retry
from optvet.spec.records import ErrorRecord
from optvet.spec.records.error import ErrorSource

HERE = this_process()
ELSEWHERE = replace(HERE, host="other", pid=1, started=1)


def plan_of(count: int, name: str = "c") -> Plan:
    jobs = [
        Job(f"{name}{n:03}", f"cell{n}", VetRequest(model=f"m{n}.onnx"), "digest", {"onnx": "1"})
        for n in range(count)
    ]
    return Plan(name, "models = []", tuple(jobs), {"fail_on": []})


def error(code: int = 2) -> ErrorRecord:
    source = ErrorSource(source="m")
    return ErrorRecord(
        schema="optvet.error/1", model=source, error="InputError", message="no", exit_code=code
    )


def attempts(store: CampaignStore) -> list[tuple[str, str | None]]:
    rows = store.database.execute("SELECT job, end FROM attempts ORDER BY job, number")
    return [(row["job"], row["end"]) for row in rows]


def test_each_job_is_claimed_once_in_the_order_of_the_plan(store: CampaignStore) -> None:
    campaign = add_campaign(store, plan_of(3))
    join(store, HERE)
    assert [claim(store, campaign.id, HERE) for _ in range(4)] == ["c000", "c001", "c002", None]
    assert states(store, campaign) == {"queued": 0, "running": 3, "done": 0, "failed": 0}


def test_what_a_dead_process_had_is_claimed_again(store: CampaignStore) -> None:
    campaign = add_campaign(store, plan_of(2))
    dead = replace(HERE, started=HERE.started + 1)  # its number is in use by another process
    join(store, dead)
    assert claim(store, campaign.id, dead) == "c000"
    assert [alive for _, alive in running_jobs(store)] == [False]
    assert take_back(store) == 1
    join(store, HERE)
    assert claim(store, campaign.id, HERE) == "c000"
    assert attempts(store) == [("c000", "lost"), ("c000", None)]


def test_what_a_living_process_has_is_left_to_it(store: CampaignStore) -> None:
    campaign = add_campaign(store, plan_of(1))
    join(store, HERE)
    claim(store, campaign.id, HERE)
    assert take_back(store, clock=lambda: 4e9) == 0
    assert [alive for _, alive in running_jobs(store)] == [True]


def test_a_process_of_another_machine_is_dead_when_it_was_silent_for_long(
    store: CampaignStore,
) -> None:
    campaign = add_campaign(store, plan_of(1))
    join(store, ELSEWHERE, clock=lambda: 1000.0)
    claim(store, campaign.id, ELSEWHERE)
    assert take_back(store, clock=lambda: 1000.0 + SILENCE_S) == 0
    assert take_back(store, clock=lambda: 1001.0 + SILENCE_S) == 1


def test_an_answer_is_taken_from_the_owner_of_the_claim_alone(store: CampaignStore) -> None:
    campaign = add_campaign(store, plan_of(1))
    join(store, ELSEWHERE, clock=lambda: 0.0)
    claim(store, campaign.id, ELSEWHERE)
    take_back(store)
    join(store, HERE)
    claim(store, campaign.id, HERE)
    assert not record(store, ELSEWHERE, "c000", error(), 1.0)
    assert record(store, HERE, "c000", error(), 1.0)
    assert not record(store, HERE, "c000", error(), 1.0)
    assert attempts(store) == [("c000", "lost"), ("c000", "done")]
    (trial,) = trials(store, campaign)
    assert (trial.state, trial.verdict, trial.attempts) == ("done", "error", 2)
    assert trial.error == error()


def test_a_job_that_is_given_back_waits_again(store: CampaignStore) -> None:
    campaign = add_campaign(store, plan_of(1))
    join(store, HERE)
    claim(store, campaign.id, HERE)
    release(store, HERE, ["c000"])
    leave(store, HERE)
    assert states(store, campaign)["queued"] == 1
    assert attempts(store) == [("c000", "released")]


def test_what_an_owner_has_claimed_waits_again_when_it_leaves(store: CampaignStore) -> None:
    campaign = add_campaign(store, plan_of(2))
    join(store, HERE)
    claim(store, campaign.id, HERE)
    leave(store, HERE)
    assert states(store, campaign) == {**dict.fromkeys(states(store, campaign), 0), "queued": 2}
    assert attempts(store) == [("c000", "released")]


def test_errors_of_optvet_are_failures_and_run_again_on_request(store: CampaignStore) -> None:
    campaign = add_campaign(store, plan_of(2))
    join(store, HERE)
    for code in (3, 5):
        job = claim(store, campaign.id, HERE)
        assert job is not None
        record(store, HERE, job, error(code), 1.0)
    assert states(store, campaign) == {"queued": 0, "running": 0, "done": 1, "failed": 1}
    assert retry(store, campaign) == 1
    assert states(store, campaign) == {"queued": 1, "running": 0, "done": 1, "failed": 0}


def test_the_same_plan_is_the_same_campaign_and_another_shares_its_jobs(
    store: CampaignStore,
) -> None:
    first = add_campaign(store, plan_of(2))
    join(store, HERE)
    claim(store, first.id, HERE)
    record(store, HERE, "c000", error(), 1.0)
    again = add_campaign(store, plan_of(2))
    assert again.id == first.id
    more = add_campaign(store, plan_of(3))
    assert more.id != first.id
    assert states(store, more) == {"queued": 2, "running": 0, "done": 1, "failed": 0}
    assert find_campaign(store, "c") == more
    assert find_campaign(store, str(first.id)).id == first.id
    with pytest.raises(UsageError, match="unknown campaign 'd'"):
        find_campaign(store, "d")


def asked(model: str, optimizer: str) -> Job:
    name = f"{optimizer}-{model}"
    return Job(name, name, VetRequest(model=model, optimizer=optimizer), model, {})


def test_workers_stay_with_an_optimizer_and_share_neither_it_nor_a_model(
    store: CampaignStore,
) -> None:
    jobs = tuple(asked(model, optimizer) for optimizer in "AB" for model in ("m0", "m1", "m2"))
    campaign = add_campaign(store, Plan("c", "", jobs, {"fail_on": []}))
    join(store, HERE)

    def take(near: str = "") -> str:
        job = claim(store, campaign.id, HERE, near=near)
        assert job is not None
        return job

    def answer(job: str) -> str:
        assert record(store, HERE, job, error(), 0.0)
        return job[0]

    first, second = take(), take()
    assert (first, second) == ("A-m0", "B-m1")
    third = take(answer(first))
    assert third == "A-m2"
    fourth = take(answer(second))
    assert fourth == "B-m0"
    fifth = take(answer(third))
    assert fifth == "A-m1"
    # The rest of B is shared, since nothing says that to import its library takes longer.
    assert take(answer(fifth)) == "B-m2"
    assert claim(store, campaign.id, HERE, near="B") is None


@pytest.mark.parametrize(("setup_s", "shared"), [(2.0, True), (20.0, False)])
def test_the_last_jobs_of_an_optimizer_are_shared_where_its_import_takes_less(
    store: CampaignStore, setup_s: float, shared: bool
) -> None:
    jobs = tuple(asked(model, optimizer) for optimizer in "AB" for model in ("m0", "m1", "m2"))
    campaign = add_campaign(store, Plan("c", "", jobs, {"fail_on": []}))
    join(store, HERE)
    now = 100.0

    def take(near: str) -> str | None:
        return claim(store, campaign.id, HERE, near=near, clock=lambda: now)

    first = take("B")
    assert first == "B-m0"
    for expected in ("A-m1", "A-m2", "A-m0"):
        assert take("A") == expected
        assert record(store, HERE, expected, error(), 5.0)
    now += 5.0 + setup_s
    # B-m0 has taken that much longer than A-m0; B-m1 and B-m2 will take ten seconds.
    assert take("A") == ("B-m1" if shared else None)
    assert record(store, HERE, first, error(), now - 100.0)
    assert take("B") == ("B-m2" if shared else "B-m1")


def test_of_the_jobs_left_the_model_is_first_that_took_longest_elsewhere(
    store: CampaignStore,
) -> None:
    jobs = tuple(asked(model, optimizer) for optimizer in "AB" for model in ("m0", "m1", "m2"))
    campaign = add_campaign(store, Plan("c", "", jobs, {"fail_on": []}))
    join(store, HERE)
    for job, took_s in (("A-m0", 1.0), ("A-m1", 9.0), ("A-m2", 4.0)):
        assert claim(store, campaign.id, HERE, near="A") == job
        assert record(store, HERE, job, error(), took_s)
    taken = [claim(store, campaign.id, HERE, near="B") for _ in range(3)]
    assert taken == ["B-m1", "B-m2", "B-m0"]


def claim_all(path: Path, campaign: int, results: Any) -> None:
    """Claim and answer until nothing waits, as a process of its own."""
    with open_store(path) as store:
        owner: Owner = this_process()
        join(store, owner)
        taken = []
        while (job := claim(store, campaign, owner)) is not None:
            assert record(store, owner, job, error(), 0.0)
            taken.append(job)
    results.put(taken)


@pytest.mark.long
def test_two_processes_answer_every_job_once(store: CampaignStore) -> None:
    campaign: StoredCampaign = add_campaign(store, plan_of(200))
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    processes = [
        context.Process(target=claim_all, args=(store.path, campaign.id, results)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    taken = list(itertools.chain.from_iterable(results.get() for _ in processes))
    for process in processes:
        process.join()
    assert sorted(taken) == [f"c{n:03}" for n in range(200)]
    assert attempts(store) == [(job, "done") for job in sorted(taken)]
    assert store.database.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_a_store_of_a_later_version_is_refused(tmp_path: Path, store: CampaignStore) -> None:
    store.database.execute("PRAGMA user_version = 99")
    with pytest.raises(UsageError, match=r"later version of optvet .* upgrade"):
        open_store(store.path)


def test_what_is_no_store_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is no store; `optvet campaign run"):
        open_store(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
    (tmp_path / DATABASE).write_bytes(b"no database" * 100)
    with pytest.raises(UsageError, match=r"is damaged: .* is no database; .* campaign repair"):
        open_store(tmp_path)


def test_an_answer_and_its_findings_are_stored_together_or_not_at_all(
    store: CampaignStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = add_campaign(store, plan_of(1))
    join(store, HERE)
    claim(store, campaign.id, HERE)
    from optvet.engine.campaign import store_answers

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(store_answers, "end_attempt", full)
    with pytest.raises(Exception, match=r"cannot be written: .*full; make room"):
        record(store, HERE, "c000", error(), 1.0)
    assert states(store, campaign)["running"] == 1


def test_a_claim_and_an_answer_take_no_more_steps_among_many_jobs(store: CampaignStore) -> None:
    steps = {}
    join(store, HERE)
    for amount in (50, 2000):
        jobs = tuple(asked(f"m{n}", f"{amount}") for n in range(amount))
        campaign = add_campaign(store, Plan(f"of {amount}", "", jobs, {"fail_on": []}))
        steps[amount] = 0

        def count(amount: int = amount) -> None:
            steps[amount] += 1

        store.database.set_progress_handler(count, 1)
        for near in (f"{amount}", f"{amount}", ""):
            job = claim(store, campaign.id, HERE, near=near)
            assert job is not None
            assert record(store, HERE, job, error(), 1.0)
        store.database.set_progress_handler(None, 0)
    assert 0 < steps[2000] < 1.5 * steps[50]
