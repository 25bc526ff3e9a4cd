"""A client with a valid login opens as many calls as it can, of every method that clients may call. Beside it, an
honest client's calls are answered."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tandemfeed.deploy.cluster.cluster import Cluster
from tandemfeed.deploy.cluster.topology import Shape
from tandemfeed.deploy.drills.source import PACKET_MESSAGES_MAX, make_recording, prepare_journal
from tandemfeed.transport.calls.channels import BearerFor, open_channel
from tandemfeed.transport.calls.login import login
from tandemfeed.transport.calls.serving.limits import BURST_S, OF_CLIENTS
from tests.access.access_table import expectations
from tests.access.callers import SERVER_NAMES
from tests.access.calls import OK, code_of, names_in_contracts

pytestmark = pytest.mark.processes
START_TIMEOUT_S = 120.0
ROOT = Path(__file__).resolve().parents[2]
FLOOD_S = 1.5
NOT_SERVED = ("RESOURCE_EXHAUSTED", "UNAVAILABLE", "CANCELLED", "INTERNAL")
LIMITS = {name.rpartition(".")[2]: limits for name, limits in OF_CLIENTS.items()}
POLICY = """
[identity.hostile]
roles = ["client"]
subscribe = ["demo.#"]
contribute = ["demo.#"]
[identity.honest]
roles = ["client"]
subscribe = ["demo.#"]
contribute = ["demo.#"]
"""
CLIENTS = ("stranger", "reader", "contributor")
# Callers without a token may call these: they are limited by address, and for all callers without a token together.
PUBLIC = {each.call for each in expectations() if each.caller == "nobody" and each.code is None}


def calls_of_clients(server: str) -> list[str]:
    """The methods that a client may call at a server, from the tables of docs/access.md."""
    found = [each.call for each in expectations() if each.server == server and each.caller in CLIENTS and not each.code]
    return [call for call in dict.fromkeys(found) if call not in PUBLIC]


FLOODS = [(server, call) for server in SERVER_NAMES for call in calls_of_clients(server)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two feeds. Of the first, adapters a and b and the gateway run; of the second, its contribution gateway."""
    folder = Path(tmp_path_factory.mktemp("hostile"))
    recording = make_recording(folder, source=None, message_count=2_000, symbols=20)
    with Cluster(folder, Shape(feeds=2, contributed=1)) as running:
        policy = folder / "policy.toml"
        policy.write_text(policy.read_text() + POLICY)
        running.start_admin()
        feed = running.feeds[0]
        prepare_journal(recording, feed, folder / "cluster.toml", running.journal(feed), PACKET_MESSAGES_MAX)
        running.start_gateway(feed, rate=1_000.0)
        running.start_contribution_gateway(running.feeds[1])
        for name in "ab":
            running.start_adapter(feed, name)
        running.watches[feed.feed_id].await_healthy(START_TIMEOUT_S)
        running.processes[feed.gateway].send_line("start")
        yield running


@pytest.fixture(scope="module")
def endpoints(cluster: Cluster) -> dict[str, str]:
    feed = cluster.feeds[0]
    processes = {"adapter": feed.adapter("a"), "contribution gateway": cluster.feeds[1].gateway}
    ready = {name: cluster.processes[each].await_event("ready", START_TIMEOUT_S) for name, each in processes.items()}
    return {"admin server": cluster.admin, **{name: str(event["rpc"]) for name, event in ready.items()}}


@pytest.fixture(scope="module")
def honest(cluster: Cluster) -> BearerFor:
    state = cluster.folder / "admin"
    secret = (state / "secrets" / "honest.secret").read_text().strip()
    return login(cluster.admin, (state / "ca.pem").read_bytes(), "honest", secret).bearer


@contextmanager
def hostile(cluster: Cluster, endpoint: str, server: str, call: str) -> Iterator[dict[str, int]]:
    """A hostile client of a server; yields what is, at the end, how often each status ended one of its calls."""
    state = cluster.folder / "admin"
    arguments = [cluster.admin, endpoint, SERVER_NAMES[server], str(state / "ca.pem"), "hostile"]
    arguments += [str(state / "secrets" / "hostile.secret"), call]
    command = [sys.executable, "-m", "tests.access.hostile_client", *arguments]
    ended: dict[str, int] = {}
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            assert process.stdout.readline() == "open\n"
            yield ended
            process.stdin.close()
            ended.update(json.loads(process.stdout.read()))
        finally:
            process.kill()


def test_every_call_of_the_contracts_that_a_client_may_make_is_flooded() -> None:
    clients = {each.call for each in expectations() if each.caller in CLIENTS and each.code is None}
    assert clients - PUBLIC == {call for _, call in FLOODS} < set(names_in_contracts())


@pytest.mark.parametrize(("server", "flooded"), FLOODS)
def test_calls_of_an_honest_client_are_answered_beside_a_hostile_one(
    cluster: Cluster, endpoints: dict[str, str], honest: BearerFor, server: str, flooded: str
) -> None:
    ca = (cluster.folder / "admin" / "ca.pem").read_bytes()
    wrong: list[str] = []
    began_s = time.monotonic()
    with (
        hostile(cluster, endpoints[server], server, flooded) as ended,
        open_channel(endpoints[server], ca, SERVER_NAMES[server], honest) as channel,
    ):
        until_s = time.monotonic() + FLOOD_S
        while time.monotonic() < until_s:
            for call in calls_of_clients(server):
                code, details = code_of(channel, call, 0)
                if code is not OK:
                    wrong.append(f"{call}: {code.name}: {details}")
    assert not wrong, "\n".join(wrong)
    served = sum(count for code, count in ended.items() if code not in NOT_SERVED)
    rate = LIMITS[flooded.partition("/")[0]].per_second
    assert served <= rate * (time.monotonic() - began_s + BURST_S + 1), ended
