"""Keras, TensorFlow and TFLite as sources of conversions, and their converters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from optvet.plugin import (
    Artifact,
    Converter,
    Feeds,
    PartScript,
    Runtime,
    Session,
    SourceFacts,
    SourceInside,
    SourceOperator,
    SourcePart,
    SourceStep,
    hookimpl,
    may_be_rounded,
    output_names,
    version_of,
)
from optvet_tensorflow.converters import (
    KerasExport,
    LiteToOnnx,
    Tf2Onnx,
    ToLite,
    tensorflow_version,
)
from optvet_tensorflow.frozen import GRAPH, Frozen, values_of
from optvet_tensorflow.home import ENVIRONMENT, EXTRA, PRELOAD
from optvet_tensorflow.lite import TFLITE, LiteSession, bytes_of, facts_of, inside_of
from optvet_tensorflow.onnx_to_lite import Onnx2Tf
from optvet_tensorflow.program import TF, TensorFlowProgram, program_of, tensorflow


class NoTensorFlowOptions(BaseModel):
    """There is nothing to choose."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TensorFlowRuntime:
    """Keras models, modules, functions and frozen graphs, on the CPU."""

    name = "tensorflow"
    accepts = frozenset({TF, GRAPH})
    source_formats: Mapping[str, str] = {".py": TF, ".keras": TF, ".h5": TF, "": TF}
    source_risks: Mapping[str, str] = {
        # Keras' safe mode is on as well; it has been evaded before, and .h5 files never had it.
        ".keras": "may hold lambdas, and names classes that Keras imports and calls",
        ".h5": "may hold pickled functions, for which Keras has no safe mode",
        "": "may hold operators of TensorFlow that read and write files and call Python",
    }
    preload: Sequence[str] = PRELOAD
    source_preload: Sequence[str] = ("optvet_tensorflow.made_sources",)
    libraries: Mapping[str, str] = {"tensorflow": "tensorflow"}
    python_environment = ENVIRONMENT
    options: NoTensorFlowOptions = NoTensorFlowOptions()
    deployed: NoTensorFlowOptions = NoTensorFlowOptions()

    def version(self) -> str:
        """Version of TensorFlow."""
        return tensorflow_version()

    def source_facts(self, artifact: Artifact, options: NoTensorFlowOptions) -> SourceFacts:
        """Inputs of the factory; of a file, drawn ones."""
        return program_of(artifact).facts

    def load(self, artifact: Artifact, options: NoTensorFlowOptions) -> Session:
        """The model, ready to be called."""
        if artifact.format == GRAPH:
            return Frozen.of(artifact).loaded()
        return TensorFlowSession(program_of(artifact))

    def load_perturbed(
        self, artifact: Artifact, options: NoTensorFlowOptions, seed: int, inside: bool
    ) -> Session:
        """The model's graph with weights, or the result of every operator, moved by a roundoff."""
        return Frozen.made_from(program_of(artifact)).moved(seed, inside)

    def inside(
        self, artifact: Artifact, feeds: Feeds, options: NoTensorFlowOptions, seed: int | None
    ) -> SourceInside:
        """What every operator of the model's graph gives."""
        return values_of(Frozen.made_from(program_of(artifact)), feeds, seed)

    def parts(
        self, artifact: Artifact, feeds: Feeds, options: NoTensorFlowOptions
    ) -> Sequence[SourcePart]:
        """Layers and beginnings of a Keras model."""
        from optvet_tensorflow.parts import parts_of

        return parts_of(program_of(artifact))

    def write_part(
        self,
        artifact: Artifact,
        feeds: Feeds,
        options: NoTensorFlowOptions,
        name: str,
        folder: Path,
    ) -> str:
        """A part as a file of Keras."""
        from optvet_tensorflow.parts import write_part

        return write_part(program_of(artifact), feeds, name, folder)

    def script(self, converter: str, options: Mapping[str, object]) -> PartScript | None:
        """For Keras's own export, tf2onnx, and TensorFlow's converter to TFLite."""
        from optvet_tensorflow.parts import script_for

        return script_for(converter, options)

    def source_operators(self) -> Mapping[str, Sequence[str]]:
        """Layers of Keras."""
        from optvet_tensorflow.made_sources import operators

        return operators()

    def make_source(
        self,
        steps: Sequence[SourceStep],
        dynamic: bool,
        folder: Path,
        feeds: Feeds | None = None,
    ) -> str | None:
        """A functional model of these layers, whose number of rows is always open."""
        from optvet_tensorflow.made_sources import write_source

        return write_source(steps, dynamic, folder, feeds)

    def operators(
        self, artifact: Artifact, feeds: Feeds, options: NoTensorFlowOptions
    ) -> Sequence[SourceOperator]:
        """Operators of the graph of a function or a SavedModel; a Keras model has layers."""
        from optvet_tensorflow.graphs import graph_operators

        return graph_operators(artifact)

    def write_operators(
        self,
        artifact: Artifact,
        feeds: Feeds,
        options: NoTensorFlowOptions,
        kept: Sequence[int],
        folder: Path,
    ) -> str:
        """A graph of these operators."""
        from optvet_tensorflow.graphs import write_graph

        return write_graph(artifact, feeds, kept, folder)

    def operators_script(self, converter: str, options: Mapping[str, object]) -> PartScript | None:
        """For tf2onnx."""
        from optvet_tensorflow.graphs import graph_script_for

        return graph_script_for(converter, options)


class TensorFlowSession:
    """A model that is called."""

    def __init__(self, program: TensorFlowProgram) -> None:
        self._program = program

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """All tensors that are returned, in order, by their keys or numbers."""
        returned = self._program(*(feeds[s.name] for s in self._program.specs))
        leaves = [v for v in tensorflow().nest.flatten(returned) if v is not None]
        paths = list(paths_to(returned))
        names = output_names(paths if len(paths) == len(leaves) else [()] * len(leaves))
        return {name: np.asarray(leaf) for name, leaf in zip(names, leaves, strict=True)}


def paths_to(returned: Any, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """The keys and numbers that lead to each tensor of what was returned, in order."""
    if isinstance(returned, Mapping):
        for key in sorted(returned, key=str):
            yield from paths_to(returned[key], (*path, str(key)))
    elif isinstance(returned, (tuple, list)):
        for i, each in enumerate(returned):
            yield from paths_to(each, (*path, i))
    elif returned is not None:
        yield path


class LiteRuntime:
    """TFLite models by the interpreter of LiteRT."""

    name = "tflite"
    plain = False
    accepts = frozenset({TFLITE})
    source_formats: Mapping[str, str] = {".tflite": TFLITE, ".py": TFLITE}
    source_risks: Mapping[str, str] = {".tflite": ""}
    preload: Sequence[str] = PRELOAD
    libraries: Mapping[str, str] = {"ai-edge-litert": "ai_edge_litert"}
    python_environment = ENVIRONMENT
    other_environments: Sequence[str] = ("litert", "onnx2tf")
    options: NoTensorFlowOptions = NoTensorFlowOptions()
    deployed: NoTensorFlowOptions = NoTensorFlowOptions()
    preference = 10

    def version(self) -> str:
        """Version of LiteRT."""
        return version_of("ai-edge-litert", extra=EXTRA)

    def source_facts(self, artifact: Artifact, options: NoTensorFlowOptions) -> SourceFacts:
        """Inputs of the factory; of a file, drawn ones."""
        return facts_of(artifact)

    def load(self, artifact: Artifact, options: NoTensorFlowOptions) -> Session:
        """The model, ready to be called."""
        return LiteSession(bytes_of(artifact), as_declared=not artifact.data, plain=self.plain)

    def inside(
        self, artifact: Artifact, feeds: Feeds, options: NoTensorFlowOptions, seed: int | None
    ) -> SourceInside:
        """What every operator of the model gives; with a seed, on inputs moved by a roundoff."""
        if seed is not None:
            feeds = _moved(feeds, np.random.default_rng(seed))
        return inside_of(bytes_of(artifact), feeds, as_declared=not artifact.data)


class LiteReference(LiteRuntime):
    """TFLite models by LiteRT's reference kernels."""

    name = "tflite_reference"
    plain = True
    source_formats: Mapping[str, str] = {}
    preference = 0


def _moved(feeds: Feeds, rng: np.random.Generator) -> dict[str, np.ndarray]:
    moved = {}
    for name, value in feeds.items():
        if value.dtype.kind == "f":
            step = value.dtype.type(np.finfo(value.dtype).eps)
            sign = rng.choice((-1, 1), value.shape).astype(value.dtype) * may_be_rounded(value)
            value = np.asarray(value * (1 + step * sign), value.dtype)
        moved[name] = value
    return moved


@hookimpl
def optvet_runtimes() -> Iterable[Runtime]:
    """What runs TensorFlow's and TFLite's models."""
    return [TensorFlowRuntime(), LiteRuntime(), LiteReference()]


@hookimpl
def optvet_converters() -> Iterable[Converter]:
    """Converters from and to TensorFlow and TFLite."""
    return [Tf2Onnx(), KerasExport(), ToLite(), LiteToOnnx(), Onnx2Tf()]
