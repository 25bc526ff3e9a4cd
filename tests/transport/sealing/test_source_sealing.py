"""Sealed source packets: only holders of the source key can make them; a restarted gateway repeats no nonce."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.transport.sealing.source_sealing import (
    HEADER_SIZE,
    SEALED_SOURCE_MAGIC,
    SOURCE_SEAL_SIZE,
    STARTS_MAX,
    SourceOpener,
    SourceSealer,
)

KEY = bytes(range(32))


def sealer(key_id: int = 5, key: bytes = KEY, feed_id: int = 7) -> SourceSealer:
    made = SourceSealer(feed_id)
    made.use_key(key_id, key)
    return made


def opener(keys: dict[int, bytes] | None = None) -> SourceOpener:
    made = SourceOpener(7)
    made.use_keys({5: KEY} if keys is None else keys)
    return made


def refusal_of(datagram: bytes, by: SourceOpener) -> Refusal:
    with pytest.raises(PacketRefused) as refused:
        by.open(datagram)
    return refused.value.reason


@given(st.binary(max_size=1_424))
def test_a_sealed_packet_opens_to_the_original_and_does_not_contain_it(packet: bytes) -> None:
    datagram = sealer().seal(packet)
    assert len(datagram) == len(packet) + SOURCE_SEAL_SIZE
    assert opener().open(datagram) == packet
    assert len(packet) < 8 or packet not in datagram


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_any_flipped_bit_is_refused(place: int, bit: int) -> None:
    damaged = bytearray(sealer().seal(b"a source packet"))
    damaged[place % len(damaged)] ^= 1 << bit
    assert refusal_of(bytes(damaged), opener()) in (Refusal.FORGED, Refusal.UNKNOWN_KEY, Refusal.FOREIGN)


@given(st.binary(max_size=1_500))
def test_random_bytes_are_refused_and_have_no_other_effect(data: bytes) -> None:
    refusal_of(b"-" + data, opener())
    refusal_of(SEALED_SOURCE_MAGIC + data, opener())


def test_what_a_start_seals_is_refused_once_it_has_ended_and_believed_when_it_holds_a_term_again() -> None:
    former, present, receiver = sealer(), sealer(), opener()
    assert receiver.open(former.seal(b"before")) == b"before"
    receiver.refuse_starts([former.salt])
    assert refusal_of(former.seal(b"after"), receiver) is Refusal.FOREIGN
    assert receiver.open(present.seal(b"after")) == b"after"
    receiver.refuse_starts([present.salt])
    assert receiver.open(former.seal(b"again")) == b"again"


def test_a_packet_in_clear_is_refused_as_foreign_on_a_sealed_line() -> None:
    assert refusal_of(b"TFS1" + bytes(100), opener()) is Refusal.FOREIGN


def test_a_different_key_or_feed_does_not_open_a_packet() -> None:
    assert refusal_of(sealer().seal(b"-"), opener({5: bytes(32)})) is Refusal.FORGED
    assert refusal_of(sealer().seal(b"-"), opener({6: KEY})) is Refusal.UNKNOWN_KEY
    assert refusal_of(sealer(feed_id=8).seal(b"-"), opener()) is Refusal.FORGED


def test_two_starts_of_a_gateway_share_no_key_and_one_start_repeats_no_nonce() -> None:
    one, other = sealer(), sealer()
    sealed = {made.seal(b"the same packet")[HEADER_SIZE:] for made in (one, other, one, other)}
    assert len(sealed) == 4


def test_a_change_of_keys_loses_no_packet_and_a_removed_key_opens_nothing() -> None:
    made, receiver, successor = sealer(), opener(), os.urandom(32)
    former = made.seal(b"before")
    receiver.use_keys({5: KEY, 6: successor})
    made.use_key(6, successor)
    assert receiver.open(made.seal(b"after")) == b"after"
    assert receiver.open(former) == b"before"
    receiver.use_keys({6: successor})
    assert refusal_of(former, receiver) is Refusal.UNKNOWN_KEY


def test_salts_of_strangers_never_displace_a_start_in_use() -> None:
    made, receiver = sealer(), opener()
    receiver.open(made.seal(b"-"))
    for _ in range(10 * STARTS_MAX):
        assert refusal_of(sealer(key=bytes(32)).seal(b"-"), receiver) is Refusal.FORGED
    assert len(receiver._ciphers) == 1
    for _ in range(2 * STARTS_MAX):
        receiver.open(sealer().seal(b"-"))
    assert len(receiver._ciphers) == STARTS_MAX
    assert receiver.open(made.seal(b"again")) == b"again"
