"""Other models of the same source, whose regions may take the place of a wrong one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx

from optvet.engine.contract import checked_calls
from optvet.engine.convert.chain import Link
from optvet.engine.convert.conversion_inputs import ConversionInput
from optvet.engine.convert.session import Conversion
from optvet.engine.options import parse_options
from optvet.graph.walk import ONNX_DOMAIN, opset_versions
from optvet.spec.converters import ConversionStage, Converter
from optvet.spec.errors import OptvetError

_FIRST = 100
"""Numbers of folders of reference models begin here, behind those of the chain."""


def references_of(
    conversion: Conversion, converted: bytes, inputs: Sequence[ConversionInput]
) -> Mapping[str, bytes]:
    """What other converters make of the source, by their names.

    What a converter refuses, or fails at, is left out. Of a source in ONNX there is none: to put
    that itself in the place of what was made of it would repair nothing.
    """
    source = conversion.source.artifact
    if source.format == "onnx":
        return {}
    versions = opset_versions(onnx.load_from_string(converted))
    usual = [d.sample.feeds for d in inputs if d.origin not in ("edge", "size")]
    found = {}
    for number, link in enumerate(_links(conversion, versions.get(ONNX_DOMAIN)), _FIRST):
        known = len(conversion.warnings)
        try:
            artifact = conversion.convert(link, source, number, usual)
        except OptvetError:
            continue
        finally:
            del conversion.warnings[known:]
        if artifact.failure is None and artifact.artifacts and artifact.artifacts[-1].data:
            found[link.converter.name] = artifact.artifacts[-1].data
    return found


def _links(conversion: Conversion, opset: int | None) -> Iterator[Link]:
    """Converters of the source that lie where work is done already, at the model's operator set."""
    used = {link.converter.name for link in conversion.links}
    plugins = conversion.plugins
    for converter in map(plugins.converter, plugins.names("converter")):
        fits = conversion.source.artifact.format in converter.consumes
        home = plugins.home_of(converter)
        if converter.name in used or not fits or converter.produces != "onnx":
            continue
        if not home or home in conversion.abroad:
            link = _link(converter, opset)
            if all(stage.kind != "lossy" for stage in link.stages):
                yield link


def _link(converter: Converter, opset: int | None) -> Link:
    fields = type(converter.options).model_fields
    opset_option = {"opset": opset} if opset and "opset" in fields else {}
    options = parse_options(f"converter {converter.name!r}", converter.options, opset_option)
    stages = checked_calls.list_items(
        "converter", converter, "stages", lambda: converter.stages(options), ConversionStage
    )
    return Link(converter, options, tuple(stages))
