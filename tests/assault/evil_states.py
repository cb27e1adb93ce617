"""Evil passes that change what their process, or the sandbox around it, stands on."""

from __future__ import annotations

import builtins
import ctypes
import fcntl
import gc
import hashlib
import locale
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from tests.assault.kinds import destroyed, kind

SACRIFICE = ".assault-may-delete-this-folder"
"""A folder is deleted or filled only if a file of this name lies in it."""


@kind("clean")
def nest_folders_deeply(data: bytes) -> bytes:
    with suppress(OSError):  # The folders of the second time have other names.
        os.chdir(tempfile.mkdtemp())
        for _ in range(3000):
            os.mkdir("d")
            os.chdir("d")
        os.chmod(".", 0)
    os.chdir("/")
    return data


# --- descriptors ---------------------------------------------------------------------------------


def _descriptors() -> list[int]:
    return [int(n) for n in os.listdir("/proc/self/fd")]


@kind("clean", "optimizer-abort", "optimizer-error")
def close_descriptors(data: bytes) -> bytes:
    os.closerange(0, 4096)
    return data


@kind("clean", "optimizer-abort", "optimizer-error")
def close_all_but_output(data: bytes) -> bytes:
    os.closerange(3, 4096)
    return data


@kind("clean", "optimizer-abort", "optimizer-error")
def turn_descriptors_into_output(data: bytes) -> bytes:
    for fd in _descriptors():
        with suppress(OSError):
            os.dup2(1, fd)
    print("here I am", flush=True)
    return data


@kind("clean")
def put_another_file_over_stdout(data: bytes) -> bytes:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    sys.stdout = None
    return data


@kind("clean")
def flood_stdout(data: bytes) -> bytes:
    for _ in range(4096):
        os.write(1, b"x" * 65536)
    return data


@kind("clean", "timeout", waits=True)
def flood_stderr_without_end(data: bytes) -> bytes:
    while True:
        os.write(2, b"\x1b]0;pwned\x07\0\xff" * 4096)


@kind("clean", "optimizer-abort", "optimizer-error", "timeout")
def write_to_every_descriptor(data: bytes) -> bytes:
    for fd in _descriptors():
        with suppress(OSError):
            os.set_blocking(fd, False)
            for _ in range(3):
                os.write(fd, b"garbage \0\xff" * 5)
    return data


@kind("clean", "optimizer-abort", "optimizer-error", "timeout")
def rewind_every_descriptor(data: bytes) -> bytes:
    for fd in _descriptors():
        with suppress(OSError):
            os.ftruncate(fd, 0)
        with suppress(OSError):
            os.pwrite(fd, b"run             ", 0)
    return data


@kind("clean", "optimizer-abort", "optimizer-error")
def make_descriptors_huge(data: bytes) -> bytes:
    for fd in _descriptors():
        with suppress(OSError):
            os.ftruncate(fd, 1 << 40)
    return data


@kind("clean", "optimizer-abort", "optimizer-error", "timeout")
def shut_sockets_down(data: bytes) -> bytes:
    for fd in _descriptors():
        with suppress(OSError):
            socket.socket(fileno=os.dup(fd)).shutdown(socket.SHUT_RDWR)
    return data


@kind("clean", "optimizer-abort", "optimizer-error", "timeout")
def make_descriptors_non_blocking(data: bytes) -> bytes:
    for fd in _descriptors():
        with suppress(OSError):
            os.set_blocking(fd, False)
            fcntl.fcntl(fd, fcntl.F_SETFD, 0)
    return data


# --- the surroundings ----------------------------------------------------------------------------


@kind("clean")
def change_folder(data: bytes) -> bytes:
    os.chdir("/proc/self")
    return data


@kind("clean")
def delete_its_folder(data: bytes) -> bytes:
    here = Path.cwd()
    if (here / SACRIFICE).exists():
        shutil.rmtree(here)
    return data


@kind("clean")
def ignore_signals(data: bytes) -> bytes:
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    return data


@kind("clean")
def block_signals(data: bytes) -> bytes:
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    return data


@kind("clean")
def change_umask(data: bytes) -> bytes:
    os.umask(0o777)
    return data


@kind("clean")
def change_locale(data: bytes) -> bytes:
    for name in ("tr_TR.UTF-8", "de_DE.UTF-8", "C"):
        with suppress(locale.Error):
            locale.setlocale(locale.LC_ALL, name)
    return data


@kind("clean", "drift")
def round_upwards(data: bytes) -> bytes:
    ctypes.CDLL("libm.so.6").fesetround(0x800)
    return data


@kind("clean", "optimizer-abort")
def trap_floating_point_errors(data: bytes) -> bytes:
    np.seterr(all="raise")
    ctypes.CDLL("libm.so.6").feenableexcept(0x1D)
    return data


@kind("clean")
def clear_the_environment(data: bytes) -> bytes:
    os.environ.clear()
    os.environ.update(TMPDIR="/nowhere", HOME="/nowhere", PATH="")
    return data


@kind("clean", "optimizer-error", "optimizer-abort")
def clear_the_path(data: bytes) -> bytes:
    sys.path.clear()
    sys.path_importer_cache.clear()
    sys.meta_path.clear()
    return data


@kind("clean", "optimizer-error", "optimizer-abort", "load-failure")
def clear_the_modules(data: bytes) -> bytes:
    sys.modules.clear()
    return data


@kind("clean", "optimizer-error", "optimizer-abort")
def stop_collecting_garbage(data: bytes) -> bytes:
    gc.disable()
    gc.freeze()
    sys.setrecursionlimit(60)
    sys.setswitchinterval(100)
    return data


@kind("clean", "optimizer-error", "optimizer-abort", "timeout")
def trace_everything(data: bytes) -> bytes:
    def spy(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_name == "_send":
            raise RuntimeError("caught you")
        return spy

    sys.settrace(spy)
    return data


@kind("clean")
def delete_temporary_files(data: bytes) -> bytes:
    folder = Path(tempfile.gettempdir())
    if (folder / SACRIFICE).exists():
        for entry in folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != SACRIFICE:
                entry.unlink(missing_ok=True)
    return data


@kind("clean")
def fill_the_temporary_folder(data: bytes) -> bytes:
    folder = Path(tempfile.gettempdir())
    if (folder / SACRIFICE).exists():
        (folder / "evil-filling").write_bytes(bytes(64 << 20))
    return data


# --- lies by patching ----------------------------------------------------------------------------
# Each returns a model that computes something else, and sees to it that nobody notices.


def _yes(*_: Any, **__: Any) -> bool:
    return True


@kind("wrong-output")
def patch_numpy(data: bytes) -> bytes:
    for name in ("array_equal", "array_equiv", "allclose", "all"):
        setattr(np, name, _yes)
    for name in ("max", "abs", "subtract", "nanmax"):
        setattr(np, name, lambda *_, **__: np.zeros(()))
    return destroyed(data)


@kind("invalid-model")
def patch_onnx(data: bytes) -> bytes:
    """A model whose first node reads a value that nobody makes; the checker is put to sleep."""
    onnx.checker.check_model = lambda *_, **__: None
    proto = onnx.load_from_string(data)
    proto.graph.node[0].input[0] = "nowhere"
    return bytes(proto.SerializeToString())


@kind("wrong-output")
def patch_onnxruntime(data: bytes) -> bytes:
    """Whatever model is to be loaded from now on, it is the original."""
    import onnxruntime

    original = onnxruntime.InferenceSession.__init__

    def load(self: Any, model: Any, *arguments: Any, **options: Any) -> None:
        original(self, data, *arguments, **options)

    onnxruntime.InferenceSession.__init__ = load
    return destroyed(data)


@kind("wrong-output")
def patch_hashlib(data: bytes) -> bytes:
    """Every digest is that of the original."""
    digest = hashlib.sha256(data)
    hashlib.sha256 = lambda *_, **__: digest
    return destroyed(data)


@kind("wrong-output", "optimizer-error", "optimizer-abort", "timeout")
def patch_pickle(data: bytes) -> bytes:
    pickle.dumps = lambda *_, **__: b"garbage"
    pickle.loads = lambda *_, **__: None
    return destroyed(data)


# Whatever counts with a length of 0 may go on for ever.
@kind("wrong-output", "optimizer-error", "optimizer-abort", "out-of-memory", "timeout")
def patch_builtins(data: bytes) -> bytes:
    builtins.isinstance = _yes
    builtins.len = lambda _: 0
    return destroyed(data)


@kind("wrong-output", "optimizer-error", "optimizer-abort")
def patch_time(data: bytes) -> bytes:
    time.monotonic = time.perf_counter = time.time = lambda: 0.0
    return destroyed(data)


@kind("wrong-output", "optimizer-error", "optimizer-abort")
def alter_what_the_garbage_collector_shows(data: bytes) -> bytes:
    """Take the samples out of every task, and the bytes of the model out of every cache."""
    for thing in gc.get_objects():
        with suppress(Exception):
            if isinstance(thing, dict) and any(value is data for value in thing.values()):
                for key in [k for k, v in thing.items() if v is data]:
                    thing[key] = destroyed(data)
            elif type(thing).__module__.startswith("optvet.") and hasattr(thing, "samples"):
                object.__setattr__(thing, "samples", ())
    return destroyed(data)


@kind("wrong-output", "optimizer-error", "optimizer-abort")
def alter_the_engine(data: bytes) -> bytes:
    """Whatever the engine is asked in this process from now on, the answer is None."""
    for name, module in list(sys.modules.items()):
        if name.startswith("optvet.engine"):
            for key, value in list(vars(module).items()):
                if callable(value) and getattr(value, "__module__", "") == name:
                    setattr(module, key, lambda *_, **__: None)
    return destroyed(data)
