"""``optvet advise`` and ``known``, and the known fault that ``vet`` names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Write
from tests.commands import CLEAN, FAULTY, Run

from optvet.engine.known import naming
from optvet.engine.known.documents import shipped
from optvet.graph import pattern

KNOWN = "onnxoptimizer-gemm-transpose-without-perm"
HEAD = """
<ir_version: 8, opset_import: ["" : 17]>
head (float[2,3] x) => (float[2,4] y)
<float[4,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}>
{ same = Transpose<perm = [0, 1]>(x)  y = Gemm<transB = 1>(same, w) }
"""
LOWEST = """
<ir_version: 7, opset_import: ["" : 10]>
g (float[1,1,4,4] x) => (float[1,1,1,1] y)
{ p = Pad<pads = [0, 0, 0, 0, 0, 0, 1, 1], value = -3.4028234e+38>(x)
  m = MaxPool<kernel_shape = [2, 2], auto_pad = "VALID">(p)  y = GlobalAveragePool(m) }
"""
"""A Pad of the lowest number, whose pool then ignores the pads that it is given."""
OWN = """
schema = "optvet.known/1"
id = "no-such-fault"
title = "a Relu is lost"
package = "onnxoptimizer"
optimizer = "onnxoptimizer"
passes = ["eliminate_identity"]
symptom = "wrong-output"
oldest = "0.3.7"
newest = "0.4.2"
checked = "2026-01-31"
trigger = "y = Relu(x)"
model = '''
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }
'''

[[affected]]
introduced = "0.3.7"
"""

PRODUCTS = """=> (float[3,3] a, float[3,3] b, float[3,3] c)
<float[3,3] u = {1, 2, 3, 4, 5, 6, 7, 8, 9}>
{ y = Relu(x) t = Transpose(y) r = MatMul(t, y) a = MatMul(r, u) b = MatMul(r, u) c = MatMul(r, u) }
"""


def test_a_fault_that_a_model_may_trigger_is_named_with_its_place_and_confirmed(
    run: Run, write: Write, tmp_path: Path
) -> None:
    model, file = write("faulty.onnx", FAULTY), tmp_path / "advice.json"
    ran = run("advise", model, "--json", file)
    assert ran.code == 1, ran.err
    assert f"CONFIRMED  {KNOWN}" in ran.out
    assert "where   t → y" in ran.out
    way = "--optimizer onnxoptimizer --pipeline default,-fuse_transpose_into_gemm"
    assert f"avoid   {way}  (tried: clean on this model)" in ran.out
    (one,) = json.loads(file.read_text())["advice"]
    assert one["tried"][way] == "tried: clean on this model"
    assert one["dated"] is True
    assert (one["fault"], one["confirmed"], one["certain"]) == (KNOWN, True, True)


def test_vet_names_the_known_fault_that_its_finding_is(
    run: Run, write: Write, tmp_path: Path
) -> None:
    file = tmp_path / "vet.json"
    ran = run("vet", write("faulty.onnx", FAULTY), "--limit", "1", "--json", file)
    assert ran.code == 1
    words = " ".join(ran.out.split())
    assert f"known {KNOWN}, since 0.3.6 or earlier, still in 0.4.2" in words
    assert "on this one no other release was tried" in words
    (finding,) = json.loads(file.read_text())["findings"]
    assert finding["known"] == [KNOWN] == list(finding["known_releases"])


def test_another_fault_of_the_same_pass_is_not_taken_for_a_known_one(
    run: Run, write: Write, tmp_path: Path
) -> None:
    file = tmp_path / "vet.json"
    ran = run("vet", write("padded.onnx", LOWEST), "--limit", "1", "--json", file)
    assert ran.code == 1
    (finding,) = json.loads(file.read_text())["findings"]
    assert finding["culprit"] == ["fuse_pad_into_pool"]
    assert "onnxoptimizer-pad-zeros-max-pool" not in finding["known"]


def test_advice_depends_on_the_versions_that_are_named(run: Run, write: Write) -> None:
    model = write("head.onnx", HEAD)
    ran = run("advise", model, "--with", "onnxruntime==1.27.0", "--no-confirm")
    assert ran.code == 1
    assert "onnxruntime-gemm-transpose-identity" in ran.out
    assert "avoid   onnxruntime>=1.30.0  (not tried on this model)" in ran.out
    assert run("advise", model, "--with", "onnxruntime==1.30.0").code == 0
    assert run("advise", write("clean.onnx", CLEAN)).code == 0


def test_advice_that_the_passes_do_not_show_is_refuted(
    run: Run, write: Write, tmp_path: Path
) -> None:
    (tmp_path / "own.toml").write_text(OWN)
    model = write("clean.onnx", CLEAN)
    own = ("--known", tmp_path / "own.toml")
    assert run("advise", model, *own, "--no-confirm").code == 1
    ran = run("advise", model, *own)
    assert ran.code == 0
    assert "REFUTED  no-such-fault" in ran.out


def test_a_search_that_takes_too_many_steps_is_told_and_is_no_clean_bill(
    run: Run, write: Write, tmp_path: Path
) -> None:
    three = "q = MatMul(x, Q)\nk = MatMul(x, K)\nv = MatMul(x, V)\n"
    trigger = f"{three}where dim(q, 0) + dim(k, 0) + dim(v, 0) == 9"
    own = OWN.replace('"y = Relu(x)"', f"'''{trigger}'''")
    (tmp_path / "own.toml").write_text(own.replace("=> (float[2,3] y) { y = Relu(x) }", PRODUCTS))
    weights = ", ".join(f"float[2,2] w{k} = {{1, 2, 3, 4}}" for k in range(200))
    nodes = " ".join(f"m{k} = MatMul(x, w{k})" for k in range(200))
    body = f"g (float[2,2] x) => (float[2,2] y) <{weights}> {{ {nodes} y = Relu(m0) }}"
    model = write("products.onnx", f'<ir_version: 8, opset_import: ["" : 17]>\n{body}')
    asked = ("--known", tmp_path / "own.toml", "--with", "onnxoptimizer==0.3.7")
    ran = run("advise", model, *asked, "--no-confirm", "--json", tmp_path / "advice.json")
    assert ran.code == 4, ran.err
    assert "not looked at fully, the search takes too many steps: no-such-fault" in ran.out
    assert json.loads((tmp_path / "advice.json").read_text())["unfinished"] == ["no-such-fault"]


def test_vet_says_which_known_faults_it_has_not_looked_for_fully(
    run: Run, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # They are read, and tried on their own models, with all steps; a fingerprint needs no search.
    unprinted = [fault.model_copy(update={"fingerprints": []}) for fault in shipped()]
    monkeypatch.setattr(naming, "shipped", lambda: unprinted)
    monkeypatch.setattr(pattern, "_STEPS", 0)
    monkeypatch.setattr(pattern, "_STEPS_A_NODE", 0)
    file = tmp_path / "vet.json"
    ran = run("vet", write("faulty.onnx", FAULTY), "--limit", "1", "--json", file)
    assert ran.code == 1
    words = " ".join(ran.out.split())
    assert f"known not looked at fully, the search takes too many steps: {KNOWN}" in words
    (finding,) = json.loads(file.read_text())["findings"]
    assert (finding["known"], finding["known_unfinished"]) == ([], [KNOWN])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("advise", "MODEL", "--with", "onnxruntim==1"), "did you mean 'onnxruntime'"),
        (("advise", "MODEL", "--with", "onnxruntime>1"), "expected PACKAGE==VERSION"),
        (("advise", "MODEL", "--known", "nowhere"), "there is no such file or folder"),
        (("advise", "no-such-model.onnx"), "no-such-model.onnx"),
        (("known", "show", "onnxslim-dropout"), "did you mean 'onnxslim-dropout-mask'"),
        (("known", "check", "nowhere"), "there is no such file or folder"),
        (("known", "add", "nowhere", "--out", "."), "nowhere"),
    ],
)
def test_what_is_wrong_is_an_error_of_usage(
    run: Run, write: Write, words: tuple[str, ...], says: str
) -> None:
    model = str(write("clean.onnx", CLEAN))
    ran = run(*(model if word == "MODEL" else word for word in words))
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err


def test_known_faults_are_listed_and_shown(run: Run) -> None:
    listed = json.loads(run("known", "list", "--package", "onnxslim", "--json", "-").out)
    assert {fault["package"] for fault in listed["faults"]} == {"onnxslim"}
    shown = run("known", "show", KNOWN).out
    assert "fuse_transpose_into_gemm" in shown
    assert "t = Transpose<!perm>(x)" in shown


@pytest.mark.long
def test_a_document_is_made_from_a_bundle(run: Run, write: Write, tmp_path: Path) -> None:
    bundles, documents = tmp_path / "bundles", tmp_path / "documents"
    model = write("faulty.onnx", FAULTY)
    assert run("vet", model, "--limit", "1", "--reduce", "--out", bundles).code == 1
    (bundle,) = bundles.iterdir()
    answer = {
        "schema": "optvet.bisect/1",
        "model": "faulty.onnx",
        "package": "onnxoptimizer",
        "optimizer": "onnxoptimizer",
        "predicate": "",
        "releases": [
            {"version": "0.3.7", "state": "skipped"},
            {"version": "0.3.8", "state": "good"},
            {"version": "0.3.9", "state": "bad"},
            {"version": "0.4.2", "state": "bad"},
        ],
        "changes": [{"last": "0.3.8", "first": "0.3.9", "to": "bad"}],
        "installed": 4,
        "runs": 4,
        "seconds": 1.0,
    }
    (tmp_path / "answer.json").write_text(json.dumps(answer))
    options = ("--out", documents, "--answer", tmp_path / "answer.json")
    assert run("known", "add", bundle, *options).code == 0
    (file,) = documents.iterdir()
    assert file.name == "onnxoptimizer-fuse-transpose-into-gemm-optimizer-error.toml"
    assert "1 document, nothing is wrong" in run("known", "check", documents).out
    text = file.read_text()
    assert 'introduced = "0.3.9"' in text
    assert 'oldest = "0.3.8"' in text
    again = run("known", "add", bundle, *options)
    assert again.code == 2
    assert "exists; remove it" in again.err
