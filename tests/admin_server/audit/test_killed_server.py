"""kill -9 at any moment: what the server has acknowledged is in its records and in its audit log after the restart."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from tandemfeed.admin_server.audit.files import audit_files
from tandemfeed.admin_server.audit.verification import noted_head, verify
from tandemfeed.admin_server.records.store import Store
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.login import AuthenticationRefused, login
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.adapter.processes.clusters import Feed, ServerProcess
from tests.admin_server.cluster_files import ca_of, secret_of
from tests.admin_server.subscriber_by_hand import SubscriberCall, keys_of
from tests.kill_rounds import kill_rounds

CLIENT_COUNT = 3
pytestmark = pytest.mark.processes


@dataclass
class Acknowledged:
    """What callers were told."""

    subscriptions: list[str] = field(default_factory=list)  # the addresses of the callers
    failed: list[str] = field(default_factory=list)  # the reasons given with the adapter's failing
    readmitted_count: int = 0
    policies: int = 0
    is_failed: bool | None = None  # None: a change was not answered


class Load:
    """Callers that repeat subscriptions, changes of the policy and an operator's actions until the server is gone."""

    def __init__(self, server: ServerProcess, policy: Path, told: Acknowledged, round_: int) -> None:
        self._server, self._policy, self._told, self._round = server, policy, told, round_
        self._begun = threading.Barrier(CLIENT_COUNT + 3)

    def run(self, after_s: float) -> None:
        """Run the load, and kill the server this long after all callers have logged in."""
        work: list[Callable[[grpc.Channel], None]] = [*[self._subscribe] * CLIENT_COUNT, self._operate, self._reload]
        with ThreadPoolExecutor(len(work)) as callers:
            done = [
                callers.submit(self._repeat, "reader" if each == self._subscribe else "operator", each) for each in work
            ]
            self._begun.wait()
            time.sleep(after_s)  # the moment of the kill
            self._server.kill()
            for each in done:
                each.result()

    def _repeat(self, identity: str, call: Callable[[grpc.Channel], None]) -> None:
        session = login(self._server.endpoint, ca_of(self._server), identity, secret_of(self._server, identity))
        with open_channel(self._server.endpoint, ca_of(self._server), ADMIN_SERVER, session.bearer) as channel:
            self._begun.wait()
            try:
                while True:
                    call(channel)
            except (grpc.RpcError, AuthenticationRefused):
                return

    def _subscribe(self, channel: grpc.Channel) -> None:
        call = SubscriberCall(channel, timeout_s=10)
        assert keys_of(call.subscribe())
        self._told.subscriptions.append("reader")
        call.close()

    def _operate(self, channel: grpc.Channel) -> None:
        operations, reason = admin_pb2_grpc.OperationsStub(channel), f"{self._round}.{len(self._told.failed)}"
        if not self._told.is_failed:
            self._told.is_failed = None
            operations.FailAdapter(
                admin_pb2.FailAdapterRequest(feed="equities", adapter="b", reason=reason, force=True), timeout=10
            )
            self._told.failed.append(reason)
            self._told.is_failed = True
        self._told.is_failed = None
        operations.ReadmitAdapter(admin_pb2.ReadmitAdapterRequest(feed="equities", adapter="b"), timeout=10)
        self._told.readmitted_count += 1
        self._told.is_failed = False

    def _reload(self, channel: grpc.Channel) -> None:
        text = self._policy.read_text().partition("# ")[0] + f"# {self._round}.{self._told.policies}\n"
        draft = self._policy.with_suffix(".new")
        draft.write_text(text)
        draft.rename(self._policy)
        admin_pb2_grpc.PolicyAdministrationStub(channel).ReloadPolicy(admin_pb2.ReloadPolicyRequest(), timeout=10)
        self._told.policies += 1


def check(folder: Path, told: Acknowledged) -> None:
    """Compare what callers were told with what is on the disk."""
    head = noted_head(folder)
    found = verify(folder, head)
    assert not found.problems
    entries = [json.loads(line) for path in audit_files(folder) for line in path.read_text().splitlines()]
    events = [entry["event"] for entry in entries]
    assert events.count("subscribed") >= len(told.subscriptions)
    assert set(told.failed) <= {entry["reason"] for entry in entries if entry["event"] == "adapter failed"}
    assert events.count("adapter readmitted") >= told.readmitted_count
    assert events.count("policy changed") >= told.policies
    store = Store(folder / "leases.sqlite")
    try:
        assert "reader" in store.granted(1)[1]
        if told.is_failed is not None:
            assert (2 in store.failed_adapters(1)) == told.is_failed
        assert store.generation >= max(entry["records"] for entry in entries)
    finally:
        store.close()


def kill_in_rounds(tmp_path: Path, round_count: int, seed: int) -> None:
    chance = random.Random(seed)
    server, told = ServerProcess(tmp_path, (Feed("ab"),)), Acknowledged(is_failed=False)
    try:
        for round_ in range(round_count):
            Load(server, tmp_path / "policy.toml", told, round_).run(chance.uniform(0.05, 0.6))
            check(server.folder.path, told)
            told.is_failed = 2 in _failed(server.folder.path)
            server.start()
    finally:
        server.kill()
    assert min(len(told.subscriptions), len(told.failed), told.policies) > 0
    events = [json.loads(line)["event"] for path in audit_files(server.folder.path) for line in path.open()]
    assert "records restored" not in events, "a kill is not taken for a restored backup"


def _failed(folder: Path) -> dict[int, str]:
    store = Store(folder / "leases.sqlite")
    failed = store.failed_adapters(1)
    store.close()
    return failed


def test_a_killed_server_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    kill_in_rounds(tmp_path, 2, seed=1)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_a_server_that_is_killed_many_times_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    kill_in_rounds(tmp_path, kill_rounds(5), seed=2)
