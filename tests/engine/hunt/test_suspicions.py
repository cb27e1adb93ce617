from __future__ import annotations

import pytest

from optvet.engine.hunt.suspicions import ANY, Complaint, Rewrite, suspect
from optvet.spec.symptoms import Symptom

FUSED = Rewrite("fuse", ("Add", "Conv"), ("FusedConv",))


def test_suspicions_of_models_with_other_names_have_one_key() -> None:
    first, second = (
        suspect(("fuse",), Symptom.LOAD_FAILURE, f"no kernel for node {name}", {name})
        for name in ("conv_1", "layer/conv.7")
    )
    assert first == second
    assert str(first.key) == "fuse|load-failure|no kernel for node||"


def test_operators_tell_causes_apart_only_where_values_are_wrong() -> None:
    wrong = suspect(("fuse",), Symptom.WRONG_OUTPUT, "values float32", set(), FUSED)
    assert wrong.key[3:] == FUSED.change
    broken = suspect(("fuse",), Symptom.LOAD_FAILURE, "values float32", set(), FUSED)
    assert broken.key[3:] == ((), ())


@pytest.mark.parametrize(
    ("passes", "named"),
    [((), ()), (("a",), ("a",)), (("a", "b"), ("a", "b")), (("a", "b", "c"), (ANY,))],
)
def test_keys_name_up_to_two_passes(passes: tuple[str, ...], named: tuple[str, ...]) -> None:
    suspicion = suspect(passes, Symptom.WRONG_OUTPUT, "values float32", set(), FUSED)
    assert (suspicion.passes, suspicion.key.passes) == (passes, named)


def test_complaints_of_one_kind_differ_only_in_their_text() -> None:
    first, second = (Complaint.of("saved of optimizer 'x' raised", KeyError(k)) for k in "ab")
    assert first.about == second.about
    assert first.text == "saved of optimizer 'x' raised KeyError: 'a'"
