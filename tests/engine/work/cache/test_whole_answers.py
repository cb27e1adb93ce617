"""A whole answer is given again only while all that it depends on is as it was."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

from optvet.engine.discovery import Plugins
from optvet.engine.models.sources import resolve_model
from optvet.engine.vetting import vet_request
from optvet.engine.work.cache import whole_answers
from optvet.engine.work.cache.disk import Cache, cache_root
from optvet.spec.records import VetResult
from optvet.spec.request import VetRequest, request_of

Ask = Callable[..., VetRequest]
Keep = Callable[..., bool]
CLEAN = '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
OTHER = CLEAN.replace("Relu", "Sigmoid")


def write(path: Path, text: str) -> None:
    onnx.save(onnx.parser.parse_model(text), path)


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """A request about ``model.onnx``."""
    write(tmp_path / "model.onnx", CLEAN)

    def asked(**options: Any) -> VetRequest:
        given = {"model": str(tmp_path / "model.onnx"), "limit": 2, "jobs": 1, **options}
        return request_of(VetRequest, {"cache_dir": tmp_path / "cache", **given})

    return asked


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return Plugins()


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory, plugins: Plugins) -> VetResult:
    """An answer that was put together of kept parts."""
    folder = tmp_path_factory.mktemp("warm")
    write(folder / "model.onnx", CLEAN)
    given = {"model": str(folder / "model.onnx"), "cache_dir": folder, "limit": 2, "jobs": 1}
    request = request_of(VetRequest, given)
    assert vet_request(request, plugins, keep=True).cost.inferences > 0
    assert recalled(request) is None, "a process took part in it"
    answer = vet_request(request, plugins, keep=True)
    assert content(recalled(request)) == content(answer)
    assert recalled(request.model_copy(update={"seed": 1})) is None
    return answer


@pytest.fixture
def keep(warm: VetResult, plugins: Plugins) -> Callable[..., bool]:
    """Keeps that answer for a request about a model of the same bytes; whether it was kept."""

    def kept(request: VetRequest, by: Plugins = plugins) -> bool:
        root = request.cache_dir or cache_root()
        (model,) = resolve_model(request.model, plugins, root)
        with Cache(root) as cache:
            whole_answers.keep(request, warm, model, by, cache)
        return recalled(request) is not None

    return kept


def recalled(request: VetRequest) -> VetResult | None:
    return whole_answers.recall(request, request.cache_dir or cache_root())


def content(result: VetResult | None) -> dict[str, Any] | None:
    return None if result is None else result.model_dump(exclude={"cost": {"wall_s"}})


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: write(folder / "model.onnx", OTHER),
        lambda folder: (folder / "model.toml").write_text('task = "image-classification"\n'),
        lambda folder: (folder / "models.json").write_text("[]"),
        lambda folder: (folder.parent / "models.json").write_text("[]"),
        lambda folder: (folder / "model.onnx").unlink(),
    ],
    ids=["other bytes", "record", "catalogue", "catalogue above", "no model"],
)
def test_a_model_that_changed_is_vetted_anew(
    ask: Ask, keep: Keep, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    shutil.copy(tmp_path / "model.onnx", folder)
    request = ask(model=str(folder / "model.onnx"))
    assert keep(request)
    change(folder)
    assert recalled(request) is None


def test_another_version_of_anything_installed_is_another_answer(
    ask: Ask, keep: Keep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    record = site / "lib-1.0.dist-info" / "RECORD"
    record.parent.mkdir(parents=True)
    (record.parent / "METADATA").write_text("Metadata-Version: 2.1\nName: lib\nVersion: 1.0\n")
    record.write_text("lib/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(site))
    request = ask()
    assert keep(request)
    record.write_text("lib/__init__.py,,\nlib/more.py,,\n")
    assert recalled(request) is None
    record.write_text("lib/__init__.py,,\n")
    os.utime(record, ns=(1, 1))
    assert recalled(request) is None


def test_with_the_plugin_of_a_third_party_nothing_is_given_whole(
    ask: Ask, keep: Keep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ask()
    assert keep(request)
    info = tmp_path / "site" / "elsewhere-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[optvet]\nelsewhere = optvet_elsewhere\n")
    (info.parent / "optvet_elsewhere.py").write_text("")
    monkeypatch.syspath_prepend(str(info.parent))
    assert recalled(request) is None
    assert not keep(request)


def test_an_edited_file_of_optvet_or_of_its_plugins_is_another_answer(
    ask: Ask, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ask()
    assert keep(request)
    about = whole_answers._about
    for edited in ("engine/vet/run.py", "optvet_random/values.py"):
        with monkeypatch.context() as patch:
            patch.setattr(
                whole_answers,
                "_about",
                lambda p, e=edited: (p, 0, 0) if p.endswith(e) else about(p),
            )
            assert recalled(request) is None, edited
        assert recalled(request) is not None


@pytest.mark.parametrize(
    "options",
    [
        {"dataset": "files:inputs.npz"},
        {"optimizer_options": {"fixed_point": True}},
        {"runtime_options": {"threads": 1}},
        {"measure": True},
        {"cache": False},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_may_rest_on_files_devices_or_the_time_is_not_kept(
    ask: Ask, keep: Keep, options: dict[str, Any]
) -> None:
    assert not keep(ask(**options))


def test_what_a_plugin_registered_by_hand_answered_is_not_kept(
    ask: Ask, keep: Keep, plugins: Plugins
) -> None:
    other = plugins.extend("optimizer", plugins.optimizer(plugins.default("optimizer")))
    assert (plugins.installed, other.installed) == (True, False)
    assert not keep(ask(), other)


@pytest.mark.parametrize(
    "forged",
    [b"{}", b"[" * 100_000, b'{"file": 3}', b""],
)
def test_a_damaged_answer_is_no_answer(
    ask: Ask, keep: Keep, warm: VetResult, forged: bytes
) -> None:
    request = ask()
    assert keep(request)
    (index,) = Path(request.cache_dir or "").glob("index-*.sqlite3")
    with sqlite3.connect(index) as database:
        row = (forged, hashlib.sha256(forged).digest())
        done = database.execute("UPDATE entries SET value=?, digest=? WHERE kind='answer'", row)
        assert done.rowcount == 1
    database.close()
    assert recalled(request) is None
    assert keep(request)
    assert content(recalled(request)) == content(warm)


def test_the_command_answers_from_the_cache_without_onnx_and_plugins(
    ask: Ask, tmp_path: Path
) -> None:
    command = (
        "import json, sys; from optvet_start import main; code = main(); "
        "loaded = [m for m in ('numpy', 'onnx', 'scipy') if m in sys.modules]; "
        "loaded += [m for m in sys.modules if m.startswith('optvet_') and m != 'optvet_start']; "
        "print(json.dumps([code, loaded]), file=sys.stderr)"
    )
    model, cache = ask().model, str(tmp_path / "cache")
    words = [sys.executable, "-c", command, "vet", model, "--limit", "2", "--cache-dir", cache]
    ran = [subprocess.run(words, capture_output=True, text=True, timeout=120) for _ in range(3)]
    (*_, second), (*_, third) = (r.stderr.splitlines() for r in ran[1:])
    assert json.loads(second)[1] != []
    assert json.loads(third) == [0, []]
    told = [[line for line in r.stdout.splitlines() if "cost" not in line] for r in ran[1:]]
    assert told[0] == told[1]


@pytest.mark.long
def test_python_is_answered_so_too(ask: Ask, tmp_path: Path) -> None:
    code = (
        "import json, sys, optvet; "
        "result = optvet.vet(sys.argv[1], limit=2, cache_dir=sys.argv[2], dataset='random'); "
        "loaded = [m for m in ('numpy', 'onnx') if m in sys.modules]; "
        "print(json.dumps([result.verdict, result.cost.inferences, loaded]))"
    )
    words = [sys.executable, "-c", code, ask().model, str(tmp_path / "cache")]
    ran = [subprocess.run(words, capture_output=True, text=True, timeout=120) for _ in range(3)]
    first, second, third = (json.loads(r.stdout) for r in ran)
    assert (first[0], first[1] > 0) == ("clean", True)
    assert second == ["clean", 0, ["numpy", "onnx"]]
    assert third == ["clean", 0, []]
