# ruff: noqa: INP001 -- a script, in no package
"""What mkdocs calls while it builds the site: pages made from the program, links, llms.txt."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))

import notebook
import reference

_OUTSIDE = re.compile(r"\]\(\.\./(?!\.)([^)\s]+)\)")


_CONSOLE = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
_REMARK = re.compile(r"  # exit [\d, or]+$", re.MULTILINE)


def _to_paste(block: str) -> str:
    """Commands of a console block without prompts, and without the exit codes that tests expect."""
    return _REMARK.sub("", re.sub(r"^\$ ", "", block, flags=re.MULTILINE))


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made from the program itself."""
    for name, text in reference.pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    files.append(File.generated(config, "notebook.md", content=notebook.markdown()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Make commands ready to paste, and point links outside of ``docs`` at the repository."""
    markdown = _CONSOLE.sub(lambda block: f"```bash\n{_to_paste(block[1])}```", markdown)
    if "/" in page.file.src_uri:
        return markdown
    return _OUTSIDE.sub(rf"]({config.extra['repository']}/blob/main/\1)", markdown)


def on_post_build(config: Any) -> None:
    """Write ``llms.txt``, the list of pages for assistants (llmstxt.org), and their sources."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for title, pages in _sections(config.nav):
        lines += [f"## {title}", ""]
        for name, source in pages:
            text = _source(config, source)
            (site / source).parent.mkdir(parents=True, exist_ok=True)
            (site / source).write_text(text, "utf-8")
            lines.append(f"- [{name}]({source}): {_first_sentence(text)}")
        lines.append("")
    (site / "llms.txt").write_text("\n".join(lines), "utf-8")


def _sections(nav: list[Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The pages of the navigation by section; those at the top are the section ``Start``."""
    start: list[tuple[str, str]] = []
    found = [("Start", start)]
    for entry in nav:
        ((title, below),) = entry.items()
        if isinstance(below, str):
            start.append((title, below))
        else:
            found.append((title, [next(iter(page.items())) for page in below]))
    return found


def _source(config: Any, source: str) -> str:
    file = Path(config.docs_dir, source)
    if file.is_file():
        return file.read_text("utf-8")
    return notebook.markdown() if file.stem == "notebook" else reference.pages()[file.stem]


def _first_sentence(text: str) -> str:
    """The first sentence of the first paragraph."""
    paragraphs = (" ".join(p.split()) for p in text.split("\n\n"))
    first = next(p for p in paragraphs if p and not p.startswith(("#", "|", "```", "!", "<")))
    return re.split(r"(?<=[.]) (?=[A-Z*`])", first)[0]
