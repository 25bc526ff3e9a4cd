"""What a client believes of an adapter's numbers: a liar with genuine keys costs its own copies, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.merge.belief import AHEAD_MAX, EARLY_MAX, HELD_MAX, HELD_NS, MEMBER_NS, SILENT_NS, Belief
from tandemfeed.feedcore.vouched_epochs import VouchedEpochs
from tandemfeed.feedcore.wire.lineage import EpochStart, Lineage
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tandemfeed.feedcore.wire.position import Run
from tandemfeed.feedcore.wire.refusal import Refusal

MS = 1_000_000
OWNER, OTHER, THIRD = 1, 2, 3
SESSION, EPOCH = 20261121, 5
HUGE = 2**32 - 1


def numbered(
    adapter: int, first: int, count: int = 1, *, flags: int = 0, source_seq: int = 0, is_gap: bool = False, **more: Any
) -> OutputPacket:
    """Messages of one source stream. Args: source_seq: if it is not that of the `input_seq`."""
    epoch = more.get("epoch", EPOCH)
    run = Run(epoch, first, first, 1, source_seq or first, count, count, is_gap)
    made = OutputPacket(flags, 7, 1, adapter, SESSION, EPOCH, first, first, count, (run,), 0, 0, b"")
    return made._replace(**more)


def beat(adapter: int, next_seq: int, *, flags: int = 0, begins_at: int = 1, **more: Any) -> OutputPacket:
    epoch = more.get("epoch", EPOCH)
    payload = Lineage((EpochStart(epoch, begins_at, begins_at),)).encode(1_000)
    flags |= OutputFlag.HEARTBEAT
    return OutputPacket(flags, 7, 1, adapter, SESSION, EPOCH, next_seq, next_seq, 0, (), 0, 0, payload)._replace(**more)


class Scene:
    """One channel; the owner has sent messages 1 to 9 and is heard, like the others."""

    def __init__(self, *others: int) -> None:
        self.counters, self.vouched, self.now_ns = CounterSet(), VouchedEpochs(), 10_000 * MS
        self.vouched.vouch(EPOCH, OWNER)
        self.belief = Belief(self.counters, self.vouched, SESSION)
        self.hear(beat(OWNER, 1, flags=OutputFlag.FROM_ACTIVE), numbered(OWNER, 1, 9, flags=OutputFlag.FROM_ACTIVE))
        for other in others:
            self.hear(beat(other, 10))

    def hear(self, *packets: OutputPacket) -> list[OutputPacket]:
        """What counts of them, and what is released by them."""
        found: list[OutputPacket] = []
        for each in packets:
            believed = self.belief.believed(each, self.now_ns)
            found += [] if believed is None else [believed]
            found += self.take()
        return found

    def take(self) -> list[OutputPacket]:
        released, self.belief.released = self.belief.released, []
        return released

    def counts(self, packet: OutputPacket) -> bool:
        """Whether a packet counts as it is."""
        return packet in self.hear(packet)

    def silence_of_owner(self, *others: OutputPacket) -> None:
        """The owner falls silent, while others are heard."""
        self.now_ns += SILENT_NS
        self.hear(*others)

    @property
    def refused(self) -> int:
        return self.counters.refusals[Refusal.UNVOUCHED]


# ---- epochs ----


@pytest.mark.parametrize("epoch", [EPOCH + 1, EPOCH + 1_000, HUGE])
@pytest.mark.parametrize("flags", [0, OutputFlag.FROM_ACTIVE, OutputFlag.PROVISIONAL])
def test_an_epoch_counts_only_when_the_server_vouches_for_it(epoch: int, flags: int) -> None:
    scene = Scene(OTHER)
    for packet in (beat(OTHER, 10, epoch=epoch, flags=flags), numbered(OTHER, 10, epoch=epoch, flags=flags)):
        assert all(each.flags == OutputFlag.ANNOUNCEMENT and not each.runs for each in scene.hear(packet))
    assert scene.counts(numbered(OWNER, 10, flags=OutputFlag.FROM_ACTIVE))


def test_what_came_before_its_epoch_was_vouched_for_counts_then_in_order_of_arrival() -> None:
    scene = Scene(OTHER)
    early = [beat(OTHER, 10, epoch=6, begins_at=10), numbered(OTHER, 10, epoch=6), numbered(OTHER, 11, epoch=6)]
    scene.hear(*early)
    scene.vouched.vouch(6, OTHER)
    scene.belief.on_vouched(scene.now_ns)
    assert scene.take() == early


def test_what_is_never_vouched_for_is_refused_after_a_while_and_takes_limited_room() -> None:
    scene = Scene(OTHER)
    for count in range(HELD_MAX + 100):
        scene.hear(numbered(OTHER, 10 + count, epoch=HUGE))
    assert scene.refused == 100
    scene.now_ns += HELD_NS + 1
    scene.hear(numbered(OTHER, 10, epoch=HUGE))
    assert scene.refused == 100 + HELD_MAX


@pytest.mark.parametrize("make", [beat, numbered])
def test_another_adapter_cannot_be_the_active_of_the_owners_epoch(make: Any) -> None:
    scene = Scene(OTHER)
    assert not scene.hear(make(OTHER, 10, flags=OutputFlag.FROM_ACTIVE))
    assert scene.refused == 1


# ---- positions ----


def test_a_copy_counts_as_far_as_its_owner_has_come_and_if_it_continues_what_is_known() -> None:
    scene = Scene(OTHER)
    assert scene.counts(numbered(OTHER, 5, 5))
    assert scene.counts(numbered(OTHER, 10, 3))  # the first copy
    assert scene.counts(numbered(OTHER, 13, 2))
    assert scene.counts(numbered(OWNER, 10, 3, flags=OutputFlag.FROM_ACTIVE))


def test_copies_can_be_ahead_of_their_originals_by_a_limited_number_of_messages() -> None:
    scene = Scene(OTHER)
    assert scene.counts(numbered(OTHER, 10, AHEAD_MAX - 1))
    assert scene.counts(numbered(OTHER, 9 + AHEAD_MAX, 1))
    assert not scene.counts(numbered(OTHER, 10 + AHEAD_MAX, 1))


@pytest.mark.parametrize("first", [11, 10 + AHEAD_MAX, 2**62])
def test_a_copy_from_a_place_that_the_owner_has_not_shown_does_not_count(first: int) -> None:
    scene = Scene(OTHER)
    assert not scene.counts(numbered(OTHER, first))
    assert scene.hear(numbered(OTHER, first))[0].flags == OutputFlag.ANNOUNCEMENT  # its sender lives


def test_a_copy_that_was_early_counts_once_its_owner_has_come_so_far() -> None:
    scene = Scene(OTHER)
    early = numbered(OTHER, 12, 3)
    assert early not in scene.hear(early)
    assert early in scene.hear(beat(OWNER, 15, flags=OutputFlag.FROM_ACTIVE))
    later = numbered(OTHER, 17)
    assert later not in scene.hear(later)
    assert scene.hear(numbered(OWNER, 16, flags=OutputFlag.FROM_ACTIVE))[1:] == [later]  # it continues what is known


def test_a_flood_of_early_copies_takes_limited_room() -> None:
    scene = Scene(OTHER)
    for count in range(EARLY_MAX + 50):
        scene.hear(numbered(OTHER, 1_000 + count))
    assert scene.refused == 50


@pytest.mark.parametrize("next_seq", [2**40, 10 + AHEAD_MAX, 11])
def test_another_adapters_heartbeat_cannot_move_the_end(next_seq: int) -> None:
    scene = Scene(OTHER, THIRD)
    assert not scene.counts(beat(OTHER, next_seq))
    assert scene.counts(beat(OWNER, 12, flags=OutputFlag.FROM_ACTIVE))
    assert scene.counts(beat(OTHER, 12))


@pytest.mark.parametrize("sender", [OWNER, OTHER])
def test_a_source_seq_greater_than_its_input_seq_is_impossible(sender: int) -> None:
    scene = Scene(OTHER)
    assert not scene.hear(numbered(sender, 10, source_seq=2**60))
    assert scene.refused == 1


def test_only_the_owner_declares_source_messages_lost() -> None:
    scene = Scene(OTHER)
    assert not scene.counts(numbered(OTHER, 10, 3, is_gap=True))
    assert scene.counts(numbered(OWNER, 10, 3, is_gap=True, flags=OutputFlag.FROM_ACTIVE))
    assert scene.counts(numbered(OTHER, 10, 3, is_gap=True))


# ---- history and end ----


def test_a_history_that_differs_from_the_owners_is_only_a_sign_of_life() -> None:
    scene = Scene(OTHER)
    assert scene.hear(beat(OTHER, 10, begins_at=3))[0].flags == OutputFlag.ANNOUNCEMENT


def test_a_heartbeat_whose_history_ends_in_another_epoch_is_refused() -> None:
    scene = Scene(OTHER)
    payload = Lineage((EpochStart(HUGE, 1, 1),)).encode(1_000)
    assert not scene.hear(beat(OWNER, 10)._replace(payload=payload))
    assert scene.counters.refusals[Refusal.MALFORMED] == 1


def test_only_the_owner_ends_the_stream_while_it_is_heard() -> None:
    scene = Scene(OTHER)
    (found,) = scene.hear(beat(OTHER, 10, flags=OutputFlag.END_OF_STREAM))
    assert not found.flags & OutputFlag.END_OF_STREAM
    scene.hear(beat(OWNER, 10, flags=OutputFlag.END_OF_STREAM | OutputFlag.FROM_ACTIVE))
    assert scene.counts(beat(OTHER, 10, flags=OutputFlag.END_OF_STREAM))


# ---- a silent owner ----


def test_while_the_owner_is_silent_a_single_other_adapter_is_believed_if_it_is_the_only_one() -> None:
    scene = Scene(OTHER)
    scene.silence_of_owner(beat(OTHER, 10))
    assert scene.counts(beat(OTHER, 20))
    assert scene.counts(numbered(OTHER, 15, 5))


def test_while_the_owner_is_silent_more_than_half_of_the_others_must_agree() -> None:
    scene = Scene(OTHER, THIRD)
    scene.silence_of_owner(beat(OTHER, 10), beat(THIRD, 10))
    assert not scene.counts(beat(OTHER, 14))
    assert not scene.counts(beat(THIRD, 2**40))  # it has come as far as the other one, by its own word
    assert scene.counts(beat(OTHER, 14))
    assert not scene.counts(beat(THIRD, 2**40))


def test_provisional_messages_count_only_while_no_active_is_heard() -> None:
    scene = Scene(OTHER)
    provisional = numbered(OTHER, 10, flags=OutputFlag.PROVISIONAL)
    assert not scene.counts(provisional)
    scene.silence_of_owner(beat(OTHER, 10))
    assert scene.counts(provisional)


def test_an_owner_that_forwards_provisionally_is_not_the_active_any_more() -> None:
    scene = Scene(OTHER)
    assert scene.counts(numbered(OWNER, 10, flags=OutputFlag.PROVISIONAL))
    assert scene.counts(numbered(OTHER, 10, flags=OutputFlag.PROVISIONAL))


# ---- sessions ----


def test_a_later_session_counts_when_the_server_describes_the_feed_by_it() -> None:
    scene = Scene(OTHER)
    later = beat(OTHER, 1, session=SESSION + 1)
    assert not scene.hear(later)
    scene.belief.on_described(SESSION + 1, scene.now_ns)
    assert len(scene.take()) == 1


def test_without_the_server_a_later_session_counts_when_more_than_half_of_the_adapters_heard_are_in_it() -> None:
    scene = Scene(OTHER, THIRD)
    scene.now_ns += SILENT_NS  # it has listened for long enough to know who is there
    assert not scene.hear(beat(THIRD, 1, session=99_999_999))
    assert not scene.hear(beat(OWNER, 1, session=SESSION + 1, flags=OutputFlag.FROM_ACTIVE))
    assert scene.hear(beat(OTHER, 1, session=SESSION + 1))
    assert not scene.hear(beat(THIRD, 1, session=99_999_999))


def test_the_end_of_the_stream_counts_while_its_owner_is_silent_once_more_than_half_say_it() -> None:
    scene = Scene(OTHER, THIRD)
    scene.silence_of_owner(beat(THIRD, 10))
    (kept,) = scene.hear(beat(OTHER, 10, flags=OutputFlag.END_OF_STREAM))
    assert not kept.flags & OutputFlag.END_OF_STREAM
    assert scene.counts(beat(THIRD, 10, flags=OutputFlag.END_OF_STREAM))
    assert scene.counts(beat(OTHER, 10, flags=OutputFlag.END_OF_STREAM))


def test_the_signs_of_life_of_others_are_asked_for_only_when_the_owner_seems_silent() -> None:
    scene = Scene(OTHER)
    assert not scene.belief.asks_who_lives(beat(OTHER, 10), scene.now_ns)
    scene.now_ns += SILENT_NS
    assert scene.belief.asks_who_lives(beat(OTHER, 10), scene.now_ns)
    assert not scene.belief.asks_who_lives(beat(OWNER, 10), scene.now_ns)


def test_a_reader_that_hears_a_liar_first_does_not_follow_it_into_an_invented_session() -> None:
    belief = Belief(CounterSet(), Scene().vouched, SESSION)
    assert belief.believed(beat(OTHER, 1, session=99_999_999), 10_000 * MS) is None
    assert belief.believed(beat(OWNER, 1, flags=OutputFlag.FROM_ACTIVE), 10_001 * MS)
    assert belief.believed(beat(OTHER, 1, session=99_999_999), 10_000 * MS + SILENT_NS) is None
    assert belief.released == []


def test_a_reader_that_heard_nothing_for_a_moment_does_not_follow_the_first_one_it_hears_again() -> None:
    scene = Scene(OTHER)
    scene.now_ns += 5 * SILENT_NS
    assert not scene.hear(beat(OTHER, 1, session=99_999_999))
    scene.now_ns += MEMBER_NS  # by now, only one adapter is left
    assert scene.hear(beat(OTHER, 1, session=SESSION + 1))


# ---- what may precede its signature ----


def test_the_signed_numbers_of_a_liar_do_not_widen_what_is_accepted_without_a_signature() -> None:
    scene = Scene(OTHER)
    may_extend = scene.belief.may_extend
    assert may_extend(beat(OWNER, 50), scene.now_ns)
    assert may_extend(beat(OTHER, 10), scene.now_ns)
    assert not may_extend(beat(OTHER, 2**40), scene.now_ns)
    assert not may_extend(beat(OTHER, 10, epoch=HUGE), scene.now_ns)
    assert not may_extend(beat(OTHER, 10, session=SESSION + 1), scene.now_ns)
