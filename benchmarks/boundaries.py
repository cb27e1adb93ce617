"""Does ``optvet bisect`` find the boundaries that were found by hand, and the pass at fault?

    python benchmarks/boundaries.py known benchmarks/ranges --into FOLDER [--package NAME]
        [--only ID,…]

The cases are the documents of known faults that some release does not have. Their ranges were found
by ``dates.py``, which runs every release plainly. Each model is written to a file, and ``optvet
bisect --no-reduce --limit 1`` is asked about it in a process of its own; its answers are kept in
FOLDER, and not asked for again. The pipeline is the default one, or the passes of the document if
the default does not have them or blames others: where it shows another fault in all releases, or in
none the document's ("alone").

A boundary is right if every change that was found is one of those by hand, and there is one. The
culprit is right if a finding of the release at fault blames a pass of the document. Columns: the
releases that were installed, the runs, the seconds. Exit status 1 if a boundary is wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import machine
import onnx.parser
from dates import Form, documents_in

PACKAGES = ("onnxoptimizer", "onnxslim", "onnxsim", "onnxscript", "onnxruntime")
COLUMNS = "boundary culprit installed runs     s  case"
Change = tuple[str, str]
"""The last release of the old answer, the first of the new one."""


def changes_by_hand(document: Form) -> set[Change]:
    """Where the answer changes, as the document says."""
    found = set()
    for before, first, fixed in document.told():
        if before and first:
            found.add((before, first))
        if fixed:
            found.add(("", fixed))
    return found


def pipeline_of(document: Form, alone: bool) -> list[str]:
    """Options that name the passes of the document, if its optimizer does not run them unasked."""
    passes = document.case()["passes"]
    if alone and passes:
        return ["--pipeline", ",".join(passes)]
    if document.values["package"] != "onnxoptimizer":
        return []
    usual = ("eliminate_", "fuse_")
    if all(name.startswith(usual) for name in passes):
        return []
    return ["--pipeline", ",".join(passes)]


def ask(document: Form, folder: Path, alone: bool) -> dict[str, Any]:
    """What ``optvet bisect`` answers, or {"problem": why there is no answer}."""
    answer = folder / f"{document.id}{'-alone' * alone}.json"
    if answer.exists():
        return dict(json.loads(answer.read_text()))
    model = folder / f"{document.id}.onnx"
    onnx.save(onnx.parser.parse_model(document.values["model"]), model)
    values = document.values
    program = Path(sys.executable).with_name("optvet")
    command = [str(program), "bisect", str(model), "--json", str(answer)]
    command += ["--package", values["package"], "--optimizer", values["optimizer"]]
    command += ["--no-reduce", "--limit", "1", "--quiet", *pipeline_of(document, alone)]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not answer.exists():
        return {"problem": done.stderr.strip()[-300:] or f"exit status {done.returncode}"}
    found = dict(json.loads(answer.read_text())) | {"wall_s": round(time.monotonic() - began)}
    answer.write_text(json.dumps(found) + "\n")
    return found


def is_right(found: Sequence[dict[str, Any]], by_hand: set[Change]) -> bool:
    """Whether all changes that were found are among those by hand, and there is one."""
    firsts = {first for _, first in by_hand}
    exact = {change for change in by_hand if change[0]}
    for change in found:
        if change["between"] or change["first"] not in firsts:
            return False
        if change["to"] == "bad" and (change["last"], change["first"]) not in exact:
            return False
    return bool(found)


def is_of_others(answer: dict[str, Any], document: Form) -> bool:
    """Whether the default pipeline has other faults than the document's, which hide it."""
    return " is bad too" in answer["predicate"] or not blames(answer, document)


def blames(answer: dict[str, Any], document: Form) -> bool:
    """Whether the release at fault has a finding with a pass of the document."""
    passes = {*document.values.get("passes", ()), *document.values.get("pipeline", ())}
    fault = answer["at_fault"] or {"findings": []}
    culprits = {name for finding in fault["findings"] for name in finding["culprit"]}
    return bool(passes & culprits)


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask case after case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("places", type=Path, nargs="+", help="documents, or folders of them")
    parser.add_argument("--into", type=Path, required=True, help="folder of the answers")
    parser.add_argument("--package", default=",".join(PACKAGES))
    parser.add_argument("--only", default="", help="these ids alone")
    parser.add_argument(
        "--alone",
        action="store_true",
        help="the passes of the document alone; releases without one of them are then skipped",
    )
    options = parser.parse_args(arguments)
    options.into.mkdir(parents=True, exist_ok=True)
    print(machine.describe(machine.environment()), flush=True)
    print(f"\n{COLUMNS}", flush=True)
    cases = [
        form
        for package in options.package.split(",")
        for document in documents_in(options.places, package)
        for form in document.forms[:1]  # that of the document's own model, with all its values
        if changes_by_hand(form) and (not options.only or form.id in options.only.split(","))
    ]
    right = blamed = 0
    longest = 0.0
    for case in cases:
        alone = options.alone
        answer = ask(case, options.into, alone)
        if not alone and "problem" not in answer and is_of_others(answer, case):
            alone = True
            answer = ask(case, options.into, alone)
        if "problem" in answer:
            print(f"{'no answer':<38} {case.id}: {answer['problem']}", flush=True)
            continue
        good, culprit = is_right(answer["changes"], changes_by_hand(case)), blames(answer, case)
        right, blamed = right + good, blamed + culprit
        longest = max(longest, answer["seconds"])
        said = ", ".join(f"{c['last']} | {c['first']}" for c in answer["changes"]) or "no change"
        print(
            f"{'right' if good else 'WRONG':<8} {'right' if culprit else 'WRONG':<7} "
            f"{answer['installed']:>9} {answer['runs']:>4} {answer['seconds']:>5.0f}  "
            f"{case.id}{', alone' * alone}: {said}",
            flush=True,
        )
    print(
        f"\nboundary right in {right} of {len(cases)}, culprit in {blamed}; the longest took "
        f"{longest:.0f} s"
    )
    return int(right < len(cases))


if __name__ == "__main__":
    sys.exit(main())
