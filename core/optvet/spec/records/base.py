"""Base of every document that optvet writes."""

from __future__ import annotations

import html
import importlib
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticSerializationError, to_json

from optvet.spec.errors import UsageError
from optvet.spec.words import printable, printable_json


class Record(BaseModel):
    """Base of all that is written: strict, frozen, no unknown keys."""

    # Built when first used: there are a hundred of them, and a command writes one or two.
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)

    def to_json(self) -> str:
        """The document as indented JSON, with ``schema`` as the key of its version."""
        try:
            return printable_json(self.model_dump_json(by_alias=True, indent=2))
        except PydanticSerializationError:  # a name of a file that is not in UTF-8
            values = _in_utf8(self.model_dump(by_alias=True))
            return printable_json(to_json(values, indent=2).decode())


def _in_utf8(value: Any) -> Any:
    """A value in which bytes of names that are not in UTF-8 are spelled out."""
    if isinstance(value, Mapping):
        return {_in_utf8(k): _in_utf8(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_in_utf8(v) for v in value]
    if isinstance(value, (str, PurePath)):
        return str(value).encode("utf-8", "backslashreplace").decode()
    return value


class Result(Record):
    """The document of an answer, as Python and notebooks show it: a headline, and rows."""

    def headline(self) -> str:
        """The answer on one line."""
        raise NotImplementedError

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the answer's table, such as one per finding; all have the same keys."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """The document of ``to_json`` as plain values."""
        return self.model_dump(mode="json", by_alias=True)

    def to_dataframe(self) -> Any:
        """``rows`` as a ``pandas.DataFrame``.

        Raises:
            UsageError: pandas is not installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise UsageError("to_dataframe needs pandas: pip install pandas") from None
        return pandas.DataFrame(self.rows())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {printable(self.headline())}>"

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        """What a notebook shows. Names come from models, so everything is escaped."""
        head = f"<p><b>{html.escape(printable(self.headline()))}</b></p>"
        rows = self.rows()
        if not rows:
            return head
        titles = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
        lines = "".join(f"<tr>{''.join(map(_cell, row.values()))}</tr>" for row in rows)
        return f"{head}<table><tr>{titles}</tr>{lines}</table>"


def _cell(value: Any) -> str:
    shown = "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
    return f"<td>{html.escape(printable(shown))}</td>"
