"""Conversions that are wrong in one known place: attributes, operators, layouts."""

from __future__ import annotations

from conversions.written import (
    GRU,
    LSTM,
    Source,
    fault,
    function,
    gru_weights,
    lstm_weights,
    module_of,
    planted,
    seeded,
    source_of,
)

__all__ = ["source_of"]


# Hyperparameters of layers -----------------------------------------------------------------------


@fault("AveragePool.count_include_pad", "hyperparameters")
def average_pool_without_padding() -> Source:
    torch, f = seeded()
    module = module_of(
        lambda m, x: m.c(f.avg_pool2d(x, 3, 2, padding=1)).relu(), c=torch.nn.Conv2d(3, 4, 1)
    )
    text = (
        "p = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x) "
        "c = Conv(p, {c.weight}, {c.bias}) y = Relu(c)"
    )
    return planted(module, [torch.randn(2, 3, 9, 9)], text)


@fault("AveragePool divisor_override avg_pool2d", "hyperparameters")
def average_pool_divisor() -> Source:
    torch, f = seeded()
    return function(
        lambda x: f.avg_pool2d(x, 2, 2, divisor_override=3) + 1,
        [torch.randn(1, 3, 6, 6)],
        "p = AveragePool<kernel_shape=[2,2], strides=[2,2]>(x) one = Constant<value_float=1.0>() "
        "y = Add(p, one)",
    )


@fault("AveragePool.ceil_mode avg_pool2d", "shape", "interface-change")
def average_pool_ceiling() -> Source:
    torch, f = seeded()
    return function(
        lambda x: f.avg_pool2d(x, 3, 2, ceil_mode=True),
        [torch.randn(1, 2, 8, 8)],
        "y = AveragePool<kernel_shape=[3,3], strides=[2,2]>(x)",
    )


@fault("GELU approximate gelu", "hyperparameters")
def gelu_tanh_in_pieces() -> Source:
    torch, f = seeded()
    module = module_of(
        lambda m, x: m.b(f.gelu(m.a(x))), a=torch.nn.Linear(6, 8), b=torch.nn.Linear(8, 3)
    )
    text = (
        "a = Gemm<transB=1>(x, {a.weight}, {a.bias}) k = Constant<value_float=0.044715>() "
        "t = Constant<value_float=3.0>() p = Pow(a, t) q = Mul(p, k) s = Add(a, q) "
        "r = Constant<value_float=0.7978846>() u = Mul(s, r) v = Tanh(u) "
        "one = Constant<value_float=1.0>() w = Add(v, one) g = Mul(a, w) "
        "h = Constant<value_float=0.5>() e = Mul(g, h) y = Gemm<transB=1>(e, {b.weight}, {b.bias})"
    )
    return planted(module, [torch.randn(5, 6)], text)


@fault("HardSigmoid.alpha hardswish", "hyperparameters")
def hard_swish_default_alpha() -> Source:
    torch, f = seeded()
    return function(
        lambda x: f.hardswish(x) * 2,
        [torch.randn(4, 7) * 3],
        "h = HardSigmoid(x) m = Mul(x, h) t = Constant<value_float=2.0>() y = Mul(m, t)",
    )


@fault(
    "Resize.nearest_mode Resize.coordinate_transformation_mode upsample_nearest2d",
    "hyperparameters",
)
def resize_nearest_half_pixel() -> Source:
    torch, f = seeded()
    module = module_of(
        lambda m, x: f.interpolate(m.c(x), size=(7, 5), mode="nearest"), c=torch.nn.Conv2d(2, 3, 1)
    )
    text = (
        "c = Conv(x, {c.weight}, {c.bias}) s = Constant<value_ints=[1,3,7,5]>() "
        'y = Resize<mode="nearest">(c, , , s)'
    )
    return planted(module, [torch.randn(1, 2, 4, 4)], text)


@fault("Resize.cubic_coeff_a upsample_bicubic2d", "hyperparameters")
def resize_cubic_coefficient() -> Source:
    torch, f = seeded()
    return function(
        lambda x: f.interpolate(x, size=(9, 7), mode="bicubic", align_corners=False),
        [torch.randn(1, 2, 5, 5)],
        "s = Constant<value_ints=[1,2,9,7]>() "
        'y = Resize<mode="cubic", cubic_coeff_a=-0.5, '
        'coordinate_transformation_mode="pytorch_half_pixel">(x, , , s)',
    )


@fault("Conv.auto_pad Conv.pads convolution", "hyperparameters")
def padding_same_lower() -> Source:
    torch, f = seeded()
    module = module_of(
        lambda m, x: m.c(f.pad(x, (0, 1, 0, 1))).relu(), c=torch.nn.Conv2d(2, 4, 3, stride=2)
    )
    text = (
        'c = Conv<auto_pad="SAME_LOWER", strides=[2,2], kernel_shape=[3,3]>'
        "(x, {c.weight}, {c.bias}) y = Relu(c)"
    )
    return planted(module, [torch.randn(1, 2, 8, 8)], text)


@fault("LayerNormalization.epsilon native_layer_norm", "hyperparameters")
def layer_norm_epsilon() -> Source:
    torch, _ = seeded()
    module = module_of(
        lambda m, x: m.b(m.n(x)), n=torch.nn.LayerNorm(6, eps=0.1), b=torch.nn.Linear(6, 2)
    )
    text = (
        "n = LayerNormalization<axis=-1>(x, {n.weight}, {n.bias}) "
        "y = Gemm<transB=1>(n, {b.weight}, {b.bias})"
    )
    return planted(module, [torch.randn(4, 6)], text)


@fault("Conv.dilations convolution", "hyperparameters")
def dilation_lost() -> Source:
    torch, _ = seeded()
    module = module_of(
        lambda m, x: m.c(x).sigmoid(), c=torch.nn.Conv2d(2, 3, 3, padding=2, dilation=2)
    )
    text = "c = Conv<pads=[1,1,1,1]>(x, {c.weight}, {c.bias}) y = Sigmoid(c)"
    return planted(module, [torch.randn(1, 2, 7, 7)], text)


@fault("ConvTranspose.output_padding convolution", "shape", "interface-change")
def output_padding_lost() -> Source:
    torch, _ = seeded()
    layer = torch.nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1)
    module = module_of(lambda m, x: m.c(x), c=layer)
    text = "y = ConvTranspose<strides=[2,2], pads=[1,1,1,1]>(x, {c.weight}, {c.bias})"
    return planted(module, [torch.randn(1, 2, 5, 5)], text)


@fault("DepthToSpace.mode pixel_shuffle", "hyperparameters")
def depth_to_space_order() -> Source:
    torch, f = seeded()
    module = module_of(lambda m, x: f.pixel_shuffle(m.c(x), 2), c=torch.nn.Conv2d(3, 8, 1))
    text = 'c = Conv(x, {c.weight}, {c.bias}) y = DepthToSpace<blocksize=2, mode="DCR">(c)'
    return planted(module, [torch.randn(1, 3, 4, 4)], text)


@fault("GRU.linear_before_reset gru", "hyperparameters")
def gru_reset_before() -> Source:
    torch, _ = seeded()
    module = module_of(lambda m, x: m.g(x)[0], g=torch.nn.GRU(4, 5))
    return planted(
        module, [torch.randn(6, 2, 4)], GRU.replace("RESET", "0"), weights=gru_weights(module)
    )


@fault("LSTM W R weight_ih_l0 weight_hh_l0", "parameters")
def lstm_gates_not_reordered() -> Source:
    torch, _ = seeded()
    module = module_of(lambda m, x: m.r(x)[0], r=torch.nn.LSTM(4, 3))
    return planted(module, [torch.randn(5, 2, 4)], LSTM, weights=lstm_weights(module, "ifgo"))


# What operators mean -----------------------------------------------------------------------------


@fault("xlogy", "semantics")
def xlogy_of_zero() -> Source:
    torch, _ = seeded()
    x, y = torch.rand(3, 4), torch.rand(3, 4)
    x[0, 0] = y[0, 0] = 0
    return function(
        lambda x, y: torch.xlogy(x, y) + 1,
        [x, y],
        ("l = Log(y0) p = Mul(x, l) one = Constant<value_float=1.0>() y = Add(p, one)"),
    )


@fault("round Floor", "semantics")
def round_half_up() -> Source:
    torch, _ = seeded()
    x = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, 3.2, -4.7, 8.5]])
    return function(
        lambda x: torch.round(x) * 2,
        [x],
        (
            "h = Constant<value_float=0.5>() a = Add(x, h) f = Floor(a) "
            "t = Constant<value_float=2.0>() y = Mul(f, t)"
        ),
    )


@fault("floor_divide div Div", "semantics")
def floor_division_truncates() -> Source:
    torch, _ = seeded()
    return function(
        lambda x, y: torch.div(x, y, rounding_mode="floor") + x,
        [torch.tensor([7, -7, 7, -7, 6]), torch.tensor([2, 2, -2, -2, 3])],
        "d = Div(x, y0) y = Add(d, x)",
        outputs="int64[] y",
    )


@fault("remainder Mod.fmod", "semantics")
def remainder_with_sign_of_dividend() -> Source:
    torch, _ = seeded()
    return function(
        lambda x: torch.remainder(x, 3.0) * 2,
        [torch.tensor([7.5, -7.5, 4.0, -1.25])],
        "t = Constant<value_float=3.0>() m = Mod<fmod=1>(x, t) "
        "d = Constant<value_float=2.0>() y = Mul(m, d)",
    )


@fault("clamp Clip", "type")
def clamp_of_large_integers() -> Source:
    torch, _ = seeded()
    return function(
        lambda x: torch.clamp(x, min=-5),
        [torch.tensor([2**40 + 1, -7, 3, 2**33 + 5, -(2**35)])],
        "f = Cast<to=1>(x) l = Constant<value_float=-5.0>() c = Clip(f, l) y = Cast<to=7>(c)",
        outputs="int64[] y",
    )


@fault("ReduceSum.noop_with_empty_axes sum", "semantics", "interface-change")
def sum_of_all_axes() -> Source:
    torch, _ = seeded()
    return function(
        lambda x: torch.sum(x.exp(), dim=[0, 1], keepdim=True),
        [torch.randn(3, 4)],
        "e = Exp(x) a = Constant<value = int64[0] {}>() "
        "y = ReduceSum<noop_with_empty_axes=1, keepdims=1>(e, a)",
    )


@fault("Softmax.axis _softmax", "hyperparameters")
def softmax_of_old_operator_set() -> Source:
    torch, _ = seeded()
    return function(
        lambda x: torch.softmax(x * 2, -1),
        [torch.randn(2, 3, 4)],
        "t = Constant<value_float=2.0>() d = Mul(x, t) y = Softmax(d)",
        opset=12,
    )


@fault("logsumexp ReduceSum Exp", "semantics")
def log_sum_exp_overflows() -> Source:
    torch, _ = seeded()
    return function(
        lambda x: torch.logsumexp(x, 1),
        [torch.randn(3, 5) * 40],
        "e = Exp(x) a = Constant<value_ints=[1]>() s = ReduceSum<keepdims=0>(e, a) y = Log(s)",
        more=[(torch.randn(3, 5) * 400,)],
    )


@fault("var", "semantics")
def variance_of_population() -> Source:
    torch, _ = seeded()
    return function(
        lambda x: torch.var(x, 1) + 1,
        [torch.randn(3, 6)],
        "a = Constant<value_ints=[1]>() m = ReduceMean(x, a) d = Sub(x, m) q = Mul(d, d) "
        "v = ReduceMean<keepdims=0>(q, a) one = Constant<value_float=1.0>() y = Add(v, one)",
    )


@fault("scaled_dot_product_attention bmm matmul Softmax", "layer-graph")
def attention_without_scale() -> Source:
    torch, f = seeded()
    return function(
        f.scaled_dot_product_attention,
        [torch.randn(1, 2, 5, 4) for _ in range(3)],
        "t = Transpose<perm=[0,1,3,2]>(y0) s = MatMul(x, t) p = Softmax<axis=-1>(s) "
        "y = MatMul(p, z0)",
    )


@fault("masked_fill Where", "layer-graph")
def mask_inverted() -> Source:
    torch, _ = seeded()
    return function(
        lambda x, mask: torch.softmax(x.masked_fill(mask, -1e4), -1),
        [torch.randn(3, 5), torch.tensor([[False, True, False, False, True]])],
        "l = Constant<value_float=-10000.0>() w = Where(y0, x, l) y = Softmax<axis=-1>(w)",
    )


@fault("cumsum CumSum.exclusive", "hyperparameters")
def cumulative_sum_exclusive() -> Source:
    torch, _ = seeded()
    return function(
        lambda x: torch.cumsum(x, 1).tanh(),
        [torch.randn(2, 5)],
        "a = Constant<value = int64 {1}>() c = CumSum<exclusive=1>(x, a) y = Tanh(c)",
    )


@fault("pad reflection_pad2d Pad.mode", "hyperparameters")
def padding_by_edges() -> Source:
    torch, f = seeded()
    return function(
        lambda x: f.pad(x, (1, 2, 1, 1), mode="reflect") * 2,
        [torch.randn(1, 2, 4, 5)],
        'p = Constant<value_ints=[0,0,1,1,0,0,1,2]>() d = Pad<mode="edge">(x, p) '
        "t = Constant<value_float=2.0>() y = Mul(d, t)",
    )


@fault("prelu PRelu weight", "parameters")
def slope_along_last_axis() -> Source:
    torch, _ = seeded()
    layer = torch.nn.PReLU(4)
    layer.weight.data = torch.tensor([0.1, 0.3, 0.5, 0.9])
    module = module_of(lambda m, x: m.p(x) + 1, p=layer)
    text = "r = PRelu(x, {p.weight}) one = Constant<value_float=1.0>() y = Add(r, one)"
    return planted(module, [torch.randn(2, 4, 4, 4)], text)


@fault("Cast round _to_copy to", "semantics")
def cast_after_rounding() -> Source:
    torch, _ = seeded()
    return function(
        lambda x: (x * 3).to(torch.int64) + 1,
        [torch.randn(4, 5) * 3],
        "t = Constant<value_float=3.0>() m = Mul(x, t) r = Round(m) c = Cast<to=7>(r) "
        "one = Constant<value_int=1>() y = Add(c, one)",
        outputs="int64[] y",
    )


@fault("gather index_select Gather", "semantics")
def negative_indices_clipped() -> Source:
    torch, _ = seeded()
    module = module_of(lambda m, i: m.table[i].exp())
    module.register_buffer("table", torch.randn(6, 3))
    text = "z = Constant<value_int=0>() c = Clip(x, z) g = Gather({table}, c) y = Exp(g)"
    return planted(module, [torch.tensor([1, -1, 3, -2, 5])], text)


# Layouts and preparation of inputs ---------------------------------------------------------------


@fault("flatten view Transpose Reshape", "layer-graph")
def flatten_in_channels_last() -> Source:
    torch, _ = seeded()
    module = module_of(
        lambda m, x: m.f(m.c(x).relu().flatten(1)),
        c=torch.nn.Conv2d(2, 3, 3),
        f=torch.nn.Linear(48, 4),
    )
    text = (
        "c = Conv(x, {c.weight}, {c.bias}) r = Relu(c) t = Transpose<perm=[0,2,3,1]>(r) "
        "v = Flatten<axis=1>(t) y = Gemm<transB=1>(v, {f.weight}, {f.bias})"
    )
    return planted(module, [torch.randn(1, 2, 6, 6)], text)


@fault("Gather convolution", "layer-graph")
def channels_reversed() -> Source:
    torch, _ = seeded()
    module = module_of(lambda m, x: m.c(x).mean((2, 3)), c=torch.nn.Conv2d(3, 4, 3))
    text = (
        "i = Constant<value_ints=[2,1,0]>() b = Gather<axis=1>(x, i) "
        "c = Conv(b, {c.weight}, {c.bias}) a = Constant<value_ints=[2,3]>() "
        "y = ReduceMean<keepdims=0>(c, a)"
    )
    return planted(module, [torch.rand(2, 3, 6, 6)], text)


@fault("sub div normalize", "layer-graph")
def normalization_lost() -> Source:
    torch, _ = seeded()
    module = module_of(
        lambda m, x: m.c((x - m.mean) / m.std).relu().mean((2, 3)), c=torch.nn.Conv2d(3, 4, 3)
    )
    module.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
    module.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))
    text = (
        "c = Conv(x, {c.weight}, {c.bias}) r = Relu(c) a = Constant<value_ints=[2,3]>() "
        "y = ReduceMean<keepdims=0>(r, a)"
    )
    return planted(module, [torch.rand(2, 3, 6, 6)], text)
