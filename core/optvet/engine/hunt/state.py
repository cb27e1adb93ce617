"""The state of a hunt, in memory and in ``hunt.sqlite``, which survives a kill."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, astuple, dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types
from onnx import GraphProto, ModelProto, numpy_helper
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from optvet.engine.database import check_values, is_of_the_machine, open_database, transaction
from optvet.engine.hunt.sources.plan import SuspectedSource
from optvet.engine.hunt.suspicions import ANY, REACHED, Complaint, Place, Rewrite, SuspicionKey
from optvet.engine.hunt.triggers import Trigger
from optvet.graph.outline import is_outside
from optvet.spec.errors import InfrastructureError, InputError, OptvetError
from optvet.spec.records.hunt import HuntFinding
from optvet.spec.symptoms import Symptom

NAME = "hunt.sqlite"
SPENT = -1
"""In place of a number of edits: the mutator has no more variants."""
_MODEL = "id INTEGER PRIMARY KEY, model BLOB NOT NULL, feeds BLOB NOT NULL, about TEXT NOT NULL"
_TABLES = (
    "CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS tried (digest INTEGER PRIMARY KEY)",
    f"CREATE TABLE IF NOT EXISTS entry ({_MODEL})",
    f"CREATE TABLE IF NOT EXISTS suspect ({_MODEL})",
)
_DEADLY = 4
"""A pass that killed so many workers is tried seldom."""
_BUSY_S = 5.0
_MOST_VALUE_BYTES = 256 << 20

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
    """What seems to show a fault; vetting it decides.

    Attributes:
        number: Of the candidate.
        model: An ONNX model, serialized; empty for a source.
        feeds: Its inputs.
        passes: What was applied; of a source, its operators as one name.
        key: Equal for suspects that are probably of one cause.
        mutators: How the model was made.
        edit: What was changed of a model that does not show it.
        by_arbiter: Whether the arbiter ran the models.
        source: The source, where a converter is under test.
    """

    number: int
    model: bytes
    feeds: Mapping[str, np.ndarray]
    passes: tuple[str, ...]
    key: SuspicionKey
    mutators: tuple[str, ...]
    edit: tuple[str, ...] = ()
    by_arbiter: bool = False
    source: SuspectedSource | None = None


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
        deaths: Workers that died, by pass; "" for import and export, "reference" for the original,
            ``ANY`` where it is not known which one it was.
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

    def deadly_passes(self) -> dict[str, int]:
        """Passes that kill workers, and how many each has killed."""
        no_pass = {"", ANY, "reference"}
        counts = {n: c for n, c in self.deaths.items() if n not in no_pass and "+" not in n}
        return {name: count for name, count in counts.items() if count >= _DEADLY}

    def complain(self, complaint: Complaint) -> None:
        """Keep a complaint, unless there is one about the same."""
        self.complaints.setdefault(" ".join(complaint.about), complaint.text)


_Count = Annotated[int, Field(ge=0, lt=1 << 53)]
_Edits = Annotated[int, Field(ge=SPENT, lt=1 << 53)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Texts = tuple[str, ...]
_Change = tuple[str, _Texts, _Texts]
_Place = tuple[_Texts, Symptom]
_Key = tuple[_Texts, Symptom, str, _Texts, _Texts]
_STRICT = ConfigDict(strict=True, extra="forbid")


class _PlainFacts(BaseModel):
    """Fields of ``HuntState`` that are stored as they are."""

    model_config = _STRICT
    rounds: _Count = 0
    number: _Count = 0
    valid: _Count = 0
    refused: _Count = 0
    refuted: _Count = 0
    swept: _Count = 0
    seconds: _Seconds = 0.0
    vetting_seconds: _Seconds = 0.0
    met: list[str] = []
    alone: list[str] = []
    complaints: dict[str, str] = {}


class _AboutSuspect(BaseModel):
    """What is stored about a suspect, beside its model and inputs."""

    model_config = _STRICT
    number: _Count
    passes: tuple[str, ...]
    key: _Key
    mutators: tuple[str, ...]
    edit: tuple[str, ...]
    by_arbiter: bool
    source: SuspectedSource | None = None


@cache
def _shape(name: str) -> TypeAdapter[Any]:
    """What the JSON of a fact, or of what is said about a model, must look like."""
    shapes: Mapping[str, Any] = {
        "identity": dict[str, Any],
        "plain": _PlainFacts,
        "edited": list[tuple[_Count, list[_Edits]]],
        "firings": list[tuple[str, _Texts, _Texts, _Count]],
        "edits": dict[str, _Count],
        "tries": dict[str, _Count],
        "deaths": dict[str, _Count],
        "keys": list[tuple[_Key, _Count, _Count, list[str], list[_Texts]]],
        "triggers": list[tuple[str, _Place, str, frozenset[str]]],
        "reached": list[str],
        "findings": list[HuntFinding],
        "entry": tuple[str, list[_Change], _Texts, frozenset[_Place]],
        "suspect": _AboutSuspect,
    }
    # Strict, so that a number written as text is no number: a damaged file is to be noticed here.
    own = name in ("plain", "findings", "suspect")  # Models have a configuration of their own.
    return TypeAdapter(shapes[name], config=None if own else _STRICT)


class HuntStore:
    """The file of a hunt."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        try:
            self._connection = open_database(
                self._path, _TABLES, busy_s=_BUSY_S, most_value_bytes=_MOST_VALUE_BYTES
            )
        except sqlite3.DatabaseError as error:
            raise self._foreign(error) from error
        self._entries = 0
        self._tried: set[int] = set()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def identity(self) -> dict[str, Any] | None:
        """What is hunted in, as it was stored; None if nothing is."""
        try:
            # Before anything else is read: the file may be anyone's.
            check_values(self._connection, _TABLES)
            found: dict[str, Any] | None = self._fact("identity", None)
            return found
        except (sqlite3.DatabaseError, ValueError) as error:
            raise self._foreign(error) from error

    def _of_the_machine(self, error: Exception) -> InfrastructureError:
        return InfrastructureError(
            f"{self._path} cannot be read or written: {error}; check the disk, then continue with "
            "--resume"
        )

    def _foreign(self, error: Exception) -> OptvetError:
        # A full disk is no damage: another hunt in another folder would not help.
        if is_of_the_machine(error):
            return self._of_the_machine(error)
        reason = " ".join(str(error).split())[:300]
        return InputError(
            f"{self._path} is no state of a hunt: {reason}; begin another with --out FOLDER"
        )

    def begin(self, identity: Mapping[str, Any]) -> None:
        """Store what is hunted in."""
        self._transact([("identity", dict(identity))], (), None)

    def save(self, state: HuntState) -> None:
        """Store the state in one transaction.

        Raises:
            InfrastructureError: It cannot be written.
        """
        plain = {name: getattr(state, name) for name in _PlainFacts.model_fields}
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
        # Of the two that only grow, what is new: saving must not take longer with each round.
        new = state.tried - self._tried
        self._transact(facts, state.entries[self._entries :], state.suspects, new)
        self._entries, self._tried = len(state.entries), self._tried | new

    def load(self) -> HuntState:
        """The state as it was stored last.

        Raises:
            InputError: The file holds something else.
        """
        try:
            state = self._load()
        except (sqlite3.DatabaseError, DecodeError, ValueError, TypeError) as error:
            raise self._foreign(error) from error
        self._entries, self._tried = len(state.entries), set(state.tried)
        return state

    def _load(self) -> HuntState:
        state = HuntState(**dict(self._fact("plain", ())))
        state.edited = dict(self._fact("edited", []))
        for label, fewer, more, count in self._fact("firings", []):
            state.rewrites[Rewrite(label, fewer, more)] = count
        state.edits = Counter(self._fact("edits", {}))
        state.reached = {*self._fact("reached", [])}
        state.tries = Counter(self._fact("tries", {}))
        state.deaths = Counter(self._fact("deaths", {}))
        for key, seen, vetted, fingerprints, edits in self._fact("keys", []):
            state.signs[SuspicionKey(*key)] = Sign(seen, vetted, fingerprints, edits)
        for fingerprint, place, words, needed in self._fact("triggers", []):
            state.triggers.append(Trigger(fingerprint, place, words, needed))
        state.findings = self._fact("findings", [])
        for model, feeds, about in self._rows("entry"):
            way, rewrites, invented, shown = _shape("entry").validate_json(about)
            ModelProto.FromString(model)  # The plan of a round counts its nodes.
            changed = tuple(Rewrite(*rewrite) for rewrite in rewrites)
            values = unpack_arrays(feeds)
            state.entries.append(CorpusEntry(model, values, changed, way, invented, shown))
            # Not stored, since it follows from the entries; those of reached lines show no rewrite.
            if way != REACHED:
                state.seeded.update((rewrite, way) for rewrite in changed)
        # A file that someone else wrote may count edits of models that it does not hold.
        if not all(0 <= index < len(state.entries) for index in state.edited):
            raise ValueError("edits of a model that it does not have")
        # Integers of 64 bits with a sign, as SQLite has them.
        state.tried = {digest for (digest,) in self._connection.execute(_READ_TRIED)}
        for model, feeds, about in self._rows("suspect"):
            fields = dict(_shape("suspect").validate_json(about))
            key = SuspicionKey(*fields.pop("key"))
            state.suspects.append(
                Suspect(model=model, feeds=unpack_arrays(feeds), key=key, **fields)
            )
        return state

    def _fact(self, name: str, otherwise: Any) -> Any:
        """A fact, checked; ``otherwise`` if there is none.

        Raises:
            ValueError: It has another form.
        """
        found = self._connection.execute("SELECT value FROM fact WHERE name = ?", (name,))
        row = found.fetchone()
        return otherwise if row is None else _shape(name).validate_json(row[0])

    def _rows(self, table: str) -> list[tuple[bytes, bytes, str]]:
        order = f"SELECT model, feeds, about FROM {table} ORDER BY id"
        return self._connection.execute(order).fetchall()

    def _transact(
        self,
        facts: Iterable[tuple[str, Any]],
        entries: Sequence[CorpusEntry],
        suspects: Sequence[Suspect] | None,
        tried: Iterable[int] = (),
    ) -> None:
        try:
            with transaction(self._connection), closing(self._connection.cursor()) as cursor:
                _write(cursor, facts, entries, suspects)
                digests = ((digest,) for digest in tried)
                cursor.executemany("INSERT OR IGNORE INTO tried VALUES (?)", digests)
        except sqlite3.DatabaseError as error:
            raise self._of_the_machine(error) from error


def _write(
    cursor: sqlite3.Cursor,
    facts: Iterable[tuple[str, Any]],
    entries: Sequence[CorpusEntry],
    suspects: Sequence[Suspect] | None,
) -> None:
    # Facts are small, and written as a whole.
    for name, value in facts:
        cursor.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, json.dumps(value)))
    for entry in entries:
        details = json.dumps([entry.way, entry.rewrites, entry.invented, sorted(entry.shown)])
        row = (entry.model, pack_arrays(entry.feeds), details)
        cursor.execute("INSERT INTO entry (model, feeds, about) VALUES (?, ?, ?)", row)
    if suspects is None:
        return
    # Suspects come and go, unlike entries: all are written anew.
    cursor.execute("DELETE FROM suspect")
    for s in suspects:
        about = {
            "number": s.number,
            "passes": s.passes,
            "key": s.key,
            "mutators": s.mutators,
            "edit": s.edit,
            "by_arbiter": s.by_arbiter,
            "source": None if s.source is None else asdict(s.source),
        }
        row = (s.model, pack_arrays(s.feeds), json.dumps(about, default=sorted))  # sets
        cursor.execute("INSERT INTO suspect (model, feeds, about) VALUES (?, ?, ?)", row)


def _fields_of(trigger: Trigger) -> tuple[str, Place, str, frozenset[str]]:
    return trigger.fingerprint, trigger.place, trigger.words, trigger.features


def pack_arrays(feeds: Mapping[str, np.ndarray]) -> bytes:
    """Arrays by name as tensors: unlike numpy's own files, these know every element type."""
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in feeds.items()]
    return bytes(GraphProto(initializer=tensors).SerializeToString())


def unpack_arrays(data: bytes) -> dict[str, np.ndarray]:
    """Undo ``pack_arrays``.

    Raises:
        ValueError: ``data`` is something else.
    """
    try:
        tensors = GraphProto.FromString(data).initializer
    except DecodeError as error:
        raise ValueError(f"inputs of a model: {error}") from error
    # numpy_helper would open whatever file an external tensor names.
    if any(map(is_outside, tensors)):
        raise ValueError("inputs of a model lie in another file")
    try:
        return {t.name: numpy_helper.to_array(t) for t in tensors}
    except (KeyError, TypeError) as error:  # of a type that onnx does not know
        raise ValueError(f"inputs of a model have element type {error}") from error
