"""Further models for ``damage.py``: with stored points, and with decisions behind the outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

DECISIONS = ("Where", "If", "TopK")
FIRST_OPSET = 10
"""From which on each is written as here: TopK with a tensor of k, Where with floats."""


def nearest_neighbours(folder: Path) -> Iterator[Path]:
    """Models that compare their input with stored points, written to the folder."""
    import skl2onnx
    from sklearn import datasets, neighbors

    wine, diabetes = (
        load(return_X_y=True) for load in (datasets.load_wine, datasets.load_diabetes)
    )
    classifier, regressor = neighbors.KNeighborsClassifier, neighbors.KNeighborsRegressor
    fast = {kind: {"optim": "cdist"} for kind in (classifier, regressor)}
    for name, kind, (x, y), options in (
        ("knn-wine", classifier, wine, None),
        ("knn-wine-cdist", classifier, wine, fast),
        ("knn-diabetes", regressor, diabetes, None),
    ):
        rows = x.astype(np.float32)
        estimator = kind(3).fit(rows, y)
        used = {kind: options[kind]} if options else None
        made = skl2onnx.to_onnx(estimator, rows[:1], options=used, target_opset=15)
        file = folder / f"{name}.onnx"
        onnx.save(made, file)
        yield file


def behind(model: ModelProto, decision: str, middle: Mapping[str, float]) -> bool:
    """Put a decision behind each output of floats, about its ``middle``; whether there was one.

    ``Where`` doubles the elements below it, ``If`` all if the mean is below, ``TopK`` sorts. There
    is none in models of operator sets that lack these operators.
    """
    versions = {o.domain: o.version for o in model.opset_import}
    if versions.get("", 1) < FIRST_OPSET:
        return False
    done = False
    for output in model.graph.output:
        kind = output.type.tensor_type
        sizes = [d.dim_value for d in kind.shape.dim]
        sorts = decision != "TopK" or (sizes and sizes[-1] > 1)
        if kind.elem_type != TensorProto.FLOAT or output.name not in middle or not sorts:
            continue
        inner = f"{output.name}_undecided"
        rename(model, output.name, inner)
        size = sizes[-1] if sizes else 1
        model.graph.node.extend(_decide(decision, inner, output.name, middle[output.name], size))
        done = True
    return done


def rename(model: ModelProto, old: str, new: str) -> None:
    """Give a value of the graph another name, wherever it is read."""
    from optvet.graph.walk import nodes_of

    for node in nodes_of(model.graph):
        for names in (node.input, node.output):
            names[:] = [new if n == old else n for n in names]


def _decide(decision: str, value: str, made: str, middle: float, size: int) -> list[NodeProto]:
    def constant(name: str, array: np.ndarray) -> NodeProto:
        tensor = numpy_helper.from_array(array, f"{made}_{name}")
        return helper.make_node("Constant", [], [f"{made}_{name}"], value=tensor)

    if decision == "TopK":
        count = constant("count", np.array([size], np.int64))
        return [count, helper.make_node("TopK", [value, f"{made}_count"], [made, f"{made}_order"])]
    twice = [constant("two", np.array(2, np.float32))]
    twice.append(helper.make_node("Mul", [value, f"{made}_two"], [f"{made}_twice"]))
    start = [constant("middle", np.array(middle, np.float32))]
    if decision == "Where":
        above = helper.make_node("Greater", [value, f"{made}_middle"], [f"{made}_above"])
        choice = helper.make_node("Where", [f"{made}_above", value, f"{made}_twice"], [made])
        return [*start, *twice, above, choice]
    start.append(helper.make_node("ReduceMean", [value], [f"{made}_mean"], keepdims=0))
    start.append(helper.make_node("Greater", [f"{made}_mean", f"{made}_middle"], [f"{made}_above"]))

    def branch(name: str, read: list[NodeProto], given: str) -> onnx.GraphProto:
        out = f"{made}_{name}"
        hand = helper.make_node("Identity", [given], [out])
        info = helper.make_tensor_value_info(out, TensorProto.FLOAT, None)
        return helper.make_graph([*read, hand], name, [], [info])

    graphs = {
        "then_branch": branch("then", [], value),
        "else_branch": branch("else", twice, f"{made}_twice"),
    }
    return [*start, helper.make_node("If", [f"{made}_above"], [made], **graphs)]
