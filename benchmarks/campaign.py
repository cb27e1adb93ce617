"""What a campaign costs beyond its jobs, and what a second processor brings.

Vets trained models of the zoo with several optimizers, each time in a store and cache of its own:

1. one after the other in this process, without a store: the bare sum
2. as a campaign with one job at a time: the overhead
3. as a campaign with two: the scaling
4. the last once more: answered from the store

and a campaign of jobs that do nothing, for the processor time that one job costs by itself. Run it
on a machine that does nothing else: ``python benchmarks/campaign.py``.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine

from optvet import VetRequest
from optvet.engine.api import vet_request
from optvet.engine.campaign import add_campaign, open_store
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


def main() -> None:
    """Measure, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--larger", action="store_true", help="networks of a few megabytes too")
    models = MODELS + (LARGER if parser.parse_args().larger else ())
    amount = len(models) * len(OPTIMIZERS)
    print(machine.describe(machine.environment()), flush=True)
    with machine.as_installed(), tempfile.TemporaryDirectory(prefix="optvet-benchmark-") as folder:
        place = Path(folder)
        bare_s = bare(place, models)
        print(f"{amount} jobs, bare sum          {bare_s:7.1f} s")
        one_s = campaign(place, models, jobs=1)
        words = f"{one_s / bare_s - 1:+.0%} over the bare sum (at most +15 %)"
        print(f"{amount} jobs, campaign, 1 job   {one_s:7.1f} s  {words}")
        two_s = campaign(place, models, jobs=2)
        words = f"{one_s / two_s:.2f} times as fast as 1 (at least 1.7)"
        print(f"{amount} jobs, campaign, 2 jobs  {two_s:7.1f} s  {words}")
        again_s = campaign(place, models, jobs=2, keep=True)
        print(f"{amount} jobs, from the store    {again_s:7.1f} s  (at most 5)")
        cpu_s = bookkeeping(place / "empty")
        print(f"processor time of a job's bookkeeping {1000 * cpu_s:.1f} ms (at most 20)")


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
    words = ["campaign", "run", file, "--store", store, "--jobs", jobs, "--cache-dir", cache, "-q"]
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "optvet_start", *map(str, words)],
        stdout=subprocess.DEVNULL,
        env=dict(os.environ),
    )
    took = time.perf_counter() - started
    if done.returncode not in (0, 1, 4):
        sys.exit(f"the campaign failed with exit code {done.returncode}")
    return took


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


if __name__ == "__main__":
    main()
