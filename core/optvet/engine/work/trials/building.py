"""Building: an optimizer makes an artifact of the model, in a worker."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types
from onnx import ModelProto
from pydantic import BaseModel

from optvet.engine.contract import optimizer_returns
from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials import from_file
from optvet.engine.work.trials.artifact_graph import OnnxGraph, identify
from optvet.graph.mend import find_mends, mend
from optvet.graph.outline import cut_weights, digest_of
from optvet.spec.errors import InfrastructureError
from optvet.spec.extras import extras, given
from optvet.spec.foreign import load_model, read_file
from optvet.spec.mends import Mend
from optvet.spec.optimizer_protocols import Optimizer, OptimizerExtras
from optvet.spec.types import Artifact

T = TypeVar("T")


@dataclass(frozen=True)
class BuildSpec:
    """What to build: ``passes`` of ``optimizer`` on the model, or the original model.

    A large model is used from its file: ``scratch`` is the folder for results, and ``stamp`` is the
    ``stamp_of`` its file when it was opened. ``mends`` are restored in what the optimizer makes,
    unless the model is large.
    """

    blob: Path
    digest: str
    optimizer: Optimizer | None = None
    options: BaseModel | None = None
    passes: tuple[str, ...] = ()
    scratch: Path | None = None
    stamp: tuple[int, int] | None = None
    mends: tuple[Mend, ...] = ()


_models: OrderedDict[str, bytes] = OrderedDict()


def ask_of(build_spec: BuildSpec, question: Callable[..., T], *about: object) -> T | None:
    """What ``question`` answers about the bytes of a model; None if it is too large for memory.

    So questions take plain values, and can be asked of a converted model too. Called in a worker.
    """
    if build_spec.scratch is not None:
        return None
    return question(read_model(build_spec.blob, build_spec.digest), *about)


def read_model(blob: Path, digest: str, *, private: bool = False) -> bytes:
    """The model's bytes; those of the last two models are kept in memory.

    Args:
        blob: The file of the model.
        digest: Its sha256.
        private: Return a copy for the caller only: an optimizer may write into its input.

    Raises:
        InfrastructureError: The file does not have this digest, or no longer.
    """
    if private:
        return read_file(blob)
    if digest not in _models:
        data = read_file(blob)
        if hashlib.sha256(data).hexdigest() != digest:
            raise InfrastructureError(
                f"{blob} has changed since it was opened; keep the model as it is while it is "
                "vetted, and start again"
            )
        _models[digest] = data
        while len(_models) > 2:
            _models.popitem(last=False)
    _models.move_to_end(digest)
    return _models[digest]


def digest_of_build(build_spec: BuildSpec, artifact: Artifact) -> tuple[str, OnnxGraph | None]:
    """A digest that identifies what ``build`` made, and its graph if that was looked at for it."""
    if build_spec.optimizer is None:
        return build_spec.digest, None
    if artifact.fingerprint is None:
        if artifact.path is not None:
            return digest_of(artifact.path), None
        return identify(artifact.data)
    name = (
        f"{build_spec.digest}|{build_spec.optimizer.name}|{artifact.format}|{artifact.fingerprint}"
    )
    return hashlib.sha256(name.encode()).hexdigest(), None


def build(build_spec: BuildSpec) -> Artifact:
    """The artifact of ``build_spec``; raises whatever the optimizer raises.

    Raises:
        ContractError: The optimizer did not return an artifact.
    """
    if build_spec.optimizer is None:
        if build_spec.scratch is not None:
            return from_file.original(build_spec.blob, build_spec.stamp)
        return Artifact("onnx", read_model(build_spec.blob, build_spec.digest))
    assert build_spec.options is not None
    if build_spec.scratch is not None:
        about = (build_spec.optimizer, build_spec.passes, build_spec.options, build_spec.scratch)
        return optimizer_returns.artifact(
            build_spec.optimizer, from_file.apply_to_file(build_spec.blob, *about)
        )
    artifact = build_spec.optimizer.apply(
        _source(build_spec), build_spec.passes, build_spec.options
    )
    return _mended(build_spec, optimizer_returns.artifact(build_spec.optimizer, artifact))


def _mended(build_spec: BuildSpec, artifact: Artifact) -> Artifact:
    """The artifact with the mends; as it is where it has no graph that could be mended."""
    if not build_spec.mends or artifact.format != "onnx" or artifact.path is not None:
        return artifact
    try:
        proto = onnx.load_from_string(artifact.data)
    except DecodeError:
        return artifact  # the checker says what is wrong with it
    mend(_original(build_spec), proto, build_spec.mends)
    return replace(artifact, data=proto.SerializeToString(deterministic=True))


def mendable(build_spec: BuildSpec) -> list[Mend]:
    """What the artifact of ``build_spec`` lacks of the original and could get back."""
    artifact = build(build_spec)
    if artifact.format != "onnx" or artifact.path is not None:
        return []
    return find_mends(_original(build_spec), onnx.load_from_string(artifact.data))


def _original(build_spec: BuildSpec) -> ModelProto:
    return onnx.load_from_string(read_model(build_spec.blob, build_spec.digest))


def _source(build_spec: BuildSpec) -> Artifact:
    """A private copy of the model for the optimizer, which may write into it."""
    return Artifact("onnx", read_model(build_spec.blob, build_spec.digest, private=True))


def visible(build_spec: BuildSpec) -> ModelProto | None:
    """The graph of what ``build`` makes; None if its format has no readable graph.

    Raises whatever the optimizer raises.
    """
    artifact = build(build_spec)
    if artifact.format == "onnx":
        path = artifact.path
        return load_model(path) if path else onnx.load_from_string(artifact.data)
    saved = saved_artifact(build_spec)
    return None if saved is None else onnx.load_from_string(saved.data)


def saved_artifact(build_spec: BuildSpec) -> Artifact | None:
    """The artifact of ``build`` exported as ONNX; None if the optimizer cannot do that.

    Raises whatever the optimizer raises.
    """
    optimizer = build_spec.optimizer
    save = given(optimizer, OptimizerExtras.saved)
    if optimizer is None or save is None:
        return None
    saved = save(_source(build_spec), build_spec.passes, build_spec.options)
    return optimizer_returns.check_saved(optimizer, saved)


def make_onnx(build_spec: BuildSpec) -> bytes | Path:
    """What is made, as a model in ONNX, or the file of a large one. Called in a worker.

    Its optimizer makes ONNX, or can save what it makes as such.
    """
    enter("build")
    optimizer = build_spec.optimizer
    assert optimizer is not None
    is_onnx = optimizer.traits.produces == "onnx"
    artifact = build(build_spec) if is_onnx else saved_artifact(build_spec)
    assert artifact is not None
    return artifact.path or artifact.data


def speaks_dialect(build_spec: BuildSpec) -> bool:
    """Whether the artifact may have operators of a runtime's own; see ``Traits.dialect``."""
    return build_spec.optimizer is not None and build_spec.optimizer.traits.dialect


def ask_changing_passes(build_spec: BuildSpec) -> list[str] | None:
    """Passes that changed the model, as the optimizer reports; None if it cannot."""
    enter("build")
    optimizer = build_spec.optimizer
    assert optimizer is not None
    if build_spec.scratch is not None:
        return None  # a hint is not worth loading a large model
    changing_passes = extras(optimizer, OptimizerExtras).changing_passes(
        _source(build_spec), build_spec.passes, build_spec.options
    )
    if changing_passes is None:
        return None
    return list(optimizer_returns.changing_passes(optimizer, changing_passes))


def change_without_weights(
    build_spec: BuildSpec, base: Sequence[str], sequences: Sequence[Sequence[str]]
) -> list[bool]:
    """Whether each of ``sequences`` changes more of the model's ``cut_weights`` than ``base`` does.

    A guess about the model itself, for a small part of the cost. A sequence that fails is said to
    change it.
    """
    enter("build")
    optimizer, options = build_spec.optimizer, build_spec.options
    assert optimizer is not None
    assert options is not None
    data = cut_weights(read_model(build_spec.blob, build_spec.digest))

    def apply(passes: Sequence[str]) -> bytes:
        return optimizer.apply(Artifact("onnx", data), passes, options).data

    def changes(passes: Sequence[str]) -> bool:
        try:
            return apply(passes) != unchanged
        except Exception:  # whatever it is, the pass does something
            return True

    unchanged = apply(base)
    return [changes(passes) for passes in sequences]
