"""What a subscription accepts while another reader of the channel forges packets, with real seals and signatures."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemfeed.client_lib.stream.trust.stream_trust import (
    AHEAD_MAX,
    OVERTAKEN_NS,
    SILENCE_MAX_NS,
    UNSIGNED_MESSAGES_MAX,
    WAIT_MAX_NS,
    WAITING_MAX,
    Distrusted,
    DistrustReason,
    StreamTrust,
    Verdict,
    VerifyMode,
)
from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.wire.output_packet import RUN_SIZE, OutputFlag, OutputPacket, encode_runs
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.transport.sealing.announced_starts import AnnouncedStart
from tandemfeed.transport.sealing.opening import ReceivedPacket, ReceivedSignature, StreamOpener
from tandemfeed.transport.sealing.sealing import COUNTER_MAX, Sealer
from tests.client_lib.toy_cluster import CHANNEL_ID, FEED_ID, SESSION, channel_key, heartbeat, packet

MS = 1_000_000
KEY = channel_key(5)
HUGE = 2**32 - 2


def first_seqs(verdicts: list[Verdict]) -> list[int]:
    """The first `message_seq` of each accepted packet."""
    return [each.first_message_seq for each in verdicts if isinstance(each, OutputPacket)]


def alarms(verdicts: list[Verdict]) -> list[Distrusted]:
    return [each for each in verdicts if isinstance(each, Distrusted)]


@dataclass
class Scene:
    """A reader, two adapters, and a forger that has the channel's key."""

    verify: VerifyMode = "alarm"
    now_ns: int = 1_000_000 * MS
    sender: str = "10.0.0.1:4000"  # the source address of all datagrams
    adapters: dict[int, Sealer] = field(default_factory=dict)
    starts: dict[int, AnnouncedStart] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.counters = CounterSet()
        self.opener, self.trust = StreamOpener(FEED_ID), StreamTrust(CHANNEL_ID, self.counters, self.verify)
        self.opener.add_key(replace(KEY, decision_key=b""))
        for adapter_id in (1, 2):
            self.start(adapter_id, 10 + adapter_id)

    def start(self, adapter_id: int, incarnation: int, first_counter: int = 1) -> None:
        """Start an adapter, and announce the start."""
        private_key = Ed25519PrivateKey.generate()
        public_key = private_key.public_key().public_bytes_raw()
        start = AnnouncedStart(adapter_id, incarnation, os.urandom(32), public_key, {CHANNEL_ID: first_counter})
        self.starts[adapter_id] = start
        self.adapters[adapter_id] = Sealer(FEED_ID, start, private_key, first_counter=first_counter)
        self.adapters[adapter_id].use_key(KEY)
        self.announce()

    def announce(self) -> None:
        self.opener.announce(self.starts.values())
        self.trust.announce(self.starts.values())

    def sealed(self, made: OutputPacket, adapter_id: int = 1) -> bytes:
        return self.adapters[adapter_id].seal(made._replace(adapter_id=adapter_id), self.now_ns)

    def signature(self, adapter_id: int = 1) -> bytes:
        return self.adapters[adapter_id].sign(CHANNEL_ID, self.now_ns)

    def forged(self, made: OutputPacket, counter: int, adapter_id: int = 1) -> bytes:
        """A packet that the forger sends in an adapter's name."""
        forger = Sealer(FEED_ID, self.starts[adapter_id], Ed25519PrivateKey.generate(), first_counter=counter)
        forger.use_key(replace(KEY, decision_key=bytes(32)))
        return forger.seal(made._replace(adapter_id=adapter_id), self.now_ns)

    def hear(self, *datagrams: bytes) -> list[Verdict]:
        """Receive these datagrams in this order; return what is accepted."""
        verdicts: list[Verdict] = []
        for datagram in datagrams:
            self.now_ns += MS // 10
            opened = self.opener.open(datagram)
            if isinstance(opened, ReceivedSignature):
                verdicts += self.trust.on_signature(opened, self.now_ns, sender=self.sender)
            else:
                verdicts += self.trust.on_packet(opened, self.now_ns)
        return verdicts

    def refusal_of(self, datagram: bytes) -> Refusal:
        with pytest.raises(PacketRefused) as refused:
            self.hear(datagram)
        return refused.value.reason

    def begin(self) -> None:
        """Send the first heartbeat and five messages of adapter 1, signed. The stream continues with message 6."""
        beat, first = self.sealed(heartbeat(1)), self.sealed(packet(1, 1, 5))
        assert self.hear(beat) == []
        assert first_seqs(self.hear(first, self.signature())) == [1, 1]


def other_content(made: OutputPacket) -> OutputPacket:
    return made._replace(payload=made.payload[:-1] + b"!")


def test_a_packet_that_continues_the_stream_is_accepted_immediately() -> None:
    scene = Scene()
    scene.begin()
    assert first_seqs(scene.hear(scene.sealed(packet(6, 6, 5)))) == [6]
    assert first_seqs(scene.hear(scene.sealed(packet(11, 11, 5)))) == [11]
    assert scene.hear(scene.signature()) == []


def test_in_signed_mode_no_packet_is_accepted_before_its_signature() -> None:
    scene = Scene("signed")
    scene.begin()
    six, eleven = scene.sealed(packet(6, 6, 5)), scene.sealed(packet(11, 11, 5))
    assert scene.hear(eleven, six) == []
    assert first_seqs(scene.hear(scene.signature())) == [6, 11]


def of_the_next_session(made: OutputPacket) -> OutputPacket:
    return made._replace(session=SESSION + 1)


def test_a_later_session_is_accepted_once_signed_and_its_numbers_begin_at_1() -> None:
    scene = Scene()
    scene.begin()
    assert first_seqs(scene.hear(scene.sealed(packet(6, 6, 5)))) == [6]
    assert scene.hear(scene.sealed(of_the_next_session(packet(1, 1, 5)))) == []
    assert first_seqs(scene.hear(scene.signature())) == [1]
    assert scene.hear(scene.sealed(of_the_next_session(packet(8, 8, 5)))) == []  # 6 and 7 are missing in this session
    assert first_seqs(scene.hear(scene.sealed(of_the_next_session(packet(6, 6, 2))))) == [6]


def test_the_rest_of_an_old_session_is_accepted_once_signed() -> None:
    scene = Scene()
    scene.begin()
    assert first_seqs(scene.hear(scene.sealed(of_the_next_session(packet(1, 1, 5))), scene.signature())) == [1]
    assert scene.hear(scene.sealed(packet(6, 6, 5))) == []
    assert first_seqs(scene.hear(scene.signature())) == [6]
    assert first_seqs(scene.hear(scene.sealed(of_the_next_session(packet(6, 6, 5))))) == [6]


def test_a_forged_packet_of_a_later_session_is_never_accepted_and_has_no_effect() -> None:
    scene = Scene()
    scene.begin()
    assert scene.hear(scene.forged(of_the_next_session(packet(1, 1, 5)), counter=5)) == []
    assert first_seqs(scene.hear(scene.sealed(packet(6, 6, 5)), scene.signature())) == [6]
    assert first_seqs(scene.hear(scene.sealed(packet(11, 11, 5)))) == [11]


@pytest.mark.parametrize("verify", ["alarm", "signed"])
def test_a_forged_heartbeat_with_a_huge_epoch_is_never_accepted(verify: VerifyMode) -> None:
    scene = Scene(verify)
    scene.begin()
    forged = heartbeat(6, lineage=((1, 1), (HUGE, 6)), flags=OutputFlag.FROM_ACTIVE)
    assert scene.hear(scene.forged(forged, 3)) == []
    true = scene.sealed(packet(6, 6, 5))
    assert first_seqs(scene.hear(true, scene.signature())) == [6]
    scene.now_ns += WAIT_MAX_NS
    scene.hear(scene.sealed(heartbeat(11)), scene.signature())
    assert scene.counters.refusals[Refusal.UNSIGNED] == 1


@pytest.mark.parametrize(
    "forged",
    [
        packet(6, 6, 5, epoch=HUGE),
        packet(2**62, 6, 5),
        packet(7, 6, 5),
        packet(6, 2**62, 5),
        packet(6, 1, 5, stream=9),
        heartbeat(2**62),
        packet(6, 6, 5, flags=OutputFlag.PROVISIONAL),
        packet(6, 6, 5, flags=OutputFlag.ANNOUNCEMENT)._replace(payload=encode_runs(packet(6, 6, 5).runs)),
    ],
    ids=[
        "epoch",
        "message_seq",
        "next but one",
        "source_seq",
        "source stream",
        "heartbeat",
        "provisional",
        "announced",
    ],
)
def test_an_unsigned_jump_in_any_number_has_no_effect(forged: OutputPacket) -> None:
    scene = Scene()
    scene.begin()
    assert scene.hear(scene.forged(forged, 3)) == []
    assert first_seqs(scene.hear(scene.sealed(packet(6, 6, 5)), scene.signature())) == [6]


def test_a_genuine_packet_after_a_forged_one_with_its_counter_raises_the_alarm_and_is_accepted_once_signed() -> None:
    scene = Scene()
    scene.begin()
    true = packet(6, 6, 5)
    assert first_seqs(scene.hear(scene.forged(other_content(true), 3))) == [6]
    heard = scene.hear(scene.sealed(true))
    assert heard == [Distrusted(CHANNEL_ID, 1, 11, DistrustReason.DUPLICATE_COUNTER, 6, 11)]
    (accepted,) = scene.hear(scene.signature())
    assert isinstance(accepted, OutputPacket)
    assert accepted.payload == true.payload
    assert scene.trust.distrusted() == [(1, 11)]


def test_a_signature_that_lists_another_packet_raises_the_alarm() -> None:
    scene = Scene()
    scene.begin()
    true = packet(6, 6, 5)
    scene.hear(scene.forged(other_content(true), 3))
    scene.sealed(true)  # lost by the network
    assert scene.hear(scene.signature()) == [Distrusted(CHANNEL_ID, 1, 11, DistrustReason.SIGNATURE_MISMATCH, 6, 11)]


def test_after_the_alarm_that_adapter_is_accepted_only_when_signed_and_others_as_before() -> None:
    scene = Scene()
    scene.begin()
    true = packet(6, 6, 5)
    alarm = scene.hear(scene.forged(other_content(true), 3), scene.sealed(true), scene.signature())
    assert len(alarms(alarm)) == 1
    assert first_seqs(alarm) == [6, 6], "the genuine one is passed on, so that the merge can compare"
    for at in range(5):
        made = packet(11 + at, 11 + at, 1)
        counter = 4 + at
        assert scene.hear(scene.forged(other_content(made), counter)) == []
        assert scene.hear(scene.sealed(made)) == []
        assert first_seqs(scene.hear(scene.signature())) == [11 + at]
    assert first_seqs(scene.hear(scene.sealed(packet(16, 16, 5), 2))) == [16], "adapter 2 is still trusted"


def test_a_forged_counter_that_its_adapter_never_reaches_raises_the_alarm() -> None:
    scene = Scene()
    scene.begin()
    forged = scene.hear(scene.forged(packet(6, 6, 5), 500))
    assert first_seqs(forged) == [6]
    scene.now_ns += OVERTAKEN_NS
    heard = scene.hear(scene.sealed(heartbeat(6)), scene.signature())
    assert alarms(heard) == [Distrusted(CHANNEL_ID, 1, 11, DistrustReason.NOT_SENT, 6, 11)]


def test_a_forger_that_continues_a_dead_adapters_stream_is_detected() -> None:
    scene = Scene()
    scene.begin()
    began_ns, heard, at = scene.now_ns, list[Verdict](), 0
    while not alarms(heard):
        scene.now_ns += 10 * MS
        heard += scene.hear(scene.forged(packet(6 + at, 6 + at, 1), 3 + at))
        at += 1
        assert scene.now_ns < began_ns + 2 * SILENCE_MAX_NS
    assert alarms(heard)[0].reason is DistrustReason.NO_SIGNATURE
    assert scene.hear(scene.forged(packet(6 + at, 6 + at, 1), 3 + at)) == []


def test_an_adapter_paused_between_a_packet_and_its_signature_raises_no_alarm() -> None:
    scene = Scene()
    scene.begin()
    for at in range(20):
        scene.hear(scene.sealed(packet(6 + at, 6 + at, 1)))
        scene.now_ns += 10_000 * MS
        assert not alarms(scene.hear(scene.signature()))


@settings(max_examples=60)
@given(st.one_of(st.integers(0, COUNTER_MAX - 1), st.integers(COUNTER_MAX - 5, COUNTER_MAX - 1), st.integers(0, 9_000)))
def test_no_forged_counter_affects_the_genuine_stream(counter: int) -> None:
    scene = Scene("signed")
    scene.begin()
    forged = scene.forged(packet(6, 6, 5), counter)
    if 3 <= counter < 3 + AHEAD_MAX:
        assert scene.hear(forged) == []
    else:
        assert scene.refusal_of(forged) is (Refusal.REPLAYED if counter < 3 else Refusal.OUT_OF_WINDOW)
    assert first_seqs(scene.hear(scene.sealed(packet(6, 6, 5)), scene.signature())) == [6]


def test_old_packets_and_signatures_replayed_to_a_new_reader_are_refused() -> None:
    former = Scene()
    old, signature = [former.sealed(heartbeat(1)), former.sealed(packet(1, 1, 5))], former.signature()
    former.hear(*old, signature)
    for verify in ("alarm", "signed"):
        fresh = Scene(verify)  # type: ignore[arg-type]
        counters = former.adapters[1].next_counters()
        fresh.starts = {1: replace(former.starts[1], next_counters=counters)}
        fresh.adapters = former.adapters
        fresh.announce()
        for datagram in old:
            assert fresh.refusal_of(datagram) is Refusal.REPLAYED
        assert fresh.hear(signature) == []
        live = former.sealed(packet(6, 6, 5))
        assert fresh.hear(live) == []
        assert first_seqs(fresh.hear(former.signature())) == [6]


def test_a_packet_is_accepted_once_however_often_it_arrives() -> None:
    scene = Scene()
    scene.begin()
    six, apart = scene.sealed(packet(6, 6, 5)), scene.sealed(packet(21, 21, 5))
    scene.hear(six, apart)
    for datagram in (six, apart):
        assert scene.refusal_of(datagram) is Refusal.REPLAYED
    signature = scene.signature()
    scene.hear(signature)
    for datagram in (six, apart):
        assert scene.refusal_of(datagram) is Refusal.REPLAYED
    assert scene.hear(signature) == []


def test_a_packet_that_arrives_after_its_signature_is_accepted_once_and_a_forged_one_is_refused() -> None:
    scene = Scene()
    scene.begin()
    six, seven = scene.sealed(packet(6, 6, 1)), scene.sealed(packet(7, 7, 1))
    scene.hear(seven)
    assert first_seqs(scene.hear(scene.signature())) == [7]
    assert scene.refusal_of(scene.forged(other_content(packet(6, 6, 1)), 3)) is Refusal.FORGED
    assert first_seqs(scene.hear(six)) == [6]
    assert scene.refusal_of(six) is Refusal.REPLAYED


@pytest.mark.parametrize("verify", ["alarm", "signed"])
@pytest.mark.parametrize("is_signature", [True, False], ids=["a lost signature", "a lost packet"])
def test_loss_raises_no_alarm_and_affects_no_other_packet(verify: VerifyMode, is_signature: bool) -> None:
    scene, accepted = Scene(verify), list[int]()
    scene.begin()
    for at in range(30):
        made, signature = scene.sealed(packet(6 + at, 6 + at, 1)), scene.signature()
        heard = [signature] if at % 3 and not is_signature else [made] if at % 3 == 1 else [made, signature]
        verdicts = scene.hear(*heard)
        assert not alarms(verdicts)
        accepted += first_seqs(verdicts)
        scene.now_ns += 10 * MS
    if is_signature:
        assert accepted == list(range(6, 36))
    else:
        assert accepted == list(range(6, 36, 3))


def test_a_forger_can_get_ahead_of_the_signed_packets_by_a_few_milliseconds_of_messages_only() -> None:
    scene = Scene()
    scene.begin()
    accepted, at, count = list[int](), 6, 50
    for number in range(1_000):
        heard = first_seqs(scene.hear(scene.forged(packet(at, at, count), 3 + number)))
        at += count if heard else 0
        accepted += heard
    assert accepted[-1] + count - 6 <= UNSIGNED_MESSAGES_MAX
    skipping = packet(at, at, 1)
    run = skipping.runs[0]._replace(source_count=60_000)
    skipping = skipping._replace(runs=(run,), payload=encode_runs((run,)) + skipping.payload[RUN_SIZE:])
    assert scene.hear(scene.forged(skipping, 3_000)) == [], "a run that claims many source messages does not help"
    jump = packet(at, at, 1)
    jump = jump._replace(first_input_seq=1 << 60, runs=(jump.runs[0]._replace(first_input_seq=1 << 60),))
    assert scene.hear(scene.forged(jump, 3_001)) == [], "nor does a position far ahead in the channel's input"


def test_the_start_of_a_takeover_is_accepted_with_the_heartbeat_that_announces_it() -> None:
    scene = Scene()
    scene.begin()
    beat = scene.sealed(heartbeat(6, lineage=((1, 1), (2, 6)), flags=OutputFlag.FROM_ACTIVE), 2)
    first = scene.sealed(packet(6, 6, 5, epoch=2), 2)
    assert scene.hear(beat, first) == []
    assert first_seqs(scene.hear(scene.signature(2))) == [6, 6]
    assert first_seqs(scene.hear(scene.sealed(packet(11, 11, 5, epoch=2), 2))) == [11]


def test_packets_of_a_withdrawn_start_are_refused_and_its_successor_is_trusted() -> None:
    scene = Scene()
    scene.begin()
    scene.hear(scene.forged(other_content(packet(6, 6, 5)), 3), scene.sealed(packet(6, 6, 5)))
    last = scene.sealed(packet(11, 11, 5))
    scene.start(1, 21)
    assert scene.refusal_of(last) is Refusal.UNANNOUNCED
    assert scene.trust.distrusted() == []
    scene.hear(scene.sealed(heartbeat(11)), scene.signature())
    assert first_seqs(scene.hear(scene.sealed(packet(11, 11, 5)))) == [11]


def test_the_stream_can_continue_where_replayed_packets_end() -> None:
    scene = Scene()
    scene.begin()
    scene.trust.on_replayed(packet(6, 6, 95))
    assert first_seqs(scene.hear(scene.sealed(packet(101, 101, 5)))) == [101]


def test_a_flood_of_forged_packets_uses_bounded_memory_and_displaces_no_genuine_packet() -> None:
    scene = Scene("signed")
    scene.begin()
    true = scene.sealed(packet(6, 6, 5))
    scene.hear(true)
    forged = packet(6, 6, 5)
    for number in range(WAITING_MAX - 1):
        heard = ReceivedPacket(forged, 11, 4 + number % 4_000, 1, number.to_bytes(16, "little"))
        assert scene.trust.on_packet(heard, scene.now_ns) == []
    assert first_seqs(scene.hear(scene.signature())) == [6]
    for number in range(WAITING_MAX):
        heard = ReceivedPacket(forged, 11, 4 + number % 4_000, 1, (number + 1_000_000).to_bytes(16, "little"))
        scene.trust.on_packet(heard, scene.now_ns)
    assert scene.counters.refusals[Refusal.UNSIGNED] >= WAITING_MAX - 2


def forge_somehow(scene: Scene, number: int, kind: int) -> bytes:
    kinds: list[Callable[[], OutputPacket]] = [
        lambda: other_content(packet(6 + number, 6 + number, 1)),
        lambda: packet(6 + number, 6 + number, 1, epoch=HUGE),
        lambda: heartbeat(2**40, lineage=((1, 1), (HUGE, 2**40))),
        lambda: packet(2**40, 6 + number, 1),
    ]
    return scene.forged(kinds[kind % len(kinds)](), 3 + number + kind // 4)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 15), st.booleans(), st.booleans()), max_size=40))
def test_in_signed_mode_no_forged_packet_is_ever_accepted_even_with_loss(
    story: list[tuple[int, bool, bool]],
) -> None:
    scene, sent, accepted = Scene("signed"), list[OutputPacket](), list[Verdict]()
    scene.begin()
    for number, (kind, is_lost, is_signed) in enumerate(story):
        made = packet(6 + number, 6 + number, 1)
        sent.append(made._replace(sent_at_ns=scene.now_ns))
        datagrams = [forge_somehow(scene, number, kind), scene.sealed(made)]
        datagrams += [scene.signature()] if is_signed else []
        for datagram in datagrams[: 1 if is_lost else None]:
            try:
                accepted += scene.hear(datagram)
            except PacketRefused:
                continue
    assert [each for each in accepted if each not in sent] == []
    assert len(set(map(id, accepted))) == len(first_seqs(accepted)) == len(set(first_seqs(accepted)))


def test_a_reader_that_was_busy_between_a_packet_and_an_older_signature_accuses_no_one() -> None:
    scene = Scene()
    scene.begin()
    datagrams = [scene.sealed(packet(6 + at, 6 + at, 1)) for at in range(100)]
    signatures = [scene.signature() for _ in range(3)]  # the last one again, eighty packets, and the rest
    assert first_seqs(scene.hear(*datagrams)) == list(range(6, 106))
    for signature in signatures:
        scene.now_ns += 500 * MS  # the reader's pause: the adapter made the signatures long ago
        assert scene.hear(signature) == []
    assert scene.trust.distrusted() == []


def test_a_signature_that_is_sent_again_after_its_first_copy_was_lost_accuses_no_one() -> None:
    scene = Scene()
    scene.begin()
    lost = scene.sealed(packet(6, 6, 1))
    scene.hear(lost)
    scene.signature()  # lost
    scene.now_ns += 40 * MS
    assert first_seqs(scene.hear(*(scene.sealed(packet(7 + at, 7 + at, 1)) for at in range(80)))) == list(range(7, 87))
    scene.now_ns += 1_000 * MS
    again, rest = scene.signature(), scene.signature()
    assert scene.hear(again) == []
    scene.now_ns += 1_000 * MS
    assert scene.hear(rest) == []


@pytest.mark.parametrize("step_ns", [-3_600_000 * MS, -500 * MS, 500 * MS, 3_600_000 * MS])
def test_a_step_of_an_adapters_clock_accuses_no_one_even_if_packets_overtake_signatures(step_ns: int) -> None:
    for steps_before in ("the signature", "the packet"):
        scene = Scene(now_ns=10_000_000 * MS)
        scene.begin()
        first = scene.sealed(packet(6, 6, 1))
        wall_ns = scene.now_ns + step_ns
        late = scene.adapters[1].sign(CHANNEL_ID, wall_ns if steps_before == "the signature" else scene.now_ns)
        second = scene.adapters[1].seal(packet(7, 7, 1), wall_ns)
        assert first_seqs(scene.hear(first, second)) == [6, 7]
        scene.now_ns += 300 * MS
        assert scene.hear(late) == []
        assert scene.hear(scene.adapters[1].sign(CHANNEL_ID, wall_ns + 10 * MS)) == []
        assert scene.trust.distrusted() == []


def test_a_forger_is_found_out_by_the_signatures_of_the_path_that_it_uses() -> None:
    scene = Scene()
    scene.begin()
    forged = scene.opener.open(scene.forged(packet(6, 6, 5), 500))
    assert isinstance(forged, ReceivedPacket)
    assert first_seqs(scene.trust.on_packet(forged, scene.now_ns, "239.1.1.1:5000")) == [6]
    for _ in range(6):  # by another path, which may lag by any time
        scene.now_ns += 40 * MS
        assert not alarms(scene.hear(scene.sealed(heartbeat(6)), scene.signature()))
    found: list[Verdict] = []
    for _ in range(4):
        scene.now_ns += 40 * MS
        scene.hear(scene.sealed(heartbeat(6)))
        signature = scene.signature()
        scene.hear(signature)  # by both paths; by the forger's later
        opened = scene.opener.open(signature)
        assert isinstance(opened, ReceivedSignature)
        found += scene.trust.on_signature(opened, scene.now_ns, "239.1.1.1:5000")
    assert [each.reason for each in alarms(found)] == [DistrustReason.NOT_SENT]


def test_an_adapter_that_pauses_between_signatures_of_many_packets_is_not_accused() -> None:
    scene = Scene()
    scene.begin()
    heard = scene.hear(*(scene.sealed(packet(6 + at, 6 + at, 1)) for at in range(400)))
    assert first_seqs(heard) == list(range(6, 406))
    while scene.adapters[1].channels_to_sign():
        assert scene.hear(scene.signature()) == []
        scene.now_ns += 200 * MS  # the adapter's pause
