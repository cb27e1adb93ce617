"""IREE, a compiler on MLIR: passes over the linear algebra of a model, one by one.

A model is imported from ONNX, which makes operations on tensors of it (``linalg``), and then the
passes run, each as ``iree-opt`` would run it. What the compiler does behind them, down to kernels,
is the fixed lowering, and belongs to the runtime: the empty pipeline is import and lowering. The
lowering has many of these passes itself, so one that is left out here may run there; a pass is
judged by what it does as the first.

The passes of the default pipeline are those of IREE's global optimization, in its order. Others
are on request: those of IREE's preprocessing, for hardware that likes another form, and MLIR's own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, field_validator

from optvet.plugin import Artifact, Pass, Traits, UnknownName, UsageError, version_of
from optvet_iree.compiling import (
    IreeError,
    MlirModule,
    check_pass,
    imported,
    pass_code,
    run_passes,
)

# In the order in which IREE 3.13 runs them.
_GLOBAL = (
    "inline cse symbol-dce iree-util-optimize-int-arithmetic "
    "iree-global-opt-quantized-conv-to-conv iree-global-opt-quantized-matmul-to-matmul "
    "iree-global-opt-propagate-affine-quantization iree-global-opt-convert-qdq-to-integer-math "
    "canonicalize iree-global-opt-remove-zero-extent-tensors "
    "iree-global-opt-detach-elementwise-from-named-ops simplify-depthwise-conv "
    "iree-global-opt-erase-unused-linalg-operands iree-global-opt-expand-tensor-shapes "
    "convert-elementwise-to-linalg iree-global-opt-raise-special-ops "
    "iree-global-opt-decompose-concat iree-global-opt-generalize-linalg-named-ops "
    "iree-dispatch-creation-fold-unit-extent-dims iree-global-opt-convert-batch-matmul-to-matmul "
    "iree-global-opt-propagate-linalg-transpose "
    "iree-global-opt-convert-strided-contraction-to-contraction "
    "iree-global-opt-loop-invariant-code-motion iree-util-simplify-global-accesses "
    "iree-util-apply-patterns iree-util-fold-globals iree-util-ipo iree-util-hoist-into-globals"
).split()
_ON_REQUEST = (
    "linalg-generalize-named-ops linalg-specialize-generic-ops linalg-fold-unit-extent-dims "
    "linalg-fuse-elementwise-ops linalg-inline-scalar-operands "
    "iree-preprocessing-convert-1x1-filter-conv2d-to-matmul "
    "iree-preprocessing-convert-conv-filter-to-channels-last "
    "iree-preprocessing-convert-conv-to-channels-last "
    "iree-preprocessing-generalize-linalg-matmul-experimental "
    "iree-preprocessing-transpose-matmul-pass iree-linalg-ext-convert-conv2d-to-winograd "
    "iree-global-opt-demote-contraction-inputs"
).split()
# Relative to the largest value of an output: bfloat16 has 8 bits, and Winograd adds first.
_TOLERANCES = {
    "iree-global-opt-demote-contraction-inputs": 5e-2,
    "iree-linalg-ext-convert-conv2d-to-winograd": 1e-3,
}
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


class IreeOptions(BaseModel):
    """Which passes there are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    extra_passes: tuple[str, ...] = ()
    """Further passes of the compiler by the names that ``iree-opt --help`` lists, without options,
    behind all others."""

    @field_validator("extra_passes")
    @classmethod
    def _are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a pass, such as linalg-morph-ops")
        return value


class IreeOptimizer:
    """The passes of the ``iree-base-compiler`` package."""

    name = "iree"
    preload: Sequence[str] = ()
    traits = Traits(produces="mlir-module", reference="empty pipeline", repeatable=True)

    def __init__(self, options: IreeOptions | None = None) -> None:
        self.options: IreeOptions = options or IreeOptions()

    def configured(self, options: IreeOptions) -> IreeOptimizer:
        """The same with the passes that exist under ``options``."""
        return IreeOptimizer(options)

    def check_options(self, options: IreeOptions) -> None:
        """Whether the compiler has the passes that were added."""
        for name in options.extra_passes:
            option = f"optimizer 'iree': option 'extra_passes' = {name!r}"
            if name in (*_GLOBAL, *_ON_REQUEST) or options.extra_passes.count(name) > 1:
                raise UsageError(f"{option}: this pass is in the list already")
            try:
                check_pass(name)
            except IreeError as error:
                raise UsageError(f"{option}: {error}; iree-opt --help lists them") from error

    def version(self) -> str:
        """Version of the installed package."""
        return version_of("iree-base-compiler", extra="optvet[iree]")

    def passes(self) -> Sequence[Pass]:
        """Those of the global optimization in its order, then those on request."""
        return [
            *(Pass(name, _kind(name)) for name in _GLOBAL),
            *(_on_request(name) for name in (*_ON_REQUEST, *self.options.extra_passes)),
        ]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """``default``: IREE's global optimization; ``all``: what rounds as the original does."""
        known = self.passes()
        return {
            "default": [p.name for p in known if p.default],
            "all": [p.name for p in known if not p.lossy],
        }

    def apply(self, source: Artifact, passes: Sequence[str], options: IreeOptions) -> Artifact:
        """The model in MLIR after ``passes``."""
        known = {p.name for p in self.configured(options).passes()}
        for name in passes:
            if name not in known:
                raise UnknownName("pass of iree", name, known)
        module = imported(source.data)
        code, changed = run_passes(module.code, passes)
        return Artifact(
            "mlir-module",
            handle=MlirModule(code, module.inputs, module.outputs),
            fingerprint=hashlib.sha256(code).hexdigest(),
            changing_passes=tuple(dict.fromkeys(changed)),
        )

    def changing_passes(
        self, source: Artifact, passes: Sequence[str], options: IreeOptions
    ) -> Sequence[str] | None:
        """Passes after which the module was another one; None if one of them failed."""
        try:
            return self.apply(source, passes, options).changing_passes
        except IreeError:
            return None

    def snippet(self, passes: Sequence[str], options: IreeOptions) -> str:
        """Import, and each pass as ``iree-opt`` runs it."""
        return pass_code(passes)


def _on_request(name: str) -> Pass:
    tolerance = _TOLERANCES.get(name)
    lossy = tolerance is not None
    return Pass(name, _kind(name), default=False, lossy=lossy, tolerance=tolerance)


def _kind(name: str) -> str:
    """Where the pass is from: "mlir", or a part of IREE."""
    match = re.match(r"iree-(global-opt|util|preprocessing|linalg-ext|dispatch-creation)", name)
    return match[1] if match else "mlir"
