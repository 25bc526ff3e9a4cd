"""Hosts made of namespaces: cut links, losses, and cleaning up. Skipped where the system does not allow namespaces."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemfeed.deploy.cluster.network import Network, NetworkUnavailable, make_network, why_no_network
from tandemfeed.deploy.cluster.small_disk import BALLAST, STEP, fill_disk, make_room, path_in_process, why_no_small_disk
from tandemfeed.deploy.command import HOST_VARIABLE
from tandemfeed.deploy.isolation import STATE_VARIABLE

ROOT = Path(__file__).resolve().parents[3]
GROUP, PORT = "239.192.99.1", 5_999
HEAR = """
import socket, struct, sys
from tandemfeed.deploy.command import apply_placement
apply_placement()
own, wanted = sys.argv[1], int(sys.argv[2])
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
receiver.bind(("", 5999))
receiver.setsockopt(
    socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("239.192.99.1") + socket.inet_aton(own))
print("ready", flush=True)
heard = 0
while True:
    data = receiver.recv(64)
    if data == b"end":
        break
    heard += 1
print(heard, flush=True)
"""
SPEAK = """
import socket, sys
from tandemfeed.deploy.command import apply_placement
apply_placement()
own, to, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
sending = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sending.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own))
for _ in range(count):
    sending.sendto(b"x", (to, 5999))
"""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if reason := why_no_network():
        pytest.skip(reason)
    with make_network(["a", "b", "c"]) as made:
        yield made


@pytest.fixture(autouse=True)
def healed(network: Network) -> Iterator[None]:
    yield
    network.heal()


def on_host(network: Network, host: str, code: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, HOST_VARIABLE: network.namespace_of(host)}
    command = [sys.executable, "-c", code, network.addresses[host], *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def heard_by(network: Network, receiver: str, sender: str, count: int) -> int:
    """How many of `count` multicast datagrams arrive. This process sends the final one, on a link without faults."""
    process = on_host(network, receiver, HEAR, "0")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert on_host(network, sender, SPEAK, GROUP, str(count)).wait(30) == 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ending:
        ending.sendto(b"end", (network.addresses[receiver], PORT))
    heard = int(process.stdout.readline())
    assert process.wait(30) == 0
    return heard


def test_hosts_receive_each_others_multicast_and_this_process_reaches_them(network: Network) -> None:
    assert heard_by(network, "b", "a", 50) == 50


def test_a_cut_link_carries_nothing_and_every_other_link_keeps_working(network: Network) -> None:
    network.cut("a", ["b"])
    assert heard_by(network, "b", "a", 20) == 0
    assert heard_by(network, "a", "b", 20) == 0
    assert heard_by(network, "c", "a", 20) == 20
    network.heal()
    assert heard_by(network, "b", "a", 20) == 20


def test_an_isolated_host_neither_sends_nor_receives(network: Network) -> None:
    network.isolate("a")
    assert heard_by(network, "b", "a", 20) == 0
    assert heard_by(network, "c", "a", 20) == 0
    assert heard_by(network, "a", "c", 20) == 0
    assert heard_by(network, "c", "b", 20) == 20


def test_a_receiver_loses_about_the_configured_share_and_the_others_lose_nothing(network: Network) -> None:
    network.lose("a", ["b"], 5)
    heard = heard_by(network, "b", "a", 3_000)
    assert 2_700 < heard < 2_970  # 2,850 expected, standard deviation 12
    assert heard_by(network, "c", "a", 500) == 500


@pytest.mark.usefixtures("network")
def test_a_network_leaves_nothing_behind() -> None:
    code = (
        "import socket; from tandemfeed.deploy.cluster.network import make_network\n"
        "before = socket.if_nameindex()\n"
        "with make_network(['x', 'y']): assert len(socket.if_nameindex()) == len(before) + 1\n"
        "assert socket.if_nameindex() == before\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != STATE_VARIABLE}
    command = [sys.executable, "-m", "tandemfeed.deploy.isolation", sys.executable, "-c", code]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr


def test_without_isolation_no_network_is_made() -> None:
    assert "a separate network namespace" in why_no_network({"TANDEMFEED_ISOLATED": "0"})
    assert "a separate network namespace" in why_no_network({})


def test_an_error_contains_the_message_of_the_tool(network: Network) -> None:
    network.addresses["c"] = "nonsense"
    try:
        with pytest.raises(NetworkUnavailable, match="nft: "):
            network.cut("a", ["c"])
    finally:
        network.heal()
        network.addresses["c"] = "10.77.0.4"


def test_the_trial_of_a_small_disk_needs_only_the_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tandemfeed").symlink_to(Path(__file__).parents[3] / "tandemfeed")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert "No module" not in why_no_small_disk()


def test_a_small_disk_is_full_only_for_its_process(tmp_path: Path) -> None:
    if reason := why_no_small_disk():
        pytest.skip(reason)
    code = (
        "import pathlib, sys; from tandemfeed.deploy.cluster.small_disk import mount_small_disk\n"
        "mount_small_disk(pathlib.Path(sys.argv[1]), 8 << 20)\n"
        "print('ready', flush=True)\n"
        "for _ in sys.stdin:\n"
        "    try:\n"
        "        (pathlib.Path(sys.argv[1]) / 'file').write_bytes(bytes(2 << 20)); print('written', flush=True)\n"
        "    except OSError as full: print(full.strerror, flush=True)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        folder = path_in_process(child.pid, tmp_path)
        fill_disk(folder)
        assert (folder / BALLAST).stat().st_size >= 7 * STEP
        results = []
        for _ in range(2):
            child.stdin.write("\n")
            child.stdin.flush()
            results.append(child.stdout.readline().strip())
            if (folder / BALLAST).exists():
                make_room(folder)
        assert results == ["No space left on device", "written"]
        assert list(tmp_path.iterdir()) == []  # no other process sees the disk
    finally:
        child.stdin.close()
        child.wait(30)


def test_a_function_run_in_a_host_sees_its_address_and_the_caller_does_not(network: Network) -> None:
    def can_bind(address: str) -> bool:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
            try:
                trial.bind((address, 0))
            except OSError:
                return False
        return True

    address = network.addresses["a"]
    assert network.inside("a", lambda: can_bind(address))
    assert not network.inside("b", lambda: can_bind(address))
    assert not can_bind(address)
