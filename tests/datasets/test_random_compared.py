"""Samples of the dataset "random" from the constants that inputs are compared with."""

import numpy as np
from tests.datasets.test_random import Maker, RuntimeProbe, accept, model, never, running, samples

from optvet import Sample

__all__ = ["model"]

ML = ', "ai.onnx.ml" : 3'


def compared(made: list[Sample]) -> list[Sample]:
    return [s for s in made if "compared" in s.id]


def values(made: list[Sample], name: str) -> np.ndarray:
    return np.concatenate([s.feeds[name].reshape(len(s.feeds[name]), -1) for s in compared(made)])


def test_nothing_is_added_where_nothing_is_compared(model: Maker) -> None:
    graph = "g (float[2,3] x) => (float[2,3] y) <float[3] w = {1, 2, 3}> { y = Mul(x, w) }"
    assert compared(samples(model(graph), never)) == []


POINTS = """g (float[N,1] a, float[N,2] b) => (float[N,3] d)
    <float[3,3] points = {100, 200, 300, 110, 210, 310, 120, 220, 320}, int64[1] axis = {1},
     int64[1] last = {2}>
    { j = Concat<axis = 1>(a, b)
      z = ai.onnx.ml.Scaler<offset = [1.0, 2.0, 3.0], scale = [2.0, 4.0, -8.0]>(j)
      w = Unsqueeze(z, axis)  s = Sub(w, points)  d = ReduceSumSquare<keepdims = 0>(s, last) }"""


def test_stored_points_are_taken_back_to_the_inputs(model: Maker) -> None:
    made = running(model(POINTS, domains=ML))
    rows = np.concatenate([values(made, "a"), values(made, "b")], axis=1)
    rows = rows[np.argsort(rows[:, 0])]
    expected = np.array([[51, 52, -34.5], [56, 54.5, -35.75], [61, 57, -37]])
    np.testing.assert_allclose(rows, expected, atol=0.3)
    # Beside the points, by more than any rounding.
    assert (np.abs(rows - expected) > 1e-2).all()


def test_samples_stay_as_they_were_and_the_drawn_ones_follow(model: Maker) -> None:
    made = running(model(POINTS, domains=ML))
    without = running(model(POINTS, domains=ML), compared=False)
    assert [s.id for s in made[:10]] == [s.id for s in without]
    assert [s.id for s in made[10:]] == ["random-10-compared-N3"]
    longer = samples(model(POINTS, domains=ML), accept, limit=14)
    assert [s.id.split("-")[2] for s in longer[9:]] == ["special", "compared", *FIRST]
    assert samples(model(POINTS, domains=ML), accept, limit=5)[-1].id == made[4].id


FIRST = ("normal", "uniform", "image")


def test_whole_numbers_are_on_the_constant_and_floats_beside_it(model: Maker) -> None:
    graph = """g (float[2,6] x, int64[2,6] n) => (bool[2,6] y, bool[2,6] z)
        <float c = {3000.0}, int64 k = {700}> { y = Less(x, c)  z = Less(n, k) }"""
    made = running(model(graph))
    whole = set(values(made, "n").ravel())
    assert {699, 700, 701} <= whole
    near = values(made, "x")
    near = near[np.abs(near - 3000) < 10]
    assert (near < 2999).any()
    assert (near > 3001).any()


def test_both_ends_of_a_quantizer_are_left(model: Maker) -> None:
    graph = """g (float[2,8] x) => (int8[2,8] y) <float s = {100.0}, int8 z = {28}>
        { y = QuantizeLinear(x, s, z) }"""
    drawn = values(running(model(graph)), "x")
    assert drawn.min() < -15600
    assert drawn.max() > 9900


def test_every_row_of_a_table_is_read(model: Maker) -> None:
    rows = ", ".join(map(str, range(900)))
    graph = f"""g (int64[N,5] ids) => (float[N,5,1] y) <float[900,1] t = {{{rows}}}>
        {{ y = Gather(t, ids) }}"""
    assert set(values(running(model(graph)), "ids").ravel()) == set(range(900))


def test_each_node_of_a_tree_has_inputs_on_both_sides(model: Maker) -> None:
    graph = """g (float[N,2] x) => (float[N,1] y)
        { y = ai.onnx.ml.TreeEnsembleRegressor<n_targets = 1, nodes_treeids = [0, 0, 0, 0, 0],
            nodes_nodeids = [0, 1, 2, 3, 4], nodes_featureids = [0, 0, 1, 0, 0],
            nodes_values = [500.0, 0.0, -900.0, 0.0, 0.0],
            nodes_modes = ["BRANCH_LEQ", "LEAF", "BRANCH_GT", "LEAF", "LEAF"],
            nodes_truenodeids = [1, 0, 3, 0, 0], nodes_falsenodeids = [2, 0, 4, 0, 0],
            target_treeids = [0, 0, 0], target_nodeids = [1, 3, 4], target_ids = [0, 0, 0],
            target_weights = [1.0, 2.0, 3.0]>(x) }"""
    made = model(graph, domains=ML)
    probe = RuntimeProbe(made.blob)
    drawn = compared(running(made))
    leaves = {float(v) for s in drawn for v in probe.session.run(None, dict(s.feeds))[0].ravel()}
    assert leaves == {1, 2, 3}


def test_an_input_that_selects_a_branch_adds_no_samples(model: Maker) -> None:
    graph = """g (float[2] x, int64 rate) => (float[2] y) <int64 k = {16000}>
        { c = Equal(rate, k)
          y = If (c) <then_branch = t () => (float[2] u) { u = Abs(x) },
                      else_branch = e () => (float[2] v) { v = Neg(x) }> }"""
    assert compared(running(model(graph))) == []


def test_samples_that_do_not_run_are_left_out(model: Maker) -> None:
    graph = """g (int64[N,5] ids) => (float[N,5,1] y) <float[3,1] t = {1, 2, 3}>
        { y = Gather(t, ids) }"""
    calls: list[int] = []

    def refuse_more(batch: object) -> list[str | None]:
        calls.append(1)
        return [None if len(calls) < 2 else "no" for _ in batch]  # type: ignore[attr-defined]

    made = samples(model(graph), refuse_more)
    assert compared(made) == []
    assert len(made) == 10
