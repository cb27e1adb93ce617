"""New plugins from templates: a package that installs, is discovered, and passes its own tests."""

from __future__ import annotations

import errno
import os
import re
import uuid
from enum import StrEnum
from importlib import resources, util
from pathlib import Path
from string import Template

from optvet.spec.errors import UsageError
from optvet.spec.removal import remove_folder

MAX_NAME = 30
"""Characters of a name; files are named after it."""
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_TEMPLATES = "templates"


class Family(StrEnum):
    """Families of plugins that have a template."""

    COMPARATOR = "comparator"
    CONVERTER = "converter"
    DATASET = "dataset"
    EXECUTOR = "executor"
    GENERATOR = "generator"
    MODEL_SOURCE = "model-source"
    OPTIMIZER = "optimizer"
    REPORTER = "reporter"
    RUNTIME = "runtime"
    STUDY = "study"

    @property
    def words(self) -> str:
        """The family as ``Plugins`` calls it."""
        return self.value.replace("-", " ")


def write_plugin(family: Family, name: str, folder: Path, *, version: str) -> list[Path]:
    """Write a package with one plugin into ``folder``, atomically.

    Args:
        family: What kind of plugin.
        name: The plugin's name; module, class and distribution are named after it.
        folder: Must not exist, or be empty; parents are made.
        version: Least version of optvet that the package requires.

    Returns:
        The files, relative to ``folder``, sorted.

    Raises:
        UsageError: The name is invalid or taken, or the folder is not empty or cannot be written.
        OSError: The disk is full.
    """
    files = plugin_files(family, name, version=version)
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder} exists and is no folder; choose another with --out")
    try:
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"folder {folder} is not empty; choose another with --out")
        folder.parent.mkdir(parents=True, exist_ok=True)
        _write(folder, files)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        reason = error.strerror or str(error)
        raise UsageError(
            f"{folder} cannot be written: {reason}; choose another with --out"
        ) from error
    return sorted(map(Path, files))


def plugin_files(family: Family, name: str, *, version: str) -> dict[str, str]:
    """Texts of the package's files by relative path.

    Raises:
        UsageError: The name is invalid, or its module exists.
    """
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise UsageError(
            f"{name!r} cannot name a plugin; expected lower-case letters and digits, parted by "
            f"single hyphens, beginning with a letter, at most {MAX_NAME} characters: depth-map"
        )
    module = f"{name}_{family}".replace("-", "_")
    if util.find_spec(module) is not None:
        raise UsageError(f"a module {module!r} is installed already; choose another name")
    values = {
        "family": family.words,
        "name": name,
        "module": module,
        "class": "".join(part.capitalize() for part in f"{name}-{family}".split("-")),
        "distribution": f"{name}-{family}",
        "version": version,
    }
    sources = {
        "README.md": "package/README.md",
        "pyproject.toml": "package/pyproject.toml",
        f"{module}.py": f"{family}/module.py",
        f"tests/test_{module}.py": f"{family}/test.py",
    }
    return {path: _fill(source, values) for path, source in sources.items()}


def _fill(source: str, values: dict[str, str]) -> str:
    root = resources.files("optvet.engine.environment").joinpath(_TEMPLATES)
    text = root.joinpath(f"{source}.tmpl").read_text(encoding="utf-8")
    return Template(text).substitute(values)


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write the files under a temporary name and rename, so that ``folder`` is never incomplete."""
    draft = folder.parent / f".{folder.name}.{uuid.uuid4().hex}"
    try:
        for path, text in files.items():
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            (draft / path).write_text(text, encoding="utf-8")
        # Replaces an empty folder only.
        os.rename(draft, folder)
    finally:
        remove_folder(draft)
