from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime  # noqa: TID253 - the tests are about what the runtime accepts
import pytest
from tests.data import DATA

from optvet import InputError, Sample, UsageError
from optvet.engine.models.opening import open_model
from optvet.plugin import Feeds, Model
from optvet_random import RandomDataset, RandomOptions, optvet_datasets

Maker = Callable[..., Model]

SHARED = DATA


class RuntimeProbe:
    """Runs feeds on ONNX Runtime without optimizations; counts what it was asked."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        self.feeds = 0

    def __call__(self, batch: Sequence[Feeds]) -> list[str | None]:
        self.feeds += len(batch)
        return [self.error(feeds) for feeds in batch]

    def error(self, feeds: Feeds) -> str | None:
        try:
            self.session.run(None, dict(feeds))
        except Exception as error:
            return str(error)
        return None


@pytest.fixture
def model(tmp_path: Path) -> Maker:
    def make(graph: str, opset: int = 18, domains: str = "") -> Model:
        path = tmp_path / "model.onnx"
        header = f'<ir_version: 9, opset_import: ["" : {opset}{domains}]>'
        onnx.save(onnx.parser.parse_model(header + graph), path)
        return open_model(path, str(path), tmp_path)

    return make


def never(batch: Sequence[Feeds]) -> list[str | None]:
    raise AssertionError("nothing had to be tried out")


def accept(batch: Sequence[Feeds]) -> list[str | None]:
    return [None] * len(batch)


def samples(
    model: Model,
    probe: Callable[[Sequence[Feeds]], Sequence[str | None]] = accept,
    limit: int | None = None,
    seed: int = 0,
    **options: object,
) -> list[Sample]:
    chosen = RandomOptions.model_validate(options)
    return list(RandomDataset().samples(model, None, chosen, seed=seed, limit=limit, probe=probe))


def running(model: Model, **options: object) -> list[Sample]:
    """Samples, of which all must run."""
    probe = RuntimeProbe(model.blob)
    made = samples(model, probe, **options)  # type: ignore[arg-type]
    assert [s.id for s in made if probe.error(s.feeds)] == []
    assert probe.feeds <= 40
    return made


def shapes(made: list[Sample], name: str) -> set[tuple[int, ...]]:
    return {s.feeds[name].shape for s in made}


RELU = "g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"


def test_static_float_inputs_need_no_trial(model: Maker) -> None:
    made = samples(model(RELU), never)
    assert len(made) == 10
    assert shapes(made, "x") == {(2, 3)}


def test_the_first_sample_is_normal_and_ids_are_unique(model: Maker) -> None:
    made = samples(model(RELU), limit=25)
    assert made[0].id == "random-0-normal"
    assert made[10].id == "random-10-normal"
    assert len({s.id for s in made}) == 25


def test_a_sample_does_not_depend_on_the_limit(model: Maker) -> None:
    few, many = (samples(model(RELU), limit=n, seed=3) for n in (2, 12))
    for one, other in zip(few, many, strict=False):
        assert one.id == other.id
        np.testing.assert_array_equal(one.feeds["x"], other.feeds["x"])
    assert not np.array_equal(many[0].feeds["x"], many[10].feeds["x"])


def test_another_seed_gives_other_values(model: Maker) -> None:
    one, other = (samples(model(RELU), limit=1, seed=s)[0].feeds["x"] for s in (0, 1))
    assert not np.array_equal(one, other)


def test_regimes_keep_their_promises(model: Maker) -> None:
    graph = "g (float[100,100] x) => (float[100,100] y) { y = Relu(x) }"
    by_regime = {s.id.split("-")[2]: s.feeds["x"] for s in samples(model(graph))}
    assert by_regime["normal"].std() == pytest.approx(1, abs=0.02)
    assert 0 <= by_regime["uniform"].min() <= by_regime["uniform"].max() < 1
    assert 250 < by_regime["image"].max() <= 255
    assert by_regime["image"].min() >= 0
    assert (by_regime["sparse"] == 0).mean() == pytest.approx(0.9, abs=0.02)
    assert by_regime["negative"].max() <= 0
    assert (by_regime["ones"] == 1).all()
    assert (by_regime["zeros"] == 0).all()
    assert 0 < np.abs(by_regime["tiny"]).max() < 1e-2
    assert 1e3 < np.abs(by_regime["large"]).max() < 1e4
    special = by_regime["special"]
    assert (np.signbit(special) & (special == 0)).any()
    assert ((special != 0) & (np.abs(special) < np.finfo(np.float32).tiny)).any()
    assert all(np.isfinite(v).all() for v in by_regime.values())
    assert list(by_regime)[-1] == "special"


def test_nan_and_infinity_come_only_on_request(model: Maker) -> None:
    graph = "g (float[100,10] x) => (float[100,10] y) { y = Relu(x) }"
    last = samples(model(graph), nonfinite=True, limit=11)[-1]
    assert last.id == "random-10-nonfinite"
    assert np.isnan(last.feeds["x"]).any()
    assert np.isinf(last.feeds["x"]).any()


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "double", "float8e4m3fn", "float8e5m2", "complex64"]
)
def test_other_floats_stay_finite(model: Maker, dtype: str) -> None:
    graph = f"g ({dtype}[8,8] x) => ({dtype}[8,8] y) {{ y = Identity(x) }}"
    for sample in samples(model(graph)):
        expected = onnx.helper.tensor_dtype_to_np_dtype(
            onnx.TensorProto.DataType.Value(dtype.upper())
        )
        assert sample.feeds["x"].dtype == expected
        wide = sample.feeds["x"].astype(np.complex64 if dtype == "complex64" else np.float64)
        assert np.isfinite(wide).all()


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [("uint8", 0, 255), ("int8", -128, 127), ("int4", -8, 7)]
)
def test_small_integers_use_their_whole_range(
    model: Maker, dtype: str, low: int, high: int
) -> None:
    graph = f"g ({dtype}[50,50] x) => ({dtype}[50,50] y) {{ y = Identity(x) }}"
    first = samples(model(graph, opset=21), limit=1)[0].feeds["x"].astype(np.int64)
    assert (first.min(), first.max()) == (low, high)


def test_indices_stay_within_their_table_behind_casts_and_shifts(model: Maker) -> None:
    graph = """g (int32[N,S] ids) => (float[N,S,k] y)
        <float[6,1] table = {0, 1, 2, 3, 4, 5}, int64 one = {1}>
        { wide = Cast<to = 7>(ids)  next = Add(wide, one)  y = Gather(table, next) }"""
    made = running(model(graph))
    values = np.concatenate([s.feeds["ids"].ravel() for s in made])
    assert (values.min(), values.max()) == (0, 4)
    assert len(shapes(made, "ids")) > 3


def test_the_smallest_of_several_tables_bounds_an_index(model: Maker) -> None:
    graph = """g (int64[4] i, bool c) => (float[k] y)
        <float[9] long = {0,1,2,3,4,5,6,7,8}, float[3] short = {0,1,2}>
        { y = If (c) <then_branch = t () => (float[a] u) { u = Gather(long, i) },
                      else_branch = e () => (float[b] v) { v = Gather(short, i) }> }"""
    made = running(model(graph))
    assert max(s.feeds["i"].max() for s in made) == 2
    assert {bool(s.feeds["c"]) for s in made} == {True, False}


def test_indices_are_found_through_functions(model: Maker) -> None:
    graph = """g (int64[5] i) => (float[5,1] y) <float[3,1] table = {1, 2, 3}>
        { y = local.look (table, i) }
        <domain: "local", opset_import: ["" : 18]>
        look (t, n) => (r) { r = Gather(t, n) }"""
    values = np.concatenate([s.feeds["i"] for s in running(model(graph, domains=', "local" : 1'))])
    assert set(values) == {0, 1, 2}


def test_one_hot_indices_stay_below_the_depth(model: Maker) -> None:
    graph = """g (int64[50] i) => (float[50,4] y)
        <int64 depth = {4}, float[2] values = {0, 1}> { y = OneHot(i, depth, values) }"""
    made = running(model(graph))
    assert {int(v) for s in made for v in s.feeds["i"]} == {0, 1, 2, 3}


def test_a_mask_is_ones_at_least_half_then_zeros(model: Maker) -> None:
    graph = """g (int64[B,S] attention) => (float[B,S] y) <float one = {1}, float big = {-1e9}>
        { m = Cast<to = 1>(attention)  n = Sub(one, m)  y = Mul(n, big) }"""
    made = running(model(graph))
    for sample in made:
        rows = sample.feeds["attention"]
        assert (np.sort(rows, axis=1)[:, ::-1] == rows).all()
        assert (rows.sum(axis=1) * 2 >= rows.shape[1]).all()
    assert any((s.feeds["attention"] == 0).any() for s in made)


def test_reshape_targets_fit_what_is_reshaped(model: Maker) -> None:
    graph = "g (float[2,6] x, int64[3] s) => (float[a,b,c] y) { y = Reshape(x, s) }"
    running(model(graph))


def test_sizes_of_a_split_and_a_resize_fit(model: Maker) -> None:
    graph = """g (float[1,1,7,4] x, int64[2] parts, int64[4] sizes)
            => (float[1,1,a,4] p, float[1,1,b,4] q, float[c,d,e,f] r)
        { p, q = Split<axis = 2>(x, parts)  r = Resize(x, , , sizes) }"""
    first = running(model(graph))[0].feeds
    assert first["parts"].tolist() == [3, 4]
    assert first["sizes"].tolist() == [1, 1, 14, 8]


def test_a_guessed_range_holds_at_both_ends(model: Maker) -> None:
    graph = """g (float[2,T] x, int64[1] i) => (float[2,1] y)
        { r = Relu(x)  y = Gather<axis = 1>(r, i) }"""
    assert all(s.feeds["i"][0] < s.feeds["x"].shape[1] for s in running(model(graph)))


def test_shapes_counts_and_axes_are_small(model: Maker) -> None:
    graph = """g (float[3,8] x, int64[1] k, int64[2] dims, int64[2] reps, int64 stop)
            => (float[3,j] top, float[a,b] filled, float[c,d] tiled, int64[n] steps)
        <int64 zero = {0}, int64 one = {1}>
        { top, i = TopK(x, k)  filled = ConstantOfShape(dims)  tiled = Tile(x, reps)
          steps = Range(zero, stop, one) }"""
    running(model(graph))


def test_a_loop_runs_a_few_times(model: Maker) -> None:
    graph = """g (int64 trips, float[2] x) => (float[2] y) <bool go = {1}>
        { y = Loop (trips, go, x) <body = b (int64 i, bool c, float[2] a) => (bool d, float[2] e)
            { d = Identity(c)  e = Add(a, a) }> }"""
    assert {int(s.feeds["trips"]) for s in running(model(graph))} <= {1, 2, 3, 4}


def test_a_divisor_is_never_zero(model: Maker) -> None:
    graph = "g (int32[4] a, int32[4] b) => (int32[4] c) { c = Div(a, b) }"
    made = running(model(graph))
    assert all((s.feeds["b"] != 0).all() for s in made)
    assert any((s.feeds["a"] < 0).any() for s in made)


def test_both_sides_of_a_comparison_are_taken(model: Maker) -> None:
    graph = """g (float[2] x, int64 rate) => (float[2] y) <int64 k = {16000}>
        { c = Equal(rate, k)
          y = If (c) <then_branch = t () => (float[2] u) { u = Abs(x) },
                      else_branch = e () => (float[2] v) { v = Neg(x) }> }"""
    assert {int(s.feeds["rate"]) for s in running(model(graph))} == {16000, 8000}


def test_a_branch_that_cannot_run_is_not_taken(model: Maker) -> None:
    graph = """g (float[6] x, bool c) => (float[k] y) <int64[1] s = {4}, int64[1] r = {6}>
        { y = If (c) <then_branch = t () => (float[a] u) { u = Reshape(x, s) },
                      else_branch = e () => (float[b] v) { v = Reshape(x, r) }> }"""
    assert {bool(s.feeds["c"]) for s in running(model(graph))} == {False}


def test_a_symbol_has_one_value_within_a_sample_and_several_across(model: Maker) -> None:
    graph = "g (float[N,T] a, float[N,T] b) => (float[N,T] c) { c = Add(a, b) }"
    made = running(model(graph))
    assert all(s.feeds["a"].shape == s.feeds["b"].shape for s in made)
    assert len(shapes(made, "a")) >= 4
    assert made[0].id == "random-0-normal-N1-T16"


def test_symbols_that_must_be_equal_become_equal(model: Maker) -> None:
    graph = "g (float[2,P] a, float[2,Q] b) => (float[2,R] c) { c = Add(a, b) }"
    made = running(model(graph))
    assert any(s.feeds["a"].shape[1] > 1 for s in made)


def test_a_size_that_the_weights_demand_is_found(model: Maker) -> None:
    graph = """g (float[N,F] x) => (float[N,1] y) <float[3,1] w = {1, 2, 3}>
        { y = MatMul(x, w) }"""
    made = running(model(graph))
    assert {s.feeds["x"].shape[1] for s in made} == {3}
    assert {s.feeds["x"].shape[0] for s in made} > {1, 2}


def test_heights_and_widths_are_multiples_of_32(model: Maker) -> None:
    graph = "g (float[N,3,H,W] x) => (float[N,3,h,w] y) { y = MaxPool<kernel_shape = [2, 2]>(x) }"
    made = running(model(graph))
    assert all(n % 32 == 0 for s in made for n in s.feeds["x"].shape[2:])
    assert any(s.feeds["x"].shape[2] != s.feeds["x"].shape[3] for s in made)


def test_large_inputs_do_not_grow(model: Maker) -> None:
    graph = "g (float[N,3,720,720] x) => (float[N,3,720,720] y) { y = Relu(x) }"
    assert shapes(samples(model(graph), limit=3), "x") == {(1, 3, 720, 720)}


def test_dims_pins_a_symbol(model: Maker) -> None:
    graph = "g (float[N,T] a) => (float[N,T] c) { c = Relu(a) }"
    assert {s.feeds["a"].shape[1] for s in running(model(graph), dims={"T": 11})} == {11}
    with pytest.raises(UsageError, match=r"dims names \['Q'\].*N, T"):
        samples(model(graph), dims={"Q": 1})


def test_a_sum_of_symbols_follows_its_terms(model: Maker) -> None:
    graph = "g (float[B,past] a, float[B,now] b, float[B,total] c) => (float[B,t] y) \
        { j = Concat<axis = 1>(a, b)  y = Add(j, c) }"
    made = model(graph)
    proto = onnx.load(made.path)
    proto.graph.input[2].type.tensor_type.shape.dim[1].dim_param = "past + now"
    onnx.save(proto, made.path)
    running(open_model(made.path, "", made.path.parent))


def test_an_input_of_unknown_rank_gets_a_shape_that_runs(model: Maker) -> None:
    graph = "g (float[] x) => (float[a,b] y) { y = MatMul(x, x) }"
    made = model(graph)
    proto = onnx.load(made.path)
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(proto, made.path)
    running(open_model(made.path, "", made.path.parent))


def test_categories_of_a_string_input_come_from_the_graph(model: Maker) -> None:
    graph = """g (string[N,1] colour) => (float[N,2] y)
        { y = ai.onnx.ml.OneHotEncoder<cats_strings = ["red", "blue"], zeros = 0>(colour) }"""
    made = running(model(graph, domains=', "ai.onnx.ml" : 3'))
    assert {v for s in made for v in s.feeds["colour"].ravel()} == {"red", "blue"}
    assert made[0].feeds["colour"].dtype == object


def test_initializers_among_the_inputs_are_not_fed(model: Maker) -> None:
    made = model(
        "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"
    )
    assert set(samples(made)[0].feeds) == {"x"}


def test_a_model_without_inputs_has_one_sample(model: Maker) -> None:
    made = samples(model("g () => (float[2] y) <float[2] w = {1, 2}> { y = Neg(w) }"))
    assert [s.feeds for s in made] == [{}]


def test_a_model_that_nothing_suits_is_refused_with_its_error(model: Maker) -> None:
    calls: list[int] = []

    def refuse(batch: Sequence[Feeds]) -> list[str | None]:
        calls.append(len(batch))
        return ["node 'n1' wants the moon"] * len(batch)

    made = model("g (float[N,2] x) => (float[N,2] y) { y = Relu(x) }")
    with pytest.raises(
        InputError,
        match=r"'x' float\[N,2\].*last error: node 'n1' wants the moon; .*--dataset files:PATH",
    ):
        samples(made, refuse)
    assert sum(calls) <= 40


def test_a_sequence_input_is_refused_by_name(model: Maker) -> None:
    graph = "g (seq(float[2]) s, int64 i) => (float[2] y) { y = SequenceAt(s, i) }"
    with pytest.raises(InputError, match=r"input 's' is of type 'sequence', expected a tensor"):
        samples(model(graph))


def test_an_argument_is_refused(model: Maker) -> None:
    with pytest.raises(UsageError, match="argument 'x' was given, expected none"):
        RandomDataset().samples(model(RELU), "x", RandomOptions(), seed=0, limit=None, probe=accept)


def test_the_hook_gives_the_dataset() -> None:
    assert [d.name for d in optvet_datasets()] == ["random"]


@pytest.mark.skipif(not (SHARED / "models").is_dir(), reason="no shared models beside this tree")
@pytest.mark.parametrize(
    "name",
    [
        *("tiny-bert-sentiment", "silero-vad-v5", "nnsplit-en", "extension-recommender"),
        *("mixed-pipeline-wine", "tfidf-logreg-sentiment", "go1-policy-functions", "magika-v3-3"),
    ],
)
def test_real_models_run(name: str, tmp_path: Path) -> None:
    path = SHARED / "models" / f"{name}.onnx"
    running(open_model(path, str(path), tmp_path))
