"""The passes of TVM by stage: over the graph, of the lowering, over the loops of kernels (TIR)."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from optvet.plugin import Pass

# Exact on paper; what each does to floating point is rounding. FoldBatchnormToConv2D goes first:
# DecomposeOpsForInference leaves no batch normalization to fold. ToMixedPrecision goes before
# FuseTransposeMatmul, whose functions it does not understand (0.27: "Expected TensorType").
GRAPH_PASSES = (
    "FoldBatchnormToConv2D DecomposeOpsForInference CanonicalizeBindings EliminateCommonSubexpr "
    "FoldConstant CombineParallelMatmul ExpandMatmulOfSum AdjustMatmulOrder ReorderTakeAfterMatmul "
    "ReorderPermuteDimsAfterConcat RemoveRedundantReshape FastMathTransform ConvertLayout "
    "ToMixedPrecision FuseTransposeMatmul DataflowUseInplaceCalls TopologicalSort "
    "RemoveUnusedOutputs DeadCodeElimination"
).split()
_ON_REQUEST = ("ConvertLayout", "FastMathTransform", "ToMixedPrecision")
# Relative to the largest value of an output. Half precision holds 11 bits, and a deep network
# rounds often; TVM's fast exp and tanh are polynomials of a few units in the last place.
_TOLERANCES = {"ToMixedPrecision": 2e-2, "FastMathTransform": 1e-4}
# relax.get_default_pipeline(llvm), flattened: TVM gives it away as one opaque pass.
LOWERING_PASSES = (
    "DispatchSampling DispatchSortScan LegalizeOps AnnotateTIROpPattern FoldConstant#2 FuseOps "
    "FuseTIR RewriteDataflowReshape ToNonDataflow RemovePurityChecking CallTIRRewrite "
    "StaticPlanBlockMemory LowerAllocTensor KillAfterLastUse LowerRuntimeBuiltin ComputePrimValue "
    "VMShapeLower AttachGlobalSymbol"
).split()
_OPTIONAL_LOWERING = frozenset(
    "AnnotateTIROpPattern FoldConstant#2 FuseOps FuseTIR RewriteDataflowReshape "
    "StaticPlanBlockMemory KillAfterLastUse".split()
)
REQUIRED_LOWERING = [name for name in LOWERING_PASSES if name not in _OPTIONAL_LOWERING]
"""What an executable cannot be built without; nothing of it optimizes."""
# It numbers the shapes of a model in an order that is another in each process (TVM 0.27), so what
# comes of it is told by what went into it.
NUMBERING_PASS = "VMShapeLower"
# Those of tvm.tirx.build that were seen to change a kernel on CPU; all others always run.
KERNEL_PASSES = (
    "tirx.BindTarget s_tir.LowerInitBlock s_tir.PlanAndUpdateBufferAllocationLocation "
    "s_tir.ConvertBlocksToOpaque s_tir.CompactBufferAllocation s_tir.StmtSimplify "
    "s_tir.LowerOpaqueBlock tirx.FlattenBuffer tirx.NarrowDataType tirx.StorageRewrite "
    "s_tir.HoistIfThenElse s_tir.RenormalizeSplitPattern tirx.StmtSimplify tirx.CommonSubexprElim "
    "tirx.MakePackedAPI tirx.FP8StorageLegalize tirx.Filter tirx.LowerTVMBuiltin tirx.LowerIntrin"
).split()
OPTIONAL_KERNEL_PASSES = frozenset(
    "s_tir.PlanAndUpdateBufferAllocationLocation s_tir.CompactBufferAllocation s_tir.StmtSimplify "
    "tirx.NarrowDataType tirx.StorageRewrite s_tir.HoistIfThenElse s_tir.RenormalizeSplitPattern "
    "tirx.StmtSimplify tirx.CommonSubexprElim tirx.FP8StorageLegalize".split()
)


def describe_graph_pass(name: str) -> Pass:
    """A pass over the graph, with the tolerance that a lossy one needs."""
    tolerance = _TOLERANCES.get(name)
    return Pass(
        name,
        "graph",
        default=name not in _ON_REQUEST and name in GRAPH_PASSES,
        lossy=tolerance is not None,
        tolerance=tolerance,
    )


@lru_cache
def passes_of_package() -> tuple[str, ...]:
    """The passes of this release that need no argument, beside those above, as they are defined."""
    found = []
    for file in _sources("transform", "transform.py"):
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and _makes_a_pass(node):
                found.append(node.name)
    known = {name.partition("#")[0] for name in (*GRAPH_PASSES, *LOWERING_PASSES)}
    return tuple(name for name in found if name not in known)


def _makes_a_pass(node: ast.FunctionDef) -> bool:
    arguments = node.args
    needed = len(arguments.args) - len(arguments.defaults) + len(arguments.posonlyargs)
    returns = ast.unparse(node.returns) if node.returns is not None else ""
    # A name in capitals, for decorators of passes and functions over modules are in small letters.
    return node.name[:1].isupper() and needed == 0 and returns in ("", "tvm.ir.transform.Pass")


@lru_cache
def zero_pipeline() -> tuple[str, ...]:
    """The passes of TVM's pipeline ``zero``, as this release has them; none if it has none."""
    for file in _sources("pipeline.py"):
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name == "zero_pipeline":
                called = next(n for n in ast.walk(node) if isinstance(n, ast.List)).elts
                names = [
                    c.func.attr
                    for c in called
                    if isinstance(c, ast.Call) and isinstance(c.func, ast.Attribute)
                ]
                return tuple("FoldConstant#2" if n == "FoldConstant" else n for n in names)
    return ()


def _sources(*place: str) -> list[Path]:
    """A file of Relax; not imported, which takes seconds."""
    spec = importlib.util.find_spec("tvm")
    folders = spec.submodule_search_locations if spec else None
    return [f for d in folders or () if (f := Path(d, "relax", *place)).is_file()]


@lru_cache
def is_installed(name: str) -> bool:
    """Whether this release has the pass; read from its sources, as importing it takes seconds."""
    spec = importlib.util.find_spec("tvm")
    folders = spec.submodule_search_locations if spec else None
    files = [f for d in folders or () for f in Path(d, "relax", "transform").glob("*.py")]
    wanted = re.compile(rf"^(def|class) {name}\b", re.MULTILINE)
    return not files or any(wanted.search(f.read_text("utf-8")) for f in files)


def make_pass(name: str) -> Any:
    """The pass of TVM called ``name``."""
    from tvm import relax

    if name == "ConvertLayout":
        return relax.transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]})
    kind = name.partition("#")[0]
    room = relax.backend if kind.startswith("Dispatch") else relax.transform
    return getattr(room, kind)()
