from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import onnx
import onnx.parser
import pytest

import optvet
from optvet.engine.work.cache import environment_fingerprint, modified_installs
from optvet.spec.errors import UsageError
from optvet.spec.records import VetResult

MODEL = """<ir_version: 8, opset_import: ["" : 18]>
g (float[2] x) => (float[2] y) { a = Identity(x)  y = Relu(a) }"""


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    forget()
    yield
    forget()


def forget() -> None:
    """A new process knows nothing of what was installed when the last one started."""
    known = (
        environment_fingerprint.version_and_digest,
        environment_fingerprint._builds,
        environment_fingerprint._source,
        modified_installs.modified_code_digest,
        modified_installs.owners_of,
        modified_installs._listings,
    )
    for function in known:
        function.cache_clear()


def vetted(folder: Path) -> VetResult:
    forget()
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    settings = {"pipeline": "eliminate_identity", "limit": 1, "jobs": 1}
    return optvet.vet(str(path), cache_dir=folder / "cache", **settings)  # type: ignore[arg-type]


def pretend(distribution: str, version: str, folder: Path) -> None:
    """Metadata of another version, which is found before what is really installed."""
    place = folder / f"{distribution}-{version}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    )
    (place / "RECORD").write_text("")
    if distribution == "optvet":  # it registers the plugins
        registered = metadata.distribution(distribution).read_text("entry_points.txt")
        (place / "entry_points.txt").write_text(registered or "")


@pytest.mark.parametrize(
    "distribution",
    ["onnx", "numpy", "onnxruntime", "onnxoptimizer", "optvet"],
)
def test_nothing_is_remembered_under_another_version_of_what_it_rests_on(
    distribution: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert vetted(tmp_path).cost.inferences > 0
    again = vetted(tmp_path).cost
    assert (again.inferences, again.applications) == (0, 0)
    pretend(distribution, "99.0", tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert vetted(tmp_path).cost.inferences > 0


def test_another_build_of_one_version_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for build in ("release", "nightly"):
        pretend("acme", "1.0", tmp_path / build)
        (tmp_path / build / "acme-1.0.dist-info" / "RECORD").write_text(f"acme.so,sha256={build},")
    found = []
    for build in ("release", "nightly"):
        with monkeypatch.context() as patch:
            patch.syspath_prepend(tmp_path / build)
            environment_fingerprint.version_and_digest.cache_clear()
            found.append(environment_fingerprint.version_and_digest("acme"))
    assert len(set(found)) == 2
    assert all(name.startswith("1.0 ") for name in found)
    assert "acme" not in sys.modules


def test_every_distribution_of_a_module_is_found() -> None:
    for module, names in metadata.packages_distributions().items():
        assert set(names) <= set(modified_installs.owners_of(module)), module


def test_an_answer_from_the_cache_starts_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = vetted(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    again = vetted(tmp_path)
    assert (again.verdict, again.findings) == (first.verdict, first.findings)
    monkeypatch.undo()
    options = {"providers": ["NoSuchProvider"]}
    with pytest.raises(UsageError, match="NoSuchProvider"):
        optvet.vet(
            str(tmp_path / "model.onnx"), runtime_options=options, cache_dir=tmp_path / "cache"
        )


@pytest.mark.long
def test_a_library_that_was_rebuilt_in_place_is_another_one(tmp_path: Path) -> None:
    library = find_spec("onnxoptimizer")
    assert library is not None
    assert library.origin is not None
    checkout = tmp_path / "checkout" / "onnxoptimizer"
    shutil.copytree(Path(library.origin).parent, checkout)
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")

    def inferences() -> int:
        command = [sys.executable, "-m", "optvet_start", "vet", "model.onnx", "--json", "-"]
        command += ["--cache-dir", "cache", "--optimizer", "onnxoptimizer", "--limit", "1"]
        path = os.pathsep.join([str(checkout.parent), os.environ.get("PYTHONPATH", "")])
        told = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            check=True,
        )
        return int(json.loads(told.stdout)["cost"]["inferences"])

    assert inferences() > 0
    assert [inferences() for _ in range(2)] == [0, 0]
    with (checkout / "__init__.py").open("a") as file:
        file.write("# rebuilt\n")
    assert inferences() > 0


def test_only_code_that_is_not_as_it_was_installed_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "acme_tool"
    package.mkdir()
    code, data = package / "__init__.py", package / "table.txt"
    code.write_text("a = 1\n")
    data.write_text("1\n")
    pretend("acme_tool", "1.0", tmp_path)
    record = tmp_path / "acme_tool-1.0.dist-info" / "RECORD"
    own = record.relative_to(tmp_path)
    record.write_text(f"acme_tool/__init__.py,sha256=x,6\n{own},,\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = [modified_installs.modified_code_digest("acme_tool")]
    data.write_text("2\n")
    forget()
    found.append(modified_installs.modified_code_digest("acme_tool"))
    code.write_text("a = 22\n")
    forget()
    found.append(modified_installs.modified_code_digest("acme_tool"))
    os.utime(code, ns=(0, code.stat().st_mtime_ns + 120 * 10**9))
    forget()
    found.append(modified_installs.modified_code_digest("acme_tool"))
    assert found[:2] == ["", ""]
    assert "" not in found[2:]
    assert found[2] != found[3]
    assert "acme_tool" not in sys.modules


def test_an_edited_module_of_a_plugins_package_is_another_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package_of_a_plugin"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("LIMIT = 1\n")
    (package / "main.py").write_text("class Plugin:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugin = importlib.import_module("package_of_a_plugin.main").Plugin
    before = environment_fingerprint._source(plugin)
    forget()
    assert environment_fingerprint._source(plugin) == before
    forget()
    (package / "helper.py").write_text("LIMIT = 2\n")
    assert environment_fingerprint._source(plugin) != before


def test_the_setting_of_confinement_is_asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for folder in ("/somewhere", "/elsewhere", "/somewhere"):
        monkeypatch.setenv("OPTVET_CONFINE", folder)
        found.append(environment_fingerprint.fingerprint_environment())
    assert found[0] == found[2] != found[1]
