"""What optvet runs in, and what is wrong with it: checks that return values.

Foreign libraries are imported in workers only, since one that is broken may well kill its process.
Nothing here changes anything but a probe file in the cache folder.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from pydantic import Field

from optvet.engine import packages
from optvet.engine.discovery import Loaded
from optvet.engine.examine import describe
from optvet.engine.extras import canonical, missing_extra, wanted_extra
from optvet.engine.packages import Collision, name_of
from optvet.engine.sandbox import Limits, Sandbox
from optvet.spec.records import Record

Status = Literal["ok", "absent", "warning", "broken"]
STATUSES: tuple[Status, ...] = ("broken", "warning", "absent", "ok")
"""From the worst."""

SELF = "optvet"
FREE_BYTES = 1 << 30
IMPORT_S = 120.0
_FEATURES = re.compile(r"^(avx|fma$|f16c$|amx|sse4_2$|asimd|sve|bf16$|i8mm$)")
_MODULES = {
    "apache-tvm": "tvm",
    "apache-tvm-ffi": "tvm_ffi",
    "nvidia-ml-py": "pynvml",
    "pillow": "PIL",
}
"""Modules that are not named like their distribution."""
_ALSO = ("apache-tvm-ffi", "ml-dtypes", "onnx-ir", "onnxruntime-gpu", "protobuf", "torchvision")
"""Not required by optvet, but decisive for what is."""
_NOT_IMPORTED = frozenset({"onnxruntime-gpu", "protobuf"})
_KNOWN_BAD = {
    ("apache-tvm-ffi", "0.1.15.post2"): (
        "TVM crashes when a module is saved or pickled",
        "pip install apache-tvm-ffi==0.1.14.post0",
    ),
}
_SHADOWS = ("numpy", "onnx", "onnxoptimizer", "onnxruntime", "openvino", "torch", "tvm", "tvm_ffi")
"""A folder of this name where a program is started may be taken for the library."""
_WHEELS = ("onnxruntime", "onnxruntime-gpu")
"""Two distributions of one module; the second can do all that the first can."""


class Check(Record):
    """One thing that was looked at.

    ``cure`` is what to do, a command where there is one; empty if all is well.
    """

    name: str
    status: Status
    message: str
    cure: str = ""


class Diagnosis(Record):
    """All that was found out; ``libraries`` maps distributions to versions, None if absent."""

    schema_: Literal["optvet.doctor/1"] = Field("optvet.doctor/1", alias="schema")
    environment: dict[str, str]
    libraries: dict[str, str | None]
    checks: list[Check]

    @property
    def broken(self) -> bool:
        """Whether something does not work that should."""
        return any(c.status == "broken" for c in self.checks)


def diagnose(
    plugins: Sequence[Loaded],
    cache: Path,
    folder: Path,
    *,
    installed: Sequence[Distribution] | None = None,
    progress: Callable[[str, int, int | None], None] = lambda text, done, total: None,
) -> Diagnosis:
    """Look at everything; takes seconds, since every library is imported once.

    Args:
        plugins: What was found, broken ones included.
        cache: The cache folder.
        folder: Where programs are started: the working directory.
        installed: Distributions to look at; all that Python finds by default.
        progress: Told what is being looked at.
    """
    found = list(distributions()) if installed is None else list(installed)
    names = concerned(found)
    versions = {name_of(d): d.version for d in reversed(found)}
    libraries = {name: versions.get(name) for name in sorted(names - {SELF})}
    progress("packages", 0, None)
    checks = [
        *check_wheels(packages.collisions(found, names), versions),
        *check_duplicates(packages.duplicates(found, names)),
        *check_usurpers(packages.usurpers(found, _own_modules(found), SELF)),
        *check_requirements(packages.unmet(found, names & versions.keys()), versions),
        *check_known(versions),
        *check_shadows(folder),
    ]
    limits = Limits(IMPORT_S, 64 << 30)
    jobs = min(len(os.sched_getaffinity(0)), 4)
    with Sandbox(jobs=jobs, limits=limits, preload=("numpy",)) as sandbox:
        progress("sandbox", 0, None)
        checks.append(check_sandbox(sandbox))
        if checks[-1].status != "broken":
            checks += check_imports(sandbox, libraries, progress)
            progress("providers", 0, None)
            told = {c.cure for c in checks if c.status == "broken"}
            checks += [c for c in check_providers(sandbox, versions) if c.cure not in told]
    checks += check_plugins(plugins)
    checks.append(check_cache(cache))
    checks = [_for_installer(c, found) for c in checks]
    ordered = sorted(checks, key=lambda c: STATUSES.index(c.status))
    return Diagnosis(
        schema="optvet.doctor/1",
        environment=environment(),
        libraries=libraries,
        checks=ordered,
    )


def _for_installer(check: Check, installed: Iterable[Distribution]) -> Check:
    """Cures as commands of uv, where that installed optvet: it need not bring pip."""
    ours = next((d for d in installed if name_of(d) == SELF), None)
    if ours is None or (ours.read_text("INSTALLER") or "").strip() != "uv":
        return check
    return check.model_copy(update={"cure": re.sub(r"\bpip (?=\w*install)", "uv pip ", check.cure)})


def concerned(installed: Iterable[Distribution]) -> set[str]:
    """optvet, and what it requires, with all extras but those for its own development."""
    names = {SELF, *_ALSO}
    for distribution in installed:
        if name_of(distribution) == SELF:
            for line in distribution.requires or ():
                name = canonical(re.split(r"[^\w.-]", line.strip(), maxsplit=1)[0])
                if not re.search(r"extra\s*==\s*['\"]dev['\"]", line):
                    names.add(name)
    return names


def _own_modules(installed: Iterable[Distribution]) -> set[str]:
    modules = {SELF}
    for distribution in installed:
        if name_of(distribution) == SELF:
            points = distribution.entry_points
            modules |= {p.value.partition(":")[0] for p in points if p.group == SELF}
    return modules


# --- the machine ---------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """Python, system, processor and memory."""
    model, features = _processor()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    usable = len(os.sched_getaffinity(0))
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "processor": f"{model or platform.machine()}, {usable} of {os.cpu_count()} cores usable",
        "features": " ".join(features) or "unknown",
        "memory": f"{total / (1 << 30):.1f} GiB",
    }


def _processor() -> tuple[str, list[str]]:
    """Model name and the features that kernels are chosen by."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "", []
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    features = [f for f in flags[1].split() if _FEATURES.match(f)] if flags else []
    return (model[1] if model else ""), sorted(features)


# --- packages ------------------------------------------------------------------------------------


def check_wheels(found: Iterable[Collision], versions: Mapping[str, str]) -> list[Check]:
    """Distributions that write the same files; of ONNX Runtime's two, the larger must have won."""
    checks, seen = [], set[tuple[str, str]]()
    for collision in found:
        seen.add(collision.names)
        both = " and ".join(
            f"{n} {v}" for n, v in zip(collision.names, collision.versions, strict=True)
        )
        whose = collision.winner
        files = sum(collision.on_disk)
        told = f"those of {whose} are in place" if whose else "they are mixed"
        message = f"{both} both own {collision.example}"
        message += f" and {files - 1} files more; {told}" if files > 1 else f"; {told}"
        if collision.names != _WHEELS:
            cure = (
                f"uninstall one of them, then: pip install --force-reinstall {collision.names[0]}"
            )
            checks.append(Check(name="packages", status="warning", message=message, cure=cure))
            continue
        status: Status = "ok" if len(set(collision.versions)) == 1 else "warning"
        status = status if whose == "onnxruntime-gpu" else "broken"
        cure = "" if status == "ok" else gpu_cure(versions)
        checks.append(Check(name="packages", status=status, message=message, cure=cure))
    if not seen:
        words = "no two distributions own the same file"
        checks.append(Check(name="packages", status="ok", message=words))
    return checks


def gpu_cure(versions: Mapping[str, str]) -> str:
    """The commands that put the files of onnxruntime-gpu in place, and both at its version.

    Its version was chosen for a release of CUDA, that of onnxruntime as a mere requirement.
    """
    version = versions["onnxruntime-gpu"]
    command = "pip install --force-reinstall --no-deps"
    last = f"{command} onnxruntime-gpu=={version}"
    if versions.get("onnxruntime") == version:
        return last
    return f"{command} onnxruntime=={version} &&\n{last}"


def check_duplicates(found: Mapping[str, Sequence[str]]) -> list[Check]:
    """Several versions of one distribution: which one is imported is chance."""
    return [
        Check(
            name="packages",
            status="broken",
            message=f"{name} is installed in several versions: {', '.join(versions)}",
            cure=f"pip uninstall {name}, until there is none; then: pip install {name}",
        )
        for name, versions in found.items()
    ]


def check_usurpers(found: Mapping[str, Sequence[str]]) -> list[Check]:
    """Others that ship a module of optvet's name: they overwrite it, and delete it when they go."""
    return [
        Check(
            name="packages",
            status="broken",
            message=f"{name} ships {', '.join(modules)}, which belongs to optvet",
            cure=f"pip uninstall {name}, then: pip install --force-reinstall --no-deps optvet",
        )
        for name, modules in found.items()
    ]


def check_requirements(found: Iterable[packages.Unmet], versions: Mapping[str, str]) -> list[Check]:
    """Versions that do not fit together, such as of onnx and protobuf."""
    checks = []
    for unmet in found:
        instead = f"{unmet.found} is installed" if unmet.found else "it is not installed"
        message = f"{unmet.name} {unmet.version} needs {unmet.requirement}; {instead}"
        cure = f"pip install '{unmet.requirement}'"
        if Requirement(unmet.requirement).name == "onnxruntime" and "onnxruntime-gpu" in versions:
            cure = gpu_cure(versions)  # onnxruntime alone would overwrite the other's files
        checks.append(Check(name="packages", status="broken", message=message, cure=cure))
    return checks


def check_known(versions: Mapping[str, str]) -> list[Check]:
    """Releases that are known to crash."""
    return [
        Check(name="packages", status="broken", message=f"{name} {version}: {why}", cure=cure)
        for (name, version), (why, cure) in _KNOWN_BAD.items()
        if versions.get(name) == version
    ]


def check_shadows(folder: Path) -> list[Check]:
    """Folders in the working directory that are taken for libraries."""
    names = [n for n in _SHADOWS if (folder / n).is_dir() or (folder / f"{n}.py").is_file()]
    return [
        Check(
            name="working directory",
            status="warning",
            message=f"{folder} holds {name!r}, which may be imported in place of the library"
            + ("; TVM cannot be imported there" if name == "torch" else ""),
            cure="run optvet in another directory",
        )
        for name in names
    ]


# --- in workers ----------------------------------------------------------------------------------


def check_sandbox(sandbox: Sandbox) -> Check:
    """A worker starts, its crash is noticed, and the next one works."""

    def bad(message: str) -> Check:
        cure = "allow processes to fork, to be killed, and to use memory files (memfd_create)"
        return Check(name="sandbox", status="broken", message=message, cure=cure)

    try:
        first, crash, second = (sandbox.call(f) for f in (os.getpid, _crash, os.getpid))
    except Exception as error:
        return bad(f"no worker process can be started: {error}")
    if not (first.ok and second.ok):
        failure = first.failure or second.failure
        return bad(f"a worker fails at nothing: {describe(failure) if failure else ''}")
    if crash.failure is None or crash.failure.kind != "abort":
        return bad("the crash of a worker is not noticed")
    words = "a worker started, crashed as it was told to, and was replaced"
    return Check(name="sandbox", status="ok", message=words)


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGABRT)


def check_imports(
    sandbox: Sandbox,
    libraries: Mapping[str, str | None],
    progress: Callable[[str, int, int | None], None],
) -> list[Check]:
    """Every installed library, imported in a process of its own."""
    checks, fine = [], []
    names = [n for n, v in libraries.items() if v is not None and n not in _NOT_IMPORTED]
    modules = [_MODULES.get(n, n.replace("-", "_")) for n in names]
    # Waited for in turn, run at the same time.
    futures = [sandbox.submit(_import, module, fresh=True) for module in modules]
    for done, (name, future) in enumerate(zip(names, futures, strict=True)):
        progress(f"importing {name}", done, len(names))
        outcome = future.result()
        if outcome.failure is None:
            fine.append(name)
            continue
        words = one_paragraph(describe(outcome.failure))
        if name in ("torchvision", "onnx2torch") and "torchvision" in words:
            cure = "install a torchvision that was built for this torch"
        else:
            cure = f"pip install --force-reinstall {name}"
        # optvet itself does not use torchvision; whether its user does is the plugin's matter.
        status: Status = "warning" if name in _ALSO or "torchvision" in words else "broken"
        message = f"{name} {libraries[name]} cannot be imported: {words}"
        checks.append(Check(name="libraries", status=status, message=message, cure=cure))
    words = f"{len(fine)} libraries can be imported"
    return [*checks, Check(name="libraries", status="ok", message=words)]


def _import(module: str) -> None:
    importlib.import_module(module)


def one_paragraph(text: str, limit: int = 300) -> str:
    """The first ``limit`` characters on one line."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[:limit]}…"


_TINY = '<ir_version: 8, opset_import: ["" : 17]> g (float[1] X) => (float[1] Y) { Y = Add(X, X) }'


def check_providers(sandbox: Sandbox, versions: Mapping[str, str]) -> list[Check]:
    """Each execution provider of ONNX Runtime: whether nodes really run there."""
    listed = sandbox.call(_providers, fresh=True)
    if listed.value is None:
        return []
    wanted = list(listed.value)
    gpu = "onnxruntime-gpu" in versions
    if gpu and "CUDAExecutionProvider" not in wanted:
        wanted.append("CUDAExecutionProvider")
    checks = []
    for provider in wanted:
        if provider == "AzureExecutionProvider":  # calls a service; runs nothing here
            continue
        outcome = sandbox.call(_try_provider, provider, fresh=True)
        where = outcome.value or []
        if provider in where:
            words = f"{provider} runs nodes"
            checks.append(Check(name="providers", status="ok", message=words))
            continue
        why = describe(outcome.failure) if outcome.failure else f"nodes ran on {', '.join(where)}"
        checks.append(_bad_provider(provider, one_paragraph(why), listed.value, versions))
    return checks


def _bad_provider(
    provider: str, why: str, listed: Sequence[str], versions: Mapping[str, str]
) -> Check:
    message = f"{provider} runs nothing: {why}"
    if provider == "CPUExecutionProvider":
        cure = "pip install --force-reinstall onnxruntime"
        return Check(name="providers", status="broken", message=message, cure=cure)
    if provider not in listed:
        message = f"{provider} is not offered, though onnxruntime-gpu is installed"
        return Check(name="providers", status="broken", message=message, cure=gpu_cure(versions))
    if not Path("/dev/nvidiactl").exists():
        cure = "run optvet on a machine with an NVIDIA driver, or ask for the CPU"
        return Check(
            name="providers", status="warning", message=f"{message}; no NVIDIA device", cure=cure
        )
    extra = "TensorRT (pip install tensorrt)" if provider.startswith("Tensorrt") else "CUDA, cuDNN"
    # TensorRT comes with no extra; only what an extra promises can be broken.
    status: Status = "warning" if provider.startswith("Tensorrt") else "broken"
    cure = f"install the libraries that its message names: {extra}"
    return Check(name="providers", status=status, message=message, cure=cure)


def _providers() -> list[str]:
    import onnxruntime

    return list(onnxruntime.get_available_providers())


def _try_provider(provider: str) -> list[str]:
    """The providers on which the nodes of a tiny model really ran; raises if it is not loaded."""
    import numpy as np
    import onnx.parser
    import onnxruntime as ort

    if provider != "CPUExecutionProvider" and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    with tempfile.TemporaryDirectory() as folder:
        settings = ort.SessionOptions()
        settings.enable_profiling = True
        settings.profile_file_prefix = f"{folder}/profile"
        settings.log_severity_level = 3
        model = onnx.parser.parse_model(_TINY).SerializeToString()
        session = ort.InferenceSession(model, settings, providers=[provider])
        session.run(None, {"X": np.ones(1, np.float32)})
        events = json.loads(Path(session.end_profiling()).read_text())
    ran = {e.get("args", {}).get("provider") for e in events if e.get("cat") == "Node"}
    return sorted(r for r in ran if r)


# --- optvet itself -------------------------------------------------------------------------------


def check_plugins(plugins: Sequence[Loaded]) -> list[Check]:
    """Plugins that cannot be used: for want of a library, or because they are broken."""
    checks: list[Check] = []
    absent: dict[str, list[str]] = {}
    wanted: dict[str, list[str]] = {}
    for plugin in plugins:
        who = f"{plugin.family or 'plugin'} {plugin.name}"
        extra = missing_extra(plugin)
        if extra is not None:
            absent.setdefault(extra, []).append(who)
        elif plugin.problem is not None:
            words = f"{who} ({plugin.origin}): {one_paragraph(plugin.problem)}"
            cure = "reinstall or uninstall the distribution that it came with"
            status: Status = "warning" if plugin.idle or plugin.displaced else "broken"
            checks.append(Check(name="plugins", status=status, message=words, cure=cure))
        elif (more := wanted_extra(plugin)) is not None:
            wanted.setdefault(more, []).append(who)
    for extra in sorted(absent.keys() | wanted.keys()):
        words = "; ".join(
            f"{what}: {', '.join(among[extra])}"
            for what, among in (("not installed", absent), ("can do more", wanted))
            if extra in among
        )
        cure = f"pip install '{extra}'"
        checks.append(Check(name="plugins", status="absent", message=words, cure=cure))
    usable = sum(p.problem is None for p in plugins)
    return [*checks, Check(name="plugins", status="ok", message=f"{usable} can be used")]


def check_cache(root: Path) -> Check:
    """Whether results can be kept, and whether there is room."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root) as file:
            file.write(b"optvet")
            file.flush()
        free = shutil.disk_usage(root).free
    except OSError as error:
        return Check(
            name="cache",
            status="broken",
            message=f"{root} cannot be written: {error.strerror or error}",
            cure="choose another folder with --cache-dir or OPTVET_CACHE",
        )
    message = f"{root} can be written; {free / (1 << 30):.1f} GiB are free"
    if free < FREE_BYTES:
        cure = "make room, or choose another folder with --cache-dir or OPTVET_CACHE"
        return Check(name="cache", status="warning", message=message, cure=cure)
    return Check(name="cache", status="ok", message=message)
