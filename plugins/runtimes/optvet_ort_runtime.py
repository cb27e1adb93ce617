"""ONNX Runtime, in a clean room: its own optimizations off, one thread, deterministic kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from optvet import Artifact, Feeds, Runtime, Session, UsageError, hookimpl

_CPU = "CPUExecutionProvider"
_LEVELS = ("disable_all", "basic", "extended", "layout", "all")


class OrtOptions(BaseModel):
    """Session options that decide what is computed."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    optimization: Literal["disable_all", "basic", "extended", "layout", "all"] = "disable_all"
    """Graph optimization level of the session."""
    prepacking: bool = False
    """Let kernels lay their weights out anew (changes the order of sums)."""
    threads: int = 1
    """Threads within an operator; 0 lets ONNX Runtime choose."""
    deterministic: bool = True
    """Ask for kernels with the same result on every run."""
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    """Execution providers, by preference; what a GPU cannot run goes to the CPU."""
    device_id: int = 0
    """Which GPU, where a provider is for one."""


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
    """The ``onnxruntime`` package, on the CPU unless other providers are asked for."""

    name = "onnxruntime"
    preference = 100
    # "onnx-session": an ONNX model and, in its handle, how the session is to optimize it.
    accepts = frozenset({"onnx", "onnx-session"})
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
        wanted = artifact.handle or {}
        number = wanted.get("level", _LEVELS.index(options.optimization))
        settings.graph_optimization_level = _level(number)
        settings.intra_op_num_threads = options.threads
        settings.inter_op_num_threads = 1
        settings.use_deterministic_compute = options.deterministic
        settings.log_severity_level = 3
        if not options.prepacking:
            settings.add_session_config_entry("session.disable_prepacking", "1")
        for key, value in wanted.get("config", {}).items():
            settings.add_session_config_entry(key, value)
        accelerators = [p for p in options.providers if p != _CPU]
        if accelerators:
            _prepare(accelerators)
            settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        device = {"device_id": str(options.device_id)}
        session = ort.InferenceSession(
            artifact.data,
            settings,
            providers=[p if p == _CPU else (p, device) for p in options.providers],
            disabled_optimizers=wanted.get("disabled", []),
        )
        if accelerators:
            check_placement(accelerators, session.get_providers(), _placed(session))
        return OrtSession(session)

    def snippet(self, options: BaseModel) -> str:
        """A session with the same options; a session that is given in place of a model is taken."""
        assert isinstance(options, OrtOptions)
        level = _level(_LEVELS.index(options.optimization)).name
        prepacking = 'options.add_session_config_entry("session.disable_prepacking", "1")'
        providers = [
            p if p == _CPU else (p, {"device_id": str(options.device_id)})
            for p in options.providers
        ]
        lines = (
            "import onnxruntime as ort\n",
            "session = model",
            "if not isinstance(model, ort.InferenceSession):",
            "    data = model if isinstance(model, bytes) else model.SerializeToString()",
            "    options = ort.SessionOptions()",
            f"    options.graph_optimization_level = ort.GraphOptimizationLevel.{level}",
            f"    options.intra_op_num_threads = {options.threads}",
            "    options.inter_op_num_threads = 1",
            f"    options.use_deterministic_compute = {options.deterministic}",
            *([] if options.prepacking else [f"    {prepacking}"]),
            f"    session = ort.InferenceSession(data, options, providers={providers!r})",
            "names = [output.name for output in session.get_outputs()]",
            "return dict(zip(names, session.run(None, feeds)))",
        )
        return "\n".join(lines)


def _prepare(accelerators: Sequence[str]) -> None:
    """Load the libraries that providers for GPUs need; refuse those that this build has not."""
    import onnxruntime as ort

    known, offered = ort.get_all_providers(), ort.get_available_providers()
    for provider in accelerators:
        if provider not in known:
            raise UsageError(
                f"there is no execution provider {provider!r}; this ONNX Runtime has "
                f"{', '.join(offered)}"
            )
        if provider not in offered:
            raise UsageError(
                f"this ONNX Runtime has no {provider}, but {', '.join(offered)}; install "
                "optvet[gpu], and see what optvet doctor says"
            )
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()


def _placed(session: Any) -> list[str] | None:
    """Provider of each group of nodes; None where the installed version cannot tell."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return None
    return [group.ep_name for group in session.get_provider_graph_assignment_info()]


def check_placement(
    accelerators: Sequence[str], loaded: Sequence[str], placed: Sequence[str] | None
) -> None:
    """Refuse a session that fell back to the CPU, as ONNX Runtime does without an error.

    That is no fault of a model, and must not be remembered as one: it raises UsageError.

    Args:
        accelerators: Providers that were asked for, other than the CPU's.
        loaded: Providers that the session has.
        placed: Providers that got nodes; None if that is unknown.
    """
    missing = [p for p in accelerators if p not in loaded]
    if missing:
        raise UsageError(
            f"{', '.join(missing)} could not be loaded, so the model would run on "
            f"{', '.join(loaded)}; see what optvet doctor says"
        )
    if placed and not set(placed) & set(accelerators):
        raise UsageError(
            f"no node of this model runs on {', '.join(accelerators)}, all on "
            f"{', '.join(sorted(set(placed)))}; judge it with the default providers"
        )


def _level(number: int) -> Any:
    import onnxruntime as ort

    names = ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_LAYOUT", "ENABLE_ALL")
    levels = ort.GraphOptimizationLevel
    # Releases before 1.23 have no level of its own for layout: there it belongs to "all".
    return getattr(levels, f"ORT_{names[number]}", levels.ORT_ENABLE_ALL)


@hookimpl
def optvet_runtimes() -> Iterable[Runtime]:
    """ONNX Runtime."""
    return [OrtRuntime()]
