"""The decisions of a leader: which followers to accept, what to send them and when, and what counts as replicated.

Pure: takes messages and times, returns effects. It reads no journal: the shell performs its requests (effects.py). It
must never count records that a follower did not acknowledge. Invariants:

- `replicated_index` only grows; beyond its start it is at most the position that `acks` followers acknowledged;
- bytes in flight to a follower exceed the window by one run or piece at most;
- the leader sends segments only after the follower's last ones were found equal, or no longer exist here;
- a follower is silent only while the leader runs: what arrived during a pause of the leader may wait to be read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tandemfeed.journal.format.control import Settings
from tandemfeed.journal.format.roll_cycle import RollCycle
from tandemfeed.journal.replication.effects import (
    CompareOne,
    CompareTail,
    Forget,
    LeaderEffect,
    LookUpOldest,
    ReadFrom,
    SendTo,
    ShowUntil,
)
from tandemfeed.journal.replication.limits import PIECE_SIZE_MAX, RUN_SIZE, Limits
from tandemfeed.journal.replication.running_time import RunningTime
from tandemfeed.journal.replication.states import PEER_MOVES, PeerState, check_move
from tandemfeed.journal.replication.wire.messages import (
    NO_ID,
    Acknowledge,
    FromLeader,
    Heartbeat,
    Hello,
    Message,
    Piece,
    Position,
    Probe,
    Probed,
    Reason,
    Refused,
    Segment,
    SegmentDigest,
    Segments,
    Welcome,
)

FOLLOWING = frozenset({PeerState.SENDING, PeerState.CAUGHT_UP})


@dataclass(slots=True)
class Peer:
    """One follower's connection."""

    session: int
    heard_at_ns: int  # by the time that the leader has run
    sent_at_ns: int
    state: PeerState = PeerState.GREETED
    follower_id: bytes = NO_ID
    next_index: int = 0  # after the last segment sent completely
    acked_index: int = 0
    sent_size: int = 0
    taken_size: int = 0
    is_reading: bool = False
    long: Segment | None = None  # sent in pieces, so far up to:
    long_offset: int = 0
    common_end: int = 0  # bisection: no difference before it
    search_end: int = 0
    differs_at: int = 0
    story: list[str] = field(default_factory=list)


class LeaderCore:
    """The core of a leader.

    Args:
        leader_id: the journal's id, 16 bytes.
        settings: of the journal.
        start_index: everything before it counts as replicated from the start.
        acks: how many followers must acknowledge a record for it to count as replicated.
    """

    def __init__(
        self, leader_id: bytes, settings: Settings, *, start_index: int, acks: int = 1, limits: Limits | None = None
    ) -> None:
        if acks < 1:
            raise ValueError(f"acks is {acks}; it must be at least 1")
        self._leader_id = leader_id
        self._settings = settings
        self._sequence_bits = RollCycle.named(settings.roll_cycle).sequence_bits
        self._acks = acks
        self._limits = limits or Limits()
        self._running = RunningTime(self._limits.heartbeat_interval_ns)
        self._positions: dict[bytes, int] = {}  # acknowledged by each known follower, the most recent last
        self.peers: dict[bytes, Peer] = {}
        self.replicated_index = start_index
        self.next_index = start_index
        self.violation_count = 0

    def next_deadline_ns(self) -> int | None:
        """When to call `on_timer` next; None: no deadline is set."""
        if not self.peers:
            return None
        limits, running = self._limits, self._running
        return min(
            running.next_look_ns(),
            *(running.monotonic_ns(peer.heard_at_ns + limits.silence_ns_max) for peer in self.peers.values()),
            *(peer.sent_at_ns + limits.heartbeat_interval_ns for peer in self.peers.values()),
        )

    def on_timer(self, now_ns: int) -> list[LeaderEffect]:
        """A deadline has passed: drop silent followers, send heartbeats to the others."""
        effects: list[LeaderEffect] = []
        running_ns = self._running.look(now_ns)
        for key, peer in list(self.peers.items()):
            if running_ns >= peer.heard_at_ns + self._limits.silence_ns_max:
                effects += self._drop(key, peer, "silent")
            elif now_ns >= peer.sent_at_ns + self._limits.heartbeat_interval_ns:
                peer.sent_at_ns = now_ns
                if peer.state in FOLLOWING:
                    effects.append(SendTo(key, Heartbeat(peer.session, self.next_index)))
        return effects

    def on_appended(self, next_index: int, now_ns: int) -> list[LeaderEffect]:
        """The journal now ends at `next_index`."""
        self._running.look(now_ns)
        self.next_index = max(next_index, self.next_index)
        effects: list[LeaderEffect] = []
        for key, peer in self.peers.items():
            if peer.state is PeerState.CAUGHT_UP:
                self._move(peer, PeerState.SENDING, "appended")
                effects += self._send_more(key, peer, now_ns)
        return effects

    def on_bad_message(self, key: bytes, text: str) -> list[LeaderEffect]:
        """An invalid frame arrived from a peer."""
        self.violation_count += 1
        peer = self.peers.get(key)
        return self._refuse(key, peer, Reason.VIOLATION, text) if peer is not None else []

    def on_read_failed(self, key: bytes, text: str) -> list[LeaderEffect]:
        """Reading for a peer failed; drop this peer only."""
        peer = self.peers.get(key)
        return self._refuse(key, peer, Reason.FAILED, text) if peer is not None else []

    def on_message(self, key: bytes, message: Message, now_ns: int) -> list[LeaderEffect]:
        """A message arrived from a peer."""
        peer = self.peers.get(key)
        if isinstance(message, Hello):
            return self._on_hello(key, peer, message, now_ns)
        if peer is None:
            text = "unknown session: the leader restarted, or closed this connection"
            return [SendTo(key, Refused(message.session, Reason.UNKNOWN_SESSION, 0, text))]
        if message.session != peer.session:
            return []  # stale
        peer.heard_at_ns = self._running.look(now_ns)
        if isinstance(message, Position) and peer.state is PeerState.GREETED:
            return self._on_position(key, peer, message)
        if isinstance(message, Probed) and peer.state is PeerState.BISECTING:
            return self._on_probed(key, peer, message)
        if isinstance(message, Acknowledge) and peer.state in FOLLOWING:
            return self._on_acknowledge(key, peer, message, now_ns)
        return self._violation(key, peer, f"{type(message).__name__} while {peer.state.value}")

    def on_oldest(self, key: bytes, oldest_index: int, now_ns: int) -> list[LeaderEffect]:
        """The result of LookUpOldest."""
        peer = self.peers.get(key)
        if peer is None or peer.state is not PeerState.GREETED:
            return []
        settings = self._settings
        peer.sent_at_ns = now_ns
        return [
            SendTo(
                key,
                Welcome(
                    peer.session,
                    self._leader_id,
                    settings.roll_cycle,
                    settings.epoch_offset_s,
                    settings.time_zone,
                    settings.block_size,
                    bool(settings.key_check),
                    oldest_index,
                ),
            )
        ]

    def on_tail_compared(self, key: bytes, differs_at: int | None, now_ns: int) -> list[LeaderEffect]:
        """The result of CompareTail.

        Args:
            differs_at: the first index of a segment that differs, or the end of this journal if the follower has more;
                None: the follower may continue from its position.
        """
        peer = self.peers.get(key)
        if peer is None or peer.state is not PeerState.COMPARING:
            return []
        if differs_at is not None:
            self._move(peer, PeerState.BISECTING, f"differs at {differs_at:#x}")
            peer.common_end, peer.search_end, peer.differs_at = 0, differs_at, differs_at
            return self._probe(key, peer)
        self._move(peer, PeerState.SENDING, "equal so far")
        peer.sent_at_ns = now_ns
        beat = SendTo(key, Heartbeat(peer.session, self.next_index))
        return [*self._note_position(peer, peer.next_index), beat, *self._send_more(key, peer, now_ns)]

    def on_one_compared(self, key: bytes, found: SegmentDigest, is_same: bool | None) -> list[LeaderEffect]:
        """The result of CompareOne; None if this journal no longer has that segment."""
        peer = self.peers.get(key)
        if peer is None or peer.state is not PeerState.BISECTING:
            return []
        middle = (peer.common_end + peer.search_end) // 2
        if is_same is False:
            peer.differs_at = min(peer.differs_at, found.first_index)
            peer.search_end = middle
        else:
            peer.common_end = max(found.next_index, middle + 1)
        return self._probe(key, peer)

    def on_read(self, key: bytes, segments: list[Segment], now_ns: int) -> list[LeaderEffect]:
        """The result of ReadFrom; empty if there are no more records yet."""
        peer = self.peers.get(key)
        if peer is None or not peer.is_reading:
            return []
        peer.is_reading = False
        if not segments:
            self._move(peer, PeerState.CAUGHT_UP, "nothing more")
            return []
        run: list[Segment] = []
        for segment in segments:
            if len(segment.body) > PIECE_SIZE_MAX:
                peer.long, peer.long_offset = segment, 0
                break  # the segments after it are read again
            run.append(segment)
        effects: list[LeaderEffect] = []
        if run:
            size = sum(len(each.body) for each in run)
            message = Segments(peer.session, peer.next_index, tuple(run))
            effects.append(self._send_counted(key, peer, message, size, now_ns))
            peer.next_index = run[-1].next_index(self._sequence_bits)
        return effects + self._send_more(key, peer, now_ns)

    # -- handshake ---------------------------------------------------------------------------------------------------

    def _on_hello(self, key: bytes, peer: Peer | None, message: Hello, now_ns: int) -> list[LeaderEffect]:
        effects = self._drop(key, peer, "another Hello") if peer is not None else []
        refused: Refused | None = None
        if message.leader_id not in (NO_ID, self._leader_id):
            text = f"this follower belongs to leader {message.leader_id.hex()}; this one is {self._leader_id.hex()}"
            refused = Refused(message.session, Reason.FOREIGN, 0, text)
        elif len(self.peers) >= self._limits.followers_max:
            text = f"this leader already serves {self._limits.followers_max} followers, the maximum"
            refused = Refused(message.session, Reason.TOO_MANY, 0, text)
        if refused is not None:
            return [*effects, SendTo(key, refused)]
        self.peers[key] = Peer(message.session, self._running.look(now_ns), now_ns)
        return [*effects, LookUpOldest(key)]

    def _on_position(self, key: bytes, peer: Peer, message: Position) -> list[LeaderEffect]:
        if message.follower_id == NO_ID:
            return self._violation(key, peer, "a follower without an id")
        effects: list[LeaderEffect] = []
        for other_key, other in list(self.peers.items()):  # its former connection, not yet known to be broken
            if other is not peer and other.follower_id == message.follower_id:
                effects += self._drop(other_key, other, "connected again")
        self._move(peer, PeerState.COMPARING, "position")
        peer.follower_id, peer.next_index = message.follower_id, message.next_index
        return [*effects, CompareTail(key, message.next_index, message.tail)]

    def _probe(self, key: bytes, peer: Peer) -> list[LeaderEffect]:
        if peer.common_end < peer.search_end:
            return [SendTo(key, Probe(peer.session, (peer.common_end + peer.search_end) // 2))]
        text = f"the follower's records differ from the leader's from index {peer.differs_at:#018x} on"
        return self._refuse(key, peer, Reason.DIVERGED, text, peer.differs_at)

    def _on_probed(self, key: bytes, peer: Peer, message: Probed) -> list[LeaderEffect]:
        middle, found = (peer.common_end + peer.search_end) // 2, message.found
        if message.index != middle or (found is not None and not middle < found.next_index):
            return self._violation(key, peer, f"answered for index {message.index:#x}; expected {middle:#x}")
        if found is None or found.first_index >= peer.search_end:
            peer.search_end = middle
            return self._probe(key, peer)
        return [CompareOne(key, found)]

    # -- sending -----------------------------------------------------------------------------------------------------

    def _send_more(self, key: bytes, peer: Peer, now_ns: int) -> list[LeaderEffect]:
        """Send as much as the window allows, then request the next read."""
        effects: list[LeaderEffect] = []
        while peer.state is PeerState.SENDING and not peer.is_reading:
            room = self._limits.window_size - (peer.sent_size - peer.taken_size)
            if room <= 0:
                break
            if peer.long is not None:
                effects.append(self._send_piece(key, peer, peer.long, now_ns))
            else:
                peer.is_reading = True
                effects.append(ReadFrom(key, peer.next_index, min(RUN_SIZE, room)))
        return effects

    def _send_piece(self, key: bytes, peer: Peer, long: Segment, now_ns: int) -> LeaderEffect:
        begin = peer.long_offset
        data = long.body[begin : begin + PIECE_SIZE_MAX]
        head = Segment(
            long.cycle, long.first_sequence, long.appended_at_ns, long.count_and_flags, long.record_size, b""
        )
        message = Piece(peer.session, peer.next_index, head, len(long.body), begin, data)
        peer.long_offset += len(data)
        if peer.long_offset == len(long.body):
            peer.long = None
            peer.next_index = long.next_index(self._sequence_bits)
        return self._send_counted(key, peer, message, len(data), now_ns)

    def _send_counted(self, key: bytes, peer: Peer, message: FromLeader, size: int, now_ns: int) -> LeaderEffect:
        peer.sent_size += size
        peer.sent_at_ns = now_ns
        return SendTo(key, message)

    def _on_acknowledge(self, key: bytes, peer: Peer, message: Acknowledge, now_ns: int) -> list[LeaderEffect]:
        if not peer.acked_index <= message.next_index <= peer.next_index:
            expected = f"{peer.acked_index:#x} to {peer.next_index:#x}"
            return self._violation(key, peer, f"acknowledged {message.next_index:#x}; expected {expected}")
        if not peer.taken_size <= message.taken_size <= peer.sent_size:
            return self._violation(key, peer, f"reported {message.taken_size} of {peer.sent_size} bytes received")
        peer.taken_size = message.taken_size
        return [*self._note_position(peer, message.next_index), *self._send_more(key, peer, now_ns)]

    def _note_position(self, peer: Peer, index: int) -> list[LeaderEffect]:
        peer.acked_index = index
        self._positions.pop(peer.follower_id, None)
        self._positions[peer.follower_id] = index
        if len(self._positions) > max(self._limits.followers_max, self._acks):
            del self._positions[next(iter(self._positions))]  # the one not heard from for the longest time
        if len(self._positions) < self._acks:
            return []
        held = sorted(self._positions.values(), reverse=True)[self._acks - 1]
        if held <= self.replicated_index:
            return []
        self.replicated_index = held
        return [ShowUntil(held)]

    # -- ends --------------------------------------------------------------------------------------------------------

    def _violation(self, key: bytes, peer: Peer, text: str) -> list[LeaderEffect]:
        self.violation_count += 1
        return self._refuse(key, peer, Reason.VIOLATION, text)

    def _refuse(self, key: bytes, peer: Peer, reason: Reason, text: str, index: int = 0) -> list[LeaderEffect]:
        refusal = SendTo(key, Refused(peer.session, reason, index, text))
        return [refusal, *self._drop(key, peer, text)]

    def _drop(self, key: bytes, peer: Peer, why: str) -> list[LeaderEffect]:
        self._move(peer, PeerState.GONE, why)
        del self.peers[key]
        return [Forget(key)]

    def _move(self, peer: Peer, state: PeerState, why: str) -> None:
        if state is not PeerState.SENDING or peer.state is not PeerState.CAUGHT_UP:  # too frequent to record
            peer.story = [*peer.story[-20:], f"{peer.state.value} -> {state.value}: {why}"]
        check_move(PEER_MOVES, peer.state, state, peer.story)
        peer.state = state
