"""ONNX Runtime, in a clean room: its own optimizations off, one thread, deterministic kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from optvet import Artifact, Feeds, Runtime, Session, hookimpl


class OrtOptions(BaseModel):
    """Session options that decide what is computed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimization: Literal["disable_all", "basic", "extended", "all"] = "disable_all"
    """Graph optimization level of the session."""
    prepacking: bool = False
    """Let kernels lay their weights out anew (changes the order of sums)."""
    threads: int = 1
    """Threads within an operator; 0 lets ONNX Runtime choose."""
    deterministic: bool = True
    """Ask for kernels with the same result on every run."""
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    """Execution providers, by preference."""


class OrtSession:
    """A loaded model."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._outputs = [o.name for o in session.get_outputs()]

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Outputs by name, in the graph's order."""
        values = self._session.run(None, dict(feeds))
        return dict(zip(self._outputs, values, strict=True))


class OrtRuntime:
    """The ``onnxruntime`` package on CPU."""

    name = "onnxruntime"
    accepts = frozenset({"onnx"})
    preload: Sequence[str] = ("onnxruntime",)
    options: BaseModel = OrtOptions()
    deployed: BaseModel = OrtOptions(
        optimization="all", prepacking=True, threads=0, deterministic=False
    )

    def version(self) -> str:
        """Version of the installed package."""
        import onnxruntime

        return str(onnxruntime.__version__)

    def load(self, artifact: Artifact, options: BaseModel) -> Session:
        """Create a session from the serialized model."""
        import onnxruntime as ort

        assert isinstance(options, OrtOptions)
        settings = ort.SessionOptions()
        level = f"ORT_{'' if options.optimization == 'disable_all' else 'ENABLE_'}"
        level += options.optimization.upper()
        settings.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        settings.intra_op_num_threads = options.threads
        settings.inter_op_num_threads = 1
        settings.use_deterministic_compute = options.deterministic
        settings.log_severity_level = 3
        if not options.prepacking:
            settings.add_session_config_entry("session.disable_prepacking", "1")
        session = ort.InferenceSession(artifact.data, settings, providers=list(options.providers))
        return OrtSession(session)


@hookimpl
def optvet_runtimes() -> Iterable[Runtime]:
    """ONNX Runtime."""
    return [OrtRuntime()]
