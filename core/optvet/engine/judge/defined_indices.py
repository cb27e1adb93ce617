"""Rules about indices, counts, orders, steps and what is summed; see ``defined_rules``."""

from __future__ import annotations

import math

import numpy as np

from optvet.engine.judge.operator_call import OperatorCall
from optvet.engine.numerics.floats import is_float


def unique_places(call: OperatorCall) -> str:
    """Elements that are written once."""
    places = call.operand(1)
    reduction = call.attribute("reduction", b"none")
    if places is None or reduction not in (b"none", "none") or not places.size:
        return ""
    if call.node.op_type == "ScatterND":
        rows = places.reshape(-1, places.shape[-1]) if places.ndim else places.reshape(1, -1)
        data = call.operand(0)
        if data is not None and rows.shape[1] <= data.ndim:
            rows = np.where(rows < 0, rows + np.array(data.shape[: rows.shape[1]]), rows)
        return _twice(np.unique(rows, axis=0).shape[0] < rows.shape[0])
    axis, size = call.attribute("axis", 0), call.operand(0)
    if size is not None and size.ndim:
        places = np.where(places < 0, places + size.shape[axis], places)
    lines = np.moveaxis(places, axis, -1).reshape(-1, places.shape[axis]) if places.ndim else None
    if lines is None:
        return ""
    return _twice(any(len(set(line.tolist())) < len(line) for line in lines))


def places(call: OperatorCall) -> str:
    """Indices outside the data: an error that some kernels do not check for."""
    data, places = call.operand(0), call.operand(1)
    if data is None or places is None or not places.size or places.dtype.kind not in "iu":
        return ""
    if call.node.op_type.endswith("ND"):
        first = call.attribute("batch_dims", 0) if call.node.op_type == "GatherND" else 0
        sizes = np.array(data.shape[first : first + places.shape[-1]] if places.ndim else ())
        if places.ndim and len(sizes) != places.shape[-1]:
            return ""  # for the checker to refuse
    else:
        axis = call.attribute("axis", 0)
        sizes = np.array(data.shape[axis] if -data.ndim <= axis < data.ndim else 0)
    wrong = bool(np.any((places < -sizes) | (places >= sizes)))
    return "an index is outside of the data" if wrong else ""


def _twice(found: bool) -> str:
    return "an element is written twice" if found else ""


def depth(call: OperatorCall) -> str:
    """Something to tell apart."""
    value = call.operand(1)
    return "the depth is not positive" if value is not None and bool(np.any(value <= 0)) else ""


def count(call: OperatorCall) -> str:
    """As many elements as there are."""
    count, data = call.operand(1), call.operand(0)
    if count is None or not count.size:
        return ""
    wanted = count.item(0)
    size = wanted if data is None else data.shape[call.attribute("axis", -1)]
    return "" if 0 <= wanted <= size else f"{wanted} elements of an axis of {size}"


def lengths(call: OperatorCall) -> str:
    """Lengths of sequences, of which none is longer than there are steps."""
    data, given = call.operand(0), call.operand(1)
    axis = call.attribute("time_axis", 0)
    if data is None or given is None or not 0 <= axis < data.ndim:
        return ""
    steps = data.shape[axis]
    wrong = given[(given < 0) | (given > steps)]
    return f"a sequence of {wrong.flat[0]} elements among {steps} steps" if wrong.size else ""


def order(call: OperatorCall) -> str:
    """Numbers that can be put in order."""
    value = call.operand(0)
    if value is None or not is_float(value.dtype):
        return ""
    return "NaN has no place in an order" if np.isnan(value.astype(np.float64)).any() else ""


def parts(call: OperatorCall) -> str:
    """Sizes of parts whose sum is that of the whole; one number alone is not a list of them."""
    data, given = call.operand(0), call.operand(1)
    sizes = call.attribute("split") if given is None else given
    axis = call.attribute("axis", 0)
    if data is None or np.ndim(sizes) != 1 or not -data.ndim <= axis < data.ndim:
        return ""
    whole, total = data.shape[axis], int(np.sum(sizes))
    return "" if total == whole else f"parts of {total} elements in all of an axis of {whole}"


def equal_parts(call: OperatorCall) -> str:
    """Without sizes, parts of one size; since operator set 18, only as many as is said."""
    node, data = call.node, call.operand(0)
    if call.attribute("split") is not None or any(node.input[1:]):
        return ""
    if call.opset >= 18:
        said = call.attribute("num_outputs") is not None
        return "" if said else "neither the sizes of the parts nor their number is given"
    axis, number = call.attribute("axis", 0), len(node.output)
    if data is None or not -data.ndim <= axis < data.ndim or data.shape[axis] % number == 0:
        return ""
    return f"{number} equal parts of an axis of {data.shape[axis]}"


def steps(call: OperatorCall) -> str:
    """Steps that lead on."""
    value = call.operand(4)
    return "a step is 0" if value is not None and bool(np.any(value == 0)) else ""


def sliced_axes(call: OperatorCall) -> str:
    """Axes that are sliced once."""
    data, axes = call.operand(0), call.operand(3)
    if axes is None:
        return ""
    counted = axes if data is None else np.where(axes < 0, axes + data.ndim, axes)
    return "an axis is listed twice" if np.unique(counted).size < counted.size else ""


def axis_inside(call: OperatorCall) -> str:
    """An axis that there is."""
    data, axis = call.operand(0), call.attribute("axis")
    if data is None or axis is None:
        return ""
    return "" if -data.ndim <= axis < data.ndim else f"axis {axis} of {data.ndim} dimensions"


def tokens(call: OperatorCall) -> str:
    """As many keys that are not padded as there are."""
    keys, counts = call.operand(1), call.operand(6)
    if keys is None or counts is None or keys.ndim < 2:
        return ""
    wrong = bool(np.any((counts < 0) | (counts > keys.shape[-2])))
    return f"more tokens than the {keys.shape[-2]} keys" if wrong else ""


def delta(call: OperatorCall) -> str:
    """A step that leads on."""
    value = call.operand(2)
    return "the step is 0" if value is not None and bool(np.any(value == 0)) else ""


def padding(call: OperatorCall) -> str:
    """Windows of a pool that hold something besides padding."""
    pads, kernel = call.attribute("pads"), call.attribute("kernel_shape")
    if not pads or not kernel or len(pads) != 2 * len(kernel):
        return ""
    dilations = list(call.attribute("dilations") or [1] * len(kernel))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=False)] * 2
    wide = any(p >= r for p, r in zip(pads, reach, strict=False))
    return "a window lies in the padding alone" if wide else ""


def normalized_nothing(call: OperatorCall) -> str:
    """Rows that have elements; of an empty one there is no mean, which is an output too."""
    value, axis = call.operand(0), call.attribute("axis", -1)
    if value is None or not -value.ndim <= axis < value.ndim:
        return ""
    rows = math.prod(value.shape[:axis]), math.prod(value.shape[axis:])
    return "the mean of no numbers" if rows[0] and not rows[1] else ""


def infinite_signal(call: OperatorCall) -> str:
    """Sums of products with sines, which are 0 at some places: times infinity they are NaN."""
    value = call.operand(0)
    finite = value is None or bool(np.isfinite(value.astype(np.float64)).all())
    return "" if finite else "a frequency of a signal that is not finite"
