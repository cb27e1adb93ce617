"""Inputs that are too large are refused by what they announce, before memory is taken for them."""

import io
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from optvet import InputError
from optvet.cli import main
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.work.trials.inputs import Inputs, Slice
from optvet.plugin import Deferred, Model
from optvet.spec.memory import check_size, in_units, limit_memory
from optvet.spec.types import Sample

MIB = 1 << 20
LIMIT = 16 * MIB
Maker = Callable[[str], Model]


@pytest.fixture
def model(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    def make(inputs: str) -> Model:
        folder = tmp_path_factory.mktemp("model")
        name = inputs.split("] ")[1].split(",")[0] if "] " in inputs else inputs.split()[1]
        text = f'<ir_version: 9, opset_import: ["" : 18]> g ({inputs}) => (float[s] y)'
        onnx.save(
            onnx.parser.parse_model(f"{text} {{ z = Cast<to = 1>({name}) y = Identity(z) }}"),
            folder / "model.onnx",
        )
        return open_model(folder / "model.onnx", "model.onnx", folder)

    return make


def made(model: Model, spec: str, memory_bytes: int = LIMIT, **options: Any) -> list[Sample]:
    inputs = Inputs(
        model,
        Plugins(),
        (spec,),
        options,
        cut=Slice(limit=3),
        seed=0,
        probe=lambda feeds: [None for _ in feeds],
        memory_bytes=memory_bytes,
    )
    return list(inputs)


def bomb(path: Path, size_bytes: int, key: str = "x") -> Path:
    """An archive of zeros that is a thousand times smaller on disk."""
    header = io.BytesIO()
    about = {"descr": "<f4", "fortran_order": False, "shape": (size_bytes // 4,)}
    np.lib.format.write_array_header_1_0(header, about)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open(f"{key}.npy", "w") as member,
    ):
        member.write(header.getvalue())
        for _ in range(size_bytes // MIB):
            member.write(bytes(MIB))
    return path


def forged(path: Path, shape: tuple[int, ...]) -> Path:
    """An array whose header announces more than there is."""
    with path.open("wb") as file:
        about = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, about)
        file.write(bytes(64))
    return path


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(n for n in lines if n.startswith("VmHWM")).split()[1]) << 10


@pytest.mark.long
def test_an_archive_that_unpacks_to_more_than_the_limit_is_never_unpacked(
    model: Maker, tmp_path: Path
) -> None:
    path = bomb(tmp_path / "a.npz", 400 * MIB)
    assert path.stat().st_size < MIB
    one = model("float[N] x")
    Plugins()
    before = peak_bytes()
    words = r"a\.npz, key 'x': takes 400 MiB of memory.*may take 300 MiB.*say --memory 400M"
    with pytest.raises(InputError, match=words):
        made(one, f"files:{path}", 300 * MIB)
    assert peak_bytes() - before < 100 * MIB


def test_the_keys_of_an_archive_count_together(model: Maker, tmp_path: Path) -> None:
    zeros = np.zeros(12 * MIB, np.uint8)
    np.savez_compressed(tmp_path / "a.npz", x=zeros, y=zeros)
    with pytest.raises(InputError, match="all 2 keys: takes 24 MiB"):
        made(model("uint8[N] x, uint8[N] y"), f"files:{tmp_path / 'a.npz'}")


@pytest.mark.parametrize("shape", [(1 << 40,), (1 << 31, 1 << 31, 1 << 31)])
def test_a_header_that_announces_too_much_is_no_reason_to_reserve_it(
    model: Maker, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    path = forged(tmp_path / "a.npy", shape)
    with pytest.raises(InputError, match=r"a\.npy.*cannot be read|takes .* of memory"):
        made(model("float[N] x"), f"files:{path}")


def test_a_cast_needs_room_for_both_arrays(model: Maker, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(MIB, np.float64))
    (sample,) = made(model("float[N] x"), f"files:{tmp_path / 'a.npz'}", 12 * MIB)
    assert sample.feeds["x"].dtype == np.float32
    with pytest.raises(InputError, match="input 'x': takes 12 MiB"):
        made(model("float[N] x"), f"files:{tmp_path / 'a.npz'}", 11 * MIB)


def test_a_picture_is_measured_by_its_header(model: Maker, tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="needs the extra images")
    pillow.new("1", (2000, 3000)).save(tmp_path / "a.png")
    words = r"a\.png of 2000 x 3000 pixels: takes 45\.8 MiB.*say --memory 46M"
    with pytest.raises(InputError, match=words):
        made(model("float[1,3,64,64] x"), f"images:{tmp_path}")


def test_sound_is_measured_by_its_header(model: Maker, tmp_path: Path) -> None:
    rate, hours = 8000, 10
    frames = hours * 3600 * rate
    with (tmp_path / "a.wav").open("wb") as file:
        fmt = struct.pack("<HHIIHH", 1, 1, rate, rate, 1, 8)
        file.write(b"RIFF" + struct.pack("<I", frames + 36) + b"WAVEfmt ")
        file.write(struct.pack("<I", len(fmt)) + fmt + b"data" + struct.pack("<I", frames))
        file.truncate(44 + frames)  # a hole: it takes no room on disk
    with pytest.raises(InputError, match=r"a\.wav of 36,000 s at 8000 Hz: takes"):
        made(model("float[1,400] x"), f"audio:{tmp_path}", 1 << 30)


def test_a_rate_that_blows_a_clip_up_is_refused(model: Maker, tmp_path: Path) -> None:
    wavfile = pytest.importorskip("scipy.io.wavfile")
    wavfile.write(tmp_path / "a.wav", 1, np.zeros(20_000, np.int16))
    with pytest.raises(InputError, match=r"a\.wav of 20,000 s at 1 Hz: takes"):
        made(model("float[1,400] x"), f"audio:{tmp_path}", 1 << 30)


def test_a_line_without_an_end_is_refused(model: Maker, tmp_path: Path) -> None:
    with (tmp_path / "a.txt").open("wb") as file:
        file.write(b"first\n" + b"x" * (17 << 20))
    with pytest.raises(InputError, match=r"a\.txt, line 2 has more than 16,777,216 characters"):
        made(model("string[N] s"), f"text:{tmp_path}")


def test_json_and_labels_are_refused_by_their_size(model: Maker, tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="needs the extra images")
    large = tmp_path / "large.json"
    large.write_text("[" + '"text", ' * (1 << 18) + '"text"]')
    with pytest.raises(InputError, match=r"large\.json, whole.*takes 16 MiB"):
        made(model("string[N] s"), f"text:{large}")
    pillow.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with pytest.raises(InputError, match=r"labels .*large\.json: takes 16 MiB"):
        made(model("float[1,3,64,64] x"), f"images:{tmp_path}", labels=str(large))


def test_random_inputs_of_a_huge_shape_are_never_made(model: Maker) -> None:
    words = r"dataset 'random': input 'x' of shape \[1048576, 1048576\]: takes 24 TiB.*--memory"
    with pytest.raises(InputError, match=words):
        made(model("float[1048576,1048576] x"), "random")
    with pytest.raises(InputError, match="takes more than"):
        made(model("float[4611686018427387904,4] x"), "random")
    with pytest.raises(InputError, match="takes 24 GiB"):
        made(model("float[N,32] x"), "random", dims={"N": 1 << 25})


class _Large:
    """A dataset that asks nobody."""

    name = "large"

    def samples(self, *given: Any, **more: Any) -> Iterator[Sample | Deferred]:
        yield Sample("a", {"x": np.zeros(LIMIT, np.uint8)})
        yield Sample("b", {"x": np.zeros(LIMIT + 1, np.uint8)})


def test_what_a_plugin_made_without_asking_is_refused_too(
    model: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optvet_files.FilesDataset.samples", _Large.samples)
    with pytest.raises(InputError, match="dataset 'files', sample 'b': takes 16 MiB"):
        made(model("uint8[N] x"), "files")


@pytest.mark.long
def test_the_limit_is_that_of_the_command_line(
    model: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bomb(tmp_path / "a.npz", 400 * MIB)
    arguments = ["vet", str(model("float[N] x").path), "--dataset", f"files:{path}"]
    assert main([*arguments, "--memory", "300M", "--cache-dir", str(tmp_path / "cache")]) == 2
    assert "key 'x': takes 400 MiB" in " ".join(capsys.readouterr().err.split())


def test_a_size_is_written_as_people_do() -> None:
    assert [in_units(n) for n in (0, 999, 1 << 20, 6_000_000_000)] == [
        "0 bytes",
        "999 bytes",
        "1 MiB",
        "5.59 GiB",
    ]


def test_the_limit_holds_within_its_block_alone() -> None:
    with limit_memory(10), pytest.raises(InputError, match="one step may take 10 bytes"):
        check_size("a", 11)
    check_size("a", 11)
