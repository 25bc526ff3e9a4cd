"""The drills' forger: its packets open under the channel's key, so they are refused only for the missing tag."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import zmq

from tandemfeed.client_lib.login.grant import DocumentName, Grant, GrantedAdapter, GrantedKey
from tandemfeed.deploy.drills.forger import HUGE_EPOCH, JUST_AHEAD, Eavesdropper, Forger
from tandemfeed.feedcore.wire.output_packet import (
    ANNOUNCEMENT_BIT,
    DECISION_TAG_SIZE,
    EPOCH_ENDED_BIT,
    HEARTBEAT_BIT,
    OUTPUT_MAGIC,
)
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.transport.multicast.sockets import Multicast
from tandemfeed.transport.multicast.zeromq import ZeromqSender
from tandemfeed.transport.sealing.opening import ReceivedPacket, ReceivedSignature
from tandemfeed.transport.sealing.sealing import COUNTER_MAX
from tandemfeed.transport.sealing.stream_signatures import SIGNATURE_MAGIC
from tests.feedcore.packets import output_packet
from tests.transport.sealing.starts import FEED_ID, READERS_KEY, START, opener, sealer, stream_opener

GROUP, OTHER = "239.192.78.1:17011", "239.192.78.2:17012"
TAG = bytes(range(DECISION_TAG_SIZE))
KINDS = 7


@pytest.fixture
def context() -> Any:
    made: zmq.Context[Any] = zmq.Context()
    yield made
    made.destroy(linger=0)


def granted() -> Grant:
    """The adapter of tests.transport.sealing.starts, and a second one that has not started."""
    adapters = {
        2: GrantedAdapter(2, "b", "", "", {1: GROUP}, (START,)),
        3: GrantedAdapter(3, "c", "", "", {1: OTHER}),
    }
    keys = {READERS_KEY.key_id: GrantedKey(READERS_KEY, 0)}
    return Grant(
        FEED_ID,
        "equities",
        20261121,
        {1: "ticks"},
        {},
        adapters,
        keys,
        b"",
        DocumentName("model", "1"),
        active_adapter_id=2,
        epoch=3,
    )


def refusal_by_an_adapter(datagram: bytes) -> Refusal | None:
    """Why an adapter refuses the datagram; None if adapters ignore it because it is for readers only."""
    try:
        opened = opener().open(datagram)
    except PacketRefused as refused:
        return refused.reason
    assert opened is None
    return None


def test_a_forger_that_has_received_nothing_forges_what_needs_no_knowledge(context: zmq.Context[Any]) -> None:
    forger = Forger(granted(), Eavesdropper(granted(), context, Multicast(), TAG), TAG)
    made = list(islice(forger.datagrams(), 8))
    assert set(forger.made) == {"huge_epoch", "end_of_epoch", "counter_near_the_end", "signature"}
    assert {group for group, _ in made} == {GROUP.encode()}


def test_forged_packets_open_at_a_reader_and_are_refused_by_an_adapter_as_untagged(
    context: zmq.Context[Any],
) -> None:
    listener = Eavesdropper(granted(), context, Multicast(), TAG)
    adapter, sender, true = sealer(first_counter=100), ZeromqSender(context, "127.0.0.1"), output_packet()
    datagram = adapter.seal(true, 12)
    while not listener.captured:  # until libzmq has joined the group
        sender.send(GROUP.encode(), datagram)
        listener.hear()
    assert listener.captured[0] == (GROUP.encode(), datagram)
    forger = Forger(granted(), listener, TAG)
    reader = stream_opener()
    heard: list[ReceivedPacket] = []
    reasons: Counter[Refusal | None] = Counter()
    for group, forged in islice(forger.datagrams(), 10 * KINDS):
        if forged == datagram:
            assert group == GROUP.encode()
            continue
        reasons[refusal_by_an_adapter(forged)] += 1
        if forged.startswith(SIGNATURE_MAGIC):
            signature = reader.open(forged)
            assert isinstance(signature, ReceivedSignature)
            with pytest.raises(PacketRefused) as refused:
                signature.verified()
            assert refused.value.reason is Refusal.BAD_SIGNATURE
            continue
        opened = reader.open(forged)
        assert isinstance(opened, ReceivedPacket)
        heard.append(opened)
    assert forger.made == dict.fromkeys(forger.made, 10)
    assert len(forger.made) == KINDS
    assert reasons == {Refusal.UNTAGGED: 50, None: 10}
    epochs = {each.packet.epoch for each in heard if each.packet.flags & HEARTBEAT_BIT}
    assert epochs == {true.epoch, HUGE_EPOCH}
    assert any(each.packet.flags & EPOCH_ENDED_BIT for each in heard)
    counters = {each.counter for each in heard}
    assert max(counters) > COUNTER_MAX - JUST_AHEAD
    assert all(100 < counter <= 101 + JUST_AHEAD or counter > COUNTER_MAX - JUST_AHEAD for counter in counters)
    decisions = [each.packet for each in heard if each.packet.runs]
    assert {bool(each.flags & ANNOUNCEMENT_BIT) for each in decisions} == {True, False}
    for packet in decisions:
        assert (packet.first_message_seq, packet.first_input_seq) == (true.end_message_seq, true.end_input_seq)
        assert packet.runs[0].first_source_seq == true.runs[-1].end_source_seq
        assert true.payload[true.messages_offset :] not in packet.payload


def test_a_forger_ignores_its_own_packets(context: zmq.Context[Any]) -> None:
    listener = Eavesdropper(granted(), context, Multicast(), TAG)
    sender = ZeromqSender(context, "127.0.0.1")
    forger = Forger(granted(), listener, TAG)
    true = sealer().seal(output_packet(), 12)
    forged = [datagram for _, datagram in islice(forger.datagrams(), 8)]
    assert {datagram[:4] for datagram in forged} == {OUTPUT_MAGIC.to_bytes(4, "little"), SIGNATURE_MAGIC}
    while not listener.captured:
        for datagram in (*forged, true):
            sender.send(GROUP.encode(), datagram)
        listener.hear()
    assert {datagram for _, datagram in listener.captured} == {true}


def test_a_forger_impersonates_the_starts_of_its_newest_grant(context: zmq.Context[Any]) -> None:
    grant = granted()
    forger = Forger(grant, Eavesdropper(grant, context, Multicast(), TAG), TAG)
    datagrams = forger.datagrams()
    next(datagrams)
    other = replace(START, adapter_id=3, incarnation=4)
    moved = {2: replace(grant.adapters[2], starts=()), 3: replace(grant.adapters[3], starts=(other,))}
    forger.use_grant(replace(grant, adapters=moved))
    assert next(datagrams)[0] == OTHER.encode()
    forger.use_grant(replace(grant, adapters={}))
    assert next(datagrams, None) is None
