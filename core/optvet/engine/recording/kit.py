"""A kit: the model, inputs, and clients that run it where optvet does not.

::

    model.onnx   the model; some inner values are outputs too
    inputs.bin   all inputs, one after the other, as kit.json says
    record.py    a client for Python; record.mjs for node; index.html for a browser
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, ValueInfoProto

from optvet.engine.compare import drawn_samples, one_model
from optvet.engine.discovery import Plugins
from optvet.engine.recording.judging import judge_recording
from optvet.engine.recording.reading import read_recording
from optvet.engine.work.cache.disk import cache_root
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inner_values import infer
from optvet.engine.work.trials.server_modules import preload_for
from optvet.engine.work.trials.trial_runner import Progress
from optvet.graph.walk import reads
from optvet.spec.errors import InputError, UsageError
from optvet.spec.request import VetRequest
from optvet.spec.scratch import made_beside
from optvet.spec.types import Model, Sample

CLIENTS = ("record.py.txt", "record.mjs", "recorder.mjs", "index.html")
"""Beside this module; the one in Python is no module of optvet, and is not called like one."""
SCHEMA = "optvet.kit/1"
MOST_AT_ONCE = 64
"""Values of a region that are asked in one further recording."""
_KINDS = "biuf"
_OF_SIZES = frozenset({"Shape", "Size"})


@dataclass(frozen=True)
class Kit:
    """What was written: its folder, samples, and the inner values that are recorded."""

    folder: Path
    samples: int
    values: tuple[str, ...]
    nodes: int


def write_kit(
    request: VetRequest,
    out: Path,
    plugins: Plugins,
    *,
    values: str = "16",
    after: Path | None = None,
    tolerance: float = 0.0,
    progress: Progress = lambda text, done, total: None,
) -> Kit:
    """Write a kit to the new folder ``out``.

    Args:
        request: Model, inputs and limits.
        out: The folder.
        plugins: What is installed.
        values: "all", a number of inner values, evenly spread, or names.
        after: A recording: its inputs are taken, and the values that its first difference needs.
        tolerance: As in ``judge_recording``, to judge ``after``.
        progress: Told what is done.

    Raises:
        UsageError: The folder exists, or a value does not.
        InputError: The recording is not of the model, or no value of it differs.
    """
    if os.path.lexists(out):
        raise UsageError(f"--out {out} exists; give a folder that does not")
    model = one_model(request.model, plugins, request.cache_dir or cache_root())
    runtime = plugins.reference_runtime()
    config = RuntimeConfig(runtime, runtime.options)
    limits = Limits(request.timeout, request.memory)
    with Sandbox(jobs=1, limits=limits, preload=preload_for(None, runtime)) as sandbox:
        proto = model.load()
        possible = _possible(proto, sandbox)
        if after is not None:
            progress("judging the recording", 0, None)
            recording = read_recording(after)
            found, inside = judge_recording(model, recording, config, sandbox, tolerance)
            if found.diverges_at is None:
                raise InputError(f"--after {after}: no recorded value differs; there is no more")
            samples = [Sample(f"recorded-{i}", feeds) for i, feeds in enumerate(recording.inputs)]
            wanted = _spread([v for v in inside if v in possible], MOST_AT_ONCE)
            # What enters the region, and what was wrong, must be so in the next recording too.
            wanted += [n for n in (*found.agreeing, found.diverges_at) if n in possible]
        else:
            progress("making inputs", 0, None)
            samples = drawn_samples(model, request, plugins, config, sandbox)
            wanted = _chosen(values, possible)
    progress("writing", 0, None)
    order = [n for n in possible if n in set(wanted)]
    with made_beside(out) as folder:
        _write(folder, model, proto, samples, order)
        folder.rename(out)
    return Kit(out, len(samples), tuple(order), len(proto.graph.node))


def _chosen(values: str, possible: Sequence[str]) -> list[str]:
    if values == "all":
        return list(possible)
    if values.isdecimal():
        return _spread(possible, int(values[:9]))
    names = [n.strip() for n in values.split(",") if n.strip()]
    if unknown := [n for n in names if n not in set(possible)]:
        raise UsageError(
            f"--values: no inner value {unknown[0]!r}; `optvet compare MODEL MODEL --layers` lists "
            "them"
        )
    return names


def _spread(names: Sequence[str], most: int) -> list[str]:
    """At most so many of ``names``, evenly spaced."""
    if most >= len(names):
        return list(names)
    return [names[round((i + 1) * len(names) / (most + 1)) - 1] for i in range(most)]


def _possible(model: ModelProto, sandbox: Sandbox) -> list[str]:
    """Tensors of plain numbers that nodes make of inputs, in the order of nodes, but for outputs.

    What follows from sizes alone is left out: sessions fold it, and some runtimes end the process
    when a folded value is asked for.
    """
    outcome = sandbox.call(infer, model.SerializeToString())
    types = {n: onnx.TypeProto.FromString(t) for n, t in (outcome.value or {}).items()}
    ends = {o.name for o in model.graph.output}
    weights = {t.name for t in model.graph.initializer}
    depends = {i.name for i in model.graph.input} - weights
    found = []
    for node in model.graph.node:
        if node.op_type in _OF_SIZES or not depends.intersection(reads(node)):
            continue
        depends.update(node.output)
        found += [o for o in node.output if o and o not in ends and _is_plain(types.get(o))]
    return found


def _is_plain(kind: onnx.TypeProto | None) -> bool:
    if kind is None or kind.WhichOneof("value") != "tensor_type":
        return False
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
    except (KeyError, TypeError):  # a type that numpy lacks
        return False
    return dtype.kind in _KINDS


def _write(
    folder: Path,
    model: Model,
    proto: ModelProto,
    samples: Sequence[Sample],
    values: Collection[str],
) -> None:
    shown = ModelProto()
    shown.CopyFrom(proto)
    # Without types: a declared one may be wrong.
    shown.graph.output.extend(ValueInfoProto(name=n) for n in values)
    (folder / "model.onnx").write_bytes(shown.SerializeToString())
    entries: list[dict[str, Any]] = []
    with (folder / "inputs.bin").open("wb") as file:
        for number, sample in enumerate(samples):
            for name, value in sample.feeds.items():
                array = np.ascontiguousarray(value)
                if array.dtype.kind not in _KINDS:
                    raise InputError(f"input {name!r} is {array.dtype}; clients feed numbers alone")
                entry = {"sample": number, "name": name, "dtype": array.dtype.name}
                entry |= {"shape": list(np.shape(value)), "start": file.tell()}
                file.write(array.tobytes())
                entries.append({**entry, "bytes": array.nbytes})
    about = {"schema": SCHEMA, "model": model.digest, "samples": len(samples), "inputs": entries}
    (folder / "kit.json").write_text(json.dumps(about), encoding="utf-8")
    clients = files("optvet.engine.recording")
    for name in CLIENTS:
        (folder / name.removesuffix(".txt")).write_bytes((clients / name).read_bytes())
