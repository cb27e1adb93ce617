from collections.abc import Sequence
from importlib.metadata import Distribution
from pathlib import Path

from optvet.engine.environment.import_plan import plan_imports


def install(folder: Path, name: str, files: int, requires: Sequence[str] = ()) -> Distribution:
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    needed = "".join(f"Requires-Dist: {line}\n" for line in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{needed}")
    (info / "RECORD").write_text("".join(f"{name}/{i}.py,,\n" for i in range(files)))
    return Distribution.at(info)


def test_what_needs_a_large_library_is_imported_with_it_and_the_rest_elsewhere(
    tmp_path: Path,
) -> None:
    found = [
        install(tmp_path, "large", 900),
        install(tmp_path, "above", 10, ["large>=1", "small", "absent; extra == 'more'"]),
        install(tmp_path, "silent", 300),
        install(tmp_path, "small", 5),
        install(tmp_path, "other", 500),
        install(tmp_path, "last", 20, ["other"]),
    ]
    names = ["above", "large", "last", "other", "silent", "small"]
    plan = plan_imports(found, names, {"silent": ("large",)}, 2)
    # "silent" imports "large" unasked, so it comes after those that require it.
    assert plan.parts == [["large", "small", "above", "silent"], ["other", "last"]]
    assert not plan.saw_others("above")
    assert plan.saw_others("silent")
    assert not plan.saw_others("last")


def test_requirements_that_form_a_ring_are_planned(tmp_path: Path) -> None:
    found = [install(tmp_path, "one", 1, ["two"]), install(tmp_path, "two", 1, ["one"])]
    plan = plan_imports(found, ["one", "two"], {}, 2)
    assert sorted(n for part in plan.parts for n in part) == ["one", "two"]
