"""What is read of a worker's answer, and what is not."""

from __future__ import annotations

import builtins
import datetime
import functools
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx
import pytest

from optvet.engine.work.sandbox import Limits
from optvet.engine.work.sandbox.answers import read_answer
from optvet.engine.work.sandbox.portable import pickle_portably
from optvet.spec.errors import MissingLibrary
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Artifact


class Sides(NamedTuple):
    """A named tuple."""

    left: int
    right: int


class Call:
    """Calls a function where it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, None, (True, b"bytes")], "b": {frozenset([1]), 2j}},
        Limits(1.0, 2, writable=("folder",)),
        Artifact("onnx", b"model"),
        Symptom.CRASH,
        Path("/folder"),
        onnx.helper.make_tensor("t", onnx.TensorProto.FLOAT, [1], [2.0]),
        datetime.datetime(2000, 1, 2),
        (np.float32, np.dtype("int8"), slice(1, 2), range(3)),
        Sides(1, 2),
    ],
)
def test_data_is_read(value: object) -> None:
    assert read_answer(pickle.dumps(value, protocol=5)) == value


@pytest.mark.parametrize("dtype", [np.float32, np.bool_, ml_dtypes.bfloat16, ml_dtypes.int4, "U3"])
def test_arrays_and_scalars_are_read(dtype: Any) -> None:
    array = np.array([[1, 0, 1]]).astype(dtype)
    for value in (array, np.asfortranarray(array.T), array[0, 0], np.array([array, None], object)):
        read = read_answer(pickle_portably(value))
        assert type(read) is type(value)
        assert str(read) == str(value)


def test_an_exception_that_says_how_it_is_rebuilt_is_read() -> None:
    read = read_answer(pickle.dumps(MissingLibrary("jax", "optvet[jax]")))
    assert (read.library, read.extra) == ("jax", "optvet[jax]")


@pytest.mark.parametrize(
    "function",
    [
        os.system,
        builtins.eval,
        builtins.getattr,
        functools.partial,
        subprocess.Popen,
        np.memmap,
        np.load,
        np.asarray,
        sys.exit,
    ],
)
def test_what_is_no_data_is_not_even_named(function: Any, tmp_path: Path) -> None:
    for answer in (Call(function, f"touch {tmp_path}/ran"), function):
        with pytest.raises(pickle.UnpicklingError, match="is no class of data"):
            read_answer(pickle.dumps(answer))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [b"optvet.spec.types\nnp.load", b"optvet.spec.scratch\nPath"])
def test_no_other_name_leads_to_it(name: bytes) -> None:
    with pytest.raises(pickle.UnpicklingError, match="is no class of data"):
        read_answer(b"\x80\x04c" + name + b"\n.")


def test_a_module_that_is_not_there_or_a_script_is_not_imported() -> None:
    for module in (b"this", b"numpy.f2py.__main__", b"optvet.absent"):
        with pytest.raises(pickle.UnpicklingError, match="is no class of data"):
            read_answer(b"\x80\x04c" + module + b"\nname\n.")
    assert "this" not in sys.modules


def setting(owner: bytes, name: bytes, value: bytes) -> bytes:
    """A pickle that sets an attribute of an object, which ``owner`` leaves on the stack."""
    return (
        b"\x80\x04" + owner + b"N}X" + len(name).to_bytes(4, "little") + name + value + b"s\x86b."
    )


LIMITS = b"coptvet.engine.work.sandbox.outcome\nLimits\n"
CRASH = b"coptvet.spec.symptoms\nSymptom\nX\x05\x00\x00\x00crash\x85R"


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (LIMITS, b"seconds"),
        (LIMITS, b"__eq__"),
        (LIMITS, b"new"),
        (CRASH, b"_value_"),
        (CRASH, b"new"),
        (b"coptvet.spec.symptoms\nSymptom\n", b"new"),
    ],
)
def test_what_outlives_an_answer_stays_as_it_is(owner: bytes, name: bytes) -> None:
    shared = (Limits, Symptom, *Symptom)
    before = [dict(vars(one)) for one in shared]
    with pytest.raises(pickle.UnpicklingError, match=r"it changes .*(Limits|Symptom)"):
        read_answer(setting(owner, name, b"N"))
    assert [dict(vars(one)) for one in shared] == before
    assert read_answer(pickle.dumps(Symptom.CRASH)) is Symptom.CRASH


def test_a_class_that_takes_a_state_of_its_own_is_not_changed() -> None:
    before = dict(vars(MissingLibrary))
    named = b"coptvet.spec.errors\nMissingLibrary\n"
    with pytest.raises(TypeError):
        read_answer(setting(named, b"library", b"N"))
    assert dict(vars(MissingLibrary)) == before
