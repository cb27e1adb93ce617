"""Names of rewrite rules and transformers in all releases of ONNX Runtime."""

from __future__ import annotations

# Rules run inside two rule sets; the names are those that ``disabled_optimizers`` understands.
# Names of all releases: what a release does not have is left out by looking into its binary.
_RULES_1 = (
    "EliminateIdentity EliminateSlice UnsqueezeElimination EliminateDropout ExpandElimination "
    "CastElimination CastChainElimination PreShapeNodeElimination NoopElimination DivMulFusion "
    "FuseReluClip GemmSumFusion GemmTransposeFusion NotWhereFusion ConvAddFusion ConvMulFusion "
    "ConvBNFusion Pad_Fusion MatMul_BatchNormalization_Fusion LabelEncoderFusion"
).split()
_RULES_2 = ("ClipQuantRewrite", "ReluQuantRewrite")
RULE_SETS = {"Level1_RuleBasedTransformer": _RULES_1, "Level2_RuleBasedTransformer": _RULES_2}
# This one's log says of every model that it was changed.
_ALWAYS = "FuseFp16InitializerToFp32NodeTransformer"
UNNAMED_IN_LOG = {**RULE_SETS, _ALWAYS: (_ALWAYS,)}
"""What the log says little about: who may have changed the model, by the name in the log."""

# For releases whose log does not name transformers (before 1.17), and for those that are only
# logged when they run: the pipeline by level.
TRANSFORMERS: dict[int, list[str]] = {
    1: (
        "DoubleQDQPairsRemover ConstantSharing CommonSubexpressionElimination ConstantFolding "
        "MatMulAddFusion ReshapeFusion FreeDimensionOverrideTransformer "
        "SliceConcatToSpaceToDepthFusion GeluFusionL1 LayerNormFusionL1 QDQPropagationTransformer "
        "WeightBiasQuantization EnsureUniqueDQForNodeUnit WhereDummyDq TransposeOptimizer"
    ).split(),
    2: (
        "TransposeOptimizer_CPUExecutionProvider QDQS8ToU8Transformer QDQSelectorActionTransformer "
        "GemmActivationFusion MatMulIntegerToFloatFusion DynamicQuantizeMatMulFusion "
        "ConvActivationFusion GeluFusionL2 LayerNormFusionL2 GeluFusion LayerNormFusion "
        "SimplifiedLayerNormFusion AttentionFusion EmbedLayerNormFusion GatherSliceToSplitFusion "
        "GatherToSplitFusion GatherToSliceFusion MatmulTransposeFusion BiasGeluFusion "
        "GroupQueryAttentionFusion SkipLayerNormFusion BiasSkipLayerNormFusion FastGeluFusion "
        "QuickGeluFusion BiasSoftmaxFusion BiasDropoutFusion MatMulScaleFusion "
        "MatMulActivationFusion MatMulNBitsFusion GroupQueryAttentionPreNormFusion "
        "QDQFinalCleanupTransformer"
    ).split(),
    3: ["NchwcTransformer", "NhwcTransformer", "ConvAddActivationFusion"],
    4: ["FuseFp16InitializerToFp32NodeTransformer"],
}

ALL_PASSES = {n for names in TRANSFORMERS.values() for n in names} | {*_RULES_1, *_RULES_2}
# These run whatever is asked for; naming them changes nothing.
MANDATORY_PASSES = {"RemoveDuplicateCastTransformer", "CastFloat16Transformer", "MemcpyTransformer"}
