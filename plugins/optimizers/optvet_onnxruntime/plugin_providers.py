"""Execution providers that are packages of their own, which a process registers before it uses one.

Settings that a provider does not know it ignores without a word, and the first session of a process
may fix them for all later ones: a process serves one configuration.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from optvet.plugin import UsageError, version_of


@dataclass(frozen=True)
class ProviderPackage:
    """A package that brings an execution provider.

    Attributes:
        name: As it is registered, and as users ask for it.
        package: Its distribution.
        module: Its module, which has ``get_library_path``.
        provider: As sessions name it.
        backend: A function of the module that names the library of its backend; empty for none.
        loss: How far the type in which it computes under given settings may move an output, as a
            share of the output's largest value; None for float32.
    """

    name: str
    package: str
    module: str
    provider: str
    backend: str
    loss: Callable[[Mapping[str, str]], float | None]

    @property
    def settings_code(self) -> str:
        """The settings that it needs, as the beginning of a dictionary in code."""
        return f'"backend_path": provider.{self.backend}(), ' if self.backend else ""

    def version(self) -> str:
        """The version of the package; raises ImportError if it is absent."""
        return version_of(self.package, extra=f"optvet[{self.name}]")


QNN = ProviderPackage(
    "qnn",
    "onnxruntime-qnn",
    "onnxruntime_qnn",
    "qnn",
    "get_qnn_htp_path",
    # With a chip it computes in float16; the emulator without one has float32.
    lambda settings: 1e-2 if "soc_model" in settings else None,
)
PACKAGES: Mapping[str, ProviderPackage] = {p.name: p for p in (QNN,)}
_registered: dict[str, tuple[tuple[str, str], ...]] = {}
"""The settings under which this process has used a provider, by its name."""


def add_provider(session: Any, name: str, given: Mapping[str, str], device: str = "") -> None:
    """Ask for a provider in the options of a session.

    Args:
        session: ONNX Runtime's ``SessionOptions``.
        name: Of the package.
        given: Settings beside its own.
        device: "CPU", "GPU" or "NPU"; empty for the first that it has.

    Raises:
        UsageError: It has no such device here, or this process used it under other settings.
    """
    import onnxruntime as ort

    known = PACKAGES[name]
    module = importlib.import_module(known.module)
    own = {"backend_path": getattr(module, known.backend)()} if known.backend else {}
    settings = {**own, **given}
    wanted = (("device", device), *sorted(settings.items()))
    if name not in _registered:
        ort.register_execution_provider_library(name, module.get_library_path())
    elif _registered[name] != wanted:
        raise UsageError(
            f"provider {name!r} was used under other settings in this process, which would hold "
            "for this session too; ask for one configuration at a time"
        )
    _registered[name] = wanted
    found = [d for d in ort.get_ep_devices() if d.ep_name == known.provider]
    devices = [d for d in found if device in ("", d.device.type.name)]
    if not devices:
        kinds = ", ".join(sorted({d.device.type.name for d in found})) or "none"
        raise UsageError(
            f"provider {name!r} has no device {device or 'at all'} here; it has: {kinds}"
        )
    session.add_provider_for_devices(devices[:1], settings)
