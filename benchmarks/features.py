"""Everything that the four papers' tools can do: each a command, what it must say, and a mutation.

    python benchmarks/features.py SHARED [--only WORDS] [--broken] [--seconds N] [--into FOLDER]

SHARED is the folder of real models, data and known faults. ``features.toml`` holds the features by
paper. A row has its command, its exit code, values that must stand in the answer, and a mutation:
text of a file of optvet, and what the text becomes in an overlay of the package, so that the
feature is broken. Each distinct command runs once in FOLDER, a new one by default; later ones use
what earlier ones wrote. With ``--broken`` each row runs once more in an overlay with its mutation,
in a folder with what it ``needs``, and must fail by a value or its exit code. A row that passes
although its feature is broken claims nothing. Exit status 1 if a row did not work, or passes when
broken.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine

HERE = Path(__file__).resolve().parent
FEATURES = HERE / "features.toml"
ROOT = HERE.parent
PARTS = ("core", "plugins")
"""Folders of the repository that an overlay has."""
RELATIVE = 1e-3
"""Numbers with a fraction are equal up to this part of them; ``features.toml`` rounds them."""


class Unlike(Exception):
    """What is not as a row says."""


@dataclass(frozen=True)
class Mutation:
    """A feature broken: ``was`` stands once in ``file``, and becomes ``now``."""

    file: str
    was: str
    now: str

    def applied(self) -> str:
        """The text of the file with the feature broken.

        Raises:
            Unlike: The text does not stand there once.
        """
        text = (ROOT / self.file).read_text("utf-8")
        if text.count(self.was) != 1:
            raise Unlike(f"{self.file} has {self.was!r} {text.count(self.was)} times, not once")
        return text.replace(self.was, self.now)


@dataclass(frozen=True)
class Feature:
    """A row: a command, its exit code, and the values by their places in the answer."""

    paper: str
    name: str
    run: str
    exit: int
    values: Mapping[str, Any]
    breaks: Mutation
    needs: Sequence[str] = ()
    makes: Sequence[str] = ()


@dataclass(frozen=True)
class Shown:
    """How a command ended: its exit code, None if it did not end in time; and what it printed."""

    code: int | None
    out: str
    err: str
    seconds: float


def features(shared: Path) -> list[Feature]:
    """All rows, with paths in their commands."""
    found = []
    for paper, rows in tomllib.loads(FEATURES.read_text("utf-8")).items():
        for row in rows:
            text = row["run"].format(shared=shared, repository=ROOT)
            mutation = Mutation(*row["breaks"])
            values = row.get("values", {})
            about = (paper, row["name"], text, row.get("exit", 0), values, mutation)
            found.append(Feature(*about, row.get("needs", ()), row.get("makes", ())))
    return found


# --- values ---------------------------------------------------------------------------------------

_STEP = re.compile(r"\.?([^.\[\]]+)|\[([^\]=]+)\]|\[([^\]=]+=[^\]]*)\]")


_PAIRS = re.compile(r",(?=[^,=]+=)")


def value_at(place: str, document: Any) -> Any:
    """The value at a place such as ``findings[0].culprit`` or ``passes[name=fuse].effect``.

    ``[*]`` takes the rest of the place from each item, ``#`` at the end counts, and a table of
    columns and rows is read as a list of rows with keys. ``[key]`` is a key with a full stop.

    >>> value_at("a[name=x].b", {"a": [{"name": "y"}, {"name": "x", "b": 2}]})
    2
    >>> value_at("a[*].name", {"a": [{"name": "y"}, {"name": "x"}]})
    ['y', 'x']
    >>> value_at("t[k=1].v", {"t": {"columns": ["k", "v"], "rows": [[0, 5], [1, 6]]}})
    6
    """
    counted = place.endswith("#")
    value, rest = document, place.removesuffix("#")
    while rest:
        step = _STEP.match(rest)
        if step is None:
            raise Unlike(f"{place!r} is no place")
        rest = rest[step.end() :]
        name, index, wanted = step.groups()
        if isinstance(value, dict) and {"columns", "rows"} <= value.keys() and name is None:
            value = [dict(zip(value["columns"], row, strict=True)) for row in value["rows"]]
        try:
            if index == "*":
                return [value_at(rest, item) for item in value]
            if wanted:
                pairs = [pair.split("=", 1) for pair in _PAIRS.split(wanted)]
                value = next(i for i in value if all(str(i.get(k)) == v for k, v in pairs))
            elif name is None:
                value = value[index] if isinstance(value, dict) else value[int(index)]
            else:
                value = value[name]
        except (KeyError, IndexError, TypeError, StopIteration):
            raise Unlike(f"{place!r}: there is no {step[0]!r}") from None
    return len(value) if counted else value


def are_equal(found: Any, wanted: Any) -> bool:
    """Whether a value is the one that a row says; numbers with a fraction up to ``RELATIVE``."""
    if isinstance(wanted, list):
        pairs = zip(found, wanted, strict=False)
        same = isinstance(found, list) and len(found) == len(wanted)
        return same and all(are_equal(a, b) for a, b in pairs)
    if isinstance(wanted, float) and isinstance(found, int | float):
        return abs(found - wanted) <= RELATIVE * abs(wanted)
    return bool(found == wanted and isinstance(found, bool) == isinstance(wanted, bool))


def check(feature: Feature, shown: Shown) -> str:
    """What shows the feature, in words.

    Raises:
        Unlike: The exit code or a value is another one.
    """
    if shown.code != feature.exit:
        raise Unlike(f"exit {shown.code}, not {feature.exit}")
    lines = {" ".join(line.split()) for line in f"{shown.out}\n{shown.err}".splitlines()}
    document = None
    for place, wanted in feature.values.items():
        if place == "line":
            for line in [wanted] if isinstance(wanted, str) else wanted:
                if line not in lines:
                    raise Unlike(f"no line {line!r}")
            continue
        if document is None:
            try:
                document = json.loads(shown.out)
            except ValueError:
                raise Unlike("it printed no JSON") from None
        found = value_at(place, document)
        if not are_equal(found, wanted):
            raise Unlike(f"{place} is {found!r}, not {wanted!r}")
    return "; ".join(f"{place} = {wanted!r}" for place, wanted in feature.values.items())


# --- commands -------------------------------------------------------------------------------------


def run(command: str, folder: Path, seconds: float, overlay: Path | None = None) -> Shown:
    """One command in a process of its own, of the package or of an overlay of it.

    An overlay has a cache of its own: what the package computed must not stand for it.
    """
    environment = dict(os.environ)
    if overlay is not None:
        environment["PYTHONPATH"] = os.pathsep.join(map(str, roots(overlay)))
        environment["XDG_CACHE_HOME"] = str(folder / ".cache")
    started = time.monotonic()
    words = [sys.executable, "-P", "-m", "optvet_start", *shlex.split(command)]
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Shown(None, "", f"no end within {seconds:g} s", time.monotonic() - started)
    return Shown(done.returncode, done.stdout, done.stderr, time.monotonic() - started)


def shown_by(
    feature: Feature,
    every: Sequence[Feature],
    folder: Path,
    seconds: float,
    known: dict[str, Shown],
) -> Shown:
    """How the command of a row ended, after those of ``every`` that make what it needs."""
    for needed in feature.needs:
        maker = next(f for f in every if needed in f.makes)
        shown_by(maker, every, folder, seconds, known)
    for made in feature.makes:
        (folder / made).parent.mkdir(parents=True, exist_ok=True)
    if feature.run not in known:
        known[feature.run] = run(feature.run, folder, seconds)
    return known[feature.run]


def roots(overlay: Path) -> Iterator[Path]:
    """The folders of an overlay that packages are imported from."""
    yield overlay / "core"
    yield from sorted(p for p in (overlay / "plugins").iterdir() if p.is_dir())


def make_overlay(folder: Path) -> Path:
    """A copy of the package, whose files are links until one is mutated."""
    for part in PARTS:
        shutil.copytree(
            ROOT / part,
            folder / part,
            copy_function=os.symlink,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    return folder


def broken(feature: Feature, overlay: Path, folder: Path, seconds: float) -> tuple[bool, str]:
    """Whether a row fails with its feature broken, and how.

    Args:
        feature: The row.
        overlay: A copy of the package; it is whole again afterwards.
        folder: Where the commands before it were run, and left what it needs.
        seconds: Limit for the command.
    """
    place = overlay / feature.breaks.file
    text = feature.breaks.applied()
    place.unlink()
    place.write_text(text, "utf-8")
    try:
        with tempfile.TemporaryDirectory(prefix="broken-") as name:
            own = Path(name)
            for needed in feature.needs:
                source = folder / needed
                (own / needed).parent.mkdir(parents=True, exist_ok=True)
                copy = shutil.copytree if source.is_dir() else shutil.copyfile
                copy(source, own / needed)
            for made in feature.makes:
                (own / made).parent.mkdir(parents=True, exist_ok=True)
            shown = run(feature.run, own, seconds, overlay)
    finally:
        place.unlink()
        place.symlink_to(ROOT / feature.breaks.file)
    # A program that no longer starts shows that a mutation is no program, not that a row can fail.
    if "Traceback" in shown.err and feature.exit != shown.code:
        return False, f"the mutation breaks more than the feature: {shown.err.splitlines()[-1]}"
    try:
        check(feature, shown)
    except Unlike as why:
        return True, str(why)
    return False, "passes when broken"


def main() -> int:
    """Run the rows, and print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shared", type=Path, metavar="SHARED")
    parser.add_argument("--only", default="", help="rows whose name or paper has these words")
    parser.add_argument("--broken", action="store_true", help="run each row broken, too")
    parser.add_argument("--seconds", type=float, default=900, help="limit for one command")
    parser.add_argument("--into", type=Path, help="folder that the commands run in")
    options = parser.parse_args()
    folder = options.into or Path(tempfile.mkdtemp(prefix="features-"))
    folder.mkdir(parents=True, exist_ok=True)
    every = features(options.shared.resolve())
    chosen = [f for f in every if options.only in f"{f.paper}: {f.name}"]
    if not chosen:
        parser.error(f"no row has the words {options.only!r}")
    print(machine.describe(machine.environment()), "", sep="\n")
    head = [
        "feature",
        "`optvet …`",
        "exit",
        "it says",
        *(["broken"] if options.broken else []),
        "s",
    ]
    print(_line(head), _line(["---"] * len(head)), sep="\n")
    known: dict[str, Shown] = {}
    worked = failed = 0
    with tempfile.TemporaryDirectory(prefix="overlay-") as name:
        overlay = make_overlay(Path(name)) if options.broken else Path(name)
        for feature in chosen:
            shown = shown_by(feature, every, folder, options.seconds, known)
            try:
                words, works = check(feature, shown), True
            except Unlike as why:
                words, works = f"**{why}**", False
                print(f"--- {feature.name}\n{shown.out}\n{shown.err}", file=sys.stderr, flush=True)
            worked += works
            cells = [f"{feature.paper}: {feature.name}", _typed(feature, options.shared.resolve())]
            cells += [str(shown.code), words]
            if options.broken:
                fails, how = broken(feature, overlay, folder, options.seconds)
                failed += fails
                cells.append(how if fails else f"**{how}**")
            print(_line([*cells, f"{shown.seconds:.0f}"]), flush=True)
    print("", f"{worked} of {len(chosen)} rows work", sep="\n")
    if options.broken:
        print(f"{failed} of {len(chosen)} rows fail when broken")
    return int(worked < len(chosen) or (options.broken and failed < len(chosen)))


def _typed(feature: Feature, shared: Path) -> str:
    return f"`{feature.run.replace(f'{shared}/', '').replace(f'{ROOT}/', '')}`"


def _line(cells: Sequence[str]) -> str:
    cut = (cell if len(cell) <= _CELL else f"{cell[:_CELL]}…" for cell in cells)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cut)} |"


_CELL = 160

if __name__ == "__main__":
    sys.exit(main())
