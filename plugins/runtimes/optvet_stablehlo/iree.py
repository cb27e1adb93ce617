"""IREE: StableHLO is imported, compiled for this processor, and run by its virtual machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from optvet.plugin import Artifact, ConversionStage, Feeds, Session, version_of
from optvet_stablehlo.home import ENVIRONMENT, EXTRA
from optvet_stablehlo.modules import STABLEHLO, text_of

_IMPORTED = "iree-input"
_COMPILED = "iree-module"
_FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)
_WORDS = 500
NEEDS = ("iree-base-compiler", "iree-base-runtime")
IMPORTS = "from iree import runtime\nfrom iree.compiler.tools import compile_str"
CONVERT = f"""\
flags = {list(_FLAGS)!r}
flags += ["--iree-opt-level={{level}}"]
return compile_str(text, input_type="stablehlo", extra_args=flags)"""
RUN = """\
from iree import runtime

context = runtime.SystemContext(config=runtime.Config("local-sync"))
loaded = runtime.VmModule.copy_buffer(context.instance, model)
context.add_vm_module(loaded)
returned = context.modules[loaded.name]["main"](*feeds.values())
listed = returned if isinstance(returned, (list, tuple)) else [returned]
return {i: value.to_host() for i, value in enumerate(listed)}"""


class IreeCompileOptions(BaseModel):
    """How IREE compiles."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    level: Literal["O0", "O1", "O2", "O3"] = "O2"
    """How far it optimizes, ``--iree-opt-level``."""


class IreeConverter:
    """A module of IREE's virtual machine, of StableHLO."""

    name = "iree"
    consumes = frozenset({STABLEHLO})
    produces = _COMPILED
    preload: Sequence[str] = ()
    libraries: Mapping[str, str] = {"iree-base-compiler": "iree.compiler"}
    python_environment = ENVIRONMENT
    options: IreeCompileOptions = IreeCompileOptions()

    def version(self) -> str:
        """Version of the compiler."""
        return version_of("iree-base-compiler", extra=EXTRA)

    def stages(self, options: IreeCompileOptions) -> Sequence[ConversionStage]:
        """Import, compile."""
        return (
            ConversionStage("import", "convert", _IMPORTED),
            ConversionStage("compile", "optimize", _COMPILED),
        )

    def convert(
        self, source: Artifact, options: IreeCompileOptions, folder: Path
    ) -> Iterator[Artifact]:
        """Linear algebra on tensors, and what it is compiled to."""
        module = _compiled(
            text_of(source).encode(), "--iree-input-type=stablehlo", "--compile-to=input"
        )
        yield Artifact(_IMPORTED, data=module)
        level = f"--iree-opt-level={options.level}"
        yield Artifact(_COMPILED, data=_compiled(module, "--compile-from=input", level))


class IreeModuleOptions(BaseModel):
    """There is nothing to choose."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class IreeModuleRuntime:
    """IREE's virtual machine on the calling thread; what is only imported is compiled plainly."""

    name = "iree_module"
    accepts = frozenset({_IMPORTED, _COMPILED})
    preload: Sequence[str] = ()
    libraries: Mapping[str, str] = {"iree-base-runtime": "iree.runtime"}
    python_environment = ENVIRONMENT
    options: IreeModuleOptions = IreeModuleOptions()
    deployed: IreeModuleOptions = IreeModuleOptions()

    def version(self) -> str:
        """Version of the virtual machine."""
        return version_of("iree-base-runtime", extra=EXTRA)

    def load(self, artifact: Artifact, options: IreeModuleOptions) -> Session:
        """The module in a virtual machine."""
        code = artifact.data
        if artifact.format == _IMPORTED:
            code = _compiled(code, "--compile-from=input", "--iree-opt-level=O0")
        return IreeModuleSession(code)


class IreeModuleSession:
    """The function ``main`` of a module; inputs by their places."""

    def __init__(self, code: bytes) -> None:
        from iree import runtime

        context = runtime.SystemContext(config=runtime.Config("local-sync"))
        loaded = runtime.VmModule.copy_buffer(context.instance, code)
        context.add_vm_module(loaded)
        self._main = context.modules[loaded.name]["main"]

    def run(self, feeds: Feeds) -> dict[str, Any]:
        """Outputs in order, with numbers for names."""
        returned = self._main(*map(np.ascontiguousarray, feeds.values()))
        listed = returned if isinstance(returned, (list, tuple)) else [returned]
        return {f"output_{i}": np.array(value.to_host()) for i, value in enumerate(listed)}


def _compiled(module: bytes, *flags: str) -> bytes:
    """What ``iree-compile`` makes of a module."""
    from iree.compiler.tools import CompilerToolError, compile_str

    try:
        return bytes(compile_str(module, extra_args=[*_FLAGS, *flags]))
    except CompilerToolError as error:
        words = " ".join(str(error).split("Diagnostics:\n", 1)[-1].split())[:_WORDS]
        raise RuntimeError(f"iree-compile {flags[0]}: {words}") from None
