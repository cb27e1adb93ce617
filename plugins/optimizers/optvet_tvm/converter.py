"""TVM's importers: from ONNX, and from modules and exported programs of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    Artifact,
    ConversionStage,
    Feeds,
    PartScript,
    Session,
    load_factory,
    version_of,
)

RELAX = "tvm-relax"
_EXTRA = "optvet[tvm]"
_IMPORTS = """\
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx"""
_OPTIMIZE = """\
with target:
    module = relax.get_pipeline("zero")(module)
"""
_CONVERT = """\
module, target = from_onnx(model), tvm.target.Target("llvm")
{optimize}return relax.VirtualMachine(relax.build(module, target), tvm.cpu())["main"]"""
_RUN = """\
import tvm

values = model(*[tvm.runtime.tensor(value) for value in feeds.values()])
listed = [values] if hasattr(values, "numpy") else list(values)
return {i: value.numpy() for i, value in enumerate(listed)}"""


class TvmConverterOptions(BaseModel):
    """What follows the import."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimize: bool = True
    """Whether a stage follows that optimizes, TVM's pipeline ``zero``."""


class TvmConverter:
    """A module of Relax, as JSON."""

    name = "tvm"
    consumes = frozenset({"onnx", "torch", "torch-program"})
    produces = RELAX
    preload: Sequence[str] = ("tvm", "tvm.relax.frontend.onnx")
    libraries: Mapping[str, str] = {"apache-tvm": "tvm", "apache-tvm-ffi": "tvm_ffi"}
    options: TvmConverterOptions = TvmConverterOptions()

    def version(self) -> str:
        """Version of the installed package."""
        return version_of("apache-tvm", extra=_EXTRA)

    def stages(self, options: TvmConverterOptions) -> Sequence[ConversionStage]:
        """Import, optimize."""
        found = [ConversionStage("import", "convert", RELAX)]
        return [*found, ConversionStage("optimize", "optimize", RELAX)][: 1 + options.optimize]

    def convert(
        self, source: Artifact, options: TvmConverterOptions, folder: Path
    ) -> Iterator[Artifact]:
        """The imported module, and the optimized one."""
        import tvm
        from tvm import relax

        if source.format == "onnx":
            from tvm.relax.frontend.onnx import from_onnx

            module = from_onnx(onnx.load_from_string(source.data))
        else:
            from tvm.relax.frontend.torch import from_exported_program

            module = from_exported_program(_program(source))
        yield _save(tvm, module, folder / "import.json")
        if options.optimize:
            with tvm.target.Target("llvm"):
                module = relax.get_pipeline("zero")(module)
            yield _save(tvm, module, folder / "optimize.json")

    def part_script(self, options: TvmConverterOptions) -> PartScript:
        """The model is imported, and built for TVM's virtual machine."""
        convert = _CONVERT.format(optimize=_OPTIMIZE if options.optimize else "")
        return PartScript("TVM", ("onnx", "apache-tvm"), _IMPORTS, "", convert, run=_RUN)


def _program(source: Artifact) -> Any:
    import torch

    if source.format == "torch-program":
        return torch.export.load(str(source.path))
    loaded = load_factory(source, torch.manual_seed, torch.tensor)
    loaded.model.eval()
    dynamic = {
        name: dict.fromkeys(axes, torch.export.Dim.DYNAMIC)
        for name, axes in loaded.facts.dynamic.items()
    }
    shapes = tuple(dynamic.get(name) for name in loaded.arguments) if dynamic else None
    example = {name: torch.as_tensor(value) for name, value in loaded.arguments.items()}
    with torch.no_grad():
        if loaded.named:
            named = dict(zip(example, shapes, strict=True)) if shapes else None
            return torch.export.export(loaded.model, (), example, dynamic_shapes=named)
        return torch.export.export(loaded.model, tuple(example.values()), dynamic_shapes=shapes)


def _save(tvm: Any, module: Any, path: Path) -> Artifact:
    path.write_text(tvm.ir.save_json(module))
    return Artifact(RELAX, path=path)


class TvmModelOptions(BaseModel):
    """How kernels are run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    threads: int = Field(default=1, ge=0)
    """Threads within a kernel; 0 lets TVM choose."""


class RelaxRuntime:
    """TVM's virtual machine on CPU, with a module that is lowered as it is."""

    name = "tvm_relax"
    accepts = frozenset({RELAX})
    preload: Sequence[str] = ("tvm",)
    libraries: Mapping[str, str] = {"apache-tvm": "tvm", "apache-tvm-ffi": "tvm_ffi"}
    options: TvmModelOptions = TvmModelOptions()
    deployed: TvmModelOptions = TvmModelOptions(threads=0)

    def version(self) -> str:
        """Version of the installed package."""
        return version_of("apache-tvm", extra=_EXTRA)

    def load(self, artifact: Artifact, options: TvmModelOptions) -> Session:
        """A virtual machine of the module."""
        import tvm
        from tvm import relax

        from optvet_tvm.lowering import build_unoptimized, use_threads

        use_threads(options.threads)
        assert artifact.path is not None
        module = tvm.ir.load_json(artifact.path.read_text())
        names = [str(p.name) for p in module["main"].params]
        executable = build_unoptimized(module)
        return RelaxSession(relax.VirtualMachine(executable, tvm.cpu())["main"], names)


class RelaxSession:
    """The function of a module; inputs by their names, else by their places."""

    def __init__(self, main: Any, names: Sequence[str]) -> None:
        self._main, self._names = main, names

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Outputs in order, with numbers for names."""
        import tvm

        rest = [name for name in feeds if name not in self._names]
        if len(rest) < len([n for n in self._names if n not in feeds]):
            words = f"the module has {len(self._names)} inputs, the source {len(feeds)}"
            raise ValueError(words)
        operands = [feeds[n if n in feeds else rest.pop(0)] for n in self._names]
        result = self._main(*[tvm.runtime.tensor(np.array(v, order="C")) for v in operands])
        listed = [result] if hasattr(result, "numpy") or isinstance(result, int) else list(result)
        arrays = [np.array(v.numpy() if hasattr(v, "numpy") else v) for v in listed]
        return {f"output_{i}": value for i, value in enumerate(arrays)}
