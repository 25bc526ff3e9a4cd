"""Runs a process in its own network namespace: datagrams stay inside, ports cannot clash, and loss can be injected.

Call `enter_isolated_network()` before any thread or child starts, or run
`python -m tandemfeed.deploy.isolation COMMAND ARGS…`. This needs neither root (an unprivileged user namespace is enough
where the system allows one) nor the `ip` command.

It must never leave the process half isolated: it tries each way in a child first, and uses only a way that worked
there. It must never import anything except the standard library, because it runs before the project is set up.

Invariant: if `Isolation.is_isolated`, multicast on 127.0.0.1 works and nothing outside is reachable.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fcntl import ioctl

# "1": this process tree is already isolated. "0": isolation failed, or the user declined it; do not try.
STATE_VARIABLE = "TANDEMFEED_ISOLATED"

# linux/sched.h, linux/sockios.h, linux/if.h, linux/prctl.h, linux/capability.h
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWNET = 0x4000_0000
SIOCGIFFLAGS, SIOCSIFFLAGS = 0x8913, 0x8914
IFF_UP = 0x1
INTERFACE_REQUEST = struct.Struct("16sh22x")  # struct ifreq: name, flags, rest of the union
PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 47, 2
CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN = 12, 13, 21
CAPABILITY_VERSION_3 = 0x2008_0522

PROBE_GROUP = "239.255.71.1"
PROBE_TIMEOUT_S = 2.0  # loopback answers in microseconds

_ISOLATED_TEXT = "running in a separate network namespace"


@dataclass(frozen=True, slots=True)
class Isolation:
    """The result of `enter_isolated_network`.

    Attributes:
        is_isolated: True if the process has its own network namespace.
        text: one line to show to the user.
    """

    is_isolated: bool
    text: str


def enter_isolated_network() -> Isolation:
    """Move this process, and every process it starts, to a new network namespace if the system allows one.

    Raises:
        RuntimeError: the process already has threads, which would stay outside. This is a bug of the caller.
    """
    state = os.environ.get(STATE_VARIABLE, "")
    if state == "1":
        return Isolation(True, f"{_ISOLATED_TEXT} (entered by a parent process)")
    if state == "0":
        return Isolation(False, f"not isolated ({STATE_VARIABLE}=0); using the loopback interface")
    if sys.platform != "linux":
        return Isolation(False, "not isolated (only Linux has network namespaces); using the loopback interface")
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("call enter_isolated_network() before any thread starts; threads would stay outside")
    reasons = []
    for enter in (_enter_privileged, _enter_with_user_namespace):
        reason = _try_in_child(enter)
        if reason is None:
            enter()
            os.environ[STATE_VARIABLE] = "1"
            return Isolation(True, _ISOLATED_TEXT)
        reasons.append(reason)
    os.environ[STATE_VARIABLE] = "0"
    return Isolation(False, f"cannot make a network namespace ({'; '.join(reasons)}); using the loopback interface")


def _try_in_child(enter: Callable[[], None]) -> str | None:
    """Run `enter` in a child process that then ends; None if it worked, otherwise the reason."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        reason = "the trial ended unexpectedly"
        try:
            enter()
            reason = ""
        except OSError as refused:
            reason = refused.strerror or str(refused)
        finally:
            os.write(writer, reason.encode() or b"\0")
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    if answer == b"\0":
        return None
    return answer.decode() or "the trial was killed"


def _enter_privileged() -> None:
    _unshare(CLONE_NEWNET, "a network namespace")
    _prepare_loopback()


def _enter_with_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    _unshare(CLONE_NEWUSER | CLONE_NEWNET, "an unprivileged user namespace")
    # Map the user and group to themselves, so that files, and programs that read the user's name, see no difference.
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")
    _prepare_loopback()
    _keep_network_capabilities()


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _unshare(flags: int, what: str) -> None:
    if _libc().unshare(ctypes.c_int(flags)) != 0:
        number = ctypes.get_errno()
        is_limit = number == errno.ENOSPC  # "no space left on device" would mislead
        why = "the limit in /proc/sys/user/max_*_namespaces is reached" if is_limit else os.strerror(number)
        raise OSError(number, f"{what}: {why}")


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError as refused:
        raise OSError(refused.errno, f"{path}: {refused.strerror}") from refused


def _prepare_loopback() -> None:
    """Bring `lo` up, which is down in a new namespace (the kernel adds 127.0.0.1), and check that multicast works."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        try:
            answer = ioctl(control, SIOCGIFFLAGS, INTERFACE_REQUEST.pack(b"lo", 0))
            name, flags = INTERFACE_REQUEST.unpack(answer)
            ioctl(control, SIOCSIFFLAGS, INTERFACE_REQUEST.pack(name, flags | IFF_UP))
        except OSError as refused:
            raise OSError(refused.errno, f"bringing the loopback interface up: {refused.strerror}") from refused
    _check_multicast()


def _check_multicast() -> None:
    loopback = socket.inet_aton("127.0.0.1")
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as hearing,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending,
    ):
        try:
            hearing.bind((PROBE_GROUP, 0))
            hearing.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(PROBE_GROUP) + loopback)
            hearing.settimeout(PROBE_TIMEOUT_S)
            sending.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, loopback)
            sending.sendto(b"tandemfeed", (PROBE_GROUP, hearing.getsockname()[1]))
            hearing.recv(64)
        except TimeoutError:
            raise OSError(errno.ENETUNREACH, "multicast on the loopback interface is not delivered") from None
        except OSError as refused:
            raise OSError(refused.errno, f"multicast on the loopback interface: {refused.strerror}") from refused


def _keep_network_capabilities() -> None:
    """Let child programs keep, in this namespace only, the capabilities that faults need: CAP_NET_ADMIN and CAP_NET_RAW
    for `nft`, CAP_SYS_ADMIN to make more namespaces (one per host) and small disks.

    Best effort: without them everything except those faults works, and the faults report the reason.
    """
    libc = _libc()
    header = struct.pack("<Ii", CAPABILITY_VERSION_3, 0)
    sets = ctypes.create_string_buffer(24)  # two times effective, permitted, inheritable: u32
    if libc.capget(header, sets) != 0:
        return
    words = list(struct.unpack("<6I", sets.raw))
    wanted = (CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN)
    words[2] |= sum(1 << each for each in wanted)  # ambient capabilities must be inheritable first
    if libc.capset(header, struct.pack("<6I", *words)) != 0:
        return
    for capability in wanted:
        libc.prctl(
            PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, ctypes.c_ulong(capability), ctypes.c_ulong(0), ctypes.c_ulong(0)
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command in its own network namespace: `python -m tandemfeed.deploy.isolation COMMAND ARGS…`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m tandemfeed.deploy.isolation COMMAND ARGS…\n\n" + (__doc__ or ""))
        return 0 if arguments else 2
    is_reported = STATE_VARIABLE in os.environ
    isolation = enter_isolated_network()
    if not is_reported:
        print(isolation.text, file=sys.stderr, flush=True)
    try:
        os.execvp(arguments[0], arguments)
    except OSError as missing:
        print(f"{arguments[0]}: {missing.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    raise SystemExit(main())
