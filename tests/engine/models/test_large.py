"""Large models, with a threshold so low that models of half a megabyte are large ones."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from optvet.cli import main
from optvet.engine.discovery import Plugins
from optvet.engine.models import large
from optvet.engine.models.opening import open_model
from optvet.engine.numerics.jitter_file import jitter_file
from optvet.engine.numerics.perturb import jitter_model
from optvet.engine.vet.run import vet_model
from optvet.engine.work.trials import from_file
from optvet.graph.digest import contents_of
from optvet.graph.outline import (
    content_of,
    cut_weights,
    inline_small,
    is_outside,
    location_of,
    message_digest,
    outline_in,
    outline_of,
    write_whole,
)
from optvet.spec.errors import InfrastructureError, InputError
from optvet.spec.records import VetResult
from optvet.spec.request import VetRequest
from optvet.spec.types import Artifact
from optvet.testing import FILLERS, Planted
from optvet_onnxoptimizer import OnnxOptimizer, OnnxOptimizerOptions
from optvet_onnxruntime.optimizer import OrtOptimizer, OrtOptimizerOptions

SIDE = 160
"""A weight of this side is larger than what an outline keeps."""


def network(layers: int = 4) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for i in range(layers):
        array = rng.standard_normal((SIDE, SIDE), np.float32) / 16
        weights.append(numpy_helper.from_array(array, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Identity", [f"m{i}"], [f"h{i}"]))
        value = f"h{i}"
    weights.append(numpy_helper.from_array(np.array([1, SIDE]), "shape"))
    nodes.append(helper.make_node("Reshape", [value, "shape"], ["r"]))
    nodes.append(helper.make_node("Relu", ["r"], ["y"]))
    held = numpy_helper.from_array(np.ones((SIDE, SIDE), np.float32), "held")
    nodes.append(helper.make_node("Constant", [], ["c"], value=held))
    nodes.append(helper.make_node("ReduceMax", ["c"], ["z"], keepdims=0))
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, SIDE])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, SIDE]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, []),
        ],
        weights,
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def saved(folder: Path, *, outside: bool = False, threshold: int = 0) -> Path:
    path = folder / "model.onnx"
    if outside:
        onnx.save(
            network(),
            path,
            save_as_external_data=True,
            location="model.data",
            size_threshold=threshold,
        )
    else:
        onnx.save(network(), path)
    return path


def vetted(path: Path, optimizer: Any, **request: Any) -> VetResult:
    plugins = Plugins()
    if optimizer.name not in plugins.names("optimizer"):
        plugins.register("optimizer", optimizer)
    cache = path.parent / "cache"
    chosen = {"limit": 2, "jobs": 2, "optimizer": optimizer.name, "cache_dir": cache} | request
    opened = open_model(path, str(path), cache)
    return vet_model(opened, VetRequest(model="m", **chosen), plugins)


@pytest.fixture
def low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "LARGE_BYTES", 1 << 18)


# --- outlines -------------------------------------------------------------------------------------


def test_an_outline_is_the_model_without_its_weights(tmp_path: Path) -> None:
    path = saved(tmp_path)
    outline = outline_of(path)
    assert outline.ByteSize() < 4000 < path.stat().st_size
    assert [t.name for t in outline.graph.initializer if is_outside(t)] == ["w0", "w1", "w2", "w3"]
    assert is_outside(outline.graph.node[-2].attribute[0].t)
    whole = network()
    assert contents_of(outline, tmp_path) == contents_of(whole)
    assert onnx.load(path) == network()


def test_a_tensor_that_says_where_its_data_is_is_outlined_too(tmp_path: Path) -> None:
    model = network()
    for tensor in model.graph.initializer:
        # As a model looks that was loaded with external data, and saved without.
        tensor.data_location = TensorProto.DEFAULT
        tensor.external_data.add(key="location", value="old.data")
    onnx.save_model(model, tmp_path / "model.onnx")
    outline = outline_of(tmp_path / "model.onnx")
    assert sum(is_outside(t) for t in outline.graph.initializer) == 4
    assert {location_of(t) for t in outline.graph.initializer if is_outside(t)} == {"model.onnx"}
    assert [b"".join(content_of(t, tmp_path)) for t in outline.graph.initializer[:4]] == [
        t.raw_data for t in model.graph.initializer[:4]
    ]


def test_the_outline_of_a_message_is_that_of_its_file(tmp_path: Path) -> None:
    path = saved(tmp_path)
    outline, message = outline_in(path.read_bytes())
    assert [t.name for t in outline.graph.initializer if message.holds(t)] == [
        "w0",
        "w1",
        "w2",
        "w3",
    ]
    assert contents_of(outline, message) == contents_of(network())


def test_cut_weights_leave_the_graph_and_its_small_tensors(tmp_path: Path) -> None:
    data = saved(tmp_path).read_bytes()
    cut = onnx.load_from_string(cut_weights(data))
    onnx.checker.check_model(cut)
    assert cut.ByteSize() < 20_000 < len(data)
    whole = network()
    assert [(n.op_type, *n.input) for n in cut.graph.node] == [
        (n.op_type, *n.input) for n in whole.graph.node
    ]
    for was, now in zip(whole.graph.initializer, cut.graph.initializer, strict=True):
        if was.ByteSize() < 1000:
            assert now == was
            continue
        first = onnx.numpy_helper.to_array(was).reshape(-1)[: was.dims[0]]
        assert now.dims == [was.dims[0], *(1 for _ in was.dims[1:])]
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(now).reshape(-1), first)


def test_messages_that_differ_in_one_bit_have_other_digests(tmp_path: Path) -> None:
    data = bytearray(saved(tmp_path).read_bytes())
    first = message_digest(*outline_in(bytes(data)))
    assert message_digest(*outline_in(bytes(data))) == first  # wherever the outline is made
    place = data.index(network().graph.initializer[0].raw_data[:64])
    data[place] ^= 1  # of a large tensor
    second = message_digest(*outline_in(bytes(data)))
    data[place] ^= 1
    data[data.index(b"w0")] = ord("u")  # of what is around it
    assert len({first, second, message_digest(*outline_in(bytes(data)))}) == 3


def test_a_tensor_cannot_claim_to_lie_in_the_message_that_holds_it(tmp_path: Path) -> None:
    model = network()
    _, message = outline_in(model.SerializeToString())
    forged = model.graph.initializer.add(name="forged", data_type=1, dims=[4])
    forged.data_location = TensorProto.EXTERNAL
    for key, value in (("location", message.location), ("offset", "0"), ("length", "16")):
        forged.external_data.add(key=key, value=value)
    outline, again = outline_in(model.SerializeToString())
    assert not again.holds(outline.graph.initializer[-1])


def test_a_weight_that_differs_makes_another_digest(tmp_path: Path) -> None:
    path = saved(tmp_path)
    before = contents_of(outline_of(path), tmp_path)
    data = bytearray(path.read_bytes())
    data[path.stat().st_size // 2] ^= 1
    path.write_bytes(data)
    assert contents_of(outline_of(path), tmp_path) != before


def test_what_is_outside_is_written_into_one_message(tmp_path: Path) -> None:
    path = saved(tmp_path, outside=True)
    outline = onnx.load(path, load_external_data=False)
    with (tmp_path / "whole.onnx").open("wb") as file:
        write_whole(outline, tmp_path, file)
    assert onnx.load(tmp_path / "whole.onnx") == network()


def test_small_tensors_are_taken_back(tmp_path: Path) -> None:
    outline = onnx.load(saved(tmp_path, outside=True), load_external_data=False)
    inline_small(outline, tmp_path)
    assert [t.name for t in outline.graph.initializer if not is_outside(t)] == ["shape"]


@pytest.mark.parametrize("cut", [1, 5, 1000, 100_000])
def test_a_model_that_is_cut_short_is_told(tmp_path: Path, low: None, cut: int) -> None:
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(InputError, match=r"model.*model\.onnx is "):
        open_model(path, "model.onnx", tmp_path)


def test_rounding_moves_a_model_in_a_file_as_it_does_one_in_memory(tmp_path: Path) -> None:
    path, folder = saved(tmp_path), tmp_path / "jittered"
    folder.mkdir()
    moved = onnx.load(jitter_file(path, folder, 3, 2.0))
    expected = jitter_model(network(), np.random.default_rng(3), 2.0)
    for ours, theirs in zip(moved.graph.initializer, expected.graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(ours), numpy_helper.to_array(theirs))
    assert not np.array_equal(
        numpy_helper.to_array(moved.graph.initializer[0]),
        numpy_helper.to_array(network().graph.initializer[0]),
    )


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("location", "", "names no file"),
        ("location", "../model.data", "outside of the model's folder"),
        ("location", "model.onnx", "gives length 12"),
        ("offset", "x", "expected a number of bytes"),
        ("length", "7", "gives length 7"),
    ],
)
def test_hostile_places_of_a_large_model_are_refused(
    tmp_path: Path, low: None, key: str, value: str, words: str
) -> None:
    path = saved(tmp_path, outside=True)
    model = onnx.load(path, load_external_data=False)
    weight = model.graph.initializer[1]
    entries = {e.key: e.value for e in weight.external_data} | {key: value}
    if value == "model.onnx":
        entries["length"] = "12"
    del weight.external_data[:]
    for name, text in entries.items():
        weight.external_data.add(key=name, value=text)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match=words):
        open_model(path, str(path), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_weight_that_is_shorter_than_its_shape_is_refused(tmp_path: Path, low: None) -> None:
    model = network()
    model.graph.initializer[0].dims[0] += 1
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(InputError, match=r"tensor 'w0' has 102,400 bytes of data, which is not"):
        open_model(tmp_path / "model.onnx", "", tmp_path)


# --- vetting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("outside", [False, True], ids=["whole", "outside"])
@pytest.mark.parametrize("optimizer", [OnnxOptimizer(), OrtOptimizer()], ids=lambda o: o.name)
def test_a_large_model_gets_the_answer_of_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: Any, outside: bool
) -> None:
    path = saved(tmp_path, outside=outside)
    small = vetted(path, optimizer, cache=False)
    monkeypatch.setattr(large, "LARGE_BYTES", 1 << 18)
    result = vetted(path, optimizer, cache=False)
    assert (result.verdict, result.reason) == (small.verdict, small.reason)
    assert [(o.name, o.verdict) for o in result.outputs] == [
        (o.name, o.verdict) for o in small.outputs
    ]
    (jobs,) = [c for c in result.controls if c.name == "jobs"]
    assert jobs.detail.startswith("1 of 2 at a time: the model has")
    # Nothing is left but the copy of a model whose weights were outside, and the two agree.
    left = [f for f in (tmp_path / "cache").rglob("*") if f.is_file()]
    assert len({f.stat().st_size for f in left}) <= 1
    assert all(f.suffix == ".onnx" for f in left)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (OnnxOptimizer(), OnnxOptimizerOptions()),
        (OnnxOptimizer(), OnnxOptimizerOptions(fixed_point=True)),
        (OrtOptimizer(), OrtOptimizerOptions(mode="offline")),
    ],
    ids=["onnxoptimizer", "fixed point", "onnxruntime offline"],
)
def test_what_an_optimizer_makes_of_a_file_is_what_it_makes_of_bytes(
    tmp_path: Path, optimizer: Any, options: Any
) -> None:
    path, folder = saved(tmp_path), tmp_path / "made"
    folder.mkdir()
    passes = optimizer.pipelines()["default"]
    made = from_file.apply_to_file(path, optimizer, tuple(passes), options, folder)
    assert made.path is not None
    graph = from_file.graph_of(made.path)
    expected = onnx.load_from_string(
        optimizer.apply(Artifact("onnx", path.read_bytes()), passes, options).data
    )
    assert contents_of(graph, folder) == contents_of(expected)
    assert path.read_bytes() == network().SerializeToString()


def test_a_fault_in_a_large_model_is_found_and_blamed(tmp_path: Path, low: None) -> None:
    optimizer = Planted(default=(*FILLERS[:2], "scale_weight"))
    result = vetted(saved(tmp_path), optimizer)
    assert result.verdict == "faulty"
    (finding,) = result.findings
    assert finding.culprit == ["scale_weight"]
    assert finding.divergence is not None
    assert "are not compared" in finding.divergence.note


def test_a_model_too_large_for_a_message_is_vetted_from_its_files(
    tmp_path: Path, low: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("large", "opening", "open_large"):
        monkeypatch.setattr(f"optvet.engine.models.{module}.PROTOBUF_LIMIT", 1 << 18)
    path = saved(tmp_path, outside=True, threshold=1024)
    plugins = Plugins()
    opened = open_model(path, str(path), tmp_path / "cache", accept=lambda source, size: None)
    assert opened.blob == path
    request = VetRequest(model="m", optimizer="onnxruntime", limit=2, cache_dir=tmp_path / "cache")
    assert vet_model(opened, request, plugins).verdict in ("clean", "drift")
    with pytest.raises(InputError, match="holds at most 2 GiB"):
        open_model(path, str(path), tmp_path / "cache")
    request = VetRequest(
        model="m",
        optimizer="onnxruntime",
        cross_check=("onnx_reference",),
        cache_dir=tmp_path / "cache",
    )
    with pytest.raises(InputError, match="runtime 'onnx_reference' loads at most"):
        vet_model(opened, request, plugins)


# --- refusals -------------------------------------------------------------------------------------


def hollow(folder: Path, size_bytes: int) -> Path:
    """A model with a weight of so many bytes, which are a hole in a file."""
    path = saved(folder, outside=True)
    model = onnx.load(path, load_external_data=False)
    weight = TensorProto(name="huge", data_type=TensorProto.FLOAT, dims=[size_bytes // 4])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="huge.data")
    model.graph.initializer.append(weight)
    path.write_bytes(model.SerializeToString())
    with (folder / "huge.data").open("wb") as file:
        file.truncate(size_bytes)
    return path


def test_a_model_for_which_the_limit_has_no_room_is_refused_unread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*given: object) -> Any:
        raise AssertionError("the weights were read")

    monkeypatch.setattr("optvet.engine.models.open_large.hash_file", never)
    path = hollow(tmp_path, 2_400_000_000)
    given = ["vet", str(path), "--cache-dir", str(tmp_path / "cache")]
    assert main(given) == 2
    words = " ".join(capsys.readouterr().err.split())
    assert "the model has 2.24 GiB, and a step of onnxoptimizer takes about" in words
    assert "say --memory 11G" in words
    assert not (tmp_path / "cache" / "scratch").exists()


def test_an_optimizer_that_takes_messages_refuses_what_is_no_message() -> None:
    planted = Planted(default=FILLERS[:1])
    planted.traits = planted.traits.__class__(max_model_bytes=2**31 - 1)
    with pytest.raises(InputError, match=r"has 2,400,000,000 bytes; planted takes at most .*files"):
        large.check_size("m.onnx", 2_400_000_000, planted)
    large.check_size("m.onnx", 2_400_000_000, OnnxOptimizer())
    large.check_size("m.onnx", 2_000_000_000, planted)


def test_a_machine_without_room_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "available_bytes", lambda: 2 << 30)
    with pytest.raises(InputError, match="but only 2 GiB are available"):
        large.check_room("m.onnx", 1 << 30, OnnxOptimizer(), 64 << 30)


# --- room -----------------------------------------------------------------------------------------


def test_jobs_are_lowered_to_what_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_model(saved(tmp_path), "m.onnx", tmp_path)
    monkeypatch.setattr(large, "available_bytes", lambda: 1 << 30)
    assert large.jobs_that_fit(opened, OnnxOptimizer(), 2) == (2, "")
    jobs, why = large.jobs_that_fit(opened, OnnxOptimizer(), 8)
    assert jobs == 3
    assert why == "3 of 8 at a time: a step may take 259 MiB, and 1 GiB are available"
    monkeypatch.setattr(large, "available_bytes", lambda: None)
    assert large.jobs_that_fit(opened, OnnxOptimizer(), 8) == (8, "")


def test_the_limit_of_a_control_group_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{4 << 30}\n")
    (tmp_path / "memory.current").write_text(f"{3 << 30}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {1 << 30}\n")
    about = (tmp_path, "memory.max", "memory.current", "")
    assert large._left_in(*about) == 2 << 30
    (tmp_path / "memory.max").write_text("max\n")
    assert large._left_in(*about) is None
    assert (large.available_bytes() or 0) > 0


def test_what_a_killed_process_left_is_removed(tmp_path: Path, low: None) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], check=True,
                          capture_output=True, text=True).stdout.strip()  # fmt: skip
    for pid in (dead, str(os.getpid())):
        (tmp_path / f"large-{pid}-x").mkdir()
    opened = open_model(saved(tmp_path), "m.onnx", tmp_path)
    with large.scratch_folder(opened, tmp_path) as folder:
        assert folder is not None
        names = {p.name for p in tmp_path.glob("large-*")}
        assert names == {folder.name, f"large-{os.getpid()}-x"}
    assert not folder.exists()


def test_a_model_that_changes_while_it_is_vetted_is_told(
    tmp_path: Path, low: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optvet.engine.work.trials.trial_runner.stamp_of", lambda path: (1, 1))
    with pytest.raises((InfrastructureError, InputError), match="has changed since it was opened"):
        vetted(saved(tmp_path), OnnxOptimizer())


@pytest.mark.parametrize(
    ("size_gib", "free_gib", "memory", "workers"),
    [
        (0.1, 1, True, True),
        (0.6, 80, True, True),
        (0.6, 16, True, False),
        (0.6, 8, False, False),
        (0.6, None, False, False),
        (1.5, 400, False, False),
    ],
)
def test_memory_and_workers_of_a_large_model_are_kept_where_there_is_plenty(
    size_gib: float,
    free_gib: float | None,
    memory: bool,
    workers: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    free = None if free_gib is None else int(free_gib * (1 << 30))
    monkeypatch.setattr(large, "available_bytes", lambda: free)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    model = open_model(saved(tmp_path), "model.onnx", tmp_path)
    model = replace(model, size_bytes=int(size_gib * (1 << 30)))
    assert large.keeps_memory(model, Planted()) == memory
    assert large.keeps_workers(model, Planted()) == workers
