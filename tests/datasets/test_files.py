import os
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from optvet import InputError, Sample, UsageError
from optvet.engine.models.opening import open_model
from optvet.plugin import Deferred, Feeds, Model
from optvet_files import FilesDataset, FilesOptions, optvet_datasets

Maker = Callable[[str], Model]

ONE = "g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }"
TWO = "g (float[2] x, int64[2] i) => (float[2] y) { j = Cast<to = 1>(i)  y = Add(x, j) }"
TEXT = "g (string[2] t) => (string[2] y) { y = Identity(t) }"
X = np.array([0.5, -1], np.float32)
I = np.array([3, 4])  # noqa: E741 - named after the input


@pytest.fixture
def model(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    def make(graph: str) -> Model:
        folder = tmp_path_factory.mktemp("model")
        header = '<ir_version: 9, opset_import: ["" : 18]>'
        onnx.save(onnx.parser.parse_model(header + graph), folder / "model.onnx")
        return open_model(folder / "model.onnx", "", folder)

    return make


def never(batch: Sequence[Feeds]) -> list[str | None]:
    raise AssertionError("files are not tried out")


def samples(model: Model, path: object, limit: int | None = None) -> list[Sample]:
    chosen = FilesOptions()
    found = FilesDataset().samples(model, str(path), chosen, seed=0, limit=limit, probe=never)
    return [item.make() if isinstance(item, Deferred) else item for item in found]


def ids(made: list[Sample]) -> list[str]:
    return [s.id for s in made]


def save_tensor(path: Path, array: np.ndarray, name: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(numpy_helper.from_array(array, name).SerializeToString())


def test_an_npz_is_one_sample_by_the_names_of_its_keys(model: Maker, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", i=I, x=X)
    (made,) = samples(model(TWO), tmp_path / "a.npz")
    assert made.id == "a.npz"
    assert list(made.feeds) == ["x", "i"]
    np.testing.assert_array_equal(made.feeds["x"], X)
    np.testing.assert_array_equal(made.feeds["i"], I)


def test_a_leading_axis_too_many_makes_a_batch(model: Maker, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.stack([X, -X, X]), i=np.stack([I, I + 1, I + 2]))
    made = samples(model(TWO), tmp_path / "a.npz")
    assert ids(made) == ["a.npz#0", "a.npz#1", "a.npz#2"]
    np.testing.assert_array_equal(made[1].feeds["x"], -X)
    np.testing.assert_array_equal(made[2].feeds["i"], I + 2)


def test_leading_axes_that_disagree_make_no_batch(model: Maker, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.stack([X, X]), i=np.stack([I, I, I]))
    with pytest.raises(InputError, match=r"input 'x': has shape \[2,2\], expected float\[2\]"):
        samples(model(TWO), tmp_path / "a.npz")


def test_positional_keys_are_taken_in_order(model: Maker, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X, I)
    np.savez(tmp_path / "b.npz", input_1=I, input_0=X)
    for made in samples(model(TWO), tmp_path):
        np.testing.assert_array_equal(made.feeds["x"], X)


def test_a_folder_of_npz_is_read_in_natural_order_and_lazily(model: Maker, tmp_path: Path) -> None:
    for number in (10, 2, 1):
        np.savez(tmp_path / f"s{number}.npz", x=X, i=I)
    (tmp_path / "s11.npz").write_bytes(b"broken")
    (tmp_path / "notes.txt").write_text("not an input")
    assert ids(samples(model(TWO), tmp_path, limit=3)) == ["s1.npz", "s2.npz", "s10.npz"]
    with pytest.raises(InputError, match=r"s11\.npz"):
        samples(model(TWO), tmp_path)


def test_npy_files_named_after_the_inputs_are_one_sample(model: Maker, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "i.npy", I)
    (made,) = samples(model(TWO), tmp_path)
    assert made.id == tmp_path.name
    np.testing.assert_array_equal(made.feeds["i"], I)


def test_subfolders_of_npy_files_are_samples(model: Maker, tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", X)
        np.save(tmp_path / name / "i.npy", I)
    assert ids(samples(model(TWO), tmp_path)) == ["a", "b"]


def test_each_npy_is_a_sample_of_a_model_with_one_input(model: Maker, tmp_path: Path) -> None:
    for number in (1, 2):
        np.save(tmp_path / f"{number}.npy", np.full((number, 3), number, np.float32))
    made = samples(model(ONE), tmp_path)
    assert ids(made) == ["1.npy", "2.npy"]
    assert made[1].feeds["x"].shape == (2, 3)
    assert ids(samples(model(ONE), tmp_path / "2.npy")) == ["2.npy"]


def test_test_data_sets_are_read_without_their_outputs(model: Maker, tmp_path: Path) -> None:
    for number in (0, 1, 10, 2):
        folder = tmp_path / f"test_data_set_{number}"
        save_tensor(folder / "input_0.pb", X + number)
        save_tensor(folder / "input_1.pb", I)
        save_tensor(folder / "output_0.pb", X)
    made = samples(model(TWO), tmp_path)
    assert ids(made) == [f"test_data_set_{n}" for n in (0, 1, 2, 10)]
    np.testing.assert_array_equal(made[2].feeds["x"], X + 2)
    assert ids(samples(model(TWO), tmp_path / "test_data_set_1")) == ["test_data_set_1"]


def test_the_name_in_a_tensor_wins_over_its_number(model: Maker, tmp_path: Path) -> None:
    save_tensor(tmp_path / "input_0.pb", I, "i")
    save_tensor(tmp_path / "input_1.pb", X, "x")
    (made,) = samples(model(TWO), tmp_path)
    np.testing.assert_array_equal(made.feeds["x"], X)


def test_a_single_tensor_file_suits_a_single_input(model: Maker, tmp_path: Path) -> None:
    save_tensor(tmp_path / "some.pb", np.ones((1, 3), np.float32), "other")
    (made,) = samples(model(ONE), tmp_path / "some.pb")
    assert made.feeds["x"].shape == (1, 3)


def test_a_pattern_selects_files(model: Maker, tmp_path: Path) -> None:
    for name in ("a1", "a2", "b1"):
        np.savez(tmp_path / f"{name}.npz", x=X, i=I)
    made = samples(model(TWO), tmp_path / "a*.npz")
    assert [Path(i).name for i in ids(made)] == ["a1.npz", "a2.npz"]
    with pytest.raises(InputError, match=r"pattern '.*c\*\.npz' matches nothing readable"):
        samples(model(TWO), tmp_path / "c*.npz")


@pytest.mark.parametrize("texts", [["a", "bé"], [b"a", "bé".encode()]], ids=["str", "bytes"])
def test_fixed_width_texts_become_str_objects(
    model: Maker, tmp_path: Path, texts: list[str | bytes]
) -> None:
    np.savez(tmp_path / "a.npz", t=np.array(texts))
    (made,) = samples(model(TEXT), tmp_path)
    assert made.feeds["t"].dtype == object
    assert made.feeds["t"].tolist() == ["a", "bé"]


def test_pickled_objects_are_never_loaded(model: Maker, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", t=np.array(["a", "b"], object))
    with pytest.raises(InputError, match=r"a\.npz, key 't': holds Python objects.*astype\(str\)"):
        samples(model(TEXT), tmp_path)
    np.save(tmp_path / "b.npy", np.array(["a", "b"], object))
    with pytest.raises(InputError, match=r"b\.npy: holds Python objects"):
        samples(model(TEXT), tmp_path / "b.npy")


@pytest.mark.parametrize(
    "array",
    [X.astype(np.float64), X.astype(np.float16), np.array([np.nan, -0.0]), np.array([True, False])],
)
def test_an_exact_cast_is_made(model: Maker, tmp_path: Path, array: np.ndarray) -> None:
    np.savez(tmp_path / "a.npz", x=array, i=I.astype(np.uint8))
    (made,) = samples(model(TWO), tmp_path)
    assert [str(made.feeds[n].dtype) for n in "xi"] == ["float32", "int64"]
    np.testing.assert_array_equal(made.feeds["x"], array)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([0.1, 0.5]), "float"),
        (np.array([2**24 + 1, 0]), "float"),
        (np.array([1j, 0]), "float"),
        (np.array([0.5, 1]), "int64"),
        (np.array([np.nan, 1]), "int64"),
        (np.array([2**63, 0], np.uint64), "int64"),
        (np.array([-1, 0]), "uint64"),
        (np.array([300, 0]), "uint8"),
        (np.array([2, 0]), "bool"),
        (np.array(["1", "2"]), "int64"),
        (np.array([0, 1], "M8[s]"), "float"),
    ],
)
def test_an_inexact_cast_is_refused(
    model: Maker, tmp_path: Path, array: np.ndarray, expected: str
) -> None:
    np.savez(tmp_path / "a.npz", x=array)
    graph = f"g ({expected}[2] x) => ({expected}[2] y) {{ y = Identity(x) }}"
    with pytest.raises(
        InputError,
        match=rf"a\.npz, input 'x': has dtype {re.escape(str(array.dtype))}, expected {expected}",
    ):
        samples(model(graph), tmp_path)


def test_bfloat16_is_read_back_from_its_bytes(model: Maker, tmp_path: Path) -> None:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)
    np.savez(tmp_path / "a.npz", x=np.array([1.5, -2]).astype(dtype))
    (made,) = samples(model("g (bfloat16[2] x) => (bfloat16[2] y) { y = Relu(x) }"), tmp_path)
    assert made.feeds["x"].astype(np.float32).tolist() == [1.5, -2]


def test_a_missing_input_is_named(model: Maker, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X)
    with pytest.raises(
        InputError, match=r"a\.npz: input 'i' is missing; expected 'x' float\[2\], 'i' int64\[2\]"
    ):
        samples(model(TWO), tmp_path)


def test_an_unknown_key_gets_the_nearest_input(model: Maker, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", tokens=np.ones((1, 2), np.float32))
    graph = "g (float[1,2] token) => (float[1,2] y) { y = Relu(token) }"
    with pytest.raises(InputError, match=r"key 'tokens' is no input.*did you mean 'token'\?"):
        samples(model(graph), tmp_path)


@pytest.mark.parametrize("shape", [(3,), (2, 4), (1, 1, 1, 3)])
def test_a_shape_that_differs_is_refused(
    model: Maker, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    np.save(tmp_path / "a.npy", np.zeros(shape, np.float32))
    found = ",".join(map(str, shape))
    with pytest.raises(
        InputError, match=rf"a\.npy, input 'x': has shape \[{found}\], expected float\[N,3\]"
    ):
        samples(model(ONE), tmp_path)


def test_a_bad_file_fails_alone_and_when_it_is_made(model: Maker, tmp_path: Path) -> None:
    np.save(tmp_path / "1.npy", np.zeros(7, np.float32))
    np.save(tmp_path / "2.npy", np.zeros((1, 3), np.float32))
    bad, good = FilesDataset().samples(
        model(ONE), str(tmp_path), FilesOptions(), seed=0, limit=None, probe=never
    )
    assert isinstance(good, Sample)
    assert isinstance(bad, Deferred)
    assert (bad.id, good.id) == ("1.npy", "2.npy")
    with pytest.raises(InputError, match=r"1\.npy, input 'x': has shape \[7\]"):
        bad.make()


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.pb"])
@pytest.mark.parametrize("data", [b"", b"garbage", b"\x93NUMPY\x01\x00", b"PK\x03\x04 cut"])
def test_a_damaged_file_is_named(model: Maker, tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        samples(model(ONE), tmp_path / name)


def test_a_damaged_member_is_named(model: Maker, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(300, dtype=np.float32).reshape(100, 3))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[400] ^= 0xFF
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(InputError, match=r"a\.npz, key 'x': cannot be read"):
        samples(model(ONE), tmp_path)


def test_a_damaged_file_does_not_flood_the_message(model: Maker, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    arrays: dict[str, Any] = {"x" * 5000: np.zeros(3, np.float32)}
    np.savez(path, **arrays)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"x" * 5000, b"y" * 5000, 1))  # the directory has the old name
    with pytest.raises(InputError, match="cannot be read") as caught:
        samples(model(ONE), path)
    assert len(str(caught.value)) < 1000


def test_an_encrypted_archive_is_refused(model: Maker, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(3, np.float32))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[6] |= 1  # in the header of the member, and in the archive's directory
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(InputError, match=r"a\.npz, key 'x': cannot be read .*encrypted"):
        samples(model(ONE), tmp_path)


def test_a_zip_of_other_things_is_refused(model: Maker, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x", "text")
    with pytest.raises(InputError, match=r"a\.npz, key 'x': is no array"):
        samples(model(ONE), tmp_path)


def test_a_tensor_with_data_elsewhere_is_refused(model: Maker, tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(X)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    (tmp_path / "a.pb").write_bytes(tensor.SerializeToString())
    with pytest.raises(InputError, match=r"a\.pb: is no TensorProto \(its data is in another"):
        samples(model(ONE), tmp_path)


def test_a_missing_path_gets_near_names(model: Maker, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", x=X)
    with pytest.raises(InputError, match=r"input\.npz' does not exist; did you mean 'inputs\.npz"):
        samples(model(ONE), tmp_path / "input.npz")
    with pytest.raises(InputError, match="and neither does folder"):
        samples(model(ONE), tmp_path / "no" / "input.npz")


def test_an_empty_folder_is_refused(model: Maker, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing readable in it; expected \.npz"):
        samples(model(ONE), tmp_path)


def test_another_kind_of_file_is_refused(model: Maker, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2,3")
    with pytest.raises(InputError, match=r"a\.csv is a \.csv file; expected \.npz"):
        samples(model(ONE), tmp_path / "a.csv")


def test_a_pipe_is_refused_and_not_waited_for(model: Maker, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.npz")
    with pytest.raises(InputError, match=r"a\.npz is a device or a pipe"):
        samples(model(ONE), tmp_path / "a.npz")


def test_an_argument_is_needed(model: Maker) -> None:
    with pytest.raises(UsageError, match="no path was given; say --dataset files:PATH"):
        samples(model(ONE), "")


def test_a_sequence_input_is_refused_by_name(model: Maker, tmp_path: Path) -> None:
    graph = "g (seq(float[2]) s, int64 i) => (float[2] y) { y = SequenceAt(s, i) }"
    with pytest.raises(InputError, match=r"input 's' is a sequence, expected a tensor"):
        samples(model(graph), tmp_path)


def test_the_hook_gives_the_dataset() -> None:
    assert [d.name for d in optvet_datasets()] == ["files"]
