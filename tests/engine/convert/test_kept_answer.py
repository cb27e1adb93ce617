"""Whole answers of conversions are kept as long as nothing that they depend on changes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.needs import needs

from optvet.engine.convert.kept_answer import recall_conversion
from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.work.cache import whole_answers
from optvet.spec.convert import ConvertRequest

needs("skl2onnx", reason="needs optvet[estimators]")

SOURCE = '''"""A scaler of what a module, a file beside it and one elsewhere say."""

from pathlib import Path

import numpy as np
import scale

X = np.linspace(-1, 1, 80, dtype=np.float32).reshape(20, 4)
example_inputs = (X,)


def scaler():
    from sklearn.preprocessing import StandardScaler

    text = (Path(__file__).parent / "numbers" / "offset.txt").read_text()
    text2 = (Path(__file__).parent.parent / "elsewhere.txt").read_text()
    return StandardScaler().fit(X * scale.SCALE + float(text) + float(text2))
'''


def asked(folder: Path, **more: Any) -> ConvertRequest:
    how = {"via": ("skl2onnx",), "edges": False, "random": 0, "jobs": 1}
    model = f"{folder / 'net' / 'source.py'}:scaler"
    return ConvertRequest.model_validate(
        {"model": model, "cache_dir": folder / "cache", **how, **more}
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "net" / "numbers").mkdir(parents=True)
    (tmp_path / "net" / "numbers" / "offset.txt").write_text("1.5")
    (tmp_path / "elsewhere.txt").write_text("2.5")
    (tmp_path / "net" / "scale.py").write_text("SCALE = 2.0\n")
    (tmp_path / "net" / "source.py").write_text(SOURCE)
    return tmp_path


@contextmanager
def changed(file: Path, text: str) -> Iterator[None]:
    """Another text in a file for a while; then it is as it was, its time too."""
    before = file.stat() if file.exists() else None
    old = file.read_text() if before else ""
    file.write_text(text)
    yield
    if before is None:
        file.unlink()
        return
    file.write_text(old)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_an_answer_is_kept_until_something_that_it_depends_on_changes(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = asked(place)
    assert recall_conversion(request) is None
    result = convert_model(request, Plugins())
    assert result.verdict == "right"
    assert not [c for c in result.controls if c.name == "cache"]

    def known(**more: Any) -> bool:
        return recall_conversion(asked(place, **more)) is not None

    def content(answer: Any) -> Any:
        return answer.model_dump(exclude={"wall_s"})

    assert content(recall_conversion(request)) == content(result)
    assert content(convert_model(request, Plugins())) == content(result)
    files = ("net/source.py", "net/scale.py", "net/numbers/offset.txt", "elsewhere.txt", "net/new")
    for name in files:
        with changed(place / name, "SCALE = 3.0\n"):
            assert not known(), name
        assert known(), name
    assert known(jobs=2, budget=60, fixed_tolerances=True)
    assert not known(seed=1)
    assert not known(random=1)
    assert not known(require=["max_change<=1"])
    assert not known(converter_options={"opset": 17})
    assert not known(cache=False)
    assert not known(measure=True)
    assert not known(out=place / "out")
    monkeypatch.setattr(whole_answers, "code_digest", lambda *modules: "other")
    assert not known()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("import os; os.environ", "source.py uses environ"),
        ("from time import time", "source.py uses time"),
        ("import subprocess", "source.py uses subprocess"),
    ],
)
def test_a_source_that_may_read_elsewhere_is_not_kept_and_the_answer_says_so(
    place: Path, line: str, words: str
) -> None:
    file = place / "net" / "source.py"
    file.write_text(file.read_text().replace("import scale\n", f"import scale\n{line}\n"))
    result = convert_model(asked(place), Plugins())
    (control,) = (c for c in result.controls if c.name == "cache")
    assert control.state == "limited"
    assert words in control.detail
    assert recall_conversion(asked(place)) is None


def test_what_a_worker_writes_for_itself_and_reads_is_no_file_of_the_answer(place: Path) -> None:
    own, source = place / "worker", place / "elsewhere.txt"
    own.mkdir()
    code = f"""
import tempfile
from pathlib import Path
from optvet.engine.convert.worker_steps import files_read, watch_files
tempfile.tempdir = {str(own)!r}
watch_files()
generated = Path(tempfile.mkdtemp()) / "generated.py"
generated.write_text("1")
print(generated.read_text(), len(Path({str(source)!r}).read_text()), *files_read())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "3", str(source.resolve())]


def test_a_source_in_a_folder_of_many_files_is_not_kept(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_answers, "MOST_FILES", 2)
    result = convert_model(asked(place), Plugins())
    (control,) = (c for c in result.controls if c.name == "cache")
    assert "more than 2 files" in control.detail
