from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from optvet.engine.discovery import Plugins
from optvet.spec.described import descriptions
from optvet.spec.request import VetRequest


class General(BaseModel):
    size: int = 1
    """How large
    it is."""
    plain: int = 2


class Special(General):
    size: int = 3
    colour: str = Field("red", description="as pydantic says it")
    """Not read."""


class Eager(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)
    level: int = 0
    """As a third party writes it."""


def test_the_text_below_a_field_is_its_meaning_in_subclasses_too() -> None:
    assert descriptions(Special) == {
        "size": "How large\nit is.",
        "plain": "",
        "colour": "as pydantic says it",
    }
    assert descriptions(Eager) == {"level": "As a third party writes it."}


def test_every_option_of_a_request_and_of_a_plugin_says_what_it_means() -> None:
    options = [p.plugin.options for p in Plugins().all() if hasattr(p.plugin, "options")]
    kinds: list[type[BaseModel]] = [VetRequest, *(type(o) for o in options)]
    for kind in kinds:
        assert all(descriptions(kind).values()), kind
