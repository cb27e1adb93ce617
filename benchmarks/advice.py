"""How much of what ``vet`` finds ``advise`` tells beforehand, and how much advice is refuted.

    python benchmarks/advice.py zoo:all MODELS --into FOLDER [--optimizer NAME,…] [--seen NAME,…]

Each model is vetted with the default pipeline of each optimizer, and ``advise`` is asked about the
installed versions. A finding is advised if a known fault that it is was told as advice.
Advice is refuted if the passes of the fault, alone, do not show it on the model. Answers are kept
in FOLDER, a file per model: begun again, only what is missing is done. ``--seen`` names the models
from which a pattern was made; they are counted apart. Below the table stands a line per finding
that was not advised, and per refuted advice. Findings of the severity "note", such as metadata that
is lost, are told apart from faults.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import machine

import optvet
from optvet.engine.discovery import Plugins
from optvet.engine.models.selectors import expand_models

OPTIMIZERS = "onnxoptimizer,onnxruntime,onnxslim"
COLUMNS = "models    findings  advised  share   advice  confirmed  refuted  share  not judged"
Answer = dict[str, Any]
"""What is kept of a model: documents of vets by optimizer (or the error), and of the advice."""


def answer_of(model: str, optimizers: Sequence[str], limit: int) -> Answer:
    """Vet and advise on one model."""
    began = time.monotonic()
    vets = {}
    for optimizer in optimizers:
        try:
            vets[optimizer] = optvet.vet(model, optimizer=optimizer, limit=limit, jobs=1).to_dict()
        except optvet.OptvetError as error:
            vets[optimizer] = {"error": str(error)}
    try:
        advice = optvet.advise(model).to_dict()
    except optvet.OptvetError as error:
        advice = {"error": str(error), "advice": []}
    return {"model": model, "vets": vets, "advice": advice, "s": round(time.monotonic() - began)}


def kept(model: str, folder: Path, optimizers: Sequence[str], limit: int) -> Answer:
    """The answer in the folder, found first if it is not there."""
    file = folder / f"{model.replace('/', '_').replace(':', '_')}.json"
    if not file.exists():
        file.write_text(json.dumps(answer_of(model, optimizers, limit)) + "\n")
    return dict(json.loads(file.read_text()))


def findings_of(answer: Answer, *, notes: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Optimizer and finding, of faults or of notes."""
    for optimizer, document in answer["vets"].items():
        for finding in document.get("findings", ()):
            if (finding["severity"] == "note") == notes:
                yield optimizer, finding


def is_advised(finding: Mapping[str, Any], answer: Answer) -> bool:
    """Whether a known fault that a finding is was told."""
    told = {one["fault"] for one in answer["advice"]["advice"]}
    return bool(told & set(finding["known"]))


def share(part: int, whole: int) -> str:
    """A share in per cent."""
    return f"{100 * part / whole:.0f} %" if whole else "–"


def row(label: str, answers: Sequence[Answer], *, notes: bool = False) -> str:
    """One line of the table."""
    found = [(a, f) for a in answers for _, f in findings_of(a, notes=notes)]
    advised = sum(is_advised(f, a) for a, f in found)
    advice = [one for a in answers for one in a["advice"]["advice"]]
    yes = sum(one["confirmed"] is True for one in advice)
    no = sum(one["confirmed"] is False for one in advice)
    return (
        f"{len(answers):>6}    {len(found):>8}  {advised:>7}  {share(advised, len(found)):>5}   "
        f"{len(advice):>6}  {yes:>9}  {no:>7}  {share(no, yes + no):>5}  "
        f"{len(advice) - yes - no:>10}  {label}"
    )


def exceptions(answer: Answer) -> Iterator[str]:
    """What is not as it should be, a line each."""
    for optimizer, finding in findings_of(answer, notes=False):
        if not is_advised(finding, answer):
            culprit = ", ".join(finding["culprit"]) or "round trip"
            yield f"not advised: {answer['model']}, {optimizer}: {culprit}: {finding['symptom']}"
    for one in answer["advice"]["advice"]:
        if one["confirmed"] is False:
            yield f"refuted: {answer['model']}: {one['fault']} at {one['places'][0]}"
        elif one["confirmed"] is None:
            yield f"not judged: {answer['model']}: {one['fault']}: {one['note'][:100]}"
    for optimizer, document in answer["vets"].items():
        if "error" in document:
            yield f"no answer: {answer['model']}, {optimizer}: {document['error'][:100]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Vet and advise on model after model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", help="files, folders, zoo:all")
    parser.add_argument("--into", type=Path, required=True, help="folder of the answers")
    parser.add_argument("--optimizer", default=OPTIMIZERS)
    parser.add_argument("--limit", type=int, default=1, help="samples per model")
    parser.add_argument("--largest", type=int, default=1 << 40, help="bytes of a file at most")
    parser.add_argument("--seen", default="", help="models from which a pattern was made")
    options = parser.parse_args(arguments)
    options.into.mkdir(parents=True, exist_ok=True)
    models = expand_models(options.models, Plugins())
    sizes = {m: Path(m).stat().st_size if Path(m).is_file() else 0 for m in models}
    chosen = sorted((m for m in models if sizes[m] <= options.largest), key=lambda m: sizes[m])
    optimizers = options.optimizer.split(",")
    print(machine.describe(machine.environment()), flush=True)
    answers = []
    for model in chosen:
        answers.append(kept(model, options.into, optimizers, options.limit))
        for line in exceptions(answers[-1]):
            print(line, flush=True)
    made_from = set(options.seen.split(","))
    seen = [a for a in answers if Path(a["model"]).stem in made_from or a["model"] in made_from]
    unseen = [a for a in answers if a not in seen]
    print(f"\n{COLUMNS}")
    print(row("faults, models that no pattern was made from", unseen))
    if seen:
        print(row("faults, models that a pattern was made from", seen))
    print(row("notes, all models", answers, notes=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
