"""The production line of one channel: converts source messages in decided order, and numbers the output.

Active and backup run the same line; they differ only in who decides the order (`feedcore.replica.replica`). The line
owns the position (message stream state), the conversion state and the decision log, so that the three stay consistent.

Invariant: the conversion state is the state after exactly the source messages before `next_input_seq`, all of them
decided. Equal positions mean equal digests.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.replica.channel_state import Buckets, ChannelSnapshot, DigestPoint
from tandemfeed.feedcore.replica.config import ChannelConfig, EngineConfig
from tandemfeed.feedcore.replica.input.decision_log import DecisionLog
from tandemfeed.feedcore.replica.input.source_tracker import Slice
from tandemfeed.feedcore.replica.output.converter import Converter
from tandemfeed.feedcore.replica.output.provisional import Provisional
from tandemfeed.feedcore.wire.control_messages import encode_source_gap
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.output_packet import (
    OUTPUT_HEADER_SIZE,
    RUN,
    RUN_SIZE,
    SEALING_SIZE,
    OutputFlag,
    OutputPacket,
    encode_runs,
)
from tandemfeed.feedcore.wire.position import FIRST_SEQ, MessageStreamState, Run

_new_tuple = tuple.__new__  # a named tuple's own constructor takes three times as long, and this runs for every packet
DIGESTS_KEPT = 8  # a backup that lags the active by this many intervals can still compare


class ConversionDiverged(Exception):
    """This replica's conversion differs from the active's decision, so their conversion states differ."""


class SnapshotRefused(Exception):
    """A snapshot's conversion state does not match its digests."""


class ProductionLine:
    """Position, conversion state and output of one channel, in the session `config.session`."""

    def __init__(
        self, config: EngineConfig, channel: ChannelConfig, converter: Converter, counters: CounterSet
    ) -> None:
        self.session = config.session
        self.lineage = Lineage()
        self.next_input_seq = FIRST_SEQ
        self.next_message_seq = FIRST_SEQ
        self.next_source_seqs: dict[int, int] = dict.fromkeys(channel.source_stream_ids, FIRST_SEQ)
        self.log = DecisionLog()
        self.provisional: Provisional | None = None  # what was sent before any decision
        self.digest = DigestPoint()  # the newest
        self.digests_at: dict[int, DigestPoint] = {}  # the newest ones, by input_seq
        self._channel_id = channel.channel_id
        self._converter = converter
        self._counters = counters
        self._digest_interval = config.replica.digest_interval_messages
        self._sender = config.feed_id, channel.channel_id, config.adapter_id, config.session  # in every packet's header
        self._payload_end = config.datagram_size_max - OUTPUT_HEADER_SIZE - SEALING_SIZE
        self._out = np.zeros(self._payload_end, dtype=np.uint8)
        self._out_view = self._out.data

    @property
    def epoch(self) -> int:
        """The epoch of the last decision applied."""
        return self.lineage.epoch

    def position(self) -> MessageStreamState:
        """The current message stream state."""
        return MessageStreamState(self.epoch, self.next_input_seq, self.next_message_seq, dict(self.next_source_seqs))

    def open_epoch(self, epoch: int) -> None:
        """Begin `epoch`: the next decisions belong to it."""
        if epoch <= self.epoch:  # the lease store lost its state and restarts its epochs, so restart the history
            self.lineage = Lineage()
        self.lineage = self.lineage.opened(epoch, self.next_input_seq, self.next_message_seq)

    def snapshot(self) -> ChannelSnapshot:
        """The conversion state at the current position."""
        assert self.provisional is None, "the conversion state is ahead of the position"
        state = self._converter.snapshot()
        return ChannelSnapshot(self._channel_id, self.position(), self.lineage, state, self.digests(), self.session)

    def buckets(self, chosen: tuple[int, ...]) -> Buckets:
        """Some buckets of the conversion state at the current position."""
        return Buckets(self.position(), self._converter.snapshot_buckets(chosen), self.digests(), self.session)

    def digests(self) -> tuple[int, ...]:
        """The digests of the current conversion state, one per bucket."""
        return tuple(self._converter.digests().tolist())

    def install(self, snapshot: ChannelSnapshot) -> None:
        """Continue from a snapshot, taken by another adapter or saved by this one.

        Raises:
            ValueError: the conversion state is of another table; nothing has changed.
            SnapshotRefused: the conversion state does not match its digests; nothing has changed.
        """
        before = self._converter.snapshot() if snapshot.digests else b""
        self._converter.restore(snapshot.conversion_state)
        if snapshot.digests and self.digests() != snapshot.digests:
            self._converter.restore(before)
            raise SnapshotRefused(f"the snapshot at input_seq {snapshot.position.next_input_seq} is damaged")
        self.lineage = snapshot.lineage
        self.next_input_seq = snapshot.position.next_input_seq
        self.next_message_seq = snapshot.position.next_message_seq
        self.next_source_seqs.update(snapshot.position.next_source_seqs)
        self.provisional = None
        self.log.restart(self.next_input_seq)
        self._restart_digests()
        self._counters.add(Counter.SNAPSHOTS_INSTALLED)

    def set_buckets(self, buckets: Buckets) -> None:
        """Take the active's values for some buckets, at their position.

        Raises:
            ConversionDiverged: the state still differs from the active's.
        """
        assert buckets.position.next_input_seq == self.next_input_seq
        try:
            self._converter.restore_buckets(buckets.data)
        except ValueError as mismatch:
            raise ConversionDiverged(f"the active's buckets do not fit: {mismatch}") from mismatch
        self._restart_digests()
        if self.digests() != buckets.digests:
            raise ConversionDiverged("the conversion state differs from the active's even after setting the buckets")
        self._counters.add(Counter.BUCKETS_SET)

    # ---- deciding and following ----

    def decide(self, piece: Slice, flags: int = OutputFlag.FROM_ACTIVE) -> list[OutputPacket]:
        """Give the slice's messages the next sequence numbers. Each datagram filled makes one run and one packet."""
        packets = []
        for packet in self._convert(piece, flags, self.next_input_seq, self.next_message_seq):
            self._close_run(packet.runs[0])  # before the next packet is converted, because a digest may be due here
            packets.append(packet)
        self._counters.counts[Counter.RUNS_DECIDED if flags else Counter.RUNS_FOLLOWED] += len(packets)
        return packets

    def decide_gap(self, source_stream_id: int, source_count: int) -> OutputPacket:
        """Declare the next source messages of a stream lost, by one run with one gap marker message."""
        first_input, first_message = self.next_input_seq, self.next_message_seq
        first_source = self.next_source_seqs[source_stream_id]
        run = Run(
            self.epoch, first_input, first_message, source_stream_id, first_source, source_count, 1, is_source_gap=True
        )
        self._counters.add(Counter.RUNS_DECIDED)
        return self.follow_gap(run, OutputFlag.FROM_ACTIVE, self.lineage)

    def follow(self, run: Run, pieces: list[Slice], lineage: Lineage) -> list[OutputPacket]:
        """Apply a decided run.

        Args:
            pieces: exactly its source messages, without those that were converted provisionally.
            lineage: a history that contains the run's epoch.

        Raises:
            ConversionDiverged: nothing was transmitted; this replica must rejoin.
        """
        assert run.first_input_seq == self.next_input_seq
        assert run.first_message_seq == self.next_message_seq
        assert run.first_source_seq == self.next_source_seqs[run.source_stream_id]
        self._enter(run, lineage)
        packets: list[OutputPacket] = []
        source_count = sum(piece.message_count for piece in pieces)
        input_seq, message_seq = run.end_input_seq - source_count, run.first_message_seq
        for piece in pieces:
            for packet in self._convert(piece, OutputFlag.NONE, input_seq, message_seq):
                packets.append(packet)
                message_seq += packet.message_count
            input_seq += piece.message_count
        sent_before = run.end_message_seq - message_seq
        if sent_before < 0 or (sent_before and source_count == run.source_count):
            raise ConversionDiverged(
                f"source stream {run.source_stream_id}, source_seq {run.first_source_seq} to {run.end_source_seq - 1}: "
                f"the active made {run.message_count} messages, this adapter {message_seq - run.first_message_seq}"
            )
        if sent_before:  # the run's first messages were already sent; these take its last numbers
            packets = [_shifted(packet, sent_before) for packet in packets]
        if self.provisional is not None:
            self.provisional.note_decided(run)
        self._close_run(run)
        self._counters.add(Counter.RUNS_FOLLOWED)
        return packets

    def follow_gap(self, run: Run, flags: int, lineage: Lineage) -> OutputPacket:
        """Skip source messages that the active declared lost, even if this adapter has them."""
        assert run.is_source_gap
        assert run.message_count == 1
        if self.provisional is not None:
            if self.provisional.unconverted_from(run) != run.first_source_seq:
                raise ConversionDiverged(f"{run} declares lost source messages that were converted and sent here")
            self.provisional.note_decided(run)
        self._enter(run, lineage)
        self._close_run(run)
        return self._packet((run,), encode_runs((run,)) + encode_source_gap(run), flags)

    # ---- before any decision ----

    def forward(self, piece: Slice) -> list[OutputPacket]:
        """Convert a slice and number its messages provisionally; the decided position does not change."""
        if self.provisional is None:
            self.provisional = Provisional(self.position())
        ahead = self.provisional
        packets = list(self._convert(piece, OutputFlag.PROVISIONAL, ahead.next_input_seq, ahead.next_message_seq))
        for packet in packets:
            ahead.note(packet.runs[0])
        self._counters.add(Counter.PACKETS_PROVISIONAL, len(packets))
        return packets

    def commit_provisional(self, epoch: int) -> int:
        """Open an epoch that begins with what was sent provisionally. Returns the `input_seq` after that."""
        self.open_epoch(epoch)
        provisional, self.provisional = self.provisional, None
        if provisional is None:
            return self.next_input_seq
        if provisional.runs and provisional.runs[0].first_input_seq > self.next_input_seq:  # the oldest were forgotten
            self.log.restart(provisional.runs[0].first_input_seq)
        for run in provisional.runs:
            self.log.append(run._replace(epoch=epoch))
        self.next_input_seq = provisional.next_input_seq
        self.next_message_seq = provisional.next_message_seq
        self.next_source_seqs.update(provisional.ends)
        self._restart_digests()
        return self.next_input_seq

    def heartbeat(self, flags: int, released: tuple[int, int] | None = None) -> OutputPacket:
        """A heartbeat with the next numbers, so that the loss of the last message is noticed, and their history.
        `released`: the next `input_seq` and `message_seq` to leave, if decided packets wait."""
        packet = self._packet((), self.lineage.encode(self._payload_end), flags | OutputFlag.HEARTBEAT)
        if released is None:
            return packet
        return packet._replace(first_input_seq=released[0], first_message_seq=released[1])

    def _enter(self, run: Run, lineage: Lineage) -> None:
        if run.epoch != self.lineage.epoch:
            self.lineage = lineage.up_to(run.epoch)
            assert self.lineage.epoch == run.epoch

    def _convert(self, piece: Slice, flags: int, input_seq: int, message_seq: int) -> Iterator[OutputPacket]:
        """The output packets of a slice, with one run each, numbered from `input_seq` and `message_seq` on."""
        source, skip, left, _ = piece
        stream, first_of_packet, _, _, _, sent_at_ns, datagram = source
        epoch, out, out_view, payload_end = self.lineage.epoch, self._out, self._out_view, self._payload_end
        packet_count, message_count = 0, 0
        while left:
            consumed, count, end = self._converter.convert(datagram, skip, left, out, RUN_SIZE, payload_end)
            assert consumed > 0, "a converted message is larger than a datagram; the table's loader must refuse it"
            first_source = first_of_packet + skip
            RUN.pack_into(out_view, 0, stream, consumed, count, 0, first_source)
            run = _new_tuple(Run, (epoch, input_seq, message_seq, stream, first_source, consumed, count, False))
            payload = bytes(out_view[:end])
            fields = (flags, *self._sender, epoch, input_seq, message_seq, count, (run,), sent_at_ns, 0, payload)
            yield _new_tuple(OutputPacket, fields)
            skip += consumed
            left -= consumed
            input_seq += consumed
            message_seq += count
            packet_count += 1
            message_count += count
        self._count_out(packet_count, message_count)

    def _packet(self, runs: tuple[Run, ...], payload: bytes, flags: int) -> OutputPacket:
        """A packet without converted messages. With one run or none: then its numbers are the next ones."""
        epoch, first_input, first_message, count = self.lineage.epoch, self.next_input_seq, self.next_message_seq, 0
        if runs:
            epoch, first_input, first_message, _, _, _, count, _ = runs[0]
        self._count_out(1, count)
        return OutputPacket(flags, *self._sender, epoch, first_input, first_message, count, runs, 0, 0, payload)

    def _count_out(self, packet_count: int, message_count: int) -> None:
        counts = self._counters.counts
        counts[Counter.PACKETS_OUT] += packet_count
        counts[Counter.MESSAGES_OUT] += message_count

    def _close_run(self, run: Run) -> None:
        """Complete a decided run: move the position, and take a digest if it reached a multiple of the interval. Active
        and backup close the same runs, so they take digests at the same positions."""
        epoch, first_input, first_message, stream, first_source, source_count, message_count, _ = run
        self.next_input_seq = end_input = first_input + source_count
        self.next_message_seq = first_message + message_count
        self.next_source_seqs[stream] = first_source + source_count
        self.log.append(run)
        if self.provisional is not None:
            if self.provisional.is_past(self.next_source_seqs):
                self.provisional = None  # the decisions cover all that was sent ahead
                self._restart_digests()
        elif end_input // self._digest_interval > first_input // self._digest_interval:
            self.digest = DigestPoint(epoch, end_input, self.digests())
            self.digests_at[end_input] = self.digest
            if len(self.digests_at) > DIGESTS_KEPT:
                del self.digests_at[next(iter(self.digests_at))]

    def _restart_digests(self) -> None:
        """Forget the digests, because the conversion state was replaced."""
        self.digests_at.clear()
        self.digest = DigestPoint()


def _shifted(packet: OutputPacket, shift: int) -> OutputPacket:
    runs = tuple(run._replace(first_message_seq=run.first_message_seq + shift) for run in packet.runs)
    return packet._replace(first_message_seq=packet.first_message_seq + shift, runs=runs)
