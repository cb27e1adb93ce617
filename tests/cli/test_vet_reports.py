"""``vet --format`` and ``--report``: the answer as a document for people or for CI."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.commands import Run


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("markdown", "--pipeline default,-"),
        ("html", "<!doctype html>"),
        ("junit", "<testsuites"),
        ("sarif", '"ruleId"'),
        ("github", "::error "),
    ],
)
def test_a_format_is_written_to_stdout_in_place_of_the_screen(
    run: Run, faulty: Path, name: str, words: str
) -> None:
    done = run("vet", faulty, "--format", name)
    assert done.code == 1, done.err
    assert words in done.out
    assert "FAULTY" not in done.out


def test_files_are_written_beside_the_screen_each_in_the_format_of_its_suffix(
    run: Run, faulty: Path, clean: Path, tmp_path: Path
) -> None:
    page, suite, notes = (tmp_path / n for n in ("a.html", "a.xml", "a.txt"))
    targets = (page, f"junit:{suite}", f"github:{notes}")
    given = [argument for target in targets for argument in ("--report", target)]
    done = run("vet", faulty, clean, *given)
    assert done.code == 1, done.err
    assert "FAULTY" in done.out
    assert f"wrote {page}" in done.out.replace("\n", "")
    found = ElementTree.parse(suite).getroot()
    assert (found.get("tests"), found.get("failures")) == ("2", "1")
    assert notes.read_text().count("::error ") == 1


def test_a_page_has_the_files_of_the_bundles_that_were_written(
    run: Run, faulty: Path, tmp_path: Path
) -> None:
    page = tmp_path / "a.html"
    done = run("vet", faulty, "--reduce", "--out", tmp_path / "found", "--report", page)
    assert done.code == 1, done.err
    plain = run("vet", faulty, "--format", "html")
    assert "data:application/zip" in page.read_text()
    assert "data:application/zip" not in plain.out


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--format", "nosuch"], "unknown reporter 'nosuch'"),
        (["--report", "nosuch:-"], "unknown reporter 'nosuch'"),
        (["--format", "html", "--json", "-"], "two documents would be written to stdout"),
        (["--report", "a.md", "--report", "html:a.md"], "two documents would be written to a.md"),
        (["--report", "no/folder/a.md"], "does not exist"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_work(
    run: Run, clean: Path, given: list[str], words: str
) -> None:
    done = run("vet", clean, *given)
    assert done.code == 2
    assert words in " ".join(done.err.split())


def test_what_is_reported_of_one_answer_is_what_a_campaign_reports_of_it(
    run: Run, faulty: Path, tmp_path: Path
) -> None:
    alone = json.loads(run("vet", faulty, "--format", "json").out)
    (tmp_path / "c.toml").write_text(f"models = [{json.dumps(str(faulty))}]\n")
    store = tmp_path / "c.store"
    run("campaign", "run", tmp_path / "c.toml", "--store", store, "--quiet")
    stored = json.loads(run("report", store, "--format", "json").out)
    for name in ("symptom", "culprit", "message", "models"):
        assert alone["findings"][0][name] == stored["findings"][0][name]
    assert alone["trials"][0]["verified"] == stored["trials"][0]["verified"]
