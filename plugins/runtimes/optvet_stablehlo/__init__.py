"""StableHLO as a source of conversions: JAX makes and runs it, IREE compiles it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from optvet.plugin import (
    Artifact,
    ConversionStage,
    Converter,
    Feeds,
    InputError,
    PartScript,
    Runtime,
    Session,
    SourceFacts,
    SourceInside,
    SourceOperator,
    hookimpl,
    load_factory,
    version_of,
)
from optvet_stablehlo.home import ENVIRONMENT, EXTRA
from optvet_stablehlo.iree import IreeConverter, IreeModuleRuntime
from optvet_stablehlo.modules import STABLEHLO, Program, XlaSession, form_of, text_of

_JAX = "jax"


class StableHloOptions(BaseModel):
    """There is nothing to choose."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StableHloRuntime:
    """Modules of StableHLO, as JAX's compiler XLA runs them on the CPU."""

    name = "stablehlo"
    accepts = frozenset({STABLEHLO})
    source_formats: Mapping[str, str] = {".mlir": STABLEHLO, ".py": STABLEHLO}
    source_risks: Mapping[str, str] = {
        ".mlir": "may hold custom calls, which run functions of XLA at addresses that they name"
    }
    preload: Sequence[str] = ("jax",)
    libraries: Mapping[str, str] = {"jax": "jax", "jaxlib": "jaxlib"}
    python_environment = ENVIRONMENT
    other_environments: Sequence[str] = ("jax",)
    options: StableHloOptions = StableHloOptions()
    deployed: StableHloOptions = StableHloOptions()

    def version(self) -> str:
        """Version of JAX."""
        return version_of("jax", extra=EXTRA)

    def source_facts(self, artifact: Artifact, options: StableHloOptions) -> SourceFacts:
        """Inputs of the factory; of a file, drawn ones."""
        if artifact.handle is not None:
            return load_factory(artifact).facts
        program = Program(text_of(artifact))
        rng = np.random.default_rng(0)
        return SourceFacts({f"input_{i}": _draw(v, rng) for i, v in enumerate(program.arguments)})

    def load(self, artifact: Artifact, options: StableHloOptions) -> Session:
        """The module, compiled."""
        return XlaSession(Program(text_of(artifact)))

    def load_perturbed(
        self, artifact: Artifact, options: StableHloOptions, seed: int, inside: bool
    ) -> Session:
        """The module with its weights, or the result of every operator, moved by a roundoff."""
        from optvet_stablehlo.inside import move_weights

        text = text_of(artifact)
        if inside:
            return MovedSession(text, seed)
        program = Program(text)
        move_weights(program, seed)
        return XlaSession(program)

    def inside(
        self, artifact: Artifact, feeds: Feeds, options: StableHloOptions, seed: int | None
    ) -> SourceInside:
        """What every operator of the module gives."""
        from optvet_stablehlo.inside import values_of

        return values_of(text_of(artifact), feeds, seed)

    def operators(
        self, artifact: Artifact, feeds: Feeds, options: StableHloOptions
    ) -> Sequence[SourceOperator]:
        """Operators of the function, those of the functions that it calls among them."""
        from optvet_stablehlo.parts import operators_of

        return operators_of(text_of(artifact))

    def write_operators(
        self,
        artifact: Artifact,
        feeds: Feeds,
        options: StableHloOptions,
        kept: Sequence[int],
        folder: Path,
    ) -> str:
        """A module of these operators."""
        from optvet_stablehlo.parts import write_operators

        return write_operators(text_of(artifact), feeds, kept, folder)

    def operators_script(self, converter: str, options: Mapping[str, object]) -> PartScript | None:
        """For IREE."""
        from optvet_stablehlo.parts import script_for

        return script_for(converter, options)


class MovedSession:
    """A module whose operators are moved: which results are exact is known on the inputs alone."""

    def __init__(self, text: str, seed: int) -> None:
        self._text, self._seed = text, seed

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Outputs in order, with numbers for names."""
        from optvet_stablehlo.inside import move_operators, recorded

        program = Program(self._text)
        move_operators(program, recorded(self._text, feeds), self._seed)
        return XlaSession(program).run(feeds)


class JaxExport:
    """``jax.export`` of a function of JAX."""

    name = "jax_export"
    consumes = frozenset({_JAX})
    produces = STABLEHLO
    preload: Sequence[str] = ("jax",)
    libraries: Mapping[str, str] = {"jax": "jax"}
    python_environment = ENVIRONMENT
    other_environments: Sequence[str] = ("jax",)
    options: StableHloOptions = StableHloOptions()

    def version(self) -> str:
        """Version of JAX."""
        return version_of("jax", extra=EXTRA)

    def stages(self, options: StableHloOptions) -> Sequence[ConversionStage]:
        """One stage."""
        return [ConversionStage("export", "export", STABLEHLO)]

    def convert(
        self, source: Artifact, options: StableHloOptions, folder: Path
    ) -> Iterator[Artifact]:
        """The module, for the sizes of the example."""
        import jax

        loaded = load_factory(source)
        if any(loaded.facts.dynamic.values()):
            raise NotImplementedError("IREE and XLA take modules of fixed sizes alone")
        names = list(loaded.facts.inputs)

        def function(*values: object) -> object:
            if loaded.call is not None:
                return loaded.call(loaded.model, *values)
            if loaded.named:
                return loaded.model(**dict(zip(names, values, strict=True)))
            return loaded.model(*values)

        given = map(jax.numpy.asarray, loaded.facts.inputs.values())
        specs = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in given]
        exported = jax.export.export(jax.jit(function, keep_unused=True))(*specs)
        yield Artifact(STABLEHLO, exported.mlir_module().encode())


def _draw(argument: object, rng: np.random.Generator) -> np.ndarray:
    form = form_of(argument)
    if form is None or form[1].kind not in "biuf":
        raise InputError("no input can be drawn for this module; give it by a function of a .py")
    shape, kind = form
    if kind.kind == "f":
        return np.asarray(rng.normal(size=shape)).astype(kind)
    return rng.integers(0, 2, shape).astype(kind)


@hookimpl
def optvet_runtimes() -> Iterable[Runtime]:
    """What runs modules of StableHLO, and of IREE."""
    return [StableHloRuntime(), IreeModuleRuntime()]


@hookimpl
def optvet_converters() -> Iterable[Converter]:
    """JAX's export, and IREE's compiler."""
    return [JaxExport(), IreeConverter()]
