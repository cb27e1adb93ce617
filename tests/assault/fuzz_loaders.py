"""Fuzzes what reads files: whatever the bytes, an answer or an error of optvet's own, in bounds.

By hand, until it has run for ten minutes of processor time or found something::

    python -m tests.assault.fuzz_loaders --minutes 10 model

Inputs begin as small well-formed files and are changed by Hypothesis, which shrinks what fails.
"""

from __future__ import annotations

import argparse
import functools
import io
import itertools
import json
import os
import resource
import signal
import sqlite3
import struct
import sys
import tempfile
import wave
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import FrameType

import numpy as np
import onnx
import onnx.parser
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.assault import fuzz_documents as documents

from optvet import OptvetError
from optvet.engine.bundle import read_arrays, read_record
from optvet.engine.campaign import (
    export,
    find_campaign,
    metrics,
    open_store,
    read_campaign,
    requests_of,
    rescue_store,
    status_of,
    stored_requests,
    summary_of,
)
from optvet.engine.campaign.baseline import read_baseline
from optvet.engine.campaign.report import report_of
from optvet.engine.campaign.store import DATABASE
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.models.sidecar import config_for
from optvet.engine.repair.apply_patch import read_patch
from optvet.engine.repair.edits import apply_edits
from optvet.engine.work.cache.array_bytes import dump_arrays
from optvet.engine.work.sandbox import keep_servers
from optvet.engine.work.trials.inference import Outputs
from optvet.engine.work.trials.trial_results import run_from_bytes
from optvet.plugin import Deferred, Model

EXAMPLE_S = 10
"""An input takes milliseconds; one that takes this long takes unbounded time."""
MEMORY_BYTES = 6 << 30
"""Address space of the whole process while it fuzzes."""
Mutation = tuple[str, int, int, bytes]


@dataclass(frozen=True)
class Target:
    """A loader: well-formed inputs to begin with, and what reads one of them in a folder."""

    seeds: Callable[[], Sequence[bytes]]
    load: Callable[[Path, bytes], object]
    change: Callable[[bytes, Sequence[Mutation]], bytes] | None = None
    """How inputs are changed; anywhere, as bytes, if it is left out."""


# --- changing bytes -------------------------------------------------------------------------------

_WORTH_TRYING = [
    *(b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff\x0f", b"\x80" * 10 + b"\x01"),
    *(struct.pack("<q", n) for n in (-1, 2**62, 2**63 - 1, -(2**63))),
    *(struct.pack("<i", n) for n in (-1, 2**31 - 1)),
    *(b"[" * 2000, b'{"a":' * 500, b"9" * 5000, b"1e999", b"NaN", b"null", b"-1", b"../", b"/etc/"),
    *(b"\x1b[2J", "\u202e".encode(), b"\xc3\x28", b'"', b"a." * 100, b"=", b"\n"),
]
mutations = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "cut", "repeat", "end"]),
        st.integers(0, 2**16),
        st.integers(1, 64),
        st.one_of(st.sampled_from(_WORTH_TRYING), st.binary(min_size=1, max_size=8)),
    ),
    max_size=6,
)


def mutated(data: bytes, changes: Sequence[Mutation]) -> bytes:
    """``data`` after ``changes``; each is what, where, how long, and with which bytes."""
    for kind, place, length, piece in changes:
        at = place % (len(data) + 1)
        if kind == "set":
            data = data[:at] + piece + data[at + len(piece) :]
        elif kind == "insert":
            data = data[:at] + piece + data[at:]
        elif kind == "cut":
            data = data[:at] + data[at + length :]
        elif kind == "repeat":
            data = data[:at] + data[at : at + length] * 50 + data[at:]
        else:
            data = data[:at]
    return data


# --- well-formed inputs ---------------------------------------------------------------------------

MODEL = """<ir_version: 8, opset_import: ["": 17, "d": 1]>
g (float[N,2] x, bool c) => (float[N,2] y) <float[2] w = {1, 2}, int64[1] i = {3}> {
    a = Add(x, w)
    b = d.F(a)
    y = If (c) <then_branch = t () => (z) { z = Relu(b) },
                else_branch = e () => (z) { z = Constant <value = float[1] {4}> () }> }
<domain: "d", opset_import: ["" : 17]> F (p) => (q) { q = Neg(p) }"""
PICTURES = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,3,8,8] x) => (float[1,3,8,8] y) { y = Relu(x) }"""
SOUNDS = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,400] x) => (float[1,400] y) { y = Relu(x) }"""
RECORD = b"""task = "image-classification"
comparator = "classification"
dataset = "files:x.npz"
[comparator_options]
topk = [1, 5]
[preprocessing]
size = [320, 240]
mean = [104.0, 117, 123]
[inputs.x]
kind = "uniform"
high = [1.0, 2.0]
shape = [3, 2]
"""


def _model_bytes(text: str = MODEL) -> bytes:
    data: bytes = onnx.parser.parse_model(text).SerializeToString()
    return data


def _models() -> list[bytes]:
    external = onnx.parser.parse_model(MODEL)
    weight = TensorProto(name="w", data_type=1, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "x.bin"), ("offset", "0"), ("length", "8")):
        entry = weight.external_data.add()
        entry.key, entry.value = key, value
    external.graph.initializer[0].CopyFrom(weight)
    kinds = [helper.make_tensor(f"t{k}", k, [3], [1] * 3) for k in (1, 2, 7, 10, 11, 16, 17, 22)]
    typed = onnx.parser.parse_model(MODEL)
    typed.graph.initializer.extend(kinds)
    return [m.SerializeToString() for m in (onnx.parser.parse_model(MODEL), external, typed)]


def _catalogues() -> list[bytes]:
    spec = [{"name": "x", "shape": [2, 2], "fill": {"kind": "normal"}}]
    entry = {"file": "net.onnx", "task": "t", "preprocessing": "RGB (x-127)/128 320x240"}
    suggested = {"suggested_comparator": {"kind": "text", "topk": [1]}, "input_spec": spec}
    return [json.dumps([entry | suggested]).encode(), b"[]"]


def _findings() -> list[bytes]:
    finding = {
        **{"symptom": "wrong-output", "severity": "fault", "stage": "compare", "culprit": ["p"]},
        **{"confirmed": True, "message": "m", "outputs": ["y"], "error": 1.0},
    }
    record = {
        **{"schema": "optvet.finding/1", "fingerprint": "f", "finding": finding, "model": "m"},
        **{"nodes": [3, 2], "optimizer": "o", "optimizer_options": {}, "passes": ["p"]},
        **{"runtime": "r", "runtime_options": {"a": [1]}, "inputs": ["x"], "outputs": ["y"]},
        **{"versions": {"o": "1"}, "timeout_s": 120.0, "memory_bytes": 1 << 30},
    }
    return [json.dumps(record).encode()]


CAMPAIGN = b"""name = "small"
models = ["net.onnx", "*.onnx"]
optimizers = ["onnxoptimizer"]
pipelines = ["default", "eliminate_identity"]
baseline = "known.json"
store_size = "5G"
[vet]
limit = 2
rtol = ["y:0.1"]
optimizer_options = {}
"""
_TABLES = [
    b'[[jobs]]\nmodels = ["net.onnx"]\nexclude = ["x*"]\n[[jobs]]\nmodels = ["**/*.onnx"]\n',
    b'models = ["net.onnx"]\nvia = ["onnx_version"]\n[convert]\nseed = 3\n',
]


@functools.cache
def _stores() -> list[bytes]:
    script = (Path(__file__).parents[1] / "engine" / "campaign" / "store-1.sql").read_text()
    with tempfile.TemporaryDirectory(prefix="optvet-fuzz-") as name:
        file = Path(name) / DATABASE
        with closing(sqlite3.connect(file)) as database:
            database.executescript(script)
        old = file.read_bytes()
        open_store(Path(name)).close()
        return [file.read_bytes(), old]


def _patches() -> list[bytes]:
    tensor = {"type": "float32", "shape": [2], "data": "AACAPwAAAEA="}
    operations = [
        {"operation": "set-weight", "name": "w", "tensor": tensor},
        {"operation": "set-attribute", "node": "a", "name": "axis", "value": [1, 2]},
        {"operation": "set-input", "node": "a", "index": 1, "value": "x"},
        {"operation": "remove-node", "node": "a", "value": "x"},
    ]
    edits = [{"kind": "parameter", "about": "w", "operations": operations[:n]} for n in (1, 4)]
    whole = {"schema": "optvet.patch/1", "digest": "d", "edits": edits}
    return [json.dumps(whole).encode()]


def _baselines() -> list[bytes]:
    finding = {
        **{"fingerprint": "f", "optimizer": "o", "symptom": "wrong-output", "culprit": ["p"]},
        "models": ["m.onnx"],
    }
    whole = {"schema": "optvet.baseline/1", "campaign": "c", "findings": [finding]}
    return [json.dumps(whole).encode()]


def _archives() -> list[bytes]:
    found = []
    for array in (np.ones((2, 2), np.float32), np.array(["a", "b"])):
        for write in (np.savez, np.savez_compressed):
            stream = io.BytesIO()
            write(stream, x=array)
            found.append(stream.getvalue())
    plain = io.BytesIO()
    with zipfile.ZipFile(plain, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00")
    return [*found, plain.getvalue()]


def _arrays() -> list[bytes]:
    stream = io.BytesIO()
    np.save(stream, np.ones((2, 2), np.float32))
    return [stream.getvalue()]


def _pictures() -> list[bytes]:
    from PIL import Image

    picture = Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3))
    found = []
    for form in ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP"):
        stream = io.BytesIO()
        picture.save(stream, form)
        found.append(stream.getvalue())
    return found


def _sounds() -> list[bytes]:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(np.arange(800, dtype="<i2").tobytes())
    return [stream.getvalue()]


def _annotations() -> list[bytes]:
    coco = {
        "images": [{"id": 1, "file_name": "x.png"}],
        "annotations": [{"image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4.5], "iscrowd": 0}],
        "categories": [{"id": 3, "name": "cat"}],
    }
    return [json.dumps(v).encode() for v in (coco, {"x.png": 3}, [{"file": "x.png", "label": 1}])]


def _kept() -> list[bytes]:
    run: Outputs = {"y": np.ones((2, 2), np.float32), "s": np.array(["a", b"b"], object)}
    failure = {"kind": "error", "stage": "run", "message": "m", "error_type": "E", "signal": None}
    return [dump_arrays(run, {"failure": None}), dump_arrays({}, {"failure": failure})]


# --- loaders --------------------------------------------------------------------------------------


def _load_model(folder: Path, data: bytes) -> None:
    (folder / "x.bin").write_bytes(bytes(8))
    (folder / "net.onnx").write_bytes(data)
    open_model(folder / "net.onnx", "net.onnx", folder / "store")


def _load_record(folder: Path, data: bytes) -> None:
    (folder / "net.toml").write_bytes(data)
    config_for(folder / "net.onnx")


def _load_catalogue(folder: Path, data: bytes) -> None:
    (folder / "models.json").write_bytes(data)
    config_for(folder / "net.onnx")


def _load_bundle(folder: Path, data: bytes) -> None:
    (folder / "finding.json").write_bytes(data)
    read_record(folder)


def _load_bundle_arrays(folder: Path, data: bytes) -> None:
    (folder / "inputs.npz").write_bytes(data)
    read_arrays(folder / "inputs.npz", ["x"])


def _load_store(folder: Path, data: bytes) -> None:
    """What every command does that reads a store, and what repairs one."""
    store = folder / "s"
    store.mkdir()
    (store / DATABASE).write_bytes(data)
    try:
        with open_store(store, to_read=True) as opened:
            status_of(opened)
            campaign = find_campaign(opened)
            list(metrics(opened, campaign))
            report_of(opened, campaign)
            stored_requests(opened, campaign, _plugins(), cache_dir=folder)
            export(opened, campaign, "json", folder / "out.json")
    except OptvetError as error:
        if len(str(error)) > 4000:
            raise
    rescue_store(store, folder / "new")
    with open_store(folder / "new") as opened:
        summary_of(opened, find_campaign(opened))


def _load_campaign(folder: Path, data: bytes) -> None:
    (folder / "net.onnx").write_bytes(_model_bytes())
    (folder / "c.toml").write_bytes(data)
    source = read_campaign(folder / "c.toml", _plugins())
    list(itertools.islice(requests_of(source, _plugins()), 3))


def _load_patch(folder: Path, data: bytes) -> None:
    (folder / "patch.json").write_bytes(data)
    apply_edits(onnx.parser.parse_model(MODEL), read_patch(folder / "patch.json").edits)


def _load_baseline(folder: Path, data: bytes) -> None:
    (folder / "known.json").write_bytes(data)
    read_baseline(folder / "known.json")


def _load_kept(folder: Path, data: bytes) -> None:
    try:
        run_from_bytes(data)
    except MemoryError:
        raise
    except Exception as error:
        # ``Cache.read`` takes any exception for a miss; what is bounded is time and memory.
        raise OptvetError("a miss") from error


def _samples(
    folder: Path, file: str, data: bytes, dataset: str, model: str, **options: object
) -> None:
    (folder / file).write_bytes(data)
    plugin = _plugins().dataset(dataset)
    place = str(folder / file) if dataset == "files" else str(folder)
    given = type(plugin.options).model_validate(options)
    for item in plugin.samples(
        _opened(folder, model),
        place,
        given,
        seed=0,
        limit=3,
        probe=lambda feeds: [None] * len(feeds),
    ):
        if isinstance(item, Deferred):
            item.make()


def _opened(folder: Path, text: str) -> Model:
    place = folder / "model"
    place.mkdir(exist_ok=True)
    (place / "net.onnx").write_bytes(_model_bytes(text))
    return open_model(place / "net.onnx", "net.onnx", folder)


_plugins = functools.cache(Plugins)
PLAIN = """<ir_version: 8, opset_import: ["": 17]>
g (float[2,2] x) => (float[2,2] y) { y = Relu(x) }"""


def _load_annotations(folder: Path, data: bytes) -> None:
    (folder / "labels.json").write_bytes(data)
    labels = str(folder / "labels.json")
    _samples(folder, "x.png", _pictures()[0], "images", PICTURES, labels=labels)


TARGETS = {
    "model": Target(_models, _load_model),
    "record": Target(lambda: [RECORD], _load_record),
    "catalogue": Target(_catalogues, _load_catalogue),
    "bundle": Target(_findings, _load_bundle),
    "store": Target(lambda: _stores(), _load_store),
    "campaign": Target(lambda: [CAMPAIGN, *_TABLES], _load_campaign),
    "patch": Target(lambda: _patches(), _load_patch),
    "baseline": Target(lambda: _baselines(), _load_baseline),
    "bundle-arrays": Target(_archives, _load_bundle_arrays),
    "cache": Target(_kept, _load_kept),
    "npz": Target(_archives, lambda f, d: _samples(f, "x.npz", d, "files", PLAIN)),
    "npy": Target(_arrays, lambda f, d: _samples(f, "x.npy", d, "files", PLAIN)),
    "image": Target(_pictures, lambda f, d: _samples(f, "x.png", d, "images", PICTURES)),
    "audio": Target(_sounds, lambda f, d: _samples(f, "x.wav", d, "audio", SOUNDS)),
    "annotations": Target(_annotations, _load_annotations),
    "known": Target(documents.known_faults, documents.load_known_fault, documents.changed),
    "pattern": Target(documents.triggers, documents.load_pattern),
    "condition": Target(documents.conditions, documents.load_condition),
    "hunt": Target(documents.hunts, documents.load_hunt, documents.changed),
    "release": Target(documents.markers, documents.load_release),
    "release-values": Target(documents.markers, documents.load_release, documents.changed),
    "bundle-values": Target(documents.bundles, documents.load_bundle, documents.changed),
    "options": Target(documents.options, documents.load_options, documents.changed),
}


# --- fuzzing --------------------------------------------------------------------------------------


@contextmanager
def limited(seconds: int = EXAMPLE_S) -> Iterator[None]:
    """Ends what takes too long with a TimeoutError; in the main thread alone.

    That is processor time, since a busy machine is no hang; or twelve times as much of the clock.
    """

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"an input took more than {seconds} s")

    before = {each: signal.signal(each, late) for each in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(12 * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for each, handler in before.items():
            signal.signal(each, handler)


@functools.cache
def _import_libraries(name: str) -> None:
    """Load a file without a time limit: an import that is interrupted leaves half a module."""
    with tempfile.TemporaryDirectory(prefix="optvet-fuzz-") as folder, suppress(OptvetError):
        TARGETS[name].load(Path(folder), TARGETS[name].seeds()[0])


def load(name: str, data: bytes) -> None:
    """Read ``data`` as the target ``name`` does; raises unless it is read, or refused in words."""
    _import_libraries(name)
    with tempfile.TemporaryDirectory(prefix="optvet-fuzz-") as folder, limited():
        try:
            TARGETS[name].load(Path(folder), data)
        except OptvetError as error:
            text = str(error)
            if len(text) > 4000:
                raise AssertionError(f"a message of {len(text):,} characters") from error


def fuzz(name: str, number: int, examples: int) -> None:
    """Try ``examples`` inputs that the seed ``number`` gives."""
    seeds = TARGETS[name].seeds()

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(seeds), mutations)
    def attempt(data: bytes, changes: Sequence[Mutation]) -> None:
        load(name, (TARGETS[name].change or mutated)(data, changes))

    attempt()


def cpu_seconds() -> float:
    """Processor time of this process and of the workers that it has used, ended ones included."""
    parents, ticks = dict[int, int](), dict[int, int]()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            ticks[int(folder.name)] = sum(map(int, fields[11:15]))
    return sum(
        used for pid, used in ticks.items() if os.getpid() in _ancestors(pid, parents)
    ) / os.sysconf("SC_CLK_TCK")


def _ancestors(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    while pid in parents:
        yield pid
        pid = parents[pid]


def main() -> int:
    """Fuzz the targets that were named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="processor time per target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("targets", nargs="*", metavar=f"{{{','.join(TARGETS)}}}")
    asked = parser.parse_args()
    unknown = set(asked.targets) - TARGETS.keys()
    if unknown:
        parser.error(f"no target is called {', '.join(sorted(unknown))}")
    # Workers are forks of one server, which imports its libraries once for all inputs.
    keep_servers()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for name in asked.targets or TARGETS:
        began, examples = cpu_seconds(), 0
        for number in count(asked.seed):
            fuzz(name, number, 200)
            examples += 200
            took = cpu_seconds() - began
            if took > 60 * asked.minutes:
                break
        print(f"{name}: {examples:,} inputs in {took:,.0f} s, nothing found", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
