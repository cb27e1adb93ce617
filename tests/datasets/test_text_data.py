import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.comparators.tiny_decoder import decoder
from tests.data import DATA

import optvet
from optvet.engine.models.opening import open_model
from optvet.spec.errors import InputError, UsageError
from optvet.spec.types import Deferred, Model, Sample
from optvet_text_data import TextDataOptions, TextDataset

SHARED = DATA
IDS = "int64[B,S] input_ids, int64[B,S] attention_mask, int64[B,S] token_type_ids"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "play", "##ing", "the", "good", "!", "who", "he"]


def model_of(signature: str, folder: Path, record: str = "", name: str = "text-model") -> Model:
    kind, value = signature.split(" ")[0], signature.split(" ")[1].rstrip(",")
    text = (
        f'<ir_version: 8, opset_import: ["" : 17]> g ({signature}) => ({kind} y) '
        f"{{ y = Identity({value}) }}"
    )
    return opened(onnx.parser.parse_model(text), folder, record, name)


def opened(proto: onnx.ModelProto, folder: Path, record: str = "", name: str = "model") -> Model:
    path = folder / f"{name}.onnx"
    onnx.save(proto, path)
    if record:
        path.with_suffix(".toml").write_text(record)
    return open_model(path, str(path), folder / "cache")


def items(model: Model, path: Path, limit: int | None = None, **options: Any) -> list[Any]:
    made = TextDataset().samples(
        model, str(path), TextDataOptions(**options), seed=0, limit=limit, probe=lambda feeds: ""
    )
    return list(made)


def made(model: Model, path: Path, **options: Any) -> list[Sample]:
    return [i.make() if isinstance(i, Deferred) else i for i in items(model, path, **options)]


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    return str(write(tmp_path / "vocab.txt", "\n".join(WORDS)))


def test_lines_become_strings(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\n\n two\n")
    samples = made(model_of("string[N,1] text", tmp_path), path)
    assert [s.id for s in samples] == ["a.txt:1", "a.txt:3"]
    assert [s.feeds["text"].tolist() for s in samples] == [[["one"]], [[" two"]]]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", [{"text": "fine", "label": 1}, {"text": "bad", "label": 0}]),
        ("a.jsonl", '{"sentence": "fine", "label": 1}\n{"sentence": "bad", "label": 0}\n'),
        ("a.csv", "review,sentiment\nfine,1\nbad,0\n"),
        ("a.tsv", "Sentence\tLabel\nfine\t1\nbad\t0\n"),
    ],
)
def test_tables_of_texts_and_labels(name: str, content: Any, tmp_path: Path) -> None:
    samples = made(model_of("string[N] text", tmp_path), write(tmp_path / name, content))
    assert [(s.feeds["text"][0], s.label) for s in samples] == [("fine", 1), ("bad", 0)]


def test_folders_of_reviews(tmp_path: Path) -> None:
    write(tmp_path / "imdb" / "pos" / "0_9.txt", "fine")
    write(tmp_path / "imdb" / "neg" / "0_1.txt", "bad")
    samples = made(model_of("string[N] text", tmp_path), tmp_path / "imdb")
    assert [(s.id, s.label) for s in samples] == [("neg/0_1.txt", 0), ("pos/0_9.txt", 1)]


def test_labels_that_are_names_become_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [{"text": "fine", "label": "positive"}])
    model = model_of("string[N] text", tmp_path)
    assert made(model, path)[0].label == "positive"
    assert made(model, path, labels=("negative", "positive"))[0].label == 1
    with pytest.raises(InputError, match="label 'positive' is none of good, bad"):
        made(model, path, labels=("good", "bad"))


def test_words_pieces_and_what_is_unknown(tmp_path: Path, tokenizer: str) -> None:
    path = write(tmp_path / "a.txt", "Playing the GOOD game!")
    (sample,) = made(model_of(IDS, tmp_path), path, tokenizer=tokenizer)
    assert sample.feeds["input_ids"].tolist() == [[2, 4, 5, 6, 7, 1, 8, 3]]
    assert sample.feeds["attention_mask"].tolist() == [[1] * 8]
    assert sample.feeds["token_type_ids"].tolist() == [[0] * 8]
    assert sample.feeds["input_ids"].dtype == np.int64


def test_a_fixed_length_is_filled_or_cut(tmp_path: Path, tokenizer: str) -> None:
    path = write(tmp_path / "a.txt", "the\nthe good the good the good the good\n")
    fixed = IDS.replace("S", "6")
    short, long = made(model_of(fixed, tmp_path), path, tokenizer=tokenizer)
    assert short.feeds["input_ids"].tolist() == [[2, 6, 3, 0, 0, 0]]
    assert short.feeds["attention_mask"].tolist() == [[1, 1, 1, 0, 0, 0]]
    assert long.feeds["input_ids"].tolist() == [[2, 6, 7, 6, 7, 3]]


def test_questions_with_their_context(tmp_path: Path, tokenizer: str) -> None:
    answers = [{"text": "he", "answer_start": 0}, {"text": "he", "answer_start": 9}]
    asked = [
        {"id": "a", "question": "who", "answers": answers},
        {"id": "b", "question": "who!", "answers": [], "is_impossible": True},
    ]
    squad = {"data": [{"title": "T", "paragraphs": [{"context": "he good", "qas": asked}]}]}
    path = write(tmp_path / "squad.json", squad)
    first, second = made(model_of(IDS, tmp_path), path, tokenizer=tokenizer)
    assert first.id == "squad.json/T/a"
    assert first.feeds["input_ids"].tolist() == [[2, 9, 3, 10, 7, 3]]
    assert first.feeds["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 1]]
    assert (first.label, second.label) == ({"answers": ["he"]}, {"answers": [""]})


def test_the_library_s_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers; optvet[text]")
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"[UNK]": 0, "the": 1, "good": 2}, unk_token="[UNK]")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.save(str(tmp_path / "tokenizer.json"))
    # Beside the model it is found without being named.
    (sample,) = made(model_of("int64[B,S] ids", tmp_path), write(tmp_path / "a.txt", "the good x"))
    assert sample.feeds["ids"].tolist() == [[1, 2, 0]]


def test_texts_that_are_labelled_for_another_task_have_no_label(tmp_path: Path) -> None:
    write(tmp_path / "words.json", {"vocab": WORDS, "labels": ["bad", "good"]})
    model = model_of(IDS, tmp_path, '[preprocessing]\nvocabulary = "words.json"\n')
    rows = [{"text": "good", "label": "good"}, {"text": "the", "label": "card_arrival"}]
    samples = made(model, write(tmp_path / "a.json", rows))
    assert [s.label for s in samples] == [1, None]


def test_a_name_is_no_label_of_a_model_that_answers_with_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [{"text": "the", "label": "card_arrival"}])
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (string[N] text) => (int64[M] y) '
        "{ y = Shape(text) }"
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "numbers.onnx")
    numbers = open_model(tmp_path / "numbers.onnx", "numbers.onnx", tmp_path / "cache")
    assert [s.label for s in made(numbers, path)] == [None]
    assert [s.label for s in made(model_of("string[N] text", tmp_path), path)] == ["card_arrival"]


def test_of_a_mixed_folder_the_folder_of_texts_is_read(tmp_path: Path) -> None:
    write(tmp_path / "data" / "labels" / "names.txt", "cat\ndog\n")
    write(tmp_path / "data" / "text" / "a.txt", "one\n")
    samples = made(model_of("string[N] text", tmp_path), tmp_path / "data")
    assert [s.id for s in samples] == ["text/a.txt:1"]


def test_a_language_model_gets_runs_of_a_text(tmp_path: Path) -> None:
    write(tmp_path / "chars.json", {"chars": list("ab\n"), "context": 8})
    record = 'task = "language model"\n[preprocessing]\nvocabulary = "chars.json"\n'
    model = model_of("int64[B,S] input_ids", tmp_path, record)
    samples = made(model, write(tmp_path / "a.txt", "ab" * 20))
    assert [s.feeds["input_ids"].tolist() for s in samples] == [[[0, 1, 0, 1]]] * 3
    with pytest.raises(InputError, match="no character 'z'"):
        made(model, write(tmp_path / "z.txt", "zzz"))


def test_a_decoder_begins_with_an_empty_cache(tmp_path: Path) -> None:
    letters = str(write(tmp_path / "letters.json", list("abcd \n")))
    text = write(tmp_path / "t.txt", "abc\nad\n")
    (sample,) = made(opened(decoder(cached=True), tmp_path), text, tokenizer=letters)
    assert sample.feeds["input_ids"].shape == sample.feeds["attention_mask"].shape == (1, 7)
    assert sample.feeds["past_key_values.0.key"].shape == (1, 2, 0, 4)
    fixed = decoder(cached=True)
    for value in fixed.graph.input[3:]:
        value.type.tensor_type.shape.dim[2].dim_value = 8
    with pytest.raises(InputError, match=r"'past_key_values\.0\.key' has the fixed shape"):
        made(opened(fixed, tmp_path), text, tokenizer=letters)


def test_bytes_where_the_model_takes_them(tmp_path: Path) -> None:
    model = model_of("uint8[B,L] input", tmp_path, 'task = "sentence segmentation of bytes"\n')
    (sample,) = made(model, write(tmp_path / "a.txt", "é!"))
    assert sample.feeds["input"].tolist() == [[0xC3, 0xA9, 0x21]]


def test_without_a_tokenizer_there_are_no_made_up_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "the")
    model = model_of(IDS, tmp_path)
    with pytest.raises(InputError, match=r"no tokenizer is declared.*tokenizer=PATH"):
        items(model, path)
    assert TextDataset().suits(model, str(path)) == 0
    with pytest.raises(InputError, match="does not exist"):
        items(model, path, tokenizer=str(tmp_path / "none.json"))
    broken = write(tmp_path / "broken.json", "{")
    with pytest.raises(InputError, match="cannot be read"):
        items(model, path, tokenizer=str(broken))
    for name in ("../out.json", "/etc/passwd"):
        outside = model_of(IDS, tmp_path, f'[preprocessing]\nvocabulary = "{name}"\n', "text-out")
        with pytest.raises(InputError, match="leads out"):
            items(outside, path)


def test_what_suits(tmp_path: Path) -> None:
    path = write(tmp_path / "texts" / "a.txt", "one")
    assert TextDataset().suits(model_of("string[N] text", tmp_path), str(path.parent)) == 0.8
    assert TextDataset().suits(model_of("float[N] x", tmp_path, name="m"), str(path)) == 0
    assert TextDataset().suits(model_of("string[N] text", tmp_path), str(tmp_path / "no")) == 0
    with pytest.raises(InputError, match="no inputs that take text"):
        items(model_of("float[N] x", tmp_path), path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", "[", "cannot be read"),
        ("a.json", "{}", "neither a list of texts nor in SQuAD's form"),
        ("a.json", '[{"x": 1}]', r"a\.json\[0\] has no column text"),
        ("a.json", '{"data": [{"paragraphs": [{"qas": [{}]}]}]}', "lacks"),
        ("a.txt", "\udcff", "cannot be read"),
    ],
)
def test_bad_data_is_named(name: str, content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=words):
        made(model_of("string[N] text", tmp_path), path)


def test_a_bad_file_is_skipped_and_counted(tmp_path: Path) -> None:
    model_of("string[N] text", tmp_path)
    write(tmp_path / "t" / "a.txt", "one\n")
    write(tmp_path / "t" / "b.json", "[")
    options: dict[str, Any] = {"dataset": f"text:{tmp_path / 't'}", "cache_dir": tmp_path / "c"}
    with pytest.raises(InputError, match=r"b\.json"):
        optvet.vet(tmp_path / "text-model.onnx", **options)
    result = optvet.vet(tmp_path / "text-model.onnx", on_bad="skip", **options)
    assert (result.samples, [s.sample for s in result.skipped]) == (1, ["b.json"])


def test_paths_that_are_wrong(tmp_path: Path) -> None:
    model = model_of("string[N] text", tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        items(model, tmp_path / "none")
    with pytest.raises(InputError, match="has no text in it"):
        items(model, write(tmp_path / "empty.txt", "\n"))
    with pytest.raises(UsageError, match="--dataset text:PATH"):
        TextDataset().samples(
            model, None, TextDataOptions(), seed=0, limit=1, probe=lambda feeds: ""
        )


@pytest.mark.skipif(not (SHARED / "models").is_dir(), reason="needs the folder ../shared")
def test_a_trained_model_is_right_as_often_as_its_record_says() -> None:
    result = optvet.vet(
        SHARED / "models" / "tiny-bert-sentiment.onnx",
        dataset=f"text:{SHARED / 'data' / 'text' / 'sentiment_sentences.json'}",
        cache=False,
    )
    assert result.impact is not None
    accuracy = result.impact.metrics["accuracy_top1_reference"]
    assert accuracy is not None
    assert 0.6 < accuracy < 0.85  # 0.71 of 400 sentences; a wrong tokenizer gives 0.5
