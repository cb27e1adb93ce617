"""ONNX Runtime, in a clean room: its own optimizations off, one thread, deterministic kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    MODEL_PARTS,
    Artifact,
    Check,
    Feeds,
    Installation,
    KernelLaunch,
    LogFormat,
    Meter,
    Profile,
    Session,
    Unsupported,
    read_json,
)
from optvet_onnxruntime.diagnose import GPU_WHEEL, check_providers, check_requirement, check_wheels
from optvet_onnxruntime.installed_version import installed_version
from optvet_onnxruntime.plugin_providers import add_provider
from optvet_onnxruntime.providers import (
    CPU_PROVIDER,
    check_placement,
    load_providers,
    on_nvidia,
    placed_providers,
    with_settings,
)
from optvet_onnxruntime.session_profile import node_times
from optvet_onnxruntime.sessions import optimization_level

if TYPE_CHECKING:
    from optvet_onnxruntime.provider_sessions import ProviderSession

_LEVELS = ("disable_all", "basic", "extended", "layout", "all")


class OrtOptions(BaseModel):
    """Session options that decide what is computed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimization: Literal["disable_all", "basic", "extended", "layout", "all"] = "disable_all"
    """Graph optimization level of the session."""
    prepacking: bool = False
    """Let kernels lay their weights out anew (changes the order of sums)."""
    threads: int = Field(default=1, ge=0)
    """Threads within an operator; 0 lets ONNX Runtime choose."""
    deterministic: bool = True
    """Ask for kernels with the same result on every run."""
    exact_int8: bool = False
    """Ask for 8-bit kernels whose sums fit. The default ones add pairs of products in 16 bits on
    x86 processors without VNNI, and saturate where weights have 8 bits."""
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    """Execution providers, by preference; what a GPU cannot run goes to the CPU."""
    device_id: int = Field(default=0, ge=0)
    """Which GPU, where a provider is for one."""
    tf32: bool = False
    """Let CUDA's provider round factors of float32 to TF32's 10 bits, as it does by default."""


class OrtSession:
    """A loaded model."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._outputs = [o.name for o in session.get_outputs()]

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Outputs by name, in the graph's order."""
        try:
            results = self._session.run(None, dict(feeds))
        except RuntimeError as error:
            if "can't be converted to MLDataType" not in str(error):
                raise
            kinds = sorted({v.dtype.name for v in feeds.values() if v.dtype.kind not in "biufOUS"})
            words = f"onnxruntime's Python interface takes no inputs of type {', '.join(kinds)}"
            raise Unsupported(words) from error
        return dict(zip(self._outputs, map(_dense, results), strict=True))


def _dense(value: Any) -> Any:
    """The array of a sparse tensor, as which a session gives a sparse constant; else ``value``."""
    if type(value).__name__ != "SparseTensor":
        return value
    values, places = value.values(), value.get_coo_data().indices()
    full = np.zeros(value.dense_shape(), values.dtype)
    if places.ndim == 1:
        full.reshape(-1)[places] = values
    else:
        full[tuple(places.T)] = values
    return full


class OrtRuntime:
    """The ``onnxruntime`` package, on the CPU unless other providers are asked for."""

    name = "onnxruntime"
    preference = 100
    # "onnx-session": an ONNX model and, in its handle, how the session is to optimize it.
    accepts = frozenset({"onnx", "onnx-session"})
    preload: Sequence[str] = ("onnxruntime",)
    # Names of nodes are for its messages; properties are kept, and read by other programs.
    reads = MODEL_PARTS - {"node names", "metadata"}
    libraries: Mapping[str, str] = {
        "onnxruntime": "onnxruntime",
        GPU_WHEEL: "onnxruntime",
        "nvidia-ml-py": "pynvml",
    }
    environment: Mapping[str, str] = {"ORT_DISABLE_TELEMETRY": "1"}
    log_format = LogFormat(
        r"(?:[\d-]+ [\d:.]+ )?\[(?P<severity>[VIWEF]):[^\]]*\] (?P<text>.*)",
        frozenset("W"),
        frozenset("EF"),
    )
    options: OrtOptions = OrtOptions()
    deployed: OrtOptions = OrtOptions(
        optimization="all", prepacking=True, threads=0, deterministic=False, tf32=True
    )

    def version(self) -> str:
        """Version of the installed package."""
        return installed_version()

    def declared_loss(self, options: OrtOptions) -> float | None:
        """Some roundings to TF32's 10 bits, where CUDA's provider runs."""
        return 5e-3 if options.tf32 and "CUDAExecutionProvider" in options.providers else None

    def check_options(self, options: OrtOptions) -> None:
        """Whether this build has the execution providers."""
        load_providers([p for p in options.providers if p != CPU_PROVIDER])

    def diagnose(self, installation: Installation) -> Iterable[Check]:
        """Whether the right wheel's files are in place, and nodes run on every provider."""
        found = [
            *(c for each in installation.collisions if (c := check_wheels(each, installation))),
            *(c for each in installation.unmet if (c := check_requirement(each, installation))),
        ]
        known = {c.cure for c in found if c.status == "broken"}
        return [*found, *(c for c in check_providers(installation) if c.cure not in known)]

    def load(self, artifact: Artifact, options: OrtOptions) -> Session:
        """Create a session from the serialized model."""
        if artifact.handle and "provider" in artifact.handle:
            return _on_provider(artifact, options)
        return OrtSession(_create(artifact, artifact.data, options))

    def load_file(self, artifact: Artifact, options: OrtOptions) -> Session:
        """Create a session from a file; weights that lie beside it are mapped."""
        return OrtSession(_create(artifact, str(artifact.path), options))

    def refuses_operands(self, message: str) -> bool:
        """Whether it returned a status, of whatever it has."""
        return "[ONNXRuntimeError]" in message and "NOT_IMPLEMENTED" not in message

    def exact_options(self, options: OrtOptions) -> OrtOptions:
        """The same with exact 8-bit kernels."""
        return options.model_copy(update={"exact_int8": True})

    def profile(
        self, artifact: Artifact, feeds: Sequence[Feeds], options: OrtOptions, folder: Path
    ) -> Profile:
        """The session's own profile of its nodes, as they are after its optimizations."""
        model = artifact.data if artifact.path is None else str(artifact.path)
        session = _create(artifact, model, options, folder / "profile")
        for each in (feeds[0], *feeds):
            session.run(None, dict(each))
        events = read_json(Path(session.end_profiling()), "listing")
        return Profile(options.providers[0], len(feeds), node_times(events, skip=1))

    def meter(self, options: OrtOptions) -> Meter | str:
        """NVML's view of the GPU, if a provider of NVIDIA's was asked for."""
        from optvet_onnxruntime import nvidia

        return nvidia.meter_of(options.device_id) if on_nvidia(options.providers) else ""

    def kernel_profiler(self, options: OrtOptions, folder: Path) -> Sequence[str] | str:
        """Nsight Compute, if a provider of NVIDIA's was asked for."""
        from optvet_onnxruntime import nvidia

        if not on_nvidia(options.providers):
            return "kernels are not profiled: no GPU was asked for, by --provider"
        return nvidia.profiler_in(folder)

    def kernels(self, folder: Path) -> Sequence[KernelLaunch]:
        """The launches in Nsight Compute's log."""
        from optvet_onnxruntime import nvidia

        return nvidia.launches_in(folder)

    def snippet(self, options: OrtOptions) -> str:
        """A session with the same options; a session that is given in place of a model is taken.

        A new session that falls back to the CPU says nothing: the script cannot judge then.
        """
        level = optimization_level(_LEVELS.index(options.optimization)).name
        entries = [
            f'    options.add_session_config_entry("{key}", "1")' for key in _entries(options)
        ]
        providers = _providers_of(options)
        accelerators = {p for p in options.providers if p != CPU_PROVIDER}
        lines = (
            "import onnxruntime as ort\n",
            "session = model",
            'if not hasattr(model, "run"):',
            "    data = model if isinstance(model, bytes) else model.SerializeToString()",
            "    options = ort.SessionOptions()",
            f"    options.graph_optimization_level = ort.GraphOptimizationLevel.{level}",
            f"    options.intra_op_num_threads = {options.threads}",
            "    options.inter_op_num_threads = 1",
            f"    options.use_deterministic_compute = {options.deterministic}",
            *entries,
            *(_PRELOADING if accelerators else ()),
            f"    session = ort.InferenceSession(data, options, providers={providers!r})",
            *(_refusing_without(accelerators) if accelerators else ()),
            "names = [output.name for output in session.get_outputs()]",
            "return dict(zip(names, session.run(None, feeds)))",
        )
        return "\n".join(lines)

    def simple_snippets(self, options: OrtOptions) -> Sequence[str]:
        """A session on the CPU with the same level; a session that is given is taken."""
        if set(options.providers) != {CPU_PROVIDER}:
            return []
        level = optimization_level(_LEVELS.index(options.optimization)).name
        return [
            "\n".join(
                (
                    "import onnxruntime as ort\n",
                    "if not isinstance(model, ort.InferenceSession):",
                    "    options = ort.SessionOptions()",
                    f"    options.graph_optimization_level = ort.GraphOptimizationLevel.{level}",
                    "    model = ort.InferenceSession(model.SerializeToString(), options)",
                    "names = [output.name for output in model.get_outputs()]",
                    "return dict(zip(names, model.run(None, feeds)))",
                )
            )
        ]


_PRELOADING = (
    "    if hasattr(ort, 'preload_dlls'):  # of the packages that hold NVIDIA's libraries",
    "        ort.preload_dlls()",
)


def _refusing_without(providers: Set[str]) -> list[str]:
    """Code that ends where the new session silently lacks one of ``providers``."""
    names = ", ".join(map(repr, sorted(providers)))
    return [
        f"    missing = {{{names}}} - {{*session.get_providers()}}",
        "    if missing:",
        '        raise ImportError(f"the session runs without {missing}")',
    ]


def _entries(options: OrtOptions) -> list[str]:
    """The entries of a session's configuration that are set to 1."""
    wanted = {
        "session.disable_prepacking": not options.prepacking,
        "session.x64quantprecision": options.exact_int8,
    }
    return [key for key, is_set in wanted.items() if is_set]


def _providers_of(options: OrtOptions) -> list[str | tuple[str, dict[str, str]]]:
    return with_settings(
        options.providers,
        device_id=options.device_id,
        tf32=options.tf32,
        deterministic=options.deterministic,
    )


def _create(
    artifact: Artifact, model: bytes | str, options: OrtOptions, profile: Path | None = None
) -> Any:
    """A session under ``options``; it writes a profile to files that begin with ``profile``."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    wanted = artifact.handle or {}
    number = wanted.get("level", _LEVELS.index(options.optimization))
    settings.graph_optimization_level = optimization_level(number)
    settings.intra_op_num_threads = options.threads
    settings.inter_op_num_threads = 1
    settings.use_deterministic_compute = options.deterministic
    settings.log_severity_level = 2
    if profile is not None:
        settings.enable_profiling = True
        settings.profile_file_prefix = str(profile)
    for key in _entries(options):
        settings.add_session_config_entry(key, "1")
    for key, value in wanted.get("config", {}).items():
        settings.add_session_config_entry(key, value)
    accelerators = [p for p in options.providers if p != CPU_PROVIDER]
    if accelerators:
        load_providers(accelerators)
        settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if "provider" in wanted:
        settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        add_provider(settings, wanted["provider"], wanted["settings"], wanted["device"])
        return ort.InferenceSession(model, settings, enable_fallback=0)
    session = ort.InferenceSession(
        model,
        settings,
        providers=_providers_of(options),
        disabled_optimizers=wanted.get("disabled", []),
    )
    if accelerators:
        check_placement(accelerators, session.get_providers(), placed_providers(session))
    return session


def _on_provider(artifact: Artifact, options: OrtOptions) -> ProviderSession:
    """A session of which the nodes that the handle names are offered to its provider."""
    from optvet_onnxruntime.provider_sessions import ProviderSession, named

    handle = artifact.handle

    def make(data: bytes, on_device: bool) -> Any:
        return _create(Artifact("onnx", data, handle if on_device else None), data, options)

    return ProviderSession(named(artifact.data), make, handle["nodes"], handle["provider"])
