import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.needs import needs

import optvet
from optvet.engine.models.opening import open_model
from optvet.spec.errors import InputError, UnknownName, UsageError
from optvet.spec.types import Deferred, Model, Sample
from optvet_hf_data import HuggingFaceDataset, HuggingFaceOptions

needs("datasets", reason="needs datasets; optvet[huggingface]")
PLAIN = {"x": [1.0, 2.0, 3.0], "label": 1}


@pytest.fixture(autouse=True)
def nothing_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")


def model_of(signature: str, folder: Path) -> Model:
    kind, name = signature.split(" ")[0], signature.split(" ")[1].rstrip(",")
    text = (
        f'<ir_version: 8, opset_import: ["" : 17]> g ({signature}) => ({kind} y) '
        f"{{ y = Identity({name}) }}"
    )
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return open_model(path, str(path), folder / "cache")


def jsonl(path: Path, *rows: Any) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def items(model: Model, argument: str, limit: int | None = None, **options: Any) -> list[Any]:
    made = HuggingFaceDataset().samples(
        model,
        argument,
        HuggingFaceOptions(**options),
        seed=0,
        limit=limit,
        probe=lambda feeds: "",
    )
    return list(made)


def made(model: Model, argument: str, **options: Any) -> list[Sample]:
    return [i.make() if isinstance(i, Deferred) else i for i in items(model, argument, **options)]


def test_rows_of_a_file(tmp_path: Path) -> None:
    rows = jsonl(tmp_path / "a.jsonl", PLAIN, {"x": [4.0, 5.0, 6.0], "label": 0})
    first, second = made(model_of("float[N,3] x", tmp_path), rows)
    assert (first.id, second.id) == ("train[0]", "train[1]")
    assert (first.label, second.label) == (1, 0)
    assert first.feeds["x"].dtype == np.float32
    assert first.feeds["x"].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "json"])
def test_other_formats(suffix: str, tmp_path: Path) -> None:
    import datasets

    table = datasets.Dataset.from_dict({"text": ["one", "two"], "label": [0, 1]})
    path = tmp_path / f"a.{suffix}"
    getattr(table, f"to_{suffix}")(path)
    samples = made(model_of("string[N] text", tmp_path), str(path))
    assert [(s.feeds["text"].tolist(), s.label) for s in samples] == [(["one"], 0), (["two"], 1)]


def test_columns_and_labels_of_another_name(tmp_path: Path) -> None:
    model = model_of("int64[B,S] input_ids, int64[B,S] attention_mask", tmp_path)
    rows = jsonl(tmp_path / "a.jsonl", {"ids": [3, 4], "attention_mask": [1, 1], "class": 7})
    (sample,) = made(model, rows, columns={"input_ids": "ids"}, label="class")
    assert sample.feeds["input_ids"].tolist() == [[3, 4]]
    assert sample.label == 7
    with pytest.raises(UnknownName, match=r"unknown column of train\[0\] 'input_ids'"):
        made(model, rows)
    with pytest.raises(UnknownName, match="unknown input 'inputs'"):
        made(model, rows, columns={"inputs": "ids"})
    with pytest.raises(UnknownName, match="'klass'; did you mean 'class'"):
        made(model, rows, columns={"input_ids": "ids"}, label="klass")


def test_a_single_input_takes_the_only_column_that_fits(tmp_path: Path) -> None:
    rows = jsonl(tmp_path / "a.jsonl", {"review": "fine", "label": 1})
    (sample,) = made(model_of("string[N] text", tmp_path), rows)
    assert sample.feeds["text"].tolist() == ["fine"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1.0, 2.0], r"shape \[2\], and input 'x' takes \['N', 3\]"),
        ([[1.0], [2.0, 3.0]], r"column 'x'"),
        ("three", r"column 'x'"),
        ({"bytes": "…"}, "is a dict, which is no tensor; export"),
        (None, "is a NoneType"),
    ],
)
def test_a_row_that_does_not_fit_is_named(value: Any, words: str, tmp_path: Path) -> None:
    rows = jsonl(tmp_path / "a.jsonl", {"x": value, "label": 0})
    (item,) = items(model_of("float[N,3] x", tmp_path), rows)
    with pytest.raises(InputError, match=words):
        item.make()


def test_bad_rows_are_skipped_and_counted(tmp_path: Path) -> None:
    model_of("float[N,3] x", tmp_path)
    rows = jsonl(tmp_path / "a.jsonl", PLAIN, {"x": [1.0], "label": 0}, PLAIN)
    result = optvet.vet(
        tmp_path / "model.onnx",
        dataset=f"huggingface:{rows}",
        on_bad="skip",
        cache_dir=tmp_path / "c",
    )
    assert (result.samples, [s.sample for s in result.skipped]) == (2, ["train[1]"])
    assert result.datasets[0].provenance == {"file": "a.jsonl", "split": "train"}


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    model = model_of("float[N,3] x", tmp_path)
    (tmp_path / "a.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(InputError, match=r"a\.parquet"):
        made(model, str(tmp_path / "a.parquet"))
    with pytest.raises(InputError, match="does not exist, or is none of"):
        items(model, str(tmp_path / "none.parquet"))
    with pytest.raises(UsageError, match="huggingface:ORG/NAME"):
        items(model, "")
    with pytest.raises(UnknownName, match="unknown split 'test'"):
        items(model, jsonl(tmp_path / "b.jsonl", PLAIN), split="test")


class Hub:
    """A hub with one dataset, whose rows never end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, splits: list[str]) -> None:
        self.asked: list[tuple[Any, ...]] = []
        import datasets

        self.read = 0
        monkeypatch.setattr("huggingface_hub.HfApi", lambda: self)
        monkeypatch.setattr(datasets, "get_dataset_split_names", lambda *a, **k: splits)
        monkeypatch.setattr(datasets, "load_dataset", self.load)

    def dataset_info(self, name: str, revision: str | None) -> SimpleNamespace:
        if name != "org/net":
            raise ConnectionError("no such dataset")
        self.asked.append(("revision", revision))
        return SimpleNamespace(sha="c0ffee")

    def load(self, name: str, config: Any, **more: Any) -> Iterator[dict[str, Any]]:
        self.asked.append((name, config, more))
        while True:
            self.read += 1
            yield PLAIN


def test_a_revision_becomes_a_commit_and_rows_are_streamed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub = Hub(monkeypatch, ["train", "test"])
    dataset, options = HuggingFaceDataset(), HuggingFaceOptions()
    argument = "org/net@v1#small"
    stream = dataset.samples(
        model_of("float[N,3] x", tmp_path),
        argument,
        options,
        seed=0,
        limit=None,
        probe=lambda feeds: "",
    )
    assert [next(stream).id for _ in range(3)] == ["test[0]", "test[1]", "test[2]"]
    assert hub.read == 3
    assert hub.asked == [
        ("revision", "v1"),
        ("org/net", "small", {"split": "test", "revision": "c0ffee", "streaming": True}),
    ]
    told = dataset.provenance(model_of("float[N,3] x", tmp_path), argument, options)
    assert told == {"revision": "c0ffee", "split": "test", "config": "small"}


def test_what_the_hub_does_not_have(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Hub(monkeypatch, ["train"])
    model = model_of("float[N,3] x", tmp_path)
    with pytest.raises(InputError, match=r"no such dataset.*check the name"):
        items(model, "org/other")
    with pytest.raises(UnknownName, match="unknown split of org/net 'trian'; did you mean 'train'"):
        items(model, "org/net", split="trian")
    assert len(items(model, "org/net", limit=2, split="train")) == 2
