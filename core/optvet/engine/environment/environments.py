"""Environments of their own for plugins: which are declared, where they are, how they are made.

An environment is a virtual environment with what its plugins require, and with the few libraries
that worker processes of optvet import. optvet itself is not installed there.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import platformdirs

from optvet.engine.discovery import Plugins
from optvet.engine.environment.child_process import run_below
from optvet.engine.plugin_entries import Loaded, environments_of
from optvet.engine.work.sandbox import Interpreter
from optvet.spec.errors import InfrastructureError, UnknownName, UsageError
from optvet.spec.extras import EnvironmentExtras, extras
from optvet.spec.pythons import PythonEnvironment
from optvet.spec.records import EnvironmentEntry
from optvet.spec.removal import remove_folder
from optvet.spec.scratch import folder_beside

WORKER_LIBRARIES = ("numpy", "onnx", "pluggy", "pydantic", "scipy")
"""What the modules import that worker processes execute."""
MADE = "optvet-environment.json"
_SELF = "optvet"
_LOG_LINES = 6
_ASK_S = 60.0
_MISSING = """\
import json, sys
from importlib.util import find_spec
absent = [name for name in sys.argv[1:] if find_spec(name) is None]
print(json.dumps([list(sys.version_info[:2]), absent]))
"""

Say = Callable[[str], None]


def environments_root() -> Path:
    """The user's folder for environments; it may not exist yet."""
    return platformdirs.user_data_path("optvet") / "environments"


def declared_environments(plugins: Iterable[Loaded]) -> dict[str, PythonEnvironment]:
    """The environments that plugins declare, each with what all of these require."""
    found: dict[str, PythonEnvironment] = {}
    for entry in plugins:
        one = extras(entry.plugin, EnvironmentExtras).python_environment
        if one is not None and not entry.displaced:
            known = found.get(one.name, one).requirements
            every = tuple(dict.fromkeys((*known, *one.requirements)))
            modules = tuple(dict.fromkeys((*found.get(one.name, one).modules, *one.modules)))
            found[one.name] = PythonEnvironment(one.name, every, modules)
    return dict(sorted(found.items()))


def list_environments(plugins: Sequence[Loaded], pythons: Pythons) -> list[EnvironmentEntry]:
    """All environments, and whether each can be used."""
    entries = []
    for name, one in declared_environments(plugins).items():
        python = pythons.python_of(name)
        if python is None:
            problem = EnvironmentProblem("it is not made", f"make it: optvet env make {name}")
        else:
            problem = problem_of(python, one) or EnvironmentProblem("", "")
        entries.append(
            EnvironmentEntry(
                name=name,
                requirements=requirements(one),
                plugins=sorted({e.name for e in plugins if _lives_in(name, e)}),
                python=None if python is None else str(python),
                problem=problem.message,
                cure=problem.cure,
            )
        )
    return entries


def _lives_in(name: str, entry: Loaded) -> bool:
    return name in environments_of(entry.plugin)


def environment_of(name: str, plugins: Plugins) -> PythonEnvironment:
    """The environment of that name; UnknownName if no plugin declares it."""
    known = declared_environments(plugins.all())
    if name not in known:
        raise UnknownName("environment", name, known, "(see: optvet env list)")
    return known[name]


def python_in(place: Path) -> Path:
    """The interpreter that ``place`` is, or that a virtual environment in it has."""
    return place / "bin" / "python" if place.is_dir() else place


# --- where they are ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pythons:
    """Where environments are: where the user says, else where ``env make`` puts them.

    Attributes:
        chosen: Folder or interpreter by the environment's name.
        root: Folder of those that were made.
    """

    chosen: Mapping[str, Path]
    root: Path

    def python_of(self, name: str) -> Path | None:
        """The interpreter of an environment; None if there is none.

        Raises:
            UsageError: What the user chose is no interpreter.
        """
        if (place := self.chosen.get(name)) is not None:
            python = python_in(place.expanduser())
            if not os.access(python, os.X_OK) or python.is_dir():
                raise UsageError(
                    f"environment {name!r}: {place} is neither an interpreter of Python nor the "
                    "folder of a virtual environment; check the path"
                )
            return python.absolute()
        folder = self.root / name
        return folder / "bin" / "python" if (folder / MADE).is_file() else None

    def digest_of(self, name: str) -> str:
        """A digest of what is installed in an environment; "unknown" if that cannot be told."""
        python = self.python_of(name)
        folder = None if python is None else python.parent.parent
        if folder is None or not (folder / "pyvenv.cfg").is_file():
            return "unknown"
        installed = sorted(p.name for p in folder.glob("lib*/python*/site-packages/*.dist-info"))
        return hashlib.sha256("\n".join(dict.fromkeys(installed)).encode()).hexdigest()[:12]

    def among(self, plugins: Plugins) -> Plugins:
        """The registry in which plugins of these environments can be used, if they exist."""
        known = declared_environments(plugins.all())
        if unknown := sorted(self.chosen.keys() - known.keys()):
            raise UnknownName("environment", unknown[0], known, "(see: optvet env list)")
        return plugins.with_environments({n for n in known if self.python_of(n) is not None})

    def interpreter_of(self, name: str, plugins: Plugins) -> Interpreter:
        """The interpreter of an environment, which is asked whether it has what is needed.

        Raises:
            UsageError: There is no such environment, or it lacks a library.
        """
        python = self.python_of(name)
        if python is None:
            raise UsageError(f"environment {name!r} is missing; make it: optvet env make {name}")
        if problem := problem_of(python, environment_of(name, plugins)):
            raise UsageError(f"{problem.message}; {problem.cure}")
        return Interpreter(str(python), tuple(sorted(_list_shared_files(name, plugins).items())))


def _list_shared_files(name: str, plugins: Plugins) -> dict[str, str]:
    """Files of optvet and of the modules whose plugins live in the environment."""
    modules = {_SELF}
    for entry in plugins.all():
        if _lives_in(name, entry):
            modules.add(type(entry.plugin).__module__.partition(".")[0])
    specs = {module: importlib.util.find_spec(module) for module in modules}
    return {m: s.origin for m, s in specs.items() if s is not None and s.origin is not None}


@dataclass(frozen=True)
class EnvironmentProblem:
    """Why an environment cannot be used, and what to do."""

    message: str
    cure: str


def problem_of(python: Path, environment: PythonEnvironment) -> EnvironmentProblem | None:
    """Why an interpreter cannot be used for the environment; None if it can."""
    name = environment.name
    names = [*environment.modules, *WORKER_LIBRARIES]
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", _MISSING, *names],
            capture_output=True,
            text=True,
            timeout=_ASK_S,
        )
        (major, minor), absent = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        words = f"does not work as an interpreter of Python ({type(error).__name__})"
        cure = f"make it anew: optvet env make {name} --force"
    else:
        if (major, minor) < (3, 11):
            words, cure = f"is Python {major}.{minor}", "choose 3.11 or later"
        elif absent:
            words = f"lacks {', '.join(absent)}"
            anew = f"make the environment anew: optvet env make {name} --force"
            cure = f"install that there, or {anew}"
        else:
            return None
    return EnvironmentProblem(f"environment {name!r}: {python} {words}", cure)


# --- how they are made ---------------------------------------------------------------------------


def requirements(environment: PythonEnvironment) -> list[str]:
    """Everything that pip installs there."""
    named = {name_in(line) for line in environment.requirements}
    try:
        ours = [line for line in requires(_SELF) or () if ";" not in line]
    except PackageNotFoundError:
        ours = []
    by_name = {name_in(line): line for line in ours}
    own = [by_name.get(name, name) for name in WORKER_LIBRARIES if name not in named]
    return [*environment.requirements, *own]


def name_in(requirement: str) -> str:
    """The distribution that a requirement is about, in lower case with hyphens."""
    name = re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def make(environment: PythonEnvironment, target: Path, *, force: bool, say: Say) -> Path:
    """Make an environment; returns its interpreter. Until it is whole, ``target`` is not touched.

    Raises:
        UsageError: ``target`` exists, and is not to be replaced or is no environment.
        InfrastructureError: It cannot be made.
    """
    _refuse_to_replace(environment.name, target, force)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = folder_beside(target)
    except OSError as error:
        raise InfrastructureError(
            f"cannot write {target.parent}: {error.strerror}; choose another folder with --into"
        ) from error
    try:
        say("virtual environment")
        venv.create(beside, symlinks=True)
        _bootstrap(beside)
        wanted = requirements(environment)
        say(f"pip install {' '.join(wanted)}")
        _install(beside / "bin" / "python", wanted)
        about = {"name": environment.name, "requirements": wanted, "python": sys.version.split()[0]}
        (beside / MADE).write_text(json.dumps(about, indent=1) + "\n")
        _rename_inside(beside, target)
        if target.exists():
            remove_folder(target)
        beside.rename(target)
    except (OSError, subprocess.CalledProcessError) as error:
        raise InfrastructureError(
            f"environment {environment.name!r} cannot be made: {_words(error)}"
        ) from error
    finally:
        remove_folder(beside)
    return target / "bin" / "python"


def _refuse_to_replace(name: str, target: Path, force: bool) -> None:
    if not target.exists():
        return
    if not force:
        raise UsageError(f"{target} exists; replace it with: optvet env make {name} --force")
    empty = target.is_dir() and not any(target.iterdir())
    if not empty and not (target / MADE).is_file():
        raise UsageError(
            f"{target} is no environment that optvet made; remove it, or choose another folder "
            "with --into"
        )


def _bootstrap(folder: Path) -> None:
    """Put pip into a virtual environment, as ``venv`` does; but this ends with its parent."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    # Isolated: else a module of the current folder would be run in place of its own.
    command = [str(folder / "bin" / "python"), "-I", "-m", "ensurepip"]
    command += ["--upgrade", "--default-pip"]
    ended = run_below(command, {**variables, "VIRTUAL_ENV": str(folder)})
    if ended.status:
        raise InfrastructureError(
            f"pip cannot be put into {folder}: {ended.last_lines(_LOG_LINES)}; check that this "
            "Python has ensurepip (Debian: python3-venv), then run again"
        )


def _install(python: Path, wanted: Iterable[str]) -> None:
    quiet = ("--disable-pip-version-check", "--no-input", "--quiet")
    ended = run_below(
        [str(python), "-I", "-m", "pip", "install", *quiet, *wanted],
        {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")},
    )
    if ended.status:
        raise InfrastructureError(
            f"pip cannot install {' '.join(wanted)}: {ended.last_lines(_LOG_LINES)}; check the "
            "network and pip's configuration, then run again"
        )


def _rename_inside(folder: Path, target: Path) -> None:
    """Say where the environment will be, in its scripts and its configuration."""
    old, new = str(folder).encode(), str(target.absolute()).encode()
    for file in [folder / "pyvenv.cfg", *(folder / "bin").iterdir()]:
        if file.is_file() and not file.is_symlink():
            with contextlib.suppress(PermissionError):
                data = file.read_bytes()
                if old in data and b"\0" not in data:
                    file.write_bytes(data.replace(old, new))


def _words(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"{' '.join(map(str, error.cmd))} ends with status {error.returncode}"
    return f"{error}; make room, or choose another folder with --into"
