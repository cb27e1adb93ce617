"""Rules about indices, counts, orders, steps and what is summed."""

from __future__ import annotations

import math

import numpy as np

from optvet.engine.standard.call import Array, OperatorCall, repeats_an_axis
from optvet.engine.standard.numbers import holds_nan
from optvet.engine.standard.rule import RuleTable, operands

rule = RuleTable()
"""The rules of this module, in the order in which they are told."""
_CELLS = "GRU LSTM RNN"
_LOSSES = "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss"


@rule("Scatter ScatterElements ScatterND", "an element is written twice", recorded=operands)
def _unique_places(call: OperatorCall) -> bool:
    places, data = call.operand(1), call.operand(0)
    if places is None or call.text("reduction", "none") != "none" or not places.size:
        return False
    # An index may be counted from the front and from the back.
    if call.node.op_type == "ScatterND":
        rows = places.reshape(-1, places.shape[-1]) if places.ndim else places.reshape(1, -1)
        if data is not None and rows.shape[1] <= data.ndim:
            rows = np.where(rows < 0, rows + np.array(data.shape[: rows.shape[1]]), rows)
        return bool(np.unique(rows, axis=0).shape[0] < rows.shape[0])
    axis = call.attribute("axis", 0)
    if data is not None and data.ndim:
        places = np.where(places < 0, places + data.shape[axis], places)
    if not places.ndim:
        return False
    lines = np.moveaxis(places, axis, -1).reshape(-1, places.shape[axis])
    return any(len(set(line.tolist())) < len(line) for line in lines)


@rule(
    "Gather GatherElements GatherND Scatter ScatterElements ScatterND",
    "an index is outside of the data",
)
def _places(call: OperatorCall) -> bool:
    # An error that some kernels do not check for.
    data, places = call.operand(0), call.operand(1)
    if data is None or places is None or not places.size or places.dtype.kind not in "iu":
        return False
    if call.node.op_type.endswith("ND"):
        first = call.attribute("batch_dims", 0) if call.node.op_type == "GatherND" else 0
        sizes = np.array(data.shape[first : first + places.shape[-1]] if places.ndim else ())
        if places.ndim and len(sizes) != places.shape[-1]:
            return False  # for the checker to refuse
    else:
        axis = call.attribute("axis", 0)
        sizes = np.array(data.shape[axis] if -data.ndim <= axis < data.ndim else 0)
    return bool(np.any((places < -sizes) | (places >= sizes)))


@rule("OneHot", "the depth is not positive", at=(1,), recorded=operands)
def _depth(depth: Array) -> object:
    # Of a number with a fraction, the whole part counts.
    return np.any(depth < 1)


@rule("TopK", at=(1, 0))
def _count(count: Array, data: Array | None = None, *, axis: int = -1) -> str:
    if not count.size:
        return ""
    wanted = count.item(0)
    size = wanted if data is None else data.shape[axis]
    return "" if 0 <= wanted <= size else f"{wanted} elements of an axis of {size}"


@rule("TopK", "elements in no order", at=(1,))
def _any_order(count: Array, *, sorted: int = 1) -> object:
    return not sorted and np.any(count > 1)


@rule("ReverseSequence", recorded=operands)
def _lengths(data: Array, lengths: Array, *, time_axis: int = 0) -> object:
    return 0 <= time_axis < data.ndim and _long_sequence(lengths, data.shape[time_axis])


@rule(_CELLS, at=(0, 4))
def _steps_of_cells(data: Array, lengths: Array, *, layout: int = 0) -> object:
    return data.ndim == 3 and _long_sequence(lengths, data.shape[1 if layout else 0])


def _long_sequence(lengths: Array, steps: int) -> str:
    wrong = lengths[(lengths < 0) | (lengths > steps)]
    return f"a sequence of {wrong.flat[0]} elements among {steps} steps" if wrong.size else ""


@rule(_CELLS, "the state after no steps")
def _last_state(call: OperatorCall) -> bool:
    data, given = call.operand(0), call.operand(4)
    # Without a step there is no last state; nothing is wrong where only the empty sequence is read.
    if data is None or data.ndim != 3 or not any(call.node.output[1:]):
        return False
    steps, batch = data.shape[:2] if not call.attribute("layout", 0) else data.shape[1::-1]
    none = not steps if given is None else bool(np.any(given == 0))
    return bool(batch) and none


@rule(
    "ArgMax ArgMin GlobalMaxPool Hardmax MaxPool ReduceMax ReduceMin Relu TopK Unique",
    "NaN has no place in an order",
)
def _order(value: Array) -> bool:
    return holds_nan(value)


@rule("Split SplitToSequence")
def _parts(call: OperatorCall) -> str:
    data, given = call.operand(0), call.operand(1)
    sizes = call.attribute("split") if given is None else given
    axis = call.attribute("axis", 0)
    # One number alone is no list of sizes: the last part may be smaller.
    if data is None or np.ndim(sizes) != 1 or not _has_axis(data, axis):
        return ""
    if call.node.op_type == "Split" and np.size(sizes) != len(call.node.output):
        return f"{np.size(sizes)} parts for {len(call.node.output)} outputs"
    whole, total = data.shape[axis], int(np.sum(sizes))
    return "" if total == whole else f"parts of {total} elements in all of an axis of {whole}"


@rule("Split", recorded=operands)
def _equal_parts(call: OperatorCall) -> str:
    node, data = call.node, call.operand(0)
    if call.attribute("split") is not None or any(node.input[1:]):
        return ""
    # Since operator set 18, there are only as many as is said.
    if call.opset >= 18:
        said = call.attribute("num_outputs") is not None
        return "" if said else "neither the sizes of the parts nor their number is given"
    axis, number = call.attribute("axis", 0), len(node.output)
    if data is None or not _has_axis(data, axis) or data.shape[axis] % number == 0:
        return ""
    return f"{number} equal parts of an axis of {data.shape[axis]}"


@rule("Slice", "a step is 0", at=(4,))
def _steps(step: Array) -> object:
    return np.any(step == 0)


@rule("Slice", at=(3, 0))
def _sliced_axes(axes: Array, data: Array | None = None) -> object:
    return repeats_an_axis(axes.ravel().tolist(), data)


@rule(
    "ArgMax ArgMin GatherElements Hardmax LayerNormalization LogSoftmax LpNormalization "
    "RMSNormalization Scatter ScatterElements Softmax SplitToSequence",
    "axis {axis} of {data.ndim} dimensions",
)
def _axis_inside(data: Array, *, axis: int) -> bool:
    return not _has_axis(data, axis)


@rule("CumProd CumSum")
def _axis_of_sum(data: Array, axis: Array) -> str:
    if axis.size != 1 or _has_axis(data, axis.item()):
        return ""
    return f"axis {axis.item()} of {data.ndim} dimensions"


def _has_axis(data: Array, axis: int) -> bool:
    return -data.ndim <= axis < data.ndim


@rule("GatherElements Scatter ScatterElements")
def _beside(data: Array, places: Array, *, axis: int = 0) -> str:
    if data.ndim != places.ndim:
        return f"indices of {places.ndim} dimensions for data of {data.ndim}"
    # The result has the shape of the indices: beside the axis, it begins where the data do.
    others = [n for n in range(data.ndim) if n not in (axis, axis + data.ndim)]
    wide = any(places.shape[n] > data.shape[n] for n in others)
    return "more indices than there are data beside the axis" if wide else ""


@rule("GatherND")
def _points(data: Array, places: Array, *, batch_dims: int = 0) -> str:
    if not places.ndim:
        return ""
    if not 0 <= batch_dims < min(data.ndim, places.ndim):
        return f"batch_dims is {batch_dims}"
    if not 1 <= places.shape[-1] <= data.ndim - batch_dims:
        return f"tuples of {places.shape[-1]} indices"
    same = data.shape[:batch_dims] == places.shape[:batch_dims]
    return "" if same else "the batches of the data and the indices differ"


@rule("Compress")
def _selected(data: Array, condition: Array, *, axis: int | None = None) -> str:
    size = data.size if axis is None else data.shape[axis]
    return "" if condition.size <= size else f"{condition.size} conditions for {size} elements"


@rule("ReverseSequence", "batch_axis is {batch_axis}, and time_axis is {time_axis}")
def _reversed_axes(*, batch_axis: int = 1, time_axis: int = 0) -> bool:
    return {batch_axis, time_axis} != {0, 1}


@rule(_LOSSES, "a class that is not one of the {data.shape[1]}")
def _classes(data: Array, target: Array, *, ignore_index: int | None = None) -> bool:
    if data.ndim < 2:
        return False
    wrong = (target < 0) | (target >= data.shape[1])
    # The class that is ignored need not be one: -1 and 255 are usual.
    if ignore_index is not None:
        wrong &= target != ignore_index
    return bool(np.any(wrong))


@rule(_LOSSES, at=(1, 2))
def _mean_of_losses(
    target: Array,
    weights: Array | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int | None = None,
) -> str:
    if reduction != "mean":
        return ""
    # A mean divides by the sum of the weights, or by the number of losses that count.
    counted = target[target != ignore_index]
    if not counted.size:
        return "the mean of no losses"
    if weights is None or weights[counted].sum():
        return ""
    return "the mean of losses whose weights are 0"


@rule("NonMaxSuppression")
def _thresholds(call: OperatorCall) -> str:
    # All are compared: corners, scores and both thresholds.
    for place in (0, 1, 3, 4):
        value = call.operand(place)
        if value is not None and bool(np.isnan(value).any()):
            return "NaN has no place in an order"
    most, share = call.operand(2), call.operand(3)
    if most is not None and bool(np.any(most < 0)):
        return "a negative number of boxes"
    outside = share is not None and bool(np.any((share < 0) | (share > 1)))
    return "a threshold of the overlap that is not from 0 to 1" if outside else ""


@rule("RotaryEmbedding")
def _position_ids(call: OperatorCall) -> str:
    table, given = call.operand(1), call.operand(3)
    # Operators of other domains that are so named have these operands at other places.
    if table is None or given is None or table.ndim != 2 or call.node.domain:
        return ""
    wrong = bool(np.any((given < 0) | (given >= table.shape[0])))
    return f"a position that is not one of the {table.shape[0]}" if wrong else ""


@rule("TensorScatter")
def _written(
    cache: Array, update: Array, first: Array | None = None, *, axis: int = -2, mode: str = "linear"
) -> str:
    if cache.ndim != update.ndim:
        return ""
    # Each element of the batch has a place of its own to write to, so the batch is no such axis.
    if not -cache.ndim < axis < cache.ndim or not axis:
        return f"axis {axis} of {cache.ndim} dimensions, of which the first is the batch"
    starts = np.zeros(1, np.int64) if first is None else first
    long = update.shape[axis] > cache.shape[axis]
    if mode == "linear":
        long |= bool(np.any(starts + update.shape[axis] > cache.shape[axis]))
    return "what is written is outside of the cache" if long or np.any(starts < 0) else ""


@rule("ArgMax ArgMin", "the place of the largest of no numbers")
def _argument_of_nothing(value: Array, *, axis: int = 0) -> bool:
    if not _has_axis(value, axis) or value.shape[axis]:
        return False
    return bool(math.prod(size for n, size in enumerate(value.shape) if n != axis % value.ndim))


@rule("Transpose", "perm is {perm}, of {value.ndim} dimensions")
def _permutation(value: Array, *, perm: list[int] | None = None) -> bool:
    return perm is not None and sorted(perm) != [*range(value.ndim)]


@rule("Attention", at=(1, 6))
def _tokens(keys: Array, counts: Array) -> str:
    wrong = keys.ndim > 1 and np.any((counts < 0) | (counts > keys.shape[-2]))
    return f"more tokens than the {keys.shape[-2]} keys" if wrong else ""


@rule("Range", "the step is 0", at=(2,), recorded=operands)
def _delta(step: Array) -> object:
    return np.any(step == 0)


@rule("LayerNormalization RMSNormalization", "the mean of no numbers", recorded=operands)
def _normalized_nothing(value: Array, *, axis: int = -1) -> bool:
    # The mean of an empty row is an output too.
    if not _has_axis(value, axis):
        return False
    return bool(math.prod(value.shape[:axis])) and not math.prod(value.shape[axis:])
