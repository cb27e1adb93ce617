"""The picture of releases; what it shows is read from the SVG."""

from __future__ import annotations

from pathlib import Path

import pytest

from optvet.report.release_plot import write_releases
from optvet.spec.records.bisect import (
    BisectResult,
    ReleaseAtFault,
    ReleaseChange,
    TriedRelease,
)


def test_each_release_that_was_tried_has_its_state_and_what_it_shows(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs optvet[plots]")
    result = BisectResult(
        schema="optvet.bisect/1",
        model="net.onnx",
        package="acme-opt",
        optimizer="acme",
        predicate="verdict faulty",
        releases=[
            TriedRelease(version="1.0", state="good", bundles=["gone"]),
            TriedRelease(version="1.1"),
            TriedRelease(version="1.2", state="skipped", reason="no wheel"),
            TriedRelease(version="$2$", state="bad", bundles=["shows"]),
        ],
        changes=[ReleaseChange(last="1.0", first="$2$", to="bad", between=["1.2"])],
        at_fault=ReleaseAtFault(version="$2$", bundles=["acme-tidy"]),
        installed=3,
        runs=3,
        seconds=1.0,
    )
    file = tmp_path / "releases.svg"
    write_releases(result, file)
    first = file.read_bytes()
    drawn = first.decode()
    for word in ("1.0", "1.2", "$2$", "good", "skipped", "bad", "gone", "shows", "acme-tidy"):
        assert f"<!-- {word} -->" in drawn
    assert "<!-- 1.1 -->" not in drawn
    write_releases(result, file)
    assert file.read_bytes() == first
