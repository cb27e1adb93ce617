"""Sessions in which some nodes run on an execution provider, and all others on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from optvet.graph import name_nodes
from optvet.plugin import Feeds, Unsupported
from optvet_onnxruntime.cut_model import CutModel
from optvet_onnxruntime.providers import CPU_PROVIDER


class ProviderSession:
    """A model of which some nodes, or all that it takes, run on a provider."""

    def __init__(
        self,
        model: ModelProto,
        make: Callable[[bytes, bool], Any],
        on_device: Collection[str] | None,
        provider: str,
    ) -> None:
        self._make, self._provider = make, provider
        self._whole = on_device is None
        self._model = CutModel(model, self._made, on_device)

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Outputs by name, in the graph's order."""
        names = [output.name for output in self._model.get_outputs()]
        values = self._model.run(names, feeds)
        for name, value in zip(names, values, strict=True):
            if not isinstance(value, np.ndarray):
                raise Unsupported(f"{name!r} is no tensor, and parts of a model pass tensors only")
        return dict(zip(names, values, strict=True))

    def _made(self, data: bytes, on_device: bool) -> Any:
        """A session; one of the whole model must have a node on the device.

        Raises:
            Unsupported: It has none, as happens without an error: nothing would be tested.
        """
        session = self._make(data, on_device)
        if self._whole and not nodes_on_device(session):
            raise Unsupported(f"no node of this model runs on {self._provider}, all on the CPU")
        return session


def nodes_on_device(session: Any) -> list[str]:
    """Names of the nodes that a session placed on another provider than the CPU's."""
    groups = session.get_provider_graph_assignment_info()
    return [n.name for g in groups if g.ep_name != CPU_PROVIDER for n in g.get_nodes()]


def named(data: bytes) -> ModelProto:
    """The model, each of whose nodes has a name of its own."""
    model = onnx.load_from_string(data)
    name_nodes(model)
    return model
