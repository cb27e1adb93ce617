"""What models cover of an operator set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import onnx
from onnx import AttributeProto, ModelProto, helper

from optvet.graph.sequences import sequences_of
from optvet.graph.types import dtype_name
from optvet.graph.walk import ONNX_DOMAIN, nodes_of, operator_of, opset_versions, qualified_name
from optvet.spec.records import Coverage, OperatorSequence
from optvet.spec.words import printable

LENGTHS = (2, 3, 4, 5)
"""Operators of the sequences along the edges; those of three to five are a study's measure."""
_WORDS = 60
_NOT_REACHED = "no model was left for it; ask for more models"


def operators_at(opset: int) -> list[str]:
    """ONNX's own operators at an operator-set version, without deprecated ones."""
    names = {s.name for s in onnx.defs.get_all_schemas_with_history() if not s.domain}
    known = (onnx.defs.get_schema(n, opset) for n in names if onnx.defs.has(n, opset))
    return sorted(schema.name for schema in known if not schema.deprecated)


def opsets_for(operator: str, newest: int, oldest: int) -> list[int]:
    """Versions of ONNX's operator set in which an operator can be tried, ``newest`` first.

    Then the last version of each older form, since a runtime may have a kernel for that one alone.
    """
    found = [newest]
    while onnx.defs.has(operator, found[-1]):
        schema = onnx.defs.get_schema(operator, found[-1])
        before = schema.since_version - 1
        if schema.deprecated or before < oldest or not onnx.defs.has(operator, before):
            break
        found.append(before)
    return found


class Covered:
    """What models cover so far: ``operators`` by models, and the newest of their opsets."""

    def __init__(self) -> None:
        self.operators: Counter[str] = Counter()
        self.opsets: dict[str, int] = {}
        self._attributes: dict[str, dict[str, Counter[str]]] = {}
        self._sequences: dict[int, Counter[tuple[str, ...]]] = {n: Counter() for n in LENGTHS}

    def take(self, model: ModelProto) -> None:
        """Count one more model."""
        nodes = list(nodes_of(model.graph))
        names = {qualified_name(*operator_of(node)) for node in nodes}
        self.operators.update(names)
        opset = opset_versions(model)[ONNX_DOMAIN]
        self.opsets |= {n: max(opset, self.opsets.get(n, 0)) for n in names}
        for node in nodes:
            values = self._attributes.setdefault(qualified_name(*operator_of(node)), {})
            for attribute in node.attribute:
                values.setdefault(attribute.name, Counter())[_value(attribute)] += 1
        for length, found in self._sequences.items():
            found.update(sequences_of(model, length).keys())

    def record(self, opset: int, reasons: Mapping[str, str]) -> Coverage:
        """The record; ``reasons`` tell why operators are missing."""
        missing = [n for n in operators_at(opset) if n not in self.operators]
        attributes = {
            operator: {name: dict(found.most_common()) for name, found in sorted(values.items())}
            for operator, values in sorted(self._attributes.items())
            if values
        }
        pairs, triples = (self._list_sequences(length) for length in (2, 3))
        return Coverage(
            opset=opset,
            operators=dict(sorted(self.operators.items())),
            older={n: v for n, v in sorted(self.opsets.items()) if v < opset},
            missing={name: reasons.get(name, _NOT_REACHED) for name in missing},
            attributes=attributes,
            pairs=pairs,
            triples=triples,
            sequences={str(length): len(self._sequences[length]) for length in LENGTHS},
        )

    def _list_sequences(self, length: int) -> list[OperatorSequence]:
        ordered = sorted(self._sequences[length].items(), key=lambda item: (-item[1], item[0]))
        return [OperatorSequence(operators=list(s), models=n) for s, n in ordered]


def _value(attribute: AttributeProto) -> str:
    if attribute.type == AttributeProto.TENSOR:
        return f"{dtype_name(attribute.t.data_type)}{list(attribute.t.dims)}"
    if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        return "graph"
    if attribute.type not in _PLAIN:
        return str(AttributeProto.AttributeType.Name(attribute.type)).lower()
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return printable(value.decode(errors="replace"))[:_WORDS]
    return printable(str(value))[:_WORDS]


_PLAIN = (
    AttributeProto.INT,
    AttributeProto.INTS,
    AttributeProto.FLOAT,
    AttributeProto.FLOATS,
    AttributeProto.STRING,
    AttributeProto.STRINGS,
)
