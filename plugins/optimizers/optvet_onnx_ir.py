"""onnx-ir's common passes, each by itself: what exporters and optimizers built on it apply.

The library has no pipeline of its own. The default one here has every pass that leaves the
interface and the metadata of a model as they are, in the order in which the library lists them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

import onnx
from pydantic import BaseModel, ConfigDict

from optvet.plugin import (
    Artifact,
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

_NO_REWRITES = frozenset({"Checker"})
_INPUTS = KnownLimit(
    frozenset({Symptom.INTERFACE_CHANGE, Symptom.METADATA_CHANGE}),
    "is there to change which weights a caller may replace",
)
_LIMITS = {
    "AddInitializersToInputs": _INPUTS,
    "RemoveInitializersFromInputs": _INPUTS,
    "ClearMetadataAndDocString": KnownLimit(
        frozenset({Symptom.METADATA_CHANGE}), "is there to clear metadata"
    ),
}


class OnnxIrOptions(BaseModel):
    """Passes are made without arguments, as the library's users make most of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class OnnxIr:
    """``onnx_ir.passes.common``."""

    name = "onnx_ir"
    preload: Sequence[str] = ("onnx", "onnx_ir.passes.common")
    libraries: Mapping[str, str] = {"onnx-ir": "onnx_ir"}
    released = ReleasedPackage("onnx-ir", "onnx_ir", "import onnx_ir.passes.common")
    options: OnnxIrOptions = OnnxIrOptions()
    traits = Traits(repeatable=True, max_model_bytes=2**31 - 1)

    def version(self) -> str:
        """Version of the installed package."""
        return version_of("onnx-ir", extra="optvet[onnxscript]")

    def passes(self) -> Sequence[Pass]:
        """All passes that the library offers."""
        limits = {name: (_LIMITS[name],) if name in _LIMITS else () for name in _names()}
        return [Pass(n, "pass", n not in _LIMITS, known_limits=limits[n]) for n in limits]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """All that keep interface and metadata."""
        return {"default": tuple(name for name in _names() if name not in _LIMITS)}

    def apply(self, source: Artifact, passes: Sequence[str], options: OnnxIrOptions) -> Artifact:
        """Apply ``passes`` one after the other; none is the way into the library and back."""
        import onnx_ir

        known, changing = _names(), []
        model = onnx_ir.serde.deserialize_model(onnx.load_from_string(source.data))
        for name in passes:
            if name not in known:
                raise UnknownName("pass of onnx_ir", name, known)
            result = getattr(onnx_ir.passes.common, f"{name}Pass")()(model)
            changing += [name] if result.modified else []
            model = result.model
        data = onnx_ir.serde.serialize_model(model).SerializeToString(deterministic=True)
        return Artifact("onnx", data, changing_passes=tuple(dict.fromkeys(changing)))

    def changing_passes(
        self, source: Artifact, passes: Sequence[str], options: OnnxIrOptions
    ) -> Sequence[str] | None:
        """Passes that say that they modified the model."""
        return self.apply(source, passes, options).changing_passes

    def snippet(self, passes: Sequence[str], options: OnnxIrOptions) -> str:
        """The passes one after the other."""
        calls = "".join(f"graph = passes.{name}Pass()(graph).model\n" for name in passes)
        return textwrap.dedent("""\
            import onnx_ir
            from onnx_ir.passes import common as passes

            graph = onnx_ir.serde.deserialize_model(model)
            {calls}return onnx_ir.serde.serialize_model(graph)""").format(calls=calls)

    def code_of(self, name: str, options: OnnxIrOptions) -> Sequence[str]:
        """The module of the pass."""
        import onnx_ir.passes.common as passes

        return [getattr(passes, f"{name}Pass").__module__]


def _names() -> list[str]:
    """The library's passes that may rewrite a model."""
    import onnx_ir.passes.common as passes

    names = [name.removesuffix("Pass") for name in passes.__all__ if name.endswith("Pass")]
    return [name for name in names if name not in _NO_REWRITES]


@hookimpl
def optvet_optimizers() -> Iterable[Optimizer]:
    """The passes of onnx-ir."""
    return [OnnxIr()]
