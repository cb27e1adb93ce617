"""What the ONNX Runtime plugin tells ``optvet doctor``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from optvet.engine.environment.checks import check_requirements
from optvet.engine.environment.doctor import merge
from optvet.engine.work.sandbox import Sandbox
from optvet.plugin import Check, Collision, Installation, Ran, Unmet
from optvet_onnxruntime.runtime import OrtRuntime

BOTH = ("onnxruntime", "onnxruntime-gpu")
FORCED = "pip install --force-reinstall --no-deps"
REPAIR = f"{FORCED} onnxruntime-gpu==1.2"
VERSIONS = {"onnxruntime": "1.2", "onnxruntime-gpu": "1.2"}


def nothing(function: Any, *arguments: Any) -> Ran:
    return Ran(error="not asked")


def diagnosis(**found: Any) -> list[Check]:
    parts: dict[str, Any] = {
        "versions": {},
        "collisions": (),
        "unmet": (),
        "unimportable": {},
        "run": nothing,
    }
    return list(OrtRuntime().diagnose(Installation(folder=Path(), **(parts | found))))


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Callable[..., Ran]]:
    with Sandbox(jobs=1) as shared:

        def run(function: Any, *arguments: Any) -> Ran:
            outcome = shared.call(function, *arguments, fresh=True)
            words = outcome.failure.message if outcome.failure else ""
            return Ran(outcome.value, words or None)

        yield run


@pytest.mark.parametrize(
    ("on_disk", "version", "status"),
    [
        ((0, 3, 0), "1.2", "ok"),
        ((3, 0, 0), "1.2", "broken"),
        ((1, 2, 0), "1.2", "broken"),
        ((0, 3, 0), "1.3", "warning"),
        ((3, 0, 0), "1.3", "broken"),
    ],
)
def test_files_of_the_gpu_wheel_must_be_in_place(
    on_disk: tuple[int, int, int], version: str, status: str
) -> None:
    collision = Collision(BOTH, (version, "1.2"), on_disk, "state.so")
    (check,) = diagnosis(collisions=(collision,), versions=VERSIONS | {"onnxruntime": version})
    assert check.about == BOTH
    assert check.status == status
    both = f"{FORCED} onnxruntime==1.2 &&\n{REPAIR}"
    assert check.cure == ("" if status == "ok" else REPAIR if version == "1.2" else both)


def test_a_missing_requirement_is_not_cured_by_breaking_another() -> None:
    unmet = Unmet("optvet", "1", "onnxruntime>=1", "onnxruntime", None)
    general = check_requirements([unmet], "pip")
    assert merge(general, diagnosis(unmet=(unmet,))) == general
    assert general[0].cure == "pip install 'onnxruntime>=1'"
    (beside,) = merge(general, diagnosis(unmet=(unmet,), versions={"onnxruntime-gpu": "1.2"}))
    assert beside.cure == f"{FORCED} onnxruntime==1.2 &&\n{REPAIR}"


def test_nodes_really_run_on_the_cpu(elsewhere: Callable[..., Ran]) -> None:
    checks = diagnosis(versions={"onnxruntime": "1"}, run=elsewhere)
    assert ("ok", "CPUExecutionProvider runs nodes") in [(c.status, c.message) for c in checks]


def test_a_gpu_wheel_without_its_provider_is_broken(elsewhere: Callable[..., Ran]) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has a provider for CUDA")
    checks = diagnosis(versions=VERSIONS, run=elsewhere)
    assert [c.cure for c in checks if c.status == "broken"] == [REPAIR]


def test_a_provider_that_cannot_be_offered_is_told_once_beside_its_cause() -> None:
    collision = Collision(BOTH, ("1.2", "1.2"), (3, 0, 0), "state.so")

    def run(function: Any, *arguments: Any) -> Ran:
        return Ran(["CPUExecutionProvider"])

    checks = diagnosis(collisions=(collision,), versions=VERSIONS, run=run)
    assert [c.cure for c in checks if c.status == "broken"] == [REPAIR]
