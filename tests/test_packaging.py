import ast
import graphlib
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import optvet
import optvet.graph
import optvet.plugin
from optvet.spec import hooks

ROOT = Path(__file__).parents[1]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
ENTRY_POINTS: dict[str, str] = PYPROJECT["project"]["entry-points"]["optvet"]
STALE = "the installed metadata is stale; run `pip install -e .` again"


def plugin_files() -> list[Path]:
    """Plugins: a module, or a folder with an ``__init__``, in its family's folder."""
    files = sorted((ROOT / "plugins").glob("*/optvet_*.py"))
    return files + sorted(f.parent for f in (ROOT / "plugins").glob("*/optvet_*/__init__.py"))


def sources(room: Path) -> list[Path]:
    return [room] if room.suffix == ".py" else sorted(room.rglob("*.py"))


# Registration


def test_every_plugin_file_is_registered() -> None:
    assert sorted(p.stem for p in plugin_files()) == sorted(ENTRY_POINTS.values())


def test_every_entry_point_is_named_after_its_module() -> None:
    assert {f"optvet_{name}": name for name in ENTRY_POINTS} == {
        module: name for name, module in ENTRY_POINTS.items()
    }


def test_modules_of_several_families_are_listed() -> None:
    row = re.compile(r"^\| `(optvet_\w+)` \| `(\w+)` \| (.*) \|$", re.MULTILINE)
    page = (ROOT / "docs" / "plugins.md").read_text()
    told = {(m, f, *re.findall(r"`(\w+)`", more)) for m, f, more in row.findall(page)}
    hooked = {spec for spec in vars(hooks) if spec.startswith("optvet_")}
    main = {"models": "optvet_model_sources"}
    found = set()
    for file in plugin_files():
        family = file.parent.name
        given = hooked & set(vars(importlib.import_module(file.stem)))
        assert main.get(family, f"optvet_{family}") in given, file
        also = sorted(given - {main.get(family, f"optvet_{family}")})
        found |= {(file.stem, family, *also)} if also else set()
    assert told == found


def test_installed_entry_points_match_pyproject() -> None:
    distribution = importlib.metadata.distribution("optvet")
    installed = {e.name: e.value for e in distribution.entry_points if e.group == "optvet"}
    assert installed == ENTRY_POINTS, STALE


def test_both_builds_of_onnx_runtime_are_of_the_version_that_the_documentation_names() -> None:
    lines = PYPROJECT["project"]["optional-dependencies"]["gpu"]
    pins = {r.name: str(r.specifier) for r in map(Requirement, lines) if r.name != "nvidia-ml-py"}
    told = re.findall(r"onnxruntime-gpu(==\S+)", (ROOT / "docs" / "cli.md").read_text())
    assert {n: [pin] for n, pin in pins.items()} == {
        "onnxruntime": told,
        "onnxruntime-gpu": told,
    }


def test_installed_metadata_matches_pyproject() -> None:
    metadata = importlib.metadata.metadata("optvet")
    project = PYPROJECT["project"]
    required = importlib.metadata.requires("optvet") or []
    bare = sorted(_plain(r) for r in required if "extra ==" not in r)
    assert bare == sorted(map(_plain, project["dependencies"])), STALE
    assert sorted(metadata.get_all("Provides-Extra") or []) == sorted(
        project["optional-dependencies"]
    ), STALE
    assert metadata["Requires-Python"] == project["requires-python"], STALE
    assert metadata["Version"] == optvet.__version__, STALE


def test_the_extra_all_is_whatever_needs_no_gpu() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    (requirement,) = extras["all"]
    names = re.fullmatch(r"optvet\[(.*)\]", requirement)
    assert names is not None
    # AutoCast brings the build of ONNX Runtime for GPUs.
    assert set(names[1].split(",")) == extras.keys() - {"all", "autocast", "dev", "gpu", "qnn"}


def _plain(requirement: str) -> str:
    return requirement.replace(" ", "")


def test_the_smallest_optimizer_is_as_small_as_the_documentation_says() -> None:
    (told,) = re.findall(
        r"\]\(\.\./(plugins/optimizers/\S+\.py)\).*?fewer than (\d+) lines",
        (ROOT / "docs" / "plugins.md").read_text(),
        re.DOTALL,
    )
    sizes = {p: _lines_of_code(p) for p in (ROOT / "plugins" / "optimizers").glob("*.py")}
    assert min(sizes, key=lambda p: sizes[p]) == ROOT / told[0]
    assert min(sizes.values()) < int(told[1])


def _lines_of_code(path: Path) -> int:
    """Lines but for imports, docstrings, comments and blanks."""
    text = path.read_text()
    other = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            other.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(line) and line[0] != "#" and number not in other for number, line in lines)


# The wheel


def test_source_roots_agree() -> None:
    wheel = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    roots = wheel["sources"]
    assert roots == wheel["dev-mode-dirs"]
    assert ["benchmarks", *roots] == PYPROJECT["tool"]["mypy"]["mypy_path"]
    families = {f.parent.name for f in plugin_files()}
    assert {f"plugins/{family}" for family in families} <= set(roots)
    assert roots[0] == "core"
    assert all(re.fullmatch(r"plugins/[a-z]+", root) for root in roots[1:])


def test_the_wheel_puts_nothing_foreign_at_top_level() -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="needs hatchling")
    builder = wheel.WheelBuilder(str(ROOT))
    files = [f.distribution_path for f in builder.recurse_included_files()]
    starts = {"optvet_pytest.py", "optvet_start.py"}
    allowed = {"optvet", *starts, *(p.name for p in plugin_files())}
    assert {Path(f).parts[0] for f in files} == allowed
    assert not [f for f in files if "__pycache__" in f]
    templates = sorted(
        (ROOT / "core" / "optvet" / "engine" / "environment" / "templates").rglob("*.tmpl")
    )
    assert templates
    assert {str(t.relative_to(ROOT / "core")) for t in templates} <= set(files)


def test_no_module_is_imported_twice() -> None:
    for module in ENTRY_POINTS.values():
        importlib.import_module(module)
    twice = [m for m in sys.modules if m.startswith(("plugins.", "core."))]
    assert twice == []


# Layers

LAYERS = {
    "spec": set(),
    "graph": {"spec"},
    "engine": {"spec", "graph"},
    "report": {"spec", "graph"},
    "testing": {"spec", "graph", "engine"},
    "cli": {"spec", "graph", "engine", "report"},
}


@cache
def imports(file: Path) -> tuple[str, ...]:
    return tuple(_imports(file))


def _imports(file: Path) -> Iterator[str]:
    """Modules that ``file`` imports, wherever in it; ``from a import b`` may mean ``a.b``."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms(file: Path) -> set[str]:
    """Rooms of optvet that ``file`` imports from."""
    parts = [m.split(".") for m in imports(file) if m.startswith("optvet.")]
    return {p[1] for p in parts} & LAYERS.keys()


@pytest.mark.parametrize("room", LAYERS)
def test_a_room_imports_only_lower_rooms(room: str) -> None:
    for file in sources(ROOT / "core" / "optvet" / room):
        upper = rooms(file) - LAYERS[room] - {room}
        assert not upper, f"{file.relative_to(ROOT)} imports {sorted(upper)}"


def modules_of(room: Path) -> dict[str, Path]:
    """Files of a room of the package, by the names of their modules."""
    core = ROOT / "core"
    names = {".".join(f.relative_to(core).with_suffix("").parts): f for f in sources(room)}
    return {name.removesuffix(".__init__"): file for name, file in names.items()}


def test_the_numerics_know_nothing_of_the_rest_of_the_engine() -> None:
    for name, file in modules_of(ROOT / "core" / "optvet" / "engine" / "numerics").items():
        engine = {m for m in imports(file) if m.startswith("optvet.engine")}
        assert all(m.startswith("optvet.engine.numerics") for m in engine), name
        assert rooms(file) <= {"spec", "graph", "engine"}, name


ENGINE = [
    "numerics",
    "standard",
    "models",
    "judge",
    "work",
    "environment",
    "scripts",
    "vet",
    "precision",
    "convert",
    "repair",
    "reduce",
    "bundle",
    "bisect",
    "known",
    "campaign",
    "hunt",
    "generate",
]
"""Rooms of the engine, each above the one before."""


@pytest.mark.parametrize("room", ENGINE)
def test_a_room_of_the_engine_imports_only_lower_ones(room: str) -> None:
    upper = {f"optvet.engine.{name}" for name in ENGINE[ENGINE.index(room) + 1 :]}
    for name, file in modules_of(ROOT / "core" / "optvet" / "engine" / room).items():
        found = {m for m in imports(file) if ".".join(m.split(".")[:3]) in upper}
        assert not found, name


FLOORS = {
    "vet": ["observe", "impact", "find", "require", "speed", "explain"],
    "work": ["sandbox", "cache", "trials", "timing"],
}
"""The folders of a room, each above the one before."""


@pytest.mark.parametrize(("room", "floors"), FLOORS.items())
def test_a_folder_of_a_room_imports_only_lower_ones(room: str, floors: list[str]) -> None:
    place = ROOT / "core" / "optvet" / "engine" / room
    assert {d.parent.name for d in place.glob("*/__init__.py")} - {"properties"} == set(floors)
    for number, floor in enumerate(floors):
        upper = {f"optvet.engine.{room}.{name}" for name in floors[number + 1 :]}
        for name, file in modules_of(place / floor).items():
            found = {m for m in imports(file) if ".".join(m.split(".")[:4]) in upper}
            assert not found, name


@pytest.mark.parametrize("room", ["spec", "graph", "engine", "report"])
def test_no_modules_import_each_other_in_a_circle(room: str) -> None:
    files = modules_of(ROOT / "core" / "optvet" / room)
    # A package that collects names from its modules is no part of what these need.
    arrows = {
        name: {m for m in imports(file) if m in files and m != name}
        for name, file in files.items()
        if file.name != "__init__.py"
    }
    try:
        graphlib.TopologicalSorter(arrows).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize("start", ["engine.work.sandbox.server", "engine.environment.doctor"])
def test_what_starts_often_loads_no_stage_of_a_vet(start: str) -> None:
    # A worker is started for each task, and the package of a room is loaded with any module of it.
    code = f"import sys, optvet.{start}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    stages = {f"optvet.engine.{m}" for m in ("vet.run", "vet.find.detect", "reduce")}
    assert all((ROOT / "core" / Path(*m.split("."))).parent.is_dir() for m in stages)
    assert f"optvet.{start}" in done.stdout.split()
    assert not stages & set(done.stdout.split())


def test_every_room_has_its_layer() -> None:
    found = {d.parent.name for d in (ROOT / "core" / "optvet").glob("*/__init__.py")}
    assert found == set(LAYERS)


def test_the_public_package_imports_only_contracts_and_the_engine() -> None:
    package = ROOT / "core" / "optvet"
    for name in ("__init__.py", "plugin.py", "names.py"):
        assert rooms(package / name) <= {"spec", "engine"}
    for name in ("api.py", "campaigns.py"):
        assert rooms(package / name) <= {"spec", "engine", "report"}


@pytest.mark.long
def test_the_engine_never_names_a_plugin_nor_prints() -> None:
    plugins = {p.stem for p in plugin_files()}
    for room in ("spec", "graph", "engine", "report"):
        for file in sources(ROOT / "core" / "optvet" / room):
            assert not plugins & {m.split(".")[0] for m in imports(file)}, file
            text = file.read_text()
            calls = {
                node.func.id
                for node in (ast.walk(ast.parse(text)) if "print" in text else ())
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            }
            assert "print" not in calls, file


@pytest.mark.parametrize("plugin", plugin_files(), ids=lambda p: p.stem)
def test_a_plugin_imports_only_the_public_package(plugin: Path) -> None:
    public = {f"optvet.plugin.{name}" for name in optvet.plugin.__all__}
    public |= {"optvet.plugin", "optvet.graph"}
    public |= {f"optvet.graph.{name}" for name in optvet.graph.__all__}
    plugins = {p.stem for p in plugin_files()}
    for file in sources(plugin):
        seen = set(imports(file))
        private = {m for m in seen if m.startswith("optvet.")} - public
        assert not private, f"{file.relative_to(ROOT)} imports {sorted(private)}"
        others = {m.split(".")[0] for m in seen} & plugins - {plugin.stem}
        assert not others, f"{file.relative_to(ROOT)} imports the plugins {sorted(others)}"


# A bare environment

_IMPORT_ALL = """
import importlib, sys

class Bare:
    # As if nothing were installed that the bare install does not bring.
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r} in a bare environment")

sys.meta_path.insert(0, Bare())
for name in MODULES:
    try:
        importlib.import_module(name)
    except Exception as error:
        print(f"{name}: {error}")
"""


def modules() -> list[str]:
    core = ROOT / "core"
    files = [f for f in sources(core / "optvet") if f.parent.name != "testing"]
    names = [".".join(f.relative_to(core).with_suffix("").parts) for f in files]
    names = [n.removesuffix(".__init__") for n in names if not n.endswith("__main__")]
    for plugin in plugin_files():
        names.append(plugin.stem)
        inner = [f for f in sources(plugin) if f.name != "__init__.py" and plugin.is_dir()]
        names += [".".join(f.relative_to(plugin.parent).with_suffix("").parts) for f in inner]
    return names


def brought_by_the_bare_install() -> set[str]:
    """Distributions that ``pip install optvet`` brings, without any extra."""
    todo, seen = ["optvet"], set[str]()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            required = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        todo += [_canonical(r) for r in required if "extra ==" not in r]
    return seen


def _canonical(requirement: str) -> str:
    name = re.split(r"[^A-Za-z0-9._-]", requirement.strip())[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_module_but_testing_imports_in_a_bare_environment() -> None:
    bare = brought_by_the_bare_install()
    blocked = {
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if not bare & {_canonical(o) for o in owners}
    }
    assert "pytest" in blocked
    # What a plugin wraps is imported by the function that uses it, even where it is installed.
    blocked |= set(
        PYPROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-module-level-imports"]
    )
    blocked.add("scipy")  # It is always there, but importing it takes as long as a small vet.
    code = f"BLOCKED = {blocked!r}\nMODULES = {modules()!r}\n{_IMPORT_ALL}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("", 0), done.stdout + done.stderr


# Documentation


def test_every_hook_is_in_the_guide_for_plugin_authors() -> None:
    guide = ROOT / "docs" / "plugins.md"
    if not guide.exists():
        pytest.skip("docs/plugins.md is not written yet")
    text = guide.read_text()
    missing = [n for n in vars(hooks) if n.startswith("optvet_") and n not in text]
    assert missing == []


def test_every_public_name_exists_and_is_listed_once() -> None:
    assert len(set(optvet.__all__)) == len(optvet.__all__)
    assert [n for n in optvet.__all__ if not hasattr(optvet, n)] == []


def test_public_names_are_those_that_type_checkers_see() -> None:
    tree = ast.parse(Path(optvet.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom)
        home = importlib.import_module(str(statement.module))
        for alias in statement.names:
            found = getattr(optvet, alias.asname or alias.name)
            assert found is getattr(home, alias.name, found), alias.name
            assert getattr(found, "__module__", home.__name__) != "builtins", alias.name
