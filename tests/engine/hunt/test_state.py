"""The file of a hunt, as it was stored and as others may leave it."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from onnx import GraphProto, TensorProto
from tests.databases import ENDLESS, hot_journal

from optvet.engine.hunt.state import (
    NAME,
    CorpusEntry,
    HuntState,
    HuntStore,
    Sign,
    Suspect,
)
from optvet.engine.hunt.suspicions import Rewrite, SuspicionKey
from optvet.engine.hunt.triggers import Trigger
from optvet.spec.errors import InfrastructureError, InputError
from optvet.spec.symptoms import Symptom

REWRITE = Rewrite("fuse", ("Add", "Conv"), ("FusedConv",))
KEY = SuspicionKey(("fuse",), Symptom.WRONG_OUTPUT, "values float32", *REWRITE.change)
PLACE = ("fuse",), Symptom.WRONG_OUTPUT
FEEDS = {"x": np.array([1.5, np.nan], np.float32), "words": np.array(["a", "bc"], object)}


def full_state() -> HuntState:
    """A state in which every field is set."""
    state = HuntState(rounds=2, number=40, valid=30, seconds=1.5, met=["f" * 8], alone=["a"])
    state.complaints["x"] = "raised"
    state.edited[0] = [3, -1]
    state.edits["swap"] = state.tries["fuse"] = state.deaths[""] = 2
    state.rewrites[REWRITE] = 4
    state.reached.add("passes.py:3")
    state.signs[KEY] = Sign(3, 1, ["f" * 8], [("swap", "Add")])
    state.triggers.append(Trigger("f" * 8, PLACE, "values", frozenset({"has Add"})))
    state.entries.append(
        CorpusEntry(b"model", FEEDS, (REWRITE,), "swap", ("new",), frozenset({PLACE}))
    )
    state.seeded.add((REWRITE, "swap"))
    state.tried.update((1, -5))
    state.suspects.append(Suspect(7, b"model", FEEDS, ("fuse",), KEY, ("swap",), ("Add",), True))
    return state


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with closing(HuntStore(tmp_path)) as store:
        store.begin({"seed": 3})
        store.save(full_state())
    return tmp_path


def load(folder: Path) -> HuntState:
    with closing(HuntStore(folder)) as store:
        assert store.identity() == {"seed": 3}
        return store.load()


def change(folder: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(folder / NAME)) as database, database:
        assert database.execute(statement, values).rowcount != 0


def test_a_state_is_loaded_as_it_was_saved(folder: Path) -> None:
    loaded, saved = load(folder), full_state()
    for state in (loaded, saved):  # Arrays are compared below.
        entry, suspect = state.entries.pop(), state.suspects.pop()
        for feeds in (entry.feeds, suspect.feeds):
            assert {n: v.tolist()[0] for n, v in feeds.items()} == {"x": 1.5, "words": "a"}
        assert (entry.model, entry.rewrites, entry.way) == (b"model", (REWRITE,), "swap")
        assert (entry.invented, entry.shown) == (("new",), frozenset({PLACE}))
        assert (suspect.number, suspect.key, suspect.edit) == (7, KEY, ("Add",))
        assert (suspect.passes, suspect.mutators, suspect.by_arbiter) == (
            ("fuse",),
            ("swap",),
            True,
        )
    assert loaded == saved


WRONG = [
    ("plain", {"rounds": "2"}),
    ("plain", {"rounds": -1}),
    ("plain", {"rounds": 10**30}),
    ("plain", {"seconds": "NaN"}),
    ("plain", {"unknown": 1}),
    ("plain", [1]),
    ("edited", [[0]]),
    ("edited", [["0", [1]]]),
    ("edited", [[9, [1]]]),
    ("edited", 5),
    ("firings", [["fuse", "Add", [], 1]]),
    ("firings", [["fuse", [], [], {}]]),
    ("edits", {"swap": None}),
    ("deaths", [["a", 1]]),
    ("keys", [[["a+b", "wrong-output", "values", [], []], 1, 1, [], []]]),
    ("keys", [[[["a"], "no-such-symptom", "values", [], []], 1, 1, [], []]]),
    ("triggers", [["f", [["a"]], "w", []]]),
    ("reached", {"a": 1}),
    ("findings", [{}]),
    ("identity", [1]),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda v: json.dumps(v)[:40])
def test_a_fact_of_another_form_is_bad_input(folder: Path, name: str, value: object) -> None:
    change(folder, "UPDATE fact SET value = ? WHERE name = ?", json.dumps(value), name)
    with pytest.raises(InputError, match=r"is no state of a hunt: .*; begin another with --out"):
        load(folder)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"rounds": Infinity}'])
def test_a_fact_that_is_no_json_is_bad_input(folder: Path, text: str) -> None:
    change(folder, "UPDATE fact SET value = ? WHERE name = 'plain'", text)
    with pytest.raises(InputError, match="is no state of a hunt"):
        load(folder)


@pytest.mark.parametrize("table", ["entry", "suspect"])
@pytest.mark.parametrize("about", ["{}", "[]", '["w", [["a", 1, 2]], [], []]', "null"])
def test_a_model_with_another_description_is_bad_input(
    folder: Path, table: str, about: str
) -> None:
    change(folder, f"UPDATE {table} SET about = ?", about)
    with pytest.raises(InputError, match="is no state of a hunt"):
        load(folder)


def test_inputs_in_another_file_are_not_read(folder: Path) -> None:
    graph = GraphProto()
    tensor = graph.initializer.add(name="x", data_type=TensorProto.FLOAT, dims=[2])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=os.fspath(folder / NAME))
    for feeds in (graph.SerializeToString(), b"\xff" * 9):
        change(folder, "UPDATE entry SET feeds = ?", feeds)
        with pytest.raises(InputError, match="inputs of a model"):
            load(folder)


def test_values_of_other_types_are_bad_input(folder: Path) -> None:
    change(folder, "UPDATE entry SET model = 'text'")
    with pytest.raises(InputError, match="'model' of a row of entry is no value for it"):
        load(folder)


def test_a_view_that_never_ends_is_bad_input(folder: Path) -> None:
    change(folder, "DROP TABLE fact")
    change(folder, ENDLESS.format("fact"))
    with pytest.raises(InputError, match="it has view 'fact'"):
        load(folder)


def test_a_foreign_journal_deletes_nothing(folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    hot_journal(folder / NAME, mine)
    with pytest.raises(InputError, match=r"hunt\.sqlite-journal is there"):
        load(folder)
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO])
def test_a_file_that_the_machine_cannot_open_is_not_called_foreign(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as failing:
        failing.setattr("optvet.engine.database.open_file", refuse)
        with pytest.raises(InfrastructureError, match="continue with --resume"):
            load(folder)
    assert load(folder).rounds == 2


def test_a_full_disk_is_told_as_one_and_keeps_the_state(folder: Path) -> None:
    with closing(HuntStore(folder)) as store:
        state = store.load()
        store._connection.execute("PRAGMA max_page_count = 1")  # as small as it is
        state.entries += [CorpusEntry(bytes(1 << 20), FEEDS, (REWRITE,), "w", (), frozenset())]
        with pytest.raises(InfrastructureError, match="full"):
            store.save(state)
    assert len(load(folder).entries) == 1
