from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from optvet.engine import doctor
from optvet.engine.discovery import Loaded, Plugins
from optvet.engine.packages import Collision, Unmet
from optvet.engine.sandbox import Sandbox

BOTH = ("onnxruntime", "onnxruntime-gpu")
FORCED = "pip install --force-reinstall --no-deps"
REPAIR = f"{FORCED} onnxruntime-gpu==1.2"
VERSIONS = {"onnxruntime": "1.2", "onnxruntime-gpu": "1.2"}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=1) as shared:
        yield shared


@pytest.mark.parametrize(
    ("on_disk", "version", "status"),
    [
        ((0, 3, 0), "1.2", "ok"),
        ((3, 0, 0), "1.2", "broken"),
        ((1, 2, 0), "1.2", "broken"),
        ((0, 3, 0), "1.3", "warning"),
        ((3, 0, 0), "1.3", "broken"),
    ],
)
def test_files_of_the_gpu_wheel_must_be_in_place(
    on_disk: tuple[int, int, int], version: str, status: str
) -> None:
    collision = Collision(BOTH, (version, "1.2"), on_disk, "state.so")
    (check,) = doctor.check_wheels([collision], VERSIONS | {"onnxruntime": version})
    assert check.status == status
    both = f"{FORCED} onnxruntime==1.2 &&\n{REPAIR}"
    assert check.cure == ("" if status == "ok" else REPAIR if version == "1.2" else both)


def test_a_missing_requirement_is_not_cured_by_breaking_another() -> None:
    unmet = Unmet("optvet", "1", "onnxruntime>=1", None)
    (alone,) = doctor.check_requirements([unmet], {})
    (beside,) = doctor.check_requirements([unmet], {"onnxruntime-gpu": "1.2"})
    assert alone.cure == "pip install 'onnxruntime>=1'"
    assert beside.cure == f"{FORCED} onnxruntime==1.2 &&\n{REPAIR}"


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
    (check,) = doctor.check_wheels([Collision(("a", "b"), ("1", "2"), (1, 0, 0), "f")], {})
    assert (check.status, "a 1 and b 2 both own f; those of a" in check.message) == (
        "warning",
        True,
    )


def test_what_is_wrong_with_packages_is_broken_and_has_a_cure() -> None:
    checks = [
        *doctor.check_duplicates({"onnxruntime": ["1", "2"]}),
        *doctor.check_usurpers({"evil": ["optvet_zoo"]}),
        *doctor.check_requirements([Unmet("onnx", "1.23", "protobuf>=4", "3.2")], {}),
        *doctor.check_known({"apache-tvm-ffi": "0.1.15.post2"}),
    ]
    assert [c.status for c in checks] == ["broken"] * 4
    assert all("pip" in c.cure for c in checks)
    assert checks[2].message == "onnx 1.23 needs protobuf>=4; 3.2 is installed"
    assert doctor.check_known({"apache-tvm-ffi": "0.1.14.post0"}) == []


def test_a_folder_that_hides_a_library_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "onnx.py").touch()
    (tmp_path / "tvm").touch()
    checks = doctor.check_shadows(tmp_path)
    assert [c.status for c in checks] == ["warning", "warning"]
    assert "TVM cannot be imported" in checks[1].message


def test_the_sandbox_recovers_from_a_crash(sandbox: Sandbox) -> None:
    assert doctor.check_sandbox(sandbox).status == "ok"


def test_a_library_that_cannot_be_imported_is_told(sandbox: Sandbox) -> None:
    found = {"numpy": "2", "nosuch-library": "1", "absent": None}
    checks = doctor.check_imports(sandbox, found, lambda text, done, total: None)
    assert [c.status for c in checks] == ["broken", "ok"]
    assert "No module named 'nosuch_library'" in checks[0].message


def test_nodes_really_run_on_the_cpu(sandbox: Sandbox) -> None:
    checks = doctor.check_providers(sandbox, {"onnxruntime": "1"})
    assert ("ok", "CPUExecutionProvider runs nodes") in [(c.status, c.message) for c in checks]


def test_a_gpu_wheel_without_its_provider_is_broken(sandbox: Sandbox) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has a provider for CUDA")
    checks = doctor.check_providers(sandbox, VERSIONS)
    assert [c.cure for c in checks if c.status == "broken"] == [REPAIR]


def test_absent_libraries_are_no_fault_but_broken_plugins_are() -> None:
    plugins = [
        Loaded("optimizer", "a", "a (optvet 1)", problem="ImportError: install optvet[tvm]"),
        Loaded("runtime", "b", "b (optvet 1)", problem="ImportError: install optvet[tvm]"),
        Loaded(None, "c", "c (acme 1)", problem="SyntaxError: bad"),
        Loaded("dataset", "d", "d (optvet 1)"),
        Loaded("model source", "e", "e (optvet 1)", lacks=("tvm_ffi", "apache_tvm")),
    ]
    checks = {c.status: c for c in doctor.check_plugins(plugins)}
    assert set(checks) == {"absent", "broken", "ok"}
    assert checks["absent"].message == (
        "not installed: optimizer a, runtime b; can do more: model source e"
    )
    assert checks["absent"].cure == "pip install 'optvet[tvm]'"
    assert "c (acme 1)" in checks["broken"].message


def test_the_cache_must_be_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_cache(tmp_path / "cache").status == "ok"
    (tmp_path / "file").touch()
    assert doctor.check_cache(tmp_path / "file" / "cache").status == "broken"
    monkeypatch.setattr(doctor, "FREE_BYTES", 1 << 62)
    assert doctor.check_cache(tmp_path / "cache").status == "warning"


def test_this_environment_is_diagnosed(tmp_path: Path) -> None:
    found = doctor.diagnose(Plugins().all(), tmp_path / "cache", tmp_path)
    assert found.libraries["numpy"] is not None
    assert f"{len(os.sched_getaffinity(0))} of" in found.environment["processor"]
    assert [c.status for c in found.checks] == sorted(
        (c.status for c in found.checks), key=doctor.STATUSES.index
    )
    assert found.broken == any(c.status == "broken" for c in found.checks)
