"""Bundles of others: every value of ``finding.json`` changed, and files that do not fit it."""

from __future__ import annotations

import copy
import datetime
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.commands import Run, run

from optvet.engine.bundle import replay, replay_bundle, write_bundles
from optvet.engine.discovery import Plugins
from optvet.engine.known.add import fault_from_bundle
from optvet.engine.known.documents import to_toml
from optvet.engine.models.sources import resolve_model
from optvet.engine.vet.run import vet_model
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.spec.errors import OptvetError
from optvet.spec.request import VetRequest

__all__ = ["run"]
# The axes of Pad are not in order, which fuse_pad_into_conv takes them to be.
WRONG = """<ir_version: 8, opset_import: ["" : 18]>
g (float[1,1,4,4] x, float[1] s) => (float[1,1,6,6] z)
<float[1,1,1,1] w = {1.5}, int64[8] pads = {0, 0, 0, 2, 0, 0, 2, 0}, float zero = {0},
 int64[4] axes = {0, 1, 3, 2}> {
    r = Mul(x, s)  q = Pad <mode = "constant"> (r, pads, zero, axes)
    y = Conv(q, w)  z = Sigmoid(y) }"""
GONE = object()
VALUES: tuple[Any, ...] = (
    *(GONE, None, -1, 0, 1e308, "x", "", "../../etc", [], {}, [["x"]], ["x"], {"x": "y"}, True),
    *(10**30, "\ud800", ["\ud800"], {"\ud800": "x"}, "torch:ev:U", "a" * 5000, "1.0\n[x]"),
)
PLUGINS = Plugins()
A_LEAF = 5
"""How many of the values each leaf is set to; the next leaf goes on with the next."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bundle")
    onnx.save(onnx.parser.parse_model(WRONG), place / "m.onnx")
    request = VetRequest(
        model=str(place / "m.onnx"),
        optimizer="onnxoptimizer",
        pipeline="fuse_pad_into_conv",
        limit=1,
        jobs=1,
        cache_dir=place / "cache",
    )
    (model,) = resolve_model(request.model, Plugins(), place)
    result = vet_model(model, request, Plugins())
    (made,) = write_bundles(result, request, place / "out", Plugins())
    return made.path


@pytest.fixture
def own(bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle, tmp_path / "own"))


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from paths_of(value[key], (*path, key))


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return {} if value is GONE else value
    document = copy.deepcopy(document)
    place = document
    for key in path[:-1]:
        place = place[key]
    if value is GONE:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return document


def change(bundle: Path, *path: Any, to: Any) -> object:
    file = bundle / "finding.json"
    return file.write_text(json.dumps(changed(json.loads(file.read_text()), path, to)))


def replayed(bundle: Path) -> None:
    replay_bundle(bundle, PLUGINS).to_json().encode()


def added(bundle: Path) -> None:
    to_toml(fault_from_bundle(bundle, PLUGINS, today=datetime.date(2026, 1, 31))).encode()


@pytest.mark.parametrize("use", [replayed, added])
def test_any_value_in_a_record_is_answered_or_refused(
    own: Path, use: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = json.loads((own / "finding.json").read_text())
    outcomes: Counter[str] = Counter()
    monkeypatch.setattr(replay, "observe", lambda *_, **__: SimpleNamespace(observed=None))
    with Sandbox(jobs=1, limits=Limits(60, 8 << 30), preload=()) as sandbox:
        monkeypatch.setattr(replay, "Sandbox", lambda **_: nullcontext(sandbox))
        for number, path in enumerate(paths_of(whole)):
            for step in range(A_LEAF):
                value = VALUES[(number * A_LEAF + step) % len(VALUES)]
                (own / "finding.json").write_text(json.dumps(changed(whole, path, value)))
                try:
                    use(own)
                    outcomes["answered"] += 1
                except OptvetError:
                    outcomes["refused"] += 1
                except Exception as error:
                    raise AssertionError(f"{path} as {str(value)[:40]!r}") from error
    assert outcomes["answered"] > 40
    assert outcomes["refused"] > 100


def arrays(**values: Any) -> Callable[[Path], None]:
    """Other inputs than the bundle has."""
    kept = {"x": np.ones((1, 1, 4, 4), np.float32), "s": np.ones(1, np.float32)}
    return lambda bundle: np.savez(bundle / "inputs.npz", **{**kept, **values})


def external(location: str, content: bytes | None = None) -> Callable[[Path], None]:
    """A weight that lies in another file."""

    def put(bundle: Path) -> None:
        model = onnx.load(bundle / "model.onnx")
        weight = model.graph.initializer[0]
        for field in ("raw_data", "float_data"):
            weight.ClearField(field)
        weight.data_location = onnx.TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=location)
        (bundle / "model.onnx").write_bytes(model.SerializeToString())
        if content is not None:
            (bundle / location).write_bytes(content)

    return put


def nothing(bundle: Path) -> None:
    """The bundle as it is."""


STILL, REFUSED, UNSUPPORTED = 1, 2, 5
EVIL: dict[str, tuple[Callable[[Path], object], int, str]] = {
    "as it is": (nothing, STILL, "STILL THERE"),
    "no such culprit": (lambda b: change(b, "finding", "culprit", to=["x"]), REFUSED, "among"),
    "another culprit": (
        lambda b: change(b, "finding", "culprit", to=["eliminate_deadend"]),
        REFUSED,
        "culprit 'eliminate_deadend' is not among its passes",
    ),
    "no such pass": (
        lambda b: [change(b, *path, to=["x"]) for path in (("passes",), ("finding", "culprit"))],
        REFUSED,
        "unknown pass 'x'",
    ),
    "names of inputs": (lambda b: change(b, "inputs", to=["a", "b"]), REFUSED, "does not run"),
    "an input twice": (lambda b: change(b, "inputs", to=["x", "x"]), REFUSED, "does not run"),
    "one input": (lambda b: change(b, "inputs", to=["x"]), REFUSED, "2 arrays, expected 1"),
    "samples": (lambda b: change(b, "samples", to=2), REFUSED, "2 arrays, expected 4"),
    "a scalar": (arrays(x=np.float32(1)), REFUSED, "does not run"),
    "texts": (arrays(x=np.array(["a"])), REFUSED, "does not run"),
    "complex": (arrays(x=np.ones(3, np.complex128)), UNSUPPORTED, "complex128"),
    "structures": (arrays(x=np.zeros(3, [("a", "f4"), ("b", "i4")])), REFUSED, "does not run"),
    "objects": (arrays(x=np.array([{}], object)), REFUSED, "cannot be read"),
    "more arrays": (arrays(y=np.ones(2)), REFUSED, "3 arrays, expected 2"),
    "no arrays": (lambda b: (b / "inputs.npz").unlink(), REFUSED, "cannot be read"),
    "noise for arrays": (lambda b: (b / "inputs.npz").write_bytes(b"PK\3\4x"), REFUSED, "read"),
    "noise as expected": (lambda b: (b / "expected.npz").write_bytes(b"x"), STILL, "STILL THERE"),
    "no versions": (lambda b: change(b, "versions", to={}), STILL, "STILL THERE"),
    "no model": (lambda b: (b / "model.onnx").unlink(), REFUSED, "model.onnx is missing"),
    "data missing": (external("w.bin"), REFUSED, "not in the model's folder"),
    "data outside": (external("../../../etc/passwd"), REFUSED, "outside of the model's folder"),
    "data short": (external("w.bin", b"12"), REFUSED, "has only 2"),
    "half a character": (lambda b: change(b, "model", to="\ud800"), REFUSED, "lone surrogate"),
}


@pytest.mark.parametrize("kind", EVIL)
def test_a_bundle_whose_files_do_not_fit_is_refused_in_one_line(
    run: Run, own: Path, kind: str
) -> None:
    put, code, words = EVIL[kind]
    put(own)
    done = run("replay", own)
    assert done.code == code, done.err
    assert words in " ".join((done.out + done.err).split())


FOR_KNOWN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no such culprit": (lambda b: change(b, "finding", "culprit", to=["x"]), "among its passes"),
    "no versions": (lambda b: change(b, "versions", to={}), "'' is no version"),
    "versions": (lambda b: change(b, "versions", "onnxoptimizer", to="a/b"), "is no version"),
    "no model": (lambda b: (b / "model.onnx").unlink(), "model.onnx is missing"),
    "data missing": (external("w.bin"), "not in the model's folder"),
    "data outside": (external("../../../etc/passwd"), "outside of the model's folder"),
    "data short": (external("w.bin", b"12"), "has only 2"),
    "noise": (lambda b: (b / "model.onnx").write_bytes(b"\x08" * 9), "expected an ONNX model"),
}


@pytest.mark.parametrize("kind", FOR_KNOWN)
def test_no_document_is_made_of_such_a_bundle(
    run: Run, own: Path, kind: str, tmp_path: Path
) -> None:
    put, words = FOR_KNOWN[kind]
    put(own)
    done = run("known", "add", own, "--out", tmp_path / "known")
    assert done.code == REFUSED, done.err
    assert words in " ".join(done.err.split())
    assert not (tmp_path / "known").exists()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("[1]", "no document of optvet"),
        ("{}", "'model': "),
        ('{"schema": "optvet.bisect/1", "releases": 3}', "answer.json"),
        (
            '{"schema": "optvet.bisect/1", "model": "m", "package": "onnxoptimizer", "optimizer":'
            ' "o", "predicate": "p", "releases": [], "installed": 0, "runs": 0, "seconds": 0}',
            "no release that is good or bad",
        ),
    ],
)
def test_a_partial_answer_of_bisect_dates_nothing(
    run: Run, own: Path, tmp_path: Path, answer: str, words: str
) -> None:
    (tmp_path / "answer.json").write_text(answer)
    out = tmp_path / "known"
    done = run("known", "add", own, "--out", out, "--answer", tmp_path / "answer.json")
    assert done.code == REFUSED, done.err
    assert words in " ".join(done.err.split())
    assert not out.exists()


def test_names_of_any_length_make_a_file(run: Run, own: Path, tmp_path: Path) -> None:
    change(own, "passes", to=["p" * 5000])
    change(own, "finding", "culprit", to=["p" * 5000])
    done = run("known", "add", own, "--out", tmp_path / "known")
    assert done.code == 0, done.err
    assert len(list((tmp_path / "known").iterdir())) == 1
