import json
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from tests.comparators.tiny_decoder import VOCABULARY, decoder
from tests.data import DATA

from optvet import InputError, Sample, VetResult
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.plugin import Artifact, Comparison, Model, ModelConfig, Pass, Traits, ValueInfo
from optvet.plugin import Run as RunModel
from optvet.spec.request import VetRequest
from optvet.testing import PlantedOptions
from optvet_text import TextComparator, measures
from optvet_text.generation import (
    Rules,
    Trace,
    beam_search,
    best,
    divergence,
    log_softmax,
    nth_choice,
)
from optvet_text.options import TextOptions
from optvet_text.task import answers_questions, writes_text
from optvet_text.vocabulary import TokenVocabulary, vocabulary_file, vocabulary_of

COMPARATOR = TextComparator()
needs_bleu = pytest.mark.skipif(
    find_spec("sacrebleu") is None, reason="optvet[text] is not installed"
)
SHARED = DATA

# Decoding -----------------------------------------------------------------------------------------


class Table:
    """A language model that is a function from what was written to scores."""

    def __init__(self, scores: Callable[[tuple[int, ...]], Sequence[float]]) -> None:
        self.scores = scores

    def start(self) -> tuple[np.ndarray, tuple[int, ...]]:
        return np.array(self.scores(())), ()

    def extend(self, state: tuple[int, ...], token: int) -> tuple[np.ndarray, tuple[int, ...]]:
        seen = (*state, token)
        return np.array(self.scores(seen)), seen


def drawn(seed: int, size: int) -> Table:
    def scores(seen: tuple[int, ...]) -> list[float]:
        scores: list[float] = np.random.default_rng([seed, *seen]).normal(size=size).tolist()
        return scores

    return Table(scores)


def test_choices_by_hand() -> None:
    # Whatever was written, 2 is best, then 0 and 3 which are equal, then 1.
    flat = Table(lambda seen: [1.0, -5.0, 7.0, 1.0])
    assert nth_choice(flat, Rules(3)).tokens == [2, 2, 2]
    assert nth_choice(flat, Rules(2), choice=2).tokens == [0, 0]
    assert nth_choice(flat, Rules(2), choice=3).tokens == [3, 3]
    assert nth_choice(flat, Rules(2), choice=9).tokens == [1, 1]  # there are but four


def test_stop_and_length_by_hand() -> None:
    # Writes 0, 1, 2, 3, 4, … by rule.
    counting = Table(lambda seen: [float(i == len(seen)) for i in range(9)])
    assert nth_choice(counting, Rules(5)).tokens == [0, 1, 2, 3, 4]
    assert nth_choice(counting, Rules(5, ends=frozenset({2}))).tokens == [0, 1]
    # The end may not come yet: of the rest, all equal, the lowest is taken.
    assert nth_choice(counting, Rules(5, least=3, ends=frozenset({2}))).tokens == [0, 1, 0, 3, 4]
    stopped = Rules(5, stops=lambda tokens: tuple(tokens[-2:]) == (1, 2))
    assert nth_choice(counting, stopped).tokens == [0, 1, 2]
    assert nth_choice(counting, Rules(5, ends=frozenset({0}))).tokens == []


LURE: Mapping[tuple[int, ...], Sequence[float]] = {
    (): [0.5, 0.4, 0.1],
    (0,): [0.34, 0.33, 0.33],
    (1,): [0.05, 0.05, 0.9],
    (2,): [0.4, 0.3, 0.3],
}
"""Probabilities: 0 is the best beginning, but the best text of two is 1 2 (0.36; 0 0 has 0.17)."""


def test_beam_search_by_hand() -> None:
    lure = Table(lambda seen: [math.log(p) for p in LURE[seen]])
    assert nth_choice(lure, Rules(2)).tokens == [0, 0]
    assert beam_search(lure, Rules(2), 1).tokens == [0, 0]
    found = beam_search(lure, Rules(2), 2, length_penalty=0)
    assert found.tokens == [1, 2]
    assert max(found.pool[-1].values()) == pytest.approx(math.log(0.4 * 0.9), abs=1e-12)


def test_length_penalty_by_hand() -> None:
    # The end (0) at once has 0.3; 1 0 has 0.7 * 0.4 = 0.28, whose root is 0.53.
    steps = {(): [0.3, 0.7], (1,): [0.4, 0.6], (1, 1): [0.5, 0.5]}
    model = Table(lambda seen: [math.log(p) for p in steps[seen]])
    rules = Rules(2, ends=frozenset({0}))
    assert beam_search(model, rules, 4, length_penalty=1).tokens == [1, 1]  # 0.42, root 0.65
    assert beam_search(model, rules, 4, length_penalty=0).tokens == [1, 1]
    short = {(): [0.5, 0.5], (1,): [0.9, 0.1]}
    model = Table(lambda seen: [math.log(p) for p in short[seen]])
    assert beam_search(model, rules, 4, length_penalty=0).tokens == []  # 0.5 before 0.45
    assert beam_search(model, rules, 4, length_penalty=1).tokens == [1]  # root of 0.45 is 0.67


@given(st.integers(0, 99), st.integers(2, 4), st.integers(1, 4))
def test_one_beam_is_greedy(seed: int, size: int, length: int) -> None:
    model = drawn(seed, size)
    assert beam_search(model, Rules(length), 1).tokens == nth_choice(model, Rules(length)).tokens


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 99), st.integers(2, 3), st.integers(1, 4))
def test_enough_beams_find_the_best_of_all_texts(seed: int, size: int, length: int) -> None:
    model = drawn(seed, size)

    def total(text: Sequence[int]) -> float:
        return sum(
            float(log_softmax(np.array(model.scores(tuple(text[:i]))))[t])
            for i, t in enumerate(text)
        )

    expected = max(product(range(size), repeat=length), key=total)
    assert beam_search(model, Rules(length), size**length, 0.0).tokens == list(expected)


@given(st.integers(0, 99), st.integers(1, 5))
def test_more_beams_never_find_less_when_all_are_kept(seed: int, length: int) -> None:
    model, most = drawn(seed, 2), 2**length
    few, many = (beam_search(model, Rules(length), n, 0.0) for n in (1, most))
    assert max(many.pool[-1].values()) >= max(few.pool[-1].values()) - 1e-12


@given(
    st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 2.0, math.inf]), min_size=1), st.integers(1, 9)
)
def test_the_best_are_in_order_and_of_equal_ones_the_lowest(values: list[float], n: int) -> None:
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:n]
    assert best(np.array(values), n).tolist() == expected


def test_what_is_not_a_number_is_never_chosen() -> None:
    assert nth_choice(Table(lambda seen: [math.nan, -3.0, math.nan]), Rules(2)).tokens == [1, 1]
    assert nth_choice(Table(lambda seen: [math.nan] * 3), Rules(2)).tokens == [0, 0]
    assert beam_search(Table(lambda seen: [math.nan] * 3), Rules(2), 2).tokens == [0, 0]
    assert beam_search(Table(lambda seen: [0.0, math.inf]), Rules(2), 2).tokens == [1, 1]


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=20))
def test_log_softmax_is_of_probabilities(values: list[float]) -> None:
    assert np.exp(log_softmax(np.array(values))).sum() == pytest.approx(1, abs=1e-9)


# Divergence ---------------------------------------------------------------------------------------


def trace_of(*rows: Sequence[float]) -> Trace:
    return nth_choice(Table(lambda seen: rows[len(seen)]), Rules(len(rows)))


def test_divergence_by_hand() -> None:
    ours = trace_of([5, 0, 0], [1, 3.0, 2.5], [9, 0, 0])
    theirs = trace_of([5, 0, 0], [1, 2.5, 3.0], [0, 9, 0])
    parted = divergence(ours, theirs, 0.1)
    assert parted is not None
    assert (parted.step, parted.margin, parted.firm) == (1, 0.5, True)
    within = divergence(ours, theirs, 0.5)
    assert within is not None
    assert not within.firm
    assert divergence(ours, ours, 0.0) is None


def test_a_choice_far_down_is_not_excused_by_a_near_second() -> None:
    ours = trace_of([5.0, 4.9, 1.0])
    theirs = trace_of([0.0, 0.0, 9.0])
    parted = divergence(ours, theirs, 0.5)
    assert parted is not None
    assert (parted.margin, parted.firm) == (4.0, True)


def test_what_the_pool_lacks_is_at_least_as_far_as_its_worst() -> None:
    ours = trace_of([float(-i) for i in range(30)])
    theirs = trace_of([0.0] * 29 + [1.0])
    parted = divergence(ours, theirs, 0.0)
    assert parted is not None
    assert parted.margin == 15  # 16 are kept


def test_beams_part_where_other_ones_are_kept() -> None:
    lure = Table(lambda seen: [math.log(p) for p in LURE[seen]])
    other = {**LURE, (1,): [0.9, 0.05, 0.05]}
    fooled = Table(lambda seen: [math.log(p) for p in other[seen]])
    ours, theirs = (beam_search(t, Rules(2), 2, 0.0) for t in (lure, fooled))
    parted = divergence(ours, theirs, 0.0)
    assert parted is not None
    assert parted.step == 1
    # Kept were 1 2 (0.36) and 0 0 (0.17); the other kept 1 0 (0.02) in place of 1 2.
    assert parted.margin == pytest.approx(math.log(0.36 / 0.02), abs=1e-9)


# Models in ONNX -----------------------------------------------------------------------------------


def save(proto: onnx.ModelProto, folder: Path, task: str | None = "text-generation") -> Model:
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    onnx.save(proto, path)
    if task:
        path.with_suffix(".toml").write_text(f'task = "{task}"')
    return open_model(path, str(path), folder)


def runner(model: Model) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(model.blob), options)
    names = [o.name for o in model.outputs]
    lengths: list[int] = []

    def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        lengths.append(feeds["input_ids"].shape[1])
        return dict(zip(names, session.run(names, dict(feeds)), strict=True))

    run.lengths = lengths  # type: ignore[attr-defined]  # what was fed, for the tests
    return run


PROMPT = np.array([[3, 1, 4, 1, 5]])


def sample_for(model: Model, ids: np.ndarray = PROMPT) -> Sample:
    """What a dataset makes: a cache of three tokens that must not be taken over."""
    rows, count = ids.shape
    junk = np.ones((rows, 2, 3, 4), np.float32)
    feeds = {
        "input_ids": ids,
        "attention_mask": np.ones((rows, count), np.int64),
        "position_ids": np.zeros((rows, count), np.int64),
        "past_key_values.0.key": junk,
        "past_key_values.0.value": junk,
    }
    return Sample("s", {i.name: feeds[i.name] for i in model.inputs})


def decoded(model: Model, sample: Sample | None = None, **options: Any) -> dict[str, np.ndarray]:
    return COMPARATOR.decode(
        model, sample or sample_for(model), runner(model), TextOptions(**options)
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"choice": 2},
        {"choice": 3},
        {"decode": "beam", "beams": 3},
        {"decode": "beam", "beams": 3, "length_penalty": 0, "stop": [7, 11]},
    ],
    ids=["greedy", "second", "third", "beam", "beam-stop"],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_with_and_without_cache_the_same_is_written(
    tmp_path: Path, options: dict[str, Any], seed: int
) -> None:
    cached = save(decoder(cached=True, seed=seed), tmp_path / "cached")
    plain = save(decoder(cached=False, seed=seed), tmp_path / "plain")
    first, second = (decoded(m, max_tokens=20, **options) for m in (cached, plain))
    assert first["tokens"].tolist() == second["tokens"].tolist()
    assert first["text"][0] == second["text"][0]
    np.testing.assert_allclose(first["pool_scores"], second["pool_scores"], atol=1e-4)


def test_a_cache_runs_the_prompt_once_and_then_one_token(tmp_path: Path) -> None:
    model = save(decoder(cached=True), tmp_path)
    run = runner(model)
    COMPARATOR.decode(model, sample_for(model), run, TextOptions(max_tokens=4))
    assert run.lengths == [5, 1, 1, 1]
    plain = save(decoder(cached=False), tmp_path / "plain")
    run = runner(plain)
    COMPARATOR.decode(plain, sample_for(plain), run, TextOptions(max_tokens=4))
    assert run.lengths == [5, 6, 7, 8]


def test_a_cache_that_takes_one_token_at_a_time(tmp_path: Path) -> None:
    free = save(decoder(cached=True), tmp_path / "free")
    single = save(decoder(cached=True, tokens="1"), tmp_path / "single")
    sample = sample_for(free)
    first, second = decoded(free, sample), decoded(single, sample)
    assert first["tokens"].tolist() == second["tokens"].tolist()


def test_a_fixed_length_is_filled_up_and_leaves_room(tmp_path: Path) -> None:
    free = save(decoder(cached=False), tmp_path / "free")
    fixed = save(decoder(cached=False, tokens="12"), tmp_path / "fixed")
    ids = np.arange(12)[None]
    # Six of twelve tokens are the prompt; the last of seven new ones is never fed back.
    second = decoded(fixed, Sample("s", {"input_ids": ids}))
    assert len(second["tokens"]) == 7
    first = decoded(free, Sample("s", {"input_ids": ids[:, :6]}), max_tokens=7)
    assert first["tokens"].tolist() == second["tokens"].tolist()


def test_the_context_cuts_the_prompt(tmp_path: Path) -> None:
    model = save(decoder(cached=False), tmp_path)
    long = Sample("s", {"input_ids": np.arange(60)[None] % VOCABULARY})
    cut = decoded(model, long, context=64, max_tokens=10)
    assert len(str(cut["prompt"][0]).split()) == 54
    assert len(cut["tokens"]) == 10


def test_padding_is_no_prompt(tmp_path: Path) -> None:
    model = save(decoder(cached=True), tmp_path)
    padded = sample_for(model, np.array([[0, 0, 3, 1, 4, 1, 5]]))
    feeds = {**padded.feeds, "attention_mask": np.array([[0, 0, 1, 1, 1, 1, 1]])}
    hidden = decoded(model, Sample("s", feeds))
    assert hidden["tokens"].tolist() == decoded(model)["tokens"].tolist()


def test_of_several_texts_the_first_is_continued(tmp_path: Path) -> None:
    model = save(decoder(cached=True), tmp_path)
    two = sample_for(model, np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]))
    assert decoded(model, two)["tokens"].tolist() == decoded(model)["tokens"].tolist()


def test_the_best_tokens_of_the_prompt_come_with_it(tmp_path: Path) -> None:
    model = save(decoder(cached=False), tmp_path)
    expected = runner(model)({"input_ids": PROMPT})["logits"][0].argmax(-1)
    assert decoded(model)["best_in_prompt"].tolist() == expected.tolist()


def test_what_cannot_be_continued_is_refused(tmp_path: Path) -> None:
    model = save(decoder(cached=True), tmp_path / "a")
    with pytest.raises(InputError, match=r"no output 'nosuch' among 'logits'.*'output'"):
        decoded(model, output="nosuch")
    with pytest.raises(InputError, match="has no token to continue"):
        decoded(model, sample_for(model, np.zeros((1, 0), np.int64)))
    bare = decoder(cached=True)
    del bare.graph.output[1:]
    with pytest.raises(InputError, match=r"continues the cache 'past_key_values.0.key'"):
        decoded(save(bare, tmp_path / "b"))
    fixed = decoder(cached=True)
    fixed.graph.input[3].type.tensor_type.shape.dim[2].dim_value = 3
    with pytest.raises(InputError, match=r"has the fixed shape \['batch', 2, 3, 4\]"):
        decoded(save(fixed, tmp_path / "c"))


def fed(
    inputs: Sequence[ValueInfo], outputs: Sequence[str], feeds: Mapping[str, np.ndarray]
) -> list[dict[str, np.ndarray]]:
    """What a model with this interface is fed while it writes two tokens.

    Its caches become as long as the text; its scores are for five tokens, and prefer the last.
    """
    path, seen = Path("m.onnx"), []
    values = tuple(ValueInfo(n, "float", None) for n in outputs)
    config = ModelConfig(task="text-generation")
    model = Model("m", path, path, "0", tuple(inputs), values, 8, {}, 1, 1, config)

    def run(given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        seen.append(dict(given))
        ids = next(v for n, v in given.items() if n.endswith("input_ids"))
        if "decoder_input_ids" in given:
            ids = given["decoder_input_ids"]
        scores = np.tile(np.arange(5.0), (*ids.shape, 1))
        cache = np.full((2, 1, 3, len(seen), 4), float(len(seen)), np.float16)
        return {n: scores if n == "logits" else cache for n in outputs}

    COMPARATOR.decode(model, Sample("s", feeds), run, TextOptions(max_tokens=2))
    return seen


IDS = ValueInfo("input_ids", "int64", ("batch", "n"))


def test_a_cache_of_keys_and_values_together_in_half_precision() -> None:
    past = [ValueInfo(f"past_{i}", "float16", (2, "batch_size", 3, "past_len", 4)) for i in (0, 1)]
    flag = ValueInfo("use_cache_branch", "bool", (1,))
    inputs = [IDS, *past, flag]
    first, second = fed(inputs, ["logits", "present_0", "present_1"], {"input_ids": PROMPT})
    assert first["past_1"].shape == (2, 1, 3, 0, 4)
    assert first["past_1"].dtype == np.float16
    assert not first["use_cache_branch"][0]
    assert second["input_ids"].tolist() == [[4]]
    assert (second["past_0"] == 1).all()
    assert second["use_cache_branch"][0]


def test_positions_types_and_masks_grow_with_the_text() -> None:
    names = ("attention_mask", "position_ids", "token_type_ids")
    inputs = [IDS, *(ValueInfo(n, "int32", ("batch", "n")) for n in names)]
    feeds = {"input_ids": PROMPT} | {n: np.ones((1, 5), np.int32) for n in names}
    _, second = fed(inputs, ["logits"], feeds)
    assert second["input_ids"].tolist() == [[3, 1, 4, 1, 5, 4]]
    assert second["attention_mask"].tolist() == [[1] * 6]
    assert second["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5]]
    assert second["token_type_ids"].tolist() == [[0] * 6]
    assert {second[n].dtype for n in names} == {np.dtype(np.int32)}


def test_what_is_translated_stays_while_the_translation_grows() -> None:
    names = ("attention_mask", "input_ids", "decoder_input_ids", "decoder_attention_mask")
    inputs = [ValueInfo(n, "int64", ("batch", "n")) for n in names]
    source = np.array([[7, 8, 9]])
    feeds = {
        "attention_mask": np.array([[1, 1, 0]]),
        "input_ids": source,
        "decoder_input_ids": np.array([[2]]),
        "decoder_attention_mask": np.array([[1]]),
    }
    _, second = fed(inputs, ["logits"], feeds)
    assert second["input_ids"].tolist() == source.tolist()
    assert second["attention_mask"].tolist() == [[1, 1, 0]]
    assert second["decoder_input_ids"].tolist() == [[2, 4]]
    assert second["decoder_attention_mask"].tolist() == [[1, 1]]


def test_a_fixed_batch_gets_the_text_as_often() -> None:
    three = ValueInfo("input_ids", "int64", (3, "n"))
    feeds = {"input_ids": np.array([[1, 2], [3, 4], [5, 6]])}
    first, _ = fed([three], ["logits"], feeds)
    assert first["input_ids"].tolist() == [[1, 2]] * 3


# Texts --------------------------------------------------------------------------------------------


def compare_texts(
    before: Table,
    after: Table,
    *,
    noise: float = 0.0,
    label: Any = None,
    tmp_path: Path | None = None,
    vocabulary: Sequence[str] = (),
    **options: Any,
) -> Comparison:
    """Both tables as models without a cache, through decode and compare."""
    config = ModelConfig(task="text-generation")
    path = Path("m.onnx")
    inputs = (ValueInfo("input_ids", "int64", ("batch", "n")),)
    outputs = (ValueInfo("logits", "float", ("batch", "n", 3)),)
    model = Model("m", path, path, "0", inputs, outputs, 8, {}, 1, 1, config)
    if vocabulary:
        assert tmp_path is not None
        file = tmp_path / "words.json"
        file.write_text(json.dumps(list(vocabulary)))
        options["vocabulary"] = str(file)
    chosen = TextOptions(**options)
    sample = Sample("s", {"input_ids": np.array([[0]])}, label)

    def run_of(table: Table) -> Any:
        def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            seen = tuple(feeds["input_ids"][0, 1:].tolist())
            rows = [table.scores(seen[:i]) for i in range(len(seen) + 1)]
            return {"logits": np.array(rows, np.float32)[None]}

        return run

    ours, theirs = (COMPARATOR.decode(model, sample, run_of(t), chosen) for t in (before, after))
    return COMPARATOR.compare(model, sample, ours, theirs, chosen, noise={"logits": noise})


def writing(tokens: Sequence[int], size: int, height: float = 1.0) -> Table:
    """Writes these tokens, each better than all others by ``height``."""
    return Table(
        lambda seen: [height * (i == tokens[min(len(seen), len(tokens) - 1)]) for i in range(size)]
    )


WORDS = ["the", "cat", "sat", "on", "mat", "a"]


@needs_bleu
def test_bleu_by_hand(tmp_path: Path) -> None:
    # "the cat sat on the mat" for "the cat sat on a mat": of its words 5 of 6 are there, of its
    # pairs 3 of 5, triples 2 of 4, quadruples 1 of 3; 5/6 * 3/5 * 2/4 * 1/3 = 1/12.
    compared = compare_texts(
        writing([0, 1, 2, 3, 5, 4], 6),
        writing([0, 1, 2, 3, 0, 4], 6),
        tmp_path=tmp_path,
        vocabulary=WORDS,
        max_tokens=6,
    )
    assert compared.detail["reference"] == ["the cat sat on a mat"]
    assert compared.detail["candidate"] == ["the cat sat on the mat"]
    assert compared.metrics["bleu"] == pytest.approx((1 / 12) ** 0.25, abs=1e-9)
    assert compared.metrics["exact_match"] == 0
    assert compared.metrics["shared_start"] == pytest.approx(4 / 6)
    assert compared.changed
    first = compared.detail["first_difference"]
    told = COMPARATOR.summarise([compared], TextOptions()).headline
    assert "; first other token at step 5 (margin of the scores 1, noise 0)" in told
    assert (first["token"], first["reference"], first["candidate"]) == (4, [5], [0])
    assert (first["margin"], first["noise"]) == (1.0, 0.0)


def test_the_same_text_is_exactly_one() -> None:
    same = writing([2, 1], 3)
    compared = compare_texts(same, same, max_tokens=2)  # shorter than four words
    assert not compared.changed
    for key in ("bleu", "exact_match", "shared_start", "token_agreement"):
        assert compared.metrics[key] == 1
    summary = COMPARATOR.summarise([compared, compared], TextOptions())
    assert summary.headline == "0 of 2 texts changed; BLEU 1"
    assert summary.metrics["bleu"] == 1


@needs_bleu
def test_an_empty_text_is_a_text() -> None:
    ending, other = writing([2], 3), writing([1, 1, 1, 2], 3)
    both = compare_texts(ending, ending, stop=2)
    assert (both.metrics["bleu"], both.metrics["shared_start"]) == (1, 1)
    one = compare_texts(ending, other, stop=2)
    assert (one.metrics["bleu"], one.metrics["shared_start"], one.changed) == (0, 0, True)
    assert one.detail["first_difference"]["margin"] == 1


@needs_bleu
def test_a_text_that_parts_within_noise_is_sensitivity() -> None:
    before, after = writing([0, 1], 3, height=0.25), writing([0, 2], 3, height=9)
    firm = compare_texts(before, after, noise=0.2)
    assert (firm.changed, firm.sensitive) == (True, False)
    loose = compare_texts(before, after, noise=0.3)
    assert (loose.changed, loose.sensitive) == (False, True)
    summary = COMPARATOR.summarise([firm, loose], TextOptions())
    assert summary.headline.startswith("1 of 2 texts changed, 1 undecided; BLEU 0.")


def test_texts_stop_at_a_text(tmp_path: Path) -> None:
    story = writing([0, 1, 2, 3, 5, 4], 6)
    compared = compare_texts(
        story, story, tmp_path=tmp_path, vocabulary=WORDS, stop=["sat on", "xyz"]
    )
    assert compared.detail["reference"] == ["the cat sat on"]


@needs_bleu
def test_labels_are_texts_that_are_right(tmp_path: Path) -> None:
    compared = compare_texts(
        writing([0, 1, 2, 3, 5, 4], 6),
        writing([0, 1, 2, 3, 0, 4], 6),
        label="the cat sat on the mat",
        tmp_path=tmp_path,
        vocabulary=WORDS,
        max_tokens=6,
    )
    metrics = COMPARATOR.summarise([compared], TextOptions()).metrics
    assert metrics["bleu_candidate"] == 1
    # As above, but a word, a pair, … of the reference is missing instead: 5/6, 3/5, 2/4, 1/3.
    assert metrics["bleu_reference"] == pytest.approx((1 / 12) ** 0.25, abs=1e-9)
    assert metrics["bleu_delta"] == pytest.approx(1 - (1 / 12) ** 0.25, abs=1e-9)


@needs_bleu
@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(*[st.lists(st.integers(0, 4), min_size=1, max_size=9)] * 2),
        min_size=1,
        max_size=4,
    )
)
def test_bleu_of_all_texts_is_sacrebleus(pairs: list[tuple[list[int], list[int]]]) -> None:
    import sacrebleu

    compared = [
        compare_texts(writing([*a, 5], 6), writing([*b, 5], 6), stop=5, max_tokens=10)
        for a, b in pairs
    ]
    before, after = ([" ".join(map(str, p[i])) for p in pairs] for i in (0, 1))
    metrics = COMPARATOR.summarise(compared, TextOptions()).metrics
    expected = sacrebleu.BLEU(tokenize="none", effective_order=True).corpus_score(after, [before])
    assert metrics["bleu"] == pytest.approx(expected.score / 100, abs=1e-9)
    assert 0 <= metrics["bleu"] <= 1
    assert before != after or metrics["bleu"] == metrics["exact_match"] == 1
    for one, (a, b) in zip(compared, pairs, strict=True):
        assert (one.metrics["bleu"] == 1) == (a == b)


@settings(deadline=None, max_examples=30)
@given(*[st.lists(st.integers(0, 4), min_size=1, max_size=6)] * 2)
def test_exact_match_and_shared_start_are_symmetric(a: list[int], b: list[int]) -> None:
    first, second = (
        compare_texts(writing([*x, 5], 6), writing([*y, 5], 6), stop=5).metrics
        for x, y in ((a, b), (b, a))
    )
    for key in ("exact_match", "shared_start", "token_agreement"):
        assert first.get(key) == second.get(key)
        assert 0 <= first.get(key, 0) <= 1


def always(made: Mapping[str, np.ndarray]) -> RunModel:
    """A model that answers the same whatever it is fed."""
    return lambda feeds: made


def compare_strings(before: Sequence[str], after: Sequence[str], label: Any = None) -> Comparison:
    path = Path("m.onnx")
    config = ModelConfig(task="translation")
    model = Model("m", path, path, "0", (), (), 8, {}, 1, 1, config)
    outputs = [{"y": np.array([list(side)], dtype=object)} for side in (before, after)]
    assert COMPARATOR.matches(model, outputs[0]) == 0.97
    sample, options = Sample("s", {}, label), TextOptions()
    ours, theirs = (COMPARATOR.decode(model, sample, always(made), options) for made in outputs)
    return COMPARATOR.compare(model, sample, ours, theirs, options, noise={"y": 0.0})


@needs_bleu
def test_strings_that_a_model_writes_itself() -> None:
    right = "the cat sat on the mat"
    compared = compare_strings([right, "no"], [right, "yes"], label=[right, "yes"])
    assert (compared.changed, compared.metrics["exact_match"]) == (True, 0.5)
    assert compare_strings([right], [right]).metrics["bleu"] == 1
    summary = COMPARATOR.summarise([compared, compare_strings([right], [right])], TextOptions())
    assert summary.headline.startswith("1 of 3 texts changed; BLEU 0.")
    assert summary.metrics["bleu_candidate"] == 1
    uneven = compare_strings([right, "no"], [right])
    assert uneven.changed
    assert COMPARATOR.summarise([uneven], TextOptions()).headline == "1 of 2 texts changed"


def test_what_was_not_decoded_is_refused() -> None:
    path = Path("m.onnx")
    model = Model("m", path, path, "0", (), (), 8, {}, 1, 1)
    outputs = {"logits": np.zeros((1, 2, 3))}
    with pytest.raises(InputError, match=r"must be decoded first.*'logits'"):
        COMPARATOR.compare(model, Sample("s", {}), outputs, outputs, TextOptions(), noise={})


def test_without_its_library_there_is_no_bleu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "find_spec", lambda name: None)
    compared = compare_texts(writing([0, 1], 3), writing([0, 2], 3))
    assert "bleu" not in compared.metrics
    summary = COMPARATOR.summarise([compared], TextOptions())
    assert summary.headline.startswith("1 of 1 texts changed; first other token at step 2 (")


# Vocabularies -------------------------------------------------------------------------------------


def vocabulary(tmp_path: Path, content: Any) -> TokenVocabulary:
    file = tmp_path / "vocabulary"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return vocabulary_of(file)


def test_vocabularies_of_every_form(tmp_path: Path) -> None:
    chars = vocabulary(tmp_path, {"kind": "character", "chars": ["\n", "a", "b"], "context": 96})
    assert (chars.decode([1, 2, 0, 1]), chars.context) == ("ab\na", 96)
    words = vocabulary(tmp_path, {"vocab": ["[CLS]", "un", "##able", "x", "</s>"]})
    assert (words.decode([1, 2, 3]), words.ends) == ("unable x", (4,))
    assert vocabulary(tmp_path, {"b": 1, "a": 0}).decode([0, 1]) == "ab"
    assert vocabulary(tmp_path, {"be": 1, "to": 0}).decode([0, 1, 7]) == "to be ⟨7⟩"
    assert vocabulary(tmp_path, "to\nbe\n").decode([1, 0]) == "be to"
    assert vocabulary(tmp_path, ["▁to", "▁b", "e"]).decode([0, 1, 2]) == "to be"
    assert vocabulary_of(None).decode([5, 6]) == "5 6"


def test_a_tokenizer_of_the_library(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="optvet[text] is not installed")
    words = {"to": 0, "be": 1, "</s>": 2}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="to"))
    known = vocabulary(tmp_path, tokenizer.to_str())
    assert (known.decode([0, 1]), known.ends) == ("to be", (2,))
    with pytest.raises(InputError, match=r"vocabulary .* cannot be (used|read)"):
        vocabulary(tmp_path, {"model": {"type": "NoSuch"}})


@pytest.mark.parametrize("content", ["{", [1, 2], {"a": "b"}, [], {"vocab": {"a": None}}])
def test_what_is_no_vocabulary_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(InputError, match=r"vocabulary .* cannot be (used|read)"):
        vocabulary(tmp_path, content)


def declaring(tmp_path: Path, name: str | None) -> Model:
    folder = tmp_path / "models"
    folder.mkdir(exist_ok=True)
    path = folder / "m.onnx"
    preprocessing = {"vocabulary": name} if name else {}
    config = ModelConfig(preprocessing=preprocessing, origin=str(folder / "models.json"))
    return Model("m", path, path, "0", (), (), 8, {}, 1, 1, config)


def test_a_vocabulary_is_found_by_its_declaration_and_nowhere_else(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('["a"]')
    (tmp_path / "data").mkdir()
    (tmp_path / "models").mkdir()
    (tmp_path / "data" / "v.json").write_text('["a"]')
    assert vocabulary_file(declaring(tmp_path, "v.json"), "") == tmp_path / "data" / "v.json"
    assert vocabulary_file(declaring(tmp_path, None), "") is None
    (tmp_path / "models" / "tokenizer.json").write_text("{}")
    beside = vocabulary_file(declaring(tmp_path, None), "")
    assert beside == tmp_path / "models" / "tokenizer.json"
    (tmp_path / "models" / "link.json").symlink_to(secret)
    for name in ("../secret.json", str(secret), "link.json", "C:\\secret.json", "missing.json"):
        with pytest.raises(InputError, match="cannot be used"):
            vocabulary_file(declaring(tmp_path, name), "")
    assert vocabulary_file(declaring(tmp_path, "../x"), str(secret)) == secret  # the user may
    with pytest.raises(InputError, match="no such file"):
        vocabulary_file(declaring(tmp_path, None), str(tmp_path / "nosuch"))


def test_answers_are_kept_by_the_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    model, names = declaring(tmp_path, "v.json"), set()
    for content in ('["a"]', '["b"]'):
        (tmp_path / "models" / "v.json").write_text(content)
        names.add(COMPARATOR.decoder(model, TextOptions()))
    assert len(names) == 2


# Which models -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "writes", "answers"),
    [
        *(("text-generation", True, False), ("language model (GPT)", True, False)),
        *(("Causal LM", True, False), ("translation", True, False)),
        *(("masked language model", False, False), ("fill-mask", False, False)),
        *(("question-answering", False, True), ("extractive QA (SQuAD 2)", False, True)),
        *(("visual question answering", False, False), ("text classification", False, False)),
        *(("sentence segmentation", False, False), (None, False, False), ("", False, False)),
    ],
)
def test_tasks(task: str | None, writes: bool, answers: bool) -> None:
    assert (writes_text(task), answers_questions(task)) == (writes, answers)


def score(model: Model) -> float:
    return COMPARATOR.matches(model, {o.name: np.zeros((1, 2, 3)) for o in model.outputs})


def test_models_are_recognised(tmp_path: Path) -> None:
    assert score(save(decoder(cached=False), tmp_path / "a")) == 0.97
    assert score(save(decoder(cached=True), tmp_path / "b", task=None)) == 0.85
    # Without a task or a cache, scores per token may be those of a tagger.
    assert score(save(decoder(cached=False), tmp_path / "c", task=None)) == 0
    assert score(save(decoder(cached=False), tmp_path / "d", task="fill-mask")) == 0


@pytest.mark.parametrize(
    "options", [{"choice": 0}, {"beams": 0}, {"decode": "sample"}, {"max_tokens": 0}, {"x": 1}]
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TextOptions(**options)


# Whole vets ---------------------------------------------------------------------------------------


class Careless:
    """An optimizer with a pass that forgets a small number, and one that swaps two weights."""

    name = "careless"
    preload: Sequence[str] = ("onnx",)
    options: BaseModel = PlantedOptions()
    traits = Traits()

    def version(self) -> str:
        return "1"

    def passes(self) -> Sequence[Pass]:
        return [Pass("forget_names"), Pass("coarse_epsilon"), Pass("swap_weights")]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        return {"default": [p.name for p in self.passes()]}

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        proto = onnx.load_from_string(source.data)
        if "forget_names" in passes:
            for node in proto.graph.node:
                node.name = ""
        if "coarse_epsilon" in passes:
            for node in proto.graph.node:
                for attribute in node.attribute:
                    if attribute.name == "epsilon":
                        attribute.f = 1.0
        if "swap_weights" in passes:
            square = [t for t in proto.graph.initializer if len({*t.dims}) == 1 == len(t.dims) - 1]
            square[0].name, square[-1].name = square[-1].name, square[0].name
        return Artifact("onnx", proto.SerializeToString())


def vetted(path: Path, folder: Path, pipeline: str, **options: Any) -> VetResult:
    plugins = Plugins()
    plugins.register("optimizer", Careless())
    chosen = VetRequest(
        model="model",
        optimizer="careless",
        pipeline=pipeline,
        comparator_options=options,
        limit=4,
        cache_dir=folder / "cache",
    )
    model = open_model(path, str(path), folder / "cache")
    return vet_model(model, chosen, plugins)


def write_decoder(folder: Path, *, cached: bool) -> Path:
    return save(decoder(cached=cached), folder).path


@needs_bleu
@pytest.mark.parametrize("cached", [False, True], ids=["plain", "cached"])
def test_a_planted_fault_changes_the_texts(tmp_path: Path, cached: bool) -> None:
    path = write_decoder(tmp_path, cached=cached)
    good = vetted(path, tmp_path, "forget_names")
    assert good.verdict == "clean"
    assert good.impact is not None
    assert good.impact.comparator == "text"
    assert good.impact.metrics["bleu"] == good.impact.metrics["exact_match"] == 1
    bad = vetted(path, tmp_path, "default")
    assert bad.verdict == "faulty"
    assert bad.impact is not None
    bleu = bad.impact.metrics["bleu"]
    assert bleu is not None
    assert bleu < 1
    assert bad.impact.changed > 0
    assert ["swap_weights"] in [f.culprit for f in bad.findings]


SHAKESPEARE = SHARED / "models" / "tiny-gpt-shakespeare.onnx"


@needs_bleu
@pytest.mark.skipif(not SHAKESPEARE.is_file(), reason="no ../shared/models")
@pytest.mark.parametrize("options", [{}, {"decode": "beam", "beams": 2}], ids=["greedy", "beam"])
def test_a_trained_model_writes_letters(tmp_path: Path, options: dict[str, Any]) -> None:
    good = vetted(SHAKESPEARE, tmp_path, "forget_names", **options)
    assert good.impact is not None
    assert good.impact.headline == f"0 of {good.samples} texts changed; BLEU 1"
    (text,) = good.impact.details[0].detail["reference"]
    assert len(text) == 32  # one letter per token
    assert not text.isdigit()
    bad = vetted(SHAKESPEARE, tmp_path, "coarse_epsilon", **options)
    assert bad.verdict == "faulty"
    assert bad.impact is not None
    bleu = bad.impact.metrics["bleu"]
    assert bleu is not None
    assert bleu < 1
