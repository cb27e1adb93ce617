"""Tasks that do to the sandbox what broken or careless code does; run in its workers."""

import array
import ctypes
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path


def sockets() -> list[int]:
    found = []
    for fd in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                found.append(fd)
        except OSError:
            pass
    return found


def double_fork(note: str) -> None:
    """Leave a process in a session of its own, whose parent has ended."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            Path(note).write_text(str(os.getpid()))
            time.sleep(600)
        os._exit(0)
    os.wait()
    while not Path(note).exists() or not Path(note).read_text():
        time.sleep(0.01)


def leave_detached(note: str, then: str) -> str:
    """Leave a detached process that holds every descriptor; then return, die, or hang."""
    double_fork(note)
    if then == "abort":
        os.abort()
    if then == "hang":
        time.sleep(600)
    if then == "leave":
        os._exit(3)
    return then


def leave_in_clean_environment(note: str) -> None:
    """Leave a detached process that keeps nothing of this one's environment, and abort."""
    code = f"import os, time; open({note!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", code], env={}, start_new_session=True)
    while not Path(note).exists() or not Path(note).read_text():
        time.sleep(0.01)
    os.abort()


def leave_forking(note: str) -> None:
    """Leave a family in which each process starts the next and ends, and abort."""
    if os.fork() == 0:
        os.setsid()
        for _ in range(2000):
            Path(note).write_text(str(os.getpid()))
            time.sleep(0.02)
            if os.fork():
                os._exit(0)
        os._exit(0)
    while not Path(note).exists():
        time.sleep(0.01)
    os.abort()


def close_descriptors(first: int) -> str:
    os.closerange(first, 256)
    return "done"


def hang_up_and_hang() -> None:
    os.closerange(3, 256)
    time.sleep(600)


def send_raw(data: bytes, times: int) -> str:
    """Write ``data`` to every socket of this process."""
    for _ in range(times):
        for fd in sockets():
            os.write(fd, data)
    return "done"


def flood(data: bytes) -> None:
    while True:
        for fd in sockets():
            try:
                os.write(fd, data)
            except OSError:
                time.sleep(0.01)


def send_descriptors(count: int) -> str:
    """Send a packet laden with descriptors."""
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [2] * count))
    for fd in sockets():
        with socket.socket(fileno=os.dup(fd)) as channel:
            channel.sendmsg([b"x" * 17], [rights])
    return "done"


def send_memory_file(size: int) -> str:
    """Send a large message in a file that can still be truncated, and truncate it."""
    memory = os.memfd_create("hostile")
    os.ftruncate(memory, size)
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory]))
    for fd in sockets():
        with socket.socket(fileno=os.dup(fd)) as channel:
            channel.sendmsg([b"v" + b"x" * 16], [rights])
    os.ftruncate(memory, 0)
    return "done"


def scribble_on_files() -> str:
    """Write into, grow and truncate every memory file of this process."""
    for fd in range(1, 256):
        try:
            if not os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:"):
                continue
            os.pwrite(fd, b"\xff" * 16, 0)
            os.ftruncate(fd, 1 << 50)
            os.ftruncate(fd, 0)
        except OSError:
            pass
    os.abort()


def stop_myself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def stop_parent_and_hang() -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(600)


def kill_parent(fatal: int) -> None:
    os.kill(os.getppid(), fatal)
    time.sleep(600)


def die_once(note: str, value: str) -> str:
    """Be killed by somebody else, as it looks, the first time only."""
    if not Path(note).exists():
        Path(note).write_text("x")
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def report_and_sleep(folder: str, seconds: float) -> str:
    """Tell the number of this process in ``folder``, then sleep."""
    Path(folder, str(os.getpid())).write_text("")
    time.sleep(seconds)
    return "slept"


def report_and_outlive(folder: str, deaths: int) -> str:
    """Tell the number of this process in ``folder``; wait to be killed until ``deaths`` were."""
    # nohup has it ignored.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    Path(folder, str(os.getpid())).write_text("")
    if len(os.listdir(folder)) <= deaths:
        time.sleep(60)
    return "lived"


def raise_text(size: int) -> None:
    raise ValueError("head" + "x" * size + "tail")


def raise_named(size: int) -> None:
    raise type("E" * size, (Exception,), {})("named")


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raise_speechless() -> None:
    raise Speechless


def raise_surrogate() -> None:
    raise ValueError("half \ud800 a character")


def fork_and_return() -> int:
    """Return twice: in this process and in a fork of it."""
    return os.fork()


def set_alarm() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0.2)


def native_alarm() -> None:
    ctypes.CDLL(None).alarm(1)


def leave_thread() -> int:
    """Leave a thread that ends the process a little later; the number of the process."""

    def end() -> None:
        time.sleep(0.3)
        os._exit(9)

    threading.Thread(target=end, daemon=True).start()
    return os.getpid()


def change_folder(folder: str) -> int:
    os.chdir(folder)
    return os.getpid()


def set_variable(name: str, value: str) -> int:
    os.environ[name] = value
    return os.getpid()


def redirect() -> int:
    """Point descriptors 1 and 2 elsewhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    return os.getpid()


def grow_and_die(size: int) -> None:
    """Fill ``size`` bytes and be killed."""
    filled = b"x" * size
    assert filled
    os.kill(os.getpid(), signal.SIGKILL)


def forget_modules() -> int:
    """Leave a process in which nothing can be imported; its number."""
    sys.modules.clear()
    sys.meta_path.clear()
    return os.getpid()


def forbid_files() -> int:
    """Leave a process that can write to no file; its number."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    return os.getpid()
