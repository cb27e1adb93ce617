"""Sessions of ONNX Runtime that optimize a model, and save it where they are asked to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def save_optimized(model: bytes, settings: Mapping[str, Any]) -> bytes:
    """The model that a session under ``settings`` saves."""
    if hasattr(os, "memfd_create"):
        # A file in memory takes a third of the time, which hunts need for every model.
        with open(os.memfd_create("optvet"), "rb") as memory:
            create_session(model, settings, save=Path(f"/proc/self/fd/{memory.fileno()}"))
            return memory.read()
    with tempfile.TemporaryDirectory(prefix="optvet-") as folder:
        path = Path(folder) / "optimized.onnx"
        create_session(model, settings, save=path)
        return path.read_bytes()


def create_session(
    model: bytes | str,
    settings: Mapping[str, Any],
    save: Path | None = None,
    weights: str | None = None,
) -> None:
    """Open a session under ``settings``, which optimizes the model.

    Args:
        model: Its bytes or its path.
        settings: Level, names of disabled passes, and entries of the configuration.
        save: Where to write the optimized model; its verbose log is written where it is None.
        weights: Name of a file beside it for its weights.
    """
    import onnxruntime as ort

    session = ort.SessionOptions()
    session.graph_optimization_level = optimization_level(settings["level"])
    session.intra_op_num_threads = 1  # nothing is run, and a thread costs more than a small model
    session.log_severity_level = 0 if save is None else 2
    for key, value in settings["config"].items():
        session.add_session_config_entry(key, value)
    if save is not None:
        session.optimized_model_filepath = str(save)
    if weights is not None:
        key = "session.optimized_model_external_initializers_file_name"
        session.add_session_config_entry(key, weights)
    cpu = ["CPUExecutionProvider"]
    ort.InferenceSession(model, session, cpu, disabled_optimizers=settings["disabled"])


def optimization_level(number: int) -> Any:
    """ONNX Runtime's constant of a level from 0 to 4."""
    import onnxruntime as ort

    names = ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_LAYOUT", "ENABLE_ALL")
    levels = ort.GraphOptimizationLevel
    # Releases before 1.23 have no level of its own for layout: there it belongs to "all".
    return getattr(levels, f"ORT_{names[number]}", levels.ORT_ENABLE_ALL)
