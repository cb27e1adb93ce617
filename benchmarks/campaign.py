"""What a campaign costs beyond its jobs, and what a second processor brings.

The parts:

scaling     Trained models of the zoo under several optimizers, each time in a store and cache of
            its own: one after the other in this process, without a store (the bare sum of the
            trials); as a campaign with one job at a time (the overhead); with two (the scaling);
            and the last once more, answered from the store.
bookkeeping What claiming, starting and answering a job that does nothing takes here.
deaths      60 jobs of which every 20th aborts, 5 hang and 5 eat memory: how many are lost, whether
            each is blamed on its pass and its stage, and the processor time of the campaign's own
            process per job, beyond that of a run that is answered from the store.
study       A campaign file, ``studies/offline.toml``, cold (the models of the zoo are made too) and
            repeated.

Run it on a machine that does nothing else: ``python benchmarks/campaign.py``. Shorter:
``--parts deaths --jobs 20``, ``--parts study --study FILE``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import machine
import onnx.parser

from optvet import VetRequest
from optvet.engine.api import vet_request
from optvet.engine.campaign import add_campaign, find_campaign, open_store, trials
from optvet.engine.campaign.answers import record
from optvet.engine.campaign.leases import claim, join, leave, this_process
from optvet.engine.campaign.plan import Job, Plan
from optvet.engine.discovery import Plugins
from optvet.engine.work.sandbox import keep_servers
from optvet.spec.records import ErrorRecord
from optvet.spec.records.error import ErrorSource

OPTIMIZERS = ("onnxoptimizer", "onnxruntime", "onnxsim", "onnxslim", "onnxscript")
MODELS = ("zoo:digits-cnn", "zoo:digits-mlp", "zoo:diabetes-mlp", "zoo:wine-logreg")
LARGER = ("zoo:shufflenet", "zoo:squeezenet", "zoo:shufflenet-ir3", "zoo:squeezenet-ir3")
EMPTY_JOBS = 500
PARTS = ("scaling", "bookkeeping", "deaths", "study")
ROOT = Path(__file__).resolve().parents[1]
DEATHS = {"abort": "optimizer-abort", "hang": "timeout", "eat": "out-of-memory"}
"""What the planted optimizer does to its process, and the symptom of that."""


def main() -> None:
    """Measure, and print what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--larger", action="store_true", help="networks of a few megabytes too")
    parser.add_argument("--jobs", type=int, default=60, help="of the part deaths")
    parser.add_argument("--study", type=Path, default=ROOT / "studies" / "offline.toml")
    chosen = parser.parse_args()
    print(machine.describe(machine.environment()), flush=True)
    with machine.as_installed(), tempfile.TemporaryDirectory(prefix="optvet-benchmark-") as folder:
        place = Path(folder)
        if "scaling" in chosen.parts:
            scaling(place, MODELS + (LARGER if chosen.larger else ()))
        if "bookkeeping" in chosen.parts:
            cpu_s = bookkeeping(place / "empty")
            print(f"bookkeeping of a job, processor time {1000 * cpu_s:5.1f} ms (at most 20)")
        if "deaths" in chosen.parts:
            deaths(place / "deaths", chosen.jobs)
        if "study" in chosen.parts:
            study(place / "study", chosen.study)


def scaling(place: Path, models: tuple[str, ...]) -> None:
    """The overhead over the bare sum, and what a second job brings."""
    amount = len(models) * len(OPTIMIZERS)
    bare_s = bare(place, models)
    print(f"{amount} jobs, bare sum          {bare_s:7.1f} s", flush=True)
    one_s = campaign(place, models, jobs=1)
    words = f"{one_s / bare_s - 1:+.0%} over the bare sum (at most +15 %)"
    print(f"{amount} jobs, campaign, 1 job   {one_s:7.1f} s  {words}", flush=True)
    two_s = campaign(place, models, jobs=2)
    words = f"{one_s / two_s:.2f} times as fast as 1 (at least 1.7)"
    print(f"{amount} jobs, campaign, 2 jobs  {two_s:7.1f} s  {words}", flush=True)
    again_s = campaign(place, models, jobs=2, keep=True)
    print(f"{amount} jobs, from the store    {again_s:7.1f} s  (at most 5)", flush=True)


def bare(place: Path, models: tuple[str, ...]) -> float:
    """Seconds of all vets, one after the other, by one process that is warm."""
    keep_servers()  # As a campaign's worker does.
    plugins = Plugins()
    cache = place / "cache-bare"
    fetch(models, cache)
    started = time.perf_counter()
    for optimizer in OPTIMIZERS:
        for model in models:
            request = VetRequest(model=model, optimizer=optimizer, limit=1, jobs=1, cache_dir=cache)
            vet_request(request, plugins)
    return time.perf_counter() - started


def fetch(models: tuple[str, ...], cache: Path) -> None:
    """Make the models beforehand: what is measured is vetting."""
    plugins = Plugins()
    for model in models:
        scheme, _, name = model.partition(":")
        (cache / "models").mkdir(parents=True, exist_ok=True)
        plugins.model_source(scheme).fetch(name, cache / "models")


def campaign(place: Path, models: tuple[str, ...], *, jobs: int, keep: bool = False) -> float:
    """Seconds of ``optvet campaign run``, from its start to its end."""
    file, store, cache = place / "c.toml", place / f"store-{jobs}", place / f"cache-{jobs}"
    if not keep:
        shutil.rmtree(store, ignore_errors=True)
        fetch(models, cache)
    file.write_text(f"models = {list(models)}\noptimizers = {list(OPTIMIZERS)}\n[vet]\nlimit = 1\n")
    return command(file, store, cache, jobs)[0]


def command(
    file: Path, store: Path, cache: Path, jobs: int, **environment: str
) -> tuple[float, float]:
    """Seconds of ``optvet campaign run``, and processor seconds of its own process."""
    words = ["campaign", "run", file, "--store", store, "--jobs", jobs, "--cache-dir", cache, "-q"]
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "optvet_start", *map(str, words)],
        stdout=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    # Looked at before it is reaped: what is told afterwards includes its workers.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    took_s = time.perf_counter() - started
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    if process.wait() not in (0, 1, 4):
        sys.exit(f"the campaign failed with exit code {process.returncode}")
    return took_s, ticks / os.sysconf("SC_CLK_TCK")


def bookkeeping(place: Path) -> float:
    """Processor seconds that claiming, starting and answering one job takes here."""
    jobs = tuple(
        Job(f"{n:04}", f"{n:04}", VetRequest(model=f"{n}.onnx"), "", {}) for n in range(EMPTY_JOBS)
    )
    source = ErrorSource(source="m")
    answer = ErrorRecord(
        schema="optvet.error/1", model=source, error="InputError", message="no", exit_code=2
    )
    with open_store(place, create=True) as store:
        found = add_campaign(store, Plan("empty", "", jobs, {"fail_on": []}))
        owner = this_process()
        join(store, owner)
        before = resource.getrusage(resource.RUSAGE_SELF)
        while (key := claim(store, found.id, owner)) is not None:
            record(store, owner, key, answer, 0.0)
        after = resource.getrusage(resource.RUSAGE_SELF)
        leave(store, owner)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent / EMPTY_JOBS


def deaths(place: Path, amount: int) -> None:
    """Jobs that die: none is lost, and what each costs the campaign's own process."""
    deadly = _planted()
    names = [f"sound_{n}" for n in range(amount)]
    names[::20] = [f"abort_{n}" for n in range(0, amount, 20)]
    fifth = min(5, amount // 12)
    names[5 : 5 + fifth] = [f"hang_{n}" for n in range(fifth)]
    names[-fifth - 1 : -1] = [f"eat_{n}" for n in range(fifth)]
    place.mkdir()
    (place / "models").mkdir()
    for number, name in enumerate(names):
        text = f'<ir_version: 8, opset_import: ["": 17]> {name} (float[{number + 2}] x) => '
        model = onnx.parser.parse_model(f"{text}(float[{number + 2}] y) {{ y = Relu(x) }}")
        onnx.save(model, place / "models" / f"{number:04}-{name}.onnx")
    deadly.install(place / "plugins")
    file, store = place / "c.toml", place / "store"
    file.write_text(
        'models = ["models/"]\noptimizers = ["deadly"]\n'
        '[vet]\nlimit = 1\ntimeout = 4\nmemory = "512M"\n'
    )
    path = f"{place / 'plugins'}:{os.environ.get('PYTHONPATH', '')}"
    alone = place / "alone.toml"
    alone.write_text(file.read_text().replace('"models/"', f'"models/*-{names[-1]}.onnx"'))
    command(alone, place / "first", place / "cache", 2, PYTHONPATH=path)  # compiles modules
    took_s, own_s = command(file, store, place / "cache", 2, PYTHONPATH=path)
    _, again_s = command(file, store, place / "cache", 2, PYTHONPATH=path)
    answered, right = judged(store)
    kinds = Counter(name.split("_")[0] for name in names)
    print(f"{amount} jobs ({', '.join(f'{n} {kind}' for kind, n in kinds.items())}) {took_s:.1f} s")
    print(f"  lost {amount - answered} (0), blamed on pass and stage {right} of {amount}")
    each_ms = 1000 * (own_s - again_s) / amount
    print(f"  processor time of the campaign's process {each_ms:.1f} ms a job (at most 20)")


def _planted() -> Any:
    """The module of an optimizer that does to its process what the model's name says."""
    path = ROOT / "tests" / "campaign" / "deadly.py"
    spec = importlib.util.spec_from_file_location("deadly", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def judged(folder: Path) -> tuple[int, int]:
    """How many jobs have an answer, and how many the one that their model's name says."""
    answered = right = 0
    with open_store(folder) as store:
        for trial in trials(store, find_campaign(store)):
            if trial.result is None:
                continue
            answered += 1
            faults = [f for f in trial.result.findings if f.severity == "fault"]
            told = [(str(f.symptom), f.stage, f.culprit) for f in faults]
            symptom = DEATHS.get(Path(trial.model).stem.split("-")[1].split("_")[0])
            right += told == ([(symptom, "build", ["strike"])] if symptom else [])
    return answered, right


def study(place: Path, file: Path) -> None:
    """A campaign file, cold and repeated."""
    place.mkdir()
    for name, aim in (("cold", "at most 180 for studies/offline.toml"), ("repeated", "at most 5")):
        took_s, _ = command(file.resolve(), place / "store", place / "cache", 2)
        print(f"{file.name}, {name:8} {took_s:7.1f} s  ({aim})", flush=True)


if __name__ == "__main__":
    main()
