"""The documentation site builds: every link leads somewhere, every page is in the lists."""

from __future__ import annotations

import html
import html.parser
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with broken links as errors."""
    pytest.importorskip("mkdocs", reason="mkdocs is missing; install optvet[dev]")
    pytest.importorskip("material", reason="mkdocs-material is missing; install optvet[dev]")
    built = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return built


class Requests(html.parser.HTMLParser):
    """What a page makes a browser ask another server for."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        wanted = {"script": "src", "img": "src", "link": "href", "iframe": "src"}.get(tag)
        for name, value in attributes:
            if name == wanted and value and value.startswith(("http:", "https:", "//")):
                self.foreign.append(value)


@pytest.mark.long
def test_every_page_of_the_docs_is_in_the_lists_of_the_site(site: Path) -> None:
    pages = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    listed = (site / "llms.txt").read_text()
    assert {p for p in pages if f"({p})" not in listed} == set()
    assert {p for p in pages if not (site / p).is_file()} == set()


def test_pages_made_from_the_program_name_every_command_and_symptom(site: Path) -> None:
    commands = (site / "reference" / "commands.md").read_text()
    assert "## optvet campaign run\n" in commands
    assert "`--timeout`" in commands
    assert "| `wrong-output` | fault |" in (site / "reference" / "symptoms.md").read_text()
    assert "def vet(" in (site / "reference" / "python.md").read_text()
    assert "| `optvet.vet/" not in (site / "reference" / "plugins.md").read_text()


def test_commands_can_be_pasted(site: Path) -> None:
    lesson = (site / "tutorial" / "index.html").read_text()
    assert "optvet replay bundles" in html.unescape(re.sub("<[^>]*>", "", lesson))
    assert "# exit" not in lesson
    assert "$ optvet" not in re.sub("<[^>]*>", "", lesson)


def test_no_page_asks_another_server(site: Path) -> None:
    for page in (site / "index.html", site / "how-to" / "tvm" / "index.html"):
        requests = Requests()
        requests.feed(page.read_text())
        assert requests.foreign == []
        # The theme's script asks GitHub about the repository that such an element names.
        assert 'data-md-component="source"' not in page.read_text()
