"""What deaths cost a hunt: CPU time of a worker that foreign code kills, and what a SIGKILL loses.

crashes    The same models judged with an optimizer that does nothing, and with one that has a pass
           besides that ends its process by a segmentation fault. What is suspected is not vetted.
           The difference in CPU time of all processes, for each death; models without a result.
kills      A hunt in ONNX Optimizer, once as a whole, and once killed with all its processes again
           and again, each time at another moment, and gone on with. Both must report the same.

    python benchmarks/hunt_deaths.py [--models N] [--kills N]

Exit status 1 if a model is lost or the two hunts differ.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import machine

from optvet.engine.discovery import Plugins
from optvet.engine.hunt.confirm import Confirmer
from optvet.engine.hunt.run import hunt
from optvet.spec.hunt import HuntRequest
from optvet.spec.records import HuntSummary
from optvet.testing import Planted

_MODELS_OF_KILLS = 400


def main() -> None:
    """Both parts, and whether anything was lost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=3000)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    print(machine.describe(machine.environment()), flush=True)
    with machine.as_installed(), tempfile.TemporaryDirectory(prefix="optvet-deaths-") as folder:
        lost = crashes(options.models, Path(folder))
        lost |= kills(options.kills, Path(folder))
    sys.exit(lost)


def crashes(models: int, folder: Path) -> bool:
    """Print what a crash costs; whether a model is lost."""
    judged(models, folder / "first", "keep_01")  # gathers the fragments
    plain, _ = judged(models, folder / "plain", "keep_01")
    deadly, summary = judged(models, folder / "deadly", "keep_01", "segfault")
    deaths = max(summary.deaths, 1)
    lost = models - summary.candidates
    print(
        f"crashes: {summary.candidates} models, {summary.deaths} deaths, {lost} models lost; "
        f"{plain:.1f} CPU s without, {deadly:.1f} with: {(deadly - plain) / deaths * 1e3:.1f} ms "
        "of CPU time for each death",
        flush=True,
    )
    return lost > 0


def judged(models: int, out: Path, *passes: str) -> tuple[float, HuntSummary]:
    """CPU seconds of all processes of a hunt that vets nothing, and its summary."""
    planted = Planted(default=passes, offered=passes)
    plugins = Plugins().register("optimizer", planted)
    request = HuntRequest(
        optimizer="planted", out=out, budget=str(models), jobs=1, cache_dir=out.parent / "cache"
    )
    before = _cpu_s()
    with mock.patch.object(Confirmer, "confirm", return_value=[]):
        summary = hunt(request, plugins)
    return _cpu_s() - before, summary


def _cpu_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def kills(count: int, folder: Path) -> bool:
    """Print whether a hunt that is killed ``count`` times differs from one that is not."""
    _run(folder / "whole").wait()
    whole = _findings(folder / "whole")
    moments = random.Random(0)
    resumed = killed = 0
    while killed < count:
        process = _run(folder / "cut", resume=(folder / "cut" / "hunt.sqlite").exists())
        try:
            process.wait(moments.uniform(1, 6))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            killed += 1
        else:
            break
        resumed += 1
    _run(folder / "cut", resume=(folder / "cut" / "hunt.sqlite").exists()).wait()
    cut = _findings(folder / "cut")
    print(
        f"kills: {killed} by SIGKILL, {resumed} resumed; {whole.candidates} models and "
        f"{len(whole.findings)} findings without, {cut.candidates} and {len(cut.findings)} with, "
        f"{'the same' if _same(whole, cut) else 'NOT the same'}"
    )
    return not _same(whole, cut)


def _run(out: Path, *, resume: bool = False) -> subprocess.Popen[bytes]:
    command = [str(Path(sys.executable).parent / "optvet"), "hunt", "--quiet"]
    command += ["--optimizer", "onnxoptimizer", "--out", str(out)]
    command += ["--budget", str(_MODELS_OF_KILLS)]
    command += ["--resume"] if resume else []
    nothing = subprocess.DEVNULL
    return subprocess.Popen(command, stdout=nothing, stderr=nothing, start_new_session=True)


def _findings(out: Path) -> HuntSummary:
    return HuntSummary.model_validate_json((out / "hunt.json").read_text())


def _same(one: HuntSummary, other: HuntSummary) -> bool:
    alike = {"seconds": 0.0}
    return one.model_copy(update=alike) == other.model_copy(update=alike)


if __name__ == "__main__":
    main()
