from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import pytest

from optvet.engine.discovery import Plugins
from optvet.engine.environment import checks, doctor, machine
from optvet.engine.environment.import_plan import ImportPlan
from optvet.engine.plugin_entries import Loaded
from optvet.engine.work.sandbox import Sandbox
from optvet.plugin import Check, Collision, Installation, MissingLibrary, Unimportable, Unmet
from optvet.spec.records import STATUSES


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=1) as shared:
        yield shared


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_cures_are_commands_of_what_installed_optvet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installer: str
) -> None:
    info = tmp_path / "optvet-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: optvet\nVersion: 1\nRequires-Dist: absent-library\n"
    )
    (info / "INSTALLER").write_text(f"{installer}\n")
    found = doctor.diagnose([], tmp_path, tmp_path, installed=[PathDistribution(info)])
    (check,) = [c for c in found.checks if c.status == "broken"]
    uv = "uv " if installer == "uv" else ""
    assert check.cure == f"{uv}pip install 'absent-library'"


def test_other_collisions_are_warnings() -> None:
    (check,) = checks.check_collisions([Collision(("a", "b"), ("1", "2"), (1, 0, 0), "f")], "pip")
    assert (check.status, "a 1 and b 2 both own f; those of a" in check.message) == (
        "warning",
        True,
    )


def test_what_is_wrong_with_packages_is_broken_and_has_a_cure() -> None:
    found = [
        *checks.check_duplicates({"onnxruntime": ["1", "2"]}, "pip"),
        *checks.check_usurpers({"evil": ["optvet_zoo"]}, "pip"),
        *checks.check_requirements(
            [Unmet("onnx", "1.23", "protobuf>=4", "protobuf", "3.2")], "pip"
        ),
    ]
    assert [c.status for c in found] == ["broken"] * 3
    assert all("pip" in c.cure for c in found)
    assert found[2].message == "onnx 1.23 needs protobuf>=4; 3.2 is installed"


def test_a_folder_that_hides_a_library_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "onnx.py").touch()
    (tmp_path / "tvm").touch()
    found = checks.check_shadows(tmp_path, ["onnx", "torch", "tvm"])
    assert [(c.status, c.about) for c in found] == [("warning", ("onnx",)), ("warning", ("torch",))]


def test_the_sandbox_recovers_from_a_crash(sandbox: Sandbox) -> None:
    assert machine.check_sandbox(sandbox).status == "ok"


def test_a_library_that_cannot_be_imported_is_told(sandbox: Sandbox) -> None:
    modules = {"numpy": "numpy", "nosuch-library": "nosuch_library"}
    failed = checks.import_all(sandbox, modules, lambda text, done, total: None)
    versions = {"numpy": "2", "nosuch-library": "1"}
    required, optional = (
        checks.check_imports(failed, versions, names, 2, "pip")
        for names in ({"nosuch-library"}, ())
    )
    assert [c.status for c in required] == ["broken", "ok"]
    assert [c.status for c in optional] == ["warning", "ok"]
    assert "No module named 'nosuch_library'" in required[0].message
    assert required[1].message == "1 libraries can be imported"


@pytest.mark.long
@pytest.mark.parametrize("groups", [0, 1, 2])
def test_imports_are_tried_together_and_what_fails_again_without_what_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: int
) -> None:
    (tmp_path / "optvet_kills.py").write_text("import os\nos.abort()\n")
    (tmp_path / "optvet_raises.py").write_text("raise OSError('no such thing')\n")
    # It fails only where optvet_first was imported before it.
    (tmp_path / "optvet_first.py").touch()
    (tmp_path / "optvet_second.py").write_text(
        "import sys\nassert 'optvet_first' not in sys.modules\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    names = ["first", "kills", "second", "raises", "numpy"]
    modules = {n: n if n == "numpy" else f"optvet_{n}" for n in names}
    plan = ImportPlan([names[i::groups] for i in range(groups)], {}) if groups else None
    with Sandbox() as fresh:
        failed = checks.import_all(fresh, modules, lambda text, done, total: None, plan)
    assert sorted(failed) == ["kills", "raises"]
    assert failed["raises"] == Unimportable("OSError: no such thing", ("optvet_raises",))
    assert "SIGABRT" in failed["kills"].reason


def test_what_fails_after_its_own_needs_alone_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "optvet_base.py").touch()
    count = tmp_path / "count"
    (tmp_path / "optvet_above.py").write_text(
        f"open({str(count)!r}, 'a').write('tried ')\nraise OSError('no such thing')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    modules = {"base": "optvet_base", "above": "optvet_above"}
    plan = ImportPlan([list(modules)], {"above": frozenset({"base", "above"})})
    with Sandbox() as fresh:
        failed = checks.import_all(fresh, modules, lambda text, done, total: None, plan)
    assert list(failed) == ["above"]
    assert count.read_text() == "tried "


class Careful:
    """A plugin that knows something of its library."""

    name = "careful"
    libraries: Mapping[str, str] = {"Acme_Lib": "acme"}

    def diagnose(self, installation: Installation) -> Iterable[Check]:
        ran = installation.run(os.getpid)
        elsewhere = ran.value not in (None, os.getpid())
        yield Check(name="acme", status="ok" if elsewhere else "broken", message="ran elsewhere")
        yield Check(
            name="working directory",
            status="broken",
            message="acme wipes that folder",
            cure="move it",
            about=("acme",),
        )


def test_a_plugin_s_diagnosis_stands_beside_or_in_place_of_the_engine_s(tmp_path: Path) -> None:
    (tmp_path / "acme").mkdir()
    plugins = [Loaded("optimizer", "careful", "careful (acme 1)", Careful())]
    found = doctor.diagnose(plugins, tmp_path / "cache", tmp_path, installed=[])
    assert found.libraries["acme-lib"] is None
    told = {c.message: c.status for c in found.checks if c.name in ("acme", "working directory")}
    assert told == {"ran elsewhere": "ok", "acme wipes that folder": "broken"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda self, installation: None, "diagnose() gave None, expected an iterable of Check"),
        (lambda self, installation: ["bad"], "diagnose() gave str, expected Check"),
        (lambda self, installation: 1 // 0, "diagnose() raised ZeroDivisionError: "),
    ],
    ids=["nothing", "texts", "an error"],
)
def test_a_diagnosis_that_is_none_is_that_plugin_s_fault(
    tmp_path: Path, given: Callable[..., Any], words: str
) -> None:
    wrong = type("Wrong", (), {"name": "wrong", "diagnose": given})()
    plugins = [Loaded("runtime", "wrong", "wrong (acme 1)", wrong)]
    found = doctor.diagnose(plugins, tmp_path / "cache", tmp_path, installed=[])
    (check,) = [c for c in found.checks if c.status == "broken"]
    assert check.message.startswith(f"runtime 'wrong' (wrong (acme 1)): {words}")


def test_absent_libraries_are_no_fault_but_broken_plugins_are() -> None:
    absent = MissingLibrary("apache-tvm", "optvet[tvm]")
    plugins = [
        Loaded("optimizer", "a", "a (optvet 1)", problem=str(absent), absent=absent),
        Loaded("runtime", "b", "b (optvet 1)", problem=str(absent), absent=absent),
        Loaded(None, "c", "c (acme 1)", problem="SyntaxError: bad"),
        Loaded("dataset", "d", "d (optvet 1)"),
        Loaded("model source", "e", "e (optvet 1)", lacks=("tvm_ffi", "apache_tvm")),
    ]
    told = {c.status: c for c in checks.check_plugins(plugins, "pip")}
    assert set(told) == {"absent", "broken", "ok"}
    assert told["absent"].message == (
        "not installed: optimizer a, runtime b; can do more: model source e"
    )
    assert told["absent"].cure == "pip install 'optvet[tvm]'"
    assert "c (acme 1)" in told["broken"].message


def test_the_cache_must_be_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.check_cache(tmp_path / "cache").status == "ok"
    (tmp_path / "file").touch()
    assert machine.check_cache(tmp_path / "file" / "cache").status == "broken"
    monkeypatch.setattr(machine, "FREE_BYTES", 1 << 62)
    assert machine.check_cache(tmp_path / "cache").status == "warning"


@pytest.mark.long
def test_this_environment_is_diagnosed(tmp_path: Path) -> None:
    found = doctor.diagnose(Plugins().all(), tmp_path / "cache", tmp_path)
    assert found.libraries["numpy"] is not None
    assert found.libraries["onnxruntime"] is not None
    assert f"{len(os.sched_getaffinity(0))} of" in found.environment["processor"]
    assert [c.status for c in found.checks] == sorted(
        (c.status for c in found.checks), key=STATUSES.index
    )
    assert found.broken == any(c.status == "broken" for c in found.checks)
