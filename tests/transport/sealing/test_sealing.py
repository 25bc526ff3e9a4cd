"""Sealed packets: only a holder of the key opens them, and an adapter opens only what an adapter tagged."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.output_packet import (
    DECISION_TAG_SIZE,
    OUTPUT_HEADER,
    OUTPUT_HEADER_SIZE,
    SEAL_TAG_SIZE,
    OutputFlag,
    OutputPacket,
)
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.transport.sealing.announced_starts import AnnouncedStart
from tandemfeed.transport.sealing.opening import ImpersonationRefused, Opener, ReceivedPacket, StreamOpener
from tandemfeed.transport.sealing.replay_window import REPLAY_WINDOW
from tandemfeed.transport.sealing.sealing import COUNTER_MAX, NoKey, NonceExhausted, Sealer
from tandemfeed.transport.sealing.start_keys import SealingKey
from tests.feedcore.packets import output_packet, output_packets
from tests.transport.sealing.starts import KEY, PRIVATE_KEY, READERS_KEY, START, forger, opener, sealer, stream_opener

GOLDEN = (
    "54464f3202040700010002000129350103000000050000000900000002000100010000000000000065000000000000002d010000"
    "000000000b000000000000000c00000000000000"
)
GOLDEN_SEALED = (
    "b4dde6fa821a012d8a0941e6c3241325153a81c5ecc7ceb03e5d962e50c5b548ec9ad9294f244f3b4a4fa1d20646465390405e31"
    "6217f6594c24ac14bcca"
)
ANY_COUNTER = st.integers(0, COUNTER_MAX)


def refusal_of(datagram: bytes, by: Opener | StreamOpener) -> Refusal:
    with pytest.raises(PacketRefused) as refused:
        by.open(datagram)
    return refused.value.reason


def heartbeat(epoch: int) -> OutputPacket:
    """What an active sends when it opens an epoch: a header and one entry of lineage."""
    lineage = Lineage().opened(epoch, 301, 101)
    return output_packet(epoch=epoch)._replace(
        flags=OutputFlag.HEARTBEAT | OutputFlag.FROM_ACTIVE, message_count=0, runs=(), payload=lineage.encode(1_000)
    )


def test_the_golden_packet_is_always_sealed_to_the_same_bytes() -> None:
    datagram = sealer().seal(output_packet(), 12)
    assert datagram[:OUTPUT_HEADER_SIZE].hex() == GOLDEN
    assert datagram[OUTPUT_HEADER_SIZE:].hex() == GOLDEN_SEALED
    assert len(datagram) == OUTPUT_HEADER_SIZE + len(output_packet().payload) + SEAL_TAG_SIZE + DECISION_TAG_SIZE


@given(output_packets, st.integers(0, 2**63))
def test_a_sealed_packet_opens_to_the_original(packet: OutputPacket, sent_at_ns: int) -> None:
    datagram = sealer().seal(packet, sent_at_ns)
    assert opener().open(datagram) == packet._replace(sent_at_ns=sent_at_ns)
    heard = stream_opener().open(datagram)
    assert isinstance(heard, ReceivedPacket)
    assert (heard.packet, heard.incarnation, heard.counter) == (packet._replace(sent_at_ns=sent_at_ns), 9, 1)


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_any_flipped_bit_is_refused_by_an_adapter(place: int, bit: int) -> None:
    damaged = bytearray(sealer().seal(output_packet(), 12))
    damaged[place % len(damaged)] ^= 1 << bit
    expected = (Refusal.UNTAGGED, Refusal.UNKNOWN_KEY, Refusal.UNANNOUNCED, Refusal.FOREIGN)
    assert refusal_of(bytes(damaged), opener()) in expected


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_any_flipped_bit_before_the_decision_tag_is_refused_by_a_reader(place: int, bit: int) -> None:
    damaged = bytearray(sealer().seal(output_packet(), 12))
    damaged[place % (len(damaged) - DECISION_TAG_SIZE)] ^= 1 << bit
    expected = (Refusal.FORGED, Refusal.UNKNOWN_KEY, Refusal.UNANNOUNCED, Refusal.FOREIGN)
    assert refusal_of(bytes(damaged), stream_opener()) in expected


@given(st.binary(max_size=1_500))
def test_random_bytes_are_refused_and_have_no_other_effect(data: bytes) -> None:
    for by in (opener(), stream_opener()):
        refusal_of(b"-" + data, by)
        refusal_of(bytes.fromhex(GOLDEN) + data, by)
    refusal_of(b"TFD1" + data, stream_opener())
    assert opener().open(b"TFD1" + data) is None, "adapters ignore signatures"


def test_a_different_key_does_not_open_a_packet() -> None:
    datagram = sealer().seal(output_packet(), 12)
    assert refusal_of(datagram, opener(replace(KEY, key_id=6))) is Refusal.UNKNOWN_KEY
    assert refusal_of(datagram, stream_opener(replace(READERS_KEY, key=bytes(32)))) is Refusal.FORGED


def test_a_key_of_another_channel_does_not_open_a_packet() -> None:
    assert refusal_of(sealer().seal(output_packet(), 12), opener(replace(KEY, channel_id=2))) is Refusal.UNKNOWN_KEY


def test_a_sealed_packet_does_not_contain_the_plaintext() -> None:
    body = b"a message body that is easy to recognise"
    assert body not in sealer().seal(output_packet(runs=((1, 1, [body]),)), 12)


# ---- the decision tag ----


def test_an_adapter_refuses_a_heartbeat_with_a_huge_epoch_that_a_reader_forged() -> None:
    forged = forger().seal(heartbeat(2**32 - 2), 12)
    assert isinstance(stream_opener().open(forged), ReceivedPacket), "it is sealed with the channel's key"
    assert refusal_of(forged, opener()) is Refusal.UNTAGGED


def test_a_forged_packet_with_the_tag_of_a_genuine_one_is_refused() -> None:
    genuine, forged = sealer().seal(heartbeat(3), 12), forger().seal(heartbeat(4), 12)
    assert refusal_of(forged[:-DECISION_TAG_SIZE] + genuine[-DECISION_TAG_SIZE:], opener()) is Refusal.UNTAGGED


def test_a_datagram_without_room_for_both_tags_is_truncated() -> None:
    datagram = sealer().seal(output_packet(), 12)
    for by in (opener(), stream_opener()):
        assert (
            refusal_of(datagram[: OUTPUT_HEADER_SIZE + SEAL_TAG_SIZE + DECISION_TAG_SIZE - 1], by) is Refusal.TRUNCATED
        )
    assert refusal_of(datagram[:-DECISION_TAG_SIZE], opener()) is Refusal.UNTAGGED
    assert refusal_of(datagram[:-DECISION_TAG_SIZE], stream_opener()) is Refusal.FORGED


def test_an_adapter_without_the_decision_key_refuses_every_packet() -> None:
    assert refusal_of(sealer().seal(output_packet(), 12), opener(READERS_KEY)) is Refusal.UNTAGGED


def test_a_decision_key_changes_with_its_stream_key_and_a_removed_key_opens_nothing() -> None:
    made, receiver = sealer(), opener()
    former = [made.seal(output_packet(), 12) for _ in range(2)]
    successor = SealingKey(6, 1, os.urandom(32), os.urandom(32))
    receiver.add_key(successor)
    made.use_key(successor)
    fresh = [made.seal(output_packet(), 12) for _ in range(2)]
    receiver.open(fresh[0])
    receiver.open(former[0])  # late, but still valid
    receiver.remove_key(5)
    assert refusal_of(former[1], receiver) is Refusal.UNKNOWN_KEY
    receiver.open(fresh[1])
    assert refusal_of(fresh[0], receiver) is Refusal.REPLAYED, "the counter continues across a change of keys"


# ---- announced starts ----


def test_a_start_that_was_not_announced_is_refused() -> None:
    unknown = replace(START, incarnation=10)
    for by in (opener(), stream_opener()):
        assert refusal_of(sealer(unknown).seal(output_packet(), 12), by) is Refusal.UNANNOUNCED
        by.announce([START, unknown])
        by.open(sealer(unknown).seal(output_packet(), 12))
        by.announce([unknown])
        assert refusal_of(sealer().seal(output_packet(), 12), by) is Refusal.UNANNOUNCED


def test_a_start_of_one_adapter_is_not_valid_for_another() -> None:
    for by in (opener(), stream_opener()):
        datagram = sealer(replace(START, adapter_id=3)).seal(output_packet()._replace(adapter_id=3), 12)
        assert refusal_of(datagram, by) is Refusal.UNANNOUNCED


def test_packets_of_a_start_are_refused_until_its_packet_counter_is_known() -> None:
    datagram = sealer(first_counter=50).seal(output_packet(), 12)
    receiver = opener(start=replace(START, next_counters={}))
    assert refusal_of(datagram, receiver) is Refusal.UNANNOUNCED
    receiver.announce([replace(START, next_counters={1: 50})])
    receiver.open(datagram)


def test_a_repeated_announcement_of_a_start_keeps_its_replay_window() -> None:
    made, receiver = sealer(), opener()
    datagram = made.seal(output_packet(), 12)
    receiver.open(datagram)
    receiver.announce([replace(START, next_counters={})])  # from a server that has just started
    assert refusal_of(datagram, receiver) is Refusal.REPLAYED
    receiver.open(made.seal(output_packet(), 12))


def test_a_packet_sent_before_an_adapter_started_is_refused() -> None:
    made = sealer()
    old = [made.seal(output_packet(), 12) for _ in range(3)]
    fresh = opener(start=replace(START, next_counters=made.next_counters()))
    for datagram in old:
        assert refusal_of(datagram, fresh) is Refusal.REPLAYED
    fresh.open(made.seal(output_packet(), 12))


# ---- nonces ----


def test_starts_with_the_same_incarnation_have_different_keys() -> None:
    """A restored state folder repeats the channel's key, the incarnation and the counter."""
    other_salt, other_process = replace(START, salt=os.urandom(32)), replace(START, public_key=os.urandom(32))
    sealed = {
        sealer(start).seal(output_packet(), 12)[OUTPUT_HEADER_SIZE:] for start in (START, other_salt, other_process)
    }
    assert len(sealed) == 3
    for start in (other_salt, other_process):
        assert refusal_of(sealer(start).seal(output_packet(), 12), stream_opener()) is Refusal.FORGED


def test_channels_feeds_and_purposes_have_different_keys() -> None:
    packet = output_packet()
    sealed = set()
    for feed_id, key in ((7, KEY), (8, KEY), (7, replace(KEY, channel_id=2)), (7, replace(KEY, key_id=6))):
        made = Sealer(feed_id, START, PRIVATE_KEY)
        made.use_key(key)
        sealed.add(made.seal(packet._replace(feed_id=feed_id, channel_id=key.channel_id), 12)[OUTPUT_HEADER_SIZE:-32])
    same = Sealer(7, START, PRIVATE_KEY)
    same.use_key(replace(KEY, decision_key=KEY.key))
    datagram = same.seal(packet, 12)
    assert len(sealed) == 4
    assert datagram[-DECISION_TAG_SIZE:] != datagram[-2 * DECISION_TAG_SIZE : -DECISION_TAG_SIZE]


def test_a_nonce_is_never_used_twice() -> None:
    made = sealer(first_counter=COUNTER_MAX - 1)
    made.seal(output_packet(), 12)
    with pytest.raises(NonceExhausted):
        made.seal(output_packet(), 12)
    another = AnnouncedStart(2, 10, os.urandom(32), START.public_key, {1: 1})
    made.adopt_start(another)
    datagram = made.seal(output_packet(), 12)
    assert OUTPUT_HEADER.unpack_from(datagram)[9] == 10
    opener(start=another).open(datagram)


def test_a_start_that_is_adopted_twice_continues_its_counters() -> None:
    made = sealer()
    made.seal(output_packet(), 12)
    made.adopt_start(replace(START, next_counters={1: 1}))
    made.use_key(KEY)
    assert made.next_counters() == {1: 2}
    made.adopt_start(replace(START, incarnation=10))
    assert made.next_counters() == {1: 1}


def test_without_a_key_nothing_is_sealed() -> None:
    with pytest.raises(NoKey):
        Sealer(7, START, PRIVATE_KEY).seal(output_packet(), 12)
    with pytest.raises(ValueError, match="AES-256"):
        SealingKey(1, 1, b"short")
    with pytest.raises(ValueError, match="AES-256"):
        SealingKey(1, 1, bytes(32), b"short")
    with pytest.raises(ValueError, match="decision key"):
        sealer(key=READERS_KEY)


# ---- replays ----


def test_each_packet_opens_once_in_any_order() -> None:
    made, receiver = sealer(), opener()
    datagrams = [made.seal(output_packet(), 12) for _ in range(REPLAY_WINDOW + 10)]
    for datagram in (datagrams[0], datagrams[5], datagrams[2]):
        receiver.open(datagram)
        assert refusal_of(datagram, receiver) is Refusal.REPLAYED
    receiver.open(datagrams[-1])
    assert refusal_of(datagrams[1], receiver) is Refusal.REPLAYED  # too old to know
    receiver.open(datagrams[-2])


def test_a_forged_packet_does_not_use_up_the_nonce_of_the_genuine_one() -> None:
    receiver, datagram = opener(), sealer().seal(output_packet(), 12)
    assert refusal_of(datagram[:-1] + bytes([datagram[-1] ^ 1]), receiver) is Refusal.UNTAGGED
    assert refusal_of(forger().seal(output_packet(), 12), receiver) is Refusal.UNTAGGED
    receiver.open(datagram)


@given(ANY_COUNTER)
def test_no_counter_in_a_forged_packet_affects_an_adapter(counter: int) -> None:
    receiver, made = opener(), sealer()
    receiver.open(made.seal(output_packet(), 12))
    counter = min(counter, COUNTER_MAX - 1)
    assert refusal_of(forger(first_counter=counter).seal(output_packet(), 12), receiver) is Refusal.UNTAGGED
    receiver.open(made.seal(output_packet(), 12))


def test_a_packet_without_the_decision_tag_is_refused_with_the_start_that_it_impersonates() -> None:
    with pytest.raises(ImpersonationRefused) as refused:
        opener().open(forger().seal(output_packet(), 12))
    assert refused.value.reason is Refusal.UNTAGGED
    assert (refused.value.adapter_id, refused.value.incarnation) == START.identity


def test_a_datagram_larger_than_any_sender_may_send_is_refused() -> None:
    datagram = sealer().seal(output_packet(runs=((1, 1, [bytes(8_192)]),)), 12)
    for by in (opener(), stream_opener()):
        assert refusal_of(datagram, by) is Refusal.MALFORMED
