from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from optvet.engine.environment.packages import collisions, duplicates, unmet, usurpers
from optvet.spec.environment import Unmet

Install = Callable[..., Distribution]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Writes a distribution as pip does: the last one to write a file wins."""

    def install(
        name: str, version: str, files: Mapping[str, str], requires: Sequence[str] = ()
    ) -> Distribution:
        rows = []
        for file, content in files.items():
            path = tmp_path / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest())
            rows.append(f"{file},sha256={digest.decode().rstrip('=')},{len(content)}")
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/RECORD,,"]))
        needs = "".join(f"Requires-Dist: {r}\n" for r in requires)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
        )
        return PathDistribution(info)

    return install


def test_the_last_of_two_that_write_one_file_wins(install: Install) -> None:
    gpu = install(
        "ort-gpu", "1", {"ort/state.so": "gpu", "ort/__init__.py": "same", "ort/cuda.so": ""}
    )
    cpu = install("ort", "1", {"ort/state.so": "cpu", "ort/__init__.py": "same"})
    (found,) = collisions([gpu, cpu], {"ort"})
    assert found.names == ("ort", "ort-gpu")
    assert (found.winner, found.on_disk, found.example) == ("ort", (1, 0, 0), "state.so")


def test_files_of_both_are_mixed(install: Install, tmp_path: Path) -> None:
    gpu = install("ort-gpu", "1", {"ort/a": "gpu a", "ort/b": "gpu b"})
    cpu = install("ort", "1", {"ort/a": "cpu a", "ort/b": "cpu b"})
    (tmp_path / "ort" / "a").write_text("gpu a")
    (found,) = collisions([gpu, cpu], {"ort"})
    assert (found.winner, found.on_disk) == (None, (1, 1, 0))
    (tmp_path / "ort" / "a").unlink()
    assert collisions([gpu, cpu], {"ort"})[0].on_disk == (1, 0, 1)


def test_files_that_agree_or_concern_nobody_are_no_collision(install: Install) -> None:
    one = install("one", "1", {"LICENSE": "1", "same": "x"})
    two = install("two", "1", {"LICENSE": "2", "same": "x"})
    assert collisions([one, two], {"three"}) == []
    assert collisions([one, two], {"one"})[0].example == "LICENSE"


def test_two_versions_of_one_distribution_are_told(install: Install) -> None:
    found = [install("ort", "1", {}), install("ort", "2", {}), install("other", "1", {})]
    assert duplicates(found, {"ort", "other"}) == {"ort": ["1", "2"]}


def test_a_foreign_module_of_our_name_is_told(install: Install) -> None:
    ours = install("optvet", "1", {"optvet_x.py": "", "optvet/__init__.py": ""})
    theirs = install("Evil_Box", "1", {"optvet_x.py": "!", "optvet_y/__init__.py": ""})
    modules = {"optvet", "optvet_x"}
    assert usurpers([ours, theirs], modules, "optvet") == {"evil-box": ["optvet_x"]}


def test_a_requirement_that_does_not_hold_is_told(install: Install) -> None:
    requires = ["lib>=2", "Absent", 'never; extra == "x"', 'old; python_version < "3"', "fine<9"]
    found = [install("us", "1", {}, requires), install("lib", "1.9", {}), install("fine", "8", {})]
    assert unmet(found, {"us"}) == [
        Unmet("us", "1", "lib>=2", "lib", "1.9"),
        Unmet("us", "1", "Absent", "absent", None),
    ]
    assert unmet(found, {"fine"}) == []
