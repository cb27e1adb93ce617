"""Dates known faults by hand: every release of a package is run plainly, without optvet.

``python benchmarks/dates.py known benchmarks/ranges --package onnxoptimizer`` installs each
release without its dependencies into a folder of its own (``--keep`` uses them again), and runs the
model of each document under it, with the passes at fault alone, in a process of its own. The
optimized model is checked and run by the installed ONNX Runtime without optimizations; of ONNX
Runtime, a session with all optimizations is compared with one without, both of the release.

Each form of a fault's trigger is dated on its own, with its own model. A line per form says which
releases show the fault, and what the document says where that is something else. The last lines
count how many faults were mended in the first form, and by which release. ``--write`` corrects the
ranges of the documents. Exit status 1 if a document is wrong.
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import Version
from versions import overlaid, prepare

Outcomes = dict[str, str]
"""Of a form, by release: "same", what is wrong, or "unusable: …"."""
Range = tuple[str | None, str | None, str | None]

_SHOWN = """
import json, os, sys
import numpy as np
import onnx
import onnxruntime as ort

ort.set_default_logger_severity(4)
LEVELS = ort.GraphOptimizationLevel

def run(data, feeds, level=LEVELS.ORT_DISABLE_ALL):
    options = ort.SessionOptions()
    options.graph_optimization_level, options.intra_op_num_threads = level, 1
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})

def feeds_of(model):
    numbers, feeds = np.random.default_rng(0), {}
    given = {t.name for t in model.graph.initializer}
    for value in model.graph.input:
        if value.name in given:
            continue
        kind = value.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else 2 for d in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        values = numbers.normal(size=shape) * 3
        if dtype.kind in "iu":
            values = numbers.integers(0, 9, size=shape)
        feeds[value.name] = np.asarray(values > 0 if dtype.kind == "b" else values, dtype)
    return feeds

def optimized(package, model, passes):
    if package == "onnxoptimizer":
        import onnxoptimizer
        if not set(passes) <= set(onnxoptimizer.get_available_passes()):
            return None
        return onnxoptimizer.optimize(model, passes or ["nop"])
    if package == "onnxslim":
        import onnxslim
        return onnxslim.slim(model)
    if package == "onnxsim":
        import onnxsim
        return onnxsim.simplify(model)[0]
    if package == "onnxconverter-common":
        from onnxconverter_common import float16
        return float16.convert_float_to_float16(model, keep_io_types=True)
    if package == "openvino":
        in_openvino(model.SerializeToString())
        return model
    import onnxscript.optimizer
    return onnxscript.optimizer.optimize(model)

def in_openvino(data):
    import openvino
    core = openvino.Core()
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    return core.compile_model(core.read_model(data, b""), "CPU", exact)

def trivial(model, weighted):
    # No pass changes it: a release that cannot take it is too old for these versions.
    text = f'<ir_version: {model.ir_version}, opset_import: ["": 13]>'
    weight = "<float[1,1] w = {2}> { y = Add(x, w) }" if weighted else "{ y = Abs(x) }"
    listed = ", float[1,1] w" if weighted and model.ir_version < 4 else ""
    text += f"g (float[1,1] x{listed}) => (float[1,1] y) {weight}"
    plain = onnx.parser.parse_model(text)
    del plain.opset_import[:]
    plain.opset_import.extend(o for o in model.opset_import if o.domain in ("", "ai.onnx"))
    return plain

def is_same(ours, theirs, random):
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    if ours.dtype.kind not in "fiubc":
        return ours.tolist() == theirs.tolist()
    if random:  # values cannot be compared: are they random, and as often zero?
        zeros = abs(float((ours == 0).mean() - (theirs == 0).mean())) < 0.2
        return zeros and bool(np.std(ours) > 0) == bool(np.std(theirs) > 0)
    return np.allclose(ours.astype(float), theirs.astype(float), 1e-3, 1e-4, equal_nan=True)

def outcome(package, case):
    model = onnx.parser.parse_model(case["model"])
    feeds, data = feeds_of(model), model.SerializeToString()
    names = [v.name for v in model.graph.output]
    try:
        expected = run(data, feeds)
    except Exception as error:
        return f"unusable: the original fails, {type(error).__name__}"
    if package != "onnxruntime":
        try:
            optimized(package, trivial(model, False), case["passes"])
            optimized(package, trivial(model, True), [])
        except Exception as error:
            return f"unusable: not even one node of this operator set, {type(error).__name__}"
    random = any(n.op_type.startswith("Random") or n.op_type == "Dropout" for n in model.graph.node)
    try:
        if package == "onnxruntime":
            actual = run(data, feeds, LEVELS.ORT_ENABLE_ALL)
        elif package == "openvino":
            compiled = in_openvino(data)
            found = compiled({i: feeds[next(iter(i.names))] for i in compiled.inputs})
            actual = [found[o] for o in compiled.outputs]
        else:
            better = optimized(package, onnx.parser.parse_model(case["model"]), case["passes"])
            if better is None:
                return "same"  # there is no such pass yet
            onnx.checker.check_model(better)
            if [v.name for v in better.graph.output] != names:
                return "interface"
            taken = {v.name for v in better.graph.input}
            # Before IR version 4 weights were listed too, though none could be replaced.
            needed = feeds if model.ir_version < 4 else {v.name for v in model.graph.input}
            if not set(needed) <= taken:
                return "interface"
            actual = run(better.SerializeToString(), feeds)
    except Exception as error:
        return f"fails: {type(error).__name__}"
    return "same" if all(is_same(a, b, random) for a, b in zip(expected, actual)) else "differs"

package, cases = json.load(sys.stdin)
try:
    if package != "onnxruntime":  # imports what each case would import again
        optimized(package, trivial(onnx.parser.parse_model(cases[0]["model"]), True), [])
except Exception:
    pass  # each case tells
for case in cases:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, outcome(package, case).encode())
        except BaseException as error:
            os.write(writing, f"unusable: {type(error).__name__}".encode())
        os._exit(0)
    os.close(writing)
    said = os.read(reading, 200).decode()
    os.close(reading)
    _, status = os.waitpid(child, 0)
    print(json.dumps([case["id"], said or f"dies: signal {status & 127}"]), flush=True)
"""


@dataclass(frozen=True)
class Form:
    """A form of a known fault: its model, and the releases of the document."""

    id: str
    passes: Sequence[str]
    values: Mapping[str, Any]
    outcomes: Outcomes = field(default_factory=dict)

    def case(self) -> dict[str, Any]:
        """What the plain run of a release needs."""
        return {"id": self.id, "model": self.values["model"], "passes": self.passes}

    def ranges(self) -> list[Range]:
        """By hand, per range: the last release before it, its first one, the first after it."""
        found: list[Range] = []
        last: tuple[str, bool] | None = None
        for version, outcome in self.outcomes.items():
            if outcome.startswith("unusable"):
                continue
            shows = outcome != "same"
            if shows and (last is None or not last[1]):
                found.append((last[0], version, None) if last else (None, None, None))
            elif not shows and last is not None and last[1]:
                found[-1] = (*found[-1][:2], version)
            last = version, shows
        return found

    def told(self) -> list[Range]:
        """What the document says."""
        keys = ("good_before", "introduced", "fixed")
        return [tuple(one.get(k) for k in keys) for one in self.values.get("affected", ())]


@dataclass(frozen=True)
class Document:
    """A known fault, as far as it is looked at here."""

    file: Path
    values: Mapping[str, Any]
    forms: Sequence[Form]


def documents_in(places: Sequence[Path], package: str) -> list[Document]:
    """The documents of one package."""
    files = [f for p in places for f in (sorted(p.rglob("*.toml")) if p.is_dir() else [p])]
    read = [(file, tomllib.loads(file.read_text())) for file in files]
    # A note is about metadata, which a plain run does not look at.
    return [
        Document(f, v, forms_of(v))
        for f, v in read
        if v["package"] == package and v.get("severity") != "note"
    ]


def forms_of(values: Mapping[str, Any]) -> list[Form]:
    """The forms of a document; the first is that of its own model."""
    passes = values.get("pipeline") or values.get("passes", [])[:1]
    every = [values, *values.get("forms", ())]
    names = [values["id"], *(f"{values['id']} form {n}" for n in range(1, len(every)))]
    return [Form(name, passes, one) for name, one in zip(names, every, strict=True)]


def releases_of(package: str) -> list[str]:
    """Releases with a wheel for this Python, oldest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", package, "--only-binary=:all:"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = next((x for x in done.stdout.splitlines() if x.startswith("Available")), "")
    return sorted(line.partition(": ")[2].split(", "), key=Version) if line else []


def run_release(package: str, forms: Sequence[Form], overlay: Path) -> Iterator[list[str]]:
    """Id and outcome of each form under the release in ``overlay``."""
    given = json.dumps([package, [form.case() for form in forms]])
    command = [sys.executable, "-P", "-W", "ignore", "-c", _SHOWN]
    done = subprocess.run(
        command,
        input=given,
        env=overlaid(overlay),
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    # Some releases write lines of their own, such as "[W] …".
    yield from (json.loads(x) for x in done.stdout.splitlines() if x.startswith('["'))


def words(ranges: Sequence[tuple[str | None, str | None, str | None]]) -> str:
    """Ranges in words."""
    parts = [
        (f"since {first} (not in {before})" if first else "always")
        + (f", not in {fixed}" if fixed else "")
        for before, first, fixed in ranges
    ]
    return ", ".join(parts) or "never"


def rewrite(document: Document, day: str) -> None:
    """Write what was found by hand into a document."""
    outcomes = document.forms[0].outcomes
    decided = [v for v, o in outcomes.items() if not o.startswith("unusable")]
    # Ranges stand behind everything else of the document, and behind the model of each form.
    head = document.file.read_text().partition("\n[[")[0].rstrip("\n")
    new = {"oldest": decided[0], "newest": decided[-1], "checked": day}
    lines = [
        f'{line.partition(" = ")[0]} = "{new[line.partition(" = ")[0]]}"'
        if line.partition(" = ")[0] in new
        else line
        for line in head.splitlines()
    ]
    for number, form in enumerate(document.forms):
        if number:
            model = form.values["model"].strip("\n")
            lines += ["", "[[forms]]", f"model = '''\n{model}\n'''"]
        for before, first, fixed in form.ranges():
            known = {"introduced": first, "good_before": before, "fixed": fixed}
            lines += ["", "[[forms.affected]]" if number else "[[affected]]"]
            lines += [f'{k} = "{v}"' for k, v in known.items() if v]
    document.file.write_text("\n".join(lines) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run release after release."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("places", type=Path, nargs="+", help="documents, or folders of them")
    parser.add_argument("--package", required=True)
    parser.add_argument("--versions", metavar="V,V", help="default: all that pip finds")
    parser.add_argument("--keep", type=Path, help="folder for the releases, to use them again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="outcomes by document, release")
    parser.add_argument("--write", metavar="DAY", help="correct the documents, checked on this day")
    options = parser.parse_args(arguments)
    documents = documents_in(options.places, options.package)
    versions = options.versions.split(",") if options.versions else releases_of(options.package)
    with tempfile.TemporaryDirectory(prefix="optvet-dates-") as scratch:
        for version in versions:
            overlay = (options.keep or Path(scratch)) / f"{options.package}-{version}"
            if problem := prepare(options.package, version, overlay):
                print(f"{version} cannot be used: {problem[:100]}", flush=True)
                continue
            forms = {form.id: form for d in documents for form in d.forms}
            for name, outcome in run_release(options.package, list(forms.values()), overlay):
                forms[name].outcomes[version] = outcome
            print(f"{version} was run", flush=True)
    wrong, fixed = 0, collections.Counter[str]()
    for document in documents:
        for form in document.forms:
            by_hand, told = form.ranges(), form.told()
            agrees = by_hand == told
            wrong += not agrees
            said = "" if agrees else f"; THE DOCUMENT SAYS {words(told)}"
            print(f"{form.id}: {words(by_hand)}{said}")
        first = document.forms[0].ranges()
        fixed[first[-1][2] or "" if first else "never shown"] += 1
        if options.write and first:
            rewrite(document, options.write)
    still, unseen = fixed.pop("", 0), fixed.pop("never shown", 0)
    mended = ", ".join(f"{n} by {v}" for v, n in sorted(fixed.items(), key=lambda x: Version(x[0])))
    print(
        f"{options.package}: {len(documents)} faults, {sum(fixed.values())} mended ({mended}), "
        f"{still} still there, {unseen} never shown; documents say something else of {wrong} forms"
    )
    if options.json:
        found = {form.id: form.outcomes for d in documents for form in d.forms}
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
