"""Checks for ``optvet doctor``: wheels that overwrite each other, and execution providers."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from optvet.plugin import Check, Collision, Installation, Unmet
from optvet_onnxruntime import nvidia
from optvet_onnxruntime.providers import CPU_PROVIDER, CUDA_PROVIDER, preload_libraries

GPU_WHEEL = "onnxruntime-gpu"
"""It owns the same module as onnxruntime, and can do all that that can."""


_TINY = '<ir_version: 8, opset_import: ["" : 17]> g (float[1] X) => (float[1] Y) { Y = Add(X, X) }'


def check_wheels(collision: Collision, installation: Installation) -> Check | None:
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


def check_requirement(unmet: Unmet, installation: Installation) -> Check | None:
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


def check_providers(installation: Installation) -> Iterator[Check]:
    """Each execution provider: whether nodes really run there."""
    listed = installation.run(_providers).value
    if listed is None:
        return
    wanted = list(listed)
    if GPU_WHEEL in installation.versions and CUDA_PROVIDER not in wanted:
        wanted.append(CUDA_PROVIDER)
    for provider in wanted:
        if provider == "AzureExecutionProvider":  # calls a service; runs nothing here
            continue
        ran = installation.run(_try_provider, provider)
        where = ran.value or []
        if provider in where:
            words = f"{provider} runs nodes"
            if provider == CUDA_PROVIDER and (gpu := installation.run(nvidia.device_words).value):
                words = f"{words} on {gpu}"
            yield Check(name="providers", status="ok", message=words)
        else:
            why = ran.error or f"nodes ran on {', '.join(where)}"
            yield _bad_provider(provider, why, listed, installation)


def _bad_provider(
    provider: str, why: str, listed: Sequence[str], installation: Installation
) -> Check:
    message = f"{provider} runs nothing: {why}"
    if provider == CPU_PROVIDER:
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
    # TensorRT comes with no extra; only what an extra promises can be broken.
    if provider.startswith("Tensorrt"):
        cure = f"to use it, install TensorRT: {installation.pip} install tensorrt"
        return Check(name="providers", status="warning", message=message, cure=cure)
    cure = f"install CUDA and cuDNN: {installation.pip} install 'optvet[gpu]'"
    return Check(name="providers", status="broken", message=message, cure=cure)


def _providers() -> list[str]:
    import onnxruntime

    return list(onnxruntime.get_available_providers())


def _try_provider(provider: str) -> list[str]:
    """The providers on which the nodes of a tiny model really ran; raises if it is not loaded."""
    import onnx.parser
    import onnxruntime as ort

    if provider != CPU_PROVIDER:
        preload_libraries()
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
