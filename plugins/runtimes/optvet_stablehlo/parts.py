"""Writes operators of a module of StableHLO as a module of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from optvet.plugin import InputError, PartScript, SourceOperator
from optvet_stablehlo.inside import recorded, results_of
from optvet_stablehlo.iree import CONVERT, IMPORTS, NEEDS, RUN, IreeCompileOptions
from optvet_stablehlo.modules import Program, form_of, is_constant, line_of, name_of, reads_of

_SOURCE = '''\
"""A part of a module of StableHLO, and what it was called with."""

from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
with np.load(HERE / "inputs.npz") as kept:
    example_inputs = tuple(kept[f"arr_{i}"] for i in range(len(kept.files)))


def part():
    return (HERE / "part.mlir").read_text()
'''
_EXPECTED = """\
text, given = part(), list(example_inputs)
cpu = get_backend("cpu")
with jax.enable_x64(True):
    program = cpu.compile_and_load(text, cpu.devices()[:1], CompileOptions())
    returned = program.execute_sharded([jax.device_put(value) for value in given])
    shards = returned.disassemble_into_single_device_arrays()
expected = [np.asarray(value) for (value,) in shards]"""
_EXPECTED_IMPORTS = """\
import jax
import numpy as np
from jax.extend.backend import get_backend
from jaxlib.xla_client import CompileOptions"""


def operators_of(text: str) -> list[SourceOperator]:
    """The operators of a module, in order."""
    program = Program(text)
    operators = program.operators
    places = {each: i for i, each in enumerate(operators)}
    found = []
    for each in operators:
        reads = (places[v.owner] for v in reads_of(each) if v.owner in places)
        found.append(SourceOperator(name_of(each), line_of(each), tuple(dict.fromkeys(reads))))
    return found


def write_operators(
    text: str, feeds: Mapping[str, np.ndarray], kept: Collection[int], folder: Path
) -> str:
    """Write operators as ``part.mlir``, with ``part.py`` and what they were given beside it.

    Raises:
        InputError: They read or give what cannot be an input or an output.
    """
    program = Program(text)
    operators = program.operators
    chosen = [operators[i] for i in sorted(kept)]
    inside = set(chosen)
    read = dict.fromkeys(v for each in chosen for v in reads_of(each))
    given = [v for v in read if v.owner not in inside and not is_constant(v.owner)]
    outside = [v for each in operators if each not in inside for v in reads_of(each)]
    wanted = dict.fromkeys([*program.outputs, *outside])
    outputs = [v for v in wanted if v.owner in inside]
    if not given or not outputs:
        raise InputError("these operators read no input, or nothing reads what they give")
    values = _values(program, text, feeds)
    arrays = [_stored(v, values) for v in given]
    (folder / "part.mlir").write_text(program.part(chosen, given, outputs))
    np.savez(folder / "inputs.npz", *arrays)
    (folder / "part.py").write_text(_SOURCE)
    return "part.py"


def script_for(converter: str, options: Mapping[str, object]) -> PartScript | None:
    """A script that compiles by IREE itself; None for other converters."""
    if converter != "iree":
        return None
    level = IreeCompileOptions.model_validate(dict(options)).level
    imports = f"{_EXPECTED_IMPORTS}\n{IMPORTS}"
    needs = ("jax", *NEEDS)
    return PartScript("IREE", needs, imports, _EXPECTED, CONVERT.format(level=level), run=RUN)


_RECORDED: dict[tuple[object, ...], list[np.ndarray]] = {}
"""Of the last module: many parts of one are written."""


def _values(program: Program, text: str, feeds: Mapping[str, np.ndarray]) -> dict[Any, np.ndarray]:
    key = (text, *((a.dtype.str, a.shape, a.tobytes()) for a in feeds.values()))
    if key not in _RECORDED:
        _RECORDED.clear()
        _RECORDED[key] = recorded(text, feeds)
    known = dict(zip(results_of(program), _RECORDED[key], strict=True))
    return known | dict(zip(program.arguments, feeds.values(), strict=True))


def _stored(value: Any, values: Mapping[Any, np.ndarray]) -> np.ndarray:
    form = form_of(value)
    if form is None or form[1].kind not in "biuf":
        raise InputError(f"a value of {value.type} cannot be an input")
    return np.asarray(values[value], form[1])
