"""Rules about indices, counts, orders, steps and what is summed; see ``rules``."""

from __future__ import annotations

import math

import numpy as np

from optvet.engine.numerics.floats import is_float
from optvet.engine.standard.call import OperatorCall


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
    """Something to tell apart: of a number with a fraction, the whole part counts."""
    value = call.operand(1)
    return "the depth is not positive" if value is not None and bool(np.any(value < 1)) else ""


def count(call: OperatorCall) -> str:
    """As many elements as there are."""
    count, data = call.operand(1), call.operand(0)
    if count is None or not count.size:
        return ""
    wanted = count.item(0)
    size = wanted if data is None else data.shape[call.attribute("axis", -1)]
    return "" if 0 <= wanted <= size else f"{wanted} elements of an axis of {size}"


def any_order(call: OperatorCall) -> str:
    """Largest elements in an order."""
    many = call.operand(1)
    open_ = not call.attribute("sorted", 1) and many is not None and bool(np.any(many > 1))
    return "elements in no order" if open_ else ""


def lengths(call: OperatorCall) -> str:
    """Lengths of sequences, of which none is longer than there are steps."""
    data, given = call.operand(0), call.operand(1)
    axis = call.attribute("time_axis", 0)
    if data is None or given is None or not 0 <= axis < data.ndim:
        return ""
    steps = data.shape[axis]
    wrong = given[(given < 0) | (given > steps)]
    return f"a sequence of {wrong.flat[0]} elements among {steps} steps" if wrong.size else ""


def steps_of_cells(call: OperatorCall) -> str:
    """Lengths of sequences, of which none is longer than there are steps."""
    data, given = call.operand(0), call.operand(4)
    if data is None or given is None or data.ndim != 3:
        return ""
    steps = data.shape[1 if call.attribute("layout", 0) else 0]
    wrong = given[(given < 0) | (given > steps)]
    return f"a sequence of {wrong.flat[0]} elements among {steps} steps" if wrong.size else ""


def last_state(call: OperatorCall) -> str:
    """A last step, of which the state is asked for."""
    data, given = call.operand(0), call.operand(4)
    if data is None or data.ndim != 3 or not any(call.node.output[1:]):
        return ""
    steps, batch = data.shape[:2] if not call.attribute("layout", 0) else data.shape[1::-1]
    none = not steps if given is None else bool(np.any(given == 0))
    return "the state after no steps" if batch and none else ""


def order(call: OperatorCall) -> str:
    """Numbers that can be put in order."""
    value = call.operand(0)
    if value is None or not is_float(value.dtype):
        return ""
    return "NaN has no place in an order" if np.isnan(value.astype(np.float64)).any() else ""


def parts(call: OperatorCall) -> str:
    """A size for each output, whose sum is that of the whole; one number alone is no such list."""
    data, given = call.operand(0), call.operand(1)
    sizes = call.attribute("split") if given is None else given
    axis = call.attribute("axis", 0)
    if data is None or np.ndim(sizes) != 1 or not -data.ndim <= axis < data.ndim:
        return ""
    if call.node.op_type == "Split" and np.size(sizes) != len(call.node.output):
        return f"{np.size(sizes)} parts for {len(call.node.output)} outputs"
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
    data, axis = call.operand(0), call.given_or_default("axis")
    if data is None or axis is None:
        return ""
    return "" if -data.ndim <= axis < data.ndim else f"axis {axis} of {data.ndim} dimensions"


def axis_of_sum(call: OperatorCall) -> str:
    """An axis that there is, where it is an operand."""
    data, axis = call.operand(0), call.operand(1)
    if data is None or axis is None or axis.size != 1:
        return ""
    inside = -data.ndim <= axis.item() < data.ndim
    return "" if inside else f"axis {axis.item()} of {data.ndim} dimensions"


def beside(call: OperatorCall) -> str:
    """Indices of as many dimensions as the data, and no more of them along any other axis."""
    data, places, axis = call.operand(0), call.operand(1), call.attribute("axis", 0)
    if data is None or places is None:
        return ""
    if data.ndim != places.ndim:
        return f"indices of {places.ndim} dimensions for data of {data.ndim}"
    others = [n for n in range(data.ndim) if n not in (axis, axis + data.ndim)]
    wide = any(places.shape[n] > data.shape[n] for n in others)
    return "more indices than there are data beside the axis" if wide else ""


def points(call: OperatorCall) -> str:
    """Tuples of indices into the data, a batch of them for each batch of the data."""
    data, places = call.operand(0), call.operand(1)
    batches = call.attribute("batch_dims", 0)
    if data is None or places is None or not places.ndim:
        return ""
    if not 0 <= batches < min(data.ndim, places.ndim):
        return f"batch_dims is {batches}"
    if not 1 <= places.shape[-1] <= data.ndim - batches:
        return f"tuples of {places.shape[-1]} indices"
    same = data.shape[:batches] == places.shape[:batches]
    return "" if same else "the batches of the data and the indices differ"


def selected(call: OperatorCall) -> str:
    """No more conditions than there are elements to select."""
    data, condition, axis = call.operand(0), call.operand(1), call.attribute("axis")
    if data is None or condition is None:
        return ""
    size = data.size if axis is None else data.shape[axis]
    return "" if condition.size <= size else f"{condition.size} conditions for {size} elements"


def reversed_axes(call: OperatorCall) -> str:
    """The first two axes: one of the batch, one of time."""
    batch, time = call.attribute("batch_axis", 1), call.attribute("time_axis", 0)
    return "" if {batch, time} == {0, 1} else f"batch_axis is {batch}, and time_axis is {time}"


def classes(call: OperatorCall) -> str:
    """Classes that there are, apart from what is ignored."""
    data, target = call.operand(0), call.operand(1)
    if data is None or target is None or data.ndim < 2:
        return ""
    ignored = call.attribute("ignore_index")
    wrong = (target < 0) | (target >= data.shape[1])
    if ignored is not None:
        wrong &= target != ignored
    return f"a class that is not one of the {data.shape[1]}" if bool(np.any(wrong)) else ""


def mean_of_losses(call: OperatorCall) -> str:
    """Losses to take the mean of, with weights that are not all 0."""
    target, weights = call.operand(1), call.operand(2)
    if target is None or call.text("reduction", "mean") != "mean":
        return ""
    counted = target[target != call.attribute("ignore_index")]
    if not counted.size:
        return "the mean of no losses"
    if weights is None or weights[counted].sum():
        return ""
    return "the mean of losses whose weights are 0"


def thresholds(call: OperatorCall) -> str:
    """Boxes and thresholds that can be compared, and a number of boxes."""
    for place in (0, 1, 3, 4):
        value = call.operand(place)
        if value is not None and bool(np.isnan(value).any()):
            return "NaN has no place in an order"
    most, share = call.operand(2), call.operand(3)
    if most is not None and bool(np.any(most < 0)):
        return "a negative number of boxes"
    outside = share is not None and bool(np.any((share < 0) | (share > 1)))
    return "a threshold of the overlap that is not from 0 to 1" if outside else ""


def position_ids(call: OperatorCall) -> str:
    """Positions that the tables of sines and cosines have."""
    table, given = call.operand(1), call.operand(3)
    if table is None or given is None or table.ndim != 2 or call.node.domain:
        return ""
    wrong = bool(np.any((given < 0) | (given >= table.shape[0])))
    return f"a position that is not one of the {table.shape[0]}" if wrong else ""


def written(call: OperatorCall) -> str:
    """Places in a cache, of which the first axis is the batch."""
    cache, update, first = call.operand(0), call.operand(1), call.operand(2)
    axis = call.attribute("axis", -2)
    if cache is None or update is None or cache.ndim != update.ndim:
        return ""
    if not -cache.ndim < axis < cache.ndim or not axis:
        return f"axis {axis} of {cache.ndim} dimensions, of which the first is the batch"
    starts = np.zeros(1, np.int64) if first is None else first
    long = update.shape[axis] > cache.shape[axis]
    if call.text("mode", "linear") == "linear":
        long |= bool(np.any(starts + update.shape[axis] > cache.shape[axis]))
    return "what is written is outside of the cache" if long or np.any(starts < 0) else ""


def argument_of_nothing(call: OperatorCall) -> str:
    """An axis that has elements, of which one is the largest or smallest."""
    value, axis = call.operand(0), call.attribute("axis", 0)
    if value is None or not -value.ndim <= axis < value.ndim or value.shape[axis]:
        return ""
    rows = math.prod(size for n, size in enumerate(value.shape) if n != axis % value.ndim)
    return "the place of the largest of no numbers" if rows else ""


def permutation(call: OperatorCall) -> str:
    """A place for each axis."""
    value, order = call.operand(0), call.attribute("perm")
    if value is None or order is None or sorted(order) == [*range(value.ndim)]:
        return ""
    return f"perm is {list(order)}, of {value.ndim} dimensions"


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


def normalized_nothing(call: OperatorCall) -> str:
    """Rows that have elements; of an empty one there is no mean, which is an output too."""
    value, axis = call.operand(0), call.attribute("axis", -1)
    if value is None or not -value.ndim <= axis < value.ndim:
        return ""
    rows = math.prod(value.shape[:axis]), math.prod(value.shape[axis:])
    return "the mean of no numbers" if rows[0] and not rows[1] else ""
