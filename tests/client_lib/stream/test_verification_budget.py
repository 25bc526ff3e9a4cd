"""A flood of signature datagrams costs other readers little, and does not suppress genuine signatures."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.client_lib.stream.trust.stream_trust import Verdict, VerifyMode
from tandemfeed.client_lib.stream.trust.verification_budget import (
    FAILED_AT_ONCE,
    FAILED_PER_SECOND,
    Lane,
    VerificationBudget,
)
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.transport.sealing.start_keys import Purpose, derive_cipher
from tandemfeed.transport.sealing.stream_signatures import DIGEST_SIZE, digest_of, sign
from tests.client_lib.stream.test_stream_trust import KEY, MS, Scene, first_seqs
from tests.client_lib.toy_cluster import CHANNEL_ID, FEED_ID, heartbeat, packet

SECOND = 1_000 * MS
ADAPTER, FLOODER = "10.0.0.1:4000", "10.0.0.9:666"
HEARD: Callable[[], bool] = lambda: True  # noqa: E731
NOT_HEARD: Callable[[], bool] = lambda: False  # noqa: E731


def exhaust(budget: VerificationBudget, sender: str, lists_known_packet: Callable[[], bool], now_ns: int) -> list[Lane]:
    """Let verifications fail until every lane is closed; return the lanes that they used."""
    taken = []
    while (lane := budget.lane_for(sender, lists_known_packet, now_ns)) is not None:
        taken.append(lane)
        budget.on_failed(lane, now_ns)
    return taken


def known(now_ns: int = SECOND) -> VerificationBudget:
    budget = VerificationBudget()
    budget.on_verified(ADAPTER)
    return budget


def test_a_flood_from_another_sender_leaves_the_lane_of_the_known_sender_open() -> None:
    budget = known()
    assert (
        exhaust(budget, FLOODER, HEARD, SECOND)
        == [Lane.LISTS_KNOWN_PACKET] * FAILED_AT_ONCE + [Lane.ANY] * FAILED_AT_ONCE
    )
    assert budget.lane_for(ADAPTER, NOT_HEARD, SECOND) is Lane.KNOWN_SENDER


def test_a_flood_of_random_lists_from_the_adapters_address_leaves_the_lane_of_awaited_packets_open() -> None:
    budget = known()
    assert (
        exhaust(budget, ADAPTER, NOT_HEARD, SECOND)
        == [Lane.KNOWN_SENDER] * FAILED_AT_ONCE + [Lane.ANY] * FAILED_AT_ONCE
    )
    assert budget.lane_for(ADAPTER, HEARD, SECOND) is Lane.LISTS_KNOWN_PACKET


def test_good_signatures_are_never_limited() -> None:
    budget = VerificationBudget()
    for _ in range(10_000):
        assert budget.lane_for(ADAPTER, NOT_HEARD, SECOND) is not None
        budget.on_verified(ADAPTER)


@pytest.mark.parametrize("pause_ns", [SECOND // 50_000, SECOND // 1_000, SECOND])
def test_a_flood_in_every_lane_costs_no_more_than_the_limit(pause_ns: int) -> None:
    budget, now_ns, failed = known(), SECOND, 0
    while now_ns < 11 * SECOND:
        failed += len(exhaust(budget, ADAPTER, HEARD, now_ns))
        now_ns += pause_ns
    assert failed <= len(Lane) * (FAILED_AT_ONCE + 10 * FAILED_PER_SECOND)


def test_an_unknown_sender_has_no_lane_for_known_senders() -> None:
    budget = VerificationBudget()
    budget.on_verified("")
    assert budget.lane_for("", NOT_HEARD, SECOND) is Lane.ANY


class Flood:
    """Bad signatures in the name of adapter 1, with valid tags, all new to the reader."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.start = scene, scene.starts[1]
        self.cipher = derive_cipher(KEY, self.start, FEED_ID, Purpose.SIGNATURES)
        self.key = Ed25519PrivateKey.generate()

    def signature(self, first_counter: int, digests: list[bytes]) -> bytes:
        return sign(
            self.key,
            self.cipher,
            self.start,
            feed_id=FEED_ID,
            channel_id=CHANNEL_ID,
            key_id=KEY.key_id,
            first_counter=first_counter,
            digests=digests,
            sent_at_ns=0,
        )

    def hear(self, datagram: bytes, count: int, sender: str) -> dict[Refusal, int]:
        """Send the reader a datagram `count` times; return the number of refusals by reason."""
        refused: dict[Refusal, int] = {}
        self.scene.sender, former = sender, self.scene.sender
        for _ in range(count):
            with pytest.raises(PacketRefused) as why:
                self.scene.hear(datagram)
            refused[why.value.reason] = refused.get(why.value.reason, 0) + 1
        self.scene.sender = former
        return refused


def begun(verify: VerifyMode) -> tuple[Scene, Flood]:
    scene = Scene(verify)
    scene.begin()
    return scene, Flood(scene)


@pytest.mark.parametrize("verify", ["alarm", "signed"])
@pytest.mark.parametrize("sender", [ADAPTER, FLOODER])
def test_a_flood_of_signatures_for_packets_that_were_never_sent_delays_no_message(
    verify: VerifyMode, sender: str
) -> None:
    scene, flood = begun(verify)
    bad = flood.signature(1_000, [bytes(DIGEST_SIZE)] * 20)
    refused: dict[Refusal, int] = {}
    for seq in range(6, 36):
        for reason, count in flood.hear(bad, 50, sender).items():
            refused[reason] = refused.get(reason, 0) + count
        verdicts = scene.hear(scene.sealed(packet(seq, seq, 1)), scene.sealed(heartbeat(seq + 1)), scene.signature())
        assert seq in first_seqs(verdicts)
    seconds = (scene.now_ns - 1_000_000 * MS) / SECOND
    assert refused[Refusal.BAD_SIGNATURE] <= 2 * (FAILED_AT_ONCE + FAILED_PER_SECOND * seconds)
    assert refused[Refusal.UNVERIFIED] > 1_000


@pytest.mark.parametrize("verify", ["alarm", "signed"])
def test_a_flood_of_signatures_for_packets_that_the_flooder_hears_delays_no_message(verify: VerifyMode) -> None:
    scene, flood = begun(verify)
    for seq in range(6, 36):
        datagrams = [scene.sealed(packet(seq, seq, 1)), scene.sealed(heartbeat(seq + 1))]
        counter = scene.adapters[1].next_counters()[CHANNEL_ID] - 2
        verdicts: list[Verdict] = scene.hear(*datagrams)
        flood.hear(flood.signature(counter, [digest_of(each) for each in datagrams]), 50, FLOODER)
        verdicts += scene.hear(scene.signature())
        assert seq in first_seqs(verdicts)
        assert sum(isinstance(each, OutputPacket) for each in verdicts) == 2


def test_a_reader_that_begins_during_a_flood_of_random_lists_accepts_the_first_genuine_signature() -> None:
    scene = Scene("signed")
    flood = Flood(scene)
    flood.hear(flood.signature(1_000, [bytes(DIGEST_SIZE)] * 20), 200, FLOODER)
    assert scene.hear(scene.sealed(heartbeat(1)), scene.sealed(packet(1, 1, 5))) == []
    assert first_seqs(scene.hear(scene.signature())) == [1, 1]
