"""ONNX Runtime, in a clean room: its own optimizations off, one thread, deterministic kernels."""

from __future__ import annotations

import json
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    Artifact,
    Check,
    Collision,
    Feeds,
    Installation,
    KernelLaunch,
    LogFormat,
    Meter,
    NodeTime,
    Profile,
    Session,
    Unmet,
    Unsupported,
    UsageError,
    read_json,
)
from optvet_onnxruntime import nvidia

_CPU = "CPUExecutionProvider"
GPU_WHEEL = "onnxruntime-gpu"
"""It owns the same module as onnxruntime, and can do all that that can."""
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


class OrtSession:
    """A loaded model."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._outputs = [o.name for o in session.get_outputs()]

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Outputs by name, in the graph's order."""
        values = map(_dense, self._session.run(None, dict(feeds)))
        return dict(zip(self._outputs, values, strict=True))


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
        optimization="all", prepacking=True, threads=0, deterministic=False
    )

    def version(self) -> str:
        """Version of the installed package."""
        import onnxruntime

        return str(onnxruntime.__version__)

    def check_options(self, options: OrtOptions) -> None:
        """Whether this build has the execution providers."""
        _prepare([p for p in options.providers if p != _CPU])

    def diagnose(self, installation: Installation) -> Iterable[Check]:
        """Whether the right wheel's files are in place, and nodes run on every provider."""
        found = [
            *(c for each in installation.collisions if (c := _of_wheels(each, installation))),
            *(c for each in installation.unmet if (c := _of_requirement(each, installation))),
        ]
        known = {c.cure for c in found if c.status == "broken"}
        return [*found, *(c for c in _of_providers(installation) if c.cure not in known)]

    def load(self, artifact: Artifact, options: OrtOptions) -> Session:
        """Create a session from the serialized model."""
        return OrtSession(_create(artifact, artifact.data, options))

    def load_file(self, artifact: Artifact, options: OrtOptions) -> Session:
        """Create a session from a file; weights that lie beside it are mapped."""
        return OrtSession(_create(artifact, str(artifact.path), options))

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
        return Profile(options.providers[0], len(feeds), _node_times(events, skip=1))

    def meter(self, options: OrtOptions) -> Meter | str:
        """NVML's view of the GPU, if a provider of NVIDIA's was asked for."""
        return nvidia.meter_of(options.device_id) if _on_nvidia(options) else ""

    def kernel_profiler(self, options: OrtOptions, folder: Path) -> Sequence[str] | str:
        """Nsight Compute, if a provider of NVIDIA's was asked for."""
        if not _on_nvidia(options):
            return "kernels are not profiled: no GPU was asked for, by --provider"
        return nvidia.profiler_in(folder)

    def kernels(self, folder: Path) -> Sequence[KernelLaunch]:
        """The launches in Nsight Compute's log."""
        return nvidia.launches_in(folder)

    def snippet(self, options: OrtOptions) -> str:
        """A session with the same options; a session that is given in place of a model is taken."""
        level = _level(_LEVELS.index(options.optimization)).name
        entries = [
            f'    options.add_session_config_entry("{key}", "1")' for key in _entries(options)
        ]
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
            *entries,
            f"    session = ort.InferenceSession(data, options, providers={providers!r})",
            "names = [output.name for output in session.get_outputs()]",
            "return dict(zip(names, session.run(None, feeds)))",
        )
        return "\n".join(lines)

    def simple_snippets(self, options: OrtOptions) -> Sequence[str]:
        """A session on the CPU with the same level; a session that is given is taken."""
        if set(options.providers) != {_CPU}:
            return []
        level = _level(_LEVELS.index(options.optimization)).name
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


def _entries(options: OrtOptions) -> list[str]:
    """The entries of a session's configuration that are set to 1."""
    wanted = {
        "session.disable_prepacking": not options.prepacking,
        "session.x64quantprecision": options.exact_int8,
    }
    return [key for key, is_set in wanted.items() if is_set]


def _create(
    artifact: Artifact, model: bytes | str, options: OrtOptions, profile: Path | None = None
) -> Any:
    """A session under ``options``; it writes a profile to files that begin with ``profile``."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    wanted = artifact.handle or {}
    number = wanted.get("level", _LEVELS.index(options.optimization))
    settings.graph_optimization_level = _level(number)
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
    accelerators = [p for p in options.providers if p != _CPU]
    if accelerators:
        _prepare(accelerators)
        settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    device = {"device_id": str(options.device_id)}
    session = ort.InferenceSession(
        model,
        settings,
        providers=[p if p == _CPU else (p, device) for p in options.providers],
        disabled_optimizers=wanted.get("disabled", []),
    )
    if accelerators:
        check_placement(accelerators, session.get_providers(), _placed(session))
    return session


def _on_nvidia(options: OrtOptions) -> bool:
    """Whether a provider runs on NVIDIA's GPUs."""
    return any("cuda" in p.lower() or "tensorrt" in p.lower() for p in options.providers)


_KERNEL = "_kernel_time"


def _node_times(events: Any, skip: int) -> tuple[NodeTime, ...]:
    """Nodes of a profile, which is a list of trace events, without the first ``skip`` runs.

    Raises:
        Unsupported: The profile is not of the form that is known.
    """
    try:
        starts = sorted(e["ts"] for e in events if e["name"] == "model_run")[skip:]
        begin = starts[0]
        kernels = [
            e
            for e in events
            if e["cat"] == "Node" and e["name"].endswith(_KERNEL) and e["ts"] >= begin
        ]
        times: dict[tuple[str, str, str, str], list[float]] = {}
        calls = Counter[tuple[str, str, str, str]]()
        for event, own_us in _without_inner(kernels):
            about = event["args"]
            name = str(event["name"]).removesuffix(_KERNEL)
            key = (name, str(about["op_name"]), str(about["provider"]), str(about["node_index"]))
            calls[key] += 1
            # By run; a node in a loop is executed several times in one.
            by_run = times.setdefault(key, [0.0] * len(starts))
            by_run[bisect_right(starts, event["ts"]) - 1] += own_us / 1e6
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise Unsupported(
            f"ONNX Runtime's profile cannot be read: {type(error).__name__} {error}"
        ) from error
    return tuple(
        NodeTime(*key[:3], calls[key] / len(starts), median(by_run))
        for key, by_run in times.items()
    )


def _without_inner(kernels: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], float]]:
    """Each event with its time without that of events inside it: nodes in the graph of a Loop."""
    own: list[tuple[Mapping[str, Any], float]] = []
    open_: dict[Any, list[tuple[float, int]]] = {}  # by thread: ends, and places in ``own``
    for event in sorted(kernels, key=lambda e: (e["ts"], -e["dur"])):
        around = open_.setdefault(event["tid"], [])
        end = event["ts"] + event["dur"]
        while around and around[-1][0] < max(end, event["ts"] + 1):
            around.pop()
        if around:
            outer, left = own[around[-1][1]]
            own[around[-1][1]] = (outer, max(left - event["dur"], 0.0))
        around.append((end, len(own)))
        own.append((event, float(event["dur"])))
    return own


def _prepare(accelerators: Sequence[str]) -> None:
    """Load the libraries that providers for GPUs need; refuse those that this build has not."""
    import onnxruntime as ort

    option = "runtime 'onnxruntime': option 'providers'"
    known, offered = ort.get_all_providers(), ort.get_available_providers()
    for provider in accelerators:
        if provider not in known:
            raise UsageError(
                f"{option}: there is no execution provider {provider!r}; this ONNX Runtime has "
                f"{', '.join(offered)}"
            )
        if provider not in offered:
            raise UsageError(
                f"{option}: this ONNX Runtime has no {provider}, but {', '.join(offered)}; install "
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


# --- for optvet doctor ---------------------------------------------------------------------------

_TINY = '<ir_version: 8, opset_import: ["" : 17]> g (float[1] X) => (float[1] Y) { Y = Add(X, X) }'


def _of_wheels(collision: Collision, installation: Installation) -> Check | None:
    """Whether the larger wheel's files are in place; None for a collision of other packages."""
    if collision.names != ("onnxruntime", GPU_WHEEL):
        return None
    right = collision.winner == GPU_WHEEL
    same = len(set(collision.versions)) == 1
    return Check(
        name="packages",
        status="broken" if not right else "ok" if same else "warning",
        message=collision.message,
        cure="" if right and same else _gpu_cure(installation),
        about=collision.names,
    )


def _of_requirement(unmet: Unmet, installation: Installation) -> Check | None:
    """A cure that keeps the files for the GPU: onnxruntime alone would overwrite them."""
    if GPU_WHEEL not in installation.versions or unmet.library != "onnxruntime":
        return None
    return Check(
        name="packages",
        status="broken",
        message=unmet.message,
        cure=_gpu_cure(installation),
        about=(unmet.name, unmet.requirement),
    )


def _gpu_cure(installation: Installation) -> str:
    """The commands that put the files of onnxruntime-gpu in place, and both at its version.

    Its version was chosen for a release of CUDA, that of onnxruntime as a mere requirement.
    """
    versions = installation.versions
    version = versions[GPU_WHEEL]
    command = f"{installation.pip} install --force-reinstall --no-deps"
    last = f"{command} {GPU_WHEEL}=={version}"
    if versions.get("onnxruntime") == version:
        return last
    return f"{command} onnxruntime=={version} &&\n{last}"


def _of_providers(installation: Installation) -> Iterator[Check]:
    """Each execution provider: whether nodes really run there."""
    listed = installation.run(_providers).value
    if listed is None:
        return
    wanted = list(listed)
    if GPU_WHEEL in installation.versions and "CUDAExecutionProvider" not in wanted:
        wanted.append("CUDAExecutionProvider")
    for provider in wanted:
        if provider == "AzureExecutionProvider":  # calls a service; runs nothing here
            continue
        ran = installation.run(_try_provider, provider)
        where = ran.value or []
        if provider in where:
            words = f"{provider} runs nodes"
            yield Check(name="providers", status="ok", message=words)
        else:
            why = ran.error or f"nodes ran on {', '.join(where)}"
            yield _bad_provider(provider, why, listed, installation)


def _bad_provider(
    provider: str, why: str, listed: Sequence[str], installation: Installation
) -> Check:
    message = f"{provider} runs nothing: {why}"
    if provider == "CPUExecutionProvider":
        cure = f"{installation.pip} install --force-reinstall onnxruntime"
        return Check(name="providers", status="broken", message=message, cure=cure)
    if provider not in listed:
        message = f"{provider} is not offered, though onnxruntime-gpu is installed"
        return Check(
            name="providers", status="broken", message=message, cure=_gpu_cure(installation)
        )
    if not Path("/dev/nvidiactl").exists():
        cure = "run optvet on a machine with an NVIDIA driver, or ask for the CPU"
        return Check(
            name="providers", status="warning", message=f"{message}; no NVIDIA device", cure=cure
        )
    tensorrt = f"TensorRT ({installation.pip} install tensorrt)"
    extra = tensorrt if provider.startswith("Tensorrt") else "CUDA, cuDNN"
    # TensorRT comes with no extra; only what an extra promises can be broken.
    cure = f"install the libraries that its message names: {extra}"
    return Check(
        name="providers",
        status="warning" if provider.startswith("Tensorrt") else "broken",
        message=message,
        cure=cure,
    )


def _providers() -> list[str]:
    import onnxruntime

    return list(onnxruntime.get_available_providers())


def _try_provider(provider: str) -> list[str]:
    """The providers on which the nodes of a tiny model really ran; raises if it is not loaded."""
    import onnx.parser
    import onnxruntime as ort

    if provider != "CPUExecutionProvider" and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    with tempfile.TemporaryDirectory() as folder:
        settings = ort.SessionOptions()
        settings.enable_profiling = True
        settings.profile_file_prefix = f"{folder}/profile"
        settings.log_severity_level = 3
        model = onnx.parser.parse_model(_TINY).SerializeToString()
        session = ort.InferenceSession(model, settings, providers=[provider])
        session.run(None, {"X": np.ones(1, np.float32)})
        events = json.loads(Path(session.end_profiling()).read_text())
    ran = {e.get("args", {}).get("provider") for e in events if e.get("cat") == "Node"}
    return sorted(r for r in ran if r)
