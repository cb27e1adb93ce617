"""Releases: what is written, refused and told of dependencies."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

import optvet

ROOT = Path(__file__).parent.parent
CI = ROOT / ".ci"
CHANGES = "# Changelog\n\n## 0.2.0 (unreleased)\n\n- New.\n\n## 0.1.0 (2020-01-01)\n\n- Old.\n"


def script(name: str) -> Any:
    """A script of ``.ci`` as a module."""
    loader = SourceFileLoader(f"ci_{name.removesuffix('.py')}", str(CI / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_citation_is_of_this_version() -> None:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML, of the extra dev")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == optvet.__version__
    assert citation["authors"] == [{"name": "The optvet developers"}]


def test_every_dependency_is_told_with_a_licence_that_spdx_knows() -> None:
    licenses = pytest.importorskip("packaging.licenses", reason="needs packaging 24.2")
    found = script("sbom.py").document(["all"])
    packages = {p["name"]: p for p in found["packages"]}
    assert {"optvet", "onnx", "numpy", "onnxruntime"} <= packages.keys()
    assert "pytest" not in packages  # of the extra dev
    assert packages["onnx"]["licenseDeclared"] == "Apache-2.0"
    told = {p["licenseDeclared"] for p in packages.values()} - {"NOASSERTION"}
    assert {t: licenses.canonicalize_license_expression(t) for t in told} == {t: t for t in told}
    unknown = [p for p in packages.values() if p["licenseDeclared"] == "NOASSERTION"]
    assert [p["name"] for p in unknown if not p.get("licenseComments")] == []
    names = {p["SPDXID"] for p in packages.values()}
    assert len(names) == len(packages)
    assert all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", n) for n in names)
    arrows = {(r["spdxElementId"], r["relatedSpdxElement"]) for r in found["relationships"]}
    assert ("SPDXRef-optvet", "SPDXRef-onnx") in arrows
    assert ("SPDXRef-DOCUMENT", "SPDXRef-optvet") in arrows
    assert {end for arrow in arrows for end in arrow} <= names | {"SPDXRef-DOCUMENT"}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"License-Expression": "MIT OR apache-2.0"}, ("MIT OR Apache-2.0", "")),
        ({"License": "Apache License 2.0"}, ("Apache-2.0", "")),
        ({"Classifier": "License :: OSI Approved :: MIT License"}, ("MIT", "")),
        (
            {"License": "BSD", "Classifier": "License :: OSI Approved :: BSD License"},
            ("NOASSERTION", "BSD; BSD License"),
        ),
        ({}, ("NOASSERTION", "")),
    ],
)
def test_a_licence_is_told_only_where_it_is_one(
    metadata: dict[str, str], expected: tuple[str, str]
) -> None:
    pytest.importorskip("packaging.licenses", reason="needs packaging 24.2")
    from email.message import Message

    message = Message()
    for key, value in metadata.items():
        message[key] = value
    assert script("sbom.py").licence(message) == expected


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with the files that a release writes, and packages that are made at once."""
    place = tmp_path / "checkout"
    (place / "core" / "optvet").mkdir(parents=True)
    (place / ".ci").mkdir()
    (place / "core" / "optvet" / "__init__.py").write_text('__version__ = "0.1.0"\n')
    (place / "CHANGELOG.md").write_text(CHANGES)
    (place / "CITATION.cff").write_text("version: 0.1.0\ndate-released: 2020-01-01\n")
    home = "https://github.com/optvet/optvet"
    (place / "pyproject.toml").write_text(f'[project.urls]\nRepository = "{home}"\n')
    (place / ".ci" / "release").write_text((CI / "release").read_text())
    smoke = place / ".ci" / "smoke"
    smoke.write_text(
        '#!/bin/sh\nset -e\nmkdir -p "$DIST"\necho "$@" > "$DIST/tried"\n'
        "version=$(sed -n 's/.*\"\\(.*\\)\"/\\1/p' core/optvet/__init__.py)\n"
        'touch "$DIST/optvet-$version.tar.gz" "$DIST/optvet-$version-py3-none-any.whl"\n'
        'touch "$DIST/sbom.spdx.json"\n'
    )
    smoke.chmod(0o755)
    git(place, "init", "--quiet", "--initial-branch", "main")
    git(place, "remote", "add", "origin", "git@github.com:optvet/optvet.git")
    commit(place)
    return place


def git(place: Path, *words: str) -> str:
    own = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    done = subprocess.run(
        ["git", *own, *words], cwd=place, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def commit(place: Path) -> None:
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "--message", "Change")


def release(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    dist = str(place.parent / "dist")
    return subprocess.run(
        [sys.executable, ".ci/release", *words, "--dist", dist],
        cwd=place,
        env=os.environ | {"SOURCE_DATE_EPOCH": "1600000000", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_release_writes_version_and_date_and_tags(checkout: Path) -> None:
    done = release(checkout, "0.2.0")
    assert done.returncode == 0, done.stderr
    assert git(checkout, "log", "-1", "--format=%s", "v0.2.0") == "Release 0.2.0"
    assert git(checkout, "status", "--porcelain") == ""
    assert '"0.2.0"' in (checkout / "core" / "optvet" / "__init__.py").read_text()
    assert "## 0.2.0 (2020-09-13)\n\n- New." in (checkout / "CHANGELOG.md").read_text()
    citation = (checkout / "CITATION.cff").read_text()
    assert citation == "version: 0.2.0\ndate-released: 2020-09-13\n"
    dist = checkout.parent / "dist"
    assert (dist / "notes.md").read_text() == "- New.\n"
    assert (dist / "tried").read_text() == "every\n"
    again = release(checkout, "0.2.0")
    assert (again.returncode, again.stdout) == (1, "refused: there is a tag v0.2.0\n")


def test_a_dry_run_changes_nothing(checkout: Path) -> None:
    before = git(checkout, "rev-parse", "HEAD")
    git(checkout, "remote", "remove", "origin")
    done = release(checkout, "0.2.0", "--dry-run", "--extras", "bare")
    assert done.returncode == 0, done.stderr
    assert "would be refused: [project.urls] says" in done.stdout
    assert "optvet-0.2.0-py3-none-any.whl" in done.stdout
    assert git(checkout, "rev-parse", "HEAD") == before
    assert git(checkout, "tag", "--list") == git(checkout, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.2", "'0.2' is no version"),
        ("0.3.0", "write a section '## 0.3.0 (unreleased)'"),
    ],
)
def test_a_version_without_its_changes_is_refused(checkout: Path, version: str, words: str) -> None:
    done = release(checkout, version)
    assert done.returncode == 1
    assert words in done.stdout + done.stderr
    assert git(checkout, "status", "--porcelain") == ""


def test_uncommitted_changes_and_other_branches_are_refused(checkout: Path) -> None:
    git(checkout, "switch", "--quiet", "--create", "other")
    (checkout / "new").touch()
    told = release(checkout, "0.2.0").stdout
    assert (
        told == "refused: there are uncommitted changes\nrefused: the branch is 'other', not main\n"
    )


def test_the_workflow_uploads_what_it_built_and_attested() -> None:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML, of the extra dev")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    build, upload = workflow["jobs"]["build"], workflow["jobs"]["upload"]
    runs = [step.get("run", "") for step in build["steps"]]
    assert ".ci/smoke every" in runs
    used = [step.get("uses", "").partition("@")[0] for step in build["steps"]]
    assert used.index("actions/attest-build-provenance") < used.index("actions/upload-artifact")
    assert upload["needs"] == "build"
    # Trusted publishing: the job may ask who it is, and holds no secret.
    assert upload["permissions"] == {"id-token": "write"}
    assert "secrets." not in json.dumps(workflow)
    (check,) = (r for r in runs if r.startswith("grep"))
    for tag, code in ((f"v{optvet.__version__}", 0), ("v9.9.9", 1)):
        done = subprocess.run(
            ["bash", "-c", check], cwd=ROOT, env=os.environ | {"GITHUB_REF_NAME": tag}, check=False
        )
        assert done.returncode == code
