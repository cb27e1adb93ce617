"""Documents as trees: changed value by value, and read by what reads them.

Bytes that are changed anywhere seldom remain TOML or JSON. Here a document stays one, while its
values change: their types, their sizes, their texts, and which there are at all.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import io
import json
import sqlite3
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnx.parser

import optvet.cli
from optvet.cli.env import _entry
from optvet.cli.render import size
from optvet.engine.discovery import Plugins
from optvet.engine.environment.releases import MARKER, ReleaseStore
from optvet.engine.hunt.learn import avoided_passes, covered_rewrites, operators_of_seeds
from optvet.engine.hunt.loop import HuntBudget
from optvet.engine.hunt.probable_causes import probable_causes
from optvet.engine.hunt.round_plan import plan_round
from optvet.engine.hunt.state import NAME, HuntStore
from optvet.engine.hunt.suspects import settled_keys, with_counts
from optvet.engine.known.add import fault_from_bundle
from optvet.engine.known.documents import known_folder, read_faults, to_toml
from optvet.engine.known.page import page_of
from optvet.graph.pattern import parse_pattern, search
from optvet.graph.types import inferred_types
from optvet.spec.errors import InputError
from optvet.spec.records import BisectResult, ReleasesCleared
from optvet.spec.records.reading import read_document_in

Tree = Any
Mutation = tuple[str, int, int, bytes]
_NUMBERS = (0, -1, 1 << 62, 10**400, 0.5, 1e308, 5e-324, float("inf"), float("nan"))
_TEXTS = ("", "x", "0", "1.0", "../../etc", "-x", "\0", "\ud800", "\u202e\x1b[2J", "9" * 5000)
_NESTED: tuple[Tree, ...] = ([], {}, [[]], [None], [""], [0], {"x": 1}, {"": {}}, ["a"] * 300)
ODD: tuple[Tree, ...] = (None, True, *_NUMBERS, *_TEXTS, *_NESTED)


def changed(data: bytes, changes: Sequence[Mutation]) -> bytes:
    """A document in JSON after ``changes``, as of ``fuzz_loaders.mutated``."""
    tree = json.loads(data)
    for kind, place, length, piece in changes:
        if len(json.dumps(tree)) > 50_000:  # What is repeated twice grows by its square.
            break
        spots = list(_spots(tree))
        holder, key = spots[place % len(spots)]
        value, odd = holder[key], ODD[(length * 7 + piece[0]) % len(ODD)]
        if kind == "set":
            holder[key] = copy.deepcopy(odd)
        elif kind == "insert" and isinstance(value, str):
            at, words = length % (len(value) + 1), piece.decode("utf-8", "replace")
            holder[key] = value[:at] + words + value[at:]
        elif kind == "cut":
            del holder[key]
        elif kind == "repeat" and isinstance(value, list):
            holder[key] = (value * 50)[:60]
        elif kind == "repeat":
            for _ in range(length):
                value = [value]
            holder[key] = value
        elif isinstance(holder, dict):
            other_holder, other = spots[(place + length) % len(spots)]
            holder[key] = copy.deepcopy(other_holder[other])
        else:
            holder.insert(key, copy.deepcopy(odd))
    return json.dumps(tree).encode()


def _spots(tree: Tree) -> Iterator[tuple[Any, Any]]:
    whole = [tree]
    todo: list[Any] = [tree]
    while todo:
        holder = todo.pop()
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            yield holder, key
            if isinstance(holder[key], dict | list):
                todo.append(holder[key])
    yield whole, 0


def in_toml(tree: Tree) -> bytes:
    """A tree as TOML; what TOML lacks stands there as JSON has it, and is refused."""

    def value(of: Tree) -> str:
        if isinstance(of, dict):
            return f"{{{', '.join(f'{json.dumps(k)} = {value(v)}' for k, v in of.items())}}}"
        if isinstance(of, list):
            return f"[{', '.join(map(value, of))}]"
        return json.dumps(of, ensure_ascii=False).replace("NaN", "nan").replace("Infinity", "inf")

    pairs = tree.items() if isinstance(tree, dict) else [("x", tree)]
    text = "".join(f"{json.dumps(key)} = {value(of)}\n" for key, of in pairs)
    return text.encode("utf-8", "surrogatepass")


# --- known faults ---------------------------------------------------------------------------------


@cache
def known_faults() -> list[bytes]:
    files = sorted(known_folder().rglob("*.toml"))
    trees = [tomllib.loads(file.read_text()) for file in files]
    return [json.dumps(tree).encode() for tree in trees]


@cache
def _shipped_models() -> frozenset[str]:
    return frozenset(json.loads(fault)["model"] for fault in known_faults())


def load_known_fault(folder: Path, data: bytes) -> None:
    """What every command of ``known`` does with a document."""
    tree = json.loads(data)
    (folder / "f.toml").write_bytes(in_toml(tree))
    for fault in read_faults([folder]):
        page_of([fault]), to_toml(fault), fault.to_json(), fault.affects("1.2.3")
        (folder / "f.toml").write_text(to_toml(fault), "utf-8")
        read_faults([folder])


SOME = """<ir_version: 8, opset_import: ["": 17, "d": 1]>
g (float[N,2] x, bool c) => (float[N,2] y)
<float[2] w = {1, 2}, int64[2] i = {3, -1}, float k = {0.5}> {
    a = Add(x, w)  m = Mul(a, k)
    t = Transpose <perm = [1, 0]> (m)  u = Transpose <perm = [1, 0]> (t)
    b = d.F(u)  h, j = Split <axis = -1> (b)  n = Concat <axis = 1> (h, j)
    y = If (c) <then_branch = t () => (z) { z = Relu(n) },
                else_branch = e () => (z) { z = Constant <value = float[1] {4}> () }> }
<domain: "d", opset_import: ["" : 17]> F (p) => (q) { q = Neg(p) }"""


@cache
def triggers() -> list[bytes]:
    texts = [json.loads(fault)["trigger"] for fault in known_faults()]
    return [text.encode() for text in dict.fromkeys(texts)]


@cache
def conditions() -> list[bytes]:
    lines = [line for text in triggers() for line in text.decode().splitlines()]
    return [line[6:].encode() for line in lines if line.startswith("where ")]


@cache
def _searched() -> list[tuple[onnx.ModelProto, Any]]:
    models = [onnx.parser.parse_model(SOME)]
    models += [onnx.parser.parse_model(text) for text in sorted(_shipped_models())[:8]]
    return [(model, inferred_types(model) or {}) for model in models]


def load_pattern(folder: Path, data: bytes) -> None:
    try:
        pattern = parse_pattern(data.decode("utf-8", "replace"))
    except ValueError as error:
        raise InputError(str(error)[:4000]) from error
    for model, types in _searched():
        search(pattern, model, types)


def load_condition(folder: Path, data: bytes) -> None:
    """A condition of two nodes of which it may name each value."""
    names = "y = _(x, W?, z?, *)\nx = _(A?, B?, *)\n"
    load_pattern(folder, names.encode() + b"where " + data.replace(b"\n", b" "))


# --- the state of a hunt --------------------------------------------------------------------------
KEY = [["fuse"], "wrong-output", "values float32", ["Add", "Conv"], ["FusedConv"]]
FACTS = {
    "identity": {"seed": 3, "optimizer": "o"},
    "plain": {"rounds": 2, "number": 40, "valid": 30, "seconds": 1.5, "met": ["f"], "alone": ["a"]},
    "edited": [[0, [3, -1]]],
    "firings": [["fuse", ["Add", "Conv"], ["FusedConv"], 4], ["*", [], [], 2]],
    "edits": {"swap": 2},
    "tries": {"fuse": 2},
    "deaths": {"": 2, "fuse": 5},
    "keys": [[KEY, 3, 1, ["f"], [["swap", "Add"]]]],
    "triggers": [["f", [["fuse"], "wrong-output"], "values", ["has Add"]]],
    "reached": ["passes.py:3"],
    "findings": [
        {
            **{"fingerprint": "f", "symptom": "wrong-output", "severity": "fault", "nodes": 1},
            **{"culprit": ["fuse"], "message": "m", "bundle": "b", "candidate": 3},
            **{"mutators": ["swap"], "operators": ["Add"], "features": ["has Add"]},
        }
    ],
}
ENTRY = ["swap", [["fuse", ["Add", "Conv"], ["FusedConv"]], ["*", [], []]], ["new"], []]
SUSPECT = {
    **{"number": 7, "passes": ["fuse"], "key": KEY, "mutators": ["swap"], "edit": ["Add"]},
    "by_arbiter": True,
}


def hunts() -> list[bytes]:
    model = onnx.parser.parse_model(SOME).SerializeToString().hex()
    whole = {"facts": FACTS, "entry": ENTRY, "suspect": SUSPECT, "feeds": {"dims": [2], "type": 1}}
    whole["model"] = model
    return [json.dumps(whole).encode()]


def load_hunt(folder: Path, data: bytes) -> None:
    """What a resumed hunt does before it makes models."""
    tree = json.loads(data)
    if not isinstance(tree, dict):
        return
    facts = tree.get("facts")
    feeds = onnx.GraphProto()
    with closing(HuntStore(folder)):
        pass
    given = tree.get("feeds")
    tensor = given if isinstance(given, dict) else {}
    try:
        model = bytes.fromhex(tree["model"])
        feeds.initializer.add(
            name="x", dims=tensor.get("dims"), data_type=tensor.get("type"), raw_data=bytes(8)
        )
    except (KeyError, TypeError, ValueError):
        return
    with closing(sqlite3.connect(folder / NAME)) as database:
        for name, value in facts.items() if isinstance(facts, dict) else ():
            with contextlib.suppress(UnicodeEncodeError):
                database.execute("INSERT INTO fact VALUES (?, ?)", (name, json.dumps(value)))
        for table in ("entry", "suspect"):
            row = (model, feeds.SerializeToString(), json.dumps(tree.get(table)))
            database.execute(f"INSERT INTO {table} (model, feeds, about) VALUES (?, ?, ?)", row)
        database.commit()
    with closing(HuntStore(folder)) as store:
        store.identity()
        state = store.load()
        HuntBudget.of("60s", 320, 40).next_round(state)
        tested: Any = SimpleNamespace(takes_sets=True, excused={}, each=("fuse",))
        covered_rewrites(state, tested), settled_keys(state), avoided_passes(state, tested)
        operators_of_seeds(state), state.deadly_passes(), probable_causes(with_counts(state))
        plan_round(state, 40, seed=0, fragments=3, patterns=[], mutators={"swap": 1.0, "x": 2.0})
        store.save(state)


# --- kept releases, bundles, files of options -----------------------------------------------------


def markers() -> list[bytes]:
    about = {"package": "acme", "version": "1.0", "size_bytes": 40, "index": "i", "installed": 1.0}
    return [json.dumps(about).encode()]


def load_release(folder: Path, data: bytes) -> None:
    """What lists, counts and removes releases."""
    release = folder / "acme-1.0"
    release.mkdir()
    (release / MARKER).write_bytes(data)
    store = ReleaseStore(folder)
    kept = store.kept()
    if kept:
        ReleasesCleared(schema="optvet.env-clear/1", removed=list(map(_entry, kept)), in_use=[])
        size(sum(r.size_bytes for r in kept))
        assert store.remove(kept[0])


@cache
def _plugins() -> Plugins:
    return Plugins()


def bundles() -> list[bytes]:
    """Records of bundles, with the answer of ``bisect`` about them."""
    finding = {
        **{"symptom": "wrong-output", "severity": "fault", "stage": "compare", "culprit": ["p"]},
        **{"confirmed": True, "message": "m", "outputs": ["y"], "error": 1.0, "noise_floor": 0.5},
    }
    record = {
        **{"schema": "optvet.finding/3", "fingerprint": "f" * 8, "finding": finding, "model": "m"},
        **{"nodes": [3, 2], "optimizer": "onnxoptimizer", "optimizer_options": {}},
        **{"passes": ["p"], "runtime": "onnxruntime", "runtime_options": {"a": [1]}},
        **{"inputs": ["x", "c"], "outputs": ["y"], "versions": {"onnxoptimizer": "1.0"}},
        **{"timeout_s": 120.0, "memory_bytes": 1 << 30, "noise": [{"y": 1.0}]},
    }
    answer = {
        **{"schema": "optvet.bisect/1", "model": "m", "package": "onnxoptimizer"},
        **{"optimizer": "onnxoptimizer", "predicate": "p", "stable": True, "installed": 1},
        **{"runs": 2, "seconds": 1.0, "releases": [], "changes": []},
        "releases": [{"version": "1.0", "state": "good"}, {"version": "1.1", "state": "bad"}],
        "changes": [{"last": "1.0", "first": "1.1", "to": "bad", "between": ["1.0.1"]}],
    }
    return [json.dumps({"record": record, "answer": a}).encode() for a in (answer, None)]


def load_bundle(folder: Path, data: bytes) -> None:
    """What makes the document of a fault of a bundle."""
    tree = json.loads(data)
    both = tree if isinstance(tree, dict) else {}
    (folder / "finding.json").write_text(json.dumps(both.get("record")))
    (folder / "answer.json").write_text(json.dumps(both.get("answer")))
    onnx.save(onnx.parser.parse_model(SOME), folder / "model.onnx")
    answer = None
    if both.get("answer") is not None:
        answer = read_document_in(BisectResult, folder / "answer.json", advice="")
    today = datetime.date(2026, 1, 31)
    to_toml(fault_from_bundle(folder, _plugins(), answer=answer, today=today)).encode()


def options() -> list[bytes]:
    """Files of options: what ``precision --out`` writes, and a project's table."""
    precision = {
        **{"to": "fp16", "optimizer": "fp16", "keep": ["a", "b"], "require": ["y:0.1"]},
        **{"optimizer_options": {"by": "layer"}, "limit": 2, "seed": 3, "timeout": "2m"},
        **{"shape": {"x": [1, 2]}, "max_trials": 20, "accumulate": "fp16", "memory": "2G"},
    }
    project = {"tool": {"optvet": {"limit": 2, "precision": {"to": "fp16"}, "bench": {}}}}
    return [json.dumps({"config": precision, "project": project}).encode()]


def load_options(folder: Path, data: bytes) -> None:
    """A command that begins with them, about a model that there is not."""
    tree = json.loads(data)
    both = tree if isinstance(tree, dict) else {}
    (folder / "c.toml").write_bytes(in_toml(both.get("config", {})))
    (folder / "pyproject.toml").write_bytes(in_toml(both.get("project", {})))
    ask(folder, "precision", "absent.onnx", "--config", folder / "c.toml")
    ask(folder, "vet", "absent.onnx")


def ask(folder: Path, *words: object) -> None:
    """Run a command in this process: it neither has a bug nor says that it has one."""
    printed = io.StringIO()
    with contextlib.chdir(folder), redirect_stdout(printed), redirect_stderr(printed):
        code = optvet.cli.main([str(word) for word in words])
    said = printed.getvalue()
    assert code == 2, f"{words[:2]}: {code}: {said[-600:]}"
    assert len(said) < 4000
