# ruff: noqa: INP001 -- a script, in no package
"""The table of ``docs/plugins.md``: what a plugin must and may give, by family.

``python docs/tools/contract.py`` writes it into the page, from the protocols and their docstrings.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from optvet.spec import described
from optvet.spec.contract import CONTRACTS, Contract
from optvet.spec.extras import PluginExtras
from optvet.spec.provides import members_of
from optvet.spec.user_model import UserModel

PAGE = Path(__file__).parents[1] / "plugins.md"
BEGIN, END = "<!-- made by docs/tools/contract.py -->\n", "<!-- end -->\n"
_PREFIX = re.compile(r"^Optional part of [^:]+: ")
_PARTS = {
    "Session": "session of a runtime",
    "Meter": "meter of a runtime",
    "Workers": "workers of an executor",
}
_Row = tuple[str, str, str, str]


def table() -> str:
    """The table, in Markdown."""
    rows = [("any plugin", "may", *each) for each in _members(PluginExtras)]
    for family, contract in CONTRACTS.items():
        rows += _rows(family, contract)
    lines = ["| family | | member | what it is |", "|---|---|---|---|"]
    before = ("", "")
    for family, need, member, words in rows:
        shown = [family if family != before[0] else "", need if (family, need) != before else ""]
        lines.append(f"| {' | '.join([*shown, member, words])} |")
        before = (family, need)
    return "\n".join(lines) + "\n"


def _rows(family: str, contract: Contract) -> Iterator[_Row]:
    if contract.must is UserModel:
        for name, member in vars(UserModel).items():
            if inspect.isfunction(member) and name[0] != "_":
                need = "must" if "NotImplementedError" in inspect.getsource(member) else "may"
                yield family, need, *_method(name, member)
        return
    yield from ((family, "must", *each) for each in _members(contract.must))
    yield from ((family, "may", *each) for kind in contract.may for each in _members(kind))
    need = "either" if family == "generator" else "may, together"
    yield from ((family, need, *_set(kind)) for kind in contract.sets)
    for kind in contract.parts:
        must = getattr(kind, "_is_protocol", False)
        words = _PARTS[kind.__name__.removesuffix("Extras")]
        yield from ((words, "must" if must else "may", *each) for each in _members(kind))


def _members(kind: type) -> Iterator[tuple[str, str]]:
    """Each member with its first sentence: attributes, then methods, in the order of the source."""
    about = {**_sections(kind), **described.below(kind)}
    names = [n for n in vars(kind).get("__annotations__", {}) if n[0] != "_"]
    yield from ((f"`{name}`", _first(about[name])) for name in names)
    for name, member in vars(kind).items():
        if isinstance(member, property):
            yield f"`{name}`", _first(inspect.getdoc(member) or "")
        elif inspect.isfunction(member) and name[0] != "_":
            yield _method(name, member)


def _method(name: str, member: object) -> tuple[str, str]:
    parameters = list(inspect.signature(member).parameters)[1:]  # type: ignore[arg-type]
    return f"`{name}({', '.join(parameters)})`", _first(inspect.getdoc(member) or "")


def _set(kind: type) -> tuple[str, str]:
    words = _first(inspect.getdoc(kind) or "")
    own = {*vars(kind), *vars(kind).get("__annotations__", {})}
    members = [m for m, _ in _members(kind) if re.findall(r"\w+", m)[0] in own & members_of(kind)]
    return f"`{kind.__name__}`: {', '.join(members)}", _upper(_PREFIX.sub("", words))


def _sections(kind: type) -> dict[str, str]:
    """What the ``Attributes`` section of a docstring says, by name."""
    _, _, section = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in found}


def _first(text: str) -> str:
    """The first paragraph, as Markdown in a cell."""
    words = " ".join(text.partition("\n\n")[0].split())
    return words.replace("``", "`").replace("|", "\\|").removesuffix(".")


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def page() -> str:
    """The whole page with the table as it should be."""
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
