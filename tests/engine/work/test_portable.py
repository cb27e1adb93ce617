"""Values between processes whose numpy is of another version."""

from __future__ import annotations

import datetime
import pickletools
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from optvet.engine.environment.package_index import NotInstallable, PackageIndex
from optvet.engine.environment.releases import ReleaseStore
from optvet.engine.work.sandbox.answers import read_answer
from optvet.engine.work.sandbox.portable import array_of_items, pickle_portably
from optvet.spec.errors import InfrastructureError

KINDS = ("?", "i1", "u8", ">f4", "f2", "c16", "U3", "S2", "M8[s]", ml_dtypes.bfloat16)
FORMS = ("whole", "transposed", "every other", "empty", "rank 0", "read-only", "scalar")


def values(kind: Any, form: str) -> Any:
    whole = np.arange(12).astype("M8[s]" if kind == "M8[s]" else "i4").astype(kind).reshape(3, 4)
    if form == "read-only":
        whole.flags.writeable = False
    return {
        "transposed": whole.T,
        "every other": whole[::2, ::3],
        "empty": whole[:0],
        "rank 0": whole[1, 1].reshape(()),
        "scalar": whole[1, 2],
    }.get(form, whole)


def names_in(data: bytes) -> set[tuple[str, str]]:
    """What a pickle names: each is called, or looked up, where it is read."""
    texts: list[str] = []
    found = set()
    for operation, argument, _ in pickletools.genops(data):
        if "UNICODE" in operation.name:
            texts.append(str(argument))
        elif operation.name == "STACK_GLOBAL":
            found.add((texts[-2], texts[-1]))
    return found


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_arrays_are_read_as_they_were_without_a_function_of_numpy(kind: Any, form: str) -> None:
    value = values(kind, form)
    data = pickle_portably({"a": value, "again": value})
    read = read_answer(data)
    assert read["a"] is read["again"]
    assert (type(read["a"]), read["a"].dtype) == (type(value), value.dtype)
    np.testing.assert_array_equal(read["a"], value)
    functions = {name for module, name in names_in(data) if module.startswith("numpy")}
    assert functions == {"dtype"}


def test_arrays_of_objects_and_of_records_are_read_as_they_were() -> None:
    objects = np.array([["text", None], [[1, 2], np.zeros(2)]], object)
    records = np.array([(1, "a"), (2, "b")], [("n", "i4"), ("text", object)])
    read = read_answer(pickle_portably([objects, records, records[1], np.zeros((2, 0), "V0")]))
    assert read[0].tolist()[0] == ["text", None]
    assert read[0][1, 0] == [1, 2]
    assert read[1].tolist() == records.tolist()
    assert read[2].item() == (2, "b")
    assert read[3].shape == (2, 0)


def test_a_shape_of_more_elements_than_there_are_takes_no_memory() -> None:
    with pytest.raises(ValueError, match="2 elements for the shape"):
        array_of_items(np.dtype(object), (1 << 60, 1 << 60), [1, 2])


def test_other_values_are_read_as_they_were() -> None:
    value = {"a": (1, 2.5, None, b"x"), "b": datetime.date(2001, 2, 3), "c": [Path("/x"), {1}]}
    assert read_answer(pickle_portably(value)) == value


_SWAP = """
import sys
from pathlib import Path
import numpy as np
from optvet.engine.work.sandbox.answers import read_answer
from optvet.engine.work.sandbox.portable import pickle_portably
assert np.__version__.startswith("1."), np.__version__
value = read_answer(Path(sys.argv[1]).read_bytes())
Path(sys.argv[1]).write_bytes(pickle_portably([value, np.float32(2.5), np.ones((2, 3))]))
"""


@pytest.mark.long
def test_numpy_1_and_numpy_2_read_each_other(tmp_path: Path) -> None:
    store, file = ReleaseStore(tmp_path / "releases"), tmp_path / "value"
    sent = [values(kind, form) for kind in KINDS[:-1] for form in FORMS]
    file.write_bytes(pickle_portably(sent))
    try:
        with store.using("numpy", "1.26.4", PackageIndex()) as folder:
            command = [sys.executable, "-P", "-c", _SWAP, str(file)]
            subprocess.run(command, env={"PYTHONPATH": str(folder)}, check=True, timeout=120)
    except (NotInstallable, InfrastructureError) as error:
        pytest.skip(str(error))
    came, number, ones = read_answer(file.read_bytes())
    for before, after in zip(sent, came, strict=True):
        np.testing.assert_array_equal(before, after)
    assert (number, ones.tolist()) == (np.float32(2.5), np.ones((2, 3)).tolist())
