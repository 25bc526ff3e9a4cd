"""The client's merge of one channel over changes of session: merges the sessions separately and in order.

In each session all numbers begin at 1, so each session has its own `StreamMerger`. Packets of a later session are held
until the present one is settled: the active reported its end and all of it was delivered, or the grace has passed and
nothing of it is missing (docs/protocol.md clause 10).

A merge may begin in a former session, of which no adapter sends anything any more, and continues through those between.
Its adapters' last heartbeats tell of a former session what heartbeats tell of the present one: its history and its end.
Everything else comes from replay services.

Invariant: after `SessionChanged` nothing of the old session is delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.deadlines import earliest
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import MergeEffect, RequestReplay, SessionChanged
from tandemfeed.feedcore.merge.history.place import ResumePoint
from tandemfeed.feedcore.merge.merger import StreamMerger
from tandemfeed.feedcore.wire.output_packet import RETRANSMISSION_BIT, OutputPacket
from tandemfeed.feedcore.wire.packet_series import PacketSeries
from tandemfeed.feedcore.wire.position import FIRST_SEQ
from tandemfeed.feedcore.wire.refusal import Refusal


class FormerSession(NamedTuple):
    """A session that is over, and what is delivered of it.

    Attributes:
        point: where to begin.
        heartbeats: the last ones of adapters, the newest epoch first. END_OF_STREAM: the adapter applied all of the
            session. Without any, the session is requested until no adapter has more of it.
    """

    session: int
    point: ResumePoint
    heartbeats: tuple[OutputPacket, ...] = ()


class SessionMerger:
    """One channel's merge.

    Args:
        channel_id, counters, config, start_message_seq: as for `StreamMerger`, for the present session; sessions after
            it are delivered from their first message.
        session: the feed's present session, from the admin server's description of the feed.
        resume: where an earlier merge of this session ended.
        former: sessions before it to deliver first, ascending. The present one then begins with its first message.

    Attributes:
        session: the session that is delivered now.
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
        former: Sequence[FormerSession] = (),
    ) -> None:
        assert all(each.session < session for each in former)
        self.channel_id, self.session = channel_id, session
        self._counters, self._config = counters, config or MergerConfig()
        self.present = StreamMerger(channel_id, counters, self._config, start_message_seq, session, resume)
        self._live_from = session  # earlier sessions are over
        self._former = deque(former)
        self._heartbeats: tuple[OutputPacket, ...] = ()  # of a session that is over, not passed to its merge yet
        self._rest: RestOfSession | None = None  # of a session that is over, as long as its end is not known
        self._has_rest = False
        self._held: deque[OutputPacket] = deque()  # of later sessions, in order of arrival
        self._settles_at_ns: int | None = None  # when to leave a session of which no adapter reports the end
        if former:
            self._begin_former()

    @property
    def is_in_former_session(self) -> bool:
        """True while a session is delivered that was over when the merge began."""
        return self.session < self._live_from

    # ---- events ----

    def on_packet(self, packet: OutputPacket, now_ns: int) -> list[MergeEffect]:
        """Take an opened packet of any adapter's stream, or a replayed one."""
        if packet.session == self.session:
            if packet.session < self._live_from:  # final heartbeats, once a second: not a stream that can fall silent
                packet = packet._replace(flags=packet.flags | RETRANSMISSION_BIT)
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
        effects = self._take_heartbeats(now_ns)
        effects += self.present.on_timer(now_ns, jitter)
        if self._rest is not None and self._rest.is_due(self.present, now_ns):
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
        own = self._settles_at_ns
        if self._has_rest and self._is_at_end:
            own = 0  # immediately
        elif self._rest is not None:
            own = self._rest.next_deadline_ns(self.present)
        return earliest(self.present.next_deadline_ns(), own)

    # ---- inside ----

    def _begin_former(self) -> None:
        """Begin the next session that is over."""
        former = self._former.popleft()
        self.session, self._heartbeats = former.session, former.heartbeats
        start_message_seq = former.point.place.message_seq
        self.present = StreamMerger(
            self.channel_id, self._counters, self._config, start_message_seq, former.session, former.point
        )
        self._rest = RestOfSession(self._config)

    def _take_heartbeats(self, now_ns: int) -> list[MergeEffect]:
        """Pass the last heartbeats of a session that is over to its merge. If one gives the end, the merge requests
        what is missing before it, as always."""
        effects: list[MergeEffect] = []
        heartbeats, self._heartbeats = self._heartbeats, ()
        for each in heartbeats:
            effects += self.present.on_packet(each._replace(flags=each.flags | RETRANSMISSION_BIT), now_ns)
        if self.present.knows_end:
            self._rest = None
        return effects

    def _change_session_if_due(self, effects: list[MergeEffect], now_ns: int) -> list[MergeEffect]:
        """Begin the next session if the present one is settled."""
        while (self._settles_at_ns is not None or self.session < self._live_from) and self._is_settled(now_ns):
            old, is_complete = self.session, self.present.has_ended
            self._rest, self._has_rest = None, False
            if self._former:
                self._begin_former()
            else:
                new = self._live_from if self.is_in_former_session else min(each.session for each in self._held)
                self.session = new
                self.present = StreamMerger(self.channel_id, self._counters, self._config, FIRST_SEQ, new)
            effects.append(SessionChanged(self.channel_id, old, self.session, is_complete))
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
        if self._settles_at_ns is None or now_ns < self._settles_at_ns:
            return False
        if not merger.has_missing_messages:
            return True
        self._settles_at_ns = now_ns + self._config.session_look_ns  # missing messages are requested or declared first
        return False


class RestOfSession:
    """Requests what follows in a session that is over, as long as no adapter has said where it ends.

    The merge itself requests what it knows to be missing.

    Attributes:
        requested: the newest request.
    """

    def __init__(self, config: MergerConfig) -> None:
        self.requested: RequestReplay | None = None
        self._request_at_ns = 0
        self._config = config

    def next_deadline_ns(self, merger: StreamMerger) -> int | None:
        """When to request next."""
        return None if merger.has_missing_messages else self._request_at_ns

    def is_due(self, merger: StreamMerger, now_ns: int) -> bool:
        """Whether to request now."""
        return not merger.has_missing_messages and now_ns >= self._request_at_ns

    def request(self, merger: StreamMerger, channel_id: int, session: int, now_ns: int) -> RequestReplay:
        """The request for the next part."""
        self._request_at_ns = now_ns + self._config.retry_every_max_ns
        first = merger.next_input_seq or FIRST_SEQ
        part = (first, first + self._config.request_count_max)
        self.requested = RequestReplay(channel_id, (part,), copy_count=self._config.confirm, session=session)
        return self.requested

    def is_complete(self, merger: StreamMerger, now_ns: int) -> bool:
        """After an answer: True if it had nothing new, else the next part is due."""
        self._request_at_ns = now_ns
        assert self.requested is not None
        is_same = (merger.next_input_seq or FIRST_SEQ) == self.requested.input_ranges[0][0]
        return is_same and not merger.has_missing_messages
