"""The rows of ``benchmarks/features.py`` can fail: each mutation applies, and breaks its row."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("features")


def test_each_mutation_applies_to_the_package_as_it_is(rows: Any) -> None:
    found = rows.features(Path("shared"))
    assert len(found) >= 110
    assert len({(row.paper, row.name) for row in found}) == len(found)
    for row in found:
        text = row.breaks.applied()
        assert text != (ROOT / row.breaks.file).read_text("utf-8"), row.name
        compile(text, row.breaks.file, "exec")


def test_what_a_row_needs_another_one_makes(rows: Any) -> None:
    found = rows.features(Path("shared"))
    made = {name for row in found for name in row.makes}
    assert {name for row in found for name in row.needs} <= made


def test_a_row_says_more_than_that_a_command_ended(rows: Any) -> None:
    assert all(row.values or row.makes for row in rows.features(Path("shared")))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("tables[title=a, b][k=1].v", 6),
        ("tables[title=a, b][k=1,v=6].k", 1),
        ("tables[title=a, b][0].v", 5),
        ("tables[title=a, b].rows#", 2),
        ("tables[*].title", ["a, b"]),
        ("m[f1@0.5]", 0.25),
    ],
)
def test_a_value_is_read_at_its_place(rows: Any, place: str, value: Any) -> None:
    table = {"title": "a, b", "columns": ["k", "v"], "rows": [[0, 5], [1, 6]]}
    assert rows.value_at(place, {"tables": [table], "m": {"f1@0.5": 0.25}}) == value


@pytest.mark.parametrize("place", ["tables[title=c]", "m.x", "m[0]", "m[k=1,v=2]"])
def test_a_place_that_is_not_there_is_no_value(rows: Any, place: str) -> None:
    with pytest.raises(rows.Unlike, match="there is no"):
        rows.value_at(place, {"tables": [], "m": {}})


@pytest.mark.parametrize(
    ("found", "wanted", "equal"),
    [
        (0.75074, 0.7507, True),
        (0.76, 0.75, False),
        (1, 1.0, True),
        (True, 1, False),
        (2, 1, False),
        (["a", 1.0], ["a", 1.0004], True),
        (["a"], ["a", "b"], False),
        ("x", ["x"], False),
    ],
)
def test_numbers_are_equal_as_far_as_they_are_written(
    rows: Any, found: Any, wanted: Any, equal: bool
) -> None:
    assert rows.are_equal(found, wanted) is equal


@pytest.mark.long
def test_three_rows_fail_when_their_features_are_broken(rows: Any, tmp_path: Path) -> None:
    names = ["data in chunks", "detection: F1", "import and export alone have numbers"]
    found: Sequence[Any] = [r for r in rows.features(Path("shared")) if r.name in names]
    assert len(found) == len(names)
    overlay = rows.make_overlay(tmp_path / "overlay")
    for row in found:
        works = rows.run(row.run, tmp_path, 120)
        assert rows.check(row, works)
        fails, how = rows.broken(row, overlay, tmp_path, 120)
        assert fails, how
        file = overlay / row.breaks.file
        assert file.read_text("utf-8") == (ROOT / row.breaks.file).read_text("utf-8")
