"""Faults in the client's merge."""

from __future__ import annotations

from typing import Any

from tandemfeed.client_lib.stream.trust.signer_time import OVERTAKEN_NS, SignerTime
from tandemfeed.feedcore.hold_queue import HoldQueue
from tandemfeed.feedcore.merge.copies.comparison import CopyComparison
from tandemfeed.feedcore.merge.copies.confirmation import Confirmation
from tandemfeed.feedcore.merge.gaps.declared_gaps import DeclaredGaps
from tandemfeed.feedcore.merge.gaps.gap_repair import GapRepair
from tandemfeed.feedcore.merge.history.former_places import FormerPlaces
from tandemfeed.feedcore.merge.history.history_gate import HistoryGate
from tandemfeed.feedcore.merge.history.place import BEGINNING
from tandemfeed.feedcore.merge.merger import StreamMerger
from tandemfeed.feedcore.merge.source_order import RememberedGaps, SourceOrder
from tandemfeed.feedcore.pause_free_clock import PauseFreeClock
from tandemfeed.feedcore.wire.lineage import Lineage
from tests.simulation.mutants.mutant import Method, Mutant, always
from tests.simulation.scenarios import Scenario


def _forgets_sources(right: Method) -> Method:
    def deliver(self: StreamMerger, *arguments: Any) -> None:
        right(self, *arguments)
        self.next_source_seqs.clear()

    return deliver


def _admits_old_epochs(right: Method) -> Method:
    def admit(self: HistoryGate, packet: Any, now_ns: int) -> Any:
        waiting = len(self._waiting)
        counted = right(self, packet, now_ns)
        return packet if counted is not None or len(self._waiting) == waiting else None

    return admit


def _never_waits(right: Method) -> Method:
    def open_or_close(self: HistoryGate) -> None:
        self.passing_epoch = self.lineage.epoch

    return open_or_close


def _confirms_every_copy(right: Method) -> Method:
    return lambda self, packet, effects: [packet]


def _declares_new_gaps_immediately(right: Method) -> Method:
    def declare(self: StreamMerger, now_ns: int, effects: list[Any]) -> None:
        self._gap.declarable_end = self._gap.known_end
        right(self, now_ns, effects)

    return declare


def _does_not_stand_still(right: Method) -> Method:
    def look(self: PauseFreeClock, monotonic_ns: int, **named: Any) -> Any:
        return right(self, monotonic_ns, missed_nothing=True)

    return look


def _takes_lists_for_whole(right: Method) -> Method:
    def on_signed(self: SignerTime, *arguments: Any) -> None:
        right(self, *arguments)
        self._is_whole = True

    return on_signed


def _judges_by_the_readers_clock(right: Method) -> Method:
    def overtaken(self: SignerTime, packets: Any, path: str, now_ns: int) -> Any:
        return (each for each in packets if now_ns - each.heard_at_ns >= OVERTAKEN_NS)

    return overtaken


def _ignores_held_packets(right: property) -> property:
    return property(lambda self: None)


def _skips_silent_runs(right: Method) -> Method:
    def take(self: StreamMerger, packet: Any, end: int, now_ns: int, effects: list[Any]) -> None:
        if packet.message_count:
            right(self, packet, end, now_ns, effects)

    return take


def _forgets_skipped_messages(right: Method) -> Method:
    def pass_over(self: SourceOrder, stream: int, end_source: int) -> None:
        self.next_source_seqs[stream] = end_source

    return pass_over


def _without(kind: str) -> Method:
    """Makes a method that drops the effects of this kind."""

    def change(right: Method) -> Method:
        def event(self: StreamMerger, *arguments: Any, **named: Any) -> list[Any]:
            effects = right(self, *arguments, **named)
            return [effect for effect in effects if type(effect).__name__ != kind]

        return event

    return change


MERGE = (
    Mutant("the client forgets which source messages it delivered", StreamMerger, "_deliver", _forgets_sources),
    Mutant(
        "the client accepts packets of epochs that have ended",
        HistoryGate,
        "admit",
        _admits_old_epochs,
        scenario=Scenario.OUTAGES,
    ),
    Mutant("the client gives up a gap immediately", GapRepair, "has_timed_out", always(True)),
    Mutant("the client ignores heartbeats", StreamMerger, "_on_heartbeat", always(None)),
    Mutant(
        "older packets never wait for a newer lineage",
        HistoryGate,
        "_open_or_close",
        _never_waits,
        killer="tests.feedcore.merge.test_merge_histories:test_packets_of_a_newer_epoch_wait_for_its_lineage_and_older_ones_wait_with_them",
    ),
    Mutant(
        "with confirm=2 one copy is enough", Confirmation, "on_packet", _confirms_every_copy, scenario=Scenario.COPIES
    ),
    Mutant(
        "copies of delivered packets are never compared",
        CopyComparison,
        "compare",
        always(None),
        scenario=Scenario.COPIES,
    ),
    Mutant(
        "copies of held packets are never compared",
        CopyComparison,
        "compare_held",
        always(None),
        scenario=Scenario.COPIES,
    ),
    Mutant(
        "messages that fill a gap are never delivered",
        DeclaredGaps,
        "fill",
        always(False),
        seed_count_max=1_000,
        scenario=Scenario.COPIES,
        is_long=True,
    ),
    Mutant(
        "skipped source messages are forgotten",
        SourceOrder,
        "pass_over",
        _forgets_skipped_messages,
        killer="tests.feedcore.merge.test_merge_histories:test_a_message_of_a_gap_in_a_superseded_history_is_filled_under_its_new_number",
    ),
    Mutant(
        "superseded packets stay held",
        StreamMerger,
        "_cut_held",
        always(None),
        killer="tests.feedcore.merge.test_merge_start:test_after_a_takeover_the_start_is_looked_up_in_the_new_history",
    ),
    Mutant(
        "what was delivered before an epoch without followers is requested again",
        FormerPlaces,
        "furthest_in",
        always(BEGINNING),
        killer="tests.feedcore.merge.test_merge_histories:test_after_an_epoch_that_no_adapter_followed_the_client_continues_where_it_had_been",
    ),
    Mutant(
        "superseded copies keep waiting for confirmation",
        Confirmation,
        "drop_superseded",
        always(None),
        killer="tests.feedcore.merge.test_merge_confirm:test_a_copy_of_a_superseded_history_is_not_compared_with_messages_that_have_its_numbers_now",
    ),
    Mutant(
        "held packets are declared part of a gap",
        HoldQueue,
        "first_item",
        _ignores_held_packets,
        scenario=Scenario.COPIES,
    ),
    Mutant(
        "messages that have just become known are declared missing",
        StreamMerger,
        "_declare",
        _declares_new_gaps_immediately,
        scenario=Scenario.COPIES,
    ),
    Mutant(
        "renumbered copies stay remembered",
        CopyComparison,
        "renumbered_from",
        always(None),
        killer="tests.feedcore.merge.test_merge_comparison:test_messages_delivered_under_superseded_numbers_are_not_compared_with_those_that_have_them_now",
    ),
    Mutant(
        "renumbered gaps stay remembered",
        RememberedGaps,
        "truncate_from",
        always(None),
        killer="tests.feedcore.merge.test_merge_comparison:test_copies_of_what_was_a_gap_in_another_history_are_compared",
    ),
    Mutant("a client takes its own pause for silence", PauseFreeClock, "look", _does_not_stand_still),
    Mutant(
        "a list of signatures that was cut is taken for whole",
        SignerTime,
        "on_signed",
        _takes_lists_for_whole,
        killer="tests.client_lib.stream.test_stream_trust:test_an_adapter_that_pauses_between_signatures_of_many_packets_is_not_accused",
    ),
    Mutant(
        "a signature judges by the reader's clock",
        SignerTime,
        "overtaken",
        _judges_by_the_readers_clock,
        killer="tests.client_lib.stream.test_stream_trust:test_a_reader_that_was_busy_between_a_packet_and_an_older_signature_accuses_no_one",
    ),
    Mutant("packets without messages are skipped", StreamMerger, "_take", _skips_silent_runs),
    Mutant("a takeover is not reported", StreamMerger, "on_packet", _without("Takeover")),
    Mutant("a silent stream is not reported", StreamMerger, "on_timer", _without("Stale")),
    Mutant("a stream that is live again is not reported", StreamMerger, "on_packet", _without("Live")),
    Mutant(
        "the client does not find where histories diverge",
        Lineage,
        "fork_from",
        always(None),
        killer="tests.feedcore.merge.test_merge_histories:test_the_client_returns_to_where_histories_part_and_drops_redelivered_messages_by_identity",
    ),
)
