"""Samples a chunk at a time: which ones, in what order, and that the others are not held."""

import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from pydantic import BaseModel
from tests.answers import detail
from tests.preload import TRIALS

from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.trials import inputs as chunking
from optvet.engine.work.trials.inputs import Inputs, Slice
from optvet.spec.errors import InputError, NothingTested, UnknownName, UsageError
from optvet.spec.records import VetResult
from optvet.spec.request import VetRequest
from optvet.spec.types import Deferred, Model, Sample
from optvet.testing import FILLERS, Planted

PRELOAD = (*TRIALS, __name__)
NET = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[N,4] x) => (float[N,2] y)
<float[4,2] w = {0.5, -1.0, 2.0, 0.25, 1.5, -0.75, 0.1, 3.0}>
{ h = Relu(x) y = MatMul(h, w) }
"""


class Options(BaseModel):
    rows: int = 1


class Numbers:
    """Sample number i is full of i; from ``negative`` on its last row is -0.01."""

    name = "numbers"
    options: BaseModel = Options()

    def __init__(
        self, count: int, negative: int = 1 << 30, bad: tuple[int, ...] = (), rows: int = 1
    ) -> None:
        self.count, self.negative, self.bad, self.rows = count, negative, bad, rows
        self.made: list[int] = []

    def samples(
        self, model: Model, argument: str | None, options: BaseModel, **given: Any
    ) -> Iterator[Deferred]:
        for i in range(self.count):
            yield Deferred(f"n{i}", lambda i=i: self._make(i))  # type: ignore[misc]

    def _make(self, i: int) -> Sample:
        if i in self.bad:
            raise InputError(f"dataset 'numbers': n{i} is broken; mend it")
        self.made.append(i)
        x = np.full((self.rows, 4), i, np.float32)
        if i >= self.negative:
            x[-1] = -0.01
        return Sample(f"n{i}", {"x": x})

    def provenance(
        self, model: Model, argument: str | None, options: BaseModel
    ) -> Mapping[str, str]:
        return {"numbers": f"0 to {self.count - 1}"}


@pytest.fixture
def model(tmp_path: Path) -> Model:
    onnx.save(onnx.parser.parse_model(NET), tmp_path / "m.onnx")
    return open_model(tmp_path / "m.onnx", "m.onnx", tmp_path / "cache")


def inputs_of(model: Model, dataset: Any, *specs: str, **cut: Any) -> Inputs:
    plugins = Plugins()
    plugins.register("dataset", dataset)
    return Inputs(
        model,
        plugins,
        specs or ("numbers",),
        {},
        cut=Slice(**cut),
        seed=3,
        probe=lambda feeds: [None for _ in feeds],
    )


def numbers(samples: Inputs | list[Sample]) -> list[int]:
    return [int(s.id.rpartition("n")[2]) for s in samples]


# Which samples


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        ({}, list(range(10))),
        ({"limit": 3}, [0, 1, 2]),
        ({"start": 8}, [8, 9]),
        ({"start": 4, "limit": 2}, [4, 5]),
        ({"start": 9, "limit": 5}, [9]),
    ],
    ids=["all", "limit", "start", "both", "beyond"],
)
def test_a_slice_makes_only_its_own_samples(
    model: Model, cut: dict[str, int], expected: list[int]
) -> None:
    dataset = Numbers(10)
    assert numbers(inputs_of(model, dataset, **cut)) == expected
    assert dataset.made == expected


def test_a_shuffled_limit_is_a_random_subset_that_the_seed_fixes(model: Model) -> None:
    dataset = Numbers(1000)
    first = numbers(inputs_of(model, dataset, limit=20, shuffle=True))
    assert dataset.made == first
    assert len(set(first)) == 20
    assert first != sorted(first)
    assert max(first) > 500
    assert numbers(inputs_of(model, Numbers(1000), limit=20, shuffle=True)) == first
    rest = numbers(inputs_of(model, Numbers(1000), start=10, limit=10, shuffle=True))
    assert rest == first[10:]
    assert sorted(numbers(inputs_of(model, Numbers(50), shuffle=True))) == list(range(50))


def test_the_last_chunk_may_be_a_part(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "CHUNK_SAMPLES", 4)
    several = inputs_of(model, Numbers(10))
    assert [numbers(c) for c in several.chunks()] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert several.several
    assert [len(c) for c in inputs_of(model, Numbers(8)).chunks()] == [4, 4]


def test_a_chunk_ends_where_its_bytes_are_reached(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 16 bytes of x, and twice the 8 of y.
    monkeypatch.setattr(chunking, "CHUNK_BYTES", 100)
    assert [len(c) for c in inputs_of(model, Numbers(7)).chunks()] == [3, 3, 1]
    monkeypatch.setattr(chunking, "CHUNK_BYTES", 1)
    assert [len(c) for c in inputs_of(model, Numbers(3)).chunks()] == [1, 1, 1]


def test_what_fits_one_chunk_is_made_once(model: Model) -> None:
    dataset = Numbers(5)
    inputs = inputs_of(model, dataset)
    (first,) = inputs.chunks()
    (again,) = inputs.chunks()
    assert [a is b for a, b in zip(first, again, strict=True)] == [True] * 5
    assert dataset.made == [0, 1, 2, 3, 4]
    assert not inputs.several


# Bad data


def test_bad_data_is_refused_by_name_unless_skipping_is_asked_for(model: Model) -> None:
    with pytest.raises(InputError, match=r"n1 is broken; mend it \(or say --on-bad skip"):
        list(inputs_of(model, Numbers(4, bad=(1,))))


def test_what_is_skipped_is_told(model: Model) -> None:
    inputs = inputs_of(model, Numbers(4, bad=(1, 3)), on_bad="skip")
    assert numbers(inputs) == [0, 2]
    assert list(inputs.skipped) == ["n1", "n3"]
    assert "n1 is broken" in inputs.skipped["n1"]
    (record,) = inputs.records()
    assert (record.samples, record.provenance) == (2, {"numbers": "0 to 3"})


def test_nothing_but_bad_data_is_an_error(model: Model) -> None:
    with pytest.raises(InputError, match=r"the last of 2: dataset 'numbers': n1 is broken"):
        list(inputs_of(model, Numbers(2, bad=(0, 1)), on_bad="skip"))
    with pytest.raises(NothingTested):
        list(inputs_of(model, Numbers(0)))


# Which dataset


class Picky(Numbers):
    name = "picky"

    def suits(self, model: Model, argument: str) -> float:
        return 0.95 if argument == "here" else 0.0


def test_auto_takes_the_dataset_that_suits_best_else_random(model: Model) -> None:
    (record,) = inputs_of(model, Picky(2), "auto:here").records()
    assert (record.name, record.chosen_by) == (
        "picky:here",
        "--dataset auto:here: it suits the model's record",
    )
    (record,) = inputs_of(model, Picky(2), "auto:there").records()
    assert (record.name, record.chosen_by) == ("random", "nothing in there suits the model")
    with pytest.raises(UsageError, match="auto:FOLDER"):
        inputs_of(model, Picky(2), "auto")


def test_an_unknown_dataset_is_named(model: Model) -> None:
    with pytest.raises(UnknownName, match="number"):
        inputs_of(model, Numbers(1), "number")


# A whole vet


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=2, limits=Limits(60, 1 << 30), preload=PRELOAD) as shared:
        yield shared


Vet = Callable[..., VetResult]


@pytest.fixture
def vet(tmp_path: Path, model: Model, sandbox: Sandbox) -> Vet:
    def run(dataset: Any, *passes: str, **settings: Any) -> VetResult:
        plugins = Plugins()
        plugins.register("dataset", dataset)
        planted = Planted(default=(*FILLERS[:3], *passes), offered=(*FILLERS[:3], *passes))
        plugins.register("optimizer", planted)
        chosen: dict[str, Any] = {"cache_dir": tmp_path / "cache", "cache": False} | settings
        asked = VetRequest(model="model", optimizer=planted.name, dataset=("numbers",), **chosen)
        return vet_model(model, asked, plugins, sandbox=sandbox)

    return run


def test_a_fault_in_the_last_chunk_is_found_explained_and_dropped(
    vet: Vet, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the Relu the outputs differ where x is negative: on the very last samples.
    monkeypatch.setattr(chunking, "CHUNK_SAMPLES", 4)
    result = vet(Numbers(19, negative=18), "drop_relu")
    assert result.verdict == "faulty"
    (finding,) = result.findings
    assert finding.culprit == ["drop_relu"]
    assert finding.confirmed
    assert finding.witness is not None
    assert finding.witness.sample == "n18"
    assert finding.divergence is not None
    assert "drop_relu" not in result.safe_pipeline
    assert result.samples == 19
    assert result.impact is not None
    assert (result.impact.samples, result.impact.changed) == (19, 1)


def test_what_is_left_is_vetted_on_every_chunk(vet: Vet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "CHUNK_SAMPLES", 4)
    # The first culprit shows everywhere, the second on the last sample alone.
    result = vet(Numbers(10, negative=9, rows=2), "scale_weight", "drop_relu")
    assert [f.culprit for f in result.findings] == [["scale_weight"], ["drop_relu"]]
    assert not {"scale_weight", "drop_relu"} & set(result.safe_pipeline)


def test_a_crash_ends_it_and_the_rest_is_told_untried(
    vet: Vet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunking, "CHUNK_SAMPLES", 4)
    result = vet(Numbers(10), "raise_error")
    assert result.samples == 4
    assert "so the others were not tried" in detail(result, "samples")
    alone = vet(Numbers(4), "raise_error")
    assert detail(alone, "samples") == "4 judged"


def test_skipped_samples_are_in_the_answer(vet: Vet) -> None:
    result = vet(Numbers(5, bad=(2,)), on_bad="skip")
    assert result.samples == 4
    assert [(s.sample, s.reason) for s in result.skipped] == [
        ("n2", "dataset 'numbers': n2 is broken; mend it")
    ]
    assert detail(result, "samples") == "4 judged; 1 skipped as bad data"


@pytest.mark.long
@pytest.mark.parametrize("use_cache", [True, False], ids=["cached", "uncached"])
def test_memory_is_that_of_a_chunk_however_many_samples_there_are(
    vet: Vet, monkeypatch: pytest.MonkeyPatch, use_cache: bool
) -> None:
    # 48 inputs of 1 MB and 24 MB of outputs on either side: 96 MB beside the 60 of a chunk.
    monkeypatch.setattr(chunking, "CHUNK_SAMPLES", 4)
    dataset = Numbers(48, rows=1 << 16, negative=47)
    tracemalloc.start()
    try:
        result = vet(dataset, "drop_relu", cache=use_cache)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.samples == 48
    assert [f.culprit for f in result.findings] == [["drop_relu"]]
    assert peak < 80 << 20
