"""Other models of the same source, whose regions may take the place of a wrong one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import onnx

from optvet.engine.contract import checked_calls
from optvet.engine.convert.chain import Link
from optvet.engine.convert.conversion_inputs import ConversionInput
from optvet.engine.convert.session import Conversion
from optvet.engine.options import parse_options
from optvet.engine.repair.aligned_run import THE_SOURCE
from optvet.graph.walk import ONNX_DOMAIN, opset_versions
from optvet.spec.converters import ConversionStage, Converter
from optvet.spec.errors import OptvetError
from optvet.spec.protocols import Feeds
from optvet.spec.types import Artifact

_FIRST = 100
"""Numbers of folders of reference models begin here, behind those of the chain."""


def references_of(
    conversion: Conversion, converted: bytes, inputs: Sequence[ConversionInput]
) -> Mapping[str, bytes]:
    """What other converters make of the source, by the names of the chains.

    What a converter refuses, or fails at, is left out. A source in ONNX is its own, of which
    single operators are put back.
    """
    source = conversion.source.artifact
    if source.format == "onnx":
        return {THE_SOURCE: source.data}
    versions = opset_versions(onnx.load_from_string(converted))
    usual = [d.sample.feeds for d in inputs if d.origin not in ("edge", "size")]
    found = {}
    first = _FIRST
    for chain in _chains(conversion, versions.get(ONNX_DOMAIN)):
        artifact: Artifact | None = source
        for number, link in enumerate(chain, first):
            artifact = (
                None if artifact is None else _made_by(conversion, link, artifact, number, usual)
            )
        first += len(chain)
        if artifact is not None and artifact.data:
            found[",".join(link.converter.name for link in chain)] = artifact.data
    return found


def other_chains(conversion: Conversion) -> Iterator[tuple[Link, ...]]:
    """Other ways from the source to ONNX, with the converters' own defaults."""
    yield from _chains(conversion, None)


def _made_by(
    conversion: Conversion, link: Link, source: Artifact, number: int, usual: Sequence[Feeds]
) -> Artifact | None:
    """What a converter makes in the end; None where it refuses or fails."""
    known = len(conversion.warnings)
    try:
        made = conversion.convert(link, source, number, usual)
    except OptvetError:
        return None
    finally:
        del conversion.warnings[known:]
    return made.artifacts[-1] if made.failure is None and made.artifacts else None


def _chains(conversion: Conversion, opset: int | None) -> Iterator[tuple[Link, ...]]:
    """Ways from the source to ONNX, at the model's operator set, by one converter or by two.

    Each lies where work is done already, and none of it loses precision.
    """
    used = tuple(link.converter.name for link in conversion.links)
    here = list(_converters(conversion))
    source = conversion.source.artifact.format
    begins = [c for c in here if source in c.consumes]
    ways: list[tuple[Converter, ...]] = [(c,) for c in begins if c.produces == "onnx"]
    ways += [
        (begin, end)
        for begin, end in itertools.product(begins, here)
        if begin.produces not in ("onnx", source)
        and begin.produces in end.consumes
        and end.produces == "onnx"
    ]
    for way in ways:
        if tuple(c.name for c in way) == used:
            continue
        chain = tuple(_link(c, opset) for c in way)
        if all(stage.kind != "lossy" for link in chain for stage in link.stages):
            yield chain


def _converters(conversion: Conversion) -> Iterator[Converter]:
    plugins = conversion.plugins
    for converter in map(plugins.converter, plugins.names("converter")):
        home = plugins.home_of(converter)
        if not home or home in conversion.abroad:
            yield converter


def _link(converter: Converter, opset: int | None) -> Link:
    fields = type(converter.options).model_fields
    opset_option = {"opset": opset} if opset and "opset" in fields else {}
    options = parse_options(f"converter {converter.name!r}", converter.options, opset_option)
    stages = checked_calls.list_items(
        "converter", converter, "stages", lambda: converter.stages(options), ConversionStage
    )
    return Link(converter, options, tuple(stages))
