"""How many conversion faults of a folder are found, with the right stage, and repaired.

    python benchmarks/conversion.py FOLDER [--only ID ...] [--environment NAME=PATH] [--json FILE]
                                           [--no-repair]

FOLDER has ``manifest.json``, ``common.py`` and the case modules. Each case becomes a source of
``optvet convert``; its inputs are those of the case and those that optvet makes. Cases whose
converter, or its environment (``optvet env list``), is not here are counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import conversion_source
import machine
from conversion_source import PLANTED, SOURCE, PlantedConverter, files_of, options_of

from optvet import OptvetError
from optvet.engine.campaign.causes import cause_of_conversion
from optvet.engine.campaign.tables.conversion_tables import ConversionRow, blame, funnel, kinds
from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import Pythons, environments_root
from optvet.engine.numerics.agreement import agreement
from optvet.engine.repair.run import repair_model
from optvet.engine.work.sandbox import Sandbox, keep_servers
from optvet.spec.convert import ConvertRequest
from optvet.spec.records.convert import ConversionFinding, ConversionResult
from optvet.spec.records.report_table import ReportTable
from optvet.spec.repair import RepairRequest

CONVERTERS = {
    "torch.onnx dynamo=True": "torch_dynamo",
    "torch.onnx dynamo=False": "torch_script",
    "skl2onnx": "skl2onnx",
    "onnxmltools (XGBoost)": "onnxmltools",
    "onnxmltools (LightGBM)": "onnxmltools",
    "tf2onnx": "tf2onnx",
    "keras Model.export(onnx)": "keras_export",
    "TFLiteConverter": "tflite",
    "tf2onnx --tflite": "tflite2onnx",
    "jax2onnx": "jax2onnx",
    "planted in torch.onnx dynamo=False": PLANTED,
    "written in ONNX": PLANTED,
}
WORDS = ("onnx2torch", "openvino", "tvm")
"""Converters whose name is part of what the manifest calls them."""
SYMPTOMS = {
    "refused": "convert-error",
    "crash": "convert-error",
    "load-failure": "load-error",
    "run-failure": "run-error",
}
STAGES = {"convert": "node-conversion", "optimize": "optimization", "lossy": "quantization"}
CAUSES = {
    "type": "type",
    "shape": "shape",
    "tensor-shape": "shape",
    "dynamic": "shape",
    "hyperparameters": "algorithmic",
    "parameters": "algorithmic",
    "semantics": "algorithmic",
    "layer-graph": "algorithmic",
    "refused": "incompatibility",
}
"""Categories of the manifest as causes of the failure study; some faults have none."""
ORIGINS = ("example", "given", "random", "size", "edge")


@dataclass(frozen=True)
class Scored:
    """One case, what is expected, and what was told."""

    id: str
    converter: str
    control: bool
    expected: tuple[str, str, str]
    verdict: str
    symptom: str
    stage: str
    culprit: str
    message: str
    cause: str
    seconds: float
    repair: str = ""
    edits: tuple[str, ...] = ()
    expected_cause: str = "none"

    @property
    def found(self) -> bool:
        """Whether something is told at all."""
        return self.symptom not in ("none", "error")

    @property
    def place(self) -> bool:
        """Whether operator or parameter are those of the label, as far as its words tell."""
        return self._names(self.culprit)

    @property
    def located(self) -> bool:
        """The same, or of what the edits that repaired it are made at."""
        return self.place or self._names(" ".join(self.edits))

    def _names(self, text: str) -> bool:
        _, _, label = self.expected
        if self.converter.startswith("planted") and re.search(r"\w\.\w", label):
            return label in re.findall(r"[\w.]+", text)
        return bool(_words_of(label) & _words_of(text))

    @property
    def right(self) -> tuple[bool, bool]:
        """Whether symptom and stage are the expected ones."""
        symptom, stage, _ = self.expected
        return self.symptom == symptom, self.stage == stage


def main() -> None:
    """Run the cases and print a line each, then the totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-repair", action="store_true")
    parser.add_argument("--environment", nargs="*", default=[], metavar="NAME=PATH")
    options = parser.parse_args()
    named = (each.partition("=") for each in options.environment)
    chosen = {name: Path(place) for name, _, place in named}
    found = machine.environment()
    for name in ("torch", "onnxscript", "sklearn", "skl2onnx", "onnxmltools", "xgboost"):
        found[name] = machine.library_version(name)
    print(machine.describe(found), flush=True)
    cases = json.loads((options.folder / "manifest.json").read_text())
    cases = cases["cases"] if isinstance(cases, dict) else cases
    cases = [c for c in cases if not options.only or c["id"] in options.only]
    scored, converted, missing = [], [], []
    keep_servers()
    asked = Asked(Pythons(chosen, environments_root()))
    with asked, tempfile.TemporaryDirectory(prefix="optvet-conversion-") as scratch:
        for case in cases:
            if not asked.is_here(case):
                missing.append(case["converter"])
                continue
            folder = options.folder.resolve()
            try:
                how = {"converter_options": asked.options_of(case, folder), "environments": chosen}
                how |= asked.files_of(case, folder, scratch)
            except Exception as error:  # whatever the code of a case raises costs that case alone
                one, answer = _not_made(case, error)
            else:
                one, answer = _scored(case, folder, Path(scratch), how, not options.no_repair)
            scored.append(one)
            converted.append(answer)
            print(_line(one), flush=True)
    _totals(scored, missing)
    for table in (funnel(converted), kinds(converted), blame(converted)):
        _show(table)
    _agreement(scored)
    if options.json:
        options.json.write_text(json.dumps([asdict(s) for s in scored], indent=1))


class Asked(contextlib.ExitStack):
    """Processes in which cases are asked for the options of their converters."""

    def __init__(self, pythons: Pythons) -> None:
        super().__init__()
        self._pythons, self._plugins = pythons, pythons.among(Plugins())
        self._here = self.enter_context(
            ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        )
        self._elsewhere: dict[str, Sandbox] = {}

    def is_here(self, case: Mapping[str, Any]) -> bool:
        """Whether the converter of the case can be used here."""
        return _converter(case) in (PLANTED, *self._plugins.names("converter"))

    def options_of(self, case: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """Options of the converter that the case asks for."""
        name = _converter(case)
        about = (str(folder), case["module"], case["id"])
        home = "" if name in (None, PLANTED) else self._home_of(str(name))
        if not home:
            return self._here.submit(options_of, *about).result()
        if home not in self._elsewhere:
            python = self._pythons.interpreter_of(home, self._plugins)
            lent = (*python.lent, ("conversion_source", conversion_source.__file__))
            self._elsewhere[home] = self.enter_context(
                Sandbox(jobs=1, interpreter=replace(python, lent=lent))
            )
        outcome = self._elsewhere[home].call(options_of, *about, fresh=True)
        if outcome.value is None:
            raise LookupError(f"{case['id']}: {outcome.failure}")
        return outcome.value

    def files_of(self, case: Mapping[str, Any], folder: Path, scratch: str) -> dict[str, Any]:
        """The model as a file, if its converter takes ONNX and it is that."""
        name = _converter(case)
        if name in (None, PLANTED) or self._home_of(str(name)):
            return {}
        if "onnx" not in self._plugins.converter(str(name)).consumes:
            return {}
        about = (str(folder), case["module"], case["id"], scratch)
        return self._here.submit(files_of, *about).result()

    def _home_of(self, converter: str) -> str:
        return self._plugins.home_of(self._plugins.converter(converter))


def _converter(case: Mapping[str, Any]) -> str | None:
    words = case["converter"].lower()
    named = next((name for name in WORDS if name in words), None)
    return CONVERTERS.get(case["converter"], named)


def _scored(
    case: Mapping[str, Any], folder: Path, scratch: Path, how: Mapping[str, Any], mend: bool
) -> tuple[Scored, ConversionRow]:
    name, plugins = _converter(case), Plugins()
    assert name is not None
    if name == PLANTED:
        plugins = plugins.register(
            "converter", PlantedConverter(folder, case["module"], case["id"])
        )
    file = scratch / f"{case['id']}.py"
    about = {"benchmarks": str(Path(__file__).parent), "folder": str(folder)}
    file.write_text(SOURCE.format(module=case["module"], id=case["id"], **about))
    started = time.perf_counter()
    repair: tuple[str, tuple[str, ...]] = ("", ())
    given = {"model": f"{file}:source", "via": (name,), **how}
    result = None
    try:
        request = ConvertRequest.model_validate(given)
        result = convert_model(request, plugins)
    except OptvetError as error:
        told = ("error", "error", "-", "-", f"{type(error).__name__}: {error}", "none")
    else:
        told = _told(result)
        if mend and result.verdict == "faulty" and result.stages[-1].format == "onnx":
            repair = _repaired(given, plugins, scratch)
    expected = (case["symptom"], case["stage"], case["culprit"])
    seconds = time.perf_counter() - started
    scored = Scored(
        case["id"],
        case["converter"],
        bool(case["control"]),
        expected,
        *told,
        seconds,
        *repair,
        expected_cause=CAUSES.get(case["category"], "none" if case["control"] else ""),
    )
    return scored, ConversionRow(case["id"], case["converter"], result)


def _not_made(case: Mapping[str, Any], error: Exception) -> tuple[Scored, ConversionRow]:
    """A case whose own code fails."""
    expected = (case["symptom"], case["stage"], case["culprit"])
    words = f"the case itself fails: {type(error).__name__}: {error}"
    told = ("error", "error", "-", "-", words, "none")
    control, converter = bool(case["control"]), case["converter"]
    scored = Scored(case["id"], converter, control, expected, *told, 0.0, expected_cause="")
    return scored, ConversionRow(case["id"], converter, None)


def _repaired(
    given: Mapping[str, Any], plugins: Plugins, scratch: Path
) -> tuple[str, tuple[str, ...]]:
    """The verdict of a repair, judged on inputs of its own too, and its edits."""
    request = RepairRequest.model_validate({**given, "out": scratch / "repaired"})
    try:
        result = repair_model(request, plugins)
    except OptvetError as error:
        return f"error: {type(error).__name__}: {error}", ()
    wrong = sum(n.wrong for n in result.after.values())
    over = result.verdict == "repaired" and wrong > 0
    return "over-fitted" if over else result.verdict, tuple(e.about for e in result.edits)


def _told(result: ConversionResult) -> tuple[str, str, str, str, str, str]:
    """Verdict; symptom, stage, culprit, message, cause of the finding with the plainest input."""
    told = [f for f in result.findings if f.severity != "note"]
    if not told:
        return result.verdict, "none", "-", "-", result.reason, "none"
    first = min(told, key=_plainness)
    symptom = SYMPTOMS.get(first.symptom, first.symptom)
    place = ""
    if first.place is not None and (place := first.place.words()):
        place += f" in {first.place.module}" if first.place.module else ""
    stage = STAGES.get(first.kind, first.kind)
    if first.place is not None and first.place.preprocessing and first.kind == "convert":
        stage = "preprocessing"
    cause = "incompatibility" if first.severity == "refusal" else cause_of_conversion(first).name
    return result.verdict, symptom, stage, place or first.culprit, first.message, cause


def _words_of(text: str) -> set[str]:
    """Names of operators and parameters in a text, in lower case and without namespaces."""
    found = re.findall(r"[A-Za-z][A-Za-z0-9_.:]*", text)
    parts = {part.strip("_").lower() for name in found for part in re.split(r"[.:]+", name)}
    parts |= {re.sub(r"_\d+$", "", part) for part in parts}  # Keras numbers layers of one name.
    whole = {name.lower() for name in found}
    return {w.removesuffix("s") for w in parts | whole if len(w) > 2} - _COMMON


_COMMON = set("aten onnx the and for all with name node type error out set not".split())


def _plainness(finding: ConversionFinding) -> int:
    return -1 if finding.witness is None else ORIGINS.index(finding.witness.origin)


def _line(s: Scored) -> str:
    marks = "".join("+" if good else "x" for good in (*s.right, s.place))
    if s.control:
        marks = "!!!" if s.found or s.symptom == "error" else "---"
    expected = f"{s.expected[0]}/{s.expected[1]}"
    words = " ".join(s.message.split())[:110]
    found = f"{s.symptom}/{s.stage}"
    repair = f"\n        {s.repair}: {'; '.join(s.edits)[:200]}" if s.repair else ""
    about = f"{s.seconds:5.1f} s  {s.culprit[:90]}  {words}{repair}"
    return f"{marks} {s.id:42} {expected:32} {found:32} {about}"


def _totals(scored: Sequence[Scored], missing: Sequence[str]) -> None:
    for title, group in _groups(scored):
        faults = [s for s in group if not s.control]
        controls = [s for s in group if s.control]
        print(
            f"{title}: {sum(s.found for s in faults)} of {len(faults)} faults found, "
            f"{sum(s.right[0] for s in faults)} with the right symptom, "
            f"{sum(all(s.right) for s in faults)} with the right stage, "
            f"{sum(s.place for s in faults)} with the right operator or parameter; "
            f"{sum(s.found for s in controls)} of {len(controls)} controls reported"
        )
        tried = [s for s in faults if s.repair]
        if tried:
            print(
                f"    {sum(s.repair == 'repaired' for s in tried)} of {len(tried)} repaired, "
                f"{sum(s.repair == 'improved' for s in tried)} improved, "
                f"{sum(s.repair == 'over-fitted' for s in tried)} over-fitted; "
                f"{sum(s.located for s in tried)} located by convert or by an edit"
            )
    if missing:
        names = ", ".join(sorted(set(missing)))
        print(f"not run, since its converter is not here: {len(missing)} ({names})")


def _agreement(scored: Sequence[Scored]) -> None:
    """Cohen's kappa of what optvet tells and of the labels, per converter and over all cases."""
    print("\nAgreement with the labels (controls are labelled none)")
    for title, group in _groups(scored):
        rated = {
            "symptom": [(s.expected[0], s.symptom) for s in group],
            "stage": [(s.expected[1], s.stage) for s in group],
            "cause": [(s.expected_cause, s.cause) for s in group if s.expected_cause],
        }
        words = (
            f"{name} {agreement([a for a, _ in pairs], [b for _, b in pairs]).words()}"
            for name, pairs in rated.items()
        )
        print(f"{title}: {'; '.join(words)}")


def _show(table: ReportTable) -> None:
    print(f"\n{table.title}\n{' | '.join(table.columns)}")
    for row in table.rows:
        cells = ("" if v is None else f"{v:.3g}" if isinstance(v, float) else str(v) for v in row)
        print(" | ".join(cells))


def _groups(scored: Sequence[Scored]) -> Iterator[tuple[str, list[Scored]]]:
    for name in dict.fromkeys(s.converter for s in scored):
        yield name, [s for s in scored if s.converter == name]
    yield "all", list(scored)


if __name__ == "__main__":
    main()
