"""What the answer of ``bisect`` says of itself."""

from __future__ import annotations

import pytest

from optvet.spec.records import Finding
from optvet.spec.records.bisect import BisectResult, ReleaseAtFault, TriedRelease
from optvet.spec.symptoms import Symptom


def answer(*findings: list[str], culprit: list[str]) -> BisectResult:
    """Releases with these findings, none for a good one; the last is at fault."""
    found = Finding(
        symptom=Symptom.CRASH, severity="fault", stage="build", culprit=culprit, confirmed=True
    )
    releases = [
        TriedRelease(version=f"{number}.0", state="bad" if words else "good", findings=words)
        for number, words in enumerate(findings)
    ]
    return BisectResult(
        schema="optvet.bisect/1",
        model="net.onnx",
        package="acme-opt",
        optimizer="acme",
        predicate="verdict faulty",
        releases=releases,
        at_fault=ReleaseAtFault(version="1.0", findings=[found] if culprit else []),
        installed=3,
        runs=3,
        seconds=1.0,
    )


@pytest.mark.parametrize(
    ("findings", "culprit", "several"),
    [
        ((["crash: a"], ["crash: b"]), ["b"], True),
        ((["crash: a", "crash: b"], ["crash: b", "crash: c"]), ["b"], False),
        ((["crash: b"], ["timeout: b"]), ["b"], False),
        (([], ["crash: b"]), ["b"], False),
        ((["code 1: x"], ["code 2: y"]), [], False),
    ],
)
def test_bad_releases_without_a_pass_in_common_have_several_faults(
    findings: tuple[list[str], ...], culprit: list[str], several: bool
) -> None:
    assert answer(*findings, culprit=culprit).has_several_faults == several
