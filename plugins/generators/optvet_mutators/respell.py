"""The same operation in other words, as far as its definition in ONNX gives a choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from optvet.graph import ONNX_DOMAIN, Typed, attribute_of, domain_of, to_opset, types_of
from optvet.plugin import Candidate, Vocabulary
from optvet_mutators.common import onnx_version, schema, version_with
from optvet_mutators.optional_parts import give_input

_LAST = np.iinfo(np.int64).max
_FROM_THE_END = 11
"""The operator set since which axes may be counted from the end."""
_UNORDERED = ("Squeeze", "Unsqueeze")
"""Operators whose axes may come in any order, besides those whose name begins with Reduce."""


@dataclass(frozen=True)
class _Words:
    """Attributes and constant inputs of a node in another form.

    Attributes:
        attributes: Their values; None leaves one out.
        inputs: Values of inputs, by their slot; None leaves one out.
        needs: An attribute or input that only newer operator sets may have.
    """

    attributes: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[int, Sequence[int] | np.ndarray | None] = field(default_factory=dict)
    needs: str = ""


@dataclass(frozen=True)
class _Said:
    """A node with what is known of what it reads.

    Attributes:
        node: The node.
        slots: Names of its inputs in the schema, in order.
        types: Types of values.
        known: Values of constants.
        version: Of ONNX's operator set.
    """

    node: NodeProto
    slots: tuple[str, ...]
    types: Typed
    known: Mapping[str, np.ndarray]
    version: int

    @cached_property
    def shape(self) -> tuple[int | None, ...] | None:
        """Shape of the first input."""
        return self._shape(self.node.input[0]) if self.node.input else None

    @cached_property
    def made(self) -> tuple[int | None, ...] | None:
        """Shape of the first output."""
        return self._shape(self.node.output[0])

    def _shape(self, name: str) -> tuple[int | None, ...] | None:
        return tuple(self.types[name][1]) if name in self.types else None

    def has(self, name: str) -> bool:
        """Whether the input is there."""
        slot = self.slots.index(name) if name in self.slots else len(self.node.input)
        return slot < len(self.node.input) and bool(self.node.input[slot])

    def numbers(self, name: str) -> list[int] | None:
        """The integers of a constant input of this name, or of an attribute; None without one."""
        if name in self.slots:
            if not self.has(name):
                return None
            value = self.known.get(self.node.input[self.slots.index(name)])
            return None if value is None or value.dtype.kind != "i" else value.ravel().tolist()
        given = attribute_of(self.node, name)
        return None if given is None else [int(n) for n in given]

    def words(self, **operands: Sequence[int]) -> _Words:
        """Operands in another form, each where the operator has it: an attribute or an input."""
        slots = {self.slots.index(n): v for n, v in operands.items() if n in self.slots}
        return _Words({n: v for n, v in operands.items() if n not in self.slots}, slots)


def respell(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """A node in other words that its operator's definition gives the same meaning."""
    model = candidate.model
    types, version = types_of(model), onnx_version(candidate)
    known = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in model.graph.node:
        value = attribute_of(node, "value") if node.op_type == "Constant" else None
        if value is not None:
            known[node.output[0]] = numpy_helper.to_array(value)
    edits: list[tuple[NodeProto, _Words]] = []
    for node in model.graph.node:
        formal = schema(candidate, node)
        if formal is None or domain_of(node) != ONNX_DOMAIN or not node.output[0]:
            continue
        said = _Said(node, tuple(f.name for f in formal.inputs), types, known, version)
        spelled = (words for rule in _RULES for words in rule(said))
        edits += [(node, words) for words in spelled if words.needs or _fits(words, formal)]
    if not edits:
        return False
    node, words = random.choice(edits)
    _say(candidate, node, words)
    return True


def _fits(words: _Words, formal: onnx.defs.OpSchema) -> bool:
    return all(n in formal.attributes for n, v in words.attributes.items() if v is not None)


def _say(candidate: Candidate, node: NodeProto, words: _Words) -> None:
    formal = schema(candidate, node)
    given = {*formal.attributes, *(f.name for f in formal.inputs)} if formal else set()
    if words.needs and words.needs not in given:
        output, version = node.output[0], onnx_version(candidate)
        to_opset(candidate, ONNX_DOMAIN, version_with(node.op_type, words.needs, version))
        node = next(n for n in candidate.model.graph.node if output in n.output)
    for name, value in words.attributes.items():
        for old in [a for a in node.attribute if a.name == name]:
            node.attribute.remove(old)
        if value is not None:
            node.attribute.append(helper.make_attribute(name, value))
    for slot, value in words.inputs.items():
        if value is None:
            node.input.extend([""] * (slot + 1 - len(node.input)))
            node.input[slot] = ""
        else:
            give_input(candidate, node, slot, np.asarray(value, getattr(value, "dtype", np.int64)))


def _negative_axis(said: _Said) -> Iterator[_Words]:
    """An axis counted from the other end."""
    axis, rank = attribute_of(said.node, "axis"), _rank_of_axes(said)
    if isinstance(axis, int) and rank and said.version >= _FROM_THE_END:
        yield _Words({"axis": axis - rank if axis >= 0 else axis + rank})


def _axes(said: _Said) -> Iterator[_Words]:
    """Axes counted from the other end, one or all; in another order; all that are meant, listed."""
    node, rank, axes = said.node, _rank_of_axes(said), said.numbers("axes")
    if not rank or not ("axes" in said.slots or node.op_type in _UNORDERED or _reduces(node)):
        return
    if axes is None and not said.has("axes"):
        if _reduces(node) and not attribute_of(node, "noop_with_empty_axes"):
            yield said.words(axes=range(rank))
        if node.op_type == "Squeeze" and said.shape and None not in said.shape:
            yield said.words(axes=[i for i, d in enumerate(said.shape) if d == 1])
    if not axes or said.version < _FROM_THE_END:
        return
    other = [a - rank if a >= 0 else a + rank for a in axes]
    yield said.words(axes=other)
    if len(axes) > 1:
        yield said.words(axes=[other[0], *axes[1:]])
        if _reduces(node) or node.op_type in _UNORDERED:
            yield said.words(axes=axes[::-1])


def _reduces(node: NodeProto) -> bool:
    return node.op_type.startswith("Reduce")


def _rank_of_axes(said: _Said) -> int:
    """How many axes there are that a node may name; 0 if unknown."""
    of_output = said.node.op_type in ("Unsqueeze", "OneHot", "Concat", "ConcatFromSequence")
    shape = said.made if of_output else said.shape
    return len(shape or ())


def _reshape(said: _Said) -> Iterator[_Words]:
    """Sizes that are copied, one that follows, and all of them as they are."""
    sizes, was = said.numbers("shape"), said.shape
    if said.node.op_type != "Reshape" or said.made is None or was is None:
        return
    made = [d for d in said.made if d is not None]
    if len(made) < len(said.made):
        return
    forms = [made]
    if not attribute_of(said.node, "allowzero"):
        copied = [i for i, d in enumerate(made) if i < len(was) and was[i] == d]
        forms += [_with(made, i, 0) for i in copied]
        forms += [[0 if i in copied else d for i, d in enumerate(made)]]
        if 0 not in made:
            forms += [_with(form, i, -1) for form in forms for i in range(len(made))]
    elif 0 not in made:
        forms += [_with(made, i, -1) for i in range(len(made))]
    for form in dict.fromkeys(map(tuple, forms)):
        if list(form) != sizes and form.count(-1) < 2:
            yield said.words(shape=form)


def _with(numbers: Sequence[int], place: int, number: int) -> list[int]:
    return [*numbers[:place], number, *numbers[place + 1 :]]


def _expand(said: _Said) -> Iterator[_Words]:
    """Sizes of 1 where nothing is repeated, and none for dimensions that stay."""
    sizes, was = said.numbers("shape"), said.shape
    if said.node.op_type != "Expand" or not sizes or was is None or len(sizes) < len(was):
        return
    grown = len(sizes) - len(was)
    kept = [i >= grown and was[i - grown] == d for i, d in enumerate(sizes)]
    ones = [1 if k else d for k, d in zip(kept, sizes, strict=True)]
    if any(kept) and ones != sizes:
        yield said.words(shape=ones)
    while kept and not grown and kept[0]:
        kept, sizes = kept[1:], sizes[1:]
        yield said.words(shape=sizes)


def _slice(said: _Said) -> Iterator[_Words]:
    """Places counted from the end, beyond the end, axes in another order, steps of 1."""
    starts, ends, was = said.numbers("starts"), said.numbers("ends"), said.shape
    if said.node.op_type != "Slice" or not starts or not ends or was is None:
        return
    axes, steps = said.numbers("axes"), said.numbers("steps")
    if (axes is None and said.has("axes")) or (steps is None and said.has("steps")):
        return
    if len({len(v) for v in (starts, ends, axes, steps) if v is not None}) > 1:
        return
    # An attribute in the first operator set, which has no steps.
    with_steps = "steps" in said.slots
    if axes is None:
        axes = list(range(len(starts)))
        yield said.words(axes=axes)
    if steps is None:
        steps = [1] * len(starts)
        if with_steps:
            yield said.words(axes=axes, steps=steps)
    sizes = [was[a] if -len(was) <= a < len(was) else None for a in axes]
    for place, (size, start, end, step) in enumerate(zip(sizes, starts, ends, steps, strict=True)):
        if size is None or step < 1:
            continue
        if 0 <= start < size:
            yield said.words(starts=_with(starts, place, start - size))
        if 0 < end < size:
            yield said.words(ends=_with(ends, place, end - size))
        if end >= size:
            yield from (said.words(ends=_with(ends, place, e)) for e in (size, _LAST) if e != end)
        if start == 0:
            yield said.words(starts=_with(starts, place, -size - 1))
    if len(axes) > 1:
        turned = {"starts": starts[::-1], "ends": ends[::-1], "axes": axes[::-1]}
        yield said.words(**turned, **({"steps": steps[::-1]} if with_steps else {}))


def _shape_part(said: _Said) -> Iterator[_Words]:
    """Shape of all dimensions, from the first to the last."""
    rank = len(said.shape or ())
    if said.node.op_type == "Shape" and rank and not said.node.attribute:
        yield from (_Words({"start": n}, needs="start") for n in (0, -rank))
        yield from (_Words({"end": n}, needs="end") for n in (rank, rank + 1))


def _pad(said: _Said) -> Iterator[_Words]:
    """Pads of listed axes: all in another order, counted from the end, only those that grow."""
    pads, rank = said.numbers("pads"), len(said.shape or ())
    if said.node.op_type != "Pad" or not pads or said.has("axes") or len(pads) != 2 * rank:
        return
    if "pads" not in said.slots:
        return
    grown = [i for i in range(rank) if pads[i] or pads[rank + i]]
    orders = [range(rank), range(rank)[::-1], range(-rank, 0), grown, grown[::-1]]
    pads_slot, axes_slot = said.slots.index("pads"), 3
    for axes in dict.fromkeys(tuple(order) for order in orders if order):
        listed = [*(pads[a % rank] for a in axes), *(pads[rank + a % rank] for a in axes)]
        yield _Words(inputs={pads_slot: listed, axes_slot: axes}, needs="axes")


def _transpose(said: _Said) -> Iterator[_Words]:
    """The order that is meant where none is given, and none where that is meant."""
    if said.node.op_type == "Transpose" and said.shape:
        turned = list(range(len(said.shape)))[::-1]
        if said.numbers("perm") is None:
            yield _Words({"perm": turned})
        elif said.numbers("perm") == turned:
            yield _Words({"perm": None})


def _split(said: _Said) -> Iterator[_Words]:
    """Sizes that are listed, or follow from the number of parts."""
    parts = len(said.node.output)
    shape, axis = said.shape, attribute_of(said.node, "axis") or 0
    if said.node.op_type != "Split" or not shape or not -len(shape) <= axis < len(shape):
        return
    size, listed = shape[axis], said.numbers("split")
    if not size or size % parts:
        return
    equal = [size // parts] * parts
    if listed == equal:
        slot = said.slots.index("split") if "split" in said.slots else None
        none = _Words({"split": None}) if slot is None else _Words({}, {slot: None})
        emptied = {} if slot is None else {slot: None}
        counted = _Words({"num_outputs": parts, "split": None}, emptied, needs="num_outputs")
        yield from (none, counted)
    elif listed is None and not said.has("split"):
        words = said.words(split=equal)
        yield _Words({**words.attributes, "num_outputs": None}, words.inputs)


def _windows(said: _Said) -> Iterator[_Words]:
    """Pads, strides and dilations of convolution and pooling: listed, left out, or by a rule."""
    node, rank = said.node, len(said.shape or ()) - 2
    if node.op_type not in ("Conv", "MaxPool", "AveragePool", "LpPool") or rank < 1:
        return
    kernel, pads = said.numbers("kernel_shape"), said.numbers("pads") or [0] * (2 * rank)
    rule = attribute_of(node, "auto_pad") or b"NOTSET"
    ones = [1] * rank
    for name in ("strides", "dilations"):
        if name == "strides" or node.op_type in ("Conv", "MaxPool"):
            now = said.numbers(name)
            yield from [_Words({name: ones})] if now is None else []
            yield from [_Words({name: None})] if now == ones else []
    if node.op_type == "Conv" and kernel:
        yield _Words({"kernel_shape": None})
    if attribute_of(node, "ceil_mode"):
        return  # a rule for pads means another size then
    if rule == b"NOTSET":
        if not any(pads):
            yield _Words({"pads": None, "auto_pad": "VALID"})
            yield _Words({"pads": pads})
        steps = (said.numbers("strides") or ones, said.numbers("dilations") or ones)
        if kernel and steps == (ones, ones) and pads == [(k - 1) // 2 for k in kernel] * 2:
            if all(k % 2 for k in kernel):
                yield from (_Words({"pads": None, "auto_pad": f"SAME_{w}"}) for w in _ENDS)
    elif rule == b"VALID":
        yield _Words({"auto_pad": None, "pads": pads})


_ENDS = ("UPPER", "LOWER")


def _einsum(said: _Said) -> Iterator[_Words]:
    """Letters of the other case, spaces; no output where it is what comes once, in order."""
    said_so = attribute_of(said.node, "equation")
    if said.node.op_type != "Einsum" or said_so is None:
        return
    text = (said_so.decode() if isinstance(said_so, bytes) else said_so).replace(" ", "")
    yield _Words({"equation": text.swapcase()})
    yield _Words({"equation": text.replace(",", " , ").replace("->", " -> ")})
    left, arrow, right = text.partition("->")
    once = "".join(c for c in sorted(set(left)) if c.isalpha() and left.count(c) == 1)
    if arrow and right == once and "." not in text:
        yield _Words({"equation": left})
    elif not arrow and "." not in text:
        yield _Words({"equation": f"{left}->{once}"})


def _indices(said: _Said) -> Iterator[_Words]:
    """Places that are counted from the end."""
    shape, axis = said.shape, attribute_of(said.node, "axis") or 0
    if said.node.op_type not in ("Gather", "GatherElements") or not shape:
        return
    places = said.known.get(said.node.input[1])
    size = shape[axis] if -len(shape) <= axis < len(shape) else None
    if places is not None and places.size and size and 0 <= places.min() <= places.max() < size:
        yield _Words(inputs={1: (places - size).astype(places.dtype)})


def _empty_name(said: _Said) -> Iterator[_Words]:
    """An optional input that is not given, under an empty name."""
    node = said.node
    if node.input and len(node.input) < len(said.slots) and node.input[-1]:
        yield _Words(inputs={len(node.input): None})


_RULES: tuple[Callable[[_Said], Iterator[_Words]], ...] = (
    *(_negative_axis, _axes, _reshape, _expand, _slice, _shape_part, _pad, _transpose),
    *(_split, _windows, _einsum, _indices, _empty_name),
)
