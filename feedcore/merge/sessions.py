"""The client's merge of one channel over changes of session: merges the sessions separately and in order.

In each session all numbers begin at 1, so each session has its own `StreamMerger`. Packets of a later session are held
until the present one is settled: the active reported its end and all of it was delivered, or the grace has passed and
nothing of it is missing (docs/protocol.md clause 10).

Invariant: after `SessionChanged` nothing of the old session is delivered.
"""

from __future__ import annotations

from collections import deque

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.deadlines import earliest
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import MergeEffect, RequestReplay, SessionChanged
from tandemfeed.feedcore.merge.merger import StreamMerger
from tandemfeed.feedcore.merge.place import ResumePoint
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tandemfeed.feedcore.wire.packet_series import PacketSeries
from tandemfeed.feedcore.wire.position import FIRST_SEQ
from tandemfeed.feedcore.wire.refusal import Refusal


class SessionMerger:
    """One channel's merge.

    Args:
        channel_id, counters, config, start_message_seq: as for `StreamMerger`, for the first session; later sessions
            are delivered from their first message.
        session: the session to begin with, from the admin server's description of the feed.
        resume: where an earlier merge of this session ended.
        is_over: the session is not the feed's present one. Its rest is requested until no adapter has more.

    Attributes:
        session: the present session.
        present: its merge.
    """

    def __init__(
        self,
        channel_id: int,
        session: int,
        counters: CounterSet,
        config: MergerConfig | None = None,
        start_message_seq: int | None = None,
        resume: ResumePoint | None = None,
        *,
        is_over: bool = False,
    ) -> None:
        self.channel_id, self.session = channel_id, session
        self._counters, self._config = counters, config or MergerConfig()
        self.present = StreamMerger(channel_id, counters, self._config, start_message_seq, session, resume)
        self._rest = RestOfSession(self._config) if is_over else None
        self._has_rest = False  # of a session that is over
        self._held: deque[OutputPacket] = deque()  # of later sessions, in order of arrival
        self._settles_at_ns: int | None = None  # when to leave a session of which no adapter reports the end

    # ---- events ----

    def on_packet(self, packet: OutputPacket, now_ns: int) -> list[MergeEffect]:
        """Take an opened packet of any adapter's stream, or a replayed one."""
        if packet.session == self.session:
            return self._change_session_if_due(self.present.on_packet(packet, now_ns), now_ns)
        if packet.session < self.session:
            self._counters.refuse(Refusal.WRONG_SESSION)
            return []
        if self._settles_at_ns is None:
            self._settles_at_ns = now_ns + self._config.session_grace_ns
        self.present.note_moved_on(packet.adapter_id)
        if len(self._held) < self._config.held_count_max:
            self._held.append(packet)  # further packets are dropped, and requested once their session has begun
            self._counters.add(Counter.MERGE_HELD)
        return self._change_session_if_due([], now_ns)

    def on_series(self, series: PacketSeries, now_ns: int) -> list[MergeEffect]:
        """Take replayed packets that continue each other."""
        if series.session == self.session:
            return self._change_session_if_due(self.present.on_series(series, now_ns), now_ns)
        effects: list[MergeEffect] = []
        for packet in series.packets:
            effects += self.on_packet(packet, now_ns)
        return effects

    def on_timer(self, now_ns: int, jitter: float = 0.0) -> list[MergeEffect]:
        """Do what is due; `jitter` in [0, 1) spreads requests."""
        effects = self.present.on_timer(now_ns, jitter)
        if self._rest is not None and self._rest.is_due(now_ns):
            effects.append(self._rest.request(self.present, self.channel_id, self.session, now_ns))
        return self._change_session_if_due(effects, now_ns)

    def on_replay_ended(self, request: RequestReplay, now_ns: int, *, is_answered: bool) -> None:
        """The answer to a request has been passed in. Args: is_answered: at least one adapter answered."""
        rest = self._rest
        if rest is not None and request is rest.requested and is_answered and rest.is_complete(self.present, now_ns):
            self._rest, self._has_rest = None, True
        self.present.on_replay_ended(now_ns)

    def next_deadline_ns(self) -> int | None:
        """When to call `on_timer` next."""
        own = self._settles_at_ns if self._rest is None else self._rest.request_at_ns
        return earliest(self.present.next_deadline_ns(), own)

    # ---- inside ----

    def _change_session_if_due(self, effects: list[MergeEffect], now_ns: int) -> list[MergeEffect]:
        """Begin the next session if the present one is settled."""
        while self._settles_at_ns is not None and self._is_settled(now_ns):
            old, is_complete = self.session, self._is_at_end
            self.session = min(packet.session for packet in self._held)
            effects.append(SessionChanged(self.channel_id, old, self.session, is_complete))
            self.present = StreamMerger(self.channel_id, self._counters, self._config, FIRST_SEQ, self.session)
            self._has_rest = False
            waiting, self._held = self._held, deque()
            self._settles_at_ns = None
            for packet in waiting:  # those of still later sessions are held again
                effects += self.on_packet(packet, now_ns)
        return effects

    @property
    def _is_at_end(self) -> bool:
        return (self.present.has_ended or self._has_rest) and not self.present.has_missing_messages

    def _is_settled(self, now_ns: int) -> bool:
        merger = self.present
        if self._rest is not None:
            return False
        if self._is_at_end or merger.next_message_seq is None:
            return True  # all of it was delivered, or a live client has heard nothing of it
        assert self._settles_at_ns is not None
        if now_ns < self._settles_at_ns:
            return False
        if not merger.has_missing_messages:
            return True
        self._settles_at_ns = now_ns + self._config.session_look_ns  # missing messages are requested or declared first
        return False


class RestOfSession:
    """Requests what follows in a session that is over, of which no adapter sends heartbeats any more.

    Attributes:
        request_at_ns: when to request next.
        requested: the newest request.
    """

    def __init__(self, config: MergerConfig) -> None:
        self.request_at_ns = 0
        self.requested: RequestReplay | None = None
        self._config = config

    def is_due(self, now_ns: int) -> bool:
        """Whether to request now."""
        return now_ns >= self.request_at_ns

    def request(self, merger: StreamMerger, channel_id: int, session: int, now_ns: int) -> RequestReplay:
        """The request for the next part."""
        self.request_at_ns = now_ns + self._config.retry_every_max_ns
        first = merger.next_input_seq or FIRST_SEQ
        part = (first, first + self._config.request_count_max)
        self.requested = RequestReplay(channel_id, (part,), session=session)
        return self.requested

    def is_complete(self, merger: StreamMerger, now_ns: int) -> bool:
        """After an answer: True if it had nothing new, else the next part is due."""
        self.request_at_ns = now_ns
        assert self.requested is not None
        return (merger.next_input_seq or FIRST_SEQ) == self.requested.input_ranges[0][0]
