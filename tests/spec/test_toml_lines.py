from __future__ import annotations

import tomllib

import pytest

from optvet.spec.toml_lines import Path, join_with_dots, line_of

TEXT = '''\
name = "a"
models = [
  "x", # [
  "y]",
]
[vet]
timeout = 3
d.e = "["
text = """
[no]
a = 1
"""
"quoted key" = 1
[[jobs]]
optimizers = ["a"]
[jobs.vet]
timeout = "abc"
[[jobs]]
pipelines = [ ["#"], {a = "]"} ]
[jobs.vet]
timeout = 1
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("name",), 1),
        (("models",), 2),
        (("models", 1), 2),
        (("vet",), 6),
        (("vet", "timeout"), 7),
        (("vet", "d", "e"), 8),
        (("vet", "quoted key"), 13),
        (("jobs", 0), 14),
        (("jobs", 0, "vet", "timeout"), 17),
        (("jobs", 1, "pipelines", 0), 19),
        (("jobs", 1, "vet", "timeout"), 21),
        (("vet", "absent"), 6),
        (("no", "a"), None),
        ((), None),
    ],
)
def test_a_key_is_found_on_its_line_and_not_in_texts(path: Path, line: int | None) -> None:
    assert tomllib.loads(TEXT)["vet"]["timeout"] == 3
    assert line_of(TEXT, path) == line


def test_a_path_is_written_with_indices_from_one() -> None:
    assert join_with_dots(("jobs", 0, "vet", "timeout")) == "jobs[1].vet.timeout"
