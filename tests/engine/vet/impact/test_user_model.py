"""A user's model in one class: its data, inputs, scores and comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from optvet.engine.campaign.file import read_campaign
from optvet.engine.campaign.plan import requests_of
from optvet.engine.discovery import Plugins
from optvet.engine.vetting import vet_request
from optvet.plugin import UserModel
from optvet.spec.errors import InputError, UnknownName, UsageError
from optvet.spec.records import VetResult
from optvet.spec.request import VetRequest
from optvet.testing import Planted, PlantedOptions

NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 4] x) => (float[1, 3] y)
<float[4, 3] w = {0.5, -1, 2, 1.5, 0.25, -2, 1, 1, 0.125, -0.5, 3, 1}> {
    h = Relu(x)
    y = MatMul(h, w)
}"""

OWNER = """
import numpy as np
from optvet.plugin import UserModel

class Rows(UserModel):
    name = "rows"

    def dataset(self):
        return list(enumerate(np.random.default_rng(3).normal(size=(6, 1, 4)).astype(np.float32)))

    def feed(self, item):
        return {"x": item[1]}

    def score(self, item, outputs):
        return {"total": float(outputs["y"].sum())}

    def compare(self, item, reference, candidate):
        return reference["y"].argmax() == candidate["y"].argmax()

class Named(Rows):
    name = "random"

class Spaced(Rows):
    name = "two words"

class NoFeed(UserModel):
    def dataset(self):
        return [1]

class Wrong(Rows):
    def score(self, item, outputs):
        return [1]

class Fails(Rows):
    def feed(self, item):
        return {"x": item[2]}

class Misnamed(Rows):
    def feed(self, item):
        return {"X": item[1]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(NET), tmp_path / "net.onnx")
    (tmp_path / "owner.py").write_text(OWNER)
    return tmp_path


def vet(folder: Path, name: str, optimizer: Planted, **more: Any) -> VetResult:
    request = VetRequest(
        model=str(folder / "net.onnx"),
        optimizer=optimizer.name,
        user_model=name,
        cache_dir=folder / "cache",
        jobs=1,
        **{"trust": True, **more},
    )
    return vet_request(request, Plugins().register("optimizer", optimizer))


def test_its_items_are_the_inputs_and_its_scores_the_metrics(folder: Path) -> None:
    optimizer = Planted(default=("drop_relu",))
    result = vet(folder, f"{folder}/owner.py:Rows", optimizer, require=("total>=-1000",))
    assert result.verdict == "faulty"
    assert [(d.name, d.samples) for d in result.datasets] == [("rows", 6)]
    assert result.impact is not None
    assert result.impact.comparator == "rows"
    assert result.impact.metrics["total"] != result.impact.metrics["original_total"]
    changed = sum(
        _labels(x, relu=True) != _labels(x, relu=False)
        for x in np.random.default_rng(3).normal(size=(6, 1, 4)).astype(np.float32)
    )
    assert changed
    assert f"{changed} of 6 answers changed" in result.impact.headline


def _labels(x: np.ndarray, *, relu: bool) -> int:
    weights = np.array([0.5, -1, 2, 1.5, 0.25, -2, 1, 1, 0.125, -0.5, 3, 1]).reshape(4, 3)
    return int(((np.maximum(x, 0) if relu else x) @ weights).argmax())


def test_a_dataset_that_is_named_is_used_in_place_of_its_items(folder: Path) -> None:
    result = vet(folder, f"{folder}/owner.py:Rows", Planted(), dataset=("random",), limit=2)
    assert [d.name for d in result.datasets] == ["random"]


def test_a_registered_one_needs_no_trust(folder: Path) -> None:
    class Given(UserModel):
        def dataset(self) -> Iterable[int]:
            return range(3)

        def feed(self, item: int) -> Mapping[str, np.ndarray]:
            return {"x": np.full((1, 4), item, np.float32)}

    optimizer = Planted(default=("scale_weight",), options=PlantedOptions(factor=1.5))
    plugins = Plugins().register("optimizer", optimizer).register("user model", Given())
    request = VetRequest(
        model=str(folder / "net.onnx"),
        optimizer=optimizer.name,
        user_model="Given",
        cache_dir=folder / "cache",
        jobs=1,
    )
    result = vet_request(request, plugins)
    assert (result.verdict, result.datasets[0].samples) == ("faulty", 3)
    # Without scores, equal ones do not differ.
    assert result.impact is not None
    assert "0 of 3 answers changed" in result.impact.headline


@pytest.mark.parametrize(
    ("name", "trust", "error", "words"),
    [
        ("owner.py:Rows", False, InputError, "the file is executed; say --trust"),
        ("owner.py:Row", True, UnknownName, "did you mean 'Rows'"),
        ("absent.py:Rows", True, InputError, "there is no file"),
        # Without this the built-in dataset of that name would be used in its place.
        ("owner.py:Named", True, UsageError, "there is a dataset 'random' already"),
        ("owner.py:Spaced", True, UsageError, "must be of letters, digits, - and _"),
        ("owner.py:NoFeed", True, InputError, r"NoFeed.feed\(\), item-0 is not defined"),
        ("owner.py:Fails", True, InputError, r"Fails.feed\(\), item-0 fails: IndexError"),
        ("owner.py:Misnamed", True, InputError, r"gave 'X'; the model also takes 'x'"),
        ("owner.py:np", True, UsageError, "np is no class that is derived from optvet.plugin.U"),
        ("owner.py", True, UsageError, r"which class of it\? Write FILE:CLASS"),
    ],
)
def test_what_is_wrong_with_it_is_said(
    folder: Path, name: str, trust: bool, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        vet(folder, f"{folder}/{name}", Planted(), trust=trust)


def test_scores_that_are_no_numbers_are_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="expected numbers by metric"):
        vet(folder, f"{folder}/owner.py:Wrong", Planted(default=("scale_weight",)))


def test_a_file_cannot_name_code_without_trust(folder: Path) -> None:
    file = folder / "c.toml"
    file.write_text('models = ["net.onnx"]\n[vet]\nuser_model = "owner.py:Rows"\n')
    with pytest.raises(UsageError, match=r"c\.toml:3: .*owner.py:Rows.* runs the code"):
        read_campaign(file, Plugins())
    source = read_campaign(file, Plugins(), trust=True)
    (request,) = requests_of(source, Plugins())
    assert request.model_dump()["user_model"] == f"{folder}/owner.py:Rows"
