"""Functions of JAX as sources of conversions, and jax2onnx."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    Artifact,
    ConversionStage,
    Converter,
    Feeds,
    PartScript,
    Runtime,
    Session,
    SourceFacts,
    SourceInside,
    SourceOperator,
    SourceStep,
    hookimpl,
    version_of,
)
from optvet_jax.home import ENVIRONMENT, EXTRA, PRELOAD
from optvet_jax.program import JaxProgram, evaluated, moved, program_of, values_of

JAX = "jax"


class NoJaxOptions(BaseModel):
    """There is nothing to choose."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class JaxConverterOptions(BaseModel):
    """How ``jax2onnx.to_onnx`` is called."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    opset: int | None = Field(default=None, ge=7)
    """ONNX's operator set; by default what jax2onnx chooses."""


class JaxRuntime:
    """Functions of arrays, as JAX executes them on the CPU."""

    name = "jax"
    accepts = frozenset({JAX})
    source_formats: Mapping[str, str] = {".py": JAX}
    preload: Sequence[str] = PRELOAD
    source_preload: Sequence[str] = ("optvet_jax.made_sources",)
    libraries: Mapping[str, str] = {"jax": "jax"}
    python_environment = ENVIRONMENT
    other_environments: Sequence[str] = ("stablehlo",)
    options: NoJaxOptions = NoJaxOptions()
    deployed: NoJaxOptions = NoJaxOptions()

    def version(self) -> str:
        """Version of JAX."""
        return version_of("jax", extra=EXTRA)

    def source_facts(self, artifact: Artifact, options: NoJaxOptions) -> SourceFacts:
        """Inputs of the factory."""
        return program_of(artifact).facts

    def load(self, artifact: Artifact, options: NoJaxOptions) -> Session:
        """The function, ready to be called."""
        return JaxSession(program_of(artifact))

    def load_perturbed(
        self, artifact: Artifact, options: NoJaxOptions, seed: int, inside: bool
    ) -> Session:
        """The function with its weights, or the result of every operator, moved by a roundoff."""
        return JaxSession(program_of(artifact), moved(seed, inside))

    def load_double(self, artifact: Artifact, options: NoJaxOptions) -> Session:
        """The function in float64."""
        return JaxSession(program_of(artifact), double=True)

    def inside(
        self, artifact: Artifact, feeds: Feeds, options: NoJaxOptions, seed: int | None
    ) -> SourceInside:
        """What every operator of the function gives."""
        return values_of(program_of(artifact), feeds, None if seed is None else moved(seed, True))

    def operators(
        self, artifact: Artifact, feeds: Feeds, options: NoJaxOptions
    ) -> Sequence[SourceOperator]:
        """Calls of JAX's functions, and equations."""
        from optvet_jax.parts import executed_once, operators_of

        return operators_of(executed_once(artifact, feeds).whole)

    def write_operators(
        self,
        artifact: Artifact,
        feeds: Feeds,
        options: NoJaxOptions,
        kept: Sequence[int],
        folder: Path,
    ) -> str:
        """A function that computes these operators."""
        from optvet_jax.parts import executed_once, write_operators

        return write_operators(executed_once(artifact, feeds), kept, folder)

    def operators_script(self, converter: str, options: Mapping[str, object]) -> PartScript | None:
        """For jax2onnx."""
        from optvet_jax.parts import script_for

        return script_for(converter, options)

    def source_operators(self) -> Mapping[str, Sequence[str]]:
        """Functions of JAX."""
        from optvet_jax.made_sources import operators

        return operators()

    def make_source(
        self,
        steps: Sequence[SourceStep],
        dynamic: bool,
        folder: Path,
        feeds: Feeds | None = None,
    ) -> str | None:
        """A function that calls them one after the other."""
        from optvet_jax.made_sources import write_source

        return write_source(steps, dynamic, folder, feeds)


class JaxSession:
    """A function that is called; with a ``mover``, operator by operator."""

    def __init__(self, program: JaxProgram, mover: Any = None, double: bool = False) -> None:
        self._program, self._mover, self._double = program, mover, double

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """All arrays that are returned, in order, with numbers for names."""
        leaves = evaluated(self._program, feeds, self._mover, self._double)
        return {f"output_{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}


class Jax2Onnx:
    """``jax2onnx.to_onnx`` of the function."""

    name = "jax2onnx"
    consumes = frozenset({JAX})
    produces = "onnx"
    preload: Sequence[str] = PRELOAD
    libraries: Mapping[str, str] = {"jax2onnx": "jax2onnx"}
    python_environment = ENVIRONMENT
    options: JaxConverterOptions = JaxConverterOptions()

    def version(self) -> str:
        """Version of jax2onnx."""
        return version_of("jax2onnx", extra=EXTRA)

    def stages(self, options: JaxConverterOptions) -> Sequence[ConversionStage]:
        """One stage."""
        return [ConversionStage("convert", "convert", "onnx")]

    def convert(
        self, source: Artifact, options: JaxConverterOptions, folder: Path
    ) -> Iterator[Artifact]:
        """The model in ONNX, with open sizes where the source has them."""
        import jax2onnx

        program = program_of(source)
        settings = {"opset": options.opset} if options.opset else {}
        model = jax2onnx.to_onnx(
            program.function, inputs=program.specs(), model_name=source.handle.name, **settings
        )
        yield Artifact("onnx", model.SerializeToString())


@hookimpl
def optvet_runtimes() -> Iterable[Runtime]:
    """What runs JAX's functions."""
    return [JaxRuntime()]


@hookimpl
def optvet_converters() -> Iterable[Converter]:
    """jax2onnx."""
    return [Jax2Onnx()]
