"""Processes of a real cluster, one of which has calls that fail, and what each of them acknowledges meanwhile."""

from __future__ import annotations

import json
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc

from tandemfeed.client_lib import ClientError, Contribution, connect
from tandemfeed.client_lib.recording.record import DeliveryRecord
from tandemfeed.deploy.cluster.cluster import Cluster
from tandemfeed.deploy.cluster.processes import ManagedProcess, ProcessFailed
from tandemfeed.deploy.cluster.topology import ADMIN, CONTRIBUTOR, SUBSCRIBER, Shape
from tandemfeed.deploy.drills.source import PACKET_MESSAGES_MAX, make_recording, prepare_journal, sent_counts
from tandemfeed.journal.commands.cli import main as journal_command
from tandemfeed.transport.calls.login import AuthenticationRefused
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.failing.drawing import OF_CLIENTS, OF_PROCESSES
from tests.failing.outcomes import problems_of_end
from tests.failing_calls import Fault, Injection, start_failing

START_S = 60.0
END_S = 40.0
CALL_S = 5.0
USE_S = 1.5
MESSAGES = 200_000  # more than the source sends in all rounds
RATE = 400.0


@contextmanager
def calls_that_fail(fault: Fault) -> Iterator[list[Injection]]:
    """Processes that are started within this context have calls that fail."""
    injections: list[Injection] = []

    def popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        process, injection = start_failing(command, fault, **options)
        injections.append(injection)
        return process

    with patch.object(subprocess, "Popen", popen):
        yield injections


class Kind(ABC):
    """A kind of process.

    Attributes:
        folder: part of the paths of its files.
        calls: kinds of calls that it makes.
        failed_counts: how many calls failed in each round.
    """

    folder: str
    calls: Sequence[str] = OF_PROCESSES

    def __init__(self) -> None:
        self.failed_counts: list[int] = []

    @abstractmethod
    def start(self) -> ManagedProcess:
        """Start it; it may fail to."""

    @abstractmethod
    def use(self) -> None:
        """Do what it acknowledges, for a short time, and note what it has acknowledged. Calls may fail."""

    @abstractmethod
    def problems(self) -> list[str]:
        """After a start without faults: what it has acknowledged and does not have."""

    @abstractmethod
    def stop(self) -> None:
        """End the present process, if it runs."""

    def round(self, fault: Fault) -> list[str]:
        """Start it with a fault, use it, end it, and start it again without; returns what was wrong."""
        self.stop()
        with calls_that_fail(fault) as injections:
            process = self.start()
        (injection,) = injections
        said_before = process.log.stat().st_size if process.log.exists() else 0
        injection.is_armed = bool(fault.of)  # not before the interpreter has read its libraries
        with suppress(ProcessFailed):
            process.await_event("ready", START_S)
            injection.is_armed = True
            self.use()
        was_asked = process.is_running
        process.terminate()
        status: int | None = None
        with suppress(ProcessFailed):
            status = process.wait(END_S)
        process.kill()
        found = problems_of_end(status, log_of(process)[said_before:], injection, was_asked=was_asked)
        self.start().await_event("ready", START_S)
        self.failed_counts.append(len(injection.failed))
        return found + [f"{fault}: {each}" for each in self.problems()]


def log_of(process: ManagedProcess) -> str:
    """What a process that has ended has written to its standard error."""
    process.failed("ended")  # waits for the last lines
    return process.log.read_text(errors="replace")


class AdminServerKind(Kind):
    """The admin server. It acknowledges that identities are disabled, and records it in its audit log."""

    folder = "/admin/"
    COUNT = 400
    EACH_ROUND = 15

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._cluster = Cluster(root / "administration", Shape())
        policy = self._cluster.folder / "policy.toml"
        names = (f'[identity.x-{number}]\nroles = ["client"]\n' for number in range(self.COUNT))
        policy.write_text(policy.read_text() + "".join(names))
        self._next, self._disabled = 0, list[str]()
        self._cluster.start_admin()

    def start(self) -> ManagedProcess:
        folder = self._cluster.folder
        arguments = ["admin-server", "--cluster", str(folder / "cluster.toml"), "--policy", str(folder / "policy.toml")]
        arguments += ["--state", str(folder / "admin"), "--listen", self._cluster.admin]
        return self._cluster._start(ADMIN, arguments)

    def stop(self) -> None:
        self._cluster.processes[ADMIN].stop()

    def use(self) -> None:
        refusals = (grpc.RpcError, grpc.FutureTimeoutError, AuthenticationRefused)
        with suppress(*refusals), self._cluster.operator() as channel:
            identities = admin_pb2_grpc.IdentityAdministrationStub(channel)
            for _ in range(self.EACH_ROUND):
                name, self._next = f"x-{self._next}", self._next + 1
                with suppress(grpc.RpcError):
                    request = admin_pb2.DisableIdentityRequest(name=name, reason="a test")
                    identities.DisableIdentity(request, timeout=CALL_S)
                    self._disabled.append(name)

    def problems(self) -> list[str]:
        with self._cluster.operator() as channel:
            identities = admin_pb2_grpc.IdentityAdministrationStub(channel)
            found = identities.ListIdentities(admin_pb2.ListIdentitiesRequest(), timeout=START_S).identities
            disabled = {each.name for each in found if each.is_disabled}
            audit = admin_pb2_grpc.AuditAdministrationStub(channel)
            problems = list(audit.VerifyAudit(admin_pb2.VerifyAuditRequest(), timeout=START_S).problems)
            request = admin_pb2.ReadAuditRequest(event="identity disabled", limit=10_000)
            entries = audit.ReadAudit(request, timeout=START_S).entries
        recorded = {json.loads(each.line).get("identity") for each in entries}
        lost = [name for name in self._disabled if name not in disabled]
        unrecorded = [name for name in self._disabled if name not in recorded]
        problems += [f"acknowledged and lost: {lost}"] if lost else []
        return problems + ([f"acknowledged and not in the audit log: {unrecorded}"] if unrecorded else [])

    def close(self) -> None:
        self._cluster.close()


class RunningCluster:
    """A cluster. Its first feed is sent to a client from the first round to the last; the other takes contributions."""

    def __init__(self, root: Path) -> None:
        self.cluster = Cluster(root / "cluster", Shape(feeds=2, contributed=1))
        self.feed, self.contributed = self.cluster.feeds
        folder = self.cluster.folder
        recording = make_recording(folder, source=None, message_count=MESSAGES, symbols=50)
        self.cluster.start_admin()
        journal = self.cluster.journal(self.feed)
        prepare_journal(recording, self.feed, folder / "cluster.toml", journal, PACKET_MESSAGES_MAX)
        self.start_gateway()
        self.cluster.start_contribution_gateway(self.contributed)
        for name in "ab":
            self.cluster.start_adapter(self.feed, name)
        self.client = self.cluster.start_client(self.feed, folder / "record", start="first")
        self.client.await_event("ready", START_S)
        self.cluster.watches[self.feed.feed_id].await_healthy(START_S)

    def close(self) -> None:
        self.cluster.close()

    def start_gateway(self) -> ManagedProcess:
        """Start the source gateway, which sends as soon as it is ready."""
        process = self.cluster.start_gateway(self.feed, RATE)
        with suppress(ProcessFailed):
            process.send_line("start")
        return process

    def loss_of_client(self) -> str:
        """Stop the source, and compare what it has sent with what the client was given; empty: they are equal."""
        self.cluster.stop(self.feed.gateway)
        sent = sent_counts(self.cluster.journal(self.feed), self.feed)
        self.client.send_line(json.dumps({"until": sent, "within_s": START_S}))
        recorded = self.client.await_event("recorded", 2 * START_S)
        found = (recorded["delivered"], recorded["missing"], recorded["repeated"])
        return "" if found == (sum(sent.values()), 0, 0) else f"{sum(sent.values())} sent, the client has {recorded}"


class AdapterKind(Kind):
    """A backup. It keeps its journal whole, and is synchronized again afterwards."""

    folder = "/journal-b/"

    def __init__(self, site: RunningCluster) -> None:
        super().__init__()
        self._site, self._name = site, site.feed.adapter("b")
        self._watch = site.cluster.watches[site.feed.feed_id]

    def start(self) -> ManagedProcess:
        return self._site.cluster.start_adapter(self._site.feed, "b")

    def stop(self) -> None:
        self._site.cluster.processes[self._name].stop()

    def use(self) -> None:
        process = self._site.cluster.processes[self._name]
        give_up_at_s = time.monotonic() + USE_S
        while time.monotonic() < give_up_at_s and process.is_running:
            time.sleep(0.05)

    def problems(self) -> list[str]:
        self._watch.await_healthy(START_S)
        out = StringIO()
        with redirect_stdout(out):
            status = journal_command(["verify", str(self._site.cluster.output_journal(self._site.feed, "b"))])
        return [] if status == 0 else [f"its journal is damaged: {out.getvalue()}"]


class SourceGatewayKind(Kind):
    """The source gateway. What it has sent, the client gets."""

    folder = "/source-journal/"

    def __init__(self, site: RunningCluster) -> None:
        super().__init__()
        self._site = site

    def start(self) -> ManagedProcess:
        return self._site.start_gateway()

    def stop(self) -> None:
        self._site.cluster.processes[self._site.feed.gateway].stop()

    def use(self) -> None:
        process = self._site.cluster.processes[self._site.feed.gateway]
        give_up_at_s = time.monotonic() + USE_S
        while time.monotonic() < give_up_at_s and process.is_running:
            time.sleep(0.05)

    def problems(self) -> list[str]:
        return []


class ContributionGatewayKind(Kind):
    """The contribution gateway. It acknowledges messages."""

    folder = "/source-journal-2/"

    def __init__(self, site: RunningCluster) -> None:
        super().__init__()
        self._site, self._acknowledged = site, 0

    def start(self) -> ManagedProcess:
        return self._site.cluster.start_contribution_gateway(self._site.contributed)

    def stop(self) -> None:
        self._site.cluster.processes[self._site.contributed.gateway].stop()

    def use(self) -> None:
        give_up_at_s = time.monotonic() + USE_S
        with suppress(ClientError), self._contribution() as contribution:
            trade = contribution.messages.Trade
            while time.monotonic() < give_up_at_s:
                sent = contribution.send(trade(symbol="ACME", sequence=1, price=Decimal("1.5"), kind="Regular"))
                self._acknowledged = sent.number

    def problems(self) -> list[str]:
        with self._contribution(START_S) as contribution:
            next_number = contribution.next_number
        lost = self._acknowledged - (next_number - 1)
        return [f"{lost} acknowledged messages are lost"] if lost > 0 else []

    @contextmanager
    def _contribution(self, timeout_s: float = CALL_S) -> Iterator[Contribution]:
        cluster = self._site.cluster
        state = cluster.folder / "admin"
        secret = (state / "secrets" / f"{CONTRIBUTOR}.secret").read_text().strip()
        with connect(admin=cluster.admin, ca=state / "ca.pem", identity=CONTRIBUTOR, secret=secret) as client:
            yield client.contribute(self._site.contributed.topic(1), producer="p", timeout_s=timeout_s)


class SubscriberKind(Kind):
    """`tandemfeed subscribe --record`: if it ends with status 0, the record is there."""

    folder = "/subscribed/"
    calls = OF_CLIENTS

    def __init__(self, site: RunningCluster) -> None:
        super().__init__()
        self._site, self._round = site, 0
        (site.cluster.folder / "subscribed").mkdir()

    def start(self) -> ManagedProcess:
        self._round += 1
        feed, cluster = self._site.feed, self._site.cluster
        arguments = ["subscribe", "--feed", feed.name, "--json", "--record", str(self._file)]
        return cluster._start("subscriber", [*arguments, *cluster.connection(SUBSCRIBER, feed.client)])

    def stop(self) -> None:
        if "subscriber" in self._site.cluster.processes:
            self._site.cluster.processes["subscriber"].stop()

    def use(self) -> None:
        process = self._site.cluster.processes["subscriber"]
        give_up_at_s = time.monotonic() + USE_S
        while time.monotonic() < give_up_at_s and process.is_running:
            time.sleep(0.05)

    def problems(self) -> list[str]:
        self.use()
        self.stop()
        return [] if DeliveryRecord.load(self._file).channels else ["its record is empty"]

    @property
    def _file(self) -> Path:
        return self._site.cluster.folder / "subscribed" / f"{self._round}.npz"
