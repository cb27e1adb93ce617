"""Rules about learned estimators, text and dictionaries; see ``rules``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from optvet.engine.numerics.floats import is_float
from optvet.engine.standard.call import OperatorCall
from optvet.engine.standard.numbers import is_integer, outside_of

_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf|nan)", re.I)
_WHOLE = re.compile(r"\s*[+-]?\d+")
_MODES = frozenset("BRANCH_LEQ BRANCH_LT BRANCH_GTE BRANCH_GT BRANCH_EQ BRANCH_NEQ LEAF".split())


def text_of_number(call: OperatorCall) -> str:
    """Text that is a number: a whole one of the type's range, where it becomes an integer."""
    value, to, like = call.operand(0), call.attribute("to"), call.operand(1)
    if value is None or value.dtype.kind not in "OUS":
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


def pattern(call: OperatorCall) -> str:
    """A pattern without what RE2 does not know: references back, and looks around."""
    text = call.text("pattern")
    return "a pattern that is not of RE2" if re.search(r"\\[1-9]|\(\?<?[=!]", text) else ""


def rest_of_text(call: OperatorCall) -> str:
    """A rest that no split was made in, without white space that is removed or kept."""
    texts, splits = call.operand(0), call.attribute("maxsplit", None)
    if texts is None or splits is None or call.text("delimiter"):
        return ""
    rests = (str(text).split(None, splits)[splits:] for text in texts.flat)
    ends = any(rest != rest.strip() for each in rests for rest in each)
    return "white space at the end of what is not split" if ends else ""


def grams(call: OperatorCall) -> str:
    """N-grams in a pool: whole ones, each of them once, with a place and a weight for each."""
    least, most = call.attribute("min_gram_length", 1), call.attribute("max_gram_length", 1)
    if not 1 <= least <= most or call.attribute("max_skip_count", 0) < 0:
        return f"lengths from {least} to {most}, or a negative number of skips"
    pool = call.attribute("pool_int64s") or call.attribute("pool_strings") or ()
    places, starts = call.attribute("ngram_indexes", ()), call.attribute("ngram_counts", ())
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


def long_grams(call: OperatorCall) -> str:
    """No lengths of which the pool does not say where they start."""
    most, starts = call.attribute("max_gram_length", 1), call.attribute("ngram_counts", ())
    return f"{most}-grams, which have no start in the pool" if most > len(starts) else ""


def pairs(call: OperatorCall) -> str:
    """A value for each key."""
    sizes: dict[str, int] = {}
    for given in call.node.attribute:
        side = given.name.partition("_")[0]
        if side in ("keys", "values"):
            value = helper.get_attribute_value(given)
            sizes[side] = value.dims[0] if isinstance(value, TensorProto) else len(value)
    if len(set(sizes.values())) < 2:
        return ""
    return f"{sizes['keys']} keys for {sizes['values']} values"


def categories(call: OperatorCall) -> str:
    """Each category once."""
    value, names = call.operand(0), ["cats_strings", "cats_int64s"]
    if call.node.op_type == "ZipMap":
        names = ["classlabels_strings", "classlabels_int64s"]
    elif call.node.op_type == "CategoryMapper" and value is not None:
        names = names[:1] if value.dtype.kind in "OUS" else names[1:]
    lists = [call.attribute(name) or () for name in names]
    return "a category is listed twice" if any(len({*c}) < len(c) for c in lists) else ""


def known_categories(call: OperatorCall) -> str:
    """Categories that are known, where no zeros stand for others."""
    value, known = call.operand(0), call.attribute("cats_int64s")
    if value is None or call.attribute("zeros", 1) or known is None or value.dtype.kind not in "iu":
        return ""
    return "" if bool(np.isin(value, known).all()) else "a category that is not known"


def whole_numbers(call: OperatorCall) -> str:
    """Floats that can be cast to integers, as the text says of categories and places."""
    for value in (call.operand(0), call.operand(1)):
        if value is not None and is_float(value.dtype) and outside_of(value, np.dtype(np.int64)):
            return "a float that is no int64"
    return ""


def features(call: OperatorCall) -> str:
    """Features that the data have, counted from 0."""
    data, given = call.operand(0), call.operand(1)
    if data is None or given is None or not data.ndim:
        return ""
    wrong = bool(np.any((given < 0) | (given >= data.shape[-1])))
    return f"a feature that is not one of the {data.shape[-1]}" if wrong else ""


def vectors(call: OperatorCall) -> str:
    """Sizes of all inputs."""
    sizes = list(call.attribute("inputdimensions", ()))
    shapes = [None if o is None or not o.ndim else o.shape[-1] for o in call.operands]
    fits = len(sizes) == len(shapes) and all(
        n is None or n == s for n, s in zip(shapes, sizes, strict=True)
    )
    return "" if fits else f"inputdimensions are {sizes}"


def imputed(call: OperatorCall) -> str:
    """Values of the data's type to put in: one, or one for each feature."""
    data = call.operand(0)
    floats = call.attribute("imputed_value_floats") or ()
    integers = call.attribute("imputed_value_int64s") or ()
    if bool(floats) == bool(integers):
        return "values to put in of both types or of none"
    if data is None or not data.ndim:
        return ""
    values = floats if is_float(data.dtype) else integers
    fits = len(values) in (1, data.shape[-1])
    return "" if fits else f"{len(values)} values of the data's type to put in"


def scaled(call: OperatorCall) -> str:
    """As many offsets as scales: one, or one for each feature."""
    data, sizes = call.operand(0), [len(call.attribute(n) or ()) for n in ("scale", "offset")]
    features = data.shape[-1] if data is not None and data.ndim else sizes[0]
    fits = sizes[0] == sizes[1] and sizes[0] in (0, 1, features)
    return "" if fits else f"{sizes[0]} scales and {sizes[1]} offsets of {features} features"


def rows(call: OperatorCall) -> str:
    """Data of one row or several."""
    data = call.operand(0)
    return "" if data is None or data.ndim in (1, 2) else f"data of {data.ndim} dimensions"


def targets(call: OperatorCall) -> str:
    """Targets, with a coefficient for each feature, and one intercept, if there are any."""
    data, number = call.operand(0), call.attribute("targets", 1)
    size, added = (len(call.attribute(n) or ()) for n in ("coefficients", "intercepts"))
    if number < 1 or added not in (0, number):
        return f"{added} intercepts of {number} targets"
    if data is None or not data.ndim or size == number * data.shape[-1]:
        return ""
    return f"{size} coefficients of {number} targets and {data.shape[-1]} features"


def linear_classes(call: OperatorCall) -> str:
    """A coefficient for each class and feature, and an intercept for each class."""
    data = call.operand(0)
    labels = call.attribute("classlabels_ints") or call.attribute("classlabels_strings") or ()
    size, added = (len(call.attribute(n) or ()) for n in ("coefficients", "intercepts"))
    fits = labels and not size % len(labels) and added in (0, len(labels))
    if fits and (data is None or not data.ndim or size == len(labels) * data.shape[-1]):
        return ""
    return f"{size} coefficients and {added} intercepts of {len(labels)} classes"


def kernel_machine(call: OperatorCall) -> str:
    """Parameters of the kernel, none or three, and both of the probabilities."""
    sizes = [len(call.attribute(n) or ()) for n in ("prob_a", "prob_b", "kernel_params")]
    if sizes[0] != sizes[1] or sizes[2] not in (0, 3):
        return f"{sizes[0]} and {sizes[1]} coefficients, and {sizes[2]} parameters of the kernel"
    return ""


def columns_of_map(call: OperatorCall) -> str:
    """A column for each key."""
    data = call.operand(0)
    keys = call.attribute("classlabels_strings") or call.attribute("classlabels_int64s") or ()
    if data is None or not data.ndim or data.shape[-1] == len(keys):
        return ""
    return f"{len(keys)} keys for {data.shape[-1]} columns"


def trees(call: OperatorCall) -> str:
    """Trees of nodes that are told in full, once each, with children, features and votes."""
    given = {a.name: helper.get_attribute_value(a) for a in call.node.attribute}
    lists = {
        name.removesuffix("_as_tensor"): numpy_helper.to_array(value).tolist()
        if isinstance(value, TensorProto)
        else list(value)
        for name, value in given.items()
        if name.startswith(("nodes_", "class_", "target_"))
    }
    for prefix in ("nodes_", "class_", "target_"):
        sizes = {len(value) for name, value in lists.items() if name.startswith(prefix) and value}
        if len(sizes) > 1:
            return f"attributes {prefix}* of {sorted(sizes)} elements"
    return _wrong_nodes(call, lists) or _wrong_votes(given, lists)


def trees_with_leaves(call: OperatorCall) -> str:
    """Trees whose nodes and leaves are told in full, with children, features and targets."""
    given = {a.name: helper.get_attribute_value(a) for a in call.node.attribute}
    lists = {
        name: numpy_helper.to_array(value).tolist() if isinstance(value, TensorProto) else [*value]
        for name, value in given.items()
        if name.startswith(("nodes_", "leaf_"))
    }
    for prefix in ("nodes_", "leaf_"):
        sizes = {len(value) for name, value in lists.items() if name.startswith(prefix) and value}
        if len(sizes) > 1:
            return f"attributes {prefix}* of {sorted(sizes)} elements"
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


def _wrong_votes(given: dict[str, Any], lists: dict[str, list[Any]]) -> str:
    nodes = {*zip(lists.get("nodes_treeids", []), lists.get("nodes_nodeids", []), strict=False)}
    kind = "class" if lists.get("class_ids") else "target"
    votes = zip(lists.get(f"{kind}_treeids", []), lists.get(f"{kind}_nodeids", []), strict=False)
    if not nodes >= {*votes}:
        return "a vote of a node that is none"
    labels = given.get("classlabels_int64s") or given.get("classlabels_strings") or ()
    most = len(labels) if kind == "class" else given.get("n_targets", 1)
    ids = lists.get(f"{kind}_ids", [])
    if any(not 0 <= n < most for n in ids):
        return f"a vote for what is not one of the {most}"
    if given.get("aggregate_function", b"SUM") not in (b"MIN", b"MAX"):
        return ""
    leaves = sum(mode == b"LEAF" for mode in lists.get("nodes_modes", []))
    return "" if len(ids) == leaves * most else "the least or largest of no votes"
