"""What a campaign costs beyond its jobs, and what a second processor brings.

The parts:

study       A campaign file, ``studies/offline.toml``, each time in a store and cache of its own:
            with two jobs at a time, cold (the models of the zoo are made too), and repeated; then
            the bare sum of its trials, one after the other in this process and without a store; and
            with one job at a time: the overhead, and the scaling. ``--cold`` leaves the last two
            out. Processor time stands beside. Modules are compiled before, as those of an installed
            package are.
small       The same of tiny models, whose jobs take a fraction of a second each, so that start-up
            of the command and of its workers tells: the most that a campaign costs. Also the bare
            sum in two processes at once, which share nothing: how much two processors of this
            machine do in the time of one.
bookkeeping What claiming, starting and answering a job that does nothing takes here.
deaths      60 jobs of which every 20th aborts, 5 hang and 5 eat memory: how many are lost, whether
            each is blamed on its pass and its stage, and the processor time of the campaign's own
            process per job, beyond that of a run that is answered from the store.
many        What storing, resuming and reporting thousands of tiny jobs takes: ``many_jobs.py``.
ray         The same answers from a Ray cluster that loses a node: ``on_ray.py``.

Run it on a machine that does nothing else: ``python benchmarks/campaign.py``. Shorter:
``--parts deaths --jobs 20``, ``--parts study --study FILE``.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import machine
import onnx.parser
from many_jobs import many
from on_ray import on_ray

from optvet import VetRequest
from optvet.engine.campaign import add_campaign, find_campaign, open_store, trials
from optvet.engine.campaign.file import read_campaign
from optvet.engine.campaign.leases import claim, join, leave, this_process
from optvet.engine.campaign.plan import Job, Plan, requests_of
from optvet.engine.campaign.store_answers import record
from optvet.engine.discovery import Plugins
from optvet.engine.vetting import vet_request
from optvet.engine.work.sandbox import keep_servers
from optvet.engine.work.sandbox.worker import PR_SET_CHILD_SUBREAPER
from optvet.spec.records import ErrorRecord
from optvet.spec.records.error import ErrorSource

OPTIMIZERS = ("onnxoptimizer", "onnxruntime", "onnxsim", "onnxslim", "onnxscript")
MODELS = ("zoo:digits-cnn", "zoo:digits-mlp", "zoo:diabetes-mlp", "zoo:wine-logreg")
LARGER = ("zoo:shufflenet", "zoo:squeezenet", "zoo:shufflenet-ir3", "zoo:squeezenet-ir3")
EMPTY_JOBS = 500
PARTS = ("study", "small", "bookkeeping", "deaths", "many", "ray")
ROOT = Path(__file__).resolve().parents[1]
DEATHS = {"abort": "optimizer-abort", "hang": "timeout", "eat": "out-of-memory"}
"""What the planted optimizer does to its process, and the symptom of that."""


def main() -> None:
    """Measure, and print what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS[:4])
    parser.add_argument("--larger", action="store_true", help="networks of a few megabytes too")
    parser.add_argument("--models", nargs="+", metavar="zoo:NAME", help="of the part small")
    parser.add_argument("--jobs", type=int, default=60, help="of the parts deaths and ray")
    parser.add_argument(
        "--amounts", type=int, nargs="+", default=[1000, 10_000], help="of the part many"
    )
    parser.add_argument("--study", type=Path, default=ROOT / "studies" / "offline.toml")
    parser.add_argument("--cold", action="store_true", help="of the study: two jobs alone")
    chosen = parser.parse_args()
    print(machine.describe(machine.environment()), flush=True)
    adopt_orphans()
    with machine.as_installed(), tempfile.TemporaryDirectory(prefix="optvet-benchmark-") as folder:
        place = Path(folder)
        if "study" in chosen.parts:
            study(place / "study", chosen.study, cold_only=chosen.cold)
        if "small" in chosen.parts:
            usual = MODELS + (LARGER if chosen.larger else ())
            small(place, tuple(chosen.models or usual))
        if "bookkeeping" in chosen.parts:
            cpu_s = bookkeeping(place / "empty")
            print(f"bookkeeping of a job, processor time {1000 * cpu_s:5.1f} ms (at most 20)")
        if "deaths" in chosen.parts:
            deaths(place / "deaths", chosen.jobs)
        if "many" in chosen.parts:
            many(place / "many", chosen.amounts)
        if "ray" in chosen.parts:
            on_ray(place / "ray", chosen.jobs)


@dataclass(frozen=True)
class Took:
    """What a command took, seconds.

    Attributes:
        wall_s: From its start to its end.
        own_s: Processor time of its own process.
        all_s: Processor time of all its processes.
    """

    wall_s: float
    own_s: float
    all_s: float

    def __str__(self) -> str:
        return f"{self.wall_s:7.1f} s  {self.all_s:7.1f} s CPU"


def adopt_orphans() -> None:
    """Become the parent of processes whose own has ended, so that their time can be told."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children_s() -> float:
    """Processor time of all processes that this one started, and that these started."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def small(place: Path, models: tuple[str, ...]) -> None:
    """The overhead over the bare sum, and what a second job brings."""
    amount = len(models) * len(OPTIMIZERS)
    campaign(place, models[:1], jobs=1)  # compiles modules
    plain = in_processes(place, models, 1)
    print(f"{amount} jobs, bare sum          {plain}", flush=True)
    both = in_processes(place, models, 2)
    words = f"two processors do {2 * plain.wall_s / both.wall_s:.2f} times as much as one"
    print(f"{amount} jobs, twice at once     {both}  {words}", flush=True)
    one = campaign(place, models, jobs=1)
    words = f"{one.wall_s / plain.wall_s - 1:+.0%} over the bare sum"
    print(f"{amount} jobs, campaign, 1 job   {one}  {words}", flush=True)
    two = campaign(place, models, jobs=2)
    words = f"{one.wall_s / two.wall_s:.2f} times as fast as 1"
    print(f"{amount} jobs, campaign, 2 jobs  {two}  {words}", flush=True)
    again = campaign(place, models, jobs=2, keep=True)
    print(f"{amount} jobs, from the store    {again}  (at most 5)", flush=True)


def in_processes(place: Path, models: tuple[str, ...], count: int) -> Took:
    """What ``bare`` takes in ``count`` processes at once, each with its own cache; the mean."""
    asked = [(model, optimizer) for optimizer in OPTIMIZERS for model in models]
    caches = [place / f"bare-{n}" for n in range(count)]
    for cache in caches:
        fetch(models, cache)
    took = at_once([partial(bare, asked, cache) for cache in caches])
    for cache in caches:
        shutil.rmtree(cache)
    return took


def at_once(works: Sequence[Callable[[], object]]) -> Took:
    """What each takes in a process of its own, the mean."""
    before = children_s()
    with tempfile.TemporaryDirectory(prefix="optvet-benchmark-") as folder:
        files, pids = [Path(folder) / str(n) for n in range(len(works))], []
        for work, file in zip(works, files, strict=True):
            pids.append(os.fork())
            if pids[-1] == 0:
                keep_servers()  # As a campaign's worker does.
                started = time.perf_counter()
                work()
                file.write_text(repr(time.perf_counter() - started))
                os._exit(0)  # The servers that it kept end with it.
        for pid in pids:
            os.waitpid(pid, 0)
        wall_s = sum(float(file.read_text()) for file in files) / len(works)
    return Took(wall_s, 0.0, children_s() - before)


def bare(asked: Sequence[tuple[str, str]], cache: Path) -> None:
    """All vets, one after the other, by one process that is warm."""
    plugins = Plugins()
    for model, optimizer in asked:
        request = VetRequest(model=model, optimizer=optimizer, limit=1, jobs=1, cache_dir=cache)
        vet_request(request, plugins)


def bare_study(file: Path, cache: Path) -> None:
    """All vets of a campaign file, one after the other, by one process that is warm."""
    plugins = Plugins()
    source = read_campaign(file, plugins)
    for request in requests_of(source, plugins, {"cache_dir": cache}):
        assert isinstance(request, VetRequest), "the bare sum is of vets"
        vet_request(request, plugins)


def fetch(models: tuple[str, ...], cache: Path) -> None:
    """Make the models beforehand: what is measured is vetting."""
    plugins = Plugins()
    for model in models:
        scheme, _, name = model.partition(":")
        (cache / "models").mkdir(parents=True, exist_ok=True)
        plugins.model_source(scheme).fetch(name, cache / "models")


def campaign(place: Path, models: tuple[str, ...], *, jobs: int, keep: bool = False) -> Took:
    """What ``optvet campaign run`` takes."""
    file, store, cache = place / "c.toml", place / f"store-{jobs}", place / f"cache-{jobs}"
    if not keep:
        shutil.rmtree(store, ignore_errors=True)
        fetch(models, cache)
    file.write_text(f"models = {list(models)}\noptimizers = {list(OPTIMIZERS)}\n[vet]\nlimit = 1\n")
    return command(file, store, cache, jobs)


def command(
    file: Path, store: Path, cache: Path, jobs: int, *models: str, **environment: str
) -> Took:
    """What ``optvet campaign run`` takes, of the file's models or these."""
    words = ["campaign", "run", file, "--store", store, "--jobs", jobs, "--cache-dir", cache, "-q"]
    words += [word for model in models for word in ("--models", model)]
    before = children_s()
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
    return Took(took_s, ticks / os.sysconf("SC_CLK_TCK"), children_s() - before)


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
    took = command(file, store, place / "cache", 2, PYTHONPATH=path)
    again = command(file, store, place / "cache", 2, PYTHONPATH=path)
    answered, right = judged(store)
    kinds = Counter(name.split("_")[0] for name in names)
    print(f"{amount} jobs ({', '.join(f'{n} {kind}' for kind, n in kinds.items())}) {took}")
    print(f"  lost {amount - answered} (0), blamed on pass and stage {right} of {amount}")
    each_ms = 1000 * (took.own_s - again.own_s) / amount
    print(f"  processor time of the campaign's process {each_ms:.1f} ms a job (at most 20)")


def _planted() -> Any:
    """The module of an optimizer that does to its process what the model's name says."""
    path = ROOT / "tests" / "engine" / "campaign" / "deadly.py"
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


def study(place: Path, file: Path, *, cold_only: bool) -> None:
    """A campaign file, cold and repeated; its bare sum, and with one job at a time."""
    place.mkdir()
    command(file.resolve(), place / "first", place / "cache-first", 1, MODELS[0])
    cold = command(file.resolve(), place / "store", place / "cache", 2)
    print(f"{file.name}, cold     {cold}  (at most 180 for studies/offline.toml)", flush=True)
    again = command(file.resolve(), place / "store", place / "cache", 2)
    print(f"{file.name}, repeated {again}  (at most 5)", flush=True)
    if not cold_only:
        plain = at_once([partial(bare_study, file.resolve(), place / "cache-0")])
        print(f"{file.name}, bare sum {plain}", flush=True)
        shutil.rmtree(place / "cache-0")
        one = command(file.resolve(), place / "store-1", place / "cache-1", 1)
        words = f"{one.wall_s / plain.wall_s - 1:+.0%} over the bare sum (at most +15 %)"
        print(f"{file.name}, 1 job    {one}  {words}", flush=True)
        words = f"{one.wall_s / cold.wall_s:.2f} times as fast as 1 (at least 1.7)"
        print(f"{file.name}, 2 jobs   {cold}  {words}", flush=True)


if __name__ == "__main__":
    main()
