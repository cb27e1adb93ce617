"""Rules by operator: operand values for which the ONNX standard defines no result.

A rule returns the reason in words, or nothing. An operand of unknown value breaks no rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from onnx import NodeProto

from optvet.engine.standard import attributes, indices, numbers, signals, sizes, windows
from optvet.engine.standard import estimators as learned
from optvet.engine.standard.call import Rule, list_items
from optvet.graph.walk import attribute_of

_OVERFLOWING = [*"Add Sum Sub Mul Neg Abs CumSum MatMul Gemm".split(), *numbers.REDUCTIONS]
_REDUCING = [
    *numbers.REDUCTIONS,
    *"ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin".split(),
]
_NORMALIZATIONS = (
    "BatchNormalization GroupNormalization InstanceNormalization LayerNormalization "
    "RMSNormalization SimplifiedLayerNormalization SkipLayerNormalization "
    "SkipSimplifiedLayerNormalization".split()
)
_WITH_AXES = (
    "ArgMax ArgMin Concat Flatten Gather GatherElements Hardmax LogSoftmax OneHot ReduceL1 "
    "ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare ScatterElements Slice Softmax Split Squeeze TopK Unsqueeze".split()
)
_TABLE: tuple[tuple[Rule, str | Iterable[str]], ...] = (
    (numbers.scale, numbers.SCALE_PLACES),
    (numbers.number_to_quantize, "DynamicQuantizeLinear QuantizeLinear"),
    (numbers.range_to_quantize, "DynamicQuantizeLinear"),
    (numbers.zero_point_of_wide, "DequantizeLinear"),
    (numbers.cast, "Cast"),
    (numbers.cast_like, "CastLike"),
    (numbers.shift, "BitShift"),
    (numbers.divisor, "Div Mod"),
    (numbers.overflow, _OVERFLOWING),
    (numbers.wrap, _OVERFLOWING),
    (numbers.power, "Pow"),
    (numbers.power_wrap, "Pow"),
    (numbers.float_remainder, "Mod"),
    (attributes.epsilon, _NORMALIZATIONS),
    (attributes.variance, "BatchNormalization"),
    (attributes.scales_of_size, "Resize Upsample"),
    (attributes.size_by_rounding, "Resize Upsample"),
    (attributes.aligned_corners, "Resize"),
    (attributes.negative_axis, _WITH_AXES),
    (attributes.axes_once, (*_REDUCING, "Squeeze", "Unsqueeze")),
    (attributes.some_axes, "Squeeze"),
    (attributes.mean_of_nothing, "ReduceMean"),
    (attributes.largest_of_a_row, "Normalizer"),
    (attributes.zero_and_rest, "Reshape"),
    (attributes.ratio, "Dropout"),
    (attributes.batches, "AffineGrid"),
    (attributes.corners, "AffineGrid"),
    (attributes.keys, "LabelEncoder"),
    (attributes.bounds, "Clip"),
    (attributes.block, "DequantizeLinear QuantizeLinear"),
    (attributes.stage, "Attention"),
    (attributes.number_of_heads, "Attention LinearAttention RotaryEmbedding"),
    (attributes.dividing_alpha, "Celu"),
    (
        attributes.precision,
        "Attention GroupNormalization LayerNormalization RMSNormalization Range",
    ),
    (attributes.spread, "RandomNormal RandomNormalLike RandomUniform RandomUniformLike"),
    (attributes.probability, "Bernoulli"),
    (attributes.outcomes, "Multinomial"),
    (attributes.channels_of_groups, "GroupNormalization"),
    (attributes.cells, "GRU LSTM RNN"),
    (attributes.equation, "Einsum"),
    (indices.unique_places, "Scatter ScatterElements ScatterND"),
    (indices.places, "Gather GatherElements GatherND Scatter ScatterElements ScatterND"),
    (indices.depth, "OneHot"),
    (indices.count, "TopK"),
    (indices.any_order, "TopK"),
    (indices.lengths, "ReverseSequence"),
    (indices.steps_of_cells, "GRU LSTM RNN"),
    (indices.last_state, "GRU LSTM RNN"),
    (
        indices.order,
        "ArgMax ArgMin GlobalMaxPool Hardmax MaxPool ReduceMax ReduceMin Relu TopK Unique",
    ),
    (indices.parts, "Split SplitToSequence"),
    (indices.equal_parts, "Split"),
    (indices.steps, "Slice"),
    (indices.sliced_axes, "Slice"),
    (
        indices.axis_inside,
        "ArgMax ArgMin GatherElements Hardmax LayerNormalization LogSoftmax LpNormalization "
        "RMSNormalization Scatter ScatterElements Softmax SplitToSequence",
    ),
    (indices.axis_of_sum, "CumProd CumSum"),
    (indices.beside, "GatherElements Scatter ScatterElements"),
    (indices.points, "GatherND"),
    (indices.selected, "Compress"),
    (indices.reversed_axes, "ReverseSequence"),
    (indices.classes, "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss"),
    (indices.mean_of_losses, "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss"),
    (indices.thresholds, "NonMaxSuppression"),
    (indices.position_ids, "RotaryEmbedding"),
    (indices.written, "TensorScatter"),
    (indices.argument_of_nothing, "ArgMax ArgMin"),
    (indices.permutation, "Transpose"),
    (indices.tokens, "Attention"),
    (indices.delta, "Range"),
    (indices.normalized_nothing, "LayerNormalization RMSNormalization"),
    (learned.text_of_number, "Cast CastLike"),
    (learned.pattern, "RegexFullMatch"),
    (learned.rest_of_text, "StringSplit"),
    (learned.grams, "TfIdfVectorizer"),
    (learned.long_grams, "TfIdfVectorizer"),
    (learned.pairs, "LabelEncoder"),
    (learned.categories, "CategoryMapper OneHotEncoder ZipMap"),
    (learned.known_categories, "OneHotEncoder"),
    (learned.whole_numbers, "OneHot OneHotEncoder"),
    (learned.features, "ArrayFeatureExtractor"),
    (learned.vectors, "FeatureVectorizer"),
    (learned.imputed, "Imputer"),
    (learned.scaled, "Scaler"),
    (learned.rows, "Normalizer"),
    (learned.targets, "LinearRegressor"),
    (learned.linear_classes, "LinearClassifier"),
    (learned.kernel_machine, "SVMClassifier SVMRegressor"),
    (learned.columns_of_map, "ZipMap"),
    (learned.trees, "TreeEnsembleClassifier TreeEnsembleRegressor"),
    (learned.trees_with_leaves, "TreeEnsemble"),
    (signals.infinite_signal, "DFT STFT"),
    (signals.transformed, "DFT"),
    (signals.frames, "STFT"),
    (signals.bands, "MelWeightMatrix"),
    (sizes.size, sizes.SIZED),
    (sizes.sizes_of_parts, "SplitToSequence"),
    (sizes.number_of_parts, "Split"),
    (sizes.axes_listed_once, "CenterCropPad MeanVarianceNormalization Pad"),
    (sizes.removed, "Pad"),
    (sizes.long_reflection, "Pad"),
    (sizes.repeated_or_removed, "Pad"),
    (sizes.blocks, "DepthToSpace SpaceToDepth"),
    (sizes.columns, "Col2Im"),
    (sizes.granularity, "DequantizeLinear QuantizeLinear"),
    (sizes.heads, "Attention"),
    (sizes.past, "Attention"),
    (sizes.gates, "LinearAttention"),
    (sizes.rotated, "RotaryEmbedding"),
    (windows.window, "AveragePool Conv ConvInteger DeformConv LpPool MaxPool QLinearConv"),
    (windows.padding, "AveragePool LpPool MaxPool"),
    (
        windows.negative_padding,
        "AveragePool Col2Im Conv ConvInteger ConvTranspose DeformConv LpPool MaxPool MaxUnpool "
        "QLinearConv",
    ),
    (
        windows.padding_twice,
        "AveragePool Conv ConvInteger ConvTranspose LpPool MaxPool QLinearConv",
    ),
    (windows.kernel, "Conv ConvInteger ConvTranspose DeformConv QLinearConv"),
    (windows.groups, "Conv ConvInteger ConvTranspose DeformConv QLinearConv"),
    (windows.added_padding, "ConvTranspose"),
    (windows.transposed, "ConvTranspose"),
    (windows.norm_of_window, "GlobalLpPool LpPool"),
    (windows.norm, "LpNormalization"),
    (windows.pooled_nothing, "GlobalAveragePool GlobalLpPool GlobalMaxPool"),
    (windows.region, "LRN"),
    (windows.sampled_nothing, "GridSample MaxRoiPool RoiAlign"),
    (windows.finite_places, "GridSample MaxRoiPool RoiAlign"),
    (windows.images, "MaxRoiPool RoiAlign"),
    (windows.sampling, "RoiAlign"),
    (windows.unpooled, "MaxUnpool"),
    (windows.resized_region, "Resize"),
    (windows.cropped_between, "Resize"),
)
"""Each rule, and the operators that it is about."""


def _collect_rules() -> dict[str, tuple[Rule, ...]]:
    found: dict[str, list[Rule]] = {}
    for rule, operators in _TABLE:
        for operator in operators.split() if isinstance(operators, str) else operators:
            found.setdefault(operator, []).append(rule)
    return {operator: tuple(rules) for operator, rules in found.items()}


OF_ALL: tuple[Rule, ...] = (attributes.flag, attributes.word)
"""The rules of every operator."""
RULES: Mapping[str, tuple[Rule, ...]] = _collect_rules()
"""The rules of each operator."""
AGREED = frozenset(
    {
        attributes.aligned_corners,
        attributes.negative_axis,
        attributes.size_by_rounding,
        attributes.some_axes,
        learned.features,
        learned.linear_classes,
        learned.long_grams,
        numbers.power_wrap,
        numbers.range_to_quantize,
        numbers.wrap,
        signals.bands,
        sizes.long_reflection,
        sizes.repeated_or_removed,
        windows.cropped_between,
        windows.padding_twice,
    }
)
"""Rules about what the standard does not allow or does not say, and most kernels do alike: hunts
judge no such model, and in any other one it excuses nothing."""
_BY_VALUES = {
    attributes.aligned_corners,
    attributes.axes_once,
    attributes.bounds,
    numbers.cast,
    numbers.cast_like,
    indices.delta,
    indices.depth,
    numbers.divisor,
    indices.equal_parts,
    numbers.float_remainder,
    signals.infinite_signal,
    attributes.largest_of_a_row,
    indices.lengths,
    indices.normalized_nothing,
    numbers.number_to_quantize,
    numbers.overflow,
    numbers.power,
    numbers.power_wrap,
    numbers.range_to_quantize,
    numbers.scale,
    attributes.scales_of_size,
    numbers.shift,
    attributes.size_by_rounding,
    indices.unique_places,
    attributes.variance,
    numbers.wrap,
    attributes.zero_and_rest,
    numbers.zero_point_of_wide,
}
"""Rules for which values are recorded. Not so the others: runtimes mostly refuse an index outside
of the data, and hardly any model has tensors without elements, or asks for the largest of NaN."""
_OF_INTEGERS = {
    numbers.overflow,
    numbers.wrap,
    numbers.divisor,
    numbers.power,
    numbers.power_wrap,
    numbers.shift,
}


def wanted_values(node: NodeProto, types: Mapping[str, int]) -> Iterator[str]:
    """Names of operands on whose values a rule may depend; ``types`` are element types by name."""
    rules = _BY_VALUES.intersection(RULES.get(node.op_type, ()))
    listed = attribute_of(node, "axes")
    if node.op_type in _REDUCING or (listed is not None and len(list_items(listed)) < 2):
        rules.discard(attributes.axes_once)
    if rules <= _OF_INTEGERS | {numbers.float_remainder}:
        if not any(numbers.is_integer(types.get(name)) for name in node.input):
            return
    if rules == {numbers.scale}:
        yield from (
            node.input[p] for p in numbers.SCALE_PLACES[node.op_type] if p < len(node.input)
        )
    elif rules == {numbers.cast}:
        yield from node.input if numbers.is_integer(attribute_of(node, "to")) else ()
    elif rules:
        yield from node.input
