"""Templates with values put in."""

from __future__ import annotations

import functools
import textwrap
from importlib import resources
from typing import TYPE_CHECKING

from optvet.engine.scripts.literals import name_code

if TYPE_CHECKING:
    import jinja2


def render(template: str, **values: object) -> str:
    """The text of ``templates/TEMPLATE.jinja``; what is put in is never read as a template."""
    return _environment().get_template(f"{template}.jinja").render(values)


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        autoescape=False,  # Python, not HTML
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(_source),
    )
    environment.filters.update(
        repr=repr, name_code=name_code, body=indented, in_docstring=_quotable
    )
    return environment


def _source(name: str) -> str:
    return resources.files("optvet.engine.scripts").joinpath("templates", name).read_text("utf-8")


def indented(code: str) -> str:
    """``code`` as the body of a function."""
    return textwrap.indent(textwrap.dedent(code).strip("\n"), "    ")


def _quotable(text: str) -> str:
    """``text`` as it may stand in a docstring."""
    return text.replace("\\", "\\\\").replace('"', "'")
