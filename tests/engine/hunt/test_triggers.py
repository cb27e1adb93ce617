from __future__ import annotations

import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto

from optvet.engine.hunt.suspicions import SuspicionKey
from optvet.engine.hunt.triggers import Trigger, explained, needed_features, texts_of
from optvet.spec.symptoms import Symptom

RAISES = SuspicionKey(("fuse",), Symptom.OPTIMIZER_ERROR, "assertion failed")
WRONG = SuspicionKey(("fuse",), Symptom.WRONG_OUTPUT, "values float32")
IMPORT = SuspicionKey((), Symptom.OPTIMIZER_ERROR, "not supported")
TEXTS = st.frozensets(st.sampled_from([f"Op{n} axis {k}" for n in range(3) for k in "abc"]))


def trigger(key: SuspicionKey, *features: str, name: str = "one") -> Trigger:
    return Trigger(name, key.place, key.words, frozenset(features))


def test_a_model_that_has_all_of_a_trigger_is_explained() -> None:
    known = trigger(WRONG, "Pad input 3 weight", "Conv")
    assert known.explains(WRONG, {"Pad input 3 weight", "Conv", "Relu"})
    assert not known.explains(WRONG, {"Conv", "Relu"})
    assert not known.explains(RAISES, {"Pad input 3 weight", "Conv"})
    assert not known.explains(WRONG._replace(words="shape"), {"Pad input 3 weight", "Conv"})


def test_an_edit_that_did_not_bring_the_trigger_is_of_another_cause() -> None:
    known = trigger(WRONG, "Pad input 3 weight", "Conv")
    present = {"Pad input 3 weight", "Conv", "Pad mode edge"}
    assert not known.explains(WRONG, present, ["+ Pad mode edge"])
    assert known.explains(WRONG, present, ["+ Pad input 3 weight", "- Pad input 3 omitted"])
    # A feature that went made room for nothing.
    assert known.explains(WRONG, present, ["+ Conv", "- Neg"])


def test_what_two_models_of_a_finding_have_not_in_common_is_not_needed() -> None:
    known = trigger(RAISES, "Max input 0 weight", "Max").narrowed({"Add input 0 weight"})
    # A message tells causes apart, a difference in values does not.
    assert known.explains(RAISES, {"Neg"})
    assert not trigger(WRONG).explains(WRONG, {"Neg"})


def test_findings_of_the_same_words_explain_by_what_they_share_only_at_import() -> None:
    texts = (("Constant sparse", "Where"), ("Constant sparse", "Cast"))
    several = [trigger(IMPORT, *t, name=t[1]) for t in texts]
    assert explained(several, IMPORT, {"Constant sparse", "Shape"})
    assert not explained(several[:1], IMPORT, {"Constant sparse", "Shape"})
    inside = [trigger(RAISES, *t, name=t[1]) for t in texts]
    assert not explained(inside, RAISES, {"Constant sparse", "Shape"})


def test_wrong_values_of_a_runtime_are_explained_by_what_is_most_of_one_and_in_another() -> None:
    kernels = SuspicionKey((), Symptom.WRONG_OUTPUT, "places float")
    inside = ("If/Neg", "If/Neg input 0 captured", "If/Neg output 0 unread")
    outer = ("If", "If output 0 also returned", "If input 0 weight")
    one = trigger(kernels, *outer, *inside, name="one")
    two = trigger(kernels._replace(words="values int"), *outer[:2], "If/Less", name="two")
    other = trigger(kernels, "If", "Dropout", "Dropout input 1", "Cast", name="other")
    bools = kernels._replace(words="places bool")
    again = {"If", "If output 0 also returned", "If/Add", "Dropout"}
    assert explained([one, two, other], bools, again)
    assert not explained([one, other], bools, again)
    assert not explained([one, two, other], bools, {"If", "If/Add", "Dropout"})
    assert not explained([one, two, other], bools, again, ["+ Dropout"])
    assert explained([one, two, other], bools, again, ["+ If output 0 also returned"])


@given(TEXTS.filter(bool), TEXTS, TEXTS)
def test_narrowing_explains_no_less(
    needed: frozenset[str], one: frozenset[str], two: frozenset[str]
) -> None:
    known = trigger(RAISES, *needed)
    if known.explains(RAISES, one):
        assert known.narrowed(two).explains(RAISES, one)
    assert known.narrowed(needed).features == needed


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("(float[2] x) => (float[2] y) { y = Abs (x) }", []),
        ("(float[2] x) => (float[2] y) { y = Neg (x) }", ["Neg"]),
        (
            "(float[2,1] x) => (float[1,2] y) { y = Transpose <perm=[1,0]> (x) }",
            ["Transpose", "Transpose input 0 of rank 2", "Transpose perm [0 1 unordered]"],
        ),
    ],
)
def test_what_reductions_leave_plain_is_not_needed(text: str, needed: list[str]) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    assert isinstance(model, ModelProto)
    assert needed_features(model) == needed
    assert set(needed) <= texts_of(model)
