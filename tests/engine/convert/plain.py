"""A framework without any library: a source is a function of arrays, and says how it is converted.

Workers import this module by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
from pydantic import BaseModel, ConfigDict

from optvet import UsageError
from optvet.engine.discovery import Plugins
from optvet.plugin import Artifact, ConversionStage, Feeds, Session, SourceFacts, load_factory

HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'


@dataclass(frozen=True)
class Net:
    """A source: what it computes, and the ONNX text of each stage; "refuse", "abort", "hidden"."""

    function: Callable[..., Any]
    stages: tuple[str, ...]


class NoOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    strict: bool = False


class PlainRuntime:
    """Runs sources."""

    name = "plain"
    accepts = frozenset({"plain"})
    source_formats: Mapping[str, str] = {".py": "plain"}
    preload: Sequence[str] = ()
    options = NoOptions()
    deployed = NoOptions()

    def version(self) -> str:
        return "1.0"

    def source_facts(self, artifact: Artifact, options: NoOptions) -> SourceFacts:
        return load_factory(artifact).facts

    def load(self, artifact: Artifact, options: NoOptions) -> Session:
        return PlainSession(load_factory(artifact).model.function)


class PlainSession:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        returned = self.function(*feeds.values())
        values = returned if isinstance(returned, tuple) else (returned,)
        return {f"output_{i}": np.asarray(v) for i, v in enumerate(values)}


class WrongRuntime:
    """Runs ONNX and adds 1 to what it gets, or fails."""

    name = "wrong"

    def __init__(self, fails: bool = False) -> None:
        if fails:
            self.name = "wrong_failing"

    accepts = frozenset({"onnx"})
    preload: Sequence[str] = ()
    options = NoOptions()
    deployed = NoOptions()

    def version(self) -> str:
        return "1.0"

    def load(self, artifact: Artifact, options: NoOptions) -> Session:
        runtime = Plugins().reference_runtime()
        session = runtime.load(artifact, runtime.options)
        return FailingSession() if self.name == "wrong_failing" else WrongSession(session)


class WrongSession:
    def __init__(self, session: Session) -> None:
        self.session = session

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        return {name: value + 1 for name, value in self.session.run(feeds).items()}


class FailingSession:
    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        raise NotImplementedError("not today")


class StandIn:
    """What the converters of tests share: no options, nothing to load, version 1.0."""

    preload: Sequence[str] = ()
    options = NoOptions()

    def version(self) -> str:
        return "1.0"


class PlainConverter(StandIn):
    """Gives the ONNX texts of a source, one per stage."""

    name = "plain_to_onnx"
    consumes = frozenset({"plain"})
    produces = "onnx"

    def stages(self, options: NoOptions) -> Sequence[ConversionStage]:
        return [
            ConversionStage("read", "load", "onnx"),
            ConversionStage("rewrite", "convert", "onnx"),
            ConversionStage("simplify", "optimize", "onnx"),
        ]

    def convert(self, source: Artifact, options: NoOptions, folder: Path) -> Iterator[Artifact]:
        texts = load_factory(source).model.stages
        for text in texts + texts[-1:] * (3 - len(texts)):
            if text == "refuse":
                raise NotImplementedError("no rule for Frobnicate") from KeyError("Frobnicate")
            if text == "misuse":
                raise UsageError("plain_to_onnx: give it something else")
            if text == "abort":
                os.abort()
            data = b"" if text == "hidden" else onnx.parser.parse_model(HEAD + text)
            yield Artifact("onnx", data if isinstance(data, bytes) else data.SerializeToString())


class RefusingConverter(StandIn):
    """Takes no model in ONNX."""

    name = "refusing"
    consumes = frozenset({"onnx"})
    produces = "onnx"

    def stages(self, options: NoOptions) -> Sequence[ConversionStage]:
        return [ConversionStage("import", "load", "onnx")]

    def convert(self, source: Artifact, options: NoOptions, folder: Path) -> Iterator[Artifact]:
        raise NotImplementedError("no rule for anything")


def plugins() -> Plugins:
    """All plugins, and these."""
    found = Plugins()
    for runtime in (PlainRuntime(), WrongRuntime(), WrongRuntime(fails=True)):
        found = found.register("runtime", runtime)
    found = found.register("converter", RefusingConverter())
    return found.register("converter", PlainConverter())
