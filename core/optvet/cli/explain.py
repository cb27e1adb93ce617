"""``optvet explain``: the words on optvet's screens."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from optvet.cli.options import Debug
from optvet.cli.output import Json, write_document
from optvet.cli.render import table_of, text
from optvet.cli.terminal import Terminal
from optvet.spec.errors import UnknownName
from optvet.spec.symptoms import SYMPTOMS

TERMS = {
    "bundle": "A folder with the evidence of one finding: model, inputs, script, issue text.",
    "candidate": "The optimized model under test.",
    "control": "A test that must pass before a pass is blamed: the original agrees with itself, "
    "the empty pipeline is innocent.",
    "culprit": "The shortest sequence of passes that shows a symptom; in prose, the faulty passes.",
    "divergence": "The earliest place in the graph where original and candidate differ "
    "beyond noise.",
    "drift": "A difference that rounding explains.",
    "failing sample": "A sample that shows a finding.",
    "finding": "A confirmed symptom, with its culprit and a failing sample.",
    "fingerprint": "A digest that findings of one defect share.",
    "import and export": "Reading a model and writing it again without any pass; "
    "also called round trip.",
    "lowering": "The fixed part of a compilation, before and after the optional passes.",
    "noise": "How far rounding moves the outputs of the original, measured on each sample.",
    "original": "The model as the user gave it.",
    "pass": "One transformation of an optimizer, which can be applied or left out.",
    "pipeline": "A sequence of passes.",
    "reference": "What the candidate is compared with: the original, or the empty pipeline's "
    "artifact.",
    "requirement": "A bound that the user sets, on a metric or on the error of an output.",
    "runtime": "What loads a model and runs it.",
    "sample": "One set of inputs of a model.",
    "sensitivity": "A label or a large difference that changes within the noise of the original.",
    "site": "One of the places of a graph that a pass rewrote.",
    "symptom": "What is wrong with a candidate; one of a fixed list.",
    "trial": "One build of a candidate, its check, its load and its runs.",
    "verdict": "The answer on a model: clean, drift, faulty or undecided.",
    "verified pipeline": "The passes that remain without the culprits, vetted on all samples.",
}
"""The glossary of ``docs/concepts.md``."""
_OTHER_TERMS = {
    "absorption": "A summand that has no effect, since the sum has too few digits for it.",
    "emulation": "Rounding each value to a short type in float32, on a runtime that computes the "
    "type in float32.",
    "kept node": "A node that stays as it is while the rest of a model is converted.",
    "known fault": "A fault with a document: its releases, its trigger, what avoids it.",
    "release": "A version of a package as it was published; bisect skips those that it cannot try.",
    "clean": "All outputs are the same, bit for bit, on all samples.",
    "faulty": "At least one fault was found and confirmed.",
    "undecided": "There is no answer; the reason is given. Of samples: rounding alone may change "
    "their answer, so that they count neither as changed nor as the same.",
}
_ALIASES = {
    "round trip": "import and export",
    "witness": "failing sample",
    "noise floor": "noise",
    "faulty pass": "culprit",
    "verified": "verified pipeline",
    "where": "divergence",
}


def command(
    context: typer.Context,
    term: Annotated[
        str | None,
        typer.Argument(metavar="[TERM]", help="A word of a screen; all of them without one."),
    ] = None,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Explain a word that optvet uses, such as drift or control."""
    terminal = context.ensure_object(Terminal)
    found = TERMS if term is None else dict([_found(term)])
    if json_to is not None:
        from optvet.spec.records.listing import Term, Terms

        terms = [Term(term=name, meaning=meaning) for name, meaning in found.items()]
        write_document(terminal, json_to, Terms(schema="optvet.terms/1", terms=terms).to_json())
    if json_to == "-":
        return
    if term is None:
        table = table_of(("term", "bold"), ("meaning", ""))
        for name, meaning in found.items():
            table.add_row(text(name), text(meaning))
        terminal.show(table)
    else:
        terminal.show(*(text(f"{name}: {meaning}") for name, meaning in found.items()))
        terminal.show(text(f"more: {_link()}", "dim"))


def _link() -> str:
    """Where the documents explain the terms: on the web."""
    urls = metadata.metadata("optvet").get_all("Project-URL") or []
    docs = dict(url.split(", ", 1) for url in urls).get("Documentation", "docs")
    return f"{docs}/concepts.md"


def _found(term: str) -> tuple[str, str]:
    """The term that is meant, and its meaning.

    Raises:
        UnknownName: There is none.
    """
    wanted = " ".join(term.lower().split())
    known = _ALIASES.get(wanted, wanted)
    meanings = {**TERMS, **_OTHER_TERMS, **_symptoms()}
    if known not in meanings:
        known = known.removesuffix("s")
    if known not in meanings:
        raise UnknownName("term", term, [*meanings, *_ALIASES], "(see: optvet explain)")
    return known, meanings[known]


def _symptoms() -> dict[str, str]:
    """What each symptom means that has no term of its own."""
    return {
        symptom: f"A symptom, which shows at the stage {info.stages[-1]}: {info.headline}. "
        f"What should be: {info.expected[0].lower()}{info.expected[1:]}"
        for symptom, info in SYMPTOMS.items()
        if symptom not in TERMS
    }
