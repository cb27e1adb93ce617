"""``blocks:PATH``: a model of which each repeated block is left twice."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from optvet_blocks import BlocksSource
from optvet_blocks.repeats import BlockRow, leave_out_repeats

SIDE = 4
LONG = ["MatMul", "Add", "Relu", "Mul", "Add"]


def network(
    blocks: Sequence[int], *, cached: bool = False, skipping: bool = False, copied: bool = False
) -> ModelProto:
    """Equal blocks in a row, one for each number, of which its weights are drawn.

    Args:
        blocks: A seed for each block.
        cached: Each has an input and an output of its own, as the layers of a decoder.
        skipping: The end reads what the second block makes.
        copied: The bias of each is a copy that is made at the beginning, as some exporters do.
    """
    nodes, weights, at = [helper.make_node("Mul", ["x", "mask"], ["v"])], [], "v"
    inputs, outputs = ["x", "mask"], list[str]()
    for i, seed in enumerate(blocks):
        drawn = np.random.default_rng(seed)
        w, b = drawn.normal(size=(SIDE, SIDE)), drawn.normal(size=SIDE)
        weights += [numpy_helper.from_array(w.astype("f4"), f"w{i}")]
        weights += [numpy_helper.from_array(b.astype("f4"), f"b{i}")]
        bias = f"b{i}"
        if copied:
            nodes.insert(0, helper.make_node("Identity", [bias], [f"c{i}"]))
            bias = f"c{i}"
        made = [f"m{i}", f"a{i}", f"r{i}", f"g{i}", f"v{i}"]
        other = f"past{i}" if cached else "mask"
        reads = [[at, f"w{i}"], [made[0], bias], [made[1]], [made[2], other], [made[3], at]]
        nodes += [
            helper.make_node(op, names, [out])
            for op, names, out in zip(LONG, reads, made, strict=True)
        ]
        if cached:
            inputs, outputs = [*inputs, f"past{i}"], [*outputs, f"r{i}"]
        at = made[-1]
    end = [at, "v1"] if skipping else [at, "mask"]
    nodes.append(helper.make_node("Sub", end, ["y"]))
    infos = [
        [helper.make_tensor_value_info(n, 1, [2, SIDE]) for n in names]
        for names in (inputs, ["y", *outputs])
    ]
    graph = helper.make_graph(nodes, "g", infos[0], infos[1], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def answers(model: ModelProto) -> list[np.ndarray]:
    """Outputs on inputs that are drawn by their names."""
    feeds = {
        v.name: np.random.default_rng(list(v.name.encode())).normal(size=(2, SIDE)).astype("f4")
        for v in model.graph.input
    }
    return list(ReferenceEvaluator(model).run(None, feeds))


@given(st.integers(3, 9), st.booleans(), st.booleans())
@settings(deadline=None, max_examples=20)
def test_what_is_left_is_the_network_of_the_first_and_the_last_block(
    count: int, cached: bool, copied: bool
) -> None:
    model = network(range(count), cached=cached, copied=copied)
    assert leave_out_repeats(model) == [BlockRow(1 + count * copied, len(LONG), count)]
    onnx.checker.check_model(model, full_check=True)
    wanted = network([0, count - 1], cached=cached, copied=copied)
    assert len(model.graph.node) == len(wanted.graph.node)
    assert len(model.graph.initializer) == len(wanted.graph.initializer)
    if cached:  # The caches keep their names, by which inputs are drawn.
        assert [v.name for v in model.graph.input][2:] == ["past0", f"past{count - 1}"]
        names = {v.name: f"past{i}" for i, v in enumerate(model.graph.input[2:])}
        for node in model.graph.node:
            node.input[:] = [names.get(n, n) for n in node.input]
        for value in model.graph.input[2:]:
            value.name = names[value.name]
    for got, expected in zip(answers(model), answers(wanted), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("blocks", [[1], [1, 2]])
def test_nothing_is_left_out_of_two_blocks(blocks: list[int]) -> None:
    model = network(blocks)
    before = model.SerializeToString()
    assert leave_out_repeats(model) == []
    assert model.SerializeToString() == before


def test_branches_side_by_side_are_all_left() -> None:
    model = network([1])
    branches = [helper.make_node("Relu", ["v"], [f"branch{i}"]) for i in range(12)]
    joined = helper.make_node("Sum", [n.output[0] for n in branches], ["joined"])
    model.graph.node[-1].input[1] = "joined"
    for node in reversed([*branches, joined]):
        model.graph.node.insert(1, node)
    assert leave_out_repeats(model) == []


def test_other_weights_beside_the_same_file_are_another_model(tmp_path: Path) -> None:
    paths = [tmp_path / name / "deep.onnx" for name in ("used", "trained")]
    for path, seeds in zip(paths, (range(5), range(5, 10)), strict=True):
        path.parent.mkdir()
        whole = network(seeds)
        onnx.save(whole, path, save_as_external_data=True, location="data", size_threshold=0)
    found = []
    for _ in range(2):
        (file,) = BlocksSource().fetch(str(paths[0]), tmp_path / "cache")
        found.append(answers(onnx.load(file)))
        shutil.copyfile(paths[1].with_name("data"), paths[0].with_name("data"))
    assert not np.array_equal(found[0][0], found[1][0])


def test_what_another_part_reads_is_not_left_out() -> None:
    model = network(range(6), skipping=True)
    found = leave_out_repeats(model)
    onnx.checker.check_model(model, full_check=True)
    assert all(1 + len(LONG) * 2 <= repeat.left_out.start for repeat in found)
