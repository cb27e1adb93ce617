"""TVM's virtual machine on the CPU: runs what the optimizer built, or a model lowered as it is."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    MODEL_PARTS,
    Artifact,
    Check,
    Feeds,
    Inner,
    Installation,
    Session,
    Unsupported,
    version_of,
)
from optvet_tvm.passes import REQUIRED_LOWERING

_KNOWN_BAD = {
    "apache-tvm-ffi": (
        "0.1.15.post2",
        "TVM crashes when a module is saved or pickled",
        "apache-tvm-ffi==0.1.14.post0",
    ),
}


class TvmRuntimeOptions(BaseModel):
    """How kernels are run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    threads: int = Field(default=1, ge=0)
    """Threads within a kernel; 0 lets TVM choose."""


class TvmSession:
    """A virtual machine with one executable."""

    def __init__(self, executable: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        import tvm
        from tvm import relax

        self._main = relax.VirtualMachine(executable, tvm.cpu())["main"]
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)

    def run(self, feeds: Feeds) -> dict[str, Any]:
        """Outputs by name, in the graph's order: arrays, and lists of arrays of sequences."""
        import tvm

        if set(feeds) != set(self._inputs):
            raise ValueError(f"inputs are {sorted(feeds)}, expected {sorted(self._inputs)}")
        arrays = [np.ascontiguousarray(feeds[name]) for name in self._inputs]
        # ascontiguousarray makes a vector of a scalar.
        shaped = [a.reshape(np.shape(feeds[n])) for a, n in zip(arrays, self._inputs, strict=True)]
        result = self._main(*[tvm.runtime.tensor(a) for a in shaped])
        # A number or a shape is an output too: TVM makes no tensor of what Shape gives.
        several = not hasattr(result, "numpy") and len(self._outputs) > 1
        values = list(result) if several else [result]
        return {name: _array(v) for name, v in zip(self._outputs, values, strict=True)}


def _array(value: Any) -> Any:
    """An array; a list of arrays of a sequence of tensors."""
    if hasattr(value, "numpy"):
        return np.array(value.numpy())
    if any(hasattr(item, "numpy") for item in _items(value)):
        return [_array(item) for item in value]
    return np.array(value)


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, Iterable) else ()


class TvmRuntime:
    """The virtual machine of the ``apache-tvm`` package."""

    name = "tvm"
    # "tvm-executable": a live executable, with the names of its inputs and outputs in the handle.
    accepts = frozenset({"onnx", "tvm-executable"})
    preload: Sequence[str] = ("tvm", "tvm.relax.frontend.onnx")
    reads = MODEL_PARTS - {"metadata"}
    libraries: Mapping[str, str] = {"apache-tvm": "tvm", "apache-tvm-ffi": "tvm_ffi"}
    imports: Mapping[str, Sequence[str]] = {"apache-tvm-ffi": ("torch",)}
    options: TvmRuntimeOptions = TvmRuntimeOptions()
    deployed: TvmRuntimeOptions = TvmRuntimeOptions(threads=0)

    def version(self) -> str:
        """Version of the installed package."""
        return version_of("apache-tvm", extra="optvet[tvm]")

    def diagnose(self, installation: Installation) -> Iterable[Check]:
        """Releases that are known to crash, and a folder on which TVM's own import fails."""
        for name, (bad, why, good) in _KNOWN_BAD.items():
            if installation.versions.get(name) == bad:
                message = f"{name} {bad}: {why}"
                cure = f"{installation.pip} install {good}"
                yield Check(name="packages", status="broken", message=message, cure=cure)
        folder = installation.folder
        if (folder / "torch").is_dir() or (folder / "torch.py").is_file():
            yield Check(
                name="working directory",
                status="warning",
                message=f"{folder} holds 'torch', which may be imported in place of the library; "
                "TVM cannot be imported there",
                cure="run optvet in another directory",
                about=("torch",),
            )

    def load(self, artifact: Artifact, options: TvmRuntimeOptions) -> Session:
        """A virtual machine of the executable; a model in ONNX is lowered first."""
        from optvet_tvm.lowering import use_threads

        use_threads(options.threads)
        if artifact.format == "onnx":
            return TvmSession(*_lower(artifact.data))
        if artifact.handle is None:
            raise ValueError("a TVM executable lives in the process that built it; there is none")
        handle = artifact.handle
        return TvmSession(handle["executable"], handle["inputs"], handle["outputs"])

    def artifact_values(
        self, artifact: Artifact, feeds: Feeds, options: TvmRuntimeOptions
    ) -> Sequence[Inner]:
        """Values of what the optimizer made, built once more with all of them as outputs."""
        from optvet_tvm.inside import values_of
        from optvet_tvm.lowering import use_threads

        use_threads(options.threads)
        if artifact.handle is None or artifact.handle.get("module") is None:
            raise Unsupported("no module of TVM is known of this artifact")
        return values_of(artifact.handle, feeds)

    def snippet(self, options: TvmRuntimeOptions) -> str:
        """An executable, with names, is run; a model is lowered first, with no optimization."""
        threads = options.threads or "os.cpu_count()"
        dispatch = "relax.backend if name.startswith('Dispatch') else relax.transform"
        lowering = textwrap.fill(" ".join(REQUIRED_LOWERING), 80, subsequent_indent=" " * 12)
        return "\n".join(
            (
                "import os\n",
                "import onnx",
                "import tvm",
                "from tvm import relax",
                "from tvm.relax.frontend.onnx import from_onnx\n",
                f"tvm.get_global_func('runtime.config_threadpool')(1, {threads})",
                "if not isinstance(model, tuple):",
                "    proto = onnx.load_from_string(model) if isinstance(model, bytes) else model",
                "    weights = {tensor.name for tensor in proto.graph.initializer}",
                "    inputs = [v.name for v in proto.graph.input if v.name not in weights]",
                "    module, target = from_onnx(proto), tvm.target.Target('llvm')",
                "    with target, tvm.transform.PassContext(opt_level=3):",
                f'        names = """{lowering}"""',
                "        for name in names.split():",
                f"            module = getattr({dispatch}, name)()(module)",
                "        executable = relax.build(module, target, relax_pipeline=None)",
                "    model = executable, inputs, [v.name for v in proto.graph.output]",
                *_RUN_EXECUTABLE,
            )
        )

    def simple_snippets(self, options: TvmRuntimeOptions) -> Sequence[str]:
        """For an executable with its names."""
        return ["\n".join(("import tvm", "from tvm import relax\n", *_RUN_EXECUTABLE))]


_RUN_EXECUTABLE = (
    "executable, inputs, outputs = model",
    "main = relax.VirtualMachine(executable, tvm.cpu())['main']",
    "result = main(*[tvm.runtime.tensor(feeds[name]) for name in inputs])",
    "values = [result] if hasattr(result, 'numpy') or len(outputs) == 1 else list(result)",
    "def array(value):",
    "    if hasattr(value, 'numpy') or not hasattr(value, '__iter__'):",
    "        return value.numpy() if hasattr(value, 'numpy') else np.array(value)",
    "    items = list(value)",
    "    sequence = any(hasattr(item, 'numpy') for item in items)",
    "    return [array(item) for item in items] if sequence else np.array(items)\n",
    "return dict(zip(outputs, map(array, values)))",
)


def _lower(model: bytes) -> tuple[Any, list[str], list[str]]:
    """Executable, inputs and outputs of a model, with no optimization."""
    from tvm.relax.frontend.onnx import from_onnx

    from optvet_tvm.lowering import build_unoptimized

    proto = onnx.load_from_string(model)
    executable = build_unoptimized(from_onnx(proto))
    weights = {w.name for w in proto.graph.initializer}
    inputs = [i.name for i in proto.graph.input if i.name not in weights]
    return executable, inputs, [o.name for o in proto.graph.output]
