"""The state of a hunt, in memory and in ``hunt.sqlite``, which survives a kill."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import GraphProto, numpy_helper

from optvet.engine.hunt.suspicions import REACHED, Complaint, Place, Rewrite, SuspicionKey
from optvet.engine.hunt.triggers import Trigger
from optvet.spec.errors import InfrastructureError, InputError
from optvet.spec.records.hunt import HuntFinding
from optvet.spec.symptoms import Symptom

NAME = "hunt.sqlite"
SPENT = -1
"""In place of a number of edits: the mutator has no more variants."""
_TABLES = """
CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS tried (digest INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS entry (
  id INTEGER PRIMARY KEY, model BLOB NOT NULL, feeds BLOB NOT NULL, about TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS suspect (
  id INTEGER PRIMARY KEY, model BLOB NOT NULL, feeds BLOB NOT NULL, about TEXT NOT NULL);
"""

_READ_TRIED = "SELECT digest FROM tried"


@dataclass(frozen=True)
class CorpusEntry:
    """A model of the corpus: passes changed it in a way that was new.

    ``way`` is the mutator that prepared it for further edits, or its operators. ``invented`` are
    names that passes gave to new values in it. ``shown`` is what looks wrong on it already.
    """

    model: bytes
    feeds: Mapping[str, np.ndarray]
    rewrites: tuple[Rewrite, ...]
    way: str = ""
    invented: tuple[str, ...] = ()
    shown: frozenset[Place] = frozenset()


@dataclass(frozen=True)
class Suspect:
    """A model that the optimizer seems to break; ``vet`` confirms it.

    ``edit`` is what was changed of a model that does not show it. ``by_arbiter`` says that the
    arbiter ran the models.
    """

    number: int
    model: bytes
    feeds: Mapping[str, np.ndarray]
    passes: tuple[str, ...]
    key: SuspicionKey
    mutators: tuple[str, ...]
    edit: tuple[str, ...] = ()
    by_arbiter: bool = False


@dataclass
class Sign:
    """A key of suspicions: how often it was seen, and the results of vetting its models.

    ``edits`` are those that made the models that were vetted.
    """

    seen: int = 0
    vetted: int = 0
    fingerprints: list[str] = field(default_factory=list)
    edits: list[tuple[str, ...]] = field(default_factory=list)


@dataclass
class HuntState:
    """Everything that the plan of the next round depends on.

    Attributes:
        rounds: Rounds that are done.
        number: Candidates that are done.
        swept: Fragments that were tried as they are.
        seconds: CPU time of making and judging.
        vetting_seconds: Wall-clock time of vetting suspects.
        edited: How many variants of single edits of an entry are done, by its index, per mutator.
        edits: How many edits of each mutator were planned, by its name.
        rewrites: How many models showed each rewrite.
        tries: How many models of a pattern were tried, by the pass that it is about.
        deaths: Workers that died, by pass; "" for import and export, "reference" for the original.
        alone: Passes that are never tried together with others first; one of them killed a worker.
        signs: By key.
        entries: The corpus.
        seeded: What its entries show, and the way of each.
        tried: Digests of edits that were judged.
        reached: Lines of the passes' code that some model has reached, where that is in Python.
        suspects: To be vetted.
        findings: Confirmed.
        triggers: What makes them show.
        met: Fingerprints of known faults that were met.
        complaints: About plugins that raised exceptions, the first of each kind.
    """

    rounds: int = 0
    number: int = 0
    valid: int = 0
    refused: int = 0
    refuted: int = 0
    swept: int = 0
    seconds: float = 0.0
    vetting_seconds: float = 0.0
    edited: dict[int, list[int]] = field(default_factory=dict)
    edits: Counter[str] = field(default_factory=Counter)
    rewrites: Counter[Rewrite] = field(default_factory=Counter)
    tries: Counter[str] = field(default_factory=Counter)
    deaths: Counter[str] = field(default_factory=Counter)
    signs: dict[SuspicionKey, Sign] = field(default_factory=dict)
    entries: list[CorpusEntry] = field(default_factory=list)
    seeded: set[tuple[Rewrite, str]] = field(default_factory=set)
    tried: set[int] = field(default_factory=set)
    reached: set[str] = field(default_factory=set)
    suspects: list[Suspect] = field(default_factory=list)
    findings: list[HuntFinding] = field(default_factory=list)
    triggers: list[Trigger] = field(default_factory=list)
    alone: list[str] = field(default_factory=list)
    met: list[str] = field(default_factory=list)
    complaints: dict[str, str] = field(default_factory=dict)

    def passes_with_changes(self) -> set[str]:
        """Passes that changed a model; ``ANY`` may be among them."""
        return {rewrite.label for rewrite in self.rewrites}

    def complain(self, complaint: Complaint) -> None:
        """Keep a complaint, unless there is one about the same."""
        self.complaints.setdefault(" ".join(complaint.about), complaint.text)


_PLAIN = (
    "rounds",
    "number",
    "valid",
    "refused",
    "refuted",
    "swept",
    "seconds",
    "vetting_seconds",
    "met",
    "alone",
    "complaints",
)


class HuntStore:
    """The file of a hunt."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        try:
            self._connection = sqlite3.connect(self._path, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.executescript(_TABLES)
        except sqlite3.DatabaseError as error:
            raise InputError(f"{self._path} is no state of a hunt: {error}") from error
        self._entries = 0
        self._tried: set[int] = set()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def identity(self) -> dict[str, Any] | None:
        """What is hunted in, as it was stored; None if nothing is."""
        found = self._fact("identity")
        return found if isinstance(found, dict) else None

    def begin(self, identity: Mapping[str, Any]) -> None:
        """Store what is hunted in."""
        self._transact([("identity", dict(identity))], (), None)

    def save(self, state: HuntState) -> None:
        """Store the state in one transaction.

        Raises:
            InfrastructureError: It cannot be written.
        """
        plain = {name: getattr(state, name) for name in _PLAIN}
        facts: list[tuple[str, Any]] = [
            ("plain", plain),
            ("edited", list(state.edited.items())),
            ("firings", [[*f, n] for f, n in state.rewrites.items()]),
            ("edits", state.edits),
            ("tries", state.tries),
            ("deaths", state.deaths),
            ("keys", [[k, *astuple(sign)] for k, sign in state.signs.items()]),
            ("triggers", [[*t, sorted(f)] for *t, f in map(_fields_of, state.triggers)]),
            ("reached", sorted(state.reached)),
            ("findings", [f.model_dump(mode="json") for f in state.findings]),
        ]
        new = state.tried - self._tried
        self._transact(facts, state.entries[self._entries :], state.suspects, new)
        self._entries, self._tried = len(state.entries), self._tried | new

    def load(self) -> HuntState:
        """The state as it was stored last.

        Raises:
            InputError: The file holds something else.
        """
        try:
            state = HuntState(**(self._fact("plain") or {}))
            state.edited = {int(k): list(v) for k, v in self._fact("edited") or []}
            for name, fewer, more, count in self._fact("firings") or []:
                state.rewrites[Rewrite(name, tuple(fewer), tuple(more))] = count
            state.edits = Counter(self._fact("edits") or {})
            state.reached = {*(self._fact("reached") or ())}
            state.tries = Counter(self._fact("tries") or {})
            state.deaths = Counter(self._fact("deaths") or {})
            for key, seen, vetted, fingerprints, edits in self._fact("keys") or []:
                sign = Sign(seen, vetted, fingerprints, [tuple(edit) for edit in edits])
                state.signs[SuspicionKey.of_json(key)] = sign
            for fingerprint, (names, symptom), words, needed in self._fact("triggers") or []:
                place = tuple(names), Symptom(symptom)
                state.triggers.append(Trigger(fingerprint, place, words, frozenset(needed)))
            found = self._fact("findings") or []
            state.findings = [HuntFinding.model_validate(f) for f in found]
            for model, feeds, about in self._rows("entry", "about"):
                way, rewrites, invented, wrong = json.loads(about)
                changed = tuple(Rewrite(n, tuple(a), tuple(b)) for n, a, b in rewrites)
                shown = frozenset((tuple(names), Symptom(word)) for names, word in wrong)
                values = unpack_arrays(feeds)
                state.entries.append(
                    CorpusEntry(model, values, changed, way, tuple(invented), shown)
                )
                if way != REACHED:
                    state.seeded.update((rewrite, way) for rewrite in changed)
            state.tried = {digest for (digest,) in self._connection.execute(_READ_TRIED)}
            for model, feeds, about in self._rows("suspect", "about"):
                fields = json.loads(about)
                fields |= {k: tuple(fields[k]) for k in ("passes", "mutators", "edit")}
                fields["key"] = SuspicionKey.of_json(fields["key"])
                state.suspects.append(Suspect(model=model, feeds=unpack_arrays(feeds), **fields))
        except (sqlite3.DatabaseError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"{self._path} is no state of a hunt: {error}") from error
        self._entries, self._tried = len(state.entries), set(state.tried)
        return state

    def _fact(self, name: str) -> Any:
        found = self._connection.execute("SELECT value FROM fact WHERE name = ?", (name,))
        row = found.fetchone()
        return None if row is None else json.loads(row[0])

    def _rows(self, table: str, column: str) -> list[tuple[bytes, bytes, str]]:
        order = f"SELECT model, feeds, {column} FROM {table} ORDER BY id"
        return self._connection.execute(order).fetchall()

    def _transact(
        self,
        facts: Iterable[tuple[str, Any]],
        entries: Sequence[CorpusEntry],
        suspects: Sequence[Suspect] | None,
        tried: Iterable[int] = (),
    ) -> None:
        try:
            with closing(self._connection.cursor()) as cursor:
                cursor.execute("BEGIN IMMEDIATE")
                try:
                    _write(cursor, facts, entries, suspects)
                    digests = ((digest,) for digest in tried)
                    cursor.executemany("INSERT OR IGNORE INTO tried VALUES (?)", digests)
                    cursor.execute("COMMIT")
                except BaseException:
                    cursor.execute("ROLLBACK")
                    raise
        except sqlite3.DatabaseError as error:
            raise InfrastructureError(f"{self._path} cannot be written: {error}") from error


def _write(
    cursor: sqlite3.Cursor,
    facts: Iterable[tuple[str, Any]],
    entries: Sequence[CorpusEntry],
    suspects: Sequence[Suspect] | None,
) -> None:
    for name, value in facts:
        cursor.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, json.dumps(value)))
    for entry in entries:
        details = json.dumps([entry.way, entry.rewrites, entry.invented, sorted(entry.shown)])
        row = (entry.model, pack_arrays(entry.feeds), details)
        cursor.execute("INSERT INTO entry (model, feeds, about) VALUES (?, ?, ?)", row)
    if suspects is None:
        return
    cursor.execute("DELETE FROM suspect")
    for s in suspects:
        about = {
            "number": s.number,
            "passes": s.passes,
            "key": s.key,
            "mutators": s.mutators,
            "edit": s.edit,
            "by_arbiter": s.by_arbiter,
        }
        row = (s.model, pack_arrays(s.feeds), json.dumps(about))
        cursor.execute("INSERT INTO suspect (model, feeds, about) VALUES (?, ?, ?)", row)


def _fields_of(trigger: Trigger) -> tuple[str, Place, str, frozenset[str]]:
    return trigger.fingerprint, trigger.place, trigger.words, trigger.features


def pack_arrays(feeds: Mapping[str, np.ndarray]) -> bytes:
    """Arrays by name as tensors: unlike numpy's own files, these know every element type."""
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in feeds.items()]
    return bytes(GraphProto(initializer=tensors).SerializeToString())


def unpack_arrays(data: bytes) -> dict[str, np.ndarray]:
    """Undo ``pack_arrays``."""
    return {t.name: numpy_helper.to_array(t) for t in GraphProto.FromString(data).initializer}
