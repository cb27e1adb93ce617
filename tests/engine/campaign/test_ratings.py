"""Ratings of findings by people: read, paired, and compared by Cohen's kappa."""

from pathlib import Path

import pytest
from tests.commands import Run

from optvet.engine.campaign.ratings import own_ratings, rating_tables, read_ratings, sheet
from optvet.spec.errors import InputError
from optvet.spec.records import Finding
from optvet.spec.records.tables import CampaignTables
from optvet.spec.studies import Cause, FaultRow, TrialParts, TrialRow

HEAD = "fingerprint,model,culprit,message,symptom,stage,cause\n"
FILE = """
name = "small"
models = ["models/"]
optimizers = ["onnxoptimizer"]
vet = { limit = 1 }
"""


def row(*fingerprints: str, message: str = "it failed") -> TrialRow:
    about = {"symptom": "wrong-output", "severity": "fault", "stage": "compare"}
    found = Finding.model_validate(
        {**about, "culprit": ["fuse"], "confirmed": True, "message": message}
    )
    faults = tuple(FaultRow(f, f, found, Cause("shape")) for f in fingerprints)
    parts = TrialParts("opt", "1")
    return TrialRow("k", "m.onnx", "m", "m", "opt", "1", parts, "differs", faults=faults)


def ratings(folder: Path, text: str) -> Path:
    file = folder / "ratings.csv"
    file.write_text(HEAD + text, encoding="utf-8")
    return file


def test_agreement_is_told_per_aspect_with_what_differs(tmp_path: Path) -> None:
    keys = [f"{i:016x}" for i in (1, 2, 3, 4)]
    # Cut to its first digits, without a stage, and one that nobody else rated.
    lines = [
        f"{keys[0]},m,c,w,Wrong-Output,compare,shape",
        f"{keys[1][:-1]}2,m,c,w,wrong-output,run,type",
        f"{keys[2]},m,c,w,wrong-output,,",
        "ffffffffff,m,c,w,wrong-output,compare,shape",
    ]
    first = read_ratings(ratings(tmp_path, "\n".join(lines)))
    table, unlike = rating_tables(first, own_ratings([row(*keys)]), ("FILE", "optvet"))
    assert table.rows == [
        ["symptom", 3, 3, 1.0, None],
        ["stage", 2, 1, 0.5, 0.0],
        ["cause", 2, 1, 0.5, 0.0],
    ]
    assert unlike.rows == [
        [keys[1], "stage", "run", "compare"],
        [keys[1], "cause", "type", "shape"],
    ]
    assert "only one of them rated: 2" in table.note


def test_two_people_are_compared_by_kappa(tmp_path: Path) -> None:
    first = {f"{i:08x}": {"cause": name} for i, name in enumerate("aabb")}
    second = {f"{i:08x}": {"cause": name} for i, name in enumerate("aaba")}
    table, unlike = rating_tables(first, second, ("one", "two"))
    assert table.rows[2] == ["cause", 4, 3, 0.75, 0.5]
    assert len(unlike.rows) == 1


def test_a_sheet_hides_the_names_that_a_person_is_asked_for() -> None:
    head, line = sheet([row("a" * 16, message="=cmd(), and\na line"), row("a" * 16)]).splitlines()
    assert f"{head}\n" == HEAD
    assert line == "a" * 16 + ",m.onnx,fuse,it failed,,,"
    assert "'=cmd" in sheet([row("a" * 16, message="=cmd()")])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model,cause\nm,shape\n", "no sheet of ratings"),
        ("fingerprint,model\naaaaaaaa,m\n", "no sheet of ratings"),
        ("fingerprint,cause\nabc,shape\n", "line 2: 'abc' is no fingerprint"),
        ("fingerprint,cause\naaaaaaaa,x\naaaaaaaa,y\n", "line 3: aaaaaaaa is rated twice"),
    ],
)
def test_what_is_no_sheet_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read_ratings(file)
    file.write_bytes(b"fingerprint,cause\naaaaaaaa,\xff\n")
    with pytest.raises(InputError, match="not in UTF-8"):
        read_ratings(file)


def test_the_command_reads_a_sheet_that_it_printed(run: Run, models: Path, place: Path) -> None:
    (place / "small.toml").write_text(FILE)
    assert run("campaign", "run", "small.toml", "-q").code == 1
    printed = run("campaign", "rate", "small.store")
    assert printed.code == 0, printed.err
    filled = printed.out.replace(",,,\n", ",,optimizer-error,load,type\n".replace(",,", ",", 1))
    (place / "ratings.csv").write_text(filled)
    ran = run("campaign", "rate", "small.store", "ratings.csv", "--json", "rated.json")
    assert ran.code == 0, ran.err
    document = CampaignTables.model_validate_json((place / "rated.json").read_text())
    rated = {str(line[0]): line[1:3] for line in document.tables[0].rows}
    assert rated["symptom"] == [1, 1]
    assert rated["stage"] == [1, 0]
    assert "κ" in ran.out
    same = run("campaign", "rate", "small.store", "ratings.csv", "--against", "ratings.csv")
    assert "Agreement of FILE and --against" in same.out
    refused = run("campaign", "rate", "small.store", "--against", "ratings.csv")
    assert (refused.code, "--against needs the FILE" in refused.err) == (2, True)
