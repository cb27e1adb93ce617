import re
import sys
import types
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint
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
from optvet import hookimpl
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
        assert re.fullmatch(r"ImportError: .*; install optvet\[\w+\]", problem)
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
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("raise RuntimeError('wrong CPU')", "RuntimeError: wrong CPU"),
        ("def f(:", "SyntaxError: "),
        (
            "from optvet import hookimpl\n@hookimpl\ndef optvet_optimizers(): return 1 / 0",
            "ZeroDivisionError: ",
        ),
        (
            "from optvet import hookimpl\n@hookimpl\ndef optvet_optimizers(models): return []",
            "PluginValidationError: ",
        ),
        (
            "from optvet import hookimpl\n@hookimpl\ndef optvet_runtimes(): return None",
            "",
        ),
    ],
    ids=["no library", "import error", "syntax", "hook raises", "hook signature", "no objects"],
)
def test_a_broken_plugin_is_reported_and_the_others_still_load(
    plugin: Write, source: str, reason: str
) -> None:
    points = [plugin("a", planted("one")), plugin("b", source), plugin("c", planted("two"))]
    plugins = Plugins(points)
    assert plugins.names("optimizer") == ["one", "two"]
    assert list(problems(plugins)) == (["b"] if reason else [])
    if reason:
        assert problems(plugins)["b"].startswith(reason)


def test_a_plugin_without_its_library_is_listed_with_the_reason(plugin: Write) -> None:
    source = """
from optvet import hookimpl
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


def test_one_name_in_two_families_is_no_conflict() -> None:
    from optvet_ort_runtime import OrtRuntime

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
