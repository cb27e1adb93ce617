"""Comparison of exported decoders: the first difference is named, and right files agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from optvet.engine.decoding.compare import compare_decoding
from optvet.engine.decoding.files import cache_entry, files_of
from optvet.engine.discovery import Plugins
from optvet.spec.errors import UsageError
from optvet.spec.records.compare import DecodingComparison
from optvet.spec.records.reading import read_document
from optvet.spec.request import VetRequest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
FIRST, CACHED = "decoder_model.onnx", "decoder_with_past_model.onnx"
Write = Callable[..., Path]


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Write:
    """Returns a function that writes a model, and plants a fault in one of its files."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from decoder_models import FAULTS, write_model

    def write(folder: str, fault: str = "", file: str = "", crosses: bool = True) -> Path:
        planted = [f for f in FAULTS[crosses] if (f.name, f.file) == (fault, file)]
        assert bool(planted) == bool(fault)
        one = planted[0] if planted else None
        return write_model(tmp_path / folder, 0, crosses=crosses, fault=one)

    return write


def compared(a: Path, b: Path, tmp_path: Path, tokens: int = 3) -> DecodingComparison:
    request = VetRequest(model=str(a))
    return compare_decoding(str(b), Plugins(), request, cache_dir=tmp_path / "cache", tokens=tokens)


@pytest.mark.parametrize("crosses", [True, False])
def test_equal_files_decode_alike(write: Write, tmp_path: Path, crosses: bool) -> None:
    found = compared(write("a", crosses=crosses), write("b", crosses=crosses), tmp_path)
    assert found.verdict == "agrees"
    assert found.tokens[0] == found.tokens[1]
    assert [len(row) for row in found.tokens[0]] == [3, 3]
    assert [step.token for step in found.steps] == [1] * crosses + [1, 2, 3]


@pytest.mark.parametrize(
    ("fault", "file", "token", "place"),
    [
        ("encoder mask lost", "encoder_model.onnx", 1, "read/"),
        ("mask of the past lost", CACHED, 2, "read/"),
        ("positions off by one", FIRST, 1, "layers.0.self/"),
        ("rotary base changed", CACHED, 2, "layers.0.self/"),
    ],
)
def test_the_file_the_token_and_the_value_are_named(
    write: Write, tmp_path: Path, fault: str, file: str, token: int, place: str
) -> None:
    found = compared(write("a"), write("b", fault, file), tmp_path)
    assert (found.verdict, found.file, found.token) == ("differs", file, token)
    assert str(found.layer).startswith(place)


def test_the_entries_of_the_cache_are_named(write: Write, tmp_path: Path) -> None:
    found = compared(write("a"), write("b", "cache not shifted", CACHED), tmp_path)
    assert (found.file, found.token, found.output) == (CACHED, 2, "present.1.decoder.key")
    assert found.cache_entries == ["present.1.decoder.key", "present.1.decoder.value"]
    assert read_document(DecodingComparison, found.to_dict()) == found


def test_a_lost_output_is_named(write: Write, tmp_path: Path) -> None:
    b = write("b")
    model = onnx.load(b / CACHED)
    gone = next(o for o in model.graph.output if o.name == "present.0.decoder.value")
    model.graph.output.remove(gone)
    onnx.save(model, b / CACHED)
    found = compared(write("a"), b, tmp_path)
    assert (found.verdict, found.file, found.token) == ("differs", CACHED, 2)
    assert found.cache_entries == [gone.name]


def test_another_token_within_the_noise_is_excused_with_its_size(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from optvet.engine.decoding import compare
    from optvet.engine.decoding.greedy import Decoded

    decoded = compare._decoded
    calls = []

    def other_token(*about: Any) -> Decoded:
        found = decoded(*about)
        calls.append(found)
        if len(calls) == 2:
            found.tokens[0][1] = (found.tokens[0][1] + 1) % 23
        return found

    monkeypatch.setattr(compare, "_decoded", other_token)
    a = write("a")
    found = compared(a, a, tmp_path)
    assert (found.verdict, found.other_token_at) == ("undecided", 2)
    calls.clear()
    # With equal logits, rounding alone chooses the token.
    model = onnx.load(a / CACHED)
    head = next(n for n in model.graph.node if n.output[0] == "logits").input[1]
    weight = next(t for t in model.graph.initializer if t.name == head)
    equal = np.repeat(onnx.numpy_helper.to_array(weight)[:, :1], 23, 1)
    weight.CopyFrom(onnx.numpy_helper.from_array(equal, head))
    onnx.save(model, a / CACHED)
    found = compared(a, a, tmp_path)
    assert (found.verdict, found.other_token_at) == ("agrees", 2)
    assert "within the noise" in found.message


def test_other_parts_cannot_be_compared(write: Write, tmp_path: Path) -> None:
    a, b = write("a"), write("b")
    (b / CACHED).unlink()
    with pytest.raises(UsageError, match=f"has no {CACHED}"):
        compared(a, b, tmp_path)
    (b / FIRST).unlink()
    with pytest.raises(UsageError, match="there is no decoder"):
        compared(a, b, tmp_path)


def test_parts_are_told_by_their_names(tmp_path: Path) -> None:
    for name in ("decoder_model", "decoder_model_merged", "encoder_model_quantized", "other"):
        (tmp_path / f"{name}.onnx").write_bytes(b"")
    parts = files_of(str(tmp_path))
    assert {p: f.stem for p, f in parts.by_part.items()} == {
        "decoder_model": "decoder_model",
        "encoder_model": "encoder_model_quantized",
    }
    assert [f.stem for f in parts.others] == ["decoder_model_merged"]


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("past_key_values.0.decoder.key", "0.decoder.key"),
        ("present.0.decoder.key", "0.decoder.key"),
        ("present_key_values.3.value", "3.value"),
        ("past_0", "0"),
        ("logits", None),
    ],
)
def test_an_entry_has_one_name(name: str, entry: str | None) -> None:
    assert cache_entry(name) == entry
