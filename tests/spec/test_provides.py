"""What plugins provide is what ``isinstance`` says of their protocols."""

from __future__ import annotations

from typing import Any

import pytest

from optvet.engine.discovery import Plugins
from optvet.spec import comparators, converters, devices, optimizer_protocols, protocols, provides
from optvet.spec import runtime_protocols as runtimes
from optvet.spec.generators import Generator, Mutator, Pool
from optvet.spec.provides import members_of

HOMES = (comparators, converters, devices, optimizer_protocols, protocols, runtimes)
PROTOCOLS = sorted(
    {
        value
        for home in HOMES
        for value in vars(home).values()
        if getattr(value, "_is_runtime_protocol", False)
    },
    key=lambda protocol: protocol.__name__,
)


@pytest.mark.parametrize("protocol", [*PROTOCOLS, Generator, Pool, Mutator])
def test_every_plugin_provides_what_isinstance_says(protocol: type) -> None:
    objects = [loaded.plugin for loaded in Plugins().all() if loaded.plugin is not None]
    objects += [None, 1, protocol]
    for thing in objects:
        assert provides.provides(thing, protocol) == isinstance(thing, protocol), thing


def test_a_method_that_is_none_is_absent_and_an_attribute_may_be() -> None:
    class Here:
        memory_factor: Any = None
        apply_file: Any = None

    here = Here()
    assert not provides.provides(here, optimizer_protocols.TakesFiles)
    here.apply_file = print
    assert provides.provides(here, optimizer_protocols.TakesFiles)
    assert not provides.provides(object(), optimizer_protocols.TakesFiles)


def test_members_of_bases_count() -> None:
    assert members_of(Pool) == {"name", "fragments", "needs_argument"}
