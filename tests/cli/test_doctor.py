from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from optvet.cli import doctor
from optvet.spec.records import Check, Diagnosis, Status

Run = Callable[..., Any]


def diagnosis(*statuses: Status) -> Diagnosis:
    checks = [Check(name="n", status=s, message=f"is {s}", cure="do this") for s in statuses]
    return Diagnosis(
        schema="optvet.doctor/1",
        environment={"python": "CPython 3"},
        libraries={"one": "1.0", "two": None},
        checks=checks,
    )


@pytest.mark.parametrize(
    ("statuses", "code", "last"),
    [
        (("ok",), 0, "all is well"),
        (("absent", "ok"), 0, "all is well"),
        (("warning", "ok"), 0, "1 warning; the rest is well"),
        (("broken", "broken", "ok"), 1, "2 things broken"),
    ],
)
def test_only_what_is_broken_fails(
    run: Run, monkeypatch: pytest.MonkeyPatch, statuses: tuple[Status, ...], code: int, last: str
) -> None:
    monkeypatch.setattr(doctor, "diagnose", lambda *_, **__: diagnosis(*statuses))
    ran = run("doctor")
    assert (ran.code, ran.out.splitlines()[-1]) == (code, last)
    assert "one 1.0" in ran.out
    assert "two" not in ran.out
    assert ran.out.count("do this") == len(statuses)


def test_json_holds_the_whole_diagnosis(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "diagnose", lambda *_, **__: diagnosis("broken"))
    ran = run("doctor", "--json", "-")
    assert ran.code == 1
    assert Diagnosis.model_validate(json.loads(ran.out)) == diagnosis("broken")
