import re
import sys
import types
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, PathDistribution, entry_points
from pathlib import Path

import pytest

import optvet
from optvet.engine.discovery import Plugins
from optvet.spec.errors import PluginError, UnknownName
from optvet.testing import Planted

Write = Callable[[str, str], EntryPoint]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterable[Write]:
    """Writes a plugin module and gives its entry point."""
    monkeypatch.syspath_prepend(tmp_path)
    made: list[str] = []

    def write(name: str, source: str) -> EntryPoint:
        module = f"optvet_made_up_{name}"
        (tmp_path / f"{module}.py").write_text(source)
        made.append(module)
        return EntryPoint(name, module, "optvet")

    yield write
    for module in made:
        sys.modules.pop(module, None)


def planted(*names: str) -> str:
    optimizers = ", ".join(f"Planted(name={n!r})" for n in names)
    return f"""
from optvet.plugin import hookimpl
from optvet.testing import Planted

@hookimpl
def optvet_optimizers():
    return [{optimizers}]
"""


def problems(plugins: Plugins) -> dict[str, str]:
    return {e.name: e.problem for e in plugins.all() if e.problem is not None}


def test_the_built_in_plugins_load_or_lack_but_the_library_of_an_extra() -> None:
    plugins = Plugins()
    for problem in problems(plugins).values():
        lacks = r"it needs .*; install optvet\[[\w,]+\]"
        homeless = r"it needs the environment '(\w+)', .*; make it: optvet env make \1"
        assert re.fullmatch(f"{lacks}|{homeless}", problem)
    assert "onnxoptimizer" in plugins.names("optimizer")
    assert "onnxruntime" in plugins.names("runtime")
    assert {"files", "random"} <= set(plugins.names("dataset"))
    assert {"local", "zoo"} <= set(plugins.names("model source"))


def test_an_entry_says_where_it_comes_from_and_which_version_it_wraps() -> None:
    import onnxoptimizer

    (entry,) = [e for e in Plugins().all() if e.name == "onnxoptimizer"]
    assert entry.version == onnxoptimizer.__version__
    assert entry.origin == f"optvet_onnxoptimizer (optvet {optvet.__version__})"


def test_names_are_sorted_whatever_the_order_of_discovery(plugin: Write) -> None:
    points = [plugin("z", planted("beta", "alpha")), plugin("a", planted("gamma"))]
    assert Plugins(points).names("optimizer") == ["alpha", "beta", "gamma"]
    assert [e.name for e in Plugins(points[::-1]).all()] == ["alpha", "beta", "gamma"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "import no_such_library",
            "its import raised ModuleNotFoundError: No module named 'no_such_library'",
        ),
        ("raise RuntimeError('wrong CPU')", "its import raised RuntimeError: wrong CPU"),
        ("def f(:", "its import raised SyntaxError: "),
        (
            "from optvet.plugin import hookimpl\n@hookimpl\ndef optvet_optimizers(): return 1 / 0",
            "optvet_optimizers() raised ZeroDivisionError: ",
        ),
        (
            "from optvet.plugin import hookimpl\n@hookimpl\n"
            "def optvet_optimizers(models): return []",
            "optvet_optimizers() takes models; expected no parameters",
        ),
        (
            "from optvet.plugin import hookimpl\n@hookimpl\ndef optvet_runtimes(): return 3",
            "optvet_runtimes() returned int, expected a list of plugin objects",
        ),
        (
            "from optvet.plugin import hookimpl\n@hookimpl\ndef optvet_runtimes(): return None",
            "gives no plugin: optvet_runtimes() returned none",
        ),
        ("x = 1", "gives no plugin: it has no hook of optvet, such as optvet_optimizers"),
        (
            "def optvet_optimizers(): return []",
            "optvet_optimizers has no @hookimpl above it; import it from optvet.plugin",
        ),
        (
            "from optvet.plugin import hookimpl\n@hookimpl\ndef optvet_optimisers(): return []",
            "optvet_optimisers is no hook of optvet; did you mean optvet_optimizers?",
        ),
        (
            "def optvet_optimisers(): return []",
            "optvet_optimisers is no hook of optvet; did you mean optvet_optimizers?",
        ),
    ],
    ids=[
        "no library",
        "import error",
        "syntax",
        "hook raises",
        "hook signature",
        "no list",
        "no objects",
        "no hook",
        "no hookimpl",
        "misspelt",
        "misspelt, no hookimpl",
    ],
)
def test_a_broken_plugin_is_reported_and_the_others_still_load(
    plugin: Write, source: str, reason: str
) -> None:
    points = [plugin("a", planted("one")), plugin("b", source), plugin("c", planted("two"))]
    plugins = Plugins(points)
    assert plugins.names("optimizer") == ["one", "two"]
    assert list(problems(plugins)) == ["b"]
    assert problems(plugins)["b"].startswith(reason)


def test_a_plugin_without_its_library_is_listed_with_the_reason(plugin: Write) -> None:
    source = """
from optvet.plugin import hookimpl
from optvet.testing import Planted

class Heavy(Planted):
    def version(self):
        import no_such_library

@hookimpl
def optvet_optimizers():
    return [Heavy(name="heavy")]
"""
    plugins = Plugins([plugin("a", source)])
    assert plugins.names("optimizer") == []
    assert problems(plugins) == {
        "heavy": "ModuleNotFoundError: No module named 'no_such_library'",
    }
    reason = r"optimizer 'heavy' \(optvet_made_up_a\) cannot be used: ModuleNotFoundError: No mod"
    with pytest.raises(PluginError, match=reason):
        plugins.optimizer("heavy")


def test_two_plugins_of_one_name_are_refused_with_both_owners(plugin: Write) -> None:
    points = [plugin("a", planted("same")), plugin("b", planted("same", "other"))]
    plugins = Plugins(points)
    expected = "two optimizers are named 'same': optvet_made_up_a and optvet_made_up_b; rename one"
    assert problems(plugins)["same"] == expected
    assert plugins.names("optimizer") == ["other"]
    with pytest.raises(PluginError, match="two optimizers are named 'same'"):
        plugins.optimizer("same")


def installed(folder: Path, distribution: str, points: Iterable[EntryPoint]) -> list[EntryPoint]:
    """``points`` as those of an installed distribution."""
    info = folder / f"{distribution}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1\n")
    lines = "\n".join(f"{p.name} = {p.value}" for p in points)
    (info / "entry_points.txt").write_text(f"[optvet]\n{lines}\n")
    return list(PathDistribution(info).entry_points)


def test_a_built_in_plugin_keeps_its_name_and_all_else_goes_on(
    plugin: Write, tmp_path: Path
) -> None:
    points = [
        *installed(tmp_path, "acme", [plugin("a", planted("same", "of-acme"))]),
        *installed(tmp_path, "optvet", [plugin("z", planted("same", "ours"))]),
    ]
    plugins = Plugins(points)
    assert plugins.names("optimizer") == ["of-acme", "ours", "same"]
    assert plugins.optimizer("same").name == "same"
    both = [e for e in plugins.all() if e.name == "same"]
    used, refused = sorted(both, key=lambda e: e.displaced)
    assert (used.origin, used.problem) == ("optvet_made_up_z (optvet 1)", None)
    assert refused.origin == "optvet_made_up_a (acme 1)"
    assert refused.problem == (
        "'same' is the name of a built-in optimizer (optvet_made_up_z (optvet 1)), which is used; "
        "rename this one"
    )


def test_a_stranger_named_like_the_default_comparator_displaces_it_nowhere(plugin: Write) -> None:
    source = """
from optvet.plugin import hookimpl

class Tensor:
    name = "tensor"

@hookimpl
def optvet_comparators():
    return [Tensor()]
"""
    plugins = Plugins([*entry_points(group="optvet"), plugin("zz", source)])
    assert plugins.default("comparator") == "tensor"
    assert type(plugins.comparator("tensor")).__module__ == "optvet_tensor"


def test_the_default_is_the_preferred_plugin_and_of_equals_the_first_by_name() -> None:
    class Preferring(Planted):
        preference = 1

    plugins = Plugins([]).register("optimizer", Planted(name="b"))
    plugins.register("optimizer", Planted(name="a"))
    assert plugins.default("optimizer") == "a"
    assert plugins.register("optimizer", Preferring(name="z")).default("optimizer") == "z"
    with pytest.raises(PluginError, match="there is no runtime; see: optvet plugins"):
        plugins.default("runtime")


def test_the_reference_runtime_is_the_preferred_one_that_runs_the_format() -> None:
    plugins = Plugins()
    assert plugins.reference_runtime().name == plugins.default("runtime")
    for name in plugins.names("runtime"):
        for format in plugins.runtime(name).accepts - {"onnx"}:
            assert format in plugins.reference_runtime(format).accepts
    with pytest.raises(PluginError, match="no runtime runs mp3; see: optvet plugins"):
        plugins.reference_runtime("mp3")


def test_one_name_in_two_families_is_no_conflict() -> None:
    from optvet_onnxruntime.runtime import OrtRuntime

    runtime = OrtRuntime()
    plugins = Plugins([]).register("optimizer", Planted(name="onnxruntime"))
    plugins.register("runtime", runtime)
    assert problems(plugins) == {}
    assert plugins.runtime("onnxruntime") is runtime


def test_a_plugin_object_can_be_registered_by_hand() -> None:
    optimizer = Planted()
    plugins = Plugins([]).register("optimizer", optimizer)
    assert plugins.optimizer("planted") is optimizer
    (entry,) = plugins.all()
    assert (entry.version, entry.problem) == ("1", None)
    assert "registered by hand" in entry.origin


def test_an_unknown_name_suggests_the_nearest() -> None:
    plugins = Plugins([]).register("optimizer", Planted(name="onnxoptimizer"))
    with pytest.raises(UnknownName, match=r"did you mean 'onnxoptimizer'\?") as caught:
        plugins.optimizer("onnxoptimiser")
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith("unknown optimizer 'onnxoptimiser'; ")


def test_an_unknown_name_that_is_near_nothing_lists_what_there_is() -> None:
    plugins = Plugins([]).register("optimizer", Planted(name="one"))
    with pytest.raises(UnknownName, match="unknown optimizer 'zzzzzz'; known: one"):
        plugins.optimizer("zzzzzz")
    with pytest.raises(UnknownName, match="known: none"):
        plugins.runtime("onnxruntime")


def test_missing_members_of_the_protocol_are_named() -> None:
    half = types.SimpleNamespace(name="half", passes=list, options=None, version=lambda: "1")
    plugins = Plugins([]).register("optimizer", half)
    assert problems(plugins) == {"half": "does not provide apply, pipelines, preload, traits"}
    with pytest.raises(PluginError, match="does not provide apply, pipelines, preload, traits"):
        plugins.optimizer("half")


def test_an_object_without_a_name_is_reported_by_its_type() -> None:
    plugins = Plugins([]).register("runtime", object())
    assert problems(plugins)["object"].startswith("does not provide accepts, deployed, load, name")


def test_an_object_without_a_name_next_to_one_of_that_name_does_not_hide_it() -> None:
    plugins = Plugins([]).register("optimizer", Planted(name="object"))
    plugins.register("runtime", object())
    assert plugins.names("optimizer") == ["object"]


def test_a_module_is_imported_when_a_family_is_requested_that_its_source_names(
    plugin: Write,
) -> None:
    runtimes = "from optvet.plugin import hookimpl\n@hookimpl\ndef optvet_runtimes(): return []"
    others = "from optvet.plugin import hookimpl\n@hookimpl\ndef optvet_studies(): return []"
    points = [plugin("a", planted("one")), plugin("b", runtimes), plugin("c", others)]

    def imported() -> list[str]:
        return [p.name for p in points if p.module in sys.modules]

    plugins = Plugins(points)
    assert imported() == []
    assert plugins.names("reporter") == []
    assert imported() == []
    assert plugins.names("optimizer") == ["one"]
    # With the other families that workers run: their variables must be set before these start.
    assert imported() == ["a", "b"]
    assert set(problems(plugins)) == {"b", "c"}
    assert imported() == ["a", "b", "c"]


def test_a_module_whose_source_names_no_hook_is_imported_for_every_family(plugin: Write) -> None:
    source = """
from optvet.plugin import hookimpl
from optvet.testing import Planted

def given():
    return [Planted(name="hidden")]

globals()["optvet_" + "optimizers"] = hookimpl(given)
"""
    assert Plugins([plugin("a", source)]).names("optimizer") == ["hidden"]


def test_a_hook_beside_a_named_one_may_come_from_another_module(
    plugin: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept_elsewhere.py").write_text(planted("hidden"))
    monkeypatch.syspath_prepend(str(tmp_path))
    source = """
from optvet.plugin import hookimpl
from kept_elsewhere import *

@hookimpl
def optvet_studies():
    return []
"""
    assert Plugins([plugin("a", source)]).names("optimizer") == ["hidden"]


def test_a_hook_is_called_once_for_a_registry_and_its_copies(plugin: Write) -> None:
    plugins = Plugins([plugin("a", planted("one"))])
    copy = plugins.with_environments({"torch"})
    assert copy.optimizer("one") is plugins.optimizer("one")


def test_a_plugin_of_an_environment_can_be_used_however_late_its_family_loads(
    plugin: Write,
) -> None:
    source = """
from optvet.plugin import PythonEnvironment, hookimpl
from optvet.testing import Planted

class Elsewhere(Planted):
    python_environment = PythonEnvironment("far", ())

    def version(self):
        import no_such_library

@hookimpl
def optvet_optimizers():
    return [Elsewhere(name="one")]
"""
    plugins = Plugins([plugin("a", source)])
    moved = plugins.with_environments({"far"})
    assert (plugins.names("optimizer"), moved.names("optimizer")) == ([], ["one"])
    assert moved.home_of(moved.optimizer("one")) == "far"
