"""Conversions of what transformers and detectors consist of; half of them are right."""

from __future__ import annotations

from typing import Any

import numpy as np
from conversions.written import (
    Source,
    fault,
    function,
    module_of,
    planted,
    right,
    seeded,
    source_of,
)

__all__ = ["source_of"]

_ROTARY = (
    "{split} n = Neg(b) t = {joined} c = Mul(x, {{cosines}}) s = Mul(t, {{sines}}) y = Add(c, s)"
)
_RMS = (
    "a = Constant<value_ints=[-1]>() q = Mul(x, x) v = ReduceMean(q, a) "
    "e = Constant<value_float=0.001>() {root} d = Div(x, {divisor}) y = Mul(d, {{n.weight}})"
)


# Wrong in one place ------------------------------------------------------------------------------


@fault("rms_norm add_ Add Sqrt", "semantics")
def rms_norm_epsilon_outside() -> Source:
    text = _RMS.format(root="r = Sqrt(v) s = Add(r, e)", divisor="s")
    return _rms_norm(text)


@fault("cat Concat neg slice chunk split mul", "layer-graph")
def rotary_pairs_interleaved() -> Source:
    shape = "p = Constant<value_ints=[2,5,4,2]>() r = Reshape(x, p) "
    split = shape + "i = Constant<value_ints=[3]>() a, b = Split<axis=3, num_outputs=2>(r)"
    back = "Reshape(j, w)"
    joined = "Concat<axis=3>(n, a)"
    text = _ROTARY.format(split=split, joined=joined).replace(
        f"t = {joined}", f"j = {joined} w = Constant<value_ints=[2,5,8]>() t = {back}"
    )
    return _rotary(text)


@fault("ReduceL2.axes linalg_vector_norm normalize norm", "hyperparameters")
def normalized_along_the_last_axis() -> Source:
    return _normalized("-1")


@fault("SpaceToDepth pixel_unshuffle", "semantics")
def pixel_unshuffle_by_space_to_depth() -> Source:
    return _unshuffled("y = SpaceToDepth<blocksize=2>(x)")


@fault("TopK.largest topk", "hyperparameters")
def smallest_values_are_the_largest() -> Source:
    torch, _ = seeded()
    return function(
        lambda x: torch.topk(x, 3, -1, largest=False)[0],
        [torch.randn(4, 9)],
        "k = Constant<value_ints=[3]>() y, i = TopK<axis=-1>(x, k)",
    )


@fault("GridSample.padding_mode grid_sampler", "hyperparameters")
def grid_sample_padded_by_zeros() -> Source:
    return _sampled("y = GridSample<align_corners=0>(x, y0)")


@fault("Clip.max hardtanh relu6 Relu", "hyperparameters")
def relu_without_its_limit() -> Source:
    return _limited("r = Relu(c)")


@fault("ReduceSum ReduceMean mean", "semantics")
def masked_mean_of_all_tokens() -> Source:
    return _pooled("p = Constant<value_ints=[1]>() z = ReduceMean<keepdims=0>(w, p)")


# Right, though it looks otherwise ----------------------------------------------------------------


@right("root mean square by its parts")
def rms_norm_in_pieces() -> Source:
    return _rms_norm(_RMS.format(root="s = Add(v, e) r = Sqrt(s)", divisor="r"))


@right("rotary halves by Split and Concat")
def rotary_halves() -> Source:
    text = _ROTARY.format(
        split="a, b = Split<axis=-1, num_outputs=2>(x)", joined="Concat<axis=-1>(n, a)"
    )
    return _rotary(text)


@right("norm of a channel, bounded below")
def normalized_along_channels() -> Source:
    return _normalized("1")


@right("pixel_unshuffle by two shapes")
def pixel_unshuffle_by_transposes() -> Source:
    text = (
        "s = Constant<value_ints=[2,3,2,2,3,2]>() r = Reshape(x, s) "
        "t = Transpose<perm=[0,1,3,5,2,4]>(r) o = Constant<value_ints=[2,12,2,3]>() "
        "y = Reshape(t, o)"
    )
    return _unshuffled(text)


@right("smallest values of what is negated")
def smallest_values_by_negation() -> Source:
    torch, _ = seeded()
    return function(
        lambda x: torch.topk(x, 3, -1, largest=False)[0],
        [torch.randn(4, 9)],
        "k = Constant<value_ints=[3]>() n = Neg(x) v, i = TopK<axis=-1>(n, k) y = Neg(v)",
    )


@right("samples beyond the border")
def grid_sample_padded_by_borders() -> Source:
    return _sampled('y = GridSample<align_corners=0, padding_mode="border">(x, y0)')


@right("a limit by Min")
def relu_limited_by_min() -> Source:
    text = "f = Relu(c) s = Constant<value_float=6.0>() r = Min(f, s)"
    return _limited(text)


@right("group norm by instance norm")
def group_norm_by_instances() -> Source:
    torch, _ = seeded()
    module = module_of(lambda m, x: m.n(x), n=torch.nn.GroupNorm(2, 6))
    torch.nn.init.uniform_(module.n.weight, 0.5, 2)
    ones = {"one": np.ones(2, np.float32), "none": np.zeros(2, np.float32)}
    w = module.state_dict()
    ones |= {k: w[f"n.{n}"].numpy().reshape(6, 1, 1) for k, n in (("g", "weight"), ("h", "bias"))}
    text = (
        "s = Constant<value_ints=[3,2,-1]>() r = Reshape(x, s) "
        "i = InstanceNormalization<epsilon=0.00001>(r, {one}, {none}) "
        "o = Constant<value_ints=[3,6,4,5]>() b = Reshape(i, o) m = Mul(b, {g}) y = Add(m, {h})"
    )
    return planted(module, [torch.randn(3, 6, 4, 5)], text, weights=ones)


# What they share ---------------------------------------------------------------------------------


def _rms_norm(text: str) -> Source:
    torch, _ = seeded()
    norm = torch.nn.RMSNorm(6, eps=1e-3)
    torch.nn.init.uniform_(norm.weight, 0.5, 2)
    return planted(module_of(lambda m, x: m.n(x), n=norm), [torch.randn(4, 6) * 0.05], text)


def _rotary(text: str) -> Source:
    torch, _ = seeded()
    angles = np.arange(5)[:, None] / 100.0 ** (np.arange(4) / 4)
    angles = np.concatenate([angles, angles], -1)
    kept = {"cosines": np.cos(angles), "sines": np.sin(angles)}
    weights = {name: value.astype(np.float32) for name, value in kept.items()}
    tensors = {name: torch.tensor(value) for name, value in weights.items()}

    def rotated(x: Any) -> Any:
        first, second = x.chunk(2, -1)
        turned = torch.cat((-second, first), -1)
        return x * tensors["cosines"] + turned * tensors["sines"]

    return function(rotated, [torch.randn(2, 5, 8)], text, weights=weights)


def _normalized(axis: str) -> Source:
    torch, f = seeded()
    text = (
        f"a = Constant<value_ints=[{axis}]>() n = ReduceL2(x, a) "
        "e = Constant<value_float=0.000001>() m = Max(n, e) y = Div(x, m)"
    )
    return function(lambda x: f.normalize(x, dim=1, eps=1e-6), [torch.randn(3, 5, 5)], text)


def _unshuffled(text: str) -> Source:
    torch, f = seeded()
    return function(lambda x: f.pixel_unshuffle(x, 2), [torch.randn(2, 3, 4, 6)], text)


def _sampled(text: str) -> Source:
    torch, f = seeded()
    return function(
        lambda x, g: f.grid_sample(x, g, padding_mode="border", align_corners=False),
        [torch.randn(2, 3, 5, 6), torch.rand(2, 4, 4, 2) * 3 - 1.5],
        text,
    )


def _limited(relu: str) -> Source:
    torch, f = seeded()
    module = module_of(
        lambda m, x: m.d(f.relu6(m.c(x)).flatten(1)),
        c=torch.nn.Conv2d(2, 3, 3),
        d=torch.nn.Linear(12, 2),
    )
    text = (
        f"c = Conv(x, {{c.weight}}, {{c.bias}}) {relu} l = Flatten(r) "
        "y = Gemm<transB=1>(l, {d.weight}, {d.bias})"
    )
    return planted(module, [torch.randn(3, 2, 4, 4) * 8], text)


def _pooled(mean: str) -> Source:
    """Embeddings of tokens, of which the mask tells those that count."""
    torch, _ = seeded()
    module = module_of(
        lambda m, x, mask: m.d(
            (m.e(x) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        ),
        e=torch.nn.Embedding(11, 4),
        d=torch.nn.Linear(4, 2),
    )
    text = (
        "t = Gather({e.weight}, x) a = Constant<value_ints=[2]>() u = Unsqueeze(y0, a) "
        f"w = Mul(t, u) {mean} y = Gemm<transB=1>(z, {{d.weight}}, {{d.bias}})"
    )
    mask = (torch.arange(6) < torch.tensor([[6], [4], [2]])).float()
    return planted(module, [torch.randint(0, 11, (3, 6)), mask], text)
