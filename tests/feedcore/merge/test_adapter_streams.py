"""Which adapters are heard, how far each has come, and whether enough are heard to confirm (clauses 7.3, 7.4, 7.6)."""

from __future__ import annotations

from tandemfeed.feedcore.merge.adapter_streams import AdapterStreams
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import ConfirmationPaused, ConfirmationResumed, Live, MergeEffect, Stale
from tandemfeed.feedcore.wire.output_packet import ANNOUNCEMENT_BIT, PROVISIONAL_BIT

LIMIT_NS = 1_000


def heard(confirm: int = 1) -> AdapterStreams:
    return AdapterStreams(1, MergerConfig(stale_after_ns=LIMIT_NS, confirm=confirm))


def hear(streams: AdapterStreams, adapter: int, now_ns: int, end: int = 1, flags: int = 0) -> list[MergeEffect]:
    effects: list[MergeEffect] = []
    streams.on_packet(adapter, flags, end, now_ns, effects)
    return effects


def look(streams: AdapterStreams, now_ns: int) -> list[MergeEffect]:
    effects: list[MergeEffect] = []
    streams.on_timer(now_ns, effects)
    return effects


def test_a_stream_is_live_when_it_is_heard_and_stale_after_the_limit() -> None:
    streams = heard()
    assert streams.next_deadline_ns is None
    assert look(streams, 0) == []
    assert hear(streams, 1, 10) == [Live(1, 1)]
    assert hear(streams, 1, 20) == []
    assert streams.next_deadline_ns == 10 + LIMIT_NS
    assert look(streams, 10 + LIMIT_NS) == []
    assert streams.next_deadline_ns == 20 + LIMIT_NS
    assert look(streams, 19 + LIMIT_NS) == []
    assert look(streams, 20 + LIMIT_NS) == [Stale(1, 1)]
    assert (streams.live, streams.silent) == ((), (1,))
    assert streams.next_deadline_ns is None
    assert hear(streams, 1, 5_000) == [Live(1, 1)]
    assert (streams.live, streams.silent) == ((1,), ())
    assert streams.next_deadline_ns == 5_000 + LIMIT_NS


def test_an_adapter_that_moved_on_to_a_later_session_is_not_silent() -> None:
    streams = heard()
    hear(streams, 1, 0)
    hear(streams, 2, 0)
    streams.note_moved_on(1)
    assert look(streams, LIMIT_NS) == [Stale(1, 1), Stale(1, 2)]
    assert (streams.live, streams.silent) == ((), (2,))


def test_the_next_deadline_is_that_of_the_stream_heard_longest_ago() -> None:
    streams = heard()
    hear(streams, 2, 100)
    hear(streams, 1, 200)
    assert streams.next_deadline_ns == 100 + LIMIT_NS
    assert look(streams, 100 + LIMIT_NS) == [Stale(1, 2)]
    assert streams.next_deadline_ns == 200 + LIMIT_NS
    hear(streams, 2, 1_150)
    assert streams.next_deadline_ns == 200 + LIMIT_NS
    assert (streams.live, streams.silent) == ((1, 2), ())


def test_every_live_stream_must_be_past_a_gap() -> None:
    streams = heard()
    assert not streams.are_all_past(1)
    hear(streams, 1, 0, end=5)
    hear(streams, 2, 500, end=9)
    assert streams.are_all_past(4)
    assert not streams.are_all_past(5)
    hear(streams, 1, 0, end=4)
    assert streams.are_all_past(4)
    look(streams, LIMIT_NS)
    assert streams.are_all_past(8)
    assert not streams.are_all_past(9)
    look(streams, 500 + LIMIT_NS)
    assert not streams.are_all_past(1)


def test_of_several_live_streams_the_one_heard_longest_ago_sets_the_deadline() -> None:
    streams = heard()
    for adapter, at_ns in ((1, 0), (2, 300), (3, 200)):
        hear(streams, adapter, at_ns)
    assert look(streams, LIMIT_NS) == [Stale(1, 1)]
    assert streams.next_deadline_ns == 200 + LIMIT_NS


def test_a_stream_at_its_beginning_is_past_nothing() -> None:
    streams = heard()
    hear(streams, 1, 0, end=9)
    hear(streams, 2, 0, end=1)
    assert not streams.are_all_past(1)


def test_provisional_packets_and_announcements_do_not_advance_a_stream() -> None:
    streams = heard()
    hear(streams, 1, 0, end=9, flags=PROVISIONAL_BIT)
    hear(streams, 2, 0, end=9, flags=ANNOUNCEMENT_BIT)
    assert streams.live == (1, 2)
    assert not streams.are_all_past(1)
    hear(streams, 1, 0, end=9)
    assert streams.are_all_past(8)


def test_streams_have_come_no_further_than_where_renumbering_begins() -> None:
    streams = heard()
    hear(streams, 1, 0, end=9)
    hear(streams, 2, 0, end=4)
    streams.renumbered_from(6)
    assert streams.are_all_past(3)
    assert not streams.are_all_past(4)
    hear(streams, 2, 0, end=9)
    assert streams.are_all_past(5)
    assert not streams.are_all_past(6)


def test_with_confirm_2_a_single_stream_pauses_delivery_until_another_is_heard() -> None:
    streams = heard(confirm=2)
    hear(streams, 1, 0)
    hear(streams, 1, 900)
    assert look(streams, LIMIT_NS - 1) == []
    assert look(streams, LIMIT_NS) == [ConfirmationPaused(1, (1,))]
    assert look(streams, 900 + LIMIT_NS) == [Stale(1, 1)]
    assert hear(streams, 1, 2_000) == [Live(1, 1)]
    assert hear(streams, 2, 2_000) == [Live(1, 2), ConfirmationResumed(1, (1, 2))]
    assert hear(streams, 3, 2_000) == [Live(1, 3)]
    hear(streams, 1, 2_500)
    hear(streams, 2, 2_500)
    assert look(streams, 3_000) == [Stale(1, 3)]
    hear(streams, 1, 3_400)
    assert look(streams, 3_500) == [Stale(1, 2), ConfirmationPaused(1, (1,))]


def test_without_confirmation_silence_pauses_nothing() -> None:
    streams = heard()
    hear(streams, 1, 0)
    assert look(streams, LIMIT_NS) == [Stale(1, 1)]
