"""Notices every loss of a subscription: of one adapter's stream, by its packet counters; of all streams, by what replay
services had to supply; and what the merge declared missing. Pure.

History that a subscription requests when it begins is not a loss: only what follows the first live packet of a channel
was to be received.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tandemfeed.client_lib.login.grant import Grant
from tandemfeed.client_lib.losses.loss import Loss, LossCause, Outcome
from tandemfeed.client_lib.reading.lag import Dropped
from tandemfeed.feedcore.merge.effects import Gap, ProvisionalGap, SessionChanged, SourceGap
from tandemfeed.feedcore.range_set import RangeSet
from tandemfeed.feedcore.wire.output_packet import PROVISIONAL_BIT, RETRANSMISSION_BIT, OutputPacket
from tandemfeed.feedcore.wire.packet_series import PacketSeries
from tandemfeed.feedcore.wire.position import FIRST_SEQ

REORDERED_COUNT = 64  # packets of a stream after which a missing one does not come any more
MISSING_RANGES_MAX = 256  # of one stream; then the oldest count as lost
FOUND_MAX = 4_096  # losses that wait for the disk; the newest are joined with the last


@dataclass(slots=True)
class _Line:
    """The packets of one adapter start on one channel."""

    incarnation: int
    next_counter: int
    missing: RangeSet


class LossWatch:
    """For the loop's thread.

    Args:
        grant: returns the present grant, for names.
        clock_ns: the wall clock.

    Attributes:
        found: losses that are not in the report yet.
        is_behind: the application was slow a moment ago, so what is missing overflowed the receive queues.
    """

    def __init__(self, grant: Callable[[], Grant], clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.found: list[Loss] = []
        self.is_behind = False
        self._grant, self._clock_ns = grant, clock_ns
        self._lines: dict[tuple[int, int], _Line] = {}  # by channel and adapter
        self._live_from: dict[tuple[int, int], int] = {}  # by channel and session: first input_seq of its live packets
        self._sessions: dict[int, int] = {}  # by channel, if known: the one that is delivered now
        self._history_until: dict[int, int] = {}  # by channel: earlier sessions are history

    def note_history(self, channel_id: int, session: int, present: int) -> None:
        """A channel begins in a session that is over; sessions before the present one are not received live."""
        self._sessions[channel_id], self._history_until[channel_id] = session, present

    def on_packet(self, packet: OutputPacket, incarnation: int, counter: int) -> None:
        """A genuine packet arrived, of this start of its adapter and with this packet counter."""
        line = self._lines.get((packet.channel_id, packet.adapter_id))
        if line is not None and line.incarnation == incarnation and counter == line.next_counter:  # the hot path
            line.next_counter = counter + 1
            if line.missing:
                self._settle(packet.channel_id, packet.adapter_id, line)
            return
        place = packet.channel_id, packet.session
        if place not in self._live_from and not packet.flags & PROVISIONAL_BIT:
            self._live_from[place] = packet.first_input_seq
        if line is None or incarnation > line.incarnation:
            self._lines[packet.channel_id, packet.adapter_id] = _Line(incarnation, counter + 1, RangeSet())
        elif incarnation == line.incarnation and counter > line.next_counter:
            line.missing.add(line.next_counter, counter)
            line.next_counter = counter + 1
            self._settle(packet.channel_id, packet.adapter_id, line)
        elif incarnation == line.incarnation:
            line.missing.remove(counter, counter + 1)

    def on_delivered(self, packet: OutputPacket) -> None:
        """A replayed packet was delivered."""
        live_from = self._live_from.get((packet.channel_id, packet.session))
        bits = packet.flags & (RETRANSMISSION_BIT | PROVISIONAL_BIT)
        if bits == RETRANSMISSION_BIT and live_from is not None and packet.first_input_seq >= live_from:
            self._add_messages(packet, Outcome.REPLAYED)

    def on_series_delivered(self, series: PacketSeries) -> None:
        """Replayed packets that continue each other were delivered."""
        live_from = self._live_from.get((series.channel_id, series.session))
        if live_from is not None and series.end_input_seq > live_from:
            for packet in series.packets:
                self.on_delivered(packet)

    def on_filled(self, packet: OutputPacket) -> None:
        """Messages of a declared gap arrived."""
        self._add_messages(packet, Outcome.FILLED)

    def on_event(self, event: object) -> None:
        """The merge or the backlog reports something."""
        if isinstance(event, Gap):
            numbers = event.first_message_seq, event.end_message_seq, event.message_count
            self._add(event.channel_id, "messages", *numbers, Outcome.LOST, detail=event.reason.value)
        elif isinstance(event, Dropped):
            numbers = event.first_message_seq, event.end_message_seq, event.message_count
            cause, detail = LossCause.APPLICATION, "dropped by on_lag"
            self._add(event.channel_id, "messages", *numbers, Outcome.LOST, cause=cause, detail=detail)
        elif isinstance(event, SessionChanged):
            self._sessions[event.channel_id] = event.new_session
            if event.new_session > self._history_until.get(event.channel_id, 0):
                self._live_from.setdefault((event.channel_id, event.new_session), FIRST_SEQ)
        elif isinstance(event, SourceGap | ProvisionalGap):
            end = event.last_source_seq + 1
            is_source = isinstance(event, SourceGap)
            self._add(
                event.channel_id,
                "source messages",
                event.first_source_seq,
                end,
                end - event.first_source_seq,
                Outcome.LOST,
                cause=LossCause.SOURCE if is_source else None,
                source_stream_id=event.source_stream_id,
                detail="" if is_source else "no adapter had them",
            )

    def take(self) -> list[Loss]:
        """The losses found since the last call."""
        found, self.found = self.found, []
        return found

    # ---- inside ----

    def _settle(self, channel_id: int, adapter_id: int, line: _Line) -> None:
        """Report missing packets that cannot be on the way any more."""
        missing = line.missing
        while missing and (
            missing.first + REORDERED_COUNT <= line.next_counter or missing.range_count > MISSING_RANGES_MAX
        ):
            first, end = next(iter(missing))
            missing.remove(first, end)
            adapter = self._adapter_name(adapter_id)
            self._add(channel_id, "packets", first, end, end - first, Outcome.COVERED, adapter=adapter)

    def _add_messages(self, packet: OutputPacket, outcome: Outcome) -> None:
        if packet.message_count:
            numbers = packet.first_message_seq, packet.end_message_seq, packet.message_count
            adapter = self._adapter_name(packet.adapter_id)
            self._add(packet.channel_id, "messages", *numbers, outcome, adapter=adapter)

    def _adapter_name(self, adapter_id: int) -> str:
        adapter = self._grant().adapters.get(adapter_id)
        return str(adapter_id) if adapter is None else adapter.name

    def _add(
        self,
        channel_id: int,
        unit: str,
        first: int,
        end: int,
        count: int,
        outcome: Outcome,
        *,
        cause: LossCause | None = None,
        adapter: str = "",
        source_stream_id: int = 0,
        detail: str = "",
    ) -> None:
        grant, now_ns = self._grant(), self._clock_ns()
        loss = Loss(
            now_ns,
            now_ns,
            grant.feed_name,
            grant.topics_by_channel.get(channel_id, str(channel_id)),
            self._sessions.get(channel_id, grant.session),
            cause or (LossCause.APPLICATION if self.is_behind else LossCause.NETWORK),
            outcome,
            unit,
            first,
            end,
            count,
            1,
            adapter,
            source_stream_id,
            detail,
        )
        joined = self.found[-1].joined(loss) if self.found else None
        if joined is not None:
            self.found[-1] = joined
        elif len(self.found) < FOUND_MAX:
            self.found.append(loss)
