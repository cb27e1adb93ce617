"""Names from models are data in whatever shows them."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

import onnx
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text
from tests.assault.harness import LONG

from optvet.cli.campaign_tables import _csv, _markdown
from optvet.cli.terminal import Terminal, plain
from optvet.engine.campaign.report import render_report
from optvet.engine.discovery import Plugins
from optvet.spec.records.report_table import ReportTable
from optvet.spec.words import (
    csv_cell,
    markdown_block,
    markdown_code,
    markdown_text,
    printable,
    printable_json,
    toml_value,
    without_commands,
)
from optvet.testing import pretend_files, pretend_report

pytestmark = pytest.mark.long


PLUGINS = Plugins()
PIECES = (
    "\x1b[2J", "\x1b]8;;http://e.vil\x07", "\x9b31m", "\r", "\n", "\t", "\x00", "\x85", "\u2028",
    "\u202e", "\ufffe", "\ud83d", "::error::", "##[error]", "##vso[x]", "::stop-commands::t",
    "[a](http://e.vil)", "![a](x)", "<script>", "<img src=x onerror=x>", "&lt;", "]]>", "-->",
    "`", "```", "|", "@all", "#1", "=cmd|' /C'!A0", "+1", "-1", "@SUM(1)", "[bold]", "[/]",
    "www.e.vil", "https://e.vil", "%0A", "\\", "'", '"', "---", "* ", "1. ", "a", " ",
)  # fmt: skip
NAMES = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8).map("".join)
TRIES = 500 if LONG else 40
hostile = settings(max_examples=TRIES, deadline=None)
COMMANDS = re.compile(r"^\s*::|##\w*\[", re.MULTILINE)


def is_clean(text: str) -> bool:
    return all(c.isprintable() or c in "\n\t" for c in text)


def rendered(reporter: str, name: str) -> str:
    text = name.encode("utf-8", "replace").decode()  # Documents hold no lone surrogate.
    return render_report(PLUGINS.reporter(reporter), pretend_report(text), pretend_files)


@given(NAMES)
@hostile
def test_a_screen_shows_names_and_obeys_none(name: str) -> None:
    table = Table()
    table.add_column(name)
    table.add_row(Text(name))
    for shown in (plain(name), plain(Text(name)), plain(table, width=200), plain(table, width=12)):
        assert is_clean(shown)
        assert not COMMANDS.search(shown), shown


@pytest.mark.parametrize("start", ["::error::x", "  ::error::x", "##[error]x", "a ##vso[t]x"])
def test_an_error_message_is_no_command(start: str, capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().complain(f"a model\n{start}")
    assert not COMMANDS.search(capsys.readouterr().err)
    assert COMMANDS.search(start)


@given(NAMES)
@hostile
def test_json_holds_the_name_and_no_command(name: str) -> None:
    text = printable_json(json.dumps({"a": name}, ensure_ascii=False))
    assert json.loads(text) == {"a": name}
    assert is_clean(text)
    assert not COMMANDS.search(text)


@given(NAMES)
@hostile
def test_toml_holds_the_name(name: str) -> None:
    whole = re.sub("[\ud800-\udfff]", "\ufffd", name)
    text = f"# {printable(name, kept='')}\na = {toml_value({name: [name]})}"
    assert tomllib.loads(text) == {"a": {whole: [whole]}}
    assert is_clean(text)


@given(NAMES)
@hostile
def test_no_cell_is_a_formula(name: str) -> None:
    table = ReportTable(title=name, columns=[name, "n"], rows=[[name, -1.5]])
    cells = [c for row in csv.reader(io.StringIO(_csv(table))) for c in row]
    assert not [c for c in cells if c != "-1.5" and c[:1] in tuple("=+-@\t\r")]
    assert csv_cell(name)[:1] not in tuple("=+-@\t\r")
    assert "-1.5" in cells


@given(NAMES)
@hostile
def test_markdown_has_no_markup_of_a_name(name: str) -> None:
    text = markdown_text(name)
    assert "\n" not in text
    assert not re.search(r"<|(?<!\\)(\\\\)*[`*\[\]|!]|@|://|www\.", text), text
    assert not re.match(r"[-+=:#]|\d+[.)]", text), text
    table = ReportTable(title=name, columns=[name], rows=[[name]])
    assert "<" not in _markdown(table)


@given(NAMES)
@hostile
def test_code_in_markdown_stays_code(name: str) -> None:
    assert markdown_code(name).count("`") == 2
    first, *inside, last, _ = markdown_block(name).split("\n")
    assert set(first) == {"`"} == set(last)
    assert first == last
    assert not [line for line in inside if line.strip().startswith(first)]


@given(NAMES.map("m".__add__))
@settings(hostile, max_examples=TRIES // 8)
def test_no_report_is_changed_in_kind_by_a_name(name: str) -> None:
    for reporter in PLUGINS.names("reporter"):
        assert is_clean(rendered(reporter, name)), reporter
    root = ET.fromstring(rendered("junit", name))
    assert root.tag == "testsuites"
    ET.fromstring(PLUGINS.reporter("junit").render(pretend_report(printable(name)), pretend_files))
    lines = rendered("github", name).splitlines()
    command = re.compile(r"::(error|warning|notice) (file=[^,:]*,)?title=[^,:]*::")
    assert all(command.match(line) for line in lines)
    assert len(lines) == len(rendered("github", "m").splitlines())
    (run,) = json.loads(rendered("sarif", name))["runs"]
    for result in run["results"]:
        assert not re.search(r"(?<!\\)(\\\\)*[\[\]]", result["message"]["text"])
    page = rendered("html", name)
    assert page.count("<script") == 1
    assert "<img src" not in page
    assert not re.search(r"(?<!\\)<img|<script", rendered("markdown", name))


def test_what_is_harmless_stays_as_it_is() -> None:
    for name in ("encoder/layer.0:0", "a::b", "C# [x]", "größe"):
        assert without_commands(printable(name)) == name
    assert csv_cell("a-b=c") == "a-b=c"
    assert markdown_text("encoder/layer.0") == "encoder/layer.0"


MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x) => (float[2,3] y) { y = Frobnicate(x) }
"""


@pytest.mark.parametrize("name", ["\n::error::owned\n##[error]x", "\x1b[2J\x1b]0;t\x07[bold]"])
def test_the_output_of_pytest_has_no_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.parser.parse_model(MODEL)
    model.graph.node[0].op_type = model.graph.node[0].name = name
    onnx.save(model, tmp_path / "m.onnx")
    monkeypatch.setenv("OPTVET_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "--optvet", "--optvet-strict", "-n", "0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    out = done.stdout + done.stderr
    assert "failed" in out or "error" in out
    assert not COMMANDS.search(out)
    assert "\x1b" not in out
