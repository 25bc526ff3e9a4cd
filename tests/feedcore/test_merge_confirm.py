"""docs/protocol.md clause 7.6: confirm=2 delivers only what two adapters transmitted equally."""

from __future__ import annotations

import random

import pytest

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import (
    ConfirmationPaused,
    ConfirmationResumed,
    Diverged,
    Filled,
    Gap,
    GapReason,
    RequestReplay,
)
from tandemfeed.feedcore.wire.output_packet import OutputFlag, encode_runs
from tandemfeed.feedcore.wire.position import Run
from tests.feedcore.merge_feed import FIRST, MS, Listener, Source, heartbeat, line, packet

CONFIRMING = MergerConfig(confirm=2)


def test_a_message_is_delivered_once_two_adapters_sent_it() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, line(1, 3)), packet(1, line(1, 3)))
    assert not listener.delivered
    listener.hear(packet(1, line(1, 3), adapter=2))
    assert listener.delivered == line(1, 3)
    listener.hear(packet(1, line(1, 3), adapter=3))
    assert listener.delivered == line(1, 3)


def test_boundaries_may_differ_between_adapters() -> None:
    mixed: list[Source] = [(1, 1), (1, 2), (2, 1), (1, 3), (2, 2), (2, 3)]
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, mixed[:4]), packet(5, mixed[4:]))
    listener.hear(packet(1, mixed[:2], adapter=2))
    assert listener.delivered == mixed[:2]
    listener.hear(packet(3, mixed[2:6], adapter=2))
    assert listener.delivered == mixed
    assert not listener.merger._confirmation._waiting


@pytest.mark.parametrize("seed", range(20))
def test_with_any_boundaries_order_and_one_adapter_s_losses_it_is_what_two_of_three_sent(seed: int) -> None:
    chance = random.Random(seed)
    streams = [chance.randint(1, 2) for _ in range(120)]
    sources = [(stream, 1 + streams[:at].count(stream)) for at, stream in enumerate(streams)]
    sent: dict[int, set[int]] = {1: set(), 2: set(), 3: set()}
    packets = []
    for adapter, seen in sent.items():
        first = 1
        while first <= 120:
            count = min(chance.randint(1, 8), 121 - first)
            if chance.random() < 0.8:
                packets.append(packet(first, sources[first - 1 : first - 1 + count], adapter=adapter))
                seen |= set(range(first, first + count))
            first += count
    packets.sort(key=lambda each: each.first_message_seq + chance.randint(0, 20))
    listener = Listener(CONFIRMING)
    listener.hear(*packets)
    confirmed = [seq for seq in range(1, 121) if sum(seq in seen for seen in sent.values()) >= 2]
    prefix = next((at for at, seq in enumerate(confirmed) if seq != at + 1), len(confirmed))
    assert listener.delivered == sources[:prefix]
    listener.hear(heartbeat(121, FIRST))
    listener.wait(60_000 * MS)
    assert listener.delivered == [sources[seq - 1] for seq in confirmed]
    named: set[int] = set()
    for gap in listener.events(Gap):
        assert isinstance(gap, Gap)
        seqs = set(range(gap.first_message_seq, gap.end_message_seq))
        heard = {seq for seq in seqs if any(seq in seen for seen in sent.values())}
        assert heard == (seqs if gap.reason is GapReason.UNCONFIRMED else set())
        named |= seqs
    assert named == set(range(1, 121)) - set(confirmed)


def test_of_two_copies_that_differ_neither_is_delivered_until_two_agree() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, line(1, 3), tail=b"!"), packet(1, line(1, 3), adapter=2))
    assert not listener.delivered
    assert len(listener.events(Diverged)) == 1
    listener.hear(packet(1, line(1, 3), tail=b"!"))
    assert len(listener.events(Diverged)) == 1
    listener.hear(packet(1, line(1, 3), adapter=3))
    assert listener.delivered == line(1, 3)


def test_a_replayed_packet_counts_for_the_adapter_whose_journal_it_came_from() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, line(1, 3)), packet(1, line(1, 3), flags=OutputFlag.RETRANSMISSION))
    assert not listener.delivered
    listener.hear(packet(1, line(1, 3), adapter=2, flags=OutputFlag.RETRANSMISSION))
    assert listener.delivered == line(1, 3)


def test_replay_is_asked_for_the_other_copy_of_those_who_do_not_have_it_here() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, line(1, 3)), packet(4, line(4, 6)), packet(4, line(4, 6), adapter=2))
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, ((1, 4),), copy_count=1, held_adapter_ids=(1,))]
    nobody = Listener(CONFIRMING)
    nobody.hear(packet(4, line(4, 6)), packet(4, line(4, 6), adapter=2))
    nobody.wait(4 * MS)
    assert nobody.requests == [RequestReplay(1, ((1, 4),), copy_count=2)]


def test_what_is_never_confirmed_is_a_gap_that_says_so_and_filled_if_it_is_confirmed_later() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, line(1, 3)), heartbeat(6, FIRST, adapter=2))
    listener.wait(5_000 * MS)
    assert listener.events(Gap) == [Gap(1, 1, 4, 1, 4, GapReason.UNCONFIRMED)]
    listener.wait(5_000 * MS)  # what was heard of later is waited for as long
    assert listener.events(Gap) == [
        Gap(1, 1, 4, 1, 4, GapReason.UNCONFIRMED),
        Gap(1, 4, 6, 4, 6, GapReason.NO_ADAPTER_HAD_THEM),
    ]
    assert listener.count(Counter.MERGE_UNCONFIRMED) == 3
    assert not listener.delivered
    listener.hear(packet(1, line(1, 3), adapter=2))
    assert len(listener.events(Filled)) == 1
    listener.hear(packet(4, line(4, 5), adapter=2))
    assert listener.delivered == line(1, 3)
    listener.hear(packet(4, line(4, 5), adapter=1))
    assert listener.delivered == line(1, 5)


def test_the_application_is_told_while_only_one_adapter_is_heard() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, line(1, 3)))
    listener.hear(packet(1, line(1, 3), adapter=2))
    for seq in range(4, 8):
        listener.wait(100 * MS)
        listener.hear(packet(seq, line(seq, seq)))
    assert listener.events(ConfirmationPaused) == [ConfirmationPaused(1, (1,))]
    listener.hear(packet(4, line(4, 7), adapter=2))
    assert listener.events(ConfirmationResumed) == [ConfirmationResumed(1, (1, 2))]
    assert listener.delivered == line(1, 7)


def test_a_second_adapter_that_is_only_just_late_is_no_pause() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(heartbeat(1, FIRST))
    listener.wait(150 * MS)
    listener.hear(heartbeat(1, FIRST), heartbeat(1, FIRST, adapter=2))
    listener.wait(100 * MS)
    assert not listener.events(ConfirmationPaused)
    alone = Listener(CONFIRMING)
    alone.hear(heartbeat(1, FIRST))
    alone.wait(190 * MS)
    alone.hear(heartbeat(1, FIRST))
    alone.wait(20 * MS)
    assert alone.events(ConfirmationPaused) == [ConfirmationPaused(1, (1,))]


def test_a_forger_cannot_pass_over_source_messages_by_a_packet_without_messages() -> None:
    listener = Listener(CONFIRMING)
    run = Run(1, 1, 1, 1, 1, 50, 0)
    forged = packet(1, line(1, 1))._replace(message_count=0, runs=(run,), payload=encode_runs((run,)))
    listener.hear(forged, packet(1, line(1, 3)), packet(1, line(1, 3), adapter=2))
    assert listener.delivered == line(1, 3)


def test_copies_of_a_history_that_no_longer_counts_confirm_nothing() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(heartbeat(1, FIRST), packet(1, line(1, 3)), packet(1, line(1, 3), adapter=2))
    listener.hear(packet(4, line(4, 6)))
    listener.hear(heartbeat(4, ((1, 1), (2, 4)), adapter=2))
    listener.hear(packet(4, line(4, 6), adapter=2))  # epoch 1: ended at 4
    assert listener.delivered == line(1, 3)
    for adapter in (2, 3):
        listener.hear(packet(4, [(2, 1), (1, 4)], adapter=adapter, epoch=2))
    assert listener.delivered == [*line(1, 3), (2, 1), (1, 4)]


def test_one_adapter_s_packets_with_other_boundaries_confirm_nothing() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, line(1, 4)), packet(1, line(1, 2)), packet(3, line(3, 6)))
    assert not listener.delivered


def test_the_old_active_s_copy_does_not_confirm_the_new_one_s() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(heartbeat(1, FIRST), packet(1, line(1, 3)))
    listener.hear(heartbeat(1, ((1, 1), (2, 1)), adapter=2))
    listener.hear(packet(1, line(1, 3), adapter=2, epoch=2))
    assert not listener.delivered
    listener.hear(packet(1, line(1, 3), adapter=3, epoch=2))
    assert listener.delivered == line(1, 3)


def test_a_copy_that_a_newer_history_took_back_is_not_compared_with_what_has_its_numbers_now() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, line(1, 3)), packet(1, line(1, 3), adapter=2), packet(4, line(4, 6)))
    listener.hear(heartbeat(4, ((1, 1), (2, 4)), adapter=2))
    afresh: list[Source] = [(2, 1), (2, 2)]
    listener.hear(packet(4, afresh, adapter=2, epoch=2), packet(4, afresh, adapter=3, epoch=2))
    assert listener.delivered == [*line(1, 3), *afresh]
    assert not listener.events(Diverged)


def test_a_copy_from_before_a_takeover_neither_confirms_nor_contradicts_what_comes_late_after_it() -> None:
    listener = Listener(CONFIRMING)
    listener.hear(packet(1, line(1, 3)), packet(1, line(1, 3), adapter=2), packet(4, line(4, 6)))
    listener.wait(5_100 * MS)
    assert listener.events(Gap) == [Gap(1, 4, 7, 4, 7, GapReason.UNCONFIRMED)]
    listener.hear(heartbeat(7, ((1, 1), (2, 4)), adapter=2))
    listener.wait(5_100 * MS)
    assert listener.events(Gap)[1:] == [Gap(1, 4, 7, 4, 7, GapReason.NO_ADAPTER_HAD_THEM)]
    listener.hear(packet(4, line(1, 3, stream=2), adapter=2, epoch=2))
    assert not listener.events(Diverged, Filled)
    listener.hear(packet(4, line(1, 3, stream=2), adapter=3, epoch=2))
    assert listener.delivered == [*line(1, 3), *line(1, 3, stream=2)]
