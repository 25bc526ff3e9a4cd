"""The sessions of a feed as one adapter goes through them: which it is in, which are to come, and when it goes on.

A session is a growing number; within it all sequence numbers begin at 1 (docs/protocol.md clause 10). The adapter that
decides goes on when a later session was heard of and the present one has ended on every source stream, or has had its
grace. Every other adapter goes on when an adapter was heard in a later session and it has applied the present one, or
has had its grace. No adapter ever goes back.

Invariant: no effect of a session comes after an effect of a later one, but for the last word of the session before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from feedcore.counters import CounterSet
from feedcore.replica.config import EngineConfig, SessionState
from feedcore.replica.converter import Converter
from feedcore.replica.effects import AdapterEffect, AppendToJournal, SessionBegun, Transmit
from feedcore.replica.production import LineConfig, ProductionLine
from feedcore.replica.replica import ChannelReplica
from feedcore.replica.states import ReplicaState
from feedcore.wire.output_packet import FROM_ACTIVE_BIT, OutputPacket
from feedcore.wire.refusal import PacketRefused, Refusal

COMING_MAX = 2  # sessions that may be held: the next one, and one after it whose source is quick
LAST_WORD_OFTEN_NS = 1_000_000_000  # with every heartbeat for so long, so that its loss is improbable,
LAST_WORD_EVERY_NS = 1_000_000_000  # then this often: a client that was paused must still learn it
LAST_WORDS_KEPT = COMING_MAX  # sessions: a client may hold as many changes
AWAY = (ReplicaState.JOINING, ReplicaState.FAILED)


class SessionReplicas:
    """Everything of one session at this adapter.

    A session that has not begun here has replicas as well: they have no place in their channels, so they only hold what
    is heard, within the limits of any replica that joins.

    Args:
        converters: per channel_id; the sessions share them, and only the session that an adapter is in uses them.
        now_ns: the monotonic clock.
    """

    def __init__(
        self,
        session: int,
        config: EngineConfig,
        converters: Mapping[int, Converter],
        counters: CounterSet,
        now_ns: int,
    ) -> None:
        self.session = session
        self.replicas: dict[int, ChannelReplica] = {}
        self.by_stream: dict[int, tuple[ChannelReplica, Converter]] = {}
        for channel in config.channels:
            converter = converters[channel.channel_id]
            line_config = LineConfig(
                config.feed_id,
                channel.channel_id,
                config.adapter_id,
                session,
                channel.source_stream_ids,
                config.datagram_size_max,
                config.replica.digest_interval_messages,
            )
            line = ProductionLine(line_config, converter, counters)
            replica = ChannelReplica(channel.channel_id, line, config.replica, counters, now_ns)
            self.replicas[channel.channel_id] = replica
            for stream in channel.source_stream_ids:
                self.by_stream[stream] = replica, converter


class Sessions:
    """Args: converters: as the engine's, in the state that a feed begins with."""

    def __init__(
        self, config: EngineConfig, converters: Mapping[int, Converter], counters: CounterSet, now_ns: int
    ) -> None:
        self._config, self._converters, self._counters = config, converters, counters
        self.current = SessionReplicas(config.session, config, converters, counters, now_ns)
        self.former: SessionReplicas | None = None  # answers what is asked about its decisions
        self._coming: dict[int, SessionReplicas] = {}
        self._heard_at_ns: dict[int, int] = {}  # when a coming session was heard of first
        self._adapter_heard: dict[int, int] = {}  # when an adapter was heard in it first
        self._look_at_ns = 0
        self._begun_at_ns = now_ns
        self._last_words: dict[int, list[OutputPacket]] = {}  # by session
        self._last_words_at_ns = self._last_words_often_until_ns = 0
        self._initial: dict[int, bytes] = {}
        if config.session_state is SessionState.RESET:
            self._initial = {channel_id: converter.snapshot() for channel_id, converter in converters.items()}

    @property
    def is_change_ahead(self) -> bool:
        """True once a later session has been heard of."""
        return bool(self._coming)

    def of(self, session: int) -> SessionReplicas | None:
        """The replicas of the present session (0 as well) or the one before it; None: of neither."""
        if session in (0, self.current.session):
            return self.current
        return self.former if self.former is not None and self.former.session == session else None

    # ---- what is heard ----

    def hear_source(self, session: int, now_ns: int) -> SessionReplicas:
        """The source speaks in another session than the present one: whose replicas to give it to.

        Raises:
            PacketRefused: WRONG_SESSION: it is over, or too many are to come.
        """
        coming = self._hear(session, now_ns)
        for replica in self.current.replicas.values():
            replica.channel.seek_end(now_ns)
        return coming

    def hear_adapter(self, session: int, now_ns: int) -> SessionReplicas:
        """An adapter speaks in another session than the present one, and is believed: whose replicas to give it to.

        Raises:
            PacketRefused: WRONG_SESSION: it is over, or too many are to come.
        """
        for skipped in [each for each in self._coming if each < session]:
            self._forget(skipped)  # the feed has left it: it cannot be entered any more
        coming = self._hear(session, now_ns)
        self._adapter_heard.setdefault(session, now_ns)
        return coming

    def _hear(self, session: int, now_ns: int) -> SessionReplicas:
        coming = self._coming.get(session)
        if coming is not None:
            return coming
        oldest_heard = min(self._adapter_heard, default=session)
        if session < self.current.session or session < oldest_heard or len(self._coming) >= COMING_MAX:
            raise PacketRefused(Refusal.WRONG_SESSION, f"session {session}, ours is {self.current.session}")
        coming = SessionReplicas(session, self._config, self._converters, self._counters, now_ns)
        self._coming[session] = coming
        self._heard_at_ns[session] = now_ns
        return coming

    def _forget(self, session: int) -> None:
        del self._coming[session], self._heard_at_ns[session]
        self._adapter_heard.pop(session, None)

    # ---- going on ----

    def go_on(self, epoch: int, now_ns: int) -> list[AdapterEffect]:
        """Begin the next session if it is time.

        Args:
            epoch: the epoch that this adapter decides in; 0: it does not.
        """
        effects: list[AdapterEffect] = []
        while self._coming:
            self._look_at_ns = now_ns + self._config.replica.heartbeat_interval_ns
            session = min(self._coming)
            if not (self._may_leave(session, epoch, effects, now_ns)):
                break
            self._begin(session, epoch, effects, now_ns)
        return effects

    def _may_leave(self, session: int, epoch: int, effects: list[AdapterEffect], now_ns: int) -> bool:
        replicas = self.current.replicas.values()
        if not epoch:
            heard_at_ns = self._adapter_heard.get(session)
            if heard_at_ns is None:
                return False
            is_done = all(replica.state in AWAY or replica.channel.is_at_end for replica in replicas)
            return is_done or now_ns - max(heard_at_ns, self._begun_at_ns) >= self._config.session_grace_ns
        if any(replica.state is not ReplicaState.ACTIVE for replica in replicas):
            return False  # an epoch is about to begin
        grace_ends_ns = max(self._heard_at_ns[session], self._begun_at_ns) + self._config.session_grace_ns
        if now_ns >= grace_ends_ns:
            for replica in replicas:
                if not replica.channel.is_at_end:
                    effects += replica.conclude(grace_ends_ns + self._config.session_grace_ns, now_ns)
        return all(replica.channel.is_at_end and not replica.is_holding for replica in replicas)

    def _begin(self, session: int, epoch: int, effects: list[AdapterEffect], now_ns: int) -> None:
        old, new = self.current, self._coming[session]
        self._forget(session)
        is_complete = all(replica.channel.is_at_end for replica in old.replicas.values())
        words: list[OutputPacket] = []
        for replica in old.replicas.values():
            word = replica.last_word(now_ns)
            if word is not None:
                repeated = word._replace(flags=word.flags & ~FROM_ACTIVE_BIT)
                effects += (AppendToJournal(repeated), Transmit(word))
                words.append(repeated)
        self._keep_last_words({**self._last_words, old.session: words})
        self._last_words_at_ns = now_ns + self._config.replica.heartbeat_interval_ns
        self._last_words_often_until_ns = now_ns + LAST_WORD_OFTEN_NS
        self.former, self.current, self._begun_at_ns = old, new, now_ns
        effects.append(SessionBegun(old.session, session, is_complete))
        for channel_id, replica in new.replicas.items():
            before = old.replicas[channel_id]
            if epoch and self._config.session_state is SessionState.CARRY:
                replica.forget_another_past(before)
            effects += replica.begin_session(before, self._state_to_begin_with(channel_id, epoch), epoch, now_ns)

    def _state_to_begin_with(self, channel_id: int, epoch: int) -> bytes | None:
        """None: only a snapshot of the active's will tell. Where the state is carried on, a backup cannot know whether
        a session that it never heard of lay in between."""
        if self._config.session_state is SessionState.RESET:
            return self._initial[channel_id]
        return self._converters[channel_id].snapshot() if epoch else None

    def resume_last_words(self, words: Iterable[OutputPacket], now_ns: int) -> None:
        """What this adapter's former life said last in the sessions before."""
        found: dict[int, list[OutputPacket]] = {}
        for word in words:
            if word.session < self.current.session:
                found.setdefault(word.session, []).append(word)
        self._keep_last_words(found)
        self._last_words_at_ns, self._last_words_often_until_ns = now_ns, now_ns + LAST_WORD_OFTEN_NS

    def _keep_last_words(self, words: dict[int, list[OutputPacket]]) -> None:
        self._last_words = {session: words[session] for session in sorted(words)[-LAST_WORDS_KEPT:] if words[session]}

    # ---- time ----

    def on_timer(self, now_ns: int) -> list[AdapterEffect]:
        """The last words of the sessions before, when they are due."""
        if not self._last_words or now_ns < self._last_words_at_ns:
            return []
        is_often = now_ns < self._last_words_often_until_ns
        pause_ns = self._config.replica.heartbeat_interval_ns if is_often else LAST_WORD_EVERY_NS
        self._last_words_at_ns = now_ns + pause_ns
        return [Transmit(word) for words in self._last_words.values() for word in words]

    def next_deadline_ns(self) -> int | None:
        """When to call `on_timer` and `go_on`."""
        due = [self._look_at_ns] if self._coming else []
        due += [self._last_words_at_ns] if self._last_words else []
        return min(due, default=None)
