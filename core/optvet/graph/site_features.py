"""What is particular about the sites of a rewrite: properties that only the wrong ones have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, numpy_helper

from optvet.graph.sites import Site
from optvet.graph.text import attribute_text
from optvet.graph.walk import operator_of, opset_versions, reads, schema_of
from optvet.graph.weights import constants_of, held_tensor

Values = Mapping[str, np.ndarray]


def features_of(model: ModelProto, site: Site, values: Values) -> dict[str, str]:
    """Properties of a site in the graph before, as {property: value}, both in words.

    ``values`` are recorded values of ``model``; without them shapes and types are left out.
    """
    constants, versions = constants_of(model), opset_versions(model)
    readers = Counter(n for node in model.graph.node for n in reads(node))
    outputs, inputs = {o.name for o in model.graph.output}, {i.name for i in model.graph.input}
    inside = {o for i in site.before for o in model.graph.node[i].output}
    facts: dict[str, str] = {}
    seen: Counter[str] = Counter()
    facts["operators"] = ", ".join(model.graph.node[i].op_type for i in site.before)
    for index in site.before:
        node = model.graph.node[index]
        if held_tensor(node) is not None:
            continue
        seen[node.op_type] += 1
        nth = f" {seen[node.op_type]}" if seen[node.op_type] > 1 else ""
        who = f"{node.op_type}{nth}"
        formal = _formal_inputs(node, versions)
        for place, title in enumerate(formal):
            name = node.input[place] if place < len(node.input) else ""
            what = f"{title} of {who}"
            facts[what] = _origin(name, constants, inputs, inside)
            if name and readers[name] > 1 and name in constants:
                facts[f"{what} is read elsewhere too"] = "yes"
            facts |= _about_value(what, name, constants, values)
        facts |= {
            f"{attribute} of {who}": words
            for attribute, words in _all_attributes(node, versions).items()
        }
        for place, name in enumerate(node.output):
            which = f" {place + 1}" if place else ""
            amount = readers[name] + (name in outputs)
            facts[f"readers of {who}'s output{which}"] = str(amount) if amount < 2 else "several"
            facts[f"{who}'s output{which} is an output of the model"] = (
                "yes" if name in outputs else "no"
            )
            facts |= _about_value(f"{who}'s output{which}", name, constants, values)
    return facts


def _formal_inputs(node: NodeProto, versions: Mapping[str, int]) -> list[str]:
    """The formal names of a node's inputs, including absent optional ones."""
    titles: list[str] = []
    schema = schema_of(*operator_of(node), versions)
    if schema is not None:
        variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
        titles = [p.name for p in schema.inputs if p.option != variadic]
    return titles + [f"input {i + 1}" for i in range(len(titles), len(node.input))]


def _origin(
    name: str, constants: Mapping[str, TensorProto], inputs: set[str], inside: set[str]
) -> str:
    if not name:
        return "absent"
    if name in constants:
        return "constant"
    # Values inside the site get the same word wherever they occur.
    return "an input of the model" if name in inputs and name not in inside else "computed"


def _about_value(
    what: str, name: str, constants: Mapping[str, TensorProto], values: Values
) -> dict[str, str]:
    value = values.get(name)
    if value is None and name in constants and constants[name].data_type != TensorProto.STRING:
        value = numpy_helper.to_array(constants[name])
    if value is None:
        return {}
    facts = {f"type of {what}": str(value.dtype), f"rank of {what}": str(value.ndim)}
    for axis, size in enumerate(value.shape[:6]):
        facts[f"axis {axis} of {what}"] = {0: "0", 1: "1"}.get(size, "more than 1")
    if name in constants and value.dtype.kind in "fiu" and value.size:
        if value.size <= 8:
            facts[f"value of {what}"] = str(value.tolist())
        elif np.all(value == value.flat[0]):
            facts[f"value of {what}"] = "uniform"
        else:
            facts[f"value of {what}"] = "varied"
        facts[f"negative elements of {what}"] = "some" if bool(np.any(value < 0)) else "none"
        facts[f"zeros in {what}"] = "some" if bool(np.any(value == 0)) else "none"
    return facts


def _all_attributes(node: NodeProto, versions: Mapping[str, int]) -> dict[str, str]:
    """All attributes as text, with the defaults of those that are not given."""
    texts = {a.name: attribute_text(a) for a in node.attribute}
    schema = schema_of(*operator_of(node), versions)
    if schema is not None:
        for name, formal in schema.attributes.items():
            default = formal.default_value
            absent = default.type == AttributeProto.UNDEFINED
            texts.setdefault(name, "absent" if absent else attribute_text(default))
    return texts


LISTED = 6
_LATE = ("axis ", "negative ", "zeros ", "value of ")
"""Properties in which two weights often differ by chance; they are listed last."""


def distinction(
    wrong: Sequence[Mapping[str, str]], right: Sequence[Mapping[str, str]]
) -> list[str]:
    """Properties that all wrong sites and no correct site have, in words; the simplest first."""
    if not wrong or not right:
        return []
    described: list[tuple[int, int, str]] = []
    for what in wrong[0]:
        if not all(what in facts for facts in (*wrong, *right)):
            continue
        ours, theirs = ({f[what] for f in facts} for facts in (wrong, right))
        # A property that varies among the correct sites too usually differs by chance.
        if ours & theirs or len(ours) > 1 or len(theirs) > 3:
            continue
        (value,) = ours
        late = next((i for i, p in enumerate(_LATE, 1) if what.startswith(p)), 0)
        others = " or ".join(sorted(theirs))
        described.append((late, len(theirs), f"{what}: {value}; right sites: {others}"))
    return [words for *_, words in sorted(described, key=lambda t: t[:2])][:LISTED]
