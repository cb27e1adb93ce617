"""What a case of field reports asks of optvet, and what its answer must have.

A case's ``expected`` may have: a ``verdict``, a ``symptom`` (one of several, with "or"), a
``culprit``, what a ``place`` names, what ``repair`` edits, the nodes to ``keep`` at a
``precision``, the ``first_bad`` release of a ``bisect``, or a sentence for each of several files.
Its ``note`` counts too: options, symptoms, "all 10 samples", "X is right: say so", "how to …".
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from optvet import Symptom


@dataclass(frozen=True)
class Answer:
    """What a command answered in ``folder``; ``out`` is where it was told to write to."""

    document: Mapping[str, Any]
    screen: str
    status: int
    out: Path
    folder: Path

    def findings(self) -> list[Mapping[str, Any]]:
        """Its findings; an error has none."""
        found: list[Mapping[str, Any]] = self.document.get("findings") or []
        return found

    def words(self) -> str:
        """The answer in a line."""
        found = [
            f"{f['symptom']} by {', '.join(_blamed(f)) or 'the round trip'}"
            for f in self.findings()
        ]
        verdict = self.document.get("verdict") or self.document.get("headline") or "no verdict"
        if "rows" in self.document:
            of = Counter(r["verdict"] for r in self.document["rows"] if r["shows"])
            verdict = ", ".join(f"{n} {v}" for v, n in of.items())
        if "releases" in self.document:
            verdict = f"bad since {_first_bad(self)}"
        last = (self.screen.strip().splitlines() or [""])[-1]
        return "; ".join([str(verdict), *found]) if self.document else f"{verdict}: {last[:150]}"


Check = Callable[[Answer], str]
"""What an answer lacks, in words; empty if nothing."""


@dataclass(frozen=True)
class Ask:
    """One command, and the checks of its answer."""

    arguments: tuple[str, ...]
    expected: str
    checks: tuple[Check, ...] = field(default=(), repr=False)
    control: bool = False
    release: str = ""
    script: str = ""

    @property
    def words(self) -> str:
        """The command as typed, with the release that it is asked of."""
        program = self.script or "optvet"
        beside = f"  [{self.release}]" if self.release else ""
        return " ".join((program, *self.arguments)) + beside


def unmet(ask: Ask, answer: Answer) -> list[str]:
    """What the answer lacks."""
    if not answer.document:
        return [f"no document (status {answer.status}): {answer.screen.strip()[-200:]}"]
    return [words for check in ask.checks if (words := check(answer))]


def asks_of(case: Mapping[str, Any], folder: Path) -> Iterator[Ask]:
    """The commands of a case, with what is expected of each; at least one check each."""
    kinds = {"vet": _vets, "conversion": _conversions, "damage": _damages}
    expected = case["expected"]
    for ask in kinds[case["kind"]](case, expected, folder):
        control = expected.get("verdict") in ("clean", "right") or ask.control
        yield replace(ask, expected=ask.expected or json.dumps(expected), control=control)


# --- vet ------------------------------------------------------------------------------------------


def _vets(case: Mapping[str, Any], expected: Mapping[str, Any], folder: Path) -> Iterator[Ask]:
    files = {n: words for n, words in expected.items() if (folder / n).is_file()}
    models = list(files) or sorted(f.name for f in folder.glob("*.onnx"))
    note = expected.get("note", "")
    for model in models:
        checks = _clauses(files[model]) if model in files else _common(expected)
        for optimizer in case["optimizer"]:
            plain = ("vet", model, "--optimizer", optimizer)
            needed = tuple(re.findall(r"with (--[a-z-]+)", note))
            for release in _releases(case.get("versions", ""), optimizer):
                yield Ask((*plain, *needed), files.get(model, ""), checks, release=release)
            if "must not agree" in note:  # what is shipped is judged without being asked for
                yield Ask(plain, "", (*checks, _does_not_agree("as shipped")))
    for release in re.findall(r"clean in ([\d.]+)", case.get("versions", "")):
        package = case["versions"].split()[0]
        other = release if _installed(package).startswith(release) else ""
        asked = "" if other else f"{package}=={release}"
        for model, optimizer in ((m, o) for m in models for o in case["optimizer"]):
            clean = (_one_of("verdict", ("clean", "drift")),)
            words = ("vet", model, "--optimizer", optimizer)
            yield Ask(words, f"clean in {release}", clean, control=True, release=asked)


def _common(expected: Mapping[str, Any]) -> tuple[Check, ...]:
    """What is expected of verdict, symptom, culprit, and by the note."""
    checks: list[Check] = []
    note = expected.get("note", "")
    if verdict := expected.get("verdict"):
        checks.append(_one_of("verdict", (verdict,)))
    symptoms = tuple(expected.get("symptom", "").split(" or "))
    if symptoms != ("",):
        checks.append(_finds(symptoms, expected.get("culprit") or ()))
    checks += [_finds((s,), ()) for s in map(str, Symptom) if re.search(rf"\b{s}\b", note)]
    if re.search(r"all \d+ samples", note):
        # Of however many there are: inputs may be drawn beside those that were counted.
        checks.append(_says(r"\ball \d+ samples|\b(\d+) of \1 samples", "all samples"))
    if "when pasted" in note:
        checks.append(_works_when_pasted)
    return tuple(checks)


def _clauses(words: str) -> tuple[Check, ...]:
    """What a sentence expects, such as: S by P and T by Q; not the known K."""
    checks: list[Check] = [_one_of("verdict", ("faulty",))]
    for clause in words.split("; "):
        known = re.search(r"not the known (\S+)", clause)
        if known:
            checks.append(_is_not_known(known[1]))
            continue
        for one in clause.split(" and "):
            symptom, _, culprit = one.partition(" by ")
            round_trip = culprit == "the round trip"
            checks.append(
                _finds((symptom,), () if round_trip else (culprit,) * bool(culprit), round_trip)
            )
    return tuple(checks)


def _one_of(key: str, wanted: Sequence[str]) -> Check:
    def check(answer: Answer) -> str:
        got = answer.document.get(key)
        return "" if got in wanted else f"{key} {' or '.join(wanted)}, not {got}"

    return check


def _blamed(finding: Mapping[str, Any]) -> list[str]:
    culprit = finding["culprit"]
    return [culprit] if isinstance(culprit, str) else list(culprit)


def _finds(symptoms: Sequence[str], culprits: Sequence[str], round_trip: bool = False) -> Check:
    def check(answer: Answer) -> str:
        of = [f for f in answer.findings() if f["symptom"] in symptoms]
        right = [
            f
            for f in of
            if all(any(c in b for b in _blamed(f)) for c in culprits)
            and not (round_trip and _blamed(f))
        ]
        by = "the round trip" if round_trip else ", ".join(culprits)
        return "" if right else f"{' or '.join(symptoms)}{' by ' * bool(by)}{by}"

    return check


def _does_not_agree(control: str) -> Check:
    def check(answer: Answer) -> str:
        details = [c["detail"] for c in answer.document["controls"] if c["name"] == control]
        agrees = any(re.match(r"agrees\b", detail) for detail in details)
        return f"{control}: it does not agree" if agrees else ""

    return check


def _is_not_known(name: str) -> Check:
    def check(answer: Answer) -> str:
        ids = [known for f in answer.findings() for known in f.get("known", ())]
        return f"it is taken for {name}" if any(name in i for i in ids) else ""

    return check


def _says(pattern: str, words: str) -> Check:
    def check(answer: Answer) -> str:
        screen = " ".join(answer.screen.split())
        return "" if re.search(pattern, screen, re.IGNORECASE) else f"the screen says: {words}"

    return check


def _works_when_pasted(answer: Answer) -> str:
    """Whether the code that is proposed runs on the model, and the result loads."""
    code = answer.document.get("safe_code")
    if not code:
        # Where no code can be given, the pipeline is what is proposed.
        return "" if answer.document.get("safe_pipeline") else "code or a pipeline to paste"
    model = answer.document["model"]["source"]
    lines = "\n".join(f"    {line}" for line in code.splitlines())
    script = (
        f"import onnx, onnxruntime\ndef optimize(model):\n{lines}\n"
        f"model = optimize(onnx.load({model!r}))\n"
        "onnx.checker.check_model(model, full_check=True)\n"
        "onnxruntime.InferenceSession(model.SerializeToString())\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, cwd=answer.folder, capture_output=True, text=True, check=False, timeout=300
    )
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return "" if done.returncode == 0 else f"the code works when pasted: {last[:200]}"


# --- releases -------------------------------------------------------------------------------------


def _releases(versions: str, optimizer: str) -> list[str]:
    """Releases to ask, as PACKAGE==VERSION; empty for the one that is installed."""
    affected = versions.partition(";")[0]
    parts = [p.split() for p in affected.split(", ") if len(p.split()) > 1]
    own = [p for p in parts if p[0] == optimizer] or parts[:1]
    if not own:
        return [""]
    package, *listed = own[0]
    ends = [v for v in listed if v != "to"]
    installed = _installed(package)
    return ["" if installed.startswith(end) else f"{package}=={end}" for end in ends]


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


# --- convert, repair, precision, bisect -----------------------------------------------------------


def _conversions(
    case: Mapping[str, Any], expected: Mapping[str, Any], folder: Path
) -> Iterator[Ask]:
    if "bisect" in expected:
        model, package, options = expected["bisect"].split(", ")
        words = ("bisect", model, "--optimizer", package, *options.split())
        yield Ask(words, "", (_is_first_bad(expected["first_bad"], expected.get("culprit", ())),))
        return
    data = ("--dataset", "files:inputs.npz") if (folder / "inputs.npz").is_file() else ()
    if "precision" in expected:
        words = ("precision", "model.onnx", "--to", expected["precision"], *data)
        yield Ask((*words, "--out", "{out}"), "", (_keeps(expected["keep"]),))
        return
    source = expected.get("source") or _source(folder)
    data = data if source.endswith(".onnx") else ()
    note = expected.get("note", "")
    refused = "refuse" in note
    for via in str(expected.get("via", "")).split(", "):
        how = ("--via", via) if via else ()
        how = ("--converted", expected["converted"]) if "converted" in expected else how
        verdict = expected.get("verdict", "refused" if refused else "faulty")
        checks: list[Check] = [_one_of("verdict", (verdict,))]
        if place := expected.get("place"):
            checks.append(_places(place))
        checks += [_says(rf"{w}", f"how to {w}") for w in re.findall(r"how to (\w+)", note)]
        yield Ask(("convert", source, *how, *data), "", tuple(checks))
        # Other converters are tried where a model is to be repaired.
        right = [_says(rf"{w}\w* is right", f"{w} is right") for w in _said_right(note)]
        if right:
            yield Ask(("repair", source, *how, *data, "--out", "{out}"), "", tuple(right))
        if "repair" in expected:
            words = ("repair", source, *how, *data, "--out", "{out}")
            yield Ask(words, "", (_one_of("verdict", ("repaired",)), _edits(expected["repair"])))


def _source(folder: Path) -> str:
    text = (folder / "net.py").read_text(encoding="utf-8")
    made = re.search(r"^def (model|function)\(", text, re.MULTILINE)
    return f"net.py:{made[1] if made else 'model'}"


def _said_right(note: str) -> list[str]:
    return re.findall(r"(\w+) is right: say so", note)


SAME = (
    ("exchanged", "swapped", "interchanged", "traded"),
    ("gone", "lost", "missing", "left out", "removed", "not read", "is not there"),
)
"""Words that say the same."""
SILENT = frozenset("the a an in is of input".split())


def _places(words: str) -> Check:
    """The screen must name every word of the place, and no page of protobuf."""

    def check(answer: Answer) -> str:
        screen = " ".join(answer.screen.lower().split())
        lacking = []
        for word in re.findall(r"[\w.=]+", words):
            if word in SILENT:
                continue
            name = word.rpartition(".")[2].lower()
            alike = next((group for group in SAME if name in group), (name,))
            if not any(w in screen for w in alike):
                lacking.append(word)
        if lacking:
            return f"the place names {', '.join(lacking)}"
        lines = len(answer.screen.splitlines())
        return "" if lines <= MOST_LINES else f"a screen of {lines} lines"

    return check


MOST_LINES = 60
"""Lines of a screen that shows where a small model breaks."""


def _edits(words: str) -> Check:
    """The model that was written runs in a default session; a weight or an input was mended."""

    def check(answer: Answer) -> str:
        operations = [o for e in answer.document.get("edits", ()) for o in e["operations"]]
        done = {o["operation"] for o in operations}
        wanted = {"the weight": {"set-weight"}, "the input": {"set-input", "insert-node"}}
        if words in wanted and not done & wanted[words]:
            return f"{words} is mended; edits are {', '.join(sorted(done)) or 'none'}"
        return _runs(answer.out / "repaired.onnx")

    return check


def _runs(file: Path) -> str:
    """What a default session of ONNX Runtime says against a model on random inputs."""
    import numpy as np
    import onnxruntime

    if not file.is_file():
        return "a repaired model"
    rng = np.random.default_rng(0)
    try:
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        feeds = {}
        for given in session.get_inputs():
            shape = [d if isinstance(d, int) else 3 for d in given.shape]
            whole = "int" in given.type
            drawn = rng.integers(1, 3, shape) if whole else rng.normal(size=shape)
            kind = {"tensor(float)": "float32", "tensor(double)": "float64"}.get(given.type)
            feeds[given.name] = drawn.astype(kind or given.type[7:-1])
        session.run(None, feeds)
    except Exception as error:
        return f"the repaired model runs in a default session: {' '.join(str(error).split())[:200]}"
    return ""


def _keeps(nodes: Sequence[str]) -> Check:
    def check(answer: Answer) -> str:
        kept = [k["name"] for k in answer.document.get("kept", ())]
        return "" if kept == list(nodes) else f"{', '.join(nodes)} is kept, not {kept or 'nothing'}"

    return check


def _first_bad(answer: Answer) -> str | None:
    changes = answer.document.get("changes") or ()
    return next((str(c["first"]) for c in changes if c["to"] == "bad"), None)


def _is_first_bad(version: str, culprits: Sequence[str]) -> Check:
    def check(answer: Answer) -> str:
        got = _first_bad(answer)
        if got != version:
            return f"the first bad release is {version}, not {got}"
        found = (answer.document.get("at_fault") or {}).get("findings", ())
        named = {b for f in found for b in _blamed(f)}
        missing = [c for c in culprits if c not in named]
        return f"{', '.join(missing)} is to blame" if missing else ""

    return check


# --- damage ---------------------------------------------------------------------------------------


def _damages(case: Mapping[str, Any], expected: Mapping[str, Any], folder: Path) -> Iterator[Ask]:
    """All kinds of damage: each that shows is called what is expected; at least as many show."""
    least = len(expected["damages"])

    def check(answer: Answer) -> str:
        shown = [r for r in answer.document["rows"] if r["shows"]]
        if len(shown) < least:
            return f"{least} kinds of damage that show, not {len(shown)}"
        passed = [r["kind"] for r in shown if r["verdict"] != expected["verdict"]]
        return f"{', '.join(passed)}: {expected['verdict']}" if passed else ""

    words = ("--models", ".", "--zoo", "", "--limit", "10")
    yield Ask(words, "", (check,), script="damage.py")
