"""Findings that are probably of one cause."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx import ModelProto, numpy_helper

from optvet.engine.hunt.probable_causes import (
    contrived_parts,
    needs,
    operators_that_matter,
    probable_causes,
)
from optvet.spec.records.hunt import HuntFinding
from optvet.spec.symptoms import Symptom

NAMESAKE = "a function of the model that is named as an operator of ONNX is"


def parsed(head: str, graph: str, rest: str = "") -> ModelProto:
    return onnx.parser.parse_model(f"<{head}> g {graph} {rest}")


def scaled_by(weight: float) -> ModelProto:
    """A model with a constant, as ONNX's text cannot write it if it is no number."""
    model = parsed(HEAD, "(float[2] x0) => (float[2] y0) { c = Constant() y0 = Mul(x0, c) }")
    value = numpy_helper.from_array(np.array([1, weight], np.float32))
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("value", value))
    return model


HEAD = 'ir_version: 8, opset_import: ["" : 17, "own" : 1]'
ALIASED = 'ir_version: 8, opset_import: ["ai.onnx" : 17]'
NEG = "(float[2] x0) => (float[2] y0) { y0 = Neg(x0) }"


def function(name: str) -> str:
    return f'<domain: "own", opset_import: ["" : 17]> {name} (a) => (b) {{ b = Neg(a) }}'


@pytest.mark.parametrize(
    ("model", "needed"),
    [
        (parsed(HEAD, NEG), []),
        (parsed(HEAD, NEG, function("Identity")), [NAMESAKE]),
        (parsed(HEAD, NEG, function("Mine")), ["a function of the model"]),
        (parsed(ALIASED, NEG), ["operators imported from `ai.onnx` by that name"]),
        (parsed(HEAD, NEG.replace("2", "N", 1)), ["an input dimension without a size"]),
        (parsed(HEAD, NEG.replace("[2] y0", "[N] y0")), []),
        (parsed(HEAD, NEG.replace("y0", "output_0")), ["a value named `output_0`"]),
        (
            parsed(HEAD, "(float[2] x0) => (float[2] y0) <float[2] t0> { t0 = Neg(x0) y0=Abs(t0)}"),
            ["a declared type of an inner value"],
        ),
        (
            parsed(HEAD, "(float[2] x0, float[2] w0) => (float[2] y0) <float[2] w0={1,2}> "
                         "{ y0 = Add(x0, w0) }"),
            ["a weight that callers may replace"],
        ),
    ],
)  # fmt: skip
def test_what_a_reduced_model_still_has_is_needed(model: ModelProto, needed: list[str]) -> None:
    assert needs(model, {"x0": np.zeros(2, np.float32)}, "wrong values") == needed


def test_a_name_that_the_message_quotes_may_be_left_for_that_alone() -> None:
    model = parsed(HEAD, NEG.replace("y0", "axes"))
    assert needs(model, {}, "unresolved references: axes") == []


def test_special_values_are_needed() -> None:
    values = np.array([1, np.nan], np.float32)
    assert needs(parsed(HEAD, NEG), {"x0": values}, "") == ["an input that is infinite or NaN"]


@pytest.mark.parametrize(
    ("model", "feeds", "parts"),
    [
        (parsed(HEAD, NEG), {"x0": np.zeros(2, np.float32)}, []),
        (parsed(HEAD, NEG, function("Identity")), {}, [NAMESAKE]),
        (parsed(HEAD, NEG, function("Mine")), {}, []),
        (parsed(HEAD, NEG), {"x0": np.zeros((2, 0), np.float32)}, ["a tensor without elements"]),
        (
            parsed(HEAD, "(float[2] x0) => (float[0] y0) <float[0] w0 = {}> { y0 = Abs(w0) }"),
            {},
            ["a tensor without elements"],
        ),
        (scaled_by(np.nan), {}, ["a weight that is NaN"]),
        (scaled_by(-np.inf), {}, []),
        (
            parsed('ir_version: 8, opset_import: ["" : 6]', NEG),
            {},
            ["an operator set below 7"],
        ),
    ],
)
def test_what_models_of_practice_hardly_have_is_contrived(
    model: ModelProto, feeds: dict[str, np.ndarray], parts: list[str]
) -> None:
    assert contrived_parts(model, feeds, needs(model, feeds, "")) == parts


def test_the_gravest_findings_come_first() -> None:
    silent = finding("silent", "fuse")
    contrived = silent.model_copy(update={"contrived": ["a tensor without elements"]})
    symptoms = {
        Symptom.METADATA_CHANGE: "note",
        Symptom.OPTIMIZER_ERROR: "fault",
        Symptom.LOAD_FAILURE: "fault",
        Symptom.OPTIMIZER_ABORT: "fault",
    }
    others = [
        silent.model_copy(update={"symptom": symptom, "severity": severity})
        for symptom, severity in symptoms.items()
    ]
    order = sorted([contrived, *others, silent], key=lambda f: f.gravity)
    assert [f.gravity_in_words() for f in order] == [
        "wrong without an error, on a plausible model",
        "ends the process, on a plausible model",
        "a model that cannot be used, on a plausible model",
        "an error of the optimizer, on a plausible model",
        "wrong without an error, on a contrived model: a tensor without elements",
        "no fault, on a plausible model",
    ]


def test_operators_that_stand_for_any_other_do_not_matter() -> None:
    text = "(float[2] x0) => (float[2] y0) { a = Abs(x0) b = own.Neg(a) y0 = Relu(b) }"
    assert operators_that_matter(parsed(HEAD, text)) == ["Relu", "own.Neg"]


def finding(name: str, culprit: str, operators: str = "", needed: str = "") -> HuntFinding:
    return HuntFinding(
        fingerprint=name,
        symptom=Symptom.WRONG_OUTPUT,
        severity="fault",
        culprit=culprit.split(),
        message="",
        nodes=1,
        bundle=name,
        candidate=0,
        operators=operators.split(),
        needs=[needed] if needed else [],
    )


def test_what_several_passes_need_is_one_cause_and_else_the_place_tells() -> None:
    found = [
        finding("1", "fuse", "Conv", NAMESAKE),
        finding("2", "drop", "Identity", NAMESAKE),
        finding("3", "drop", "Pad"),
        finding("4", "drop", "Pad", "an input dimension without a size"),
        finding("5", "drop", "Conv", "an input dimension without a size"),
        finding("6", "", "Pad", "an input dimension without a size"),
    ]
    causes = probable_causes(found)
    assert [c.fingerprints for c in causes] == [["1", "2"], ["3", "4"], ["5"], ["6"]]
    assert causes[0].title == NAMESAKE
    assert "without" in causes[0].why
    assert causes[1].why == "the same passes, and the same operators matter: Pad"
    assert causes[3].title == "import and export: Pad"


def test_metadata_that_is_lost_has_no_operator_and_is_not_one_cause() -> None:
    causes = probable_causes([finding("1", ""), finding("2", "")])
    assert len(causes) == 2


def estimator(*parts: str, symptom: Symptom = Symptom.WRONG_OUTPUT, says: str = "") -> HuntFinding:
    """A finding of a source whose steps have settings."""
    found = finding(", ".join(parts), "convert")
    told = {"operators": [", ".join(parts)], "parts": list(parts)}
    return found.model_copy(update={**told, "symptom": symptom, "message": says or "it differs"})


def test_a_source_that_needs_more_than_another_is_of_its_cause() -> None:
    invalid = Symptom.INVALID_MODEL
    found = [
        estimator("Tree", "Tree zero_as_missing=True", "Tree several classes"),
        estimator("Tree", "Tree zero_as_missing=True"),
        estimator("Tree", "Tree depth=2"),
        estimator("Tree", "Tree depth=3"),
        estimator("Tree", "Tree objective='cox'"),
        estimator("Vote", "Vote depth=3"),
        estimator("Mean", symptom=invalid, says="Mul: B has inconsistent type"),
        estimator("Vote", symptom=invalid, says="Mul: B has inconsistent type"),
        estimator("Kmeans", symptom=invalid, says="Cast: too few inputs"),
    ]
    groups = {frozenset(c.fingerprints) for c in probable_causes(found)}
    assert groups == {
        frozenset({found[0].fingerprint, found[1].fingerprint}),
        frozenset({found[2].fingerprint, found[3].fingerprint}),
        frozenset({found[4].fingerprint}),
        frozenset({found[5].fingerprint}),
        frozenset({found[6].fingerprint, found[7].fingerprint}),
        frozenset({found[8].fingerprint}),
    }


def failure(operators: str, says: str, symptom: Symptom, culprit: str = "fold") -> HuntFinding:
    found = finding(f"{symptom} {culprit} {operators} {says}", culprit, operators)
    return found.model_copy(update={"symptom": symptom, "message": says})


@pytest.mark.parametrize("symptom", [Symptom.OPTIMIZER_ERROR, Symptom.INVALID_MODEL])
def test_an_error_that_more_operators_show_is_of_one_cause(symptom: Symptom) -> None:
    taken = "acme.errors.Invalid: 'y{}' is already an output of another graph"
    found = [
        failure("Constant If", taken.format(0), symptom),
        failure("If", taken.format(1), symptom),
        failure("If Less", "acme.errors.Invalid: the type of 'y0' is unknown", symptom),
        failure("Loop", taken.format(2), symptom),
        failure("If Neg", taken.format(3), symptom, "drop"),
        finding("wrong", "fold", "If"),
        finding("wrong too", "fold", "If Less"),
        failure("Loop Neg", "the order is wrong", symptom),
        failure("Loop Pad", "the order is wrong", symptom),
    ]
    names = [f.fingerprint for f in found]
    causes = probable_causes(found)
    # What a pass raises is said at one place of it.
    raised = symptom == Symptom.OPTIMIZER_ERROR
    last = [{names[7], names[8]}] if raised else [{names[7]}, {names[8]}]
    groups = [{names[0], names[1]}, *({name} for name in names[2:7])]
    assert sorted(map(sorted, (c.fingerprints for c in causes))) == sorted(
        map(sorted, [*groups, *last])
    )
    assert any("the same error where these operators matter" in c.why for c in causes)


def test_what_several_passes_say_in_the_same_words_is_in_code_that_they_share() -> None:
    gone = "inputs ['x{}', 'x9'] became ['x{}']"
    interface, invalid = Symptom.INTERFACE_CHANGE, Symptom.INVALID_MODEL
    found = [
        failure("", gone.format(0, 0), interface, "fuse"),
        failure("", gone.format(1, 1), interface, "drop"),
        failure("Split", gone.format(0, 0), interface, "fuse"),
        failure("", "outputs ['y'] became ['z']", interface, "drop"),
        failure("Pad", "nodes are not sorted", invalid, "fuse"),
        failure("Pad", "nodes are not sorted", invalid, "drop"),
    ]
    names = [f.fingerprint for f in found]
    causes = probable_causes(found)
    assert sorted(c.fingerprints for c in causes) == sorted([names[:2], *([n] for n in names[2:])])
    shared = next(c for c in causes if len(c.fingerprints) > 1)
    assert shared.why == "the same words of several passes, and no operator matters"


def test_one_mistake_seldom_shows_as_several_symptoms() -> None:
    invalid, crash = Symptom.INVALID_MODEL, Symptom.RUN_FAILURE
    note = failure("Pad", "shapes became stronger", Symptom.METADATA_CHANGE)
    found = [
        failure("Pad", "y0 is gone", invalid),
        failure("Pad", "y0 is declared twice", invalid),
        failure("Pad", "died", crash),
        finding("wrong", "fold", "Pad"),
        finding("wrong too", "fold", "Pad"),
        note.model_copy(update={"severity": "note"}),
    ]
    causes = sorted(len(c.fingerprints) for c in probable_causes(found))
    assert causes == [1, 1, 2, 2]
    assert note.fingerprint in next(c for c in probable_causes(found)).fingerprints
