"""A small cluster for the client's tests: an administration server and two adapters, with real TLS, SCRAM, tokens,
seals, multicast, and replay over gRPC. The test decides what goes wrong, and when.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import grpc
import scramp
import zmq
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from tandemfeed.adapter.records.last_values.table import LastValueTable
from tandemfeed.client_lib import Client, Subscription, connect
from tandemfeed.client_lib.items import Batch, Item
from tandemfeed.client_lib.replay.worker import SILENCE_MAX_S
from tandemfeed.client_lib.stream.sockets.transport_choice import Transport
from tandemfeed.feedcore.documents.message_model import load_message_model
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import Live
from tandemfeed.feedcore.merge.history.place import end_place, first_place, place_of_message
from tandemfeed.feedcore.topics import any_topic_matches
from tandemfeed.feedcore.wire.lineage import EpochStart, Lineage
from tandemfeed.feedcore.wire.output_packet import (
    OUTPUT_FRAME,
    OutputFlag,
    OutputPacket,
    encode_output_packet,
    encode_runs,
)
from tandemfeed.feedcore.wire.position import Run
from tandemfeed.transport.calls.server_names import ADMIN_SERVER, adapter_server, source_gateway
from tandemfeed.transport.calls.server_proofs import epoch_statement, prove
from tandemfeed.transport.calls.serving.authorization import Authorization
from tandemfeed.transport.calls.serving.call_context import caller_of
from tandemfeed.transport.calls.serving.server import RpcServer, serve
from tandemfeed.transport.calls.serving.stream_queue import StreamQueue
from tandemfeed.transport.calls.tokens import Caller, TokenVerifier, binding, key_from_text, sign_token
from tandemfeed.transport.multicast.sockets import Datagrams
from tandemfeed.transport.multicast.zeromq import ZeromqSender
from tandemfeed.transport.sealing.announced_starts import AnnouncedStart
from tandemfeed.transport.sealing.epoch_proofs import encode_epoch_proof
from tandemfeed.transport.sealing.sealing import Sealer
from tandemfeed.transport.sealing.start_keys import SealingKey
from tandemfeed.transport.unicast.admitted_clients import AdmittedClients
from tandemfeed.transport.unicast.publisher import UnicastPublisher
from tandemfeed.transport.unicast.wire import CurveKeys
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc, common_pb2, replay_pb2, replay_pb2_grpc
from tests.transport.calls.announced_keys import announced

FEED_ID, CHANNEL_ID, SESSION = 1, 1, 20261121
TOPIC = "equities.ticks"
IDENTITY, SECRET = "demo-client", "correct horse"
INTERFACE = "127.0.0.1"
ROLES = {
    "tandemfeed.v1.StreamAdministration": frozenset({"client"}),
    "tandemfeed.v1.Replay": frozenset({"client"}),
    "tandemfeed.v1.Contribution": frozenset({"client"}),
}
MESSAGE_MODEL = b"""<?xml version="1.0" encoding="UTF-8"?>
<sbe:messageSchema xmlns:sbe="http://fixprotocol.io/2016/sbe" package="toy" id="7" version="0" byteOrder="littleEndian">
  <types>
    <composite name="messageHeader">
      <type name="blockLength" primitiveType="uint16"/><type name="templateId" primitiveType="uint16"/>
      <type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/>
    </composite>
    <type name="Text" primitiveType="char" length="16"/>
  </types>
  <sbe:message name="Note" id="1" blockLength="24">
    <field name="number" id="1" type="uint64"/>
    <field name="text" id="2" type="Text"/>
  </sbe:message>
</sbe:messageSchema>
"""


def note(number: int) -> bytes:
    """An application message of the toy model: SBE header and body."""
    body = number.to_bytes(8, "little") + f"note-{number:09d}".encode().ljust(16, b"\0")
    return b"".join(value.to_bytes(2, "little") for value in (len(body), 1, 7, 0)) + body


def packet(
    first_message_seq: int,
    first_source_seq: int,
    count: int,
    *,
    stream: int = 1,
    epoch: int = 1,
    adapter_id: int = 1,
    flags: int = OutputFlag.FROM_ACTIVE,
) -> OutputPacket:
    """A packet with `count` messages, one for each source message, whose `input_seq` equals the `message_seq`. The
    content of a message depends only on its stream and source_seq."""
    run = Run(epoch, first_message_seq, first_message_seq, stream, first_source_seq, count, count)
    frames = b"".join(
        OUTPUT_FRAME.pack(len(body) + OUTPUT_FRAME.size, offset) + body
        for offset, body in ((at, note(stream * 1_000_000 + first_source_seq + at)) for at in range(count))
    )
    return OutputPacket(
        flags, FEED_ID, CHANNEL_ID, adapter_id, SESSION, epoch, first_message_seq, first_message_seq, count, (run,),
        time.time_ns(), 0, encode_runs((run,)) + frames,
    )  # fmt: skip


def heartbeat(
    next_message_seq: int, *, lineage: Sequence[tuple[int, int]] = ((1, 1),), adapter_id: int = 1, flags: int = 0
) -> OutputPacket:
    """A heartbeat packet."""
    full_lineage = Lineage(tuple(EpochStart(epoch, first, first) for epoch, first in lineage))
    return OutputPacket(
        OutputFlag.HEARTBEAT | flags, FEED_ID, CHANNEL_ID, adapter_id, SESSION, full_lineage.epoch, next_message_seq,
        next_message_seq, 0, (), 0, 0, full_lineage.encode(1_000),
    )  # fmt: skip


def channel_key(key_id: int) -> SealingKey:
    """A channel's stream key and decision key."""
    return SealingKey(key_id, CHANNEL_ID, os.urandom(32), os.urandom(32))


def make_certificates(*server_names: str) -> tuple[bytes, bytes, bytes]:
    """(CA, certificate, key) in PEM, for the servers of these names."""
    now = datetime.datetime.now(datetime.UTC)

    def build(name: str, issuer: str, key: Any, signer: Any, *, is_ca: bool) -> x509.Certificate:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in server_names]), critical=False)
            .sign(signer, hashes.SHA256())
        )

    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    pem = serialization.Encoding.PEM
    return (
        build("toy-ca", "toy-ca", ca_key, ca_key, is_ca=True).public_bytes(pem),
        build("toy", "toy-ca", key, ca_key, is_ca=False).public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


@dataclass
class ToyCall:
    """A client's open call."""

    updates: StreamQueue[admin_pb2.SubscriptionUpdate] = field(default_factory=StreamQueue)
    subscription_ids: list[int] = field(default_factory=list)


class ToyAdmin(
    admin_pb2_grpc.AuthenticationServicer,
    admin_pb2_grpc.StreamAdministrationServicer,
):
    """Authenticates one identity, and grants "equities.#"."""

    def __init__(self, cluster: ToyCluster) -> None:
        self._cluster = cluster
        self._mechanism = scramp.ScramMechanism("SCRAM-SHA-256")
        salt, stored, server, iterations = self._mechanism.make_auth_info(SECRET)
        self._auth_info = (salt, stored, server, iterations)
        self._conversations: dict[str, Any] = {}
        self._calls: list[ToyCall] = []
        self.requests: list[admin_pb2.SubscriptionRequest] = []
        self.subscribed = threading.Semaphore(0)
        self.unanswered: set[str] = set()  # requests that get no answer: "subscribe", "modify"
        self.logins = 0

    def Begin(self, request: Any, context: grpc.ServicerContext) -> admin_pb2.BeginAuthenticationReply:  # noqa: N802
        self._cluster.fail("Begin", context)

        def auth_info(identity: str) -> tuple[bytes, bytes, bytes, int]:
            if identity != IDENTITY:
                raise KeyError(identity)
            return self._auth_info

        server = self._mechanism.make_server(auth_info)
        name, public_key = os.urandom(8).hex(), request.client_first.rpartition("r=")[2]
        try:
            server.set_client_first(request.client_first)
        except (KeyError, scramp.ScramException):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "identity or secret is wrong")
        self._conversations[name] = server, public_key
        return admin_pb2.BeginAuthenticationReply(conversation_id=name, server_first=server.get_server_first())

    def Finish(self, request: Any, context: grpc.ServicerContext) -> admin_pb2.FinishAuthenticationReply:  # noqa: N802
        server, public_key = self._conversations.pop(request.conversation_id)
        try:
            server.set_client_final(request.client_final)
        except scramp.ScramException:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "identity or secret is wrong")
        self.logins += 1
        token, expires = self._cluster.make_token(public_key)
        return admin_pb2.FinishAuthenticationReply(
            server_final=server.get_server_final(), token=token, expires_unix_ns=expires * 1_000_000_000
        )

    async def Subscribe(self, requests: Any, context: grpc.ServicerContext) -> AsyncIterator[Any]:  # noqa: N802
        self._cluster.fail("Subscribe", context)
        call = ToyCall()
        self._calls.append(call)
        reading = asyncio.create_task(self._answer(call, requests, caller_of(context)))
        try:
            async for update in call.updates.drain():
                yield update
        finally:
            reading.cancel()

    def FindContributionGateway(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self._cluster.fail("FindContributionGateway", context)
        return admin_pb2.FindContributionGatewayReply(feed="equities", endpoint=self._cluster.gateway_endpoint)

    async def _answer(self, call: ToyCall, requests: AsyncIterator[Any], caller: Caller) -> None:
        async for request in requests:
            if request.WhichOneof("request") in self.unanswered:
                self.requests.append(request)
                continue
            update = self._answer_to(call, request, caller)
            update.request_id = request.request_id
            call.updates.put(update)
            if update.WhichOneof("update") == "grant":
                self.subscribed.release()

    def _answer_to(
        self, call: ToyCall, request: admin_pb2.SubscriptionRequest, caller: Caller
    ) -> admin_pb2.SubscriptionUpdate:
        self.requests.append(request)
        if request.HasField("cancel"):
            call.subscription_ids.remove(request.cancel.subscription_id)
            return admin_pb2.SubscriptionUpdate(cancelled=admin_pb2.SubscriptionCancelled())
        if request.HasField("renew"):
            return admin_pb2.SubscriptionUpdate(renewed=admin_pb2.LoginRenewed())
        if request.HasField("modify"):
            self._cluster.more_keys.append(channel_key(100 + len(self._cluster.more_keys)))  # shows the new grant
            grant = self._cluster.whole_grant()
            return admin_pb2.SubscriptionUpdate(subscription_id=request.modify.subscription_id, grant=grant)
        asked = request.subscribe
        reason = ""
        for topic in asked.topics:
            if not any_topic_matches(caller.topics, topic.pattern):
                reason = f"topic {topic.pattern} is not granted to {IDENTITY}"
        if self._cluster.is_revoked:
            reason = f"feed {asked.feed} is no longer granted to {IDENTITY}"
        if reason:
            refused = admin_pb2.RequestRefused(kind=admin_pb2.REFUSAL_KIND_NOT_GRANTED, reason=reason)
            return admin_pb2.SubscriptionUpdate(refused=refused)
        self._cluster.admit(asked.unicast_client_key)
        call.subscription_ids.append(asked.subscription_id)
        return admin_pb2.SubscriptionUpdate(subscription_id=asked.subscription_id, grant=self._cluster.whole_grant())

    def push(self, grant: admin_pb2.Grant | None = None) -> None:
        """Send a grant to every subscription; None: the present one."""
        grant = grant or self._cluster.whole_grant()
        for call in self._calls:
            for subscription_id in tuple(call.subscription_ids):  # one may be cancelled meanwhile
                call.updates.put(admin_pb2.SubscriptionUpdate(subscription_id=subscription_id, grant=grant))

    def end_calls(self) -> None:
        """End every call, as a server that stops does."""
        for call in self._calls:
            call.updates.put(None)


def _is_requested(each: OutputPacket, request: replay_pb2.ReplayRequest) -> bool:
    if request.session not in (0, each.session):
        return False
    if each.flags & OutputFlag.PROVISIONAL:
        return any(
            run.source_stream_id == wanted.source_stream_id
            and run.first_source_seq < wanted.range.end
            and run.end_source_seq > wanted.range.first
            for run in each.runs
            for wanted in request.source_ranges
        )
    message_range = request.message_range
    return (each.first_message_seq < message_range.end and each.end_message_seq > message_range.first) or any(
        each.first_input_seq < wanted.end and each.end_input_seq > wanted.first for wanted in request.input_ranges
    )


class ToyAdapter(replay_pb2_grpc.ReplayServicer):
    """One adapter's output: it seals, signs, multicasts, keeps and replays packets."""

    def __init__(self, cluster: ToyCluster, adapter_id: int, group: str) -> None:
        self.adapter_id = adapter_id
        self.group = group
        self._cluster = cluster
        self._sender = ZeromqSender(cluster.context, INTERFACE)
        self.is_multicast = True  # the network carries its group
        self.unicast: UnicastPublisher | None = None
        self.unicast_key = b""
        private_key = ed25519.Ed25519PrivateKey.generate()
        public_key = private_key.public_key().public_bytes_raw()
        self.start = AnnouncedStart(adapter_id, 10 + adapter_id, os.urandom(32), public_key)
        self.sealer = Sealer(FEED_ID, self.start, private_key)
        self.sealer.use_key(cluster.key)
        self.journal: list[OutputPacket] = []
        self.replay_calls = 0
        self.replay_fault = ""  # "refuse"; "silent": never answers; "waits"; "impostor": replays in another's name
        self.holding = threading.Event()  # "holds": a call of Locate waits until the test removes the fault
        self.asked: list[replay_pb2.ReplayRequest] = []
        self.last_values: list[OutputPacket] | None = None  # of which its table is made; None: it has none
        self.applied_sessions: set[int] = set()  # of which it has the final heartbeat
        self.forge: Callable[[bytes], bytes] = lambda packet: packet
        self.server_name = adapter_server("equities", f"toy-{adapter_id}")
        self.rpc = cluster.serve(
            self.server_name, self, replay_pb2_grpc.add_ReplayServicer_to_server, "tandemfeed.v1.Replay"
        )

    def send(self, *packets: OutputPacket) -> None:
        """Journal and multicast packets. Without another grant, an epoch is the first sender's."""
        for each in packets:
            own = self._own(each)
            if own.epoch > 1:  # the first one is in the grant
                self.send_raw(self._cluster.epoch_proof(own.epoch))
            if own.runs:
                self.journal.append(own)
            self.send_raw(self.sealer.seal(own, time.time_ns()))
        self.send_signature()

    def _own(self, packet: OutputPacket) -> OutputPacket:
        """A packet as this adapter sends it: only the owner of an epoch is its active."""
        owner = self._cluster.owners.setdefault(packet.epoch, self.adapter_id)
        flags = packet.flags if owner == self.adapter_id else packet.flags & ~OutputFlag.FROM_ACTIVE
        return packet._replace(adapter_id=self.adapter_id, flags=flags)

    def send_signature(self) -> None:
        """Sign the packets sealed so far; a real adapter does so at least every 10 ms."""
        self.send_raw(self.sealer.sign(CHANNEL_ID, time.time_ns()))

    def lose(self, *packets: OutputPacket) -> None:
        """Journal packets that the network loses."""
        self.journal += map(self._own, packets)

    def send_raw(self, datagram: bytes) -> None:
        """Multicast these bytes, and send them to unicast clients."""
        if self.is_multicast:
            self._sender.send(self.group.encode(), datagram)
        if self.unicast is not None:
            self.unicast.read_subscriptions()
            self.unicast.send([(CHANNEL_ID, datagram)])

    def serve_unicast(self) -> None:
        """Listen for unicast clients, with a key of its own, as each start of an adapter does."""
        if self.unicast is not None:
            self.unicast.close()
        keys = CurveKeys.generate()
        self.unicast = UnicastPublisher(f"{INTERFACE}:0", keys, [CHANNEL_ID], self._cluster.admitted)
        self.unicast.keep(time.monotonic_ns())
        self.unicast_key = keys.public

    async def Replay(self, request: Any, context: grpc.ServicerContext) -> AsyncIterator[Any]:  # noqa: N802
        self._cluster.fail("Replay", context)
        self.replay_calls += 1
        self.asked.append(request)
        if self.replay_fault == "refuse":
            context.abort(grpc.StatusCode.NOT_FOUND, f"no channel {request.channel_id}")
        if self.replay_fault == "silent":
            await asyncio.Event().wait()
        if self.replay_fault == "waits":  # as an adapter does that may not spend more on replays
            for _ in range(3):
                yield replay_pb2.ReplayChunk()
                await asyncio.sleep(SILENCE_MAX_S / 2)
        found = [each for each in self.journal if _is_requested(each, request)]
        sender_id = 99 if self.replay_fault == "impostor" else self.adapter_id
        yield replay_pb2.ReplayChunk(
            packets=[
                encode_output_packet(each._replace(adapter_id=sender_id, flags=each.flags | OutputFlag.RETRANSMISSION))
                for each in found
            ]
        )

    async def LastValues(self, request: Any, context: grpc.ServicerContext) -> AsyncIterator[Any]:  # noqa: N802
        if self.last_values is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "an adapter without tables")
        yield replay_pb2.LastValuesChunk()
        table = LastValueTable(request.channel_id, load_message_model(MESSAGE_MODEL), request.key)
        table.begin(request.session)
        table.take_packets([encode_output_packet(each) for each in self.last_values])
        values = table.copy()
        yield replay_pb2.LastValuesChunk(
            position=common_pb2.MessageStreamState(
                epoch=values.epoch,
                next_input_seq=values.next_input_seq,
                next_message_seq=values.next_message_seq,
                next_source_seqs=values.next_source_seqs,
            ),
            epoch=common_pb2.LineageEntry(epoch=values.epoch, first_input_seq=1, first_message_seq=1),
            message_count=len(values.entries),
        )
        yield replay_pb2.LastValuesChunk(packets=[self.forge(each) for each in values.packets(FEED_ID)])

    async def Locate(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self._cluster.fail("Locate", context)
        if self.replay_fault == "refuse":
            context.abort(grpc.StatusCode.NOT_FOUND, f"no channel {request.channel_id}")
        if self.replay_fault == "holds":
            self.holding.set()
            while self.replay_fault == "holds":
                await asyncio.sleep(0.01)
        sessions = sorted({each.session for each in self.journal if each.session >= request.session})
        if not request.any_session:
            sessions = [each for each in sessions if each == request.session]
        found: list[Any] = []
        for session in sessions:
            packets = [each for each in self.journal if each.session == session]
            seq = request.message_seq if session == request.session else 0
            at_ns = 0 if found else request.at_unix_ns
            late = (each for each in packets if each.source_sent_at_ns >= at_ns and each.end_message_seq > seq)
            first = next(late, None)
            if first is not None or session == sessions[-1]:
                found.append(self._located(packets, first, seq))
        return replay_pb2.LocateReply(sessions=found)

    def _located(self, packets: list[OutputPacket], first: OutputPacket | None, message_seq: int) -> Any:
        """Where a packet of a session is, or a message in it; None: at the end."""
        last = packets[-1]
        epochs = {each.epoch: each for each in reversed(packets)}.values()
        lineage = [(each.epoch, each.first_message_seq) for each in sorted(epochs, key=lambda each: each.epoch)]
        flags = OutputFlag.END_OF_STREAM if last.session in self.applied_sessions else OutputFlag.NONE
        word = heartbeat(last.end_message_seq, adapter_id=self.adapter_id, lineage=lineage, flags=flags)
        place = end_place(last) if first is None else place_of_message(first, message_seq) or first_place(first)
        position = common_pb2.MessageStreamState(next_input_seq=place.input_seq, next_message_seq=place.message_seq)
        return replay_pb2.LocatedSession(
            session=last.session,
            position=position,
            at_unix_ns=0 if first is None else first.source_sent_at_ns,
            is_oldest=first is packets[0],
            heartbeat=encode_output_packet(word._replace(session=last.session)),
        )

    def close(self) -> None:
        self._sender.close()
        if self.unicast is not None:
            self.unicast.close()
        self.rpc.stop(0)


@dataclass
class ToyCluster:
    """The cluster of one test."""

    context: zmq.Context[Any] = field(default_factory=zmq.Context)
    key: SealingKey = field(default_factory=lambda: channel_key(77))
    more_keys: list[SealingKey] = field(default_factory=list)
    is_revoked: bool = False
    session: int = SESSION
    owners: dict[int, int] = field(default_factory=lambda: {1: 1})  # epoch -> the adapter that it was granted to
    datagrams: Datagrams = "zeromq"  # whose sockets the clients receive with
    model: tuple[str, bytes] = ("1", MESSAGE_MODEL)  # version and content
    admitted: AdmittedClients = field(default_factory=AdmittedClients)
    token_life_s: int = 3_600
    gateway_endpoint: str = ""
    failing: dict[str, int] = field(default_factory=dict)  # by method: how many of the next calls fail
    failed: dict[str, int] = field(default_factory=dict)  # how many have

    def __post_init__(self) -> None:
        names = [adapter_server("equities", name) for name in ("toy-1", "toy-2", "toy-3")]
        names += [ADMIN_SERVER, source_gateway("equities")]
        self.ca_pem, self._certificate, self._key_pem = make_certificates(*names)
        self._token_key = ed25519.Ed25519PrivateKey.generate()
        self.admin = ToyAdmin(self)
        self.adapters = [ToyAdapter(self, 1, "239.192.2.1:5011"), ToyAdapter(self, 2, "239.192.2.2:5012")]
        self.admin_rpc = self._serve_admin(f"{INTERFACE}:0")

    def fail(self, method: str, context: Any) -> None:
        """What each method does first: abort, as a server that stops, if the test says so."""
        if self.failing.get(method, 0):
            self.failing[method] -= 1
            self.failed[method] = self.failed.get(method, 0) + 1
            context.abort(grpc.StatusCode.UNAVAILABLE, f"{method} is unavailable")

    def make_token(self, public_key: str) -> tuple[str, int]:
        """(token for the owner of the key, expiry in Unix seconds)."""
        now = int(time.time())
        claims = binding(key_from_text(public_key)) | {
            "sub": IDENTITY,
            "roles": ["client"],
            "topics": ["equities.#"],
            "iat": now,
            "exp": now + self.token_life_s,
        }
        return sign_token(claims, self._token_key), now + self.token_life_s

    def serve(
        self, server_name: str, servicer: Any, add: Callable[[Any, grpc.Server], None], *names: str, listen: str = ""
    ) -> RpcServer:
        """A TLS server for one servicer."""
        verifier = TokenVerifier(server_name, announced(self._token_key))
        return serve(
            [lambda server: add(servicer, server)],
            names,
            listen or f"{INTERFACE}:0",
            self._certificate,
            self._key_pem,
            [Authorization(verifier, ROLES, frozenset({"tandemfeed.v1.Authentication"}))],
        )

    def whole_grant(self) -> admin_pb2.Grant:
        """The present grant of a subscription."""
        model = admin_pb2.DocumentVersion(kind=admin_pb2.DOCUMENT_KIND_MESSAGE_MODEL, id="toy", version=self.model[0])
        return admin_pb2.Grant(
            feed=common_pb2.FeedDescription(
                feed_id=FEED_ID,
                name="equities",
                session=self.session,
                channels=[common_pb2.ChannelDescription(channel_id=CHANNEL_ID, topic=TOPIC, source_stream_ids=[1, 2])],
            ),
            channels=[
                admin_pb2.ChannelGrant(
                    channel_id=CHANNEL_ID,
                    topic=TOPIC,
                    keys=[self.describe_key(key) for key in (self.key, *self.more_keys)],
                    message_model=model,
                )
            ],
            adapters=[self.describe(adapter) for adapter in self.adapters],
            documents=[admin_pb2.Document(version=model, content=self.model[1])],
            active=admin_pb2.ActiveAdapter(adapter_id=1, epoch=1),
            proof_keys=announced(self._token_key),
        )

    def epoch_proof(self, epoch: int) -> bytes:
        """The datagram with which adapters show whose epoch this is."""
        owner = self.owners[epoch]
        proof = prove(epoch_statement(FEED_ID, owner, epoch), self._token_key)
        return encode_epoch_proof(FEED_ID, owner, epoch, proof)

    def admit(self, client_key: bytes) -> None:
        """Let a client connect to the adapters; a real admin server orders them to."""
        if client_key:
            client = admin_pb2.AdmittedClient(client_key=client_key, channel_ids=[CHANNEL_ID])
            self.admitted.change(admin_pb2.SubscriptionsChanged(admitted=[client]), 0)

    def describe(self, adapter: ToyAdapter) -> common_pb2.AdapterDescription:
        """The adapter's description in a grant."""
        return common_pb2.AdapterDescription(
            adapter_id=adapter.adapter_id,
            name=f"toy-{adapter.adapter_id}",
            rpc_endpoint=adapter.rpc.endpoint,
            groups={CHANNEL_ID: adapter.group},
            incarnation=adapter.start.incarnation,
            unicast_endpoint="" if adapter.unicast is None else adapter.unicast.endpoint,
            unicast_server_key=adapter.unicast_key,
            starts=[
                common_pb2.AdapterStart(
                    incarnation=adapter.start.incarnation,
                    salt=adapter.start.salt,
                    public_key=adapter.start.public_key,
                    next_packet_counters=adapter.sealer.next_counters(),
                )
            ],
        )

    @staticmethod
    def describe_key(key: SealingKey) -> common_pb2.StreamKey:
        """The key's form in a grant."""
        return common_pb2.StreamKey(key_id=key.key_id, channel_id=key.channel_id, key=key.key)

    def connect(self, secret: str = SECRET) -> Client:
        """Connect as an application does."""
        return connect(
            admin=self.admin_rpc.endpoint,
            ca=self.ca_pem,
            identity=IDENTITY,
            secret=secret,
            interface=INTERFACE,
            datagrams=self.datagrams,
        )

    def stop_admin(self) -> None:
        """Stop the administration server."""
        self.admin.end_calls()
        self.admin_rpc.stop(0)

    def restart_admin(self) -> None:
        """Start a new administration server at the same address, without the old one's state."""
        self.admin = ToyAdmin(self)
        self.admin_rpc = self._serve_admin(self.admin_rpc.endpoint)

    def close(self) -> None:
        self.stop_admin()
        for adapter in self.adapters:
            adapter.close()
        self.context.destroy(linger=0)

    def _serve_admin(self, listen: str) -> RpcServer:
        def add(servicer: Any, server: grpc.Server) -> None:
            admin_pb2_grpc.add_AuthenticationServicer_to_server(servicer, server)
            admin_pb2_grpc.add_StreamAdministrationServicer_to_server(servicer, server)

        names = ("tandemfeed.v1.Authentication", "tandemfeed.v1.StreamAdministration")
        return self.serve(ADMIN_SERVER, self.admin, add, *names, listen=listen)


def subscribe_and_hear_all(
    cluster: ToyCluster,
    client: Client,
    *,
    merger_config: MergerConfig | None = None,
    start: Any = "first",
    confirm: Literal[1, 2] = 1,
    verify: Literal["alarm", "signed"] = "alarm",
    transport: Transport = "auto",
    on_event: Any = None,
    kind: Any = None,
) -> Subscription[Any]:
    """Subscribe, and return once every adapter's group is received, because joining takes effect in the background."""
    subscription = client.subscribe(
        [TOPIC],
        feed="equities",
        start=start,
        confirm=confirm,
        verify=verify,
        transport=transport,
        merger_config=merger_config,
        on_event=on_event,
        kind=kind,
    )
    heard: set[int] = set()
    while heard != {adapter.adapter_id for adapter in cluster.adapters}:
        for adapter in cluster.adapters:
            adapter.send(heartbeat(1))
        heard |= {item.adapter_id for item in subscription.poll(0.05) if isinstance(item, Live)}
    return subscription


def collect(subscription: Subscription, until: Callable[[list[Item]], bool], timeout_s: float = 30) -> list[Item]:
    """Poll until the condition is true for all items so far; fail after the time-out."""
    items: list[Item] = []
    give_up_at = time.monotonic() + timeout_s
    while not until(items):
        assert time.monotonic() < give_up_at, f"still waiting after {timeout_s} s with {items}"
        items += subscription.poll(0.1)
    return items


def message_seqs(items: Iterable[Item]) -> list[int]:
    """The `message_seq` of every delivered message, in delivery order."""
    return [
        item.first_message_seq + at for item in items if isinstance(item, Batch) for at in range(item.message_count)
    ]


def has_messages(count: int) -> Callable[[list[Item]], bool]:
    """A condition for `collect`: at least `count` messages."""
    return lambda items: len(message_seqs(items)) >= count
