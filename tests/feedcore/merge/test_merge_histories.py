"""docs/protocol.md clause 7.2: the newest epoch's lineage determines which packets count."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import Gap, ProvisionalGap, RequestReplay, Takeover
from tandemfeed.feedcore.wire.lineage import ENTRY_SIZE, Lineage
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tests.feedcore.merge.merge_feed import FIRST, MS, Listener, Source, heartbeat, line, packet


def test_an_epoch_whose_lineage_continues_the_followed_one_is_delivered_without_a_wait() -> None:
    listener = Listener()
    listener.hear(heartbeat(1, FIRST), packet(1, line(1, 5)))
    listener.hear(heartbeat(6, ((1, 1), (2, 6)), adapter=2, flags=OutputFlag.FROM_ACTIVE))
    listener.hear(packet(6, line(6, 8), adapter=2, epoch=2))
    assert listener.delivered == line(1, 8)
    assert listener.events(Takeover) == [Takeover(1, 2, 2, 6, 0, resume_input_seq=6)]


def test_a_takeover_learned_from_a_backups_heartbeat_does_not_name_the_active() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 5)), heartbeat(6, ((1, 1), (2, 6)), adapter=3))
    assert listener.events(Takeover) == [Takeover(1, 2, 0, 6, 0, resume_input_seq=6)]


def test_packets_of_a_newer_epoch_wait_for_its_lineage_and_older_ones_wait_with_them() -> None:
    listener = Listener()
    listener.hear(heartbeat(1, FIRST), packet(1, line(1, 5)))
    listener.hear(packet(6, line(6, 7), adapter=2, epoch=2))
    listener.hear(packet(6, line(6, 9), adapter=1))  # the old active still sends messages that the new one renumbers
    assert listener.delivered == line(1, 5)
    assert not listener.events(Takeover)
    listener.hear(heartbeat(8, ((1, 1), (2, 6)), adapter=2))
    assert listener.delivered == line(1, 7)
    assert listener.count(Counter.STALE_EPOCH_PACKETS) == 1


def test_an_epoch_whose_lineage_never_arrives_delays_older_packets_only_for_a_limited_time() -> None:
    listener = Listener()
    listener.hear(heartbeat(1, FIRST), packet(6, line(6, 7), adapter=2, epoch=2))
    listener.hear(packet(1, line(1, 5)))
    assert listener.delivered == []
    listener.wait(100 * MS)
    assert listener.delivered == line(1, 5)
    listener.hear(packet(8, line(8, 9), adapter=2, epoch=2), packet(6, line(6, 6)))
    assert listener.delivered == line(1, 6)


def test_no_gap_is_declared_while_packets_wait_for_a_lineage() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 3)), heartbeat(7, FIRST))
    listener.wait(4_950 * MS)
    listener.hear(packet(7, line(7, 7), adapter=2, epoch=2), packet(4, line(4, 6)))
    listener.wait(60 * MS)
    assert listener.delivered == line(1, 3)
    listener.wait(50 * MS)
    assert listener.delivered == line(1, 6)
    assert not listener.events(Gap)


def test_the_client_returns_to_where_histories_part_and_drops_redelivered_messages_by_identity() -> None:
    listener = Listener()
    listener.hear(heartbeat(1, FIRST), packet(1, line(1, 9)))
    listener.hear(heartbeat(6, ((1, 1), (2, 6)), adapter=2))
    renumbered: list[Source] = [(2, 1), (1, 6), (1, 7), (2, 2), (1, 8), (1, 9), (1, 10)]
    listener.hear(packet(6, renumbered, adapter=2, epoch=2))
    assert listener.delivered == [*line(1, 9), (2, 1), (2, 2), (1, 10)]


def test_messages_that_only_the_old_history_had_are_not_requested_after_a_takeover() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 9)), heartbeat(15))
    listener.hear(heartbeat(6, ((1, 1), (2, 6)), adapter=2))
    listener.wait(10_000 * MS)
    assert not listener.requests
    assert not listener.events(Gap)


def test_the_part_of_a_gap_that_the_new_history_has_is_awaited_and_declared_too() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 5)), heartbeat(9))
    listener.wait(1_000 * MS)
    listener.hear(heartbeat(8, ((1, 1), (2, 6), (3, 8)), adapter=3))
    listener.wait(4_900 * MS)
    assert not listener.events(Gap)
    listener.wait(10_000 * MS)
    assert listener.events(Gap) == [Gap(1, 6, 8, 6, 8)]


def test_progress_of_streams_in_the_old_history_does_not_hurry_a_request_in_the_new_one() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 9)), packet(1, line(1, 9), adapter=3))
    listener.hear(heartbeat(6, ((1, 1), (2, 6)), adapter=2), packet(8, [(2, 3)], adapter=2, epoch=2))
    listener.wait(3 * MS)
    assert not listener.requests
    listener.wait(1 * MS)
    assert listener.requests == [RequestReplay(1, ((6, 8),))]


def test_an_epoch_that_the_newest_history_lacks_counts_for_nothing() -> None:
    listener = Listener()
    listener.hear(heartbeat(1, FIRST), packet(1, line(1, 5)))
    listener.hear(heartbeat(6, ((1, 1), (2, 6)), adapter=2))
    listener.hear(packet(6, [(2, 1), (2, 2)], adapter=2, epoch=2))  # its active then died; no adapter followed it
    listener.hear(heartbeat(9, ((1, 1), (3, 9)), adapter=3))
    assert listener.merger.next_message_seq == 6
    listener.hear(packet(8, [(2, 3)], adapter=2, epoch=2))  # its history does not count
    listener.hear(packet(6, [*line(6, 7), (2, 1)], adapter=3))
    listener.hear(packet(9, [(2, 2), (2, 3)], adapter=3, epoch=3))
    assert listener.delivered == [*line(1, 5), (2, 1), (2, 2), *line(6, 7), (2, 3)]
    assert listener.count(Counter.STALE_EPOCH_PACKETS) == 1


def test_after_an_epoch_that_no_adapter_followed_the_client_continues_where_it_had_been() -> None:
    listener = Listener()
    listener.hear(heartbeat(1, FIRST), packet(1, line(1, 9)))
    listener.hear(heartbeat(6, ((1, 1), (2, 6)), adapter=2))  # its active then dies
    listener.hear(heartbeat(10, ((1, 1), (3, 10)), adapter=3))
    assert listener.events(Takeover)[-1] == Takeover(1, 3, 0, 10, 0, resume_input_seq=10)
    listener.hear(packet(10, line(10, 12), adapter=3, epoch=3))
    listener.wait(10_000 * MS)
    assert listener.delivered == line(1, 12)
    assert not listener.requests
    assert not listener.events(Gap)


def test_it_continues_only_as_far_as_the_newest_history_has_what_it_delivered() -> None:
    listener = Listener()
    listener.hear(heartbeat(1, FIRST), packet(1, line(1, 9)))
    listener.hear(heartbeat(6, ((1, 1), (2, 6)), adapter=2))
    listener.hear(heartbeat(8, ((1, 1), (3, 8)), adapter=3))
    assert (listener.merger.next_input_seq, listener.merger.next_message_seq) == (8, 8)
    listener.hear(packet(8, [(2, 1), *line(8, 10)], adapter=3, epoch=3))
    assert listener.delivered == [*line(1, 9), (2, 1), *line(10, 10)]


def test_it_continues_where_it_had_been_after_several_epochs_that_no_adapter_followed() -> None:
    listener = Listener()
    listener.hear(heartbeat(1, FIRST), packet(1, line(1, 9)))
    listener.hear(heartbeat(6, ((1, 1), (2, 6)), adapter=2), packet(6, line(6, 7), adapter=2, epoch=2))
    listener.hear(heartbeat(4, ((1, 1), (3, 4)), adapter=3), packet(4, line(4, 5), adapter=3, epoch=3))
    listener.hear(heartbeat(10, ((1, 1), (4, 10)), adapter=4))
    assert (listener.merger.next_input_seq, listener.merger.next_message_seq) == (10, 10)


def test_held_packets_follow_where_the_client_had_been() -> None:
    listener = Listener()
    listener.hear(heartbeat(1, FIRST), packet(1, line(1, 9)))
    listener.hear(heartbeat(6, ((1, 1), (2, 6)), adapter=2), packet(10, line(10, 11), adapter=3, epoch=3))
    listener.hear(heartbeat(12, ((1, 1), (3, 10)), adapter=3))
    assert listener.delivered == line(1, 11)


def test_a_gap_that_was_declared_before_such_an_epoch_is_requested_again_after_it() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 5)), packet(8, line(8, 9)))
    listener.wait(6_000 * MS)
    assert listener.events(Gap) == [Gap(1, 6, 8, 6, 8)]
    listener.hear(heartbeat(3, ((1, 1), (2, 3)), adapter=2), heartbeat(10, ((1, 1), (3, 10)), adapter=3))
    listener.hear(packet(3, line(3, 9), flags=OutputFlag.RETRANSMISSION))
    assert listener.delivered == [*line(1, 5), *line(8, 9), *line(6, 7)]


def test_a_former_place_in_a_history_of_which_the_newest_has_nothing_does_not_count() -> None:
    listener = Listener()
    listener.hear(heartbeat(1, FIRST), packet(1, line(1, 9)))
    listener.hear(heartbeat(6, ((1, 1), (2, 6)), adapter=2), heartbeat(20, ((3, 8),), adapter=3))
    assert listener.merger.next_input_seq == 6


def test_an_unknown_epoch_in_a_new_lineage_returns_the_client_to_where_that_epoch_begins() -> None:
    listener = Listener()
    listener.hear(heartbeat(1, FIRST), packet(1, line(1, 9)))
    listener.hear(heartbeat(12, ((1, 1), (2, 5), (3, 12)), adapter=3))
    assert listener.merger.next_message_seq == 5
    listener.hear(packet(12, [(1, 10)], adapter=3, epoch=3))
    listener.wait(4 * MS)
    assert listener.requests == [RequestReplay(1, ((5, 12),))]
    again = packet(5, [(2, 1), *line(5, 9), (2, 2)], adapter=3, epoch=2, flags=OutputFlag.RETRANSMISSION)
    listener.hear(again)
    assert listener.delivered == [*line(1, 9), (2, 1), (2, 2), (1, 10)]


def test_the_older_of_two_epochs_that_begin_at_the_same_message_numbers_nothing() -> None:
    listener = Listener()
    listener.hear(heartbeat(1, FIRST), packet(1, line(1, 5)))
    listener.hear(heartbeat(6, ((1, 1), (2, 6)), adapter=2), packet(6, [(2, 1)], adapter=2, epoch=2))
    listener.hear(heartbeat(6, ((1, 1), (2, 6), (3, 6)), adapter=3))
    listener.hear(packet(7, [(2, 2)], adapter=2, epoch=2))
    listener.hear(packet(6, [(1, 6), (2, 1)], adapter=3, epoch=3))
    assert listener.delivered == [*line(1, 5), (2, 1), (1, 6)]


def test_a_message_of_a_gap_in_a_superseded_history_is_filled_under_its_new_number() -> None:
    listener = Listener()
    listener.hear(heartbeat(1, FIRST), packet(1, line(1, 3)), packet(6, line(6, 7)))
    listener.wait(5_100 * MS)
    assert listener.events(Gap) == [Gap(1, 4, 6, 4, 6)]
    listener.hear(heartbeat(4, ((1, 1), (2, 4)), adapter=2))
    listener.hear(packet(4, [(2, 1), *line(4, 8)], adapter=2, epoch=2))
    assert sorted(listener.delivered) == [*line(1, 8), (2, 1)]
    assert listener.delivered[-4:] == [(2, 1), (1, 4), (1, 5), (1, 8)]


def test_before_the_first_lineage_is_known_packets_wait() -> None:
    listener = Listener(MergerConfig(held_count_max=3), knows_lineage=False)
    listener.hear(*(packet(seq, line(seq, seq)) for seq in (1, 2, 3, 4)))
    listener.wait(10_000 * MS)
    assert listener.delivered == []
    assert not listener.events(Gap, RequestReplay)
    listener.hear(heartbeat(5, ((1, 1), (2, 3)), adapter=2))
    assert listener.delivered == line(1, 2)  # no more than three waited, and the third was renumbered
    assert listener.count(Counter.STALE_EPOCH_PACKETS) == 1
    assert not listener.events(Takeover)


def test_a_live_subscription_begins_with_the_first_packet_that_counts() -> None:
    listener = Listener(start=None, knows_lineage=False)
    listener.hear(packet(6, line(6, 7), epoch=1), packet(6, line(16, 17), epoch=2))
    listener.hear(heartbeat(8, ((1, 1), (2, 6)), adapter=2), packet(8, line(18, 18), epoch=2))
    assert listener.delivered == line(16, 18)
    assert listener.count(Counter.STALE_EPOCH_PACKETS) == 1


def test_a_client_that_starts_in_a_later_epoch_gets_earlier_ones_from_replay() -> None:
    listener = Listener(knows_lineage=False)
    listener.hear(heartbeat(6, ((1, 1), (2, 6)), adapter=2), packet(6, line(6, 8), adapter=2, epoch=2))
    listener.hear(packet(1, line(1, 9), adapter=2, flags=OutputFlag.RETRANSMISSION))
    assert listener.delivered == line(1, 8)


def test_a_packet_counts_only_up_to_where_the_next_epoch_of_the_history_begins() -> None:
    listener = Listener()
    listener.hear(packet(4, line(4, 9)), heartbeat(6, ((1, 1), (2, 6)), adapter=2))
    listener.hear(packet(1, line(1, 3)))
    assert listener.delivered == line(1, 5)
    listener.hear(packet(6, [(2, 1)], adapter=2, epoch=2), packet(7, line(6, 9), adapter=2, epoch=2))
    assert listener.delivered == [*line(1, 5), (2, 1), *line(6, 9)]


def test_after_the_return_the_next_message_seq_is_that_of_where_the_histories_part() -> None:
    listener = Listener()
    listener.hear(packet(1, line(1, 6), silent=[(1, 2), (1, 4)]))
    assert (listener.merger.next_input_seq, listener.merger.next_message_seq) == (7, 5)
    listener.hear(heartbeat(5, ((1, 1, 1), (2, 5, 3)), next_message=3, adapter=2, flags=OutputFlag.FROM_ACTIVE))
    assert (listener.merger.next_input_seq, listener.merger.next_message_seq) == (5, 3)
    assert listener.events(Takeover) == [Takeover(1, 2, 2, 3, 0, resume_input_seq=5)]
    listener.hear(packet(3, [(2, 1), (1, 5), (1, 6), (1, 7)], first_input=5, adapter=2, epoch=2))
    assert listener.delivered == [(1, 1), (1, 3), (1, 5), (1, 6), (2, 1), (1, 7)]
    assert (listener.merger.next_input_seq, listener.merger.next_message_seq) == (9, 7)


def test_a_heartbeat_with_an_impossible_lineage_is_refused() -> None:
    listener = Listener()
    broken = heartbeat(1, ((1, 1), (2, 6)))
    listener.hear(broken._replace(payload=broken.payload[ENTRY_SIZE:] + broken.payload[:ENTRY_SIZE]))
    assert listener.merger.lineage.epoch == 1
    assert sum(listener.counters.refusals.values()) == 1


# ---- a model: any histories, packets in any order, journals that differ ----


@dataclass
class Epoch:
    """One epoch and the whole history up to its end: a source message for each input_seq from 1."""

    number: int
    lineage: Lineage
    history: list[Source]


STREAMS = (1, 2, 3)
SILENT = frozenset((stream, seq) for stream in STREAMS for seq in range(1, 200) if (stream + seq) % 3 == 0)


def message_seq_at(history: list[Source], input_seq: int) -> int:
    """The next message_seq at the place where this input_seq is next."""
    return 1 + sum(source not in SILENT for source in history[: input_seq - 1])


@st.composite
def epochs(draw: st.DrawFn) -> list[Epoch]:
    """A tree of histories: each epoch continues an earlier history at any place, and may lack epochs that end there."""
    made: list[Epoch] = []
    for number in range(1, draw(st.integers(1, 6)) + 1):
        lineage, history = Lineage(), []
        if made:
            parent = draw(st.sampled_from(made))
            position = draw(st.integers(0, len(parent.history)))
            known = [entry for entry in parent.lineage.entries if entry.first_input_seq <= position + 1]
            while known and known[-1].first_input_seq == position + 1 and draw(st.booleans()):
                known.pop()  # the new active did not hear of that epoch
            lineage, history = Lineage(tuple(known)), list(parent.history[:position])
        first = len(history) + 1
        lineage = lineage.opened(number, first, message_seq_at(history, first))
        for stream in draw(st.lists(st.sampled_from(STREAMS), max_size=12)):
            history.append((stream, 1 + sum(each == stream for each, _ in history)))
        made.append(Epoch(number, lineage, history))
    return made


def cut(draw: st.DrawFn, epoch: Epoch, adapter: int) -> list[OutputPacket]:
    """The epoch's own source messages as one adapter packs them."""
    packets, first = [], epoch.lineage.first_input_seq
    while first <= len(epoch.history):
        count = draw(st.integers(1, 4))
        sources = epoch.history[first - 1 : first - 1 + count]
        message_seq = message_seq_at(epoch.history, first)
        packets.append(
            packet(message_seq, sources, first_input=first, silent=SILENT, adapter=adapter, epoch=epoch.number)
        )
        first += count
    return packets


def provisionals(draw: st.DrawFn, history: list[Source]) -> list[OutputPacket]:
    """What adapters without a lease may have forwarded: any part of any source stream, with any numbers."""
    packets = []
    for _ in range(draw(st.integers(0, 8))):
        stream = draw(st.sampled_from(STREAMS))
        first = draw(st.integers(1, 1 + sum(each == stream for each, _ in history)))
        stretch = [(stream, seq) for seq in range(first, first + draw(st.integers(1, 4)))]
        adapter = draw(st.integers(1, 3))
        number, input_seq = draw(st.integers(1, 50)), draw(st.integers(1, 50))
        packets.append(
            packet(
                number,
                stretch,
                first_input=input_seq,
                silent=SILENT,
                adapter=adapter,
                flags=OutputFlag.PROVISIONAL,
            )
        )
    return packets


def end_of(epoch: Epoch, adapter: int) -> OutputPacket:
    """The heartbeat of an adapter that has the whole history."""
    end = len(epoch.history) + 1
    return heartbeat(
        end, epoch.lineage.entries, next_message=message_seq_at(epoch.history, end), adapter=adapter
    )  # fmt: skip


def answer(listener: Listener, journal: list[OutputPacket]) -> None:
    """Serve every request from one adapter's journal."""
    requests, listener.requests = listener.requests, []
    for request in requests:
        for each in journal:
            if each.flags & OutputFlag.PROVISIONAL:
                run = each.runs[0]
                is_wanted = any(
                    run.source_stream_id == stream and run.first_source_seq < end and run.end_source_seq > first
                    for stream, first, end in request.source_ranges
                )
            else:
                is_wanted = any(
                    each.first_input_seq < end and each.end_input_seq > first for first, end in request.input_ranges
                )
            if is_wanted:
                listener.hear(each._replace(flags=each.flags | OutputFlag.RETRANSMISSION))


def names_of_gaps(listener: Listener, histories: dict[int, list[Source]], seen: int) -> set[Source]:
    """The source messages named by gaps since `seen`, by the history that was followed then."""
    history = histories[listener.merger.lineage.epoch]
    named: set[Source] = set()
    for effect in listener.effects[seen:]:
        if isinstance(effect, Gap):
            named |= set(history[effect.first_input_seq - 1 : effect.end_input_seq - 1])
        elif isinstance(effect, ProvisionalGap):
            first, last = effect.first_source_seq, effect.last_source_seq
            named |= {(effect.source_stream_id, seq) for seq in range(first, last + 1)}
    return named


@settings(max_examples=300)
@given(st.data())
def test_every_message_of_the_newest_history_is_delivered_once_and_in_order_or_named_by_a_gap(
    data: st.DataObject,
) -> None:
    draw = data.draw
    made = draw(epochs())
    histories = {epoch.number: epoch.history for epoch in made}
    journals: dict[int, list[OutputPacket]] = {1: [], 2: [], 3: []}
    air: list[OutputPacket] = []
    for epoch in made:
        for adapter in draw(st.sets(st.sampled_from((1, 2, 3)), min_size=1)):
            packed = cut(draw, epoch, adapter)
            journals[adapter] += packed
            air += packed
        air.append(end_of(epoch, adapter=1))
    for forwarded in provisionals(draw, made[-1].history) if draw(st.booleans()) else ():
        journals[forwarded.adapter_id].append(forwarded)
        air.append(forwarded)
    order = draw(st.lists(st.sampled_from(air), max_size=3 * len(air)))  # lost, repeated and in any order
    listener = Listener()
    excused: set[Source] = set()
    for each in order:
        seen = len(listener.effects)
        listener.hear(each)
        excused |= names_of_gaps(listener, histories, seen)
        if draw(st.integers(0, 3)) == 0:
            seen = len(listener.effects)
            listener.wait(draw(st.sampled_from((MS, 5 * MS, 60 * MS, 6_000 * MS))))
            excused |= names_of_gaps(listener, histories, seen)
            answer(listener, journals[draw(st.sampled_from((1, 2, 3)))])
    newest = made[-1]
    end = len(newest.history) + 1
    for _ in range(60):
        listener.hear(end_of(newest, adapter=2))
        if listener.merger.next_input_seq == end:
            break
        seen = len(listener.effects)
        listener.wait(300 * MS)
        excused |= names_of_gaps(listener, histories, seen)
        answer(listener, [each for journal in journals.values() for each in journal])
    assert listener.merger.next_input_seq == end
    assert listener.merger.next_message_seq == message_seq_at(newest.history, end)
    assert len(set(listener.delivered)) == len(listener.delivered), "delivered twice"
    assert set(newest.history) - SILENT - set(listener.delivered) <= excused, "skipped without a gap"
