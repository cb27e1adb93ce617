"""Rules about learned estimators, text and dictionaries."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from optvet.engine.numerics.floats import is_float
from optvet.engine.standard.call import Array, OperatorCall
from optvet.engine.standard.numbers import outside_of
from optvet.engine.standard.rule import RuleTable, is_integer

rule = RuleTable()
"""The rules of this module, in the order in which they are told."""
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf|nan)", re.I)
_WHOLE = re.compile(r"\s*[+-]?\d+")
_MODES = frozenset("BRANCH_LEQ BRANCH_LT BRANCH_GTE BRANCH_GT BRANCH_EQ BRANCH_NEQ LEAF".split())


# --- text -----------------------------------------------------------------------------------------


@rule("Cast CastLike")
def _text_of_number(call: OperatorCall, value: Array, like: Array | None = None) -> str:
    to = call.attribute("to")
    if value.dtype.kind not in "OUS":
        return ""
    if call.node.op_type == "CastLike":
        if like is None or like.dtype.kind not in "biuf":
            return ""
        to = helper.np_dtype_to_tensor_dtype(like.dtype)
    if not isinstance(to, int) or to == TensorProto.STRING:
        return ""
    texts = [t.decode() if isinstance(t, bytes) else str(t) for t in value.ravel()]
    if any(not (_WHOLE if is_integer(to) else _NUMBER).fullmatch(t) for t in texts):
        return "text that is no number of this kind"
    if not is_integer(to):
        return ""
    limits = np.iinfo(helper.tensor_dtype_to_np_dtype(to))
    fits = all(limits.min <= int(t) <= limits.max for t in texts)
    return "" if fits else f"a number that is no {limits.dtype}"


@rule("RegexFullMatch", "a pattern that is not of RE2")
def _pattern(*, pattern: str = "") -> object:
    # RE2 knows no references back, and does not look around.
    return re.search(r"\\[1-9]|\(\?<?[=!]", pattern)


@rule("StringSplit", "white space at the end of what is not split")
def _rest_of_text(texts: Array, *, maxsplit: int | None = None, delimiter: str = "") -> bool:
    # Kernels remove white space from a rest in which no split was made, or keep it.
    if maxsplit is None or delimiter:
        return False
    rests = (str(text).split(None, maxsplit)[maxsplit:] for text in texts.flat)
    return any(rest != rest.strip() for each in rests for rest in each)


@rule("TfIdfVectorizer")
def _grams(call: OperatorCall) -> str:
    least, most = call.attribute("min_gram_length", 1), call.attribute("max_gram_length", 1)
    if not 1 <= least <= most or call.attribute("max_skip_count", 0) < 0:
        return f"lengths from {least} to {most}, or a negative number of skips"
    pool = call.attribute("pool_int64s") or call.attribute("pool_strings") or ()
    places, starts = call.attribute("ngram_indexes", ()), call.attribute("ngram_counts", ())
    # The pool holds first all 1-grams, then all 2-grams and so on, each from its start.
    ends = [*starts[1:], len(pool)]
    found: list[Sequence[Any]] = []
    for length, (start, end) in enumerate(zip(starts, ends, strict=False), 1):
        if not 0 <= start <= end <= len(pool) or (end - start) % length:
            return f"a pool that has no whole {length}-grams from {start} to {end}"
        found += [tuple(pool[n : n + length]) for n in range(start, end, length)]
    weights = call.attribute("weights")
    if len(found) != len(places) or (weights is not None and len(weights) != len(places)):
        return f"{len(places)} places, or weights, for {len(found)} n-grams"
    return "an n-gram is twice in the pool" if len(set(found)) < len(found) else ""


@rule("TfIdfVectorizer", "{max_gram_length}-grams, which have no start in the pool", agreed=True)
def _long_grams(*, max_gram_length: int = 1, ngram_counts: Any = ()) -> bool:
    return max_gram_length > len(ngram_counts)


# --- categories and features ----------------------------------------------------------------------


@rule("LabelEncoder")
def _pairs(call: OperatorCall) -> str:
    sizes: dict[str, int] = {}
    for given in call.node.attribute:
        side = given.name.partition("_")[0]
        if side in ("keys", "values"):
            value = helper.get_attribute_value(given)
            sizes[side] = value.dims[0] if isinstance(value, TensorProto) else len(value)
    if len(set(sizes.values())) < 2:
        return ""
    return f"{sizes['keys']} keys for {sizes['values']} values"


@rule("CategoryMapper OneHotEncoder ZipMap", "a category is listed twice")
def _categories(call: OperatorCall) -> bool:
    value, names = call.operand(0), ["cats_strings", "cats_int64s"]
    if call.node.op_type == "ZipMap":
        names = ["classlabels_strings", "classlabels_int64s"]
    elif call.node.op_type == "CategoryMapper" and value is not None:
        # Only the list that is looked up has to have each once.
        names = names[:1] if value.dtype.kind in "OUS" else names[1:]
    return any(len({*c}) < len(c) for c in map(call.attribute, names) if c)


@rule("OneHotEncoder", "a category that is not known")
def _known_categories(value: Array, *, cats_int64s: Any = None, zeros: int = 1) -> bool:
    if zeros or cats_int64s is None or value.dtype.kind not in "iu":
        return False
    return not np.isin(value, cats_int64s).all()


@rule("OneHot OneHotEncoder", "a float that is no int64")
def _whole_numbers(x: Array | None = None, depth: Array | None = None) -> bool:
    # Categories and places are cast to integers, as the text says.
    floats = (v for v in (x, depth) if v is not None and is_float(v.dtype))
    return any(outside_of(v, np.dtype(np.int64)) for v in floats)


@rule("ArrayFeatureExtractor", agreed=True)
def _features(data: Array, given: Array) -> object:
    wrong = data.ndim and np.any((given < 0) | (given >= data.shape[-1]))
    return f"a feature that is not one of the {data.shape[-1]}" if wrong else ""


@rule("FeatureVectorizer")
def _vectors(call: OperatorCall) -> str:
    sizes = list(call.attribute("inputdimensions", ()))
    shapes = [None if o is None or not o.ndim else o.shape[-1] for o in call.operands]
    fits = len(sizes) == len(shapes) and all(
        n is None or n == s for n, s in zip(shapes, sizes, strict=True)
    )
    return "" if fits else f"inputdimensions are {sizes}"


@rule("Imputer")
def _imputed(
    data: Array | None = None, *, imputed_value_floats: Any = (), imputed_value_int64s: Any = ()
) -> str:
    if bool(imputed_value_floats) == bool(imputed_value_int64s):
        return "values to put in of both types or of none"
    if data is None or not data.ndim:
        return ""
    values = imputed_value_floats if is_float(data.dtype) else imputed_value_int64s
    fits = len(values) in (1, data.shape[-1])
    return "" if fits else f"{len(values)} values of the data's type to put in"


@rule("Scaler")
def _scaled(data: Array | None = None, *, scale: Any = (), offset: Any = ()) -> str:
    features = data.shape[-1] if data is not None and data.ndim else len(scale)
    fits = len(scale) == len(offset) and len(scale) in (0, 1, features)
    return "" if fits else f"{len(scale)} scales and {len(offset)} offsets of {features} features"


@rule("Normalizer", "data of {data.ndim} dimensions")
def _rows(data: Array) -> bool:
    return data.ndim not in (1, 2)


@rule("LinearRegressor")
def _targets(
    data: Array | None = None, *, targets: int = 1, coefficients: Any = (), intercepts: Any = ()
) -> str:
    size, added = len(coefficients), len(intercepts)
    if targets < 1 or added not in (0, targets):
        return f"{added} intercepts of {targets} targets"
    if data is None or not data.ndim or size == targets * data.shape[-1]:
        return ""
    return f"{size} coefficients of {targets} targets and {data.shape[-1]} features"


@rule("LinearClassifier", agreed=True)
def _linear_classes(
    data: Array | None = None,
    *,
    classlabels_ints: Any = (),
    classlabels_strings: Any = (),
    coefficients: Any = (),
    intercepts: Any = (),
) -> str:
    labels = classlabels_ints or classlabels_strings
    size, added = len(coefficients), len(intercepts)
    fits = labels and not size % len(labels) and added in (0, len(labels))
    if fits and (data is None or not data.ndim or size == len(labels) * data.shape[-1]):
        return ""
    return f"{size} coefficients and {added} intercepts of {len(labels)} classes"


@rule("SVMClassifier SVMRegressor")
def _kernel_machine(*, prob_a: Any = (), prob_b: Any = (), kernel_params: Any = ()) -> str:
    # Both coefficients of the probabilities, and no parameter of the kernel or all three.
    sizes = len(prob_a), len(prob_b), len(kernel_params)
    if sizes[0] != sizes[1] or sizes[2] not in (0, 3):
        return f"{sizes[0]} and {sizes[1]} coefficients, and {sizes[2]} parameters of the kernel"
    return ""


@rule("ZipMap")
def _columns_of_map(
    data: Array, *, classlabels_strings: Any = (), classlabels_int64s: Any = ()
) -> str:
    keys = classlabels_strings or classlabels_int64s
    if not data.ndim or data.shape[-1] == len(keys):
        return ""
    return f"{len(keys)} keys for {data.shape[-1]} columns"


# --- trees ----------------------------------------------------------------------------------------


def _lists(call: OperatorCall, *prefixes: str) -> tuple[dict[str, list[Any]], str]:
    """The lists that describe trees, and why those with one prefix are no columns of a table."""
    lists = {
        a.name.removesuffix("_as_tensor"): numpy_helper.to_array(a.t).tolist()
        if a.type == a.TENSOR
        else list(helper.get_attribute_value(a))
        for a in call.node.attribute
        if a.name.startswith(prefixes)
    }
    for prefix in prefixes:
        sizes = {len(value) for name, value in lists.items() if name.startswith(prefix) and value}
        if len(sizes) > 1:
            return lists, f"attributes {prefix}* of {sorted(sizes)} elements"
    return lists, ""


@rule("TreeEnsembleClassifier TreeEnsembleRegressor")
def _trees(call: OperatorCall) -> str:
    lists, words = _lists(call, "nodes_", "class_", "target_")
    return words or _wrong_nodes(call, lists) or _wrong_votes(call, lists)


@rule("TreeEnsemble")
def _trees_with_leaves(call: OperatorCall) -> str:
    lists, words = _lists(call, "nodes_", "leaf_")
    if words:
        return words
    nodes, leaves = len(lists.get("nodes_modes", ())), len(lists.get("leaf_targetids", ()))
    data, targets = call.operand(0), call.attribute("n_targets", 1)
    features = data.shape[1] if data is not None and data.ndim > 1 else math.inf
    limits: list[tuple[str, Iterable[int], float]] = [
        ("root", call.attribute("tree_roots", ()), nodes),
        ("comparison", lists.get("nodes_modes", ()), 7),
        ("feature", lists.get("nodes_featureids", ()), features),
        ("target", lists.get("leaf_targetids", ()), targets),
    ]
    for side in ("true", "false"):
        ends = lists.get(f"nodes_{side}leafs", ())
        children = [*zip(ends, lists.get(f"nodes_{side}nodeids", ()), strict=False)]
        limits.append(("leaf", [child for end, child in children if end], leaves))
        limits.append(("node", [child for end, child in children if not end], nodes))
    for kind, places, limit in limits:
        for place in places:
            if not 0 <= place < limit:
                return f"{kind} {place}, of {limit:g}"
    # A leaf votes for one target: another one may have no vote at all.
    least_or_largest = call.attribute("aggregate_function", 1) in (2, 3)
    return "a target that no leaf may have" if least_or_largest and targets > 1 else ""


def _wrong_nodes(call: OperatorCall, lists: dict[str, list[Any]]) -> str:
    names = "treeids nodeids modes truenodeids falsenodeids featureids".split()
    nodes = [*zip(*(lists.get(f"nodes_{name}", []) for name in names), strict=False)]
    known, data = {node[:2] for node in nodes}, call.operand(0)
    if len(known) < len(nodes):
        return "a node is listed twice"
    for tree, _, mode, *children, feature in nodes:
        if mode.decode() not in _MODES:
            return f"a node is {mode.decode()!r}"
        if mode == b"LEAF":
            continue
        if any((tree, child) not in known for child in children):
            return "a node has a child that is none"
        if feature < 0 or (data is not None and data.ndim > 1 and feature >= data.shape[1]):
            return f"feature {feature}, which the data do not have"
    return ""


def _wrong_votes(call: OperatorCall, lists: dict[str, list[Any]]) -> str:
    nodes = {*zip(lists.get("nodes_treeids", []), lists.get("nodes_nodeids", []), strict=False)}
    kind = "class" if lists.get("class_ids") else "target"
    votes = zip(lists.get(f"{kind}_treeids", []), lists.get(f"{kind}_nodeids", []), strict=False)
    if not nodes >= {*votes}:
        return "a vote of a node that is none"
    labels = call.attribute("classlabels_int64s") or call.attribute("classlabels_strings") or ()
    most = len(labels) if kind == "class" else call.attribute("n_targets", 1)
    ids = lists.get(f"{kind}_ids", [])
    if any(not 0 <= n < most for n in ids):
        return f"a vote for what is not one of the {most}"
    if call.text("aggregate_function", "SUM") not in ("MIN", "MAX"):
        return ""
    # A sum of no votes is 0, but there is no least of them.
    leaves = sum(mode == b"LEAF" for mode in lists.get("nodes_modes", []))
    return "" if len(ids) == leaves * most else "the least or largest of no votes"
