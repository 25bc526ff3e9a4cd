"""What a reader accepts, given that adapters sign news immediately, and repeated heartbeats five at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tandemfeed.client_lib.stream.stream_trust import SIGNED_WITHIN_NS, SILENCE_MAX_NS, Verdict, VerifyMode
from tandemfeed.feedcore.merge.config import HEARTBEAT_NS, MergerConfig
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tests.client_lib.stream.test_stream_trust import HUGE, MS, Scene, alarms, first_seqs
from tests.client_lib.toy_cluster import CHANNEL_ID, heartbeat, packet

MODES: list[VerifyMode] = ["alarm", "signed"]


class SignedStream:
    """Adapter 1's signed stream, over a network that loses signatures.

    Args:
        is_lost: whether the network loses a signature, by its number from 0.
    """

    def __init__(self, verify: VerifyMode, is_lost: Callable[[int], bool] = lambda _number: False) -> None:
        self.scene = Scene(verify)
        self.next_seq = 1
        self.signature_count = 0
        self.is_lost: Callable[[int], bool] = lambda _number: False
        self.turn()  # both signatures of the first heartbeat arrive
        self.turn()
        self.signature_count, self.is_lost = 0, is_lost

    def turn(self, message_count: int = 0, **changes: int) -> list[Verdict]:
        """One heartbeat interval: packets with one message each, a heartbeat, and the signatures that are due."""
        scene, sealer = self.scene, self.scene.adapters[1]
        scene.now_ns += HEARTBEAT_NS
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
        return verdicts

    def idle(self, turns: int) -> Iterator[list[Verdict]]:
        """Heartbeat intervals without messages."""
        for _ in range(turns):
            yield self.turn()


def beats(verdicts: list[Verdict]) -> int:
    return sum(isinstance(each, OutputPacket) and each.message_count == 0 for each in verdicts)


@pytest.mark.parametrize("verify", MODES)
def test_an_idle_stream_needs_twenty_signatures_a_second_and_all_its_heartbeats_are_accepted(
    verify: VerifyMode,
) -> None:
    stream = SignedStream(verify)
    accepted = sum(beats(verdicts) for verdicts in stream.idle(1_000))
    assert accepted == 1_000
    assert stream.signature_count == 1_000 * HEARTBEAT_NS // SIGNED_WITHIN_NS == 200


@pytest.mark.parametrize("verify", MODES)
def test_an_idle_stream_that_loses_two_signatures_in_a_row_is_not_stale_and_raises_no_alarm(
    verify: VerifyMode,
) -> None:
    stream = SignedStream(verify, is_lost=lambda number: number % 3 != 2)
    accepted_at_ns = stream.scene.now_ns
    for verdicts in stream.idle(500):
        assert not alarms(verdicts)
        if beats(verdicts):
            assert stream.scene.now_ns - accepted_at_ns < MergerConfig().stale_after_ns
            accepted_at_ns = stream.scene.now_ns
    assert accepted_at_ns >= stream.scene.now_ns - 3 * SIGNED_WITHIN_NS


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
