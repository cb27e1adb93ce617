import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from scipy.io import wavfile
from tests.data import DATA

import optvet
from optvet.engine.models.opening import open_model
from optvet.spec.errors import InputError, UsageError
from optvet.spec.types import Deferred, Model, Sample
from optvet_audio import AudioDataset, AudioOptions


def model_of(signature: str, folder: Path, name: str = "speech") -> Model:
    """A model with these inputs, whose output is the first of them."""
    first = signature.split(" ", 1)[0]
    text = (
        f'<ir_version: 8, opset_import: ["" : 17]> g ({signature}) => ({first} y) '
        f"{{ y = Identity({signature.split(' ')[1].rstrip(',')}) }}"
    )
    path = folder / f"{name}.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return open_model(path, str(path), folder / "cache")


def wav(path: Path, samples: Any, rate: int = 16_000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    wavfile.write(path, rate, np.asarray(samples))
    return path


def items(model: Model, path: Path, limit: int | None = None, **options: Any) -> list[Any]:
    made = AudioDataset().samples(
        model, str(path), AudioOptions(**options), seed=0, limit=limit, probe=lambda feeds: ""
    )
    return list(made)


def made(model: Model, path: Path, **options: Any) -> list[Sample]:
    return [i.make() if isinstance(i, Deferred) else i for i in items(model, path, **options)]


def test_a_clip_is_cut_and_its_end_filled_up_with_silence(tmp_path: Path) -> None:
    model = model_of("float[1,400] x", tmp_path)
    path = wav(tmp_path / "a.wav", np.arange(1000, dtype=np.int16))
    samples = made(model, path)
    assert [s.id for s in samples] == ["a.wav@0.000s", "a.wav@0.025s", "a.wav@0.050s"]
    joined = np.concatenate([s.feeds["x"][0] for s in samples])
    assert joined.dtype == np.float32
    np.testing.assert_array_equal(joined[:1000], np.arange(1000, dtype=np.float32) / 32768)
    assert not joined[1000:].any()


@pytest.mark.parametrize(
    ("length", "hop", "starts"),
    [(400, None, 1), (800, None, 2), (801, None, 3), (10, None, 1), (1000, 200, 4), (1000, 600, 2)],
)
def test_cuts_cover_the_clip(length: int, hop: int | None, starts: int, tmp_path: Path) -> None:
    model = model_of("float[1,400] x", tmp_path)
    path = wav(tmp_path / "a.wav", np.ones(length, np.float32))
    samples = made(model, path, hop=hop)
    assert len(samples) == starts
    assert ((starts - 1) * (hop or 400) + 400) >= length


@pytest.mark.parametrize(
    ("values", "level"),
    [
        (np.array([0, 128, 192], np.uint8), [-1, 0, 0.5]),
        (np.array([-32768, 0, 16384], np.int16), [-1, 0, 0.5]),
        (np.array([-(2**31), 0, 2**30], np.int32), [-1, 0, 0.5]),
        (np.array([-1, 0, 0.5], np.float32), [-1, 0, 0.5]),
        (np.array([[0, -32768], [0, 0], [16384, 16384]], np.int16), [-0.5, 0, 0.5]),
    ],
    ids=["uint8", "int16", "int32", "float32", "stereo"],
)
def test_samples_lie_within_one(values: np.ndarray, level: list[float], tmp_path: Path) -> None:
    model = model_of("float[N,M] x", tmp_path)
    (sample,) = made(model, wav(tmp_path / "a.wav", values))
    np.testing.assert_array_equal(sample.feeds["x"], np.array([level], np.float32))


def test_another_rate_is_resampled(tmp_path: Path) -> None:
    model = model_of("float[N,M] x", tmp_path)
    seconds = np.arange(8000) / 8000
    path = wav(tmp_path / "a.wav", np.sin(2 * np.pi * 100 * seconds).astype(np.float32), 8000)
    (sample,) = made(model, path)
    assert sample.feeds["x"].shape == (1, 16_000)
    wanted = np.sin(2 * np.pi * 100 * np.arange(16_000) / 16_000)
    assert np.abs(sample.feeds["x"][0] - wanted)[200:-200].max() < 1e-2


def test_a_spectrum_has_its_tone_where_it_belongs(tmp_path: Path) -> None:
    tone = np.cos(2 * np.pi * 32 / 512 * np.arange(2048)).astype(np.float32)
    path = wav(tmp_path / "a.wav", tone)
    magnitudes = made(model_of("float[1,1,257] x", tmp_path), path)
    both = made(model_of("float[1,257,1,2] x", tmp_path), path)
    assert len(magnitudes) == len(both) == 7  # half of each frame is shared with the next
    values = magnitudes[1].feeds["x"]
    assert values.shape == (1, 1, 257)
    assert int(values.argmax()) == 32
    assert values.max() == pytest.approx(512 / 4, rel=1e-3)  # half the amplitude, Hann halves again
    parts = both[1].feeds["x"]
    np.testing.assert_allclose(np.hypot(*np.moveaxis(parts[0, :, 0], -1, 0)), values[0, 0], 1e-5)


def test_rates_and_states_beside_the_sound(tmp_path: Path) -> None:
    model = model_of("float[1,512] input, int64 sr, float[2,1,128] state", tmp_path)
    feeds = made(model, wav(tmp_path / "a.wav", np.ones(512, np.float32)))[0].feeds
    assert feeds["sr"] == np.int64(16_000)
    assert feeds["state"].shape == (2, 1, 128)
    assert not feeds["state"].any()


def test_a_model_of_something_else_is_refused_and_does_not_suit(tmp_path: Path) -> None:
    wav(tmp_path / "sounds" / "a.wav", np.ones(512, np.float32))
    image = model_of("float[1,3,224,224] x", tmp_path)
    assert AudioDataset().suits(image, str(tmp_path)) == 0
    with pytest.raises(InputError, match="no input that takes a waveform"):
        items(image, tmp_path / "sounds")
    waveform = model_of("float[1,512] x", tmp_path, "voice-detector")
    assert AudioDataset().suits(waveform, str(tmp_path / "sounds")) == 0.8
    assert AudioDataset().suits(waveform, str(tmp_path / "nothing")) == 0
    assert AudioDataset().suits(model_of("float[1,512] x", tmp_path, "table"), str(tmp_path)) == 0


def test_a_damaged_file_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    model = model_of("float[1,400] x", tmp_path)
    wav(tmp_path / "w" / "a.wav", np.ones(400, np.float32))
    (tmp_path / "w" / "b.wav").write_bytes(b"RIFF no sound")
    (tmp_path / "w" / "c.wav").write_bytes((tmp_path / "w" / "a.wav").read_bytes()[:30])
    wav(tmp_path / "w" / "d.wav", np.ones(400, np.float32))
    found = items(model, tmp_path / "w")
    assert [i.id for i in found] == ["a.wav", "b.wav", "c.wav", "d.wav"]
    for item in found[1:3]:
        with pytest.raises(InputError, match=rf"{item.id} is no readable WAV file"):
            item.make()


def test_bad_files_are_refused_or_counted(tmp_path: Path) -> None:
    model_of("float[1,400] x", tmp_path)
    wav(tmp_path / "w" / "a.wav", np.ones(400, np.float32))
    (tmp_path / "w" / "b.wav").write_bytes(b"nothing")
    options: dict[str, Any] = {"dataset": f"audio:{tmp_path / 'w'}", "cache_dir": tmp_path / "c"}
    with pytest.raises(InputError, match=r"b\.wav"):
        optvet.vet(tmp_path / "speech.onnx", **options)
    result = optvet.vet(tmp_path / "speech.onnx", on_bad="skip", **options)
    assert result.samples == 1
    assert [s.sample for s in result.skipped] == ["b.wav"]


def test_labels_are_those_of_whole_clips(tmp_path: Path) -> None:
    model = model_of("float[1,400] x", tmp_path)
    wav(tmp_path / "w" / "a.wav", np.ones(400, np.float32))
    wav(tmp_path / "w" / "b.wav", np.ones(900, np.float32))
    labels = tmp_path / "labels.csv"
    labels.write_text("file,label\na.wav,7\nb.wav,nine\n")
    samples = made(model, tmp_path / "w", labels=str(labels))
    assert [s.label for s in samples] == [7, None, None, None]
    labels.write_text("file,label\nz.wav,7\n")
    with pytest.raises(InputError, match="none of its files"):
        items(model, tmp_path / "w", labels=str(labels))
    labels.write_text("name,class\na.wav,7\n")
    with pytest.raises(InputError, match="columns file,label"):
        items(model, tmp_path / "w", labels=str(labels))


def test_paths_that_are_wrong(tmp_path: Path) -> None:
    model = model_of("float[1,400] x", tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        items(model, tmp_path / "none")
    with pytest.raises(InputError, match=r"no \.wav file"):
        items(model, tmp_path)
    with pytest.raises(UsageError, match="--dataset audio:FOLDER"):
        next(iter(AudioDataset().samples(model, None, AudioOptions(), seed=0, limit=1, probe=str)))


def test_no_more_is_read_than_is_asked_for(tmp_path: Path) -> None:
    model = model_of("float[1,400] x", tmp_path)
    wav(tmp_path / "w" / "a.wav", np.ones(900, np.float32))
    (tmp_path / "w" / "b.wav").write_bytes(b"never opened")
    assert len(items(model, tmp_path / "w", limit=3)) == 3
    stream = AudioDataset().samples(
        model, str(tmp_path / "w"), AudioOptions(), seed=0, limit=None, probe=lambda feeds: ""
    )
    assert [i.id for i in itertools.islice(stream, 2)] == ["a.wav@0.000s", "a.wav@0.025s"]


@pytest.mark.skipif(not (DATA / "models").is_dir(), reason="needs the folder ../shared")
def test_a_voice_is_heard() -> None:
    """With zeros for the state, and the left context that the model wants before each cut."""
    result = optvet.vet(
        DATA / "models" / "silero-vad-v5.onnx",
        dataset=f"audio:{DATA / 'data' / 'audio' / 'jfk_16k.wav'}",
        dataset_options={"hop": 512},
        limit=8,
        cache=False,
    )
    assert result.verdict in ("clean", "drift")
    (record,) = result.datasets
    assert record.provenance["rate"].startswith("16000 Hz (declared")
    assert "cuts of 576 samples" in record.provenance["input"]
