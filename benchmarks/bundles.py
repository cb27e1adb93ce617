"""Reduces every finding of a folder with known culprits, and runs what was written about it.

``python benchmarks/bundles.py FOLDER [--optimizer NAME] [--python PYTHON]``. Each case of
FOLDER that has a bug in the installed version (``corpus.py`` explains the manifests) is vetted
with ``--reduce`` in its modes up to the first that shows the bug; of a folder without a manifest,
or of ``zoo:A,B``, each model with ``--pipeline``. Each script is run by an interpreter that has
onnx, numpy, ONNX Runtime and the optimizer's library in the installed versions, and no optvet: the
one that ``--python`` names, else one that is made. How to read the output, one row per bundle:

- *nodes*: before and after; *elements*: of the inputs that must be fed; *kB*: of the reduced model;
- *checks*: candidates that were judged; *s*: seconds for reducing, judging again and writing;
- *kept*: whether vetting the reduced model on the recorded inputs, with the culprit as the
  pipeline, blames the same culprit for the same symptom;
- *script*: what ``repro.py`` exited with there, which should be 1;
- *issue*: what the script in ``ISSUE.md`` exited with and its lines: taken out of the text, put
  into an empty folder, run by an interpreter with nothing but what its own ``pip install`` names.

The aims: median at most 3 nodes; at most 4,096 elements and 10 kB each; all kept, all scripts 1;
median at most 40 lines in an issue.
``--twice`` reduces all of it with another number of jobs too, and counts equal fingerprints.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import machine
import numpy as np
import onnx
from corpus import READERS, Case, Mode, judge_mode

from optvet import OptvetError, Symptom, VetResult, vet
from optvet.engine.bundle import Bundle, read_arrays, replay_bundle, write_bundles
from optvet.engine.discovery import Plugins
from optvet.spec.extras import PluginExtras, extras
from optvet.spec.request import VetRequest

LIBRARIES = ("onnx", "numpy", "onnxruntime")
AIM_NODES, AIM_ELEMENTS, AIM_BYTES, AIM_LINES = 3, 4096, 10_000, 40


@dataclass(frozen=True)
class Row:
    """One bundle."""

    case: str
    culprit: str
    symptom: str
    severity: str
    before: int
    nodes: int
    elements: int
    size_bytes: int
    checks: int
    seconds: float
    kept: str
    script: str
    issue: str
    lines: int
    fingerprint: str
    note: str


def fresh_python(folder: Path, optimizer: str) -> Path:
    """An interpreter with the libraries alone, in the versions that are installed here."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    plugin = Plugins().optimizer(optimizer)
    libraries = extras(plugin, PluginExtras).libraries or [plugin.name]
    names = [name for name in dict.fromkeys((*LIBRARIES, *libraries)) if is_installed(name)]
    wanted = [f"{name}=={metadata.version(name)}" for name in names]
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*command, *wanted], check=True)
    return python


def is_installed(distribution: str) -> bool:
    """Whether there is a distribution of this name; what comes with another one has none."""
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def issue_script(bundle: Path) -> str:
    """The script in ``ISSUE.md``; empty if it has none that can be run alone."""
    text = (bundle / "ISSUE.md").read_text("utf-8")
    found = re.search(r"^(`{3,})python\n(# .*?)^\1$", text, re.MULTILINE | re.DOTALL)
    return found[2] if found and "# pip install" in found[2] else ""


def python_for(script: str) -> Path:
    """An interpreter that has what the script's own ``pip install`` names; made once."""
    names = re.search(r"^# pip install (.*)$", script, re.MULTILINE)
    wanted = names[1] if names else ""
    folder = Path(tempfile.gettempdir()) / f"optvet-alone-{re.sub('[^A-Za-z0-9.]+', '-', wanted)}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=False, clear=True)
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        subprocess.run([*command, *wanted.split()], check=True)
        (folder / "complete").touch()
    return python


def run_alone(script: str) -> str:
    """What the script exits with in an empty folder; a remark if that does not show the fault."""
    if not script:
        return "none"
    with tempfile.TemporaryDirectory(prefix="optvet-alone-") as folder:
        (Path(folder) / "issue.py").write_text(script, "utf-8")
        command = [str(python_for(script)), "issue.py"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode == 1 and re.search("^actual", done.stdout, re.MULTILINE):
        return "1"
    return f"{done.returncode} ({' '.join((done.stdout + done.stderr).split())[-150:]})"


def cases_of(where: str, optimizer: str, pipeline: str) -> list[Case]:
    """Cases with bugs, by the folder's manifest; else all models there are."""
    folder = Path(where)
    if (folder / "manifest.json").exists():
        manifest = json.loads((folder / "manifest.json").read_text())
        cases = READERS[optimizer](folder, manifest, machine.library_version(optimizer))
        return [c for c in cases if c.bugs]
    models = sorted(map(str, folder.glob("*.onnx")))
    if where.startswith("zoo:"):
        models = [f"zoo:{name}" for name in where.removeprefix("zoo:").split(",")]
    mode = Mode("default", {"pipeline": pipeline})
    return [
        Case(Path(m).stem, Path(m), (), (), False, (), (), (mode,), scored=False) for m in models
    ]


def settings_of(case: Case, mode: Mode, optimizer: str, timeout_s: float, jobs: int) -> VetRequest:
    """What ``optvet.vet`` would be asked for this mode."""
    options = dict(mode.options)
    pipeline = options.pop("pipeline", "default")
    if not isinstance(pipeline, str):
        pipeline = ",".join(pipeline)
    datasets = tuple(f"files:{path}" for path in case.inputs) or ("random",)
    return VetRequest(
        model=str(case.model),
        reduce=True,
        optimizer=optimizer,
        pipeline=pipeline,
        dataset=datasets,
        timeout=timeout_s,
        jobs=jobs,
        cache=False,
        **options,
    )


def shown(
    case: Case, optimizer: str, timeout_s: float, jobs: int
) -> Iterator[tuple[Mode, VetResult]]:
    """The modes up to the first that shows the bug, with what they show."""
    for mode in case.modes:
        if mode.benign:
            continue
        asked = settings_of(case, mode, optimizer, timeout_s, jobs)
        result = vet_as(str(case.model), asked)
        yield mode, result
        if judge_mode(case, mode, result)[0] == "found":
            return


def vet_as(model: str, asked: VetRequest) -> VetResult:
    """Vet another model with these settings."""
    return vet(asked.model_copy(update={"model": model}))


def still(bundle: Bundle, asked: VetRequest, scratch: Path) -> str:
    """Whether the reduced model, vetted, shows the same: "yes", or what it shows."""
    record = bundle.record
    if record.finding.symptom == Symptom.BLOAT:
        # A vet tells of many nodes only; of a few, judging the bundle again does.
        return "yes" if replay_bundle(bundle.path, Plugins()).outcome == "still there" else "no"
    model = onnx.load(bundle.path / "model.onnx")
    feeds = read_arrays(bundle.path / "inputs.npz", record.inputs)
    path, arrays = scratch / "again.onnx", scratch / "again.npz"
    onnx.save(model, path)
    np.savez(arrays, **feeds)  # type: ignore[arg-type]
    again = asked.model_copy(
        update={
            "pipeline": ",".join(record.passes) or asked.pipeline,
            "strategy": "auto",
            "dataset": (f"files:{arrays}",) if feeds else ("random",),
        }
    )
    try:
        result = vet_as(str(path), again)
    except OptvetError as error:
        return f"{type(error).__name__}: {error}"
    wanted = (record.finding.symptom, record.finding.culprit)
    if any((f.symptom, f.culprit) == wanted for f in result.findings):
        return "yes"
    return "; ".join(f"{f.symptom} by {f.culprit}" for f in result.findings) or "shows nothing"


def run_case(
    case: Case, optimizer: str, python: Path, timeout_s: float, jobs: int, out: Path
) -> Iterator[Row]:
    """A row for each bundle of a case."""
    plugins, checks = Plugins(), [0]

    def progress(text: str, done: int, total: int | None) -> None:
        checks[0] = max(checks[0], done)

    written: set[Path] = set()
    for mode, result in shown(case, optimizer, timeout_s, jobs):
        asked = settings_of(case, mode, optimizer, timeout_s, jobs)
        for finding in result.findings:
            one = result.model_copy(update={"findings": [finding]})
            checks[0], began = 0, time.perf_counter()
            bundles = write_bundles(one, asked, out / case.id, plugins, progress=progress)
            seconds = time.perf_counter() - began
            for bundle in bundles:
                if bundle.path in written:
                    continue
                written.add(bundle.path)
                yield measure(case, bundle, asked, checks[0], seconds, python, out)


def measure(
    case: Case,
    bundle: Bundle,
    asked: VetRequest,
    checks: int,
    seconds: float,
    python: Path,
    out: Path,
) -> Row:
    """Look at a bundle as whoever gets it would."""
    command = [str(python), "-I", str(bundle.path / "repro.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=out)
    script = str(done.returncode)
    if done.returncode != 1:
        script += f" ({' '.join((done.stdout + done.stderr).split())[-150:]})"
    feeds = read_arrays(bundle.path / "inputs.npz", bundle.record.inputs)
    finding = bundle.record.finding
    alone = issue_script(bundle.path)
    return Row(
        case.id,
        ",".join(finding.culprit) or "-",
        str(finding.symptom),
        finding.severity,
        *bundle.record.nodes,
        sum(a.size for a in feeds.values()),
        (bundle.path / "model.onnx").stat().st_size,
        checks,
        round(seconds, 1),
        still(bundle, asked, out),
        script,
        run_alone(alone),
        len(alone.splitlines()),
        bundle.record.fingerprint,
        bundle.note,
    )


def line(row: Row) -> str:
    """One row of the table."""
    text = f"{row.case:<34} {row.symptom:<16} {row.before:>5} {row.nodes:>3} {row.elements:>6}"
    text += f" {row.size_bytes / 1000:>6.1f} {row.checks:>5} {row.seconds:>6.1f}"
    text += f"  {row.kept if row.kept == 'yes' else 'NO'}  {row.script}"
    text += f"  {row.issue}/{row.lines}  {row.culprit}"
    remarks = [row.note] + ([row.kept] if row.kept != "yes" else [])
    return text + "".join(f"\n    {words}" for words in remarks if words)


def summarise(rows: Sequence[Row]) -> bool:
    """Print medians and what misses an aim; whether none does."""
    if not rows:
        print("no bundle was written")
        return False
    median = statistics.median
    print(
        f"\n{len(rows)} bundles, medians: {median(r.nodes for r in rows):g} nodes, "
        f"{median(r.elements for r in rows):g} elements, "
        f"{median(r.size_bytes for r in rows) / 1000:.1f} kB, "
        f"{median(r.checks for r in rows):g} checks, {median(r.seconds for r in rows):.1f} s"
    )
    print(
        f"largest: {max(r.nodes for r in rows)} nodes, {max(r.elements for r in rows)} elements, "
        f"{max(r.size_bytes for r in rows) / 1000:.1f} kB, {max(r.checks for r in rows)} checks, "
        f"{max(r.seconds for r in rows):.1f} s"
    )
    kept, ran = sum(r.kept == "yes" for r in rows), sum(r.script == "1" for r in rows)
    print(f"culprit and symptom kept: {kept} of {len(rows)}; scripts that exit 1: {ran}")
    alone = sum(r.issue == "1" for r in rows)
    lines = median(r.lines for r in rows)
    print(
        f"issues whose script alone exits 1: {alone} of {len(rows)}; "
        f"median {lines:g} lines, most {max(r.lines for r in rows)}"
    )
    groups = len({r.fingerprint for r in rows})
    print(f"{groups} distinct fingerprints")
    small = all(r.elements <= AIM_ELEMENTS and r.size_bytes <= AIM_BYTES for r in rows)
    few = median(r.nodes for r in rows) <= AIM_NODES
    return few and small and lines <= AIM_LINES and kept == ran == alone == len(rows)


def main() -> int:
    """Print one row per bundle, and the totals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", help="with manifest.json, or with models; or zoo:A,B")
    parser.add_argument("--pipeline", default="default", help="where there is no manifest")
    parser.add_argument("--optimizer", default="onnxoptimizer")
    parser.add_argument("--limit-to", default="", metavar="ID,ID", help="only these cases")
    parser.add_argument("--python", type=Path, help="an interpreter without optvet")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds for one step")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="keep the bundles in this folder")
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here")
    options = parser.parse_args()
    cases = cases_of(options.folder, options.optimizer, options.pipeline)
    wanted = {name for name in options.limit_to.split(",") if name}
    cases = [c for c in cases if not wanted or c.id in wanted]
    found = machine.environment()
    print(machine.describe(found), flush=True)
    print(f"\n{'case':<34} {'symptom':<16} before left elements kB checks s", end="")
    print(" kept script issue/lines culprit")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="optvet-bundles-") as scratch:
        python = options.python or fresh_python(Path(scratch) / "fresh", options.optimizer)
        out = options.out or Path(scratch)
        for case in cases:
            for row in run_case(
                case, options.optimizer, python, options.timeout, options.jobs, out
            ):
                rows.append(row)
                print(line(row), flush=True)
        met = summarise(rows)
        if options.twice:
            met = equal_again(rows, cases, options, python, Path(scratch)) and met
    if options.json:
        document = {"environment": found, "rows": [asdict(r) for r in rows]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if met else 1


def equal_again(
    rows: Sequence[Row],
    cases: Sequence[Case],
    options: argparse.Namespace,
    python: Path,
    scratch: Path,
) -> bool:
    """Reduce everything with another number of jobs; whether all fingerprints are the same."""
    jobs = 1 if options.jobs > 1 else 2
    again = [
        row
        for case in cases
        for row in run_case(
            case, options.optimizer, python, options.timeout, jobs, scratch / "again"
        )
    ]
    before = {(r.case, r.culprit, r.symptom, r.fingerprint) for r in rows}
    after = {(r.case, r.culprit, r.symptom, r.fingerprint) for r in again}
    print(f"equal with {jobs} jobs: {len(before & after)} of {len(before)} fingerprints")
    for row in sorted(before ^ after):
        print(f"    {' '.join(row)}")
    return before == after


if __name__ == "__main__":
    sys.exit(main())
