"""The page in a browser: what a person can do with it, and what the author of a model cannot."""

from __future__ import annotations

import random
import re
import shutil
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from optvet import CampaignReport
from optvet.engine.campaign.report import render_report
from optvet.engine.discovery import Plugins
from optvet.plugin import ReportedFinding
from optvet.spec.records import (
    Bar,
    BarChart,
    Chart,
    Interval,
    IntervalChart,
    Point,
    PointChart,
)
from optvet.testing import pretend_files, pretend_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

ATTACK = """'"></title><script>hacked = 1</script><img src=x onerror='hacked = 1'>{{ 7 }}"""
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="parent.hacked = 1" width="9" height="9"/>'
CHROMIUM = shutil.which("chromium")

# Colours as a person sees them: WCAG 2.2, "contrast ratio", of a text and what is behind it.
CONTRAST = """
element => {
  const numbers = c => c.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  let behind = element;
  while (numbers(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
  const pair = [light(numbers(getComputedStyle(element).color)),
                light(numbers(getComputedStyle(behind).backgroundColor))].sort((a, b) => b - a);
  return (pair[0] + 0.05) / (pair[1] + 0.05);
}
"""


def rendered(report: CampaignReport) -> str:
    return render_report(Plugins().reporter("html"), report, files_of)


def files_of(finding: ReportedFinding) -> dict[str, bytes]:
    files = pretend_files(finding)
    return files | {"before.svg": SVG} if files else {}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if find_spec("playwright") is None:
        pytest.skip("needs playwright (optvet[dev])")
    if CHROMIUM is None:
        pytest.skip("needs chromium (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(rendered(pretend_report(ATTACK)))
    return path


@pytest.fixture
def asked() -> list[str]:
    """What the page asked for, and what it complained about."""
    return []


@pytest.fixture
def page(browser: Browser, file: Path, asked: list[str]) -> Iterator[Page]:
    context = browser.new_context(color_scheme="light")
    opened = context.new_page()
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("console", lambda message: asked.append(f"console: {message.text}"))
    opened.on("pageerror", lambda error: asked.append(f"error: {error}"))
    opened.goto(file.as_uri())
    yield opened
    context.close()


def listed(page: Page) -> list[str]:
    """Findings that are shown, in the table and as sections: they must be the same."""
    rows = page.locator("#list tbody tr:visible")
    found = [row.get_attribute("data-section") or "" for row in rows.all()]
    sections = [s.get_attribute("id") or "" for s in page.locator("article:visible").all()]
    assert sections == found
    return [name.removeprefix("finding-")[0] for name in found]


def test_the_severity_of_a_finding_is_told() -> None:
    text = rendered(pretend_report("m"))
    assert "<dt>severity</dt><dd>note</dd>" in text
    assert text.count("<dt>severity</dt><dd>fault</dd>") == 3


def test_the_known_fault_that_a_finding_is_is_named() -> None:
    report = pretend_report("m")
    first = report.findings[0]
    named = first.finding.model_copy(update={"known": ["acme-a", "acme-b"]})
    findings = [first.model_copy(update={"finding": named}), *report.findings[1:]]
    page = rendered(report.model_copy(update={"findings": findings}))
    assert page.count("<dt>known fault</dt><dd>acme-a, acme-b</dd>") == 1


def test_filters_narrow_the_table_and_the_sections(page: Page) -> None:
    assert listed(page) == ["1", "2", "3", "4"]
    page.locator("select[name=symptom]").select_option("wrong-output")
    assert listed(page) == ["1", "2"]
    assert page.locator("#count").inner_text() == "2 findings, of 4 in all"
    page.locator("button[type=reset]").click()
    page.wait_for_function("document.querySelectorAll('#list tr[hidden]').length === 0")
    assert page.locator("#count").inner_text() == "2 findings, 1 known, 1 note"
    tiles = page.locator(".tiles li").all_inner_texts()
    assert [" ".join(tile.split()) for tile in tiles][:1] == ["2 new findings"]
    page.locator("select[name=state]").select_option("known")
    assert listed(page) == ["3"]
    page.locator("select[name=state]").select_option("")
    page.locator("input[name=text]").fill("BLOAT fold")
    assert listed(page) == ["4"]
    page.locator("input[name=text]").fill("no such words")
    assert listed(page) == []
    assert page.locator("#count").inner_text() == "0 findings, of 4 in all"


@pytest.mark.long
def test_filters_survive_a_link(page: Page) -> None:
    page.locator("select[name=symptom]").select_option("wrong-output")
    page.locator("input[name=text]").fill("fold")
    shown = listed(page)
    assert "symptom=wrong-output" in page.url
    page.goto(page.url)
    assert listed(page) == shown
    assert page.locator("input[name=text]").input_value() == "fold"
    page.locator("button[type=reset]").click()
    page.wait_for_function("!location.search")


def test_a_link_shows_a_finding_that_is_filtered_out(page: Page) -> None:
    page.locator("select[name=symptom]").select_option("bloat")
    page.locator(".heat td.s-faulty a").click()
    page.wait_for_function("document.querySelectorAll('article[hidden]').length === 0")
    assert page.locator("article:target").get_attribute("id") == f"finding-{'1' * 16}"


def test_a_finding_is_a_page_of_its_own_that_can_be_linked_and_printed(
    page: Page, browser: Browser, file: Path
) -> None:
    page.locator("select[name=symptom]").select_option("wrong-output")
    second = f"finding-{'2' * 16}"
    page.locator(f"#{second}").get_by_role("link", name="This finding as a page").click()
    assert listed_alone(page) == [second]
    # The link, where no script runs, on paper too.
    for width in (1200, 500):
        viewport: ViewportSize = {"width": width, "height": 800}
        context = browser.new_context(java_script_enabled=False, viewport=viewport)
        opened = context.new_page()
        opened.goto(page.url)
        assert listed_alone(opened) == [second]
        assert not opened.locator("nav, #map, .tiles, #list").locator("visible=true").count()
        opened.emulate_media(media="print")
        assert listed_alone(opened) == [second]
        assert not opened.get_by_role("link", name="The whole report").is_visible()
        context.close()
    page.get_by_role("link", name="The whole report").click()
    assert len(listed(page)) == 2


def listed_alone(page: Page) -> list[str | None]:
    return [each.get_attribute("id") for each in page.locator("article:visible").all()]


def test_an_address_with_a_filter_and_a_finding_shows_the_finding(page: Page, file: Path) -> None:
    page.goto(f"{file.as_uri()}?symptom=bloat#only-finding-{'1' * 16}")
    assert listed_alone(page) == [f"finding-{'1' * 16}"]


def test_the_page_asks_for_nothing_and_complains_of_nothing(
    page: Page, file: Path, asked: list[str]
) -> None:
    page.locator("summary").first.click()
    page.locator("#theme").click()
    assert [a for a in asked if not a.startswith("data:")] == [file.as_uri()]


def test_what_a_model_is_called_does_not_run(page: Page) -> None:
    assert page.locator("h1").inner_text() == ATTACK
    assert page.evaluate("typeof window.hacked") == "undefined"
    # Only the script and the style of the page itself.
    assert page.locator("script").count() == 1
    assert page.locator("style").count() == 1
    assert page.locator("img:not([src^='data:image/svg+xml;base64,'])").count() == 0


def test_a_script_that_got_in_would_not_run(browser: Browser, file: Path, tmp_path: Path) -> None:
    text = file.read_text()
    worse = text.replace("<main>", "<main><script>hacked = 1</script><b onclick='hacked = 1'>b</b>")
    worse = worse.replace("<main>", "<main><img src='https://example.invalid/x.png'>")
    changed = tmp_path / "changed.html"
    page = browser.new_page()
    changed.write_text(worse.replace("Content-Security-Policy", "none"))
    page.goto(changed.as_uri())
    assert page.evaluate("hacked") == 1
    changed.write_text(worse)
    failed: list[str] = []
    page.on("requestfailed", lambda request: failed.append(request.failure or ""))
    page.goto(changed.as_uri())
    page.locator("b").click()
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("#filters").is_visible()
    assert all(word in ("csp", "net::ERR_BLOCKED_BY_CSP") for word in failed)
    page.close()


@pytest.mark.long
def test_the_keyboard_reaches_every_control_in_order(page: Page) -> None:
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        name = page.evaluate("document.activeElement.name || document.activeElement.id || ''")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"
        reached += [name] if name else []
        if name == "state":
            break
    assert reached == ["theme", "text", "symptom", "optimizer", "model", "state"]


def test_a_screen_reader_finds_its_way(page: Page) -> None:
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("h1").count() == 1
    assert page.locator("th:not([scope])").count() == 0
    assert page.locator("img:not([alt])").count() == 0
    assert page.locator("#count[aria-live=polite]").count() == 1
    controls = page.locator("form input, form select")
    assert set(controls.evaluate_all("all => all.map(c => c.labels.length)")) == {1}
    headings = page.locator("h1, h2, h3, h4, h5")
    levels = [int(level) for level in headings.evaluate_all("all => all.map(h => h.tagName[1])")]
    assert all(b <= a + 1 for a, b in pairwise(levels))
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(set(ids)) == len(ids)
    links = page.locator("a[href^='#']").evaluate_all("all => all.map(a => a.hash.slice(1))")
    assert set(links) <= set(ids)


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read_in_light_and_dark(browser: Browser, file: Path, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(file.as_uri())
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(float, re.findall(r"[\d.]+", paper)[:3])) < 200) == (scheme == "dark")
    texts = page.locator("p, a, .heat td, .badge, th, td, pre, h2, button, dt, output")
    read = f"all => all.map({CONTRAST}).map((c, i) => [c, all[i].outerHTML.slice(0, 200)])"
    contrasts = texts.evaluate_all(read)
    assert len(contrasts) > 100
    assert [text for contrast, text in contrasts if contrast < 4.5] == []
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != paper
    context.close()


def test_a_narrow_page_scrolls_tables_and_not_itself(browser: Browser, file: Path) -> None:
    page = browser.new_page(viewport={"width": 360, "height": 800})
    page.goto(file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    # Findings are folded: a line for each column, none beyond the edge.
    (wide,) = page.evaluate("[document.getElementById('list').getBoundingClientRect().right]")
    assert wide <= 360
    page.close()


@pytest.mark.long
def test_a_command_breaks_between_words_and_is_copied_as_it_is(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 800})
    command = page.locator("article .command").first
    assert command.inner_text() == "optvet vet m.onnx --pipeline fold"
    # Browsers break lines after hyphens, which makes "--" a word of its own.
    for width in range(120, 360, 8):
        command.evaluate("(c, w) => { c.style.width = `${w}px`; }", width)
        heights = command.locator(".option").evaluate_all(
            "all => all.map(o => o.getClientRects().length)"
        )
        assert heights == [1]


def test_without_scripts_everything_is_there(browser: Browser, file: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    assert page.locator("article:visible").count() == 4
    assert page.locator("form:visible").count() == 0
    context.close()


@pytest.mark.long
def test_charts_are_drawn_and_stand_below_as_tables(page: Page) -> None:
    charts = page.locator("svg.chart")
    assert charts.count() == 3
    assert [c.get_attribute("role") for c in charts.all()] == ["img"] * 3
    width = page.locator("main").bounding_box()
    for chart in charts.all():
        box = chart.bounding_box()
        assert box is not None
        assert width is not None
        assert 50 < box["height"] < box["width"] <= width["width"]
    # Whatever is called like markup is text, in tips too.
    tip = page.locator("svg.chart circle title").first
    assert tip.inner_html().startswith("'\"&gt;&lt;/title&gt;&lt;script&gt;")
    numbers = page.locator("section:has(> svg.chart) details")
    assert numbers.count() == 3
    numbers.first.locator("summary").click()
    row = numbers.first.locator("tbody tr").first
    assert row.locator("td").all_inner_texts() == ["1.2", "1.1", "1.4"]


def test_new_warnings_are_counted_and_folded_away(page: Page) -> None:
    section = page.locator("section:has(> #warnings)")
    assert "12 warnings of optimizers and runtimes in 4 jobs" in section.locator("p").inner_text()
    folded = section.locator("details")
    assert folded.count() == 4
    assert section.locator("tr:visible").count() == 0
    first = folded.first
    assert first.locator("summary").inner_text() == f"{ATTACK}, pretended, clean: 3"
    first.locator("summary").click()
    rows = first.locator("tbody tr").all()
    told = [row.locator("th, td").all_inner_texts() for row in rows]
    assert told == [
        [ATTACK, ATTACK, "build", "0", "1"],
        [f"{ATTACK} 2", "pretended", "run", "1", "3"],
    ]


def test_a_job_with_very_many_warnings_keeps_the_page_short() -> None:
    report = pretend_report("m")
    (first, *others) = (t for t in report.trials if t.new_warnings)
    many = [w.model_copy(update={"message": f"{i}"}) for i in range(80) for w in first.new_warnings]
    loud = first.model_copy(update={"new_warnings": many})
    page = rendered(report.model_copy(update={"trials": [loud, *others]}))
    assert "pretended, clean: 240<" in page
    assert "and 165 more" in page


def test_parts_of_a_bar_lie_end_to_end(page: Page) -> None:
    first, second = page.locator("svg.chart rect").all()
    boxes = [first.bounding_box(), second.bounding_box()]
    assert boxes[0] is not None
    assert boxes[1] is not None
    assert boxes[0]["x"] + boxes[0]["width"] == pytest.approx(boxes[1]["x"], abs=1)
    assert boxes[0]["width"] == pytest.approx(3 * boxes[1]["width"], rel=0.05)
    colours = {e.evaluate("e => getComputedStyle(e).fill") for e in (first, second)}
    assert len(colours) == 2


@pytest.mark.parametrize(
    "chart",
    [
        IntervalChart(title="t", axis="a", origin=1, intervals=[]),
        IntervalChart(title="t", axis="a", origin=1, intervals=[Interval(label="l", value=1)]),
        BarChart(title="t", axis="a", names=["n"], bars=[Bar(label="l", parts={})]),
        BarChart(title="t", axis="a", names=[], bars=[]),
        PointChart(title="t", axis="a", up="u", points=[]),
        PointChart(title="t", axis="a", up="u", points=[Point(label="l", x=0, y=0)]),
        PointChart(title="t", axis="a", up="u", points=[Point(label="l", x=1e-300, y=1e9)]),
    ],
    ids=lambda chart: chart.kind,
)
def test_charts_of_nothing_and_of_extremes_are_drawn_inside_of_their_frame(chart: Chart) -> None:
    page = rendered(pretend_report("m").model_copy(update={"charts": [chart]}))
    drawn = page.partition('<svg class="chart"')[2].partition("</svg>")[0]
    places = [float(v) for v in re.findall(r' (?:x|x1|x2|cx)="([-\d.e+]+)"', drawn)]
    assert places
    assert all(0 <= x <= 760 for x in places)
    assert "nan" not in drawn


def test_the_bundle_is_downloaded(page: Page, tmp_path: Path) -> None:
    with page.expect_download() as waiting:
        page.locator("article a[download]").first.click()
    waiting.value.save_as(tmp_path / "bundle.zip")
    with zipfile.ZipFile(tmp_path / "bundle.zip") as archive:
        assert archive.namelist() == ["after.svg", "before.svg", "repro.py"]
        assert archive.read("repro.py") == b"pass\n"


def test_the_first_metrics_are_shown_in_the_order_of_the_record() -> None:
    report = pretend_report("m")
    names = ["mAP", "top1_agreement", "top5_agreement", "top10_agreement"]
    many = {name: 1.0 for name in [*names, *(f"a{i}" for i in range(20))]}
    trials = [
        trial.model_copy(update={"impact": trial.impact.model_copy(update={"metrics": many})})
        for trial in report.trials
        if trial.impact is not None
    ]
    page = rendered(report.model_copy(update={"trials": trials}))
    table = page.partition("Effect on the task")[2]
    told = re.findall(r'<th scope="col"[^>]*>([\w@.]+)</th>', table)
    assert told[:2] == ["model", "asked"]
    assert told[2:7] == ["mAP", "top1_agreement", "top5_agreement", "top10_agreement", "a0"]
    assert len(told[2 : told.index("model", 2)]) == 9


def test_a_page_of_50_models_is_below_5_mb() -> None:
    report = pretend_report("m")
    trials = [
        trial.model_copy(update={"key": f"{i} {trial.key}", "short_name": f"{i:50}"})
        for i in range(50)
        for trial in report.trials
    ]
    findings = [
        finding.model_copy(update={"fingerprint": f"{i:08}{finding.fingerprint[:8]}"})
        for i in range(50)
        for finding in report.findings
    ]
    large = report.model_copy(update={"trials": trials, "findings": findings})
    noise = random.Random(0).randbytes(70_000)

    def files(finding: ReportedFinding) -> dict[str, bytes]:
        return {"before.svg": SVG + noise, "after.svg": SVG, "model.onnx": noise}

    page = render_report(Plugins().reporter("html"), large, files)
    assert 3_000_000 < len(page.encode()) < 5_000_000
    assert page.count("<article") == 200
    assert "too large for this page" in page
