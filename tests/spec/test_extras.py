"""Optional members: the plugin's own, the default of the family, or none."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import pytest

from optvet.spec.contract import CONTRACTS
from optvet.spec.extras import PluginExtras, extras, given
from optvet.spec.optimizer_protocols import OptimizerExtras
from optvet.spec.types import MODEL_PARTS

KINDS = [PluginExtras, *dict.fromkeys(k for c in CONTRACTS.values() for k in c.may)]


class Bare:
    name = "bare"


class Explaining(Bare):
    preference = 7

    def snippet(self, passes: Sequence[str], options: Any) -> str:
        return " ".join(passes)


class Inheriting(OptimizerExtras):
    def carried(self, options: Any) -> dict[str, bytes]:
        return {"passes.txt": options}


def test_a_method_of_the_plugin_is_given() -> None:
    snippet = given(Explaining(), OptimizerExtras.snippet)
    assert snippet is not None
    assert snippet(["a", "b"], None) == "a b"
    assert given(Bare(), OptimizerExtras.snippet) is None


def test_what_is_inherited_from_the_extras_is_not_given_and_what_is_overridden_is() -> None:
    plugin = Inheriting()
    assert given(plugin, OptimizerExtras.snippet) is None
    assert given(plugin, OptimizerExtras.saved) is None
    carried = given(plugin, OptimizerExtras.carried)
    assert carried is not None
    assert carried(b"x") == {"passes.txt": b"x"}


def test_a_method_that_is_none_is_absent() -> None:
    class Refusing(Bare):
        snippet = None
        simple_snippets = None

    assert given(Refusing(), OptimizerExtras.snippet) is None
    assert extras(Refusing(), OptimizerExtras).simple_snippets((), None) == ()


def test_defaults_stand_for_what_is_missing() -> None:
    assert extras(Bare(), PluginExtras).preference == 0
    assert extras(Explaining(), PluginExtras).preference == 7
    assert extras(Bare(), OptimizerExtras).carried(None) == {}
    assert extras(Inheriting(), OptimizerExtras).carried(b"y") == {"passes.txt": b"y"}


def test_a_default_is_called_with_the_plugin() -> None:
    plugin: Any = Bare()
    assert extras(plugin, OptimizerExtras).configured(None) is plugin


def test_a_misspelt_member_is_an_error() -> None:
    with pytest.raises(AttributeError):
        extras(Bare(), PluginExtras).preferance  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_member_has_a_default_and_says_what_it_is(kind: type) -> None:
    for name in vars(kind).get("__annotations__", {}):
        assert hasattr(kind, name)
    for name, member in vars(kind).items():
        if inspect.isfunction(member):
            assert inspect.getdoc(member), name


def test_a_family_names_no_member_twice() -> None:
    for contract in CONTRACTS.values():
        kinds = (contract.must, PluginExtras, *contract.may)
        names = [n for k in kinds for n in {*vars(k), *vars(k).get("__annotations__", {})}]
        public = [n for n in names if not n.startswith("_")]
        assert len(public) == len(set(public))


def test_a_runtime_reads_all_parts_by_default() -> None:
    from optvet.spec.runtime_protocols import RuntimeExtras

    assert extras(Bare(), RuntimeExtras).reads == MODEL_PARTS
