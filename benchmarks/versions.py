"""Runs ``corpus.py`` against several versions of a library: one row per version.

``python benchmarks/versions.py FOLDER --versions 0.3.7,0.3.13,0.4.2``. Each version is installed
without its dependencies into a folder of its own, which PYTHONPATH then puts before what is
installed; the environment itself stays as it is. ``--also numpy==1.26.4`` puts another package
beside each, which releases of ONNX Runtime before 1.19 need. A version for which there is no wheel
that fits this interpreter is named and skipped. Columns as in the totals of ``corpus.py``; below
each row stand the cases that were missed, wrongly blamed or falsely reported. Exit status 1 if any
was.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import machine

COLUMNS = (
    "version    bugs found culprit symptom clean alarms applications inferences  wall_s longest_s"
)


def install(requirements: Sequence[str], target: Path) -> str:
    """Install ``requirements`` into ``target``; why that cannot be done, or nothing."""
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--only-binary=:all:"]
    command += ["--quiet", "--disable-pip-version-check", "--target", str(target)]
    done = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if "ERROR" in line]
    return "" if done.returncode == 0 else (lines[-1] if lines else done.stderr.strip()[-300:])


def run_corpus(
    folder: Path, overlay: Path | None, optimizer: str, more: Sequence[str], timeout_s: float
) -> dict[str, Any]:
    """The document that ``corpus.py`` writes, or {"problem": why there is none}."""
    script = Path(__file__).with_name("corpus.py")
    environment = dict(os.environ)
    if overlay is not None:
        paths = [str(overlay), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    with tempfile.TemporaryDirectory(prefix="optvet-versions-") as scratch:
        answer = Path(scratch) / "answer.json"
        command = [sys.executable, str(script), str(folder), "--optimizer", optimizer]
        command += ["--json", str(answer), *more]
        try:
            done = subprocess.run(
                command,
                env=environment,
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
    parser.add_argument("--versions", required=True, metavar="V,V")
    parser.add_argument("--optimizer", default="onnxoptimizer", help="plugin, and library to vary")
    parser.add_argument(
        "--also", action="append", default=[], metavar="PKG==V", help="install this beside each"
    )
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one version")
    parser.add_argument("--keep", type=Path, help="folder for the overlays, to use them again")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "--modes", default="", help="only these modes of corpus.py (default, each, offline, …)"
    )
    options = parser.parse_args(arguments)
    more = ["--modes", options.modes] if options.modes else []
    print(machine.describe(machine.environment()), flush=True)
    print(f"\n{COLUMNS}", flush=True)
    documents: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="optvet-overlay-") as scratch:
        for version in options.versions.split(","):
            overlay = (options.keep or Path(scratch)) / f"{options.optimizer}-{version}"
            wanted = [f"{options.optimizer}=={version}", *options.also]
            failed = "" if overlay.exists() else install(wanted, overlay)
            if failed:
                document: dict[str, Any] = {"problem": f"cannot be installed: {failed}"}
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
