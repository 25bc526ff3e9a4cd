"""The production line of one channel: converts source messages in decided order and numbers what comes out.

Active and backup run the very same line; they differ only in who decides the order (`feedcore.replica`). It owns the
position (message stream state), the conversion state and the decision log, so that the three never drift apart.

Invariant: conversion state is the state after exactly the source messages before `next_source_seqs`; every
`message_seq` before `next_message_seq` has been decided; equal positions mean equal digests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feedcore.control_messages import encode_source_gap
from feedcore.converter import Converter
from feedcore.counters import Counter, CounterSet
from feedcore.decision_log import DecisionLog
from feedcore.output_packet import (
    OUTPUT_HEADER_SIZE,
    RUN,
    RUN_SIZE,
    SEAL_TAG_SIZE,
    OutputFlag,
    OutputPacket,
    encode_runs,
)
from feedcore.position import FIRST_SEQ, ChannelSnapshot, MessageStreamState, Run
from feedcore.source_tracker import Slice

DIGEST_INTERVAL_MESSAGES = 8_192  # a digest costs about 0.1 ms: at 100,000 messages a second, about 1 %
DIGESTS_KEPT = 8  # a backup may lag the active by this many intervals and still compare


class ConversionDiverged(Exception):
    """The converter made another number of messages than the active decided: this replica's state is not the same."""


@dataclass(frozen=True, slots=True)
class LineConfig:
    """What never changes about a channel at this adapter.

    Attributes:
        datagram_size_max: bytes of an output datagram, header and seal included.
    """

    feed_id: int
    channel_id: int
    adapter_id: int
    session: int
    source_stream_ids: tuple[int, ...]
    datagram_size_max: int


class ProductionLine:
    """Position, conversion state and output of one channel."""

    def __init__(self, config: LineConfig, converter: Converter, counters: CounterSet) -> None:
        self.epoch = 0
        self.epoch_first_message_seq = FIRST_SEQ
        self.next_message_seq = FIRST_SEQ
        self.next_source_seqs: dict[int, int] = dict.fromkeys(config.source_stream_ids, FIRST_SEQ)
        self.log = DecisionLog()
        self.digest_message_seq = 0
        self.digests_at: dict[int, tuple[int, ...]] = {}
        self._config = config
        self._converter = converter
        self._counters = counters
        self._payload_end = config.datagram_size_max - OUTPUT_HEADER_SIZE - SEAL_TAG_SIZE
        self._out = np.zeros(self._payload_end, dtype=np.uint8)
        self._out_view = self._out.data
        self._digest_due_at = DIGEST_INTERVAL_MESSAGES

    # ---- positions ----

    def position(self) -> MessageStreamState:
        """The message stream state now."""
        return MessageStreamState(self.epoch, self.next_message_seq, dict(self.next_source_seqs))

    def open_epoch(self, epoch: int, first_message_seq: int) -> None:
        """Decisions from here on belong to `epoch`, which begins at `first_message_seq`."""
        assert epoch > self.epoch, f"epoch {epoch} after {self.epoch}: epochs only grow"
        self.epoch = epoch
        self.epoch_first_message_seq = first_message_seq
        self.log.open_epoch(epoch, first_message_seq)

    def snapshot(self) -> ChannelSnapshot:
        """Conversion state at the present position."""
        return ChannelSnapshot(
            self._config.channel_id, self.position(), self.epoch_first_message_seq, self._converter.snapshot()
        )

    def install(self, snapshot: ChannelSnapshot) -> None:
        """Go on from another adapter's snapshot.

        Raises:
            ValueError: the conversion state is another table's; nothing has changed.
        """
        self._converter.restore(snapshot.conversion_state)
        self.epoch = snapshot.position.epoch
        self.epoch_first_message_seq = snapshot.epoch_first_message_seq
        self.next_message_seq = snapshot.position.next_message_seq
        self.next_source_seqs.update(snapshot.position.next_source_seqs)
        self.log.restart(self.position())
        self.log.open_epoch(self.epoch, self.epoch_first_message_seq)
        self.digests_at.clear()
        self.digest_message_seq = 0
        self._digest_due_at = _next_multiple(self.next_message_seq)
        self._counters.add(Counter.SNAPSHOTS_INSTALLED)

    # ---- deciding (active) ----

    def decide(self, piece: Slice) -> list[OutputPacket]:
        """Give the slice's messages the next sequence numbers; one run and one packet per datagram filled."""
        packets = []
        skip, left = piece.skip, piece.message_count
        while left:
            packet, consumed = self._convert(piece, skip, left, OutputFlag.FROM_ACTIVE)
            self._close_run(packet.runs[0])
            packets.append(packet)
            skip += consumed
            left -= consumed
        self._counters.add(Counter.RUNS_DECIDED, len(packets))
        return packets

    def decide_gap(self, source_stream_id: int, source_count: int) -> OutputPacket:
        """Declare the next source messages of a stream lost: one run, one gap marker message."""
        run = Run(
            self.epoch,
            self.next_message_seq,
            source_stream_id,
            self.next_source_seqs[source_stream_id],
            source_count,
            1,
            is_source_gap=True,
        )
        self._counters.add(Counter.RUNS_DECIDED)
        return self.follow_gap(run, OutputFlag.FROM_ACTIVE)

    # ---- following (backup) ----

    def follow(self, run: Run, pieces: list[Slice], epoch_first_message_seq: int) -> list[OutputPacket]:
        """Apply a decided run; `pieces` hold exactly its source messages.

        Raises:
            ConversionDiverged: nothing was transmitted; this replica must join anew.
        """
        assert run.first_message_seq == self.next_message_seq
        assert run.first_source_seq == self.next_source_seqs[run.source_stream_id]
        self._enter(run, epoch_first_message_seq)
        packets = []
        for piece in pieces:
            skip, left = piece.skip, piece.message_count
            while left:
                packet, consumed = self._convert(piece, skip, left, OutputFlag.NONE)
                packets.append(packet)
                skip += consumed
                left -= consumed
        if self.next_message_seq != run.end_message_seq:
            raise ConversionDiverged(
                f"source stream {run.source_stream_id}, source_seq {run.first_source_seq} to {run.end_source_seq - 1}: "
                f"the active made {run.message_count} messages, this adapter "
                f"{self.next_message_seq - run.first_message_seq}"
            )
        self._close_run(run)
        self._counters.add(Counter.RUNS_FOLLOWED)
        return packets

    def follow_gap(self, run: Run, flags: int = OutputFlag.NONE, epoch_first: int | None = None) -> OutputPacket:
        """Skip source messages that the active declared lost, even if they are here."""
        assert run.is_source_gap
        assert run.message_count == 1
        self._enter(run, self.epoch_first_message_seq if epoch_first is None else epoch_first)
        self.next_message_seq = run.end_message_seq
        self.next_source_seqs[run.source_stream_id] = run.end_source_seq
        self._close_run(run)
        payload = encode_runs((run,)) + encode_source_gap(run)
        return self._packet((run,), 1, run.first_message_seq, 0, payload, flags)

    def heartbeat(self, flags: int) -> OutputPacket:
        """The next `message_seq`, so that the loss of the last message is seen."""
        return self._packet((), 0, self.next_message_seq, 0, b"", flags | OutputFlag.HEARTBEAT)

    # ---- inside ----

    def _enter(self, run: Run, epoch_first_message_seq: int) -> None:
        if run.epoch != self.epoch:
            self.open_epoch(run.epoch, epoch_first_message_seq)

    def _convert(self, piece: Slice, skip: int, left: int, flags: int) -> tuple[OutputPacket, int]:
        """One output packet from the front of what is left of a slice."""
        source = piece.packet
        consumed, count, end = self._converter.convert(
            source.datagram, skip, left, self._out, RUN_SIZE, self._payload_end
        )
        assert consumed > 0, "a converted message is larger than a datagram: the table's loader must refuse that"
        stream = source.source_stream_id
        first_source = source.first_source_seq + skip
        first_message = self.next_message_seq
        RUN.pack_into(self._out_view, 0, stream, consumed, count, 0, first_source)
        run = Run(self.epoch, first_message, stream, first_source, consumed, count)
        self.next_message_seq = first_message + count
        self.next_source_seqs[stream] = first_source + consumed
        payload = bytes(self._out_view[:end])
        return self._packet((run,), count, first_message, source.sent_at_ns, payload, flags), consumed

    def _packet(
        self, runs: tuple[Run, ...], count: int, first: int, source_sent_at_ns: int, payload: bytes, flags: int
    ) -> OutputPacket:
        config = self._config
        self._counters.counts[Counter.PACKETS_OUT] += 1
        self._counters.counts[Counter.MESSAGES_OUT] += count
        return OutputPacket(
            flags,
            config.feed_id,
            config.channel_id,
            config.adapter_id,
            config.session,
            self.epoch,
            first,
            self.epoch_first_message_seq,
            count,
            runs,
            source_sent_at_ns,
            0,
            payload,
        )

    def _close_run(self, run: Run) -> None:
        """A decided run is complete: remember it, and take the digest where one is due.

        Both sides close the same runs, so both take digests at the same positions.
        """
        self.log.append(run)
        if self.next_message_seq >= self._digest_due_at:
            self._digest_due_at = _next_multiple(self.next_message_seq)
            self.digest_message_seq = self.next_message_seq
            self.digests_at[self.next_message_seq] = tuple(self._converter.digests().tolist())
            while len(self.digests_at) > DIGESTS_KEPT:
                del self.digests_at[next(iter(self.digests_at))]


def _next_multiple(message_seq: int) -> int:
    return (message_seq // DIGEST_INTERVAL_MESSAGES + 1) * DIGEST_INTERVAL_MESSAGES
