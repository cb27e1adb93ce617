"""How large a difference an excuse covers, behind each operator that decides.

Each model has sums of which some are equal but for rounding, so that perturbed runs of ONNX Runtime
take its decision otherwise for some elements.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.preload import TRIALS

from optvet.engine.discovery import Plugins
from optvet.engine.judge.judgement import Judgement
from optvet.engine.judge.known_noise import Noise
from optvet.engine.judge.outputs import judge
from optvet.engine.models.opening import open_model
from optvet.engine.vet.session import open_session
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.trials import noise_floor
from optvet.spec.request import VetRequest
from optvet.spec.types import Sample
from optvet.testing import Planted

ROWS, TIES, LOSS = 96, 24, 0.01
_COLUMN = np.random.default_rng(0).normal(size=64).astype(np.float32)


def _numbers(values: np.ndarray) -> str:
    return "{" + ", ".join(f"{v:.9g}" for v in values.ravel()) + "}"


SUMS = f"""
<ir_version: 8, opset_import: ["" : 18]>
g (float[{ROWS},64] x) => (%s y)
<float[64,1] w = {_numbers(_COLUMN)}, float[64,1] v = {_numbers(_COLUMN[::-1])},
 float one = {{1.0}}, float half = {{0.5}}, float zero = {{0.0}}, float[1] step = {{0.1}},
 float[3,4] table = {_numbers(np.linspace(-3, 7, 12))}, int64[1] first = {{0}}, int64 two = {{2}},
 int64[1] last = {{1}}, int64[2] flat = {{1, -1}}, float[2] values = {{0.0, 3.0}},
 int64[3] boxes = {{1, -1, 4}}, int64[3] scored = {{1, 1, -1}}, int64 many = {{50}},
 float[1] threshold = {{0.0}}, float[1] overlap = {{0.99}}>
{{
    a = MatMul(x, w)
    b = MatMul(x, v)
    t = Sub(a, b)
    s = Concat<axis: int = 1>(a, b)
    %s
}}
"""
"""``a`` and ``b`` are equal but for rounding in the first rows; ``t`` is 0 there but for that."""
FLOATS = {
    "where": "c = Greater(a, b) p = Exp(a) y = Where(c, p, b)",
    "sign": "y = Sign(t)",
    "floor": "u = Add(t, one) y = Floor(u)",
    "ceil": "y = Ceil(t)",
    "round": "u = Add(t, half) y = Round(u)",
    "mod": "u = Add(t, one) y = Mod<fmod: int = 1>(u, one)",
    "cast": "u = Add(t, one) i = Cast<to: int = 7>(u) f = Cast<to: int = 1>(i) y = Mul(f, a)",
    "one_hot": "i = ArgMax<axis: int = 1, keepdims: int = 0>(s) y = OneHot(i, two, values)",
    "gather": "i = ArgMax<axis: int = 1, keepdims: int = 0>(s) y = Gather(table, i)",
    "top_k": "p, i = TopK(s, last) f = Cast<to: int = 1>(i) y = Add(f, p)",
    "quantize": "u = Add(t, half) q = QuantizeLinear(u, one) d = DequantizeLinear(q, one) "
    "y = Mul(d, b)",
    "shrink": "y = Shrink<lambd: float = 0.0, bias: float = -2.0>(t)",
    "relu": "c = ThresholdedRelu<alpha: float = 0.0>(t) y = Sign(c)",
}
"""Models whose output is of floats, as many as there are rows."""
DISCRETE = {
    "greater": ("bool", "y = Greater(a, b)"),
    "less": ("bool", "y = Less(a, b)"),
    "equal": ("bool", "y = Equal(a, b)"),
    "truth": ("bool", "y = Cast<to: int = 9>(t)"),
    "arg_max": ("int64", "y = ArgMax<axis: int = 1>(s)"),
    "top_k_index": ("int64", "p, y = TopK(s, last)"),
    "cast_int": ("int64", "u = Add(t, one) y = Cast<to: int = 7>(u)"),
    "codes": ("int8", "u = Add(t, half) z = Cast<to: int = 3>(zero) y = QuantizeLinear(u, one, z)"),
}
CONTROL = {
    "if": """e = Slice(t, first, last) c0 = Squeeze(e) c = Greater(c0, zero)
    y = If(c) <then_branch = yes () => (float[N,1] p) { p = Exp(a) },
               else_branch = no () => (float[N,1] q) { q = Neg(b) }>""",
    "loop": """e = Slice(t, first, last) c0 = Squeeze(e) c = Greater(c0, zero)
    y = Loop(two, c, a) <body = body (int64 n, bool go, float[N,1] was)
        => (bool on, float[N,1] now) { on = Identity(go) now = Mul(was, was) }>""",
}
SHAPES = {
    "non_zero": ("int64[?,?]", "c = Greater(a, b) y = NonZero(c)"),
    "compress": (
        "float[?,1]",
        "g = Greater(a, b) c = Squeeze(g, last) y = Compress<axis: int = 0>(a, c)",
    ),
    "unique": ("float[?]", "u = Add(t, one) f = Floor(u) m = Mul(f, a) y = Unique(m)"),
    "boxes": (
        "int64[?,3]",
        "m = Concat<axis: int = 1>(a, a, b, b) n = Reshape(m, boxes) "
        "k = Reshape(t, scored) y = NonMaxSuppression(n, k, many, overlap, threshold)",
    ),
}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=1, limits=Limits(60, 1 << 30), preload=(*TRIALS, __name__)) as shared:
        yield shared


@lru_cache
def feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(ROWS, 64)).astype(np.float32)
    x[:TIES, 32:] = x[:TIES, 31::-1]
    return {"x": x}


def measured(
    kind: str, text: str, sandbox: Sandbox, folder: Path
) -> tuple[np.ndarray, Noise, list[np.ndarray]]:
    """The output of a model, its noise as before a finding, and what further runs give."""
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(SUMS % (kind, text.replace("[N,", f"[{ROWS},"))), path)
    plugins = Plugins().register("optimizer", Planted(("drop_relu",)))
    request = VetRequest(model="model", optimizer="planted", cache_dir=folder / "cache")
    model, sample = open_model(path, str(path), folder), Sample("s", feeds())
    with open_session(model, request, plugins, sandbox=sandbox) as session:
        runner = session.runner
        reference = runner.reference([sample]).runs["s"]
        assert isinstance(reference, Mapping)
        noise = noise_floor.measure(runner, [sample])["s"]
        stages = noise_floor.refinements(runner, sample, noise, other_kernels=False, missing="")
        noise = list(stages)[-1]
        loose = noise_floor.loosened(runner, sample, LOSS)
        noise = replace(noise, loosened=loose)
        more, _ = noise_floor._jitter(runner, [sample], range(200, 210), 1.0)
    return reference["y"], noise, [run["y"] for run in more["s"]]


def of(ref: np.ndarray, cand: np.ndarray, noise: Noise) -> Judgement:
    (judgement,) = judge({"y": ref}, {"y": cand}, noise)
    return judgement


def sizes(ref: np.ndarray, noise: Noise) -> Iterator[float]:
    """From far inside the noise to 1e4 times what it ever did."""
    moved = max(float(np.max(np.abs(j["y"] - ref), initial=0.0)) for j in noise.jitters)
    yield from moved * np.logspace(-6, 4, 21)


def places(ref: np.ndarray, noise: Noise) -> Iterator[np.ndarray]:
    """One element, one that flips, one that does not, a few, all."""
    flips = np.any([j["y"] != ref for j in noise.jitters], axis=0).ravel()
    order = np.argsort(~flips, kind="stable")
    for chosen in (order[:1], order[-1:], order[: flips.sum() // 4], np.arange(ref.size)):
        mask = np.zeros(ref.size, bool)
        mask[chosen] = True
        yield mask.reshape(ref.shape)


FLOAT_MODELS = [*((n, f"float[{ROWS},?]", t) for n, t in (FLOATS | CONTROL).items())]


@pytest.mark.parametrize(("name", "kind", "text"), FLOAT_MODELS, ids=[m[0] for m in FLOAT_MODELS])
def test_a_difference_behind_a_decision_is_excused_as_far_as_is_told(
    name: str, kind: str, text: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    ref, noise, more = measured("float[?,?]", text, sandbox, tmp_path)
    assert "y" in noise.discontinuous
    assert any(np.any(np.abs(j["y"] - ref) > 0.01) for j in noise.jitters), "nothing flips"
    for run in more:
        assert of(ref, run, noise).call != "fault"
    calls = set()
    for mask in places(ref, noise):
        worst = "same"
        for size in sizes(ref, noise):
            cand = np.where(mask, ref + np.float32(size), ref).astype(np.float32)
            found = of(ref, cand, noise)
            calls.add(found.call)
            if found.call == "sensitivity":
                assert found.error is not None
                assert found.error <= (found.excused or 10 * (found.noise or 0.0))
            worst = found.call
        assert worst == "fault", "1e4 times what it ever did"
    assert "fault" in calls


@pytest.mark.parametrize("name", DISCRETE)
def test_a_discrete_output_flips_no_oftener_and_no_further_than_runs_show(
    name: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    kind, text = DISCRETE[name]
    ref, noise, more = measured(f"{kind}[?,?]", text, sandbox, tmp_path)
    assert any(np.any(j["y"] != ref) for j in noise.jitters), "nothing flips"
    for run in more:
        assert of(ref, run, noise).call != "fault"
    some, rest, few, every = places(ref, noise)
    other = ~ref if ref.dtype == bool else ref + np.ones((), ref.dtype)
    for mask in (some, few):
        assert of(ref, np.where(mask, other, ref), noise).call == "sensitivity"
    assert of(ref, np.where(every, other, ref), noise).call == "fault"
    if ref.dtype == bool:
        return
    for size in (3, 30, 120) if ref.dtype == np.int8 else (3, 30, 10**4, 10**9):
        for mask in (some, rest, few, every):
            cand = np.where(mask, ref + np.array(size, ref.dtype), ref).astype(ref.dtype)
            assert of(ref, cand, noise).call == "fault"


@pytest.mark.parametrize("name", DISCRETE)
def test_a_discrete_output_behind_a_lossy_pass_flips_as_where_all_moves_by_its_loss(
    name: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    kind, text = DISCRETE[name]
    ref, noise, more = measured(f"{kind}[?,?]", text, sandbox, tmp_path)
    lossy = replace(noise, tolerance=LOSS)
    assert noise.loosened
    for run in (*more, noise.loosened[0]["y"]):
        assert of(ref, run, lossy).call in ("same", "sensitivity")
    other = ~ref if ref.dtype == bool else ref + np.array(3, ref.dtype)
    found = of(ref, other, lossy)
    assert found.call == "fault"
    assert "with all that decides moved by the declared 0.01 up to " in found.detail
    assert of(ref, other, replace(lossy, loosened=None)).call == "unsure"
    if ref.dtype != bool:
        far = np.where(np.arange(ref.size).reshape(ref.shape) < 2, 120, ref).astype(ref.dtype)
        assert of(ref, far, lossy).call == "fault"


def test_one_label_behind_a_lossy_pass_is_among_those_that_its_loss_may_give() -> None:
    runs = [{"y": np.array([label])} for label in (6, 6, 4, 8)]
    lossy = Noise(tolerance=0.1, loosened=runs, discontinuous=frozenset("y"))
    assert of(np.array([6]), np.array([0]), lossy).call == "sensitivity"
    assert of(np.array([6]), np.array([1000]), lossy).call == "fault"
    firm = replace(lossy, loosened=runs[:2])
    assert of(np.array([6]), np.array([4]), firm).call == "fault"


@pytest.mark.parametrize("name", SHAPES)
def test_an_output_of_another_shape_has_the_rows_that_runs_have(
    name: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    kind, text = SHAPES[name]
    ref, noise, more = measured(kind, text, sandbox, tmp_path)
    axis = 1 if name == "non_zero" else 0
    assert len({j["y"].shape for j in noise.jitters}) > 1, "no row more or less"
    for run in more:
        assert of(ref, run, noise).call != "fault"
    runs = (*more, *(j["y"] for j in noise.jitters))
    run = next(run for run in runs if run.shape != ref.shape)
    for size in (10, 10**3, 10**6):
        moved = (run + np.array(size, run.dtype)).astype(run.dtype)
        assert of(ref, moved, noise).call == "fault"
    assert of(ref, np.delete(run, slice(2, None), axis), noise).call == "fault"
