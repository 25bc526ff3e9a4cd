"""Faults in the adapter's replica: following, joining, deciding, hand-over, provisional output, acked publishing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tandemfeed.feedcore.replica.active_view import FLAPS_FREE, FlapDamper
from tandemfeed.feedcore.replica.channel import Channel
from tandemfeed.feedcore.replica.channel_state import Buckets, ChannelSnapshot
from tandemfeed.feedcore.replica.effects import AppendToJournal, Transmit
from tandemfeed.feedcore.replica.hand_over import HandOver
from tandemfeed.feedcore.replica.input.decision_intake import DecisionIntake
from tandemfeed.feedcore.replica.input.source_tracker import SourceTracker
from tandemfeed.feedcore.replica.output.production import ProductionLine
from tandemfeed.feedcore.replica.output.publish_gate import PublishGate
from tandemfeed.feedcore.replica.roles import following
from tandemfeed.feedcore.replica.roles.deciding import Deciding
from tandemfeed.feedcore.replica.roles.following import Following, PositionedBackup
from tandemfeed.feedcore.replica.roles.role import ToDeciding
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.replica.sessions import SessionReplicas
from tandemfeed.feedcore.wire.lineage import UNLIMITED
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tests.simulation.mutants.mutant import Method, Mutant, always, is_never
from tests.simulation.scenarios import Scenario

# ---- following ----


def _applies_twice(right: Method) -> Method:
    def accept(self: DecisionIntake, run: Any) -> None:
        right(self, run)
        self.ready.append(run)

    return accept


def _believes_message_seqs(right: Method) -> Method:
    def accept(self: DecisionIntake, run: Any) -> None:
        self._next_message_seq = run.first_message_seq
        right(self, run)

    return accept


def _decides_as_backup(right: Method) -> Method:
    def on_slices(self: Following, stream: int, slices: Any, now_ns: int) -> Any:
        if self.channel.state is not ReplicaState.SYNCHRONIZED:
            return right(self, stream, slices, now_ns)
        decider = Deciding(self.channel, ToDeciding(self.channel.line.epoch))
        return decider.on_slices(stream, slices, now_ns)

    return on_slices


def _compares_any_epochs(right: Method) -> Method:
    def compare(self: Following, status: Any, *arguments: Any) -> Any:
        ours = self.channel.line.digests_at.get(status.digest.input_seq)
        digest = status.digest if ours is None else replace(status.digest, epoch=ours.epoch)
        return right(self, replace(status, digest=digest), *arguments)

    return compare


def _ignores_the_end_of_an_epoch(right: Method) -> Method:
    def undecided_count(self: Channel) -> int:
        line = self.line
        if not self.is_single_source or self.intake.ready or line.next_input_seq == line.lineage.first_input_seq:
            return 0
        return UNLIMITED - line.next_input_seq

    return undecided_count


def _never_returns(right: Method) -> Method:
    return lambda self, now_ns: right(self, now_ns) if self._silences <= FLAPS_FREE else False


# ---- joining ----


def _keeps_its_counter(right: Method) -> Method:
    def install(self: ProductionLine, snapshot: Any) -> None:
        counter = self.next_input_seq
        right(self, snapshot)
        self.next_input_seq = counter

    return install


def _saves_one_too_far(right: Method) -> Method:
    def snapshot(self: ProductionLine) -> Any:
        found = right(self)
        for stream in found.position.next_source_seqs:
            found.position.next_source_seqs[stream] += 1
        return found

    return snapshot


def _installs_unverified(right: Method) -> Method:
    def install(self: ProductionLine, snapshot: ChannelSnapshot) -> None:
        right(self, replace(snapshot, digests=()))

    return install


def _sets_unverified(right: Method) -> Method:
    def set_buckets(self: ProductionLine, buckets: Buckets) -> None:
        self._converter.restore_buckets(buckets.data)
        self._restart_digests()

    return set_buckets


def _transmits_its_past_again(right: Method) -> Method:
    def apply(channel: Channel, *arguments: Any, **named: Any) -> None:
        channel.transmitted_ends.clear()
        right(channel, *arguments, **named)

    return apply


def _forgets_waiting_messages(right: Method) -> Method:
    def put_back(self: Channel) -> None:
        for stream, tracker in self.trackers.items():
            self.backlog.take_stream(stream)
            tracker.unanchor()

    return put_back


# ---- deciding ----


def _declares_immediately(right: Method) -> Method:
    def lost(self: SourceTracker, now_ns: int) -> tuple[int, int] | None:
        now_ns = 1 << 62 if self._gap_since_ns is not None else now_ns
        found: tuple[int, int] | None = right(self, now_ns)
        return found

    return lost


def _declares_in_any_epoch(right: Method) -> Method:
    def declare(self: Deciding, *arguments: Any) -> None:
        is_single, self.channel.is_single_source = self.channel.is_single_source, False
        right(self, *arguments)
        self.channel.is_single_source = is_single

    return declare


def _transmits_first(right: Method) -> Method:
    def publish(self: Channel, packets: Any) -> None:
        packets = list(packets)
        self.emit(*(Transmit(packet) for packet in packets), *(AppendToJournal(packet) for packet in packets))

    return publish


def _announces_the_end_early(right: Method) -> Method:
    def heartbeat(self: Channel, *arguments: Any) -> OutputPacket:
        packet: OutputPacket = right(self, *arguments)
        return packet._replace(flags=packet.flags | OutputFlag.END_OF_STREAM)

    return heartbeat


def _begins_immediately(right: Method) -> Method:
    return lambda self, *arguments, **named: None if self._offer is None else self._offer[0]


def _commits_one_too_few(right: Method) -> Method:
    def commit(self: ProductionLine, epoch: int) -> int:
        runs = tuple(self.provisional.runs) if self.provisional is not None else ()
        end = int(right(self, epoch))
        return runs[-1].first_input_seq if runs else end

    return commit


# ---- acked publishing ----


def _releases_one_more(right: Method) -> Callable[[PublishGate, int], None]:
    def on_acknowledged(self: PublishGate, end_input_seq: int) -> None:
        held_count = len(self._held)
        right(self, end_input_seq)
        if len(self._held) < held_count and self._held:
            self._channel.publish([self._held.popleft()[0]])

    return on_acknowledged


def _discards_held_packets(right: Method) -> Callable[[PublishGate], None]:
    return lambda self: self._held.clear()


# ---- source streams that several channels read ----


def _delivers_to_one_channel(right: Method) -> Method:
    def init(self: SessionReplicas, *arguments: Any) -> None:
        right(self, *arguments)
        self.readers = {stream: (converter, found[:1]) for stream, (converter, found) in self.readers.items()}

    return init


def _converts_by_one_table(right: Method) -> Method:
    def init(self: SessionReplicas, config: Any, converters: Any, *arguments: Any) -> None:
        owner: dict[int, int] = {}
        for channel in config.channels:
            for stream in channel.source_stream_ids:
                owner.setdefault(stream, channel.channel_id)
        shared = {each.channel_id: converters[owner[each.source_stream_ids[0]]] for each in config.channels}
        right(self, config, shared, *arguments)

    return init


REPLICA = (
    Mutant("a decision is applied twice", DecisionIntake, "_accept", _applies_twice),
    Mutant(
        "a run's message_seq is not checked against the position",
        DecisionIntake,
        "_accept",
        _believes_message_seqs,
        killer="tests.feedcore.replica.input.test_decision_intake:test_a_decision_at_a_different_message_seq_is_out_of_step",
    ),
    Mutant(
        "missed decisions are never requested",
        DecisionIntake,
        "is_request_due",
        always(False),
        scenario=Scenario.HAND_OVERS,
    ),
    Mutant("a backup makes decisions", Following, "on_slices", _decides_as_backup),
    Mutant("digests are not compared", Following, "compare", always(None), scenario=Scenario.DAMAGE),
    Mutant(
        "digests of different epochs are compared",
        Following,
        "compare",
        _compares_any_epochs,
        killer="tests.feedcore.replica.output.test_conversion_state_repair:test_positions_of_different_epochs_are_not_compared",
    ),
    Mutant(
        "a backup keeps numbering after the end of an epoch",
        Channel,
        "undecided_count",
        _ignores_the_end_of_an_epoch,
        killer="tests.feedcore.replica.roles.test_channels_of_one_source:test_at_the_end_of_an_epoch_a_backup_waits_for_the_first_decision_of_the_next",
    ),
    Mutant(
        "the flap damper never lets a backup return",
        FlapDamper,
        "may_return",
        _never_returns,
        scenario=Scenario.FLAPPING,
    ),
    Mutant(
        "a backup waits forever for the source messages of a decision",
        PositionedBackup,
        "is_stuck",
        always(False),
        scenario=Scenario.JOURNAL_GAPS,
    ),
    Mutant("the counter is not set with a snapshot", ProductionLine, "install", _keeps_its_counter),
    Mutant("a snapshot's position is one too far", ProductionLine, "snapshot", _saves_one_too_far),
    Mutant(
        "a snapshot is installed without verification",
        ProductionLine,
        "install",
        _installs_unverified,
        scenario=Scenario.DAMAGE,
    ),
    Mutant(
        "buckets are set without verification",
        ProductionLine,
        "set_buckets",
        _sets_unverified,
        killer="tests.feedcore.replica.output.test_conversion_state_repair:test_values_that_do_not_repair_the_state_lead_to_a_snapshot",
    ),
    Mutant(
        "a restarted adapter transmits its own past again",
        following,
        "apply_decisions",
        _transmits_its_past_again,
        scenario=Scenario.RESTARTS,
    ),
    Mutant(
        "an adapter that rejoins forgets source messages that wait for decisions",
        Channel,
        "_return_backlog",
        _forgets_waiting_messages,
        killer="tests.feedcore.replica.roles.test_joining_anew:test_a_rejoining_backup_that_is_granted_the_lease_decides_the_waiting_messages",
    ),
    Mutant("a source gap is declared immediately", SourceTracker, "lost", _declares_immediately),
    Mutant("a source gap is never declared", SourceTracker, "lost", always(None), scenario=Scenario.JOURNAL_GAPS),
    Mutant(
        "a loss is declared although a backup has the messages",
        Channel,
        "note_available",
        always(None),
        scenario=Scenario.JOURNAL_GAPS,
    ),
    Mutant(
        "a loss is declared in the middle of an epoch of a single-stream channel",
        Deciding,
        "_declare_lost",
        _declares_in_any_epoch,
        scenario=Scenario.JOURNAL_GAPS,
    ),
    Mutant("a packet is journaled after it is transmitted", Channel, "publish", _transmits_first),
    Mutant("the end of the stream is announced too early", Channel, "heartbeat", _announces_the_end_early),
    Mutant(
        "an heir starts without waiting for the end of the previous epoch",
        HandOver,
        "due_epoch",
        _begins_immediately,
        scenario=Scenario.HAND_OVERS,
    ),
    Mutant(
        "the last provisional packet is not committed",
        ProductionLine,
        "commit_provisional",
        _commits_one_too_few,
        scenario=Scenario.OUTAGES,
    ),
    Mutant(
        "acked: one packet too many is released",
        PublishGate,
        "on_acknowledged",
        _releases_one_more,
        scenario=Scenario.ACKED,
    ),
    Mutant(
        "acked: a snapshot includes messages that were not sent",
        Deciding,
        "is_holding",
        is_never,
        scenario=Scenario.ACKED,
    ),
    Mutant(
        "acked: packets held at the end of a term are discarded",
        PublishGate,
        "journal_unsent",
        _discards_held_packets,
        scenario=Scenario.ACKED,
    ),
    Mutant(
        "only the first channel that reads a source stream receives its packets",
        SessionReplicas,
        "__init__",
        _delivers_to_one_channel,
    ),
    Mutant(
        "channels that read the same source stream share a converter",
        SessionReplicas,
        "__init__",
        _converts_by_one_table,
    ),
)
