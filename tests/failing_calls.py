"""System calls of a real process that fail at the n-th call, for tests.

The process runs with a seccomp filter (seccomp_unotify(2)), which the kernel asks this process about at each call of a
kind: it lets the call be made, has it fail with an error, or makes it in part (a short write). Threads and children of
the process are included, and counted together. Nothing in the process is changed, so libraries are tested, too.

    with failing_calls([sys.executable, "-m", "…"], Fault("fsync", errno.EIO, when=3)) as (process, injection):
        process.wait()
        assert injection.failed
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# System call numbers: x86_64, aarch64. One name may stand for several calls.
NUMBERS = {
    "accept": {"x86_64": (43, 288), "aarch64": (202, 242)},
    "epoll_wait": {"x86_64": (232, 281), "aarch64": (22,)},
    "eventfd": {"x86_64": (290,), "aarch64": (19,)},
    "fallocate": {"x86_64": (285,), "aarch64": (47,)},
    "fsync": {"x86_64": (74, 75), "aarch64": (82, 83)},  # and fdatasync
    "ftruncate": {"x86_64": (77,), "aarch64": (46,)},
    "mkdir": {"x86_64": (83, 258), "aarch64": (34,)},
    "mmap": {"x86_64": (9,), "aarch64": (222,)},
    "open": {"x86_64": (2, 257), "aarch64": (56,)},
    "poll": {"x86_64": (7, 271), "aarch64": (73,)},
    "read": {"x86_64": (0, 17), "aarch64": (63, 67)},  # and pread
    "recv": {"x86_64": (45, 47), "aarch64": (207, 212)},
    "rename": {"x86_64": (82, 264, 316), "aarch64": (38, 276)},
    "send": {"x86_64": (44, 46), "aarch64": (206, 211)},
    "socket": {"x86_64": (41,), "aarch64": (198,)},
    "unlink": {"x86_64": (87, 263), "aarch64": (35,)},
    "write": {"x86_64": (1, 18), "aarch64": (64, 68)},  # and pwrite
}
ARCHITECTURES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
SECCOMP = {"x86_64": 317, "aarch64": 277}
PWRITES = {18, 68}
STATUS_REFUSED = 100  # and the number of the error, of a process that could not install the filter
SHORT = -1  # as an error: the write is made in part
SECCOMP_SET_MODE_FILTER, FLAG_NEW_LISTENER = 1, 8
# A call that waits for the answer is not interrupted by signals; otherwise it would fail with EINTR, also where it
# never does without a filter. Since Linux 5.19.
FLAG_WAIT_KILLABLE_RECV = 32
PR_SET_NO_NEW_PRIVS = 38
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # of bpf(4)
ALLOW, USER_NOTIF = 0x7FFF_0000, 0x7FC0_0000
NOTIFICATION = struct.Struct("=QIIiIQ6Q")
RESPONSE = struct.Struct("=QqiI")
NOTIF_RECV, NOTIF_SEND = 0xC050_2100, 0xC018_2101
FLAG_CONTINUE = 1
POPEN = subprocess.Popen  # which a test may replace


@dataclass(frozen=True, slots=True)
class Fault:
    """Which call fails, and how.

    Attributes:
        call: a name of NUMBERS.
        error: of errno; or SHORT.
        when: the first call that fails, from 1 on.
        count: how many calls fail from then on.
        of: part of the path that the call is about, such as a folder; or of a description of a socket, such as
            "socket:" or "socket:stream"; empty: any call.
    """

    call: str
    error: int
    when: int = 1
    count: int = 1
    of: str = ""

    def __str__(self) -> str:
        how = "is short" if self.error == SHORT else f"fails with {errno.errorcode[self.error]}"
        return f"{self.call} number {self.when}{f' of {self.of}' if self.of else ''} {how}"


class Injection:
    """What happens to the calls of a process.

    Attributes:
        is_armed: whether calls are counted, and may fail.
        calls: how many matched.
        failed: the paths of those that failed; empty texts if the fault names no path.
    """

    def __init__(self, fault: Fault) -> None:
        self.fault, self.is_armed, self.calls, self.failed = fault, True, 0, list[str]()
        self._thread = threading.Thread(name="failing-calls")

    def begin(self, listener: int) -> None:
        """Answer the kernel from now on, until the process and its children have ended."""
        self._thread = threading.Thread(target=_answer, args=(listener, self), name="failing-calls", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float = 30.0) -> None:
        """Wait until the process and its children have ended."""
        self._thread.join(timeout_s)

    def fails(self, path: str) -> bool:
        """Count a call; whether it fails."""
        if not self.is_armed or self.fault.of not in path:
            return False
        self.calls += 1
        is_failing = self.fault.when <= self.calls < self.fault.when + self.fault.count
        if is_failing:
            self.failed.append(path)
        return is_failing


def why_no_failing_calls() -> str:
    """Why this machine does not allow it; empty if it does. Tries it."""
    if platform.machine() not in ARCHITECTURES:
        return f"no system call numbers for {platform.machine()}"
    try:
        code = "import os; os.fsync(os.open('/proc/self/exe', os.O_RDONLY))"
        with failing_calls([sys.executable, "-c", code], Fault("fsync", errno.EDOM), stderr=subprocess.PIPE) as made:
            process, _ = made
            _, text = process.communicate(timeout=60)
    except OSError as refused:
        return f"the system does not allow seccomp notifications: {refused}"
    return "" if b"Numerical argument out of domain" in text else "calls do not fail"


@contextmanager
def failing_calls(
    command: Sequence[str], fault: Fault, **options: Any
) -> Iterator[tuple[subprocess.Popen[bytes], Injection]]:
    """Run a command; yields its process, and what happens to its calls. It is killed at the end.

    Args:
        options: of `subprocess.Popen`.

    Raises:
        OSError: the system does not allow it.
    """
    process, injection = start_failing(command, fault, **options)
    with process:
        try:
            yield process, injection
        finally:
            process.kill()
    injection.join()


def start_failing(command: Sequence[str], fault: Fault, **options: Any) -> tuple[subprocess.Popen[bytes], Injection]:
    """Start a command whose calls fail; like `subprocess.Popen`."""
    process = POPEN([sys.executable, "-S", __file__, fault.call, *command], **options)
    try:
        listener, injection = _listener_of(process), Injection(fault)
    except BaseException:
        process.kill()
        process.wait()
        raise
    injection.begin(listener)
    process.send_signal(signal.SIGCONT)
    return process, injection


# ---- in the process ----


def _launch(call: str, command: list[str]) -> None:
    """Install the filter, stop until its descriptor was copied, and become the command."""
    libc = ctypes.CDLL(None, use_errno=True)
    numbers = NUMBERS[call][platform.machine()]
    program = [(LOAD, 0, 0, 4), (JUMP_IF_EQUAL, 1, 0, ARCHITECTURES[platform.machine()]), (RETURN, 0, 0, ALLOW)]
    program.append((LOAD, 0, 0, 0))
    for left, number in zip(range(len(numbers), 0, -1), numbers, strict=True):
        program.append((JUMP_IF_EQUAL, left, 0, number))
    program += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, USER_NOTIF)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in program))
    header = struct.pack("@HP", len(program), ctypes.addressof(code))
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    number = SECCOMP[platform.machine()]
    listener = libc.syscall(number, SECCOMP_SET_MODE_FILTER, FLAG_NEW_LISTENER | FLAG_WAIT_KILLABLE_RECV, header)
    if listener < 0:
        os._exit(STATUS_REFUSED + ctypes.get_errno())
    os.kill(os.getpid(), signal.SIGSTOP)  # calls of that kind are asked about, and nothing answers yet
    os.execvp(command[0], command)


# ---- in the test ----


def _listener_of(process: subprocess.Popen[bytes]) -> int:
    """A copy of the descriptor of the process's filter; when this returns, the process is stopped."""
    ended = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    if ended is None or ended.si_code != os.CLD_STOPPED:
        number = process.wait() - STATUS_REFUSED
        raise OSError(number, os.strerror(number))
    (descriptor,) = (
        int(each.name)
        for each in os.scandir(f"/proc/{process.pid}/fd")
        if os.readlink(each.path) == "anon_inode:seccomp notify"
    )
    return _copy_of(process.pid, descriptor)


def _answer(listener: int, injection: Injection) -> None:
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    try:
        while True:
            ((_, events),) = poll.poll()
            if not events & select.POLLIN:
                return  # POLLHUP: no process has the filter any more
            question = bytearray(NOTIFICATION.size)
            try:
                fcntl.ioctl(listener, NOTIF_RECV, question)
            except OSError:  # the caller was interrupted or killed meanwhile
                continue
            number, pid, _, call, _, _, *arguments = NOTIFICATION.unpack(question)
            value, error = _decision(injection, pid, call, arguments)
            flags = FLAG_CONTINUE if value is None and not error else 0
            with contextlib.suppress(OSError):  # likewise
                fcntl.ioctl(listener, NOTIF_SEND, RESPONSE.pack(number, value or 0, -error, flags))
    finally:
        os.close(listener)


def _decision(injection: Injection, pid: int, call: int, arguments: list[int]) -> tuple[int | None, int]:
    """(what the call returns, None: it is made; its error)."""
    path = _path_of(injection.fault.call, pid, arguments) if injection.fault.of else ""
    if not injection.fails(path):
        return None, 0
    if injection.fault.error != SHORT:
        return None, injection.fault.error
    return _write_half(pid, call, arguments), 0


def _path_of(call: str, pid: int, arguments: list[int]) -> str:
    """The path that a call is about."""
    try:
        if call in ("open", "mkdir", "unlink", "rename"):
            return "\n".join(_text_at(pid, each) for each in arguments[:4])
        descriptor = arguments[4 if call == "mmap" else 0] & 0xFFFF_FFFF
        path = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        return _described(pid, descriptor) if path.startswith("socket:") else path
    except OSError:
        return ""


def _described(pid: int, descriptor: int) -> str:
    """ "socket:stream", "socket:dgram" of the internet; "socket:" of others, which do not lose connections."""
    with socket.socket(fileno=_copy_of(pid, descriptor)) as copied:
        is_internet = copied.family in (socket.AF_INET, socket.AF_INET6)
        kind = copied.type & ~(socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        return "socket:" + {socket.SOCK_STREAM: "stream", socket.SOCK_DGRAM: "dgram"}.get(kind, "") * is_internet


def _text_at(pid: int, address: int) -> str:
    """The text in the memory of a process; empty: there is none."""
    if address < 1 << 16:  # not an address
        return ""
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            return memory.read(256).partition(b"\0")[0].decode("ascii", "replace")
    except (OSError, OverflowError, ValueError):
        return ""


def _write_half(pid: int, call: int, arguments: list[int]) -> int:
    """Make the first half of a write in place of the process, so that it sees a short write."""
    descriptor, address, size = arguments[:3]
    half = max(1, size // 2)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        data = memory.read(half)
    target = _copy_of(pid, descriptor)
    try:
        return os.pwrite(target, data, arguments[3]) if call in PWRITES else os.write(target, data)
    finally:
        os.close(target)


def _copy_of(pid: int, descriptor: int) -> int:
    """The same open file as the process has it, with its position (pidfd_getfd(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(_process_of(pid))
    try:
        copied = int(libc.syscall(438, process, descriptor, 0))  # the number is the same everywhere
        if copied < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return copied
    finally:
        os.close(process)


def _process_of(thread: int) -> int:
    with open(f"/proc/{thread}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Tgid:"))


if __name__ == "__main__":
    _launch(sys.argv[1], sys.argv[2:])
