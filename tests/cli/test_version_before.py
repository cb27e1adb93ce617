"""A plugin of the version before: it works, and optvet says what its author should change."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest
from tests.commands import Run

import optvet.plugin
from optvet.engine.discovery import Plugins
from optvet.engine.environment.checks import check_plugins
from optvet.spec.contract import CONTRACTS, FORMER_MEMBERS, FORMER_NAMES
from optvet.spec.extras import PluginExtras, extras, given
from optvet.spec.optimizer_protocols import OptimizerExtras
from optvet.spec.provides import members_of
from optvet.spec.types import Artifact

BEFORE = Path(__file__).parents[1] / "fixtures" / "version_before.py"
CHANGES = (
    "touched() is called changing_passes(source, passes, options) now; "
    "Preferred is a part of PluginExtras now; ExplainsSimply is a part of OptimizerExtras now; "
    "ReportsChanges is a part of OptimizerExtras now; "
    "see docs/plugins.md#changes-of-the-contracts"
)


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin as an installed distribution."""
    packages = tmp_path / "packages"
    info = packages / "before_plugins-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(BEFORE, packages / "before_plugins.py")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: before-plugins\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[optvet]\nbefore = before_plugins\n")
    monkeypatch.syspath_prepend(packages)
    monkeypatch.delitem(sys.modules, "before_plugins", raising=False)


@pytest.fixture
def before() -> None:
    """Import the module, whose warnings are expected."""
    with pytest.warns(DeprecationWarning, match="optvet.plugin.* is a part of"):
        __import__("before_plugins")


@pytest.mark.usefixtures("before")
def test_its_pass_is_blamed(run: Run, tmp_path: Path) -> None:
    model = tmp_path / "relu.onnx"
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) {y = Relu(x)}'
    onnx.save(onnx.parser.parse_model(text), model)
    done = run("vet", model, "--optimizer", "tiny", "--jobs", 1, "--no-cache", "--json", "-")
    assert done.code == 1, done.err
    result = json.loads(done.out)
    assert [f["culprit"] for f in result["findings"]] == [["drop_relu"]]


@pytest.mark.usefixtures("before")
def test_the_list_says_what_to_change(run: Run) -> None:
    for words in (("plugins",), ("plugins", "show", "tiny")):
        shown = " ".join(run(*words).out.split())
        # The list is a table, whose cells are broken into lines.
        assert "works, but touched() is called" in shown
        assert "OptimizerExtras now" in shown


@pytest.mark.usefixtures("before")
def test_the_registry_and_the_doctor_say_so() -> None:
    (entry,) = (e for e in Plugins().all() if e.name == "tiny")
    assert (entry.problem, entry.outdated) == (None, CHANGES)
    assert extras(entry.plugin, PluginExtras).preference == 7
    changing = given(entry.plugin, OptimizerExtras.changing_passes)
    assert changing is not None
    assert changing(Artifact("onnx"), ("fuse", "drop_relu"), None) == ["drop_relu"]
    check, _ = check_plugins([entry], "pip")
    assert (check.status, CHANGES in check.message) == ("warning", True)


def test_no_installed_plugin_is_outdated() -> None:
    assert [e.name for e in Plugins().all() if e.outdated and "before" not in e.origin] == []


@pytest.mark.parametrize("name", FORMER_NAMES)
def test_every_former_name_leads_to_one_that_is_there(name: str) -> None:
    assert name not in optvet.plugin.__all__
    extras = FORMER_NAMES[name].__name__
    assert extras in optvet.plugin.__all__
    with pytest.warns(DeprecationWarning, match=rf"{name} is a part of {extras} now"):
        stand_in = getattr(optvet.plugin, name)
    assert issubclass(type("Old", (stand_in[int],), {}), stand_in)


def test_every_former_member_has_a_name_of_now() -> None:
    for family, members in FORMER_MEMBERS.items():
        kinds = (PluginExtras, *CONTRACTS[family].may)
        now = {name for kind in kinds for name in members_of(kind)}
        for former, words in members.items():
            assert former not in now
            assert re.match(r"\w+", words)[0] in now  # type: ignore[index]
