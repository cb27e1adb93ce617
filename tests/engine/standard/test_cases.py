"""Every rule of the standard by its cases in ``cases.txt``, which says how they are written."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from onnx import ModelProto, helper, numpy_helper

from optvet.engine.standard import shapes
from optvet.engine.standard.defined import undefined_in
from optvet.engine.standard.rules import OF_ALL, RULES

_CASE = re.compile(r"(keeps|breaks)(?: (ml)?(\d+))? (\(.*\)) (\{.*\})(?: : (.*))?")
_SHAPE = "a shape"


@dataclass(frozen=True)
class Case:
    """A line of the file: a call that keeps a rule or breaks it, in given words."""

    line: int
    keeps: bool
    model: ModelProto
    feeds: dict[str, np.ndarray]
    words: str

    @property
    def operator(self) -> str:
        return str(self.model.graph.node[0].op_type)

    def explain(self, rule: str, agreed: bool) -> str:
        """What is wrong with the answers about this case; empty if nothing is."""
        shape = shapes.describe_wrong_shape(self.model, self.feeds)
        if rule == _SHAPE:
            is_told = not shape if self.keeps else bool(shape) and self.words in shape
            return "" if is_told else f"line {self.line}: {shape!r}"
        found = undefined_in(self.model, self.feeds)
        if self.keeps:
            return f"line {self.line}: {found} {shape}" if found or shape else ""
        excused = () if agreed else tuple(self.model.graph.node[0].output)
        is_told = any(
            u.kind == f"{self.operator}: {rule}" and self.words in u.what and u.values == excused
            for u in found
        )
        return "" if is_told else f"line {self.line}: {found}"


@dataclass
class Section:
    """The cases of one rule; whether kernels agree where it is broken."""

    rule: str
    agreed: bool
    cases: list[Case] = field(default_factory=list)


@cache
def sections() -> dict[str, Section]:
    found: dict[str, Section] = {}
    text = Path(__file__).with_name("cases.txt").read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.fullmatch(r"\[([a-z0-9 ]+?)(, agreed)?\]", line.strip()):
            section = found[header[1]] = Section(header[1], bool(header[2]))
        elif case := _CASE.fullmatch(line.strip()):
            section.cases.append(parse(number, case))
        else:
            assert not line.strip() or line.startswith("#"), f"line {number}: {line}"
    return found


def parse(number: int, case: re.Match[str]) -> Case:
    kind, is_learned, opset, operands, body, words = case.groups()
    versions = {"": 24, "ai.onnx.ml": 3}
    versions["ai.onnx.ml" if is_learned else ""] = int(opset or (3 if is_learned else 24))
    imports = ", ".join(f'"{domain}" : {version}' for domain, version in versions.items())
    text = f"<ir_version: 10, opset_import: [{imports}]> g {operands} => () {body}"
    model = onnx.parser.parse_model(text)
    given = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    del model.graph.initializer[:]
    for value in model.graph.input:
        kind_of = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        numbers = np.linspace(0.1, 1, int(np.prod(shape))).reshape(shape).astype(kind_of)
        given.setdefault(value.name, numbers)
    return Case(number, kind == "keeps", model, given, words or "")


@pytest.mark.parametrize("name", sections())
def test_a_rule_is_kept_and_broken_as_its_cases_say(name: str) -> None:
    section = sections()[name]
    wrong = [case.explain(section.rule, section.agreed) for case in section.cases]
    assert list(filter(None, wrong)) == []


def test_every_rule_has_a_case_that_keeps_it_and_one_that_breaks_it() -> None:
    rules = {rule.name for of_one in (*RULES.values(), OF_ALL) for rule in of_one}
    assert sections().keys() == rules | {_SHAPE}
    assert [
        s.rule for s in sections().values() if {case.keeps for case in s.cases} != {True, False}
    ] == []


def test_every_row_about_shapes_has_a_case_that_breaks_it() -> None:
    broken = [case for case in sections()[_SHAPE].cases if not case.keeps]
    for rank in shapes.RANKS:
        told = f"{rank.words} as input {rank.place}"
        assert [c for c in broken if c.operator in rank.operators.split() and told in c.words], rank
    operators = {case.operator for case in broken}
    missing = [row.operators for row in shapes.FIXED if not operators & {*row.operators.split()}]
    assert missing == []
