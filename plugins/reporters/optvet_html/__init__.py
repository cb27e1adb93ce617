"""A report as one HTML file, which loads nothing else.

The template escapes all text from models. Pictures are embedded as images, so scripts in them do
not run. A content security policy allows only the script and the style of this file, by their
hashes, and no connections.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from optvet.plugin import Reporter, hookimpl

if TYPE_CHECKING:
    from optvet.plugin import CampaignReport, FindingFiles

_HERE = Path(__file__).parent


class HtmlReporter:
    """A page with a heat map, filters, and a section for each finding."""

    name = "html"
    suffix = ".html"

    def render(self, report: CampaignReport, files: FindingFiles) -> str:
        """The page."""
        import jinja2

        from optvet_html.view import View

        style, script = _text("style.css"), _text("script.js")
        policy = "; ".join(
            [
                "default-src 'none'",
                f"style-src {_hash(style)}",
                f"script-src {_hash(script)}",
                "img-src data:",
                "base-uri 'none'",
                "form-action 'none'",
            ]
        )
        environment = jinja2.Environment(
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            loader=jinja2.FileSystemLoader(_HERE),
        )
        page = environment.get_template("report.html").render(
            view=View.of(report, files),
            report=report,
            policy=policy,
            style=style,
            script=script,
        )
        return f"{page}\n"


def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@hookimpl
def optvet_reporters() -> Iterable[Reporter]:
    """The reporter of this module."""
    return [HtmlReporter()]
