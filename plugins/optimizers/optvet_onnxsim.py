"""onnxsim: its optimizers, constant folding and shape inference, each switched on by name.

Optimizers are read from the installed library. Only what it cannot say of itself is written down
here: which of those that a user has to ask for deviate on purpose.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import onnx
from pydantic import BaseModel, ConfigDict

from optvet.plugin import (
    Artifact,
    InterfaceChange,
    KnownLimit,
    Optimizer,
    Pass,
    ReleasedPackage,
    Symptom,
    Traits,
    UnknownName,
    hookimpl,
    version_of,
)

_STAGES = ("constant_folding", "shape_inference")
_PARTIAL = frozenset(
    {
        Symptom.INVALID_MODEL,
        Symptom.LOAD_FAILURE,
        Symptom.RUN_FAILURE,
        Symptom.INTERFACE_CHANGE,
        Symptom.WRONG_OUTPUT,
        Symptom.METADATA_CHANGE,
    }
)
_LIMITS = {
    "split_init": KnownLimit(_PARTIAL, "keeps only what does not depend on the inputs"),
    "split_predict": KnownLimit(_PARTIAL, "keeps only what depends on the inputs"),
    "lift_lexical_references": KnownLimit(_PARTIAL, "marks captured values; not standard ONNX"),
}
_APPROXIMATE = KnownLimit(
    frozenset({Symptom.WRONG_OUTPUT}), "approximates on purpose, within no declared bound"
)
_INTERFACE: dict[str, frozenset[InterfaceChange]] = {
    "rename_input_output": frozenset({"names"}),
    "rewrite_input_dtype": frozenset({"input-dtypes"}),
}
# Opt-in passes of these families state an equation; all others quantize, prune or round.
_EXACT = (
    "adjust",
    "defuse",
    "dilated",
    "eliminate",
    "explicit",
    "extract",
    "float16_to",
    "fuse",
    "gemm_trans",
    "lift",
    "maxpool_rowmajor",
    "neg_to",
    "pow2_to",
    "rank0",
    "rename",
    "replace",
    "rewrite",
    "set_unique",
    "split",
)


class OnnxsimOptions(BaseModel):
    """Options of ``onnxsim.simplify``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    include_subgraph: bool = False
    """Simplify the branches of control flow, too."""


class Onnxsim:
    """The ``onnxsim`` package, 0.8 and later."""

    name = "onnxsim"
    preload: Sequence[str] = ("onnx", "onnxsim", "onnxruntime")
    environment: Mapping[str, str] = {"ORT_DISABLE_TELEMETRY": "1"}
    imports: Mapping[str, Sequence[str]] = {"onnxsim": ("torch",)}
    released = ReleasedPackage("onnxsim", "onnxsim", "onnxsim.simplify")
    options: OnnxsimOptions = OnnxsimOptions()
    # All that is switched on is repeated until nothing changes, in the library's own order.
    traits = Traits(ordered=False, composable=False, max_model_bytes=2**31 - 1)

    def version(self) -> str:
        """Version of the installed package."""
        return version_of("onnxsim", extra="optvet[onnxsim]")

    def passes(self) -> Sequence[Pass]:
        """Its default optimizers and stages, then those that a user has to ask for."""
        default, other = _optimizers()
        stages = [Pass(n, "stage") for n in _STAGES]
        return [*(_describe(n, True) for n in default), *stages, *(_describe(n) for n in other)]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """What ``simplify`` does; "all" adds the opt-in passes that state an equation."""
        passes = self.passes()
        return {
            "default": tuple(p.name for p in passes if p.default),
            "all": tuple(p.name for p in passes if not p.known_limits),
        }

    def apply(self, source: Artifact, passes: Sequence[str], options: OnnxsimOptions) -> Artifact:
        """Skip whatever is not among ``passes``."""
        import onnxsim

        proto = onnx.load_from_string(source.data)
        simplified, _ = onnxsim.simplify(proto, **_arguments(passes, options))
        return Artifact("onnx", simplified.SerializeToString(deterministic=True))

    def snippet(self, passes: Sequence[str], options: OnnxsimOptions) -> str:
        """The call of ``simplify`` that skips all but ``passes``."""
        return _call({n: v for n, v in _arguments(passes, options).items() if v})

    def simple_snippets(self, passes: Sequence[str], options: OnnxsimOptions) -> Sequence[str]:
        """``simplify`` as it is, or with what has to be asked for."""
        wanted = ("extra_optimizers", "include_subgraph")
        arguments = _arguments(passes, options)
        return [_call({n: arguments[n] for n in wanted if arguments[n]})]


def _arguments(passes: Sequence[str], options: OnnxsimOptions) -> dict[str, Any]:
    """Arguments of ``simplify`` that skip whatever is not among ``passes``."""
    default, other = _optimizers()
    for name in passes:
        if name not in {*default, *other, *_STAGES}:
            raise UnknownName("pass of onnxsim", name, (*default, *other, *_STAGES))
    return {
        "skipped_optimizers": [n for n in default if n not in passes],
        # None, as a caller without wishes says: the library notes what it was given.
        "extra_optimizers": [n for n in other if n in passes] or None,
        "skip_constant_folding": "constant_folding" not in passes,
        "skip_shape_inference": "shape_inference" not in passes,
        "include_subgraph": options.include_subgraph,
    }


def _call(arguments: Mapping[str, object]) -> str:
    """Code that simplifies ``model`` with ``arguments``."""
    operands = ", ".join(("model", *(f"{name}={value!r}" for name, value in arguments.items())))
    call = textwrap.fill(
        f"simplified, _ = onnxsim.simplify({operands})", 92, subsequent_indent="    "
    )
    return f"import onnxsim\n\n{call}\nreturn simplified"


def _optimizers() -> tuple[list[str], list[str]]:
    """Names of the default optimizers and of the others."""
    native = _native()
    # In this order: asking for the others is what registers the library's own among the default.
    other = list(native._list_other_optimizers())
    return list(native._list_optimizers()), other


def _native() -> ModuleType:
    """The library's extension module, which knows the names, without the package around it.

    The package imports all that it can do besides, torch too where that is installed: 2 s and
    600 MB for a list of names. Imported afterwards, it finds the extension under its name.
    """
    name = "onnxsim.onnxsim_cpp2py_export"
    if name not in sys.modules:
        package = importlib.util.find_spec("onnxsim")
        folders = package.submodule_search_locations if package else None
        spec = importlib.machinery.PathFinder.find_spec(name, folders)
        if spec is None or spec.loader is None:
            return importlib.import_module(name)  # Says what is missing.
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def _describe(name: str, default: bool = False) -> Pass:
    limit = _LIMITS.get(name)
    if limit is None and not default and not name.startswith(_EXACT):
        limit = _APPROXIMATE
    kind = name.partition("_")[0] if name.startswith(("eliminate", "fuse")) else "rewrite"
    limits = (limit,) if limit else ()
    interface = _INTERFACE.get(name, frozenset())
    return Pass(name, kind, default, interface=interface, known_limits=limits)


@hookimpl
def optvet_optimizers() -> Iterable[Optimizer]:
    """The simplifier onnxsim."""
    return [Onnxsim()]
