"""onnxruntime.transformers: fusions for transformer models, by the flags of ``FusionOptions``.

It comes with ONNX Runtime, but for sympy. A flag relies on what others did before it, in an order
of the tool's own. Some steps have no flag (identities, casts and reshapes of no effect,
constants): these are what the empty pipeline does. The result is read back from where the tool
saves it, since saving is what completes it.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import onnx
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    Artifact,
    KnownLimit,
    MissingLibrary,
    Pass,
    Symptom,
    Traits,
    UnknownName,
    UsageError,
)
from optvet_onnxruntime.installed_version import installed_version
from optvet_onnxruntime.released import RELEASED

_LOSSY = {"enable_gelu_approximation": 1e-2}
"""Gelu by tanh is off by at most 5e-4, layer by layer."""
_LIMITS = {
    "enable_gemm_fast_gelu": KnownLimit(
        frozenset({Symptom.LOAD_FAILURE}), "makes an operator that only GPU providers have"
    ),
}


class OrtTransformersOptions(BaseModel):
    """Arguments of ``optimize_model``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model_type: str = "bert"
    """Which of the tool's model types to take it for."""
    num_heads: int = Field(default=0, ge=0)
    """Attention heads; 0 to detect them."""
    hidden_size: int = Field(default=0, ge=0)
    """Width of the hidden layers; 0 to detect it."""
    opt_level: Literal[0, 1, 2, 99] = 0
    """Graph optimization of the runtime itself beforehand; above 0 the tool needs torch."""


class OrtTransformers:
    """The ``transformers`` tool inside the ``onnxruntime`` package."""

    name = "ort_transformers"
    preload: Sequence[str] = ("onnx", "onnxruntime", "onnxruntime.transformers.optimizer")
    environment: Mapping[str, str] = {"ORT_DISABLE_TELEMETRY": "1"}
    released = RELEASED
    options: OrtTransformersOptions = OrtTransformersOptions()
    traits = Traits(
        ordered=False, composable=False, single=False, max_model_bytes=2**31 - 1, dialect=True
    )

    def version(self) -> str:
        """Version of the installed package; without sympy, the tool fails on most models."""
        if importlib.util.find_spec("sympy") is None:
            raise MissingLibrary("sympy", "optvet[transformers]")
        return installed_version()

    def check_options(self, options: OrtTransformersOptions) -> None:
        """Whether there is such a model type, and torch where the level needs it."""
        _flags(options.model_type)
        if options.opt_level and importlib.util.find_spec("torch") is None:
            raise UsageError(
                f"optimizer 'ort_transformers': option 'opt_level' = {options.opt_level}: above 0 "
                "the tool needs torch; install optvet[torch]"
            )

    def passes(self) -> Sequence[Pass]:
        """All flags of all model types; the defaults are those of "bert"."""
        flags: dict[str, bool] = {}
        for model_type in _model_types():
            for name, default in _flags(model_type).items():
                flags.setdefault(name, default and model_type == "bert")
        return [
            Pass(
                name,
                "fuse",
                default,
                lossy=name in _LOSSY,
                tolerance=_LOSSY.get(name),
                known_limits=(_LIMITS[name],) if name in _LIMITS else (),
            )
            for name, default in flags.items()
        ]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """What is on by default for each model type; "default" is that of "bert"."""
        types = {t: tuple(n for n, on in _flags(t).items() if on) for t in _model_types()}
        return {"default": types["bert"], **types}

    def apply(
        self, source: Artifact, passes: Sequence[str], options: OrtTransformersOptions
    ) -> Artifact:
        """Switch on exactly the flags in ``passes``."""
        from onnxruntime.transformers import fusion_options, optimizer

        flags = _known_flags(passes, options)
        chosen = fusion_options.FusionOptions(options.model_type)
        for name in flags:
            setattr(chosen, name, name in passes)
        fused = optimizer.optimize_model(
            onnx.load_from_string(source.data), optimization_options=chosen, **options.model_dump()
        )
        with tempfile.TemporaryDirectory(prefix="optvet-") as folder:
            path = Path(folder) / "model.onnx"
            fused.save_model_to_file(str(path))
            return Artifact("onnx", onnx.load(path).SerializeToString(deterministic=True))

    def snippet(self, passes: Sequence[str], options: OrtTransformersOptions) -> str:
        """``optimize_model`` with exactly the flags in ``passes``, saved and read back."""
        _known_flags(passes, options)
        return _call(
            options,
            f"options = FusionOptions({options.model_type!r})",
            "for name in [name for name in vars(options) if name.startswith('enable_')]:",
            "    if isinstance(getattr(options, name), bool):",
            *textwrap.wrap(
                f"        setattr(options, name, name in {list(passes)!r})",
                92,
                subsequent_indent=" " * 12,
            ),
        )

    def simple_snippets(
        self, passes: Sequence[str], options: OrtTransformersOptions
    ) -> Sequence[str]:
        """The flags that are on by default, and those in ``passes`` that are not."""
        flags = _known_flags(passes, options)
        more = [f"options.{name} = True" for name in passes if not flags[name]]
        wanted = [f"options = FusionOptions({options.model_type!r})", *more] if more else []
        return [_call(options, *wanted)]

    def code_of(self, name: str, options: OrtTransformersOptions) -> Sequence[str]:
        """All fusions that the tool imports: it does not say which flag switches which one.

        It imports them as modules of no package.
        """
        from onnxruntime.transformers import optimizer

        folder = str(Path(optimizer.__file__).parent / "fusion_")
        fusions = [m for m, module in sys.modules.items() if _file_of(module).startswith(folder)]
        return sorted({*fusions} - {"fusion_base", "fusion_options"})


def _file_of(module: object) -> str:
    return getattr(module, "__file__", None) or ""


def _known_flags(passes: Sequence[str], options: OrtTransformersOptions) -> dict[str, bool]:
    """The flags of the model type; refuses others, which the tool itself would swallow."""
    flags = _flags(options.model_type)
    for name in passes:
        if name not in flags:
            raise UnknownName(f"flag of model type {options.model_type}", name, flags)
    return flags


def _call(options: OrtTransformersOptions, *wanted: str) -> str:
    """Code that fuses ``model``, with ``options`` if the lines ``wanted`` make any."""
    keywords = {"model_type": options.model_type, "opt_level": options.opt_level}
    keywords |= {n: v for n in ("num_heads", "hidden_size") if (v := getattr(options, n))}
    arguments = ", ".join(f"{name}={value!r}" for name, value in keywords.items())
    if wanted:
        arguments += ", optimization_options=options"
    options_class = "from onnxruntime.transformers.fusion_options import FusionOptions"
    return "\n".join(
        (
            "import tempfile\n",
            "import onnx",
            *([options_class] if wanted else []),
            "from onnxruntime.transformers.optimizer import optimize_model\n",
            *wanted,
            *textwrap.wrap(
                f"fused = optimize_model(model, {arguments})", 92, subsequent_indent=" " * 4
            ),
            "with tempfile.TemporaryDirectory() as folder:",
            "    fused.save_model_to_file(f'{folder}/model.onnx')",
            "    return onnx.load(f'{folder}/model.onnx')",
        )
    )


def _model_types() -> list[str]:
    """Model types of the installed version; "bert" is what it takes a model for by default."""
    from onnxruntime.transformers import optimizer

    return ["bert", *sorted(set(optimizer.MODEL_TYPES) - {"bert"})]


def _flags(model_type: str) -> dict[str, bool]:
    """Flags that say whether to do something, with their defaults."""
    from onnxruntime.transformers import fusion_options

    if model_type not in _model_types():
        known = ", ".join(_model_types())
        raise UsageError(
            f"optimizer 'ort_transformers': option 'model_type' = {model_type!r}: there is no such "
            f"model type; known: {known}"
        )
    flags: dict[str, Any] = vars(fusion_options.FusionOptions(model_type))
    return {n: v for n, v in flags.items() if n.startswith("enable_") and isinstance(v, bool)}
