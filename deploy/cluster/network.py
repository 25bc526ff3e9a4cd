"""Hosts on one machine: a network namespace for each process of a cluster, joined by a bridge, so that any link can be
cut or made to lose packets while all others keep working.

    the drill's namespace   ─ veth ─┐
    host 1 (eth0 10.77.0.2) ─ veth ─┤ bridge, in its own namespace
    host 2 (eth0 10.77.0.3) ─ veth ─┘

A file descriptor of this process, and the processes inside, keep each namespace alive. Nothing has a name in the file
system, so the kernel removes everything when the drill ends, however it ends. Faults are nftables rules at the
*receiving* end: a packet is lost as on a wire, and its sender gets no error.

Must never change a network that others use: `make_network` refuses outside an isolated namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Self, TypeVar

from tandemfeed.deploy.isolation import CLONE_NEWNET, STATE_VARIABLE
from tandemfeed.runtime.threads import start_thread

SUBNET = "10.77.0"
OWN_ADDRESS = f"{SUBNET}.1"
HOST_COUNT_MAX = 200
NEEDED_TOOLS = {"ip": "iproute2", "nft": "nftables"}  # program -> Debian's package
MULTICAST = "224.0.0.0/4"
NO_RULES = ["add table inet drill", "add chain inet drill arriving { type filter hook input priority 0; }"]
T = TypeVar("T")


class NetworkUnavailable(Exception):
    """No hosts can be made on this machine; the text says why and what to do."""


class Network:
    """The hosts of one cluster; use it in a `with`. Made by `make_network`.

    Args:
        names: of the hosts.
        is_reachable: connect this process to the hosts, at OWN_ADDRESS.
    """

    def __init__(self, names: Collection[str], *, is_reachable: bool = True) -> None:
        assert len(names) <= HOST_COUNT_MAX
        self.addresses = {name: f"{SUBNET}.{place + 2}" for place, name in enumerate(names)}
        self._rules: dict[str, list[str]] = {name: [] for name in names}
        self._own_link = f"drill{os.getpid()}" if is_reachable else ""
        self._switch = _new_namespace()
        self._hosts = {name: _new_namespace() for name in names}
        try:
            self._wire()
        except BaseException:
            self.close()
            raise

    def namespace_of(self, host: str) -> str:
        """A path to the host's network namespace, valid as long as this process lives."""
        return _path_of(self._hosts[host])

    def inside(self, host: str, do: Callable[[], T]) -> T:
        """Run a function in the host's network namespace, to reach what is served only on its loopback interface."""

        def enter_and_do() -> T:
            _check(_libc().setns(self._hosts[host], CLONE_NEWNET), "entering a network namespace")
            return do()

        return _in_thread(enter_and_do)

    # ---- faults, which accumulate until `heal` ----

    def cut(self, host: str, others: Collection[str]) -> None:
        """Drop all packets between a host and each of the others, in both directions."""
        for other in others:
            self._rules[host].append(f"ip saddr {self.addresses[other]} drop")
            self._rules[other].append(f"ip saddr {self.addresses[host]} drop")
        self._apply({host, *others})

    def isolate(self, host: str) -> None:
        """Drop all packets to and from a host, as if it had vanished; no connection breaks."""
        self.cut(host, [other for other in self._hosts if other != host])

    def lose(self, sender: str, receivers: Collection[str], percent: int) -> None:
        """Drop this share of the sender's multicast datagrams at each receiver, independently."""
        assert 0 < percent < 100
        rule = f"ip saddr {self.addresses[sender]} ip daddr {MULTICAST} numgen random mod 100 < {percent} drop"
        for receiver in receivers:
            self._rules[receiver].append(rule)
        self._apply(receivers)

    def heal(self) -> None:
        """Remove all faults."""
        hurt = [host for host, rules in self._rules.items() if rules]
        for host in hurt:
            self._rules[host].clear()
        self._apply(hurt)

    # ---- inside ----

    def _apply(self, hosts: Collection[str]) -> None:
        """Replace the rules of each host, atomically per host."""
        for host in hosts:
            lines = ["flush chain inet drill arriving"]
            lines += [f"add rule inet drill arriving {rule}" for rule in self._rules[host]]
            _inside(self._hosts[host], "nft", ["-f", "-"], lines)

    def _wire(self) -> None:
        ports = ["link add bridge type bridge mcast_snooping 0", "link set bridge up"]
        plugs = [("eth0", self.namespace_of(name)) for name in self._hosts]
        if self._own_link:
            plugs.append((self._own_link, f"/proc/{os.getpid()}/ns/net"))
        for number, (inner, namespace) in enumerate(plugs):
            ports.append(f"link add port{number} type veth peer name {inner} netns {namespace}")
            ports += [f"link set port{number} master bridge", f"link set port{number} up"]
        _inside(self._switch, "ip", ["-batch", "-"], ports)
        if self._own_link:
            _run("ip", ["-batch", "-"], _plug(self._own_link, OWN_ADDRESS))
        for name, address in self.addresses.items():
            host = self._hosts[name]
            _inside(host, "ip", ["-batch", "-"], ["link set lo up", *_plug("eth0", address)])
            _inside(host, "nft", ["-f", "-"], NO_RULES)

    def close(self) -> None:
        """Release the namespaces; the kernel removes each when its last process has ended."""
        # The kernel takes a while to remove the link and free its name, so delete it here.
        with contextlib.suppress(NetworkUnavailable):
            _run("ip", ["link", "delete", self._own_link], [])
        for descriptor in (*self._hosts.values(), self._switch):
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


def make_network(names: Collection[str]) -> Network:
    """Make hosts with these names.

    Raises:
        NetworkUnavailable: the text has the reason.
    """
    reason = why_no_network()
    if reason:
        raise NetworkUnavailable(reason)
    return Network(names)


def why_no_network(environment: Mapping[str, str] = os.environ) -> str:
    """Why no hosts can be made on this machine; empty if they can."""
    if environment.get(STATE_VARIABLE) != "1":
        return "it needs a separate network namespace; start it with ./run, without --no-isolate"
    missing = [package for program, package in NEEDED_TOOLS.items() if shutil.which(program, path=_PATH) is None]
    if missing:
        return f"missing tools; on Debian or Ubuntu, run apt-get install {' '.join(missing)}"
    try:
        with Network(["trial"], is_reachable=False) as trial:
            trial.lose("trial", ["trial"], 1)
    except (OSError, NetworkUnavailable) as refused:
        return f"this system does not allow network namespaces: {refused}"
    return ""


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # the tools are in sbin, which only root has in its PATH


def _plug(link: str, address: str) -> list[str]:
    return [f"addr add {address}/24 dev {link}", f"link set {link} up"]


def _run(program: str, arguments: list[str], lines: list[str]) -> None:
    """Run a tool with these lines as its standard input.

    Raises:
        NetworkUnavailable: the text has the tool's error.
    """
    text = "\n".join(lines) + "\n"
    done = subprocess.run(
        [program, *arguments], input=text, capture_output=True, text=True, check=False, env={"PATH": _PATH}
    )
    if done.returncode != 0:
        raise NetworkUnavailable(f"{program}: {(done.stderr or done.stdout).strip()}")


def _path_of(descriptor: int) -> str:
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def _new_namespace() -> int:
    """Make a network namespace; returns a file descriptor of it."""

    def make() -> int:
        _check(_libc().unshare(CLONE_NEWNET), "a network namespace")
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    return _in_thread(make)


def _inside(namespace: int, program: str, arguments: list[str], lines: list[str]) -> None:
    """Run a tool in another network namespace."""

    def enter_and_run() -> None:
        _check(_libc().setns(namespace, CLONE_NEWNET), "entering a network namespace")
        _run(program, arguments, lines)

    _in_thread(enter_and_run)


def enter_namespace(path: str) -> None:
    """Move this process, which must have only one thread, to a network namespace.

    Raises:
        OSError: the system refuses.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc().setns(descriptor, CLONE_NEWNET), f"entering {path}")
    finally:
        os.close(descriptor)


def _in_thread(do: Callable[[], T]) -> T:
    """Call a function in a new thread. A namespace belongs to a thread, and that of this thread must not change."""
    results: list[T] = []
    failures: list[BaseException] = []

    start_thread(lambda: results.append(do()), "namespace", lambda _, failure: failures.append(failure)).join()
    if failures:
        raise failures[0]
    return results[0]


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(status: int, what: str) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
