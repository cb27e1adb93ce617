"""IREE's virtual machine on the CPU: what the optimizer made, or a model that is only lowered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import MODEL_PARTS, Artifact, Feeds, Session, version_of
from optvet_iree.compiling import ENTRY, MlirModule, as_declared, compiled, imported, run_code


class IreeRuntimeOptions(BaseModel):
    """How kernels are run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    threads: int = Field(default=1, ge=0, le=1)
    """1: everything on the calling thread; 0: IREE's task system on all cores."""


class IreeSession:
    """A compiled module in a virtual machine."""

    def __init__(self, module: MlirModule, driver: str) -> None:
        from iree import runtime

        context = runtime.SystemContext(config=runtime.Config(driver))
        # Aligned by the library, whatever the buffer is.
        compiled_module = runtime.VmModule.copy_buffer(context.instance, compiled(module.code))
        context.add_vm_module(compiled_module)
        self._main = context.modules.module[ENTRY]
        self._inputs, self._outputs = module.inputs, module.outputs

    def run(self, feeds: Feeds) -> dict[str, Any]:
        """Outputs by name, in the graph's order."""
        if set(feeds) != set(self._inputs):
            raise ValueError(f"inputs are {sorted(feeds)}, expected {sorted(self._inputs)}")
        result = self._main(*[np.asarray(feeds[name]) for name in self._inputs])
        values = result if isinstance(result, (list, tuple)) else [result]
        named = zip(self._outputs, values, strict=True)
        return {n: np.array(as_declared(v.to_host(), dtype)) for (n, dtype), v in named}


class IreeRuntime:
    """The virtual machine of the ``iree-base-runtime`` package."""

    name = "iree"
    preference = -10  # its arithmetic on half types is its own, so others are asked first
    # "mlir-module": MLIR as the optimizer "iree" makes it, with the names of inputs and outputs.
    accepts = frozenset({"onnx", "mlir-module"})
    preload: Sequence[str] = ()
    libraries: Mapping[str, str] = {
        "iree-base-compiler": "iree.compiler",
        "iree-base-runtime": "iree.runtime",
    }
    reads = MODEL_PARTS - {"metadata"}
    options: IreeRuntimeOptions = IreeRuntimeOptions()
    deployed: IreeRuntimeOptions = IreeRuntimeOptions(threads=0)

    def version(self) -> str:
        """Version of the installed package."""
        return version_of("iree-base-runtime", extra="optvet[iree]")

    def load(self, artifact: Artifact, options: IreeRuntimeOptions) -> Session:
        """Compile for this processor; a model in ONNX is imported first."""
        module = imported(artifact.data) if artifact.format == "onnx" else artifact.handle
        if not isinstance(module, MlirModule):
            raise ValueError("the module in MLIR lives in the process that made it; there is none")
        return IreeSession(module, _driver(options))

    def snippet(self, options: IreeRuntimeOptions) -> str:
        """A module is compiled and run; a model is imported first."""
        return run_code(_driver(options))


def _driver(options: IreeRuntimeOptions) -> str:
    return "local-sync" if options.threads else "local-task"
