"""Execution providers: whether this build has them, and whether nodes were placed on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optvet.plugin import UsageError, allow_reservations

CPU_PROVIDER, CUDA_PROVIDER = "CPUExecutionProvider", "CUDAExecutionProvider"


def on_nvidia(providers: Sequence[str]) -> bool:
    """Whether a provider runs on NVIDIA's GPUs."""
    return any("cuda" in p.lower() or "tensorrt" in p.lower() for p in providers)


def with_settings(
    providers: Sequence[str], *, device_id: int, tf32: bool, deterministic: bool
) -> list[str | tuple[str, dict[str, str]]]:
    """Providers as a session takes them: on which device, and with which kernels.

    By default CUDA's provider rounds factors to TF32's 10 bits, which may be an error of half the
    largest output, and its search for kernels of cuDNN takes seconds in each session.
    """
    settings = {"device_id": str(device_id)}
    kernels = {"use_tf32": str(int(tf32))}
    if deterministic:
        kernels["cudnn_conv_algo_search"] = "HEURISTIC"
    of_cuda = settings | kernels
    return [
        p if p == CPU_PROVIDER else (p, dict(of_cuda if p == CUDA_PROVIDER else settings))
        for p in providers
    ]


def load_providers(accelerators: Sequence[str]) -> None:
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
    preload_libraries()


def preload_libraries() -> None:
    """Load the libraries of NVIDIA's packages, where providers for GPUs find them."""
    import onnxruntime as ort

    allow_reservations()
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()


def placed_providers(session: Any) -> list[str] | None:
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
