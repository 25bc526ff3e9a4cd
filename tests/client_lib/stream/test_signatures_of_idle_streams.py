"""What a reader accepts, given that adapters sign news immediately, and repeated heartbeats two at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.client_lib.stream.trust.stream_trust import SIGNED_WITHIN_NS, SILENCE_MAX_NS, Verdict, VerifyMode
from tandemfeed.feedcore.merge.config import HEARTBEAT_NS, IDLE_HEARTBEAT_NS, MergerConfig
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.transport.sealing.opening import ReceivedSignature
from tandemfeed.transport.sealing.sealing import Sealer
from tandemfeed.transport.sealing.stream_signatures import SignedDigests
from tests.client_lib.stream.test_stream_trust import HUGE, KEY, MS, Scene, alarms, first_seqs
from tests.client_lib.toy_cluster import CHANNEL_ID, FEED_ID, heartbeat, packet

STALE_NS = MergerConfig().stale_after_ns
MODES: list[VerifyMode] = ["alarm", "signed"]


class SignedStream:
    """Adapter 1's signed stream, over a network that loses signatures.

    Args:
        is_lost: whether the network loses a signature, by its number from 0.
    """

    def __init__(self, verify: VerifyMode, is_lost: Callable[[int], bool] = lambda _number: False) -> None:
        self.scene = Scene(verify)
        self.next_seq = 1
        self.proved_at_ns = self.scene.now_ns
        self.signature_count = 0
        self.is_lost: Callable[[int], bool] = lambda _number: False
        self.turn()  # both signatures of the first heartbeat arrive
        self.turn()
        self.signature_count, self.is_lost = 0, is_lost

    def turn(self, message_count: int = 0, *, interval_ns: int = HEARTBEAT_NS, **changes: int) -> list[Verdict]:
        """One heartbeat interval: packets with one message each, a heartbeat, and the signatures that are due."""
        scene, sealer = self.scene, self.scene.adapters[1]
        scene.now_ns += interval_ns
        datagrams = []
        for _ in range(message_count):
            datagrams.append(scene.sealed(packet(self.next_seq, self.next_seq, 1)))
            self.next_seq += 1
        datagrams.append(scene.sealed(heartbeat(self.next_seq, **changes)))  # type: ignore[arg-type]
        verdicts = scene.hear(*datagrams)
        while sealer.channels_to_sign():
            signature = sealer.sign(CHANNEL_ID, 0)
            verdicts += [] if self.is_lost(self.signature_count) else scene.hear(signature)
            self.signature_count += 1
        return verdicts + self.prove()

    def prove(self) -> list[Verdict]:
        """What a merge does before it would call the stream stale."""
        now_ns = self.scene.now_ns
        if now_ns < self.proved_at_ns + STALE_NS:
            return []
        proved = self.scene.trust.on_timer(now_ns)
        assert all(now_ns - STALE_NS <= at_ns <= now_ns for at_ns, _ in proved)
        self.proved_at_ns = max((at_ns for at_ns, _ in proved), default=now_ns)
        return [verdict for _, verdict in proved]

    def forger(self) -> Sealer:
        """Continues adapter 1's stream with a reader's means: the channel's key, and a signing key of its own."""
        start, counter = self.scene.starts[1], self.scene.adapters[1].next_counters()[CHANNEL_ID]
        made = Sealer(FEED_ID, start, Ed25519PrivateKey.generate(), first_counter=counter)
        made.use_key(replace(KEY, decision_key=bytes(32)))
        return made

    def idle(self, turns: int) -> Iterator[list[Verdict]]:
        """Heartbeat intervals of an idle channel."""
        for _ in range(turns):
            yield self.turn(interval_ns=IDLE_HEARTBEAT_NS)


def beats(verdicts: list[Verdict]) -> int:
    return sum(isinstance(each, OutputPacket) and each.message_count == 0 for each in verdicts)


@pytest.fixture
def verifications(monkeypatch: pytest.MonkeyPatch) -> list[ReceivedSignature]:
    """The signatures that are verified."""
    verified: list[ReceivedSignature] = []
    verify = ReceivedSignature.verified

    def spy(signature: ReceivedSignature) -> SignedDigests:
        verified.append(signature)
        return verify(signature)

    monkeypatch.setattr(ReceivedSignature, "verified", spy)
    return verified


@pytest.mark.parametrize("verify", MODES)
def test_an_idle_stream_has_twenty_signatures_a_second_of_which_a_quarter_is_verified(
    verify: VerifyMode, verifications: list[ReceivedSignature]
) -> None:
    stream = SignedStream(verify)
    verifications.clear()
    began_ns, accepted_at_ns = stream.scene.now_ns, stream.scene.now_ns
    for verdicts in stream.idle(1_000):
        if beats(verdicts):
            assert stream.scene.now_ns - accepted_at_ns <= STALE_NS + SIGNED_WITHIN_NS
            accepted_at_ns = stream.scene.now_ns
    seconds = (stream.scene.now_ns - began_ns) / 1e9
    assert stream.signature_count == 1_000 * IDLE_HEARTBEAT_NS // SIGNED_WITHIN_NS == 500
    assert 4 * seconds < len(verifications) < 6 * seconds
    assert not any(stream.scene.counters.refusals.values()), "heartbeats that were not needed are not refused"


@pytest.mark.parametrize("verify", MODES)
def test_an_idle_stream_that_loses_two_signatures_in_a_row_is_not_stale_and_raises_no_alarm(
    verify: VerifyMode,
) -> None:
    stream = SignedStream(verify, is_lost=lambda number: number % 3 != 2)
    proved_at_ns = stream.proved_at_ns
    for verdicts in stream.idle(500):
        assert not alarms(verdicts)
        if stream.scene.now_ns >= proved_at_ns + STALE_NS:
            assert beats(verdicts), "the stream would be called stale"
            proved_at_ns = stream.proved_at_ns


def test_news_of_an_idle_stream_is_verified_immediately(verifications: list[ReceivedSignature]) -> None:
    stream = SignedStream("signed")
    list(stream.idle(4))
    verifications.clear()
    assert 1 in first_seqs(stream.turn(1))
    assert len(verifications) == 1


def test_a_dead_adapter_is_not_kept_alive_by_heartbeats_and_signatures_of_a_reader() -> None:
    stream = SignedStream("alarm")
    list(stream.idle(3))
    stream.scene.trust.on_timer(stream.scene.now_ns)
    scene, forger = stream.scene, stream.forger()
    for _ in range(20):
        scene.now_ns += IDLE_HEARTBEAT_NS
        scene.hear(forger.seal(heartbeat(stream.next_seq), scene.now_ns))
        while forger.channels_to_sign():
            with suppress(PacketRefused):
                scene.hear(forger.sign(CHANNEL_ID, scene.now_ns))
        assert stream.prove() == []
    assert scene.counters.refusals[Refusal.BAD_SIGNATURE] >= 1


def test_after_a_bad_signature_every_signature_of_the_start_is_verified(
    verifications: list[ReceivedSignature],
) -> None:
    stream = SignedStream("alarm")
    stream.scene.trust.on_timer(stream.scene.now_ns)
    forger = stream.forger()
    stream.scene.hear(forger.seal(heartbeat(stream.next_seq), 0), forger.sign(CHANNEL_ID, 0))
    assert stream.scene.trust.on_timer(stream.scene.now_ns) == []
    assert stream.scene.counters.refusals[Refusal.BAD_SIGNATURE] == 1
    verifications.clear()
    stream.signature_count = 0
    assert sum(beats(verdicts) for verdicts in stream.idle(100)) == 100
    assert len(verifications) == stream.signature_count == 50


def test_a_heartbeat_under_a_postponed_signature_is_refused_when_it_comes_again() -> None:
    stream = SignedStream("alarm")
    scene, sealer = stream.scene, stream.scene.adapters[1]
    sent: list[bytes] = []
    for _ in range(8):
        scene.now_ns += IDLE_HEARTBEAT_NS
        sent.append(scene.sealed(heartbeat(stream.next_seq)))
        scene.hear(sent[-1])
        while sealer.channels_to_sign():
            scene.hear(sealer.sign(CHANNEL_ID, 0))
    assert [scene.refusal_of(each) for each in sent] == [Refusal.REPLAYED] * 8
    assert len(scene.trust.on_timer(scene.now_ns)) > 0
    assert [scene.refusal_of(each) for each in sent] == [Refusal.REPLAYED] * 8


@pytest.mark.parametrize("lost", [{0}, {1}, set()], ids=["the first is lost", "the second is lost", "none is lost"])
def test_in_signed_mode_a_lost_signature_delays_a_message_by_at_most_one_heartbeat(
    lost: set[int],
) -> None:
    stream = SignedStream("signed")
    for idle_turns in range(6):  # with any number of preceding idle turns
        list(stream.idle(idle_turns))
        stream.signature_count = 0
        stream.is_lost = lost.__contains__
        first = stream.next_seq
        delivered = [seq for verdicts in (stream.turn(1), stream.turn()) for seq in first_seqs(verdicts)]
        assert first in delivered
        stream.is_lost = lambda _number: False


def test_in_signed_mode_a_steady_stream_is_delivered_with_every_heartbeat() -> None:
    stream = SignedStream("signed")
    for _ in range(50):
        first = stream.next_seq
        assert set(range(first, first + 3)) <= set(first_seqs(stream.turn(3)))


@pytest.mark.parametrize("verify", MODES)
def test_a_forged_heartbeat_between_signatures_of_an_idle_stream_has_no_effect(verify: VerifyMode) -> None:
    stream = SignedStream(verify)
    true = heartbeat(1).payload
    for at in range(25):
        scene = stream.scene
        counter = scene.adapters[1].next_counters()[CHANNEL_ID]
        forged = heartbeat(1, lineage=((1, 1), (HUGE, 1)), flags=OutputFlag.FROM_ACTIVE)
        assert scene.hear(scene.forged(forged, counter + at % 3)) == []
        accepted = stream.turn()
        assert all(isinstance(each, OutputPacket) and each.payload == true for each in accepted)


def test_a_slow_stream_that_loses_every_other_signature_raises_no_alarm() -> None:
    stream = SignedStream("alarm", is_lost=lambda number: number % 2 == 0)
    for _ in range(100):
        assert not alarms(stream.turn(1))
        assert not any(alarms(verdicts) for verdicts in stream.idle(13))


def test_a_forger_that_continues_a_dead_idle_adapters_stream_is_detected() -> None:
    stream = SignedStream("alarm")
    stream.turn(1)
    scene, heard = stream.scene, list[Verdict]()
    began_ns, counter = scene.now_ns, scene.adapters[1].next_counters()[CHANNEL_ID]
    while not alarms(heard):
        scene.now_ns += 30 * MS
        heard += scene.hear(scene.forged(packet(stream.next_seq, stream.next_seq, 1), counter))
        stream.next_seq, counter = stream.next_seq + 1, counter + 1
        assert scene.now_ns < began_ns + 2 * SILENCE_MAX_NS
