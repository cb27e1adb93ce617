"""What import and export alone lose of a model, and how a copy gets it back.

An optimizer's round trip may drop the type of an output, an operator set or a function; then no
model that it makes can be judged, whatever its passes do. A *mend* restores one such thing in the
same way in each of these models. It changes no node, and nothing by which passes decide, so that it
neither cures nor causes what a pass did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import get_args

from onnx import FunctionProto, ModelProto, ValueInfoProto, helper

from optvet.graph.interface import graph_inputs
from optvet.graph.walk import ONNX_DOMAIN, domain_of, graphs, nodes_of, opset_versions
from optvet.spec.mends import Lost, Mend


def find_mends(original: ModelProto, changed: ModelProto) -> list[Mend]:
    """What ``changed``, the original after import and export, lacks or has otherwise."""
    found = [mend for side in ("input", "output") for mend in _of_values(side, original, changed)]
    # Not of another version: passes may have decided by it what operators mean.
    gone = opset_versions(original).keys() - opset_versions(changed).keys()
    found += [Mend("operator set", domain) for domain in sorted(gone)]
    kept = {_key(f) for f in changed.functions}
    found += [Mend("function", _name(f)) for f in original.functions if _key(f) not in kept]
    found += [Mend("weight", name) for name in _missing_weights(original, changed)]
    if changed.ir_version != original.ir_version:
        found.append(Mend("IR version", now=str(changed.ir_version)))
    if any(graph.value_info for graph in graphs(changed.graph)):
        found.append(Mend("inner types"))
    return found


def mend(original: ModelProto, changed: ModelProto, mends: Sequence[Mend]) -> None:
    """Restore in ``changed`` what ``mends`` name, where it lacks it; in place."""
    for lost in get_args(Lost):
        for each in mends:
            if each.lost == lost:
                _RESTORE[lost](each, original, changed)


# --- inputs and outputs ---------------------------------------------------------------------------


def _of_values(side: str, original: ModelProto, changed: ModelProto) -> Iterator[Mend]:
    was, now = _values(side, original), _values(side, changed)
    before, after = [v.name for v in was], [v.name for v in now]
    pairs = list(zip(was, now, strict=False))
    new = not set(after) & {*before} - {old.name for old, young in pairs if old.name == young.name}
    if len(before) == len(after) and new:
        for old, young in pairs:
            if old.name != young.name:
                yield _named(side, "name", old.name, young.name)
    elif before != after:
        yield Mend("inputs" if side == "input" else "outputs")
    typed = {v.name: v.type.SerializeToString(deterministic=True) for v in now}
    for old in was:
        kind = old.type.SerializeToString(deterministic=True)
        if typed.get(old.name, kind) != kind:
            yield _named(side, "type", old.name)


def _named(side: str, part: str, name: str, now: str = "") -> Mend:
    kinds: dict[str, Lost] = {
        "input name": "input name",
        "output name": "output name",
        "input type": "input type",
        "output type": "output type",
    }
    return Mend(kinds[f"{side} {part}"], name, now)


def _values(side: str, model: ModelProto) -> list[ValueInfoProto]:
    """Outputs, or inputs that must be fed.

    A weight that is no input any more is a constant for the passes that follow, which may use it.
    """
    if side == "output":
        return list(model.graph.output)
    needed = {value.name for value in graph_inputs(model)}
    return [value for value in model.graph.input if value.name in needed]


def _restore_type(each: Mend, original: ModelProto, changed: ModelProto) -> None:
    side = each.lost.split()[0]
    whole = {v.name: v.type for v in _values(side, original)}
    for value in _values(side, changed):
        if value.name == each.name and each.name in whole:
            value.type.CopyFrom(whole[each.name])


def _restore_name(each: Mend, original: ModelProto, changed: ModelProto) -> None:
    if each.now not in {v.name for v in _values(each.lost.split()[0], changed)}:
        return

    def as_was(names: Sequence[str]) -> list[str]:
        return [each.name if name == each.now else name for name in names]

    for node in nodes_of(changed.graph):
        node.input[:], node.output[:] = as_was(node.input), as_was(node.output)
    for graph in graphs(changed.graph):
        for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            value.name = each.name if value.name == each.now else value.name


def _restore_values(each: Mend, original: ModelProto, changed: ModelProto) -> None:
    """The order of the original: what still has a value, or needs none; and nothing else.

    An input that is gone comes back without a reader. Weights stay listed, or not, as they are.
    """
    side, graph = each.lost.removesuffix("s"), changed.graph
    target = graph.input if side == "input" else graph.output
    made = {name for node in graph.node for name in node.output}
    made |= {t.name for t in graph.initializer} | {value.name for value in graph.input}
    now = {value.name: value for value in _values(side, changed)}
    wanted = [
        now.get(value.name, value)
        for value in _values(side, original)
        if side == "input" or value.name in made
    ]
    listed = [value for value in target if value.name not in now]
    copies = [ValueInfoProto.FromString(v.SerializeToString()) for v in (*wanted, *listed)]
    del target[:]
    target.extend(copies)


# --- the rest -------------------------------------------------------------------------------------


def _restore_opset(each: Mend, original: ModelProto, changed: ModelProto) -> None:
    version = opset_versions(original).get(each.name)
    if version is not None and each.name not in opset_versions(changed):
        domain = "" if each.name == ONNX_DOMAIN else each.name
        changed.opset_import.append(helper.make_opsetid(domain, version))


def _restore_function(each: Mend, original: ModelProto, changed: ModelProto) -> None:
    kept = {_key(function) for function in changed.functions}
    for function in original.functions:
        if _name(function) == each.name and _key(function) not in kept:
            changed.functions.add().CopyFrom(function)


def _key(function: FunctionProto) -> tuple[str, str, str]:
    return domain_of(function), function.name, getattr(function, "overload", "")


def _name(function: FunctionProto) -> str:
    return "::".join(part for part in _key(function) if part)


def _restore_weight(each: Mend, original: ModelProto, changed: ModelProto) -> None:
    if each.name not in _missing_weights(original, changed):
        return
    for tensor in original.graph.initializer:
        if tensor.name == each.name:
            changed.graph.initializer.add().CopyFrom(tensor)
    for sparse in original.graph.sparse_initializer:
        if sparse.values.name == each.name:
            changed.graph.sparse_initializer.add().CopyFrom(sparse)


def _missing_weights(original: ModelProto, changed: ModelProto) -> list[str]:
    """Weights of the original that nodes of ``changed`` read, or outputs are, and nothing has."""
    graph = changed.graph
    known = {name for node in graph.node for name in node.output}
    known |= {t.name for t in graph.initializer} | {v.name for v in graph.input}
    known |= {t.values.name for t in graph.sparse_initializer}
    read = {name for node in nodes_of(graph) for name in node.input} | {
        o.name for o in graph.output
    }
    had = [t.name for t in original.graph.initializer]
    had += [t.values.name for t in original.graph.sparse_initializer]
    return [name for name in had if name in read - known]


def _restore_ir(each: Mend, original: ModelProto, changed: ModelProto) -> None:
    if str(changed.ir_version) == each.now:
        changed.ir_version = original.ir_version


def _restore_inner(each: Mend, original: ModelProto, changed: ModelProto) -> None:
    """Declare no inner value: shape inference knows them, and nothing has to."""
    for graph in graphs(changed.graph):
        del graph.value_info[:]


_RESTORE: dict[Lost, Callable[[Mend, ModelProto, ModelProto], None]] = {
    "output type": _restore_type,
    "input type": _restore_type,
    "output name": _restore_name,
    "input name": _restore_name,
    "outputs": _restore_values,
    "inputs": _restore_values,
    "operator set": _restore_opset,
    "function": _restore_function,
    "weight": _restore_weight,
    "IR version": _restore_ir,
    "inner types": _restore_inner,
}
