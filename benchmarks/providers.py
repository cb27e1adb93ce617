"""ONNX's own node tests and real models on an execution provider: ran, refused, right, wrong.

    python benchmarks/providers.py [--provider qnn] [--settings '{"soc_model": "60"}']
        [--only TEXT] [--models FOLDER] [--vet] [--json FILE]

**Node tests.** Each of onnx's node tests runs in a session of the provider and in one of the CPU,
both without optimizations, by plain ONNX Runtime, in child processes that may die. *agree*: within
1e-3 and 1e-5 of the CPU; *drift*: within 2 % of the range; *wrong*: more, another shape or type;
*refused*: no session, where the CPU has one; *fails*: an error while it runs; *ends*: the process
died; *cpu*: every node fell back to the CPU, so that nothing was tested.

What is faulty is run again, alone in a process of its own: *later* is what is right there, and
wrong after other sessions of the process only.

``--vet`` asks optvet about each test that is wrong, refused, fails or ends, and prints those that
it calls otherwise. Random operators are left out: they have no right answer.

**Models.** With ``--models``, each ONNX file of a folder is vetted: verdict, and the nodes blamed.

Exit status 1 if ``--vet`` leaves out what the plain sessions show.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import machine
import numpy as np
import onnx

AGREE, DRIFT = (1e-3, 1e-5), 0.02
BATCH, SECONDS = 40, 25.0
LEFT_OUT = ("_expanded", "training", "sequence_map", "bernoulli", "random", "dropout")
FAULTS = ("wrong", "refused", "fails", "ends")
Case = tuple[str, Path]


def write_cases(folder: Path, only: str) -> list[Case]:
    """A folder per node test, with the model and the inputs of its first data set."""
    from onnx.backend.test.case.node import collect_testcases

    found = []
    for case in collect_testcases(None):
        if any(word in case.name for word in LEFT_OUT) or only not in case.name:
            continue
        if case.model is None or not case.data_sets:
            continue
        inputs, _ = case.data_sets[0]
        names = [i.name for i in case.model.graph.input]
        if not all(isinstance(value, np.ndarray | np.generic) for value in inputs):
            continue  # sequences and optionals, which files of arrays do not hold
        place = folder / case.name
        place.mkdir()
        onnx.save(case.model, place / "model.onnx")
        arrays = dict(zip(names, map(np.asarray, inputs), strict=False))
        if any(a.dtype.kind not in "biufc" for a in arrays.values()):
            continue
        np.savez(place / "inputs.npz", **arrays)
        found.append((case.name, place))
    return sorted(found)


def look(places: Sequence[str], provider: str, settings: Mapping[str, str]) -> None:
    """Print a line of JSON for each case; in a child process, which may die at any of them."""
    import onnxruntime as ort

    package = importlib.import_module(f"onnxruntime_{provider}")
    ort.set_default_logger_severity(4)
    ort.register_execution_provider_library(provider, package.get_library_path())
    devices = [d for d in ort.get_ep_devices() if d.ep_name == provider][:1]
    given = {"backend_path": package.get_qnn_htp_path(), **settings}

    def session(file: Path, *, there: bool) -> Any:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if there:
            options.add_provider_for_devices(devices, given)
            return ort.InferenceSession(str(file), options, enable_fallback=0)
        return ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    for place in map(Path, places):
        print(json.dumps({"case": place.name, "is": "begun"}), flush=True)
        print(json.dumps({"case": place.name, **_seen(session, place)}), flush=True)


def _seen(session: Any, place: Path) -> dict[str, Any]:
    file = place / "model.onnx"
    feeds = dict(np.load(place / "inputs.npz"))
    try:
        expected = session(file, there=False).run(None, feeds)
    except Exception as error:
        return {"is": "no reference", "why": str(error)[:200]}
    try:
        there = session(file, there=True)
    except Exception as error:
        return {"is": "refused", "why": str(error)[:200]}
    groups = there.get_provider_graph_assignment_info()
    if all(group.ep_name == "CPUExecutionProvider" for group in groups):
        return {"is": "cpu"}
    try:
        found = there.run(None, feeds)
    except Exception as error:
        return {"is": "fails", "why": str(error)[:200]}
    worst, off = "agree", 0.0
    for a, b in zip(map(np.asarray, expected), map(np.asarray, found), strict=True):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return {"is": "wrong", "why": f"{a.dtype}{a.shape} became {b.dtype}{b.shape}"}
        if a.size == 0 or a.dtype.kind not in "biuf":
            continue
        x, y = a.astype(np.float64), b.astype(np.float64)
        if np.allclose(y, x, *AGREE, equal_nan=True):
            continue
        finite = np.isfinite(x)
        span = float(np.ptp(x[finite])) if finite.any() else 0.0
        span = span or float(np.abs(x[finite]).max(initial=0.0)) or 1.0
        with np.errstate(invalid="ignore"):
            apart = np.abs(np.where(x == y, 0.0, x - y))
        off = max(off, float(np.where(np.isnan(apart), np.inf, apart).max()) / span)
        integers = a.dtype.kind != "f"
        worst = "wrong" if integers or off > DRIFT or worst == "wrong" else "drift"
    return {"is": worst, "off": off}


def looked(
    cases: Sequence[Case], provider: str, settings: Mapping[str, str], size: int = BATCH
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What each case gave; a case at which its process died, or hung, ends it."""
    left = [str(place) for _, place in cases]
    while left:
        batch = left[:size]
        about = json.dumps([batch, provider, dict(settings)])
        command = [sys.executable, __file__, "--look", about]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=SECONDS * 4, check=False
            )
            output = done.stdout
        except subprocess.TimeoutExpired as end:
            output = (end.stdout or b"").decode() if isinstance(end.stdout, bytes) else ""
        lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"case"')]
        answers = {each["case"]: each for each in lines if each["is"] != "begun"}
        begun = [each["case"] for each in lines if each["is"] == "begun"]
        yield from answers.items()
        finished = set(answers)
        if len(finished) < len(batch):
            died = next((n for n in begun if n not in finished), Path(batch[0]).name)
            yield died, {"case": died, "is": "ends"}
            finished.add(died)
        left = [place for place in left if Path(place).name not in finished]


def vetted(
    model: Path, provider: str, settings: Mapping[str, str], *more: str
) -> tuple[str, list[str], str]:
    """Optvet's verdict, or how it ended; the nodes blamed; and what it says."""
    option = f"settings={json.dumps(dict(settings))}"
    command = [sys.executable, "-m", "optvet_start", "vet", str(model), "--provider", provider]
    command += ["--option", option, "--json", "-", "--budget", "120s", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        ends = {2: "bad input", 5: "not tested"}
        return ends.get(done.returncode, f"exit {done.returncode}"), [], done.stderr.strip()
    answer = json.loads(done.stdout)
    faults = [f for f in answer["findings"] if f["severity"] == "fault"]
    words = "; ".join(f"{f['symptom']}: {f['message'][:80]}" for f in faults)
    return answer["verdict"], [" + ".join(f["culprit"]) for f in faults], words


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; 1 if optvet misses what plain sessions show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--provider", default="qnn", choices=["qnn"])
    parser.add_argument("--settings", default="{}", help="of the provider, as JSON")
    parser.add_argument("--only", default="", help="node tests whose name has this text")
    parser.add_argument("--models", type=Path, help="folder of models to vet")
    parser.add_argument("--vet", action="store_true", help="ask optvet about each faulty test")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--look", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.look:
        look(*json.loads(options.look))
        return 0
    settings = {k: str(v) for k, v in json.loads(options.settings).items()}
    print(machine.describe(machine.environment()), flush=True)
    rows: dict[str, Any] = {}
    missed = 0
    with tempfile.TemporaryDirectory(prefix="optvet-providers-") as folder:
        cases = write_cases(Path(folder), options.only)
        rows = dict(looked(cases, options.provider, settings))
        faulty = [case for case in cases if rows[case[0]]["is"] in FAULTS]
        for name, row in looked(faulty, options.provider, settings, 1):
            alone = row["is"] in FAULTS
            rows[name] = row if alone else {**rows[name], "is": "later"}
        counts = Counter(row["is"] for row in rows.values())
        print(f"{len(rows)} node tests: {', '.join(f'{n} {w}' for w, n in counts.most_common())}")
        for name, row in sorted(rows.items()):
            if row["is"] not in (*FAULTS, "later"):
                continue
            size = f", off by {row['off']:.2g} of the range" if "off" in row else ""
            words = f"{row['is']:8} {name}{size}{': ' + row['why'] if 'why' in row else ''}"
            if options.vet and row["is"] in FAULTS:
                place = Path(folder) / name
                inputs = ("--dataset", f"files:{place / 'inputs.npz'}")
                row["verdict"], row["blamed"], _ = vetted(
                    place / "model.onnx", options.provider, settings, *inputs
                )
                told = row["verdict"] in ("faulty", "undecided")
                missed += not told
                words += f"; optvet: {row['verdict']}{'' if told else '  MISS'}"
            print(" ".join(words.split())[:230], flush=True)
    for model in sorted(options.models.glob("*.onnx")) if options.models else ():
        verdict, blamed, words = vetted(model, options.provider, settings, "--limit", "2")
        rows[model.stem] = {"is": verdict, "blamed": blamed, "why": words}
        print(f"{model.stem}: {verdict}; {', '.join(blamed) or words[:120]}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    print(f"missed: {missed}" if options.vet else "")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
