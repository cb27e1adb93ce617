"""Each operator through each step of onnx's and onnxscript's version converters.

    python benchmarks/version_converters.py [--converter onnx|onnxscript] [--operators NAME…]
        [--show] [--out DIR]

The seeds are the tests of one node that onnx ships for its own backends, and a few models for
operators without any. Each is written at every version of its operator, in several forms: each
attribute that has a default explicit, and left out; operands as inputs, as weights and as
constants; as other types; without shapes; in a branch. What the checker takes and ONNX Runtime
runs is a model, which is converted by the step that leads to the operator's next version, and, by
onnx's converter, to its version before.

refused   the converter says what the other operator set lacks
missing   it has no adapter, though the node written at the other version computes the same
error     another exception
ends      the process ends
unusable  the checker or ONNX Runtime refuses the result, or its interface is another one
note      the checker alone does: ONNX Runtime computes what the original does
wrong     other values; onnx's reference evaluator must agree with ONNX Runtime on the original,
          where it can run it
unjudged  ONNX Runtime has no kernel for the older version

Prints the machine, the counts, and a line for each kind of fault by operator, step and message.
``--out`` writes the smallest model of each line, with its inputs.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import numpy as np
import onnx
import onnx.parser
from onnx import AttributeProto, ModelProto, NodeProto, defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from optvet.graph.opsets import at_opset
from optvet_version_converters import REFUSED

Arrays = dict[str, np.ndarray]
Convert = Callable[[ModelProto, int], ModelProto]
FAULTS = ("wrong", "ends", "unusable", "error", "missing", "note")
FORMS = ("inputs", "weights", "constants", "shapeless", "branch")
TYPES = (np.float16, np.float64, np.int32, np.int64)
NEWEST = defs.onnx_opset_version()

MORE = """
1 Upsample<width_scale=2.0, height_scale=2.0>(x) ; float[1,1,2,2] x
6 Add<broadcast=1, axis=1>(x, u) ; float[2,2,2] x, float[2] u
6 Pow<broadcast=1, axis=0>(x, u) ; float[2,3] x, float[2] u
7 Upsample<scales=[1.0, 1.0, 2.0, 2.0]>(x) ; float[1,1,2,2] x
9 Upsample(x, s) ; float[1,1,2,2] x, float[4] s
9 Upsample<mode="linear">(x, s) ; float[1,1,2,2] x, float[4] s
9 Scatter(x, i, u) ; float[3,3] x, int64[1,3] i, float[1,3] u
9 Scatter<axis=1>(x, i, u) ; float[3,3] x, int64[1,3] i, float[1,3] u
10 Resize(x, s) ; float[1,1,2,2] x, float[4] s
10 Resize<mode="linear">(x, s) ; float[1,1,3,3] x, float[4] s
16 GridSample<mode="bilinear">(x, g) ; float[1,1,3,3] x, float[1,2,2,2] g
16 GridSample<mode="bicubic", align_corners=1>(x, g) ; float[1,1,3,3] x, float[1,2,2,2] g
16 GridSample<mode="nearest">(x, g) ; float[1,1,3,3] x, float[1,2,2,2] g
17 DFT<onesided=1>(x) ; float[1,4,1] x
17 DFT<axis=2>(x) ; float[1,2,4,1] x
18 GroupNormalization<num_groups=2>(x, u, v) ; float[1,4,3] x, float[2] u, float[2] v
18 GroupNormalization<num_groups=2, epsilon=0.5>(x, u, v) ; float[1,4,3] x, float[2] u, float[2] v
28 GlobalLpPool<p=3>(x) ; float[1,2,3,4] x
28 MaxRoiPool<pooled_shape=[2,2]>(x, r) ; float[1,2,6,6] x, float[1,5] r
28 RandomUniformLike<seed=1.0>(x) ; float[3] x
28 Softmax<axis=0>(x) ; float[2,3,4] x
28 LogSoftmax<axis=1>(x) ; float[2,3,4] x
28 Hardmax<axis=1>(x) ; float[2,3,4] x
28 Clip<max=0.5>(x) ; float[4] x
28 Max(x) ; float[4] x
28 Max(x, u, v) ; float[2,4] x, float[4] u, float[1,4] v
28 Sum(x, u) ; float[2,4] x, float[4] u
28 MatMul(x, u) ; int32[2,2] x, int32[2,2] u
28 Greater(x, u) ; int64[4] x, int64[4] u
28 Flatten(x) ; int64[2,3,4] x
"""
"""Nodes that onnx has no test of, or none that tells versions apart: the operator set at which they
are written, or the newest one, and their operands."""


@dataclass(frozen=True)
class Seed:
    """A node, the operands that it is run on, and the operator set at which it is written.

    The newest one stands for all versions of the operator.
    """

    node: NodeProto
    feeds: Arrays
    opset: int = NEWEST


@dataclass(frozen=True)
class Case:
    """A model of one operator at a version, and where it is converted to."""

    model: ModelProto
    feeds: Arrays
    goal: int
    form: str


def main() -> None:
    """Convert every model, and print what became of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--converter", choices=("onnx", "onnxscript"), default="onnx")
    parser.add_argument("--operators", nargs="*", metavar="NAME")
    parser.add_argument("--show", action="store_true", help="the model of each line")
    parser.add_argument("--out", type=Path, help="a folder for the models")
    chosen = parser.parse_args()
    print(machine.describe(machine.environment()), flush=True)
    started, seeds = time.monotonic(), seeds_by_operator()
    counts: Counter[str] = Counter()
    found: dict[tuple[str, ...], list[Any]] = {}
    for name in sorted(set(seeds) & set(chosen.operators or seeds)):
        for record in examined(seeds[name], chosen.converter):
            counts[record["kind"]] += 1
            counts["steps"] += record["new"]
            key = tuple(record[k] for k in ("kind", "operator", "step", "said"))
            if record["kind"] in FAULTS:
                kept = found.setdefault(key, [0, record])
                kept[0] += 1
                kept[1] = min(kept[1], record, key=lambda r: len(r["text"]))
    counts["operators"] = len(set(seeds) & set(chosen.operators or seeds))
    print(f"{chosen.converter}: {time.monotonic() - started:.0f} s; {dict(counts)}")
    order = sorted(found, key=lambda key: (FAULTS.index(key[0]), *key[1:]))
    for number, key in enumerate(order):
        times, record = found[key]
        print(f"{number:4} {key[0]:9}{key[1]} {key[2]} ({times} times): {key[3]}")
        if chosen.show:
            print(record["text"])
        if chosen.out:
            folder = chosen.out / f"{number}-{key[0]}-{key[1]}-{key[2]}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "model.onnxtxt").write_text(record["text"])
            (folder / "said.txt").write_text(record["whole"])
    sys.exit(1 if found else 0)


# --- models ---------------------------------------------------------------------------------------


def seeds_by_operator() -> dict[str, list[Seed]]:
    """What onnx tests its operators with, of one node each, and the nodes of ``MORE``."""
    from onnx.backend.test.case.node import collect_testcases

    seeds: dict[str, list[Seed]] = defaultdict(list)
    for test in collect_testcases(None):
        graph = test.model.graph if test.model else onnx.GraphProto()
        if len(graph.node) != 1 or graph.node[0].domain or graph.initializer or not test.data_sets:
            continue
        operands = (
            numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v
            for v in test.data_sets[0][0]
        )
        feeds = dict(zip([i.name for i in graph.input], operands, strict=False))
        if all(isinstance(v, np.ndarray) for v in feeds.values()) and (total(feeds) < 20_000):
            seeds[graph.node[0].op_type].append(Seed(graph.node[0], feeds))
    random = np.random.default_rng(0)
    for line in MORE.strip().splitlines():
        opset, node, inputs = re.split(" (?=[A-Z])| ; ", line)
        graph = onnx.parser.parse_graph(f"g ({inputs}) => (y) {{ y = {node} }}")
        made = Seed(graph.node[0], drawn(graph, random), int(opset))
        seeds[graph.node[0].op_type].append(made)
    return seeds


def total(feeds: Arrays) -> int:
    """How many elements there are."""
    return sum(v.size for v in feeds.values())


def drawn(graph: onnx.GraphProto, random: np.random.Generator) -> Arrays:
    """Operands of a graph, by name: scales are 2, places small, numbers large enough to tell."""
    feeds = {}
    for info in graph.input:
        kind = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        value: np.ndarray = random.normal(size=shape) * 3
        if kind.kind == "i":
            value = random.integers(0, 3, shape) + (0 if info.name == "i" else 2**24)
        if info.name == "s":
            value = np.array([1, 1, 2, 2])
        if info.name == "r":
            value = np.array([[0, 0, 0, 4, 4]])
        feeds[info.name] = value.astype(kind)
    return feeds


def versions_of(name: str) -> list[int]:
    """The operator sets in which an operator changed."""
    every = defs.get_all_schemas_with_history()
    return sorted({s.since_version for s in every if s.name == name and not s.domain})


def cases(seed: Seed, converter: str) -> Iterator[Case]:
    """The models of a seed, each with the operator set that it is converted to."""
    versions = versions_of(seed.node.op_type)
    for place, version in enumerate(versions):
        if defs.get_schema(seed.node.op_type, version).deprecated:
            continue
        if seed.opset != NEWEST and seed.opset != version:
            continue
        goals = []
        if place + 1 < len(versions):
            goals.append((versions[place + 1] - 1, versions[place + 1]))
        if place and converter == "onnx":
            goals.append((version, version - 1))
        if converter == "onnxscript":
            goals = [(opset, goal) for opset, goal in goals if 18 <= goal <= 25]
        nodes = list(distinct(attribute_forms(at_version(seed, version), version)))
        for opset, goal in goals:
            for node, feeds, form in written(nodes, seed.feeds):
                model = model_of(node, feeds, opset, form)
                if model is not None:
                    yield Case(model, used(model, feeds), goal, form)


def written(nodes: list[NodeProto], feeds: Arrays) -> Iterator[tuple[NodeProto, Arrays, str]]:
    """Each form of the first node, as other types too, and the others as weights."""
    for number, node in enumerate(nodes):
        for form in FORMS if number == 0 else ("weights",):
            yield node, feeds, form
    for kind in TYPES:
        cast = {n: v.astype(kind) if v.dtype == np.float32 else v for n, v in feeds.items()}
        if any(cast[n].dtype != feeds[n].dtype for n in feeds):
            yield nodes[0], cast, "weights"


def at_version(seed: Seed, version: int) -> NodeProto:
    """The node as its operator was at ``version``, without what that version does not know."""
    values = dict(seed.feeds)
    newest = max(versions_of(seed.node.op_type))
    was = min(seed.opset, newest)
    *constants, node = at_opset(seed.node, was, version, values)
    schema = defs.get_schema(seed.node.op_type, version)
    for attribute in [a for a in node.attribute if a.name not in schema.attributes]:
        node.attribute.remove(attribute)
    del node.input[schema.max_input :]
    del node.output[schema.max_output :]
    for constant in constants:  # what became an operand is one of the seed
        array = numpy_helper.to_array(constant.attribute[0].t)
        seed.feeds[constant.output[0]] = array
    return node


def attribute_forms(node: NodeProto, version: int) -> Iterator[NodeProto]:
    """As it is; with all defaults written; with none; and with each other mode by name."""
    schema = defs.get_schema(node.op_type, version)
    optional = {n: a for n, a in schema.attributes.items() if not a.required}
    given = {a.name for a in node.attribute}
    yield node
    full = NodeProto.FromString(node.SerializeToString())
    for name, attribute in optional.items():
        if name not in given and attribute.default_value.type != AttributeProto.UNDEFINED:
            full.attribute.append(attribute.default_value)
    yield full
    bare = NodeProto.FromString(node.SerializeToString())
    for attribute in [a for a in bare.attribute if a.name in optional]:
        bare.attribute.remove(attribute)
    yield bare


def distinct(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Each node once."""
    seen = set()
    for node in nodes:
        key = node.SerializeToString(deterministic=True)
        if key not in seen:
            seen.add(key)
            yield node


def model_of(node: NodeProto, feeds: Arrays, opset: int, form: str) -> ModelProto | None:
    """A model of ``node``; None if there is none of this form, or it is not valid."""
    names = list(dict.fromkeys(n for n in node.input if n))
    if any(name not in feeds for name in names) or (form in FORMS[1:3] and len(names) < 2):
        return None
    inputs = names[:1] if form in FORMS[1:3] else names
    infos = [info_of(n, feeds[n], form != "shapeless") for n in inputs]
    rest = [numpy_helper.from_array(feeds[n], n) for n in names if n not in inputs]
    nodes = [node]
    outputs = [helper.make_value_info(o, onnx.TypeProto()) for o in node.output if o]
    if form == "constants":
        nodes = [helper.make_node("Constant", [], [t.name], value=t) for t in rest] + nodes
        rest = []
    if form == "branch":
        branches = [helper.make_graph([node], b, [], outputs) for b in ("then", "else")]
        results = [f"{o.name}_of_if" for o in outputs]
        chosen = dict(zip(("then_branch", "else_branch"), branches, strict=True))
        nodes = [helper.make_node("If", ["cond"], results, **chosen)]
        infos.append(helper.make_tensor_value_info("cond", onnx.TensorProto.BOOL, []))
        outputs = [helper.make_value_info(o, onnx.TypeProto()) for o in results]
    graph = helper.make_graph(nodes, "g", infos, outputs, rest)
    imports = [helper.make_opsetid("", opset)]
    ir_version = helper.find_min_ir_version_for(imports) if opset > 18 else 8
    model = helper.make_model(graph, opset_imports=imports, ir_version=ir_version)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        del model.graph.output[:]
        model.graph.output.extend(inferred.graph.output)
        onnx.checker.check_model(model, full_check=True)
    except Exception:
        return None
    return model


def info_of(name: str, value: np.ndarray, shaped: bool) -> onnx.ValueInfoProto:
    """How an input is declared."""
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_value_info(name, kind, list(value.shape) if shaped else None)


def used(model: ModelProto, feeds: Arrays) -> Arrays:
    """The inputs of the model."""
    every = {"cond": np.array(True), **feeds}
    return {i.name: every[i.name] for i in model.graph.input}


# --- judging --------------------------------------------------------------------------------------


def examined(seeds: list[Seed], converter: str) -> Iterator[dict[str, Any]]:
    """What became of each model of an operator; a process that ends is a fault of its model."""
    skipped = 0
    while True:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(
            target=examine, args=(seeds, converter, skipped, theirs)
        )
        process.start()
        theirs.close()
        last = None
        try:
            while (record := ours.recv()) is not None:
                skipped = record["number"] + 1
                if "kind" in record:
                    yield record
                last = record
        except EOFError:
            process.join()
            if last is not None and "kind" not in last:
                said = f"the process ends with {process.exitcode}"
                skipped = last["number"] + 1
                yield {**last, "kind": "ends", "said": said, "whole": said}
                continue
            raise
        process.join()
        return


def examine(seeds: list[Seed], converter: str, skipped: int, pipe: Any) -> None:
    """Send a record before and after each conversion, except of the first ``skipped`` models."""
    convert = CONVERTERS[converter]
    every = itertools.chain.from_iterable(cases(seed, converter) for seed in seeds)
    seen: set[tuple[str, ...]] = set()
    forms: set[tuple[Any, ...]] = set()
    for number, case in enumerate(every):
        key = kind_of(case)
        known = key in forms
        forms.add(key)
        if number < skipped or known:
            continue
        expected = run(case.model, case.feeds)
        if isinstance(expected, str):
            continue
        node = subject(case.model)
        step = f"{case.model.opset_import[0].version}_{case.goal}"
        about = {
            "number": number,
            "operator": node.op_type,
            "step": step,
            "new": (node.op_type, step) not in seen,
            "text": f"// form: {case.form}\n{onnx.printer.to_text(case.model)}",
        }
        seen.add((node.op_type, step))
        pipe.send(about)
        kind, said = judged(case, expected, convert)
        if lacking := re.search(r"No Adapter .*for (\w+)", said):
            about["operator"] = lacking[1]
        pipe.send({**about, "kind": kind, "said": short(said), "whole": said})
    pipe.send(None)


def subject(model: ModelProto) -> NodeProto:
    """The node whose operator is converted."""
    node: NodeProto = model.graph.node[-1]
    for attribute in node.attribute:
        if attribute.name == "then_branch" and len(attribute.g.node) == 1:
            node = attribute.g.node[0]
            break
    return node


def kind_of(case: Case) -> tuple[Any, ...]:
    """By which models are told apart: what the node says, and types and ranks of its operands."""
    node = subject(case.model)
    said = tuple(sorted((a.name, str(value_of(a))[:60]) for a in node.attribute))
    graph = case.model.graph
    operands = tuple(
        (i.name, str(v.dtype), v.ndim)
        for i, v in zip(graph.input, case.feeds.values(), strict=True)
    )
    weights = tuple((t.name, t.data_type, len(t.dims)) for t in graph.initializer)
    opset = case.model.opset_import[0].version
    outputs = tuple(bool(o) for o in node.output)
    inputs = tuple(bool(i) for i in node.input)
    return (case.form, opset, case.goal, said, operands, weights, inputs, outputs)


def value_of(attribute: AttributeProto) -> object:
    """An attribute's value."""
    return attribute.g.name if attribute.HasField("g") else helper.get_attribute_value(attribute)


def judged(case: Case, expected: Arrays, convert: Convert) -> tuple[str, str]:
    """What became of a model, and words about it."""
    try:
        converted = convert(case.model, case.goal)
    except Exception as error:
        return refusal(case, expected, f"{type(error).__name__}: {error}")
    before, after = (interface(m) for m in (case.model, converted))
    if before != after:
        return "unusable", f"another interface: {before} became {after}"
    opset = converted.opset_import[0].version
    if opset != case.goal:
        return "unusable", f"it declares operator set {opset}"
    got = run(converted, case.feeds)
    try:
        onnx.checker.check_model(converted, full_check=True)
    except Exception as error:
        runs = not isinstance(got, str) and not difference(expected, got)
        return ("note" if runs else "unusable"), f"invalid: {error}"
    if isinstance(got, str):
        kernel = "NOT_IMPLEMENTED" in got or "Could not find an implementation" in got
        return ("unjudged" if kernel else "unusable"), got
    words = difference(expected, got)
    if not words:
        return "right", ""
    ours = reference(case.model, case.feeds)
    if isinstance(ours, str):
        return "wrong", words
    # The evaluator computes some older versions of operators as the newest one.
    if difference(expected, ours):
        return "unjudged", f"the reference evaluator computes others: {words}"
    return "wrong", words


def refusal(case: Case, expected: Arrays, said: str) -> tuple[str, str]:
    """Whether an exception is a refusal, a missing adapter, or an error."""
    if REFUSED.search(said):
        return "refused", said
    if "No Adapter" not in said:
        return "error", said
    node = subject(case.model)
    feeds = {
        **case.feeds,
        **{t.name: numpy_helper.to_array(t) for t in case.model.graph.initializer},
    }
    made, was = dict(feeds), case.model.opset_import[0].version
    *constants, other = at_opset(node, was, case.goal, made)
    made |= {c.output[0]: numpy_helper.to_array(c.attribute[0].t) for c in constants}
    model = model_of(other, made, case.goal, "inputs")
    got = run(model, used(model, made)) if model is not None else ""
    first = [*expected.values()]
    if isinstance(got, str) or len(got) != len(first):
        return "refused", said
    same = not difference(dict(enumerate(first)), dict(enumerate(got.values())))
    return ("missing" if same else "refused"), said


def interface(model: ModelProto) -> tuple[list[str], ...]:
    """Names and types of inputs and outputs."""
    graph = model.graph
    return tuple(
        [f"{i.name}: {i.type.tensor_type.elem_type}" for i in infos]
        for infos in (graph.input, graph.output)
    )


def run(model: ModelProto, feeds: Arrays) -> Arrays | str:
    """Outputs by name, by ONNX Runtime without optimizations; else what it says."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        values = session.run(None, feeds)
    except Exception as error:
        return str(error)
    if not all(isinstance(v, np.ndarray) for v in values):
        return "no tensors"
    return dict(zip([o.name for o in session.get_outputs()], values, strict=True))


def reference(model: ModelProto, feeds: Arrays) -> Arrays | str:
    """The same by onnx's reference evaluator."""
    try:
        values = ReferenceEvaluator(model).run(None, feeds)
    except Exception as error:
        return str(error)
    return dict(zip([o.name for o in model.graph.output], values, strict=True))


def difference(expected: dict[Any, Any], got: dict[Any, Any]) -> str:
    """How two results differ; empty if they do not."""
    for name, ours in expected.items():
        theirs = got[name]
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            kinds = [f"{a.dtype}{list(a.shape)}" for a in (ours, theirs)]
            return f"{kinds[0]} became {kinds[1]}"
        if ours.dtype.kind == "f":
            rough = 1e-2 if ours.dtype == np.float16 else 1e-4
            same = np.allclose(ours, theirs, rough, rough, equal_nan=True)
        else:
            same = np.array_equal(ours, theirs)
        if not same:
            return "other values"
    return ""


def short(said: str) -> str:
    """Words without numbers and names, by which faults are one."""
    said = re.sub(r"\s+", " ", said.replace("[ONNXRuntimeError] : ", ""))
    return re.sub(r"'[^']*'|\d+", "…", said)[:160]


def by_onnx(model: ModelProto, opset: int) -> ModelProto:
    """By onnx's converter."""
    from onnx import version_converter

    return version_converter.convert_version(model, opset)


def by_onnxscript(model: ModelProto, opset: int) -> ModelProto:
    """By onnxscript's converter, of a graph."""
    from onnxscript import ir, version_converter

    graph = ir.serde.deserialize_model(model)
    version_converter.convert_version(graph, opset)
    return ir.serde.serialize_model(graph)


CONVERTERS: dict[str, Convert] = {"onnx": by_onnx, "onnxscript": by_onnxscript}

if __name__ == "__main__":
    main()
