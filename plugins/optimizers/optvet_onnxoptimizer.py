"""ONNX Optimizer: passes, kinds and defaults are read from the installed library.

Only what the library cannot say of itself is written down here: which passes deviate on purpose.
"""

from __future__ import annotations

import tempfile
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

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
    hookimpl,
    version_of,
)

_NON_STANDARD = frozenset(
    {
        Symptom.INVALID_MODEL,
        Symptom.LOAD_FAILURE,
        Symptom.RUN_FAILURE,
        Symptom.INTERFACE_CHANGE,
        Symptom.WRONG_OUTPUT,
        Symptom.METADATA_CHANGE,
        Symptom.BLOAT,
    }
)
_LIMITS = {
    "split_init": "keeps only the part of the graph that does not depend on the inputs",
    "split_predict": "keeps only the part of the graph that depends on the inputs",
    "lift_lexical_references": "marks captured values with an attribute that is not standard ONNX",
}
_INTERFACE: dict[str, frozenset[InterfaceChange]] = {
    "rename_input_output": frozenset({"names"}),
    "rewrite_input_dtype": frozenset({"input-dtypes"}),
}
_KINDS = ("fuse", "eliminate", "rewrite", "replace", "extract", "split", "lift", "adjust", "rename")


class OnnxOptimizerOptions(BaseModel):
    """Options of ``onnxoptimizer.optimize``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fixed_point: bool = False
    """Repeat the passes until nothing changes any more."""
    weights: Literal["inside", "beside"] = "inside"
    """inside: it gets the model as one message. beside: as a file, with its weights in
    another one beside it, which is the library's way for models above 2 GiB."""


class OnnxOptimizer:
    """The ``onnxoptimizer`` package, 0.3.7 and later."""

    name = "onnxoptimizer"
    preference = 100
    preload: Sequence[str] = ("onnx", "onnxoptimizer")
    libraries: Mapping[str, str] = {"onnxoptimizer": "onnxoptimizer"}
    released = ReleasedPackage(
        "onnxoptimizer", "onnxoptimizer", "onnxoptimizer.get_available_passes()", ("numpy<2",)
    )
    options: OnnxOptimizerOptions = OnnxOptimizerOptions()
    rare_options: Mapping[str, Any] = {"weights": "beside"}
    # Serialized models above 2 GiB do not fit a protobuf message.
    traits = Traits(repeatable=True, one_way=True, max_model_bytes=2**31 - 1)

    def version(self) -> str:
        """Version of the installed package."""
        return version_of("onnxoptimizer", extra="optvet")

    def passes(self) -> Sequence[Pass]:
        """All passes that the library registers."""
        import onnxoptimizer

        default = set(onnxoptimizer.get_fuse_and_elimination_passes())
        return [_describe(name, name in default) for name in onnxoptimizer.get_available_passes()]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """The library's own default, and every pass that yields a whole, standard model."""
        import onnxoptimizer

        return {
            "default": tuple(onnxoptimizer.get_fuse_and_elimination_passes()),
            "all": tuple(n for n in onnxoptimizer.get_available_passes() if n not in _LIMITS),
        }

    def apply(
        self, source: Artifact, passes: Sequence[str], options: OnnxOptimizerOptions
    ) -> Artifact:
        """Apply ``passes`` in one call; no passes is the library's own ``nop``."""
        import onnxoptimizer
        from onnxoptimizer import onnx_opt_cpp2py_export as native

        if options.weights == "beside":
            return self._from_files(source, passes, options)
        names = list(passes) or ["nop"]
        # The native entry point spares one parse and two serializations of all weights per call:
        # 0.12 s instead of 0.30 s on a model of 100 MB.
        optimize = native.optimize_fixedpoint if options.fixed_point else native.optimize
        try:
            return Artifact("onnx", optimize(source.data, names))
        except ValueError:
            # The public function answers this with a detour over external data, so users see that
            # detour's outcome. It empties the tensors of its argument: a fresh ModelProto.
            proto = onnx.load_from_string(source.data)
            optimized = onnxoptimizer.optimize(proto, names, options.fixed_point)
            return Artifact("onnx", optimized.SerializeToString(deterministic=True))

    def _from_files(
        self, source: Artifact, passes: Sequence[str], options: OnnxOptimizerOptions
    ) -> Artifact:
        """Apply ``passes`` to the model in a file whose weights are in another one."""
        with tempfile.TemporaryDirectory(prefix="optvet-") as name:
            path = Path(name, "model.onnx")
            model = onnx.load_from_string(source.data)
            onnx.save(model, path, save_as_external_data=True, location="data", size_threshold=0)
            artifact = self.apply_file(Artifact("onnx", path=path), passes, options, Path(name))
            optimized = onnx.load(str(artifact.path))
        return Artifact("onnx", optimized.SerializeToString(deterministic=True))

    # Message, its graph, the message made of that, and its text: onnxoptimizer 0.4.2.
    memory_factor = 4.25

    def apply_file(
        self, source: Artifact, passes: Sequence[str], options: OnnxOptimizerOptions, folder: Path
    ) -> Artifact:
        """The same by the library's functions for large models, which read and write files."""
        from onnxoptimizer import onnx_opt_cpp2py_export as native

        names = list(passes) or ["nop"]
        target = folder / "optimized.onnx"
        optimize = getattr(native, _of_files(options))
        optimize(str(source.path), str(target), names, "weights.bin")
        return Artifact("onnx", path=target)

    def snippet(self, passes: Sequence[str], options: OnnxOptimizerOptions) -> str:
        """The call of the library's public function."""
        names = list(passes) or ["nop"]
        if options.weights == "beside":
            return _SNIPPET.format(function=_of_files(options), names=names)
        fixed = ", fixed_point=True" if options.fixed_point else ""
        lines, listed = self._list_passes(names)
        call = f"return onnxoptimizer.optimize(model, {listed}{fixed})"
        return "\n".join(("import onnxoptimizer\n", *lines, call))

    def _list_passes(self, names: Sequence[str]) -> tuple[list[str], str]:
        """Lines that make ``names``, and the list: the default without a few, where it is that."""
        default = self.pipelines()["default"]
        off = [name for name in default if name not in names]
        if [name for name in default if name in names] != list(names) or len(off) > len(names):
            return [], repr(list(names))
        get_default = "default = onnxoptimizer.get_fuse_and_elimination_passes()"
        if not off:
            return [get_default], "default"
        lines = [
            textwrap.fill(f"off = {off!r}", 92, subsequent_indent=" " * 4),
            get_default,
        ]
        return lines, "[name for name in default if name not in off]"

    def simple_snippets(
        self, passes: Sequence[str], options: OnnxOptimizerOptions
    ) -> Sequence[str]:
        """The same with the library's default passes; none of files, which it has no name for."""
        if options.weights == "beside":
            return []
        fixed = ", fixed_point=True" if options.fixed_point else ""
        return [f"import onnxoptimizer\n\nreturn onnxoptimizer.optimize(model{fixed})"]


_SNIPPET = """\
import tempfile

import onnx
from onnxoptimizer import onnx_opt_cpp2py_export as native

with tempfile.TemporaryDirectory() as folder:
    path, optimized = f"{{folder}}/model.onnx", f"{{folder}}/optimized.onnx"
    onnx.save(model, path, save_as_external_data=True, location="data", size_threshold=0)
    native.{function}(path, optimized, {names!r}, "optimized.data")
    return onnx.load(optimized)"""


def _of_files(options: OnnxOptimizerOptions) -> str:
    """The name of the library's function for models in files."""
    return "optimize_fixedpoint_from_path" if options.fixed_point else "optimize_from_path"


def _describe(name: str, default: bool) -> Pass:
    kind = next((k for k in _KINDS if name.startswith(k)), "rewrite")
    limits = (KnownLimit(_NON_STANDARD, _LIMITS[name]),) if name in _LIMITS else ()
    interface = _INTERFACE.get(name, frozenset())
    return Pass(name, kind, default, interface=interface, known_limits=limits)


@hookimpl
def optvet_optimizers() -> Iterable[Optimizer]:
    """ONNX Optimizer."""
    return [OnnxOptimizer()]
