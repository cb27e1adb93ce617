"""Operators that converters often write wrongly, written rightly in ONNX's own operators."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator, Mapping

import onnx
import onnx.parser
from onnx import ModelProto

from optvet.engine.repair.aligned_run import AlignedRun
from optvet.engine.repair.candidates import RepairCandidate, propose
from optvet.engine.repair.propose.regions import replaceable_values
from optvet.graph.walk import ONNX_DOMAIN, opset_versions
from optvet.spec.converters import SourceValue
from optvet.spec.records.repair import ReplaceRegion

_OPERATORS = 6
_NAMES = 2
_LEAST_SET = 15  # of CastLike

_ONE = "one = Constant<value_float = 1.0>() l = CastLike(one, x)"
_TEMPLATES: Mapping[str, tuple[str, str]] = {
    # Kahan: what is lost by rounding 1 + x is the same in Log(u) and in u - 1.
    "log1p": (
        "x",
        f"{_ONE} z = Sub(l, l) u = Add(x, l) d = Sub(u, l) n = Equal(d, z) s = Where(n, l, d) "
        "g = Log(u) q = Div(g, s) p = Mul(x, q) f = IsInf(u) t = Where(n, x, p) "
        "y = Where(f, u, t)",
    ),
    # 2 sinh(x / 2) exp(x / 2) where x is small: there Exp(x) - 1 cancels, elsewhere this overflows.
    "expm1": (
        "x",
        f"{_ONE} a = Abs(x) b = Greater(a, l) w = Exp(x) v = Sub(w, l) o = Add(l, l) "
        "h = Div(x, o) s = Sinh(h) e = Exp(h) p = Mul(s, e) q = Mul(p, o) y = Where(b, v, q)",
    ),
    "log_sigmoid": ("x", "n = Neg(x) s = Softplus(n) y = Neg(s)"),
    "erfc": ("x", f"{_ONE} e = Erf(x) y = Sub(l, e)"),
    "floor_divide": (
        "x y0",
        "m = Mod(x, y0) r = Sub(x, m) y = Div(r, y0)",
    ),
    "floor_mod": ("x y0", "y = Mod(x, y0)"),
    "addmm": ("x y0 z0", "m = MatMul(y0, z0) y = Add(m, x)"),
}
"""By operator: what it reads, and how it is computed."""
KNOWN_OPERATORS = tuple(sorted(_TEMPLATES))
"""Names of the operators that a template is known of, as PyTorch calls them."""
_ALIASES: Mapping[str, str] = {
    "floordiv": "floor_divide",
    "floor_div": "floor_divide",
    "floormod": "floor_mod",
    "floor_mod": "floor_mod",
    "remainder": "floor_mod",
    "logsigmoid": "log_sigmoid",
    "log_sigmoid_forward": "log_sigmoid",
}


def templates(aligned: AlignedRun, nodes: tuple[int, ...]) -> Iterator[RepairCandidate]:
    """The first missing operators that are known, in place of a wrong value of their form."""
    if opset_versions(aligned.model).get(ONNX_DOMAIN, 0) < _LEAST_SET:
        return
    for operator in aligned.operators(_OPERATORS):
        name = _name(operator)
        if name not in _TEMPLATES:
            continue
        place = next(i for i in aligned.missing if aligned.inside.values[i] is operator)
        model = _model(aligned.model, *_TEMPLATES[name])
        encoded = base64.b64encode(model.SerializeToString()).decode()
        for inputs in _inputs(aligned, operator, len(model.graph.input)):
            for value in replaceable_values(aligned, nodes, place, operator.value):
                about = f"{value} computed by a template of {name} ({operator.operator})"
                yield propose(
                    "template", about, ReplaceRegion(node=value, inputs=inputs, model=encoded)
                )


def _name(operator: SourceValue) -> str:
    plain = operator.operator.partition(" ")[0].rpartition(".")[2].lower()
    plain = plain.removeprefix("tfl_").strip("_")
    return _ALIASES.get(plain, plain)


def _inputs(aligned: AlignedRun, operator: SourceValue, number: int) -> Iterator[list[str]]:
    """Values of this model that the operator's first operands are."""
    ways = [aligned.names_of(o)[:_NAMES] for o in operator.operands[:number]]
    if len(ways) == number and all(ways):
        yield from (list(each) for each in itertools.product(*ways))


def _model(like: ModelProto, reads: str, body: str) -> ModelProto:
    version = opset_versions(like)[ONNX_DOMAIN]
    # Types are not told: a template is for floats of any width, or integers.
    inputs = ", ".join(f"float[] {name}" for name in reads.split())
    text = f'<ir_version: {like.ir_version}, opset_import: ["" : {version}]>'
    model = onnx.parser.parse_model(f"{text} template ({inputs}) => (float[] y) {{ {body} }}")
    for value in (*model.graph.input, *model.graph.output):
        value.ClearField("type")
    return model
