"""onnxslim: fusion and elimination patterns, and the stages around them.

A pattern works inside the stage ``graph_fusion``, which any pattern switches on. The empty
pipeline is the way through onnxslim's own graph that every stage takes.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack

import onnx
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    Artifact,
    Optimizer,
    Pass,
    ReleasedPackage,
    Traits,
    UnknownName,
    hookimpl,
    version_of,
)


class OnnxslimOptions(BaseModel):
    """Options of ``onnxslim.slim``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_iterations: int = Field(default=10, ge=1)
    """Rounds at most; it stops where a round changes nothing."""
    size_threshold: int = Field(default=0, ge=0)
    """Bytes above which a constant is not folded; 0 for no limit."""


class Onnxslim:
    """The ``onnxslim`` package, 0.1.88 and later."""

    name = "onnxslim"
    preload: Sequence[str] = ("onnx", "onnxslim", "onnxslim.core")
    released = ReleasedPackage(
        "onnxslim", "onnxslim", "import onnxslim.core.pattern.registry", ("onnx<1.18",)
    )
    options: OnnxslimOptions = OnnxslimOptions()
    # Patterns are tried in the order of their registration, round after round.
    traits = Traits(ordered=False, composable=False, max_model_bytes=2**31 - 1)

    def version(self) -> str:
        """Version of the installed package."""
        return version_of("onnxslim", extra="optvet[onnxslim]")

    def passes(self) -> Sequence[Pass]:
        """Registered patterns, the stages, and the shape inference between rounds."""
        from onnxslim.core import OptimizationSettings
        from onnxslim.core.pattern.registry import DEFAULT_FUSION_PATTERNS

        kinds = {"Elimination": "eliminate", "Fusion": "fuse"}
        patterns = [
            Pass(n, next((k for p, k in kinds.items() if n.startswith(p)), "rewrite"))
            for n in DEFAULT_FUSION_PATTERNS
        ]
        return [*patterns, *(Pass(n, "stage") for n in (*OptimizationSettings.keys(), _SHAPES))]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """Everything: that is its default."""
        everything = tuple(p.name for p in self.passes())
        return {"default": everything, "all": everything}

    def apply(self, source: Artifact, passes: Sequence[str], options: OnnxslimOptions) -> Artifact:
        """Skip whatever is not among ``passes``."""
        from unittest.mock import patch

        import onnxslim
        from onnxslim.core import optimize

        arguments, has_stages = self._arguments(passes, options)
        # Parsed anew, since ``slim`` takes initializers out of its argument's inputs.
        proto = onnx.load_from_string(source.data)
        with patch.dict(os.environ, ONNXSLIM_MAX_ITER=str(options.max_iterations)):
            proto = onnxslim.slim(proto, **arguments)
        if not has_stages:
            # ``slim`` left the settings, which are global, as they are here: all off.
            proto = optimize(proto)
        return Artifact("onnx", proto.SerializeToString(deterministic=True))

    def changing_passes(
        self, source: Artifact, passes: Sequence[str], options: OnnxslimOptions
    ) -> Sequence[str]:
        """The patterns that matched somewhere, and all stages, of which nothing is known."""
        from unittest.mock import patch

        from onnxslim.core.pattern.registry import DEFAULT_FUSION_PATTERNS

        matched: set[str] = set()

        def noting(name: str, rewrite: Callable[..., object]) -> Callable[..., object]:
            def rewritten(*args: object, **named: object) -> object:
                matched.add(name)
                return rewrite(*args, **named)

            return rewritten

        with ExitStack() as stack:
            for name, matchers in DEFAULT_FUSION_PATTERNS.items():
                for matcher in matchers:
                    noted = noting(name, matcher.rewrite)
                    stack.enter_context(patch.object(matcher, "rewrite", noted))
            self.apply(source, passes, options)
        return [n for n in passes if n in matched or n not in DEFAULT_FUSION_PATTERNS]

    def snippet(self, passes: Sequence[str], options: OnnxslimOptions) -> str:
        """The call of ``slim`` that skips all but ``passes``."""
        arguments, has_stages = self._arguments(passes, options)
        return _call(options, arguments, "model" if has_stages else "onnxslim.core.optimize(model)")

    def simple_snippets(self, passes: Sequence[str], options: OnnxslimOptions) -> Sequence[str]:
        """``slim`` as it is; then with the other stages skipped, and the other patterns not."""
        threshold = {"size_threshold": options.size_threshold or None}
        size = {name: value for name, value in threshold.items() if value is not None}
        arguments, _ = self._arguments(passes, options)
        few = {n: v for n, v in arguments.items() if v and n != "skip_fusion_patterns"}
        return [_call(options, size), _call(options, few)]

    def code_of(self, name: str, options: OnnxslimOptions) -> Sequence[str]:
        """The module of a pattern, or of a stage that has one of its own."""
        import onnxslim.core.optimization as stages
        from onnxslim.core.pattern.registry import DEFAULT_FUSION_PATTERNS

        if patterns := DEFAULT_FUSION_PATTERNS.get(name):
            return list(dict.fromkeys(type(pattern).__module__ for pattern in patterns))
        return [module] if (module := f"{stages.__name__}.{name}") in sys.modules else []

    def _arguments(
        self, passes: Sequence[str], options: OnnxslimOptions
    ) -> tuple[dict[str, object], bool]:
        """Arguments of ``slim``, and whether they leave any stage on."""
        from onnxslim.core import OptimizationSettings

        known = {p.name: p.kind for p in self.passes()}
        for name in passes:
            if name not in known:
                raise UnknownName("pass of onnxslim", name, known)
        patterns = {n for n, kind in known.items() if kind != "stage"}
        stages = set(OptimizationSettings.keys()).intersection(passes)
        if patterns.intersection(passes):
            stages.add("graph_fusion")
        arguments = {
            "skip_fusion_patterns": sorted(patterns.difference(passes)),
            "skip_optimizations": [n for n in OptimizationSettings.keys() if n not in stages],
            "no_shape_infer": _SHAPES not in passes,
            "size_threshold": options.size_threshold or None,
        }
        return arguments, bool(stages)


_SHAPES = "shape_inference"


def _call(
    options: OnnxslimOptions, arguments: Mapping[str, object], returned: str = "model"
) -> str:
    """Code that slims ``model`` with ``arguments``."""
    operands = ", ".join(("model", *(f"{name}={value!r}" for name, value in arguments.items())))
    default = type(options).model_fields["max_iterations"].default
    rounds = f"os.environ['ONNXSLIM_MAX_ITER'] = '{options.max_iterations}'"
    lines = [] if options.max_iterations == default else ["import os\n", rounds]
    lines += ["import onnxslim\n", *_wrap("model = onnxslim.slim(", operands)]
    return "\n".join([*lines, f"return {returned}"])


def _wrap(opening: str, operands: str) -> list[str]:
    """A call on one line or, if it is long, with its arguments below."""
    if len(opening) + len(operands) < 92:
        return [f"{opening}{operands})"]
    indent = " " * 4
    return [
        opening,
        textwrap.fill(operands, 92, initial_indent=indent, subsequent_indent=indent),
        ")",
    ]


@hookimpl
def optvet_optimizers() -> Iterable[Optimizer]:
    """The slimmer onnxslim."""
    return [Onnxslim()]
