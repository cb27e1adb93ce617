"""Evil passes that raise what nobody expects, or return what is no model."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import onnx
from onnx import numpy_helper
from tests.assault.kinds import Returns, destroyed, kind

from optvet.plugin import Artifact

# --- exceptions ----------------------------------------------------------------------------------


@kind("optimizer-error")
def raise_a_base_exception(data: bytes) -> NoReturn:
    raise BaseException("at the root")


@kind("optimizer-error")
def raise_keyboard_interrupt(data: bytes) -> NoReturn:
    raise KeyboardInterrupt


@kind("optimizer-error")
def raise_generator_exit(data: bytes) -> NoReturn:
    raise GeneratorExit


@kind("optimizer-error")
def raise_a_group(data: bytes) -> NoReturn:
    raise BaseExceptionGroup("many", [SystemExit(0), KeyboardInterrupt(), ValueError("one")])


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


@kind("optimizer-error")
def raise_what_cannot_be_printed(data: bytes) -> NoReturn:
    raise Unprintable


class Interrupting(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


@kind("optimizer-error", "optimizer-abort")
def raise_what_interrupts_its_printer(data: bytes) -> NoReturn:
    raise Interrupting


@kind("optimizer-error")
def raise_what_cannot_be_pickled(data: bytes) -> NoReturn:
    error = ValueError(threading.Lock())
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    raise error


@kind("optimizer-error", "out-of-memory")
def raise_a_huge_message(data: bytes) -> NoReturn:
    raise ValueError("Assertion failed: x" + "y/" * (100 << 20))


@kind("optimizer-error")
def raise_a_long_token(data: bytes) -> NoReturn:
    raise ValueError("'" + "x" * 20_000)


@kind("optimizer-error")
def raise_many_quotes(data: bytes) -> NoReturn:
    raise ValueError("'\"`(name: " * 6_000)


@kind("optimizer-error")
def raise_escape_sequences(data: bytes) -> NoReturn:
    raise ValueError("\x1b]0;pwned\x07\x1b[2J\0\udcff\u202e[bold]no markup[/]")


@kind("optimizer-error", "out-of-memory")
def say_that_memory_is_out(data: bytes) -> NoReturn:
    raise MemoryError("so I say")


InputError = type("InputError", (Exception,), {"__module__": "acme.compiler"})
"""Called as one of optvet's own errors is, by which an optimizer says that the input is bad."""


@kind("optimizer-error")
def raise_an_input_error_of_its_own(data: bytes) -> NoReturn:
    raise InputError("acme: cannot lower this")


class Nameless(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__", "__module__"):
            raise AttributeError(name)
        return super().__getattribute__(name)


@kind("optimizer-error", "optimizer-abort")
def raise_what_has_no_name(data: bytes) -> NoReturn:
    # Not at the top of the module: tools that read modules trip over it too.
    raise Nameless("Anonymous", (Exception,), {})("who am I?")


# --- no model ------------------------------------------------------------------------------------

BAD = ("optimizer-error", "invalid-model")


@kind("refused")
def return_none(data: bytes) -> Returns:
    return Returns(None)


@kind("refused")
def return_a_text(data: bytes) -> Returns:
    return Returns("a model")


@kind("refused")
def return_a_number(data: bytes) -> Returns:
    return Returns(7)


@kind("refused")
def return_a_dictionary(data: bytes) -> Returns:
    return Returns({"format": "onnx", "data": data})


@kind("refused")
def return_plain_bytes(data: bytes) -> Returns:
    return Returns(data)


@kind("refused")
def return_a_text_as_model(data: bytes) -> Returns:
    return Returns(Artifact("onnx", "a model"))  # type: ignore[arg-type]


@kind("refused")
def return_none_as_model(data: bytes) -> Returns:
    return Returns(Artifact("onnx", None))  # type: ignore[arg-type]


@kind(*BAD)
def return_half_a_model(data: bytes) -> bytes:
    return data[: len(data) // 2]


@kind(*BAD)
def return_no_bytes(data: bytes) -> bytes:
    return b""


@kind(*BAD)
def return_noise(data: bytes) -> bytes:
    return np.random.default_rng(0).bytes(5000)


@kind(*BAD, "load-failure", "out-of-memory")
def announce_ten_gigabytes(data: bytes) -> bytes:
    """A weight whose shape has far more elements than there are bytes."""
    proto = onnx.load_from_string(data)
    proto.graph.initializer[0].dims[:] = [50_000, 50_000]
    return bytes(proto.SerializeToString())


@kind(*BAD, "load-failure", "out-of-memory")
def announce_more_than_there_is(data: bytes) -> bytes:
    proto = onnx.load_from_string(data)
    proto.graph.initializer[0].dims[:] = [2**62, 2**62]
    return bytes(proto.SerializeToString())


@kind("refused")
def return_an_object_that_looks_the_part(data: bytes) -> Returns:
    seeming = SimpleNamespace(
        format=7, data=data, handle=None, fingerprint=None, changing_passes=None
    )
    return Returns(seeming)


class EqualToAll(str):
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


@kind("refused")
def return_a_format_equal_to_all(data: bytes) -> Returns:
    return Returns(Artifact(EqualToAll("acme"), destroyed(data)))


@kind("refused")
def return_an_unknown_format(data: bytes) -> Returns:
    return Returns(Artifact("acme", data))


class EqualBytes(bytes):
    """Claims to be equal to anything."""

    __hash__ = bytes.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def __len__(self) -> int:
        return 10 << 30


@kind("wrong-output", "optimizer-error")
def return_bytes_equal_to_all(data: bytes) -> Returns:
    return Returns(Artifact("onnx", EqualBytes(destroyed(data))))


class Bomb:
    """Does harm when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        return os._exit, (9,)


class BombArtifact(Artifact):
    def __reduce__(self) -> Any:
        return os._exit, (9,)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("incomparable")

    __hash__ = None  # type: ignore[assignment]


@kind("clean", "optimizer-error")
def return_an_artifact_that_kills_who_unpickles(data: bytes) -> Returns:
    return Returns(BombArtifact("onnx", data))


@kind("refused")
def touch_a_pass_that_kills_who_unpickles(data: bytes) -> Returns:
    return Returns(Artifact("onnx", data, changing_passes=(Bomb(),)))  # type: ignore[arg-type]


@kind("wrong-output", "optimizer-error")
def lie_about_the_fingerprint(data: bytes) -> Returns:
    """The fingerprint of what is left alone, for a model that is not."""
    return Returns(Artifact("onnx", destroyed(data), fingerprint="untouched", changing_passes=()))


@kind("wrong-output", "optimizer-error")
def touch_what_there_is_not(data: bytes) -> Returns:
    return Returns(Artifact("onnx", destroyed(data), changing_passes=("no such pass", "another")))


# --- half-truths ---------------------------------------------------------------------------------


@kind("wrong-output")
def write_into_the_input(data: bytes) -> bytes:
    """The bytes that it was given change under whoever else holds them."""
    _overwrite(data)
    return bytes(bytearray(data))


@kind("clean")
def write_into_the_input_and_return_the_original(data: bytes) -> bytes:
    original = bytes(bytearray(data))
    _overwrite(data)
    return original


def _overwrite(data: bytes) -> None:
    """Turn Relu into Tanh in place."""
    start = id(data) + bytes.__basicsize__ - 1
    place = data.index(b"Relu")
    ctypes.memmove(start + place, b"Tanh", 4)


@kind("clean")
def do_nothing(data: bytes) -> bytes:
    return data


@kind("wrong-output", "undecided")
def be_different_every_time(data: bytes) -> bytes:
    proto = onnx.load_from_string(data)
    weight = proto.graph.initializer[0]
    factor = np.float32(1.5 + int.from_bytes(os.urandom(2)) / 2**16)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * factor, weight.name))
    return bytes(proto.SerializeToString())


_calls = itertools.count()


@kind("clean", "wrong-output", "undecided")
def be_evil_from_the_second_call(data: bytes) -> bytes:
    return destroyed(data) if next(_calls) else data
