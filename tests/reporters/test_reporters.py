from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from optvet import CampaignReport, PluginError
from optvet.cli.campaign_screen import _findings
from optvet.engine.campaign.report import render_report
from optvet.engine.discovery import Plugins
from optvet.spec.records.campaign import FindingGroup
from optvet.testing import check_reporter, pretend_files, pretend_report

PLUGINS = Plugins()
HOSTILE = "a <script>x</script> | `b` ::error::c\n::stop-commands::d %0A \x1b[2J\x00 \ud83d"


def rendered(name: str, report: CampaignReport) -> str:
    return render_report(PLUGINS.reporter(name), report, pretend_files)


def test_there_is_a_reporter_for_each_kind_of_reader() -> None:
    assert {"github", "json", "junit", "markdown", "sarif"} <= set(PLUGINS.names("reporter"))


@pytest.mark.parametrize("name", PLUGINS.names("reporter"))
def test_every_reporter_conforms(name: str) -> None:
    check_reporter(PLUGINS.reporter(name))


@pytest.mark.parametrize("name", PLUGINS.names("reporter"))
def test_no_document_has_control_characters(name: str) -> None:
    text = rendered(name, pretend_report(HOSTILE.removesuffix("\ud83d")))
    assert text.encode()
    assert all(c.isprintable() or c in "\n\t" for c in text)


def test_json_is_read_back_as_it_was() -> None:
    report = pretend_report("a\x1bb")
    again = CampaignReport.model_validate_json(rendered("json", report))
    assert again.trials == report.trials
    assert again.to_json() == report.to_json()


class Wrong:
    name = "wrong"
    suffix = ""

    def render(self, report: CampaignReport, files: Any) -> str:
        return None  # type: ignore[return-value]


def test_a_reporter_that_gives_no_text_is_blamed() -> None:
    with pytest.raises(PluginError, match=r"reporter 'wrong' .*render\(\) gave None"):
        render_report(Wrong(), pretend_report(), pretend_files)
    with pytest.raises(AssertionError, match="must return a text, not NoneType"):
        check_reporter(Wrong())


class Counting:
    name = "counting"
    suffix = "txt"
    calls = 0

    def render(self, report: CampaignReport, files: Any) -> str:
        self.calls += 1
        return str(self.calls)


def test_a_reporter_of_two_answers_is_refused() -> None:
    with pytest.raises(AssertionError, match="suffix must be empty or begin with a dot"):
        check_reporter(Counting())
    Counting.suffix = ".txt"
    with pytest.raises(AssertionError, match="gave two documents in two calls"):
        check_reporter(Counting())


# JUnit


def test_junit_counts_what_each_job_came_to() -> None:
    root = ET.fromstring(rendered("junit", pretend_report("m")))
    (suite,) = root.iter("testsuite")
    for element in (root, suite):
        told = {n: element.get(n) for n in ("tests", "failures", "errors", "skipped")}
        # Of eight jobs one is faulty; undecided, error and failed have no verdict; two wait.
        assert told == {"tests": "8", "failures": "1", "errors": "3", "skipped": "2"}
    cases = {c.get("name", ""): [e.tag for e in c] for c in suite}
    assert cases["pretended, faulty, on pretended"] == ["failure", "system-out"]
    assert cases["pretended, drift, on pretended"] == ["system-out"]
    assert cases["pretended, queued"] == ["skipped", "system-out"]
    assert len(cases) == 8


def test_junit_passes_what_is_known() -> None:
    report = pretend_report("m")
    known = [f.model_copy(update={"known": True, "counts": False}) for f in report.findings]
    root = ET.fromstring(rendered("junit", report.model_copy(update={"findings": known})))
    assert root.get("failures") == "0"
    (case,) = (c for c in root.iter("testcase") if "faulty" in c.get("name", ""))
    assert "known: wrong-output: fold → m" in (case.findtext("system-out") or "")


def test_junit_holds_what_xml_cannot() -> None:
    root = ET.fromstring(rendered("junit", pretend_report("a\x00\x1b<b>]]>&c")))
    (suite,) = root.iter("testsuite")
    assert suite.get("name") == "a��<b>]]>&c"


def test_of_a_traceback_the_last_line_is_told() -> None:
    report = pretend_report("m")
    error = "Traceback (most recent call last):\n  File x\nKeyError: 'gone'\n"
    trials = [t.model_copy(update={"error": error}) for t in report.trials if t.status == "error"]
    broken = report.model_copy(update={"trials": trials})
    assert "KeyError: 'gone' |" in rendered("markdown", broken)
    assert "File x" not in rendered("markdown", broken)
    (error_element,) = ET.fromstring(rendered("junit", broken)).iter("error")
    assert error_element.get("message") == "KeyError: 'gone'"
    assert error_element.text == error


# SARIF


def test_sarif_has_what_the_standard_requires() -> None:
    document = json.loads(rendered("sarif", pretend_report("m")))
    assert document["version"] == "2.1.0"
    assert document["$schema"].endswith("/sarif-schema-2.1.0.json")
    (run,) = document["runs"]
    driver = run["tool"]["driver"]
    rules = [rule["id"] for rule in driver["rules"]]
    assert rules == ["wrong-output", "optimizer-abort", "bloat"]
    assert len(run["results"]) == 4
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        (location,) = result["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"] == "m.onnx"
        assert location["physicalLocation"]["region"]["startLine"] >= 1
        assert result["partialFingerprints"].keys() == {"optvet/v1"}
        assert result.get("baselineState", "new") in ("new", "unchanged", "updated", "absent")
    assert [r["level"] for r in run["results"]] == ["error", "error", "warning", "note"]
    (invocation,) = run["invocations"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", invocation["startTimeUtc"])
    assert invocation["executionSuccessful"] is False
    told = Counter(n["level"] for n in invocation["toolExecutionNotifications"])
    assert told == {"error": 2, "warning": 3}


def test_sarif_is_json_without_infinity() -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    text = rendered("sarif", pretend_report("m"))
    results = json.loads(text, parse_constant=refuse)["runs"][0]["results"]
    assert [r["properties"]["error"] for r in results] == [0.5, "inf", None, None]


@pytest.mark.parametrize("model", ["a b/c%d.onnx", "zoo:net", "<x>.onnx", "ä.onnx"])
def test_sarif_names_models_by_uris(model: str) -> None:
    report = pretend_report("m")
    (finding, *_) = report.findings
    seen = finding.sightings[0].model_copy(update={"model": model})
    finding = finding.model_copy(update={"sightings": [seen]})
    text = rendered("sarif", report.model_copy(update={"findings": [finding]}))
    (result,) = json.loads(text)["runs"][0]["results"]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert re.fullmatch(r"[\w/:@.~%,-]+", uri, re.ASCII)


# Markdown and GitHub


def test_markdown_shows_texts_as_they_are_and_nothing_else() -> None:
    text = rendered("markdown", pretend_report("<b>x</b> | [y](z) `q` @everyone\n# h"))
    assert "<b>" not in text
    assert "@everyone" not in text
    assert "\n# h" not in text
    assert r"\[y\](z)" in text
    # A name with a bar in it makes no further column.
    assert widths(text) == widths(rendered("markdown", pretend_report("m")))


def test_documents_tell_the_severity_of_a_finding() -> None:
    report = pretend_report("m")
    assert "| bloat (note) |" in rendered("markdown", report)
    assert "| wrong-output |" in rendered("markdown", report)


@pytest.mark.parametrize("name", ["markdown", "html", "terminal"])
def test_every_table_of_findings_has_all_facts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FindingGroup, "facts", lambda self: {"harm": f"it is {self.stage}"})
    report = pretend_report()
    if name == "terminal":
        console = Console(width=200, record=True)
        console.print(_findings(report.findings))
        document = console.export_text()
    else:
        document = rendered(name, report)
    assert "harm" in document
    assert all(f"it is {f.stage}" in document for f in report.findings)


def test_markdown_folds_new_warnings_and_counts_equal_ones_together() -> None:
    text = rendered("markdown", pretend_report("m"))
    folded = text.partition("<details>")[2].partition("</details>")[0]
    assert folded.startswith("<summary>New warnings after optimization: 12</summary>\n\n|")
    assert "| m | m | build | 4 | m |" in folded
    assert "| m 2 | pretended | run | 8 | m |" in folded
    quiet = [t.model_copy(update={"new_warnings": []}) for t in pretend_report("m").trials]
    without = pretend_report("m").model_copy(update={"trials": quiet})
    assert "<details>" not in rendered("markdown", without)


def widths(markdown: str) -> list[int]:
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    return [len(re.findall(r"(?<!\\)\|", row)) for row in rows]


def test_markdown_is_short() -> None:
    report = pretend_report("m")
    text = rendered("markdown", report.model_copy(update={"findings": report.findings[:1] * 500}))
    assert "… and 480 more" in text
    assert len(text) < 20_000


def test_an_annotation_is_one_command_on_one_line() -> None:
    lines = rendered("github", pretend_report("m\n::stop-commands::x, %0A")).splitlines()
    assert {line.split(" title=")[0] for line in lines} == {"::error", "::warning", "::notice"}
    for line in lines:
        command = re.fullmatch(r"::\w+ title=([^:,]*)::(.*)", line)
        assert command is not None
        assert "%250A" in command[1] + command[2]
    assert len(lines) == 4 + 3 + 1


@pytest.mark.parametrize(
    ("model", "place"),
    [
        ("models/a,b", "file=models/a%2Cb.onnx,"),
        ("m\n", "file=m%0A.onnx,"),
        ("/models/a.onnx", ""),
        ("../a.onnx", ""),
        ("zoo:a.b", ""),
    ],
)
def test_an_annotation_stands_at_the_file_of_its_model(model: str, place: str) -> None:
    for line in rendered("github", pretend_report(model)).splitlines()[:4]:
        assert re.match(rf"::\w+ {re.escape(place)}title=", line)
