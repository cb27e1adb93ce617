"""An execution provider as the program under test: each node that may run on it is a pass.

The reference is the CPU in the clean room. Leaving a pass out keeps its node on the CPU, so that
blame finds wrong kernels, and ``optvet precision`` the fewest nodes to keep on the CPU.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import onnx
from pydantic import BaseModel, ConfigDict, Field

from optvet.graph import group_nodes, name_nodes, naming_code
from optvet.plugin import Artifact, Pass, Traits, UnknownName
from optvet_onnxruntime.installed_version import installed_version
from optvet_onnxruntime.plugin_providers import PACKAGES, ProviderPackage

_IMPORTED = (
    "from collections.abc import Callable, Collection, Iterator, Sequence",
    "from typing import Any\n",
    "import numpy as np",
    "import onnx",
)
"""What the code of ``cut_model`` needs in a script."""


class ProviderOptions(BaseModel):
    """How sessions on the provider are made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: dict[str, str | int] = {}
    """The provider's own settings, such as {"soc_model": 60}."""
    device: Literal["", "CPU", "GPU", "NPU"] = ""
    """Which of its devices; by default the first."""
    by: Literal["node", "operator", "layer"] = "node"
    """What a pass is: a node, all nodes of an operator, or of a layer."""
    tolerance: float | None = Field(default=None, gt=0)
    """The error that the device's type may cause, as a share of an output's largest value; by
    default what the provider's settings imply."""


class OrtProvider:
    """A provider of ONNX Runtime's that is a package of its own."""

    preload: Sequence[str] = ("onnxruntime",)
    environment: Mapping[str, str] = {"ORT_DISABLE_TELEMETRY": "1"}
    options: ProviderOptions = ProviderOptions()
    traits = Traits(
        ordered=False,
        composable=True,
        max_model_bytes=2**31 - 1,
        optimizes_on_load=True,
        produces="onnx-session",
    )
    requirement = "max_change<=0.01"
    always: Sequence[str] = ("nonfinite<=0",)

    def __init__(
        self,
        name: str,
        parts: Mapping[str, Sequence[str]] | None = None,
        tolerance: float | None = None,
        naming: str = "",
    ) -> None:
        self.name = self.precision = name
        self.parts, self._tolerance, self._naming = parts or {}, tolerance, naming

    @property
    def package(self) -> ProviderPackage:
        """The package that brings the provider."""
        return PACKAGES[self.name]

    def version(self) -> str:
        """Versions of the provider's package and of ONNX Runtime."""
        return f"{self.package.version()}, ONNX Runtime {installed_version()}"

    def for_model(self, source: Artifact, options: ProviderOptions) -> OrtProvider:
        """One pass for each node, or group of nodes, of the main graph."""
        model = onnx.load_from_string(source.data)
        naming = naming_code(model)
        name_nodes(model)
        settings = _as_text(options.settings)
        tolerance = options.tolerance or self.package.loss(settings)
        nodes = [n for n in model.graph.node if n.op_type != "Constant"]
        return type(self)(self.name, group_nodes(nodes, options.by), tolerance, naming)

    def passes(self) -> Sequence[Pass]:
        """The parts of the model."""
        lossy = self._tolerance is not None
        return [Pass(name, "lower", lossy=lossy, tolerance=self._tolerance) for name in self.parts]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """Every node on the device that it takes."""
        return {"default": tuple(self.parts)}

    def apply(self, source: Artifact, passes: Sequence[str], options: ProviderOptions) -> Artifact:
        """Leave to the runtime which nodes are offered to the provider."""
        from optvet_onnxruntime.provider_sessions import named

        model = named(source.data)
        every = {n.name: n for n in model.graph.node if n.op_type != "Constant"}
        parts = self.parts or group_nodes(every.values(), options.by)
        for name in passes:
            if name not in parts:
                raise UnknownName(f"node of the model for {self.name}", name, parts)
        # A part that this model lacks has no effect.
        chosen = {node for name in passes for node in parts[name]} & set(every)
        if not chosen:
            return Artifact("onnx-session", source.data, {}, fingerprint="cpu")
        nodes = None if chosen == set(every) else sorted(chosen)
        settings = _as_text(options.settings)
        handle = {
            "provider": self.name,
            "settings": settings,
            "device": options.device,
            "nodes": nodes,
        }
        about = (self.name, options.device, *map(str, sorted(settings.items())))
        fingerprint = " ".join((*about, "all" if nodes is None else ",".join(nodes)))
        return Artifact("onnx-session", source.data, handle, fingerprint=fingerprint)

    def emulated(self, options: ProviderOptions, sum_block: int | None = None) -> None:
        """None: the provider itself computes."""

    def on_inputs(self, options: ProviderOptions, inputs: Path) -> None:
        """None: no range is measured."""

    def recipes(
        self, source: Artifact, kept: Sequence[str], options: ProviderOptions
    ) -> Mapping[str, str]:
        """Names of the nodes, of which no setting of every provider takes a list."""
        return {"nodes": repr([node for name in kept for node in self.parts[name]])}

    def snippet(self, passes: Sequence[str], options: ProviderOptions) -> str:
        """A session on the provider; of some nodes alone, the code that cuts the model."""
        if not passes:
            return "return model"
        settings = _as_text(options.settings)
        device = f" and d.device.type.name == {options.device!r}" if options.device else ""
        provider = self.package.provider
        whole = not set(self.parts) - set(passes)
        nodes = sorted({node for name in passes for node in self.parts.get(name, ())})
        lines = (
            "import onnxruntime as ort",
            f"import {self.package.module} as provider",
            *([] if whole else _IMPORTED),
            "",
            f"ort.register_execution_provider_library({self.name!r}, provider.get_library_path())",
            f"devices = [d for d in ort.get_ep_devices() if d.ep_name == {provider!r}{device}]",
            f"settings = {{{self.package.settings_code}**{settings!r}}}",
            "",
            "def make(data, on_device):",
            "    options = ort.SessionOptions()",
            "    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL",
            "    if on_device:",
            "        options.add_provider_for_devices(devices[:1], settings)",
            "    # Without fallback: what the device cannot run would silently run on the CPU.",
            "    return ort.InferenceSession(data, options, enable_fallback=0)",
            "",
            *(["return make(model.SerializeToString(), True)"] if whole else self._cutting(nodes)),
        )
        return "\n".join(lines)

    def _cutting(self, nodes: Sequence[str]) -> list[str]:
        """Code that runs ``nodes`` alone on the device, by the functions that the plugin uses."""
        from optvet_onnxruntime import cut_model

        about = (cut_model.CutModel, cut_model.runs_of, cut_model.reads_of)
        code = "\n".join(inspect.getsource(each) for each in about)
        return [
            *code.splitlines(),
            *self._naming.splitlines(),
            f"return CutModel(model, make, {nodes!r})",
        ]


def _as_text(settings: Mapping[str, str | int]) -> dict[str, str]:
    """Settings as a session takes them."""
    return {name: str(value) for name, value in settings.items()}
