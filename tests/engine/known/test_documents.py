"""Documents of known faults: form, checks, advice, and the finding that a fault is."""

from __future__ import annotations

from pathlib import Path

import onnx.parser
import pytest

from optvet.engine.known.advise import advise, versions_asked
from optvet.engine.known.documents import known_folder, read_faults, shipped, to_toml
from optvet.engine.known.page import page_of
from optvet.spec.errors import InputError, UnknownName, UsageError
from optvet.spec.records.known import AffectedRange, FaultForm, KnownFault
from optvet.spec.symptoms import Symptom

ROOT = Path(__file__).parents[3]
FAULT = KnownFault(
    schema="optvet.known/1",
    id="acme-relu",
    title="a Relu becomes a Neg",
    package="acme-opt",
    optimizer="acme",
    passes=["tidy"],
    symptom=Symptom.WRONG_OUTPUT,
    affected=[AffectedRange(introduced="1.5", fixed="2.0"), AffectedRange(introduced="3.0")],
    oldest="1.0",
    newest="3.2",
    checked="2026-01-31",
    trigger="y = Relu(x)\nwhere rank(x) == 2\n",
    edit="write Max(x, 0)",
    model=(
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        "g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }\n"
    ),
)
TWO_RELUS = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x, float[6] z) => (float[2,3] y, float[6] w) { y = Relu(x)  w = Relu(z) }
"""


def test_every_document_that_comes_with_optvet_is_sound() -> None:
    faults = shipped()
    assert known_folder() == ROOT / "known"
    assert len(faults) >= 12
    files = {file.stem for file in known_folder().rglob("*.toml")}
    assert files == {fault.id for fault in faults}


def test_the_page_is_made_from_the_documents() -> None:
    assert (ROOT / "docs" / "known.md").read_text("utf-8") == page_of(shipped())


def test_a_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "acme-relu.toml"
    file.write_text(to_toml(FAULT))
    assert read_faults([file])[0] == FAULT
    (tmp_path / "again.toml").write_text(to_toml(FAULT))
    with pytest.raises(InputError, match=r"'acme-relu' is the id of .*acme-relu\.toml too"):
        read_faults([tmp_path])


def test_a_model_that_ends_the_process_that_reads_it_is_told(tmp_path: Path) -> None:
    file = tmp_path / "fault.toml"
    deep = f"{40_000 * 'seq('}float[2,3]{40_000 * ')'} x)"
    file.write_text(to_toml(FAULT).replace("float[2,3] x)", deep))
    with pytest.raises(InputError, match=r"fault\.toml: reading its model: .*SIG"):
        read_faults([file])[0]


def test_a_model_is_read_in_a_worker_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.parser.parse_model(TWO_RELUS)
    (tmp_path / "fault.toml").write_text(to_toml(FAULT))

    def crash(text: str) -> None:
        raise AssertionError("read in this process")

    for native in ("onnx.parser.parse_model", "onnx.checker.check_model"):
        monkeypatch.setattr(native, crash)
    fault = read_faults([tmp_path / "fault.toml"])[0]
    answer = advise("two.onnx", model, {"acme-opt": "1.7"}, [fault])
    assert [a.places for a in answer.advice] == [[["y"]]]
    assert answer.advice[0].dated


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('checked = "2026-01-31"', 'checked = "today"', r":\d+: checked: .*2026-01-31"),
        ('introduced = "1.5"', 'introduced = "2.5"', "expected good_before < introduced < fixed"),
        ('fixed = "2.0"', 'fixed = "two"', "'two' is no version"),
        ('symptom = "wrong-output"', 'symptom = "wrong"', r":\d+: symptom: "),
        ('id = "acme-relu"', 'id = "Acme Relu"', r":\d+: id: .*lower case with hyphens"),
        ("y = Relu(x)\nwhere", "y = Neg(x)\nwhere", "does not fit the document's own model"),
        ("where rank(x)", "where size(x)", r"trigger: .*there is no size\(\)"),
        ("where rank(x) == 2", "where [1]*19999999999 == x", r"fault\.toml: trigger: .*\* takes a"),
        ("{ y = Relu(x) }", "{ y = Nothing(x) }", "model: .*Nothing"),
        ('title = "a Relu', 'author = "me"\ntitle = "a Relu', "author: "),
    ],
)
def test_what_is_wrong_with_a_document_is_told_with_its_place(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    text = to_toml(FAULT)
    assert old in text
    file = tmp_path / "fault.toml"
    file.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=says):
        read_faults([file])[0]


@pytest.mark.parametrize(
    ("version", "affected"),
    [("1.0", False), ("1.5", True), ("1.10", True), ("2.0", False), ("3.0", True), ("9.0", True)],
)
def test_a_release_is_affected_within_its_ranges(version: str, affected: bool) -> None:
    assert FAULT.affects(version) is affected
    assert FAULT.when == "since 1.5, fixed in 2.0; again since 3.0, still in 3.2"


def test_advice_says_where_and_what_avoids_it() -> None:
    model = onnx.parser.parse_model(TWO_RELUS)
    answer = advise("two.onnx", model, {"acme-opt": "1.7"}, [FAULT])
    (one,) = answer.advice
    assert (one.places, one.certain) == ([["y"]], True)
    assert one.avoid == [
        "acme-opt>=2.0,<3.0",
        "acme-opt<1.5",
        "--optimizer acme --pipeline default,-tidy",
        "write Max(x, 0)",
    ]
    assert advise("two.onnx", model, {"acme-opt": "2.0"}, [FAULT]).looked_for == 0
    assert advise("two.onnx", model, {"other": "1.7"}, [FAULT]).advice == []


FORMS = FAULT.model_copy(
    update={
        "trigger": "y = Clip(x, *)",
        "model": (
            '<ir_version: 8, opset_import: ["" : 17]>\n'
            "g (float[2,3] x) => (float[2,3] y) <float lo = {0}> { y = Clip(x, lo) }\n"
        ),
        "forms": [
            FaultForm(
                model=(
                    '<ir_version: 8, opset_import: ["" : 17]>\n'
                    "g (float[2,3] x) => (float[2,3] y) <float hi = {6}> { y = Clip(x, , hi) }\n"
                ),
                affected=[AffectedRange()],
            ),
            FaultForm(
                model=(
                    '<ir_version: 7, opset_import: ["" : 10]>\n'
                    "g (float[2,3] x) => (float[2,3] y) { y = Clip<max = 6.0>(x) }\n"
                )
            ),
        ],
    }
)
"""A fault whose second form every release shows, and whose third one none."""


def clipped(operands: str, *, opset: int = 17) -> onnx.ModelProto:
    weights = "<float lo = {0}, float hi = {6}>" if opset > 10 else ""
    return onnx.parser.parse_model(f"""
    <ir_version: 7, opset_import: ["" : {opset}]>
    g (float[5] v) => (float[5] w) {weights} {{ w = Clip{operands} }}
    """)


def test_a_form_of_a_trigger_has_releases_of_its_own() -> None:
    (one,) = advise("m", clipped("(v, lo)"), {"acme-opt": "1.7"}, [FORMS]).advice
    assert one.avoid[:2] == ["acme-opt>=2.0,<3.0", "acme-opt<1.5"]
    assert one.dated
    assert advise("m", clipped("(v, lo)"), {"acme-opt": "2.0"}, [FORMS]).advice == []
    (one,) = advise("m", clipped("(v, , hi)"), {"acme-opt": "2.0"}, [FORMS]).advice
    assert one.avoid == ["--optimizer acme --pipeline default,-tidy", "write Max(x, 0)"]
    attribute = clipped("<max = 6.0>(v)", opset=10)
    assert advise("m", attribute, {"acme-opt": "1.7"}, [FORMS]).advice == []


def test_no_release_is_recommended_for_a_form_of_which_none_was_tried() -> None:
    (one,) = advise("m", clipped("(v, lo, hi)"), {"acme-opt": "1.7"}, [FORMS]).advice
    assert not one.dated
    assert one.avoid == ["--optimizer acme --pipeline default,-tidy", "write Max(x, 0)"]
    assert set(one.tried.values()) == {"not tried on this model"}


def test_forms_are_read_as_they_were_written_and_each_once(tmp_path: Path) -> None:
    file = tmp_path / "forms.toml"
    file.write_text(to_toml(FORMS))
    assert read_faults([file])[0] == FORMS
    assert FORMS.when.split("; in another form ")[1:] == [
        "since 1.0 or earlier, still in 3.2",
        "in no release from 1.0 to 3.2",
    ]
    file.write_text(to_toml(FORMS.model_copy(update={"forms": [FORMS.forms[0]] * 2})))
    with pytest.raises(InputError, match=r"forms\.1\.model: its form, Clip\(x,-,x\), was dated"):
        read_faults([file])[0]


def test_what_is_known_of_a_value_of_unknown_rank_counts() -> None:
    fault = FAULT.model_copy(update={"trigger": "y = Relu(x)\nwhere dtype(x) == 'int64'"})
    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 18]>
    g (float[2,3] v, int64[n] s) => (float[a,b] y) { x = Reshape(v, s)  y = Relu(x) }
    """)
    assert advise("one.onnx", model, {"acme-opt": "1.7"}, [fault]).advice == []


def test_versions_are_those_that_are_named_or_installed() -> None:
    assert versions_asked(["acme-opt==1.7"], [FAULT]) == {"acme-opt": "1.7"}
    assert versions_asked([], [FAULT]) == {}
    for text in ("acme-opt", "acme-opt>=1", "acme-opt==1.*", "==1"):
        with pytest.raises(UsageError, match="expected PACKAGE==VERSION"):
            versions_asked([text], [FAULT])
    with pytest.raises(UnknownName, match="unknown package 'acme'"):
        versions_asked(["acme==1"], [FAULT])


def test_a_version_with_a_second_library_behind_it_is_that_version() -> None:
    assert FAULT.affects("1.6 (acme_ir 0.1)")
    assert not FAULT.affects("2.0 (acme_ir 0.1)")
