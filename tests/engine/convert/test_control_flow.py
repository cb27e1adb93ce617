"""Faults in branches and bodies are placed there, and mended there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from optvet.engine.discovery import Plugins
from optvet.engine.repair.run import repair_model
from optvet.engine.work.sandbox import keep_servers
from optvet.spec.records.convert import ConversionPlace
from optvet.spec.records.repair import RepairResult
from optvet.spec.repair import RepairRequest

HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'
BRANCHES = (
    HEAD
    + """g (float[n, 2] x) => (float[n, 2] y) <float zero = {0}, float two = {2}> {
    m = ReduceMean<keepdims = 0>(x)
    c = Greater(m, zero)
    t = Tanh(x)
    y = If (c) <
        then_branch = p () => (float[n, 2] yp) <float[2, 2] wp = {1, 2, 3, -1}> {
            h = MatMul(t, wp)
            yp = Relu(h)
        },
        else_branch = q () => (float[n, 2] yq) <float[2, 2] wq = {0.5, 1, -2, 1}> {
            h = MatMul(t, wq)
            yq = Add(h, two)
        }
    >
}"""
)
LOOP = (
    HEAD
    + """g (float[n, 2] x) => (float[n, 2] y, float[k, n, 2] s)
<float[2, 2] w = {1, 0.5, 0.3, -1}, int64 n = {4}, bool go = {1}, float half = {0.5}> {
    y, s = Loop (n, go, x) <body = b (int64 i, bool c, float[n, 2] h)
        => (bool c2, float[n, 2] h2, float[n, 2] s2) {
            c2 = Identity(c)
            m = MatMul(h, w)
            t = Tanh(m)
            h2 = Sub(t, h)
            s2 = Mul(h2, h2)
        }
    >
}"""
)
SCAN = (
    HEAD
    + """g (float[2] a, float[k, 2] x) => (float[2] z, float[2, k] s) {
    z, s = Scan <num_scan_inputs = 1, scan_output_axes = [1], scan_input_directions = [1],
        body = b (float[2] h, float[2] e) => (float[2] h2, float[2] s2) {
            g = Mul(h, e)
            h2 = Sin(g)
            s2 = Exp(h2)
        }
    > (a, x)
}"""
)
NESTED = (
    HEAD
    + """g (float[n, 2] x) => (float[n, 2] y)
<int64 n = {3}, bool go = {1}, int64 one = {1}, float two = {2}> {
    y = Loop (n, go, x) <body = b (int64 i, bool c, float[n, 2] h)
        => (bool c2, float[n, 2] h2) {
            c2 = Identity(c)
            odd = Equal(i, one)
            h2 = If (odd) <
                then_branch = p () => (float[n, 2] r) { u = Sin(h) r = Mul(u, two) },
                else_branch = q () => (float[n, 2] r) { u = Cos(h) r = Add(u, h) }
            >
        }
    >
}"""
)
FAULTS = {
    "a weight of a branch": (BRANCHES, "2, 3, -1", "2, 3, -1.5", "MatMul", "then_branch of If y"),
    "an operator of a branch": (BRANCHES, "Relu(h)", "Abs(h)", "Relu", "then_branch of If y"),
    "an operator of a body": (LOOP, "Tanh(m)", "Softsign(m)", "Tanh", "iteration 1 of Loop y"),
    "what a body gives": (LOOP, "Mul(h2, h2)", "Abs(h2)", "Mul", "iteration 1 of Loop y"),
    "a step of a scan": (SCAN, "Sin(g)", "Tan(g)", "Sin", "iteration 1 of Scan z"),
    "a branch in a body": (
        NESTED,
        "u = Sin(h)",
        "u = Neg(h)",
        "Sin",
        "then_branch of If h2, iteration 2 of Loop y",
    ),
    "a direction of a scan": (
        SCAN,
        "scan_input_directions = [1]",
        "scan_input_directions = [0]",
        "Scan",
        "",
    ),
    "a number of iterations": (LOOP, "int64 n = {4}", "int64 n = {3}", "Loop", ""),
    "a condition in a body": (NESTED, "one = {1}", "one = {2}", "Equal", "iteration 2 of Loop y"),
    # Tanh is odd: its signs would be as before in every other iteration.
    "the order of inputs": (
        LOOP.replace("Tanh", "Sigmoid"),
        "Sub(t, h)",
        "Sub(h, t)",
        "Sub",
        "iteration 1 of Loop y",
    ),
}
WORDS = {
    "a direction of a scan": "Scan.scan_input_directions",
    "a number of iterations": "Loop: 3 iterations, in the source 4",
    "the order of inputs": "Sub: inputs A and B exchanged",
}


@pytest.fixture(scope="module", autouse=True)
def _servers() -> None:
    keep_servers()


def repair(folder: Path, good: str, faulty: str) -> RepairResult:
    for name, text in (("good", good), ("faulty", faulty)):
        model = onnx.parser.parse_model(text)
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, folder / f"{name}.onnx")
    rng = np.random.default_rng(0)
    shapes = {i.name: i.type.tensor_type.shape for i in model.graph.input}
    sizes = {name: [d.dim_value or 3 for d in shape.dim] for name, shape in shapes.items()}
    drawn: dict[str, Any] = {
        n: rng.normal(size=(4, *size)).astype(np.float32) for n, size in sizes.items()
    }
    np.savez(folder / "inputs.npz", **drawn)
    given = {
        "model": str(folder / "good.onnx"),
        "converted": folder / "faulty.onnx",
        "out": folder / "repaired",
        "cross_check": ("onnx_reference",),
        "dataset": (f"files:{folder / 'inputs.npz'}",),
    }
    return repair_model(RepairRequest.model_validate(given), Plugins())


@pytest.mark.parametrize(
    ("about", "good", "now", "then", "operator", "inside"),
    [(about, *case) for about, case in FAULTS.items()],
    ids=FAULTS.keys(),
)
def test_a_fault_in_an_inner_graph_is_placed_and_mended(
    tmp_path: Path, about: str, good: str, now: str, then: str, operator: str, inside: str
) -> None:
    assert now in good
    result = repair(tmp_path, good, good.replace(now, then))
    assert result.place is not None
    assert (result.place.operator, result.place.inside) == (operator, inside)
    assert WORDS.get(about, "") in result.place.words()
    assert result.verdict == "repaired"
    assert result.after["fresh"].wrong == 0


def test_exchanged_branches_are_named_and_mended(tmp_path: Path) -> None:
    result = repair(tmp_path, BRANCHES, exchange(BRANCHES))
    assert [place.words() for place in result.places] == ["If: branches exchanged"]
    assert result.verdict == "repaired"
    assert len(result.edits) == 1


def test_a_wrong_condition_is_named_and_mended(tmp_path: Path) -> None:
    # On zeros both conditions are false: to exchange the branches would be no repair.
    result = repair(tmp_path, BRANCHES, BRANCHES.replace("Greater", "Less"))
    assert [place.words() for place in result.places] == ["Greater → Less"]
    assert result.verdict == "repaired"


def test_a_branch_that_is_negated_twice_is_right(tmp_path: Path) -> None:
    result = repair(tmp_path, BRANCHES, exchange(BRANCHES).replace("Greater", "LessOrEqual"))
    assert result.verdict == "right"


def test_graphs_are_told_in_a_few_words(tmp_path: Path) -> None:
    # A loop that runs too long to be laid flat is compared as a whole.
    long = LOOP.replace("n = {4}", "n = {2000}")
    result = repair(tmp_path, long, long.replace("Tanh(m)", "Softsign(m)\n t2 = Neg(t)"))
    assert result.place is not None
    place: ConversionPlace = result.place
    assert place.attributes["body"] == ("6 nodes", "5 nodes")


COND = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)

    def forward(self, x):
        return torch.cond(
            x.mean() > 0,
            lambda h: self.a(h).relu(),
            lambda h: self.b(h) * 2,
            (x,),
        )


def model():
    return Net().eval()


example_inputs = (torch.ones(3, 4) + torch.arange(12).view(3, 4) / 9,)
more_inputs = [(-torch.ones(3, 4) - torch.arange(12).view(3, 4) / 7,)]
"""
CONDITION = """g (float[3, 4] x) => (float[3, 3] y) <float zero = {0}, float two = {2},
    float[3, 4] wa = {%s}, float[3] ba = {%s}, float[3, 4] wb = {%s}, float[3] bb = {%s}> {
    m = ReduceMean<keepdims = 0>(x)
    c = Greater(m, zero)
    y = If (c) <
        then_branch = p () => (float[3, 3] yp) {
            l = Gemm<transB = 1>(x, wa, ba)
            yp = Relu(l)
        },
        else_branch = q () => (float[3, 3] yq) {
            l = Gemm<transB = 1>(x, wb, bb)
            yq = Mul(l, two)
        }
    >
}"""


@pytest.mark.parametrize(
    ("now", "then", "words", "line"),
    [
        ("Relu(l)", "Abs(l)", "aten.relu → Abs", 14),
        pytest.param(
            "Mul(l, two)",
            "Sub(l, two)",
            "aten.mul (other=2) → Sub",
            15,
            marks=pytest.mark.release,
        ),
        ("Greater(m, zero)", "LessOrEqual(m, zero)", "aten.gt (other=0) → LessOrEqual", 13),
        ("", "", "torch.cond → If: branches exchanged", 12),
    ],
)
def test_branches_of_torch_are_followed(
    tmp_path: Path, now: str, then: str, words: str, line: int
) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)]
    weights = [value.detach().numpy().ravel() for each in layers for value in each.parameters()]
    text = HEAD + CONDITION % tuple(", ".join(map(repr, w.tolist())) for w in weights)
    faulty = text.replace(now, then) if now else exchange(text)
    (tmp_path / "net.py").write_text(COND)
    onnx.save(onnx.parser.parse_model(faulty), tmp_path / "faulty.onnx")
    given = {
        "model": f"{tmp_path / 'net.py'}:model",
        "converted": tmp_path / "faulty.onnx",
        "out": tmp_path / "repaired",
        "cross_check": ("onnx_reference",),
        "edges": False,
    }
    result = repair_model(RepairRequest.model_validate(given), Plugins())
    assert result.place is not None
    assert result.place.words() == words
    assert result.place.line.endswith(f"net.py:{line}")
    assert result.verdict == "repaired"


def exchange(text: str) -> str:
    exchanged = text.replace("then_branch", "other").replace("else_branch", "then_branch")
    return exchanged.replace("other", "else_branch")
