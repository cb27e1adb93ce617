"""Words of the screens are explained, as the documents explain them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optvet.cli.explain import TERMS
from optvet.spec.symptoms import SYMPTOMS

Run = Callable[..., Any]
CONCEPTS = Path(__file__).parents[2] / "docs" / "concepts.md"


def test_the_glossary_of_the_documents_is_that_of_the_command() -> None:
    _, _, glossary = CONCEPTS.read_text("utf-8").partition("## Glossary")
    rows = re.findall(r"^\| ([a-z ]+) \| (.+) \|$", glossary, re.MULTILINE)
    assert dict(rows[1:]) == TERMS
    assert len(TERMS) <= 25


@pytest.mark.parametrize("term", ["Controls", "control", "failing  sample", "witness"])
def test_a_term_is_found_in_other_forms(run: Run, term: str) -> None:
    ran = run("explain", term)
    assert ran.code == 0, ran.err
    assert ran.out.startswith(("control: A test", "failing sample: A sample"))


@pytest.mark.parametrize("term", [*SYMPTOMS, "clean", "drift", "faulty", "undecided", "kept node"])
def test_verdicts_and_symptoms_are_explained(run: Run, term: str) -> None:
    ran = run("explain", term)
    assert ran.code == 0, ran.err
    assert ran.out.startswith(f"{term}: ")
    assert len(ran.out) > len(term) + 20
    assert ran.out.endswith("/concepts.md\n")


@pytest.mark.parametrize(("typed", "term"), [("noise floor", "noise"), ("where", "divergence")])
def test_words_of_the_screen_lead_to_their_term(run: Run, typed: str, term: str) -> None:
    assert run("explain", typed).out.startswith(f"{term}: ")


def test_an_unknown_term_names_near_ones(run: Run) -> None:
    ran = run("explain", "drfit")
    assert ran.code == 2
    assert "did you mean 'drift'" in ran.err


def test_terms_are_written_as_a_document(run: Run) -> None:
    ran = run("explain", "noise floor", "--json", "-")
    assert json.loads(ran.out) == {
        "schema": "optvet.terms/1",
        "terms": [{"term": "noise", "meaning": TERMS["noise"]}],
    }
    assert len(json.loads(run("explain", "--json", "-").out)["terms"]) == len(TERMS)
