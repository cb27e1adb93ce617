"""Files that anybody may have written are read within bounds, wherever they are read."""

import json
from pathlib import Path
from typing import Any

import pytest

from optvet import InputError
from optvet.engine.bundle import read_record
from optvet.engine.models.sidecar import config_for
from optvet.plugin import read_json, read_toml

DEEP = 100_000


def deep_json(levels: int = DEEP) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (deep_json(), "nested too deeply"),
        (deep_json(40), "nested more than 32 levels"),
        ('{"a":' * DEEP + "1" + "}" * DEEP, "nested too deeply"),
        ('{"a": {"b": [1, %s]}}' % ("9" * 4000), r"key 'a\.b\.1' is a number of \d+ bits"),
        ("9" * 5000, "cannot be read: Exceeds the limit"),
        ("[1, 2", "cannot be read: "),
        ('"\udcff"'.encode("utf-8", "surrogateescape").decode("latin-1"), None),
        ("", "cannot be read"),
    ],
)
def test_json_is_read_within_bounds(tmp_path: Path, text: str, message: str | None) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)
    if message is None:
        read_json(file, "listing")
        return
    with pytest.raises(InputError, match=message) as caught:
        read_json(file, "listing")
    assert str(file) in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + deep_json(), "nested too deeply"),
        ("a = " + "{a=" * 10_000 + "1" + "}" * 10_000, "nested too deeply"),
        ("a = " + deep_json(40), "key 'a' is nested more than 32|nested more than 32 levels"),
        (".".join("a" * 20_000) + " = 1", "has more than 32 parts"),
        ("x = {" + ".".join("a" * 20_000) + " = 1}", "has more than 32 parts"),
        ("[" + ".".join("a" * 20_000) + "]", "has more than 32 parts"),
        ("[" + ".".join(['"a"'] * 20_000) + "]", "has more than 32 parts"),
        ("a = " + "9" * 4000, "key 'a' is a number of"),
        ("a = " + "9" * 5000, "cannot be read: Exceeds the limit"),
        ("a = " + "1" * (300 << 10), "more than 262,144 bytes"),
        ("a = 2020-99-99", "cannot be read"),
        ("a = \x00", "cannot be read"),
    ],
)
def test_toml_is_read_within_bounds(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "a.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_toml(file, "record")
    assert len(str(caught.value)) < 600


def test_sentences_and_lists_of_numbers_are_no_long_keys(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    numbers = ", ".join(["0.5"] * 200)
    file.write_text(f'# {"A. " * 100}\ntask = "{"One. " * 100}"\nmean = [{numbers}]\n')
    assert len(read_toml(file, "record")["mean"]) == 200


def test_a_file_that_is_no_file_or_not_utf_8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: it is a folder, expected a regular file"):
        read_json(tmp_path, "record")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_toml(tmp_path / "x", "record")
    (tmp_path / "b").write_bytes(b"\xff\xfe\xff")
    for read in (read_json, read_toml):
        with pytest.raises(InputError, match="cannot be read"):
            read(tmp_path / "b", "record")


@pytest.mark.parametrize("text", [deep_json(), "9" * 5000, '{"schema": ' + "9" * 4000 + "}", "{"])
def test_bundles_records_and_catalogues_are_read_within_bounds(tmp_path: Path, text: str) -> None:
    def refused(act: Any) -> None:
        with pytest.raises(InputError) as caught:
            act()
        assert len(str(caught.value)) < 800

    (tmp_path / "finding.json").write_text(text)
    refused(lambda: read_record(tmp_path))
    model = tmp_path / "net.onnx"
    (tmp_path / "models.json").write_text(text)
    refused(lambda: config_for(model))
    (tmp_path / "net.toml").write_text(f"a = {text}")
    refused(lambda: config_for(model))


def test_a_document_within_bounds_is_what_the_standard_library_reads(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, True, {"b": "c" * 1000}], "n": 2**64 - 1, "m": -(2**63)}
    (tmp_path / "a.json").write_text(json.dumps(value))
    assert read_json(tmp_path / "a.json", "record") == value
