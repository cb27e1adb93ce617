"""A framework whose sources are chains of operators; its converter loses a Neg behind an Exp.

Workers import this module by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from tests.engine.convert.plain import HEAD, NoOptions, StandIn

from optvet.engine.discovery import Plugins
from optvet.plugin import (
    Artifact,
    ConversionStage,
    Feeds,
    InputError,
    PartScript,
    Session,
    SourceFacts,
    SourceOperator,
    load_factory,
)

FUNCTIONS = {"Abs": np.abs, "Neg": np.negative, "Exp": np.exp, "Tanh": np.tanh, "Sin": np.sin}
Chains = list[list[str]]
"""Each has an input and an output of its own."""


def values_of(chain: Sequence[str], value: np.ndarray) -> list[np.ndarray]:
    values = [value]
    for name in chain:
        values.append(FUNCTIONS[name](values[-1]))
    return values


class ChainsRuntime(StandIn):
    """Runs chains, and cuts the first chain of a source."""

    name = "chains"
    accepts = frozenset({"chains"})
    source_formats: Mapping[str, str] = {".py": "chains"}
    deployed = NoOptions()

    def source_facts(self, artifact: Artifact, options: NoOptions) -> SourceFacts:
        return load_factory(artifact).facts

    def load(self, artifact: Artifact, options: NoOptions) -> Session:
        return ChainsSession(load_factory(artifact).model)

    def operators(
        self, artifact: Artifact, feeds: Feeds, options: NoOptions
    ) -> Sequence[SourceOperator]:
        (chain,) = load_factory(artifact).model
        return [SourceOperator(n, "", (i - 1,) if i else ()) for i, n in enumerate(chain)]

    def write_operators(
        self,
        artifact: Artifact,
        feeds: Feeds,
        options: NoOptions,
        kept: Sequence[int],
        folder: Path,
    ) -> str:
        (chain,) = load_factory(artifact).model
        if "Sin" in (chain[i] for i in kept):
            raise InputError("Sin cannot be written")
        starts = [i for i in kept if i - 1 not in kept]
        parts: Chains = []
        for start in starts:
            end = next(i for i in range(start, len(chain) + 1) if i not in kept)
            parts.append(chain[start:end])
        values = values_of(chain, next(iter(feeds.values())))
        given = ", ".join(f"np.array({values[i].tolist()}, 'float32')" for i in starts)
        text = f"import numpy as np\n\nexample_inputs = ({given},)\n\n\n"
        (folder / "part.py").write_text(f"{text}def part():\n    return {parts}\n")
        return "part.py"

    def operators_script(self, converter: str, options: Mapping[str, object]) -> PartScript | None:
        return None


class ChainsSession:
    def __init__(self, chains: Chains) -> None:
        self.chains = chains

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        pairs = zip(self.chains, feeds.values(), strict=True)
        return {f"output_{i}": values_of(*pair)[-1] for i, pair in enumerate(pairs)}


class ChainsConverter(StandIn):
    """An ONNX model, in which a Neg behind an Exp is lost."""

    name = "chains_to_onnx"
    consumes = frozenset({"chains"})
    produces = "onnx"

    def stages(self, options: NoOptions) -> Sequence[ConversionStage]:
        return [ConversionStage("convert", "convert", "onnx")]

    def convert(self, source: Artifact, options: NoOptions, folder: Path) -> Iterator[Artifact]:
        chains: Chains = load_factory(source).model
        nodes = []
        for c, chain in enumerate(chains):
            for i, name in enumerate(chain):
                lost = i > 0 and (chain[i - 1], name) == ("Exp", "Neg")
                result = f"y{c}" if i + 1 == len(chain) else f"v{c}_{i + 1}"
                read = f"v{c}_{i}" if i else f"x{c}"
                nodes.append(f"{result} = {'Identity' if lost else name}({read})")
        inputs = ", ".join(f"float[3] x{c}" for c in range(len(chains)))
        outputs = ", ".join(f"float[3] y{c}" for c in range(len(chains)))
        text = f"{HEAD}g ({inputs}) => ({outputs}) {{ {' '.join(nodes)} }}"
        yield Artifact("onnx", onnx.parser.parse_model(text).SerializeToString())


def plugins() -> Plugins:
    return Plugins().register("runtime", ChainsRuntime()).register("converter", ChainsConverter())
