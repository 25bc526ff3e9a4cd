"""The sessions of a feed at one adapter: the current session, the coming ones, and when the adapter changes session.

A session is an increasing number, in which all sequence numbers begin at 1 (docs/protocol.md clause 10). The adapter
that decides begins the next session when it knows of a later one, and the current one has ended on every source stream
or its grace time is over. Any other adapter begins it when an adapter was heard in a later session, and it has applied
all of the current one or the grace time is over. No adapter returns to an earlier session.

Invariant: no effect of a session follows an effect of a later session, except the repeated final heartbeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.deadlines import earliest
from tandemfeed.feedcore.replica.config import EngineConfig, SessionState
from tandemfeed.feedcore.replica.effects import AdapterEffect, AppendToJournal, SessionBegun, Transmit
from tandemfeed.feedcore.replica.output.converter import Converter
from tandemfeed.feedcore.replica.output.production import ProductionLine
from tandemfeed.feedcore.replica.replica import ChannelReplica
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.output_packet import FROM_ACTIVE_BIT, OutputPacket
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal

COMING_MAX = 2  # later sessions held: the next one, and the one after it in case its source starts early
FINAL_HEARTBEAT_OFTEN_NS = (
    1_000_000_000  # for this long, repeated with every heartbeat, so that its loss is improbable,
)
FINAL_HEARTBEAT_EVERY_NS = 1_000_000_000  # then this often, so that a client that was paused still receives it
FINAL_HEARTBEATS_KEPT = COMING_MAX  # sessions: a client may hold as many session changes
AWAY = (ReplicaState.JOINING, ReplicaState.FAILED)


class NotActive(Exception):
    """This adapter cannot answer; ask the active adapter, which the admin server names."""


class SessionReplicas:
    """The replicas of the session `config.session` at this adapter.

    A session that has not begun here has replicas too. They have no place in their channels, so they only hold what
    they receive, within the limits of any joining replica. The sessions share the converters (by channel_id), and only
    the current session uses them.

    Attributes:
        readers: by source_stream_id, the replicas of the channels that read it, and one of their converters, which
            checks its packets for all of them.
    """

    def __init__(
        self, config: EngineConfig, converters: Mapping[int, Converter], counters: CounterSet, now_ns: int
    ) -> None:
        self.session = config.session
        self.heard_at_ns = now_ns
        self.adapter_heard_at_ns: int | None = None
        self.replicas: dict[int, ChannelReplica] = {}
        self.readers: dict[int, tuple[Converter, list[ChannelReplica]]] = {}
        for channel in config.channels:
            converter = converters[channel.channel_id]
            line = ProductionLine(config, channel, converter, counters)
            replica = ChannelReplica(channel.channel_id, line, config.replica, counters, now_ns)
            self.replicas[channel.channel_id] = replica
            for stream in channel.source_stream_ids:
                self.readers.setdefault(stream, (converter, []))[1].append(replica)

    def on_own_pause(self, pause_ns: int) -> None:
        """This process was paused."""
        self.heard_at_ns += pause_ns
        if self.adapter_heard_at_ns is not None:
            self.adapter_heard_at_ns += pause_ns
        for replica in self.replicas.values():
            replica.on_own_pause(pause_ns)

    @property
    def is_complete(self) -> bool:
        """True if this adapter has applied all of the session."""
        return all(replica.channel.is_at_end for replica in self.replicas.values())


class Sessions:
    """The current session of an adapter, the previous one, and the coming ones.

    Attributes:
        former: the previous session, which still answers requests for its decisions.
        coming: by session; empty while no later session is known.
    """

    def __init__(
        self, config: EngineConfig, converters: Mapping[int, Converter], counters: CounterSet, now_ns: int
    ) -> None:
        self._config, self._converters, self._counters = config, converters, counters
        self._described = config.session  # the greatest session that the admin server vouches for
        self.current = SessionReplicas(config, converters, counters, now_ns)
        self.former: SessionReplicas | None = None
        self.coming: dict[int, SessionReplicas] = {}
        self._look_at_ns = 0
        self._begun_at_ns = now_ns
        self._final_heartbeats: list[OutputPacket] = []
        self._final_heartbeats_at_ns = self._final_heartbeats_often_until_ns = 0
        self._initial: dict[int, bytes] = {}
        if config.session_state is SessionState.RESET:
            self._initial = {channel_id: converter.snapshot() for channel_id, converter in converters.items()}

    def of(self, session: int, *, or_former: bool = False) -> SessionReplicas:
        """The replicas of a session: 0 or the current one or, with `or_former`, the previous one.

        Raises:
            NotActive: it is a different session.
        """
        if session in (0, self.current.session):
            return self.current
        if or_former and self.former is not None and session == self.former.session:
            return self.former
        current = f"adapter {self._config.adapter_id} is in session {self.current.session}"
        raise NotActive(f"session {session} was requested, but {current}")

    def on_source_session(self, session: int, now_ns: int) -> SessionReplicas:
        """Note a source packet of a session other than the current one, and return that session's replicas.

        Raises:
            PacketRefused: WRONG_SESSION: the session is over, or too many later sessions are held.
        """
        coming = self._on_session(session, now_ns)
        for replica in self.current.replicas.values():
            replica.channel.seek_end(now_ns)
        return coming

    def on_described(self, session: int) -> None:
        """The admin server describes the feed by this session, so adapters may be in it."""
        self._described = max(self._described, session)

    def on_adapter_session(self, session: int, now_ns: int) -> SessionReplicas:
        """Note an authentic message of an adapter in another session; returns as `on_source_session`.

        Raises:
            PacketRefused: WRONG_SESSION as there; UNVOUCHED: a later session that neither the source has been heard in
                nor the admin server describes.
        """
        if session > max(self._described, self.current.session) and session not in self.coming:
            raise PacketRefused(Refusal.UNVOUCHED, f"session {session}, of which the source has sent nothing")
        for skipped in [each for each in self.coming if each < session]:
            del self.coming[skipped]  # the feed has passed it, so it cannot begin any more
        coming = self._on_session(session, now_ns)
        if coming.adapter_heard_at_ns is None:
            coming.adapter_heard_at_ns = now_ns
        return coming

    def _on_session(self, session: int, now_ns: int) -> SessionReplicas:
        if session in self.coming:
            return self.coming[session]
        is_left = any(session < each.session and each.adapter_heard_at_ns is not None for each in self.coming.values())
        if session < self.current.session or is_left or len(self.coming) >= COMING_MAX:
            raise PacketRefused(Refusal.WRONG_SESSION, f"session {session}, current is {self.current.session}")
        config = replace(self._config, session=session)
        self.coming[session] = SessionReplicas(config, self._converters, self._counters, now_ns)
        return self.coming[session]

    def change_if_due(self, epoch: int, now_ns: int) -> list[AdapterEffect]:
        """Begin the next session if it is due. `epoch`: the epoch in which this adapter decides, or 0."""
        effects: list[AdapterEffect] = []
        while self.coming:
            self._look_at_ns = now_ns + self._config.replica.heartbeat_interval_ns
            coming = self.coming[min(self.coming)]
            if not self._may_leave_for(coming, epoch, effects, now_ns):
                break
            self._begin(coming, epoch, effects, now_ns)
        return effects

    def _may_leave_for(self, coming: SessionReplicas, epoch: int, effects: list[AdapterEffect], now_ns: int) -> bool:
        replicas, grace_ns = self.current.replicas.values(), self._config.session_grace_ns
        if not epoch:
            if coming.adapter_heard_at_ns is None:
                return False
            is_done = all(replica.state in AWAY or replica.channel.is_at_end for replica in replicas)
            return is_done or now_ns >= max(coming.adapter_heard_at_ns, self._begun_at_ns) + grace_ns
        if any(replica.state is not ReplicaState.ACTIVE for replica in replicas):
            return False  # an epoch is about to begin
        grace_ends_ns = max(coming.heard_at_ns, self._begun_at_ns) + grace_ns
        if now_ns >= grace_ends_ns:
            for replica in replicas:
                if not replica.channel.is_at_end:
                    effects += replica.conclude(grace_ends_ns + grace_ns, now_ns)
        return self.current.is_complete and not any(replica.is_holding for replica in replicas)

    def _begin(self, new: SessionReplicas, epoch: int, effects: list[AdapterEffect], now_ns: int) -> None:
        old = self.current
        del self.coming[new.session]
        for replica in old.replicas.values():
            heartbeat = replica.final_heartbeat(now_ns)
            if heartbeat is not None:
                repeated = heartbeat._replace(flags=heartbeat.flags & ~FROM_ACTIVE_BIT)
                effects += (AppendToJournal(repeated), Transmit(heartbeat))
                self._final_heartbeats.append(repeated)
        self._repeat_final_heartbeats(now_ns + self._config.replica.heartbeat_interval_ns, now_ns)
        self.former, self.current, self._begun_at_ns = old, new, now_ns
        effects.append(SessionBegun(old.session, new.session, old.is_complete))
        for channel_id, replica in new.replicas.items():
            before = old.replicas[channel_id]
            if epoch and self._config.session_state is SessionState.CARRY:
                replica.discard_other_history(before)
            effects += replica.begin_session(before, self._state_to_begin_with(channel_id, epoch), epoch, now_ns)

    def _state_to_begin_with(self, channel_id: int, epoch: int) -> bytes | None:
        """The conversion state with which a channel's session begins; None if it must come from a snapshot.

        If sessions carry the state over, a backup cannot know whether it missed a whole session in between.
        """
        if self._config.session_state is SessionState.RESET:
            return self._initial[channel_id]
        return self._converters[channel_id].snapshot() if epoch else None

    def on_own_pause(self, pause_ns: int) -> None:
        """This process was paused: the rest of a session, and the other adapters, have as much longer."""
        self._begun_at_ns += pause_ns
        for each in (self.current, *self.coming.values()):
            each.on_own_pause(pause_ns)

    def resume_final_heartbeats(self, heartbeats: Iterable[OutputPacket], now_ns: int) -> None:
        """Take the final heartbeats that this adapter's previous process sent in earlier sessions."""
        earlier = (heartbeat for heartbeat in heartbeats if heartbeat.session < self.current.session)
        self._final_heartbeats = sorted(earlier, key=lambda heartbeat: heartbeat.session)
        self._repeat_final_heartbeats(now_ns, now_ns)

    def _repeat_final_heartbeats(self, at_ns: int, now_ns: int) -> None:
        """Keep the final heartbeats of the newest sessions, and repeat them often again, from `at_ns` on."""
        kept = sorted({heartbeat.session for heartbeat in self._final_heartbeats})[-FINAL_HEARTBEATS_KEPT:]
        self._final_heartbeats = [heartbeat for heartbeat in self._final_heartbeats if heartbeat.session in kept]
        self._final_heartbeats_at_ns, self._final_heartbeats_often_until_ns = at_ns, now_ns + FINAL_HEARTBEAT_OFTEN_NS

    def on_timer(self, now_ns: int) -> list[AdapterEffect]:
        """The final heartbeats of earlier sessions, when they are due."""
        if not self._final_heartbeats or now_ns < self._final_heartbeats_at_ns:
            return []
        is_often = now_ns < self._final_heartbeats_often_until_ns
        pause_ns = self._config.replica.heartbeat_interval_ns if is_often else FINAL_HEARTBEAT_EVERY_NS
        self._final_heartbeats_at_ns = now_ns + pause_ns
        return [Transmit(heartbeat) for heartbeat in self._final_heartbeats]

    def next_deadline_ns(self) -> int | None:
        """When to call `on_timer` and `change_if_due`."""
        return earliest(
            self._look_at_ns if self.coming else None, self._final_heartbeats_at_ns if self._final_heartbeats else None
        )
