"""How far a channel's accepted packets reach, or its signed ones: which packet continues them without a jump. Pure."""

from __future__ import annotations

from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tandemfeed.feedcore.wire.packet_series import PacketSeries

UNSIGNED_MESSAGES_MAX = 16_384  # accepted beyond the last signed one: 16 ms at a million messages a second


class Horizon:
    """The end of the accepted packets, or of the signed ones, over all adapters of a channel, in the newest session."""

    __slots__ = ("_end_input_seq", "_end_message_seq", "_end_source_seqs", "_epoch", "_session")

    def __init__(self) -> None:
        self._session = 0
        self._epoch = 0
        self._end_input_seq = 0
        self._end_message_seq = 0
        self._end_source_seqs: dict[int, int] = {}

    def is_continued_by(self, packet: OutputPacket) -> bool:
        """True if the packet begins at or before the end, so that it skips no sequence number."""
        if packet.session != self._session or packet.epoch > self._epoch:
            return False
        if packet.first_input_seq > self._end_input_seq:
            return False
        if packet.first_message_seq > self._end_message_seq:
            return False
        for run in packet.runs:  # noqa: SIM110  a generator takes twice as long, and every packet comes here
            if run.first_source_seq > self._end_source_seqs.get(run.source_stream_id, 0):
                return False
        return True

    def is_near(self, packet: OutputPacket) -> bool:
        """True if the packet ends at most UNSIGNED_MESSAGES_MAX source or application messages beyond the end."""
        if packet.end_message_seq > self._end_message_seq + UNSIGNED_MESSAGES_MAX:
            return False
        if packet.end_input_seq > self._end_input_seq + UNSIGNED_MESSAGES_MAX:
            return False
        for run in packet.runs:
            known = self._end_source_seqs.get(run.source_stream_id, 0)
            if run.first_source_seq + run.source_count > known + UNSIGNED_MESSAGES_MAX:
                return False
        return True

    def extend(self, packet: OutputPacket) -> None:
        """Move the end to that of a packet. In a new session, all sequence numbers begin at 1."""
        if packet.session != self._session and not self._begin(packet.session):
            return
        end_input_seq = packet.first_input_seq
        ends = self._end_source_seqs
        for run in packet.runs:  # without properties, because every packet comes here twice
            end_input_seq += run.source_count
            end_source_seq = run.first_source_seq + run.source_count
            if end_source_seq > ends.get(run.source_stream_id, 0):
                ends[run.source_stream_id] = end_source_seq
        end_message_seq = packet.first_message_seq + packet.message_count
        if packet.epoch > self._epoch:
            self._epoch = packet.epoch
        if end_input_seq > self._end_input_seq:
            self._end_input_seq = end_input_seq
        if end_message_seq > self._end_message_seq:
            self._end_message_seq = end_message_seq

    def extend_by(self, series: PacketSeries) -> None:
        """Move the end to that of packets that continue each other."""
        if series.session != self._session and not self._begin(series.session):
            return
        self._epoch = max(self._epoch, series.epoch)
        self._end_input_seq = max(self._end_input_seq, series.end_input_seq)
        self._end_message_seq = max(self._end_message_seq, series.end_message_seq)
        for stream, end_source_seq in series.end_source_seqs.items():
            self._end_source_seqs[stream] = max(end_source_seq, self._end_source_seqs.get(stream, 0))

    def _begin(self, session: int) -> bool:
        """Begin a newer session; False: it is an older one."""
        if session < self._session:
            return False
        self._session = session
        self._end_input_seq, self._end_message_seq, self._end_source_seqs = 0, 0, {}
        return True
