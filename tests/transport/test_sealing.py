"""Sealed packets: only a key holder opens them, only once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedcore.wire.output_packet import OUTPUT_HEADER_SIZE, OutputPacket
from feedcore.wire.refusal import PacketRefused, Refusal
from tests.feedcore.packets import output_packet, output_packets
from transport.sealing import (
    COUNTER_MAX,
    INCARNATION_COUNT_MAX,
    REPLAY_WINDOW,
    NoKey,
    NonceExhausted,
    Opener,
    Sealer,
    SealingKey,
)

KEY = SealingKey(5, 1, bytes(range(32)))
GOLDEN = (
    "54464f310104070001000200012935010300000005000000090000000200010001000000"
    "0000000065000000000000005a000000000000000b000000000000000c00000000000000"
)
GOLDEN_SEALED = "2be5ee5df18006df795ccb60dc2cfd8ce198f0c6a47ee6c03ea89aa68a6ded5ea5ac0dc69d64b6b3d47bad77991f"


def sealer(incarnation: int = 9, **arguments: int) -> Sealer:
    made = Sealer(incarnation, **arguments)
    made.use_key(KEY)
    return made


def opener(*keys: SealingKey) -> Opener:
    made = Opener(7)
    for key in keys or (KEY,):
        made.add_key(key)
    return made


def refusal_of(datagram: bytes, by: Opener) -> Refusal:
    with pytest.raises(PacketRefused) as refused:
        by.open(datagram)
    return refused.value.reason


def test_the_golden_packet_seals_to_these_bytes() -> None:
    datagram = sealer().seal(output_packet(), 12)
    assert datagram[:OUTPUT_HEADER_SIZE].hex() == GOLDEN
    assert datagram[OUTPUT_HEADER_SIZE:].hex() == GOLDEN_SEALED


@given(output_packets, st.integers(0, 2**63))
def test_what_is_sealed_opens_to_itself(packet: OutputPacket, sent_at_ns: int) -> None:
    assert opener().open(sealer().seal(packet, sent_at_ns)) == packet._replace(sent_at_ns=sent_at_ns)


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_any_flipped_bit_is_refused(place: int, bit: int) -> None:
    damaged = bytearray(sealer().seal(output_packet(), 12))
    damaged[place % len(damaged)] ^= 1 << bit
    assert refusal_of(bytes(damaged), opener()) in (Refusal.FORGED, Refusal.UNKNOWN_KEY, Refusal.FOREIGN)


@given(st.binary(max_size=1_500))
def test_random_bytes_are_refused_and_nothing_else_happens(data: bytes) -> None:
    refusal_of(data, opener())
    refusal_of(bytes.fromhex(GOLDEN) + data, opener())


def test_another_key_does_not_open_it() -> None:
    datagram = sealer().seal(output_packet(), 12)
    assert refusal_of(datagram, opener(SealingKey(6, 1, bytes(32)))) is Refusal.UNKNOWN_KEY
    assert refusal_of(datagram, opener(SealingKey(5, 1, bytes(32)))) is Refusal.FORGED


def test_a_key_of_another_channel_does_not_pass_for_this_one() -> None:
    assert refusal_of(sealer().seal(output_packet(), 12), opener(SealingKey(5, 2, KEY.key))) is Refusal.WRONG_CHANNEL


def test_no_plaintext_of_a_message_is_on_the_wire() -> None:
    body = b"a message body that anyone would recognise"
    assert body not in sealer().seal(output_packet(runs=((1, 1, [body]),)), 12)


def test_a_packet_opens_once_in_whatever_order_they_come() -> None:
    made, receiver = sealer(), opener()
    datagrams = [made.seal(output_packet(), 12) for _ in range(REPLAY_WINDOW + 10)]
    for datagram in (datagrams[0], datagrams[5], datagrams[2]):
        receiver.open(datagram)
        assert refusal_of(datagram, receiver) is Refusal.REPLAYED
    receiver.open(datagrams[-1])
    assert refusal_of(datagrams[1], receiver) is Refusal.REPLAYED  # too old to tell
    receiver.open(datagrams[-2])


def test_a_forged_packet_does_not_use_up_the_nonce_of_the_true_one() -> None:
    receiver, datagram = opener(), sealer().seal(output_packet(), 12)
    assert refusal_of(datagram[:-1] + bytes([datagram[-1] ^ 1]), receiver) is Refusal.FORGED
    receiver.open(datagram)


def test_a_removed_key_opens_nothing() -> None:
    receiver = opener()
    receiver.remove_key(5)
    assert refusal_of(sealer().seal(output_packet(), 12), receiver) is Refusal.UNKNOWN_KEY


def test_a_nonce_is_never_used_twice() -> None:
    made = sealer(first_counter=COUNTER_MAX)
    made.seal(output_packet(), 12)
    with pytest.raises(NonceExhausted):
        made.seal(output_packet(), 12)
    made.adopt_incarnation(10)
    assert made.seal(output_packet(), 12)[24:28] == (10).to_bytes(4, "little")


def test_without_a_key_nothing_is_sealed() -> None:
    with pytest.raises(NoKey):
        Sealer(9).seal(output_packet(), 12)
    with pytest.raises(ValueError, match="AES-256"):
        SealingKey(1, 1, b"short")


@given(st.lists(st.integers(1, 3 * REPLAY_WINDOW), min_size=1, max_size=40))
def test_the_replay_window_takes_what_a_set_of_all_counters_would_or_calls_it_too_old(counters: list[int]) -> None:
    receiver, seen = opener(), set[int]()
    for counter in counters:
        datagram = sealer(first_counter=counter).seal(output_packet(), 12)
        if counter in seen or counter <= max(seen, default=0) - REPLAY_WINDOW:
            assert refusal_of(datagram, receiver) is Refusal.REPLAYED
        else:
            receiver.open(datagram)
            seen.add(counter)


def test_an_opener_remembers_a_bounded_number_of_starts_and_forgets_none_that_it_hears() -> None:
    receiver, steady = opener(), sealer(1)
    first = steady.seal(output_packet(), 12)
    receiver.open(first)
    for incarnation in range(2, 3 * INCARNATION_COUNT_MAX):
        early = sealer(incarnation).seal(output_packet(), 12)
        receiver.open(early)
        assert refusal_of(early, receiver) is Refusal.REPLAYED
        if incarnation % 100 == 0:
            receiver.open(steady.seal(output_packet(), 12))
            assert refusal_of(first, receiver) is Refusal.REPLAYED
    assert refusal_of(sealer(2, first_counter=2).seal(output_packet(), 12), receiver) is Refusal.REPLAYED  # forgotten


def test_an_incarnation_taken_up_again_goes_on_counting_where_it_was() -> None:
    made, nonces = sealer(), set[bytes]()
    for incarnation in (9, 10, 9, 9, 10):
        made.adopt_incarnation(incarnation)
        header = made.seal(output_packet(), 12)[:OUTPUT_HEADER_SIZE]
        nonces.add(header[24:28] + header[32:40])
    assert len(nonces) == 5


def test_a_datagram_that_no_sender_may_send_is_refused() -> None:
    assert refusal_of(sealer().seal(output_packet(runs=((1, 1, [bytes(8_192)]),)), 12), opener()) is Refusal.MALFORMED
