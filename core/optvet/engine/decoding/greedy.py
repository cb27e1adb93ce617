"""Greedy decoding with an exported model; records all inputs and outputs of each run.

These functions run in a worker process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from optvet.engine.decoding.files import ENCODER, cache_entry
from optvet.engine.work.trials.inference import RuntimeConfig, infer, load
from optvet.graph.types import numpy_dtype
from optvet.spec.errors import UsageError
from optvet.spec.types import Artifact, ValueInfo

Values = Mapping[str, np.ndarray]
_IDS = ("input_ids", "decoder_input_ids")
_MASKS = ("attention_mask", "decoder_attention_mask")


@dataclass(frozen=True)
class Part:
    """One ONNX file: its bytes and its inputs."""

    data: bytes
    inputs: tuple[ValueInfo, ...]


@dataclass(frozen=True)
class DecodingPlan:
    """The inputs of a decoding.

    Attributes:
        encoder: Inputs of the encoder by name; empty without one.
        prompt: Prompt of the decoder, of shape (sequences, length), int64.
        mask: Attention mask of the prompt, of the same shape, int64.
        parts: The part that computes each token, in order.
    """

    encoder: Values
    prompt: np.ndarray
    mask: np.ndarray
    parts: tuple[str, ...]


@dataclass(frozen=True)
class DecodingRun:
    """One run of ``part``; ``token`` counts from 1."""

    part: str
    token: int
    feeds: Values
    outputs: Values


@dataclass
class Decoded:
    """All runs in order, and the decoded tokens, of shape (sequences, tokens)."""

    runs: list[DecodingRun] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    failure: str = ""


def decode(parts: Mapping[str, Part], plan: DecodingPlan, by: RuntimeConfig) -> Decoded:
    """Decode one token per part of ``plan``. The first run that fails ends it, with its error."""
    found = Decoded(tokens=[[] for _ in plan.prompt])
    sessions = {name: load(by, Artifact("onnx", part.data)) for name, part in parts.items()}
    # Where a cache exists, only the newest token is fed.
    ids, mask, cache = plan.prompt, plan.mask, dict[str, np.ndarray]()
    known: dict[str, np.ndarray] = {}
    if ENCODER in parts:
        outputs = infer(by.runtime, sessions[ENCODER], plan.encoder)
        found.runs.append(DecodingRun(ENCODER, 1, plan.encoder, outputs))
        known = _from_encoder(plan.encoder, outputs)
    for token, part in enumerate(plan.parts, 1):
        feeds = {i.name: _feed(i, part, ids, mask, cache, known) for i in parts[part].inputs}
        try:
            outputs = infer(by.runtime, sessions[part], feeds)
            logits = logits_of(outputs)
        except Exception as error:
            if isinstance(error, MemoryError):
                raise
            found.failure = f"{part} fails at token {token}: {error}"
            break
        found.runs.append(DecodingRun(part, token, feeds, outputs))
        _keep(cache, outputs, len(ids))
        newest = logits[:, -1].argmax(-1).astype(np.int64)
        for row, new in zip(found.tokens, newest, strict=True):
            row.append(int(new))
        ids = np.concatenate([ids, newest[:, None]], 1)
        mask = np.concatenate([mask, np.ones_like(newest)[:, None]], 1)
    return found


def runs_on(part: Part, feeds: Values, by: RuntimeConfig) -> tuple[str, ...]:
    """Run the file, and return the names of its outputs."""
    session = load(by, Artifact("onnx", part.data))
    return tuple(infer(by.runtime, session, feeds))


def _from_encoder(feeds: Values, outputs: Values) -> dict[str, np.ndarray]:
    states = outputs.get("last_hidden_state", next(iter(outputs.values())))
    mask = feeds.get("attention_mask")
    if mask is None or mask.shape[1] != states.shape[1]:
        mask = np.ones(states.shape[:2], np.int64)
    return {"encoder_hidden_states": states, "encoder_attention_mask": mask}


def logits_of(outputs: Values) -> np.ndarray:
    """Scores of the next token, of shape (sequences, length, vocabulary).

    Raises:
        ValueError: They have another number of axes.
    """
    found = outputs.get("logits", next(iter(outputs.values())))
    if found.ndim != 3:
        raise ValueError(f"logits have the shape {list(found.shape)}, not three axes")
    return found


def _keep(cache: dict[str, np.ndarray], outputs: Values, sequences: int) -> None:
    """Update the cache with the outputs of a run.

    A merged decoder returns empty encoder entries once it has read them; these are ignored.
    """
    for name, value in outputs.items():
        entry = cache_entry(name)
        if entry is not None and value.ndim and (value.shape[0] == sequences or entry not in cache):
            cache[entry] = value


def _feed(
    info: ValueInfo, part: str, ids: np.ndarray, mask: np.ndarray, cache: Values, known: Values
) -> np.ndarray:
    """Return the value of one decoder input.

    Raises:
        UsageError: Decoding defines no value for it.
    """
    name, dtype = info.name, numpy_dtype(info)
    newest = slice(-1, None) if cache else slice(None)
    entry = cache_entry(name)
    if name in _IDS:
        value = ids[:, newest]
    elif name in known:
        value = known[name]
    elif name in _MASKS:
        value = mask
    elif name == "position_ids":
        value = np.maximum(mask.cumsum(1) - 1, 0)[:, newest]
    elif name == "cache_position":
        value = np.arange(ids.shape[1])[newest]
    elif name == "use_cache_branch":
        value = np.array([bool(cache)])
    elif entry is not None and entry in cache:
        value = cache[entry]
    elif entry is not None and not cache:
        value = np.zeros(_no_past(info, len(ids)), dtype)
    else:
        raise UsageError(f"{part} has the input {name!r}, for which decoding defines no value")
    return value.astype(dtype, copy=False)


def _no_past(info: ValueInfo, sequences: int) -> tuple[int, ...]:
    """Shape of an empty cache entry: one row per sequence, and 0 for each open dimension."""
    declared: Sequence[int | str | None] = (info.shape or ())[1:]
    return (sequences, *(d if isinstance(d, int) else 0 for d in declared))
