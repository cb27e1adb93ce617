"""Inputs of the dataset "random" that follow what was declared of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from optvet import InputError, Sample
from optvet.engine.models.opening import open_model
from optvet.plugin import Feeds, Model
from optvet_random import RECIPE_SAMPLES, RandomDataset, RandomOptions
from optvet_random.values import recipe_from

HEAD = '<ir_version: 9, opset_import: ["" : 18]>'
PLAIN = "g (float[1,3] x) => (float[1,3] y) { y = Relu(x) }"
OPEN = "g (float[batch,seq] x) => (float[batch,seq] y) { y = Relu(x) }"
WORDS = "g (string[N] s, float[N] x) => (string[N] t, float[N] y) {t = Identity(s) y = Relu(x)}"
IDS = (
    "g (int64[batch,seq] ids, int64[batch,seq] mask) => (int64[batch,seq] y) { y = Mul(ids, mask) }"
)


def model(tmp_path: Path, graph: str, toml: str) -> Model:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + graph), path)
    path.with_suffix(".toml").write_text(toml)
    return open_model(path, "model", tmp_path)


def accept(batch: Sequence[Feeds]) -> list[str | None]:
    return [None] * len(batch)


def refuse(batch: Sequence[Feeds]) -> list[str | None]:
    return ["no"] * len(batch)


def never(batch: Sequence[Feeds]) -> list[str | None]:
    raise AssertionError("nothing had to be tried out")


def samples(
    subject: Model, probe: Any = accept, limit: int | None = None, **options: Any
) -> list[Sample]:
    chosen = RandomOptions(**options)
    return list(RandomDataset().samples(subject, None, chosen, seed=0, limit=limit, probe=probe))


def test_the_first_samples_follow_the_recipe_and_the_regimes_come_after(tmp_path: Path) -> None:
    subject = model(tmp_path, PLAIN, "[inputs.x]\nkind = 'uniform'\nlow = 70\nhigh = 80")
    made = samples(subject, never)
    assert len(made) == 10
    names = [s.id.split("-")[2] for s in made]
    assert names[: RECIPE_SAMPLES + 2] == ["recipe"] * RECIPE_SAMPLES + ["normal", "uniform"]
    inside = [bool(((s.feeds["x"] >= 70) & (s.feeds["x"] < 80)).all()) for s in made]
    assert inside == [True] * RECIPE_SAMPLES + [False] * (10 - RECIPE_SAMPLES)
    assert made[0].feeds["x"].dtype == np.float32


def test_what_is_declared_in_full_needs_no_trial(tmp_path: Path) -> None:
    subject = model(tmp_path, OPEN, "[inputs.x]\nkind = 'normal'\nshape = [4, 7]")
    made = samples(subject, never, limit=RECIPE_SAMPLES)
    assert [s.feeds["x"].shape for s in made] == [(4, 7)] * RECIPE_SAMPLES
    assert made[0].id == "random-0-recipe-batch4-seq7"


def test_where_regimes_do_not_run_the_recipe_goes_on(tmp_path: Path) -> None:
    subject = model(tmp_path, OPEN, "[inputs.x]\nkind = 'normal'\nshape = [4, 7]")
    made = samples(subject, refuse)
    assert len(made) == 10
    assert {s.feeds["x"].shape for s in made} == {(4, 7)}
    assert len({s.feeds["x"].tobytes() for s in made}) == 10


def test_without_a_recipe_for_all_one_must_be_found(tmp_path: Path) -> None:
    subject = model(tmp_path, OPEN, "[inputs.x]\nkind = 'normal'")
    assert len(samples(subject)) == 10
    with pytest.raises(InputError, match="none of"):
        samples(subject, refuse)


def test_integers_always_follow_their_recipe(tmp_path: Path) -> None:
    text = "[inputs.ids]\nkind = 'randint'\nlow = 5\nhigh = 9\nshape = [2, 6]\n"
    subject = model(tmp_path, IDS, text + "[inputs.mask]\nkind = 'prefix_mask'\nshape = [2, 6]")
    for sample in samples(subject):
        ids, mask = sample.feeds["ids"], sample.feeds["mask"]
        assert ids.dtype == np.int64
        assert set(ids.ravel()) <= {5, 6, 7, 8}
        assert (np.diff(mask, axis=1) <= 0).all()
        assert (mask.sum(axis=1) * 2 >= mask.shape[1]).all()


def test_integers_of_a_range_take_all_regimes_in_it(tmp_path: Path) -> None:
    graph = "g (int64[N,4000] ids) => (int64[N,4000] y) { y = Identity(ids) }"
    text = "[inputs.ids]\nkind = 'randint'\nlow = 0\nhigh = 2\nshape = [2, 4000]"
    ones = {s.id.split("-")[2]: s.feeds["ids"] for s in samples(model(tmp_path, graph, text))}
    assert 0.4 < ones["recipe"].mean() < 0.6
    assert not ones["zeros"].any()
    # A long row has few of a vocabulary.
    assert 0 < ones["sparse"].sum(axis=1).min() < 100


def test_words_and_constants(tmp_path: Path) -> None:
    text = "[inputs.s]\nkind = 'choice'\nvalues = ['low', 'high']\nshape = [50]\n"
    subject = model(tmp_path, WORDS, text + "[inputs.x]\nkind = 'const'\nvalue = 3")
    made = samples(subject, limit=2)
    assert set(made[0].feeds["s"]) == {"low", "high"}
    assert made[0].feeds["s"].dtype == object
    assert (made[0].feeds["x"] == 3).all()


def test_parameters_may_differ_per_column(tmp_path: Path) -> None:
    text = "[inputs.x]\nkind = 'uniform'\nlow = [0, 10, 20]\nhigh = [1, 11, 21]"
    made = samples(model(tmp_path, PLAIN, text), limit=1)
    assert (made[0].feeds["x"] // 10 == [[0, 1, 2]]).all()


def test_a_recipe_may_stand_under_an_element_type(tmp_path: Path) -> None:
    for key in ("float", "float32"):
        subject = model(tmp_path, PLAIN, f"[inputs.{key}]\nkind = 'const'\nvalue = 7")
        assert (samples(subject, limit=1)[0].feeds["x"] == 7).all()


def test_an_option_of_the_caller_wins_over_a_declared_size(tmp_path: Path) -> None:
    subject = model(tmp_path, OPEN, "[inputs.x]\nkind = 'normal'\nshape = [4, 7]")
    made = samples(subject, dims={"batch": 2}, limit=1)
    assert made[0].feeds["x"].shape == (2, 7)


def test_recipes_are_deterministic_and_differ_by_sample(tmp_path: Path) -> None:
    subject = model(tmp_path, PLAIN, "[inputs.x]\nkind = 'normal'")
    first, second = samples(subject), samples(subject)
    for one, other in zip(first, second, strict=True):
        assert one.id == other.id
        np.testing.assert_array_equal(one.feeds["x"], other.feeds["x"])
    assert not np.array_equal(first[0].feeds["x"], first[1].feeds["x"])


def test_draws_stay_within_small_integer_types(tmp_path: Path) -> None:
    graph = "g (uint8[1,90] x) => (uint8[1,90] y) { y = Identity(x) }"
    subject = model(tmp_path, graph, "[inputs.x]\nkind = 'normal'\nmean = 0\nstd = 500")
    assert set(samples(subject, limit=1)[0].feeds["x"].ravel()) >= {0, 255}


@pytest.mark.parametrize(
    ("graph", "toml", "complaint"),
    [
        (PLAIN, "[inputs.x]\nkind = 'normal'\nshape = [1, 4]", r"\[1, 4\], which does not fit"),
        (PLAIN, "[inputs.x]\nkind = 'normal'\nshape = [3]", r"\[3\], which does not fit"),
        (PLAIN, "[inputs.x]\nkind = 'uniform'\nlow = [1, 2]", "does not fit its shape"),
        (PLAIN, "[inputs.x]\nkind = 'uniform'\nlow = 'a'", "key 'inputs.x.uniform.low"),
        (
            IDS,
            "[inputs.ids]\nkind = 'randint'\nhigh = 9\nshape = [2, 6]\n"
            "[inputs.mask]\nkind = 'prefix_mask'\nshape = [3, 6]",
            "dimension 'batch' 2 and, for input 'mask', 3",
        ),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused(
    tmp_path: Path, graph: str, toml: str, complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        samples(model(tmp_path, graph, toml))


def test_a_recipe_of_no_kind_is_refused() -> None:
    with pytest.raises(InputError, match="is of kind 'gamma'"):
        recipe_from("x", {"kind": "gamma"})
    with pytest.raises(InputError, match="has no 'high'"):
        recipe_from("x", {"kind": "randint"})
