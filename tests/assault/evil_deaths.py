"""Evil passes that end, stall or starve their process, or others."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from typing import Any, NoReturn

from tests.assault.kinds import kind

# --- death ---------------------------------------------------------------------------------------


@kind("optimizer-abort")
def abort(data: bytes) -> NoReturn:
    os.abort()


@kind("optimizer-abort")
def segfault(data: bytes) -> bytes:
    return ctypes.string_at(0)


@kind("optimizer-abort")
def illegal_instruction(data: bytes) -> bytes:
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\x0f\x0b" if os.uname().machine == "x86_64" else b"\0\0\0\0")
    ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
    return data


@kind("optimizer-abort")
def divide_by_zero(data: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGFPE)
    time.sleep(60)
    return data


@kind("optimizer-abort", "optimizer-error")
def stack_overflow(data: bytes) -> bytes:
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    sort = ctypes.CDLL(None).qsort
    numbers = (ctypes.c_int * 2)(2, 1)
    sys.setrecursionlimit(10**9)

    def deeper(*_: Any) -> int:
        sort(numbers, 2, 4, compare(deeper))
        return 0

    deeper()
    return data


@kind("optimizer-error")
def endless_recursion(data: bytes) -> object:
    return endless_recursion(data)


@kind("optimizer-abort", "optimizer-error")
def exit_0(data: bytes) -> NoReturn:
    sys.exit(0)


@kind("optimizer-abort", "optimizer-error")
def exit_3(data: bytes) -> NoReturn:
    sys.exit(3)


@kind("optimizer-abort", "optimizer-error")
def exit_with_a_text(data: bytes) -> NoReturn:
    raise SystemExit("no licence found")


@kind("optimizer-abort")
def exit_at_once(data: bytes) -> NoReturn:
    os._exit(0)


# Whether somebody else killed it is not to be seen, so that all of these are true.
@kind("optimizer-abort", "out-of-memory", "undecided")
def kill_itself(data: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return data


@kind("optimizer-abort", "out-of-memory", "undecided")
def kill_its_group(data: bytes) -> bytes:
    os.killpg(0, signal.SIGKILL)
    return data


@kind("optimizer-abort", "out-of-memory", "clean")
def terminate_its_group(data: bytes) -> bytes:
    os.killpg(0, signal.SIGTERM)
    return data


@kind("timeout", waits=True)
def stop_itself(data: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGSTOP)
    return data


@kind("optimizer-abort", "out-of-memory", "undecided")
def kill_the_parent(data: bytes) -> bytes:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(0.5)
    return data


@kind("optimizer-abort", "clean")
def terminate_the_parent(data: bytes) -> bytes:
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(0.5)
    return data


@kind("optimizer-abort", "timeout", "clean", "undecided", waits=True)
def stop_the_parent(data: bytes) -> bytes:
    os.kill(os.getppid(), signal.SIGSTOP)
    return data


# --- hanging -------------------------------------------------------------------------------------


@kind("timeout", waits=True)
def hang(data: bytes) -> bytes:
    time.sleep(3600)
    return data


@kind("timeout", waits=True)
def spin(data: bytes) -> bytes:
    while True:
        pass


@kind("timeout", waits=True)
def hang_holding_the_interpreter(data: bytes) -> bytes:
    # PyDLL, unlike CDLL, keeps the interpreter's lock while it calls.
    ctypes.PyDLL(None).sleep(3600)
    return data


@kind("timeout", waits=True)
def hang_deaf(data: bytes) -> bytes:
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    time.sleep(3600)
    return data


@kind("timeout", waits=True)
def wait_for_a_child(data: bytes) -> bytes:
    subprocess.run(["sleep", "3600"], start_new_session=True)
    return data


@kind("optimizer-abort", "clean", "timeout")
def set_an_alarm(data: bytes) -> bytes:
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    return data


# --- memory --------------------------------------------------------------------------------------


@kind("out-of-memory")
def eat_memory(data: bytes) -> bytes:
    blocks = []
    while True:
        blocks.append(b"x" * (1 << 22))


@kind("out-of-memory")
def eat_memory_at_once(data: bytes) -> bytes:
    return data + bytes(1 << 44)


@kind("out-of-memory", "timeout", "optimizer-error", waits=True)
def eat_memory_slowly(data: bytes) -> bytes:
    blocks = []
    while True:
        blocks.append(b"x" * (1 << 20))
        time.sleep(0.01)


@kind("out-of-memory", "optimizer-abort")
def eat_memory_and_crash(data: bytes) -> bytes:
    malloc = ctypes.CDLL(None).malloc
    malloc.restype = ctypes.c_void_p
    while (block := malloc(ctypes.c_size_t(1 << 24))) is not None:
        ctypes.memset(block, 1, 1 << 24)
    ctypes.memset(0, 1, 1)
    return data


# --- processes and threads that stay -------------------------------------------------------------


@kind("clean")
def fork_and_outlive(data: bytes) -> bytes:
    if os.fork() == 0:
        time.sleep(3600)
        os._exit(0)
    return data


@kind("clean")
def fork_twice_into_a_session(data: bytes) -> bytes:
    """A daemon by the book, which keeps all that it inherited open."""
    middle = os.fork()
    if middle == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(0)
    os.waitpid(middle, 0)
    return data


@kind("optimizer-abort")
def leave_a_daemon_and_die(data: bytes) -> NoReturn:
    """What it leaves holds the sockets of the dead, in a session of its own."""
    fork_twice_into_a_session(data)
    os._exit(5)


@kind("optimizer-abort", "optimizer-error")
def leave_a_deaf_daemon_and_die(data: bytes) -> NoReturn:
    if os.fork() == 0:
        os.setsid()
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        time.sleep(3600)
    os.abort()


@kind("clean")
def start_a_program_in_a_session(data: bytes) -> bytes:
    subprocess.Popen(["sleep", "3600"], start_new_session=True)
    return data


@kind("clean", "optimizer-error", "optimizer-abort", "timeout")
def fork_bomb(data: bytes) -> bytes:
    """Fifty children, each of them with one of its own."""
    for _ in range(50):
        if os.fork() == 0:
            os.setsid()
            os.fork()
            time.sleep(3600)
            os._exit(0)
    return data


@kind("clean")
def go_on_in_a_thread(data: bytes) -> bytes:
    threading.Thread(target=spin, args=(data,), daemon=True).start()
    return data


@kind("clean", "optimizer-abort")
def segfault_later_in_a_thread(data: bytes) -> bytes:
    threading.Timer(0.05, segfault, (data,)).start()
    return data


@kind("clean", "optimizer-abort")
def abort_much_later_in_a_thread(data: bytes) -> bytes:
    threading.Timer(0.5, os.abort).start()
    return data


@kind("clean")
def wait_in_a_thread_at_exit(data: bytes) -> bytes:
    threading.Thread(target=time.sleep, args=(3600,)).start()
    return data


# --- limits of the process -----------------------------------------------------------------------


@kind("clean", "optimizer-abort", "optimizer-error", "load-failure", "run-failure")
def take_descriptors_away(data: bytes) -> bytes:
    resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))
    return data


@kind("clean", "optimizer-abort", "optimizer-error", "out-of-memory", "load-failure")
def take_memory_away(data: bytes) -> bytes:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 26, 1 << 26))
    return data


@kind("clean", "optimizer-abort", "optimizer-error", "load-failure", "run-failure")
def take_files_away(data: bytes) -> bytes:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    return data


@kind("clean", "optimizer-abort", "optimizer-error", "timeout", "out-of-memory")
def take_processor_time_away(data: bytes) -> bytes:
    resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
    return data


@kind("clean")
def be_nice(data: bytes) -> bytes:
    os.nice(19)
    return data
