"""An adapter that a test plays: registers, attends, reports what it is told to, and keeps the orders it gets."""

from __future__ import annotations

import queue
import secrets
import threading
import time

import grpc

from feedcore.replica.states import ReplicaState
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc, common_pb2
from tests.admin_server.cluster_files import Server, channel_as

WAIT_S = 20


class Adapter:
    """An adapter's side of its stream, as a test drives it.

    Args:
        resumes: as which this very start registered before, if the server was away meanwhile; None: a new start.
        nonce: names the start; empty: a fresh one.
        replace: it takes the place of one that is attended.
    """

    def __init__(
        self,
        server: Server,
        name: str,
        resumes: Adapter | None = None,
        *,
        nonce: bytes = b"",
        replace: bool = False,
    ) -> None:
        self._channel = channel_as(server, f"adapter-{name}")
        self._stub = admin_pb2_grpc.AdapterRegistryStub(self._channel)
        self.adapter_id = "abc".index(name) + 1
        self.nonce = nonce or (secrets.token_bytes(16) if resumes is None else resumes.nonce)
        self._public_key = secrets.token_bytes(32) if resumes is None else resumes._public_key
        self._request = admin_pb2.RegisterRequest(
            feed="equities",
            adapter=name,
            rpc_endpoint="127.0.0.1:1",
            public_key=self._public_key,
            process_nonce=self.nonce,
            process_id=4711,
            host="exchange-1",
            replace=replace,
        )
        if resumes is not None:
            self._request.resume_incarnation, self._request.resume_salt = resumes.start.incarnation, resumes.start.salt
            self._request.next_packet_counters[1] = 5_000
        self.registered = self.register()
        self.start = self.registered.self.starts[-1]
        self.orders: queue.SimpleQueue[admin_pb2.AdapterOrder] = queue.SimpleQueue()
        self.ended = threading.Event()
        self._reports: queue.SimpleQueue[admin_pb2.AdapterReport | None] = queue.SimpleQueue()
        self.report(incarnation=self.registered.self.incarnation)
        self._call = self._stub.Attend(iter(self._reports.get, None))
        threading.Thread(target=self._read, daemon=True).start()

    def register(self) -> admin_pb2.RegisterReply:
        """Register; what is refused is the test's to hear."""
        return self._stub.Register(self._request)

    def _read(self) -> None:
        try:
            for order in self._call:
                self.orders.put(order)
        except grpc.RpcError:
            pass
        self.ended.set()

    def report(self, state: ReplicaState = ReplicaState.JOINING, next_seq: int = 1, **fields: int | str) -> None:
        self._told = (state, next_seq)
        position = common_pb2.MessageStreamState(next_input_seq=next_seq, next_message_seq=next_seq)
        channel = common_pb2.ChannelState(channel_id=1, replica_state=state.value, position=position)
        told = common_pb2.FeedAdapterState(adapter_id=self.adapter_id, channels=[channel])
        self._reports.put(admin_pb2.AdapterReport(state=told, **fields))  # type: ignore[arg-type]

    def await_order(self, kind: str) -> admin_pb2.AdapterOrder:
        """The next order of a kind; meanwhile reports again at every sync interval, as adapters do."""
        give_up_at = time.monotonic() + WAIT_S
        while time.monotonic() < give_up_at:
            try:
                order = self.orders.get(timeout=0.1)
            except queue.Empty:
                self.report(*self._told)
                continue
            if order.WhichOneof("order") == kind:
                return order
        raise AssertionError(f"no {kind}")

    def accept_offer(self) -> admin_pb2.LeaseOffered:
        """Wait for an offer, and tell that it is here."""
        offered = self.await_order("lease_offered").lease_offered
        self.report(*self._told, accepted_epoch=offered.epoch)
        return offered

    def vanish(self) -> None:
        """As a killed process does: the connection goes."""
        self._channel.close()


def started_when_allowed(server: Server, name: str) -> Adapter:
    """Another start of the adapter, which asks as an adapter does: until the server has noticed the former's end, or,
    after its own restart, has waited for the former's return."""
    give_up_at_s = time.monotonic() + WAIT_S
    while True:
        try:
            return Adapter(server, name)
        except grpc.RpcError:
            if time.monotonic() >= give_up_at_s:
                raise
            time.sleep(0.02)
