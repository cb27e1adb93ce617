"""Runs ``corpus.py`` against several versions of a library: one row per version.

``python benchmarks/versions.py FOLDER --versions 0.3.7,0.3.13,0.4.2``; without ``--versions`` all
that the manifest was measured with. Each version is installed without its dependencies into a
folder of its own, which PYTHONPATH then puts before what is installed; the environment itself stays
as it is. A version that does not work with the installed numpy gets numpy 1 beside it. One that
works with neither, or for which there is no wheel that fits this interpreter, is named and skipped.
Where the library is also the runtime, the reference is that version with optimization off.

Columns as in the totals of ``corpus.py``; below each row stand the cases that were missed, wrongly
blamed or falsely reported. Exit status 1 if any was.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import machine

COLUMNS = (
    "version    bugs found culprit symptom clean alarms applications inferences  wall_s longest_s"
)


_MOST_BESIDE = 3
"""Packages that are put beside a release at most."""

PROBES = {
    "onnxoptimizer": """
import onnxoptimizer
onnxoptimizer.get_available_passes()
""",
    "onnxconverter-common": "from onnxconverter_common import float16",
    "openvino": "import openvino\nopenvino.Core().available_devices",
    "onnxruntime": """
import numpy, onnx.parser, onnxruntime
text = '<ir_version: 7, opset_import: ["": 13]> g (float[1] x) => (float[1] y) { y = Identity(x) }'
model = onnx.parser.parse_model(text).SerializeToString()
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
session.run(None, {"x": numpy.ones(1, numpy.float32)})
""",
    "onnxscript": "import onnxscript.optimizer",
    "onnxsim": "import onnxsim\nonnxsim.simplify",
    "onnxslim": """
import onnx.parser, onnxslim
text = '<ir_version: 7, opset_import: ["": 13]> g (float[1] x) => (float[1] y) <float[1] w = {1}>'
onnxslim.slim(onnx.parser.parse_model(text + "{ y = Add(x, w) }"))
""",
}
"""What a version must be able to do beside the other packages that are installed."""


def prepare(library: str, version: str, target: Path) -> str:
    """Make the overlay ``target`` of one version that works; why there is none, or nothing."""
    if not target.exists() and (problem := install(f"{library}=={version}", target)):
        return problem
    # An old release may need an old numpy or onnx, or what the newest one needs no longer.
    problem = probe(library, target)
    for _ in range(_MOST_BESIDE):
        missing = re.search(r"No module named '(\w+)'", problem)
        of_onnx = re.search(r"module (named )?'onnx\b", problem)
        old = "onnx<1.18" if of_onnx else "numpy<2"
        requirement = missing[1] if missing else old
        name = requirement.partition("<")[0]
        if not problem or (target / name).exists() or install(requirement, target):
            break
        problem = probe(library, target)
    return problem


def install(requirement: str, target: Path) -> str:
    """Install one wheel, without what it needs, into ``target``; why it cannot be, or nothing."""
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--only-binary=:all:"]
    command += ["--quiet", "--disable-pip-version-check", "--target", str(target), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if "ERROR" in line]
    return "" if done.returncode == 0 else (lines[-1] if lines else done.stderr.strip()[-300:])


def probe(library: str, overlay: Path) -> str:
    """Why the version in ``overlay`` does not work, or nothing."""
    command = [sys.executable, "-c", PROBES[library]]
    done = subprocess.run(
        command, env=overlaid(overlay), capture_output=True, text=True, check=False
    )
    words = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
    return "" if done.returncode == 0 else words[-1]


def overlaid(overlay: Path | None) -> dict[str, str]:
    """This process's environment, with ``overlay`` before what is installed."""
    if overlay is None:
        return dict(os.environ)
    paths = [str(overlay), os.environ.get("PYTHONPATH", "")]
    return dict(os.environ) | {"PYTHONPATH": os.pathsep.join(p for p in paths if p)}


def versions_of(manifest: Mapping[str, Any]) -> list[str]:
    """Releases with which a manifest was measured, oldest first."""
    listed = set((manifest.get("meta") or {}).get("versions_tested") or ())
    for case in manifest["cases"]:
        listed |= {*(case.get("affected") or ()), *(case.get("not_affected") or ())}
    releases = [v for v in listed if v.replace(".", "").isdigit()]
    return sorted(releases, key=lambda v: [int(part) for part in v.split(".")])


def run_corpus(
    folder: Path, overlay: Path | None, optimizer: str, more: Sequence[str], timeout_s: float
) -> dict[str, Any]:
    """The document that ``corpus.py`` writes, or {"problem": why there is none}."""
    script = Path(__file__).with_name("corpus.py")
    with tempfile.TemporaryDirectory(prefix="optvet-versions-") as scratch:
        answer = Path(scratch) / "answer.json"
        command = [sys.executable, str(script), str(folder), "--optimizer", optimizer]
        command += ["--json", str(answer), *more]
        try:
            done = subprocess.run(
                command,
                env=overlaid(overlay),
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"problem": f"no answer after {timeout_s:g} s"}
        if not answer.exists():
            return {"problem": f"status {done.returncode}: {done.stderr.strip()[-500:]}"}
        return dict(json.loads(answer.read_text()))


def row(version: str, document: dict[str, Any]) -> str:
    """One line of the table."""
    if "problem" in document:
        return f"{version:<10} {document['problem']}"
    t = document["totals"]
    return (
        f"{version:<10} {t['bugs']:>4} {t['found']:>5} {t['culprit_right']:>7} "
        f"{t['symptom_right']:>7} {t['clean']:>5} {len(t['false_alarms']):>6} "
        f"{t['applications']:>12} {t['inferences']:>10} {t['wall_s']:>7} {t['longest_s']:>9}"
    )


def problems(document: dict[str, Any]) -> list[str]:
    """The rows that are not as they should be, in words."""
    bad = ("missed", "wrong culprit", "symptom", "false alarm", "crashed")
    return [
        f"{r['case']} ({r['mode']}): {r['state']}: {r['detail']}"
        for r in document.get("rows", ())
        if r["state"] in bad
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Install and run version after version."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--versions", metavar="V,V", help="default: all that the manifest names")
    parser.add_argument("--optimizer", default="onnxoptimizer", help="plugin, and library to vary")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one version")
    parser.add_argument("--keep", type=Path, help="folder for the overlays, to use them again")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "--modes", default="", help="only these modes of corpus.py (default, each, offline, …)"
    )
    options = parser.parse_args(arguments)
    if options.optimizer not in PROBES:
        parser.error(f"cannot vary {options.optimizer!r}; only {', '.join(PROBES)}")
    more = ["--modes", options.modes] if options.modes else []
    manifest = json.loads((options.folder / "manifest.json").read_text())
    versions = options.versions.split(",") if options.versions else versions_of(manifest)
    print(machine.describe(machine.environment()), flush=True)
    print(f"\n{COLUMNS}", flush=True)
    documents: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="optvet-overlay-") as scratch:
        for version in versions:
            overlay = (options.keep or Path(scratch)) / f"{options.optimizer}-{version}"
            if failed := prepare(options.optimizer, version, overlay):
                document: dict[str, Any] = {"problem": f"cannot be used: {failed}"}
            else:
                document = run_corpus(
                    options.folder, overlay, options.optimizer, more, options.timeout
                )
                got = document.get("optimizer", {}).get("version", version)
                if got != version:
                    document = {"problem": f"the overlay has version {got}"}
            documents[version] = document
            print(row(version, document), flush=True)
            for words in problems(document):
                print(f"           {words}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(documents, indent=1) + "\n")
    return int(any("problem" in d or problems(d) for d in documents.values()))


if __name__ == "__main__":
    sys.exit(main())
