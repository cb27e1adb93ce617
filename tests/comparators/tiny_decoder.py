"""A decoder of one layer with weights drawn by seed, with or without a key-value cache."""

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

VOCABULARY, HEADS, SIZE, POSITIONS = 23, 2, 4, 64

_BODY = """
    tokens = Gather(e, input_ids)
    {places}
    x = Add(tokens, places)
    q0 = MatMul(x, wq)
    k0 = MatMul(x, wk)
    v0 = MatMul(x, wv)
    q1 = Reshape(q0, split)
    k1 = Reshape(k0, split)
    v1 = Reshape(v0, split)
    q = Transpose<perm = [0, 2, 1, 3]>(q1)
    k2 = Transpose<perm = [0, 2, 1, 3]>(k1)
    v2 = Transpose<perm = [0, 2, 1, 3]>(v1)
    {cache}
    kt = Transpose<perm = [0, 1, 3, 2]>(k)
    raw = MatMul(q, kt)
    scaled = Mul(raw, half)
    new_count = Shape<start = 2, end = 3>(q)
    all_count = Shape<start = 2, end = 3>(k)
    old_count = Sub(all_count, new_count)
    old = Squeeze(old_count)
    all = Squeeze(all_count)
    to = Range(old, all, one)
    columns = Range(zero, all, one)
    rows = Unsqueeze(to, axis)
    future = Greater(columns, rows)
    causal = Where(future, never, nought)
    masked = Add(scaled, causal)
    {mask}
    weights = Softmax<axis = -1>(seen)
    mixed = MatMul(weights, v)
    turned = Transpose<perm = [0, 2, 1, 3]>(mixed)
    joined = Reshape(turned, join)
    out = MatMul(joined, wo)
    h = Add(x, out)
    n = LayerNormalization<axis = -1, epsilon = 0.00001>(h, gain)
    logits = MatMul(n, head)
"""
_CONSTANTS = """
<int64[4] split = {0, -1, 2, 4}, int64[3] join = {0, -1, 8}, float half = {0.5}, int64 one = {1},
 int64 zero = {0}, int64[1] axis = {1}, float never = {-1e9}, float nought = {0.0},
 int64[2] axes = {1, 2}>
"""
_PLACES = {
    True: "places = Gather(p, position_ids)",
    False: """n_tokens = Shape<start = 1, end = 2>(input_ids)
    last = Squeeze(n_tokens)
    numbers = Range(zero, last, one)
    places = Gather(p, numbers)""",
}
_CACHE = {
    True: """k = Concat<axis = 2>(past_key_values_0_key, k2)
    v = Concat<axis = 2>(past_key_values_0_value, v2)
    present_0_key = Identity(k)
    present_0_value = Identity(v)""",
    False: """k = Identity(k2)
    v = Identity(v2)""",
}
_MASK = {
    True: """shown = Cast<to = 9>(attention_mask)
    broad = Unsqueeze(shown, axes)
    seen = Where(broad, masked, never)""",
    False: "seen = Identity(masked)",
}
_DOTTED = {
    f"{w}_0_{kind}": f"{w}.0.{kind}"
    for w in ("past_key_values", "present")
    for kind in ("key", "value")
}


def decoder(*, cached: bool, tokens: str = "tokens", seed: int = 0) -> onnx.ModelProto:
    """The model; ``tokens`` is the size of its second axis, open or fixed."""
    cache = "float[batch,2,past,4] past_key_values_0_{kind}"
    inputs = [f"int64[batch,{tokens}] input_ids"]
    outputs = [f"float[batch,{tokens},{VOCABULARY}] logits"]
    if cached:
        inputs += ["int64[batch,all] attention_mask", f"int64[batch,{tokens}] position_ids"]
        inputs += [cache.format(kind=k) for k in ("key", "value")]
        outputs += [f"float[batch,2,whole,4] present_0_{k}" for k in ("key", "value")]
    body = _BODY.format(places=_PLACES[cached], cache=_CACHE[cached], mask=_MASK[cached])
    text = (
        '<ir_version: 9, opset_import: ["" : 17]>\n'
        f"decoder ({', '.join(inputs)}) => ({', '.join(outputs)}) {_CONSTANTS} {{ {body} }}"
    )
    model = onnx.parser.parse_model(text)
    width = HEADS * SIZE
    rng = np.random.default_rng(seed)
    shapes = {
        "e": (VOCABULARY, width),
        "p": (POSITIONS, width),
        "head": (width, VOCABULARY),
        "gain": (width,),
    } | {name: (width, width) for name in ("wq", "wk", "wv", "wo")}
    for name, shape in shapes.items():
        value = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    _rename(model)
    return model


def _rename(model: onnx.ModelProto) -> None:
    """Names as exporters give them; the text format takes no dots."""
    for value in (*model.graph.input, *model.graph.output):
        value.name = _DOTTED.get(value.name, value.name)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [_DOTTED.get(n, n) for n in names]
