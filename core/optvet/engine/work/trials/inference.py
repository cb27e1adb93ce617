"""Inference: an artifact is loaded into a runtime and run, and its outputs become arrays."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import BaseModel

from optvet.engine.contract import runtime_returns
from optvet.engine.numerics import texts
from optvet.engine.work.trials import from_file
from optvet.graph.interface import Alignment
from optvet.spec.errors import UsageError
from optvet.spec.extras import given
from optvet.spec.protocols import Feeds
from optvet.spec.runtime_protocols import Runtime, RuntimeExtras, Session
from optvet.spec.types import Artifact

Outputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class RuntimeConfig:
    """A runtime and its options."""

    runtime: Runtime
    options: BaseModel


def load(config: RuntimeConfig, artifact: Artifact) -> Session:
    """A session of the artifact; UsageError if the runtime does not accept its format."""
    if artifact.format not in config.runtime.accepts:
        accepts = ", ".join(sorted(config.runtime.accepts))
        raise UsageError(
            f"runtime {config.runtime.name!r} runs {accepts}, not {artifact.format}; "
            "choose another with --runtime"
        )
    load_file = given(config.runtime, RuntimeExtras.load_file)
    if artifact.path is not None and load_file:
        return runtime_returns.session(config.runtime, load_file(artifact, config.options))
    if artifact.path is not None:
        artifact = replace(artifact, data=from_file.whole(artifact.path), path=None)
    return runtime_returns.session(config.runtime, config.runtime.load(artifact, config.options))


def open_session(config: RuntimeConfig, artifact: Artifact) -> Session:
    """A session of a source, or of what a converter made."""
    if artifact.path is not None and artifact.format != "onnx":
        # Formats of which the file is the model: it is not read here.
        return config.runtime.load(artifact, config.options)
    return load(config, artifact)


def infer(
    runtime: Runtime,
    session: Session,
    feeds: Feeds,
    alignment: Alignment | None = None,
) -> Outputs:
    """Outputs of one run, named as in the original; ``feeds`` are not changed."""
    outputs = runtime_returns.outputs(runtime, session.run(align_feeds(feeds, alignment)))
    names = alignment.outputs if alignment else {}
    flat = flatten({names.get(name, name): value for name, value in outputs.items()})
    runtime_returns.arrays(runtime, flat)
    return flat


def align_feeds(feeds: Feeds, alignment: Alignment | None = None) -> dict[str, np.ndarray]:
    """Copies of ``feeds`` under the names and types of the aligned model.

    Copies, since a runtime may write into its inputs, which are used again.
    """
    names = alignment.inputs if alignment else {}
    casts = alignment.casts if alignment else {}
    return {names.get(n, n): np.array(v, dtype=casts.get(n)) for n, v in feeds.items()}


def flatten(outputs: Mapping[str, Any]) -> Outputs:
    """Outputs as arrays: sequences become ``name[i]``, maps ``name.keys`` and ``name``.

    Texts are objects, in whatever form a runtime returns them.
    """
    flat: Outputs = {}
    for name, value in outputs.items():
        _flatten(name, value, flat)
    return {name: texts.plain(value) for name, value in flat.items()}


def graph_output_of(name: str) -> str:
    """The graph output that an array which ``flatten`` named came from."""
    suffixes = _SUFFIXES_BACKWARDS.match(name[::-1])
    return name[: len(name) - suffixes.end()] if suffixes else name


# From the end: a search for suffixes from the start takes quadratic time on "[0][0][0]…x".
_SUFFIXES_BACKWARDS = re.compile(r"(?:\]\d+\[|syek\.|htgnel\.|enon_si\.)+")


def _flatten(name: str, value: Any, flat: Outputs) -> None:
    if isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
        keys = list(value[0])
        if all(list(v) == keys for v in value):
            flat[f"{name}.keys"] = np.array(keys)
            flat[name] = np.array([[v[k] for k in keys] for v in value], dtype=np.float32)
            return
    if isinstance(value, dict):
        flat[f"{name}.keys"] = np.array(list(value))
        flat[name] = np.array(list(value.values()))
    elif isinstance(value, (list, tuple)):
        flat[f"{name}.length"] = np.array(len(value))
        for i, item in enumerate(value):
            _flatten(f"{name}[{i}]", item, flat)
    elif value is None:
        flat[f"{name}.is_none"] = np.array(True)
    else:
        flat[name] = np.asarray(value)
