"""An adapter that a test controls: it registers, attends, sends the test's reports, and collects its orders."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Sequence

import grpc

from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc, common_pb2
from tests.admin_server.cluster_files import Server, channel_as

WAIT_S = 60


class Adapter:
    """An adapter's side of its stream, controlled by a test.

    Args:
        resumes: the earlier stream of the same process, which registers again; None: a new process.
        nonce: identifies the process; empty: a new random one.
        replace: replace a process that is attending.
        conversions: by what it converts.
        attends: open its stream; otherwise `attend` does.
        unicast_server_key: the key for its unicast clients.
        rpc_endpoint: where it serves calls, and receives grant notices.
        proves: it presents the server's proof of the start that it resumes.
    """

    def __init__(
        self,
        server: Server,
        name: str,
        resumes: Adapter | None = None,
        *,
        nonce: bytes = b"",
        replace: bool = False,
        conversions: Sequence[admin_pb2.ChannelConversion] = (),
        attends: bool = True,
        unicast_server_key: bytes = b"",
        rpc_endpoint: str = "127.0.0.1:1",
        proves: bool = True,
    ) -> None:
        self._channel = channel_as(server, f"adapter-{name}")
        self._stub = admin_pb2_grpc.AdapterRegistryStub(self._channel)
        self.adapter_id = "abc".index(name) + 1
        self.nonce = nonce or (secrets.token_bytes(16) if resumes is None else resumes.nonce)
        self._public_key = secrets.token_bytes(32) if resumes is None else resumes._public_key
        self._request = admin_pb2.RegisterRequest(
            feed="equities",
            adapter=name,
            rpc_endpoint=rpc_endpoint,
            public_key=self._public_key,
            process_nonce=self.nonce,
            process_id=4711,
            host="exchange-1",
            replace=replace,
            conversions=conversions,
            unicast_server_key=unicast_server_key,
        )
        if resumes is not None:
            self._request.resume_incarnation, self._request.resume_salt = resumes.start.incarnation, resumes.start.salt
            self._request.resume_proof = resumes.registered.start_proof if proves else b""
            self._request.next_packet_counters[1] = 5_000
        self.registered = self.register()
        self.start = self.registered.self.starts[-1]
        self.orders: queue.SimpleQueue[admin_pb2.AdapterOrder] = queue.SimpleQueue()
        self.ended = threading.Event()
        self._reports: queue.SimpleQueue[admin_pb2.AdapterReport | None] = queue.SimpleQueue()
        if attends:
            self.attend()

    def attend(self) -> None:
        """Open the stream of reports and orders."""
        self.report(incarnation=self.registered.self.incarnation)
        self._call = self._stub.Attend(iter(self._reports.get, None))
        threading.Thread(target=self._read, daemon=True).start()

    def register(self) -> admin_pb2.RegisterReply:
        """Register; a refusal raises."""
        return self._stub.Register(self._request)

    def _read(self) -> None:
        try:
            for order in self._call:
                self.orders.put(order)
        except grpc.RpcError:
            pass
        self.ended.set()

    def report(
        self,
        state: ReplicaState = ReplicaState.JOINING,
        next_seq: int = 1,
        *,
        epoch_proof: bytes = b"",
        **fields: int | str,
    ) -> None:
        self._reported = (state, next_seq)
        position = common_pb2.MessageStreamState(next_input_seq=next_seq, next_message_seq=next_seq)
        channel = common_pb2.ChannelState(channel_id=1, replica_state=state.value, position=position)
        feed_state = common_pb2.FeedAdapterState(
            adapter_id=self.adapter_id, channels=[channel], epoch_proof=epoch_proof
        )
        self._reports.put(admin_pb2.AdapterReport(state=feed_state, **fields))  # type: ignore[arg-type]

    def await_order(self, kind: str) -> admin_pb2.AdapterOrder:
        """Wait for the next order of a kind; meanwhile repeat the report at every sync interval, as adapters do."""
        give_up_at = time.monotonic() + WAIT_S
        while time.monotonic() < give_up_at:
            try:
                order = self.orders.get(timeout=0.1)
            except queue.Empty:
                self.report(*self._reported)
                continue
            if order.WhichOneof("order") == kind:
                return order
        raise AssertionError(f"no {kind}")

    def accept_offer(self) -> admin_pb2.LeaseOffered:
        """Wait for an offer, and accept it."""
        offered = self.await_order("lease_offered").lease_offered
        self.report(*self._reported, accepted_epoch=offered.epoch)
        return offered

    def vanish(self) -> None:
        """Break the connection, as a killed process does."""
        self._channel.close()


def started_when_allowed(server: Server, name: str) -> Adapter:
    """Restart the adapter. As adapters do, it retries until the server has noticed the end of the former process, or,
    after a restart of the server, has waited for that process."""
    give_up_at_s = time.monotonic() + WAIT_S
    while True:
        try:
            return Adapter(server, name)
        except grpc.RpcError:
            if time.monotonic() >= give_up_at_s:
                raise
            time.sleep(0.02)
