"""Signature datagrams: which packets they list, what they bind, and which ones are refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.transport.sealing.opening import ReceivedPacket, ReceivedSignature, StreamOpener
from tandemfeed.transport.sealing.sealing import Sealer
from tandemfeed.transport.sealing.stream_signatures import (
    DIGEST_SIZE,
    HEARTBEATS_PER_SIGNATURE,
    OVERHEAD,
    SIGNATURE_MAGIC,
    SignatureDatagram,
    SignedDigests,
    digest_of,
    digests_max,
)
from tests.feedcore.packets import output_packet
from tests.transport.sealing.starts import CHANNEL_ID, KEY, START, forger, opener, sealer, stream_opener

HEARTBEAT = output_packet()._replace(flags=int(OutputFlag.HEARTBEAT), message_count=0, runs=(), payload=b"")
GOLDEN = (
    "54464431010007000100020009000000050000000100000001000000000000000d00000000000000516a62ef732fc3f6380cc6af"
    "c1cda2109f61426fbab36bc852a9f86f428b4b0ae24849d66cc9cf9bac3e7e8bd296ac9af8b4fcc372047ed158466e1c019ea580"
    "abda5ce565866063984b629959d9450985903145f7536be4010a539cb1e2b5f3"
)


def signed_by(made: Sealer, by: StreamOpener | None = None) -> SignedDigests:
    return verified(made.sign(CHANNEL_ID, 12), by or stream_opener())


def verified(datagram: bytes, by: StreamOpener) -> SignedDigests:
    opened = by.open(datagram)
    assert isinstance(opened, ReceivedSignature)
    return opened.verified()


def refusal_of(datagram: bytes, by: StreamOpener) -> Refusal:
    with pytest.raises(PacketRefused) as refused:
        verified(datagram, by)
    return refused.value.reason


def test_the_bytes_of_the_golden_signature_never_change() -> None:
    made = sealer()
    made.seal(output_packet(), 12)
    assert made.sign(CHANNEL_ID, 13).hex() == GOLDEN


def test_a_signature_lists_sealed_packets_by_their_counters() -> None:
    made = sealer(first_counter=40)
    datagrams = [made.seal(output_packet(), 12) for _ in range(3)]
    signed = signed_by(made, stream_opener(start=replace(START, next_counters={CHANNEL_ID: 40})))
    assert (signed.adapter_id, signed.incarnation, signed.channel_id) == (2, 9, CHANNEL_ID)
    assert (signed.first_counter, signed.end_counter) == (40, 43)
    assert signed.digests == tuple(map(digest_of, datagrams))


def test_a_received_packet_has_the_listed_digest_and_then_keeps_its_datagram_no_longer() -> None:
    made, reader = sealer(), stream_opener()
    heard = reader.open(made.seal(output_packet(), 12))
    assert isinstance(heard, ReceivedPacket)
    assert heard._datagram
    (listed,) = signed_by(made, reader).digests
    assert (heard.digest, heard.digest) == (listed, listed)
    assert not heard._datagram


def test_every_packet_is_listed_twice_so_that_losing_one_signature_does_no_harm() -> None:
    made, listed = sealer(), []
    for count in (3, 1, 2):
        for _ in range(count):
            made.seal(output_packet(), 12)
        signed = signed_by(made)
        listed.append((signed.first_counter, signed.end_counter))
    assert listed == [(1, 4), (1, 5), (4, 7)]


@given(st.integers(1, 300), st.integers(576, 8_192))
def test_many_packets_sealed_together_take_as_many_signatures_as_needed(count: int, datagram_size_max: int) -> None:
    made = Sealer(7, START, sealer()._private_key, datagram_size_max=datagram_size_max)
    made.use_key(KEY)
    sealed = [digest_of(made.seal(output_packet(), 12)) for _ in range(count - 1)]
    sealed.append(digest_of(made.seal(HEARTBEAT, 12)))
    listed: dict[int, bytes] = {}
    while made.channels_to_sign():
        signature = made.sign(CHANNEL_ID, 12)
        assert len(signature) <= datagram_size_max
        opened = verified(signature, stream_opener())
        listed.update(enumerate(opened.digests, opened.first_counter))
    assert listed == dict(enumerate(sealed, 1))


def heartbeat(**changes: object) -> OutputPacket:
    """HEARTBEAT, the packet of an idle adapter, with these changes."""
    return HEARTBEAT._replace(**changes)  # type: ignore[arg-type]


def signed_at(made: Sealer, packets: Iterable[OutputPacket]) -> list[int]:
    """Seal these packets, sign when due, and return the indices of the packets after which a signature was made."""
    places = []
    for place, packet in enumerate(packets):
        made.seal(packet, 12)
        if made.channels_to_sign():
            places.append(place)
        while made.channels_to_sign():
            made.sign(CHANNEL_ID, 12)
    return places


def idle_sealer() -> Sealer:
    """A sealer without news: it has signed its last news twice."""
    made = sealer()
    assert signed_at(made, [HEARTBEAT, HEARTBEAT]) == [0, 1]
    return made


def test_an_idle_adapter_signs_its_first_two_heartbeats_and_then_every_second() -> None:
    assert HEARTBEATS_PER_SIGNATURE == 2
    assert signed_at(sealer(), [HEARTBEAT] * 9) == [0, 1, 3, 5, 7]


@pytest.mark.parametrize(
    "news",
    [
        heartbeat(epoch=9),
        heartbeat(flags=HEARTBEAT.flags | OutputFlag.EPOCH_ENDED),
        heartbeat(flags=HEARTBEAT.flags | OutputFlag.END_OF_STREAM),
        heartbeat(flags=HEARTBEAT.flags | OutputFlag.FROM_ACTIVE),
        heartbeat(first_input_seq=HEARTBEAT.first_input_seq + 1),
        heartbeat(first_message_seq=HEARTBEAT.first_message_seq + 1),
        heartbeat(session=HEARTBEAT.session + 1),
        heartbeat(payload=bytes(20)),
    ],
    ids=["epoch", "end of epoch", "end of stream", "role", "input_seq", "message_seq", "session", "lineage"],
)
def test_a_heartbeat_with_news_is_signed_immediately_and_once_more(news: OutputPacket) -> None:
    assert signed_at(idle_sealer(), [HEARTBEAT, news, *[news] * 6]) == [1, 2, 4, 6]


def test_only_messages_and_heartbeats_that_differ_are_news() -> None:
    made = idle_sealer()
    for packet, is_news in ((HEARTBEAT, False), (heartbeat(epoch=9), True), (heartbeat(epoch=9), False)):
        made.seal(packet, 12)
        assert made.has_news is is_news
        while made.channels_to_sign():
            made.sign(CHANNEL_ID, 12)
    made.seal(output_packet(), 12)
    assert made.has_news


def test_packets_with_messages_are_signed_with_the_next_heartbeat_and_once_more() -> None:
    message = output_packet()
    assert signed_at(idle_sealer(), [HEARTBEAT, message, message, *[HEARTBEAT] * 8]) == [3, 4, 6, 8, 10]


def test_repeated_last_heartbeats_of_an_earlier_session_are_not_news() -> None:
    final_heartbeat = heartbeat(session=HEARTBEAT.session - 1, flags=HEARTBEAT.flags | OutputFlag.END_OF_STREAM)
    assert signed_at(sealer(), [HEARTBEAT, final_heartbeat] * 4) == [0, 1, 2, 4, 6]


@given(st.lists(st.sampled_from(["messages", "news", "repeat"]), max_size=300), st.integers(576, 8_192))
def test_news_is_listed_at_two_heartbeats_and_repetitions_within_two(kinds: list[str], datagram_size_max: int) -> None:
    made = Sealer(7, START, sealer()._private_key, datagram_size_max=datagram_size_max)
    made.use_key(KEY)
    beats: list[int] = []  # for each packet, in order of counters: the number of heartbeats up to it
    listed: dict[int, list[int]] = {}  # counter -> the heartbeats at which it was listed
    latest = HEARTBEAT
    for kind in kinds:
        latest = latest._replace(epoch=latest.epoch + (kind == "news"))
        is_beat = kind != "messages"
        made.seal(latest if is_beat else output_packet(), 12)
        beats.append((beats[-1] if beats else 0) + is_beat)
        while made.channels_to_sign():
            signature = made.sign(CHANNEL_ID, 12)
            assert len(signature) <= datagram_size_max
            opened = verified(signature, stream_opener())
            for counter in range(opened.first_counter, opened.end_counter):
                listed.setdefault(counter, []).append(beats[-1])
    for counter, (kind, beat) in enumerate(zip(kinds, beats, strict=True), 1):
        first_due, second_due = {"messages": (1, 2), "news": (0, 1)}.get(kind, (1, 3))
        if beats[-1] >= beat + second_due:
            assert len(listed[counter]) == 2
            assert listed[counter][0] <= beat + first_due
            assert listed[counter][1] <= beat + second_due


def test_a_signature_is_due_when_its_list_is_full() -> None:
    made, most = sealer(), digests_max()
    assert signed_at(made, [output_packet()] * (3 * most)) == [most - 1, 2 * most - 1, 3 * most - 1]


def test_the_last_signature_is_sent_again_if_the_next_list_has_no_room_for_its_packets() -> None:
    made, most, sent = sealer(), digests_max(), []
    for _ in range(2 * most + 1):
        made.seal(output_packet(), 12)
    made.seal(HEARTBEAT, 12)
    while made.channels_to_sign():
        sent.append(made.sign(CHANNEL_ID, 12))
    assert sent[0] == sent[1]
    assert sent[2] == sent[3]
    listed = [verified(each, stream_opener()) for each in sent]
    assert [(each.first_counter, each.end_counter) for each in listed[1::2]] == [
        (1, most + 1),
        (most + 1, 2 * most + 1),
    ]
    assert (listed[4].first_counter, listed[4].end_counter) == (2 * most + 1, 2 * most + 3)


def test_no_two_signatures_share_a_nonce() -> None:
    made = sealer()
    made.seal(output_packet(), 12)
    made.sign(CHANNEL_ID, 12)
    with pytest.raises(AssertionError, match="nonce"):
        made.sign(CHANNEL_ID, 13)


def test_an_adapter_ignores_signatures() -> None:
    made = sealer()
    made.seal(output_packet(), 12)
    assert opener().open(made.sign(CHANNEL_ID, 12)) is None


def test_a_reader_cannot_sign_as_an_adapter() -> None:
    made = forger()
    made.seal(output_packet(), 12)
    assert refusal_of(made.sign(CHANNEL_ID, 12), stream_opener()) is Refusal.BAD_SIGNATURE


@pytest.mark.parametrize("is_forged", [False, True])
def test_a_signature_is_verified_once_however_many_subscriptions_take_it(
    monkeypatch: pytest.MonkeyPatch, *, is_forged: bool
) -> None:
    made = forger() if is_forged else sealer()
    made.seal(output_packet(), 12)
    opened = stream_opener().open(made.sign(CHANNEL_ID, 12))
    assert isinstance(opened, ReceivedSignature)
    verify, calls = SignatureDatagram.verified, []

    def counted(*arguments: Any) -> SignedDigests:
        calls.append(arguments)
        return verify(*arguments)

    monkeypatch.setattr(SignatureDatagram, "verified", counted)
    for _ in range(3):
        if is_forged:
            with pytest.raises(PacketRefused, match=Refusal.BAD_SIGNATURE.value):
                opened.verified()
        else:
            assert opened.verified().first_counter == 1
    assert len(calls) == 1


def test_a_signature_from_a_sender_without_the_key_is_refused_before_verification() -> None:
    made = forger()
    made.use_key(replace(KEY, key=bytes(32)))
    made.seal(output_packet(), 12)
    assert refusal_of(made.sign(CHANNEL_ID, 12), stream_opener()) is Refusal.FORGED


def test_a_signature_of_a_start_that_was_not_announced_is_refused() -> None:
    made = sealer(replace(START, incarnation=10))
    made.seal(output_packet(), 12)
    assert refusal_of(made.sign(CHANNEL_ID, 12), stream_opener()) is Refusal.UNANNOUNCED


def test_a_signature_of_another_start_with_the_same_number_does_not_verify() -> None:
    made = sealer(replace(START, salt=bytes(32)))
    made.seal(output_packet(), 12)
    assert refusal_of(made.sign(CHANNEL_ID, 12), stream_opener()) is Refusal.FORGED


@given(st.integers(4, 10_000), st.integers(0, 7))
def test_a_signature_with_any_flipped_bit_is_refused(place: int, bit: int) -> None:
    made = sealer()
    made.seal(output_packet(), 12)
    damaged = bytearray(made.sign(CHANNEL_ID, 12))
    damaged[4 + place % (len(damaged) - 4)] ^= 1 << bit
    expected = (
        Refusal.FORGED, Refusal.UNKNOWN_KEY, Refusal.UNANNOUNCED, Refusal.VERSION, Refusal.WRONG_FEED,
        Refusal.MALFORMED,
    )  # fmt: skip
    assert refusal_of(bytes(damaged), stream_opener()) in expected


@given(st.binary(max_size=1_500))
def test_random_bytes_are_refused_and_have_no_other_effect(data: bytes) -> None:
    refusal_of(SIGNATURE_MAGIC + data, stream_opener())


def test_a_signature_in_the_smallest_datagram_has_room_for_a_useful_list() -> None:
    assert OVERHEAD + digests_max(576) * DIGEST_SIZE <= 576
    assert digests_max(576) == 28
    assert digests_max() == digests_max(8_192) == 80
